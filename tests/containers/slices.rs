//! Docker in its default configuration, on a machine with systemd: it puts containers only into slices, so a claim
//! with one has a slice.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::support::machine::Machine;
use super::support::{FULL, GSHARE, Raw, SOON, until};
use super::{Image, libraries};

const PROGRAMS: [&str; 5] = [
    "/usr/sbin/dockerd",
    "/usr/bin/docker",
    "/usr/bin/containerd",
    "/usr/bin/containerd-shim-runc-v2",
    "/usr/sbin/runc",
];
const DAEMON: &str = "systemd-run -q --unit=docker -p Type=notify -p Delegate=yes dockerd --iptables=false \
                      --ip6tables=false --bridge=none --storage-driver=vfs";
const RUN: &str = "docker run --rm -i --network=none --pid=host --ulimit=nofile=1024:1024";

/// A machine with gshare and this machine's docker, and the image in it.
fn machine(test: &str, image: &Image) -> Option<Machine> {
    if let Some(missing) = PROGRAMS.iter().find(|p| !Path::new(p).exists()) {
        println!("skipped: {test} needs {missing}");
        return None;
    }
    let machine = Machine::boot(test, false)?;
    machine.simulate(&["rtx4090", "h100"]);
    machine.copy(Path::new(GSHARE), "/root/gshare");
    for program in PROGRAMS.map(Path::new) {
        for file in libraries(program)
            .iter()
            .map(PathBuf::as_path)
            .chain([program])
        {
            let to = file.display().to_string();
            if !machine.path(&to).exists() {
                machine.copy(file, &to);
            }
        }
    }
    image.save(&machine.path("/root/image.tar"));
    machine.ok("groupadd docker && usermod -aG docker ada");
    machine.ok(&format!("{DAEMON} && docker load -q -i /root/image.tar"));
    assert_eq!(
        machine.ok("docker info --format '{{.CgroupDriver}}'"),
        "systemd"
    );
    machine.ok("/root/gshare setup && gshare admin stage 3");
    Some(machine)
}

fn of_ada(machine: &Machine, line: &str) -> Command {
    machine.command(&format!(
        "exec runuser -u ada -- env GSHARE_SIM_BOARD=/opt/sim/board {line}"
    ))
}

fn claims(machine: &Machine) -> Vec<serde_json::Value> {
    let output = machine.run("gshare ps --json");
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    value["claims"].as_array().cloned().unwrap_or_default()
}

#[test]
fn docker_as_it_comes_is_counted_without_a_claim_and_held_in_one() {
    let test = "docker_as_it_comes_is_counted_without_a_claim_and_held_in_one";
    let Some(image) = Image::make("slice") else {
        return;
    };
    let Some(machine) = machine(test, &image) else {
        return;
    };
    let slice = "gshare-claims-1000-1.slice";
    let dir =
        format!("/sys/fs/cgroup/gshare.slice/gshare-claims.slice/gshare-claims-1000.slice/{slice}");
    let claim = format!(
        "gshare claim -q -g 0.25 -- {RUN} --name trainer {} /raw_client",
        image.0
    );
    let mut raw = Raw::start(of_ada(&machine, &claim));
    let seen = until("the container is named", SOON, || {
        let seen = claims(&machine).into_iter().next()?;
        (seen["containers"][0] == "trainer").then_some(seen)
    });
    assert_eq!(seen["uid"], 1000);
    let limit = seen["gpus"][0]["mem_limit"].as_u64().expect("a limit");
    assert_eq!(raw.info().1, limit);
    let refused = raw.ask(&format!("alloc {limit}"));
    assert_eq!(refused, FULL);
    assert_eq!(raw.ask("alloc 67108864"), "ok 0");
    assert_eq!(
        (raw.ask("launch 1"), raw.ask("count")),
        ("ok 1".into(), "ok 1".into())
    );
    let cgroup = |pid: u64| machine.ok(&format!("grep ^0:: /proc/{pid}/cgroup"));
    let program = seen["pid"].as_u64().expect("its command");
    assert!(
        cgroup(program).ends_with(&format!("{slice}/claim")),
        "{}",
        cgroup(program)
    );
    let members = until("it is a member", SOON, || {
        let seen = claims(&machine).into_iter().next()?;
        let members: Vec<u64> = seen["members"]
            .as_array()?
            .iter()
            .filter_map(serde_json::Value::as_u64)
            .collect();
        (seen["gpus"][0]["mem_charge"].as_u64()? > 64 << 20).then_some(members)
    });
    let inside = |pid: &u64| cgroup(*pid).contains(&format!("{slice}/docker-"));
    assert!(members.iter().any(inside), "{members:?}");

    // A restarted service knows it, and another container joins.
    machine.ok("systemctl restart gshared");
    assert_eq!(raw.ask("launch 1"), "ok 2");
    let join = format!(
        "gshare join -q c1 -- {RUN} --name second {} /raw_client",
        image.0
    );
    let mut second = Raw::start(of_ada(&machine, &join));
    assert_eq!(second.info().1, limit, "one limit for both");
    let names = until("both are named", SOON, || {
        let seen = claims(&machine).into_iter().next()?;
        let names = seen["containers"].as_array()?.clone();
        (names.len() == 2).then_some(names)
    });
    assert_eq!(names, ["second", "trainer"]);
    assert_eq!(second.finish(), Some(0));

    // Ending the claim ends its programs, and the slice.
    machine.ok("gshare admin kill c1 --grace 0");
    assert_eq!(raw.ask("info"), "", "the container has ended");
    until("the slice is gone", SOON, || {
        let gone = claims(&machine).is_empty() && !machine.path(&dir).exists();
        gone.then_some(())
    });

    // Without a claim: counted and named.
    let bare = format!(
        "{RUN} --name bare -v /opt/sim:/opt/sim -e LD_LIBRARY_PATH=/opt/sim/lib -e GSHARE_SIM_BOARD=/opt/sim/board {} /raw_client",
        image.0
    );
    let mut raw = Raw::start(machine.command(&format!("exec {bare}")));
    assert_eq!(raw.ask("alloc 536870912"), "ok 0");
    until("it is counted and named", SOON, || {
        let all = claims(&machine);
        let counted = all.iter().find(|c| c["adopted"] == true)?;
        let used = counted["gpus"][0]["mem_used"].as_u64()? >= 512 << 20;
        (counted["containers"][0] == "bare" && used).then_some(())
    });
    assert_eq!(raw.finish(), Some(0));
}

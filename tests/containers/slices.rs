//! Docker on a machine with systemd. As it comes, it puts containers only into slices, so a claim with one has a slice;
//! with the driver `cgroupfs` they are below the claim's own control group.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::support::machine::Machine;
use super::support::{FULL, GSHARE, Raw, SOON, until};
use super::{Image, libraries};

const PROGRAMS: [&str; 6] = [
    "/usr/sbin/dockerd",
    "/usr/bin/docker",
    "/usr/bin/containerd",
    "/usr/bin/containerd-shim-runc-v2",
    "/usr/sbin/runc",
    "/usr/libexec/docker/cli-plugins/docker-compose",
];
const DAEMON: &str = "systemd-run -q --unit=docker -p Type=notify -p Delegate=yes dockerd --iptables=false \
                      --ip6tables=false --bridge=none --storage-driver=vfs --exec-opt=native.cgroupdriver=";
/// The rights of `--privileged` on a machine without one of them, such as a container.
const ALL_RIGHTS: &str = "--cap-add=ALL --cap-drop=SYS_RESOURCE --security-opt=seccomp=unconfined \
                          --security-opt=systempaths=unconfined --userns=host --cgroupns=host \
                          --device-cgroup-rule='a *:* rwm' --volume=/dev:/dev";
const RUN: &str = "docker run --rm -i --network=none --pid=host --ulimit=nofile=1024:1024";

/// A project of docker compose that requests GPUs itself.
fn project(image: &str) -> String {
    format!(
        "name: gshare-test\nservices:\n  one:\n    image: {image}\n    command: [\"/raw_client\"]\n    network_mode: none\n    \
         pid: host\n    stdin_open: true\n    ulimits: {{nofile: 1024}}\n    deploy: {{resources: {{reservations: {{devices: \
         [{{driver: nvidia, count: all, capabilities: [gpu]}}]}}}}}}\n"
    )
}

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
    machine.ok("/root/gshare setup && gshare admin stage 3");
    Some(machine)
}

fn of_ada(machine: &Machine, line: &str) -> Command {
    machine.command(&format!(
        "exec runuser -u ada -- env HOME=/home/ada GSHARE_SIM_BOARD=/opt/sim/board {line}"
    ))
}

/// The claim of a container that has a limit, and uses the GPU.
fn limited(machine: &Machine, raw: &mut Raw) -> serde_json::Value {
    let seen = until("the container is named", SOON, || {
        let seen = machine.claims().into_iter().next()?;
        (seen["containers"].as_array()?.len() == 1).then_some(seen)
    });
    let limit = seen["gpus"][0]["mem_limit"].as_u64().expect("a limit");
    assert_eq!(raw.info().1, limit);
    assert_eq!(raw.ask(&format!("alloc {limit}")), FULL);
    assert_eq!(raw.ask("alloc 67108864"), "ok 0");
    assert_eq!(
        (raw.ask("launch 1"), raw.ask("count")),
        ("ok 1".into(), "ok 1".into())
    );
    seen
}

fn cgroup(machine: &Machine, pid: u64) -> String {
    machine.ok(&format!("grep ^0:: /proc/{pid}/cgroup"))
}

/// A member of the first claim is there.
fn inside(machine: &Machine, place: &str) {
    let members = until("it is a member", SOON, || {
        let seen = machine.claims().into_iter().next()?;
        let members = seen["members"].as_array()?.clone();
        (seen["gpus"][0]["mem_charge"].as_u64()? > 64 << 20).then_some(members)
    });
    let mut members = members.iter().filter_map(serde_json::Value::as_u64);
    assert!(
        members.any(|pid| cgroup(machine, pid).contains(place)),
        "{place}"
    );
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
    let ends = |raw: Raw| {
        assert_eq!(raw.finish(), Some(0));
        until("its claim has ended", SOON, || machine.claims().is_empty());
    };
    std::fs::write(machine.path("/home/ada/compose.yml"), project(&image.0)).expect("written");
    let run = format!("{RUN} --name trainer {} /raw_client", image.0);
    let compose = "docker compose -f /home/ada/compose.yml run --rm -T one".to_owned();
    for (driver, place) in [("cgroupfs", "/claim-"), ("systemd", ".slice/docker-")] {
        machine.run("systemctl stop docker");
        machine.ok(&format!(
            "{DAEMON}{driver} && docker load -q -i /root/image.tar"
        ));
        for command in [&run, &compose] {
            let claim = format!("gshare claim -q -g 0.25 -- {command}");
            let mut raw = Raw::start(of_ada(&machine, &claim));
            limited(&machine, &mut raw);
            inside(&machine, place);
            ends(raw);
        }
    }

    let slice = "gshare-claims-1000-5.slice";
    let dir =
        format!("/sys/fs/cgroup/gshare.slice/gshare-claims.slice/gshare-claims-1000.slice/{slice}");
    let claim = format!("gshare claim -q -g 0.25 -- {run}");
    let mut raw = Raw::start(of_ada(&machine, &claim));
    let seen = limited(&machine, &mut raw);
    assert_eq!(seen["containers"], serde_json::json!(["trainer"]));
    assert_eq!(seen["uid"], 1000);
    let limit = &seen["gpus"][0]["mem_limit"];
    let program = seen["pid"].as_u64().expect("its command");
    let home = cgroup(&machine, program);
    assert!(home.ends_with(&format!("{slice}/claim")), "{home}");
    inside(&machine, &format!("{slice}/docker-"));

    // A restarted service knows it, and another container joins.
    machine.ok("systemctl restart gshared");
    assert_eq!(raw.ask("launch 1"), "ok 2");
    let join = format!(
        "gshare join -q c5 -- {RUN} --name second {} /raw_client",
        image.0
    );
    let mut second = Raw::start(of_ada(&machine, &join));
    assert_eq!(limit.as_u64(), Some(second.info().1), "one limit for both");
    let names = until("both are named", SOON, || {
        let seen = machine.claims().into_iter().next()?;
        let names = seen["containers"].as_array()?.clone();
        (names.len() == 2).then_some(names)
    });
    assert_eq!(names, ["second", "trainer"]);
    assert_eq!(second.finish(), Some(0));

    // Ending the claim ends its programs, and the slice.
    machine.ok("gshare admin kill c5 --grace 0");
    assert_eq!(raw.ask("info"), "", "the container has ended");
    until("the slice is gone", SOON, || {
        machine.claims().is_empty() && !machine.path(&dir).exists()
    });

    // With all rights and the socket a container is no administrator.
    let socket = "-v /usr/local/bin:/g:ro -v /run/gshare:/s -e GSHARE_SOCKET=/s/gshared.sock";
    for rights in ["--privileged", ALL_RIGHTS] {
        for claim in ["", "gshare claim -q -g 0.25 --"] {
            let words = format!("{rights} {socket} {} /g/gshare admin drain 1", image.0);
            let output = of_ada(&machine, &format!("{claim} {RUN} {words}")).output();
            let output = output.expect("runs");
            let said = String::from_utf8_lossy(&output.stderr);
            if rights == "--privileged" && said.contains("unable to apply caps") {
                println!("left out: docker starts nothing with {rights} on this machine");
                continue;
            }
            assert_eq!(output.status.code(), Some(77), "{claim} {rights}: {said}");
        }
    }

    // Without a claim: counted and named.
    let bare = format!(
        "{RUN} --name bare -v /opt/sim:/opt/sim -e LD_LIBRARY_PATH=/opt/sim/lib -e GSHARE_SIM_BOARD=/opt/sim/board {} /raw_client",
        image.0
    );
    let mut raw = Raw::start(machine.command(&format!("exec {bare}")));
    assert_eq!(raw.ask("alloc 536870912"), "ok 0");
    until("it is counted and named", SOON, || {
        let all = machine.claims();
        let counted = all.iter().find(|c| c["adopted"] == true)?;
        let used = counted["gpus"][0]["mem_used"].as_u64()? >= 512 << 20;
        (counted["containers"][0] == "bare" && used).then_some(())
    });
    assert_eq!(raw.finish(), Some(0));
}

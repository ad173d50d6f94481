//! Many launches, and a service that dies during them.

use std::process::{Child, Stdio};
use std::time::Duration;

use super::support::users::{Users, as_user};
use super::support::{Random, Raw, claim_of, until};
use super::{client, desk, said, station};
use crate::support::{SOON, all_ended, has_all};
use gshare::station::Station;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Prints its claim's number, its cgroup, whether the proxy covers the driver, and the kernel's answer when it opens
/// a GPU outside its grant. Builtins only.
const LOOK: &str = r#"
while read -r line; do case $line in 0::*) at=${line##*/};; esac; done </proc/self/cgroup
over=no; [ "$1" -ef "$2" ] && over=yes
denied=$( { true <"$3"; } 2>&1)
echo "$GSHARE_CLAIM_ID $at $over ${denied##*: }"
"#;

fn look(station: &Station, uid: u32) -> std::process::Command {
    let mut command = station.command();
    command
        .args("claim -q -g 0.01 --gpu-ids 0 -- sh -c".split(' '))
        .args([LOOK, "look"])
        .arg(station.sim_dir().join("lib/libcuda.so.1"))
        .arg(station.dir().join("run/lib/strict/libcuda.so.1"))
        .arg(station.sim_dir().join("dev/nvidia1"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    as_user(command, uid)
}

fn is_right(child: Child) {
    let output = child.wait_with_output().expect("ends");
    let (told, why) = said(&output);
    let id = told.split(' ').next().unwrap_or_default();
    let expect = format!("{id} claim-{id} yes Operation not permitted\n");
    assert!(
        !id.is_empty() && told == expect,
        "{told:?} {why:?} {:?}",
        output.status
    );
}

#[test]
fn a_thousand_launches_by_four_users_are_all_where_they_belong() {
    super::support::root!("a_thousand_launches_by_four_users_are_all_where_they_belong");
    let (users, station) = (Users::some(4), station());
    std::thread::scope(|scope| {
        for user in 0..4 {
            let (station, uid) = (&station, users.uid(user));
            for _ in 0..4 {
                scope.spawn(move || {
                    let mut running: Vec<Child> = Vec::new();
                    for launch in 0..63 {
                        running.push(look(station, uid).spawn().expect("starts"));
                        if launch % 3 == 2 {
                            running.drain(..).for_each(is_right);
                        }
                    }
                    running.drain(..).for_each(is_right);
                });
            }
        }
    });
    all_ended(&station);
}

#[test]
fn a_service_killed_while_commands_are_launched_leaves_none_outside() {
    let Some((users, mut station)) =
        desk("a_service_killed_while_commands_are_launched_leaves_none_outside")
    else {
        return;
    };
    let mut random = Random::new("a_service_killed_while_commands_are_launched");
    for round in 0..12 {
        let running: Vec<Child> = (0..3)
            .map(|user| look(&station, users.uid(user)).spawn().expect("starts"))
            .collect();
        std::thread::sleep(Duration::from_micros(random.below(30_000)));
        station.stop_service(Signal::SIGKILL).expect("killed");
        station
            .start_service()
            .unwrap_or_else(|e| panic!("round {round}: {e:#}"));
        for child in running {
            let output = child.wait_with_output().expect("ends");
            let (told, why) = said(&output);
            // It had not connected when the service died.
            if output.status.code() == Some(69) && told.is_empty() {
                continue;
            }
            let id = told.split(' ').next().unwrap_or_default().to_owned();
            let expect = format!("{id} claim-{id} yes Operation not permitted\n");
            assert_eq!(told, expect, "round {round}: {why}");
        }
    }
}

#[test]
fn a_service_killed_at_every_step_of_a_launch_leaves_nobody_outside() {
    let test = "a_service_killed_at_every_step_of_a_launch_leaves_nobody_outside";
    let Some((users, mut station)) = desk(test) else {
        return;
    };
    let client = client(&station);
    let uid = users.uid(0);
    super::support::steps::each(&mut station, &client, true, |station, words| {
        let mut command = station.command();
        command.args(words);
        as_user(command, uid)
    });
}

#[test]
fn a_launch_waits_for_a_service_that_is_being_restarted() {
    let Some((users, mut station)) = desk("a_launch_waits_for_a_service_that_is_being_restarted")
    else {
        return;
    };
    let client = client(&station);
    let held = super::held(&station, super::claim(&station, users.uid(0), &[&client]));
    let id = claim_of(&station.snapshot().expect("served"), held.pid())
        .expect("listed")
        .id
        .clone();
    // The service is stopped: the launcher has asked and has no answer when the service dies.
    let service = Pid::from_raw(station.service_pid().expect("runs").cast_signed());
    let launcher = station.dir().join("lib/gshare/gshare-exec");
    let fd = super::hostile::sound();
    let number = std::os::fd::AsRawFd::as_raw_fd(&fd).to_string();
    kill(service, Signal::SIGSTOP).expect("stopped");
    let driver = station.sim_dir().join("lib/libcuda.so.1");
    let mut direct = std::process::Command::new(&launcher);
    direct
        .args([id.trim_start_matches('c'), &number, "--", &client])
        .arg(&driver);
    let mut raw = Raw::spawn(&mut as_user(direct, users.uid(0)));
    let pid = raw.pid();
    until("it has connected", SOON, || {
        let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
        let mut targets = fds
            .flatten()
            .filter_map(|e| std::fs::read_link(e.path()).ok());
        targets
            .any(|target| target.to_string_lossy().starts_with("socket:"))
            .then_some(())
    });
    station.stop_service(Signal::SIGKILL).expect("killed");
    station.start_service().expect("starts again");
    assert_eq!(raw.line(), "ok ready");
    let cap = super::cap(&station, held.pid());
    assert_eq!(raw.info().1, cap);
    let snapshot = station.snapshot().expect("served");
    let members = &claim_of(&snapshot, held.pid()).expect("listed").members;
    assert!(members.contains(&pid), "{members:?}");
}

#[test]
fn without_the_library_strict_limits_give_whole_gpus_alone() {
    let Some((users, station)) = desk("without_the_library_strict_limits_give_whole_gpus_alone")
    else {
        return;
    };
    let claim = |size: &str, run: &str| {
        let mut command = station.command();
        command.args(["claim", "-q", "-g", size, "--gpu-ids", "0", "--no-library"]);
        command.args(["--", "sh", "-c", run]).arg(station.program());
        as_user(command, users.uid(0)).output().expect("runs")
    };
    let refused = claim("0.5", "true");
    assert_eq!(refused.status.code(), Some(77));
    let (_, why) = said(&refused);
    has_all(
        &why,
        &["nothing could limit a program to a part of a GPU", "-g 1"],
    );
    assert_eq!(claim("1", "true").status.code(), Some(0));
    // Nor can a running claim shrink to a part of a GPU.
    let smaller = claim("1", r#""$0" resize "$GSHARE_CLAIM_ID" -g 0.5"#);
    assert_eq!(smaller.status.code(), Some(77), "{smaller:?}");
    assert!(said(&smaller).1.contains("keeps its size"), "{smaller:?}");
    // A program that joins such a claim is in it, although no launcher moves it there.
    let user = |words: &[&str]| {
        let mut command = station.command();
        command.args(words);
        as_user(command, users.uid(0)).output().expect("runs")
    };
    let held = [
        "claim",
        "-q",
        "-g",
        "1",
        "--gpu-ids",
        "0",
        "--no-library",
        "--hold",
    ];
    let held = user(&[&held[..], &["--", "sh", "-c", "echo $GSHARE_CLAIM_ID"]].concat());
    let id = said(&held).0.trim().to_owned();
    let joined = user(&["join", "-q", &id, "--", "cat", "/proc/self/cgroup"]);
    let place = format!("claim-{}", id.trim_start_matches('c'));
    assert!(said(&joined).0.contains(&place), "{held:?} {joined:?}");
}

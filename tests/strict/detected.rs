//! Use that cannot be blocked is detected, and treated according to the policy.

use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use super::support::users::{Users, as_user};
use super::support::{Raw, accused_at, looks, next_look, root, station_with, until};
use super::{claim, client};
use crate::support::SOON;
use gshare::station::Station;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};

/// Starts the command, which uses the driver directly; allocates twice its cap; is detected; is ended.
fn seen_and_ended(station: &Station, command: Command, what: &str) {
    let mut raw = Raw::start(command);
    let cap = super::cap(station, raw.pid());
    assert!(raw.info().1 > 4 * cap, "{what}: it is not around the cap");
    let before = next_look(station);
    assert_eq!(raw.ask(&format!("alloc {}", 2 * cap)), "ok 0", "{what}");
    // On a busy machine the allocation may have taken longer than until the next look.
    let second = before + 2..=looks(station) + 2;
    let (claim, at) = accused_at(station, raw.pid());
    assert!(
        second.contains(&at),
        "{what} is seen at look {at}, not {second:?}"
    );
    let why = claim.overuse.expect("accused");
    assert!(why.contains(&format!("pid {}", raw.pid())), "{what}: {why}");
    let status = until(&format!("{what} is ended"), SOON, || {
        raw.child.try_wait().ok().flatten()
    });
    assert_eq!(status.signal(), Some(15), "{what}");
}

#[test]
fn what_cannot_be_blocked_is_seen_and_ended() {
    root!("what_cannot_be_blocked_is_seen_and_ended");
    let users = Users::make();
    let station = station_with(|o| {
        o.strict = true;
        o.tick = "0.5s".to_owned();
        o.config = "[claims]\nleftover-grace = \"1s\"\n\
                    [policy]\noveruse = \"stop\"\noveruse-grace = \"1s\"\n"
            .to_owned();
    });
    let uid = users.uid(0);
    let client = client(&station);
    let driver = station
        .sim_dir()
        .join("lib/libcuda.so.1")
        .display()
        .to_string();
    let inside = station
        .dir()
        .join("run/lib/driver/libcuda.so.1")
        .display()
        .to_string();

    let mut sleep = Command::new("sleep");
    sleep.arg("1000").stdin(Stdio::null());
    let mut outside = as_user(sleep, uid).spawn().expect("starts");
    let root = format!("/proc/{}/root{driver}", outside.id());
    seen_and_ended(
        &station,
        claim(&station, uid, &[&client, &root]),
        "another view's root",
    );
    outside.kill().and_then(|()| outside.wait()).expect("ended");

    seen_and_ended(
        &station,
        claim(&station, uid, &[&client, &inside]),
        "the path in the proxy",
    );

    // Its descriptor is inherited by the command, and bypasses the mounts of the launch.
    let opened = std::fs::File::open(station.sim_dir().join("lib")).expect("opened");
    fcntl(&opened, FcntlArg::F_SETFD(FdFlag::empty())).expect("inherited");
    let before = format!("/proc/self/fd/{}/libcuda.so.1", opened.as_raw_fd());
    seen_and_ended(
        &station,
        claim(&station, uid, &[&client, &before]),
        "a directory opened before the launch",
    );
    drop(opened);

    let script = format!("mount --bind {inside} {driver} && exec {client}");
    let words = ["unshare", "-Urm", "sh", "-c", &script];
    seen_and_ended(
        &station,
        claim(&station, uid, &words),
        "a mount in a user namespace",
    );

    let bundled = station.dir().join("bundled.so");
    std::fs::copy(&driver, &bundled).expect("copied");
    let bundled = bundled.display().to_string();
    let board = format!(
        "GSHARE_SIM_BOARD={}",
        station.sim_dir().join("board").display()
    );
    let words = ["env", &board, &client, &bundled];
    seen_and_ended(
        &station,
        claim(&station, uid, &words),
        "a libcuda of one's own",
    );
}

//! The driver's files are replaced while claims run; and directories from which libraries cannot be mapped.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use super::support::{Raw, claim_of, until};
use super::{cap, claim, client, desk, held};
use crate::support::{SOON, has_all};
use gshare::station::Station;
use nix::sys::signal::Signal;

/// Like a package manager: the new file under another name, then renamed over the old one.
fn replace(path: &Path) {
    let new = path.with_extension("dpkg-new");
    std::fs::copy(path, &new).expect("copied");
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o644)).expect("set");
    std::fs::rename(&new, path).expect("renamed");
}

fn told(station: &Station, text: &str) {
    until(text, SOON, || {
        let notices = station.snapshot().ok()?.notices;
        notices.iter().any(|n| n.text.contains(text)).then_some(())
    });
}

/// A shell in a claim that runs the client once for every line.
fn shell(station: &Station, uid: u32, before: &str) -> Raw {
    let client = client(station);
    let script = format!(
        "{before} sh -c 'echo here; while read line; do echo info | {client} | tr \"\\n\" \" \"; echo; done'"
    );
    let mut raw = Raw::spawn(&mut claim(station, uid, &["sh", "-c", &script]));
    assert_eq!(raw.line(), "here");
    raw
}

#[test]
fn a_driver_that_is_renamed_over_leaves_no_member_without_its_cap() {
    let Some((users, mut station)) =
        desk("a_driver_that_is_renamed_over_leaves_no_member_without_its_cap")
    else {
        return;
    };
    let lib = station.sim_dir().join("lib");
    let mut long = held(
        &station,
        claim(&station, users.uid(0), &[&client(&station)]),
    );
    let mut shell = shell(&station, users.uid(1), "exec");
    let full = cap(&station, shell.pid());
    let answer = |shell: &mut Raw| shell.ask("go");
    let is_held =
        |answer: &str| answer.starts_with("ok ready ok ") && answer.contains(&format!(" {full} "));
    assert!(is_held(&format!("{} ", answer(&mut shell))));
    for (round, name) in ["libcuda.so.1", "libnvidia-ml.so.1", "libcuda.so.1"]
        .iter()
        .enumerate()
    {
        if round == 2 {
            // The service is away while it happens.
            station.stop_service(Signal::SIGKILL).expect("killed");
        }
        replace(&lib.join(name));
        if round == 2 {
            station.start_service().expect("starts again");
        }
        told(&station, "the NVIDIA driver was replaced while");
        told(&station, "now apply with the new driver");
        // At every moment a new program is limited or gets no GPU.
        until("new programs get their GPU again", SOON, || {
            let text = format!("{} ", answer(&mut shell));
            let none = text.starts_with("error 100 CUDA_ERROR_NO_DEVICE");
            assert!(none || is_held(&text), "{name}: {text}");
            !none
        });
        // Running programs continue, and new commands are limited as before.
        assert_eq!(long.info().1, cap(&station, long.pid()));
        held(
            &station,
            claim(&station, users.uid(2), &[&client(&station)]),
        )
        .finish();
        let points = std::fs::read_to_string(format!("/proc/{}/mountinfo", std::process::id()));
        let own = station.sim_dir().display().to_string();
        assert!(
            !points.expect("read").contains(&own),
            "nothing is mounted outside"
        );
    }
}

#[test]
fn a_view_that_cannot_be_mended_gets_no_gpu() {
    let Some((users, station)) = desk("a_view_that_cannot_be_mended_gets_no_gpu") else {
        return;
    };
    let mut shell = shell(&station, users.uid(0), "exec unshare -Urm");
    let first = shell.ask("go");
    assert!(first.starts_with("ok ready"), "{first}");
    replace(&station.sim_dir().join("lib/libcuda.so.1"));
    told(&station, "new programs in it get no GPU");
    // The mount namespace is the user's own, where gshare mounts nothing. The driver that the program loads now opens
    // no device.
    let answer = shell.ask("go");
    assert!(
        answer.starts_with("error 100 CUDA_ERROR_NO_DEVICE"),
        "{answer}"
    );
    let snapshot = station.snapshot().expect("served");
    assert!(
        claim_of(&snapshot, shell.pid()).is_some(),
        "it keeps its claim"
    );
}

#[test]
fn a_driver_that_is_gone_is_waited_for_by_new_commands() {
    let Some((users, station)) = desk("a_driver_that_is_gone_is_waited_for_by_new_commands") else {
        return;
    };
    let file = station.sim_dir().join("lib/libcuda.so.1");
    let away = station.sim_dir().join("away");
    std::fs::rename(&file, &away).expect("moved");
    let uid = users.uid(0);
    let refused = until("commands are refused", SOON, || {
        let output = claim(&station, uid, &["true"]).output().expect("runs");
        (output.status.code() == Some(77)).then_some(output)
    });
    let why = super::said(&refused).1;
    has_all(&why, &["libcuda.so.1"]);
    std::fs::rename(&away, &file).expect("moved");
    until("commands run again", SOON, || {
        let output = claim(&station, uid, &["true"]).output().expect("runs");
        output.status.success()
    });
    held(&station, claim(&station, uid, &[&client(&station)]));
}

#[test]
fn libraries_are_staged_where_they_can_be_mapped() {
    super::support::root!("libraries_are_staged_where_they_can_be_mapped");
    // Like /run on Debian and Ubuntu; the mount is in a namespace of this test.
    let test = std::env::current_exe().expect("known");
    if std::env::var_os("GSHARE_TEST_NOEXEC").is_none() {
        let mut apart = Command::new("unshare");
        apart.args(["-m", "--propagation", "private"]).arg(test);
        apart.args([
            "--exact",
            "driver::libraries_are_staged_where_they_can_be_mapped",
            "--nocapture",
        ]);
        let output = apart.env("GSHARE_TEST_NOEXEC", "1").output().expect("runs");
        let (told, why) = super::said(&output);
        assert!(output.status.success(), "{told}{why}");
        return;
    }
    let dir = Path::new("/run");
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "noexec,nosuid,nodev,mode=755", "run"])
        .arg(dir)
        .status();
    assert!(mounted.expect("runs").success());
    for strict in [false, true] {
        let runtime = dir.join(format!("gshare-{strict}"));
        let station = super::support::station_with(|o| {
            o.strict = strict;
            o.runtime = Some(runtime.clone());
        });
        let mut raw = Raw::claim(&station, &["-q", "-g", "0.1"]);
        let claim = station.snapshot().expect("served").claims.remove(0);
        assert_eq!(raw.info().1, claim.gpus[0].mem_limit, "strict: {strict}");
        assert!(!runtime.join("lib/libcuda.so.1").exists());
    }
}

//! Containers in claims that get their GPU later: a running container cannot get more devices.

use super::support::{Raw, root, station_with, until};
use super::{Image, SOON, Tidied, name, podman_run};
use crate::support::has_all;
use gshare::station::Station;

fn two_gpus(config: &str) -> Tidied {
    Tidied(station_with(|o| {
        o.gpus = vec!["h100".to_owned(), "h100".to_owned()];
        o.tick = "0.2s".to_owned();
        o.config = config.to_owned();
    }))
}

/// The client in a container of a lazy claim on GPU 1, which another claim holds until the client waits for it.
fn got_its_gpu(station: &Station, image: &Image, name: &str) -> Raw {
    let hog = Raw::claim(station, &["-q", "-g", "1", "--gpu-ids", "1"]);
    let mut command = station.command();
    command.args("claim -q --lazy -g 0.25 --gpu-ids 1 --".split(' '));
    command
        .args(podman_run(name, image, &["--pid=host"]))
        .arg("/raw_client");
    let mut raw = Raw::spawn(&mut command);
    until("it waits", SOON, || {
        (station.snapshot().ok()?.queue.len() == 1).then_some(())
    });
    drop(hog);
    assert_eq!(raw.line(), "ok ready");
    raw
}

#[test]
fn a_container_has_the_node_of_the_gpu_that_its_claim_gets_later() {
    let Some(image) = Image::make("later") else {
        return;
    };
    let station = two_gpus("");
    let name = name("later");
    let mut raw = got_its_gpu(&station, &image, &name);
    let claim = station.snapshot().expect("served").claims[0].clone();
    assert_eq!(claim.gpus[0].gpu, 1);
    assert_eq!(raw.info().1, claim.gpus[0].mem_limit);
    assert_eq!(
        (raw.ask("count"), raw.ask("launch 1")),
        ("ok 1".into(), "ok 1".into())
    );
    assert_eq!(raw.finish(), Some(0));
    if !station.sim_dir().join("dev").is_dir() {
        println!("skipped: no device nodes here");
        return;
    }
    // Before it has one, all are there and none can be opened.
    let mut command = station.command();
    command.args(["claim", "-q", "--lazy", "-g", "0.25", "--"]);
    command.args(podman_run(&name, &image, &[]));
    command.args(["/cat", "/dev/nvidia0", "/dev/nvidia1"]);
    let output = command.output().expect("runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let filtered = super::support::is_filtered(&station);
    for node in ["/dev/nvidia0", "/dev/nvidia1"] {
        let why = if filtered {
            "Operation not permitted"
        } else {
            "No such device or address"
        };
        has_all(&said, &[&format!("{node}: {why}")]);
    }
}

#[test]
fn a_container_finds_the_daemon_of_mps_that_its_claim_gets_later() {
    let Some(image) = Image::make("later-mps") else {
        return;
    };
    root!("MPS in a container");
    let station = two_gpus("[gpu.1]\nmode = \"mps\"\n");
    until("MPS is up", SOON, || {
        let notices = station.snapshot().ok()?.notices;
        let up = |text: &str| text.contains("MPS on GPU 1 is up");
        notices.iter().any(|n| up(&n.text)).then_some(())
    });
    let mut raw = got_its_gpu(&station, &image, &name("later-mps"));
    assert_eq!(
        (raw.ask("mps"), raw.ask("sms"), raw.ask("launch 1")),
        ("ok 1".into(), "ok 32".into(), "ok 1".into())
    );
    assert_eq!(raw.finish(), Some(0));
}

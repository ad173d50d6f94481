//! How GPUs are shared: one claim at a time, side by side, in instances.

use crate::support;

use std::time::Duration;

use support::{Raw, claim_of, station_with, until};

#[test]
fn an_exclusive_gpu_takes_one_claim_and_gives_it_all() {
    let station = station_with(|o| {
        o.gpus = vec!["h100".to_owned(), "h100".to_owned()];
        o.config = "[gpu.0]\nmode = \"exclusive\"\n".to_owned();
    });
    // A part goes to the GPU that can be shared, a whole one to the exclusive one.
    let part = Raw::claim(&station, &["-q", "-g", "0.2"]);
    let whole = Raw::claim(&station, &["-q", "-g", "1"]);
    let snapshot = station.snapshot().expect("served");
    let gpu_of = |raw: &Raw| claim_of(&snapshot, raw.pid()).expect("its claim").gpus[0].gpu;
    assert_eq!((gpu_of(&part), gpu_of(&whole)), (1, 0));
    assert_eq!(snapshot.gpus[0].mode, "exclusive");
    assert_eq!(snapshot.gpus[0].claimable, 0.0);
    // A claim of a part of it waits until it is free, and then has all of it.
    let mut command = station.command();
    command.args(["claim", "-q", "-g", "0.1", "--gpu-ids", "0", "--"]);
    command.arg(support::example("raw_client"));
    let mut third = Raw::spawn(&mut command);
    let reason = until("it waits", Duration::from_secs(5), || {
        let queue = station.snapshot().ok()?.queue;
        queue.first().map(|q| q.reason.clone())
    });
    assert!(
        reason.contains("GPU 0 is for one claim at a time"),
        "{reason}"
    );
    drop(whole);
    assert_eq!(third.line(), "ok ready");
    let snapshot = station.snapshot().expect("served");
    let part = &claim_of(&snapshot, third.pid()).expect("its claim").gpus[0];
    assert_eq!(part.sm_request, 1.0);
    assert_eq!(Some(part.mem_request), snapshot.gpus[0].mem_allocatable);
}

#[test]
fn doctor_says_which_way_a_gpu_on_auto_is_shared_now() {
    let station = station_with(|o| {
        o.gpus = vec!["h100".to_owned()];
        o.tick = "0.2s".to_owned();
        o.config = "[gpu.0]\nmode = \"auto\"\n[claims]\nleftover-grace = \"1s\"\n".to_owned();
    });
    let says = |what: &str| {
        until(what, Duration::from_secs(20), || {
            let doctor = station.command().arg("doctor").output().ok()?;
            let text = String::from_utf8_lossy(&doctor.stdout).into_owned();
            let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
            flat.contains(what).then_some(flat)
        })
    };
    let text = says("auto, no claims now: mps, one user at a time: 0 servers, 0 clients");
    assert!(text.contains("other claims take turns"), "{text}");
    let mut batch = Raw::claim(&station, &["-q", "-g", "0.25", "--class", "batch"]);
    assert_eq!(batch.ask("mps"), "ok 1");
    let text = says("auto, now mps, one user at a time: 1 server, 1 client;");
    assert!(
        text.contains("fix: to run several users side by side: [mps] multi-user = \"accept\""),
        "{text}"
    );
    drop(batch);
    until("its claim has ended", Duration::from_secs(10), || {
        station.snapshot().ok()?.claims.is_empty().then_some(())
    });
    let mut shell = Raw::claim(&station, &["-q", "-g", "0.25", "--class", "interactive"]);
    assert_eq!(shell.ask("mps"), "ok 0");
    says("auto, now timeslice: claims take turns");
}

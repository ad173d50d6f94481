//! Claims that wait: why, until when, and what became of them.

use crate::support;

use std::process::Output;
use std::time::Duration;

use gshare::station::Station;
use support::{Raw, station, until};

fn run(station: &Station, args: &[&str]) -> Output {
    let mut command = station.command();
    command.args(args);
    command.output().expect("runs")
}

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

#[test]
fn a_waiting_claim_says_why_and_when_and_its_log_tells_the_rest() {
    let station = station();
    let mut held = Raw::claim(
        &station,
        &["-q", "-g", "0.75", "--gpu-ids", "0", "-t", "1h"],
    );
    let held_id = {
        let snapshot = station.snapshot().expect("served");
        snapshot.claims.first().expect("listed").id.clone()
    };
    let free = run(
        &station,
        &["claim", "-g", "0.25", "--gpu-ids", "0", "--dry-run"],
    );
    assert_eq!(free.status.code(), Some(0), "{}", text(&free));
    assert!(text(&free).contains("would start now"), "{}", text(&free));
    // Memory alone brings as large a part of the compute; the limits stand beside what is guaranteed.
    let whole = station.snapshot().expect("served").gpus[1].mem_allocatable;
    let sm = (3u64 << 30) * 1000 / whole.expect("known");
    let mem = ["--gpu-mem", "3G", "--gpu-mem-limit", "5G", "--limit", "0.8"];
    let alone = [&["claim", "--gpu-ids", "1", "--dry-run"], &mem[..]].concat();
    let tried = text(&run(&station, &alone));
    let percent = sm as f64 / 10.0;
    let says = format!(
        "would start now: 3.0 GiB (limit 5.0 GiB) and {percent} % (limit 80 %) of the SMs of GPU 1"
    );
    assert!(tried.contains(&says), "{says}\n{tried}");
    let tried = run(&station, &[&alone[..], &["--json"]].concat()).stdout;
    let tried: serde_json::Value = serde_json::from_slice(&tried).expect("JSON");
    let part = &tried["gpus"][0];
    assert_eq!(
        (&part["mem_limit"], &part["sm_limit"]),
        (&(5u64 << 30).into(), &0.8.into())
    );
    assert_eq!(part["sm"].as_f64(), Some(sm as f64 / 1000.0), "{part}");
    let full = run(
        &station,
        &["claim", "-g", "0.5", "--gpu-ids", "0", "--dry-run"],
    );
    assert_eq!(full.status.code(), Some(75), "{}", text(&full));
    assert!(
        text(&full).contains("would wait") && text(&full).contains(&held_id),
        "{}",
        text(&full)
    );
    for words in [
        "1st in the queue, within what is guaranteed",
        "time limit of",
    ] {
        assert!(text(&full).contains(words), "{words}: {}", text(&full));
    }
    let tried = run(
        &station,
        &[
            "claim",
            "-g",
            "0.5",
            "--gpu-ids",
            "0",
            "--dry-run",
            "--json",
        ],
    );
    assert_eq!(tried.status.code(), Some(75), "{}", text(&tried));
    let tried: serde_json::Value = serde_json::from_slice(&tried.stdout).expect("JSON");
    assert_eq!(
        (&tried["starts"], &tried["position"], &tried["would_start"]),
        (&false.into(), &1.into(), &"-g 0.25".into())
    );
    let never = run(&station, &["claim", "-g", "8", "--dry-run"]);
    assert_eq!(never.status.code(), Some(64), "{}", text(&never));
    assert!(
        station.snapshot().expect("served").queue.is_empty(),
        "nothing was claimed"
    );

    let mut patient = station.command();
    patient.args(["claim", "-q", "-g", "0.5", "--gpu-ids", "0", "--", "true"]);
    let mut patient = patient.spawn().expect("runs");
    let waiting = until("it waits", Duration::from_secs(5), || {
        station.snapshot().ok()?.queue.first().cloned()
    });
    let left = waiting.expected_ms.expect("the holder has a lease");
    let now = station.snapshot().expect("served").taken_ms;
    let minutes = left.saturating_sub(now) / 60_000;
    assert!((58..=60).contains(&minutes), "in {minutes} min");
    assert!(waiting.entitled, "its owner is alone and may have all");
    let why = run(&station, &["why", &waiting.id]);
    assert_eq!(why.status.code(), Some(0));
    for words in [
        "wants",
        &held_id,
        "guarantee of",
        "with -g 0.25 it would start now",
        "time limit of",
    ] {
        assert!(text(&why).contains(words), "{words}: {}", text(&why));
    }
    // Without an argument they list what they can tell of.
    let lists = [
        ("why", &waiting.id, "gshare why ID explains one of them"),
        ("log", &held_id, "gshare log ID shows what happened"),
    ];
    for (word, id, more) in lists {
        let list = run(&station, &[word]);
        let lines = text(&list);
        let row = lines.lines().any(|l| l.starts_with(&format!("{id} ")));
        assert!(
            list.status.success() && row && lines.contains(more),
            "{lines}"
        );
        let json = run(&station, &[word, "--json"]).stdout;
        assert!(String::from_utf8_lossy(&json).contains(&format!("\"id\":\"{id}\"")));
    }
    let queue = run(&station, &["queue"]);
    assert!(
        text(&queue).contains("in 1h") || text(&queue).contains("in 59m"),
        "{}",
        text(&queue)
    );

    held.kill();
    assert_eq!(patient.wait().expect("reaped").code(), Some(0));
    let log = until("its end is written down", Duration::from_secs(5), || {
        let log = text(&run(&station, &["log", &waiting.id]));
        log.contains("ended: command exited").then_some(log)
    });
    let order: Vec<usize> = ["waits: wants", "granted: 0.50 of GPU 0", "ended"]
        .iter()
        .map(|w| log.find(w).unwrap_or_else(|| panic!("{w}: {log}")))
        .collect();
    assert!(order.is_sorted(), "{log}");
    let unknown = run(&station, &["log", "c999"]);
    assert_eq!(unknown.status.code(), Some(64), "{}", text(&unknown));
    let running = run(&station, &["why", "c999"]);
    assert_eq!(running.status.code(), Some(64), "{}", text(&running));
}

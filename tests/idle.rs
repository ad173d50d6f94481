//! Claims that idle: warned, offloaded for those who wait, back with the next call; and what keeps them where they are.
//! One test at a time: they count seconds of idleness, and kernels of Python take long to start.

use crate::support;

use std::time::{Duration, Instant};

use gshare::station::Station;
use gshare_proto::ClaimView;
use serde_json::json;
use support::detach::{fast, station_of_sharers};
use support::notebook::Notebook;
use support::{Raw, alone, python, station_with, until};

/// A loaded machine takes its time.
const SOON: Duration = Duration::from_secs(60);

/// GPUs and rules that are over quickly.
fn station(gpus: usize, idle: &str) -> Station {
    let more = format!("spread = false\ncountdown = \"1s\"\n[idle]\n{idle}");
    station_of_sharers(gpus, &more)
}

fn claim_of(station: &Station, notebook: &Notebook) -> Option<ClaimView> {
    support::claim_of(&station.snapshot().ok()?, notebook.pid).cloned()
}

/// Arrays on the GPU, changed by a kernel, and their checksum.
const ARRAYS: &str = r"
import hashlib, numpy as np
from numba import cuda
@cuda.jit
def add(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = x[i] + 1
data = np.random.default_rng(11).integers(0, 1 << 30, 1 << 18, dtype=np.int64)
x, y = cuda.to_device(data), cuda.device_array(data.shape, np.int64)
add[(data.size + 255) // 256, 256](x, y)
kept = y.copy_to_host()
print('right' if (kept == data + 1).all() else 'wrong')
";
const AGAIN: &str = r"
back = y.copy_to_host()
print('same' if back.tobytes() == kept.tobytes() else 'other')
add[(data.size + 255) // 256, 256](y, x)
print('on' if (x.copy_to_host() == data + 2).all() else 'off')
";
/// Works without a pause until it is interrupted.
const WORK: &str = r"
print('works', flush=True)
while True:
    add[(data.size + 255) // 256, 256](x, y)
    cuda.synchronize()
";

/// A waiting user is told once more when it is known, and nothing is promised that the holder's class rules out.
#[test]
fn who_waits_is_told_when_an_idle_claim_makes_room_once_that_is_known() {
    let _alone = alone();
    let station = station_with(|o| {
        o.gpus.truncate(1);
        o.tick = "0.2s".to_owned();
        o.config =
            "[idle]\nwarn = \"never\"\ndetach = \"4s\"\n[class.interactive]\nmin-run = \"1h\"\n"
                .to_owned();
    });
    let mut holder = Raw::claim(&station, &["-q", "-g", "1", "--class", "interactive"]);
    assert_eq!(holder.ask("launch 1"), "ok 1");
    let told = station.dir().join("told");
    let mut later = station.command();
    later
        .args(["claim", "-q", "--lazy", "-g", "0.5", "--"])
        .arg(support::example("raw_client"))
        .stderr(std::fs::File::create(&told).expect("made"));
    let _later = Raw::spawn(&mut later);
    let line = until("it is told when it starts", SOON, || {
        let text = std::fs::read_to_string(&told).ok()?;
        let mut lines = text.lines().map(str::to_owned);
        lines.find(|l| l.contains("which is idle, is offloaded"))
    });
    assert!(line.contains("; expected start in 59m, when c1"), "{line}");
}

#[test]
fn an_idle_notebook_makes_room_for_a_third_and_its_next_cell_has_everything_back() {
    let Some(bin) = python::bin(
        "an_idle_notebook_makes_room_for_a_third_and_its_next_cell_has_everything_back",
    ) else {
        return;
    };
    let _alone = alone();
    let station = station(1, "warn = \"1s\"\ndetach = \"2s\"\n");
    let mut idle = Notebook::start(&station, &bin);
    let mut busy = Notebook::start(&station, &bin);
    let mut third = Notebook::start(&station, &bin);
    third.run("from numba import cuda");
    assert!(busy.run(ARRAYS).contains("right"));
    busy.act(&json!({ "do": "run", "code": WORK, "until": "works" }));
    assert!(idle.run(ARRAYS).contains("right"));
    let id = claim_of(&station, &idle).expect("listed").id;

    let begun = Instant::now();
    let said = third.act(&json!({ "do": "run", "code": ARRAYS, "until": "in the queue" }));
    let printed = said["printed"].as_str().unwrap_or_default();
    assert!(
        ["first in the queue", "held by", "start"]
            .iter()
            .all(|w| printed.contains(w)),
        "{said}"
    );
    assert!(said["seconds"].as_f64().is_some_and(|s| s < 1.0), "{said}");
    // Warned where its person sees it: under the cell that ran last, although no cell runs.
    let warned = idle.act(&json!({ "do": "rest", "until": "To postpone: " }));
    let text = warned["printed"].as_str().unwrap_or_default();
    assert!(
        text.contains(&format!("gshare: {id} launched nothing for")),
        "{warned}"
    );
    assert!(text.contains(&format!("gshare keep {id}")), "{warned}");
    let told = station.snapshot().expect("served");
    let announced = told.claims.iter().find(|c| c.id == id).expect("listed");
    assert!(
        announced.announced.is_some() || announced.place.word.is_some(),
        "{announced:?}"
    );
    let said = third.act(&json!({ "do": "rest" }));
    assert!(
        said["printed"]
            .as_str()
            .is_some_and(|p| p.contains("got its GPU after") && p.contains("right")),
        "{said}"
    );
    let view = claim_of(&station, &idle).expect("it lives");
    assert_eq!(view.place.word.as_deref(), Some("offloaded"), "{view:?}");
    assert_eq!(idle.run("print(2 + 2)"), "4\n", "cells without CUDA run");

    // The third idles by now, so it is its turn to make room.
    let there = begun.elapsed();
    let printed = idle.run(AGAIN);
    assert!(printed.contains("same\non\n"), "{printed}");
    assert!(
        printed.contains("has its GPU memory back; this call waited"),
        "{printed}"
    );
    let took = begun.elapsed();
    println!("the third ran after {there:.1?}, the idle one again after {took:.1?}");
    assert!(took < Duration::from_secs(15), "{took:?}");
    let view = claim_of(&station, &idle).expect("it lives");
    assert_eq!(
        (view.id, view.pid),
        (id, Some(idle.pid)),
        "the same claim and kernel"
    );
    let said = busy.act(&json!({ "do": "interrupt" }));
    assert_eq!(
        said["error"], "KeyboardInterrupt",
        "who works is left alone: {said}"
    );
    until("the third was offloaded in its turn", SOON, || {
        claim_of(&station, &third)?
            .place
            .word
            .filter(|w| w == "offloaded")
    });
}

#[test]
fn who_keeps_what_idles_is_left_alone_once_and_the_rule_is_shown() {
    let Some(bin) = python::bin("who_keeps_what_idles_is_left_alone_once_and_the_rule_is_shown")
    else {
        return;
    };
    let _alone = alone();
    let station = station(1, "warn = \"1s\"\ndetach = \"2s\"\n");
    let mut idle = Notebook::start(&station, &bin);
    assert!(idle.run(ARRAYS).contains("right"));
    let warned = idle.act(&json!({ "do": "rest", "until": "To keep it" }));
    assert!(
        warned["printed"]
            .as_str()
            .is_some_and(|p| p.contains("if others wait")),
        "{warned}"
    );
    let view = until("it is shown as idle", SOON, || {
        claim_of(&station, &idle)?
            .idle
            .filter(|i| i.warned && i.gpu_s > 0)
    });
    assert_eq!(
        (view.kernel.as_deref(), view.source.as_deref()),
        (Some("idle"), Some("processor time"))
    );
    assert_eq!(view.detach_in_s.map(|s| s <= 2), Some(true), "{view:?}");
    let id = claim_of(&station, &idle).expect("listed").id;
    let output = station
        .command()
        .args(["keep", &id])
        .output()
        .expect("runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let mut third = Notebook::start(&station, &bin);
    let mut hog = Notebook::start(&station, &bin);
    assert!(hog.run(ARRAYS).contains("right"));
    hog.act(&json!({ "do": "run", "code": WORK, "until": "works" }));
    third.act(&json!({ "do": "run", "code": ARRAYS, "until": "in the queue" }));
    // Longer than the rule and its countdown together: nothing is announced for what is kept.
    let end = Instant::now() + Duration::from_secs(4);
    while Instant::now() < end {
        let view = claim_of(&station, &idle).expect("listed");
        assert!(
            view.announced.is_none() && view.place.word.is_none(),
            "{view:?}"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    third.act(&json!({ "do": "interrupt" }));
    hog.act(&json!({ "do": "interrupt" }));
}

#[test]
fn an_interrupt_ends_the_wait_of_a_detached_notebook_and_loses_nothing() {
    let test = "an_interrupt_ends_the_wait_of_a_detached_notebook_and_loses_nothing";
    let Some(bin) = python::bin(test) else {
        return;
    };
    let _alone = alone();
    // No claim is suspended for it, however slow this machine is.
    let config = "[detach]\nhost-reserve = \"1 MiB\"\n[class]\ninteractive = { min-run = \"0s\" }\n\
        batch = { min-run = \"1h\" }\n[reclaim]\nspread = false\nhost-ram = 90\ncountdown = \"1s\"\n\
        [idle]\nwarn = \"1s\"\nalways = \"2s\"\n";
    let station = fast(config.to_owned(), |o| o.gpus = vec!["rtx4090".to_owned()]);
    let mut idle = Notebook::start(&station, &bin);
    assert!(idle.run(ARRAYS).contains("right"));
    let word = || claim_of(&station, &idle)?.place.word;
    until("it is offloaded", SOON, || {
        word().filter(|w| w == "offloaded")
    });
    // Batch is not offloaded for idleness, and these are no borrowers.
    let mut hogs: Vec<Raw> = (0..2)
        .map(|_| Raw::claim(&station, &["-q", "-g", "0.5", "--limit", "0.5", "-t", "3h"]))
        .collect();
    for round in 0..3 {
        let said =
            idle.act(&json!({ "do": "run", "code": AGAIN, "until": "GPU memory is in host RAM" }));
        assert_eq!(said["ended"], false, "{round}: {said}");
        // Told in the same line as who waits for the first time.
        let printed = said["printed"].as_str().unwrap_or_default();
        let words = [
            "This call waits until it is restored: wants",
            "; expected start in ",
            ", when the time limit of c",
        ];
        assert!(words.iter().all(|w| printed.contains(w)), "{round}: {said}");
        let waits = claim_of(&station, &idle).and_then(|c| c.place.waits);
        assert!(waits.is_some(), "{round}");
        let said = idle.act(&json!({ "do": "interrupt" }));
        assert_eq!(said["error"], "KeyboardInterrupt", "{round}: {said}");
        println!("interrupted within {} s", said["seconds"]);
        let word = claim_of(&station, &idle).and_then(|c| c.place.word);
        assert_eq!(
            word.as_deref(),
            Some("offloaded"),
            "it was no end of the wait"
        );
        assert_eq!(idle.run("print(2 + 2)"), "4\n", "cells without CUDA run");
    }
    let waits = || claim_of(&station, &idle).map(|c| c.place.waits.is_some());
    until(
        "nobody makes room for calls that wait no longer",
        SOON,
        || waits().filter(|w| !w),
    );
    hogs.clear();
    let printed = idle.run(AGAIN);
    assert!(printed.contains("same\non\n"), "{printed}");
}

#[test]
fn a_notebook_that_cannot_be_detached_is_told_so_when_it_starts() {
    let Some(bin) = python::bin("a_notebook_that_cannot_be_detached_is_told_so_when_it_starts")
    else {
        return;
    };
    let _alone = alone();
    let station = station_with(|o| {
        o.gpus = vec!["rtx4090".to_owned()];
        // Drivers before 570 checkpoint nothing.
        o.driver = Some("550.54.15".to_owned());
    });
    let mut notebook = Notebook::start(&station, &bin);
    // Under the cell that took the GPU, or under it when it has ended.
    let mut printed = notebook.run(ARRAYS);
    assert!(printed.contains("right"), "{printed}");
    if !printed.contains("gshare only warns you") {
        let told = notebook.act(&json!({ "do": "rest", "until": "gshare only warns you" }));
        printed += told["printed"].as_str().unwrap_or_default();
    }
    let id = claim_of(&station, &notebook).expect("listed").id;
    let words = format!("gshare: {id} cannot be offloaded: ");
    assert!(printed.contains(&words), "{printed}");
}

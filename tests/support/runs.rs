//! Helpers for the tests of sizes: a station with accelerated time for them, its records and suggestions.

use gshare::station::{Options, Station};
use gshare_proto::SuggestView;

use super::{GIB, Raw, SOON, looks, ok, station_with, until};

/// One RTX 4090; time runs twenty times as fast for sizes: 30 s are 1.5 s.
pub fn sized(more: &str) -> Station {
    sized_on("rtx4090", "", more)
}

/// The same with another GPU, and with rows of durations of kernels.
pub fn sized_on(gpu: &str, costs: &str, more: &str) -> Station {
    station_with(|o: &mut Options| {
        o.gpus = vec![gpu.to_owned()];
        costs.clone_into(&mut o.costs);
        "0.1s".clone_into(&mut o.tick);
        o.config = format!(
            "[claims]\nleftover-grace = \"1s\"\n[sizes]\nfirst-look = \"1s\"\nhorizon = \"3s\"\nfollow = \"1s\"\n{more}"
        );
    })
}

/// Waits for this many looks at the driver.
pub fn looked(station: &Station, more: u64) {
    let from = looks(station);
    until("the service looks", SOON, || looks(station) >= from + more);
}

/// Allocates, and gives the index of the block.
pub fn alloc(raw: &mut Raw, gib: u64) -> String {
    let answer = raw.ask(&format!("alloc {}", gib * GIB));
    let index = answer
        .strip_prefix("ok ")
        .unwrap_or_else(|| panic!("no memory: {answer}"));
    index.to_owned()
}

/// Frees a block.
pub fn free(raw: &mut Raw, index: &str) {
    assert_eq!(raw.ask(&format!("free {index}")), "ok");
}

/// `gshare suggest --json`.
pub fn suggestion(station: &Station, words: &[&str]) -> SuggestView {
    let all = [&["suggest", "--json"], words].concat();
    serde_json::from_str(&ok(station, &all)).expect("JSON")
}

/// Records of runs that have ended.
pub fn records(station: &Station) -> Vec<serde_json::Value> {
    let text = ok(station, &["suggest", "--records"]);
    text.lines()
        .map(|l| serde_json::from_str(l).expect("a record"))
        .collect()
}

/// Waits until this many runs are recorded.
pub fn recorded(station: &Station, many: usize) {
    until("the runs are recorded", SOON, || {
        records(station).len() >= many
    });
}

/// Several equal runs at once, each with this need for this many looks; waits until they are recorded.
pub fn runs(station: &Station, flags: &[&str], gib: u64, many: usize, kept: u64) {
    let before = records(station).len();
    let mut all: Vec<Raw> = (0..many).map(|_| Raw::claim(station, flags)).collect();
    for raw in &mut all {
        let _ = alloc(raw, gib);
    }
    looked(station, kept);
    for raw in all {
        assert_eq!(raw.finish(), Some(0));
    }
    recorded(station, before + many);
}

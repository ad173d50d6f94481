//! Helpers for tests of offloading: a station with fast transfers, members with known bytes, driver faults, and
//! places by the board.

use std::time::Duration;

use gshare::station::{Options, Station};
use gshare_proto::ClaimView;
use gshare_sim_board::{CheckpointFault, CheckpointHow, CheckpointStep};

use super::{GIB, Raw, SOON, board, board_bytes, claim, claim_of, station_with, until};

const LEFTOVERS: &str = "[claims]\nleftover-grace = \"1s\"\n";
/// Room is made by claims of any age.
pub const ANYBODY: &str =
    "[class]\ninteractive = { min-run = \"0s\" }\nbatch = { min-run = \"0s\" }\n";
/// Keys of `[reclaim]` for short tests, and with all of the host's memory.
pub const SOON_OVER: &str = "quiet = \"1d\"\nhost-ram = 90\n";
const KEYS: &str = "[detach]\ntimeout = \"1s\"\ndrain = \"1s\"\nhost-reserve = \"1 MiB\"\n";

/// A station with more configuration (`[claims]` and `[detach]` exist already), changed by `change`.
pub fn station_that(more: &str, change: impl FnOnce(&mut Options)) -> Station {
    fast(format!("{LEFTOVERS}{KEYS}{more}"), change)
}

/// A station with this configuration and fast transfers.
pub fn fast(config: String, change: impl FnOnce(&mut Options)) -> Station {
    let station = station_with(|o| {
        o.config = config;
        change(o);
    });
    let rate = board(&station).set_checkpoint_rate(Duration::from_millis(5), 1 << 42);
    rate.expect("the rate is set");
    station
}

/// RTX 4090s with patient checkpoints, on which any claim may have to make room at once. `more` continues
/// `[reclaim]`.
pub fn station_of_sharers(gpus: usize, more: &str) -> Station {
    let config = format!(
        "{LEFTOVERS}[detach]\nhost-reserve = \"1 MiB\"\n{ANYBODY}[reclaim]\n{SOON_OVER}{more}"
    );
    fast(config, |o| o.gpus = vec!["rtx4090".to_owned(); gpus])
}

/// This many RTX 4090.
pub fn station_of(gpus: usize, more: &str) -> Station {
    station_that(more, |o| o.gpus = vec!["rtx4090".to_owned(); gpus])
}

/// `offloaded`, `moving`, ...; none on the GPU.
pub fn word(station: &Station, pid: u32) -> Option<String> {
    claim(station, pid).place.word
}

/// Waits until the claim is in this state.
pub fn settles(station: &Station, pid: u32, wanted: Option<&str>) {
    until(&format!("it is {wanted:?}"), SOON, || {
        word(station, pid).as_deref() == wanted
    });
}

/// Waits until a claim may be offloaded: the engine runs, and its members are known.
pub fn ready(station: &Station, pid: u32) -> ClaimView {
    until("the claim can be offloaded", SOON, || {
        let snapshot = station.snapshot().ok()?;
        let claim = claim_of(&snapshot, pid)?;
        let able = claim.place.levers.not_detachable.is_none();
        able.then(|| claim.clone())
    })
}

/// Bytes of a process on each GPU of the board.
pub fn by_gpu(station: &Station, pid: u32) -> Vec<u64> {
    let seen = board(station).snapshot();
    (0..seen.gpus.len())
        .map(|gpu| board_bytes(&seen, gpu, &[pid]))
        .collect()
}

/// Bytes of a process on all GPUs of the board.
pub fn on_gpus(station: &Station, pid: u32) -> u64 {
    by_gpu(station, pid).iter().sum()
}

/// Allocates a GiB, fills it and gives its checksum.
pub fn fill(raw: &mut Raw, index: usize) -> String {
    assert_eq!(raw.ask(&format!("alloc {GIB}")), format!("ok {index}"));
    // The pattern takes odd seeds only.
    let seed = 2 * (u64::from(raw.pid() << 4) + index as u64) + 1;
    assert_eq!(raw.ask(&format!("fill {index} {seed}")), "ok");
    raw.ask(&format!("sum {index}"))
}

/// A member that holds a GiB of known contents; its checksum.
pub fn holder(station: &Station, flags: &[&str]) -> (Raw, String) {
    let mut raw = Raw::claim(station, flags);
    let sum = fill(&mut raw, 0);
    ready(station, raw.pid());
    (raw, sum)
}

/// Waits until a process has reached the faulty step.
pub fn met(station: &Station) {
    until("the step is asked", SOON, || {
        board(station).checkpoint_fault_met()
    });
}

/// Makes a step fail for one process, or for all; or ends the fault.
pub fn fault(station: &Station, what: Option<(CheckpointStep, CheckpointHow)>, pid: Option<u32>) {
    let fault = what.map(|(step, how)| CheckpointFault { step, how, pid });
    board(station).set_checkpoint_fault(fault).expect("set");
}

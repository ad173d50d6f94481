//! Strict limits with real users, cgroups and mount namespaces: what holds against attempts to bypass them, what does
//! not, and that an honest program notices nothing. Needs root.

use crate::support;

use std::process::{Command, Output};

use gshare::station::Station;
use gshare_proto::Caps;
use support::users::{Users, as_user, reachable};
use support::{FULL, Raw, claim_of, station_with};

pub(crate) mod bypass;
mod detected;
mod driver;
mod environment;
mod hostile;
mod kernel;
mod launch;
mod table;

/// Bytes that a claim of `-g 0.1` on the first GPU may use, as its programs see them.
pub(crate) fn cap(station: &Station, pid: u32) -> u64 {
    let snapshot = station.snapshot().expect("served");
    let claim = claim_of(&snapshot, pid).expect("its claim is listed");
    assert_eq!(claim.caps, Caps::Strict);
    claim.gpus[0].mem_limit
}

/// A workstation with the launcher installed.
pub(crate) fn station() -> Station {
    let station = station_with(|o| {
        o.strict = true;
        o.config = "[claims]\nleftover-grace = \"1s\"\n".to_owned();
    });
    assert_eq!(station.snapshot().expect("served").caps, Caps::Strict);
    station
}

/// Some ordinary users, who outlive their programs, and a workstation; `None`, with the reason printed, if that is
/// not possible.
pub(crate) fn desk(test: &str) -> Option<(Users, Station)> {
    support::is_root(test).then(|| (Users::make(), station()))
}

/// `gshare claim -q -g 0.1 -- COMMAND`, for that user.
pub(crate) fn claim(station: &Station, uid: u32, command: &[&str]) -> Command {
    let mut claim = station.command();
    claim.args(["claim", "-q", "-g", "0.1", "--gpu-ids", "0", "--"]);
    claim.args(command);
    as_user(claim, uid)
}

/// The raw client, at a path that the user can reach.
pub(crate) fn client(station: &Station) -> String {
    reachable(station).display().to_string()
}

/// Starts a command that ends in the raw client and checks its limit: it sees its cap as the GPU's memory.
pub(crate) fn held(station: &Station, command: Command) -> Raw {
    let mut raw = Raw::start(command);
    let cap = cap(station, raw.pid());
    assert_eq!(raw.info().1, cap);
    let more = format!("alloc {}", cap + 1);
    assert_eq!(raw.ask(&more), FULL);
    raw
}

/// Output as text: standard output, then standard error.
pub(crate) fn said(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

//! `gshare smi`: a claim's share from outside agrees with what its programs see inside.

use crate::support;

use std::time::Duration;

use support::{Raw, claim_of, station, until};

#[test]
fn smi_shows_the_share_that_the_claim_sees() {
    let station = station();
    let mut raw = Raw::claim(
        &station,
        &["-q", "-g", "0.25", "--gpu-ids", "1", "--name", "mine"],
    );
    assert_eq!(raw.ask(&format!("alloc {}", 512 << 20)), "ok 0");
    let (free, total) = raw.info();
    let id = claim_of(&station.snapshot().expect("served"), raw.pid())
        .expect("listed")
        .id
        .clone();
    let text = until(
        "the driver lists the process",
        Duration::from_secs(5),
        || {
            let output = station.command().args(["smi", &id]).output().ok()?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            text.contains(&raw.pid().to_string()).then_some(text)
        },
    );
    assert!(
        text.contains(&format!("{}/{}", (total - free) >> 20, total >> 20)),
        "{text}"
    );
    assert!(
        text.contains("RTX 4090") && text.contains("SIMULATED DRIVER"),
        "{text}"
    );
    // By name, and by the environment of the claim.
    let json = station
        .command()
        .args(["smi", "mine", "--json"])
        .output()
        .expect("runs");
    let value: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(value["claim"]["processes"][0]["pid"], raw.pid());
    assert_eq!(value["gpus"][0]["index"], 1);
    let own = station
        .command()
        .arg("smi")
        .env("GSHARE_CLAIM_ID", &id[1..])
        .output()
        .expect("runs");
    assert!(own.status.success());
    let none = station
        .command()
        .arg("smi")
        .env_remove("GSHARE_CLAIM_ID")
        .output()
        .expect("runs");
    assert_eq!(none.status.code(), Some(64));
    let wrong = station
        .command()
        .args(["smi", "c99"])
        .output()
        .expect("runs");
    assert_eq!(wrong.status.code(), Some(64));
}

//! The service killed at each step of a launch, one after the other.

use std::process::Command;
use std::time::Duration;

use gshare::daemon::STEPS;
use gshare::station::Station;
use nix::sys::signal::Signal;

use super::{Raw, claim_of, until};

/// Prints its claim's number, its cgroup, and the kernel's answer when it opens a GPU outside its grant. Then it
/// becomes the client. Builtins only.
const LOOK: &str = r#"
while read -r line; do case $line in 0::*) at=${line##*/};; esac; done </proc/self/cgroup
denied=$( { true <"$1"; } 2>&1)
echo "$GSHARE_CLAIM_ID $at ${denied##*: }"
exec "$0"
"#;

/// For each step: a command is launched, the service dies at the step and is restarted; then the command runs, in its
/// claim's cgroup, behind its filter, within its cap, and nothing else is left. `claim` makes a command of the words
/// after `gshare`.
pub fn each(
    station: &mut Station,
    client: &str,
    launcher: bool,
    claim: impl Fn(&Station, &[&str]) -> Command,
) {
    let filtered = super::is_filtered(station);
    let node = station.sim_dir().join("dev/nvidia1").display().to_string();
    for step in STEPS
        .iter()
        .filter(|s| launcher || !s.starts_with("launch"))
    {
        station.stop_service(Signal::SIGTERM).expect("stopped");
        station
            .start_service_with(&["--die-at", step])
            .expect("starts");
        let words = [
            "claim",
            "-q",
            "-g",
            "0.3",
            "--gpu-ids",
            "0",
            "--",
            "sh",
            "-c",
            LOOK,
            client,
            &node,
        ];
        let mut raw = Raw::spawn(&mut claim(station, &words));
        until(
            &format!("the service dies at {step}"),
            Duration::from_secs(10),
            || station.service_ended(),
        );
        station
            .start_service()
            .unwrap_or_else(|e| panic!("{step}: {e:#}"));
        let told = raw.line();
        let id = told.split(' ').next().unwrap_or_default();
        assert!(!id.is_empty(), "{step}: it did not run: {:?}", raw.finish());
        if filtered {
            assert_eq!(
                told,
                format!("{id} claim-{id} Operation not permitted"),
                "{step}"
            );
        }
        assert_eq!(raw.line(), "ok ready", "{step}");
        let snapshot = station.snapshot().expect("served");
        assert_eq!(snapshot.claims.len(), 1, "{step}: {:?}", snapshot.claims);
        let claim = claim_of(&snapshot, raw.pid()).expect("its claim is listed");
        assert_eq!(
            (claim.id.as_str(), claim.members.as_slice()),
            (&*format!("c{id}"), &[raw.pid()][..]),
            "{step}"
        );
        let (free, total) = raw.info();
        assert_eq!(
            (total, Some(total - free)),
            (claim.gpus[0].mem_limit, claim.gpus[0].mem_charge),
            "{step}"
        );
        let more = raw.ask(&format!("alloc {}", free + 1));
        assert_eq!(more, "error 2 CUDA_ERROR_OUT_OF_MEMORY", "{step}");
        assert_eq!(raw.finish(), Some(0), "{step}");
        until(
            &format!("{step}: the claim ends"),
            Duration::from_secs(5),
            || station.snapshot().ok()?.claims.is_empty().then_some(()),
        );
    }
}

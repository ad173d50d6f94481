//! Claims on behalf: root makes one for all processes below a cgroup that gshare does not own, such as a container, a
//! service or a job of a batch system.
//!
//! gshare moves no process into or out of that cgroup, freezes or kills nothing in it, and sends no signals, except in a
//! job that Slurm has suspended (`levers/suspended.rs`). Such a claim ends when root releases it, or when its cgroup is
//! removed. An empty cgroup keeps its claim: the next step of a job may start in it.

use std::time::Duration;

use super::command::{ClaimCommand, Command, EndCommand};
use super::fact::{Fact, Found};
use super::world::World;

/// The claim ends if its cgroup does not appear within this time.
const APPEARS: Duration = Duration::from_secs(600);

/// Ends claims on behalf with their cgroups.
#[derive(Debug, Default)]
pub(crate) struct Behalf;

impl Behalf {
    pub(crate) fn on(&mut self, world: &World<'_>, fact: &Fact, out: &mut Vec<Command>) {
        let Fact::Tick(tick) = fact else { return };
        for (&id, found) in &tick.cgroups {
            let Some(live) = world.claims.get(&id) else {
                continue;
            };
            let Some(behalf) = &live.record.origin.behalf else {
                continue;
            };
            let age = world.now.unix_ms.saturating_sub(live.record.granted_ms);
            let end = |cause: &'static str| {
                Command::Ends(EndCommand::End {
                    id,
                    cause: cause.into(),
                })
            };
            match found {
                Found::Same if behalf.seen => {}
                Found::Same | Found::Anew => out.push(Command::Claims(ClaimCommand::Enter(id))),
                Found::Gone if behalf.seen => out.push(end("its cgroup is gone")),
                Found::Gone if Duration::from_millis(age) > APPEARS => {
                    out.push(end("its cgroup did not appear within 10 min"));
                }
                Found::Gone => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use gshare_core::ClaimId;

    use super::*;
    use crate::daemon::fact::Tick;
    use crate::daemon::journal::BehalfRecord;
    use crate::daemon::world::scene::Scene;

    /// Commands at a tick with this state of the cgroup, for a claim of this age.
    fn done(found: Found, seen: bool, age_s: u64) -> String {
        let mut scene = Scene::of(1);
        let unix_ms = scene.now.unix_ms;
        let record = &mut scene.claim(1, 0).record;
        record.granted_ms = unix_ms - age_s * 1000;
        record.origin.behalf = Some(BehalfRecord {
            cgroup: "/job".into(),
            seen,
            ..BehalfRecord::default()
        });
        let tick = Fact::Tick(Tick {
            cgroups: [(ClaimId(1), found)].into(),
            ..Tick::default()
        });
        let mut out = Vec::new();
        Behalf.on(&scene.world(), &tick, &mut out);
        format!("{out:?}")
    }

    #[test]
    fn a_claim_on_behalf_ends_with_its_cgroup_and_waits_for_one_that_is_not_there_yet() {
        assert_eq!(done(Found::Same, true, 900), "[]");
        let unwritten = done(Found::Same, false, 1);
        assert_eq!(
            unwritten, "[Claims(Enter(ClaimId(1)))]",
            "the service died before it had noted it"
        );
        assert_eq!(done(Found::Anew, false, 1), "[Claims(Enter(ClaimId(1)))]");
        assert_eq!(done(Found::Anew, true, 1), "[Claims(Enter(ClaimId(1)))]");
        let gone = done(Found::Gone, true, 1);
        assert!(gone.contains("its cgroup is gone"), "{gone}");
        assert_eq!(done(Found::Gone, false, 599), "[]");
        let never = done(Found::Gone, false, 601);
        assert!(never.contains("did not appear"), "{never}");
    }
}

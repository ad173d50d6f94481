//! Notebook kernels that have ended: their claims stay for a while, because Jupyter may restart them.
//!
//! Jupyter deletes the connection file when it shuts a kernel down, and leaves it for a restart. A user's file system
//! may be slow, and only the user may be able to read it, so a helper process checks.

use std::collections::BTreeMap;
use std::time::Duration;

use gshare_core::ClaimId;
use gshare_core::machine::Now;

use super::command::{Command, EndCommand};
use super::fact::Fact;
use super::journal::KernelRecord;
use super::live::Live;
use super::world::World;

/// A check of a connection file without an answer is repeated after this time.
const LOST: Duration = Duration::from_secs(45);

/// Claims whose kernel has ended and may be restarted.
#[derive(Debug, Default)]
pub(crate) struct Kernels(BTreeMap<ClaimId, Gap>);

/// A kernel has ended, and may be replaced by another one.
#[derive(Debug)]
struct Gap {
    since: Now,
    /// When the current check of the connection file began.
    looking: Option<Now>,
}

impl Kernels {
    pub(crate) fn on(&mut self, world: &World<'_>, fact: &Fact, out: &mut Vec<Command>) {
        let now = world.now.core;
        match *fact {
            Fact::KernelSeen { claim, shut_down } => {
                let waits = world.claims.get(&claim).and_then(awaited).is_some();
                let gap = self.0.get_mut(&claim).filter(|_| waits);
                if let (Some(_), true) = (&gap, shut_down) {
                    let (id, cause) = (claim, "its kernel was shut down".into());
                    out.push(Command::Ends(EndCommand::End { id, cause }));
                }
                gap.into_iter().for_each(|gap| gap.looking = None);
            }
            Fact::Tick(_) => {
                let waits = |id: &ClaimId| world.claims.get(id).and_then(awaited).is_some();
                self.0.retain(|id, _| waits(id));
                for (&id, live) in world.claims.iter() {
                    let Some(kernel) = awaited(live) else {
                        continue;
                    };
                    let (since, looking) = (now, None);
                    let gap = self.0.entry(id).or_insert(Gap { since, looking });
                    let ago = |since| now.saturating_sub(since);
                    if ago(gap.since) >= world.config.claims.kernel_grace {
                        let cause = "its kernel was not started again".into();
                        out.push(Command::Ends(EndCommand::End { id, cause }));
                    } else if gap.looking.is_none_or(|since| ago(since) >= LOST)
                        && kernel.connection.is_absolute()
                    {
                        gap.looking = Some(now);
                        let path = kernel.connection.clone();
                        out.push(Command::LookFor(id, live.record.uid, path));
                    }
                }
            }
            _ => {}
        }
    }
}

/// The kernel that a claim waits to see replaced.
fn awaited(live: &Live) -> Option<&KernelRecord> {
    let waits = !live.command_alive && live.stays_without_command();
    live.record.origin.kernel.as_ref().filter(|_| waits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::fact::Tick;
    use crate::daemon::world::scene::Scene;

    /// Commands after these facts, each this many seconds after the start; at 3 s another kernel starts.
    fn done(facts: Vec<(u64, Fact)>) -> Vec<String> {
        done_of("/run/kernel-k.json", facts)
    }

    fn done_of(path: &str, facts: Vec<(u64, Fact)>) -> Vec<String> {
        let mut scene = Scene::of(1);
        scene.claim(1, 0).record.origin.kernel = Some(KernelRecord {
            id: String::new(),
            connection: path.into(),
        });
        scene.config.claims.kernel_grace = Duration::from_secs(100);
        let (mut kernels, mut out) = (Kernels::default(), Vec::new());
        for (at, fact) in facts {
            scene.now.core = Duration::from_secs(at);
            scene.claim(1, 0).command_alive = at == 3;
            kernels.on(&scene.world(), &fact, &mut out);
        }
        let word = |c: &Command| match c {
            Command::LookFor(..) => "look".to_owned(),
            Command::Ends(EndCommand::End { cause, .. }) => cause.to_string(),
            other => format!("{other:?}"),
        };
        out.iter().map(word).collect()
    }

    #[test]
    fn a_claim_ends_when_its_kernel_is_shut_down_or_not_started_again() {
        let claim = ClaimId(1);
        let seen = |at, shut_down| (at, Fact::KernelSeen { claim, shut_down });
        let tick = |at| (at, Fact::Tick(Tick::default()));
        let shut = done(vec![tick(0), tick(1), seen(2, true)]);
        assert_eq!(shut, ["look", "its kernel was shut down"]);
        let again = done(vec![
            tick(0),
            seen(1, false),
            tick(2),
            tick(3),
            seen(3, true),
        ]);
        assert_eq!(again, ["look", "look"]);
        let late = done(vec![tick(0), seen(1, false), tick(3), tick(9999)]);
        assert_eq!(late, ["look", "look"], "the time begins anew");
        let lost = done(vec![tick(0), tick(44), tick(45), tick(9999)]);
        assert_eq!(lost, ["look", "look", "its kernel was not started again"]);
        let unknown = done_of("", vec![tick(0), tick(44), tick(9999)]);
        assert_eq!(unknown, ["its kernel was not started again"]);
    }
}

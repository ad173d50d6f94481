//! State of notebooks by their Jupyter servers: names that follow a rename, and whether kernels work. Processes with
//! the rights of the kernels' users query the servers ([`helpers`]), whose files are private. The answers are under
//! the users' control.

pub(crate) mod helpers;

use std::collections::BTreeMap;
use std::time::Duration;

use gshare_core::ClaimId;
use gshare_proto::Named;

use super::command::Command;
use super::fact::Fact;
use super::live::Live;
use super::world::World;
use crate::clock::nanos;
use crate::figures::printable;
use crate::kernel::seen::Seen;

/// Shortest and longest time between two queries of a user's servers.
const LOOK: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));
/// Longest stored name, in characters.
const NAME: usize = 300;

/// Time in milliseconds after which the server has noticed a line of gshare's.
const HEARD: u64 = 3_000;

/// A line that gshare wrote into a notebook. Jupyter counts any output as activity of the kernel, so the warning
/// about an idle kernel would end its idleness.
#[derive(Debug)]
struct Line {
    /// Time of the line, in Unix milliseconds.
    at_ms: u64,
    /// The kernel's last activity before it; unknown if it was working.
    active_ms: Option<u64>,
}

impl Line {
    /// The kernel's last activity without the line, if its server reports `seen`.
    fn without(&self, seen: &Seen) -> Option<u64> {
        let active = seen.active_ms?;
        let own = (self.at_ms..=self.at_ms.saturating_add(HEARD)).contains(&active);
        let idle = seen.state.as_deref() == Some("idle");
        match self.active_ms {
            Some(before) if own && idle => Some(before),
            _ => Some(active),
        }
    }
}

/// State of notebooks.
#[derive(Debug, Default)]
pub(crate) struct Notebooks {
    claims: BTreeMap<ClaimId, Notebook>,
    looked_ns: Option<u64>,
}

/// State of the notebook of a claim.
#[derive(Debug, Default)]
struct Notebook {
    /// Last answer, with its time by the clock of launches.
    seen: Option<(Seen, u64)>,
    /// The last line that gshare wrote into it.
    line: Option<Line>,
}

/// Interval between queries: short enough for the shortest configured time.
fn pace(world: &World<'_>) -> Duration {
    let first = world.config.idle.first().unwrap_or(LOOK.1);
    (first / 4).clamp(LOOK.0, LOOK.1)
}

impl Notebooks {
    pub(crate) fn on(&mut self, world: &World<'_>, fact: &Fact, out: &mut Vec<Command>) {
        match fact {
            Fact::Tick(_) => {
                let now = world.now.mono_ns;
                let pace = nanos(pace(world));
                if self
                    .looked_ns
                    .is_none_or(|at| now.saturating_sub(at) >= pace)
                {
                    self.looked_ns = Some(now);
                    self.claims.retain(|id, _| world.claims.contains_key(id));
                    out.push(Command::AskServers);
                }
            }
            Fact::Notebooks { uid, seen } => self.take(world, *uid, seen, out),
            Fact::NotebookLine {
                pid,
                start_ticks,
                at_ms,
            } => self.line(world, (*pid, *start_ticks), *at_ms),
            _ => {}
        }
    }

    /// Handles the answers of a user's servers. Only that user's own claims are updated.
    fn take(&mut self, world: &World<'_>, uid: u32, all: &[Seen], out: &mut Vec<Command>) {
        let own = world.claims.iter().filter(|(_, l)| l.record.uid == uid);
        for (id, live) in own {
            let kernel = live.record.origin.kernel.as_ref();
            let Some(seen) = kernel.and_then(|k| all.iter().find(|s| s.id == *k.id)) else {
                continue;
            };
            let mut seen = seen.clone();
            seen.path = seen.path.map(|p| printable(&p).take(NAME).collect());
            let known = self.claims.entry(*id).or_default();
            if let Some(line) = &known.line {
                seen.active_ms = line.without(&seen);
            }
            let before = known.seen.replace((seen.clone(), world.now.mono_ns));
            if before.is_none_or(|(before, _)| before != seen) {
                out.push(Command::Publish);
            }
        }
    }

    /// Records a line that is about to be written into the output of this kernel.
    fn line(&mut self, world: &World<'_>, process: (i32, u64), at_ms: u64) {
        let of_it = |live: &Live| {
            let own = live.record.process;
            own.is_some_and(|p| (p.pid, p.start_ticks) == process)
        };
        let Some((&id, _)) = world.claims.iter().find(|(_, live)| of_it(live)) else {
            return;
        };
        let known = self.claims.entry(id).or_default();
        let seen = known.seen.as_ref();
        let idle = seen.filter(|(seen, _)| seen.state.as_deref() == Some("idle"));
        let active_ms = idle.and_then(|(seen, _)| seen.active_ms);
        known.line = Some(Line { at_ms, active_ms });
    }

    /// The notebook of a claim by its server, if it was reported recently.
    pub(crate) fn notebook_of(&self, id: ClaimId) -> Option<Named> {
        let (seen, _) = self.claims.get(&id)?.seen.as_ref()?;
        Some(Named {
            value: seen.path.clone()?,
            source: format!("Jupyter server {}", seen.server),
        })
    }

    /// The kernel's state and idle time by its server; `None` without a current answer.
    pub(crate) fn kernel(
        &self,
        world: &World<'_>,
        id: ClaimId,
    ) -> Option<(String, Option<Duration>)> {
        let (seen, at) = self.claims.get(&id)?.seen.as_ref()?;
        let old = 3 * pace(world) + Duration::from_secs(2);
        if world.now.mono_ns.saturating_sub(*at) > nanos(old) {
            return None;
        }
        let state: String = printable(seen.state.as_deref()?).take(16).collect();
        let now = world.now.unix_ms;
        let ago = |ms: u64| Duration::from_millis(now.saturating_sub(ms));
        Some((state, seen.active_ms.map(ago)))
    }
}

#[cfg(test)]
mod tests {
    use gshare_enforcer::proc::ProcessKey;

    use super::*;
    use crate::daemon::journal::KernelRecord;
    use crate::daemon::world::scene::Scene;

    /// A claim of user 7 that is a kernel.
    fn scene() -> Scene {
        let mut scene = Scene::of(1);
        let record = &mut scene.claim(1, 0).record;
        record.uid = 7;
        record.origin.kernel = Some(KernelRecord {
            id: "k".into(),
            ..KernelRecord::default()
        });
        record.process = Some(ProcessKey {
            pid: 3,
            start_ticks: 4,
        });
        scene
    }

    fn says(uid: u32, active_ms: u64) -> Fact {
        let seen = Seen {
            id: "k".to_owned(),
            path: Some("a/b.ipynb".to_owned()),
            state: Some("idle".to_owned()),
            active_ms: Some(active_ms),
            ..Seen::default()
        };
        Fact::Notebooks {
            uid,
            seen: vec![seen],
        }
    }

    fn on(notebooks: &mut Notebooks, scene: &Scene, fact: &Fact) -> Vec<Command> {
        let mut out = Vec::new();
        notebooks.on(&scene.world(), fact, &mut out);
        out
    }

    #[test]
    fn servers_are_believed_of_their_own_users_kernels_and_for_a_while() {
        let (mut notebooks, mut scene, id) = (Notebooks::default(), scene(), ClaimId(1));
        on(&mut notebooks, &scene, &says(8, 5));
        assert_eq!(notebooks.notebook_of(id), None, "another user's server");
        let told = on(&mut notebooks, &scene, &says(7, 400_000));
        assert!(matches!(&*told, [Command::Publish]));
        assert!(
            on(&mut notebooks, &scene, &says(7, 400_000)).is_empty(),
            "as before"
        );
        let named = notebooks.notebook_of(id).map(|n| n.value);
        assert_eq!(named.as_deref(), Some("a/b.ipynb"));
        let idle = Some(("idle".to_owned(), Some(Duration::from_secs(600))));
        assert_eq!(notebooks.kernel(&scene.world(), id), idle);
        scene.now.mono_ns += 60_000_000_000;
        assert_eq!(notebooks.kernel(&scene.world(), id), None, "it is silent");
    }

    #[test]
    fn a_line_of_gshares_does_not_end_the_idleness_of_its_kernel() {
        let (mut notebooks, scene) = (Notebooks::default(), scene());
        on(&mut notebooks, &scene, &says(7, 400_000));
        let line = Fact::NotebookLine {
            pid: 3,
            start_ticks: 4,
            at_ms: 1_000_000,
        };
        on(&mut notebooks, &scene, &line);
        on(&mut notebooks, &scene, &says(7, 1_000_200));
        let kernel = notebooks.kernel(&scene.world(), ClaimId(1));
        assert_eq!(kernel.and_then(|k| k.1), Some(Duration::from_secs(600)));
    }

    #[test]
    fn a_line_of_ones_own_is_no_activity_of_the_kernel() {
        let seen = |state: &str, active_ms| Seen {
            state: Some(state.to_owned()),
            active_ms,
            ..Seen::default()
        };
        let line = Line {
            at_ms: 100_000,
            active_ms: Some(5_000),
        };
        for (state, active, expect) in [
            ("idle", Some(5_000), Some(5_000)),
            ("idle", Some(100_300), Some(5_000)),
            ("idle", Some(99_999), Some(99_999)),
            ("idle", Some(103_001), Some(103_001)),
            ("busy", Some(100_300), Some(100_300)),
            ("idle", None, None),
        ] {
            assert_eq!(
                line.without(&seen(state, active)),
                expect,
                "{state} {active:?}"
            );
        }
        // A kernel without an earlier answer counts as active, because its idle time is unknown.
        let first = Line {
            active_ms: None,
            ..line
        };
        assert_eq!(first.without(&seen("idle", Some(100_300))), Some(100_300));
    }
}

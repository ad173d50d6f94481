//! The features, in the order in which they see a fact, and the rounds in which they do.

use super::advice::AdviceState;
use super::attribution::Attribution;
use super::behalf::Behalf;
use super::command::Command;
use super::fact::Fact;
use super::health::Health;
use super::identity::Identity;
use super::idle::Idle;
use super::kernels::Kernels;
use super::live::Live;
use super::metrics::Metrics;
use super::notebooks::Notebooks;
use super::notices::Notices;
use super::policy::takes::Takers;
use super::reminders::Reminders;
use super::world::World;
use gshare_core::ClaimId;

/// Maximum number of turns in a round. The results of one turn's commands are the facts of the next.
const TURNS: usize = 64;

/// Lists the features in the order in which they see a fact and in which their commands are carried out.
macro_rules! features {
    ($($(#[$doc:meta])* $name:ident: $kind:ty;)*) => {
        /// All features. Each has a private state.
        #[derive(Debug, Default)]
        pub(crate) struct Features {
            $($(#[$doc])* pub(crate) $name: $kind,)*
            /// Facts that they have not seen yet.
            pub(super) round: Round,
        }

        impl Features {
            /// Shows a fact to all of them.
            pub(crate) fn on(&mut self, world: &World<'_>, fact: &Fact, commands: &mut Vec<Command>) {
                $(self.$name.on(world, fact, commands);)*
            }
        }

        #[cfg(test)]
        const ORDER: &[&str] = &[$(stringify!($name)),*];
    };
}

features! {
    /// The processes on GPUs and in claims.
    identity: Identity;
    /// GPUs with errors.
    health: Health;
    /// Attribution of SM activity.
    attribution: Attribution;
    /// State of notebooks by Jupyter.
    notebooks: Notebooks;
    /// Kernels that may be restarted.
    kernels: Kernels;
    /// Programs without a claim that use guaranteed room.
    takers: Takers;
    /// Claims that stand for processes below foreign cgroups.
    behalf: Behalf;
    /// Announcements to owners.
    reminders: Reminders;
    /// Idle claims.
    idle: Idle;
    /// Advice.
    advice: AdviceState;
    /// Recent notices.
    notices: Notices;
    /// Figures of the service about itself.
    metrics: Metrics;
}

/// Facts that the features have not seen yet.
#[derive(Debug, Default)]
pub(crate) struct Round {
    facts: Vec<Fact>,
    turns: usize,
    open: bool,
}

impl Round {
    /// Adds a fact. True if it opens a round: then call [`Round::turn`] until it returns `None`.
    pub(crate) fn begin(&mut self, fact: Fact) -> bool {
        self.facts.push(fact);
        !std::mem::replace(&mut self.open, true)
    }

    /// The facts of the next turn; `None` once there are none. A round that does not end is cut after [`TURNS`].
    pub(crate) fn turn(&mut self) -> Option<Vec<Fact>> {
        let facts = std::mem::take(&mut self.facts);
        if facts.is_empty() || self.turns == TURNS {
            if let Some(fact) = facts.first() {
                tracing::error!(
                    ?fact,
                    "internal error: events trigger each other without end, and the rest was dropped; please report this"
                );
                debug_assert!(false, "features answer each other without end: {fact:?}");
            }
            *self = Self::default();
            return None;
        }
        self.turns += 1;
        Some(facts)
    }
}

impl Features {
    /// Identity of a claim besides its command line. The environment has the name that a notebook had when its kernel
    /// started.
    pub(crate) fn identity_of(&self, id: ClaimId, live: &Live) -> gshare_proto::Identity {
        let mut found = self.identity.show(id, live);
        let now = self.notebooks.notebook_of(id);
        found.notebook = now.or(found.notebook);
        found
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use gshare_abi::host::SlotView;

    use super::*;
    use crate::daemon::fact::{Look, Tick};
    use crate::daemon::journal::KernelRecord;
    use crate::daemon::world::scene::Scene;
    use crate::kernel::seen::Seen;

    #[test]
    fn the_order_is_that_of_the_architecture() {
        let order = format!("`{}`", ORDER.join("`, `"));
        let page = include_str!("../../ARCHITECTURE.md");
        let words: Vec<&str> = page.split_whitespace().collect();
        let same = words.join(" ").contains(&order);
        assert!(same, "ARCHITECTURE.md has another: {order}");
    }

    #[test]
    fn every_fact_is_documented() {
        let page = include_str!("../../docs/internals.md");
        let code = include_str!("fact.rs").split("enum Fact {").nth(1);
        let name = |line: &str| {
            let name = line.strip_prefix("    ")?.split([' ', ',', '(']).next()?;
            name.starts_with(char::is_uppercase)
                .then(|| name.to_owned())
        };
        let facts: Vec<String> = code
            .expect("it is there")
            .lines()
            .filter_map(name)
            .collect();
        assert!(facts.len() > 5, "{facts:?}");
        for fact in facts {
            assert!(page.contains(&format!("| `{fact}` |")), "{fact} is missing");
        }
    }

    /// The features that keep state about a claim.
    fn keepers(features: &Features) -> Vec<String> {
        let (mut feature, mut found) = (String::new(), BTreeSet::new());
        for line in format!("{features:#?}").lines() {
            match line.strip_prefix("    ").and_then(|l| l.split_once(": ")) {
                Some((name, _)) if !name.starts_with(' ') => feature = name.to_owned(),
                _ if line.contains("ClaimId(") => drop(found.insert(feature.clone())),
                _ => {}
            }
        }
        found.into_iter().collect()
    }

    #[test]
    fn nothing_is_kept_of_a_claim_that_has_ended() {
        let mut scene = Scene::of(1);
        let kernel = KernelRecord {
            id: "k".into(),
            ..KernelRecord::default()
        };
        scene.claim(1, 0).record.origin.kernel = Some(kernel);
        let mut features = Features::default();
        let mut see = |scene: &Scene| {
            let pages = scene.claims.keys();
            let pages = pages.map(|id| ((*id, 0), vec![SlotView::default()]));
            let facts = [
                Fact::Owners {
                    servers: Vec::new(),
                },
                Fact::Sample(Look {
                    pages: pages.collect(),
                    ..Look::default()
                }),
                Fact::Notebooks {
                    uid: 0,
                    seen: vec![Seen {
                        id: "k".to_owned(),
                        ..Seen::default()
                    }],
                },
                Fact::Vitals(vec![(ClaimId(1), None)]),
                Fact::Tick(Tick::default()),
            ];
            for fact in facts {
                features.on(&scene.world(), &fact, &mut Vec::new());
            }
            keepers(&features)
        };
        let kept = see(&scene);
        assert!(kept.len() >= 4, "few keep anything: {kept:?}");
        scene.claims.remove(&ClaimId(1));
        scene.now.mono_ns += 1 << 42;
        scene.now.core += Duration::from_secs(3600);
        assert_eq!(see(&scene), [""; 0], "they keep it");
    }

    #[test]
    fn a_round_goes_on_until_nothing_comes_of_it() {
        let mut round = Round::default();
        assert!(round.begin(Fact::Mended { gpu: 0 }), "it opens");
        assert!(!round.begin(Fact::Mended { gpu: 1 }), "it is open");
        assert_eq!(round.turn().map(|facts| facts.len()), Some(2));
        round.begin(Fact::Mended { gpu: 2 });
        assert_eq!(round.turn().map(|facts| facts.len()), Some(1));
        assert!(round.turn().is_none());
        assert!(round.begin(Fact::Mended { gpu: 3 }), "the next");
    }

    #[test]
    #[should_panic(expected = "without end")]
    fn a_round_without_end_is_cut() {
        let mut round = Round::default();
        for _ in 0..=TURNS {
            round.begin(Fact::Mended { gpu: 0 });
            assert!(round.turn().is_some());
        }
    }
}

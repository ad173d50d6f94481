//! Stages: how much gshare does on each GPU and for each group of users. Set by a line in the state directory, or by
//! the configuration.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use gshare_config::{Config, Overuse, Stage, Unclaimed};
use serde::{Deserialize, Serialize};

use crate::{clock, off};

/// Name of the line in the state directory.
pub(crate) const FILE: &str = "stage";

/// The stages in force. The lower of a GPU's and a user's applies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Stages {
    /// For every GPU without an entry.
    pub(crate) machine: Stage,
    /// For single GPUs, by UUID.
    #[serde(default)]
    pub(crate) gpus: BTreeMap<String, Stage>,
    /// Maximum for the members of these groups, by name.
    #[serde(default)]
    pub(crate) groups: BTreeMap<String, Stage>,
    /// A later change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) later: Option<Box<Later>>,
}

/// Stages that apply from a later time on.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Later {
    /// Unix milliseconds.
    pub(crate) from_ms: u64,
    /// `stage 3 (reclaim) for every GPU and user`.
    pub(crate) what: String,
    pub(crate) stages: Stages,
}

impl Later {
    /// `stage 3 (reclaim) for every GPU and user from Mon 30 Nov 08:00`.
    pub(crate) fn text(&self) -> String {
        format!("{} from {}", self.what, clock::local(self.from_ms))
    }
}

impl Stages {
    /// One stage everywhere.
    pub(crate) fn all(machine: Stage) -> Self {
        Self {
            machine,
            ..Self::default()
        }
    }

    pub(crate) fn of_gpu(&self, uuid: &str) -> Stage {
        self.gpus.get(uuid).copied().unwrap_or(self.machine)
    }

    /// The stage of a user who is in these groups.
    pub(crate) fn of_groups<'a>(&self, groups: impl IntoIterator<Item = &'a str>) -> Stage {
        let known = groups.into_iter().filter_map(|g| self.groups.get(g));
        known.copied().min().unwrap_or(Stage::Require)
    }

    /// The same with another stage and without a later change: for these GPUs, for this group, or without either for
    /// everything.
    pub(crate) fn with(&self, stage: Stage, gpus: &[String], group: Option<&str>) -> Self {
        if gpus.is_empty() && group.is_none() {
            return Self::all(stage);
        }
        let mut new = self.without_later();
        new.gpus
            .extend(gpus.iter().map(|uuid| (uuid.clone(), stage)));
        new.gpus.retain(|_, of| *of != new.machine);
        new.groups
            .extend(group.map(|name| (name.to_owned(), stage)));
        new.groups.retain(|_, of| *of != Stage::Require);
        new
    }

    /// The present stages.
    pub(crate) fn without_later(&self) -> Self {
        Self {
            later: None,
            ..self.clone()
        }
    }

    /// The present stages as arguments of `gshare admin stage`: the command would only cancel a later change.
    pub(crate) fn again(&self) -> String {
        let gpu = self
            .gpus
            .iter()
            .map(|(uuid, of)| format!("{} --gpus {uuid}", of.number()));
        let group = self
            .groups
            .iter()
            .map(|(name, of)| format!("{} --group {name}", of.number()));
        gpu.chain(group)
            .next()
            .unwrap_or_else(|| self.machine.number().to_string())
    }
}

/// A key that sets the stage instead of `gshare admin stage`, and the stage.
pub(crate) fn pinned(config: &Config) -> Option<(&'static str, Stage)> {
    let machine = config.stage.machine.map(|s| ("machine in [stage]", s));
    let denies = config.policy.unclaimed == Some(Unclaimed::Deny);
    machine.or(denies.then_some(("unclaimed in [policy]", Stage::Require)))
}

/// The stages in force with this configuration and this line. Without either, the behaviour before there were stages.
pub(crate) fn in_force(config: &Config, line: Option<Stages>) -> Stages {
    match pinned(config) {
        Some((_, stage)) => Stages::all(stage),
        None => line.unwrap_or_default(),
    }
}

/// Keys of the configuration that contradict a stage, and which of the two applies.
pub(crate) fn contradictions(config: &Config, stage: Stage) -> Vec<String> {
    let (reclaims, idle) = (stage >= Stage::Reclaim, &config.idle);
    let told = [
        (
            reclaims && !config.reclaim.enabled,
            "`enabled = false` in [reclaim] overrides the stage: claims are not moved, offloaded or suspended for others",
        ),
        (
            reclaims && idle.rules.is_empty() && idle.detach.is_none(),
            "`detach = \"never\"` in [idle] overrides the stage: idle claims keep their memory on the GPU",
        ),
        (
            !reclaims && config.policy.overuse == Overuse::Stop,
            "the stage overrides `overuse = \"stop\"` in [policy]: processes above their claim are reported, not ended",
        ),
    ];
    let said = told.into_iter().filter(|(so, _)| *so);
    said.map(|(_, text)| format!("gshare.toml: {text}"))
        .collect()
}

/// Replay of a recorded run in another stage.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fares {
    /// It exceeded its memory limit at some time.
    pub(crate) above: bool,
    /// It had to wait, or could never start.
    pub(crate) waits: bool,
    pub(crate) refused: bool,
    /// It was offloaded or moved.
    pub(crate) taken: bool,
}

/// The effect on a run of a claim.
pub(crate) fn effect(old: Stage, new: Stage, run: Fares) -> Option<&'static str> {
    use Stage::{Observe, Reclaim};
    let limits = old == Observe && new > Observe;
    let takes = old < Reclaim && new >= Reclaim;
    let effects = [
        (limits && run.above, "would have reached its memory limit"),
        (
            limits && run.refused,
            "would have been refused: there is never so much room",
        ),
        (limits && run.waits, WOULD_WAIT),
        (
            takes && run.taken,
            "would have been offloaded or moved for others",
        ),
        (limits, "would have had limits"),
        (takes, "could be offloaded, moved or suspended for others"),
        (
            old > Observe && new == Observe,
            "would have no limits, and start at once",
        ),
        (
            old >= Reclaim && new < Reclaim,
            "would not be offloaded, moved or suspended for others",
        ),
    ];
    effects
        .into_iter()
        .find(|(so, _)| *so)
        .map(|(_, what)| what)
}

/// The duration is printed beside it.
pub(crate) const WOULD_WAIT: &str = "would have waited for room";

/// The line. An unreadable one counts as the stage that affects no program.
pub(crate) fn read(state_dir: &Path) -> Option<Stages> {
    off::read_line(state_dir, FILE).map(|line| {
        line.unwrap_or_else(|| {
            tracing::error!("the stage cannot be read, so stage 1 (observe) is used; set it: gshare admin stage N");
            Stages::all(Stage::Observe)
        })
    })
}

/// Writes the line.
///
/// # Errors
///
/// When the state directory does not exist or cannot be written.
pub(crate) fn write(state_dir: &Path, stages: &Stages) -> io::Result<()> {
    off::write_line(state_dir, FILE, stages)
}

/// The line of a new installation: gshare records and affects no program until an administrator decides.
pub(crate) fn fresh() -> String {
    let line = serde_json::to_string(&Stages::all(Stage::Observe));
    line.expect("plain words") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config::check(text, Path::new("t")).expect("valid")
    }

    #[test]
    fn exceptions_are_kept_until_the_whole_machine_gets_a_stage() {
        let gpu = ["GPU-6".to_owned()];
        let stages = Stages::all(Stage::Reclaim)
            .with(Stage::OptIn, &gpu, None)
            .with(Stage::Observe, &[], Some("students"));
        assert_eq!(stages.of_gpu("GPU-6"), Stage::OptIn);
        assert_eq!(stages.of_gpu("GPU-7"), Stage::Reclaim);
        assert_eq!(stages.of_groups(["staff", "students"]), Stage::Observe);
        assert_eq!(stages.of_groups(["staff"]), Stage::Require);
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(read(dir.path()), None);
        write(dir.path(), &stages).expect("written");
        assert_eq!(read(dir.path()), Some(stages.clone()));
        let back =
            stages
                .with(Stage::Reclaim, &gpu, None)
                .with(Stage::Require, &[], Some("students"));
        assert_eq!(back, Stages::all(Stage::Reclaim));
        assert_eq!(
            stages.with(Stage::Require, &[], None),
            Stages::all(Stage::Require)
        );
        std::fs::write(dir.path().join(FILE), "{").expect("written");
        assert_eq!(read(dir.path()), Some(Stages::all(Stage::Observe)));
    }

    #[test]
    fn what_comes_later_survives_in_the_line_and_any_other_command_cancels_it() {
        let now = Stages::all(Stage::Observe);
        let gpu = ["GPU-6".to_owned()];
        for now in [
            now.clone(),
            now.with(Stage::OptIn, &gpu, None),
            now.with(Stage::Observe, &[], Some("a")),
        ] {
            let later = Later {
                from_ms: 5,
                what: "stage 3 (reclaim) for every GPU and user".into(),
                stages: now.with(Stage::Reclaim, &[], None),
            };
            let both = Stages {
                later: Some(Box::new(later)),
                ..now.clone()
            };
            let dir = tempfile::tempdir().expect("a directory");
            write(dir.path(), &both).expect("written");
            assert_eq!(read(dir.path()), Some(both.clone()));
            assert_eq!(both.with(Stage::OptIn, &gpu, None).later, None);
            // The undoing command leaves the rest unchanged.
            let again = both.again();
            let words: Vec<&str> = again.split(' ').collect();
            let stage = Stage::parse(words[0]).expect("a stage");
            let undone = match words[1..] {
                ["--gpus", uuid] => both.with(stage, &[uuid.to_owned()], None),
                ["--group", name] => both.with(stage, &[], Some(name)),
                _ => both.with(stage, &[], None),
            };
            assert_eq!(undone, now);
        }
    }

    #[test]
    fn a_run_fares_otherwise_in_a_higher_and_in_a_lower_stage() {
        use Stage::{Observe, OptIn, Reclaim, Require};
        let all = Fares {
            above: true,
            waits: true,
            refused: true,
            taken: true,
        };
        for (old, new) in [(Require, Reclaim), (OptIn, OptIn), (Reclaim, Require)] {
            assert_eq!(effect(old, new, all), None, "{old} to {new}");
        }
        let text = |old, new, run| effect(old, new, run).unwrap_or_default();
        let none = Fares::default();
        let waits = Fares {
            waits: true,
            taken: true,
            ..none
        };
        assert!(text(Observe, Require, all).contains("memory limit"));
        assert_eq!(text(Observe, Reclaim, waits), WOULD_WAIT);
        assert_eq!(text(Observe, OptIn, none), "would have had limits");
        assert!(text(OptIn, Reclaim, waits).contains("would have been offloaded"));
        assert!(text(OptIn, Reclaim, none).contains("could be offloaded"));
        assert!(text(Reclaim, Observe, waits).contains("no limits"));
        assert!(text(Require, OptIn, waits).contains("would not be offloaded"));
    }

    #[test]
    fn each_key_that_says_otherwise_than_a_stage_is_named() {
        let named = |text: &str| {
            let config = config(text);
            [Stage::Observe, Stage::OptIn, Stage::Reclaim, Stage::Require].map(|stage| {
                contradictions(&config, stage)
                    .join(" ")
                    .matches('`')
                    .count()
                    / 2
            })
        };
        assert_eq!(named(""), [0; 4]);
        assert_eq!(named("[reclaim]\nenabled = false\n"), [0, 0, 1, 1]);
        assert_eq!(named("[idle]\ndetach = \"never\"\n"), [0, 0, 1, 1]);
        assert_eq!(named("[policy]\noveruse = \"stop\"\n"), [1, 1, 0, 0]);
        let all = config("[reclaim]\nenabled = false\n[idle]\ndetach = \"never\"\n");
        let said = contradictions(&all, Stage::Reclaim);
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(
            said[0].starts_with("gshare.toml: `enabled = false` in [reclaim] overrides the stage")
        );
        assert!(
            said[1].starts_with("gshare.toml: `detach = \"never\"` in [idle] overrides the stage")
        );
    }

    #[test]
    fn without_a_line_gshare_does_what_it_did_and_the_configuration_pins() {
        let line = || Some(Stages::all(Stage::Observe));
        let of = |text: &str, line| in_force(&config(text), line).machine;
        assert_eq!(of("", None), Stage::Reclaim);
        assert_eq!(of("", line()), Stage::Observe);
        let deny = "[policy]\nunclaimed = \"deny\"\n";
        assert_eq!(of(deny, None), Stage::Require);
        assert_eq!(of(deny, line()), Stage::Require);
        assert_eq!(of("[stage]\nmachine = \"opt-in\"\n", line()), Stage::OptIn);
        let fresh: Stages = serde_json::from_str(&fresh()).expect("JSON");
        assert_eq!(fresh, Stages::all(Stage::Observe));
    }
}

//! `[class]`: priority, preemption and rules by the hour, by class of work.

use std::time::Duration;

use gshare_core::Class;
use gshare_core::class::{AtHours, ByHour, Classes, Hours, Rules};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::form::{Form, Optional, Text, Time, Whole};

const DAY: u64 = 86_400_000;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    interactive: Keys,
    batch: Keys,
    inference: Keys,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Keys {
    #[serde(with = "Whole::<0, 1000>")]
    priority: u16,
    preemptible: bool,
    #[serde(with = "Time::<0, DAY>")]
    min_run: Duration,
    start: bool,
    rules: Vec<Rule>,
}

/// `{ hours = "22-6", priority = 100 }`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Rule {
    #[serde(with = "Text")]
    hours: Hours,
    #[serde(
        default,
        with = "Optional::<Whole<0, 1000>>",
        skip_serializing_if = "Option::is_none"
    )]
    priority: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    preemptible: Option<bool>,
    #[serde(
        default,
        with = "Optional::<Time<0, DAY>>",
        skip_serializing_if = "Option::is_none"
    )]
    min_run: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start: Option<bool>,
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Classes, D::Error> {
    let table = Table::deserialize(deserializer)?;
    let mut classes = Classes::default();
    for (class, keys) in [
        (Class::Interactive, table.interactive),
        (Class::Batch, table.batch),
        (Class::Inference, table.inference),
    ] {
        let always = Rules {
            priority: keys.priority,
            preemptible: keys.preemptible,
            min_run: keys.min_run,
            start: keys.start,
        };
        let rule = |rule: Rule| AtHours {
            hours: rule.hours,
            priority: rule.priority,
            preemptible: rule.preemptible,
            min_run: rule.min_run,
            start: rule.start,
        };
        let at = keys.rules.into_iter().map(rule).collect();
        classes.set(class, ByHour { always, at });
    }
    Ok(classes)
}

pub(crate) fn serialize<S: Serializer>(classes: &Classes, out: S) -> Result<S::Ok, S::Error> {
    let rule = |at: &AtHours| Rule {
        hours: at.hours,
        priority: at.priority,
        preemptible: at.preemptible,
        min_run: at.min_run,
        start: at.start,
    };
    let keys = |class| {
        let of: &ByHour = classes.of(class);
        Keys {
            priority: of.always.priority,
            preemptible: of.always.preemptible,
            min_run: of.always.min_run,
            start: of.always.start,
            rules: of.at.iter().map(rule).collect(),
        }
    };
    let table = Table {
        interactive: keys(Class::Interactive),
        batch: keys(Class::Batch),
        inference: keys(Class::Inference),
    };
    table.serialize(out)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::Config;

    use super::*;

    fn read(text: &str) -> Result<Config, Vec<String>> {
        let problems = |all: Vec<crate::Problem>| all.iter().map(|p| p.message.clone()).collect();
        Config::check(text, Path::new("test.toml")).map_err(problems)
    }

    #[test]
    fn what_is_shown_reads_back_and_hours_change_what_holds() {
        let text = "[class.batch]\npriority = 20\nrules = [{ hours = \"8-18\", start = false }, { hours = \"22-6\", priority = 200, preemptible = false, min-run = \"10m\" }]\n[class.inference]\npreemptible = false\n";
        let config = read(text).expect("valid");
        let batch = config.classes.of(Class::Batch);
        assert!(!batch.at(9 * 60).start && batch.at(19 * 60).start);
        let night = batch.at(23 * 60);
        assert_eq!((night.priority, night.preemptible), (200, false));
        assert_eq!(night.min_run, Duration::from_secs(600));
        assert!(!config.classes.of(Class::Inference).at(0).preemptible);
        assert_eq!(read(&config.show()), Ok(config));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, word) in [
            ("[class.web]\npriority = 1\n", "unknown key `web`"),
            (
                "[class.batch]\nrules = [{ hours = \"8\" }]\n",
                "not a range of hours",
            ),
            ("[class.batch]\nrules = [{ hour = \"8-9\" }]\n", "`hour`"),
            (
                "[class.batch]\nrules = [{ start = true }]\n",
                "`rules`: hours is missing",
            ),
            ("[class.batch]\npreemptible = \"no\"\n", "true or false"),
            ("[class.batch]\npriority = 5000\n", "1000"),
        ] {
            let problems = read(text).expect_err(text);
            assert!(problems[0].contains(word), "{text}: {problems:?}");
        }
    }
}

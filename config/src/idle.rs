//! `[idle]`: actions on idle claims.

use std::time::Duration;

use gshare_core::Class;
use gshare_core::class::Hours;
use serde::{Deserialize, Serialize};

use crate::form::{ClassWord, Form, Never, Optional, Or, Text, Time};
use crate::words::NoDetach;

/// Up to 30 days, or never.
type Maybe = Or<Never, Time<0, { 30 * 86_400_000 }>>;

/// The rule for a claim; times count from its last launch and its kernel's last activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleRule {
    /// `warn`: its owner is warned; `None`: never.
    pub warn: Option<Duration>,
    /// `detach`: it is offloaded when another claim waits; `None`: never.
    pub detach: Option<Duration>,
    /// `always`: it is offloaded even if no claim waits; `None`: never.
    pub always: Option<Duration>,
    /// `no-detach`: the action if it cannot be offloaded.
    pub no_detach: NoDetach,
}

impl IdleRule {
    /// No action.
    const NOTHING: Self = Self {
        warn: None,
        detach: None,
        always: None,
        no_detach: NoDetach::Warn,
    };

    /// The shortest of its times.
    #[must_use]
    pub fn first(&self) -> Option<Duration> {
        [self.warn, self.detach, self.always]
            .into_iter()
            .flatten()
            .min()
    }
}

/// Exceptions for some claims at some hours; `None` keeps the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct IdleWhen {
    /// For this class; `None`: interactive.
    #[serde(
        with = "Optional::<ClassWord>",
        skip_serializing_if = "Option::is_none"
    )]
    pub class: Option<Class>,
    /// For owners in this group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// At these hours.
    #[serde(with = "Optional::<Text>", skip_serializing_if = "Option::is_none")]
    pub hours: Option<Hours>,
    /// See [`IdleRule::warn`].
    #[serde(with = "Optional::<Maybe>", skip_serializing_if = "Option::is_none")]
    pub warn: Option<Option<Duration>>,
    /// See [`IdleRule::detach`].
    #[serde(with = "Optional::<Maybe>", skip_serializing_if = "Option::is_none")]
    pub detach: Option<Option<Duration>>,
    /// See [`IdleRule::always`].
    #[serde(with = "Optional::<Maybe>", skip_serializing_if = "Option::is_none")]
    pub always: Option<Option<Duration>>,
    /// See [`IdleRule::no_detach`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_detach: Option<NoDetach>,
}

/// Actions on idle claims: the times are for interactive claims, others are left alone unless a rule includes them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Idle {
    /// See [`IdleRule::warn`].
    #[serde(with = "Maybe")]
    pub warn: Option<Duration>,
    /// See [`IdleRule::detach`].
    #[serde(with = "Maybe")]
    pub detach: Option<Duration>,
    /// See [`IdleRule::always`].
    #[serde(with = "Maybe")]
    pub always: Option<Duration>,
    /// See [`IdleRule::no_detach`].
    pub no_detach: NoDetach,
    /// `rules`: exceptions; the last matching one applies.
    pub rules: Vec<IdleWhen>,
}

impl Idle {
    /// The rule for a claim of a class whose owner is in some groups, at a minute of the day.
    #[must_use]
    pub fn rule(&self, class: Class, groups: &[String], minute: u16) -> IdleRule {
        let mut rule = match class {
            Class::Interactive => IdleRule {
                warn: self.warn,
                detach: self.detach,
                always: self.always,
                no_detach: self.no_detach,
            },
            _ => IdleRule::NOTHING,
        };
        let holds = |when: &&IdleWhen| {
            when.class.unwrap_or(Class::Interactive) == class
                && when.group.as_ref().is_none_or(|g| groups.contains(g))
                && when.hours.is_none_or(|h| h.contains(minute))
        };
        for when in self.rules.iter().filter(holds) {
            rule.warn = when.warn.unwrap_or(rule.warn);
            rule.detach = when.detach.unwrap_or(rule.detach);
            rule.always = when.always.unwrap_or(rule.always);
            rule.no_detach = when.no_detach.unwrap_or(rule.no_detach);
        }
        rule
    }

    /// The shortest configured time.
    #[must_use]
    pub fn first(&self) -> Option<Duration> {
        let times = |w: &IdleWhen| [w.warn, w.detach, w.always];
        let rules = self.rules.iter().flat_map(times).flatten().flatten();
        let own = [self.warn, self.detach, self.always].into_iter().flatten();
        rules.chain(own).min()
    }
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
    fn out_of_the_box_notebooks_are_warned_at_20_minutes_and_others_left_alone() {
        let idle = Config::default().idle;
        let minutes = |n: u64| Some(Duration::from_secs(n * 60));
        let rule = idle.rule(Class::Interactive, &[], 0);
        assert_eq!(
            (rule.warn, rule.detach, rule.always),
            (minutes(20), minutes(30), None)
        );
        assert_eq!(rule.no_detach, NoDetach::Warn);
        for class in [Class::Batch, Class::Inference] {
            assert_eq!(idle.rule(class, &[], 0), IdleRule::NOTHING);
        }
    }

    #[test]
    fn rules_hold_by_class_group_and_hour_and_read_back() {
        let text = "[idle]\nwarn = \"5m\"\nno-detach = \"shrink\"\nrules = [{ group = \"students\", detach = \"10m\" }, { hours = \"22-6\", warn = \"never\", always = \"2h\" }, { class = \"batch\", hours = \"8-18\", detach = \"1h\", no-detach = \"release\" }]\n";
        let config = read(text).expect("valid");
        let minutes = |n: u64| Some(Duration::from_secs(n * 60));
        let students = ["students".to_owned()];
        let day = config.idle.rule(Class::Interactive, &students, 12 * 60);
        assert_eq!(
            (day.warn, day.detach, day.always),
            (minutes(5), minutes(10), None)
        );
        assert_eq!(day.no_detach, NoDetach::Shrink);
        let night = config.idle.rule(Class::Interactive, &[], 23 * 60);
        assert_eq!(
            (night.warn, night.detach, night.always),
            (None, minutes(30), minutes(120))
        );
        let batch = config.idle.rule(Class::Batch, &[], 9 * 60);
        assert_eq!(
            (batch.detach, batch.no_detach),
            (minutes(60), NoDetach::Release)
        );
        assert_eq!(config.idle.rule(Class::Batch, &[], 0), IdleRule::NOTHING);
        assert_eq!(config.idle.first(), minutes(5));
        assert_eq!(read(&config.show()), Ok(config));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, word) in [
            ("[idle]\nwarn = \"soon\"\n", "never"),
            ("[idle]\nno-detach = \"kill\"\n", "warn, shrink, release"),
            ("[idle]\nrules = [{ user = \"ada\" }]\n", "`user`"),
            ("[idle]\nrules = [{ class = \"web\" }]\n", "not one of"),
            (
                "[idle]\nrules = [{ hours = \"8\" }]\n",
                "not a range of hours",
            ),
        ] {
            let problems = read(text).expect_err(text);
            assert!(problems[0].contains(word), "{text}: {problems:?}");
        }
    }
}

//! `[idle]`: what is done with claims that run nothing.

use std::fmt::{self, Write as _};
use std::time::Duration;

use gshare_core::Class;
use gshare_core::class::Hours;
use toml::de::{DeTable, DeValue};

use crate::read::{self, Reader};
use crate::show::{duration, quote};

const MONTH: Duration = Duration::from_secs(30 * 86_400);

/// What is done with an idle claim that cannot be detached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NoDetach {
    /// Its owner is told, nothing is taken.
    #[default]
    Warn,
    /// What it does not use of its memory is given to those who wait.
    Shrink,
    /// It ends; its processes live on without a GPU.
    Release,
}

impl NoDetach {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Warn, Self::Shrink, Self::Release];

    /// The word in the file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Warn => "warn",
            Self::Shrink => "shrink",
            Self::Release => "release",
        }
    }
}

/// What holds for a claim; times count from when nothing was launched and its kernel did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleRule {
    /// `warn`: its owner is told; `None`: never.
    pub warn: Option<Duration>,
    /// `detach`: it is detached when somebody waits; `None`: never.
    pub detach: Option<Duration>,
    /// `always`: it is detached although nobody waits; `None`: never.
    pub always: Option<Duration>,
    /// `no-detach`: what is done in the place of detaching it, where that is not possible.
    pub no_detach: NoDetach,
}

impl IdleRule {
    /// Nothing is done.
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

/// What is different for some claims at some hours; what is `None` is not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdleWhen {
    /// Of this class; `None`: interactive.
    pub class: Option<Class>,
    /// Whose owner is in this group.
    pub group: Option<String>,
    /// At these hours.
    pub hours: Option<Hours>,
    /// See [`IdleRule::warn`].
    pub warn: Option<Option<Duration>>,
    /// See [`IdleRule::detach`].
    pub detach: Option<Option<Duration>>,
    /// See [`IdleRule::always`].
    pub always: Option<Option<Duration>>,
    /// See [`IdleRule::no_detach`].
    pub no_detach: Option<NoDetach>,
}

/// `[idle]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idle {
    /// What holds for interactive claims. Nothing is done with others unless a rule says so.
    pub interactive: IdleRule,
    /// `rules`: what is different; of several the later entry counts.
    pub rules: Vec<IdleWhen>,
}

impl Default for Idle {
    fn default() -> Self {
        Self {
            interactive: IdleRule {
                warn: Some(Duration::from_secs(20 * 60)),
                detach: Some(Duration::from_secs(30 * 60)),
                ..IdleRule::NOTHING
            },
            rules: Vec::new(),
        }
    }
}

impl Idle {
    /// What holds for a claim of a class whose owner is in some groups, at a minute of the day.
    #[must_use]
    pub fn rule(&self, class: Class, groups: &[String], minute: u16) -> IdleRule {
        let mut rule = match class {
            Class::Interactive => self.interactive,
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

    /// The shortest time that is written anywhere.
    #[must_use]
    pub fn first(&self) -> Option<Duration> {
        let times = |w: &IdleWhen| [w.warn, w.detach, w.always];
        let rules = self.rules.iter().flat_map(times).flatten().flatten();
        rules.chain(self.interactive.first()).min()
    }

    pub(crate) fn walk<'t>(reader: &mut Reader<'t>, root: &DeTable<'t>) -> Self {
        let d = Self::default();
        let mut s = reader.section(root, "idle");
        let value = Self {
            interactive: IdleRule {
                warn: s.get("warn", d.interactive.warn, maybe),
                detach: s.get("detach", d.interactive.detach, maybe),
                always: s.get("always", d.interactive.always, maybe),
                no_detach: s.get("no-detach", d.interactive.no_detach, no_detach),
            },
            rules: s.get("rules", Vec::new(), rules),
        };
        s.finish();
        value
    }

    /// The section as a file has it.
    pub(crate) fn show(&self, out: &mut String) -> fmt::Result {
        let rule = &self.interactive;
        writeln!(out, "\n[idle]")?;
        writeln!(out, "warn = \"{}\"", shown(rule.warn))?;
        writeln!(out, "detach = \"{}\"", shown(rule.detach))?;
        writeln!(out, "always = \"{}\"", shown(rule.always))?;
        writeln!(out, "no-detach = \"{}\"", rule.no_detach.name())?;
        let rules: Vec<String> = self.rules.iter().map(shown_rule).collect();
        writeln!(out, "rules = [{}]", rules.join(", "))
    }
}

/// A time, or `never`.
fn maybe(value: &DeValue<'_>) -> Result<Option<Duration>, String> {
    if value.as_str() == Some("never") {
        return Ok(None);
    }
    let time = read::time(Duration::ZERO..=MONTH)(value);
    time.map(Some).map_err(|e| format!("{e}, or \"never\""))
}

fn no_detach(value: &DeValue<'_>) -> Result<NoDetach, String> {
    let text = read::text(value)?;
    let known = NoDetach::ALL.into_iter().find(|n| n.name() == text);
    known.ok_or_else(|| format!("`{text}` is not one of warn, shrink, release"))
}

/// `[{ class = "batch", group = "students", hours = "22-6", detach = "10m" }]`.
fn rules(value: &DeValue<'_>) -> Result<Vec<IdleWhen>, String> {
    const HOW: &str =
        "expected a list such as [{ group = \"students\", hours = \"22-6\", detach = \"10m\" }]";
    const KNOWN: [&str; 7] = [
        "class",
        "group",
        "hours",
        "warn",
        "detach",
        "always",
        "no-detach",
    ];
    let list = value.as_array().ok_or(HOW)?;
    let one = |value: &DeValue<'_>| {
        let table = value.as_table().ok_or(HOW)?;
        let get = |key: &str| table.get(key).map(toml::Spanned::get_ref);
        for (key, _) in table {
            let key = key.get_ref();
            if !KNOWN.contains(&key.as_ref()) {
                let known = KNOWN.join(", ");
                return Err(format!("unknown key `{key}`; a rule has {known}"));
            }
        }
        let class = get("class").map(read::text).transpose()?;
        let hours = get("hours").map(read::text).transpose()?;
        Ok(IdleWhen {
            class: class
                .map(|c| c.parse::<Class>().map_err(|e| e.to_string()))
                .transpose()?,
            group: get("group").map(read::text).transpose()?,
            hours: hours
                .map(|h| h.parse::<Hours>().map_err(|e| e.to_string()))
                .transpose()?,
            warn: get("warn").map(maybe).transpose()?,
            detach: get("detach").map(maybe).transpose()?,
            always: get("always").map(maybe).transpose()?,
            no_detach: get("no-detach").map(no_detach).transpose()?,
        })
    };
    list.iter().map(|v| one(v.get_ref())).collect()
}

fn shown(time: Option<Duration>) -> String {
    time.map_or_else(|| "never".to_owned(), duration)
}

fn shown_rule(when: &IdleWhen) -> String {
    let time = |key: &str, time: Option<Option<Duration>>| {
        time.map(|t| format!("{key} = \"{}\"", shown(t)))
    };
    let parts = [
        when.class.map(|c| format!("class = \"{}\"", c.name())),
        when.group.as_ref().map(|g| format!("group = {}", quote(g))),
        when.hours.map(|h| format!("hours = \"{h}\"")),
        time("warn", when.warn),
        time("detach", when.detach),
        time("always", when.always),
        when.no_detach
            .map(|n| format!("no-detach = \"{}\"", n.name())),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    format!("{{ {} }}", parts.join(", "))
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
            ("[idle]\nrules = [{ hours = \"8\" }]\n", "no span"),
        ] {
            let problems = read(text).expect_err(text);
            assert!(problems[0].contains(word), "{text}: {problems:?}");
        }
    }
}

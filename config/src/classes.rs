//! `[class]`: priority, preemption and rules by the hour, by class of work.

use std::fmt::{self, Write as _};
use std::time::Duration;

use gshare_core::Class;
use gshare_core::class::{AtHours, ByHour, Classes, Hours, Rules};
use toml::de::{DeTable, DeValue};

use crate::read::{self, Reader};
use crate::show::duration;

const DAY: Duration = Duration::from_secs(86_400);
const MOST: u32 = 1000;

pub(crate) fn walk<'t>(reader: &mut Reader<'t>, root: &DeTable<'t>) -> Classes {
    let mut classes = Classes::default();
    reader.section(root, "class").named("NAME", |name, s| {
        let class = name.parse::<Class>();
        let d = Rules::of(*class.as_ref().unwrap_or(&Class::Batch));
        let always = Rules {
            priority: s.get("priority", d.priority, priority),
            preemptible: s.get("preemptible", d.preemptible, read::truth),
            min_run: s.get("min-run", d.min_run, read::time(Duration::ZERO..=DAY)),
            start: s.get("start", d.start, read::truth),
        };
        let at = s.get("rules", Vec::new(), rules);
        match class {
            Ok(class) if s.exists() => classes.set(class, ByHour { always, at }),
            Err(error) if s.exists() => s.complain("", error, None),
            _ => {}
        }
    });
    classes
}

fn priority(value: &DeValue<'_>) -> Result<u16, String> {
    read::whole(0..=MOST)(value).map(|n| u16::try_from(n).unwrap_or(u16::MAX))
}

/// `[{ hours = "22-6", priority = 100 }]`.
fn rules(value: &DeValue<'_>) -> Result<Vec<AtHours>, String> {
    const HOW: &str =
        "expected a list such as [{ hours = \"22-6\", priority = 100, start = true }]";
    let list = value.as_array().ok_or(HOW)?;
    let one = |value: &DeValue<'_>| {
        let table = value.as_table().ok_or(HOW)?;
        let get = |key: &str| table.get(key).map(toml::Spanned::get_ref);
        let known = ["hours", "priority", "preemptible", "min-run", "start"];
        for (key, _) in table {
            let key = key.get_ref();
            if !known.contains(&key.as_ref()) {
                return Err(format!(
                    "unknown key `{key}`; a rule has {}",
                    known.join(", ")
                ));
            }
        }
        let hours = get("hours").ok_or(HOW)?;
        let hours = read::text(hours)?;
        Ok(AtHours {
            hours: hours.parse::<Hours>().map_err(|e| e.to_string())?,
            priority: get("priority").map(priority).transpose()?,
            preemptible: get("preemptible").map(read::truth).transpose()?,
            min_run: get("min-run")
                .map(|v| read::time(Duration::ZERO..=DAY)(v))
                .transpose()?,
            start: get("start").map(read::truth).transpose()?,
        })
    };
    list.iter().map(|v| one(v.get_ref())).collect()
}

/// The section as a file has it.
pub(crate) fn show(classes: &Classes, out: &mut String) -> fmt::Result {
    writeln!(out, "\n[class]")?;
    for class in Class::ALL {
        let of = classes.of(class);
        let always = of.always;
        let rules: Vec<String> = of.at.iter().map(rule).collect();
        writeln!(
            out,
            "{} = {{ priority = {}, preemptible = {}, min-run = \"{}\", start = {}, rules = [{}] }}",
            class.name(),
            always.priority,
            always.preemptible,
            duration(always.min_run),
            always.start,
            rules.join(", ")
        )?;
    }
    Ok(())
}

fn rule(at: &AtHours) -> String {
    let parts = [
        Some(format!("hours = \"{}\"", at.hours)),
        at.priority.map(|p| format!("priority = {p}")),
        at.preemptible.map(|p| format!("preemptible = {p}")),
        at.min_run.map(|t| format!("min-run = \"{}\"", duration(t))),
        at.start.map(|s| format!("start = {s}")),
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
            ("[class.web]\npriority = 1\n", "not one of"),
            ("[class.batch]\nrules = [{ hours = \"8\" }]\n", "no span"),
            ("[class.batch]\nrules = [{ hour = \"8-9\" }]\n", "`hour`"),
            (
                "[class.batch]\nrules = [{ start = true }]\n",
                "expected a list",
            ),
            ("[class.batch]\npreemptible = \"no\"\n", "true or false"),
            ("[class.batch]\npriority = 5000\n", "1000"),
        ] {
            let problems = read(text).expect_err(text);
            assert!(problems[0].contains(word), "{text}: {problems:?}");
        }
    }
}

//! Classes of claims: their priority, whether they may be preempted, and rules by time of day.
//!
//! The core has no clock: the service passes the minute of the day.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::claim::Class;

/// Minutes of a day.
pub const DAY: u16 = 24 * 60;

/// Rules for the claims of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Higher priority goes first, among claims with the same standing.
    pub priority: u16,
    /// Claims may be preempted while their owner is above the guarantee. If false, they start only within it.
    pub preemptible: bool,
    /// Minimum run time before a claim may be preempted.
    pub min_run: Duration,
    /// New claims may start at this hour.
    pub start: bool,
}

impl Rules {
    /// Default rules of a class.
    #[must_use]
    pub const fn of(class: Class) -> Self {
        Self {
            priority: match class {
                Class::Batch => 50,
                Class::Interactive | Class::Inference => 100,
            },
            preemptible: true,
            min_run: Duration::from_secs(60),
            start: true,
        }
    }
}

/// A daily period, in minutes from midnight; it may span midnight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hours {
    /// First minute.
    pub from: u16,
    /// The minute after the last.
    pub to: u16,
}

impl Hours {
    /// Whether the period contains a minute of the day.
    #[must_use]
    pub const fn contains(self, minute: u16) -> bool {
        if self.from < self.to {
            self.from <= minute && minute < self.to
        } else {
            minute >= self.from || minute < self.to
        }
    }
}

/// A text that is not a range of hours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a range of hours such as \"22-6\" or \"8:30-18\"")]
pub struct HoursError(String);

impl FromStr for Hours {
    type Err = HoursError;

    fn from_str(text: &str) -> Result<Self, HoursError> {
        let bad = || HoursError(text.to_owned());
        let time = |text: &str| {
            let (hours, minutes) = text.trim().split_once(':').unwrap_or((text.trim(), "0"));
            let (hours, minutes): (u16, u16) = (hours.parse().ok()?, minutes.parse().ok()?);
            let at = hours.checked_mul(60)?.checked_add(minutes)?;
            (minutes < 60 && at <= DAY).then_some(at)
        };
        let (from, to) = text.split_once('-').ok_or_else(bad)?;
        let (from, to) = (
            time(from).ok_or_else(bad)? % DAY,
            time(to).ok_or_else(bad)? % DAY,
        );
        if from == to {
            return Err(bad());
        }
        Ok(Self { from, to })
    }
}

/// Writes a minute of the day as `22:00`.
#[must_use]
pub fn show_minute(minute: u16) -> String {
    format!("{:02}:{:02}", minute / 60, minute % 60)
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", show_minute(self.from), show_minute(self.to))
    }
}

/// Rules that change at some hours; `None` leaves a rule unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtHours {
    /// Period of the day.
    pub hours: Hours,
    /// See [`Rules::priority`].
    pub priority: Option<u16>,
    /// See [`Rules::preemptible`].
    pub preemptible: Option<bool>,
    /// See [`Rules::min_run`].
    pub min_run: Option<Duration>,
    /// See [`Rules::start`].
    pub start: Option<bool>,
}

/// The rules of one class over the day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByHour {
    /// Default rules.
    pub always: Rules,
    /// Exceptions by time of day; where periods overlap the last entry applies.
    pub at: Vec<AtHours>,
}

impl ByHour {
    /// The rules at a minute of the day.
    #[must_use]
    pub fn at(&self, minute: u16) -> Rules {
        let mut rules = self.always;
        for at in self.at.iter().filter(|at| at.hours.contains(minute)) {
            rules.priority = at.priority.unwrap_or(rules.priority);
            rules.preemptible = at.preemptible.unwrap_or(rules.preemptible);
            rules.min_run = at.min_run.unwrap_or(rules.min_run);
            rules.start = at.start.unwrap_or(rules.start);
        }
        rules
    }

    /// The next minute of the day at which new claims may start; `None` if never.
    #[must_use]
    pub fn starts_at(&self, now: u16) -> Option<u16> {
        (0..DAY)
            .map(|later| (now + later) % DAY)
            .find(|m| self.at(*m).start)
    }
}

/// The rules of all classes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classes([ByHour; 3]);

impl Default for Classes {
    fn default() -> Self {
        Self(Class::ALL.map(|class| ByHour {
            always: Rules::of(class),
            at: Vec::new(),
        }))
    }
}

impl Classes {
    /// The rules of one class.
    #[must_use]
    pub const fn of(&self, class: Class) -> &ByHour {
        &self.0[class as usize]
    }

    /// Sets the rules of one class.
    pub fn set(&mut self, class: Class, rules: ByHour) {
        self.0[class as usize] = rules;
    }
}

/// The rules with the current minute of the day.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clocked {
    /// The rules.
    pub classes: Classes,
    /// Local time of the machine, in minutes from midnight.
    pub minute: u16,
}

impl Clocked {
    /// The current rules of a class.
    #[must_use]
    pub fn rules(&self, class: Class) -> Rules {
        self.classes.of(class).at(self.minute)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_and_may_go_over_midnight() {
        let hours = |text: &str| text.parse::<Hours>().expect(text);
        assert_eq!(hours("22-6").to_string(), "22:00-06:00");
        assert_eq!(
            hours("8:30-18"),
            Hours {
                from: 510,
                to: 1080
            }
        );
        assert_eq!(hours("18-24"), Hours { from: 1080, to: 0 });
        let night = hours("22-6");
        assert!([1320, 1439, 0, 359].iter().all(|m| night.contains(*m)));
        assert!([360, 720, 1319].iter().all(|m| !night.contains(*m)));
        assert!(hours("18-24").contains(1439) && !hours("18-24").contains(0));
        for bad in ["22", "22-", "-6", "25-6", "8:60-9", "8-8", "0-24", "a-b"] {
            assert!(bad.parse::<Hours>().is_err(), "{bad}");
        }
    }

    #[test]
    fn later_entries_count_and_what_is_not_said_stays() {
        let rules = ByHour {
            always: Rules::of(Class::Batch),
            at: vec![
                AtHours {
                    hours: Hours {
                        from: 480,
                        to: 1080,
                    },
                    priority: Some(10),
                    preemptible: None,
                    min_run: None,
                    start: Some(false),
                },
                AtHours {
                    hours: Hours { from: 720, to: 780 },
                    priority: None,
                    preemptible: Some(false),
                    min_run: Some(Duration::ZERO),
                    start: Some(true),
                },
            ],
        };
        assert_eq!(rules.at(0), Rules::of(Class::Batch));
        assert_eq!((rules.at(500).priority, rules.at(500).start), (10, false));
        let noon = rules.at(730);
        assert_eq!(
            (noon.priority, noon.start, noon.preemptible),
            (10, true, false)
        );
        assert_eq!(rules.starts_at(500), Some(720));
        assert_eq!(rules.starts_at(790), Some(1080));
        let never = AtHours {
            hours: Hours {
                from: 1080,
                to: 480,
            },
            priority: None,
            preemptible: None,
            min_run: None,
            start: Some(false),
        };
        let mut none = rules.clone();
        none.at.push(never);
        none.at.push(AtHours {
            hours: Hours {
                from: 480,
                to: 1080,
            },
            ..never
        });
        assert_eq!(none.starts_at(0), None);
    }
}

//! Keys of the history.

use std::fmt;
use std::path::PathBuf;

use gshare_core::Bytes;
use toml::de::{DeTable, DeValue};

use crate::read::{self, Reader};

/// What was claimed and used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// `work-hours`: when somebody is there; what idles at other times idles for the hour.
    pub work_hours: WorkHours,
    /// `max-size`: most bytes of the file; the oldest and finest points go first.
    pub max_size: Bytes,
}

impl Default for History {
    fn default() -> Self {
        Self {
            work_hours: WorkHours::default(),
            max_size: Bytes(200 << 20),
        }
    }
}

impl History {
    pub(crate) fn walk<'t>(reader: &mut Reader<'t>, root: &DeTable<'t>) -> Self {
        let d = Self::default();
        let mut s = reader.section(root, "history");
        let value = Self {
            work_hours: s.get("work-hours", d.work_hours, work_hours),
            max_size: s.get("max-size", d.max_size, max_size),
        };
        s.finish();
        value
    }
}

/// Working hours of a week, local time: `mon-fri 8-20`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkHours {
    /// First and last day, Monday is 0; the last may lie before the first.
    days: (u8, u8),
    /// First hour and the hour after the last, 0 to 24.
    hours: (u8, u8),
}

impl Default for WorkHours {
    fn default() -> Self {
        Self {
            days: (0, 4),
            hours: (8, 20),
        }
    }
}

const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

impl WorkHours {
    /// Whether an hour (0 to 23) of a day (Monday is 0) is in them.
    #[must_use]
    pub fn covers(&self, day: u8, hour: u8) -> bool {
        let (first, last) = self.days;
        let in_days = if first <= last {
            (first..=last).contains(&day)
        } else {
            day >= first || day <= last
        };
        in_days && (self.hours.0..self.hours.1).contains(&hour)
    }

    fn parse(text: &str) -> Option<Self> {
        if text == "always" {
            return Some(Self {
                days: (0, 6),
                hours: (0, 24),
            });
        }
        let (days, hours) = text.split_once(' ')?;
        let day = |name: &str| DAYS.iter().position(|d| *d == name).map(|d| d as u8);
        let (first, last) = days.split_once('-').unwrap_or((days, days));
        let (from, to) = hours.trim().split_once('-')?;
        let hour = |text: &str| text.parse::<u8>().ok().filter(|h| *h <= 24);
        let (from, to) = (hour(from)?, hour(to)?);
        (from < to).then_some(())?;
        Some(Self {
            days: (day(first)?, day(last)?),
            hours: (from, to),
        })
    }
}

impl fmt::Display for WorkHours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if (self.days, self.hours) == ((0, 6), (0, 24)) {
            return f.write_str("always");
        }
        let name = |day: u8| DAYS[usize::from(day) % DAYS.len()];
        let (first, last) = self.days;
        let (from, to) = self.hours;
        if first == last {
            write!(f, "{} {from}-{to}", name(first))
        } else {
            write!(f, "{}-{} {from}-{to}", name(first), name(last))
        }
    }
}

fn work_hours(value: &DeValue<'_>) -> Result<WorkHours, String> {
    let text = read::text(value)?;
    WorkHours::parse(&text).ok_or_else(|| {
        format!("`{text}`: expected days and hours such as \"mon-fri 8-20\", or \"always\"")
    })
}

fn max_size(value: &DeValue<'_>) -> Result<Bytes, String> {
    let size = read::size(value)?;
    if size < Bytes(16 << 20) {
        return Err(format!("{size} is too small; expected at least 16 MiB"));
    }
    Ok(size)
}

/// Where errors of GPUs are read beside NVML.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum KernelLog {
    /// `/dev/kmsg`; nowhere with the simulated driver.
    #[default]
    Auto,
    /// Nowhere.
    Off,
    /// A file or pipe with the same lines.
    File(PathBuf),
}

impl KernelLog {
    /// The file to read.
    #[must_use]
    pub fn path(&self, simulated: bool) -> Option<PathBuf> {
        match self {
            Self::Auto => (!simulated).then(|| PathBuf::from("/dev/kmsg")),
            Self::Off => None,
            Self::File(path) => Some(path.clone()),
        }
    }

    /// The word in the file.
    #[must_use]
    pub fn word(&self) -> String {
        match self {
            Self::Auto => "auto".to_owned(),
            Self::Off => "off".to_owned(),
            Self::File(path) => path.to_string_lossy().into_owned(),
        }
    }

    pub(crate) fn read(value: &DeValue<'_>) -> Result<Self, String> {
        match read::text(value)?.as_str() {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            _ => read::path(value)
                .map(Self::File)
                .map_err(|e| format!("{e}, \"auto\" or \"off\"")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_of_a_week_are_read_and_written() {
        for text in ["mon-fri 8-20", "sat 0-24", "fri-mon 9-17", "always"] {
            assert_eq!(WorkHours::parse(text).unwrap().to_string(), text);
        }
        for bad in [
            "",
            "mon",
            "mon 8",
            "mon 20-8",
            "mon 8-25",
            "xyz 8-9",
            "mon-xyz 8-9",
        ] {
            assert_eq!(WorkHours::parse(bad), None, "{bad}");
        }
        assert_eq!(WorkHours::default().to_string(), "mon-fri 8-20");
    }

    #[test]
    fn hours_cover_what_they_say() {
        let usual = WorkHours::default();
        assert!(usual.covers(0, 8) && usual.covers(4, 19));
        assert!(!usual.covers(0, 7) && !usual.covers(0, 20) && !usual.covers(5, 12));
        let over = WorkHours::parse("fri-mon 9-17").unwrap();
        assert!(over.covers(6, 9) && over.covers(0, 16) && !over.covers(2, 12));
    }
}

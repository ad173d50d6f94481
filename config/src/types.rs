//! Values with a text of their own.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use toml::Value;

use crate::form::{self, Form, Time};

/// How long a claim waits in the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// Until it is granted: `"forever"`.
    #[default]
    Forever,
    /// Not at all: `"no"`.
    No,
    /// At most this long.
    For(Duration),
}

/// One second to a year.
type Patience = Time<1000, { 365 * 86_400_000 }>;

impl Form<Self> for Wait {
    fn read(value: &Value) -> Result<Self, String> {
        match value.as_str() {
            Some("forever") => Ok(Self::Forever),
            Some("no") => Ok(Self::No),
            _ => Patience::read(value)
                .map(Self::For)
                .map_err(|e| format!("{e}; \"forever\" and \"no\" are possible too")),
        }
    }

    fn show(wait: &Self) -> Value {
        match wait {
            Self::Forever => "forever".into(),
            Self::No => "no".into(),
            Self::For(time) => Patience::show(time),
        }
    }
}

/// The GPUs that Slurm allocates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SlurmGpus {
    /// None: `"none"`.
    #[default]
    None,
    /// All of the machine: `"all"`.
    All,
    /// These, by index or UUID, in the order of gres.conf.
    These(Vec<String>),
}

impl SlurmGpus {
    /// A name of the GPU with this number in Slurm, from 0 in the order of gres.conf.
    #[must_use]
    pub fn name(&self, number: u32) -> Option<String> {
        match self {
            Self::None => None,
            Self::All => Some(format!("/dev/nvidia{number}")),
            Self::These(names) => names.get(number as usize).cloned(),
        }
    }

    /// Whether a GPU is one of them.
    #[must_use]
    pub fn has(&self, uuid: &str, index: usize) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::These(names) => names
                .iter()
                .any(|n| *n == index.to_string() || (n.starts_with("GPU-") && uuid.starts_with(n))),
        }
    }
}

impl Form<Self> for SlurmGpus {
    fn read(value: &Value) -> Result<Self, String> {
        const HOW: &str =
            "expected \"none\", \"all\" or a list of indices and UUIDs such as [0, 1]";
        let name = |value: &Value| match value {
            Value::Integer(index) if (0..1024).contains(index) => Ok(index.to_string()),
            Value::String(uuid) if uuid.starts_with("GPU-") => Ok(uuid.clone()),
            other => Err(format!("{other} is not a GPU; {HOW}")),
        };
        match value {
            Value::String(word) if word == "none" => Ok(Self::None),
            Value::String(word) if word == "all" => Ok(Self::All),
            Value::Array(names) => names
                .iter()
                .map(name)
                .collect::<Result<_, _>>()
                .map(Self::These),
            other => Err(format!("{other}: {HOW}")),
        }
    }

    fn show(gpus: &Self) -> Value {
        let name = |n: &String| {
            n.parse::<i64>()
                .map_or_else(|_| n.as_str().into(), Value::Integer)
        };
        match gpus {
            Self::None => "none".into(),
            Self::All => "all".into(),
            Self::These(names) => Value::Array(names.iter().map(name).collect()),
        }
    }
}

/// Address of `/metrics`, always on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Listen {
    /// Nowhere.
    #[default]
    Off,
    /// A port of the loopback interface.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const HOW: &str = "expected \"off\", a loopback address with its port such as \"127.0.0.1:9853\", or the path of a socket";
        if text == "off" {
            return Ok(Self::Off);
        }
        if text.starts_with('/') {
            return Ok(Self::Unix(text.into()));
        }
        let address: SocketAddr = text.parse().map_err(|_| format!("`{text}`: {HOW}"))?;
        if !address.ip().is_loopback() {
            return Err(format!(
                "`{text}` can be reached from other machines, and the metrics contain user names; {HOW}"
            ));
        }
        Ok(Self::Tcp(address))
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// The second source of GPU errors besides NVML.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum KernelLog {
    /// `/dev/kmsg`; none with the simulated driver.
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
}

impl FromStr for KernelLog {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            _ => form::path(&text.into())
                .map(Self::File)
                .map_err(|e| format!("{e}, \"auto\" or \"off\"")),
        }
    }
}

impl fmt::Display for KernelLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Off => f.write_str("off"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

/// Working hours of a week, local time: `mon-fri 8-20`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkHours {
    /// First and last day, Monday is 0; the range may wrap around the week.
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
    /// Whether they include an hour (0 to 23) of a day (Monday is 0).
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

impl FromStr for WorkHours {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text).ok_or_else(|| {
            format!("`{text}`: expected days and hours such as \"mon-fri 8-20\", or \"always\"")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slurm_gives_out_gpus_by_index_and_by_uuid() {
        let read = |text: &str| SlurmGpus::read(&text.parse::<Value>().unwrap());
        for text in ["\"none\"", "\"all\"", "[0, 1]", "[\"GPU-1a\", 3]"] {
            let gpus = read(text).unwrap();
            assert_eq!(SlurmGpus::show(&gpus).to_string(), text);
        }
        for bad in ["\"some\"", "[-1]", "[\"0\"]", "1", "[[0]]"] {
            assert!(read(bad).unwrap_err().contains("expected"), "{bad}");
        }
        let some = read("[\"GPU-1a\", 3]").unwrap();
        assert!(some.has("GPU-1a2b", 0) && some.has("GPU-9", 3) && !some.has("GPU-9", 0));
        assert!(SlurmGpus::All.has("GPU-9", 7) && !SlurmGpus::None.has("GPU-9", 7));
        let names = [some.name(1), some.name(2), SlurmGpus::All.name(5)];
        assert_eq!(
            names.map(Option::unwrap_or_default),
            ["3", "", "/dev/nvidia5"]
        );
    }

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

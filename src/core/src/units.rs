//! Bytes of device memory and shares of a GPU: their types, parsing and printing.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// `1 GPU`, `2 GPUs`, `2 processes`.
#[must_use]
pub fn many(n: usize, one: &str) -> String {
    match n {
        1 => format!("1 {one}"),
        n if one.ends_with('s') => format!("{n} {one}es"),
        n => format!("{n} {one}s"),
    }
}

/// A number of bytes. `8G` is read as GiB (as readers of nvidia-smi expect) and printed `8.0 GiB`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Bytes(pub u64);

impl Bytes {
    pub const ZERO: Self = Self(0);
    /// One MiB.
    pub const MIB: u64 = 1 << 20;
    /// One GiB.
    pub const GIB: u64 = 1 << 30;

    /// `n` MiB.
    #[must_use]
    pub const fn mib(n: u64) -> Self {
        Self(n * Self::MIB)
    }

    /// `n` GiB.
    #[must_use]
    pub const fn gib(n: u64) -> Self {
        Self(n * Self::GIB)
    }

    /// The value in GiB.
    #[must_use]
    pub fn as_gib(self) -> f64 {
        self.0 as f64 / Self::GIB as f64
    }

    /// Difference, at least 0: a ledger never wraps.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Sum, at most the largest value.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Rounded down to a multiple of `unit` bytes (`unit` of 0 changes nothing).
    #[must_use]
    pub const fn round_down(self, unit: u64) -> Self {
        if unit == 0 {
            return self;
        }
        Self(self.0 / unit * unit)
    }

    /// `share` of this, rounded down to a byte.
    #[must_use]
    pub fn times(self, share: Share) -> Self {
        let milli = share.milli();
        // 128-bit division is slow, and sizes of GPUs do not need it.
        if let Some(product) = self.0.checked_mul(u64::from(milli)) {
            return Self(product / 1000);
        }
        let wide = u128::from(self.0) * u128::from(milli) / 1000;
        Self(u64::try_from(wide).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = if self.0 >= Self::GIB {
            format!("{:.1} GiB", self.as_gib())
        } else if self.0 >= Self::MIB {
            format!("{} MiB", self.0 / Self::MIB)
        } else if self.0 >= 1024 {
            format!("{} KiB", self.0 / 1024)
        } else {
            format!("{} B", self.0)
        };
        f.pad(&text)
    }
}

/// Why a unit could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} `{text}` is not valid: {expected}")]
pub struct UnitError {
    what: &'static str,
    text: String,
    expected: &'static str,
}

impl UnitError {
    fn new(what: &'static str, text: &str, expected: &'static str) -> Self {
        Self {
            what,
            text: text.to_owned(),
            expected,
        }
    }
}

impl FromStr for Bytes {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        const EXPECTED: &str =
            "write a number with K, M, G or T (powers of 1024), for example 8G, 512M or 1.5 GiB";
        let bad = || UnitError::new("size", text, EXPECTED);
        let trimmed = text.trim();
        let split = trimmed
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        let number: f64 = number.parse().map_err(|_| bad())?;
        let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
            "b" => 1,
            "k" | "kb" | "ki" | "kib" => 1 << 10,
            "m" | "mb" | "mi" | "mib" => 1 << 20,
            "g" | "gb" | "gi" | "gib" => 1 << 30,
            "t" | "tb" | "ti" | "tib" => 1 << 40,
            // A bare number is ambiguous between bytes and GiB, so it is refused (0 is 0 in any unit).
            "" if number == 0.0 => 1,
            _ => return Err(bad()),
        };
        let bytes = number * factor as f64;
        if !bytes.is_finite() || bytes < 0.0 || bytes > (1u64 << 53) as f64 {
            return Err(bad());
        }
        Ok(Self(bytes.round() as u64))
    }
}

/// A part of a GPU in thousandths: 1000 is one whole GPU. Integers, so that two halves make exactly one.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Share(u32);

impl Share {
    pub const ZERO: Self = Self(0);
    /// One whole GPU.
    pub const ONE: Self = Self(1000);

    /// `milli` thousandths of a GPU.
    #[must_use]
    pub const fn from_milli(milli: u32) -> Self {
        Self(milli)
    }

    /// In thousandths.
    #[must_use]
    pub const fn milli(self) -> u32 {
        self.0
    }

    /// As a fraction: 0.5 is half a GPU.
    #[must_use]
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / 1000.0
    }

    #[must_use]
    pub fn percent(self) -> f64 {
        f64::from(self.0) / 10.0
    }

    /// As a user types it: `0.2`, `0.25`, `1`.
    #[must_use]
    pub fn short(self) -> String {
        self.as_f64().to_string()
    }

    /// Difference, at least 0.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Sum, at most the largest value.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Reads a percentage such as `30%` or `30` as a share of SMs.
    ///
    /// # Errors
    /// When it is not a number in (0, 100].
    pub fn parse_percent(text: &str) -> Result<Self, UnitError> {
        let bad = || UnitError::new("share", text, "write a percentage between 0.1% and 100%");
        let number: f64 = text
            .trim()
            .trim_end_matches('%')
            .trim()
            .parse()
            .map_err(|_| bad())?;
        let milli = (number * 10.0).round();
        if !(1.0..=1000.0).contains(&milli) {
            return Err(bad());
        }
        Ok(Self(milli as u32))
    }
}

impl fmt::Display for Share {
    /// Two decimals, as the screen shows it: `0.50`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:.2}", self.as_f64()))
    }
}

impl FromStr for Share {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let bad = || {
            UnitError::new(
                "GPU share",
                text,
                "write a fraction such as 0.25, or a whole number of GPUs such as 2",
            )
        };
        let number: f64 = text.trim().parse().map_err(|_| bad())?;
        let milli = (number * 1000.0).round();
        if !(1.0..=64_000.0).contains(&milli) || (milli / 1000.0 - number).abs() > 1e-6 {
            return Err(bad());
        }
        Ok(Self(milli as u32))
    }
}

/// Reads a duration: `90s`, `30m`, `2h`, `1d`, `1h30m`, Slurm's `2:00:00` and `1-12:00:00`. A bare
/// number is minutes, as in Slurm.
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    let bad = || {
        UnitError::new(
            "time",
            text,
            "write for example 90s, 30m, 2h, 1h30m or 1-12:00:00",
        )
    };
    let trimmed = text.trim();
    if trimmed.contains(':') {
        return parse_clock(trimmed).ok_or_else(bad);
    }
    if let Ok(minutes) = trimmed.parse::<u64>() {
        return minutes
            .checked_mul(60)
            .map(Duration::from_secs)
            .ok_or_else(bad);
    }
    let mut total = 0.0;
    let mut number = String::new();
    for c in trimmed.chars().filter(|c| !c.is_whitespace()) {
        if c.is_ascii_digit() || c == '.' {
            number.push(c);
            continue;
        }
        let factor = match c.to_ascii_lowercase() {
            's' => 1.0,
            'm' => 60.0,
            'h' => 3600.0,
            'd' => 86_400.0,
            _ => return Err(bad()),
        };
        total += number.parse::<f64>().map_err(|_| bad())? * factor;
        number.clear();
    }
    if !number.is_empty() || trimmed.is_empty() {
        return Err(bad());
    }
    Duration::try_from_secs_f64(total).map_err(|_| bad())
}

/// `[D-]HH:MM:SS` or `HH:MM` after a day prefix, `MM:SS` without one (as Slurm reads it).
fn parse_clock(text: &str) -> Option<Duration> {
    let (days, rest) = match text.split_once('-') {
        Some((d, rest)) => (Some(d.parse::<u64>().ok()?), rest),
        None => (None, text),
    };
    let parts: Vec<u64> = rest
        .split(':')
        .map(|p| p.parse().ok())
        .collect::<Option<_>>()?;
    let (h, m, s) = match (days, parts.as_slice()) {
        (Some(_), [h, m]) => (*h, *m, 0),
        (None, [m, s]) => (0, *m, *s),
        (_, [h, m, s]) => (*h, *m, *s),
        _ => return None,
    };
    let day_secs = days.unwrap_or(0).checked_mul(86_400)?;
    let secs = h
        .checked_mul(3600)?
        .checked_add(m.checked_mul(60)?)?
        .checked_add(s)?;
    Some(Duration::from_secs(day_secs.checked_add(secs)?))
}

/// Prints a duration in its largest two units: `41m`, `2h 5m`, `12s`.
#[must_use]
pub fn show_duration(d: Duration) -> String {
    let s = d.as_secs();
    match s {
        0..60 => format!("{s}s"),
        60..3600 if s < 600 && !s.is_multiple_of(60) => format!("{}m {}s", s / 60, s % 60),
        60..3600 => format!("{}m", s / 60),
        3600..86_400 if s % 3600 >= 60 => format!("{}h {}m", s / 3600, s % 3600 / 60),
        3600..86_400 => format!("{}h", s / 3600),
        _ => format!("{}d {}h", s / 86_400, s % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_or_there_are_many() {
        let processes = [0, 1, 2].map(|n| many(n, "process"));
        assert_eq!(processes, ["0 processes", "1 process", "2 processes"]);
        assert_eq!(many(2, "claim"), "2 claims");
    }

    #[test]
    fn sizes_are_read_as_powers_of_1024() {
        for (text, want) in [
            ("8G", Some(8 << 30)),
            ("1.5 GiB", Some(3 << 29)),
            ("512M", Some(512 << 20)),
            ("0", Some(0)),
            ("1t", Some(1 << 40)),
            ("8", None),
            ("-1G", None),
            ("G", None),
            ("8X", None),
            ("99999999T", None),
        ] {
            assert_eq!(text.parse::<Bytes>().ok().map(|b| b.0), want, "{text}");
        }
        assert_eq!(Bytes::gib(8).to_string(), "8.0 GiB");
        assert_eq!(Bytes::mib(512).to_string(), "512 MiB");
    }

    #[test]
    fn shares_are_exact_thousandths() {
        for (text, want) in [
            ("0.5", Some(500)),
            (".25", Some(250)),
            ("2", Some(2000)),
            ("0.001", Some(1)),
            ("0.0004", None),
            ("0", None),
            ("nan", None),
            ("0.3333", None),
        ] {
            assert_eq!(text.parse::<Share>().ok().map(Share::milli), want, "{text}");
        }
        assert_eq!(Share::parse_percent("30%").map(Share::milli), Ok(300));
        assert!(Share::parse_percent("130%").is_err());
        for (milli, text) in [
            (0, "0"),
            (1, "0.001"),
            (5, "0.005"),
            (200, "0.2"),
            (250, "0.25"),
            (875, "0.875"),
            (1000, "1"),
            (1500, "1.5"),
        ] {
            assert_eq!(Share::from_milli(milli).short(), text);
        }
        assert_eq!(Bytes::gib(24).times(Share::from_milli(250)), Bytes::gib(6));
    }

    #[test]
    fn durations_follow_slurm_and_common_suffixes() {
        for (text, want) in [
            ("90s", Some(90)),
            ("30m", Some(1800)),
            ("2h", Some(7200)),
            ("1h30m", Some(5400)),
            ("45", Some(2700)),
            ("2:00:00", Some(7200)),
            ("1-12:00:00", Some(129_600)),
            ("10:30", Some(630)),
            ("h", None),
            ("", None),
            ("5x", None),
            ("99999999999999999999", None),
            ("18446744073709551615-0:0:1", None),
        ] {
            assert_eq!(
                parse_duration(text).ok().map(|d| d.as_secs()),
                want,
                "{text}"
            );
        }
        assert_eq!(show_duration(Duration::from_secs(41 * 60)), "41m");
        assert_eq!(show_duration(Duration::from_secs(7500)), "2h 5m");
    }
}

//! Forms of values: each form parses a value of the file, and prints it in the same form.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use gshare_core::units::parse_duration;
use gshare_core::{Bytes, Class, Share, Size};
use serde::de::Error as _;
use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};
use toml::Value;

use crate::problem::nearest;
use crate::value;
use crate::words::{Stage, Unclaimed};

/// A form of values of type `T`, for `#[serde(with = "...")]`. A line break in an error separates the problem from
/// the expected form.
pub(crate) trait Form<T> {
    /// The value, or its problem.
    fn read(value: &Value) -> Result<T, String>;

    /// The value as in a file, so that it reads back the same.
    fn show(value: &T) -> Value;

    /// See [`Self::read`].
    fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
        Self::read(&Value::deserialize(deserializer)?).map_err(D::Error::custom)
    }

    /// See [`Self::show`].
    fn serialize<S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        Self::show(value).serialize(serializer)
    }
}

macro_rules! forms {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $read:expr, $show:expr;)*) => {$(
        $(#[$doc])*
        pub(crate) struct $name;
        impl Form<$type> for $name {
            fn read(value: &Value) -> Result<$type, String> {
                let read: fn(&Value) -> Result<$type, String> = $read;
                read(value)
            }
            fn show(value: &$type) -> Value {
                let show: fn(&$type) -> Value = $show;
                show(value)
            }
        }
    )*};
}

forms! {
    /// An absolute path.
    AbsolutePath: PathBuf = path, |p| p.to_string_lossy().into_owned().into();
    /// Bytes with their unit; zero is allowed.
    Memory: Bytes = size, |b| bytes(*b).into();
    /// Bytes with their unit, greater than zero.
    SomeMemory: Bytes = |v| value::some(size(v)?), |b| bytes(*b).into();
    /// The size of a file.
    FileSize: Bytes = file_size, |b| bytes(*b).into();
    /// A part of one GPU, or whole GPUs.
    Gpus: Share = |v| value::gpus(&number(v)?), share;
    /// A part of one GPU.
    Limit: Share = |v| value::limit(&number(v)?), share;
    /// A part of the SMs, in percent.
    Sm: Share = |v| value::sm(&number(v)?), share;
    /// The size of a claim.
    ClaimSize: Size = |v| value::claim_size(&number(v)?), |s| s.to_string().into();
    /// GPUs of a quota.
    QuotaGpus: Share = |v| value::milli(&number(v)?).map(Share::from_milli), share;
    /// The weight of a quota, in thousandths.
    Weight: u32 = |v| value::milli(&number(v)?), |milli| share(&Share::from_milli(*milli));
    /// A class of work.
    ClassWord: Class = |v| word(v, &Class::ALL.map(|c| (c.name(), c))), |c| c.name().into();
    /// A stage.
    StageWord: Stage = |v| word(v, Stage::WORDS), |s| s.name().into();
    /// Measure against programs without a claim.
    UnclaimedWord: Unclaimed = |v| word(v, Unclaimed::WORDS), |u| u.name().into();
    /// Allowed if the machine supports it, or off.
    AutoOff: bool = |v| word(v, &[("auto", true), ("off", false)]), |b| if *b { "auto" } else { "off" }.into();
    /// Refused unless accepted.
    AcceptOff: bool = |v| word(v, &[("off", false), ("accept", true)]), |b| if *b { "accept" } else { "off" }.into();
    /// How GPUs are hidden: true for gshare's library alone.
    HiddenBy: bool = |v| word(v, &[("variable", false), ("library", true)]),
        |b| if *b { "library" } else { "variable" }.into();
    /// Whose programs are named: true for everybody's.
    NamesOf: bool = |v| word(v, &[("own", false), ("all", true)]), |b| if *b { "all" } else { "own" }.into();
    /// The name of a cgroup.
    CgroupName: String = cgroup_name, |s| s.clone().into();
    /// Paths of cgroups, from the top of the tree.
    Cgroups: Vec<String> = cgroups, |list| list.clone().into();
}

/// A time with its unit, from `MIN` to `MAX` milliseconds.
pub(crate) struct Time<const MIN: u64, const MAX: u64>;

impl<const MIN: u64, const MAX: u64> Form<Duration> for Time<MIN, MAX> {
    fn read(value: &Value) -> Result<Duration, String> {
        const HOW: &str = "write a time with its unit in quotes, for example \"30s\" or \"1h30m\"";
        let text = value.as_str().ok_or(HOW)?;
        if text.trim().parse::<f64>().is_ok() {
            return Err(format!("`{text}` has no unit; {HOW}"));
        }
        let time = parse_duration(text).map_err(|_| format!("`{text}` is not a time; {HOW}"))?;
        let (min, max) = (Duration::from_millis(MIN), Duration::from_millis(MAX));
        if !(min..=max).contains(&time) {
            let (min, max) = (duration(min), duration(max));
            return Err(format!(
                "`{text}` is not possible; the value must lie between {min} and {max}"
            ));
        }
        Ok(time)
    }

    fn show(time: &Duration) -> Value {
        duration(*time).into()
    }
}

/// A whole number from `MIN` to `MAX`.
pub(crate) struct Whole<const MIN: u32, const MAX: u32>;

impl<const MIN: u32, const MAX: u32, T: TryFrom<u32> + Copy + Into<u32>> Form<T>
    for Whole<MIN, MAX>
{
    fn read(value: &Value) -> Result<T, String> {
        let bad = || format!("expected a whole number from {MIN} to {MAX}");
        let given = value.as_integer();
        let given = given.ok_or_else(|| format!("{}, not {}", bad(), article(value.type_str())))?;
        let known = u32::try_from(given)
            .ok()
            .filter(|n| (MIN..=MAX).contains(n));
        known.and_then(|n| n.try_into().ok()).ok_or_else(bad)
    }

    fn show(number: &T) -> Value {
        i64::from((*number).into()).into()
    }
}

/// A word for "none".
pub(crate) trait Word {
    /// The word.
    const WORD: &'static str;
}

macro_rules! none {
    ($($name:ident = $word:literal),*) => {$(
        #[doc = concat!("`", $word, "`")]
        pub(crate) struct $name;
        impl Word for $name {
            const WORD: &'static str = $word;
        }
    )*};
}
none!(Auto = "auto", Never = "never", Off = "off");

/// A value, or the word `W`.
pub(crate) struct Or<W, F>(W, F);

impl<W: Word, T, F: Form<T>> Form<Option<T>> for Or<W, F> {
    fn read(value: &Value) -> Result<Option<T>, String> {
        if value.as_str() == Some(W::WORD) {
            return Ok(None);
        }
        let read = F::read(value).map(Some);
        read.map_err(|e| format!("{e}, or \"{}\"", W::WORD))
    }

    fn show(value: &Option<T>) -> Value {
        value.as_ref().map_or_else(|| W::WORD.into(), F::show)
    }
}

/// A key that may be absent.
pub(crate) struct Optional<F>(F);

impl<T, F: Form<T>> Form<Option<T>> for Optional<F> {
    fn read(value: &Value) -> Result<Option<T>, String> {
        F::read(value).map(Some)
    }

    /// Absent values are skipped by `skip_serializing_if`.
    fn show(value: &Option<T>) -> Value {
        value.as_ref().map_or_else(|| "".into(), F::show)
    }
}

/// A string of its own type.
pub(crate) struct Text;

impl<T: FromStr<Err: Display> + Display> Form<T> for Text {
    fn read(value: &Value) -> Result<T, String> {
        text(value)?.parse().map_err(|e: T::Err| e.to_string())
    }

    fn show(value: &T) -> Value {
        value.to_string().into()
    }
}

/// A string.
pub(crate) fn text(value: &Value) -> Result<&str, String> {
    let what = || {
        format!(
            "expected a string in quotes, not {}",
            article(value.type_str())
        )
    };
    value.as_str().ok_or_else(what)
}

/// One of a few words.
pub(crate) fn word<T: Copy>(value: &Value, words: &[(&'static str, T)]) -> Result<T, String> {
    let given = text(value)?;
    let found = words.iter().find(|(w, _)| *w == given);
    found.map(|(_, t)| *t).ok_or_else(|| {
        let names: Vec<&str> = words.iter().map(|(w, _)| *w).collect();
        let guess = nearest(given, names.iter().copied())
            .map(|n| format!("; did you mean \"{n}\"?"))
            .unwrap_or_default();
        format!("`{given}` is not one of {}{guess}", names.join(", "))
    })
}

/// An absolute path.
pub(crate) fn path(value: &Value) -> Result<PathBuf, String> {
    let text = text(value)?;
    let bad = || format!("`{text}` is not an absolute path; expected a path that begins with /");
    text.starts_with('/').then(|| text.into()).ok_or_else(bad)
}

/// A number or its text, so that `gpus = 0.5` and `gpus = "0.5"` both work.
fn number(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Float(f) => Ok(f.to_string()),
        Value::Integer(i) => Ok(i.to_string()),
        other => Err(format!(
            "expected a number, not {}",
            article(other.type_str())
        )),
    }
}

fn size(value: &Value) -> Result<Bytes, String> {
    const HOW: &str =
        "write a size with its unit in quotes, for example \"512 MiB\" or \"1.5 GiB\"";
    let text = value.as_str().ok_or(HOW)?;
    let bad = |_| format!("`{text}` is not a size; {HOW}");
    text.parse().map_err(bad)
}

fn file_size(value: &Value) -> Result<Bytes, String> {
    let size = size(value)?;
    if size < Bytes::mib(16) {
        return Err(format!("{size} is too small; expected at least 16 MiB"));
    }
    Ok(size)
}

fn cgroup_name(value: &Value) -> Result<String, String> {
    let name = text(value)?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.starts_with('.') || !name.chars().all(plain) {
        return Err(format!(
            "`{name}` is not a cgroup name; expected letters, digits, `-`, `_` and `.` only"
        ));
    }
    Ok(name.to_owned())
}

fn cgroups(value: &Value) -> Result<Vec<String>, String> {
    let not = || {
        format!(
            "expected a list of strings, not {}",
            article(value.type_str())
        )
    };
    let one = |value: &Value| {
        let path = text(value)?;
        let below = path.strip_prefix('/').unwrap_or_default();
        if below.is_empty() || below.split('/').any(|p| ["", ".", ".."].contains(&p)) {
            return Err(format!(
                "`{path}` is not a cgroup below the root; expected a path such as \"/user.slice\""
            ));
        }
        Ok(path.to_owned())
    };
    value.as_array().ok_or_else(not)?.iter().map(one).collect()
}

fn share(share: &Share) -> Value {
    share.as_f64().into()
}

/// Exact, unlike the text for display: `90s` is not rounded to a minute.
fn duration(d: Duration) -> String {
    match d.as_secs() {
        _ if d.subsec_nanos() != 0 => format!("{}s", d.as_secs_f64()),
        s if s != 0 && s.is_multiple_of(86_400) => format!("{}d", s / 86_400),
        s if s != 0 && s.is_multiple_of(3600) => format!("{}h", s / 3600),
        s if s != 0 && s.is_multiple_of(60) => format!("{}m", s / 60),
        s => format!("{s}s"),
    }
}

/// In the usual unit if that is exact, otherwise in bytes.
fn bytes(b: Bytes) -> String {
    let text = b.to_string();
    let exact = text.parse() == Ok(b);
    if exact { text } else { format!("{} B", b.0) }
}

/// `integer` as `an integer`.
pub(crate) fn article(kind: &str) -> String {
    let n = if kind.starts_with(['a', 'i']) {
        "n"
    } else {
        ""
    };
    format!("a{n} {kind}")
}

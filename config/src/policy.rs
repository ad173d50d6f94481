//! `[policy]`: what is done about use outside claims, and about use beyond them.

use std::time::Duration;

use gshare_core::Bytes;
use toml::de::{DeTable, DeValue};

use crate::read::{self, Reader};

/// Use outside claims, and use beyond them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// `unclaimed`: what is done about GPU processes outside claims.
    pub unclaimed: Unclaimed,
    /// `deny-cgroups`: where `unclaimed = "deny"` holds; `None` finds the places where users' programs start.
    pub deny_cgroups: Option<Vec<String>>,
    /// `exempt-cgroups`: where it never holds, besides the seat's graphical session.
    pub exempt_cgroups: Vec<String>,
    /// `overuse`: what is done about a claim that uses more than it is counted.
    pub overuse: Overuse,
    /// `overuse-grace`: between the warning and the end of the offending process.
    pub overuse_grace: Duration,
    /// `overuse-tolerance`: bytes per process that are in use without being counted.
    pub overuse_tolerance: Bytes,
    /// `excess-time`: who gets the GPU time that nobody requested.
    pub excess_time: ExcessTime,
}

/// How the GPU time above what was requested is divided, on GPUs that claims share in turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExcessTime {
    /// All, in proportion to their requests.
    #[default]
    Equal,
    /// The same, but interactive and inference claims twice as much as batch.
    Weights,
    /// Interactive claims first, then inference, then batch.
    Strict,
}

impl ExcessTime {
    /// The word in the file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Equal => "equal",
            Self::Weights => "weights",
            Self::Strict => "strict",
        }
    }
}

/// What is done about GPU processes outside claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unclaimed {
    /// They are shown.
    Observe,
    /// They are accounted to their owners, as claims without a cap.
    #[default]
    Adopt,
    /// No new ones: programs outside claims cannot open a GPU. Those that run are as with `adopt`.
    Deny,
}

impl Unclaimed {
    /// The word in the file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Observe => "observe",
            Self::Adopt => "adopt",
            Self::Deny => "deny",
        }
    }
}

/// What is done about a claim that uses more than it is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overuse {
    /// Its growth is refused and its owner warned.
    #[default]
    Warn,
    /// After the grace time the offending process is ended, too.
    Stop,
}

impl Overuse {
    /// The word in the file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Warn => "warn",
            Self::Stop => "stop",
        }
    }
}

const UNCLAIMED: &[(&str, Unclaimed)] = &[
    ("observe", Unclaimed::Observe),
    ("adopt", Unclaimed::Adopt),
    ("deny", Unclaimed::Deny),
];
const OVERUSE: &[(&str, Overuse)] = &[("warn", Overuse::Warn), ("stop", Overuse::Stop)];
const EXCESS: &[(&str, ExcessTime)] = &[
    ("equal", ExcessTime::Equal),
    ("weights", ExcessTime::Weights),
    ("strict", ExcessTime::Strict),
];
const DAY: Duration = Duration::from_secs(86_400);

impl Default for Policy {
    fn default() -> Self {
        Self {
            unclaimed: Unclaimed::default(),
            deny_cgroups: None,
            exempt_cgroups: Vec::new(),
            overuse: Overuse::default(),
            overuse_grace: Duration::from_secs(60),
            overuse_tolerance: Bytes::mib(512),
            excess_time: ExcessTime::default(),
        }
    }
}

impl Policy {
    pub(crate) fn walk<'t>(reader: &mut Reader<'t>, root: &DeTable<'t>) -> Self {
        let d = Self::default();
        let mut s = reader.section(root, "policy");
        let value = Self {
            unclaimed: s.get("unclaimed", d.unclaimed, read::word(UNCLAIMED)),
            deny_cgroups: s.get("deny-cgroups", d.deny_cgroups, auto_or_cgroups),
            exempt_cgroups: s.get("exempt-cgroups", d.exempt_cgroups, cgroups),
            overuse: s.get("overuse", d.overuse, read::word(OVERUSE)),
            overuse_grace: s.get(
                "overuse-grace",
                d.overuse_grace,
                read::time(Duration::ZERO..=DAY),
            ),
            overuse_tolerance: s.get("overuse-tolerance", d.overuse_tolerance, read::size),
            excess_time: s.get("excess-time", d.excess_time, read::word(EXCESS)),
        };
        s.finish();
        value
    }
}

fn auto_or_cgroups(value: &DeValue<'_>) -> Result<Option<Vec<String>>, String> {
    match value.as_str() {
        Some("auto") => Ok(None),
        _ => cgroups(value)
            .map(Some)
            .map_err(|e| format!("{e}, or \"auto\"")),
    }
}

/// Paths of cgroups, from the top of the tree.
fn cgroups(value: &DeValue<'_>) -> Result<Vec<String>, String> {
    let paths = read::texts(value)?;
    for path in &paths {
        let below = path.strip_prefix('/').unwrap_or_default();
        if below.is_empty() || below.split('/').any(|p| ["", ".", ".."].contains(&p)) {
            return Err(format!(
                "`{path}` is not a cgroup below the top; expected a path such as \"/user.slice\""
            ));
        }
    }
    Ok(paths)
}

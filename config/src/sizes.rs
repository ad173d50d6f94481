//! `[sizes]`: what is learnt from runs, and what is done with it.

use std::fmt::{self, Write as _};
use std::time::Duration;

use toml::de::DeTable;

use crate::read::{self, Reader};
use crate::show::duration;

const DAY: Duration = Duration::from_secs(86_400);

/// What becomes of what claims asked for and do not use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum AutoShrink {
    /// Nothing.
    Off,
    /// It is said, with the command that would change it.
    #[default]
    Advise,
    /// The memory limit goes down to what earlier runs of the command needed, never below the request.
    Burst,
    /// Also the request of claims that were made with `-g auto` follows their need, in both directions.
    Request,
}

impl AutoShrink {
    /// The word in the file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Advise => "advise",
            Self::Burst => "burst",
            Self::Request => "request",
        }
    }
}

/// Whose runs a user's suggestions may rest on, besides the own ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShareRuns {
    /// Nobody's.
    #[default]
    None,
    /// Those of users with the same primary group.
    Group,
    /// Everybody's.
    All,
}

impl ShareRuns {
    /// The word in the file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Group => "group",
            Self::All => "all",
        }
    }
}

/// `[sizes]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// `auto-shrink`: what becomes of what claims do not use.
    pub auto_shrink: AutoShrink,
    /// `share-runs`: whose records others may learn from.
    pub share_runs: ShareRuns,
    /// `first-look`: a claim without earlier runs has its size from what it used so long.
    pub first_look: Duration,
    /// `horizon`: how far ahead growth is reserved.
    pub horizon: Duration,
    /// `follow`: a request falls when less has been needed for so long.
    pub follow: Duration,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            auto_shrink: AutoShrink::default(),
            share_runs: ShareRuns::default(),
            first_look: Duration::from_secs(60),
            horizon: Duration::from_secs(600),
            follow: Duration::from_secs(20),
        }
    }
}

impl Sizes {
    pub(crate) fn walk<'t>(reader: &mut Reader<'t>, root: &DeTable<'t>) -> Self {
        let d = Self::default();
        let mut s = reader.section(root, "sizes");
        let time = || read::time(Duration::from_secs(1)..=DAY);
        let value = Self {
            auto_shrink: s.get(
                "auto-shrink",
                d.auto_shrink,
                read::word(&[
                    ("off", AutoShrink::Off),
                    ("advise", AutoShrink::Advise),
                    ("burst", AutoShrink::Burst),
                    ("request", AutoShrink::Request),
                ]),
            ),
            share_runs: s.get(
                "share-runs",
                d.share_runs,
                read::word(&[
                    ("none", ShareRuns::None),
                    ("group", ShareRuns::Group),
                    ("all", ShareRuns::All),
                ]),
            ),
            first_look: s.get("first-look", d.first_look, time()),
            horizon: s.get("horizon", d.horizon, time()),
            follow: s.get("follow", d.follow, time()),
        };
        s.finish();
        value
    }

    /// The section as a file has it.
    pub(crate) fn show(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "\n[sizes]")?;
        writeln!(out, "auto-shrink = \"{}\"", self.auto_shrink.name())?;
        writeln!(out, "share-runs = \"{}\"", self.share_runs.name())?;
        writeln!(out, "first-look = \"{}\"", duration(self.first_look))?;
        writeln!(out, "horizon = \"{}\"", duration(self.horizon))?;
        writeln!(out, "follow = \"{}\"", duration(self.follow))
    }
}

//! `[advice]`: when the screen gives advice.

use std::time::Duration;

use toml::de::DeTable;

use crate::read::{self, Reader};

const SEC: Duration = Duration::from_secs(1);
const WEEK: Duration = Duration::from_secs(7 * 86_400);

/// When claims are worth a sentence of advice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// `idle-after`: without a launch for this long, a claim is told to give its part back.
    pub idle_after: Duration,
    /// `over-asked-after`: how long a claim is looked at before a smaller size is proposed.
    pub over_asked_after: Duration,
}

impl Default for Advice {
    fn default() -> Self {
        Self {
            idle_after: Duration::from_secs(20 * 60),
            over_asked_after: Duration::from_secs(30 * 60),
        }
    }
}

impl Advice {
    pub(super) fn walk<'t>(reader: &mut Reader<'t>, root: &DeTable<'t>) -> Self {
        let d = Self::default();
        let mut s = reader.section(root, "advice");
        let value = Self {
            idle_after: s.get("idle-after", d.idle_after, read::time(SEC..=WEEK)),
            over_asked_after: s.get(
                "over-asked-after",
                d.over_asked_after,
                read::time(SEC..=WEEK),
            ),
        };
        s.finish();
        value
    }
}

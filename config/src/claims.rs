//! `[claims]`: the life of claims.

use std::fmt::{self, Write as _};
use std::time::Duration;

use toml::de::DeTable;

use crate::read::{self, Reader};
use crate::show::{duration, quote};

/// `[claims]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// `leftover-grace`: how long processes that a command left behind may be without GPU use before
    /// the claim ends.
    pub leftover_grace: Duration,
    /// `lease-warning`: how long before a lease ends its owner is told; zero tells nobody.
    pub lease_warning: Duration,
    /// `lease-grace`: how long the processes of a claim whose lease has ended may go on, to save what they have.
    pub lease_grace: Duration,
    /// `kernel-grace`: how long the claim of a notebook's kernel that has died is kept for its restart.
    pub kernel_grace: Duration,
    /// `hide-gpus`: whether gshare's library alone hides the other GPUs from a claim where no device filter does, and
    /// not `CUDA_VISIBLE_DEVICES`, with which the driver moves nothing.
    pub hide_by_library: bool,
}

impl Default for Claims {
    fn default() -> Self {
        Self {
            leftover_grace: Duration::from_secs(30),
            lease_warning: Duration::from_secs(600),
            lease_grace: Duration::from_secs(30),
            kernel_grace: Duration::from_secs(30),
            hide_by_library: false,
        }
    }
}

/// Words of `hide-gpus`, and whether the library does it alone.
const HIDES: &[(&str, bool)] = &[("variable", false), ("library", true)];
const DAY: Duration = Duration::from_secs(86_400);

impl Claims {
    pub(crate) fn walk<'t>(reader: &mut Reader<'t>, root: &DeTable<'t>) -> Self {
        let d = Self::default();
        let mut s = reader.section(root, "claims");
        let mut time = |key, default| s.get(key, default, read::time(Duration::ZERO..=DAY));
        let value = Self {
            leftover_grace: time("leftover-grace", d.leftover_grace),
            lease_warning: time("lease-warning", d.lease_warning),
            lease_grace: time("lease-grace", d.lease_grace),
            kernel_grace: time("kernel-grace", d.kernel_grace),
            hide_by_library: s.get("hide-gpus", d.hide_by_library, read::word(HIDES)),
        };
        s.finish();
        value
    }

    pub(crate) fn show(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "\n[claims]")?;
        for (key, time) in [
            ("leftover-grace", self.leftover_grace),
            ("lease-warning", self.lease_warning),
            ("lease-grace", self.lease_grace),
            ("kernel-grace", self.kernel_grace),
        ] {
            writeln!(out, "{key} = {}", quote(&duration(time)))?;
        }
        let hides = HIDES.iter().find(|h| h.1 == self.hide_by_library);
        writeln!(out, "hide-gpus = {}", quote(hides.map_or("", |h| h.0)))
    }
}

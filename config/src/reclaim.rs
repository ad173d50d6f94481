//! `[reclaim]`: how room is made for claims that wait.

use std::fmt::{self, Write as _};
use std::time::Duration;

use toml::de::{DeTable, DeValue};

use crate::read::{self, Reader};
use crate::show::duration;

const DAY: Duration = Duration::from_secs(86_400);
const HOUR: Duration = Duration::from_secs(3600);

/// `[reclaim]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reclaim {
    /// `enabled`: whether anything is taken from claims that run.
    pub enabled: bool,
    /// `spread`: whether claims that can use more than they ask for start on idle GPUs and are moved together later.
    pub spread: bool,
    /// `countdown`: between the announcement and the deed.
    pub countdown: Duration,
    /// `keep`: how long `gshare keep` puts it off.
    pub keep: Duration,
    /// `quiet`: how long nobody comes or goes before those who run are spread anew.
    pub quiet: Duration,
    /// `host-ram`: percent of the host's memory that detached claims may take together.
    pub host_ram: u32,
    /// `requeue`: whether commands that were claimed with `--requeue` may be ended and started anew.
    pub requeue: bool,
    /// `kill`: whether claims may be ended to which nothing else can be done.
    pub kill: bool,
}

impl Default for Reclaim {
    fn default() -> Self {
        Self {
            enabled: true,
            spread: true,
            countdown: Duration::from_secs(30),
            keep: Duration::from_secs(600),
            quiet: Duration::from_secs(60),
            host_ram: 50,
            requeue: true,
            kill: false,
        }
    }
}

impl Reclaim {
    pub(crate) fn walk<'t>(reader: &mut Reader<'t>, root: &DeTable<'t>) -> Self {
        let d = Self::default();
        let mut s = reader.section(root, "reclaim");
        let value = Self {
            enabled: s.get("enabled", d.enabled, read::truth),
            spread: s.get("spread", d.spread, read::truth),
            countdown: s.get("countdown", d.countdown, read::time(Duration::ZERO..=HOUR)),
            keep: s.get("keep", d.keep, read::time(Duration::ZERO..=DAY)),
            quiet: s.get("quiet", d.quiet, read::time(Duration::ZERO..=DAY)),
            host_ram: s.get("host-ram", d.host_ram, percent),
            requeue: s.get("requeue", d.requeue, read::truth),
            kill: s.get("kill", d.kill, read::truth),
        };
        s.finish();
        value
    }

    /// The section as a file has it.
    pub(crate) fn show(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "\n[reclaim]")?;
        writeln!(out, "enabled = {}", self.enabled)?;
        writeln!(out, "spread = {}", self.spread)?;
        writeln!(out, "countdown = \"{}\"", duration(self.countdown))?;
        writeln!(out, "keep = \"{}\"", duration(self.keep))?;
        writeln!(out, "quiet = \"{}\"", duration(self.quiet))?;
        writeln!(out, "host-ram = {}", self.host_ram)?;
        writeln!(out, "requeue = {}", self.requeue)?;
        writeln!(out, "kill = {}", self.kill)
    }
}

fn percent(value: &DeValue<'_>) -> Result<u32, String> {
    read::whole(0..=95)(value)
}

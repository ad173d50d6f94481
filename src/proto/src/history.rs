//! Claimed and used amounts, over time and as sums. Shares and times are weighted by GPUs: half a GPU claimed for a
//! minute is 30 GPU seconds. An unknown value is absent, never 0.

use serde::{Deserialize, Serialize};

use crate::bounds::Text;
use crate::snapshot::Named;

/// Which lines a history has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HistoryBy {
    /// One line: the whole machine.
    #[default]
    All,
    /// A line per GPU.
    Gpu,
    /// The line of the whole machine, then one per user.
    User,
    /// A line per claim.
    Claim,
}

impl HistoryBy {
    /// The word on the wire and for people.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Gpu => "gpu",
            Self::User => "user",
            Self::Claim => "claim",
        }
    }
}

/// The requested part of the history.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistorySpec {
    /// Beginning, Unix milliseconds.
    pub from_ms: u64,
    /// End, Unix milliseconds; 0 is now.
    #[serde(default)]
    pub to_ms: u64,
    /// Approximate number of points per line; 0 is 120.
    #[serde(default)]
    pub points: u32,
    /// Which lines.
    #[serde(default)]
    pub by: HistoryBy,
    /// Only this GPU (index or UUID), user (login or uid) or claims (`c3`, or a name).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Text<256>>,
}

/// Idle amounts by cause, in claimed GPUs (in sums, GPU seconds).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Idle {
    /// Outside working hours, with nothing running.
    pub off_hours: f64,
    /// Its programs wait for a user: a notebook kernel between cells, a shell.
    pub kernel: f64,
    /// Its programs compute on the processor.
    pub cpu: f64,
    /// Its programs wait for disks or network file systems.
    pub io: f64,
    /// The cause is unknown.
    pub other: f64,
}

impl Idle {
    /// All causes together.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.off_hours + self.kernel + self.cpu + self.io + self.other
    }

    /// Causes with their displayed names.
    #[must_use]
    pub fn parts(&self) -> [(&'static str, f64); 5] {
        [
            ("off hours", self.off_hours),
            ("kernel idle", self.kernel),
            ("CPU busy", self.cpu),
            ("IO busy", self.io),
            ("unknown", self.other),
        ]
    }

    /// The largest cause; absent without idleness.
    #[must_use]
    pub fn main(&self) -> Option<&'static str> {
        let parts = self.parts().into_iter().filter(|(_, v)| *v > 0.0);
        parts
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .map(|(name, _)| name)
    }
}

/// A point of a line: means over its step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HistoryPoint {
    /// Beginning of the step, Unix milliseconds.
    pub at_ms: u64,
    /// Fraction of the step with a service, 0 to 1.
    pub known: f64,
    /// GPUs claimed (guaranteed SMs).
    pub claimed: f64,
    /// GPUs used: SM activity.
    pub used: Option<f64>,
    /// The use is partly an estimate, shown with `~`.
    #[serde(default)]
    pub estimate: bool,
    /// GPUs busy: time with any kernel running.
    pub busy: Option<f64>,
    /// Bytes claimed.
    pub mem_claimed: f64,
    /// Bytes used.
    pub mem_used: Option<f64>,
    /// Bytes used above the claim.
    #[serde(default)]
    pub mem_borrowed: Option<f64>,
    /// GPUs used above the claim.
    pub borrowed: Option<f64>,
    /// Claimed GPUs with delayed launches.
    pub throttled: Option<f64>,
    /// GPUs requested and waited for.
    pub waiting: f64,
    /// GPUs claimed and idle.
    pub idle: Idle,
}

/// A line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HistorySeries {
    /// UUID, uid, claim, or `all`.
    pub key: String,
    /// For display: `GPU 1`, `ada`, `c3 train.py`.
    pub label: String,
    /// uid of the owner, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Sums over the whole time.
    pub usage: Usage,
    /// Points, oldest first. Steps without a service are left out.
    pub points: Vec<HistoryPoint>,
}

/// Means per hour of the week, percent of the machine: seven rows, Monday first, of 24 hours of local time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Heat {
    pub claimed: Vec<Vec<Option<f32>>>,
    /// Used (SM activity).
    pub used: Vec<Vec<Option<f32>>>,
}

/// The answer to [`crate::Call::History`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HistoryView {
    /// Beginning, Unix milliseconds.
    pub from_ms: u64,
    /// End, Unix milliseconds.
    pub to_ms: u64,
    /// Length of a step in milliseconds.
    pub step_ms: u64,
    /// Number of GPUs of the machine.
    pub gpu_count: u32,
    /// Lines, the one with the most claimed first (GPUs by index).
    pub series: Vec<HistorySeries>,
    /// Hours of the week over the last five weeks, of the same claims; absent for lines per claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heat: Option<Heat>,
}

/// Sums over a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// GPU seconds claimed.
    pub claimed_gpu_s: f64,
    /// GPU seconds used (SM activity), over the time for which it is known.
    pub used_gpu_s: Option<f64>,
    /// Part of it is an estimate, shown with `~`.
    #[serde(default)]
    pub estimate: bool,
    /// Claimed GPU seconds for which use is known.
    pub used_known_gpu_s: f64,
    /// GPU seconds with any kernel running.
    pub busy_gpu_s: Option<f64>,
    /// Byte seconds claimed.
    pub mem_claimed_byte_s: f64,
    /// Byte seconds used.
    pub mem_used_byte_s: Option<f64>,
    /// Byte seconds used above the claim; absent from services that did not count it.
    #[serde(default)]
    pub mem_borrowed_byte_s: Option<f64>,
    /// GPU seconds used above the claim.
    pub borrowed_gpu_s: f64,
    /// Claimed GPU seconds with delayed launches.
    pub throttled_gpu_s: f64,
    /// GPU seconds requested and waited for.
    pub waited_gpu_s: f64,
    /// GPU seconds claimed and idle.
    pub idle: Idle,
}

impl Usage {
    /// GPU seconds used above the claim, if use is known.
    #[must_use]
    pub fn borrowed(&self) -> Option<f64> {
        self.used_was_known().then_some(self.borrowed_gpu_s)
    }

    /// GPU seconds claimed and idle, if use is known.
    #[must_use]
    pub fn idle_gpu_s(&self) -> Option<f64> {
        self.used_was_known().then(|| self.idle.total())
    }

    /// A user without claims has a known use of zero.
    fn used_was_known(&self) -> bool {
        self.claimed_gpu_s <= 0.0 || self.used_gpu_s.is_some() || self.busy_gpu_s.is_some()
    }

    /// Average use of the claimed amount, in percent, over the time for which it is known. More than 100 with burst.
    #[must_use]
    pub fn average_use(&self) -> Option<f64> {
        let used = self.used_gpu_s?;
        (self.used_known_gpu_s > 0.0).then(|| 100.0 * used / self.used_known_gpu_s)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuReport {
    /// Present index; absent for a removed GPU.
    pub gpu: Option<u32>,
    pub uuid: String,
    /// Sums over its claims; use is the device's own.
    pub usage: Usage,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UserReport {
    pub uid: u32,
    pub user: String,
    /// Sums.
    pub usage: Usage,
    /// Over time.
    pub series: Vec<HistoryPoint>,
}

/// A project in a report; of Slurm jobs, their account.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProjectReport {
    pub project: String,
    /// Sums.
    pub usage: Usage,
}

/// A claim that was held and idle.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct IdleHolding {
    /// `c3`.
    pub id: String,
    pub user: String,
    pub project: String,
    /// The program, for display.
    pub what: String,
    /// Notebook, if it was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notebook: Option<Named>,
    /// Granted, Unix milliseconds.
    pub since_ms: u64,
    /// Seconds that it was held within the time of the report.
    pub held_s: f64,
    /// Sums.
    pub usage: Usage,
    /// The main cause of idleness.
    pub cause: Option<String>,
}

/// The period of a report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportSpec {
    /// Beginning, Unix milliseconds.
    pub from_ms: u64,
    /// End, Unix milliseconds; 0 is now.
    #[serde(default)]
    pub to_ms: u64,
    /// Only this user (login or uid).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<Text<256>>,
}

/// The answer to [`crate::Call::Report`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReportView {
    /// Beginning, Unix milliseconds.
    pub from_ms: u64,
    /// End, Unix milliseconds.
    pub to_ms: u64,
    /// Length of a step of the lines in milliseconds.
    pub step_ms: u64,
    /// Seconds with a service.
    pub known_s: f64,
    /// Number of GPUs that were seen.
    pub gpu_count: u32,
    /// All users together (or the requested one).
    pub total: Usage,
    pub gpus: Vec<GpuReport>,
    /// Users, the one with the most claimed first.
    pub users: Vec<UserReport>,
    /// Projects, the one with the most claimed first; absent from services that did not sum them up.
    #[serde(default)]
    pub projects: Vec<ProjectReport>,
    /// The claims with the most idle time, the worst first.
    pub worst: Vec<IdleHolding>,
    /// Effect of sharing on runs without limits; absent without such runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<SharingView>,
    /// Why the effect is unknown although there were such runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_played: Option<String>,
}

/// Replayed runs. Of each pair the first is the minimum of the two replayed ways, the second the maximum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Fared {
    /// Replayed runs.
    pub runs: u32,
    /// GPU seconds that their claims would have held.
    pub held_gpu_s: [f64; 2],
    /// Runs that would have waited.
    pub waited: [u32; 2],
    /// The longest wait, in seconds.
    pub longest_s: [f64; 2],
    /// Runs that would have been refused.
    pub refused: [u32; 2],
    /// Runs that would have reached their memory limit.
    pub limited: [u32; 2],
}

impl Fared {
    /// With the minimum of each pair first.
    #[must_use]
    pub fn sorted(mut self) -> Self {
        self.held_gpu_s.sort_by(f64::total_cmp);
        self.longest_s.sort_by(f64::total_cmp);
        for pair in [&mut self.waited, &mut self.refused, &mut self.limited] {
            pair.sort_unstable();
        }
        self
    }

    /// Largest number of runs that would have waited, been refused or reached a limit.
    #[must_use]
    pub const fn harmed(&self) -> u32 {
        self.waited[1] + self.refused[1] + self.limited[1]
    }

    /// Adds those of another machine.
    pub fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        for way in 0..2 {
            self.held_gpu_s[way] += other.held_gpu_s[way];
            self.waited[way] += other.waited[way];
            self.longest_s[way] = self.longest_s[way].max(other.longest_s[way]);
            self.refused[way] += other.refused[way];
            self.limited[way] += other.limited[way];
        }
    }
}

/// Replayed runs of a user.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UserFared {
    pub uid: u32,
    pub user: String,
    /// The result.
    #[serde(flatten)]
    pub fared: Fared,
}

/// Effect of sharing on recorded runs, if each requests its own peak and a tenth.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SharingView {
    /// GPU seconds in which GPUs had a program, as recorded.
    pub occupied_gpu_s: f64,
    /// Older runs beyond the maximum for a replay.
    #[serde(default)]
    pub left_out: u32,
    /// All runs, or those of the requested user.
    pub total: Fared,
    /// By user, those with the most runs that would have waited, been refused or reached a limit first.
    pub users: Vec<UserFared>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn average_use_is_over_what_is_known() {
        let usage = Usage {
            claimed_gpu_s: 100.0,
            used_gpu_s: Some(20.0),
            used_known_gpu_s: 50.0,
            ..Usage::default()
        };
        assert_eq!(usage.average_use(), Some(40.0));
        assert_eq!(Usage::default().average_use(), None);
        let unknown = Usage {
            used_gpu_s: Some(0.0),
            ..Usage::default()
        };
        assert_eq!(unknown.average_use(), None, "nothing was known");
    }

    #[test]
    fn the_main_cause_is_the_largest() {
        let idle = Idle {
            kernel: 2.0,
            io: 3.0,
            ..Idle::default()
        };
        assert_eq!(idle.main(), Some("IO busy"));
        assert_eq!(idle.total(), 5.0);
        assert_eq!(Idle::default().main(), None);
    }
}

//! What a claim's programs do while its GPUs idle: compute on the processor, wait for disks, or nothing.

use std::time::{Duration, Instant};

use chrono::{Datelike, Local, Timelike};
use gshare_config::WorkHours;
use gshare_enforcer::proc;

use super::sum::Cause;
use crate::daemon::live::Live;

/// A claim that keeps this many processors busy counts as computing on them.
const CPU_BUSY: f64 = 0.5;
/// A claim whose programs wait for disks in this fraction of the time counts as waiting for disks.
const IO_BUSY: f64 = 0.3;

/// Shorter times are not evaluated.
const WINDOW: Duration = Duration::from_secs(1);

/// Totals at a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vitals {
    at: Instant,
    /// Microseconds of processor time, including waits for a processor.
    cpu_us: u64,
    /// Microseconds in which a program waited for disks; absent if the kernel does not count them.
    io_us: Option<u64>,
}

/// The number after a word: `usage_usec 12`, `total=12`.
fn number(text: &str, word: &str) -> Option<u64> {
    let at = text.find(word)? + word.len();
    let digits = text[at..].trim_start_matches([' ', '=']);
    let end = digits
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(digits.len());
    digits[..end].parse().ok()
}

impl Vitals {
    /// Reads a claim's totals: from its cgroup, otherwise from its processes.
    pub(crate) fn read(live: &Live) -> Option<Self> {
        let at = Instant::now();
        if let Some(cgroup) = &live.cgroup {
            let file = |name| std::fs::read_to_string(cgroup.dir().join(name));
            return Some(Self {
                at,
                cpu_us: number(&file("cpu.stat").ok()?, "usage_usec")?
                    + file("cpu.pressure")
                        .ok()
                        .and_then(|t| number(&t, "total"))
                        .unwrap_or(0),
                io_us: file("io.pressure").ok().and_then(|t| number(&t, "total")),
            });
        }
        let root = live.record.process.map(|p| p.pid);
        let pids = live.members.keys().map(|m| m.pid).chain(root);
        let ticks: std::collections::BTreeMap<i32, u64> = pids
            .filter_map(|pid| Some((pid, proc::stat(pid)?.cpu_ticks)))
            .collect();
        (!ticks.is_empty()).then(|| Self {
            at,
            // A tick is 10 ms on every machine that has GPUs.
            cpu_us: ticks.values().sum::<u64>() * 10_000,
            io_us: None,
        })
    }

    /// Whether it is old enough for a comparison.
    pub(crate) fn is_old(&self) -> bool {
        self.at.elapsed() >= WINDOW
    }

    /// Processors kept busy, or waited for, since an earlier moment.
    pub(crate) fn processors_since(&self, before: &Self) -> f64 {
        let us = self.at.duration_since(before.at).as_micros().max(1) as f64;
        self.cpu_us.saturating_sub(before.cpu_us) as f64 / us
    }

    /// Why a claim was idle between two moments.
    pub(crate) fn cause(before: Option<&Self>, now: Option<&Self>, hours: &WorkHours) -> Cause {
        let (Some(before), Some(now)) = (before, now) else {
            return Cause::Other;
        };
        let us = now.at.duration_since(before.at).as_micros() as f64;
        if us <= 0.0 {
            return Cause::Other;
        }
        let part = |new: u64, old: u64| new.saturating_sub(old) as f64 / us;
        let io = now.io_us.zip(before.io_us).map(|(new, old)| part(new, old));
        if io.is_some_and(|io| io >= IO_BUSY) {
            return Cause::Io;
        }
        if part(now.cpu_us, before.cpu_us) >= CPU_BUSY {
            return Cause::Cpu;
        }
        let local = Local::now();
        let day = local.weekday().num_days_from_monday() as u8;
        if hours.covers(day, local.hour() as u8) {
            Cause::Kernel
        } else {
            Cause::OffHours
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_behind_their_words() {
        let pressure =
            "some avg10=0.75 avg60=0.92 avg300=1.29 total=263234933\nfull avg10=0.20 total=7\n";
        assert_eq!(number(pressure, "total"), Some(263_234_933));
        assert_eq!(
            number("usage_usec 12\nuser_usec 3\n", "usage_usec"),
            Some(12)
        );
        assert_eq!(number("", "total"), None);
        assert_eq!(number("total=x", "total"), None);
    }

    #[test]
    fn the_cause_is_what_its_programs_did() {
        let start = Instant::now();
        let at = |s: u64, cpu_us, io_us| Vitals {
            at: start + Duration::from_secs(s),
            cpu_us,
            io_us,
        };
        let always: WorkHours = WorkHours::default();
        let cause = |cpu, io| {
            let (before, now) = (at(0, 0, Some(0)), at(10, cpu, io));
            Vitals::cause(Some(&before), Some(&now), &always)
        };
        assert_eq!(cause(9_000_000, Some(0)), Cause::Cpu);
        assert_eq!(cause(9_000_000, Some(4_000_000)), Cause::Io);
        let nobody = cause(100, None);
        assert!(matches!(nobody, Cause::Kernel | Cause::OffHours));
        assert_eq!(
            Vitals::cause(None, Some(&at(1, 0, None)), &always),
            Cause::Other
        );
    }
}

//! Names and processes from NVML, bounded before they are kept.

use std::collections::{BTreeMap, BTreeSet};

use crate::plain::plain;

/// Maximum length of NVML's names (`NVML_DEVICE_NAME_V2_BUFFER_SIZE`, and the same for identifiers), in bytes.
const NAME: usize = 96;
/// Maximum number of processes of one GPU.
const PROCESSES: usize = 4096;

/// A process that NVML lists on a GPU.
#[derive(Debug, Clone, PartialEq)]
pub struct GpuProcess {
    /// Process id, as the host sees it.
    pub pid: i32,
    /// Device memory in bytes; `None` if the driver does not report it (MIG, no right).
    pub bytes: Option<u64>,
    /// Whether it has a compute context.
    pub compute: bool,
    /// Whether it uses graphics.
    pub graphics: bool,
    /// Whether it is an MPS client.
    pub mps: bool,
    /// Share of time in percent in which its kernels ran; `None` without new samples.
    pub time_busy: Option<f64>,
}

/// NVML's list of a process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Compute,
    Mps,
    Graphics,
}

/// A name or identifier, made safe to show and to use in a file name: names of GPUs are plain ASCII, and none has two
/// consecutive dots.
pub(super) fn named(text: &str) -> String {
    plain(text, NAME).replace("..", "??")
}

/// A valid pid; empty places of NVML's lists hold 0 or invalid numbers.
fn process(pid: u32) -> Option<i32> {
    i32::try_from(pid).ok().filter(|pid| *pid > 0)
}

/// All processes of a GPU. A process may be in several lists with the same memory.
pub(super) fn processes(listed: impl Iterator<Item = (u32, Option<u64>, Kind)>) -> Vec<GpuProcess> {
    let mut found: BTreeMap<i32, GpuProcess> = BTreeMap::new();
    for (pid, bytes, kind) in listed {
        let Some(pid) = process(pid) else { continue };
        if found.len() >= PROCESSES && !found.contains_key(&pid) {
            continue;
        }
        let entry = found.entry(pid).or_insert(GpuProcess {
            pid,
            bytes: None,
            compute: false,
            graphics: false,
            mps: false,
            time_busy: None,
        });
        entry.bytes = entry.bytes.max(bytes);
        entry.compute |= kind != Kind::Graphics;
        entry.mps |= kind == Kind::Mps;
        entry.graphics |= kind == Kind::Graphics;
    }
    found.into_values().collect()
}

/// Newest time stamps of the processes' samples, in microseconds since 1970. Each process has its own: those of one
/// answer can be seconds apart (go-nvml issue 51).
#[derive(Debug)]
pub(super) struct Stamps {
    /// Times of the last two polls, the newer first.
    looks: [u64; 2],
    of: BTreeMap<i32, u64>,
}

impl Stamps {
    /// Before the first poll: samples of the second before count.
    pub(super) fn new(now_us: u64) -> Self {
        Self {
            looks: [now_us.saturating_sub(1_000_000); 2],
            of: BTreeMap::new(),
        }
    }

    /// Start of the wanted samples.
    pub(super) fn since(&self) -> u64 {
        let [newer, older] = self.looks;
        self.of
            .values()
            .fold(newer, |least, at| least.min(*at))
            .max(older)
    }

    /// Share of time in percent by process, averaged over the new samples of an answer. A sample is a process, its
    /// stamp and its share.
    ///
    /// Dropped are empty places (pid 0), values above 100 percent (DCGM issue 83: 2147483632), and samples from before
    /// the last two polls. If each of several samples names the one process that was on the GPU at that moment
    /// (open-gpu-kernel-modules, ctrl2080perf.h), no process has a share.
    pub(super) fn shares(
        &mut self,
        now_us: u64,
        samples: impl Iterator<Item = (u32, u64, u32)>,
    ) -> BTreeMap<i32, f64> {
        let (seen, oldest) = (std::mem::take(&mut self.of), self.looks[1]);
        let mut found: BTreeMap<i32, Vec<(u64, f64)>> = BTreeMap::new();
        for (pid, at_us, share) in samples {
            let Some(pid) = process(pid) else { continue };
            let before = seen.get(&pid).copied().unwrap_or(0).max(oldest);
            if share <= 100 && at_us > before {
                let sample = (at_us, f64::from(share));
                found.entry(pid).or_default().push(sample);
            }
        }
        self.looks = [now_us, self.looks[0]];
        self.of = seen.into_iter().filter(|(_, at)| *at > oldest).collect();
        for (pid, samples) in &found {
            let newest = samples.iter().map(|(at, _)| *at).max().unwrap_or(0);
            self.of.insert(*pid, newest);
        }
        let stamps: BTreeSet<u64> = found.values().flatten().map(|(at, _)| *at).collect();
        let all = found.values().map(Vec::len).sum::<usize>();
        if found.len() > 1 && stamps.len() == all && all > found.len() {
            return BTreeMap::new();
        }
        let mean = |(pid, samples): (i32, Vec<(u64, f64)>)| {
            let sum: f64 = samples.iter().map(|(_, percent)| percent).sum();
            (pid, sum / samples.len() as f64)
        };
        found.into_iter().map(mean).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_of_gpus_are_made_plain() {
        for (told, expect) in [
            ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"),
            ("GPU-8d2e8a5c-1f0b", "GPU-8d2e8a5c-1f0b"),
            ("MIG 1g.10gb", "MIG 1g.10gb"),
            ("00000000:2B:00.0", "00000000:2B:00.0"),
            ("A\u{1b}]0;owned\u{7}B\n", "A?]0;owned?B?"),
            ("\u{202e}001H\u{200b}", "?001H?"),
            ("../../etc/passwd", "??/??/etc/passwd"),
        ] {
            assert_eq!(named(told), expect, "{told:?}");
        }
        assert_eq!(named(&"x".repeat(4096)).len(), 96);
        assert_eq!(named(&"ü".repeat(4096)).len(), 96);
    }

    #[test]
    fn processes_stand_once_with_their_own_numbers() {
        let listed = [
            (7, Some(10), Kind::Compute),
            (7, Some(30), Kind::Graphics),
            (0, Some(5), Kind::Compute),
            (u32::MAX, None, Kind::Mps),
            (8, None, Kind::Mps),
        ];
        let found = processes(listed.into_iter());
        let told: Vec<_> = found.iter().map(|p| (p.pid, p.bytes, p.mps)).collect();
        assert_eq!(told, [(7, Some(30), false), (8, None, true)]);
        assert!(found[0].compute && found[0].graphics);
        let many = (1..=10_000).map(|pid| (pid, None, Kind::Compute));
        assert_eq!(processes(many).len(), PROCESSES);
    }

    const SECOND: u64 = 1_000_000;

    fn stamps() -> Stamps {
        Stamps {
            looks: [10 * SECOND, 9 * SECOND],
            of: BTreeMap::new(),
        }
    }

    #[test]
    fn what_is_no_percentage_is_no_sample() {
        let mut stamps = stamps();
        let at = 10 * SECOND + 5;
        let shares = stamps.shares(
            11 * SECOND,
            [
                (7, at, 40),
                (7, at + 1, 2_147_483_632),
                (8, at, 101),
                (0, at, 99),
            ]
            .into_iter(),
        );
        assert_eq!(shares, BTreeMap::from([(7, 40.0)]));
    }

    #[test]
    fn each_process_has_a_stamp_of_its_own() {
        let mut stamps = stamps();
        let first = [
            (7, 10 * SECOND + 900_000, 60),
            (8, 10 * SECOND + 100_000, 30),
        ];
        let both = BTreeMap::from([(7, 60.0), (8, 30.0)]);
        assert_eq!(stamps.shares(11 * SECOND, first.into_iter()), both);
        assert_eq!(stamps.since(), 10 * SECOND + 100_000);
        // The slower one's next sample is older than the other's last; samples seen before are not new.
        let next = [first[0], (8, 10 * SECOND + 600_000, 20)];
        let slow = BTreeMap::from([(8, 20.0)]);
        assert_eq!(stamps.shares(12 * SECOND, next.into_iter()), slow);
        // From a time that was compared long ago.
        let stale = [(9, 9 * SECOND, 90)];
        assert_eq!(
            stamps.shares(13 * SECOND, stale.into_iter()),
            BTreeMap::new()
        );
    }

    #[test]
    fn samples_that_name_one_process_each_are_no_shares() {
        let mut stamps = stamps();
        let turns = |pid: fn(u64) -> u32| -> Vec<(u32, u64, u32)> {
            let at = |i: u64| 10 * SECOND + 20_000 * i;
            (1..=50).map(|i| (pid(i), at(i), 100)).collect()
        };
        let shared = turns(|i| if i % 3 == 0 { 8 } else { 7 });
        assert_eq!(
            stamps.shares(11 * SECOND, shared.into_iter()),
            BTreeMap::new()
        );
        // All from one process: it was alone.
        let alone = turns(|_| 7);
        let mut stamps = self::stamps();
        let only = BTreeMap::from([(7, 100.0)]);
        assert_eq!(stamps.shares(11 * SECOND, alone.into_iter()), only);
    }
}

//! Names and processes as NVML tells them, bounded before anybody keeps them.

use std::collections::BTreeMap;

use crate::plain::plain;

/// Longest name that NVML gives (`NVML_DEVICE_NAME_V2_BUFFER_SIZE`, and the same for identifiers), in bytes.
const NAME: usize = 96;
/// Most processes of one GPU.
const PROCESSES: usize = 4096;

/// A process that NVML lists on a GPU.
#[derive(Debug, Clone, PartialEq)]
pub struct GpuProcess {
    /// Process id, as the host sees it.
    pub pid: i32,
    /// Device memory in bytes; absent where the driver does not tell (MIG, no right).
    pub bytes: Option<u64>,
    /// Whether it has a compute context.
    pub compute: bool,
    /// Whether it draws.
    pub graphics: bool,
    /// Whether it is a client of MPS.
    pub mps: bool,
    /// Share of time in percent in which its kernels ran; absent without new samples.
    pub time_busy: Option<f64>,
}

/// Which of NVML's lists a process stands in.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Compute,
    Mps,
    Graphics,
}

/// A name or identifier, fit to be shown and to be part of a file's name: names of GPUs are plain ASCII, and none has two
/// dots in a row.
pub(super) fn named(text: &str) -> String {
    plain(text, NAME).replace("..", "??")
}

/// The number of a process; 0 and what is none stand in empty places of NVML's lists.
fn process(pid: u32) -> Option<i32> {
    i32::try_from(pid).ok().filter(|pid| *pid > 0)
}

/// All processes of a GPU. One may stand in several lists with the same memory.
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

/// Share of time in percent by process, averaged over the samples after `seen_us`, and the stamp of the newest. A sample is
/// a process, its stamp in microseconds since 1970 and its share.
pub(super) fn busy(
    seen_us: u64,
    samples: impl Iterator<Item = (u32, u64, u32)>,
) -> (BTreeMap<i32, f64>, u64) {
    let mut newest = seen_us;
    let mut sums: BTreeMap<i32, (f64, f64)> = BTreeMap::new();
    for (pid, at_us, share) in samples {
        // The driver's ring has empty places: pid 0, or a stamp of the past.
        let Some(pid) = process(pid).filter(|_| at_us > seen_us) else {
            continue;
        };
        newest = newest.max(at_us);
        let sum = sums.entry(pid).or_default();
        sum.0 += f64::from(share.min(100));
        sum.1 += 1.0;
    }
    let shares = sums.into_iter().map(|(pid, (sum, n))| (pid, sum / n));
    (shares.collect(), newest)
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
        let samples = [(7, 5, 50), (7, 6, 4_000_000_000), (0, 9, 1), (8, 4, 1)];
        let (shares, newest) = busy(4, samples.into_iter());
        assert_eq!((shares, newest), (BTreeMap::from([(7, 75.0)]), 6));
    }
}

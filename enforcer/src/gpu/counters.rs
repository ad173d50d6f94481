//! Sources of a GPU's SM activity and occupancy in the order of trial, and why one is missing. Only GPM is read
//! ([`super::nvml`]); the others are reported to show what a machine could have.
//!
//! A reader of another source fills [`super::Gpm`] and names itself there; no other code of gshare depends on the
//! source.

use std::path::{Path, PathBuf};

use super::GpuReading;

/// A source of device counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CounterSource {
    /// GPU performance metrics through NVML: Hopper and later, together with any profiler, also by MIG instance.
    Gpm,
    /// DCGM's profiling module: data-centre and workstation GPUs from Volta on, no GeForce before Blackwell. Without
    /// GPM it uses the counters exclusively and needs root.
    Dcgm,
    /// CUPTI's PM sampling: compute capability 7.5 and later with CUDA 12.6, GeForce too. A session locks the clocks
    /// and excludes profilers, so it suits short bursts only.
    PmSampling,
}

/// The order of trial.
pub const ORDER: [CounterSource; 3] = [
    CounterSource::Gpm,
    CounterSource::Dcgm,
    CounterSource::PmSampling,
];

impl CounterSource {
    /// Name for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gpm => "GPM",
            Self::Dcgm => "DCGM",
            Self::PmSampling => "PM sampling",
        }
    }
}

/// The machine's software for the sources.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// `libdcgm.so.*`.
    pub dcgm: Option<PathBuf>,
    /// `libcupti.so.*`.
    pub cupti: Option<PathBuf>,
    /// Whether only administrators may profile (`RmProfilingAdminOnly`); `None` without the driver's list.
    pub admin_only: Option<bool>,
}

/// Directories of the libraries.
const DIRS: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/cuda/extras/CUPTI/lib64",
];

impl Found {
    /// Searches this machine.
    #[must_use]
    pub fn look() -> Self {
        let library = |name: &str| DIRS.iter().find_map(|dir| newest(Path::new(dir), name));
        let parameters = std::fs::read_to_string("/proc/driver/nvidia/params").ok();
        Self {
            dcgm: library("libdcgm.so"),
            cupti: library("libcupti.so"),
            admin_only: parameters.and_then(|text| admin_only(&text)),
        }
    }
}

/// The newest file in a directory with this name prefix.
fn newest(dir: &Path, name: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(dir).ok()?.flatten();
    let names = entries.filter(|e| e.file_name().to_string_lossy().starts_with(name));
    names.map(|e| e.path()).max()
}

/// Parses `RmProfilingAdminOnly: 1`.
fn admin_only(parameters: &str) -> Option<bool> {
    let line = parameters
        .lines()
        .find_map(|l| l.strip_prefix("RmProfilingAdminOnly:"))?;
    Some(line.trim() != "0")
}

/// Whether a source works on a GPU.
///
/// # Errors
/// The reason, for people.
pub fn probe(source: CounterSource, gpu: &GpuReading, found: &Found) -> Result<(), String> {
    match source {
        CounterSource::Gpm => match gpu.gpm_supported {
            Some(true) => Ok(()),
            Some(false) => {
                Err("this GPU has no such counters (Hopper and later have them)".to_owned())
            }
            None => Err("the driver did not say whether this GPU has such counters".to_owned()),
        },
        CounterSource::Dcgm => Err(match &found.dcgm {
            None => {
                "this version of gshare cannot use DCGM, and libdcgm is not installed".to_owned()
            }
            Some(_) if is_geforce(gpu) == Some(true) => {
                "DCGM has no counters for GeForce before Blackwell".to_owned()
            }
            Some(path) => format!(
                "{} is installed, but gshare does not use it, because that would block profilers",
                path.display()
            ),
        }),
        CounterSource::PmSampling => Err(match (&found.cupti, gpu.compute_capability) {
            (None, _) => {
                "this version of gshare cannot use CUPTI, and libcupti is not installed".to_owned()
            }
            (Some(_), Some(capability)) if capability < (7, 5) => {
                "needs compute capability 7.5".to_owned()
            }
            (Some(path), _) => format!(
                "{} is installed{}, but gshare does not use it, because a profiling session locks the GPU's clocks",
                path.display(),
                match found.admin_only {
                    Some(true) => " for administrators",
                    _ => "",
                }
            ),
        }),
    }
}

/// Whether it is a GeForce before Blackwell; `None` without a name.
fn is_geforce(gpu: &GpuReading) -> Option<bool> {
    let name = gpu.name.as_ref()?;
    let old = gpu.compute_capability.is_none_or(|c| c < (10, 0));
    Some(name.contains("GeForce") && old)
}

/// The first usable source, and a sentence for people on why the ones before it are not.
#[must_use]
pub fn chosen(gpu: &GpuReading, found: &Found) -> (Option<CounterSource>, String) {
    let mut why = Vec::new();
    for source in ORDER {
        match probe(source, gpu, found) {
            Ok(()) => {
                let text = format!("SM activity by {}", source.name());
                return (Some(source), [vec![text], why].concat().join("; "));
            }
            Err(reason) => why.push(format!("{}: {reason}", source.name())),
        }
    }
    // NVML reports no busy time of an instance.
    let divided = gpu.name.as_ref().is_some_and(|n| n.contains(" MIG "));
    let busy = if divided { "" } else { ", time busy by NVML" };
    let text =
        format!("SM activity estimated from the kernels that programs in claims launch{busy}");
    (None, [vec![text], why].concat().join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(name: &str, capability: (i32, i32), gpm: Option<bool>) -> GpuReading {
        GpuReading {
            name: Some(name.to_owned()),
            compute_capability: Some(capability),
            gpm_supported: gpm,
            ..GpuReading::unread(0)
        }
    }

    fn all() -> Found {
        Found {
            dcgm: Some("/usr/lib64/libdcgm.so.4".into()),
            cupti: Some("/usr/lib64/libcupti.so.13".into()),
            admin_only: Some(true),
        }
    }

    #[test]
    fn the_first_source_that_answers_is_taken() {
        let h100 = gpu("NVIDIA H100 80GB HBM3", (9, 0), Some(true));
        let (source, text) = chosen(&h100, &Found::default());
        assert_eq!(source, Some(CounterSource::Gpm));
        assert_eq!(text, "SM activity by GPM");
    }

    #[test]
    fn an_absent_source_says_why() {
        let geforce = gpu("NVIDIA GeForce RTX 4090", (8, 9), Some(false));
        let (source, text) = chosen(&geforce, &Found::default());
        assert_eq!(source, None);
        for words in [
            "estimated from the kernels that programs in claims launch",
            "GPM: this GPU has no such counters",
            "DCGM: this version of gshare cannot use DCGM, and libdcgm is not installed",
            "PM sampling: this version of gshare cannot use CUPTI, and libcupti is not installed",
        ] {
            assert!(text.contains(words), "{text}");
        }
        let (_, text) = chosen(&geforce, &all());
        assert!(text.contains("no counters for GeForce"), "{text}");
        assert!(text.contains("installed for administrators"), "{text}");
        let a100 = gpu("NVIDIA A100-SXM4-80GB", (8, 0), None);
        let (_, text) = chosen(&a100, &all());
        assert!(
            text.contains("did not say") && text.contains("block profilers"),
            "{text}"
        );
        let old = gpu("Tesla V100", (7, 0), Some(false));
        assert!(
            chosen(&old, &all())
                .1
                .contains("needs compute capability 7.5")
        );
    }

    #[test]
    fn who_may_profile_is_read_from_the_drivers_list() {
        assert_eq!(admin_only("A: 1\nRmProfilingAdminOnly: 1\n"), Some(true));
        assert_eq!(admin_only("RmProfilingAdminOnly: 0\n"), Some(false));
        assert_eq!(admin_only(""), None);
    }
}

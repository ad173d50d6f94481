//! The driver's figures of one GPU for display, shared by the service and the read-only monitor.

use std::path::Path;

use gshare_enforcer::gpu::{CounterSource, GpuProcess, GpuReading, GpuState as Seen};
use gshare_enforcer::proc;
pub(crate) use gshare_proto::figures::gpus;
use gshare_proto::{
    CommandLine, Figure, GpuState, GpuView, Identity, Named, ProcessView, Source, UnclaimedView,
};

use crate::identity;

/// `NVIDIA GeForce RTX 4090` as `RTX 4090`; `NVIDIA H100 80GB HBM3` as `H100 80GB`.
pub(crate) fn short_name(model: &str) -> String {
    const LEFT_OUT: [&str; 7] = [
        "PCIe",
        "SXM4",
        "SXM5",
        "Edition",
        "Workstation",
        "Generation",
        "Blackwell",
    ];
    let plain = model
        .trim_start_matches("NVIDIA ")
        .trim_start_matches("GeForce ");
    let kept: Vec<&str> = plain
        .split_whitespace()
        .filter(|w| !w.starts_with("HBM") && !LEFT_OUT.contains(w))
        .collect();
    if kept.is_empty() {
        plain.to_owned()
    } else {
        kept.join(" ")
    }
}

/// Identity of a process for display.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Face {
    /// The command, for display.
    pub(crate) what: String,
    /// Notebook, script, model, unit.
    pub(crate) identity: Identity,
    /// Real user.
    pub(crate) uid: Option<u32>,
}

impl Face {
    pub(crate) fn of(pid: i32) -> Self {
        let (command, identity) = identity::of_process(pid);
        Self {
            what: what(None, &CommandLine::of(&command)),
            identity,
            uid: proc::uids(pid).map(|u| u.real),
        }
    }
}

impl Face {
    /// Sets the container that it runs in.
    pub(crate) fn contained(&mut self, name: String) {
        self.what = format!("[{name}] {}", self.what);
        self.identity.unit = Some(Named {
            value: name,
            source: identity::CONTAINER.to_owned(),
        });
    }
}

/// Name of this machine; empty if it has none that can be shown.
pub(crate) fn host() -> String {
    nix::unistd::gethostname()
        .ok()
        .and_then(|h| h.into_string().ok())
        .unwrap_or_default()
}

/// Whether a driver's library is the simulated one, which has a board beside it.
pub(crate) fn is_simulated(library: &Path) -> bool {
    let station = library.parent().and_then(Path::parent);
    station.is_some_and(|dir| dir.join("board").exists())
}

/// The view of a reading, without claims and history. `current` is false for an old reading: then only identity and
/// size are known.
pub(crate) fn gpu_view(reading: &GpuReading, current: bool) -> GpuView {
    let model = reading
        .name
        .clone()
        .unwrap_or_else(|| "unknown GPU".to_owned());
    let now = Some(reading).filter(|_| current);
    let gpm = now.and_then(|r| r.gpm);
    let counted = match gpm.map(|x| x.source) {
        Some(CounterSource::Dcgm) => Source::Dcgm,
        Some(CounterSource::PmSampling) => Source::CuptiPm,
        Some(CounterSource::Gpm) | None => Source::Gpm,
    };
    let figure = |value: Option<f64>, source| {
        value.map(|value| Figure {
            value,
            source,
            estimate: false,
        })
    };
    let state = match reading.state {
        Seen::Lost => GpuState::Lost,
        Seen::Released => GpuState::Released,
        Seen::Ok if current => GpuState::Ok,
        _ => GpuState::Hung,
    };
    GpuView {
        index: reading.index,
        uuid: reading.uuid.clone().unwrap_or_default(),
        short: short_name(&model),
        model,
        mode: "timeslice".to_owned(),
        state,
        sms: reading.sm_count,
        mem_total: reading.mem_total,
        mem_used: now.and_then(|r| r.mem_used),
        sm_active: figure(gpm.and_then(|x| x.sm_active), counted),
        sm_occupancy: figure(gpm.and_then(|x| x.sm_occupancy), counted),
        time_busy: figure(now.and_then(|r| r.time_busy), Source::TimeBusy),
        tensor_active: figure(gpm.and_then(|x| x.tensor_active), counted),
        dram_active: figure(gpm.and_then(|x| x.dram_active), counted),
        pcie_rx: figure(gpm.and_then(|x| x.pcie_rx), counted),
        pcie_tx: figure(gpm.and_then(|x| x.pcie_tx), counted),
        nvlink_rx: figure(gpm.and_then(|x| x.nvlink_rx), counted),
        nvlink_tx: figure(gpm.and_then(|x| x.nvlink_tx), counted),
        temperature_c: now.and_then(|r| r.temperature),
        power_w: now.and_then(|r| r.power_w),
        power_limit_w: now.and_then(|r| r.power_limit_w),
        ..GpuView::default()
    }
}

/// A GPU process without a claim.
pub(crate) fn unclaimed(
    process: &GpuProcess,
    gpu: u32,
    face: Option<&Face>,
    user: impl Fn(u32) -> String,
) -> UnclaimedView {
    let uid = face.and_then(|f| f.uid);
    // Shown shortened; a command line may have megabytes.
    UnclaimedView {
        pid: process.pid.cast_unsigned(),
        uid,
        user: uid.map(user),
        what: face.map_or_else(|| "-".to_owned(), |f| f.what.clone()),
        gpu,
        mem_used: process.bytes,
        sm_active: None,
        graphics: process.graphics,
        identity: face.map(|f| f.identity.clone()).unwrap_or_default(),
    }
}

/// A GPU process of a claim.
pub(crate) fn claimed(process: &GpuProcess, gpu: u32, face: Option<&Face>) -> ProcessView {
    ProcessView {
        pid: process.pid.cast_unsigned(),
        gpu,
        mem_used: process.bytes,
        time_busy: process.time_busy,
        what: face.map_or_else(|| "-".to_owned(), |f| f.what.clone()),
    }
}

/// A short form of the command: its name, otherwise program and script without directories.
pub(crate) fn what(name: Option<&str>, command: &[String]) -> String {
    if let Some(name) = name {
        return name.to_owned();
    }
    let base = |a: &String| a.rsplit('/').next().unwrap_or(a).to_owned();
    let Some((program, rest)) = command.split_first() else {
        return "-".to_owned();
    };
    let shown: Vec<String> = rest
        .iter()
        .map(|a| {
            if a.starts_with('/') {
                base(a)
            } else {
                a.clone()
            }
        })
        .collect();
    let text = std::iter::once(base(program))
        .chain(shown)
        .collect::<Vec<_>>()
        .join(" ");
    printable(&text).take(200).collect()
}

/// The part of a command that everybody may see: program and script, by the same rule.
pub(crate) fn public(command: &[String]) -> String {
    what(None, &program(command))
}

/// A claim's program in a sentence: `trainer of ada`, `a claim of ada without a command`.
pub(crate) fn program_of(command: &[String], user: &str) -> String {
    match command {
        [] => format!("a claim of {user} without a command"),
        command => format!("{} of {user}", public(command)),
    }
}

/// Program and script of a command line, without further arguments.
pub(crate) fn program(command: &[String]) -> Vec<String> {
    program_and_script(gshare_core::predict::Shape::of(command))
}

/// The same of the key of its runs, where a program without a script is its own script.
pub(crate) fn program_and_script(shape: gshare_core::predict::Shape) -> Vec<String> {
    let mut words = vec![shape.program, shape.script];
    words.dedup();
    words.retain(|word| !word.is_empty());
    words
}

pub(crate) use gshare_proto::printable;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shortened_for_the_screen() {
        for (long, short) in [
            ("NVIDIA GeForce RTX 4090", "RTX 4090"),
            ("NVIDIA H100 80GB HBM3", "H100 80GB"),
            ("NVIDIA RTX A6000", "RTX A6000"),
            ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
            (
                "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
                "RTX PRO 6000",
            ),
            ("NVIDIA H200", "H200"),
        ] {
            assert_eq!(short_name(long), short);
        }
    }

    #[test]
    fn commands_are_shown_without_directories() {
        let words = |w: &[&str]| w.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            what(
                None,
                &words(&["/usr/bin/python3", "/home/a/train.py", "--lr", "1"])
            ),
            "python3 train.py --lr 1"
        );
        assert_eq!(what(Some("sweep"), &words(&["x"])), "sweep");
        assert_eq!(what(None, &[]), "-");
        assert_eq!(what(None, &words(&["a\x1b[2J"])), "a [2J");
    }
}

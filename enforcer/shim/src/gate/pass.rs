//! The path of a launch: nearly always a look at two tables, else the gate.

use std::panic::{AssertUnwindSafe, catch_unwind};

use gshare_gate::{Key, Mode, Word};

use super::{Launch, Outcome, Pass, Trial};
use crate::{cuda::Handle, gpu::Gpu, mark::Thread, process::Process, work::Work};

/// Result of the quick look at a launch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quick {
    Go,
    /// Ask the gate.
    Ask,
    /// It may go, and must be measured.
    Measure,
    /// It may go; its duration is unknown.
    Unmeasured,
}

/// The path of nearly all launches: a few loads and stores. `counts`: SMs work on it.
#[inline]
pub(crate) fn quick(
    gpu: &'static Gpu,
    word: Word,
    key: Key,
    counts: bool,
    stream: Handle,
    thread: Thread,
) -> Quick {
    let number = thread.number();
    let is_shared = word.mode() != Mode::Free;
    if is_shared {
        let gate = super::of(gpu);
        let spent = gate.durations.get(key);
        if !spent.is_some_and(|ns| gate.cells.spend(word, stream, number, ns)) {
            return Quick::Ask;
        }
    }
    match (!counts || gpu.tally.add(key, stream, number), is_shared) {
        (true, _) => Quick::Go,
        (false, true) => Quick::Unmeasured,
        (false, false) => Quick::Measure,
    }
}

/// Handles a launch that cannot simply go.
#[cold]
#[inline(never)]
pub(crate) fn closer(
    process: &'static Process,
    gpu: &'static Gpu,
    quick: Quick,
    word: Word,
    work: Work,
    stream: Handle,
    thread: Thread,
) -> Pass {
    let launch = Launch {
        word,
        work,
        stream,
        thread,
    };
    let part = || match quick {
        Quick::Go => Pass::Go,
        Quick::Ask => ask(process, gpu, launch),
        Quick::Measure => measure(process, gpu, launch),
        Quick::Unmeasured => {
            super::of(gpu).add_unmeasured(process, gpu, &work, stream, thread);
            Pass::Go
        }
    };
    catch_unwind(AssertUnwindSafe(part)).unwrap_or(Pass::Go)
}

/// Asks the gate for a launch on a shared GPU.
fn ask(process: &'static Process, gpu: &'static Gpu, launch: Launch) -> Pass {
    let gate = super::of(gpu);
    let fills = launch.work.counts() && launch.work.meet(process, gpu);
    match gate.wait_for_turn(process, gpu, &launch) {
        Outcome::Free => Pass::Go,
        Outcome::Refused => Pass::Refused,
        Outcome::Go { word, grant_ns } => Pass::Measured(Box::new(Trial {
            launch: Launch { word, ..launch },
            grant_ns: Some(grant_ns),
            fills,
            pair: gate.begin(launch.stream),
        })),
    }
}

/// Measures a launch on a GPU that is not shared.
fn measure(process: &'static Process, gpu: &'static Gpu, launch: Launch) -> Pass {
    let gate = super::of(gpu);
    let wanted = launch.work.meet(process, gpu) && gate.wants(gpu, &launch);
    let pair = if wanted {
        gate.begin(launch.stream)
    } else {
        None
    };
    if pair.is_none() {
        gate.add_unmeasured(process, gpu, &launch.work, launch.stream, launch.thread);
        return Pass::Go;
    }
    Pass::Measured(Box::new(Trial {
        launch,
        grant_ns: None,
        fills: true,
        pair,
    }))
}

//! The path of a launch that cannot simply go.

use std::panic::{AssertUnwindSafe, catch_unwind};

use gshare_gate::{Mode, Step, Word};

use super::{Launch, Outcome, Pass, Trial};
use crate::{cuda::Handle, gpu::Gpu, process::Process, work::Work};

/// Handles a launch that cannot simply go.
#[cold]
#[inline(never)]
pub(crate) fn closer(
    process: &'static Process,
    gpu: &'static Gpu,
    step: Step,
    word: Word,
    work: Work,
    stream: Handle,
    place: u64,
) -> Pass {
    let launch = Launch {
        word,
        work,
        stream,
        place,
    };
    let part = || match step {
        Step::Go => Pass::Go,
        _ if word.mode() == Mode::Free => measure(process, gpu, launch),
        Step::Stop => ask(process, gpu, launch),
        Step::Uncounted => {
            super::of(gpu).add_unmeasured(process, gpu, &launch);
            Pass::Go
        }
    };
    catch_unwind(AssertUnwindSafe(part)).unwrap_or(Pass::Go)
}

/// Asks the gate for a launch on a shared GPU.
fn ask(process: &'static Process, gpu: &'static Gpu, launch: Launch) -> Pass {
    let gate = super::of(gpu);
    let fills = launch.work.meet(process, gpu);
    let is_first = !gpu.tally.is_under(launch.word, launch.place);
    match gate.wait_for_turn(process, gpu, &launch) {
        Outcome::Free => Pass::Go,
        Outcome::Refused => Pass::Refused,
        Outcome::Go { word, grant_ns } => Pass::Measured(Box::new(Trial {
            is_first: is_first || word.0 != launch.word.0,
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
        gate.add_unmeasured(process, gpu, &launch);
        return Pass::Go;
    }
    Pass::Measured(Box::new(Trial {
        launch,
        grant_ns: None,
        is_first: false,
        fills: true,
        pair,
    }))
}

//! Waits until nothing of gshare has a GPU open any more.

use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use gshare_proto::{AdminDone, ErrorCode, Reply, WireError};

use crate::daemon::connection::Sender;
use crate::daemon::gpu::ReleasedGpus;

/// Longest wait for the end of NVML, the engine and MPS.
const PATIENCE: Duration = Duration::from_secs(20);

/// GPUs to release, and the caller that waits.
#[derive(Debug)]
pub(crate) struct LetGo {
    /// All released GPUs afterwards.
    pub(crate) next: ReleasedGpus,
    /// Those that are released now.
    pub(crate) gpus: Vec<usize>,
    pub(super) done: AdminDone,
    pub(super) out: Sender,
}

impl LetGo {
    /// Answers when nothing of gshare has the GPUs open any more.
    pub(crate) fn answer(self, waits: Vec<Wait>) {
        let Self { done, out, .. } = self;
        let started = std::thread::Builder::new().name("release".to_owned());
        let waiting = started.spawn(move || {
            let until = Instant::now() + PATIENCE;
            match waits.iter().find(|wait| !wait.ended(until)) {
                None => out.reply(&Reply::Admin(done)),
                Some(Wait { what, .. }) => out.error(
                    WireError::new(
                        ErrorCode::NotAvailable,
                        format!("{what} does not end and still has the GPU open"),
                    )
                    .with_hint(done.undo.unwrap_or_default()),
                ),
            }
        });
        if let Err(error) = waiting {
            tracing::error!(%error, "cannot start the thread that waits for released GPUs: gshare admin release gets no answer");
        }
    }
}

/// Something that has a GPU open and reports when it no longer has; if it vanishes without a report, it still has.
#[derive(Debug)]
pub(crate) struct Wait {
    pub(crate) what: &'static str,
    pub(crate) ended: Receiver<()>,
}

impl Wait {
    /// Waits until that moment; false if it still has the GPU open.
    pub(crate) fn ended(&self, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        self.ended.recv_timeout(left).is_ok()
    }
}

//! For tests: all that the core is told and decides, played again at the end.

use std::path::PathBuf;

use gshare_core::play::recording::Recording;

/// All steps of the core so far, and where what comes of playing them again is written.
#[derive(Debug)]
pub(crate) struct Recorder(pub(super) Option<(PathBuf, Recording)>);

impl Default for Recorder {
    /// Where `GSHARE_RECORD` names a directory; else nothing is kept.
    fn default() -> Self {
        let dir = std::env::var_os("GSHARE_RECORD").map(PathBuf::from);
        let file = |dir: PathBuf| dir.join(std::process::id().to_string());
        Self(dir.map(|dir| (file(dir), Recording::default())))
    }
}

impl Recorder {
    /// Writes down whether what was told leads to what was decided, also without this service.
    pub(crate) fn end(&self) {
        let Some((file, recording)) = &self.0 else {
            return;
        };
        let text = match recording.play() {
            Ok((steps, decided)) => format!("same: {steps} steps, {decided} decisions\n"),
            Err(differs) => format!("differs: {differs:?}\n"),
        };
        if let Err(error) = std::fs::write(file, text) {
            tracing::error!(%error, "cannot write the result of the recording");
        }
    }
}

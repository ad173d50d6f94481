//! Recordings: a line that identifies the file, then one JSON object per line that begins with its time. Lines are
//! only added, so a truncated recording is readable up to its last whole line.

use std::fs::{File, Permissions};
use std::io::{BufRead, BufReader, Seek as _, SeekFrom, Write};
use std::path::{Path, PathBuf};

use gshare_proto::{Reply, Snapshot};
use gshare_ui::Update;
use serde::{Deserialize, Serialize};

use crate::clock::unix_ms;
use crate::command::failure::{self, Failure};

/// Version of the file format.
const VERSION: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    gshare_recording: u32,
    started_ms: u64,
}

/// A moment of a recording.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Moment {
    /// Unix milliseconds.
    pub(super) at_ms: u64,
    /// The state of everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) snapshot: Option<Box<Snapshot>>,
    /// Reply to a request of a screen: rows of the doctor, a history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reply: Option<Reply>,
}

/// Writes a recording.
#[derive(Debug)]
pub(super) struct Recorder {
    file: File,
    path: PathBuf,
    failed: Option<std::io::Error>,
}

fn cannot(path: &Path, what: &str, error: &std::io::Error) -> Failure {
    let text = format!("cannot {what} {}: {error}", path.display());
    Failure::new(failure::USAGE, text)
}

impl Recorder {
    /// Creates the file, readable by its owner only, because it shows what everybody runs.
    pub(super) fn create(path: &Path) -> Result<Self, Failure> {
        use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)
            .and_then(|file| {
                // An existing file keeps its permissions.
                if file.metadata()?.is_file() {
                    file.set_permissions(Permissions::from_mode(0o600))?;
                }
                Ok(file)
            })
            .map_err(|e| cannot(path, "write", &e))?;
        let mut recorder = Self {
            file,
            path: path.to_owned(),
            failed: None,
        };
        recorder.line(&Header {
            gshare_recording: VERSION,
            started_ms: unix_ms(),
        });
        match recorder.failed() {
            Some(failure) => Err(failure),
            None => Ok(recorder),
        }
    }

    fn line(&mut self, value: &impl Serialize) {
        if self.failed.is_some() {
            return;
        }
        let written = serde_json::to_string(value)
            .map_err(std::io::Error::from)
            .and_then(|text| self.file.write_all(format!("{text}\n").as_bytes()));
        self.failed = written.err();
    }

    /// Writes what a replay can show; nothing more once the disk is full.
    pub(super) fn see(&mut self, update: &Update) {
        let (snapshot, reply) = match update {
            Update::Snapshot(snapshot) => (Some(snapshot.clone()), None),
            Update::CallResult {
                outcome: Ok(reply @ (Reply::Doctor { .. } | Reply::History(_))),
                ..
            } => (None, Some(reply.clone())),
            _ => return,
        };
        self.line(&Moment {
            at_ms: unix_ms(),
            snapshot,
            reply,
        });
    }

    /// Why nothing more is written.
    pub(super) fn failed(&mut self) -> Option<Failure> {
        let error = self.failed.as_ref()?;
        Some(cannot(&self.path, "write", error))
    }
}

/// The positions of a recording's moments.
#[derive(Debug)]
pub(super) struct Recording {
    file: BufReader<File>,
    /// Time, and position of the line in the file.
    places: Vec<(u64, u64)>,
}

/// The time of a line, without reading the rest of it.
#[derive(Deserialize)]
struct Time {
    at_ms: u64,
}

impl Recording {
    /// Reads the positions of all moments.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, is no recording, or is empty.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let read = |e: std::io::Error| cannot(path, "read", &e);
        let strange = |why: &str| {
            let text = format!("{} {why}", path.display());
            Failure::new(failure::USAGE, text).with_hint("gshare top --record FILE makes one")
        };
        let mut file = BufReader::new(File::open(path).map_err(read)?);
        let mut line = Vec::new();
        file.read_until(b'\n', &mut line).map_err(read)?;
        let header: Header =
            serde_json::from_slice(&line).map_err(|_| strange("is not a gshare recording"))?;
        if header.gshare_recording != VERSION {
            return Err(strange("was made by another version of gshare"));
        }
        let (mut places, mut place) = (Vec::new(), line.len() as u64);
        loop {
            line.clear();
            let n = file.read_until(b'\n', &mut line).map_err(read)?;
            if n == 0 || line.last() != Some(&b'\n') {
                break;
            }
            if let Ok(time) = serde_json::from_slice::<Time>(&line) {
                places.push((time.at_ms, place));
            }
            place += n as u64;
        }
        if places.is_empty() {
            return Err(strange("is empty"));
        }
        Ok(Self { file, places })
    }

    /// Number of moments.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// Time of a moment, Unix milliseconds.
    pub(super) fn at_ms(&self, index: usize) -> Option<u64> {
        self.places.get(index).map(|(at, _)| *at)
    }

    /// The first moment at or after a time; the last one if there is none.
    pub(super) fn find(&self, at_ms: u64) -> usize {
        let found = self.places.partition_point(|(at, _)| *at < at_ms);
        found.min(self.places.len().saturating_sub(1))
    }

    /// Reads a moment; `None` if the file has changed.
    pub(super) fn read(&mut self, index: usize) -> Option<Moment> {
        let (_, place) = *self.places.get(index)?;
        self.file.seek(SeekFrom::Start(place)).ok()?;
        let mut line = Vec::new();
        self.file.read_until(b'\n', &mut line).ok()?;
        serde_json::from_slice(&line).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_recorded_is_read_again_up_to_the_last_whole_line() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("r");
        let mut recorder = Recorder::create(&path).expect("made");
        for host in ["a", "b"] {
            let snapshot = Snapshot {
                host: host.to_owned(),
                ..Snapshot::default()
            };
            recorder.see(&Update::Snapshot(Box::new(snapshot)));
        }
        recorder.see(&Update::Caption(Some("not recorded".to_owned())));
        let mut text = std::fs::read_to_string(&path).expect("read");
        text.push_str("{\"at_ms\":12,\"snap");
        std::fs::write(&path, text).expect("written");
        let mut recording = Recording::open(&path).expect("a recording");
        assert_eq!(recording.len(), 2);
        let last = recording.read(1).and_then(|m| m.snapshot).expect("there");
        assert_eq!(last.host, "b");
        assert_eq!(recording.find(0), 0);
        assert_eq!(recording.find(u64::MAX), 1);
        std::fs::write(&path, "something\n").expect("written");
        let error = Recording::open(&path).expect_err("refused");
        assert!(
            error.message.contains("is not a gshare recording"),
            "{error}"
        );
    }
}

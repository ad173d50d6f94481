//! `gshare admin off`: its line in the state directory, and opening everything without the service.
//!
//! The line alone decides: a service that starts or looks finds it, whoever wrote it. Without a service root opens
//! what outlives it: the pages that the library reads, and the device filters.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gshare_abi::host::LimitsFile;
use gshare_config::{Config, Paths};
use gshare_core::ClaimId;
use gshare_core::units::show_duration;
use gshare_enforcer::device;
use gshare_gate::{Mode, Word};
use gshare_proto::OffView;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::clock::unix_ms;

/// Whether gshare is off, and the service's state for when it is on again.
#[derive(Debug, Default)]
pub(crate) struct Off {
    pub(crate) line: Option<OffView>,
    /// The configuration for when it is on again.
    pub(crate) configured: Option<Box<Config>>,
    /// The end was announced.
    pub(crate) warned: bool,
    /// Offloaded claims that are restored once.
    pub(crate) called: BTreeSet<ClaimId>,
}

/// Name of the line in the state directory.
const FILE: &str = "off";

/// A line of the state directory: `None` if there is none, `Some(None)` if it cannot be parsed.
pub(crate) fn read_line<T: DeserializeOwned>(state_dir: &Path, name: &str) -> Option<Option<T>> {
    match fs::read_to_string(state_dir.join(name)) {
        Ok(text) => Some(serde_json::from_str(&text).ok()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(_) => Some(None),
    }
}

/// The line, if gshare is off. An unreadable file counts as one: its author wanted gshare to stop.
pub(crate) fn read(state_dir: &Path) -> Option<OffView> {
    read_line(state_dir, FILE).map(Option::unwrap_or_default)
}

/// Switches gshare off, also after restarts of the service and of the machine.
///
/// # Errors
///
/// When the state directory does not exist or cannot be written.
pub(crate) fn write(state_dir: &Path, line: &OffView) -> io::Result<()> {
    write_line(state_dir, FILE, line)
}

/// Writes a line of the state directory, atomically, so that it survives a reboot.
///
/// # Errors
///
/// When the state directory does not exist or cannot be written.
pub(crate) fn write_line(state_dir: &Path, name: &str, line: &impl Serialize) -> io::Result<()> {
    let (new, path) = (state_dir.join(format!("{name}.new")), state_dir.join(name));
    let mut file = fs::File::create(&new)?;
    writeln!(file, "{}", serde_json::to_string(line)?)?;
    file.sync_all()?;
    fs::rename(&new, &path)?;
    fs::File::open(state_dir)?.sync_all()
}

/// Switches it on. A missing line is no error.
pub(crate) fn remove(state_dir: &Path) -> io::Result<()> {
    match fs::remove_file(state_dir.join(FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(()) => fs::File::open(state_dir)?.sync_all(),
    }
}

/// A line from now on, for this many milliseconds.
pub(crate) fn line(by: String, for_ms: Option<u64>) -> OffView {
    let since_ms = unix_ms();
    OffView {
        since_ms,
        until_ms: for_ms.map(|ms| since_ms.saturating_add(ms)),
        by,
    }
}

/// The duration, for display.
pub(crate) fn span(for_ms: Option<u64>) -> String {
    for_ms.map_or("until gshare admin on".to_owned(), |ms| {
        format!("for {}", show_duration(Duration::from_millis(ms)))
    })
}

/// What was opened without the service, and what could not be.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Opened {
    /// Pages of claims.
    pub(crate) pages: usize,
    /// Device filters.
    pub(crate) filters: usize,
    /// What could not be opened, and why.
    pub(crate) trouble: Vec<String>,
}

/// Opens the pages and device filters of all claims. `root` is the name of the tree of cgroups.
pub(crate) fn open(paths: &Paths, root: &str) -> Opened {
    let mut opened = Opened::default();
    let pages = fs::read_dir(paths.runtime_dir.join("claims"));
    for entry in pages.into_iter().flatten().flatten() {
        if entry.path().extension().is_none_or(|e| e != "limits") {
            continue;
        }
        match LimitsFile::open(&entry.path()) {
            Ok(page) => {
                page.set_memory_cap(u64::MAX);
                let free = Word(page.turn_word()).next(Mode::Free);
                page.set_turn(free.0, 0..0, 0, 0, true);
                opened.pages += 1;
            }
            Err(error) => opened.trouble.push(error.to_string()),
        }
    }
    match device::open_tree(root, &elsewhere(&paths.state_dir)) {
        Ok(count) => opened.filters = count,
        Err(error) => opened.trouble.push(error.to_string()),
    }
    opened
}

/// Cgroups of claims outside the tree, by the journal.
fn elsewhere(state_dir: &Path) -> Vec<PathBuf> {
    let records = || -> rusqlite::Result<Vec<String>> {
        let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
        let db = rusqlite::Connection::open_with_flags(state_dir.join("gshare.db"), flags)?;
        let mut query = db.prepare("SELECT record FROM claim")?;
        query.query_map([], |row| row.get(0))?.collect()
    };
    let cgroup = |text: String| {
        let value: serde_json::Value = serde_json::from_str(&text).ok()?;
        let found = [&value["behalf"]["cgroup"], &value["lodging"]];
        found
            .into_iter()
            .find_map(|v| v.as_str().map(PathBuf::from))
    };
    let records = records().unwrap_or_default();
    records.into_iter().filter_map(cgroup).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_kept_whole_and_a_damaged_one_still_says_off() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(read(dir.path()), None);
        let off = line("ada".to_owned(), Some(5000));
        write(dir.path(), &off).expect("written");
        assert_eq!(read(dir.path()), Some(off.clone()));
        assert_eq!(off.until_ms, Some(off.since_ms + 5000));
        fs::write(dir.path().join(FILE), "{\"since").expect("written");
        assert_eq!(read(dir.path()), Some(OffView::default()));
        remove(dir.path()).expect("removed");
        remove(dir.path()).expect("nothing to remove");
        assert_eq!(read(dir.path()), None);
    }
}

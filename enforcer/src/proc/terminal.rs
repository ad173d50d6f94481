//! The terminal of a process, for messages to its user.

use std::fs::{Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use nix::sys::stat::{major, minor};

/// A terminal that a user reads.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Terminal {
    path: PathBuf,
    device: u64,
    owner: u32,
}

/// The controlling terminal of a process if it belongs to `uid`, or if the process itself can write there: after su the
/// terminal still belongs to another user. Otherwise the terminal of one of its standard streams: programs started by
/// `su -c` have a session of their own. `None` without either.
#[must_use]
pub fn terminal(pid: i32, uid: u32) -> Option<Terminal> {
    controlling(pid, uid).or_else(|| written(pid))
}

fn controlling(pid: i32, uid: u32) -> Option<Terminal> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which may contain anything: state, ppid, pgrp, session, tty_nr.
    let field = text.rsplit_once(')')?.1.split_ascii_whitespace().nth(4)?;
    let device = field.parse::<i32>().ok().filter(|n| *n != 0)?;
    let terminal = node(old_numbering(device.cast_unsigned()))?;
    let meta = terminal.path.symlink_metadata().ok()?;
    let meant = terminal.is_meant(&meta) && (terminal.owner == uid || can_write(pid, &meta));
    meant.then_some(terminal)
}

fn written(pid: i32) -> Option<Terminal> {
    (0..3).find_map(|fd| {
        let stream = PathBuf::from(format!("/proc/{pid}/fd/{fd}"));
        let device = stream.metadata().ok()?;
        let is_device = device.file_type().is_char_device();
        let terminal = node(is_device.then(|| device.rdev())?)?;
        let meta = terminal.path.symlink_metadata().ok()?;
        (terminal.is_meant(&meta) && can_write(pid, &meta)).then_some(terminal)
    })
}

/// The node of a terminal with this device number.
fn node(device: u64) -> Option<Terminal> {
    // Unix 98 pseudo terminals have majors 136 to 143, consoles 4.
    let path = match (major(device), minor(device)) {
        (high @ 136..=143, low) => format!("/dev/pts/{}", (high - 136) * 256 + low),
        (4, low) if low < 64 => format!("/dev/tty{low}"),
        _ => return None,
    };
    let path = PathBuf::from(path);
    let owner = path.symlink_metadata().ok()?.uid();
    Some(Terminal {
        path,
        device,
        owner,
    })
}

/// Whether one of a process's standard streams writes to this very node: a separate file system of terminals (in a
/// container) has other terminals with the same numbers.
fn can_write(pid: i32, terminal: &Metadata) -> bool {
    const WRITES: u32 = 0o200;
    (0..3).any(|fd| {
        let stream = PathBuf::from(format!("/proc/{pid}/fd/{fd}"));
        let writes = |link: Metadata| link.mode() & WRITES != 0;
        let same = |m: Metadata| (m.dev(), m.ino()) == (terminal.dev(), terminal.ino());
        stream.symlink_metadata().is_ok_and(writes) && stream.metadata().is_ok_and(same)
    })
}

/// `tty_nr`: the minor's high bits are above the major (proc(5)).
fn old_numbering(number: u32) -> u64 {
    let high = u64::from((number >> 8) & 0xfff);
    let low = u64::from((number & 0xff) | ((number >> 12) & 0xfff00));
    nix::sys::stat::makedev(high, low)
}

impl Terminal {
    /// It is still this device, with the same owner.
    fn is_meant(&self, meta: &Metadata) -> bool {
        meta.file_type().is_char_device() && meta.rdev() == self.device && meta.uid() == self.owner
    }

    /// Writes a line. Never waits: a stopped terminal takes nothing.
    ///
    /// # Errors
    /// If it has gone, belongs to another user by now, or does not take the text.
    pub fn say(&self, text: &str) -> io::Result<()> {
        let mut file = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_NOCTTY | libc::O_NONBLOCK | libc::O_NOFOLLOW)
            .open(&self.path)?;
        if !self.is_meant(&file.metadata()?) {
            return Err(io::Error::other("the terminal has another user now"));
        }
        file.write_all(format!("\r\n{text}\r\n").as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_of_proc_are_read() {
        // pts/3 is 136:3; pts/300 is 137:44.
        let pts = |high: u64, low: u64| nix::sys::stat::makedev(high, low);
        assert_eq!(old_numbering(0x8803), pts(136, 3));
        assert_eq!(old_numbering((137 << 8) | 44), pts(137, 44));
        assert_eq!(old_numbering(0x0010_0400 | 1), pts(4, 257));
    }

    #[test]
    fn a_process_without_a_terminal_has_none() {
        assert_eq!(terminal(1, 0), None);
        assert_eq!(terminal(i32::MAX, 0), None);
    }
}

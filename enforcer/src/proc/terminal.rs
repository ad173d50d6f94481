//! The terminal that a process has, to tell its user something.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use nix::sys::stat::{major, minor};

/// A terminal of a user.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Terminal {
    path: PathBuf,
    device: u64,
    uid: u32,
}

/// The controlling terminal of a process, if it belongs to `uid`; `None` without one.
#[must_use]
pub fn terminal(pid: i32, uid: u32) -> Option<Terminal> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which may hold anything: state, ppid, pgrp, session, tty_nr.
    let field = text.rsplit_once(')')?.1.split_ascii_whitespace().nth(4)?;
    let device = field.parse::<i32>().ok().filter(|n| *n != 0)?;
    let device = old_numbering(device.cast_unsigned());
    // Unix 98 pseudo terminals have 136 to 143, consoles 4.
    let path = match (major(device), minor(device)) {
        (high @ 136..=143, low) => format!("/dev/pts/{}", (high - 136) * 256 + low),
        (4, low) if low < 64 => format!("/dev/tty{low}"),
        _ => return None,
    };
    let terminal = Terminal {
        path: path.into(),
        device,
        uid,
    };
    let meta = terminal.path.symlink_metadata().ok()?;
    terminal.is_meant(&meta).then_some(terminal)
}

/// `tty_nr`: the minor's high bits stand above the major (proc(5)).
fn old_numbering(number: u32) -> u64 {
    let high = u64::from((number >> 8) & 0xfff);
    let low = u64::from((number & 0xff) | ((number >> 12) & 0xfff00));
    nix::sys::stat::makedev(high, low)
}

impl Terminal {
    /// It is that device, and its user's.
    fn is_meant(&self, meta: &std::fs::Metadata) -> bool {
        meta.file_type().is_char_device() && meta.rdev() == self.device && meta.uid() == self.uid
    }

    /// Writes a line of its own. Never waits: a stopped terminal takes nothing.
    ///
    /// # Errors
    /// When it has gone, is another's by now, or does not take the text.
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

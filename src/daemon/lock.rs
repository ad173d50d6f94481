//! One service per journal: two of them would grant the same room twice.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// Held while the service runs; the kernel releases it however the service ends.
#[derive(Debug)]
pub(crate) struct Lock(#[allow(dead_code, reason = "held, not used")] Flock<File>);

/// Locks the directory for this process.
///
/// # Errors
///
/// When another service has it.
pub(crate) fn take(dir: &Path) -> anyhow::Result<Lock> {
    let path = dir.join("lock");
    // A child that a killed service had just forked holds the lock until it executes its program.
    for _ in 0..10 {
        if let Ok(file) = OpenOptions::new().read(true).write(true).open(&path)
            && matches!(
                Flock::lock(file, FlockArg::LockExclusiveNonblock),
                Err((_, Errno::EWOULDBLOCK))
            )
        {
            std::thread::sleep(Duration::from_millis(50));
        } else {
            break;
        }
    }
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(mut lock) => {
            // For people who look into the file; a full disk must not stop the service.
            let _ = lock.set_len(0);
            let _ = lock.rewind();
            let _ = writeln!(lock, "{}", std::process::id());
            Ok(Lock(lock))
        }
        Err((mut file, Errno::EWOULDBLOCK)) => {
            let mut pid = String::new();
            let _ = file.read_to_string(&mut pid);
            let pid = pid.trim();
            let who = if pid.is_empty() {
                String::new()
            } else {
                format!(" (process {pid})")
            };
            anyhow::bail!(
                "another gshare service{who} uses {}\nhint: stop it, or give this one other directories in its config ([service] state-dir, runtime-dir)",
                dir.display()
            )
        }
        Err((_, error)) => Err(error).with_context(|| format!("cannot lock {}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_locked_once_and_free_again_afterwards() {
        let dir = tempfile::tempdir().unwrap();
        let held = take(dir.path()).unwrap();
        let refused = take(dir.path()).unwrap_err().to_string();
        let own = std::process::id().to_string();
        assert!(refused.contains(&own), "{refused}");
        drop(held);
        take(dir.path()).unwrap();
    }
}

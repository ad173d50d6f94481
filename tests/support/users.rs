//! Real accounts for tests that run as root, and programs where those accounts can reach them.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use gshare::station::Station;

use super::{example, until};

/// Accounts, made for the test and removed after it.
#[derive(Debug)]
pub struct Users(Vec<(String, u32)>);

static NEXT: AtomicU32 = AtomicU32::new(0);

impl Users {
    /// Three of them.
    pub fn make() -> Self {
        Self::some(3)
    }

    /// As many as are asked for.
    pub fn some(count: usize) -> Self {
        let mut users = Self(Vec::new());
        for word in (b'a'..=b'z').take(count) {
            let name = format!(
                "gs{}{}x{}",
                char::from(word),
                std::process::id(),
                NEXT.fetch_add(1, Ordering::Relaxed)
            );
            // Others may hold the lock of the account files at the same time.
            until("useradd succeeds", Duration::from_secs(20), || {
                let made = Command::new("useradd")
                    .args(["--no-create-home", "--shell", "/bin/sh", &name])
                    .output();
                made.is_ok_and(|o| o.status.success()).then_some(())
            });
            let id = Command::new("id")
                .args(["-u", &name])
                .output()
                .expect("id runs");
            let uid = String::from_utf8_lossy(&id.stdout)
                .trim()
                .parse()
                .expect("a number");
            users.0.push((name, uid));
        }
        users
    }

    /// Number of one of them.
    pub fn uid(&self, index: usize) -> u32 {
        self.0[index].1
    }

    /// Login name of one of them.
    pub fn name(&self, index: usize) -> &str {
        &self.0[index].0
    }
}

impl Drop for Users {
    fn drop(&mut self) {
        for (name, _) in &self.0 {
            until("userdel succeeds", Duration::from_secs(20), || {
                let gone = Command::new("userdel").arg(name).output();
                gone.is_ok_and(|o| o.status.success()).then_some(())
            });
        }
    }
}

/// The command, run by that user.
pub fn as_user(mut command: Command, uid: u32) -> Command {
    command.uid(uid).gid(uid);
    command
}

/// The tests' programs lie where other users may not go; links in the station's directory they can reach.
pub fn reachable(station: &Station) -> PathBuf {
    let path = station.dir().join("bin/raw_client");
    if !path.exists() && std::fs::hard_link(example("raw_client"), &path).is_err() {
        std::fs::copy(example("raw_client"), &path).expect("copied");
    }
    path
}

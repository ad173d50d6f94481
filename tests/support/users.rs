//! Real accounts for tests that run as root, and programs where those accounts can reach them.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use gshare::station::Station;
use nix::unistd::{Uid, User};

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
            account(
                "useradd",
                &["--no-create-home", "--shell", "/bin/sh", &name],
            );
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
            account("userdel", &[name]);
            // Already gone, unless its user got another one.
            let _ = Command::new("groupdel")
                .arg(name)
                .stderr(Stdio::null())
                .status();
        }
    }
}

/// Runs a program that changes the account files, until it succeeds: others may hold their lock at the same time, and
/// a user's last process may still be ending.
pub fn account(program: &str, args: &[&str]) {
    until(
        &format!("{program} succeeds"),
        Duration::from_secs(60),
        || {
            let done = Command::new(program).args(args).output();
            done.is_ok_and(|o| o.status.success())
        },
    );
}

/// The primary group of a user; its number may differ from the user's.
pub fn group_of(uid: u32) -> u32 {
    let user = User::from_uid(Uid::from_raw(uid)).expect("the account files are read");
    user.map_or(uid, |u| u.gid.as_raw())
}

/// The command, run by that user in the user's primary group.
pub fn as_user(mut command: Command, uid: u32) -> Command {
    command.uid(uid).gid(group_of(uid));
    command
}

/// The tests' programs lie where other users may not go; links in the station's directory can be reached.
pub fn reachable(station: &Station) -> PathBuf {
    let path = station.dir().join("bin/raw_client");
    if !path.exists() && std::fs::hard_link(example("raw_client"), &path).is_err() {
        super::copy_program(example("raw_client"), &path);
    }
    path
}

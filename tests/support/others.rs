//! Cgroups that are not gshare's.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use gshare::station::Station;
use gshare_enforcer::cgroup::Mount;

/// A cgroup named like another manager's; at the end its processes are ended and it is removed.
#[derive(Debug)]
pub struct Others(pub PathBuf);

impl Others {
    /// One below a cgroup of its own.
    pub fn make(below: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let mount = Mount::find().expect("mounted");
        let top = mount
            .point
            .join(format!("gs-others-{}-{n}", std::process::id()));
        std::fs::create_dir_all(top.join(below)).expect("made");
        Self(top.join(below))
    }

    /// The command of a user, started in it.
    pub fn run(&self, station: &Station, uid: u32, words: &[&str]) -> Command {
        let mut sh = station.client_environment(Command::new("sh"));
        let script = "echo $$ > \"$0/cgroup.procs\" && exec setpriv --reuid \"$1\" --regid \"$1\" \
                      --clear-groups -- sh -c 'exec \"$@\"' \"$@\"";
        sh.args(["-c", script]).arg(&self.0).arg(uid.to_string());
        sh.args(words);
        sh
    }

    /// Whether a process is in it.
    pub fn has(&self, pid: u32) -> bool {
        let inside = std::fs::read_to_string(self.0.join("cgroup.procs")).expect("read");
        inside.lines().any(|line| line == pid.to_string())
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        let _ = std::fs::write(self.0.join("cgroup.kill"), "1");
        for dir in self.0.ancestors() {
            let mut tries = 0..50;
            while std::fs::remove_dir(dir).is_err() && dir.is_dir() && tries.next().is_some() {
                std::thread::sleep(Duration::from_millis(20));
            }
            let name = dir.file_name().and_then(std::ffi::OsStr::to_str);
            if name.is_some_and(|name| name.starts_with("gs-others-")) {
                return;
            }
        }
    }
}

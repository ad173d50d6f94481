//! Remains of a station whose program ends without dropping it: ended here when a signal ends a benchmark.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use gshare_enforcer::cgroup::{ClaimTree, OwnTree, Parent};
use gshare_proto::{Call, Client, Reply};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};

/// Longest wait for the end of a service.
const END: Duration = Duration::from_secs(5);

/// The stations of this program that have not been dropped.
static LIVE: Mutex<Vec<Remains>> = Mutex::new(Vec::new());

/// What must be ended of a station.
#[derive(Clone, Debug)]
pub(super) struct Remains {
    pub(super) dir: PathBuf,
    /// Its service's runtime directory.
    pub(super) run: PathBuf,
    /// The simulated control program of MPS.
    pub(super) mps: PathBuf,
    pub(super) cgroup_root: String,
    /// Its service, while it runs.
    pub(super) service: Option<u32>,
}

fn with<T>(f: impl FnOnce(&mut Vec<Remains>) -> T) -> T {
    f(&mut LIVE.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Remains {
    /// Stores them, replacing what was known of this station.
    pub(super) fn remember(&self) {
        with(|all| {
            all.retain(|r| r.dir != self.dir);
            all.push(self.clone());
        });
    }

    /// Forgets the station in this directory after it was dropped.
    pub(super) fn forget(dir: &Path) {
        with(|all| all.retain(|r| r.dir != dir));
    }

    /// Ends all programs of its claims.
    pub(super) fn end_members(&self) {
        let snapshot = Client::connect(&self.run.join("gshared.sock")).and_then(|mut client| {
            let _ = client.set_read_timeout(Some(END));
            client.call(&Call::Snapshot)
        });
        let claims = match snapshot {
            Ok(Reply::Snapshot(snapshot)) => snapshot.claims,
            _ => Vec::new(),
        };
        let own = std::process::id();
        for pid in claims.into_iter().flat_map(|c| c.members) {
            if pid != own {
                let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
            }
        }
        let Ok(tree) = OwnTree::open(&Parent::Top, &self.cgroup_root) else {
            return;
        };
        for cgroup in tree.claims().unwrap_or_default() {
            let _ = cgroup.kill();
            let _ = cgroup.wait_empty(Duration::from_secs(2));
            let _ = tree.remove(&cgroup);
        }
        let _ = tree.remove_if_empty();
    }

    /// Ends the MPS daemons, which outlive their service.
    pub(super) fn end_mps(&self) {
        let dirs = std::fs::read_dir(self.dir.join("run/mps"));
        for dir in dirs.into_iter().flatten().flatten() {
            if let Ok(control) = gshare_enforcer::mps::Control::new(&self.mps, &dir.path()) {
                let _ = control.quit(1);
            }
        }
    }

    /// All of it.
    fn end(&self) {
        self.end_members();
        if let Some(pid) = self.service {
            let pid = Pid::from_raw(pid.cast_signed());
            let until = Instant::now() + END;
            // It is a child of this program, so it can be waited for here.
            let _ = kill(pid, Signal::SIGTERM);
            let flags = nix::sys::wait::WaitPidFlag::WNOHANG;
            while nix::sys::wait::waitpid(pid, Some(flags))
                == Ok(nix::sys::wait::WaitStatus::StillAlive)
                && Instant::now() < until
            {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        self.end_mps();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// From now on SIGTERM, SIGINT and SIGHUP end the stations of this program, and then the program.
pub fn end_on_signals() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let watched = {
        let _inside = runtime.enter();
        [
            SignalKind::terminate(),
            SignalKind::interrupt(),
            SignalKind::hangup(),
        ]
        .map(signal)
    };
    let [term, int, hup] = watched;
    let (mut term, mut int, mut hup) = (term?, int?, hup?);
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            let number = runtime.block_on(async {
                tokio::select! {
                    _ = term.recv() => libc::SIGTERM,
                    _ = int.recv() => libc::SIGINT,
                    _ = hup.recv() => libc::SIGHUP,
                }
            });
            with(|all| all.drain(..).for_each(|remains| remains.end()));
            std::process::exit(128 + number);
        })
        .map(drop)
}

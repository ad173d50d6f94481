//! Shared by the tests against the real kernel: a tree of their own, cleaned up in any case.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::Read;
use std::os::fd::AsFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use gshare_enforcer::cgroup::{ClaimCgroup, ClaimPlace, ClaimTree, OwnTree, Parent};
use gshare_enforcer::proc::PidFd;

pub(crate) const LONG: Duration = Duration::from_secs(20);

/// A tree under the top of the hierarchy that is removed with everything in it.
pub(crate) struct TestTree(pub(crate) OwnTree);

impl TestTree {
    /// `None`, after printing the reason, if the test cannot run.
    pub(crate) fn new() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: needs root");
            return None;
        }
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("gshare-test-{}-{count}", std::process::id());
        match OwnTree::open(&Parent::Top, &name) {
            Ok(tree) => Some(Self(tree)),
            Err(e) => {
                println!("skipped: {e}");
                None
            }
        }
    }

    pub(crate) fn claim(&self, uid: u32, claim: u64) -> ClaimCgroup {
        self.0.create(ClaimPlace { uid, claim }).unwrap()
    }
}

impl Drop for TestTree {
    fn drop(&mut self) {
        for claim in self.0.claims().unwrap_or_default() {
            let _ = claim.ask_frozen(false);
            let _ = claim.kill();
            let _ = claim.wait_empty(LONG);
            let _ = self.0.remove(&claim);
        }
        let removed = self.0.remove_if_empty().unwrap();
        assert!(removed || std::thread::panicking(), "the tree is left over");
    }
}

/// A shell command that starts when [`Waiting::go`] is called, to move it first.
pub(crate) struct Waiting(pub(crate) Child);

impl Waiting {
    pub(crate) fn new(script: &str) -> Self {
        let child = Command::new("sh")
            .args(["-c", &format!("read go; {script}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self(child)
    }

    pub(crate) fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }

    pub(crate) fn pidfd(&self) -> PidFd {
        PidFd::open(self.pid()).unwrap().unwrap()
    }

    pub(crate) fn go(&mut self) {
        drop(self.0.stdin.take());
    }

    /// Lets it run and returns its output.
    pub(crate) fn finish(&mut self) -> (ExitStatus, String) {
        self.go();
        let mut text = String::new();
        self.0
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        self.0
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        (self.0.wait().unwrap(), text)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn wait_readable(fd: impl AsFd) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::from(20_000_u16)) == Ok(1)
}

/// Retries `condition` until it holds; fails after a long time.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LONG, "gave up waiting: {what}");
        std::thread::yield_now();
    }
}

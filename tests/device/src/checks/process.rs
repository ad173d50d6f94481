//! Processes: fork, and what remains of a killed process.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};

use super::support::{NOT_INITIALIZED, SOON, alloc, context, info};
use crate::trial::skip;
use crate::{cu, need};

/// A helper that holds memory.
pub(super) struct Holder(Child);

impl Holder {
    pub(super) fn new(bytes: usize) -> Holder {
        let child = crate::own()
            .args(["--role", "hold", &bytes.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut child) = child else {
            skip("no helper")
        };
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            let _ = BufReader::new(out).read_line(&mut line);
        }
        assert_eq!(line.trim(), "holding", "the helper");
        Holder(child)
    }

    pub(super) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(super) fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Helper: holds memory until its input ends.
pub(super) fn hold(args: &[String]) {
    context();
    let bytes = args.first().and_then(|a| a.parse().ok()).unwrap_or(1);
    alloc(bytes);
    println!("holding");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

const HELD: usize = 512 << 20;

super::list! {
    "process.killed", "CUDA C++ guide: the memory of a process ends with it, also when it is killed", |t| {
        context();
        let before = info().0;
        let mut holder = Holder::new(HELD);
        let held = before - info().0;
        t.holds("its memory is taken", held >= HELD, held);
        holder.kill();
        t.comes("and comes back", SOON, || info().0 + (64 << 20) >= before);
    }
    "process.overhead", "observed: a context takes memory of its own", |t| {
        context();
        let before = info().0;
        let _holder = Holder::new(1);
        let taken = before - info().0;
        t.holds("more than its allocation", taken > 2 << 20 && taken < 4 << 30, taken);
    }
    "process.forked", "CUDA C++ guide: no CUDA in a child of fork; NOT_INITIALIZED", |t| {
        context();
        let p = alloc(4096);
        // SAFETY: the child calls the driver, as the check requires, and ends without cleanup.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut q = 0u64;
            let code = cu!(cuMemAlloc_v2(&raw mut q, 64usize));
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(code as i32) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        t.same("cuMemAlloc in the child", Some(NOT_INITIALIZED as i32),
            libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)));
        t.ok("the parent goes on", cu!(cuMemsetD8_v2(p, 1u8, 64usize)));
        t.ok("and waits", cu!(cuCtxSynchronize()));
    }
    "process.forked-before", "CUDA C++ guide: a child forked before cuInit may use CUDA", |t| {
        // SAFETY: the child starts the driver and ends without cleanup.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code = cu!(cuInit(0u32));
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(code as i32) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        t.same("cuInit in the child", Some(0),
            libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)));
        need!(cuInit(0u32));
    }
}

//! Programs that exit with work on the GPU, on a driver that shuts down meanwhile: it aborts the process if a thread of
//! the proxy is inside it then. `EXITS` is the number of attempts of each way.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::os::unix::process::ExitStatusExt;

use gshare_abi::monotonic_ns;
use gshare_gate::{Mode, Word};
use support::Desk;

/// Launches and ends: an interpreter takes its modules apart before it exits.
const SCRIPT: &str = r#"
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, f"{name}: {code}"
context, module, kernel, stream = (ctypes.c_void_p() for _ in range(4))
to = ctypes.byref
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", to(context), 0)
call("cuCtxSetCurrent", context)
call("cuModuleLoadData", to(module), b".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry idle() { ret; }\n")
call("cuModuleGetFunction", to(kernel), module, b"idle")
call("cuStreamCreate", to(stream), 1)
print("> 0 0", flush=True)
input()
for _ in range(5):
    call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, stream, None, None)
"#;

/// Exits in one way, on a shared GPU and on an unshared one.
fn exits(way: &str, code: Option<i32>, signal: Option<i32>) {
    let many = std::env::var("EXITS").ok().and_then(|n| n.parse().ok());
    let costs = "idle 1ms\n";
    let (desk, _board, _) = Desk::simulated(&["h100"], costs, &[0], |_, context| 16 * context);
    let mut word = Word::default();
    for run in 0..many.unwrap_or(20) {
        word = word.next(if run % 2 == 0 { Mode::Open } else { Mode::Free });
        let beat = || {
            let held = desk.held.lock().unwrap();
            held[0].limits.beat(None);
            held[0].limits.turn_beat(monotonic_ns());
        };
        beat();
        desk.held.lock().unwrap()[0]
            .limits
            .set_turn(word.0, 0..0, 0, 0, true);
        let client = if way == "python" {
            let mut client = desk.script(SCRIPT);
            client.hear();
            beat();
            client.tell("");
            client
        } else {
            let mut client = desk.client();
            client.begin(0);
            let (kernel, stream) = (client.must("kernel"), client.must("stream"));
            beat();
            client.must(&format!("burst {kernel} {stream} 2"));
            beat();
            client.tell(&format!("exit_by {way} {kernel} {stream}"));
            client
        };
        let pid = client.pid();
        let (status, said) = client.ends();
        assert_eq!(
            (status.code(), status.signal()),
            (code, signal),
            "{way}, run {run}: {said}"
        );
        // Its charge stays until the kernel has reported its death.
        assert!(desk.charged(0) > 0, "{way}");
        desk.reap(pid);
        assert_eq!(desk.charged(0), 0, "{way}");
    }
}

#[test]
fn by_exit() {
    exits("exit", Some(7), None);
}

#[test]
fn by_returning_from_main() {
    exits("return", Some(0), None);
}

#[test]
fn at_once() {
    exits("_exit", Some(7), None);
}

#[test]
fn by_a_signal() {
    exits("term", None, Some(libc::SIGTERM));
}

#[test]
fn with_another_thread_in_a_call() {
    exits("thread", Some(7), None);
}

#[test]
fn after_a_fork() {
    exits("fork", Some(7), None);
}

#[test]
fn by_the_end_of_python() {
    exits("python", Some(0), None);
}

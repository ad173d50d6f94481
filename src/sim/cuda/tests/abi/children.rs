//! What needs a process of its own: before cuInit, visible devices, fork, sudden death.

use std::ffi::CString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use gshare_sim_board::Board;

use crate::support::{Context, PTX, alloc, kernel, launch, lay_out, workstation};
use crate::{cu, ok};

struct Station(PathBuf, Board);

impl Station {
    fn new(name: &str) -> Station {
        let dir = std::env::temp_dir().join(format!("sim-{name}-{}", std::process::id()));
        let board = lay_out(&dir);
        Station(dir, board)
    }

    /// This test again, in a child on the workstation.
    fn child(&self, test: &str) -> Command {
        let mut c = Command::new(std::env::current_exe().expect("own path"));
        c.args(["--exact", &format!("children::{test}"), "--nocapture"]);
        c.env("SIM_TEST_DIR", &self.0);
        c.env_remove("CUDA_VISIBLE_DEVICES");
        c
    }

    fn run(&self, test: &str, variables: &[(&str, &str)]) {
        let mut c = self.child(test);
        c.envs(variables.iter().copied());
        let out = c.output().expect("child");
        let text = String::from_utf8_lossy(&out.stdout);
        let errors = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{variables:?}\n{text}\n{errors}");
    }
}

impl Drop for Station {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn in_child() -> bool {
    std::env::var_os("SIM_TEST_DIR").is_some()
}

fn count() -> i32 {
    let mut n = -1i32;
    ok!(cuDeviceGetCount(&raw mut n));
    n
}

#[test]
fn visible_devices() {
    if !in_child() {
        let s = Station::new("visible");
        let uuid = s.1.snapshot().gpus[2].uuid.clone();
        let test = "visible_devices";
        for (list, expect) in [
            ("0,1,2", "rtx h100 h100"),
            ("1", "h100"),
            (&uuid[..12], "h100"),
            ("2,0,7,1", "h100 rtx"),
            ("", "none"),
        ] {
            s.run(test, &[("CUDA_VISIBLE_DEVICES", list), ("EXPECT", expect)]);
        }
        s.run(test, &[("EXPECT", "rtx h100 h100")]);
        s.run(
            test,
            &[("GSHARE_SIM_BOARD", "/nonexistent"), ("EXPECT", "none")],
        );
        // Nodes decide first: what is not there cannot be opened.
        let dev = s.0.join("dev");
        std::fs::create_dir(&dev).expect("dev");
        s.run(test, &[("EXPECT", "none")]);
        if !make_node(&dev.join("nvidia1")) {
            println!("skipped: device nodes need root");
            return;
        }
        s.run(test, &[("EXPECT", "h100")]);
        s.run(test, &[("CUDA_VISIBLE_DEVICES", "0"), ("EXPECT", "h100")]);
        s.run(test, &[("CUDA_VISIBLE_DEVICES", "1"), ("EXPECT", "none")]);
        return;
    }
    let expect = std::env::var("EXPECT").expect("EXPECT");
    let code = cu!(cuInit(0u32));
    if expect == "none" {
        assert_eq!(code, 100);
        return;
    }
    assert_eq!(code, 0);
    let names: Vec<&str> = (0..count())
        .map(|i| {
            let mut name = [0u8; 64];
            ok!(cuDeviceGetName(name.as_mut_ptr(), 64i32, i));
            if name.starts_with(b"NVIDIA H100") {
                "h100"
            } else {
                "rtx"
            }
        })
        .collect();
    assert_eq!(names.join(" "), expect);
}

/// A device node that no driver serves; false where that is not permitted.
fn make_node(path: &std::path::Path) -> bool {
    let path = CString::new(path.to_str().expect("path")).expect("path");
    // Major 240 is for local use.
    let device = libc::makedev(240, 1);
    // SAFETY: the path is a C string.
    unsafe { libc::mknod(path.as_ptr(), libc::S_IFCHR | 0o666, device) == 0 }
}

#[test]
fn a_forked_child_has_no_driver() {
    if !in_child() {
        return Station::new("fork").run("a_forked_child_has_no_driver", &[]);
    }
    let _c = Context::on(0);
    let p = alloc(1 << 20);
    let used = workstation().board.snapshot().gpus[0].used;
    // SAFETY: the child calls two driver functions and leaves with _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let mut n = 0i32;
        let ok = cu!(cuDeviceGetCount(&raw mut n)) == 3
            && cu!(cuInit(0u32)) == 3
            && cu!(cuMemFree_v2(p)) == 3;
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(i32::from(!ok)) };
    }
    let mut status = 0;
    // SAFETY: waits for the own child.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(status, 0);
    assert_eq!(workstation().board.snapshot().gpus[0].used, used);
    assert_eq!(count(), 3);
}

#[test]
fn a_killed_process_leaves_nothing() {
    if in_child() {
        let _c = Context::on(1);
        alloc(100 << 20);
        assert_eq!(launch(kernel(PTX, "long"), 100_000, 32, 0, &mut []), 0);
        loop {
            std::thread::park();
        }
    }
    let s = Station::new("kill");
    let mut child = s
        .child("a_killed_process_leaves_nothing")
        .spawn()
        .expect("child");
    let deadline = Instant::now() + Duration::from_secs(20);
    let busy = || {
        let seen = s.1.snapshot();
        seen.gpus[1].processes.iter().any(|p| p.launched > 0)
    };
    while !busy() {
        assert!(Instant::now() < deadline, "the child does not launch");
        std::thread::yield_now();
    }
    let seen = s.1.snapshot();
    let p = &seen.gpus[1].processes[0];
    assert_eq!(p.pid, child.id());
    assert!(p.bytes > 100 << 20);
    child.kill().expect("kill");
    let status = child.wait().expect("wait");
    assert_eq!(status.signal(), Some(libc::SIGKILL));
    let seen = s.1.snapshot();
    assert_eq!((seen.gpus[1].used, seen.gpus[1].processes.len()), (0, 0));
}

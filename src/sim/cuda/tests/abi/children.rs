//! Tests that need a process of their own, because of the devices that it sees.

use std::ffi::CString;
use std::path::PathBuf;
use std::process::Command;

use gshare_sim_board::Board;

use crate::support::lay_out;
use crate::{cu, ok};

struct Station(PathBuf, Board);

impl Station {
    fn new(name: &str) -> Station {
        let dir = std::env::temp_dir().join(format!("sim-{name}-{}", std::process::id()));
        let board = lay_out(&dir);
        Station(dir, board)
    }

    /// Runs this test again in a child on the workstation.
    fn run(&self, test: &str, variables: &[(&str, &str)]) {
        let mut c = Command::new(std::env::current_exe().expect("own path"));
        c.args(["--exact", &format!("children::{test}"), "--nocapture"]);
        c.env("SIM_TEST_DIR", &self.0);
        c.env_remove("CUDA_VISIBLE_DEVICES");
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
        // Nodes decide first: an absent node cannot be opened.
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

/// Makes a device node without a driver; false if that is not permitted.
fn make_node(path: &std::path::Path) -> bool {
    let path = CString::new(path.to_str().expect("path")).expect("path");
    // Major 240 is for local use.
    let device = libc::makedev(240, 1);
    // SAFETY: the path is a C string.
    unsafe { libc::mknod(path.as_ptr(), libc::S_IFCHR | 0o666, device) == 0 }
}

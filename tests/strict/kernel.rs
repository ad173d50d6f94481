//! A Jupyter kernel works with strict limits as it does without them.

use std::path::PathBuf;
use std::time::Duration;

use super::desk;
use super::support::notebook::{Notebook, may_run};
use super::support::{python, until};
use crate::support::SOON;
use gshare::station::Station;
use gshare_proto::{Caps, ClaimView};
use serde_json::json;

fn claim(station: &Station) -> Option<ClaimView> {
    let claims = station.snapshot().ok()?.claims;
    claims.into_iter().find(|c| c.class == "interactive")
}

/// A cell's view: devices, the driver's answer to more than its limit, and whether the proxy covers the driver.
fn cell(station: &Station) -> String {
    let driver = station.sim_dir().join("lib/libcuda.so.1");
    let proxy = station.dir().join("run/lib/strict/libcuda.so.1");
    format!(
        r#"
import ctypes, os
cuda = ctypes.CDLL({driver:?})
made, count, context = cuda.cuInit(0), ctypes.c_int(-1), ctypes.c_void_p()
cuda.cuDeviceGetCount(ctypes.byref(count))
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
free, total, place = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_uint64()
cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
more = cuda.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(total.value + 1))
print(made, count.value, more, os.path.samefile({driver:?}, {proxy:?}), total.value)
"#
    )
}

#[test]
fn a_kernel_under_strict_caps_is_interrupted_debugged_restarted_and_killed_as_without_them() {
    let test =
        "a_kernel_under_strict_caps_is_interrupted_debugged_restarted_and_killed_as_without_them";
    let Some((users, station)) = desk(test) else {
        return;
    };
    let Some(bin) = python::bin(test) else {
        return;
    };
    let uid = users.uid(0);
    if !may_run(test, &bin, uid) {
        return;
    }
    let mut notebook = Notebook::start_as(Some(uid), &station, &bin);
    let first = claim(&station).expect("it has a claim");
    assert_eq!(
        (first.caps, first.uid, first.gpus.len()),
        (Caps::Strict, uid, 0),
        "{first:?}"
    );
    let held = |notebook: &mut Notebook| {
        let seen = notebook.run(&cell(&station));
        let now = claim(&station).expect("listed");
        assert_eq!(now.id, first.id, "the same claim");
        // The refusal is shown below the cell as well.
        let words = format!("0 1 2 True {}\n", now.gpus[0].mem_limit);
        assert!(seen.contains(&words), "{seen} {now:?}");
        now.pid.expect("it runs")
    };
    let pid = held(&mut notebook);
    assert_eq!(
        pid, notebook.pid,
        "the kernel is the process that Jupyter started"
    );

    let endless = "print('works', flush=True)\nwhile True: pass";
    notebook.act(&json!({ "do": "run", "code": endless, "until": "works" }));
    let said = notebook.act(&json!({ "do": "interrupt" }));
    assert_eq!(said["error"], "KeyboardInterrupt", "{said}");
    notebook.debugs();
    assert_eq!(held(&mut notebook), pid, "neither ended it");

    let mut pids = vec![pid];
    for kill in [false, true] {
        if kill {
            notebook.act(&json!({ "do": "kill" }));
        }
        notebook.act(&json!({ "do": "restart" }));
        pids.push(held(&mut notebook));
    }
    pids.dedup();
    assert_eq!(pids.len(), 3, "each time another process: {pids:?}");

    notebook.act(&json!({ "do": "shutdown" }));
    let proc = PathBuf::from(format!("/proc/{}", pids[2]));
    until("the kernel has ended", SOON, || !proc.exists());
    until("the claim ends with it", Duration::from_secs(2), || {
        claim(&station).is_none()
    });
}

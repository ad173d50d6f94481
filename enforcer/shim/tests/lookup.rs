//! Every path to an entry point leads through the proxy, to the right version and twin; unknown names lead to the
//! driver.

#![allow(
    clippy::unwrap_used,
    unsafe_code,
    reason = "a test fails by panicking; calls C functions"
)]

mod support;

use std::ffi::CString;

use support::{Desk, GIB, OVERHEAD, client::Library};

/// Not a test of its own: prints where entry points lead, as seen inside a program.
#[test]
fn look_around() {
    let Ok(real) = std::env::var("LOOK_AROUND") else {
        println!("skipped: runs as a child of another test only");
        return;
    };
    let shim = Library::open("libcuda.so.1");
    let both = Library::open("libcuda.so");
    let real = Library::open(&real);
    assert_eq!(
        shim.find("cuInit"),
        both.find("cuInit"),
        "one library, two names"
    );
    assert_ne!(shim.find("cuInit"), real.find("cuInit"));
    assert_eq!(shim.find("cuFromTheFuture"), real.find("cuFromTheFuture"));
    assert!(!shim.find("cuFromTheFuture").is_null());
    assert!(shim.find("cuNoSuchThing").is_null());

    let entry = |library: &Library, symbol: &str, version: i32, flags: u64| {
        // SAFETY: the signature is that of cuda.h.
        let get: unsafe extern "C" fn(*const i8, *mut usize, i32, u64, *mut i32) -> i32 =
            unsafe { std::mem::transmute(library.find("cuGetProcAddress_v2")) };
        let symbol = CString::new(symbol).unwrap();
        let (mut found, mut status) = (0, -1);
        // SAFETY: all places are valid for the call.
        let code = unsafe {
            get(
                symbol.as_ptr(),
                &raw mut found,
                version,
                flags,
                &raw mut status,
            )
        };
        (code, found, status)
    };
    let own = |name: &str| shim.find(name) as usize;
    for (symbol, version, flags, expected) in [
        ("cuMemAlloc", 12000, 0, "cuMemAlloc_v2"),
        ("cuMemAlloc", 3000, 0, "cuMemAlloc"),
        ("cuMemFree", 12000, 0, "cuMemFree_v2"),
        ("cuMemGetInfo", 12000, 0, "cuMemGetInfo_v2"),
        ("cuLaunchKernel", 12000, 0, "cuLaunchKernel"),
        ("cuLaunchKernel", 12000, 2, "cuLaunchKernel_ptsz"),
        ("cuMemAllocAsync", 12000, 1, "cuMemAllocAsync"),
        ("cuMemAllocAsync", 12000, 2, "cuMemAllocAsync_ptsz"),
        ("cuInit", 12000, 0, "cuInit"),
        ("cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"),
        ("cuGetProcAddress", 11030, 0, "cuGetProcAddress"),
    ] {
        let found = entry(&shim, symbol, version, flags);
        assert_eq!(found, (0, own(expected), 0), "{symbol} {version} {flags}");
        assert_ne!(found.1, real.find(expected) as usize);
    }
    let future = entry(&shim, "cuFromTheFuture", 12000, 0);
    assert_eq!(future, (0, real.find("cuFromTheFuture") as usize, 0));
    assert_eq!(entry(&shim, "cuNoSuchThing", 12000, 0), (500, 0, 1));

    // The entry found this way looks up in turn, with four arguments and with five.
    let (_, old, _) = entry(&shim, "cuGetProcAddress", 11030, 0);
    // SAFETY: the four-argument version by its number.
    let old: unsafe extern "C" fn(*const i8, *mut usize, i32, u64) -> i32 =
        unsafe { std::mem::transmute(old) };
    let mut found = 0;
    let symbol = c"cuLaunchKernel".as_ptr();
    // SAFETY: all places are valid for the call.
    assert_eq!(unsafe { old(symbol, &raw mut found, 11030, 2) }, 0);
    assert_eq!(found, own("cuLaunchKernel_ptsz"));

    // The driver lacks this one, and programs look for it to find out.
    assert!(real.find("cuGraphLaunch").is_null());
    assert!(shim.find("cuGraphLaunch").is_null());
    println!("looked around");
}

#[test]
fn every_way_leads_to_the_right_entry() {
    let desk = Desk::open(&[(0, GIB)]);
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "look_around", "--nocapture"])
        .env(
            "LOOK_AROUND",
            desk.directory.path().join("real/libcuda.so.1"),
        )
        .env("LD_LIBRARY_PATH", desk.directory.path().join("shim"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("looked around"),
        "{said}{errors}"
    );
}

#[test]
fn per_thread_twins_reach_the_drivers_own_twins() {
    let desk = Desk::open(&[(0, GIB)]);
    let mut client = desk.client();
    client.begin(0);
    client.must("launch_ptsz 2");
    client.must("async_ptsz 4096");
    client.must("async 4096");
    assert_eq!(client.ask("future 41").0, 42, "through the dependency");
    assert_eq!(desk.slots(0)[0].launches, 2);
    assert!(desk.charged(0) > OVERHEAD);
}

//! Sharing between processes.

use std::process::Stdio;

use super::support::{
    Gate, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NOT_READY, alloc, attribute, context,
    download, event, info, stream, upload,
};
use super::vmm;
use crate::trial::skip;
use crate::{cu, need};

/// `CUipcMemHandle` and `CUipcEventHandle`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Handle([u8; 64]);

fn hex(handle: &Handle) -> String {
    handle.0.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Handle {
    let mut handle = Handle([0; 64]);
    for (i, b) in handle.0.iter_mut().enumerate() {
        let digits = text.get(2 * i..2 * i + 2).unwrap_or_default();
        *b = u8::from_str_radix(digits, 16).unwrap_or(0);
    }
    handle
}

/// Runs a helper of this program; returns its output.
pub(super) fn helper(args: &[&str]) -> String {
    let out = crate::own()
        .arg("--role")
        .args(args)
        .stdin(Stdio::null())
        .output();
    match out {
        Ok(out) => String::from_utf8_lossy(&out.stdout).trim().to_owned(),
        Err(e) => format!("no helper: {e}"),
    }
}

/// Runs `body`; a panic becomes its result.
fn told(body: impl FnOnce() -> String) {
    std::panic::set_hook(Box::new(|_| {}));
    let text = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
    let text = text.unwrap_or_else(|e| match e.downcast_ref::<String>() {
        Some(text) => text.clone(),
        None => "ended early".to_owned(),
    });
    println!("{text}");
}

/// Helper: opens memory, reads its first word, writes its second, and prints the accounting.
pub(super) fn read_and_write(args: &[String]) {
    told(|| {
        context();
        let handle = unhex(args.first().map_or("", String::as_str));
        let before = info().0;
        let (mut p, mut again) = (0u64, 0u64);
        need!(cuIpcOpenMemHandle_v2(&raw mut p, handle, 1u32));
        need!(cuIpcOpenMemHandle_v2(&raw mut again, handle, 1u32));
        let first = download::<u32>(p, 1)[0];
        upload(p + 4, &[first + 1]);
        need!(cuCtxSynchronize());
        let freed = cu!(cuMemFree_v2(p));
        need!(cuIpcCloseMemHandle(again));
        need!(cuIpcCloseMemHandle(p));
        let gone = cu!(cuIpcCloseMemHandle(p));
        let less = before.saturating_sub(info().0) >> 20;
        format!("{first} {} {freed} {gone} {less}", p == again)
    });
}

/// Helper: queries another process's event, then waits for it.
pub(super) fn wait_for_event(args: &[String]) {
    told(|| {
        context();
        let handle = unhex(args.first().map_or("", String::as_str));
        let mut e = 0u64;
        need!(cuIpcOpenEventHandle(&raw mut e, handle));
        let at_first = cu!(cuEventQuery(e));
        let s = stream(1);
        // The parent reads this line and then opens the gate.
        println!("{at_first}");
        need!(cuEventSynchronize(e));
        need!(cuStreamWaitEvent(s, e, 0u32));
        let waited = cu!(cuStreamSynchronize(s));
        format!("{waited}")
    });
}

/// Helper: imports physical memory by an inherited descriptor.
pub(super) fn import(args: &[String]) {
    told(|| {
        context();
        let number = |i: usize| args.get(i).and_then(|a| a.parse::<u64>().ok()).unwrap_or(0);
        let mut h = 0u64;
        need!(cuMemImportFromShareableHandle(&raw mut h, number(0), 1u32));
        let p = vmm::map(h, number(1) as usize);
        let first = download::<u32>(p, 1)[0];
        upload(p + 4, &[first + 1]);
        need!(cuCtxSynchronize());
        format!("{first}")
    });
}

fn memory_handle(p: u64) -> Handle {
    let mut h = Handle([0; 64]);
    let code = cu!(cuIpcGetMemHandle(&raw mut h, p));
    if code == 801 {
        skip("no sharing of memory by handle");
    }
    if code != 0 {
        crate::trial::broken("cuIpcGetMemHandle", code);
    }
    h
}

super::list! {
    "ipc.memory", "Memory Management, cuIpcGetMemHandle, OpenMemHandle, CloseMemHandle: one memory in two processes", |t| {
        context();
        let p = alloc(64 << 20);
        upload(p, &[41u32, 0]);
        need!(cuCtxSynchronize());
        let said = helper(&["ipc-memory", &hex(&memory_handle(p))]);
        let parts: Vec<&str> = said.split(' ').collect();
        t.same("the helper read", Some(&"41"), parts.first());
        t.same("the same pointer when opened twice", Some(&"true"), parts.get(1));
        t.same("cuMemFree there is INVALID_VALUE", Some(&"1"), parts.get(2));
        t.holds("closed once too often is an error", parts.get(3).is_some_and(|c| *c != "0"), &said);
        t.same("no memory of its own", Some(&"0"), parts.get(4));
        t.same("what the helper wrote", vec![41u32, 42], download::<u32>(p, 2));
    }
    "ipc.memory-inside", "Memory Management, cuIpcGetMemHandle: a second allocation in the same block", |t| {
        context();
        let (a, b) = (alloc(512), alloc(512));
        upload(a, &[7u32, 0]);
        upload(b, &[9u32, 0]);
        need!(cuCtxSynchronize());
        let said = helper(&["ipc-memory", &hex(&memory_handle(b))]);
        t.same("the helper read", Some("9"), said.split(' ').next());
        t.same("the first is untouched", vec![7u32, 0], download::<u32>(a, 2));
        t.same("the second", vec![9u32, 10], download::<u32>(b, 2));
    }
    "ipc.memory-refused", "Memory Management, cuIpcOpenMemHandle: flags must ask for peer access; not in the own process", |t| {
        context();
        let h = memory_handle(alloc(1 << 20));
        let mut p = 0u64;
        t.code("flags 0", &[INVALID_VALUE], cu!(cuIpcOpenMemHandle_v2(&raw mut p, h, 0u32)));
        let code = cu!(cuIpcOpenMemHandle_v2(&raw mut p, h, 1u32));
        t.code("in the own process", &[INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE], code);
        let mut h = Handle([0; 64]);
        t.code("a bogus address", &[INVALID_VALUE], cu!(cuIpcGetMemHandle(&raw mut h, 0x1000u64)));
        if attribute(115) != 0 {
            let mut q = 0u64;
            need!(cuMemAllocAsync(&raw mut q, 1usize << 20, 0u64));
            need!(cuCtxSynchronize());
            t.code("memory of a pool", &[INVALID_VALUE], cu!(cuIpcGetMemHandle(&raw mut h, q)));
        }
    }
    "ipc.event", "Event Management, cuIpcGetEventHandle, cuIpcOpenEventHandle: one event in two processes", |t| {
        use std::io::{BufRead, BufReader, Read};
        context();
        if attribute(125) == 0 {
            skip("no sharing of events");
        }
        let (s, e) = (stream(1), event(6));
        let mut h = Handle([0; 64]);
        t.ok("handle", cu!(cuIpcGetEventHandle(&raw mut h, e)));
        let gate = Gate::close(s);
        need!(cuEventRecord(e, s));
        let child = crate::own()
            .args(["--role", "ipc-event", &hex(&h)])
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut child) = child else { skip("no helper") };
        let Some(out) = child.stdout.take() else { skip("no helper") };
        let mut out = BufReader::new(out);
        let mut line = String::new();
        let _ = out.read_line(&mut line);
        t.same("the helper asks at first", NOT_READY.to_string(), line.trim().to_owned());
        gate.open();
        let mut rest = String::new();
        let _ = out.read_to_string(&mut rest);
        let _ = child.wait();
        t.same("its wait ends", "0", rest.trim());
    }
    "ipc.event-refused", "Event Management, cuIpcGetEventHandle: only of interprocess events", |t| {
        context();
        let mut h = Handle([0; 64]);
        let e = event(2);
        t.code("a plain event", &[INVALID_HANDLE, INVALID_VALUE], cu!(cuIpcGetEventHandle(&raw mut h, e)));
    }
    "ipc.descriptor", "Virtual Memory Management, cuMemImportFromShareableHandle: a descriptor in another process", |t| {
        vmm::begin();
        if attribute(103) == 0 {
            skip("no file descriptors as handles");
        }
        let prop = vmm::prop(1);
        let size = vmm::granularity(&prop);
        let h = vmm::create(size, &prop);
        let p = vmm::map(h, size);
        upload(p, &[60u32, 0]);
        need!(cuCtxSynchronize());
        let mut fd = -1i32;
        t.ok("export", cu!(cuMemExportToShareableHandle(&raw mut fd, h, 1u32, 0u64)));
        // SAFETY: clears close-on-exec of the descriptor that the driver gave to this program.
        let kept = unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
        t.same("a descriptor", 0, kept);
        let said = helper(&["import-fd", &fd.to_string(), &size.to_string()]);
        t.same("the helper read", "60", said.as_str());
        t.same("what it wrote", vec![60u32, 61], download::<u32>(p, 2));
    }
}

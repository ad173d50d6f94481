//! Checkpoints of processes: calls stop, device memory goes to the host and comes back.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use super::support::{
    Gate, INVALID_VALUE, NOT_READY, OUT_OF_MEMORY, SOON, alloc, attribute, context, download, info,
    kernel, launch, param, stream, upload, version,
};
use super::{monitor, vmm};
use crate::trial::{Trial, skip};
use crate::{cu, need};

const ILLEGAL_STATE: u32 = 401;
const RUNNING: u32 = 0;
const LOCKED: u32 = 1;
const CHECKPOINTED: u32 = 2;
const FAILED: u32 = 3;
const CHECKPOINTING: u32 = 4;
const RESTORING: u32 = 5;

/// `CUcheckpointGpuPair`: old and new UUID.
type Pair = [[u8; 16]; 2];

/// The arguments of a lock; all of these structures have 64 bytes.
#[repr(C)]
struct LockArgs {
    timeout_ms: u32,
    reserved: [u32; 15],
}

#[repr(C)]
struct RestoreArgs {
    pairs: *const Pair,
    count: u32,
    padding: u32,
    reserved: [u64; 6],
}

const NONE: *const u64 = std::ptr::null();

fn begin() {
    need!(cuInit(0u32));
    if version() < 12_080 {
        skip("checkpoints came with CUDA 12.8");
    }
}

fn state(pid: i32) -> u32 {
    let mut s = u32::MAX;
    need!(cuCheckpointProcessGetState(pid, &raw mut s));
    s
}

fn lock(pid: i32, timeout_ms: u32) -> u32 {
    let args = LockArgs {
        timeout_ms,
        reserved: [0; 15],
    };
    cu!(cuCheckpointProcessLock(pid, &raw const args))
}

fn checkpoint(pid: i32) -> u32 {
    cu!(cuCheckpointProcessCheckpoint(pid, NONE))
}

fn restore(pid: i32, pairs: &[Pair]) -> u32 {
    let args = RestoreArgs {
        pairs: pairs.as_ptr(),
        count: pairs.len() as u32,
        padding: 0,
        reserved: [0; 6],
    };
    cu!(cuCheckpointProcessRestore(pid, &raw const args))
}

fn unlock(pid: i32) -> u32 {
    cu!(cuCheckpointProcessUnlock(pid, NONE))
}

/// A process with memory on the first device; lines on its input are commands.
struct Target {
    child: Child,
    input: ChildStdin,
    output: Receiver<String>,
}

impl Target {
    fn new(variable: Option<&str>) -> Target {
        let mut command = crate::own();
        command
            .args(["--role", "target"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(devices) = variable {
            command.env("CUDA_VISIBLE_DEVICES", devices);
        }
        let Ok(mut child) = command.spawn() else {
            skip("no helper")
        };
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            skip("no helper")
        };
        let (send, output_lines) = channel();
        let lines: Lines<BufReader<ChildStdout>> = BufReader::new(output).lines();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        let target = Target {
            child,
            input,
            output: output_lines,
        };
        assert_eq!(target.read(SOON).as_deref(), Some("ready"), "the helper");
        target
    }

    fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    fn tell(&mut self, line: &str) {
        let _ = writeln!(self.input, "{line}");
        let _ = self.input.flush();
    }

    fn read(&self, within: Duration) -> Option<String> {
        self.output.recv_timeout(within).ok()
    }

    /// Sends a command and returns the answer.
    fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.read(SOON).unwrap_or_else(|| "no answer".to_owned())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const WORDS: usize = 1 << 20;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const POSIX_DESCRIPTOR: u32 = 1;
/// Number of calls by the thread that polls.
static POLLED: AtomicU64 = AtomicU64::new(0);

fn sum(p: u64, words: usize) -> u64 {
    let all: Vec<u32> = download(p, words);
    all.iter().zip(1u64..).fold(0u64, |sum, (word, place)| {
        sum.wrapping_mul(31).wrapping_add(u64::from(*word) ^ place)
    })
}

/// Helper: holds filled memory of several kinds.
pub(super) fn target() {
    context();
    let f = kernel("add");
    let plain = alloc(4 * WORDS);
    let filled: Vec<u32> = (0..WORDS as u32)
        .map(|i| i.wrapping_mul(2_654_435_761))
        .collect();
    upload(plain, &filled);
    let small = alloc(64);
    upload(small, &[1u32, 2, 3, 4]);
    let mut pooled = 0u64;
    if attribute(115) != 0 {
        need!(cuMemAllocAsync(&raw mut pooled, 4096usize, 0u64));
        need!(cuCtxSynchronize());
        upload(pooled, &filled[7..1031]);
    }
    let mut mapped = 0u64;
    if attribute(102) != 0 {
        let prop = vmm::prop(0);
        let size = vmm::granularity(&prop);
        mapped = vmm::map(vmm::create(size, &prop), size);
        upload(mapped, &filled[99..1123]);
    }
    let own = stream(1);
    let mut gate: Option<&'static Gate> = None;
    need!(cuCtxSynchronize());
    println!("ready");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let answer = match line.as_str() {
            "ping" => "pong".to_owned(),
            // Two lines: before the call, and after it has returned.
            "call" => {
                println!("calling");
                let code = cu!(cuCtxSynchronize());
                format!("called {code}")
            }
            "sum" => {
                let mut all = sum(plain, WORDS) ^ sum(small, 4);
                for p in [pooled, mapped].into_iter().filter(|p| *p != 0) {
                    all = all.rotate_left(7) ^ sum(p, 1024);
                }
                all.to_string()
            }
            "add" => {
                let (n, v) = (WORDS as u32, 5u32);
                let list = [param(&plain), param(&n), param(&v)];
                let code = launch(f, n / 256, 256, 0, &list);
                format!("{code} {}", cu!(cuCtxSynchronize()))
            }
            "managed" => {
                let mut p = 0u64;
                cu!(cuMemAllocManaged(&raw mut p, 4096usize, 1u32)).to_string()
            }
            "share" => {
                let mut handle = [0u8; 64];
                cu!(cuIpcGetMemHandle(handle.as_mut_ptr(), plain)).to_string()
            }
            // Like PyTorch's expandable segments: memory that could be exported as a descriptor.
            "expandable" => {
                let prop = vmm::prop(POSIX_DESCRIPTOR);
                let size = vmm::granularity(&prop);
                let mut handle = 0u64;
                let code = cu!(cuMemCreate(&raw mut handle, size, &raw const prop, 0u64));
                if code == 0 {
                    upload(vmm::map(handle, size), &filled[5..1029]);
                }
                code.to_string()
            }
            // Like a DataLoader: a child that never calls the driver.
            "worker" => {
                // SAFETY: the child calls async-signal-safe functions only, and ends with its parent.
                let pid = unsafe { libc::fork() };
                if pid == 0 {
                    // SAFETY: see above.
                    unsafe {
                        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                        libc::sleep(60);
                        libc::_exit(0);
                    }
                }
                pid.to_string()
            }
            "poll" => {
                std::thread::spawn(|| {
                    while cu!(cuStreamQuery(0u64)) != INVALID_VALUE {
                        POLLED.fetch_add(1, Ordering::Relaxed);
                    }
                });
                "polls".to_owned()
            }
            "polled" => POLLED.load(Ordering::Relaxed).to_string(),
            "shut" => {
                gate = Some(Gate::close(own));
                "shut".to_owned()
            }
            "open" => {
                if let Some(gate) = gate.take() {
                    gate.open();
                }
                "opened".to_owned()
            }
            "uuid" => {
                let mut uuid = [0u8; 16];
                need!(cuDeviceGetUuid(uuid.as_mut_ptr(), 0i32));
                format!("{uuid:?}")
            }
            _ => "what".to_owned(),
        };
        println!("{answer}");
    }
}

/// A user id without an account.
const NOBODY: u32 = 65_534;

/// Helper: initialises the driver, becomes another user, and tries to stop a process of the first user.
pub(super) fn other_user(args: &[String]) {
    need!(cuInit(0u32));
    let pid: i32 = args.first().and_then(|a| a.parse().ok()).unwrap_or(-1);
    // SAFETY: drops privileges of the own process, which does nothing else.
    let given_up = unsafe {
        libc::setgroups(0, std::ptr::null()) == 0
            && libc::setresgid(NOBODY, NOBODY, NOBODY) == 0
            && libc::setresuid(NOBODY, NOBODY, NOBODY) == 0
    };
    assert!(given_up, "another user");
    println!("{} {} {}", lock(pid, 500), checkpoint(pid), unlock(pid));
}

/// The UUIDs of all devices that this process sees.
fn uuids() -> Vec<[u8; 16]> {
    let mut n = 0i32;
    need!(cuDeviceGetCount(&raw mut n));
    (0..n)
        .map(|d| {
            let mut uuid = [0u8; 16];
            need!(cuDeviceGetUuid(uuid.as_mut_ptr(), d));
            uuid
        })
        .collect()
}

fn several() -> Vec<[u8; 16]> {
    begin();
    if version() < 13_000 {
        skip("maps of GPUs came with CUDA 13.0");
    }
    let all = uuids();
    if all.len() < 2 {
        skip("one GPU only");
    }
    all
}

/// Locks and checkpoints a process, so that its memory is on the host.
fn park(t: &mut Trial, pid: i32) {
    t.ok("lock", lock(pid, 10_000));
    t.ok("checkpoint", checkpoint(pid));
}

/// Restores and unlocks it.
fn resume(t: &mut Trial, pid: i32) {
    t.ok("restore", restore(pid, &[]));
    t.ok("unlock", unlock(pid));
}

/// Checks that an unsupported case is refused or works. With `may_lose` the process may also be lost.
fn refused_or_works(t: &mut Trial, target: &mut Target, may_lose: bool) {
    let before = target.ask("sum");
    let pid = target.pid();
    let locked = lock(pid, 5_000);
    if locked == 0 {
        if checkpoint(pid) == 0 {
            t.ok("restore", restore(pid, &[]));
        } else if may_lose && state(pid) == FAILED {
            t.same(
                "a process that is lost is not unlocked",
                ILLEGAL_STATE,
                unlock(pid),
            );
            return;
        }
        t.ok("unlock", unlock(pid));
    }
    t.same("it runs again", RUNNING, state(pid));
    t.same("contents", before, target.ask("sum"));
}

super::list! {
    "checkpoint.states", "CUDA Checkpointing: RUNNING, LOCKED, CHECKPOINTED and back; ILLEGAL_STATE for anything else", |t| {
        begin();
        let mut target = Target::new(None);
        let pid = target.pid();
        let before = target.ask("sum");
        let illegal = [ILLEGAL_STATE];
        t.same("at first", RUNNING, state(pid));
        t.code("checkpoint while RUNNING", &illegal, checkpoint(pid));
        t.code("restore while RUNNING", &illegal, restore(pid, &[]));
        t.code("unlock while RUNNING", &illegal, unlock(pid));
        t.ok("lock", lock(pid, 10_000));
        t.same("locked", LOCKED, state(pid));
        t.code("lock while LOCKED", &illegal, lock(pid, 1_000));
        t.code("restore while LOCKED", &illegal, restore(pid, &[]));
        t.ok("unlock", unlock(pid));
        t.same("unlocked", RUNNING, state(pid));
        t.ok("lock again", lock(pid, 10_000));
        t.ok("checkpoint", checkpoint(pid));
        t.same("checkpointed", CHECKPOINTED, state(pid));
        t.code("lock while CHECKPOINTED", &illegal, lock(pid, 1_000));
        t.code("checkpoint while CHECKPOINTED", &illegal, checkpoint(pid));
        t.code("unlock while CHECKPOINTED", &illegal, unlock(pid));
        t.ok("restore", restore(pid, &[]));
        t.same("restored", LOCKED, state(pid));
        t.ok("unlock", unlock(pid));
        t.same("at the end", RUNNING, state(pid));
        t.same("contents", before, target.ask("sum"));
    }
    "checkpoint.contents", "CUDA Checkpointing, cuCheckpointProcessRestore: memory, module and kernels are as before, also the second time", |t| {
        begin();
        let mut target = Target::new(None);
        let pid = target.pid();
        let mut before = target.ask("sum");
        for _ in 0..2 {
            park(t, pid);
            resume(t, pid);
            t.same("contents", before.clone(), target.ask("sum"));
            t.same("a kernel runs", "0 0".to_owned(), target.ask("add"));
            let after = target.ask("sum");
            t.differ("and computes", before, after.clone());
            before = after;
        }
    }
    "checkpoint.frees-memory", "CUDA Checkpointing, cuCheckpointProcessCheckpoint: the memory leaves the GPU, the process does not", |t| {
        begin();
        context();
        let at_first = info().0;
        let mut target = Target::new(None);
        let pid = target.pid();
        let held = at_first.saturating_sub(info().0);
        t.holds("it holds memory", held >= 4 * WORDS, held);
        park(t, pid);
        t.comes("the memory is free", SOON, || info().0 + (32 << 20) >= at_first);
        t.same("its threads run", "pong".to_owned(), target.ask("ping"));
        resume(t, pid);
        t.comes("the memory is taken again", SOON, || info().0 + held <= at_first + (32 << 20));
    }
    "checkpoint.nvml", "observed: NVML does not list a process whose memory is on the host", |t| {
        begin();
        let device = monitor::device();
        let target = Target::new(None);
        let pid = target.pid();
        let listed = || monitor::lists(device, pid.cast_unsigned());
        t.comes("listed at first", SOON, listed);
        park(t, pid);
        t.comes("then not", SOON, || !listed());
        resume(t, pid);
        t.comes("then again", SOON, listed);
    }
    "checkpoint.calls-wait", "CUDA Checkpointing, cuCheckpointProcessLock: further calls block until the process is unlocked", |t| {
        begin();
        let mut target = Target::new(None);
        let pid = target.pid();
        t.ok("lock", lock(pid, 10_000));
        t.same("about to call", "calling".to_owned(), target.ask("call"));
        let early = target.read(Duration::from_millis(300));
        t.same("the call waits", None, early);
        t.ok("checkpoint", checkpoint(pid));
        t.same("and waits", None, target.read(Duration::from_millis(100)));
        resume(t, pid);
        t.same("then returns", Some("called 0".to_owned()), target.read(SOON));
    }
    "checkpoint.lock-timeout", "CUDA Checkpointing, cuCheckpointProcessLock: NOT_READY after timeoutMs, and the process stays RUNNING", |t| {
        begin();
        let mut target = Target::new(None);
        let pid = target.pid();
        t.same("work that does not end", "shut".to_owned(), target.ask("shut"));
        t.code("lock", &[NOT_READY], lock(pid, 300));
        t.same("it runs", RUNNING, state(pid));
        t.same("and calls go through", "0 0".to_owned(), {
            target.tell("open");
            let _ = target.read(SOON);
            target.ask("add")
        });
        t.ok("later it can be locked", lock(pid, 10_000));
        t.ok("unlock", unlock(pid));
    }
    "checkpoint.thread", "CUDA Checkpointing, cuCheckpointProcessGetRestoreThreadId: a thread of the process", |t| {
        begin();
        let target = Target::new(None);
        let (pid, mut tid) = (target.pid(), 0i32);
        t.ok("ask", cu!(cuCheckpointProcessGetRestoreThreadId(pid, &raw mut tid)));
        let task = format!("/proc/{pid}/task/{tid}");
        t.holds("a thread of it", tid != 0 && std::path::Path::new(&task).exists(), &task);
    }
    "checkpoint.no-process", "CUDA Checkpointing: a process that does not use CUDA, or none at all", |t| {
        begin();
        let mut s = 0u32;
        let sleeper = Command::new("sleep").arg("60").spawn();
        let Ok(mut sleeper) = sleeper else { skip("no sleep") };
        let pid = sleeper.id().cast_signed();
        let code = cu!(cuCheckpointProcessGetState(pid, &raw mut s));
        t.holds("the state of sleep is refused", code != 0, code);
        t.holds("its lock is refused", lock(pid, 100) != 0, pid);
        let _ = sleeper.kill();
        let _ = sleeper.wait();
        let code = cu!(cuCheckpointProcessGetState(pid, &raw mut s));
        t.holds("so is that of nobody", code != 0, code);
        let code = cu!(cuCheckpointProcessGetState(pid, std::ptr::null_mut::<u32>()));
        t.holds("and NULL", code != 0, code);
    }
    "checkpoint.other-user", "cuda-checkpoint: the processes of others are refused to whoever may not trace them; they run on", |t| {
        begin();
        // SAFETY: only asks.
        if unsafe { libc::geteuid() } != 0 {
            skip("takes root, who can become another user");
        }
        let mut target = Target::new(None);
        let pid = target.pid();
        let before = target.ask("sum");
        let try_it = || {
            let args = ["--role", "other-user", &pid.to_string()];
            let out = crate::own().args(args).stdin(Stdio::null()).output();
            let text = out.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned());
            text.unwrap_or_default()
        };
        let refused = |said: &str| {
            let codes: Vec<&str> = said.split(' ').collect();
            codes.len() == 3 && codes.iter().all(|c| *c != "0")
        };
        let said = try_it();
        t.holds("lock, checkpoint and unlock are refused", refused(&said), &said);
        t.same("it runs", RUNNING, state(pid));
        t.same("and calls go through", before.clone(), target.ask("sum"));
        park(t, pid);
        let said = try_it();
        t.holds("also while its memory is on the host", refused(&said), &said);
        t.same("it is there still", CHECKPOINTED, state(pid));
        resume(t, pid);
        t.same("contents", before, target.ask("sum"));
    }
    "checkpoint.between", "CUDA Checkpointing, CUprocessState: CHECKPOINTING and RESTORING while the step is under way, from CUDA 13.4 on", |t| {
        begin();
        if version() < 13_040 {
            skip("these states came with CUDA 13.4");
        }
        let mut target = Target::new(None);
        let pid = target.pid();
        let before = target.ask("sum");
        t.ok("lock", lock(pid, 10_000));
        // The distinct states during the step, in order.
        let during = |step: fn(i32) -> u32| {
            let worker = std::thread::spawn(move || step(pid));
            let mut seen = Vec::new();
            while !worker.is_finished() {
                let s = state(pid);
                if seen.last() != Some(&s) {
                    seen.push(s);
                }
            }
            (worker.join().unwrap_or(u32::MAX), seen)
        };
        let in_order = |seen: &[u32], order: [u32; 3]| {
            let places: Vec<Option<usize>> = seen.iter().map(|s| order.iter().position(|o| o == s)).collect();
            places.iter().all(Option::is_some) && places.is_sorted()
        };
        let (code, seen) = during(checkpoint);
        t.ok("checkpoint", code);
        t.holds("LOCKED, CHECKPOINTING, CHECKPOINTED", in_order(&seen, [LOCKED, CHECKPOINTING, CHECKPOINTED]), format_args!("{seen:?}"));
        let (code, seen) = during(|pid| restore(pid, &[]));
        t.ok("restore", code);
        t.holds("CHECKPOINTED, RESTORING, LOCKED", in_order(&seen, [CHECKPOINTED, RESTORING, LOCKED]), format_args!("{seen:?}"));
        t.ok("unlock", unlock(pid));
        t.same("contents", before, target.ask("sum"));
    }
    "checkpoint.full-gpu", "CUDA Checkpointing, cuCheckpointProcessRestore: without room it fails and can be tried again", |t| {
        begin();
        context();
        let mut target = Target::new(None);
        let pid = target.pid();
        let before = target.ask("sum");
        park(t, pid);
        let mut taken = Vec::new();
        let mut size = info().0;
        while size >= 2 << 20 {
            let mut p = 0u64;
            match cu!(cuMemAlloc_v2(&raw mut p, size)) {
                0 => taken.push(p),
                _ => size /= 2,
            }
        }
        let code = restore(pid, &[]);
        t.code("no room", &[OUT_OF_MEMORY], code);
        t.same("still on the host", CHECKPOINTED, state(pid));
        for p in taken {
            need!(cuMemFree_v2(p));
        }
        resume(t, pid);
        t.same("contents", before, target.ask("sum"));
    }
    "checkpoint.managed", "cuda-checkpoint: no managed memory; refused, and the process need not be left in a good state", |t| {
        begin();
        let mut target = Target::new(None);
        if target.ask("managed") != "0" {
            skip("no managed memory");
        }
        refused_or_works(t, &mut target, true);
    }
    "checkpoint.shared", "cuda-checkpoint: no memory that is shared with other processes; refused, and the process runs on", |t| {
        begin();
        let mut target = Target::new(None);
        if target.ask("share") != "0" {
            skip("no sharing of memory");
        }
        refused_or_works(t, &mut target, false);
    }
    "checkpoint.expandable", "cuda-checkpoint: no memory that is shared; PyTorch's expandable segments only ask for handles that could be", |t| {
        begin();
        let mut target = Target::new(None);
        if attribute(102) == 0 || target.ask("expandable") != "0" {
            skip("no virtual memory with descriptors");
        }
        refused_or_works(t, &mut target, false);
    }
    "checkpoint.worker", "cuda-checkpoint issue 28: a child of fork that never calls the driver, as a DataLoader's workers", |t| {
        begin();
        let mut target = Target::new(None);
        let before = target.ask("sum");
        let (pid, worker) = (target.pid(), target.ask("worker").parse().unwrap_or(-1));
        t.holds("it has a worker", worker > 0, worker);
        let mut s = u32::MAX;
        // The driver may treat it as a process without CUDA, or as a running one.
        let code = cu!(cuCheckpointProcessGetState(worker, &raw mut s));
        t.holds("the worker's state", code != 0 || s == RUNNING, format!("code {code}, state {s}"));
        park(t, pid);
        // SAFETY: only checks whether the process exists.
        t.same("the worker lives", 0, unsafe { libc::kill(worker, 0) });
        resume(t, pid);
        t.same("contents", before, target.ask("sum"));
    }
    "checkpoint.polls", "CUDA Checkpointing, cuCheckpointProcessLock: also a thread that asks all the time waits, and goes on", |t| {
        begin();
        let mut target = Target::new(None);
        let (pid, before) = (target.pid(), target.ask("sum"));
        target.ask("poll");
        let polled = |target: &mut Target| target.ask("polled").parse().unwrap_or(0u64);
        t.comes("it polls", SOON, || polled(&mut target) > 100);
        park(t, pid);
        let at_first = polled(&mut target);
        std::thread::sleep(Duration::from_millis(100));
        t.same("it waits", at_first, polled(&mut target));
        resume(t, pid);
        t.comes("it goes on", SOON, || polled(&mut target) > at_first + 100);
        t.same("contents", before, target.ask("sum"));
    }
    "checkpoint.map", "CUDA Checkpointing, CUcheckpointRestoreArgs: a map names every GPU that the process sees; partial ones are INVALID_VALUE", |t| {
        let all = several();
        let mut target = Target::new(None);
        let pid = target.pid();
        let before = target.ask("sum");
        park(t, pid);
        let same: Vec<Pair> = all.iter().map(|uuid| [*uuid, *uuid]).collect();
        t.code("a part of the map", &[INVALID_VALUE], restore(pid, &same[..1]));
        t.same("still on the host", CHECKPOINTED, state(pid));
        let mut twice = same.clone();
        twice[1][1] = all[0];
        t.holds("two on one GPU", restore(pid, &twice) != 0, "restored");
        t.ok("each to itself", restore(pid, &same));
        t.ok("unlock", unlock(pid));
        t.same("contents", before, target.ask("sum"));
    }
    "checkpoint.unknown-gpu", "CUDA Checkpointing, CUcheckpointRestoreArgs: a map onto a GPU that there is not is refused, and the process stays on the host", |t| {
        let all = several();
        let mut target = Target::new(None);
        let pid = target.pid();
        let before = target.ask("sum");
        park(t, pid);
        let mut wrong: Vec<Pair> = all.iter().map(|uuid| [*uuid, *uuid]).collect();
        wrong[0][1] = [0xa5; 16];
        let code = restore(pid, &wrong);
        t.holds("refused", code != 0, code);
        t.same("still on the host", CHECKPOINTED, state(pid));
        resume(t, pid);
        t.same("contents", before, target.ask("sum"));
    }
    "checkpoint.move", "CUDA Checkpointing, CUcheckpointRestoreArgs: onto another GPU of the same model, contents as before", |t| {
        let all = several();
        let name = |d: i32| {
            let mut name = [0u8; 96];
            need!(cuDeviceGetName(name.as_mut_ptr(), 96i32, d));
            name
        };
        if name(0) != name(1) {
            skip("the first two GPUs are different models");
        }
        let mut target = Target::new(None);
        let pid = target.pid();
        let before = target.ask("sum");
        park(t, pid);
        let mut moved: Vec<Pair> = all.iter().map(|uuid| [*uuid, *uuid]).collect();
        moved[0][1] = all[1];
        moved[1][1] = all[0];
        t.ok("restore", restore(pid, &moved));
        t.ok("unlock", unlock(pid));
        t.same("contents", before, target.ask("sum"));
        t.same("a kernel runs", "0 0".to_owned(), target.ask("add"));
        let free = |d: i32| {
            let mut c = 0u64;
            need!(cuCtxCreate_v2(&raw mut c, 0u32, d));
            let seen = info().0;
            need!(cuCtxDestroy_v2(c));
            seen
        };
        t.holds("its memory is there", free(1) + 4 * WORDS <= free(0), "not on the second GPU");
        park(t, pid);
        t.ok("and back", restore(pid, &moved));
        t.ok("unlock", unlock(pid));
        t.holds("its memory is back", free(0) + 4 * WORDS <= free(1), "not on the first GPU");
    }
    "checkpoint.subset", "observed: a process started with a part of the GPUs in CUDA_VISIBLE_DEVICES takes no map, but comes back without one", |t| {
        let all = several();
        let mut target = Target::new(Some("0"));
        let pid = target.pid();
        let before = target.ask("sum");
        park(t, pid);
        let code = restore(pid, &[[all[0], all[0]]]);
        t.holds("the map is refused", code != 0, code);
        t.same("still on the host", CHECKPOINTED, state(pid));
        resume(t, pid);
        t.same("contents", before, target.ask("sum"));
    }
}

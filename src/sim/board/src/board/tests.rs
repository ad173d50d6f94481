//! The board with real processes: killed, stopped, and many at once.
#![allow(unsafe_code, reason = "forks and signals processes")]

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::*;
use crate::cost::Shape;
use crate::models::{GRANULARITY, MIB, Model};
use crate::presets::Range;
use crate::state::MAX_DEPS;
use crate::store::fault::{COUNTDOWN, SIGNAL};

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("board-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("directory");
        Dir(dir)
    }
    fn board(&self, gpus: &[&str]) -> Board {
        Board::create(&self.0.join("board"), &BoardSpec::new(gpus)).expect("board")
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A child process that runs `body` and exits; killed when dropped.
struct Child(i32);

impl Child {
    fn new(body: impl FnOnce()) -> Child {
        // SAFETY: the child only uses the board and leaves with _exit.
        match unsafe { libc::fork() } {
            0 => {
                body();
                // SAFETY: ends the child without running the parent's exit handlers.
                unsafe { libc::_exit(0) }
            }
            pid => {
                assert!(pid > 0, "fork failed");
                Child(pid)
            }
        }
    }

    /// Waits for a change of state; returns the wait status.
    fn wait(&mut self) -> i32 {
        let mut status = 0;
        // SAFETY: waits for the own child; `status` is valid to write to.
        unsafe { libc::waitpid(self.0, &raw mut status, libc::WUNTRACED) };
        if !libc::WIFSTOPPED(status) {
            self.0 = 0;
        }
        status
    }

    fn signal(&self, signal: i32) {
        // SAFETY: signals the own, not yet reaped child.
        unsafe { libc::kill(self.0, signal) };
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.0 > 0 {
            self.signal(libc::SIGKILL);
            self.wait();
        }
    }
}

fn process(name: &str) -> ProcessInfo {
    ProcessInfo {
        name: name.to_owned(),
        ..ProcessInfo::current()
    }
}

fn kernel(gpu: usize, context: u64, blocks: u64, block_ns: u64) -> Work {
    Work {
        gpu,
        context,
        shape: Some(Shape {
            blocks,
            threads: 1024,
            regs: 32,
            shared: 0,
        }),
        block_ns,
        transfer: None,
        record: false,
        meeting: (0, 0),
        deps: [0; MAX_DEPS],
    }
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "not within 20 s: {what}");
        std::thread::yield_now();
    }
}

#[test]
fn what_one_process_does_another_board_handle_sees() {
    let dir = Dir::new("two");
    let a = dir.board(&["rtx4090", "h100"]);
    let b = Board::open(a.path()).expect("open");
    let slot = a.register(&process("python")).expect("register");
    let context = a.add_context(slot, 1).expect("context");
    a.alloc(slot, 1, MemoryKind::Device, 3 * MIB)
        .expect("alloc");
    let (ticket, _) = a
        .submit(slot, &kernel(1, context, 1, 1_000_000_000))
        .expect("submit");
    let seen = b.snapshot();
    assert_eq!(seen.gpus[0].processes.len(), 0);
    assert_eq!(seen.gpus[0].uuid.len(), 40);
    assert_ne!(seen.gpus[0].uuid, seen.gpus[1].uuid);
    let p = &seen.gpus[1].processes[0];
    let h100 = Model::by_slug("h100").expect("model");
    assert_eq!(p.bytes, h100.context_overhead + 4 * MIB);
    assert_eq!((p.pid, p.name.as_str()), (std::process::id(), "python"));
    assert_eq!(p.launched, 1);
    // In 0.6 s of the board's time one block on one SM has run for 0.6 s.
    let later = b.snapshot_at(seen.now_ns + 600_000_000);
    let grown = later.gpus[1].sm_ns - seen.gpus[1].sm_ns;
    assert_eq!(grown, 600_000_000);
    a.remove_context(slot, 1, context).expect("remove");
    let done = a.poll(slot);
    assert_eq!(
        (done.len(), done[0].ticket, done[0].end_ns),
        (1, ticket, None)
    );
    assert_eq!(b.snapshot().gpus[1].used, 4 * MIB);
    a.unregister(slot).expect("unregister");
    assert_eq!(b.snapshot().gpus[1].used, 0);
}

#[test]
fn a_file_that_is_no_board_is_refused() {
    let dir = Dir::new("bad");
    let path = dir.board(&["h100"]).path().to_owned();
    let whole = std::fs::read(&path).expect("read");
    for (name, bytes) in [
        ("empty", Vec::new()),
        ("truncated", whole[..whole.len() - 1].to_vec()),
        ("garbage", vec![0xa5; whole.len()]),
        ("zeros", vec![0; whole.len()]),
        ("other version", {
            let mut b = whole.clone();
            b[8] = 99;
            b
        }),
    ] {
        let bad = dir.0.join("bad");
        std::fs::write(&bad, bytes).expect("write");
        let r = Board::open(&bad);
        assert!(
            matches!(r, Err(BoardError::NotABoard { .. })),
            "{name}: {r:?}"
        );
    }
    let r = Board::open(&dir.0.join("absent"));
    assert!(matches!(r, Err(BoardError::Io { .. })), "{r:?}");
    let r = Board::create(&path, &BoardSpec::new(&["voodoo2"]));
    assert!(matches!(r, Err(BoardError::UnknownModel { .. })), "{r:?}");
}

#[test]
fn killed_at_any_store_it_leaves_a_whole_board() {
    let dir = Dir::new("kill");
    let board = dir.board(&["h100"]);
    let mine = board.register(&process("parent")).expect("register");
    board
        .alloc(mine, 0, MemoryKind::Device, 10 * MIB)
        .expect("alloc");
    let mut killed = 0;
    for n in 0.. {
        let mut child = Child::new(|| {
            COUNTDOWN.store(n, Ordering::Relaxed);
            let Ok(slot) = board.register(&process("child")) else {
                return;
            };
            let Ok(context) = board.add_context(slot, 0) else {
                return;
            };
            let _ = board.alloc(slot, 0, MemoryKind::Pool, 64 * MIB);
            let _ = board.submit(slot, &kernel(0, context, 500, 1_000_000));
            let _ = board.alloc(slot, 0, MemoryKind::Device, 64 * MIB);
            let _ = board.free(slot, 0, MemoryKind::Pool, 64 * MIB);
            let _ = board.remove_context(slot, 0, context);
        });
        let status = child.wait();
        let seen = board.snapshot();
        let g = &seen.gpus[0];
        assert_eq!(g.used, 10 * MIB, "after {n} stores");
        assert_eq!(g.processes.len(), 1, "after {n} stores");
        assert!(g.busy_ns as f64 * 132.0 + 1.0 >= g.sm_ns as f64);
        let before = Instant::now();
        board
            .alloc(mine, 0, MemoryKind::Device, MIB)
            .expect("alloc");
        board.free(mine, 0, MemoryKind::Device, MIB).expect("free");
        assert!(
            before.elapsed() < Duration::from_secs(1),
            "after {n} stores"
        );
        if libc::WIFEXITED(status) {
            break;
        }
        killed += 1;
    }
    assert!(killed > 1_000, "only {killed} stores seen");
}

#[test]
fn a_writer_stopped_at_any_store_hinders_nobody() {
    let dir = Dir::new("stop");
    let board = dir.board(&["h100"]);
    let mine = board.register(&process("parent")).expect("register");
    for n in (0..600).step_by(23) {
        let mut child = Child::new(|| {
            SIGNAL.store(libc::SIGSTOP, Ordering::Relaxed);
            COUNTDOWN.store(n, Ordering::Relaxed);
            if let Ok(slot) = board.register(&process("child")) {
                for _ in 0..20 {
                    let _ = board.alloc(slot, 0, MemoryKind::Device, MIB);
                }
            }
            // SAFETY: keeps the child alive until the parent kills it.
            unsafe { libc::pause() };
        });
        let status = child.wait();
        assert!(libc::WIFSTOPPED(status), "{status}");
        let before = Instant::now();
        for _ in 0..20 {
            board
                .alloc(mine, 0, MemoryKind::Device, MIB)
                .expect("alloc");
        }
        assert!(
            before.elapsed() < Duration::from_secs(2),
            "{:?}",
            before.elapsed()
        );
        child.signal(libc::SIGCONT);
        until("the child finishes what it began", || {
            let used: u64 = board.snapshot().gpus[0].used;
            used == 80 * MIB
        });
        drop(child);
        until("the child's memory is gone", || {
            board.snapshot().gpus[0].used == 40 * MIB
        });
        board
            .free(mine, 0, MemoryKind::Device, 40 * MIB)
            .expect("free");
    }
}

#[test]
fn many_processes_at_once_never_exceed_the_gpu() {
    let dir = Dir::new("many");
    let board = dir.board(&["rtx4090"]);
    let total = Model::by_slug("rtx4090").expect("model").cuda_total();
    let step = 16 * MIB;
    let children: Vec<Child> = (0..8)
        .map(|i| {
            let board = &board;
            Child::new(move || {
                let Ok(slot) = board.register(&process(&format!("hog{i}"))) else {
                    return;
                };
                loop {
                    if board.alloc(slot, 0, MemoryKind::Device, step - i).is_err() {
                        // SAFETY: keeps the child alive until the parent kills it.
                        unsafe { libc::pause() };
                    }
                }
            })
        })
        .collect();
    until("the GPU is full", || {
        let seen = board.snapshot();
        let g = &seen.gpus[0];
        assert!(g.used <= total, "{} of {total}", g.used);
        let sum: u64 = g.processes.iter().map(|p| p.bytes).sum();
        assert_eq!(sum, g.used);
        g.used + step > total
    });
    assert_eq!(total % GRANULARITY, 0);
    drop(children);
    until("all of it is free again", || {
        board.snapshot().gpus[0].used == 0
    });
}

#[test]
fn a_waiter_sleeps_until_the_end_and_no_longer_than_its_neighbour_lives() {
    let dir = Dir::new("wait");
    let board = dir.board(&["h100"]);
    // With infinitely short slices the end can be predicted to the nanosecond.
    board.set_preset(Preset::KIND).expect("preset");
    let mine = board.register(&process("parent")).expect("register");
    let context = board.add_context(mine, 0).expect("context");
    let child = Child::new(|| {
        let Ok(slot) = board.register(&process("child")) else {
            return;
        };
        if let Ok(context) = board.add_context(slot, 0) {
            let _ = board.submit(slot, &kernel(0, context, 132, 3_600_000_000_000));
        }
        // SAFETY: keeps the child alive until the parent kills it.
        unsafe { libc::pause() };
    });
    until("the child's kernel runs", || {
        board.snapshot().gpus[0]
            .processes
            .iter()
            .any(|p| p.launched > 0)
    });
    let (first, _) = board
        .submit(mine, &kernel(0, context, 132, 20_000_000))
        .expect("submit");
    board.wait(first);
    let done = board.poll(mine);
    let ns = done[0].end_ns.expect("end") - done[0].start_ns;
    // Differs by rounding to whole nanoseconds and to the times of reads.
    assert!(ns.abs_diff(40_000_000) < 1_000, "with a neighbour: {ns} ns");
    let (second, _) = board
        .submit(mine, &kernel(0, context, 132, 200_000_000))
        .expect("submit");
    drop(child);
    board.wait(second);
    let done = board.poll(mine);
    let ns = done[0].end_ns.expect("end") - done[0].start_ns;
    assert!(
        (200_000_000..300_000_000).contains(&ns),
        "after its death: {ns} ns"
    );
}

#[test]
fn the_kernels_of_a_stopped_process_finish() {
    let dir = Dir::new("frozen");
    let board = dir.board(&["h100"]);
    let mut child = Child::new(|| {
        if let Ok(slot) = board.register(&process("child"))
            && let Ok(context) = board.add_context(slot, 0)
        {
            let mut work = kernel(0, context, 132, 5_000_000);
            for _ in 0..3 {
                if let Ok((ticket, _)) = board.submit(slot, &work) {
                    work.deps[0] = ticket;
                }
            }
        }
        // SAFETY: stops the own process.
        unsafe { libc::raise(libc::SIGSTOP) };
    });
    assert!(libc::WIFSTOPPED(child.wait()));
    until("all three kernels have run", || {
        board.snapshot().gpus[0].busy_ns == 15_000_000
    });
}

/// A small random number generator (xorshift) for tests that print their seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// Longest time that a busy machine may delay a writer, in nanoseconds.
const HELD_UP_NS: u64 = 100_000_000;

#[test]
fn random_deaths_among_busy_writers() {
    let seed = u64::from(std::process::id()) << 32 | now_ns() & 0xffff_ffff | 1;
    println!("seed {seed:#x}");
    let mut random = Random(seed);
    let dir = Dir::new("random");
    let board = dir.board(&["rtx4090", "h100"]);
    let total = Model::by_slug("rtx4090").expect("model").cuda_total();
    let spawn = |seed: u64| {
        Child::new(|| {
            let mut random = Random(seed | 1);
            let Ok(slot) = board.register(&process("busy")) else {
                return;
            };
            let Ok(context) = board.add_context(slot, 0) else {
                return;
            };
            loop {
                let bytes = random.below(4 << 30);
                let work = kernel(0, context, 1 + random.below(500), 1 + random.below(100_000));
                let _ = board.submit(slot, &work);
                if board.alloc(slot, 0, MemoryKind::Device, bytes).is_ok() && random.below(3) > 0 {
                    let _ = board.free(slot, 0, MemoryKind::Device, bytes);
                }
            }
        })
    };
    let mut children: Vec<Child> = (0..4).map(|_| spawn(random.below(u64::MAX))).collect();
    let mut last = 0;
    for round in 0..200 {
        for _ in 0..random.below(20) {
            let seen = board.snapshot();
            let g = &seen.gpus[0];
            let sum: u64 = g.processes.iter().map(|p| p.bytes).sum();
            assert!(
                g.used == sum && sum <= total,
                "round {round}: {sum} of {total}"
            );
            // A read that commits nothing may be ahead of a delayed writer that has not yet published a death. Time
            // must not go back by more than that delay.
            assert!(
                g.busy_ns + HELD_UP_NS >= last,
                "round {round}: busy time went back"
            );
            last = last.max(g.busy_ns);
            let smallest = g.busy_ns as f64;
            assert!(g.sm_ns as f64 <= smallest * 128.0 + 1.0, "round {round}");
        }
        let victim = random.below(4) as usize;
        children[victim] = spawn(random.below(u64::MAX));
    }
    drop(children);
    let seen = board.snapshot();
    assert_eq!((seen.gpus[0].used, seen.gpus[0].processes.len()), (0, 0));
}

#[test]
fn moving_memory_takes_the_published_time_or_the_one_that_was_set() {
    let dir = Dir::new("rate");
    let board = dir.board(&["h100"]);
    let slot = board.register(&process("python")).expect("register");
    board.add_context(slot, 0).expect("context");
    board
        .alloc(slot, 0, MemoryKind::Device, 16_000 * MIB)
        .expect("alloc");
    let bytes = board.park(slot).expect("parked") as f64;
    board.unpark(slot, &[]).expect("back");
    let seconds = |fixed: f64, rate: f64| fixed + bytes / rate;
    let takes = || board.checkpoint_time(slot).as_secs_f64();
    // 0.72 s and 8.4 GB/s: restores on a B200 with driver 595.
    assert!((takes() - seconds(0.72, 8.4e9)).abs() < 1e-6);
    let fixed = Duration::from_millis(100);
    board
        .set_checkpoint_rate(fixed, 25_000_000_000)
        .expect("set");
    assert!((takes() - seconds(0.1, 25e9)).abs() < 1e-6);
}

#[test]
fn a_fault_of_checkpoints_is_one_processs_own_and_is_noted_when_it_is_met() {
    use crate::{CheckpointFault, CheckpointHow, CheckpointStep};
    let dir = Dir::new("fault");
    let board = dir.board(&["h100"]);
    let fault = |pid| CheckpointFault {
        step: CheckpointStep::Restore,
        how: CheckpointHow::Waits,
        pid,
    };
    board
        .set_checkpoint_fault(Some(fault(Some(7))))
        .expect("set");
    assert_eq!(board.checkpoint_fault(CheckpointStep::Restore, 8), None);
    assert_eq!(board.checkpoint_fault(CheckpointStep::Lock, 7), None);
    assert!(!board.checkpoint_fault_met());
    let met = board.checkpoint_fault(CheckpointStep::Restore, 7);
    assert_eq!(met, Some(CheckpointHow::Waits));
    assert!(board.checkpoint_fault_met());
    // Also the second time.
    assert_eq!(board.checkpoint_fault(CheckpointStep::Restore, 7), met);
    board.set_checkpoint_fault(Some(fault(None))).expect("set");
    assert!(!board.checkpoint_fault_met());
    assert_eq!(board.checkpoint_fault(CheckpointStep::Restore, 9), met);
}

#[test]
fn a_wait_that_sleeps_wakes_late_and_one_for_what_is_over_does_not() {
    let dir = Dir::new("late");
    let board = dir.board(&["h100"]);
    let late = Range {
        low_ns: 4_000_000,
        high_ns: 4_000_000,
    };
    board
        .set_preset(Preset {
            wake: late,
            ..Preset::KIND
        })
        .expect("preset");
    let slot = board.register(&process("python")).expect("register");
    let context = board.add_context(slot, 0).expect("context");
    let began = Instant::now();
    let (ticket, _) = board
        .submit(slot, &kernel(0, context, 1, 3_000_000))
        .expect("submit");
    board.wait(ticket);
    let first = began.elapsed();
    assert!(first >= Duration::from_millis(7), "{first:?}");
    // Repeated, as a busy machine may keep this thread from running for longer than that.
    let quick = (0..100).any(|_| {
        let again = Instant::now();
        board.wait(ticket);
        again.elapsed() < Duration::from_millis(3)
    });
    assert!(quick);
}

//! The proxy before the simulated driver: its board is the judge of what members use.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use gshare_abi::{GpuUuid, USES_MANAGED};
use gshare_sim_board::{Board, BoardSpec, MemoryKind};
use support::{Client, Desk, GIB, MIB};

const OOM: i32 = 2;

#[test]
fn client() {
    support::client::run();
}

struct Rig {
    desk: Desk,
    board: Arc<Board>,
    overhead: u64,
}

impl Rig {
    /// Two simulated GPUs; the claim holds the second with a cap of its overhead times `contexts`
    /// plus `bytes`.
    fn new(contexts: u64, bytes: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let sim: PathBuf = directory.path().join("sim");
        gshare_artifacts::stage_sim(&sim).unwrap();
        let spec = BoardSpec::new(&["rtx4090", "h100"]);
        let board = Board::create(&sim.join("board"), &spec).unwrap();
        let gpu = &board.snapshot().gpus[1];
        let overhead = gpu.model.context_overhead;
        let uuid = GpuUuid(gpu.uuid_bytes);
        assert_eq!(gpu.uuid, uuid.to_string());
        let held = (uuid, contexts * overhead + bytes, overhead);
        let desk = Desk::before(directory, &sim.join("lib/libcuda.so.1"), [held].into_iter());
        Self {
            desk,
            board: Arc::new(board),
            overhead,
        }
    }

    /// A member that sees only the claim's GPU.
    fn client(&self) -> Client {
        let uuid = self.board.snapshot().gpus[1].uuid.clone();
        self.desk.client_with(&[("CUDA_VISIBLE_DEVICES", &uuid)])
    }

    fn used(&self) -> u64 {
        self.board.snapshot().gpus[1].used
    }

    /// The same with managed memory, which the driver does not count and the ledger does.
    fn used_with_managed(&self) -> u64 {
        let gpu = &self.board.snapshot().gpus[1];
        let managed = |(kind, bytes): &(MemoryKind, u64)| match kind {
            MemoryKind::Managed => *bytes,
            _ => 0,
        };
        let kinds = gpu.processes.iter().flat_map(|process| &process.by_kind);
        gpu.used + kinds.map(managed).sum::<u64>()
    }
}

#[test]
fn the_ledger_and_the_board_agree_on_every_family() {
    let rig = Rig::new(1, 32 * MIB);
    let mut client = rig.client();
    client.begin(0);
    assert_eq!(client.must("total_bytes"), rig.overhead + 32 * MIB);
    let check = |what: &str| assert_eq!(rig.desk.charged(0), rig.used_with_managed(), "{what}");
    check("context");
    for order in [
        format!("alloc {}", 3 * MIB),
        format!("alloc {}", 300 << 10),
        format!("alloc {}", 1800 << 10),
        "pitch 1000 4096".to_owned(),
        format!("managed {}", 3 * MIB),
        "async 4096".to_owned(),
        format!("async {}", 5 * MIB),
    ] {
        let at = client.must(&order);
        check(&order);
        client.must(&format!("free_async {at}"));
        client.must("sync");
        check(&order);
        let at = client.must(&order);
        client.must(&format!("free {at}"));
        check(&order);
    }
    let handle = client.must(&format!("create {} 1 0", 4 * MIB));
    check("create");
    client.must(&format!("unhandle {handle}"));
    check("release");
    assert_eq!(client.ask("context 0").0, OOM, "no room for another");
    check("refused context");
    client.must(&format!("alloc {}", 3 * MIB));
    client.must("async 4096");
    client.must("release 0");
    check("release of the primary context");
}

/// 16 KiB of stack for each thread that can be resident on an H100 (132 x 2048) are 4.1 GiB (cms-sw pull request 51395),
/// of which the first KiB of each is part of the context.
#[test]
fn stack_and_local_memory_are_charged_before_they_are_taken() {
    const THREADS: u64 = 132 * 2048;
    let rig = Rig::new(1, 6 * GIB);
    let mut client = rig.client();
    client.begin(0);
    let of = |kib: u64| rig.overhead + (kib - 1) * 1024 * THREADS;
    let check = |charged: u64| {
        assert_eq!((rig.desk.charged(0), rig.used()), (charged, charged));
    };
    assert_eq!(client.ask(&format!("limit 0 {}", 16 << 10)).0, 0);
    check(of(16));
    assert_eq!(client.ask(&format!("limit 0 {}", 32 << 10)).0, OOM);
    check(of(16));
    assert_eq!(client.ask(&format!("limit 0 {}", 2 << 10)).0, 0);
    check(of(2));
    // The driver makes it larger for a kernel that needs more, and keeps that.
    let launch = |client: &mut Client, local: u64| {
        let kernel = client.must(&format!("local_kernel {local}"));
        client.ask(&format!("launch_on {kernel} 0")).0
    };
    assert_eq!(launch(&mut client, 8 << 10), 0);
    check(of(8));
    assert_eq!(launch(&mut client, 48 << 10), OOM, "it would be 12 GiB");
    assert_eq!(launch(&mut client, 4 << 10), 0);
    check(of(8));
    // Also for one in a graph: when that is launched.
    let graph = |client: &mut Client, local: u64| {
        let kernel = client.must(&format!("local_kernel {local}"));
        let stream = client.must("stream");
        client.must(&format!("capture {stream}"));
        client.must(&format!("launch_on {kernel} {stream}"));
        let graph = client.must(&format!("captured {stream}"));
        let exec = client.must(&format!("instantiate {graph}"));
        (exec, stream)
    };
    let (exec, stream) = graph(&mut client, 12 << 10);
    check(of(8));
    client.must(&format!("graph_launch {exec} {stream}"));
    check(of(12));
    let (exec, stream) = graph(&mut client, 48 << 10);
    let launched = client.ask(&format!("graph_launch {exec} {stream}")).0;
    assert_eq!(launched, OOM, "it would be 12 GiB");
    check(of(12));
    // So does a heap for kernels.
    assert_eq!(client.ask(&format!("limit 2 {}", GIB)).0, 0);
    check(of(12) + GIB - 8 * MIB);
    // What is left is for allocations, to the byte; and all goes with the context.
    let left = 6 * GIB - (of(12) - rig.overhead) - (GIB - 8 * MIB);
    client.must(&format!("alloc {left}"));
    assert_eq!(client.ask(&format!("alloc {}", 2 * MIB)).0, OOM);
    client.must("reset 0");
    check(0);
}

/// `__managed__` variables: the driver need not keep a process that has them in a good state (README of cuda-checkpoint).
#[test]
fn managed_variables_are_known_by_when_the_program_has_their_address() {
    for of in ["module", "library"] {
        let rig = Rig::new(1, 64 * MIB);
        let mut client = rig.client();
        client.begin(0);
        let mut flags_after = |kind: &str| {
            assert_ne!(client.must(&format!("variable {of} {kind}")), 0);
            rig.desk.slots(0)[0].flags & USES_MANAGED
        };
        assert_eq!(flags_after("plain"), 0, "{of}");
        assert_eq!(flags_after("managed"), USES_MANAGED, "{of}");
    }
}

#[test]
fn what_is_invalid_and_over_the_cap_gets_the_drivers_code() {
    let rig = Rig::new(1, 64 * MIB);
    let lib = rig.desk.directory.path().join("sim/lib");
    let mut bare = Client::start(&lib, |_| {});
    let mut client = rig.client();
    bare.begin(0);
    client.begin(0);
    for kind in ["managed", "pitch", "create", "array"] {
        let order = format!("odd {kind} {}", 256 * MIB);
        let (code, _) = bare.ask(&order);
        assert_eq!(code, 1, "{kind}: CUDA_ERROR_INVALID_VALUE");
        assert_eq!(client.ask(&order).0, code, "{kind}");
    }
    assert_eq!(rig.desk.charged(0), rig.overhead);
    assert_eq!(
        rig.desk.slots(0)[0].refusals,
        0,
        "none of them is the cap's"
    );
}

#[test]
fn the_first_allocation_past_the_cap_is_refused_to_the_byte() {
    for (bytes, fits) in [(2 * GIB, true), (2 * GIB - 1, false)] {
        let rig = Rig::new(1, bytes);
        let mut client = rig.client();
        client.begin(0);
        client.must(&format!("alloc {GIB}"));
        let last = client.ask(&format!("alloc {GIB}")).0;
        assert_eq!(last, if fits { 0 } else { OOM });
        assert_eq!(rig.desk.charged(0), rig.used());
        if fits {
            assert_eq!(client.ask("alloc 1").0, OOM);
        }
    }
}

#[test]
fn eight_members_at_once_never_exceed_the_cap_on_the_board() {
    let rig = Rig::new(8, 60 * MIB);
    let cap = 8 * rig.overhead + 60 * MIB;
    let mut clients: Vec<Client> = (0..8).map(|_| rig.client()).collect();
    for client in &mut clients {
        client.begin(0);
    }
    // Looks and what they saw at most; the members go on until the cap was seen to be reached.
    let seen = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
    let stop = Arc::new(AtomicBool::new(false));
    let watcher = std::thread::spawn({
        let (board, seen) = (Arc::clone(&rig.board), Arc::clone(&seen));
        let stop = Arc::clone(&stop);
        move || {
            while !stop.load(Ordering::Relaxed) {
                let used = board.snapshot().gpus[1].used;
                seen.0.fetch_add(1, Ordering::Relaxed);
                seen.1.fetch_max(used, Ordering::Relaxed);
            }
        }
    });
    let sizes = [2 * MIB, 300 << 10, 5 * MIB, 700 << 10];
    let deadline = Instant::now() + Duration::from_secs(30);
    while seen.0.load(Ordering::Relaxed) < 200 || seen.1.load(Ordering::Relaxed) < cap - 10 * MIB {
        assert!(
            Instant::now() < deadline,
            "the cap was not seen reached: {seen:?}"
        );
        for (client, piece) in clients.iter_mut().zip(sizes.iter().cycle()) {
            client.tell(&format!("fill {piece} 8"));
        }
        for client in &mut clients {
            assert_eq!(client.hear().0, 0, "every refusal is out of memory");
        }
    }
    stop.store(true, Ordering::Relaxed);
    watcher.join().unwrap();
    let most = seen.1.load(Ordering::Relaxed);
    assert!(most <= cap, "{most} of {cap}");
    assert_eq!(
        (rig.desk.charged(0), rig.used()),
        (8 * rig.overhead, 8 * rig.overhead)
    );
}

#[test]
fn a_killed_member_is_gone_from_both() {
    let rig = Rig::new(2, 8 * MIB);
    let mut victim = rig.client();
    let mut witness = rig.client();
    victim.begin(0);
    witness.begin(0);
    victim.must(&format!("alloc {}", 8 * MIB));
    assert_eq!(witness.ask("alloc 1").0, OOM);
    let pid = victim.pid();
    victim.kill();
    rig.desk.reap(pid);
    assert_eq!(
        (rig.desk.charged(0), rig.used()),
        (rig.overhead, rig.overhead)
    );
    witness.must(&format!("alloc {}", 8 * MIB));
}

#[test]
fn threads_that_share_addresses_keep_the_ledger_exact() {
    let rig = Rig::new(1, 48 * MIB);
    let mut client = rig.client();
    client.begin(0);
    // The simulated driver hands an address out again the moment it has it back.
    let made = client.must("threads 6 1500");
    assert!(made > 500, "{made}");
    client.must("sync");
    assert_eq!(
        (rig.desk.charged(0), rig.used()),
        (rig.overhead, rig.overhead)
    );
    let slot = &rig.desk.slots(0)[0];
    assert_eq!((slot.allocations, slot.requested_bytes), (0, 0));
}

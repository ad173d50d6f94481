//! The proxy on the simulated driver, whose board shows the members' real use.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;

use gshare_abi::{STARTS_KERNELS, USES_MANAGED};
use gshare_sim_board::{Board, MemoryKind};
use support::{Client, Desk, GIB, MIB};

const OOM: i32 = 2;

struct Rig {
    desk: Desk,
    board: Arc<Board>,
    overhead: u64,
}

impl Rig {
    /// Two simulated GPUs; the claim holds the second with a cap of its overhead times `contexts`
    /// plus `bytes`.
    fn new(contexts: u64, bytes: u64) -> Self {
        let cap = |_, overhead| contexts * overhead + bytes;
        let (desk, board, overhead) = Desk::simulated(&["rtx4090", "h100"], "", &[1], cap);
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

    /// The same plus managed memory, which the ledger counts and the driver does not.
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

/// 16 KiB of stack for each thread that can be resident on an H100 (132 x 2048) take 4.1 GiB (cms-sw pull request
/// 51395); the first KiB of each belongs to the context.
#[test]
fn stack_and_local_memory_are_charged_before_they_are_taken() {
    charges_stack_and_local_memory("local_kernel");
}

/// The runtime's kernels of CUDA 12: handles that the driver accepts in launches, but not as functions elsewhere.
#[test]
fn local_memory_of_a_librarys_kernels_is_charged_too() {
    charges_stack_and_local_memory("library_kernel");
}

fn charges_stack_and_local_memory(kind: &str) {
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
    // The driver grows it for a kernel that needs more, and keeps it.
    let launch = |client: &mut Client, local: u64| {
        let kernel = client.must(&format!("{kind} {local}"));
        client.ask(&format!("launch_on {kernel} 0")).0
    };
    assert_eq!(launch(&mut client, 8 << 10), 0);
    check(of(8));
    assert_eq!(launch(&mut client, 48 << 10), OOM, "it would be 12 GiB");
    assert_eq!(launch(&mut client, 4 << 10), 0);
    check(of(8));
    // The same for a kernel in a graph, at the graph's launch.
    let graph = |client: &mut Client, local: u64| {
        let (graph, stream) = captured(client, kind, local);
        (client.must(&format!("instantiate {graph}")), stream)
    };
    let (exec, stream) = graph(&mut client, 12 << 10);
    check(of(8));
    client.must(&format!("graph_launch {exec} {stream}"));
    check(of(12));
    let (exec, stream) = graph(&mut client, 48 << 10);
    let launched = client.ask(&format!("graph_launch {exec} {stream}")).0;
    assert_eq!(launched, OOM, "it would be 12 GiB");
    check(of(12));
    // A heap for kernels is charged, too.
    assert_eq!(client.ask(&format!("limit 2 {}", GIB)).0, 0);
    check(of(12) + GIB - 8 * MIB);
    // The rest is for allocations, to the byte; all of it goes with the context.
    let left = 6 * GIB - (of(12) - rig.overhead) - (GIB - 8 * MIB);
    client.must(&format!("alloc {left}"));
    assert_eq!(client.ask(&format!("alloc {}", 2 * MIB)).0, OOM);
    client.must("reset 0");
    check(0);
}

/// A graph of one kernel with this much local memory, and the stream that it was captured on.
fn captured(client: &mut Client, kind: &str, local: u64) -> (u64, u64) {
    let kernel = client.must(&format!("{kind} {local}"));
    let stream = client.must("stream");
    client.must(&format!("capture {stream}"));
    client.must(&format!("launch_on {kernel} {stream}"));
    (client.must(&format!("captured {stream}")), stream)
}

#[test]
fn a_graph_that_is_changed_in_place_is_charged_what_it_needs_then() {
    for way in ["graph", "graph_2", "kernel", "kernel_2", "node"] {
        let rig = Rig::new(1, 6 * GIB);
        let mut client = rig.client();
        client.begin(0);
        let (graph, stream) = captured(&mut client, "local_kernel", 1 << 10);
        let exec = client.must(&format!("instantiate {graph}"));
        let launch = format!("graph_launch {exec} {stream}");
        client.must(&launch);
        assert_eq!(rig.desk.charged(0), rig.overhead);
        let mut change = |kib: u64| {
            let (other, _) = captured(&mut client, "local_kernel", kib << 10);
            let kernel = client.must(&format!("local_kernel {}", kib << 10));
            client.must(&format!("change {way} {exec} {graph} {other} {kernel}"));
            client.ask(&launch).0
        };
        assert_eq!(change(12), 0, "{way}");
        let expect = rig.overhead + 11 * 1024 * 132 * 2048;
        assert_eq!((rig.desk.charged(0), rig.used()), (expect, expect), "{way}");
        assert_eq!(change(48), OOM, "{way}: it would be 12 GiB");
        // With one kernel changed among many, the others' needs are unknown.
        let again = if way.starts_with("graph") { 0 } else { OOM };
        assert_eq!(change(4), again, "{way}");
        assert_eq!(rig.desk.charged(0), expect, "{way}");
    }
}

/// `__managed__` variables: the driver may not keep the state of a process that has them (README of cuda-checkpoint).
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

/// Dynamic parallelism, recognised by a variable of libcudadevrt.
#[test]
fn kernels_that_can_start_others_are_known_when_they_are_launched() {
    for way in ["local_kernel", "library_kernel", "graph"] {
        let rig = Rig::new(1, 64 * MIB);
        let mut client = rig.client();
        client.begin(0);
        let mut flags_after = |runtime: bool| {
            if runtime {
                client.must("device_runtime");
            }
            if way == "graph" {
                let (graph, stream) = captured(&mut client, "local_kernel", 0);
                let exec = client.must(&format!("instantiate {graph}"));
                client.must(&format!("graph_launch {exec} {stream}"));
            } else {
                let kernel = client.must(&format!("{way} 0"));
                client.must(&format!("launch_on {kernel} 0"));
            }
            rig.desk.slots(0)[0].flags & STARTS_KERNELS
        };
        assert_eq!(flags_after(false), 0, "{way}");
        assert_eq!(flags_after(true), STARTS_KERNELS, "{way}");
    }
}

#[test]
fn kernels_that_can_start_others_are_known_when_a_graph_is_changed_to_them() {
    for way in ["graph", "graph_2", "kernel", "kernel_2", "node"] {
        let rig = Rig::new(1, 64 * MIB);
        let mut client = rig.client();
        client.begin(0);
        let flag = || rig.desk.slots(0)[0].flags & STARTS_KERNELS;
        let (graph, stream) = captured(&mut client, "local_kernel", 0);
        let exec = client.must(&format!("instantiate {graph}"));
        client.must(&format!("graph_launch {exec} {stream}"));
        assert_eq!(flag(), 0, "{way}");
        client.must("device_runtime");
        let (other, _) = captured(&mut client, "local_kernel", 0);
        let kernel = client.must("local_kernel 0");
        client.must(&format!("change {way} {exec} {graph} {other} {kernel}"));
        client.must(&format!("graph_launch {exec} {stream}"));
        assert_eq!(flag(), STARTS_KERNELS, "{way}");
    }
}

/// cuda.h: the thread's current context is an uninitialised primary one.
#[test]
fn after_the_last_release_of_a_primary_context_calls_get_the_drivers_code() {
    let rig = Rig::new(1, 64 * MIB);
    let lib = rig.desk.directory.path().join("sim/lib");
    for mut client in [Client::start(&lib, |_| {}), rig.client()] {
        client.begin(0);
        client.must("release 0");
        for order in ["alloc 4096", "managed 4096", "async 4096", "stream"] {
            assert_eq!(client.ask(order).0, 709, "{order}");
        }
        assert_eq!(rig.desk.charged(0), 0);
        client.must("retain 0");
        client.must("alloc 4096");
    }
}

/// A green context retains the primary one of its device.
#[test]
fn a_green_context_is_charged_like_the_primary_one_that_it_keeps() {
    let rig = Rig::new(1, 64 * MIB);
    let mut client = rig.client();
    client.begin(0);
    client.must("release 0");
    assert_eq!(rig.desk.charged(0), 0);
    let green = client.must("green");
    assert_eq!(rig.desk.charged(0), rig.overhead);
    client.must("retain 0");
    client.must("release 0");
    assert_eq!(rig.desk.charged(0), rig.overhead, "it goes on");
    client.must(&format!("green_destroy {green}"));
    assert_eq!(rig.desk.charged(0), 0);
}

/// What a green context allocates belongs to the device's primary one.
#[test]
fn memory_of_a_green_context_goes_with_the_primary_one() {
    let rig = Rig::new(1, 64 * MIB);
    let mut client = rig.client();
    client.begin(0);
    let green = client.must("green");
    let context = client.must(&format!("from_green {green}"));
    client.must(&format!("current {context}"));
    client.must(&format!("alloc {}", 8 * MIB));
    client.must(&format!("green_destroy {green}"));
    let held = rig.overhead + 8 * MIB;
    assert_eq!(
        (rig.desk.charged(0), rig.used()),
        (held, held),
        "it goes on"
    );
    client.must("release 0");
    assert_eq!((rig.desk.charged(0), rig.used()), (0, 0));
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
fn threads_that_share_addresses_keep_the_ledger_exact() {
    let rig = Rig::new(1, 48 * MIB);
    let mut client = rig.client();
    client.begin(0);
    // The simulated driver reuses an address as soon as it has it back.
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

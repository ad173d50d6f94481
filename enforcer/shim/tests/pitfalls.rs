//! Known faults of libraries that stand between programs and CUDA, one test each. The numbers are those of
//! docs/enforcement.md.

#![allow(
    clippy::unwrap_used,
    unsafe_code,
    reason = "a test fails by panicking; sets the umask of its child"
)]

mod support;

use std::{
    collections::BTreeSet,
    os::unix::process::CommandExt,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use gshare_sim_board::Board;
use object::{Object, ObjectSymbol};
use support::{Client, Desk, GIB, MIB, OVERHEAD};

const INVALID_VALUE: i32 = 1;
const OOM: i32 = 2;

/// A claim with a cap on the first GPU, a member with a context there.
fn member(cap: u64) -> (Desk, Client) {
    let desk = Desk::open(&[(0, cap)]);
    let mut client = desk.client();
    client.begin(0);
    (desk, client)
}

/// The same on the simulated driver, which has versions, graphs and modules.
fn simulated(bytes: u64) -> (Desk, Client, Board) {
    let (desk, board, _) = Desk::simulated(&["rtx4090"], "", &[0], |_, context| context + bytes);
    let mut client = desk.client();
    client.begin(0);
    (desk, client, board)
}

#[test]
fn p01_the_look_up_honours_the_flags_for_per_thread_streams() {
    let (_desk, mut client, _board) = simulated(0);
    for (flags, twin) in [
        (0, "cuLaunchKernel"),
        (1, "cuLaunchKernel"),
        (2, "cuLaunchKernel_ptsz"),
    ] {
        assert_eq!(
            client.must(&format!("route cuLaunchKernel 12000 {flags} {twin}")),
            1
        );
    }
    assert_eq!(
        client.must("route cuMemAllocAsync 12000 2 cuMemAllocAsync_ptsz"),
        1
    );
    assert_eq!(
        client.must("route cuMemcpy 12000 2 cuMemcpy_ptds"),
        1,
        "a trampoline"
    );
}

#[test]
fn p02_a_per_thread_twin_called_by_name_is_seen_and_reaches_its_own_original() {
    let (desk, mut client) = member(GIB);
    client.must("launch_ptsz 3");
    assert_eq!(client.must("own_calls"), 3);
    assert_eq!(desk.slots(0)[0].launches, 3);
}

#[test]
fn p03_the_look_up_finds_itself_in_the_version_asked_for() {
    let (_desk, mut client, _board) = simulated(0);
    assert_eq!(
        client.must("route cuGetProcAddress 11030 0 cuGetProcAddress"),
        1
    );
    assert_eq!(
        client.must("route cuGetProcAddress 12000 0 cuGetProcAddress_v2"),
        1
    );
}

#[test]
fn p04_each_version_has_its_own_entry_and_unknown_names_stay_unknown() {
    let (_desk, mut client, _board) = simulated(0);
    for (name, version, entry) in [
        ("cuCtxCreate", 3020, "cuCtxCreate_v2"),
        ("cuMemAlloc", 3020, "cuMemAlloc_v2"),
        ("cuMemFree", 12000, "cuMemFree_v2"),
        ("cuMemGetInfo", 12000, "cuMemGetInfo_v2"),
        ("cuStreamBeginCapture", 10010, "cuStreamBeginCapture_v2"),
    ] {
        let asked = format!("route {name} {version} 0 {entry}");
        assert_eq!(client.must(&asked), 1, "{asked}");
    }
    let unknown = client.ask("route cuMemAllocTelepathic 12000 0 cuInit");
    assert_eq!(unknown.1, 0, "neither a hook nor a trampoline");
}

#[test]
fn p05_the_library_exports_nothing_of_the_c_library() {
    let file = object::File::parse(gshare_artifacts::SHIM).unwrap();
    let foreign: BTreeSet<&str> = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition() && symbol.is_global())
        .filter_map(|symbol| symbol.name().ok())
        .filter(|name| !name.starts_with("cu") && !name.starts_with("rust_eh_personality"))
        .collect();
    assert_eq!(foreign, BTreeSet::new());
}

#[test]
fn p06_asking_for_the_next_definition_does_not_lead_around_the_proxy() {
    let (_desk, mut client) = member(GIB);
    assert_eq!(client.must("next"), 1);
}

#[test]
fn p07_a_capture_is_left_alone_and_its_graph_counts_when_it_runs() {
    let (desk, mut client, board) = simulated(64 * MIB);
    let kernel = client.must("kernel");
    let stream = client.must("stream");
    let empty = desk.charged(0);
    client.must(&format!("capture {stream}"));
    client.must(&format!("launch_on {kernel} {stream}"));
    client.must(&format!("launch_on {kernel} {stream}"));
    let at = client.must(&format!("async_on {} {stream}", 8 * MIB));
    client.must(&format!("free_on {at} {stream}"));
    let graph = client.must(&format!("captured {stream}"));
    assert_ne!(graph, 0, "the capture is valid");
    assert_eq!(desk.slots(0)[0].launches, 0, "nothing has run");
    assert_eq!(desk.charged(0), empty, "nothing was allocated");
    let exec = client.must(&format!("instantiate {graph}"));
    client.must(&format!("graph_launch {exec} {stream}"));
    client.must(&format!("sync_stream {stream}"));
    assert_eq!(desk.slots(0)[0].launches, 2);
    let used = |board: &Board| board.snapshot().gpus[0].used;
    assert_eq!(desk.charged(0), used(&board), "the graph's memory");
    assert!(desk.charged(0) >= empty + 8 * MIB);
    client.must(&format!("exec_destroy {exec}"));
    client.must("graph_trim 0");
    assert_eq!((desk.charged(0), used(&board)), (empty, empty));
    // A launch outside captures counts again.
    client.must(&format!("launch_on {kernel} {stream}"));
    assert_eq!(desk.slots(0)[0].launches, 3);
}

#[test]
fn p07_graph_memory_past_the_cap_is_refused_at_the_launch() {
    let (desk, mut client, board) = simulated(6 * MIB);
    let stream = client.must("stream");
    client.must(&format!("capture {stream}"));
    let at = client.must(&format!("async_on {} {stream}", 8 * MIB));
    client.must(&format!("free_on {at} {stream}"));
    let graph = client.must(&format!("captured {stream}"));
    let exec = client.must(&format!("instantiate {graph}"));
    let before = desk.charged(0);
    assert_eq!(client.ask(&format!("graph_launch {exec} {stream}")).0, OOM);
    assert_eq!(
        (desk.charged(0), board.snapshot().gpus[0].used),
        (before, before)
    );
}

#[test]
fn p08_every_form_of_launch_is_seen() {
    let (desk, mut client) = member(GIB);
    for (seen, order) in [(1, "launch 1"), (2, "launch_ex"), (3, "launch_cooperative")] {
        client.must(order);
        assert_eq!(desk.slots(0)[0].launches, seen, "{order}");
    }
}

#[test]
fn p09_grids_of_more_than_32_bits_pass_whole() {
    let (desk, mut client) = member(GIB);
    let blocks = client.must("grid 2147483647 65535 65535");
    assert_eq!(blocks, 2_147_483_647 * 65_535 * 65_535);
    assert_eq!(desk.slots(0)[0].launches, 1);
}

#[test]
fn p10_one_huge_kernel_is_seen_with_its_time() {
    let (desk, mut client) = member(GIB);
    assert_eq!(desk.slots(0)[0].last_launch_ns, None);
    client.must("launch 1000");
    client.must("launch_ptsz 500");
    let before = gshare_abi::monotonic_ns();
    client.must("grid 2147483647 1 1");
    let slot = &desk.slots(0)[0];
    assert_eq!(slot.launches, 1501);
    let at = slot.last_launch_ns.unwrap();
    // The last tick's clock may be a few milliseconds behind.
    assert!(at + 20_000_000 > before && at <= gshare_abi::monotonic_ns());
}

#[test]
fn p11_all_processes_of_a_claim_share_one_ledger() {
    let (desk, mut one) = member(2 * OVERHEAD + 10 * MIB);
    let mut two = desk.client();
    two.begin(0);
    one.must(&format!("alloc {}", 6 * MIB));
    assert_eq!(two.ask(&format!("alloc {}", 6 * MIB)).0, OOM);
    assert_eq!(two.must("free_bytes"), 4 * MIB);
    two.must(&format!("alloc {}", 4 * MIB));
}

#[test]
fn p12_every_family_says_out_of_memory_at_the_cap() {
    let (_desk, mut client) = member(OVERHEAD + 2 * MIB);
    for order in [
        "alloc 8388608",
        "pitch 4096 4096",
        "managed 8388608",
        "async 8388608",
        "async_ptsz 8388608",
        "create 8388608 1 0",
        "context 0",
    ] {
        assert_eq!(client.ask(order).0, OOM, "{order}");
    }
}

#[test]
fn p13_either_free_frees_every_family_and_unknown_pointers_are_the_drivers() {
    let desk = Desk::open(&[(0, OVERHEAD + 64 * MIB)]);
    let mut client = desk.client_with(&[("FAKE_EXACT_POOLS", "1")]);
    client.begin(0);
    for (make, free) in [
        ("alloc 4194304", "free_async"),
        ("alloc 4096", "free_async"),
        ("managed 4194304", "free_async"),
        ("async 4194304", "free"),
        ("async 4194304", "free_async"),
    ] {
        let at = client.must(make);
        client.must(&format!("{free} {at}"));
        client.must("sync");
        client.must("sync");
        assert_eq!(desk.slots(0)[0].allocations, 0, "{make}, {free}");
        let again = client.ask(&format!("{free} {at}")).0;
        assert_eq!(again, INVALID_VALUE, "twice is the driver's to judge");
    }
    assert_eq!(desk.charged(0), desk.board(0).0);
}

#[test]
fn p14_pools_of_the_program_are_charged_on_their_own_device() {
    let desk = Desk::open(&[(0, OVERHEAD + 64 * MIB), (1, OVERHEAD + 32 * MIB)]);
    let mut client = desk.client_with(&[("FAKE_EXACT_POOLS", "1")]);
    client.begin(0);
    let pool = client.must("pool 1");
    let one = client.must(&format!("from_pool {} {pool}", 20 * MIB));
    assert_eq!((desk.charged(0), desk.charged(1)), (OVERHEAD, 20 * MIB));
    assert_eq!(desk.board(1).0, 20 * MIB);
    assert_eq!(
        client.ask(&format!("from_pool {} {pool}", 200 * MIB)).0,
        OOM
    );
    client.must(&format!("free_async {one}"));
    client.must("sync");
    client.must(&format!("trim {pool}"));
    assert_eq!(desk.charged(1), desk.board(1).0);
    client.must(&format!("pool_destroy {pool}"));
    assert_eq!((desk.charged(1), desk.board(1).0), (0, 0));
}

#[test]
fn p15_memory_lies_where_its_properties_say_not_where_the_context_is() {
    let desk = Desk::open(&[(0, OVERHEAD + 8 * MIB), (1, 8 * MIB)]);
    let mut client = desk.client();
    client.must("init");
    // Without any context, on the other GPU.
    let handle = client.must("create 4194304 1 1");
    assert_eq!((desk.charged(0), desk.charged(1)), (0, 4 * MIB));
    client.must(&format!("unhandle {handle}"));
    // Host memory does not belong to a GPU.
    client.must("create 67108864 2 0");
    assert_eq!((desk.charged(0), desk.charged(1)), (0, 0));
}

#[test]
fn p16_caps_go_by_uuid_whatever_the_numbers_are() {
    let desk = Desk::open(&[(0, OVERHEAD + 4 * MIB), (1, OVERHEAD + 16 * MIB)]);
    let mut client = desk.client_with(&[("FAKE_REVERSED", "1")]);
    client.begin(0);
    client.must(&format!("alloc {}", 16 * MIB));
    assert_eq!(client.ask("alloc 1").0, OOM);
    assert_eq!((desk.charged(0), desk.charged(1)), (0, OVERHEAD + 16 * MIB));
    assert_eq!(client.must("device_bytes 1"), OVERHEAD + 4 * MIB);
}

#[test]
fn p17_memory_freed_under_another_gpus_context_comes_off_its_own() {
    let desk = Desk::open(&[(0, GIB), (1, GIB)]);
    let mut client = desk.client();
    client.begin(0);
    let plain = client.must("alloc 8388608");
    client.must("retain 1");
    let there = desk.charged(1);
    client.must(&format!("free_async {plain}"));
    client.must("sync");
    assert_eq!((desk.charged(0), desk.charged(1)), (OVERHEAD, there));
}

#[test]
fn p18_use_above_a_lowered_cap_is_no_underflow() {
    let (desk, mut client) = member(OVERHEAD + 64 * MIB);
    let at = client.must(&format!("alloc {}", 64 * MIB));
    let cap = OVERHEAD + 10 * MIB;
    desk.held.lock().unwrap()[0].limits.set_memory_cap(cap);
    assert_eq!(
        (client.must("free_bytes"), client.must("total_bytes")),
        (0, cap)
    );
    assert_eq!(client.ask("alloc 1").0, OOM);
    client.must(&format!("free {at}"));
    assert_eq!(client.must("free_bytes"), 10 * MIB);
    client.must("alloc 1");
    desk.held.lock().unwrap()[0]
        .limits
        .set_memory_cap(cap + 10 * MIB);
    client.must("alloc 16777216");
}

#[test]
fn p19_without_a_limit_the_drivers_figures_stand_and_null_is_the_drivers() {
    let (desk, mut client) = member(u64::MAX);
    assert_eq!(client.must("device_bytes 0"), 64 * GIB);
    assert_eq!(client.must("total_bytes"), 64 * GIB);
    assert_eq!(client.must("free_bytes"), 64 * GIB - OVERHEAD);
    client.must("null");
    assert_eq!(desk.charged(0), OVERHEAD);
}

#[test]
fn p20_a_slot_stays_where_it_is_when_others_go() {
    let (desk, first) = member(GIB);
    let mut second = desk.client();
    second.begin(0);
    second.must("alloc 4194304");
    let slot_of = |pid: u32| {
        desk.slots(0)
            .into_iter()
            .find(|slot| slot.pid == pid)
            .unwrap()
    };
    let before = slot_of(second.pid());
    let gone = first.pid();
    let old = slot_of(gone);
    first.kill();
    desk.reap(gone);
    assert_eq!(slot_of(second.pid()), before);
    let mut third = desk.client();
    third.begin(0);
    let new = slot_of(third.pid());
    assert_eq!(new.slot, old.slot, "used again");
    assert!(new.generation > old.generation);
    second.must("alloc 4194304");
    assert_eq!(
        slot_of(second.pid()).charge_bytes,
        before.charge_bytes + 4 * MIB
    );
}

#[test]
fn p21_the_umask_and_signal_handlers_of_the_program_are_its_own() {
    let desk = Desk::open(&[(0, GIB)]);
    let mut client = Client::start(&desk.directory.path().join("shim"), |command| {
        command.env("FAKE_BOARD", desk.directory.path().join("board"));
        // SAFETY: sets a number of the child's own.
        unsafe {
            command.pre_exec(|| {
                libc::umask(0o27);
                Ok(())
            });
        }
    });
    client.begin(0);
    client.must("alloc 4096");
    client.must("globals");
}

#[test]
fn p22_a_member_can_change_neither_its_caps_nor_the_size_of_its_pages() {
    let (desk, mut client) = member(GIB);
    client.must("tamper");
    assert_eq!(desk.slots(0)[0].charge_bytes, OVERHEAD);
}

#[test]
fn p23_joining_is_one_short_conversation() {
    let desk = Desk::open(&[(0, GIB)]);
    let mut client = desk.client();
    let begun = Instant::now();
    client.must("init");
    assert!(
        begun.elapsed() < Duration::from_millis(500),
        "{:?}",
        begun.elapsed()
    );
    client.must("init");
    assert_eq!(desk.registrations.load(Ordering::SeqCst), 1);
    assert_eq!(desk.slots(0)[0].pid, client.pid());
}

#[test]
fn p24_the_cap_does_not_depend_on_the_environment() {
    let desk = Desk::open(&[(0, OVERHEAD + 2 * MIB)]);
    let mut client = desk.client_with(&[("GSHARE_CLAIM_ID", "77"), ("CUDA_DISABLE_SHIM", "1")]);
    client.begin(0);
    assert_eq!(client.ask("alloc 4194304").0, OOM);
}

#[test]
fn p25_contexts_cost_their_overhead_and_take_their_memory_along() {
    let desk = Desk::open(&[(0, 2 * OVERHEAD + 10 * MIB)]);
    let mut client = desk.client();
    client.begin(0);
    client.must("retain 0");
    assert_eq!(
        desk.charged(0),
        OVERHEAD,
        "one primary context, however often retained"
    );
    client.must("alloc 4194304");
    client.must("alloc 100");
    let context = client.must("context 0");
    assert_eq!(desk.charged(0), 2 * OVERHEAD + 6 * MIB);
    client.must("alloc 100");
    assert_eq!(client.ask("context 0").0, OOM);
    assert_eq!(desk.charged(0), desk.board(0).0);
    client.must(&format!("destroy {context}"));
    assert_eq!(
        (desk.charged(0), desk.board(0).0),
        (OVERHEAD + 6 * MIB, OVERHEAD + 6 * MIB)
    );
    client.must("release 0");
    assert_eq!(desk.charged(0), OVERHEAD + 6 * MIB, "still retained once");
    client.must("release 0");
    assert_eq!((desk.charged(0), desk.board(0).0), (0, 0));
    client.must("retain 0");
    client.must("alloc 4194304");
    client.must("reset 0");
    assert_eq!((desk.charged(0), desk.board(0).0), (0, 0));
    assert_eq!(desk.slots(0)[0].context_bytes, 0);
}

#[test]
fn a_program_that_takes_all_that_is_free_gets_its_share() {
    let (desk, mut client, board) = simulated(2 * GIB);
    let free = client.must("free_bytes");
    assert_eq!(free, 2 * GIB);
    client.must(&format!("alloc {free}"));
    assert_eq!(client.must("free_bytes"), 0);
    assert_eq!(desk.charged(0), board.snapshot().gpus[0].used);
}

#[test]
fn a_program_may_leave_while_its_threads_are_in_the_driver() {
    for _ in 0..10 {
        let (_desk, mut client) = member(OVERHEAD + 4 * MIB);
        client.must("leave");
        client.end();
    }
}

#[test]
fn a_program_that_closes_the_library_and_opens_it_again_is_still_held() {
    let (desk, mut client) = member(OVERHEAD + 8 * MIB);
    let at = client.must("alloc 8388608");
    client.must("reload");
    client.must("init");
    assert_eq!(client.ask("alloc 1").0, OOM);
    client.must(&format!("free {at}"));
    assert_eq!(desk.charged(0), OVERHEAD);
    assert_eq!(desk.registrations.load(Ordering::SeqCst), 1);
}

#[test]
fn arrays_are_charged_until_they_are_destroyed() {
    let (desk, mut client, board) = simulated(40 * MIB);
    let used = || board.snapshot().gpus[0].used;
    let empty = desk.charged(0);
    let array = client.must("array 1024 4096");
    assert_eq!(
        (desk.charged(0), used()),
        (empty + 16 * MIB, empty + 16 * MIB)
    );
    assert_eq!(client.ask("array 4096 4096").0, OOM);
    client.must(&format!("array_destroy {array}"));
    assert_eq!((desk.charged(0), used()), (empty, empty));
    client.must("array 1024 4096");
    client.must("release 0");
    assert_eq!((desk.charged(0), used()), (0, 0));
}

#[test]
fn what_is_imported_is_not_charged_again() {
    let (desk, mut client, board) = simulated(40 * MIB);
    let empty = desk.charged(0);
    let handle = client.must("create_shared 8388608 0");
    let fd = client.must(&format!("export {handle}"));
    let again = client.must(&format!("import {fd}"));
    assert_eq!(desk.charged(0), empty + 8 * MIB);
    let used = || board.snapshot().gpus[0].used;
    client.must(&format!("unhandle {again}"));
    assert_eq!(
        (desk.charged(0), used()),
        (empty + 8 * MIB, empty + 8 * MIB)
    );
    // The exporter releases first: the memory is still there, and counts.
    let again = client.must(&format!("import {fd}"));
    client.must(&format!("unhandle {handle}"));
    assert_eq!(
        (desk.charged(0), used()),
        (empty + 8 * MIB, empty + 8 * MIB)
    );
    client.must(&format!("unhandle {again}"));
    assert_eq!(desk.charged(0), empty);
}

#[test]
fn a_member_that_scribbles_over_the_pages_harms_nobody_for_long() {
    let (desk, mut wild) = member(3 * OVERHEAD + 64 * MIB);
    let mut tame = desk.client();
    tame.begin(0);
    tame.must("alloc 4194304");
    wild.must("scribble");
    // The service reads clamped figures, and restores its own words.
    let slots = desk.slots(0);
    assert_eq!(slots.len(), 2);
    assert!(
        slots
            .iter()
            .all(|slot| slot.charge_bytes <= support::GPU_BYTES)
    );
    let pid = wild.pid();
    wild.kill();
    desk.reap(pid);
    tame.must("alloc 4194304");
    assert_eq!(
        desk.charged(0),
        OVERHEAD + 8 * MIB,
        "its own figures, from memory"
    );
    let mut next = desk.client();
    next.begin(0);
    next.must(&format!("alloc {}", 64 * MIB));
    assert_eq!(desk.charged(0), 2 * OVERHEAD + 72 * MIB);
}

/// A further copy of the proxy, loaded by `dlmopen` beside the first, does not know the first one's charge.
#[test]
fn further_copies_of_the_proxy_in_one_process_hold_no_more_than_the_cap() {
    let (desk, mut client) = member(4 * GIB);
    assert_eq!(client.ask(&format!("alloc {GIB}")).0, 0);
    let (code, taken) = client.ask(&format!("copies 3 {}", GIB / 2));
    let charged = desk.charged(0);
    assert!(
        charged >= GIB,
        "what the first was charged is kept: {charged}"
    );
    let held = desk.board(0).0;
    assert!(
        held <= 4 * GIB,
        "{held} bytes on the GPU, {taken} by the copies ({code})"
    );
    // The first client goes on.
    assert_eq!(client.ask(&format!("alloc {GIB}")).0, 0);
    assert_eq!(client.ask(&format!("alloc {}", 4 * GIB)).0, OOM);
}

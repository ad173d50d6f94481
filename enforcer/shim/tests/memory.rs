//! The cap, for every family of memory, in one process.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use gshare_abi::{State, USES_FOREIGN};
use support::{Desk, GIB, MIB, OVERHEAD};

const OOM: i32 = 2;
const NOT_PERMITTED: i32 = 800;

#[test]
fn the_first_allocation_past_the_cap_is_refused_to_the_byte() {
    // Room for 3 GiB beside the context, less one byte.
    for (cap, fits) in [(3 * GIB + OVERHEAD, true), (3 * GIB + OVERHEAD - 1, false)] {
        let desk = Desk::open(&[(0, cap)]);
        let mut client = desk.client();
        client.begin(0);
        assert_eq!(desk.charged(0), OVERHEAD);
        client.must(&format!("alloc {}", 2 * GIB));
        let last = client.ask(&format!("alloc {GIB}"));
        assert_eq!(last.0, if fits { 0 } else { OOM });
        assert_eq!(client.must("total_bytes"), cap);
        assert_eq!(client.must("device_bytes 0"), cap);
        if fits {
            assert_eq!(client.must("free_bytes"), 0);
            assert_eq!(client.ask("alloc 1").0, OOM);
            client.must(&format!("free {}", last.1));
            assert_eq!(client.must("free_bytes"), GIB);
            client.must(&format!("alloc {}", GIB - 2 * MIB + 1));
            assert_eq!(desk.board(0), (cap, cap), "the driver agrees");
        }
        assert_eq!(desk.charged(0), desk.board(0).0);
        let slot = &desk.slots(0)[0];
        assert_eq!(slot.refusals, 1);
        assert_eq!(slot.last_refused_bytes, Some(if fits { 1 } else { GIB }));
        assert_eq!(slot.context_bytes, OVERHEAD);
        let said = client.end();
        let expected = if fits {
            "claim c3 has reached its memory limit: 3.1 of 3.1 GiB on GPU-11111111"
        } else {
            "claim c3: the program asked for 1.0 GiB, but the claim has 1023.9 MiB left of its limit of 3.1 GiB on \
             GPU-11111111"
        };
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn a_refusal_names_the_command_that_makes_room() {
    let desk = Desk::open(&[(0, 3 * GIB + OVERHEAD)]);
    let said = |free: u64, bytes: u64| {
        for held in desk.held.lock().unwrap().iter() {
            held.limits.set_gpu_index(Some(1));
            held.limits.beat(Some(free));
        }
        let mut client = desk.client();
        client.begin(0);
        client.must(&format!("alloc {}", 3 * GIB));
        assert_eq!(client.ask(&format!("alloc {bytes}")).0, OOM);
        let pid = client.pid();
        let said = client.end();
        desk.reap(pid);
        said
    };
    let full = "claim c3 has reached its memory limit: 3.1 of 3.1 GiB on GPU 1; ";
    for (free, bytes, rest) in [
        (
            4 * GIB,
            GIB,
            "4.0 GiB more is free there: gshare resize c3 --gpu-mem 5G\n",
        ),
        (
            GIB,
            GIB,
            "1.0 GiB more is free there: gshare resize c3 --gpu-mem 4196M\n",
        ),
        (
            GIB - 1,
            GIB,
            "1023.9 MiB more is free there; to wait for more: gshare resize c3 --gpu-mem 5G --wait\n",
        ),
        (0, 80 * GIB, "the GPU has 64.0 GiB in all: ask for less\n"),
    ] {
        let said = said(free, bytes);
        assert!(said.contains(&format!("{full}{rest}")), "{said}");
    }
}

#[test]
fn small_allocations_share_blocks_and_fill_them_at_the_cap() {
    let desk = Desk::open(&[(0, OVERHEAD + 4 * MIB)]);
    let mut client = desk.client();
    client.begin(0);
    let mut held = Vec::new();
    // Four of 512 KiB fill a block; the seventh finds no room for another block but room within one.
    for _ in 0..8 {
        held.push(client.must(&format!("alloc {}", 512 << 10)));
        assert_eq!(desk.charged(0), desk.board(0).0);
    }
    assert_eq!(desk.charged(0), OVERHEAD + 4 * MIB);
    assert_eq!(client.ask("alloc 1").0, OOM);
    assert_eq!(client.ask("alloc 2097152").0, OOM);
    for at in held {
        client.must(&format!("free {at}"));
        assert_eq!(desk.charged(0), desk.board(0).0);
    }
    assert_eq!(desk.charged(0), OVERHEAD);
    assert_eq!(desk.board(0).1, OVERHEAD + 4 * MIB, "never more");
    assert_eq!(desk.slots(0)[0].allocations, 0);
    assert_eq!(desk.slots(0)[0].requested_bytes, 0);
}

#[test]
fn every_family_is_charged_refused_and_freed_by_either_free() {
    for order in ["alloc 8388608", "pitch 1000 8192", "managed 8388608"] {
        let desk = Desk::open(&[(0, OVERHEAD + 20 * MIB)]);
        let mut client = desk.client();
        client.begin(0);
        let (one, two) = (client.must(order), client.must(order));
        assert_eq!(desk.charged(0), OVERHEAD + 16 * MIB, "{order}");
        assert_eq!(client.ask(order).0, OOM, "{order}");
        client.must(&format!("free {one}"));
        client.must(&format!("free_async {two}"));
        assert_eq!(desk.charged(0), OVERHEAD, "{order}");
        assert_eq!(desk.board(0), (OVERHEAD, OVERHEAD + 16 * MIB));
        let managed = desk.slots(0)[0].flags & 1 == 1;
        assert_eq!(managed, order.starts_with("managed"));
    }
}

#[test]
fn a_pool_is_charged_for_what_it_holds_of_the_device() {
    for order in ["async", "async_ptsz"] {
        let desk = Desk::open(&[(0, OVERHEAD + 64 * MIB)]);
        let mut client = desk.client();
        client.begin(0);
        let one = client.must(&format!("{order} {}", 8 * MIB));
        // The fake's pools grow by 32 MiB.
        assert_eq!(desk.charged(0), OVERHEAD + 32 * MIB);
        let two = client.must(&format!("{order} {}", 24 * MIB));
        assert_eq!(desk.charged(0), OVERHEAD + 32 * MIB);
        let three = client.must(&format!("{order} {}", 32 * MIB));
        assert_eq!(desk.charged(0), OVERHEAD + 64 * MIB);
        assert_eq!(client.ask(&format!("{order} 1")).0, OOM);
        assert_eq!(client.ask("alloc 1").0, OOM);
        client.must(&format!("free_async {three}"));
        client.must(&format!("free {two}"));
        assert_eq!(desk.charged(0), desk.board(0).0);
        client.must(&format!("free_async {one}"));
        client.must("sync");
        assert_eq!((desk.charged(0), desk.board(0).0), (OVERHEAD, OVERHEAD));
        assert_eq!(desk.board(0).1, OVERHEAD + 64 * MIB, "never more");
        assert_eq!(desk.slots(0)[0].allocations, 0);
    }
}

#[test]
fn the_driver_is_not_asked_about_a_pool_that_it_destroys() {
    let desk = Desk::open(&[(0, OVERHEAD + 64 * MIB)]);
    let mut client = desk.client_with(&[("FAKE_SLOW_POOLS", "1")]);
    client.begin(0);
    let pool = client.must("pool 0");
    let one = client.must(&format!("from_pool {} {pool}", 20 * MIB));
    client.must(&format!("free_async {one}"));
    client.must(&format!("pool_destroy_meanwhile {pool}"));
    assert_eq!((desk.charged(0), desk.board(0).0), (OVERHEAD, OVERHEAD));
}

#[test]
fn what_a_pool_holds_unused_counts_as_free() {
    let desk = Desk::open(&[(0, OVERHEAD + 32 * MIB)]);
    let mut client = desk.client();
    client.begin(0);
    let one = client.must("async 4096");
    client.must(&format!("free_async {one}"));
    assert_eq!(
        desk.charged(0),
        OVERHEAD + 32 * MIB,
        "until the stream gets there"
    );
    assert_eq!(client.ask("alloc 2097152").0, OOM);
    client.must("sync");
    client.must("alloc 2097152");
    assert_eq!(desk.charged(0), desk.board(0).0);
}

#[test]
fn what_is_freed_in_a_stream_comes_back_at_a_later_synchronisation() {
    let desk = Desk::open(&[(0, OVERHEAD + 64 * MIB)]);
    let mut client = desk.client();
    client.begin(0);
    let (one, two) = (client.must("async 4096"), client.must("alloc 4096"));
    client.must(&format!("free_async {one}"));
    client.must(&format!("free {two}"));
    assert_eq!(desk.charged(0), desk.board(0).0, "the pool still holds it");
    client.must("sync");
    assert_eq!((desk.charged(0), desk.board(0).0), (OVERHEAD, OVERHEAD));
}

#[test]
fn mapped_memory_is_charged_until_its_last_reference_goes() {
    let desk = Desk::open(&[(0, OVERHEAD + 64 * MIB)]);
    let mut client = desk.client();
    client.begin(0);
    let handle = client.must(&format!("create {} 1 0", 64 * MIB));
    assert_eq!(desk.charged(0), OVERHEAD + 64 * MIB);
    assert_eq!(client.ask(&format!("create {} 1 0", 2 * MIB)).0, OOM);
    let host = client.must(&format!("create {} 2 99", 1024 * MIB));
    let va = 0x50_0000_0000_u64;
    client.must(&format!("map {va} {} {handle}", 64 * MIB));
    client.must(&format!("unhandle {handle}"));
    assert_eq!(desk.charged(0), OVERHEAD + 64 * MIB, "mapped");
    let again = client.must(&format!("rehandle {}", va + 5));
    client.must(&format!("unmap {va} {}", 64 * MIB));
    assert_eq!(desk.charged(0), OVERHEAD + 64 * MIB, "held");
    client.must(&format!("unhandle {again}"));
    client.must(&format!("unhandle {host}"));
    assert_eq!((desk.charged(0), desk.board(0).0), (OVERHEAD, OVERHEAD));
    assert_eq!(client.ask("create 4096 1 0").0, 1, "the driver's to judge");
    assert_eq!(desk.charged(0), OVERHEAD);
}

/// Memory of graphics and of other drivers is not charged, and a checkpoint does not preserve it.
#[test]
fn memory_of_other_drivers_is_noted_and_not_charged() {
    for name in [
        "cuImportExternalMemory",
        "cuImportExternalSemaphore",
        "cuGraphicsGLRegisterBuffer",
        "cuGraphicsEGLRegisterImage",
        "cuGraphicsGLRegisterImage",
    ] {
        let desk = Desk::open(&[(0, OVERHEAD + 10 * MIB)]);
        let mut client = desk.client();
        client.begin(0);
        let flags = || desk.slots(0)[0].flags;
        assert_eq!(client.ask(&format!("foreign {name} 0")).0, 1, "{name}");
        assert_eq!(flags(), 0, "{name}: the driver had none");
        let set = |state| desk.held.lock().unwrap()[0].limits.set_state(state);
        set(State::NotGranted);
        let refused = client.ask(&format!("foreign {name} 7")).0;
        assert_eq!(refused, NOT_PERMITTED, "{name}");
        assert_eq!(client.must("own_calls"), 0, "{name}: not granted");
        set(State::Granted);
        assert_eq!(client.must(&format!("foreign {name} 7")), 7, "{name}");
        assert_eq!(flags(), USES_FOREIGN, "{name}");
        assert_eq!(desk.charged(0), OVERHEAD, "{name}");
    }
}

#[test]
fn a_context_that_does_not_fit_is_refused_before_the_driver_is_asked() {
    let desk = Desk::open(&[(0, OVERHEAD - 1)]);
    let mut client = desk.client();
    client.must("init");
    assert_eq!(client.ask("retain 0").0, OOM);
    assert_eq!(desk.board(0).1, 0);
}

#[test]
fn gpus_are_known_by_uuid_and_others_are_refused() {
    // The second GPU only; this process sees it as device 0.
    let desk = Desk::open(&[(1, GIB)]);
    let mut client = desk.client_with(&[("FAKE_REVERSED", "1")]);
    client.begin(0);
    client.must("alloc 4194304");
    assert_eq!(desk.charged(0), OVERHEAD + 4 * MIB);
    assert_eq!(desk.board(1).0, OVERHEAD + 4 * MIB);
    assert_eq!(client.must("device_bytes 0"), GIB);
    assert_eq!(client.must("device_bytes 1"), 64 * GIB);
    assert_eq!(client.ask("retain 1").0, NOT_PERMITTED);
    assert_eq!(client.ask("create 2097152 1 1").0, NOT_PERMITTED);
    assert_eq!(client.ask("pool 1").0, NOT_PERMITTED);
    for order in ["retain 7", "context 7"] {
        assert_eq!(client.ask(order).0, 101, "the driver's to judge: {order}");
    }
    assert_eq!(desk.board(0).1, 0);
}

#[test]
fn a_claim_that_has_ended_refuses_growth_and_lets_go() {
    let desk = Desk::open(&[(0, GIB)]);
    let mut client = desk.client();
    client.begin(0);
    let held = client.must("alloc 4194304");
    client.must("launch 3");
    desk.held.lock().unwrap()[0]
        .limits
        .set_state(State::NotGranted);
    for order in [
        "alloc 4096",
        "async 4096",
        "create 2097152 1 0",
        "launch 1",
        "context 0",
    ] {
        assert_eq!(client.ask(order).0, NOT_PERMITTED, "{order}");
    }
    client.must(&format!("free {held}"));
    assert_eq!(desk.charged(0), OVERHEAD);
    assert_eq!(desk.slots(0)[0].launches, 3);
    desk.held.lock().unwrap()[0]
        .limits
        .set_state(State::Granted);
    client.must("alloc 4096");
    let said = client.end();
    assert_eq!(
        said.matches("does not hold its GPU now").count(),
        1,
        "{said}"
    );
}

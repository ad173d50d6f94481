//! Many processes, processes that die, fork or close what they find, services that come and go.

#![allow(
    clippy::unwrap_used,
    unsafe_code,
    reason = "a test fails by panicking; stops its own children"
)]

mod support;

use std::{
    io::{BufRead, BufReader, Read},
    os::unix::net::UnixListener,
    process::Stdio,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use gshare_abi::host::UsageMemfd;
use support::{Client, Desk, GIB, MIB, OVERHEAD, uuid};

const OOM: i32 = 2;

#[test]
fn eight_processes_at_once_never_exceed_the_cap_together() {
    let cap = 8 * OVERHEAD + 50 * MIB;
    let desk = Desk::open(&[(0, cap)]);
    let mut clients: Vec<Client> = (0..8).map(|_| desk.client()).collect();
    for client in &mut clients {
        client.begin(0);
    }
    // Sizes that fill whole blocks, straddle them and share them.
    for (client, piece) in clients.iter_mut().zip([2, 3, 4, 5].iter().cycle()) {
        client.tell(&format!("fill {} 300", piece * MIB));
    }
    for client in &mut clients {
        assert_eq!(client.hear().0, 0, "every refusal is out of memory");
    }
    for (client, piece) in clients.iter_mut().zip([300, 1700, 900, 64].iter().cycle()) {
        client.tell(&format!("fill {} 40", piece * 1024));
    }
    for client in &mut clients {
        assert_eq!(client.hear().0, 0, "every refusal is out of memory");
    }
    let (used, most) = desk.board(0);
    assert_eq!(used, 8 * OVERHEAD);
    assert_eq!(desk.charged(0), used);
    assert!(most <= cap, "{most} of {cap}");
    assert!(most > cap - 6 * MIB, "the cap was reached: {most} of {cap}");
}

#[test]
fn threads_of_one_process_keep_the_ledger_exact() {
    let cap = OVERHEAD + 48 * MIB;
    let desk = Desk::open(&[(0, cap)]);
    let mut client = desk.client_with(&[("FAKE_EXACT_POOLS", "1")]);
    client.begin(0);
    let made = client.must("threads 6 3000");
    assert!(made > 1000, "{made}");
    client.must("sync");
    client.must("sync");
    assert_eq!((desk.charged(0), desk.board(0).0), (OVERHEAD, OVERHEAD));
    let slot = &desk.slots(0)[0];
    assert_eq!((slot.allocations, slot.requested_bytes), (0, 0));
}

#[test]
fn sigkill_at_any_moment_returns_the_bytes() {
    let cap = 4 * OVERHEAD + 40 * MIB;
    let desk = Desk::open(&[(0, cap)]);
    let mut witness = desk.client();
    witness.begin(0);
    for round in 0..12 {
        let mut victim = desk.client();
        victim.begin(0);
        victim.tell("fill 2097152 1000000");
        let pid = victim.pid();
        let deadline = Instant::now() + Duration::from_secs(20);
        let busy = |desk: &Desk| {
            let slots = desk.slots(0);
            slots
                .iter()
                .any(|slot| slot.pid == pid && slot.refusals > round)
        };
        while !busy(&desk) {
            assert!(Instant::now() < deadline, "the victim does nothing");
        }
        victim.kill();
        desk.reap(pid);
        assert_eq!(desk.charged(0), OVERHEAD, "round {round}");
        // The fake driver does not notice deaths; the witness has the whole cap again.
        assert_eq!(witness.must("fill 2097152 1"), 0);
        assert_eq!(desk.charged(0), OVERHEAD);
    }
}

#[test]
fn a_stopped_neighbour_does_not_hold_anybody_up() {
    let desk = Desk::open(&[(0, 2 * OVERHEAD + 40 * MIB)]);
    let (mut one, mut two) = (desk.client(), desk.client());
    one.begin(0);
    two.begin(0);
    one.tell("fill 2097152 1000000");
    for _ in 0..30 {
        // SAFETY: a child of this test.
        unsafe { libc::kill(one.pid() as i32, libc::SIGSTOP) };
        let begun = Instant::now();
        assert_eq!(two.ask("fill 2097152 3").0, 0);
        assert!(begun.elapsed() < Duration::from_secs(2));
        // SAFETY: as above.
        unsafe { libc::kill(one.pid() as i32, libc::SIGCONT) };
    }
    one.kill();
}

#[test]
fn a_forked_child_is_a_stranger_until_it_initialises_the_driver() {
    let desk = Desk::open(&[(0, GIB)]);
    let mut client = desk.client();
    client.begin(0);
    client.must("alloc 4194304");
    let before = desk.slots(0);
    client.must("fork");
    assert_eq!(
        desk.registrations.load(Ordering::SeqCst),
        2,
        "the child's own"
    );
    let slots = desk.slots(0);
    let child = slots.iter().find(|slot| slot.pid != client.pid()).unwrap();
    assert_eq!(child.charge_bytes, 4 * MIB);
    assert_eq!(child.launches, 0);
    let parent = slots.iter().find(|slot| slot.pid == client.pid()).unwrap();
    assert_eq!(
        parent, &before[0],
        "the child has not touched the parent's slot"
    );
    client.must("alloc 4194304");
}

#[test]
fn a_program_that_becomes_another_starts_with_nothing() {
    let desk = Desk::open(&[(0, 2 * OVERHEAD + 8 * MIB)]);
    let mut client = desk.client();
    client.begin(0);
    client.must("alloc 8388608");
    assert_eq!(desk.charged(0), OVERHEAD + 8 * MIB);
    client.must("exec");
    client.must("init");
    assert_eq!(desk.slots(0).len(), 1, "the same process, the same slot");
    assert_eq!(desk.charged(0), 0, "the driver has taken everything back");
    client.must("retain 0");
    client.must("alloc 8388608");
    assert_eq!(desk.charged(0), OVERHEAD + 8 * MIB);
}

#[test]
fn a_program_that_closes_every_low_descriptor_goes_on() {
    let desk = Desk::open(&[(0, OVERHEAD + 8 * MIB)]);
    let mut client = desk.client();
    let before = client.must("fds");
    client.begin(0);
    assert_eq!(client.must("fds"), before, "nothing below 100");
    client.must("close_low");
    client.must("alloc 8388608");
    assert_eq!(client.ask("alloc 1").0, OOM);
    assert_eq!(desk.charged(0), OVERHEAD + 8 * MIB);
}

#[test]
fn without_a_claim_the_driver_is_untouched() {
    // A service that refuses, a missing service, and one that never answers.
    for (case, service) in ["refuses", "absent", "silent"].iter().enumerate() {
        let desk = Desk::open(&[(0, OVERHEAD + 8 * MIB)]);
        let mut silent = None;
        match case {
            0 => desk.refuse_all(),
            1 => std::fs::remove_file(desk.socket()).unwrap(),
            _ => {
                std::fs::remove_file(desk.socket()).unwrap();
                silent = Some(UnixListener::bind(desk.socket()).unwrap());
            }
        }
        for claim in [None, Some("3")] {
            let environment: Vec<(&str, &str)> = claim
                .map(|id| ("GSHARE_CLAIM_ID", id))
                .into_iter()
                .collect();
            let mut client = desk.client_with(&environment);
            let begun = Instant::now();
            client.begin(0);
            assert!(begun.elapsed() < Duration::from_secs(4), "{service}");
            client.must("alloc 1073741824");
            client.must("launch 5");
            assert_eq!(client.must("total_bytes"), 64 * GIB, "{service}");
            assert_eq!(client.must("device_bytes 0"), 64 * GIB, "{service}");
            let said = client.end();
            let lines = said.lines().filter(|line| line.starts_with("gshare: "));
            let expected = usize::from(claim.is_some());
            assert_eq!(lines.count(), expected, "{service}: {said}");
        }
        assert_eq!(desk.slots(0), [], "{service}");
        drop(silent);
    }
}

#[test]
fn a_service_that_is_just_starting_is_waited_for() {
    let desk = Desk::open(&[(0, OVERHEAD + 8 * MIB)]);
    let (there, aside) = (desk.socket(), desk.socket().with_extension("aside"));
    std::fs::rename(&there, &aside).unwrap();
    let back = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(700));
        std::fs::rename(&aside, &there).unwrap();
    });
    let mut client = desk.client_with(&[("GSHARE_CLAIM_ID", "3")]);
    client.begin(0);
    back.join().unwrap();
    assert_eq!(
        client.must("total_bytes"),
        OVERHEAD + 8 * MIB,
        "held to the cap"
    );
    assert_eq!(client.end(), "");
}

#[test]
fn a_process_that_its_claim_cannot_count_may_not_use_the_gpu() {
    let desk = Desk::open(&[(0, OVERHEAD + 8 * MIB)]);
    desk.refuse_with("full");
    let mut client = desk.client_with(&[("GSHARE_CLAIM_ID", "3")]);
    assert_eq!(client.ask("init").0, 800);
    assert_eq!(client.ask("init").0, 800, "and again");
    let said = client.end();
    assert_eq!(said.matches("may not use the GPU").count(), 1, "{said}");
}

#[test]
fn in_strict_mode_a_process_that_is_no_member_has_no_gpu() {
    let desk = Desk::open(&[(0, OVERHEAD + 8 * MIB)]);
    desk.be_strict();
    desk.refuse_all();
    // Whatever the environment says.
    for environment in [&[][..], &[("GSHARE_CLAIM_ID", "3")]] {
        let mut client = desk.client_with(environment);
        assert_eq!(client.ask("init").0, 800);
        assert_eq!(client.ask("init").0, 800, "and again");
        assert_eq!(client.ask("retain 0").0, 3, "the driver is not initialised");
        let said = client.end();
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains("may not use the GPU: process"), "{said}");
    }
}

#[test]
fn in_strict_mode_a_service_that_starts_anew_is_waited_for() {
    let desk = Desk::open(&[(0, OVERHEAD + 8 * MIB)]);
    desk.be_strict();
    let mut client = desk.client();
    client.begin(0);
    assert_eq!(client.must("total_bytes"), OVERHEAD + 8 * MIB);
    let pid = client.pid();
    assert_eq!(client.end(), "", "a member as in the other mode");
    desk.reap(pid);

    let (there, aside) = (desk.socket(), desk.socket().with_extension("aside"));
    std::fs::rename(&there, &aside).unwrap();
    let begun = Instant::now();
    let mut client = desk.client();
    client.tell("init");
    let mut said = String::new();
    let mut errors = BufReader::new(client.child.stderr.take().unwrap());
    errors.read_line(&mut said).unwrap();
    assert!(begun.elapsed() >= Duration::from_secs(1), "{said}");
    assert!(said.contains("waiting for the service at"), "{said}");
    std::fs::rename(&aside, &there).unwrap();
    assert_eq!(client.hear().0, 0);
    client.must("retain 0");
    assert_eq!(client.must("total_bytes"), OVERHEAD + 8 * MIB);
    client.kill();
    said.clear();
    errors.read_to_string(&mut said).unwrap();
    assert_eq!(said, "", "that line alone");
}

#[test]
fn in_strict_mode_there_is_no_gpu_without_the_service() {
    let desk = Desk::open(&[(0, OVERHEAD + 8 * MIB)]);
    desk.be_strict();
    std::fs::remove_file(desk.socket()).unwrap();
    let mut client = desk.client();
    let begun = Instant::now();
    assert_eq!(client.ask("init").0, 800);
    let waited = begun.elapsed().as_secs_f64();
    assert!((9.5..15.0).contains(&waited), "{waited}");
    let said = client.end();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert!(lines[0].contains("waiting for the service"), "{said}");
    assert!(lines[1].contains("may not use the GPU"), "{said}");
    assert!(lines[1].contains("cannot register with"), "{said}");
}

#[test]
fn the_registration_says_who_asks() {
    let desk = Desk::open(&[(0, GIB)]);
    let mut client = desk.client_with(&[("GSHARE_CLAIM_ID", "c17")]);
    client.must("init");
    client.must("init");
    let request = desk.last.lock().unwrap().clone().unwrap();
    let abi = gshare_abi::ABI_VERSION;
    assert_eq!((request.abi, request.pid), (abi, client.pid()));
    assert_eq!(request.hint, Some(17));
    assert_eq!(desk.registrations.load(Ordering::SeqCst), 1, "once");
}

#[test]
fn a_restarted_service_has_everything_back_at_the_next_allocation() {
    let desk = Desk::open(&[(0, OVERHEAD + 40 * MIB)]);
    let mut client = desk.client();
    client.begin(0);
    let held = client.must("alloc 8388608");
    let pid = client.pid();
    // The service dies and restarts: it finds the page in the member.
    let found = UsageMemfd::find(pid, 3, uuid(0), 42, Instant::now() + Duration::from_secs(5))
        .unwrap()
        .unwrap();
    assert_eq!(found.charged_bytes(u64::MAX), OVERHEAD + 8 * MIB);
    assert_eq!(found.owners().next().unwrap().1, pid);
    // A service that does not search gives a new page; the member brings its charge along.
    let fresh = UsageMemfd::create(3, uuid(0), 42).unwrap();
    {
        let mut all = desk.held.lock().unwrap();
        all[0].usage = fresh;
        all[0].limits.set_epoch(2);
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    while desk.charged(0) == 0 {
        // At most one attempt a second; every allocation may make it.
        let at = client.must("alloc 2097152");
        client.must(&format!("free {at}"));
        assert!(Instant::now() < deadline, "the member did not come back");
    }
    assert_eq!(desk.charged(0), OVERHEAD + 8 * MIB);
    assert_eq!(client.ask(&format!("alloc {}", 33 * MIB)).0, OOM);
    client.must(&format!("free {held}"));
    assert_eq!(desk.charged(0), OVERHEAD);
    assert_eq!(desk.slots(0)[0].context_bytes, OVERHEAD);
}

#[test]
fn a_service_that_dies_leaves_the_caps_in_place() {
    let desk = Desk::open(&[(0, OVERHEAD + 8 * MIB)]);
    let mut client = desk.client();
    client.begin(0);
    std::fs::remove_file(desk.socket()).unwrap();
    desk.held.lock().unwrap()[0].limits.set_epoch(2);
    client.must("alloc 8388608");
    let begun = Instant::now();
    for _ in 0..100 {
        assert_eq!(client.ask("alloc 2097152").0, OOM);
    }
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "no waiting for a service that is gone"
    );
}

#[test]
fn a_refused_program_hears_of_it_at_most_once_a_second() {
    let desk = Desk::open(&[(0, OVERHEAD)]);
    let mut client = desk.client();
    client.begin(0);
    let begun = Instant::now();
    for _ in 0..500 {
        assert_eq!(client.ask("alloc 536870912").0, OOM);
    }
    let seconds = begun.elapsed().as_secs() as usize;
    let said = client.end();
    let lines = said.matches("has reached its memory limit").count();
    assert!(
        (1..=seconds + 2).contains(&lines),
        "{lines} lines in {seconds} s"
    );
    assert!(said.contains("100 of 100 MiB"), "{said}");
    assert_eq!(desk.slots(0)[0].refusals, 500);
}

#[test]
fn stderr_that_nobody_reads_is_no_harm() {
    let desk = Desk::open(&[(0, OVERHEAD)]);
    let mut client = Client::start(&desk.directory.path().join("shim"), |command| {
        command
            .env("FAKE_BOARD", desk.directory.path().join("board"))
            .stderr(Stdio::null());
    });
    client.begin(0);
    assert_eq!(client.ask("alloc 536870912").0, OOM);
    client.must("launch 1");
}

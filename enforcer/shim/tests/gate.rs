//! The gate on the simulated driver, with the test as the arbiter.

#![allow(
    clippy::unwrap_used,
    unsafe_code,
    reason = "a test fails by panicking; sends signals to its own children"
)]

mod support;

use std::{
    ops::Range,
    os::fd::{AsFd, AsRawFd},
    time::{Duration, Instant},
};

use gshare_abi::{GateView, NO_EVENT_TIMES, State, WorkView, monotonic_ns};
use gshare_gate::{Mode, Word};
use gshare_sim_board::{Board, Fault, Preset};
use support::{Client, Desk};

const MS: u64 = 1_000_000;

/// A claim on a simulated GPU with the kernel `idle`.
struct Rig {
    desk: Desk,
    board: Board,
    word: std::cell::Cell<Word>,
}

impl Rig {
    /// The kernel takes 2 ms.
    fn new() -> Self {
        Self::with_kernel("2ms")
    }

    fn with_kernel(length: &str) -> Self {
        let costs = format!("idle {length}\n");
        let (desk, board, _) = Desk::simulated(&["h100"], &costs, &[0], |_, context| 16 * context);
        let rig = Self {
            desk,
            board,
            word: std::cell::Cell::default(),
        };
        rig.beat();
        rig
    }

    fn beat(&self) {
        let held = self.desk.held.lock().unwrap();
        held[0].limits.beat(None);
        held[0].limits.turn_beat(monotonic_ns());
    }

    /// Publishes a new decision; a turn ends this many milliseconds from now.
    fn decide(&self, mode: Mode, ms: u64) {
        self.publish(mode, 0..monotonic_ns() + ms * MS);
    }

    fn publish(&self, mode: Mode, turn: Range<u64>) {
        self.beat();
        self.word.set(self.word.get().next(mode));
        let held = self.desk.held.lock().unwrap();
        let word = self.word.get().0;
        held[0].limits.set_turn(word, turn, 0, 0, true);
    }

    fn said(&self) -> GateView {
        let held = self.desk.held.lock().unwrap();
        held[0]
            .usage
            .gates()
            .next()
            .map_or_else(GateView::default, |(_, _, said)| said)
    }

    /// Beats until the member's figures are as wanted, and returns them.
    fn until(&self, what: &str, wanted: impl Fn(&GateView) -> bool) -> GateView {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            self.beat();
            let said = self.said();
            if wanted(&said) {
                return said;
            }
            assert!(Instant::now() < deadline, "never {what}: {said:?}");
            std::thread::yield_now();
        }
    }

    /// Waits for the next call of a member.
    fn rings(&self) -> bool {
        let held = self.desk.held.lock().unwrap();
        let bell = held[0].doorbell.as_ref().unwrap();
        let mut entry = libc::pollfd {
            fd: bell.as_fd().as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one valid entry.
        unsafe { libc::poll(&raw mut entry, 1, 20_000) };
        bell.drain() > 0
    }

    fn launches(&self) -> u64 {
        self.desk.slots(0).iter().map(|slot| slot.launches).sum()
    }

    /// A member with a kernel and a stream.
    fn member(&self) -> (Client, u64, u64) {
        let mut client = self.desk.client();
        client.begin(0);
        let kernel = client.must("kernel");
        let stream = client.must("stream");
        (client, kernel, stream)
    }

    /// The sums over the launches.
    fn work(&self) -> WorkView {
        self.desk.slots(0)[0].work.unwrap_or_default()
    }

    /// Waits until the sums are as wanted, and returns them.
    fn until_work(&self, what: &str, wanted: impl Fn(&WorkView) -> bool) -> WorkView {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let work = self.work();
            if wanted(&work) {
                return work;
            }
            assert!(Instant::now() < deadline, "never {what}: {work:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Beats while the client works on its order; returns its answer.
    fn hear(&self, client: &mut Client) -> (i32, u64) {
        std::thread::scope(|scope| {
            let answer = scope.spawn(|| client.hear());
            while !answer.is_finished() {
                self.beat();
                std::thread::yield_now();
            }
            answer.join().unwrap()
        })
    }
}

#[test]
fn nothing_is_held_where_nobody_shares() {
    let rig = Rig::new();
    let (mut client, kernel, stream) = rig.member();
    client.must(&format!("burst {kernel} {stream} 5"));
    let said = GateView {
        stamp: 0,
        said_ns: 0,
        ..rig.said()
    };
    assert_eq!(said, GateView::default());
    assert_eq!(rig.launches(), 5);
}

#[test]
fn what_launches_come_to_is_told_also_where_nobody_shares() {
    let rig = Rig::new();
    let (mut client, kernel, stream) = rig.member();
    // Kernels of 2 ms, one block of one warp each: one SM, one warp.
    client.must(&format!("burst {kernel} {stream} 50"));
    // At most the last few milliseconds wait for the next measurement.
    let work = rig.until_work("counted", |work| {
        work.flight.is_none() && work.busy_ns >= 90 * MS
    });
    assert_eq!(work.unmeasured, 0);
    let ms = work.busy_ns / MS;
    assert!((90..=115).contains(&ms), "{work:?}");
    // One SM all the time, apart from the time of launches seen late, which can only have been as long as the time that
    // passed.
    assert!(work.sm_ns.abs_diff(work.busy_ns) <= MS, "{work:?}");
}

/// The record of an event takes time on the GPU, which is no part of the kernel before it.
#[test]
fn kernels_count_without_the_events_around_them() {
    let rig = Rig::with_kernel("50us");
    let preset = Preset {
        record_ns: 20_000,
        ..Preset::REAL
    };
    rig.board.set_preset(preset).unwrap();
    let (mut client, kernel, stream) = rig.member();
    let mut sm_after = |launches: u64, least: u64| {
        client.must(&format!("burst {kernel} {stream} {launches}"));
        let over = |work: &WorkView| work.flight.is_none() && work.sm_ns >= least;
        rig.until_work("over", over).sm_ns
    };
    // The first of them count with it, and are forgotten.
    let before = sm_after(2000, 90 * MS);
    let each_us = (sm_after(2000, before + 90 * MS) - before) / 2000 / 1000;
    // On one SM.
    assert!((47..=55).contains(&each_us), "{each_us} us");
}

/// If a kernel's fill is unknown, each block counts as one SM, and launches are counted like any other.
#[test]
fn launches_are_counted_where_the_driver_cannot_say_what_they_fill() {
    let rig = Rig::new();
    rig.board.set_fault(Fault::NoOccupancy, true).unwrap();
    let (mut client, kernel, stream) = rig.member();
    client.must(&format!("burst {kernel} {stream} 50"));
    let work = rig.until_work("counted", |work| {
        work.flight.is_none() && work.busy_ns >= 90 * MS
    });
    assert_eq!(work.unmeasured, 0);
    assert!(work.sm_ns.abs_diff(work.busy_ns) <= MS, "{work:?}");
}

#[test]
fn a_driver_whose_events_have_no_times_is_noticed() {
    let flags = |fault: bool| {
        let rig = Rig::new();
        rig.board.set_fault(Fault::NoEventTimes, fault).unwrap();
        let (mut client, kernel, stream) = rig.member();
        let noted = || rig.desk.slots(0)[0].flags & NO_EVENT_TIMES;
        // 2 ms each; some of them are measured.
        for _ in 0..200 {
            client.must(&format!("burst {kernel} {stream} 1"));
            client.must(&format!("sync_stream {stream}"));
            if noted() != 0 {
                break;
            }
        }
        noted()
    };
    assert_eq!((flags(false), flags(true)), (0, NO_EVENT_TIMES));
}

/// A program so far ahead of the GPU that nothing behind its last measured launch is measured.
#[test]
fn the_rest_of_a_burst_is_counted_while_it_runs() {
    let rig = Rig::new();
    let (mut client, kernel, stream) = rig.member();
    for _ in 0..20 {
        client.must(&format!("launch_on {kernel} {stream}"));
    }
    let before = rig.work().busy_ns;
    rig.until_work("landed", |work| work.busy_ns != before);
    for _ in 0..30 {
        client.must(&format!("launch_on {kernel} {stream}"));
    }
    client.must(&format!("sync_stream {stream}"));
    let over = |ms: u64| {
        let over = |work: &WorkView| work.flight.is_none() && work.busy_ns >= ms * MS;
        rig.until_work("over", over).busy_ns / MS
    };
    assert!(over(90) <= 115, "{:?}", rig.work());
    // And once, together with later measurements.
    client.must(&format!("burst {kernel} {stream} 10"));
    assert!(over(110) <= 140, "{:?}", rig.work());
}

/// The process had no processor while the GPU worked: that all ends were seen at once says nothing about their times.
#[test]
fn launches_whose_ends_are_seen_late_count_in_full() {
    let rig = Rig::new();
    let (mut client, kernel, stream) = rig.member();
    for _ in 0..10 {
        client.must(&format!("launch_on {kernel} {stream}"));
    }
    let signal = |signal| {
        // SAFETY: a child of this process.
        assert_eq!(unsafe { libc::kill(client.pid() as i32, signal) }, 0);
    };
    signal(libc::SIGSTOP);
    std::thread::sleep(Duration::from_millis(60));
    signal(libc::SIGCONT);
    let work = rig.until_work("over", |work| {
        work.flight.is_none() && work.busy_ns >= 19 * MS
    });
    assert!(work.busy_ns <= 22 * MS, "{work:?}");
    assert!(work.sm_ns.abs_diff(work.busy_ns) <= MS, "{work:?}");
}

/// Calls that take longer than the launched work, as when a thread waits for a processor in them: the beginning is
/// unknown, and the work must not count as if it took no time.
#[test]
fn launches_that_may_have_begun_long_before_their_calls_ended_are_not_counted_as_short() {
    let rig = Rig::new();
    let mut client = rig.desk.client();
    client.begin(0);
    let kernel = client.must("slow_kernel 200000");
    let stream = client.must("stream");
    // The last launches count with the next measurement.
    let (mut launches, mut before) = (0, 0);
    let counted = loop {
        client.must(&format!("launch_on {kernel} {stream}"));
        client.must(&format!("sync_stream {stream}"));
        launches += 1;
        let busy = rig.until_work("over", |work| work.flight.is_none()).busy_ns;
        if launches >= 20 && busy > before {
            break busy;
        }
        before = busy;
    };
    let each_us = counted / launches / 1000;
    assert!(
        (1800..=3000).contains(&each_us),
        "{each_us} us each of {launches}"
    );
}

/// A launch goes to the context of its stream, whatever the thread's context.
#[test]
fn launches_on_a_stream_of_another_context_are_measured() {
    launches_are_measured(["context 0", "stream", "retain 0"]);
}

/// Of a green context the driver names the primary context only if asked by the second version.
#[test]
fn launches_on_a_stream_of_a_green_context_are_measured() {
    launches_are_measured(["retain 0", "green_stream", "context 0"]);
}

/// A driver of version 550 has green contexts, and not the second version.
#[test]
fn launches_on_a_stream_of_a_green_context_are_measured_with_older_drivers() {
    let rig = Rig::new();
    rig.board.set_fault(Fault::NoStreamContexts, true).unwrap();
    launches_are_measured_on(&rig, ["retain 0", "green_stream", "context 0"]);
}

/// The orders that choose the kernel's context, make the stream, and choose the thread's context for its launches.
fn launches_are_measured(orders: [&str; 3]) {
    launches_are_measured_on(&Rig::new(), orders);
}

fn launches_are_measured_on(rig: &Rig, orders: [&str; 3]) {
    let mut client = rig.desk.client();
    client.begin(0);
    client.must(orders[0]);
    let (kernel, stream) = (client.must("kernel"), client.must(orders[1]));
    client.must(orders[2]);
    for _ in 0..10 {
        client.must(&format!("launch_on {kernel} {stream}"));
    }
    client.must(&format!("sync_stream {stream}"));
    // Of 20 ms; the last launches wait for the next measurement.
    let work = rig.until_work("counted", |work| {
        work.flight.is_none() && work.busy_ns >= 12 * MS
    });
    assert_eq!(work.unmeasured, 0);
    // The thread still has its own.
    client.must("stream");
}

#[test]
fn a_launch_waits_for_its_turn_and_goes_no_further_than_that() {
    let rig = Rig::new();
    let (mut client, kernel, stream) = rig.member();
    rig.decide(Mode::Closed, 0);
    client.tell(&format!("burst {kernel} {stream} 30"));
    assert!(rig.rings(), "a thread that comes to wait calls");
    rig.until("waiting", |said| said.waiting && !said.busy);
    assert_eq!(rig.launches(), 0);

    let mut turns = 0;
    while rig.launches() < 30 {
        turns += 1;
        assert!(turns < 40, "{} launches in {turns} turns", rig.launches());
        let before = rig.launches();
        rig.decide(Mode::Turn, 20);
        let through = rig.until("through with its turn", |said| {
            !said.busy && rig.launches() > before
        });
        rig.decide(Mode::Closed, 0);
        // Ten fit; on a busy machine no expectation is exact to the millisecond.
        let launched = rig.launches() - before;
        assert!(
            launched <= 20,
            "{launched} launches of 2 ms in a turn of 20 ms"
        );
        assert!(through.waited_ns > 0);
    }
    assert!(turns >= 2, "all in {turns} turn");
    assert_eq!(rig.hear(&mut client).0, 0);
    let end = rig.until("idle", |said| !said.waiting && !said.busy);
    let used = end.used_ns / MS;
    assert!(
        (55..=600).contains(&used),
        "{used} ms for 30 launches of 2 ms"
    );
}

/// The arbiter tells at once when the turn begins, and is not called nor calls for it.
#[test]
fn a_launch_that_waits_begins_its_turn_by_itself() {
    let rig = Rig::new();
    let (mut client, kernel, stream) = rig.member();
    rig.decide(Mode::Closed, 0);
    client.tell(&format!("burst {kernel} {stream} 1"));
    assert!(rig.rings(), "a thread that comes to wait calls");
    let begins = monotonic_ns() + 30 * MS;
    rig.publish(Mode::Turn, begins..begins + 1000 * MS);
    assert_eq!(rig.hear(&mut client).0, 0);
    let over = monotonic_ns();
    assert!(over >= begins, "{} us too early", (begins - over) / 1000);
}

/// An event costs others on the GPU two changes of context, and makes the claim look busy until it is its turn.
#[test]
fn a_thread_that_waits_records_no_event_where_its_work_is_over() {
    let modes = [Mode::Open, Mode::Turn];
    for (length, mode) in ["2ms", "20us"].into_iter().zip(modes) {
        let rig = Rig::with_kernel(length);
        let (mut client, kernel, stream) = rig.member();
        for _ in 0..3 {
            rig.decide(mode, 50);
            client.tell(&format!("burst {kernel} {stream} 1"));
            assert_eq!(rig.hear(&mut client).0, 0);
        }
        let over = rig.until("over", |said| !said.busy && said.used_ns > 0);
        // It sees the second alone.
        rig.decide(Mode::Turn, 0);
        rig.decide(Mode::Closed, 0);
        client.tell(&format!("burst {kernel} {stream} 1"));
        let waits = rig.until("waiting", |said| said.waiting);
        let since = Instant::now();
        while since.elapsed() < Duration::from_millis(30) {
            rig.beat();
            assert!(!rig.said().busy, "{length}: {:?}", rig.said());
        }
        assert_eq!(waits.held_ns, over.held_ns, "{length}");
        assert_eq!(rig.said().held_ns, over.held_ns, "{length}");

        // What went while the GPU was not shared is unknown.
        rig.decide(Mode::Free, 0);
        assert_eq!(rig.hear(&mut client).0, 0);
        client.must(&format!("burst {kernel} {stream} 1"));
        rig.decide(Mode::Closed, 0);
        client.tell(&format!("burst {kernel} {stream} 1"));
        rig.until("seen", |said| said.held_ns > over.held_ns);
        rig.decide(Mode::Turn, 100);
        assert_eq!(rig.hear(&mut client).0, 0);
    }
}

#[test]
fn a_claim_that_is_alone_for_the_moment_runs_through() {
    let rig = Rig::new();
    let (mut client, kernel, stream) = rig.member();
    rig.decide(Mode::Open, 0);
    client.tell(&format!("burst {kernel} {stream} 100"));
    let (code, took) = rig.hear(&mut client);
    assert_eq!((code, rig.launches()), (0, 100));
    // 200 ms of kernels, the first of which was measured before the second.
    assert!((195_000..600_000).contains(&took), "{took} us");
    let end = rig.until("idle", |said| !said.busy);
    let used = end.used_ns / MS;
    assert!((195..600).contains(&used), "{used} ms");
}

/// A graph whose kernel was replaced by a shorter one, and whose program has waited for it.
#[test]
fn a_launch_does_not_wait_for_work_that_is_over() {
    let rig = Rig::with_kernel("200ms");
    let (mut client, kernel, stream) = rig.member();
    rig.decide(Mode::Open, 0);
    client.must(&format!("capture {stream}"));
    client.must(&format!("launch_on {kernel} {stream}"));
    let graph = client.must(&format!("captured {stream}"));
    let exec = client.must(&format!("instantiate {graph}"));
    client.must(&format!("graph_launch {exec} {stream}"));
    rig.until("over", |said| !said.busy && said.used_ns > 150 * MS);
    let costs = rig.desk.directory.path().join("sim/costs");
    std::fs::write(costs, "idle 1ms\n").unwrap();
    let short = client.must("kernel");
    client.must(&format!("change kernel {exec} {graph} 0 {short}"));
    let begun = Instant::now();
    for _ in 0..2 {
        client.tell(&format!("graph_launch {exec} {stream}"));
        assert_eq!(rig.hear(&mut client).0, 0);
        client.must(&format!("sync_stream {stream}"));
    }
    let took = begun.elapsed().as_millis();
    assert!(took < 100, "{took} ms for two kernels of 1 ms");
}

/// The need of short kernels is reported correctly, also for programs that are always ahead of the GPU and share it.
#[test]
fn short_launches_need_as_much_as_they_take() {
    let rig = Rig::with_kernel("20us");
    let mut members = [rig.member(), rig.member()];
    {
        let held = rig.desk.held.lock().unwrap();
        let word = Word::default().next(Mode::Open);
        held[0].limits.set_turn(word.0, 0..0, 4 * MS, 1, true);
    }
    let demand = || -> u64 {
        let held = rig.desk.held.lock().unwrap();
        held[0].usage.gates().map(|(.., said)| said.demand_ns).sum()
    };
    for round in 0..5 {
        let before = demand();
        for (client, kernel, stream) in &mut members {
            client.tell(&format!("flood {kernel} {stream} 9600 24"));
        }
        let took: Vec<u64> = members.iter_mut().map(|m| rig.hear(&mut m.0).1).collect();
        std::thread::sleep(Duration::from_millis(20));
        let needs = (demand() - before) / MS;
        // 384 ms of kernels, plus the recording of an event for each measured one.
        assert!(
            (350..=440).contains(&needs),
            "round {round}: {needs} ms in {took:?} us"
        );
    }
}

/// A kernel that began before anybody shared the GPU is reported with its beginning, and not any more when it is over.
#[test]
fn a_long_kernel_from_before_the_gpu_was_shared_is_reported() {
    let rig = Rig::with_kernel("4s");
    let (mut client, kernel, stream) = rig.member();
    let began = monotonic_ns();
    client.must(&format!("launch_on {kernel} {stream}"));
    std::thread::sleep(Duration::from_millis(50));
    rig.decide(Mode::Open, 0);
    let said = rig.until("reported", |said| said.since_ns > 0);
    assert!(said.since_ns.abs_diff(began) < 100 * MS, "{said:?}");
    rig.until("over", |said| said.since_ns == 0);
    assert!(monotonic_ns() - began > 3900 * MS);
}

/// The duration of a kernel beside a neighbour says nothing about its end in a turn.
#[test]
fn the_end_of_a_long_kernel_is_seen_soon() {
    // In 1 of 20 runs on two cores the slices distort the learnt durations: a known fault that this test is not about.
    let seen: Vec<Vec<u128>> = (0..3).map(|_| late_ends()).collect();
    println!("seen {seen:?} ms after the end");
    let learns = |late: &Vec<u128>| late.iter().min() < Some(&4);
    assert!(seen.iter().any(learns), "{seen:?} ms after the end");
}

/// Delay, in milliseconds, with which the ends of kernels are seen in turns, after the first one ran beside a
/// neighbour's.
fn late_ends() -> Vec<u128> {
    let rig = Rig::with_kernel("40ms");
    let mut members = [rig.member(), rig.member()];
    {
        let held = rig.desk.held.lock().unwrap();
        let word = Word::default().next(Mode::Open);
        held[0].limits.set_turn(word.0, 0..0, 4 * MS, 1, true);
        rig.word.set(word);
    }
    for (client, kernel, stream) in &mut members {
        client.tell(&format!("burst {kernel} {stream} 1"));
    }
    for (client, ..) in &mut members {
        assert_eq!(rig.hear(client).0, 0);
    }
    rig.decide(Mode::Turn, 60_000);
    let (client, kernel, stream) = &mut members[0];
    let mut late = Vec::new();
    for _ in 0..12 {
        client.tell(&format!("burst {kernel} {stream} 1"));
        assert_eq!(rig.hear(client).0, 0);
        let over = Instant::now();
        let busy = || -> bool {
            let held = rig.desk.held.lock().unwrap();
            held[0].usage.gates().any(|(.., said)| said.busy)
        };
        while busy() {
            rig.beat();
            std::thread::yield_now();
            assert!(over.elapsed() < Duration::from_secs(5), "never over");
        }
        late.push(over.elapsed().as_millis());
    }
    late
}

#[test]
fn all_threads_of_a_process_come_through() {
    let rig = Rig::new();
    let (mut client, kernel, _) = rig.member();
    rig.decide(Mode::Closed, 0);
    client.tell(&format!("burst_threads {kernel} 12 6"));
    rig.until("waiting", |said| said.waiting);
    let mut turns = 0;
    while rig.launches() < 72 {
        turns += 1;
        assert!(turns < 40, "{} launches in {turns} turns", rig.launches());
        let before = rig.launches();
        rig.decide(Mode::Turn, 20);
        rig.until("through", |said| !said.busy && rig.launches() > before);
        rig.decide(Mode::Closed, 0);
    }
    assert_eq!(rig.hear(&mut client).0, 0);
    assert_eq!(rig.launches(), 72);
}

#[test]
fn a_thread_that_waits_handles_signals_and_ends_with_its_process() {
    let rig = Rig::new();
    let (mut client, kernel, stream) = rig.member();
    client.must("heed");
    rig.decide(Mode::Closed, 0);
    client.tell(&format!("burst {kernel} {stream} 3"));
    rig.until("waiting", |said| said.waiting);
    for _ in 0..3 {
        // SAFETY: a child of this process.
        assert_eq!(unsafe { libc::kill(client.pid() as i32, libc::SIGUSR1) }, 0);
        rig.until("waiting on", |said| said.waiting);
    }
    rig.decide(Mode::Turn, 100);
    assert_eq!(rig.hear(&mut client).0, 0);
    assert!(
        client.must("heard") >= 1,
        "the handler ran while it waited or after"
    );

    // Killed while it waits: another process of the claim is not delayed.
    rig.decide(Mode::Closed, 0);
    client.tell(&format!("burst {kernel} {stream} 3"));
    rig.until("waiting", |said| said.waiting);
    let (mut other, kernel, stream) = rig.member();
    let pid = client.pid();
    client.kill();
    rig.desk.reap(pid);
    rig.decide(Mode::Turn, 100);
    other.tell(&format!("burst {kernel} {stream} 3"));
    assert_eq!(rig.hear(&mut other).0, 0);
}

#[test]
fn a_claim_that_ends_while_a_thread_waits_refuses_it() {
    let rig = Rig::new();
    let (mut client, kernel, stream) = rig.member();
    rig.decide(Mode::Closed, 0);
    // An arbiter whose heartbeat is valid for longer than this test.
    let much_later = monotonic_ns() + 60_000 * MS;
    rig.desk.held.lock().unwrap()[0]
        .limits
        .turn_beat(much_later);
    client.tell(&format!("burst {kernel} {stream} 3"));
    let begun = Instant::now();
    while !rig.said().waiting {
        assert!(begun.elapsed() < Duration::from_secs(20), "it never waits");
        std::thread::yield_now();
    }
    rig.desk.held.lock().unwrap()[0]
        .limits
        .set_state(State::NotGranted);
    assert_eq!(client.hear().0, 800);
    assert!(begun.elapsed() < Duration::from_secs(30), "woken at once");
    assert_eq!(rig.launches(), 0);
}

#[test]
fn a_service_that_is_killed_while_the_gate_is_closed_leaves_the_claim_its_request() {
    let rig = Rig::new();
    let (mut client, kernel, stream) = rig.member();
    rig.decide(Mode::Open, 0);
    client.must(&format!("burst {kernel} {stream} 10"));
    rig.decide(Mode::Closed, 0);
    client.tell(&format!("burst {kernel} {stream} 50"));
    rig.until("waiting", |said| said.waiting);
    let before = rig.launches();
    {
        let mut held = rig.desk.held.lock().unwrap();
        // Half of each frame.
        held[0].limits.set_frame(0, 10 * MS);
        // The socket closes with the service.
        held[0].doorbell = None;
    }
    let begun = Instant::now();
    let (code, _) = client.hear();
    let took = begun.elapsed().as_millis();
    assert_eq!((code, rig.launches() - before), (0, 50));
    // 100 ms of kernels in half of the time, after at most five periods of silence.
    assert!((130..2000).contains(&took), "{took} ms");
}

/// The only active claim had the GPU to itself when the service died: it gets no more than its request until the next
/// service.
#[test]
fn a_service_that_is_killed_while_the_gate_is_open_leaves_the_claim_its_request() {
    let rig = Rig::new();
    let (mut client, kernel, stream) = rig.member();
    rig.decide(Mode::Open, 0);
    client.must(&format!("burst {kernel} {stream} 10"));
    {
        let mut held = rig.desk.held.lock().unwrap();
        held[0].limits.set_frame(0, 10 * MS);
        held[0].doorbell = None;
    }
    client.tell(&format!("burst {kernel} {stream} 100"));
    let begun = Instant::now();
    let (code, _) = client.hear();
    let took = begun.elapsed().as_millis();
    assert_eq!((code, rig.launches()), (0, 110));
    // 200 ms of kernels in half of the time, after at most five periods without a visible change.
    assert!((300..2000).contains(&took), "{took} ms");
}

#[test]
fn a_context_that_ends_takes_its_events_with_it() {
    let rig = Rig::new();
    let (mut client, kernel, stream) = rig.member();
    rig.decide(Mode::Open, 0);
    client.must(&format!("launch_on {kernel} {stream}"));
    client.must(&format!("launch_on {kernel} {stream}"));
    client.must("reset 0");
    client.must("retain 0");
    let (kernel, stream) = (client.must("kernel"), client.must("stream"));
    client.tell(&format!("burst {kernel} {stream} 20"));
    assert_eq!(rig.hear(&mut client).0, 0);
    rig.until("idle", |said| !said.busy);
    client.end();
}

/// Releasing a primary context that another library still retains ends nothing, and waits for nothing.
#[test]
fn a_release_that_is_not_the_last_does_not_wait_for_the_gpu() {
    let rig = Rig::new();
    let (mut client, kernel, stream) = rig.member();
    rig.decide(Mode::Open, 0);
    client.must("retain 0");
    client.must(&format!("hold {stream} 1500"));
    let begun = Instant::now();
    client.must(&format!("launch_on {kernel} {stream}"));
    client.must("release 0");
    let took = begun.elapsed();
    assert!(took < Duration::from_millis(1000), "{took:?}");
    // The next release is the last, and the context's events end with it.
    assert!(rig.desk.charged(0) > 0);
    client.must("release 0");
    assert_eq!(rig.desk.charged(0), 0);
    client.must("retain 0");
    let (kernel, stream) = (client.must("kernel"), client.must("stream"));
    client.tell(&format!("burst {kernel} {stream} 20"));
    assert_eq!(rig.hear(&mut client).0, 0);
    client.end();
}

/// A device's last green context ends the primary one, with the gate's events: after their last look.
#[test]
fn the_last_launch_of_a_green_context_counts() {
    last_launch_counts(|_, _, stream| stream);
}

/// The same on the default stream of a thread whose context it is.
#[test]
fn the_last_launch_in_a_green_context_counts() {
    last_launch_counts(|client, green, _| {
        let context = client.must(&format!("from_green {green}"));
        client.must(&format!("current {context}"));
        0
    });
}

fn last_launch_counts(stream: impl Fn(&mut Client, u64, u64) -> u64) {
    let rig = Rig::new();
    let (mut client, kernel, _) = rig.member();
    let own = client.must("green_stream");
    let green = client.must(&format!("green_of {own}"));
    client.must("retain 0");
    client.must("release 0");
    client.must("release 0");
    let stream = stream(&mut client, green, own);
    // An end that comes so late is not seen at once.
    client.must(&format!("hold {stream} 500"));
    client.must(&format!("launch_on {kernel} {stream}"));
    client.must(&format!("green_destroy {green}"));
    assert_eq!(rig.desk.charged(0), 0);
    rig.until_work("counted", |work| {
        work.flight.is_none() && work.busy_ns >= 3 * MS / 2
    });
}

#[test]
fn a_capture_is_not_disturbed() {
    let rig = Rig::new();
    let (mut client, kernel, stream) = rig.member();
    let other = client.must("stream");
    rig.decide(Mode::Open, 0);
    // Strict capture: no thread may make calls that could invalidate it.
    client.must(&format!("capture {stream}"));
    client.must(&format!("launch_on {kernel} {stream}"));
    client.tell(&format!("launch_on {kernel} {other}"));
    assert_eq!(rig.hear(&mut client).0, 0);
    client.must(&format!("launch_on {kernel} {stream}"));
    let graph = client.must(&format!("captured {stream}"));
    let exec = client.must(&format!("instantiate {graph}"));
    rig.decide(Mode::Closed, 0);
    client.tell(&format!("graph_launch {exec} {stream}"));
    rig.until("waiting", |said| said.waiting);
    let before = rig.launches();
    rig.decide(Mode::Turn, 100);
    assert_eq!(rig.hear(&mut client).0, 0);
    assert_eq!(rig.launches() - before, 2, "the graph's kernels");
    client.must(&format!("sync_stream {stream}"));
    client.must(&format!("exec_destroy {exec}"));
}

/// The GPU is not shared when the capture begins; a neighbour comes before its end.
#[test]
fn a_claim_that_joins_during_a_capture_does_not_disturb_it() {
    let rig = Rig::new();
    let (mut client, kernel, stream) = rig.member();
    let other = client.must("stream");
    client.must(&format!("capture {stream}"));
    client.must(&format!("launch_on {kernel} {stream}"));
    rig.decide(Mode::Closed, 0);
    // Recorded work does not wait; work beside the capture does.
    client.must(&format!("launch_on {kernel} {stream}"));
    assert_eq!(rig.launches(), 0);
    client.tell(&format!("launch_on {kernel} {other}"));
    rig.until("waiting", |said| said.waiting);
    assert_eq!(rig.launches(), 0);
    rig.decide(Mode::Turn, 100);
    assert_eq!(rig.hear(&mut client).0, 0);
    let graph = client.must(&format!("captured {stream}"));
    let exec = client.must(&format!("instantiate {graph}"));
    let before = rig.until("through", |said| !said.waiting && !said.busy);
    client.tell(&format!("graph_launch {exec} {stream}"));
    assert_eq!(rig.hear(&mut client).0, 0);
    rig.until("through", |said| {
        !said.busy && said.used_ns > before.used_ns + 3 * MS
    });
    assert_eq!(rig.launches(), 3, "one beside the capture, two in it");
}

#[test]
fn a_forked_child_has_a_gate_of_its_own() {
    let rig = Rig::new();
    let (mut client, kernel, stream) = rig.member();
    rig.decide(Mode::Open, 0);
    client.tell(&format!("burst {kernel} {stream} 10"));
    assert_eq!(rig.hear(&mut client).0, 0);
    // The child ends at once, with the parent's gate in its memory.
    client.ask("fork");
    client.tell(&format!("burst {kernel} {stream} 10"));
    assert_eq!(rig.hear(&mut client).0, 0);
    client.end();
}

#[test]
fn long_copies_take_turns_and_short_ones_pass() {
    let rig = Rig::new();
    let (mut client, _, stream) = rig.member();
    let bytes = 64 << 20;
    let (from, to) = (
        client.must(&format!("alloc {bytes}")),
        client.must(&format!("alloc {bytes}")),
    );
    rig.decide(Mode::Closed, 0);
    client.must(&format!("copy {to} {from} 65536 {stream}"));
    client.must(&format!("zero {to} 4096"));
    assert_eq!(rig.said(), GateView::default(), "nobody was asked");
    for order in [
        format!("copy {to} {from} {bytes} {stream}"),
        format!("zero {to} {bytes}"),
    ] {
        rig.decide(Mode::Closed, 0);
        let before = rig.said().used_ns;
        client.tell(&order);
        rig.until("waiting", |said| said.waiting);
        rig.decide(Mode::Turn, 100);
        assert_eq!(rig.hear(&mut client).0, 0, "{order}");
        rig.until("done", |said| !said.busy && said.used_ns > before);
    }
    assert_eq!(rig.launches(), 0, "no kernels");
    client.must(&format!("sync_stream {stream}"));
}

#[test]
fn a_stream_that_waits_for_a_host_function_holds_up_no_other() {
    holds_up_no_other(|client, held, _| {
        client.must(&format!("hold {held} 2000"));
    });
}

#[test]
fn a_stream_that_waits_for_another_holds_up_no_other() {
    holds_up_no_other(|client, held, other| {
        client.must(&format!("hold {other} 2000"));
        client.must(&format!("wait_stream {held} {other}"));
    });
}

#[test]
fn a_stream_that_waits_for_a_value_holds_up_no_other() {
    holds_up_no_other(|client, held, other| {
        let at = client.must("alloc 4096");
        client.must(&format!("zero {at} 4096"));
        client.must(&format!("wait_value {held} {at} 1"));
        client.must(&format!("hold {other} 2000"));
        client.must(&format!("write_value {other} {at} 1"));
    });
}

#[test]
fn a_graph_that_waits_for_a_host_function_holds_up_no_other() {
    holds_up_no_other(|client, held, _| {
        let kernel = client.must("kernel");
        client.must(&format!("burst {kernel} {held} 4"));
        client.must(&format!("sync_stream {held}"));
        std::thread::sleep(Duration::from_millis(100));
        client.must(&format!("capture {held}"));
        client.must(&format!("launch_on {kernel} {held}"));
        client.must(&format!("hold {held} 2000"));
        client.must(&format!("launch_on {kernel} {held}"));
        let graph = client.must(&format!("captured {held}"));
        let exec = client.must(&format!("instantiate {graph}"));
        client.must(&format!("graph_launch {exec} {held}"));
    });
}

/// `hold` lets the first stream wait for two seconds: the process's other streams go on, and no turn is kept for it.
fn holds_up_no_other(hold: impl Fn(&mut Client, u64, u64)) {
    let rig = Rig::new();
    let (mut client, kernel, stream) = rig.member();
    let (held, other) = (client.must("stream"), client.must("stream"));
    rig.decide(Mode::Turn, 60_000);
    client.must(&format!("burst {kernel} {stream} 2"));
    hold(&mut client, held, other);
    let begun = Instant::now();
    for _ in 0..4 {
        client.must(&format!("launch_on {kernel} {held}"));
    }
    let mut worst = 0;
    while begun.elapsed() < Duration::from_millis(1500) {
        client.tell(&format!("burst {kernel} {stream} 2"));
        let (code, took_us) = rig.hear(&mut client);
        assert_eq!(code, 0);
        worst = worst.max(took_us / 1000);
    }
    let quiet = rig.until("quiet while only the held one waits", |said| !said.busy);
    assert!(begun.elapsed() < Duration::from_millis(1900), "it waits");
    // When the stream goes on, its work is seen and counted.
    let again = format!("at work again for 6 ms more than {} ns", quiet.used_ns);
    let after = rig.until(&again, |said| {
        !said.busy && said.used_ns > quiet.used_ns + 6 * MS
    });
    println!("worst step {worst} ms, {after:?}");
    assert!(worst < 100, "{worst} ms");
}

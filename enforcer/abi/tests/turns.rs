//! The arbiter of a GPU and the processes of a claim.

#![allow(
    clippy::unwrap_used,
    unsafe_code,
    reason = "a test fails by panicking; closes a descriptor, sets a number of a thread"
)]

use std::{
    fs::File,
    io::{Read, Seek, Write},
    os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use gshare_abi::{
    Bell, GateView, GpuUuid, LimitsMap, Reach, UsageMap, futex_wait,
    host::{Doorbell, LimitsFile, LimitsInit, UsageMemfd},
    monotonic_ns, on_time,
};

const UUID: GpuUuid = GpuUuid([9; 16]);

fn limits(directory: &tempfile::TempDir) -> LimitsFile {
    let init = LimitsInit {
        claim: 3,
        uuid: UUID,
        ..LimitsInit::default()
    };
    LimitsFile::create(&directory.path().join("3"), &init).unwrap()
}

#[test]
fn a_new_turn_wakes_who_waits_on_a_read_only_mapping() {
    let directory = tempfile::tempdir().unwrap();
    let file = limits(&directory);
    let map = LimitsMap::new(file.member_fd().unwrap().as_fd()).unwrap();
    assert_eq!(map.page().turn.word.load(Ordering::Relaxed), 0);
    let begun = Instant::now();
    // Later than the end of this test: only the new turn can end the wait.
    let late = monotonic_ns() + 60_000_000_000;
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    while map.page().turn.word.load(Ordering::Acquire) == 0 {
                        futex_wait(&map.page().turn.word, 0, Some(late), Reach::Machine);
                    }
                    let turn = &map.page().turn;
                    [&turn.begins_ns, &turn.ends_ns].map(|ns| ns.load(Ordering::Relaxed))
                })
            })
            .collect();
        std::thread::yield_now();
        file.set_turn(6, 66..77, 88, 3, true);
        for waiter in waiters {
            assert_eq!(waiter.join().unwrap(), [66, 77]);
        }
    });
    assert!(begun.elapsed() < Duration::from_secs(10));
    file.turn_beat(5);
    file.set_frame(1, 2);
    let turn = &map.page().turn;
    let words = [&turn.beat_ns, &turn.frame_offset_ns, &turn.frame_window_ns];
    assert_eq!(words.map(|word| word.load(Ordering::Relaxed)), [5, 1, 2]);
    assert_eq!(file.turn_word(), 6);
}

#[test]
fn a_wait_ends_at_its_time_and_not_before() {
    let directory = tempfile::tempdir().unwrap();
    let file = limits(&directory);
    let until = monotonic_ns() + 30_000_000;
    futex_wait(&file.page().turn.word, 0, Some(until), Reach::Machine);
    assert!(monotonic_ns() >= until);
    futex_wait(&file.page().turn.word, 1, None, Reach::Machine);
}

#[test]
fn a_bell_is_heard_and_the_end_of_the_service_seen() {
    let door = Doorbell::new().unwrap();
    let bell = Bell::new(door.member_fd().try_clone_to_owned().unwrap()).unwrap();
    assert_eq!(door.drain(), 0);
    assert_eq!(bell.service_lives(), Some(true));
    // More than fit are harmless.
    for _ in 0..10_000 {
        bell.ring();
    }
    assert!(door.drain() > 0);
    assert_eq!(door.drain(), 0);
    drop(door);
    assert_eq!(bell.service_lives(), Some(false));
    bell.ring();
    let file: OwnedFd = tempfile::tempfile().unwrap().into();
    assert!(Bell::new(file).is_err());
}

#[test]
fn a_descriptor_that_the_program_gave_a_new_meaning_is_left_alone() {
    let door = Doorbell::new().unwrap();
    let own = door.member_fd().try_clone_to_owned().unwrap();
    let number = own.as_raw_fd();
    let bell = Bell::new(own).unwrap();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"text").unwrap();
    let other = File::from(file.as_fd().try_clone_to_owned().unwrap()).into_raw_fd();
    // SAFETY: both are open; the bell's number now means the file.
    assert_eq!(unsafe { libc::dup2(other, number) }, number);
    bell.ring();
    assert_eq!(bell.service_lives(), None);
    let mut text = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "text");
    assert_eq!(door.drain(), 0);
}

/// The arbiter serves all claims in turn: endless calls of a claim must not occupy it.
#[test]
fn a_bell_that_is_rung_without_an_end_is_heard_and_left() {
    let door = Doorbell::new().unwrap();
    let over = Arc::new(AtomicBool::new(false));
    for _ in 0..4 {
        let end = door.member_fd().try_clone_to_owned().unwrap();
        let over = Arc::clone(&over);
        std::thread::spawn(move || {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            while !over.load(Ordering::Relaxed) {
                // SAFETY: one valid byte.
                unsafe { libc::send(end.as_raw_fd(), (&raw const flags).cast(), 1, flags) };
            }
        });
    }
    let until = monotonic_ns() + 500_000_000;
    let mut most = 0;
    while monotonic_ns() < until {
        most = most.max(door.drain());
    }
    over.store(true, Ordering::Relaxed);
    assert!((1..=512).contains(&most), "{most} calls in one go");
}

#[test]
fn what_a_process_says_of_its_work_goes_with_it() {
    let mut usage = UsageMemfd::create(3, UUID, 1).unwrap();
    let seat = usage.assign_slot(10, 1).unwrap();
    let member = UsageMap::new(usage.fd().try_clone_to_owned().unwrap()).unwrap();
    let mut said = GateView {
        waiting: true,
        busy: false,
        stamp: 1,
        expected_ns: 40,
        used_ns: 30,
        held_ns: 35,
        waited_ns: 20,
        demand_ns: 10,
        said_ns: 9,
        since_ns: 8,
    };
    member.page().gates[seat.slot].publish(&said);
    let seen: Vec<_> = usage.gates().collect();
    assert_eq!(seen, [(seat.slot, 10, said)]);
    said.busy = true;
    said.stamp = 2;
    member.page().gates[seat.slot].publish(&said);
    assert_eq!(usage.gates().next(), Some((seat.slot, 10, said)));
    assert!(usage.reclaim(seat.slot, seat.generation));
    assert_eq!(usage.gates().count(), 0);
    usage.assign_slot(11, 1).unwrap();
    let fresh = GateView::default();
    assert_eq!(usage.gates().next(), Some((seat.slot, 11, fresh)));
}

/// A turn that begins by itself is not late by the slack of the program's timers, and the program keeps its own.
#[test]
fn a_sleep_that_ends_on_time_changes_the_threads_timers_for_that_time_alone() {
    let before: libc::c_ulong = 70_000;
    // SAFETY: sets and reads a number of the calling thread.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, before) };
    // SAFETY: as above.
    let slack_ns = || unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) };
    let mut meanwhile = 0;
    on_time(|| meanwhile = slack_ns());
    assert_eq!([meanwhile, slack_ns()], [1, 70_000]);
}

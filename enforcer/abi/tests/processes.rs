//! The pages between real processes: members that are killed at random moments, members that overwrite everything, a
//! service that restarts.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs::{File, OpenOptions},
    io::Read,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::FileExt,
    },
    process::{Child, Command, Stdio},
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use gshare_abi::{
    Flight, GateView, GpuUuid, LimitsMap, Outcome, State, UsageMap, WorkView,
    host::{LimitsFile, LimitsInit, UsageMemfd},
    monotonic_ns,
};

const UUID: GpuUuid = GpuUuid([9; 16]);
const GPU_BYTES: u64 = 80 << 30;

fn open_fd_of_parent(variable: &str, write: bool) -> Option<OwnedFd> {
    let path = std::env::var(variable).ok()?;
    let file = OpenOptions::new().read(true).write(write).open(path);
    Some(file.unwrap().into())
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(5)
}

fn spawn(role: &str, limits: &OwnedFd, usage: &UsageMemfd, slot: usize) -> Child {
    let fd_path = |fd: i32| format!("/proc/{}/fd/{fd}", std::process::id());
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", role, "--nocapture"])
        .env("CHILD_LIMITS", fd_path(limits.as_raw_fd()))
        .env("CHILD_USAGE", fd_path(usage.fd().as_raw_fd()))
        .env("CHILD_SLOT", slot.to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Not a test of its own: runs a member if the environment asks for it.
#[test]
fn child_reserves_and_gives_back_for_ever() {
    let (Some(limits), Some(usage)) = (
        open_fd_of_parent("CHILD_LIMITS", false),
        open_fd_of_parent("CHILD_USAGE", true),
    ) else {
        println!("skipped: runs as a child of another test only");
        return;
    };
    let me: usize = std::env::var("CHILD_SLOT").unwrap().parse().unwrap();
    let limits = LimitsMap::new(limits.as_fd()).unwrap();
    let usage = UsageMap::new(usage).unwrap();
    let page = usage.page();
    let (mut own, mut dice) = (0_u64, 88_172_645_463_325_252 ^ me as u64);
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        let bytes = dice % 400;
        if dice & 4096 == 0 {
            let cap = || limits.page().memory_cap_bytes.load(Ordering::SeqCst);
            if matches!(page.reserve(me, own, bytes, cap), Outcome::Granted { .. }) {
                own += bytes;
            }
        } else {
            own -= bytes.min(own);
            page.slots[me].charge.store(own, Ordering::SeqCst);
        }
        page.stripes[me][0].launches.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn killed_members_lose_nothing_and_the_cap_holds_throughout() {
    let directory = tempfile::tempdir().unwrap();
    let init = LimitsInit {
        claim: 3,
        uuid: UUID,
        token: 77,
        memory_cap_bytes: 1000,
        ..LimitsInit::default()
    };
    let file = LimitsFile::create(&directory.path().join("3"), &init).unwrap();
    let limits = file.member_fd().unwrap();
    let mut usage = UsageMemfd::create(3, UUID, 77).unwrap();
    let role = "child_reserves_and_gives_back_for_ever";
    let mut members: Vec<_> = (0..8)
        .map(|_| {
            let seat = usage.assign_slot(std::process::id(), rand_start()).unwrap();
            (seat, spawn(role, &limits, &usage, seat.slot))
        })
        .collect();
    let mut looked: u64 = 0;
    for kill in 0..60 {
        let seen = usage.page().launches(members[kill % 8].0.slot);
        let deadline = Instant::now() + Duration::from_secs(20);
        // Lets the victim run for a varying time, and checks the sum all the time.
        loop {
            if let Some(sum) = sum_at_one_moment(&usage) {
                assert!(sum <= 1000, "{sum}");
                looked += 1;
            }
            let done = usage.page().launches(members[kill % 8].0.slot);
            if done > seen + 10 + (kill as u64 * 37) % 101 {
                break;
            }
            assert!(Instant::now() < deadline, "member {kill} stands still");
        }
        let (seat, child) = &mut members[kill % 8];
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(usage.reclaim(seat.slot, seat.generation));
        assert!(!usage.reclaim(seat.slot, seat.generation), "only once");
        let again = usage.assign_slot(std::process::id(), rand_start()).unwrap();
        assert_eq!(again.slot, seat.slot, "the free slot is handed out again");
        assert!(again.generation > seat.generation);
        *seat = again;
        *child = spawn(role, &limits, &usage, again.slot);
    }
    for (seat, child) in &mut members {
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(usage.reclaim(seat.slot, seat.generation));
    }
    assert!(looked > 60, "only {looked} looks");
    assert_eq!(usage.page().charged_bytes(), 0);
    assert_eq!(usage.charged_bytes(GPU_BYTES), 0);
    assert!(usage.page().slots.iter().all(|slot| {
        slot.charge.load(Ordering::SeqCst) == 0 && slot.reserving.load(Ordering::SeqCst) == 0
    }));
}

/// The sum of the charges, if nothing changed during the read: each change of a charge is followed by a step of the
/// member's counter.
fn sum_at_one_moment(usage: &UsageMemfd) -> Option<u64> {
    let collect = || -> Vec<(u64, u64)> {
        let page = usage.page();
        let members = page.slots[..8].iter().zip(&page.stripes);
        members
            .map(|(slot, stripes)| {
                let charge = slot.charge.load(Ordering::SeqCst);
                (charge, stripes[0].launches.load(Ordering::SeqCst))
            })
            .collect()
    };
    let (first, second) = (collect(), collect());
    (first == second).then(|| first.iter().map(|(charge, _)| charge).sum())
}

/// Varying start times, so that one process can stand in for many.
fn rand_start() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Time that this thread has had on a processor.
fn worked() -> Duration {
    let figures = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(figures.split(' ').next().unwrap().parse().unwrap())
}

#[test]
fn a_stopped_member_in_the_middle_costs_a_moment() {
    let usage = UsageMemfd::create(1, UUID, 0).unwrap();
    let mut usage = usage;
    let stopped = usage.assign_slot(1, 1).unwrap();
    let me = usage.assign_slot(2, 1).unwrap();
    let page = usage.page();
    page.slots[stopped.slot]
        .reserving
        .store(900, Ordering::SeqCst);
    let begun = worked();
    let granted = page.reserve(me.slot, 0, 100, || 1000);
    assert_eq!(granted, Outcome::Granted { charged: 100 });
    let refused = page.reserve(me.slot, 100, 100, || 1000);
    assert_eq!(refused, Outcome::Refused { charged: 100 });
    // Of the processor: in each round others may run.
    assert!(worked() - begun < Duration::from_secs(1));
}

#[test]
fn a_scribbling_member_is_read_with_clamps() {
    let mut usage = UsageMemfd::create(1, UUID, 0).unwrap();
    let first = usage.assign_slot(10, 1).unwrap();
    let second = usage.assign_slot(11, 1).unwrap();
    let member = UsageMap::new(usage.fd().try_clone_to_owned().unwrap()).unwrap();
    let file = File::from(usage.fd().try_clone_to_owned().unwrap());
    assert!(file.set_len(10).is_err(), "sealed");
    assert!(file.set_len(1 << 20).is_err(), "sealed");
    for slot in &member.page().slots {
        slot.charge.store(u64::MAX, Ordering::SeqCst);
        slot.requested.store(u64::MAX, Ordering::SeqCst);
        slot.generation.store(u64::MAX, Ordering::SeqCst);
    }
    let seen = usage.read_slots(GPU_BYTES);
    assert_eq!(seen.len(), 2, "only slots that were handed out");
    assert_eq!((seen[0].pid, seen[1].pid), (10, 11));
    assert_eq!(seen[0].charge_bytes, GPU_BYTES);
    assert_eq!(usage.charged_bytes(u64::MAX), u64::MAX, "saturates");
    assert!(matches!(
        usage.page().reserve(second.slot, 0, 1, || 100),
        Outcome::Refused { charged: u64::MAX }
    ));
    assert!(usage.reclaim(first.slot, first.generation));
    assert_eq!(usage.read_slots(GPU_BYTES).len(), 1);
}

#[test]
fn launches_of_all_threads_count_and_end_with_the_process() {
    let mut usage = UsageMemfd::create(1, UUID, 0).unwrap();
    let seat = usage.assign_slot(10, 1).unwrap();
    let other = usage.assign_slot(11, 1).unwrap();
    let member = UsageMap::new(usage.fd().try_clone_to_owned().unwrap()).unwrap();
    let view = |usage: &UsageMemfd, slot: usize| {
        let slots = usage.read_slots(GPU_BYTES);
        let found = slots.iter().find(|view| view.slot == slot).unwrap();
        (found.launches, found.last_launch_ns)
    };
    assert_eq!(view(&usage, seat.slot), (0, None));
    let before = monotonic_ns();
    for (number, stripe) in (1..).zip(&member.page().stripes[seat.slot]) {
        stripe.launches.fetch_add(number, Ordering::Relaxed);
    }
    let (launches, last) = view(&usage, seat.slot);
    assert_eq!(launches, 136);
    assert!(last.is_some_and(|at| before <= at && at <= monotonic_ns()));
    assert_eq!(view(&usage, seat.slot), (136, last), "none since");
    assert_eq!(view(&usage, other.slot), (0, None));
    assert!(usage.reclaim(seat.slot, seat.generation));
    let again = usage.assign_slot(12, 1).unwrap();
    assert_eq!(again.slot, seat.slot);
    assert_eq!(
        view(&usage, again.slot),
        (0, None),
        "the counters start again"
    );
}

#[test]
fn slots_run_out_with_a_message_and_come_back() {
    let mut usage = UsageMemfd::create(1, UUID, 0).unwrap();
    let seats: Vec<_> = (1..=128)
        .map(|pid| usage.assign_slot(pid, 5).unwrap())
        .collect();
    let error = usage.assign_slot(500, 5).unwrap_err().to_string();
    assert!(error.contains("500") && error.contains("128"), "{error}");
    let again = usage.assign_slot(7, 5).unwrap();
    assert_eq!(again, seats[6], "a process keeps its slot");
    assert!(usage.reclaim(seats[3].slot, seats[3].generation));
    assert_eq!(usage.assign_slot(500, 5).unwrap().slot, seats[3].slot);
}

#[test]
fn a_restarted_service_finds_the_page_in_a_member() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("limits");
    let init = LimitsInit {
        claim: 4,
        uuid: UUID,
        token: 5,
        epoch: 1,
        memory_cap_bytes: 500,
        ..LimitsInit::default()
    };
    let file = LimitsFile::create(&path, &init).unwrap();
    let again = LimitsFile::create(&path, &init).unwrap_err();
    assert_eq!(again.kind(), std::io::ErrorKind::AlreadyExists);
    let member_limits = LimitsMap::new(file.member_fd().unwrap().as_fd()).unwrap();
    let mut usage = UsageMemfd::create(4, UUID, 5).unwrap();
    let seat = usage.assign_slot(4711, 99).unwrap();
    let member = UsageMap::new(usage.fd().try_clone_to_owned().unwrap()).unwrap();
    member.page().slots[seat.slot]
        .charge
        .store(123, Ordering::SeqCst);
    drop((file, usage));

    let file = LimitsFile::open(&path).unwrap();
    assert_eq!((file.page().claim(), file.page().uuid()), (4, UUID));
    assert_eq!(file.page().token(), 5);
    let me = std::process::id();
    assert!(UsageMemfd::find(me, 9, UUID, 5, soon()).unwrap().is_none());
    assert!(UsageMemfd::find(me, 4, UUID, 6, soon()).unwrap().is_none());
    let usage = UsageMemfd::find(me, 4, UUID, 5, soon()).unwrap().unwrap();
    let owners: Vec<_> = usage.owners().collect();
    assert_eq!(owners, [(seat, 4711, 99)]);
    assert_eq!(usage.charged_bytes(GPU_BYTES), 123);
    file.set_epoch(2);
    file.set_memory_cap(600);
    file.set_state(State::NotGranted);
    let seen = member_limits.page();
    assert_eq!(seen.epoch.load(Ordering::Relaxed), 2);
    assert_eq!(seen.memory_cap_bytes.load(Ordering::Relaxed), 600);
    assert_eq!(seen.state(), State::NotGranted);
}

#[test]
fn limits_pages_change_places() {
    let directory = tempfile::tempdir().unwrap();
    let path = |n: u8| directory.path().join(format!("{n}.limits"));
    let gpu = |n: u8| GpuUuid([n; 16]);
    let page = |n: u8| {
        let init = LimitsInit {
            uuid: gpu(n),
            token: n.into(),
            ..LimitsInit::default()
        };
        LimitsFile::create(&path(n), &init).unwrap()
    };
    let mut pages = [page(0), page(1), page(2)];
    let to = [1, 2, 0];
    let moved = pages.iter_mut().zip(to);
    let mut moved: Vec<_> = moved.map(|(p, to)| (p, gpu(to), path(to))).collect();
    LimitsFile::relabel(&mut moved).unwrap();
    for (token, to) in to.into_iter().enumerate() {
        let found = LimitsFile::open(&path(to)).unwrap();
        assert_eq!(found.page().token(), token as u64);
        assert_eq!(found.page().uuid(), gpu(to));
        assert_eq!(pages[token].path(), path(to));
    }
    assert_eq!(directory.path().read_dir().unwrap().count(), 3);
}

#[test]
fn descriptors_that_are_not_pages_are_errors() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, "short").unwrap();
    let open = |path: &std::path::Path| -> OwnedFd { File::open(path).unwrap().into() };
    assert!(LimitsMap::new(open(&path).as_fd()).is_err());
    assert!(UsageMap::new(open(&path)).is_err());
    assert!(LimitsFile::open(&path).is_err());
    std::fs::write(&path, vec![0xff; 40 << 10]).unwrap();
    assert!(LimitsMap::new(open(&path).as_fd()).is_err());
    assert!(UsageMap::new(open(&path)).is_err());
    let mut text = String::new();
    let error = LimitsFile::open(&path).unwrap_err();
    text.push_str(&error.to_string());
    assert!(text.contains("not a limits page"), "{text}");
    let (mut reader, _writer) = std::io::pipe().unwrap();
    assert!(UsageMap::new(reader.as_fd().try_clone_to_owned().unwrap()).is_err());
    drop(_writer);
    reader.read_to_string(&mut text).unwrap();
}

/// The words of pages of 0.2 that are not 0, each with its place.
#[rustfmt::skip]
const USAGE_OF_0_2: &[(u64, u64)] = &[
    (0, 0x3165_7375_7268_7367), (8, 0x15_1000_0000_0003), (16, 3), (24, 77), (32, 0x909_0909_0909_0909),
    (40, 0x909_0909_0909_0909), (48, 1), (4096, 1), (4104, 2), (4112, 3), (4120, 4), (4128, 5),
    (4224, 1), (4232, 100), (4240, 0x1_0000_1267), (4248, 6), (4256, 7), (4264, 8), (4272, 9),
    (4296, 10), (4304, 11), (4312, 12), (36992, 20), (37128, 21), (299008, 3), (299016, 1),
    (299024, 30), (299032, 31), (299040, 33), (299048, 34), (299056, 35), (299064, 36),
    (299072, 32), (299136, 4), (299144, 40), (299152, 41), (299160, 42), (299168, 43), (299176, 44),
    (299184, 45), (299192, 46), (299200, 47), (331904, 22),
];
#[rustfmt::skip]
const LIMITS_OF_0_2: &[(u64, u64)] = &[
    (0, 0x316d_696c_7268_7367), (8, 0x1000_0000_0003), (16, 3), (24, 0x909_0909_0909_0909),
    (32, 0x909_0909_0909_0909), (40, 77), (48, 2), (56, 0x7_0000_0001), (64, 50), (72, 51), (80, 52),
    (88, 53), (96, 0x37_0000_0036), (104, 68), (112, 69), (120, 0x38_0000_0039), (128, 61), (136, 62),
    (144, 65), (152, 66), (160, 67), (168, 63), (176, 64), (184, 60),
];

fn words(page: impl AsFd) -> Vec<(u64, u64)> {
    let page = File::from(page.as_fd().try_clone_to_owned().unwrap());
    let mut bytes = vec![0; page.metadata().unwrap().len() as usize];
    page.read_exact_at(&mut bytes, 0).unwrap();
    let words = bytes
        .chunks_exact(8)
        .map(|w| u64::from_le_bytes(w.try_into().unwrap()));
    (0..)
        .step_by(8)
        .zip(words)
        .filter(|(_, word)| *word != 0)
        .collect()
}

/// Programs keep the library and the pages that they started with: a service that starts later takes them over, and
/// what it writes stays at the places where the library reads it.
#[test]
#[cfg(target_endian = "little")]
fn the_pages_of_0_2_are_understood() {
    let mut usage = UsageMemfd::create(3, UUID, 77).unwrap();
    let seat = usage.assign_slot(4711, 100).unwrap();
    let (page, slot) = (usage.page(), &usage.page().slots[seat.slot]);
    let words_of_slot = [
        &slot.charge,
        &slot.reserving,
        &slot.requested,
        &slot.context_bytes,
        &slot.allocations,
        &slot.refusals,
        &slot.last_refused_bytes,
        &slot.last_refusal_ns,
        &slot.flags,
        &slot.mps_sms,
        &slot.charge_peak,
        &slot.copy,
    ];
    for (word, value) in words_of_slot.into_iter().zip(1..) {
        word.store(value, Ordering::SeqCst);
    }
    page.stripes[seat.slot][1]
        .launches
        .store(20, Ordering::SeqCst);
    page.stripes[seat.slot][2]
        .copied
        .store(21, Ordering::SeqCst);
    page.marks[seat.slot][2].entry.store(22, Ordering::SeqCst);
    let view = GateView {
        waiting: true,
        busy: true,
        stamp: 1,
        expected_ns: 30,
        used_ns: 31,
        held_ns: 32,
        waited_ns: 33,
        demand_ns: 34,
        said_ns: 35,
        since_ns: 36,
    };
    page.gates[seat.slot].publish(&view);
    let work = WorkView {
        busy_ns: 40,
        sm_ns: 41,
        warp_ns: 42,
        unmeasured: 43,
        flight: Some(Flight {
            since_ns: 44,
            expected_ns: Some(45),
            sms_milli: 46,
            warps_milli: 47,
        }),
    };
    page.gates[seat.slot].publish_work(&work);
    assert_eq!(words(usage.fd()), USAGE_OF_0_2);

    let kept = UsageMemfd::create(3, UUID, 77).unwrap();
    let file = File::from(kept.fd().try_clone_to_owned().unwrap());
    for (at, word) in USAGE_OF_0_2 {
        file.write_all_at(&word.to_le_bytes(), *at).unwrap();
    }
    let taken = UsageMemfd::adopt(file.into(), 3, UUID, 77).unwrap();
    let seen = &taken.read_slots(GPU_BYTES)[0];
    assert_eq!((seen.pid, seen.start_time, seen.generation), (4711, 100, 1));
    let memory = [seen.charge_bytes, seen.requested_bytes, seen.context_bytes];
    assert_eq!((memory, seen.allocations), ([1, 3, 4], 5));
    let refused = (seen.refusals, seen.last_refused_bytes, seen.last_refusal_ns);
    assert_eq!(refused, (6, Some(7), Some(8)));
    assert_eq!(
        (seen.flags, seen.mps_sms, seen.peak_bytes),
        (9, Some(10), 11)
    );
    assert_eq!((seen.launches, seen.copied_bytes), (20, 21));
    assert_eq!((seen.waited_ns, seen.work), (33, Some(work)));
    assert_eq!(taken.inside().collect::<Vec<_>>(), [(4711, 1)]);
    assert_eq!(taken.gates().next(), Some((0, 4711, view)));

    let directory = tempfile::tempdir().unwrap();
    let init = LimitsInit {
        claim: 3,
        uuid: UUID,
        token: 77,
        epoch: 2,
        state: State::Granted,
        memory_cap_bytes: 50,
        memory_request_bytes: 51,
        context_overhead_bytes: 52,
        granularity_bytes: 53,
        sm_request_permille: 54,
        sm_limit_permille: 55,
    };
    let limits = LimitsFile::create(&directory.path().join("3"), &init).unwrap();
    limits.set_gpu_index(Some(6));
    limits.set_mps_pinned(56);
    limits.set_mps_percentage(57);
    limits.set_turn(61, 60..62, 63, 64, true);
    limits.turn_beat(65);
    limits.set_frame(66, 67);
    limits.page().claimable_bytes.store(68, Ordering::SeqCst);
    limits.page().heartbeat_ns.store(69, Ordering::SeqCst);
    assert_eq!(words(limits.member_fd().unwrap()), LIMITS_OF_0_2);
}

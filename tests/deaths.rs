//! The service dies, at chosen and at random moments; so do members, launches and helpers. All living claims are
//! restored exactly once, within their limits, and nothing is left of the dead.

use crate::support;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gshare::station::Station;
use gshare_proto::Snapshot;
use gshare_sim_board::Board;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};
use support::{
    FULL, MIB, Random, Raw, SOON, all_ended, board, claim_of, example, has_all, station,
    station_with, until,
};

// The service dies at any moment: members continue under their limits, and a restarted service finds every claim
// exactly once.

#[test]
fn members_run_on_under_their_cap_while_no_service_runs() {
    let mut station = station();
    let mut raw = Raw::claim(&station, &["-q", "-g", "0.25", "--gpu-ids", "0"]);
    let before = station.snapshot().expect("served");
    station.stop_service(Signal::SIGKILL).expect("killed");
    assert_eq!(raw.ask("launch 3"), "ok 3");
    let (room, cap) = raw.info();
    assert_eq!(raw.ask(&format!("alloc {}", room + 1)), FULL);
    assert_eq!(raw.ask(&format!("alloc {}", 512 * MIB)), "ok 0");
    station.start_service().expect("starts again");
    let after = station.snapshot().expect("served");
    assert_eq!(after.claims.len(), 1);
    let (old, new) = (&before.claims[0], &after.claims[0]);
    assert_eq!(
        (&old.id, old.pid, &old.command),
        (&new.id, new.pid, &new.command)
    );
    assert_eq!(new.gpus[0].mem_limit, cap);
    let charge = new.gpus[0].mem_charge.expect("known");
    assert_eq!(
        Some(charge),
        new.gpus[0].mem_used,
        "the ledger was found again in the member"
    );
    assert!(charge >= 512 * MIB);
    // Still held, by the same ledger.
    let (room, _) = raw.info();
    assert_eq!(room, cap - charge);
    assert_eq!(raw.ask(&format!("alloc {}", room + 1)), FULL);
    assert_eq!(raw.finish(), Some(0));
    until("the claim ends with its command", SOON, || {
        station.snapshot().ok()?.claims.is_empty().then_some(())
    });
}

#[test]
fn what_ended_meanwhile_is_noticed_and_ids_are_never_used_again() {
    let mut station = station();
    let mut first = Raw::claim(&station, &["-q", "-g", "0.25"]);
    let second = Raw::claim(&station, &["-q", "-g", "0.25"]);
    station.stop_service(Signal::SIGKILL).expect("killed");
    first.kill();
    station.start_service().expect("starts again");
    until("the dead claim is gone", SOON, || {
        let snapshot = station.snapshot().ok()?;
        (snapshot.claims.len() == 1 && claim_of(&snapshot, second.pid()).is_some()).then_some(())
    });
    let third = Raw::claim(&station, &["-q", "-g", "0.25"]);
    let snapshot = station.snapshot().expect("served");
    assert_eq!(
        claim_of(&snapshot, third.pid()).map(|c| c.id.as_str()),
        Some("c3")
    );
}

#[test]
fn an_older_service_on_a_newer_journal_keeps_what_runs_and_promises_nothing() {
    let mut station = station();
    let mut raw = Raw::claim(&station, &["-q", "-g", "0.25", "--gpu-ids", "0"]);
    let (_, cap) = raw.info();
    station.stop_service(Signal::SIGKILL).expect("killed");
    let file = station.dir().join("state/gshare.db");
    let db = rusqlite::Connection::open(&file).expect("opened");
    db.pragma_update(None, "user_version", 99).expect("newer");
    drop(db);
    let before = std::fs::read(&file).expect("read");
    station.start_service().expect("starts");
    let snapshot = station.snapshot().expect("served");
    assert_eq!(snapshot.claims[0].gpus[0].mem_limit, cap);
    let said = snapshot
        .notices
        .iter()
        .any(|n| n.text.contains("format 99"));
    assert!(said, "{:?}", snapshot.notices);
    let (room, still) = raw.info();
    assert_eq!(still, cap);
    assert_eq!(raw.ask(&format!("alloc {}", room + 1)), FULL);
    let mut claim = station.command();
    claim.args(["claim", "-g", "0.1", "--", "true"]);
    let refused = claim.output().expect("runs");
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(75), "{words}");
    has_all(&words, &["format 99", "hint: "]);
    assert_eq!(raw.finish(), Some(0));
    all_ended(&station);
    station.stop_service(Signal::SIGTERM).expect("stopped");
    assert_eq!(
        std::fs::read(&file).expect("read"),
        before,
        "the file is left alone"
    );
}

// The service dies during a grant, the machine restarts, the journal is lost: every claim is held exactly once, and
// no program runs outside the claim that it was told of.

fn limit_is_held(raw: &mut Raw, snapshot: &Snapshot) {
    let claim = claim_of(snapshot, raw.pid()).expect("its claim is listed");
    assert_eq!(claim.members, [raw.pid()], "{}", claim.id);
    let part = &claim.gpus[0];
    let (free, total) = raw.info();
    assert_eq!(
        (total, Some(total - free)),
        (part.mem_limit, part.mem_charge)
    );
    let answer = raw.ask(&format!("alloc {}", free + 1));
    assert_eq!(answer, FULL);
}

#[test]
fn a_service_killed_while_it_grants_leaves_nothing_half_done() {
    let mut station = station();
    let mut random = Random::new("a_service_killed_while_it_grants_leaves_nothing_half_done");
    for round in 0..40 {
        let mut raws: Vec<Raw> = (0..3)
            .map(|_| {
                let mut command = station.command();
                // It uses the GPU when the service is back.
                let script = "echo granted; read go; exec \"$0\"";
                command.args(["claim", "-q", "-g", "0.3", "--", "sh", "-c", script]);
                Raw::spawn(command.arg(example("raw_client")))
            })
            .collect();
        std::thread::sleep(Duration::from_micros(random.below(20_000)));
        station.stop_service(Signal::SIGKILL).expect("killed");
        station
            .start_service()
            .unwrap_or_else(|e| panic!("round {round}: {e:#}"));
        let mut ready = Vec::new();
        for mut raw in raws.drain(..) {
            match raw.line().as_str() {
                "granted" => ready.push(raw),
                // It had not connected when the service died.
                "" => assert_eq!(raw.finish(), Some(69), "round {round}"),
                other => panic!("round {round}: {other}"),
            }
        }
        for raw in &mut ready {
            assert_eq!(raw.ask("go"), "ok ready");
        }
        let snapshot = station.snapshot().expect("served");
        assert_eq!(
            snapshot.claims.len(),
            ready.len(),
            "round {round}: {:?}",
            snapshot.claims
        );
        for raw in &mut ready {
            limit_is_held(raw, &snapshot);
        }
        drop(ready);
        all_ended(&station);
    }
}

#[test]
fn a_service_killed_at_every_step_of_a_launch_leaves_nothing_half_done() {
    let mut station = station();
    let client = example("raw_client").display().to_string();
    support::steps::each(&mut station, &client, false, |station, words| {
        let mut command = station.command();
        command.args(words);
        command
    });
}

#[test]
fn after_a_restart_of_the_machine_no_old_claim_is_held() {
    let mut station = station();
    let mut command = station.command();
    let held = command.args(["claim", "-q", "-g", "0.5"]).status();
    assert!(held.expect("runs").success());
    station.stop_service(Signal::SIGKILL).expect("killed");
    let journal = rusqlite::Connection::open(station.dir().join("state/gshare.db"));
    let changed = journal
        .expect("opens")
        .execute("UPDATE meta SET value = 'another' WHERE key = 'boot'", []);
    assert_eq!(changed.expect("written"), 1);
    station.start_service().expect("starts again");
    let snapshot = station.snapshot().expect("served");
    assert_eq!(
        (snapshot.claims.len(), snapshot.gpus[0].mem_claimed),
        (0, 0)
    );
    let left = std::fs::read_dir(station.dir().join("run/claims")).expect("there");
    assert_eq!(left.count(), 0, "its pages are gone");
}

#[test]
fn a_lost_journal_takes_the_gpu_from_old_members_and_gives_nobody_their_place() {
    let mut station = station();
    let mut old = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "0"]);
    station.stop_service(Signal::SIGKILL).expect("killed");
    std::fs::remove_dir_all(station.dir().join("state")).expect("removed");
    station.start_service().expect("starts again");
    let held = station.snapshot().expect("served").claims;
    assert!(held.iter().all(|c| c.adopted), "{held:?}");
    let answer = old.ask("alloc 1048576");
    assert!(answer.starts_with("error"), "{answer}");
    let mut new = Raw::claim(&station, &["-q", "-g", "0.25", "--gpu-ids", "0"]);
    let snapshot = station.snapshot().expect("served");
    limit_is_held(&mut new, &snapshot);
    // Old processes still have memory on the GPU, which counts as use without a claim.
    let auto = until("it is counted", SOON, || {
        let snapshot = station.snapshot().ok()?;
        claim_of(&snapshot, old.pid()).cloned()
    });
    assert!(auto.adopted && auto.gpus[0].mem_used > Some(0));
}

// Deaths at random moments: of the service, of members, of commands during their launch, of the service's helpers.
// After each one all living claims are there, within their limits, and nothing is left of the dead.
//
// `GSHARE_DEATHS` is their number (300). Every hundred has a workstation of its own, whose seed is in what it says: with
// that as `GSHARE_TEST_SEED` it is the first.

/// Number of deaths on one workstation.
const ON_ONE: u64 = 100;

/// Number of workstations at a time.
const SIDE_BY_SIDE: usize = 3;

/// Maximum number of living members: they fit on the first GPU.
const MEMBERS: usize = 4;

#[test]
fn deaths_at_random_moments_lose_nothing_and_leak_nothing() {
    let given = std::env::var("GSHARE_DEATHS").ok();
    let wanted: u64 = given.map_or(300, |n| n.parse().expect("a number of deaths"));
    let first = Random::new("deaths_at_random_moments_lose_nothing_and_leak_nothing").seed();
    // Most of a death is waiting, so several workstations go side by side.
    let next = AtomicU64::new(0);
    let work = || {
        let mut died = [0_u64; 4];
        loop {
            let nth = next.fetch_add(1, Ordering::Relaxed);
            let left = wanted.saturating_sub(nth * ON_ONE);
            if left == 0 {
                return died;
            }
            let mut desk = Desk::new(first + nth);
            while desk.died.iter().sum::<u64>() < left.min(ON_ONE) {
                desk.round();
            }
            let both = died.iter_mut().zip(desk.died);
            both.for_each(|(all, n)| *all += n);
            println!("GSHARE_TEST_SEED={}: {:?}", desk.seed, desk.died);
        }
    };
    let mut died = [0_u64; 4];
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..SIDE_BY_SIDE).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            let of_one = worker.join().expect("said why above");
            died.iter_mut().zip(of_one).for_each(|(all, n)| *all += n);
        }
    });
    let [service, members, launches, helpers] = died;
    println!(
        "result: {service} services, {members} members, {launches} launches and {helpers} helpers died"
    );
    assert!(died.iter().all(|n| *n > 0), "one of each: {died:?}");
}

/// A workstation with its programs.
struct Desk {
    seed: u64,
    station: Station,
    board: Board,
    random: Random,
    members: Vec<Raw>,
    kernels: u64,
    /// Number of dead services, members, launches and helpers.
    died: [u64; 4],
}

impl Desk {
    fn new(seed: u64) -> Self {
        println!("GSHARE_TEST_SEED={seed} begins");
        let station = station_with(|o| {
            // Strict caps have a launcher.
            o.strict = Uid::effective().is_root();
            o.config = "[claims]\nleftover-grace = \"1s\"\n".to_owned();
        });
        Self {
            seed,
            board: board(&station),
            station,
            random: Random::seeded(seed),
            members: Vec::new(),
            kernels: 0,
            died: [0; 4],
        }
    }

    /// A claim of a command, or of a notebook kernel, which has a helper and runs without a claim if there is no
    /// service.
    fn launch(&mut self, is_kernel: bool) -> Raw {
        let mut command = self.station.command();
        if is_kernel {
            self.kernels += 1;
            let file = format!("kernel-{}.json", self.kernels);
            // A notebook's cap grows with free memory, unless it requests a limit.
            let words = "kernel exec -g 0.2 --gpu-mem 4G --gpu-mem-limit 4G -- sh -c";
            command.args(words.split(' ')).arg("exec \"$0\"");
            command.arg(example("raw_client")).arg(file);
        } else {
            command.args(["claim", "-q", "-g", "0.2", "--"]);
            command.arg(example("raw_client"));
        }
        Raw::spawn(&mut command)
    }

    /// Handles the first output of a launched command.
    fn arrived(&mut self, mut raw: Raw) {
        assert_eq!(raw.line(), "ok ready", "{:?}", raw.child.try_wait());
        self.members.push(raw);
    }

    fn pause(&mut self, most_us: u64) {
        std::thread::sleep(Duration::from_micros(self.random.below(most_us)));
    }

    /// A random living member.
    fn one(&mut self) -> usize {
        usize::try_from(self.random.below(self.members.len() as u64)).expect("few")
    }

    /// Some members start, end and use memory; then something is killed.
    fn round(&mut self) {
        while self.members.len() < 2 || (self.members.len() < MEMBERS && self.random.below(4) == 0)
        {
            let is_kernel = self.random.below(3) == 0;
            let raw = self.launch(is_kernel);
            self.arrived(raw);
        }
        let (one, mib) = (self.one(), 1 + self.random.below(900));
        let answer = self.members[one].ask(&format!("alloc {}", mib * MIB));
        assert!(held_or_refused(&answer), "{answer}");
        let died = match self.random.below(8) {
            0..=3 => self.service_dies(),
            4..=5 => self.launch_dies(),
            6 => self.member_dies(),
            _ => self.helper_dies(),
        };
        if let Some(kind) = died {
            self.died[kind] += 1;
            let (seed, died) = (self.seed, self.died);
            self.check(&format!("seed {seed}: death of kind {kind} after {died:?}"));
        }
    }

    /// During an allocation, perhaps also during a launch.
    fn service_dies(&mut self) -> Option<usize> {
        let launches = self.random.below(3) == 0 && self.members.len() < MEMBERS;
        let launched = launches.then(|| self.launch(false));
        if launched.is_some() {
            self.pause(30_000);
        }
        let one = self.one();
        self.members[one].tell(&format!("alloc {}", 8 * MIB));
        self.pause(3_000);
        self.station.stop_service(Signal::SIGKILL).expect("killed");
        let answer = self.members[one].line();
        assert!(held_or_refused(&answer), "{answer}");
        self.station.start_service().expect("starts again");
        if let Some(mut raw) = launched {
            match raw.line().as_str() {
                "ok ready" => self.members.push(raw),
                // It found no service, and says so.
                other => assert_eq!(raw.finish(), Some(69), "{other}"),
            }
        }
        Some(0)
    }

    fn member_dies(&mut self) -> Option<usize> {
        let one = self.one();
        let mut raw = self.members.swap_remove(one);
        raw.tell(&format!("alloc {}", 8 * MIB));
        self.pause(3_000);
        raw.kill();
        Some(1)
    }

    /// The command line, the launcher or the command that it has just become.
    fn launch_dies(&mut self) -> Option<usize> {
        let is_kernel = self.random.below(3) == 0;
        let mut raw = self.launch(is_kernel);
        self.pause(60_000);
        raw.kill();
        Some(2)
    }

    /// Any process that the service has started, if there is one.
    fn helper_dies(&mut self) -> Option<usize> {
        let helpers = children(self.station.service_pid().expect("runs"));
        let nth = usize::try_from(self.random.below(helpers.len().max(1) as u64)).expect("few");
        let one = *helpers.get(nth)?;
        self.pause(3_000);
        kill(Pid::from_raw(one), Signal::SIGKILL).ok().map(|()| 3)
    }

    /// All living members are there, each with its own memory and no more; nothing is left of the dead.
    fn check(&mut self, what: &str) {
        let living: BTreeSet<u32> = self.members.iter().map(Raw::pid).collect();
        let all_there = |s: &Snapshot| -> bool {
            let listed = s.claims.iter().flat_map(|c| c.members.clone());
            listed.collect::<BTreeSet<u32>>() == living && s.claims.len() == living.len()
        };
        let mut seen = None;
        let snapshot = until(&format!("{what}: the living and nobody else"), SOON, || {
            seen = self.station.snapshot().ok();
            seen.clone().filter(all_there)
        });
        let processes = self.board.snapshot();
        let processes = processes.gpus.iter().flat_map(|gpu| &gpu.processes);
        let on_gpus = |pid: u32| -> u64 {
            processes
                .clone()
                .filter(|p| p.pid == pid)
                .map(|p| p.bytes)
                .sum()
        };
        let dead: Vec<u32> = processes
            .clone()
            .map(|p| p.pid)
            .filter(|p| !living.contains(p))
            .collect();
        assert_eq!(dead, [0; 0], "{what}: their memory is left");
        for raw in &mut self.members {
            let claim = claim_of(&snapshot, raw.pid()).expect("listed");
            let (part, (free, total)) = (&claim.gpus[0], raw.info());
            assert_eq!(total, part.mem_limit, "{what}: {}", claim.id);
            assert_eq!(
                on_gpus(raw.pid()),
                total - free,
                "{what}: {}: ledger and driver",
                claim.id
            );
            assert_eq!(part.mem_charge, Some(total - free), "{what}: {}", claim.id);
            let more = raw.ask(&format!("alloc {}", free + 1));
            assert_eq!(more, FULL, "{what}: {}", claim.id);
        }
        let ids: BTreeSet<String> = snapshot.claims.iter().map(|c| c.id.clone()).collect();
        let pages = std::fs::read_dir(self.station.dir().join("run/claims")).expect("there");
        let claim_of_page = |name: String| name.split('-').next().map(str::to_owned);
        let pages = pages.map(|p| p.expect("read").file_name().to_string_lossy().into_owned());
        let pages: BTreeSet<String> = pages.filter_map(claim_of_page).collect();
        assert_eq!(pages, ids, "{what}: pages");
    }
}

/// Possible answers to an allocation of a member.
fn held_or_refused(answer: &str) -> bool {
    answer.starts_with("ok") || answer == FULL
}

/// The processes that this one has started.
fn children(pid: u32) -> Vec<i32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let lists = tasks.filter_map(|t| std::fs::read_to_string(t.path().join("children")).ok());
    lists
        .flat_map(|l| {
            l.split_whitespace()
                .filter_map(|p| p.parse().ok())
                .collect::<Vec<_>>()
        })
        .collect()
}

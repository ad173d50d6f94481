//! The honest zoo as whole programs: four claims on a GPU, each filled as far as its limit lets it, on a driver whose samples
//! are as unkind as they were seen to be. Nobody is accused, offloaded unasked or lost; and one cheat among them is found.
//!
//! From sources: 1.37 GiB above a process's own accounting (vLLM pull request 51590: the modules here), a stack for every
//! thread that can be resident (cms-sw pull request 51395: 16 KiB are 4.1 GiB on an H100), samples that name whoever was on
//! the GPU (ctrl2080perf.h of open-gpu-kernel-modules), garbage among them (DCGM issue 83), `__managed__` and shared memory
//! that a checkpoint refuses (README of cuda-checkpoint). Assumed: 64 KiB for each kernel in a graph, what communicators
//! and workers take, what OptiX launches.
//!
//! `GSHARE_ZOO=1000` plays so many runs of each kind; `.ci/long zoo` does.

use crate::support;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use animals::{ANIMALS, Animal, Cheat};
use gshare::station::Station;
use gshare_proto::Snapshot;
use gshare_sim_board::Fault;
use support::detach::{fast, run};
use support::{Random, Raw, board, claim_of, example, looks, next_look, until};

#[path = "../src/core/src/reconcile/tests/animals.rs"]
mod animals;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// GPUs of a station, each with a run of its own.
const GPUS: usize = 4;
const CLAIMS: usize = 4;
/// Rounds in which programs fill their claims, and in all; a look at the driver ends each.
const FILLING: usize = 7;
const ROUNDS: usize = 16;
/// Looks within which a cheat has to be found: a second each where nothing else is configured.
const FOUND: u64 = 10;
/// Runs of each kind.
const RUNS: usize = 8;

struct Program {
    animal: Animal,
    raw: Raw,
    workers: Vec<Raw>,
    sum: String,
    /// What it has beside its first buffer.
    held: Vec<String>,
    full: bool,
}

fn driver(station: &Station) -> PathBuf {
    station.sim_dir().join("lib/libcuda.so.1")
}

/// One more process of a program's claim, with this library.
fn join(station: &Station, of: &Raw, library: &str) -> Raw {
    let snapshot = station.snapshot().expect("served");
    let id = &claim_of(&snapshot, of.pid()).expect("its claim").id;
    let mut command = station.command();
    command.args(["join", "-q", id, "--"]);
    command.arg(example("raw_client")).arg(library);
    Raw::start(command)
}

impl Program {
    /// Starts it; `around` is the library of what it does uncounted.
    fn start(station: &Station, gpu: usize, animal: Animal, around: &Path) -> Self {
        let mut command = station.command();
        command.args(["claim", "-q", "-g", "0.2", "--gpu-ids"]);
        command.args([&gpu.to_string(), "--"]);
        command.arg(example("raw_client")).arg("libcuda.so.1");
        command.arg(around);
        let mut raw = Raw::start(command);
        assert_eq!(raw.ask(&format!("alloc {}", 256 * MIB)), "ok 0");
        let seed = 2 * raw.pid() + 1;
        assert_eq!(raw.ask(&format!("fill 0 {seed}")), "ok");
        let mut program = Self {
            animal,
            sum: raw.ask("sum 0"),
            raw,
            workers: Vec::new(),
            held: Vec::new(),
            full: false,
        };
        match animal {
            Animal::Stack => program.must("stack 16384"),
            Animal::EagerModules => {
                (0..4).for_each(|_| program.must(&format!("module {}", 350 * MIB)));
            }
            Animal::Communicators => {
                program.must("share 0");
                program.must(&format!("module {}", 300 * MIB));
            }
            Animal::Managed => program.must(&format!("managed {GIB}")),
            Animal::Workers => {
                let workers = (0..2).map(|_| join(station, &program.raw, "libcuda.so.1"));
                program.workers = workers.collect();
            }
            Animal::Graphs | Animal::OptiX | Animal::Churn => {}
        }
        program
    }

    fn must(&mut self, command: &str) {
        let said = self.raw.ask(command);
        assert!(
            said.starts_with("ok"),
            "{:?}: {command}: {said}",
            self.animal
        );
    }

    /// Whether it got so much.
    fn takes(&mut self, bytes: u64) -> bool {
        let said = self.raw.ask(&format!("alloc {bytes}"));
        let index = said.strip_prefix("ok ");
        self.held.extend(index.map(str::to_owned));
        index.is_some()
    }

    /// What it does between two looks.
    fn step(&mut self, dice: &mut Random) {
        if !self.full {
            let (free, total) = self.raw.info();
            let keeps = if self.animal == Animal::Graphs {
                total / 10
            } else {
                0
            };
            let bytes = free.saturating_sub(keeps).min(4 * GIB) / (2 * MIB) * (2 * MIB);
            self.full = bytes < 4 * GIB;
            self.takes(bytes);
            if self.full && self.animal == Animal::Graphs {
                self.must("graphs 500 40");
            }
        }
        match (self.animal, self.held.pop()) {
            (Animal::Churn, Some(index)) => {
                self.must(&format!("free {index}"));
                self.takes((1 + dice.below(2000)) * 2 * MIB);
            }
            (_, index) => self.held.extend(index),
        }
        let work = if self.animal == Animal::OptiX {
            "around"
        } else {
            "launch"
        };
        self.must(&format!("{work} {}", 1 + dice.below(20)));
    }

    /// Whether a checkpoint of it would be refused.
    fn stays(&self) -> bool {
        matches!(self.animal, Animal::Managed | Animal::Communicators)
    }
}

/// Accusations, by the process of the claim.
fn accused(snapshot: &Snapshot) -> Vec<(Option<u32>, String)> {
    let all = snapshot.claims.iter();
    all.filter_map(|c| Some((c.pid, c.overuse.clone()?)))
        .collect()
}

fn zoo() -> Station {
    let config = "[claims]\nleftover-grace = \"1s\"\n[detach]\nhost-reserve = \"1 MiB\"\n\
        [policy]\noveruse = \"stop\"\noveruse-grace = \"30s\"\n";
    let station = fast(config.to_owned(), |o| {
        o.gpus = vec!["h100".to_owned(); GPUS];
        o.tick = "0.2s".to_owned();
        o.costs = "add_one 2ms\nnothing 2us\n".to_owned();
    });
    let unseen = station.sim_dir().join("lib/libnvoptix.so.1");
    std::fs::copy(driver(&station), unseen).expect("copied");
    station
}

/// Four programs on each GPU, at their limits; all work until the look that `done` ends.
fn play(
    station: &Station,
    dice: &mut Random,
    mut each: impl FnMut(usize, &mut [Vec<Program>], &Snapshot) -> bool,
) -> Vec<Vec<Program>> {
    let mut gpus: Vec<Vec<Program>> = Vec::new();
    for gpu in 0..GPUS {
        let start = |_| {
            let animal = ANIMALS[dice.below(8) as usize];
            let around = match animal {
                Animal::OptiX => station.sim_dir().join("lib/libnvoptix.so.1"),
                _ => driver(station),
            };
            Program::start(station, gpu, animal, &around)
        };
        gpus.push((0..CLAIMS).map(start).collect());
    }
    for round in 0.. {
        let seeds: Vec<u64> = gpus.iter().map(|_| 1 + dice.below(1 << 30)).collect();
        std::thread::scope(|scope| {
            for (programs, seed) in gpus.iter_mut().zip(seeds) {
                let mut dice = Random::seeded(seed);
                scope.spawn(move || programs.iter_mut().for_each(|p| p.step(&mut dice)));
            }
        });
        next_look(station);
        let snapshot = station.snapshot().expect("served");
        if each(round, &mut gpus, &snapshot) {
            break;
        }
    }
    gpus
}

/// All end as they should, with what they had; then the station is empty.
fn ends(station: &Station, gpus: Vec<Vec<Program>>) {
    for mut program in gpus.into_iter().flatten() {
        assert_eq!(
            program.raw.ask("sum 0"),
            program.sum,
            "{:?}",
            program.animal
        );
        for worker in program.workers {
            assert_eq!(worker.finish(), Some(0));
        }
        assert_eq!(program.raw.finish(), Some(0), "{:?}", program.animal);
    }
    until("all claims have ended", Duration::from_secs(20), || {
        station.snapshot().ok()?.claims.is_empty().then_some(())
    });
}

fn runs() -> usize {
    let asked = std::env::var("GSHARE_ZOO")
        .ok()
        .and_then(|n| n.parse().ok());
    asked.unwrap_or(RUNS).next_multiple_of(GPUS)
}

#[test]
fn honest_programs_at_their_limits_are_not_accused_and_not_lost() {
    let mut dice = Random::new("zoo");
    let (station, begun, runs) = (zoo(), Instant::now(), runs());
    board(&station)
        .set_fault(Fault::NvmlSamples, true)
        .expect("set");
    let mut offloaded = [0; 2];
    for _ in 0..runs / GPUS {
        let mut gpus = play(&station, &mut dice, |round, gpus, snapshot| {
            let seen = accused(snapshot);
            let kind = |pid| {
                gpus.iter()
                    .flatten()
                    .find(|p| Some(p.raw.pid()) == pid)
                    .map(|p| p.animal)
            };
            let seen: Vec<_> = seen.iter().map(|(pid, why)| (kind(*pid), why)).collect();
            assert!(seen.is_empty(), "round {round}: {seen:?}");
            let moved = snapshot.claims.iter().filter_map(|c| c.place.word.as_ref());
            assert_eq!(moved.count(), 0, "nobody asked for that");
            round + 1 == ROUNDS
        });
        for programs in &mut gpus {
            assert!(programs.iter().all(|p| p.full), "one is not at its limit");
            // One of each run goes to the host and back; what cannot is refused, and goes on.
            let at = dice.below(CLAIMS as u64) as usize;
            let program = &mut programs[at];
            for index in std::mem::take(&mut program.held) {
                program.must(&format!("free {index}"));
            }
            let snapshot = station.snapshot().expect("served");
            let id = claim_of(&snapshot, program.raw.pid())
                .expect("there")
                .id
                .clone();
            let output = run(&station, &["offload", &id]);
            // Other tests may have taken the host's memory.
            let no_room = String::from_utf8_lossy(&output.stderr).contains("the host has ");
            let stays = program.stays() || no_room;
            let wanted = if stays { 75 } else { 0 };
            assert_eq!(
                output.status.code(),
                Some(wanted),
                "{:?}: {output:?}",
                program.animal
            );
            offloaded[usize::from(stays)] += 1;
            if !stays {
                assert_eq!(run(&station, &["restore", &id]).status.code(), Some(0));
            }
        }
        ends(&station, gpus);
    }
    let [moved, refused] = offloaded;
    println!(
        "result: {runs} honest runs of {CLAIMS} programs, none accused, none lost; {moved} offloaded and restored, \
         {refused} refused that; {:?}",
        begun.elapsed()
    );
}

#[test]
fn one_cheat_among_four_programs_is_found() {
    let mut dice = Random::new("zoo");
    let (station, begun, runs) = (zoo(), Instant::now(), runs());
    let (mut found, mut late) = (0, Vec::new());
    for batch in 0..runs / GPUS {
        let cheat = [Cheat::Stranger, Cheat::Member, Cheat::Time][batch % 3];
        // Samples that name one process are no shares, and a driver that has no others tells nothing of time.
        let unkind = !matches!(cheat, Cheat::Time);
        board(&station)
            .set_fault(Fault::NvmlSamples, unkind)
            .expect("set");
        let guilty: Vec<usize> = (0..GPUS).map(|_| dice.below(4) as usize).collect();
        let more = (1200 + dice.below(4096)) * MIB;
        let mut strangers: Vec<Raw> = Vec::new();
        let (mut since, mut soon) = (0, [false; GPUS]);
        let gpus = play(&station, &mut dice, |round, gpus, snapshot| {
            let now = snapshot.service.as_ref().expect("told").looks;
            let seen = accused(snapshot);
            let pids: Vec<u32> = gpus
                .iter()
                .zip(&guilty)
                .map(|(all, at)| all[*at].raw.pid())
                .collect();
            for (pid, why) in &seen {
                let known = pid.is_some_and(|pid| pids.contains(&pid)) && round >= FILLING;
                assert!(known, "{cheat:?}, round {round}: {why}");
            }
            if round + 1 == FILLING {
                for (all, at) in gpus.iter_mut().zip(&guilty) {
                    let raw = &mut all[*at].raw;
                    let library = driver(&station);
                    let library = library.to_str().expect("a path");
                    match cheat {
                        Cheat::Member => {
                            // Above its cap, wherever it stands below that, and it frees nothing afterwards.
                            let past = raw.info().0 + more + GIB;
                            let said = raw.ask(&format!("around alloc {past}"));
                            assert!(said.starts_with("ok"), "{said}");
                            all[*at].held.clear();
                        }
                        Cheat::Stranger => {
                            let mut stranger = join(&station, raw, library);
                            assert_eq!(stranger.ask(&format!("alloc {more}")), "ok 0");
                            strangers.push(stranger);
                        }
                        Cheat::Time => {
                            let mut stranger = join(&station, raw, library);
                            stranger.tell("launch 1000000");
                            strangers.push(stranger);
                        }
                    }
                }
                since = looks(&station);
            }
            for (soon, pid) in soon.iter_mut().zip(&pids) {
                *soon |= seen.iter().any(|(p, _)| *p == Some(*pid)) && now <= since + FOUND;
            }
            round >= FILLING && (now > since + FOUND || soon.iter().all(|s| *s))
        });
        found += soon.iter().filter(|s| **s).count();
        for ((all, at), _) in gpus.iter().zip(&guilty).zip(soon).filter(|(_, soon)| !soon) {
            late.push((cheat, all[*at].animal));
        }
        drop(strangers);
        ends(&station, gpus);
    }
    println!(
        "result: {found} of {runs} cheats found within {FOUND} looks; not: {late:?}; {:?}",
        begun.elapsed()
    );
    assert!(found * 100 >= runs * 95, "{found} of {runs}: {late:?}");
}

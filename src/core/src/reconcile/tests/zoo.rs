//! The honest zoo: programs with figures from bug reports, four claims on a GPU, each filled up to its cap. No honest
//! program is accused or charged for memory it does not use, and a cheat among them is found.
//!
//! From sources: 1.37 GiB above a process's own accounting (vLLM pull request 51590); stack for every resident thread
//! (cms-sw pull request 51395: 16 KiB are 4.1 GiB on an H100); samples that name the process on the GPU at that moment
//! (ctrl2080perf.h of open-gpu-kernel-modules). Assumed: sizes of eager modules, communicators and workers, and 64 KiB
//! for each kernel in a graph.

use super::*;
use animals::{ANIMALS, Animal, Cheat};

#[path = "animals.rs"]
mod animals;

const GIB: u64 = 1024;
const CONTEXT: u64 = 500;
const CLAIMS: u64 = 4;
const LOOKS: u32 = 40;
/// Look after which the cheat begins, and number of looks within which it must be found.
const BEGINS: u32 = 15;
const FOUND: u32 = 10;

/// A repeatable random sequence (splitmix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)) % most.max(1)
    }
}

/// A claim's program: its ledger, and the driver's memory beside it, in MiB.
struct Program {
    animal: Animal,
    cap: u64,
    hidden: u64,
    workers: u64,
}

impl Program {
    fn new(dice: &mut Dice) -> Self {
        let animal = ANIMALS[dice.below(8) as usize];
        Self {
            animal,
            cap: (14 + dice.below(6)) * GIB,
            hidden: match animal {
                Animal::Graphs => 40 * 500 * 64 / GIB + dice.below(150),
                Animal::EagerModules => 1000 + dice.below(403),
                Animal::Communicators => 200 + dice.below(300),
                Animal::OptiX => dice.below(300),
                _ => dice.below(100),
            },
            workers: if animal == Animal::Workers {
                1 + dice.below(4)
            } else {
                0
            },
        }
    }

    /// The driver's memory at a look; graphs come late.
    fn hidden_at(&self, second: u32) -> u64 {
        match self.animal {
            Animal::Graphs if second < 12 => 0,
            _ => self.hidden,
        }
    }

    /// Its ledger: it fills its cap at two GiB a second.
    fn ledger_at(&self, second: u32, driver: u64) -> u64 {
        let most = match self.animal {
            Animal::Graphs => self.cap * 9 / 10,
            _ => self.cap,
        };
        let stack = if self.animal == Animal::Stack {
            3960
        } else {
            0
        };
        let wanted = CONTEXT + stack + 2 * GIB * u64::from(second);
        wanted
            .min(most.saturating_sub(self.workers * CONTEXT))
            .min(self.cap - driver)
    }

    /// Its processes at a look, and the highest sum of their ledgers since the previous look.
    fn seen(&self, at: u64, second: u32, driver: u64, dice: &mut Dice) -> (Vec<Seen<u64>>, u64) {
        let ledger = self.ledger_at(second, driver);
        let (hidden, mut bytes) = (self.hidden_at(second), ledger);
        if self.animal == Animal::Churn && dice.below(8) == 0 {
            bytes += dice.below(3 * GIB).min(self.cap - driver - ledger + 200);
        }
        let member = |process, bytes, charge, dice: &mut Dice| Seen {
            process,
            bytes: Some(Bytes::mib(bytes)),
            charge: Some(Bytes::mib(charge)),
            // In turns, samples can show any value.
            busy: Some(dice.below(101) as f64),
            counted: match self.animal {
                Animal::OptiX => None,
                _ => Some(dice.below(26) as f64),
            },
        };
        let mut all = vec![member(10 * at, bytes + hidden, ledger, dice)];
        for worker in 1..=self.workers {
            all.push(member(10 * at + worker, CONTEXT + 20, CONTEXT, dice));
        }
        (all, bytes + self.workers * CONTEXT)
    }
}

/// Plays four programs, one of them a cheat if wanted. Returns the number of looks until the cheat is found.
fn play(seed: u64, cheat: Option<Cheat>) -> Option<u32> {
    let mut dice = Dice(seed);
    let programs: Vec<Program> = (0..CLAIMS).map(|_| Program::new(&mut dice)).collect();
    let guilty = ClaimId(dice.below(CLAIMS));
    let more = 1200 + dice.below(6 * GIB);
    let mut reconcile = Reconcile::default();
    let mut peaks = [0; CLAIMS as usize];
    for second in 0..LOOKS {
        let mut looks = Vec::new();
        for (at, program) in (0..).zip(&programs) {
            let claim = ClaimId(at);
            let driver = reconcile.driver_bytes(claim, 1).0 >> 20;
            assert!(
                cheat.is_some() || driver <= program.hidden + 20 * program.workers,
                "{seed}: {:?} is charged {driver} MiB for {}",
                program.animal,
                program.hidden
            );
            let (mut seen, sum) = program.seen(at, second, driver, &mut dice);
            let peak = &mut peaks[at as usize];
            *peak = sum.max(*peak);
            if claim == guilty && second >= BEGINS {
                let stranger = Seen {
                    process: 99,
                    bytes: Some(Bytes::mib(CONTEXT)),
                    charge: None,
                    busy: Some(0.0),
                    counted: Some(0.0),
                };
                match cheat {
                    None => {}
                    Some(Cheat::Stranger) => seen.push(Seen {
                        bytes: Some(Bytes::mib(CONTEXT + more)),
                        ..stranger
                    }),
                    Some(Cheat::Member) => {
                        let most = program.cap + 1024 + more;
                        seen[0].bytes = Some(Bytes::mib(most));
                    }
                    // Uses a third of the time; each sample shows another value.
                    Some(Cheat::Time) => seen.push(Seen {
                        busy: Some(15.0 + dice.below(40) as f64),
                        ..stranger
                    }),
                }
            }
            looks.push(Look {
                claim,
                gpu: 1,
                hold: Hold::Cap(Bytes::mib(program.cap)),
                peak: Bytes::mib(*peak),
                overhead: Bytes::mib(CONTEXT),
                guessed: false,
                turns: true,
                seen,
            });
        }
        for act in reconcile.step(SEC * second, &rules(true), &looks) {
            let Act::Warn { claim, .. } = act else {
                continue;
            };
            assert!(cheat.is_some() && claim == guilty, "{seed}: {act:?}");
            return Some(second - BEGINS + 1);
        }
    }
    None
}

#[test]
fn a_thousand_runs_of_the_honest_zoo_accuse_nobody() {
    for seed in 0..1000 {
        assert_eq!(play(seed, None), None, "{seed}");
    }
}

#[test]
fn one_cheat_among_four_is_found() {
    for cheat in [Cheat::Stranger, Cheat::Member, Cheat::Time] {
        let found = (0..1000).filter_map(|seed| play(seed, Some(cheat)));
        let soon = found.filter(|looks| *looks <= FOUND).count();
        println!("{cheat:?}: {soon} of 1000 within {FOUND} looks");
        assert!(soon >= 950, "{cheat:?}: {soon} of 1000");
    }
}

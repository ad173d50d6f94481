//! A mix of claims on one GPU in virtual time: what the simulated GPU did, and what the estimate says.

use gshare_core::attribution::Work as Claimed;
use gshare_core::attribution::{Counters, Interval, Meter, Together, attribute};
use gshare_sim_board::{ImaginedBoard, Integrals, Preset};

use super::dice::Dice;
use super::program::{Plan, Process};

/// Polling interval of programs and watchers.
const STEP_NS: u64 = 100_000;
/// Polling interval of the service.
const TICK_NS: u64 = 1_000_000_000;
/// Ticks of a window.
const WINDOW: u64 = 10;
/// Launches of a stream that a turn allows ahead.
const AHEAD: usize = 4;
/// Length of a turn.
const TURN_NS: u64 = 20_000_000;

/// How the claims share the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    /// The claims take turns.
    Turns,
    /// Through MPS, each with SMs of its own according to its request: gshare's default.
    Mps,
    /// Through MPS with overlapping shares (`[mps] share = "limit"`).
    Overlapping,
}

impl Sharing {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Turns => "turns",
            Self::Mps => "MPS",
            Self::Overlapping => "MPS, shares overlap",
        }
    }
}

/// Errors of one claim in one window, in percentage points.
#[derive(Clone, Copy, Debug)]
pub(super) struct Error {
    /// Index of the claim in the mix.
    pub(super) claim: usize,
    /// SM activity and occupancy from the claims' counters only.
    pub(super) alone: [f64; 2],
    /// SM activity and occupancy with the GPU's own counters.
    pub(super) device: [f64; 2],
    /// SM activity estimated as busy time multiplied by the grids' fraction of the GPU.
    pub(super) naive: f64,
}

fn minus(a: Integrals, b: Integrals) -> Integrals {
    Integrals {
        busy_ns: a.busy_ns - b.busy_ns,
        sm_ns: a.sm_ns - b.sm_ns,
        warp_ns: a.warp_ns - b.warp_ns,
    }
}

struct Turns {
    holder: usize,
    ends_ns: u64,
}

impl Turns {
    /// The process that may launch now. The turn passes on when its time is over or it has nothing to launch, and its
    /// work is finished.
    fn who(&mut self, now: u64, claims: &mut [Process]) -> usize {
        let over = now >= self.ends_ns || !claims[self.holder].wants(now);
        if over && !claims[self.holder].is_busy() {
            let many = claims.len();
            let order = (1..=many).map(|i| (self.holder + i) % many);
            let next = order.into_iter().find(|i| claims[*i].wants(now));
            if let Some(next) = next {
                *self = Self {
                    holder: next,
                    ends_ns: now + TURN_NS,
                };
                claims[next].turn();
            }
        }
        self.holder
    }
}

/// Runs a mix for this many windows, after a first one that is not judged.
pub(super) fn run(
    model: &str,
    sharing: Sharing,
    many: usize,
    seed: u64,
    windows: u64,
    preset: Preset,
) -> anyhow::Result<Vec<Error>> {
    let mut dice = Dice::new(seed);
    let mut board = ImaginedBoard::new(model, seed | 1, preset)?;
    let all = board.model().sms;
    let server = board.add_process()?.0;
    if sharing != Sharing::Turns {
        board.serve_mps(server)?;
    }
    let mut claims = Vec::new();
    let mut weights: Vec<u32> = (0..many).map(|_| 1 + dice.below(4) as u32).collect();
    // Some mixes leave a part of the GPU unused.
    weights.push(dice.below(3) as u32);
    let sum: u32 = weights.iter().sum();
    for weight in &weights[..many] {
        let (id, context) = board.add_process()?;
        let mut sms = all;
        if sharing != Sharing::Turns {
            let percent = match sharing {
                Sharing::Overlapping => dice.one(&[20, 30, 50, 100]),
                _ => weight * 100 / sum,
            };
            sms = (all * percent / 200 * 2).max(2);
            board.join_mps(id, server, sms)?;
        }
        let plan = Plan::draw(&mut dice, board.model());
        claims.push(Process::new(id, context, sms, plan));
    }

    let warps = f64::from(board.model().warps_per_sm());
    let whole = [f64::from(all), f64::from(all) * warps];
    let mut turns = Turns {
        holder: 0,
        ends_ns: 0,
    };
    // With and without the GPU's counters.
    let mut meters = vec![Meter::default(); many];
    let mut together = Together::default();
    let mut sums = vec![[[0.0; 2]; 2]; many];
    let mut gpu_then = board.gpu();
    let mut then: Vec<Integrals> = claims.iter().map(|claim| board.process(claim.id)).collect();
    let mut errors = Vec::new();
    let mut now = 0;
    for tick in 1..=(windows + 1) * WINDOW {
        while now < tick * TICK_NS {
            now += STEP_NS;
            board.advance(now);
            for claim in &mut claims {
                let finished = board.collect(claim.id);
                claim.collect(now, &finished);
            }
            match sharing {
                Sharing::Turns if many > 1 => {
                    let holder = turns.who(now, &mut claims);
                    match now < turns.ends_ns {
                        true => claims[holder].launch(now, &mut board, AHEAD),
                        false => claims[holder].hold(now, &mut board, AHEAD),
                    }
                }
                _ => {
                    for claim in &mut claims {
                        claim.launch(now, &mut board, usize::MAX);
                    }
                }
            }
        }
        let gpu = board.gpu();
        let grown = minus(gpu, gpu_then);
        gpu_then = gpu;
        let counters = Counters {
            sm_active: Some(grown.sm_ns / (TICK_NS as f64 * whole[0])),
            sm_occupancy: Some(grown.warp_ns / (TICK_NS as f64 * whole[1])),
        };
        let work: Vec<Claimed> = claims
            .iter()
            .zip(&mut meters)
            .map(|(claim, meter)| Claimed {
                processes: vec![Some(meter.read(now, now - TICK_NS, &claim.reading()))],
                most: (sharing != Sharing::Turns).then(|| f64::from(claim.sms()) / f64::from(all)),
            })
            .collect();
        let crowd = together.crowd(TICK_NS, &work);
        for (i, counters) in [None, Some(counters)].into_iter().enumerate() {
            let interval = Interval {
                ns: TICK_NS,
                sms: all,
                warps_per_sm: board.model().warps_per_sm(),
                side_by_side: sharing != Sharing::Turns,
                crowd,
                outsiders: false,
                desktop: false,
                left: false,
                counters,
            };
            let division = attribute(&interval, &work);
            for (sum, part) in sums.iter_mut().zip(&division.parts) {
                sum[i][0] += part.sm_active.unwrap_or(f64::NAN);
                sum[i][1] += part.sm_occupancy.unwrap_or(f64::NAN);
            }
        }
        if tick % WINDOW != 0 {
            continue;
        }
        let span = (WINDOW * TICK_NS) as f64;
        for (i, claim) in claims.iter().enumerate() {
            let truly = board.process(claim.id);
            let did = minus(truly, then[i]);
            then[i] = truly;
            let truth = [
                did.sm_ns / (span * whole[0]),
                did.warp_ns / (span * whole[1]),
            ];
            let off =
                |of: [f64; 2]| [0, 1].map(|f| 100.0 * (of[f] / WINDOW as f64 - truth[f]).abs());
            let naive = did.busy_ns / span * claim.grid_fraction();
            if tick > WINDOW {
                errors.push(Error {
                    claim: i,
                    alone: off(sums[i][0]),
                    device: off(sums[i][1]),
                    naive: 100.0 * (naive - truth[0]).abs(),
                });
            }
            sums[i] = [[0.0; 2]; 2];
        }
    }
    Ok(errors)
}

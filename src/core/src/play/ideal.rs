//! Ideal schedulers as bounds for the machine: starting, stopping and moving cost nothing, and GPUs have no borders,
//! except that a claim of most of a GPU leaves no room there for a large part.

use std::collections::BTreeMap;

use super::figures::{Outcome, mean};
use super::list::Entry;
use crate::sched::fair::level;

/// What an ideal scheduler knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knows {
    /// The run time of each claim: shortest remaining time first.
    Everything,
    /// The distribution of run times in the block, by size: highest probability of ending soon per time spent first
    /// (Gittins index).
    Spread,
    /// How long each claim has run so far: by level, then by arrival.
    Nothing,
}

/// Claims that always go before the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// None.
    Nobody,
    /// Claims of all users except the first, who has the highest demand.
    Others,
    /// Claims within each active user's equal part of the machine, then the first user's. Of all schedulers that keep
    /// the guarantee this is the best one for the first user.
    Guarantee,
    /// The same, then all others.
    Within,
    /// Claims of the other users within that part, then claims that have run for less than [`SHORT_S`], then the first
    /// user's claims of [`LONG_S`] or more.
    Long,
}

/// Claims that run for less are short, in seconds.
pub const SHORT_S: f64 = 600.0;
/// Claims that run for at least this time are long, in seconds.
pub const LONG_S: f64 = 3.0 * 3600.0;

/// Run times at which claims are reordered, in seconds.
const LOOKS: [f64; 6] = [60.0, SHORT_S, 1800.0, 3600.0, 7200.0, 14_400.0];

/// Gittins index of a claim that has run for `ran`: the best rate of ends per second, by the sorted run times of
/// others.
fn gittins(times: &[f64], ran: f64) -> f64 {
    let longer = &times[times.partition_point(|t| *t <= ran + 1e-6)..];
    let (mut before, mut best) = (0.0, 0.0_f64);
    for (ended, time) in longer.iter().enumerate() {
        let spent = before + (time - ran) * (longer.len() - ended) as f64;
        best = best.max((ended + 1) as f64 / spent);
        before += time - ran;
    }
    best
}

/// The run times of a block's claims by size, sorted.
#[derive(Clone, Debug)]
pub(super) struct Spread(BTreeMap<Option<(u32, u32)>, Vec<f64>>);

impl Spread {
    pub(super) fn of(list: &[Entry]) -> Self {
        let mut times: BTreeMap<Option<(u32, u32)>, Vec<f64>> = BTreeMap::new();
        for e in list {
            for size in [Some((e.gpus, e.milli)), None] {
                times.entry(size).or_default().push(e.run_s);
            }
        }
        times.values_mut().for_each(|t| t.sort_by(f64::total_cmp));
        // A rare size predicts nothing by itself.
        times.retain(|size, times| size.is_none() || times.len() >= 10);
        Self(times)
    }

    fn times(&self, e: &Entry) -> &[f64] {
        let own = self.0.get(&Some((e.gpus, e.milli)));
        own.unwrap_or(&self.0[&None])
    }

    pub(super) fn mean(&self, e: &Entry) -> f64 {
        mean(self.times(e))
    }

    /// How much longer a claim runs that ran for `ran`, by this part of those that ran for as long.
    pub(super) fn left(&self, e: &Entry, ran: f64, part: f64) -> f64 {
        let times = self.times(e);
        let longer = &times[times.partition_point(|t| *t <= ran + 1e-6)..];
        let nth = (part * longer.len() as f64).ceil() as usize;
        let time = longer.get(nth.max(1) - 1).or(longer.last());
        time.map_or(0.0, |t| t - ran)
    }
}

/// Returns a scheduler's order of the claims of a block: smaller goes first.
fn order_of(list: &[Entry], knows: Knows) -> impl FnMut(usize, f64) -> f64 + use<'_> {
    let times = Spread::of(list);
    let mut known = vec![(-1.0, 0.0); list.len()];
    move |i, left| {
        let e = &list[i];
        let ran = e.run_s - left;
        match knows {
            Knows::Everything => left,
            Knows::Nothing => f64::from(level(ran + 1e-6)),
            Knows::Spread => {
                let looked = LOOKS.into_iter().filter(|t| *t <= ran + 1e-6);
                let ran = looked.fold(0.0, f64::max);
                if known[i].0 != ran {
                    known[i] = (ran, -gittins(times.times(e), ran));
                }
                known[i].1
            }
        }
    }
}

/// A claim larger than the rest of a GPU cannot share the GPU with claims of at least this many thousandths. So it
/// counts as the whole GPU if smaller claims count as nothing (a dual feasible function of bin packing). Each of these
/// sums stays within the machine.
const PACKED: [u32; 5] = [0, 190, 200, 350, 500];

/// What a part of a GPU counts for, in thousandths, if less than `least` counts as nothing.
fn packed(milli: u32, least: u32) -> u32 {
    match milli {
        m if m > 1000 - least => 1000,
        m if m < least => 0,
        m => m,
    }
}

/// A machine for an ideal scheduler, in GPUs.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    pub gpus: f64,
    /// Host memory for offloaded claims.
    pub host: f64,
}

impl Room {
    /// The claims that run when served in this order, and the host memory that the others use then. `begun` marks
    /// claims that have run before.
    fn serve(self, list: &[Entry], order: &[(usize, f64)], begun: &[bool]) -> (Vec<bool>, f64) {
        let mut free = PACKED.map(|_| self.gpus);
        let mut away = 0.0;
        let runs = order.iter().zip(begun).map(|((i, _), begun)| {
            let takes = PACKED
                .map(|least| f64::from(list[*i].gpus * packed(list[*i].milli, least)) / 1000.0);
            let fits = free.iter().zip(takes).all(|(f, t)| t <= f + 1e-9);
            let runs = *begun && fits;
            if runs {
                free.iter_mut().zip(takes).for_each(|(f, t)| *f -= t);
            } else if *begun {
                away += list[*i].size();
            }
            runs
        });
        let runs = runs.collect();
        (runs, away)
    }

    /// Marks the claims, in this order, that fit into each active user's equal part of the machine.
    fn within(self, list: &[Entry], order: &[(usize, f64)]) -> Vec<bool> {
        let mut left: BTreeMap<usize, f64> = BTreeMap::new();
        for (i, _) in order {
            left.insert(list[*i].user, 0.0);
        }
        let part = self.gpus / left.len() as f64 + 1e-9;
        left.values_mut().for_each(|l| *l = part);
        let fits = order.iter().map(|(i, _)| {
            let own = left.entry(list[*i].user).or_default();
            let fits = list[*i].size() <= *own;
            if fits {
                *own -= list[*i].size();
            }
            fits
        });
        fits.collect()
    }
}

/// The active claims with their remaining time, in the order of service.
fn in_order(
    list: &[Entry],
    room: Room,
    first: First,
    active: &[(usize, f64)],
    order: &mut impl FnMut(usize, f64) -> f64,
) -> Vec<(usize, f64)> {
    let keyed = active.iter().map(|(i, left)| (order(*i, *left), *i, *left));
    let mut keyed: Vec<(f64, usize, f64)> = keyed.collect();
    keyed.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let sorted: Vec<(usize, f64)> = keyed.into_iter().map(|(_, i, left)| (i, left)).collect();
    let within = room.within(list, &sorted);
    let mut ranked: Vec<(u8, (usize, f64))> = sorted
        .into_iter()
        .zip(within)
        .map(|((i, left), within)| {
            let e = &list[i];
            let largest = e.user == 0;
            let rank = match first {
                First::Nobody => 0,
                First::Others => u8::from(largest),
                First::Guarantee | First::Within if within => 0,
                First::Guarantee => 1 + u8::from(!largest),
                First::Within => 1,
                First::Long if within && !largest => 0,
                First::Long if e.run_s - left < SHORT_S - 1e-6 => 1,
                First::Long if largest && e.run_s >= LONG_S => 2,
                First::Long => 3,
            };
            (rank, (i, left))
        })
        .collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, claim)| claim).collect()
}

/// Time from request to start and to end of each claim, and the longest time between two runs. A claim runs at its full
/// size or not at all, because its memory must be on the GPU, and starts only if the host has room for the claims that
/// stop.
#[must_use]
pub fn ideal(list: &[Entry], room: Room, knows: Knows, first: First) -> Vec<Outcome> {
    let mut out = vec![Outcome::default(); list.len()];
    let mut ran_until = vec![None; list.len()];
    let mut order = order_of(list, knows);
    let mut active: Vec<(usize, f64)> = Vec::new();
    let (mut now, mut next) = (0.0, 0);
    while next < list.len() || !active.is_empty() {
        active = in_order(list, room, first, &active, &mut order);
        let mut begun: Vec<bool> = active
            .iter()
            .map(|(i, _)| out[*i].wait_s.is_some())
            .collect();
        for n in 0..active.len() {
            if begun[n] {
                continue;
            }
            begun[n] = true;
            let (runs, away) = room.serve(list, &active, &begun);
            begun[n] = runs[n] && away <= room.host + 1e-9;
            if begun[n] {
                let i = active[n].0;
                out[i].wait_s = Some(now - list[i].arrival_s);
            }
        }
        let (runs, _) = room.serve(list, &active, &begun);
        for ((i, _), _) in active.iter().zip(&runs).filter(|(_, runs)| **runs) {
            // A claim that starts for the first time was not away.
            let away = ran_until[*i].map_or(0.0, |at: f64| now - at);
            out[*i].away_s = out[*i].away_s.max(away);
        }
        // Until a claim ends, or has run for so long that the order may change.
        let running = active.iter().zip(&runs).filter(|(_, runs)| **runs);
        let ends = running.map(|((i, left), _)| {
            let ran = list[*i].run_s - left;
            let look = LOOKS.into_iter().find(|t| *t > ran + 1e-6);
            let look = look.filter(|_| knows != Knows::Everything || first == First::Long);
            now + look.map_or(*left, |t| left.min(t - ran))
        });
        let arrives = list.get(next).map_or(f64::INFINITY, |e| e.arrival_s);
        let at = ends.fold(arrives, f64::min);
        for ((i, left), _) in active.iter_mut().zip(&runs).filter(|(_, runs)| **runs) {
            *left -= at - now;
            ran_until[*i] = Some(at);
        }
        now = at;
        active.retain(|(i, left)| {
            if *left <= 1e-6 {
                out[*i].done_s = Some(now - list[*i].arrival_s);
            }
            *left > 1e-6
        });
        while list.get(next).is_some_and(|e| e.arrival_s <= now) {
            active.push((next, list[next].run_s));
            next += 1;
        }
    }
    out
}

/// Lower bound of the mean completion time of the first user's long claims, as a multiple of their run time. Only the
/// others' guarantees and the first ten minutes of each claim go before them.
#[must_use]
pub fn long_take(list: &[Entry], room: Room) -> f64 {
    let out = ideal(list, room, Knows::Everything, First::Long);
    let long = list.iter().zip(&out);
    let long = long.filter(|(e, _)| e.user == 0 && e.run_s >= LONG_S);
    let took: Vec<f64> = long
        .filter_map(|(e, c)| Some(c.done_s? / e.run_s))
        .collect();
    mean(&took)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Room = Room {
        gpus: 2.0,
        host: f64::INFINITY,
    };

    fn entry(arrival_s: f64, run_s: f64, user: usize) -> Entry {
        Entry {
            arrival_s,
            run_s,
            gpus: 1,
            milli: 1000,
            user,
            ..Entry::default()
        }
    }

    fn done(list: &[Entry], knows: Knows, first: First) -> Vec<f64> {
        let out = ideal(list, ROOM, knows, first);
        out.iter().map(|c| c.done_s.expect("it ends")).collect()
    }

    #[test]
    fn what_each_of_them_does_with_two_gpus_is_what_it_does_by_hand() {
        // Two claims of the first user, then two shorter ones of another, who is guaranteed one GPU.
        let list = [
            entry(0.0, 900.0, 0),
            entry(0.0, 900.0, 0),
            entry(0.0, 300.0, 1),
            entry(0.0, 400.0, 1),
        ];
        for (knows, first, by_hand) in [
            // The two short claims run concurrently, then the others.
            (
                Knows::Everything,
                First::Nobody,
                [1200.0, 1300.0, 300.0, 400.0],
            ),
            (
                Knows::Everything,
                First::Others,
                [1200.0, 1300.0, 300.0, 400.0],
            ),
            // One GPU each.
            (
                Knows::Everything,
                First::Guarantee,
                [900.0, 1600.0, 300.0, 700.0],
            ),
            // Ten minutes of the first two, then the others, then the rest of the first two.
            (
                Knows::Nothing,
                First::Nobody,
                [1200.0, 1300.0, 900.0, 1000.0],
            ),
        ] {
            assert_eq!(done(&list, knows, first), by_hand, "{knows:?} {first:?}");
        }
    }

    #[test]
    fn a_long_claim_waits_for_guarantees_and_ten_minutes_of_all_and_for_nothing_else() {
        let hour = 3600.0;
        let list = [
            entry(0.0, 5.0 * hour, 1),
            entry(0.0, 2.0 * hour, 0),
            entry(0.0, 3.0 * hour, 0),
        ];
        // Ten minutes of the second go first, then the third runs to its end.
        assert_eq!(
            done(&list, Knows::Everything, First::Long)[2],
            3.0 * hour + 600.0
        );
        assert_eq!(long_take(&list, ROOM), (3.0 * hour + 600.0) / (3.0 * hour));
    }

    #[test]
    fn a_full_host_keeps_claims_from_starting() {
        let list = [entry(0.0, 100.0, 0), entry(10.0, 50.0, 1)];
        let one = |host| {
            let room = Room { gpus: 1.0, host };
            let out = ideal(&list, room, Knows::Everything, First::Nobody);
            (out[0].done_s, out[1].wait_s, out[0].away_s)
        };
        assert_eq!(one(1.0), (Some(150.0), Some(0.0), 50.0));
        assert_eq!(one(0.5), (Some(100.0), Some(90.0), 0.0));
    }

    #[test]
    fn what_is_likely_to_end_soon_for_the_time_goes_first() {
        // One of two ends after one second.
        assert_eq!(gittins(&[1.0, 100.0], 0.0), 0.5);
        assert_eq!(gittins(&[1.0, 100.0], 1.0), 1.0 / 99.0);
    }
}

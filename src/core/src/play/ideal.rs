//! Ideal schedulers, as bounds beside what the machine does: starting, stopping and moving cost nothing, and GPUs have no
//! borders but that a claim which needs most of one leaves no room there for a large part.

use std::collections::BTreeMap;

use super::figures::{Outcome, mean};
use super::list::Entry;
use crate::sched::fair::level;

/// What the order of an ideal scheduler goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knows {
    /// How long each claim will run: the one with the least left goes first.
    Everything,
    /// How run times of the block spread, by size: the one most likely to end soon for the time that this takes goes
    /// first (Gittins index).
    Spread,
    /// How long each claim has run: levels, then arrival.
    Nothing,
}

/// Whose claims go before others, whatever is known of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// Nobody's.
    Nobody,
    /// Those of all users but the first, who asks for most.
    Others,
    /// Those within an equal part of the machine for each user who has some, then the first user's: of schedulers that
    /// keep the guarantee the one that is best for that user.
    Guarantee,
    /// Those of the other users within that part, then whatever has run for less than [`SHORT_S`], then the first user's
    /// that run for [`LONG_S`] or more.
    Long,
}

/// Claims that run for less are short ...
pub const SHORT_S: f64 = 600.0;
/// ... and those that run for as long as this are long.
pub const LONG_S: f64 = 3.0 * 3600.0;

/// Run times after which claims are put in order again, in seconds.
const LOOKS: [f64; 6] = [60.0, SHORT_S, 1800.0, 3600.0, 7200.0, 14_400.0];

/// How many ends a second can be had at best from a claim that has run for so long, by the sorted run times of others.
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

/// The order of the claims of a block for a scheduler that knows so much: smaller goes first.
fn order_of(list: &[Entry], knows: Knows) -> impl FnMut(usize, f64) -> f64 + use<'_> {
    let mut times: BTreeMap<Option<(u32, u32)>, Vec<f64>> = BTreeMap::new();
    for e in list {
        for size in [Some((e.gpus, e.milli)), None] {
            times.entry(size).or_default().push(e.run_s);
        }
    }
    times.values_mut().for_each(|t| t.sort_by(f64::total_cmp));
    // A size that is rare says nothing by itself.
    times.retain(|size, times| size.is_none() || times.len() >= 10);
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
                    let own = times.get(&Some((e.gpus, e.milli)));
                    known[i] = (ran, -gittins(own.unwrap_or(&times[&None]), ran));
                }
                known[i].1
            }
        }
    }
}

/// A claim of a GPU shares it with none of at least so many thousandths if it is larger than the rest. So it counts as the
/// whole of the GPU where smaller ones count as nothing (a dual feasible function of bin packing): sums by each of these
/// stay within the machine.
const PACKED: [u32; 5] = [0, 190, 200, 350, 500];

/// What a part of a GPU counts for, in thousandths, where less than `least` counts as nothing.
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
    /// Its GPUs.
    pub gpus: f64,
    /// Memory beside that of its GPUs.
    pub host: f64,
}

impl Room {
    /// The claims that run, where those that `begun` says are served in this order; and what of the others is in the host
    /// then.
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

    /// Those of the claims, in their order, that fit into an equal part of the machine for each user who has some.
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

/// The claims that are there with what each has left, the one that is served first first.
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
                First::Guarantee if within => 0,
                First::Guarantee => 1 + u8::from(!largest),
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

/// Time from request to start and to end of each claim, and the longest from one run to the next. A claim runs on all that
/// it asks for or not at all, as the memory that it has leaves it no choice, and starts if the host has room for those that
/// do not run then.
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
            // One that starts only now was not away.
            let away = ran_until[*i].map_or(0.0, |at: f64| now - at);
            out[*i].away_s = out[*i].away_s.max(away);
        }
        // Until somebody ends, or has run for so long that the order may be another.
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

/// How many times as long as it runs a long claim of the first user takes at least, on average: where nothing but what the
/// others are guaranteed and the first ten minutes of any claim go before.
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
        // Two of the first user, then two of another who is guaranteed one GPU, and has the shorter ones.
        let list = [
            entry(0.0, 900.0, 0),
            entry(0.0, 900.0, 0),
            entry(0.0, 300.0, 1),
            entry(0.0, 400.0, 1),
        ];
        for (knows, first, by_hand) in [
            // The two short ones run side by side, then the others.
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
            // Ten minutes of the first two, then the others, and of these the rest.
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
        // One of two ends after a second.
        assert_eq!(gittins(&[1.0, 100.0], 0.0), 0.5);
        assert_eq!(gittins(&[1.0, 100.0], 1.0), 1.0 / 99.0);
    }
}

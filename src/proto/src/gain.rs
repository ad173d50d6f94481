//! What sharing would gain where nobody has a claim yet: on how few GPUs the programs would fit. A floor, not a hope: a
//! program takes the memory that it holds now, and as much time as all of its GPU's programs together.

use std::collections::BTreeMap;

use crate::{GpuView, Snapshot};

/// The programs without a claim, and the GPUs that they need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gain {
    /// Programs.
    pub programs: usize,
    /// GPUs that they hold now.
    pub held: usize,
    /// GPUs that they would fit on.
    pub needed: usize,
    /// Those on GPUs that ran nothing in all of their history.
    pub idle: usize,
    /// Bytes of these.
    pub idle_bytes: u64,
    /// GPUs that the others would fit on.
    pub needed_by_busy: usize,
}

/// A program: bytes, and its GPU with the percent of the time that it is busy.
type Load<'a> = (u64, &'a GpuView, f64);

/// Of programs that hold GPUs without a claim; none where a figure is missing, or where a claim is.
#[must_use]
pub fn gain(snapshot: &Snapshot) -> Option<Gain> {
    if snapshot.claims.iter().any(|c| !c.adopted) {
        return None;
    }
    let programs = snapshot.unclaimed.iter().filter(|u| !u.graphics);
    let load = |u: &crate::UnclaimedView| {
        let gpu = snapshot.gpus.iter().find(|g| g.index == u.gpu)?;
        Some((u.mem_used?, gpu, gpu.time_busy?.value))
    };
    let mut loads: Vec<Load<'_>> = programs.map(load).collect::<Option<_>>()?;
    // The largest first: what is left of a GPU has room for small ones.
    loads.sort_by_key(|(bytes, ..)| std::cmp::Reverse(*bytes));
    let held: BTreeMap<u32, u64> = loads
        .iter()
        .map(|(_, gpu, _)| Some((gpu.index, gpu.mem_whole()?)))
        .collect::<Option<_>>()?;
    let mut rooms: Vec<u64> = held.into_values().collect();
    rooms.sort_unstable_by(|a, b| b.cmp(a));
    let ran = |(_, gpu, busy): &Load<'_>| {
        let all = gpu.history.iter().map(|h| f64::from(h.unwrap_or(100.0)));
        gpu.history.is_empty() || all.chain([*busy]).any(|percent| percent >= 0.5)
    };
    let (busy, idle): (Vec<_>, Vec<_>) = loads.iter().copied().partition(ran);
    Some(Gain {
        programs: loads.len(),
        held: rooms.len(),
        needed: packed(&loads, &rooms).unwrap_or(rooms.len()),
        idle: idle.len(),
        idle_bytes: idle.iter().map(|(bytes, ..)| bytes).sum(),
        needed_by_busy: packed(&busy, &rooms).unwrap_or(rooms.len()),
    })
}

/// How many of these GPUs are taken where each program goes to the first that has room and time.
fn packed(loads: &[Load<'_>], rooms: &[u64]) -> Option<usize> {
    // Bytes, and the busy time of each GPU that something came from.
    let mut gpus: Vec<(u64, BTreeMap<u32, f64>)> = vec![Default::default(); rooms.len()];
    for (bytes, from, busy) in loads {
        let fits = |((taken, times), room): (&(u64, BTreeMap<u32, f64>), &u64)| {
            let others: f64 = times
                .iter()
                .filter(|t| *t.0 != from.index)
                .map(|t| t.1)
                .sum();
            taken + bytes <= *room && others + busy <= 100.0
        };
        let at = gpus.iter().zip(rooms).position(fits)?;
        gpus[at].0 += bytes;
        gpus[at].1.insert(from.index, *busy);
    }
    Some(gpus.iter().filter(|(_, times)| !times.is_empty()).count())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Figure, Source, UnclaimedView};

    /// GPUs of 100 bytes: the programs of each in bytes, and the percent of its time.
    fn machine(gpus: &[(&[u64], f64)]) -> Snapshot {
        let mut all = Snapshot::default();
        for (index, (programs, busy)) in (0..).zip(gpus) {
            all.gpus.push(GpuView {
                index,
                mem_total: Some(100),
                time_busy: Some(Figure {
                    value: *busy,
                    source: Source::TimeBusy,
                    estimate: false,
                }),
                history: vec![Some(*busy as f32)],
                ..GpuView::default()
            });
            all.unclaimed
                .extend(programs.iter().map(|bytes| UnclaimedView {
                    gpu: index,
                    mem_used: Some(*bytes),
                    ..UnclaimedView::default()
                }));
        }
        all
    }

    fn needed(gpus: &[(&[u64], f64)]) -> (usize, usize, usize) {
        let gain = gain(&machine(gpus)).unwrap();
        (gain.held, gain.needed, gain.needed_by_busy)
    }

    #[test]
    fn programs_fit_together_by_memory_and_time() {
        assert_eq!(needed(&[(&[60], 50.0), (&[40], 50.0)]), (2, 1, 1));
        assert_eq!(needed(&[(&[60], 50.0), (&[41], 50.0)]), (2, 2, 2));
        assert_eq!(needed(&[(&[60], 50.0), (&[40], 51.0)]), (2, 2, 2));
        // Those of one GPU use its time once, wherever both go.
        assert_eq!(needed(&[(&[10, 10], 90.0), (&[10], 10.0)]), (2, 1, 1));
        assert_eq!(needed(&[(&[60], 50.0), (&[60], 0.0)]), (2, 2, 1));
        assert_eq!(needed(&[]), (0, 0, 0));
    }

    #[test]
    fn nothing_is_promised_of_what_is_not_known() {
        let mut unknown = machine(&[(&[60], 50.0), (&[40], 50.0)]);
        unknown.gpus[0].time_busy = None;
        assert_eq!(gain(&unknown), None);
        let mut claimed = machine(&[(&[60], 50.0)]);
        claimed.claims.push(crate::ClaimView::default());
        assert_eq!(gain(&claimed), None);
    }
}

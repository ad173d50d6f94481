//! Gain by sharing on a machine without claims: how few GPUs the programs would need. A conservative figure: a
//! program needs its present memory, and the GPU time of all programs on its GPU together.

use std::collections::BTreeMap;

use crate::{GpuView, Snapshot};

/// The programs without a claim, and the GPUs that they need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gain {
    pub programs: usize,
    /// GPUs that they occupy now.
    pub held: usize,
    /// GPUs that they would need.
    pub needed: usize,
    /// Programs on GPUs that ran nothing in their whole history.
    pub idle: usize,
    /// Bytes of the idle programs.
    pub idle_bytes: u64,
    /// GPUs that the other programs would need.
    pub needed_by_busy: usize,
}

/// A program: bytes, and its GPU with the busy percentage.
type Load<'a> = (u64, &'a GpuView, f64);

/// Gain for programs without a claim; none if a figure is missing, or if there is a claim.
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
    // The largest first: the rest of a GPU has room for small ones.
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

/// Number of GPUs used if each program goes to the first with enough room and time.
fn packed(loads: &[Load<'_>], rooms: &[u64]) -> Option<usize> {
    // Bytes, and the busy time of each GPU of origin.
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

    /// GPUs of 100 bytes: the programs of each in bytes, and its busy percentage.
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
        // Programs from one GPU count its time once, wherever both go.
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

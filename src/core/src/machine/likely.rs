//! When waiting claims start about, where no lease says when others end: by how long such runs took before.

use std::collections::BTreeMap;

use super::{Ask, Machine, Now};
use crate::claim::ClaimId;
use crate::place;

/// Ends and claims that are looked at.
const FORESEEN: usize = 64;

impl Machine {
    /// When each claim in the queue would start if those who hold end at these times (and at the end of their leases,
    /// whichever is earlier). Claims that would need others to end are left out.
    #[must_use]
    pub fn likely_starts(&self, now: Now, ends: &BTreeMap<ClaimId, Now>) -> BTreeMap<ClaimId, Now> {
        let mut all: BTreeMap<ClaimId, Now> = ends.clone();
        for (id, at) in &self.leases {
            let end = all.entry(*id).or_insert(*at);
            *end = (*end).min(*at);
        }
        let mut order: Vec<(Now, ClaimId)> =
            all.into_iter().map(|(id, at)| (at.max(now), id)).collect();
        order.sort_unstable();
        let mut later = self.ledger.clone();
        let mut starts = BTreeMap::new();
        let waiting: Vec<_> = self
            .queue
            .iter()
            .take(FORESEEN)
            .filter_map(|w| match &w.ask {
                Ask::Claim { id, request, .. } => Some((*id, request, &w.blocks)),
                _ => None,
            })
            .collect();
        for (at, ended) in order.into_iter().take(FORESEEN) {
            later.remove(ended);
            let mut kept = vec![false; later.gpus().len()];
            for (id, request, blocks) in &waiting {
                if starts.contains_key(id) {
                    continue;
                }
                if let Some(slices) = place::best_fit(&later, request, &kept) {
                    later.insert(*id, slices);
                    starts.insert(*id, at);
                    continue;
                }
                for g in *blocks {
                    kept[*g] = true;
                }
            }
        }
        starts
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::World;
    use super::*;

    #[test]
    fn a_waiting_claim_starts_about_when_the_run_before_it_ends() {
        let mut w = World::new(&[24]);
        w.submit(1, 800);
        w.submit(2, 500);
        let ends = BTreeMap::from([(ClaimId(1), Duration::from_secs(300))]);
        let likely = |now: u64, ends: &BTreeMap<ClaimId, Now>| {
            let starts = w.machine.likely_starts(Duration::from_secs(now), ends);
            starts.get(&ClaimId(2)).map(Duration::as_secs)
        };
        assert_eq!(likely(10, &ends), Some(300));
        assert_eq!(
            likely(400, &ends),
            Some(400),
            "it takes longer than they did"
        );
        assert_eq!(likely(0, &BTreeMap::new()), None);
    }
}

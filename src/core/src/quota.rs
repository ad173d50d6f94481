//! Quotas of users, groups and projects: what an administrator guarantees them, and the maximum that they may hold. The
//! machine enforces the maximum; the guarantees determine the order of service.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::claim::{ClaimId, Request};
use crate::ledger::{Admission, GpuFacts, Ledger, Slice};
use crate::units::Share;

/// The holder of a quota; written `user:ada`, `group:lab`, `project:vision`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Party {
    /// A user, by login name.
    User(String),
    /// A Unix group: all claims of its members.
    Group(String),
    /// A project: all its claims.
    Project(String),
}

/// A text that is not a party.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not user:NAME, group:NAME or project:NAME")]
pub struct PartyError(String);

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, name) = match self {
            Self::User(name) => ("user", name),
            Self::Group(name) => ("group", name),
            Self::Project(name) => ("project", name),
        };
        write!(f, "{kind}:{name}")
    }
}

impl FromStr for Party {
    type Err = PartyError;

    fn from_str(text: &str) -> Result<Self, PartyError> {
        let bad = || PartyError(text.to_owned());
        let (kind, name) = text.split_once(':').ok_or_else(bad)?;
        let name = name.trim().to_owned();
        if name.is_empty() || name.len() > 128 {
            return Err(bad());
        }
        match kind {
            "user" => Ok(Self::User(name)),
            "group" => Ok(Self::Group(name)),
            "project" => Ok(Self::Project(name)),
            _ => Err(bad()),
        }
    }
}

/// An administrator's entry; absent fields are not set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Holder of the quota.
    pub party: Party,
    /// Guaranteed GPUs.
    pub gpus: Option<Share>,
    /// Weight in thousandths for dividing what is not guaranteed to anyone; 1000 by default.
    pub weight_milli: Option<u32>,
    /// Maximum number of GPUs held at a time.
    pub max: Option<Share>,
}

/// A party would hold more than its maximum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Over {
    /// Holder of the quota.
    pub party: Party,
    /// Its maximum.
    pub max: Share,
    /// What it holds now.
    pub held: Share,
    /// What the claim would add.
    pub wanted: Share,
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "needs {} of a GPU; {} may hold {} at most and holds {}",
            self.wanted.short(),
            self.party,
            self.max.short(),
            self.held.short()
        )
    }
}

/// The quotas in force, and the parties that each claim counts for.
#[derive(Clone, Debug, Default)]
pub struct Quotas {
    max: BTreeMap<Party, Share>,
    /// Entries with a guarantee or a weight: party, guaranteed part, and weight in thousandths.
    sure: Vec<(Party, Option<Share>, u32)>,
    parties: BTreeMap<ClaimId, Vec<Party>>,
    /// The entry of `sure` that serves each claim.
    served: BTreeMap<ClaimId, usize>,
}

impl Quotas {
    /// Replaces all entries.
    pub fn set(&mut self, quotas: &[Quota]) {
        let max = quotas
            .iter()
            .filter_map(|q| Some((q.party.clone(), q.max?)));
        self.max = max.collect();
        let sure = quotas
            .iter()
            .filter(|q| q.gpus.is_some() || q.weight_milli.is_some())
            .map(|q| (q.party.clone(), q.gpus, q.weight_milli.unwrap_or(1000)));
        // If a party has several entries the last one applies.
        self.sure.clear();
        for entry in sure {
            self.sure.retain(|(party, ..)| *party != entry.0);
            self.sure.push(entry);
        }
        self.served.clear();
        for (id, parties) in &self.parties {
            if let Some(entry) = self.entry(parties) {
                self.served.insert(*id, entry);
            }
        }
    }

    fn entry(&self, parties: &[Party]) -> Option<usize> {
        let rank = |p: &Party| match p {
            Party::Project(_) => 0,
            Party::User(_) => 1,
            Party::Group(_) => 2,
        };
        let entries = self.sure.iter().enumerate();
        let own = entries.filter(|(_, (party, ..))| parties.contains(party));
        let (entry, _) = own.min_by_key(|(_, (party, ..))| {
            let place = parties.iter().position(|p| p == party);
            (rank(party), place)
        })?;
        Some(entry)
    }

    /// The entry that serves a claim (its index, until entries are set again), with the guaranteed part and the weight
    /// in thousandths. A project's entry comes first, then the user's, then a group's.
    #[must_use]
    pub fn guarantee(&self, id: ClaimId) -> Option<(usize, Option<Share>, u32)> {
        let entry = *self.served.get(&id)?;
        let (_, gpus, weight) = self.sure.get(entry)?;
        Some((entry, *gpus, *weight))
    }

    /// The party whose guarantee serves a claim, if an entry sets one.
    #[must_use]
    pub fn guarantees(&self, id: ClaimId) -> Option<&Party> {
        let (party, gpus, _) = self.sure.get(*self.served.get(&id)?)?;
        gpus.is_some().then_some(party)
    }

    /// The guaranteed part of an entry.
    #[must_use]
    pub fn guaranteed(&self, entry: usize) -> Option<Share> {
        self.sure.get(entry)?.1
    }

    /// Adds a claim that counts for these parties.
    pub fn enter(&mut self, id: ClaimId, parties: Vec<Party>) {
        match self.entry(&parties) {
            Some(entry) => self.served.insert(id, entry),
            None => self.served.remove(&id),
        };
        self.parties.insert(id, parties);
    }

    /// Removes a claim.
    pub fn leave(&mut self, id: ClaimId) {
        self.parties.remove(&id);
        self.served.remove(&id);
    }

    /// The quota that prevents `request` from starting now, if any.
    #[must_use]
    pub fn keeps(&self, ledger: &Ledger, id: ClaimId, request: &Request) -> Option<Over> {
        // Asked for each claim in the queue.
        if self.max.is_empty() {
            return None;
        }
        self.of(id).next()?;
        self.over(ledger, id, wanted(ledger, request))
    }

    /// The quota that `request` exceeds on its own, so that it can never start.
    #[must_use]
    pub fn never(&self, ledger: &Ledger, id: ClaimId, request: &Request) -> Option<Over> {
        let wanted = wanted(ledger, request);
        self.of(id)
            .find(|(_, max)| wanted > *max)
            .map(|(party, max)| Over {
                held: self.held(ledger, party, id),
                party: party.clone(),
                max,
                wanted,
            })
    }

    /// The quota that prevents a held claim from growing to these slices, if any.
    #[must_use]
    pub fn keeps_from(&self, ledger: &Ledger, id: ClaimId, slices: &[Slice]) -> Option<Over> {
        let new = sum(ledger, slices);
        let old = sum(ledger, ledger.slices(id).unwrap_or_default());
        (new > old).then(|| self.over(ledger, id, new))?
    }

    fn of(&self, id: ClaimId) -> impl Iterator<Item = (&Party, Share)> {
        let parties = self.parties.get(&id).into_iter().flatten();
        parties.filter_map(|p| Some((p, *self.max.get(p)?)))
    }

    fn over(&self, ledger: &Ledger, id: ClaimId, wanted: Share) -> Option<Over> {
        self.of(id).find_map(|(party, max)| {
            let held = self.held(ledger, party, id);
            (held.saturating_add(wanted) > max).then(|| Over {
                party: party.clone(),
                max,
                held,
                wanted,
            })
        })
    }

    /// What a party holds without the claim `but`.
    fn held(&self, ledger: &Ledger, party: &Party, but: ClaimId) -> Share {
        let counts = |id: &ClaimId| self.parties.get(id).is_some_and(|p| p.contains(party));
        let claims = ledger.held().filter(|(id, _)| *id != but && counts(id));
        claims.fold(Share::ZERO, |total, (_, slices)| {
            total.saturating_add(sum(ledger, slices))
        })
    }
}

/// The slices' sum in GPUs: of each slice the larger of its memory and SM parts. GPUs of other schedulers do not count.
fn sum(ledger: &Ledger, slices: &[Slice]) -> Share {
    let own = slices
        .iter()
        .filter(|s| ledger.admission(s.gpu) == Admission::Queue);
    own.fold(Share::ZERO, |total, s| {
        let facts = ledger.gpus().get(s.gpu);
        let part = facts.map_or(Share::ZERO, |f| f.part(s.mem)).max(s.sm);
        let of_a_gpu = facts.map_or(Share::ONE, GpuFacts::of_a_gpu);
        let milli = u64::from(part.milli()) * u64::from(of_a_gpu.milli()) / 1000;
        total.saturating_add(Share::from_milli(u32::try_from(milli).unwrap_or(u32::MAX)))
    })
}

fn wanted(ledger: &Ledger, request: &Request) -> Share {
    let largest = ledger.gpus().iter().max_by_key(|g| g.capacity());
    let part = |mem| largest.map_or(Share::ZERO, |g| g.part(mem));
    let memory = request.mem.map_or(request.share, part);
    let each = memory.max(request.sm.unwrap_or_default());
    Share::from_milli(each.milli().saturating_mul(request.gpus))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parties_are_read_as_they_are_written() {
        for text in ["user:ada", "group:lab", "project:vision and more"] {
            assert_eq!(
                text.parse::<Party>().map(|p| p.to_string()),
                Ok(text.to_owned())
            );
        }
        for text in ["ada", "user:", "uid:7", "", ":x"] {
            assert!(text.parse::<Party>().is_err(), "{text}");
        }
    }
}

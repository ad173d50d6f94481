//! What the driver says that a claim's processes use, against what is counted and allowed: decided here, in virtual
//! time.
//!
//! What members use beyond their allocations (modules, graphs, stack, heap) is charged to their claim; a claim is in
//! over-use above its cap, or by processes that never registered. An excess counts once it was seen at two looks in a
//! row. A figure that the driver does not give accuses nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::claim::ClaimId;
use crate::machine::Now;
use crate::units::Bytes;

/// Looks in a row at which something must be seen before it counts, and at which it must be gone.
const LOOKS: u32 = 2;
/// Looks for which the driver must show bytes beyond a member's ledger before they are charged, unless the ledger was
/// never so high: what it says and the ledger are not of the same moment, and programs allocate and free in between.
const STEADY: usize = 8;
/// Between the request to end and the end by force.
pub const TERM_GRACE: Duration = Duration::from_secs(10);

/// How over-use is dealt with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// End the offending process after the grace time; else only warn.
    pub stop: bool,
    /// Time between the warning and the end.
    pub grace: Duration,
    /// Bytes that each process may use above what it may have: what a driver takes before it is charged.
    pub tolerance: Bytes,
    /// Percent of the GPU's time that a process, or a claim's processes together, may get beyond what is counted.
    pub time: f64,
}

/// What a claim is held to on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// The members' proxy counts, and lets them have this much.
    Cap(Bytes),
    /// Its launches are not counted (a process that was adopted while it ran): this much it may have.
    Most(Bytes),
    /// The claim holds no part of this GPU.
    Nothing,
}

/// A process of a claim on one GPU, by the driver's word. `P` names a process for good.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen<P> {
    /// The process.
    pub process: P,
    /// Bytes; `None` where the driver does not say.
    pub bytes: Option<Bytes>,
    /// Its charge in the ledger; `None` if it never registered.
    pub charge: Option<Bytes>,
    /// Percent of the GPU's time; `None` where the driver does not say.
    pub busy: Option<f64>,
    /// Percent of the GPU's time that its proxy counted in the same time: 0 for a process that never registered
    /// or never launched, `None` where the proxy cannot say.
    pub counted: Option<f64>,
}

/// A claim on one GPU, at one look.
#[derive(Clone, Debug, PartialEq)]
pub struct Look<P> {
    /// The claim.
    pub claim: ClaimId,
    /// Index of the GPU.
    pub gpu: usize,
    /// What it is held to there.
    pub hold: Hold,
    /// The highest that its ledger was so far.
    pub peak: Bytes,
    /// What a context costs there.
    pub overhead: Bytes,
    /// That is a guess: nobody has measured it for the way in which the claim has the GPU.
    pub guessed: bool,
    /// Claims take turns there: what the driver's samples of a member say is a matter of when they were taken.
    pub turns: bool,
    /// Its processes there.
    pub seen: Vec<Seen<P>>,
}

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// More device memory than allowed and tolerated.
    Memory {
        /// Bytes above.
        excess: Bytes,
    },
    /// More GPU time than counted and tolerated.
    Time {
        /// Percent of the GPU's time above what is counted.
        excess: f64,
    },
    /// A GPU that the claim does not hold.
    NotGranted,
}

/// What is wrong, and who does it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Finding<P> {
    /// What.
    pub kind: Kind,
    /// The process that does most of it.
    pub process: P,
}

/// What the service must do.
#[derive(Clone, Debug, PartialEq)]
pub enum Act<P> {
    /// Refuse growth, and warn: the claim is in over-use from now on.
    Warn {
        /// The claim.
        claim: ClaimId,
        /// Index of the GPU.
        gpu: usize,
        /// What was found.
        finding: Finding<P>,
    },
    /// End a process: asked first, later by force.
    Stop {
        /// The claim.
        claim: ClaimId,
        /// Index of the GPU.
        gpu: usize,
        /// What was found.
        finding: Finding<P>,
        /// It did not end when it was asked.
        force: bool,
    },
    /// A member that has a context and nothing else shows that one costs so much, at two looks.
    Context {
        /// The claim.
        claim: ClaimId,
        /// Index of the GPU.
        gpu: usize,
        /// Bytes.
        bytes: Bytes,
    },
    /// The over-use is over: the claim may grow again.
    Cured {
        /// The claim.
        claim: ClaimId,
        /// Index of the GPU.
        gpu: usize,
    },
}

/// A claim under suspicion on one GPU.
#[derive(Clone, Debug)]
struct Case<P> {
    finding: Finding<P>,
    looks: u32,
    clean: u32,
    /// Since when it is over-use.
    since: Option<Now>,
    /// Processes that were asked to end, and when.
    asked: BTreeMap<P, Now>,
    forced: BTreeSet<P>,
}

/// What the driver showed of a member beyond its ledger at the last looks, its charge at the last one, and what it showed
/// then of one that has a context and nothing else.
#[derive(Clone, Copy, Debug)]
struct Beyond {
    charge: Bytes,
    shown: [Bytes; STEADY],
    bare: Option<Bytes>,
}

/// All claims under suspicion, and what their members use beyond their ledgers.
#[derive(Clone, Debug)]
pub struct Reconcile<P> {
    cases: BTreeMap<(ClaimId, usize), Case<P>>,
    beyond: BTreeMap<(ClaimId, usize), BTreeMap<P, Beyond>>,
    /// What the driver showed of all members beyond the highest that their ledger ever was.
    above_peak: BTreeMap<(ClaimId, usize), Bytes>,
}

impl<P> Default for Reconcile<P> {
    fn default() -> Self {
        Self {
            cases: BTreeMap::new(),
            beyond: BTreeMap::new(),
            above_peak: BTreeMap::new(),
        }
    }
}

impl<P: Copy + Ord> Reconcile<P> {
    /// Takes one look at all claims. A claim and GPU that is not among the looks is one of which nothing is known
    /// now: nothing is held against it, and nothing that was is forgotten.
    pub fn step(&mut self, now: Now, rules: &Rules, looks: &[Look<P>]) -> Vec<Act<P>> {
        let mut acts = Vec::new();
        for look in looks {
            let key = (look.claim, look.gpu);
            if let Some(bytes) = self.measure(key, look)
                && (bytes < look.overhead || look.guessed)
            {
                acts.push(Act::Context {
                    claim: look.claim,
                    gpu: look.gpu,
                    bytes,
                });
            }
            match judge(look, rules) {
                Some(finding) => {
                    let case = self.cases.entry(key).or_insert_with(|| Case {
                        finding,
                        looks: 0,
                        clean: 0,
                        since: None,
                        asked: BTreeMap::new(),
                        forced: BTreeSet::new(),
                    });
                    case.see(now, rules, look, finding, &mut acts);
                }
                None => {
                    let Some(case) = self.cases.get_mut(&key) else {
                        continue;
                    };
                    case.clean += 1;
                    case.looks = 0;
                    if case.since.is_none() || case.clean >= LOOKS {
                        if case.since.is_some() {
                            acts.push(Act::Cured {
                                claim: look.claim,
                                gpu: look.gpu,
                            });
                        }
                        self.cases.remove(&key);
                    }
                }
            }
        }
        acts
    }

    /// Notes what the driver shows of each member beyond its ledger. A member of unknown size keeps what it had. Gives the
    /// least that one showed twice that has a context and nothing else.
    fn measure(&mut self, key: (ClaimId, usize), look: &Look<P>) -> Option<Bytes> {
        let members = look.seen.iter().filter(|s| s.charge.is_some());
        let used = members.filter_map(|s| s.bytes);
        let used = used.fold(Bytes::ZERO, Bytes::saturating_add);
        self.above_peak.insert(key, used.saturating_sub(look.peak));
        let before = self.beyond.remove(&key).unwrap_or_default();
        let mut least = None;
        let note = |s: &Seen<P>| {
            let charge = s.charge?;
            let mut member = before.get(&s.process).copied().unwrap_or(Beyond {
                charge,
                shown: [Bytes::ZERO; STEADY],
                bare: None,
            });
            let is_bare = charge == look.overhead;
            let bare = s.bytes.filter(|bytes| is_bare && *bytes > Bytes::ZERO);
            if bare == member.bare {
                least = least.into_iter().chain(bare).min();
            }
            member.bare = bare;
            if let Some(bytes) = s.bytes {
                member.shown.rotate_right(1);
                member.shown[0] = bytes.saturating_sub(charge.max(member.charge));
            }
            member.charge = charge;
            Some((s.process, member))
        };
        let members: BTreeMap<P, Beyond> = look.seen.iter().filter_map(note).collect();
        // One that has none any more stays for a look: its cap is raised again.
        if !members.is_empty() || !before.is_empty() {
            self.beyond.insert(key, members);
        }
        least
    }

    /// Bytes that a claim's members use on a GPU beyond what the ledger can have: to be charged to the claim.
    #[must_use]
    pub fn driver_bytes(&self, claim: ClaimId, gpu: usize) -> Bytes {
        let members = self.beyond.get(&(claim, gpu)).into_iter().flatten();
        let steady = members
            .map(|(_, member)| member.shown.iter().copied().min().unwrap_or_default())
            .fold(Bytes::ZERO, Bytes::saturating_add);
        let above = self.above_peak.get(&(claim, gpu)).copied();
        steady.max(above.unwrap_or_default())
    }

    /// Claims and GPUs whose caps are below their limits: in over-use, or with bytes of the driver's.
    #[must_use]
    pub fn held_down(&self) -> BTreeSet<(ClaimId, usize)> {
        let over = self.all().map(|(id, gpu, ..)| (id, gpu));
        let shown = |m: &Beyond| m.shown.iter().any(|bytes| *bytes > Bytes::ZERO);
        let beyond = self.beyond.iter();
        let beyond = beyond.filter(|(_, m)| m.is_empty() || m.values().any(shown));
        over.chain(beyond.map(|(key, _)| *key)).collect()
    }

    /// Forgets a claim that has ended.
    pub fn forget(&mut self, claim: ClaimId) {
        self.cases.retain(|(id, _), _| *id != claim);
        self.beyond.retain(|(id, _), _| *id != claim);
        self.above_peak.retain(|(id, _), _| *id != claim);
    }

    /// What is held against a claim on a GPU, once it counts: since when, and what.
    #[must_use]
    pub fn over(&self, claim: ClaimId, gpu: usize) -> Option<(Now, Finding<P>)> {
        let case = self.cases.get(&(claim, gpu))?;
        case.since.map(|since| (since, case.finding))
    }

    /// All claims in over-use, with their GPUs.
    pub fn all(&self) -> impl Iterator<Item = (ClaimId, usize, Now, Finding<P>)> {
        self.cases.iter().filter_map(|((id, gpu), case)| {
            case.since.map(|since| (*id, *gpu, since, case.finding))
        })
    }
}

impl<P: Copy + Ord> Case<P> {
    fn see(
        &mut self,
        now: Now,
        rules: &Rules,
        look: &Look<P>,
        finding: Finding<P>,
        acts: &mut Vec<Act<P>>,
    ) {
        self.finding = finding;
        self.looks += 1;
        self.clean = 0;
        let (claim, gpu) = (look.claim, look.gpu);
        let Some(since) = self.since else {
            if self.looks >= LOOKS {
                self.since = Some(now);
                acts.push(Act::Warn {
                    claim,
                    gpu,
                    finding,
                });
            }
            return;
        };
        if !rules.stop || now.saturating_sub(since) < rules.grace {
            return;
        }
        let process = finding.process;
        let force = match self.asked.get(&process) {
            None => {
                self.asked.insert(process, now);
                false
            }
            Some(asked) if now.saturating_sub(*asked) < TERM_GRACE => return,
            Some(_) if self.forced.insert(process) => true,
            Some(_) => return,
        };
        acts.push(Act::Stop {
            claim,
            gpu,
            finding,
            force,
        });
    }
}

/// What is wrong with a claim on a GPU, the worst first: a GPU that is not its own, memory, time.
fn judge<P: Copy + Ord>(look: &Look<P>, rules: &Rules) -> Option<Finding<P>> {
    let found = |kind, process| Some(Finding { kind, process });
    let bytes = |s: &&Seen<P>| s.bytes.unwrap_or_default();
    let sum = |seen: &[&Seen<P>]| {
        seen.iter()
            .map(bytes)
            .fold(Bytes::ZERO, Bytes::saturating_add)
    };
    let all: Vec<&Seen<P>> = look.seen.iter().collect();
    let most_of = |seen: Vec<&Seen<P>>, most: Bytes| {
        let most = most.saturating_add(many(rules.tolerance, seen.len()));
        let excess = sum(&seen).saturating_sub(most);
        let largest = seen.into_iter().max_by_key(|s| (bytes(s), s.process))?;
        (excess > Bytes::ZERO).then_some((excess, largest.process))
    };
    let memory = match look.hold {
        Hold::Nothing => {
            let most = look.seen.iter().max_by_key(|s| (s.bytes, s.process))?;
            return found(Kind::NotGranted, most.process);
        }
        Hold::Most(most) => most_of(all, most),
        // Room that members leave is nobody's who did not register.
        Hold::Cap(cap) => {
            let (strangers, members): (Vec<_>, Vec<_>) =
                all.into_iter().partition(|s| s.charge.is_none());
            let contexts = many(look.overhead, strangers.len());
            most_of(strangers, contexts).or_else(|| most_of(members, cap))
        }
    };
    if let Some((excess, process)) = memory {
        return found(Kind::Memory { excess }, process);
    }
    // A process adopted while it ran has nobody that counts its time.
    if matches!(look.hold, Hold::Most(_)) {
        return None;
    }
    time(look, rules)
}

/// GPU time beyond what is counted: of one process, or of all together. What one counts too much hides nothing of
/// another's.
fn time<P: Copy + Ord>(look: &Look<P>, rules: &Rules) -> Option<Finding<P>> {
    let above = |s: &Seen<P>| Some((s.busy? - s.counted?, s.process));
    let told = |s: &&Seen<P>| s.charge.is_none() || !look.turns;
    let above: Vec<(f64, P)> = look.seen.iter().filter(told).filter_map(above).collect();
    let (most, process) = above
        .iter()
        .copied()
        .max_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)))?;
    let all: f64 = above.iter().map(|(excess, _)| excess).sum();
    let excess = most.max(all);
    (excess >= rules.time).then_some(Finding {
        kind: Kind::Time { excess },
        process,
    })
}

fn many(bytes: Bytes, count: usize) -> Bytes {
    let count = u64::try_from(count).unwrap_or(u64::MAX);
    Bytes(bytes.0.saturating_mul(count))
}

#[cfg(test)]
mod tests;

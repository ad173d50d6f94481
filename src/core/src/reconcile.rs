//! Compares the driver's figures for a claim's processes with what is counted and allowed, in virtual time.
//!
//! What members use beyond their allocations (modules, graphs, stack, heap) is charged to their claim. A claim is in
//! over-use if it is above its cap, or if processes that never registered use its GPUs. An excess counts after two
//! looks in a row. A figure that the driver does not give is never evidence.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::claim::ClaimId;
use crate::machine::Now;
use crate::units::Bytes;

/// Consecutive looks that open a case, and that close it.
const LOOKS: u32 = 2;
/// Number of looks that must show bytes beyond a member's ledger before they are charged. The driver's figure and the
/// ledger are read at different moments, between which programs allocate and free. Bytes above the ledger's peak are
/// charged at once.
const STEADY: usize = 8;
/// Time between the request to end and the forced end.
pub const TERM_GRACE: Duration = Duration::from_secs(10);

/// How over-use is handled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// End the offending process after the grace time; else only warn.
    pub stop: bool,
    /// Time between the warning and the request to end.
    pub grace: Duration,
    /// Bytes that each process may use above its allowance: the driver takes some before they are charged.
    pub tolerance: Bytes,
    /// Tolerated GPU time beyond what is counted, in percent of the GPU's time, for a process or for all of a claim's
    /// processes together.
    pub time: f64,
}

/// A claim's limit on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// The members' proxy enforces this cap.
    Cap(Bytes),
    /// A limit without a proxy, for a process that was adopted while it ran.
    Most(Bytes),
    /// The claim holds no part of this GPU.
    Nothing,
}

/// A process of a claim on one GPU, as the driver reports it. `P` identifies a process uniquely.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen<P> {
    pub process: P,
    /// Bytes; `None` if the driver does not report them.
    pub bytes: Option<Bytes>,
    /// Its charge in the ledger; `None` if it never registered.
    pub charge: Option<Bytes>,
    /// Percent of the GPU's time; `None` if the driver does not report it.
    pub busy: Option<f64>,
    /// Percent of the GPU's time that its proxy counted meanwhile: 0 for a process that never registered or never
    /// launched, `None` if the proxy does not know.
    pub counted: Option<f64>,
}

/// A claim on one GPU, at one look.
#[derive(Clone, Debug, PartialEq)]
pub struct Look<P> {
    pub claim: ClaimId,
    pub gpu: usize,
    /// Its limit there.
    pub hold: Hold,
    /// The highest value of its ledger so far.
    pub peak: Bytes,
    /// Bytes of one context there.
    pub overhead: Bytes,
    /// `overhead` is a guess: no one has measured it for this claim's sharing mode.
    pub guessed: bool,
    /// Claims take turns there, so samples of a member depend on when they were taken.
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

/// What is wrong, and which process is responsible.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Finding<P> {
    /// What is wrong.
    pub kind: Kind,
    /// The process with the largest part.
    pub process: P,
}

/// What the service must do.
#[derive(Clone, Debug, PartialEq)]
pub enum Act<P> {
    /// Refuse growth and warn: the claim is now in over-use.
    Warn {
        claim: ClaimId,
        gpu: usize,
        /// What was found.
        finding: Finding<P>,
    },
    /// End a process: first by request, later by force.
    Stop {
        claim: ClaimId,
        gpu: usize,
        /// What was found.
        finding: Finding<P>,
        /// It did not end on request.
        force: bool,
    },
    /// Two looks at a member that has only a context agree on the bytes of a context.
    Context {
        claim: ClaimId,
        gpu: usize,
        bytes: Bytes,
    },
    /// The over-use has ended: the claim may grow again.
    Cured { claim: ClaimId, gpu: usize },
}

/// A claim under suspicion on one GPU.
#[derive(Clone, Debug)]
struct Case<P> {
    finding: Finding<P>,
    looks: u32,
    clean: u32,
    /// Start of the over-use.
    since: Option<Now>,
    /// Processes that were asked to end, and when.
    asked: BTreeMap<P, Now>,
    forced: BTreeSet<P>,
}

/// For one member: bytes that the driver showed beyond its ledger at the last looks, its charge at the last one, and
/// the bytes it showed there if it had only a context.
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
    /// Bytes that the driver showed of all members beyond their ledger's peak.
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
    /// Takes one look at all claims. For a claim and GPU that is not among the looks nothing is known now: no case is
    /// opened or closed.
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

    /// Records the bytes that the driver shows of each member beyond its ledger. A member of unknown size keeps its
    /// previous value. Returns the smallest size that a member with only a context showed twice.
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
        // An emptied entry stays for one more look, so that its cap is raised again.
        if !members.is_empty() || !before.is_empty() {
            self.beyond.insert(key, members);
        }
        least
    }

    /// Bytes that a claim's members use on a GPU outside the ledger, to be charged to the claim.
    #[must_use]
    pub fn driver_bytes(&self, claim: ClaimId, gpu: usize) -> Bytes {
        let members = self.beyond.get(&(claim, gpu)).into_iter().flatten();
        let steady = members
            .map(|(_, member)| member.shown.iter().copied().min().unwrap_or_default())
            .fold(Bytes::ZERO, Bytes::saturating_add);
        let above = self.above_peak.get(&(claim, gpu)).copied();
        steady.max(above.unwrap_or_default())
    }

    /// Claims and GPUs whose caps are below their limits: in over-use, or with driver bytes.
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

    /// A claim's over-use on a GPU, once it counts: start and finding.
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

/// The worst problem of a claim on a GPU, in this order: a GPU that it does not hold, memory, time.
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
        // Unregistered processes may not use room that members leave.
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
    // No proxy counts the time of a process that was adopted while it ran.
    if matches!(look.hold, Hold::Most(_)) {
        return None;
    }
    time(look, rules)
}

/// GPU time beyond what is counted, of one process or of all together. A process that counts too much does not offset
/// another.
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

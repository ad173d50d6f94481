//! Sums of claimed and used amounts, in steps of ten seconds. Without IO or clock: the service passes its looks, the
//! benchmark's simulated weeks pass generated ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use gshare_proto::history::{Idle, Usage};

/// Seconds of the finest step.
pub(crate) const STEP_S: i64 = 10;
const STEP_MS: u64 = STEP_S as u64 * 1000;

/// Subject of a line of the history.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Key {
    /// The machine: its GPUs, claimed or not.
    Machine,
    /// A GPU, by its UUID.
    Gpu(Arc<str>),
    /// A claim's part of one GPU.
    Claim {
        claim: u64,
        uid: u32,
        /// UUID of the GPU.
        gpu: Arc<str>,
    },
    /// A waiting user.
    Wait(u32),
}

/// Why a claim was idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Outside working hours.
    OffHours,
    /// Its notebook kernel waits for input.
    Kernel,
    /// Its programs compute on the processor.
    Cpu,
    /// Its programs wait for disks.
    Io,
    /// The cause is not known.
    #[default]
    Other,
}

/// Sums over a time, weighted by GPUs: half a GPU for a minute is 30.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sum {
    /// Seconds covered by looks.
    pub(crate) looked: f64,
    /// GPU seconds claimed; for the machine, capacity.
    pub(crate) claimed: f64,
    /// GPU seconds used (SM activity).
    pub(crate) used: Option<f64>,
    /// GPU seconds claimed while use was known.
    pub(crate) used_known: f64,
    /// Seconds in which use was known.
    pub(crate) used_s: f64,
    /// Some of the use is an estimate.
    pub(crate) estimate: bool,
    /// GPU seconds with a kernel resident.
    pub(crate) busy: Option<f64>,
    /// Byte seconds claimed.
    pub(crate) mem_claimed: f64,
    pub(crate) mem_used: Option<f64>,
    /// Byte seconds used above the claim.
    pub(crate) mem_borrowed: Option<f64>,
    /// GPU seconds used above the claim.
    pub(crate) borrowed: f64,
    /// Claimed GPU seconds with delayed launches.
    pub(crate) throttled: f64,
    /// GPU seconds waited for.
    pub(crate) waited: f64,
    /// Claimed, idle GPU seconds by [`Cause`].
    pub(crate) idle: [f64; 5],
}

fn add(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a + b),
        (a, b) => a.or(b),
    }
}

impl Sum {
    pub(crate) fn add(&mut self, other: &Self) {
        self.looked += other.looked;
        self.claimed += other.claimed;
        self.used = add(self.used, other.used);
        self.used_known += other.used_known;
        self.used_s += other.used_s;
        self.estimate |= other.estimate;
        self.busy = add(self.busy, other.busy);
        self.mem_claimed += other.mem_claimed;
        self.mem_used = add(self.mem_used, other.mem_used);
        self.mem_borrowed = add(self.mem_borrowed, other.mem_borrowed);
        self.borrowed += other.borrowed;
        self.throttled += other.throttled;
        self.waited += other.waited;
        for (own, more) in self.idle.iter_mut().zip(other.idle) {
            *own += more;
        }
    }

    /// Assigns idleness without a cause to this cause.
    pub(crate) fn because(&mut self, cause: Cause) {
        let idle = std::mem::take(&mut self.idle[Cause::Other as usize]);
        self.idle[cause as usize] += idle;
    }

    /// Idleness by cause.
    pub(crate) fn idle(&self) -> Idle {
        let [off_hours, kernel, cpu, io, other] = self.idle;
        Idle {
            off_hours,
            kernel,
            cpu,
            io,
            other,
        }
    }

    /// The form on the wire.
    pub(crate) fn usage(&self) -> Usage {
        Usage {
            claimed_gpu_s: self.claimed,
            used_gpu_s: self.used,
            estimate: self.estimate,
            used_known_gpu_s: self.used_known,
            busy_gpu_s: self.busy,
            mem_claimed_byte_s: self.mem_claimed,
            mem_used_byte_s: self.mem_used,
            mem_borrowed_byte_s: self.mem_borrowed,
            borrowed_gpu_s: self.borrowed,
            throttled_gpu_s: self.throttled,
            waited_gpu_s: self.waited,
            idle: self.idle(),
        }
    }
}

/// State of one line since the previous look. Fractions of a GPU, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Fact {
    /// Claimed; for the machine, its GPUs.
    pub(crate) claimed: f64,
    /// SM activity.
    pub(crate) used: Option<f64>,
    /// The SM activity is an estimate.
    pub(crate) estimate: bool,
    /// Time with a kernel resident.
    pub(crate) busy: Option<f64>,
    /// Bytes claimed.
    pub(crate) mem_claimed: f64,
    /// Bytes used.
    pub(crate) mem_used: Option<f64>,
    /// Bytes used above the claim.
    pub(crate) mem_borrowed: Option<f64>,
    /// Used above the claim.
    pub(crate) borrowed: f64,
    /// Fraction of the time with delayed launches.
    pub(crate) throttled: f64,
    pub(crate) waited: f64,
    /// Nothing of it ran.
    pub(crate) idle: bool,
}

impl Fact {
    fn over(&self, seconds: f64) -> Sum {
        let part = |v: f64| v * seconds;
        let known = if self.used.is_some() { seconds } else { 0.0 };
        let mut idle = [0.0; 5];
        if self.idle {
            idle[Cause::Other as usize] = part(self.claimed);
        }
        Sum {
            looked: seconds,
            claimed: part(self.claimed),
            used: self.used.map(part),
            used_known: self.claimed * known,
            used_s: known,
            estimate: self.estimate && self.used.is_some(),
            busy: self.busy.map(part),
            mem_claimed: part(self.mem_claimed),
            mem_used: self.mem_used.map(part),
            mem_borrowed: self.mem_borrowed.map(part),
            borrowed: part(self.borrowed),
            throttled: part(self.claimed * self.throttled),
            waited: part(self.waited),
            idle,
        }
    }
}

/// The sums of one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Step {
    /// Beginning, Unix seconds.
    pub(crate) at: i64,
    /// By line.
    pub(crate) rows: BTreeMap<Key, Sum>,
}

/// Adds up the current step.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    step: Step,
    last_ms: Option<u64>,
}

impl Collector {
    /// Adds a look: its values hold since the previous look, if that was at most `most_ms` ago; a longer gap counts
    /// as unknown. Returns the steps that have ended.
    pub(crate) fn look(&mut self, now_ms: u64, most_ms: u64, facts: &[(Key, Fact)]) -> Vec<Step> {
        let mut ended = Vec::new();
        let last = self.last_ms.replace(now_ms);
        let known = last.filter(|at| *at <= now_ms && now_ms - at <= most_ms);
        let mut from = known.unwrap_or(now_ms);
        loop {
            let at = (from / STEP_MS) as i64 * STEP_S;
            if at != self.step.at {
                ended.extend(self.take());
                self.step.at = at;
            }
            let end = (at.unsigned_abs() * 1000 + STEP_MS).min(now_ms);
            if end <= from {
                return ended;
            }
            let seconds = (end - from) as f64 / 1000.0;
            for (key, fact) in facts {
                let sum = self.step.rows.entry(key.clone()).or_default();
                sum.add(&fact.over(seconds));
            }
            from = end;
        }
    }

    /// A claim's rows of the current step.
    pub(crate) fn rows_of(&self, id: u64) -> impl Iterator<Item = Sum> {
        let rows = self.step.rows.iter();
        rows.filter_map(move |(key, sum)| match key {
            Key::Claim { claim, .. } if *claim == id => Some(*sum),
            _ => None,
        })
    }

    /// Ends the current step.
    pub(crate) fn take(&mut self) -> Option<Step> {
        let step = std::mem::take(&mut self.step);
        (!step.rows.is_empty()).then_some(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> Key {
        Key::Claim {
            claim: 3,
            uid: 7,
            gpu: "GPU-x".into(),
        }
    }

    fn fact(claimed: f64, used: Option<f64>) -> Fact {
        Fact {
            claimed,
            used,
            ..Fact::default()
        }
    }

    #[test]
    fn looks_add_up_to_steps_and_are_cut_at_their_ends() {
        let mut collector = Collector::default();
        let seen = |used| vec![(claim(), fact(0.5, Some(used)))];
        assert!(collector.look(8_000, 5_000, &seen(1.0)).is_empty());
        let ended = collector.look(12_000, 5_000, &seen(0.25));
        assert_eq!(ended.len(), 1);
        let sum = ended[0].rows[&claim()];
        assert_eq!((ended[0].at, sum.looked, sum.claimed), (0, 2.0, 1.0));
        assert_eq!(
            (sum.used, sum.used_known, sum.used_s),
            (Some(0.5), 1.0, 2.0)
        );
        let rest = collector.take().unwrap();
        assert_eq!((rest.at, rest.rows[&claim()].looked), (10, 2.0));
        assert_eq!(collector.take(), None);
    }

    #[test]
    fn nothing_is_known_of_a_time_without_a_look() {
        let mut collector = Collector::default();
        let seen = [(claim(), fact(1.0, None))];
        collector.look(1_000, 5_000, &seen);
        collector.look(2_000, 5_000, &seen);
        // The machine slept, then the clock was set back.
        let ended = collector.look(90_000, 5_000, &seen);
        assert_eq!(ended[0].rows[&claim()].looked, 1.0);
        collector.look(50_000, 5_000, &seen);
        assert_eq!(collector.take(), None);
        let sum = ended[0].rows[&claim()];
        assert_eq!((sum.used, sum.used_known), (None, 0.0), "unknown is not 0");
    }

    #[test]
    fn idleness_gets_its_cause_afterwards() {
        let mut sum = Fact {
            claimed: 0.5,
            idle: true,
            throttled: 0.5,
            ..Fact::default()
        }
        .over(10.0);
        sum.because(Cause::Io);
        assert_eq!(sum.idle().io, 5.0);
        assert_eq!(sum.idle().total(), 5.0);
        assert_eq!(sum.usage().throttled_gpu_s, 2.5);
    }
}

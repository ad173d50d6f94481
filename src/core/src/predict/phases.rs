//! Phases of a run's memory, and the current phase of a running one, to predict its need in advance.

use std::time::Duration;

use super::next::NOTHING;

/// Levels that differ by less (relative) are one phase.
const SAME: f64 = 0.15;
/// Earlier runs' times are shortened by this factor, to be early.
const EARLY: f64 = 0.75;

/// A level of memory, and when it began in seconds from the start of the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Phase {
    /// Start in seconds.
    pub from: f64,
    /// Highest memory, in bytes.
    pub level: f64,
}

/// The phases of a finished run, from the peak memory in equal parts of its time.
#[must_use]
pub fn phases(parts: &[u64], seconds: f64) -> Vec<Phase> {
    let mut found: Vec<Phase> = Vec::new();
    let step = seconds / parts.len().max(1) as f64;
    for (n, bytes) in parts.iter().enumerate() {
        let level = *bytes as f64;
        match found.last_mut() {
            Some(last) if alike(last.level, level) => last.level = last.level.max(level),
            _ => found.push(Phase {
                from: n as f64 * step,
                level,
            }),
        }
    }
    found
}

fn alike(a: f64, b: f64) -> bool {
    (a - b).abs() <= SAME * a.max(b)
}

/// Progress of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Place {
    /// Levels that lasted, oldest first.
    own: Vec<Phase>,
    /// The current level, which may not last.
    next: Option<Phase>,
    highest: f64,
}

impl Place {
    /// Adds a value: seconds since the start, bytes. A level counts if it lasts for `stable` seconds.
    pub fn look(&mut self, at: f64, bytes: f64, stable: f64) {
        self.highest = self.highest.max(bytes);
        match &mut self.next {
            Some(next) if alike(next.level, bytes) => {
                next.level = next.level.max(bytes);
                let kept = at - next.from >= stable;
                let known = self
                    .own
                    .last()
                    .is_some_and(|last| alike(last.level, next.level));
                if kept && known {
                    if let Some(last) = self.own.last_mut() {
                        last.level = last.level.max(next.level);
                    }
                } else if kept {
                    self.own.push(*next);
                }
            }
            next => {
                *next = Some(Phase {
                    from: at,
                    level: bytes,
                });
            }
        }
    }

    /// The highest memory that an earlier run's phases predict within `horizon` from now, in bytes; 0 if none of them
    /// remains.
    #[must_use]
    pub fn ahead(&self, earlier: &[Phase], at: f64, horizon: Duration) -> f64 {
        let Some(mut place) = (!earlier.is_empty()).then_some(0) else {
            return 0.0;
        };
        let mut since = 0.0;
        for own in &self.own {
            let rest = earlier.iter().enumerate().skip(place);
            let reached = rest.take_while(|(n, _)| *n == place || self.may_pass(earlier, *n));
            let found = reached
                .filter(|(_, phase)| alike(phase.level, own.level))
                .map(|(n, _)| n)
                .next();
            if let Some(found) = found {
                if found > place {
                    since = own.from;
                }
                place = found;
            }
        }
        // The level matches none of the remaining phases: the position is unknown, and any of them may follow.
        let lost = self
            .own
            .last()
            .is_some_and(|own| !alike(own.level, earlier[place].level))
            && self.own.len() > 1;
        let passed = at - since;
        let begin = earlier[place].from;
        // In a phase that the run has reached, its own level is better than the earlier one.
        let reached = self
            .own
            .last()
            .is_some_and(|own| alike(own.level, earlier[place].level));
        let coming = earlier.iter().enumerate().skip(place).filter(|(n, phase)| {
            if *n == place {
                return !reached;
            }
            lost || (phase.from - begin) * EARLY - passed <= horizon.as_secs_f64()
        });
        coming.map(|(_, phase)| phase.level).fold(0.0, f64::max)
    }

    /// A run has not passed a phase that is higher than anything seen of it.
    fn may_pass(&self, earlier: &[Phase], to: usize) -> bool {
        let highest = earlier[..to].iter().map(|p| p.level).fold(0.0, f64::max);
        self.highest >= highest * (1.0 - SAME) || highest <= NOTHING
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: f64 = 1_073_741_824.0;

    fn earlier() -> Vec<Phase> {
        let gib = |n: u64| n << 30;
        let parts: Vec<u64> = [vec![gib(2); 10], vec![gib(14); 12], vec![gib(6); 10]].concat();
        phases(&parts, 3200.0)
    }

    #[test]
    fn a_run_has_three_phases() {
        let p = earlier();
        let found: Vec<(u32, u32)> = p
            .iter()
            .map(|p| (p.from as u32, (p.level / GIB) as u32))
            .collect();
        assert_eq!(found, [(0, 2), (1000, 14), (2200, 6)]);
    }

    #[test]
    fn growth_is_reserved_before_it_is_needed_and_given_back_after() {
        let p = earlier();
        let horizon = Duration::from_secs(600);
        let mut place = Place::default();
        let mut need = |at: f64, gib: f64| {
            place.look(at, gib * GIB, 20.0);
            (place.ahead(&p, at, horizon) / GIB)
                .round()
                .max(gib.floor())
        };
        assert_eq!(
            need(0.0, 0.5),
            2.0,
            "the training is more than the horizon away"
        );
        assert_eq!(need(100.0, 2.0), 2.0);
        assert_eq!(need(140.0, 2.0), 2.0);
        assert_eq!(need(200.0, 2.0), 14.0, "it may begin within the horizon");
        for at in 200..1000 {
            assert_eq!(need(f64::from(at), 2.0), 14.0);
        }
        // On the way up the run passes the level of evaluation without evaluating.
        assert_eq!(need(1001.0, 6.0), 14.0);
        assert_eq!(need(1030.0, 6.0), 14.0);
        for at in 1040..2500 {
            assert_eq!(need(f64::from(at), 14.0), 14.0, "{at}");
        }
        assert_eq!(
            need(2500.0, 6.0),
            6.0,
            "what it has had lately is the caller's to know"
        );
    }

    #[test]
    fn what_is_never_seen_again_is_not_given_away() {
        let p = earlier();
        let mut place = Place::default();
        for at in 0..400 {
            place.look(f64::from(at), 6.0 * GIB, 20.0);
            let need = place.ahead(&p, f64::from(at), Duration::from_secs(600)) / GIB;
            assert!(at < 250 || need > 13.0, "{at}: {need}");
        }
    }
}

//! Memory limits of cgroups that the driver itself enforces: where it can, and what it was asked. `policy/limits.rs`
//! decides the values.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use gshare_core::ClaimId;
use gshare_enforcer::gpu::{LimitError, LimitOrder};

use crate::daemon::command::Command;

/// Longest wait for NVML: a normal answer takes well below a millisecond.
pub(crate) const PATIENCE: Duration = Duration::from_millis(300);

/// The driver's limit for a claim on a GPU.
#[derive(Debug)]
pub(crate) struct Limit {
    pub(crate) gpu: usize,
    /// The cgroup of claims, on which the driver's support is tried.
    pub(crate) tree: PathBuf,
    /// The request to the driver.
    pub(crate) order: LimitOrder,
}

/// Whether the driver limits the memory of cgroups, by GPU, as far as known.
#[derive(Debug, Default)]
pub(crate) struct MemoryLimits(BTreeMap<usize, Result<(), String>>);

impl MemoryLimits {
    /// Tries on which of these GPUs the driver supports limits, once each. True if there are new ones.
    pub(crate) fn probe(
        &mut self,
        gpus: Vec<(usize, PathBuf)>,
        ask: impl Fn(usize, LimitOrder) -> Result<(), LimitError>,
    ) -> bool {
        let mut found = false;
        for (gpu, tree) in gpus {
            found |= !self.is_known(gpu) && self.try_out(gpu, tree, &ask);
        }
        found
    }

    /// Has the driver limit a claim's memory.
    pub(crate) fn set(
        &mut self,
        id: ClaimId,
        limits: Vec<Limit>,
        ask: impl Fn(usize, LimitOrder) -> Result<(), LimitError>,
    ) -> Vec<Command> {
        let mut told = Vec::new();
        for Limit { gpu, tree, order } in limits {
            if !self.try_out(gpu, tree, &ask) {
                continue;
            }
            if let Err(error) = ask(gpu, order) {
                let text = format!(
                    "{id}: the driver does not enforce its memory limit on GPU {gpu}: {error}"
                );
                told.push(Command::NoticeOf { id, text });
            }
        }
        told
    }

    /// Whether the driver limits memory on a GPU; tries it if unknown.
    fn try_out(
        &mut self,
        gpu: usize,
        cgroup: PathBuf,
        ask: impl Fn(usize, LimitOrder) -> Result<(), LimitError>,
    ) -> bool {
        if let Some(known) = self.0.get(&gpu) {
            return known.is_ok();
        }
        match ask(gpu, LimitOrder::Probe { cgroup }) {
            // Tried again at the next look.
            Err(LimitError::NoAnswer { .. }) => false,
            answer => {
                let known = answer.map_err(|e| e.to_string());
                let has = known.is_ok();
                self.0.insert(gpu, known);
                has
            }
        }
    }

    /// Whether the support on a GPU is known.
    pub(crate) fn is_known(&self, gpu: usize) -> bool {
        self.0.contains_key(&gpu)
    }

    /// Whether the driver is known to limit memory on a GPU.
    pub(crate) fn is_there(&self, gpu: usize) -> bool {
        self.0.get(&gpu).is_some_and(Result::is_ok)
    }

    /// Number of GPUs with and without support, and the reason on one of the latter.
    pub(crate) fn count(&self) -> (usize, usize, Option<&str>) {
        let there = self.0.values().filter(|known| known.is_ok()).count();
        let why = self.0.values().find_map(|known| known.as_ref().err());
        (there, self.0.len() - there, why.map(String::as_str))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn limit(gpu: usize) -> Limit {
        let cgroup = PathBuf::from("/sys/fs/cgroup/gshare/c1");
        Limit {
            gpu,
            tree: "/sys/fs/cgroup/gshare".into(),
            order: LimitOrder::Set {
                cgroup,
                soft: 1,
                hard: 2,
            },
        }
    }

    #[test]
    fn a_gpu_is_tried_until_it_answers_and_then_asked_no_more_where_it_has_no_limits() {
        let (mut limits, asked) = (MemoryLimits::default(), RefCell::new(Vec::new()));
        let id = ClaimId(1);
        let note = |order: &LimitOrder| {
            let is_probe = matches!(order, LimitOrder::Probe { .. });
            asked.borrow_mut().push(is_probe);
        };
        let silent = |_, order: LimitOrder| {
            note(&order);
            Err(LimitError::NoAnswer { gpu: 0 })
        };
        let answers = |_, order: LimitOrder| {
            note(&order);
            Ok(())
        };
        assert!(limits.set(id, vec![limit(0)], silent).is_empty());
        assert!(!limits.is_known(0) && !limits.is_there(0));
        assert!(limits.set(id, vec![limit(0)], answers).is_empty());
        assert!(limits.is_there(0));
        assert!(limits.set(id, vec![limit(0)], answers).is_empty());
        assert_eq!(*asked.borrow(), [true, true, false, false]);
        let told = limits.set(id, vec![limit(0)], silent);
        assert!(
            matches!(&told[..], [Command::NoticeOf { text, .. }] if text.contains("GPU 0")),
            "{told:?}"
        );
        assert!(
            !limits.probe(vec![(0, PathBuf::new())], silent),
            "it is known"
        );
        assert!(
            limits.probe(vec![(1, PathBuf::new())], answers),
            "a new one"
        );
        assert_eq!(limits.count(), (2, 0, None));
    }
}

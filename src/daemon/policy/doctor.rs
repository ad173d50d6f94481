//! The rows of `gshare doctor` about use outside claims and beyond them.

use gshare_config::Overuse;
use gshare_core::units::show_duration;
use gshare_proto::Check;

use super::super::doctor::{SIMULATION, check};
use super::super::service::Service;

impl Service {
    /// All rows of the policy.
    pub(crate) fn policy_rows(&self) -> Vec<Check> {
        vec![self.reconcile_row()]
    }

    fn reconcile_row(&self) -> Check {
        let name = "reconcile (rung M4)";
        let policy = &self.config.policy;
        let then = match policy.overuse {
            Overuse::Warn => "owners are warned, nobody is ended".to_owned(),
            Overuse::Stop => format!(
                "the offending process is ended after {}",
                show_duration(policy.overuse_grace)
            ),
        };
        let reading = |g: usize| self.reading(g).and_then(|r| r.processes.as_ref());
        let figures: Vec<bool> = (0..self.gpus.len())
            .filter_map(|g| Some(reading(g)?.iter().all(|p| p.bytes.is_some())))
            .collect();
        let over = self.policy.over.all().count();
        let now = match over {
            0 => "nobody is in over-use".to_owned(),
            n => format!("{n} in over-use now"),
        };
        let detail = format!("NVML against the ledger at every look; {then}; {now}");
        match figures.as_slice() {
            [] => check(name, "missing", "NVML gives no list of processes"),
            known if known.contains(&false) => Check {
                status: SIMULATION.to_owned(),
                ..check(
                    name,
                    "limited",
                    format!("{detail}; the driver does not tell the memory of some processes"),
                )
            },
            _ => Check {
                status: SIMULATION.to_owned(),
                ..check(name, "ok", detail)
            },
        }
    }
}

//! Processes outside claims, accounted as claims of their own: an owner, a number, no cap. Such a claim ends with its
//! process, or when that leaves the GPUs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gshare_config::Unclaimed;
use gshare_core::machine::Event;
use gshare_core::{Bytes, ClaimId};
use gshare_enforcer::gpu::GpuProcess;
use gshare_enforcer::proc::{self, PidFd, ProcessKey};
use gshare_proto::{Caps, ClaimGpu, ClaimState, ClaimView, Figure, ProcessView, Source};

use super::super::convert;
use super::super::fact::Fact;
use super::super::gpu::DriverUse;
use super::super::host::Host;
use super::super::journal::{ClaimRecord, Ended, Journal};
use super::super::outside::AutoClaim;
use super::super::service::Service;
use super::super::whose::Whose;
use crate::clock::unix_ms;
use crate::daemon::features::Features;
use crate::daemon::outside::Policy;
use crate::daemon::world::World;
use crate::daemon::{members, policy};
use crate::{figures, identity};

/// Why an auto-claim ends.
pub(crate) const EXITED: &str = "process ended";

impl Service {
    /// Brings the auto-claims to what the newest sample says.
    pub(super) fn update_auto_claims(&mut self) {
        if policy::unclaimed_policy(&self.world()) == Unclaimed::Observe {
            for id in self.policy.auto.keys().copied().collect::<Vec<_>>() {
                let cause = "no longer accounted as a claim";
                self.policy.end_auto(&mut self.journal, id, cause);
            }
            return;
        }
        let seen = outside_now(&self.world());
        let known: BTreeMap<ProcessKey, ClaimId> = self
            .policy
            .auto
            .iter()
            .map(|(id, auto)| (auto.process, *id))
            .collect();
        for (process, uses) in &seen {
            let id = known.get(process).copied();
            let Some(id) = id.or_else(|| self.begin_auto(*process, uses)) else {
                continue;
            };
            if let Some(auto) = self.policy.auto.get_mut(&id) {
                auto.uses.clone_from(uses);
                let bytes = uses.values().filter_map(|u| u.bytes).sum();
                auto.peak = auto.peak.max(bytes);
            }
        }
        for (process, id) in known {
            let auto = self.policy.auto.get(&id);
            let gone = auto.filter(|_| !seen.contains_key(&process));
            if let Some(cause) = gone.and_then(|auto| end_of(&self.world(), auto)) {
                self.policy.end_auto(&mut self.journal, id, &cause);
            }
        }
        let adopted: BTreeSet<u32> = self
            .policy
            .auto
            .values()
            .map(|a| a.pid().cast_unsigned())
            .collect();
        self.tell(Fact::Accounted(adopted));
        let held = self.policy.auto.iter().flat_map(|(id, auto)| {
            let of = |(g, u): (&usize, &DriverUse)| Some((*id, *g, Bytes(u.bytes?)));
            auto.uses.iter().filter_map(of)
        });
        let held = held.collect();
        self.drive(Event::Uncapped(held));
    }

    fn begin_auto(
        &mut self,
        process: ProcessKey,
        uses: &BTreeMap<usize, DriverUse>,
    ) -> Option<ClaimId> {
        let uid = proc::uids(process.pid)?.real;
        let pidfd = PidFd::open(process.pid).ok().flatten()?;
        let id = self.journal.next_id();
        let record = ClaimRecord {
            id: id.0,
            uid,
            project: convert::project(&self.world(), uid, None).ok()?,
            class: gshare_core::Class::default().name().to_owned(),
            command: convert::command_line(process.pid),
            granted_ms: unix_ms(),
            process: Some(convert::record(process)),
            uncapped: true,
            place: super::deny::cgroup_of(process.pid).map(|p| p.display().to_string()),
            ..ClaimRecord::default()
        };
        // What was read belongs to this process only if it is still the same.
        if proc::key(process.pid) != Some(process) || pidfd.has_exited() {
            return None;
        }
        self.journal.take_ids_to(id);
        self.journal.keep(&record, "an auto-claim");
        let gpus: Vec<String> = uses.keys().map(usize::to_string).collect();
        let text = format!(
            "{id}: {} of {} (pid {}) uses GPU {} outside claims: counted as a claim without a limit",
            figures::public(&record.command),
            self.host.names.user(uid),
            process.pid,
            gpus.join(","),
        );
        self.policy
            .enter_auto(&self.host, record, process, Arc::new(pidfd));
        self.notice(Some(id), text);
        Some(id)
    }
}

/// Whether a process outside claims is accounted to its owner: not what draws, and not gshare's own.
fn is_adoptable(world: &World<'_>, process: &GpuProcess) -> bool {
    !process.graphics && !policy::is_own_process(world, process.pid)
}

/// Processes outside claims that are accounted, and what they use by GPU.
fn outside_now(world: &World<'_>) -> BTreeMap<ProcessKey, BTreeMap<usize, DriverUse>> {
    let mut found: BTreeMap<ProcessKey, BTreeMap<usize, DriverUse>> = BTreeMap::new();
    let mut known: BTreeMap<i32, Option<ProcessKey>> = BTreeMap::new();
    for g in 0..world.gpus.len() {
        let Some(reading) = world.gpus.reading(g) else {
            continue;
        };
        for process in reading.processes.iter().flatten() {
            if world.whose(process.pid) != Whose::Outside {
                continue;
            }
            let key = *known.entry(process.pid).or_insert_with(|| {
                let adoptable = is_adoptable(world, process);
                adoptable.then(|| proc::key(process.pid)).flatten()
            });
            if let Some(key) = key {
                let used = DriverUse {
                    processes: 1,
                    bytes: process.bytes,
                    busy: process.time_busy,
                };
                found.entry(key).or_default().insert(g, used);
            }
        }
    }
    found
}

/// Why an auto-claim ends: its process is not outside claims on a GPU any more, or cannot be seen there now.
fn end_of(world: &World<'_>, auto: &AutoClaim) -> Option<String> {
    let process = auto.process;
    if let Some(claim) = members::claim_of(world, process.pid) {
        return Some(format!("now in {claim}"));
    }
    if proc::key(process.pid) != Some(process) {
        return Some(EXITED.to_owned());
    }
    let listed = |g: &usize| {
        let reading = world.gpus.reading(*g);
        reading.is_some_and(|r| r.processes.is_some())
    };
    let left = match auto.uses.is_empty() {
        true => (0..world.gpus.len()).all(|g| listed(&g)),
        false => auto.uses.keys().all(listed),
    };
    left.then(|| "left the GPU".to_owned())
}

impl Policy {
    fn enter_auto(
        &mut self,
        host: &Host,
        record: ClaimRecord,
        process: ProcessKey,
        pidfd: Arc<PidFd>,
    ) {
        let id = ClaimId(record.id);
        let auto = AutoClaim {
            record,
            process,
            uses: BTreeMap::new(),
            peak: 0,
        };
        self.auto.insert(id, auto);
        host.watch_exit(id, process, pidfd);
    }

    /// An auto-claim of an earlier run of the service.
    pub(crate) fn restore_auto(&mut self, host: &Host, journal: &mut Journal, record: ClaimRecord) {
        let process = record.process.map(convert::key);
        let pidfd = process.and_then(|p| {
            let fd = PidFd::open(p.pid).ok().flatten()?;
            (proc::key(p.pid) == Some(p) && !fd.has_exited()).then_some(fd)
        });
        match (process, pidfd) {
            (Some(process), Some(pidfd)) => {
                self.enter_auto(host, record, process, Arc::new(pidfd));
            }
            _ => journal.put_end(Ended::new(record, EXITED, 0, 0)),
        }
    }

    /// True if the claim was an auto-claim, which has now ended.
    pub(crate) fn end_auto(&mut self, journal: &mut Journal, id: ClaimId, cause: &str) -> bool {
        let Some(auto) = self.auto.remove(&id) else {
            return false;
        };
        journal.put_end(Ended::new(auto.record, cause, auto.peak, 0));
        true
    }

    /// Whether an auto-claim uses a GPU.
    pub(crate) fn auto_on(&self, gpu: usize) -> bool {
        self.auto.values().any(|a| a.uses.contains_key(&gpu))
    }
}

fn auto_view(world: &World<'_>, features: &Features, id: ClaimId, auto: &AutoClaim) -> ClaimView {
    let record = &auto.record;
    let pid = auto.pid().cast_unsigned();
    let identity = features.identity.process(auto.process);
    let notebook = identity::notebook_name(&identity);
    let what = figures::what(notebook, &record.command);
    let number = |g: usize| u32::try_from(g).unwrap_or(u32::MAX);
    let part = |(g, used): (&usize, &DriverUse)| ClaimGpu {
        gpu: number(*g),
        uuid: world.gpus[*g].uuid.clone(),
        sm_limit: 1.0,
        mem_request: used.bytes.unwrap_or(0),
        mem_limit: world.gpus[*g].total,
        mem_used: used.bytes,
        time_busy: used.busy.map(|value| Figure {
            value,
            source: Source::TimeBusy,
            estimate: false,
        }),
        ..ClaimGpu::default()
    };
    let process = |(g, used): (&usize, &DriverUse)| ProcessView {
        pid,
        gpu: number(*g),
        mem_used: used.bytes,
        time_busy: used.busy,
        what: what.clone(),
    };
    ClaimView {
        id: id.to_string(),
        uid: record.uid,
        user: world.host.names.user(record.uid),
        project: record.project.clone(),
        class: record.class.clone(),
        what: what.clone(),
        command: record.command.clone(),
        pid: Some(pid),
        caps: Caps::None,
        adopted: true,
        state: ClaimState::Running,
        state_text: "no cap".to_owned(),
        since_ms: record.granted_ms,
        gpus: auto.uses.iter().map(part).collect(),
        members: vec![pid],
        processes: auto.uses.iter().map(process).collect(),
        identity,
        ..ClaimView::default()
    }
}

/// The auto-claims for the screen.
pub(crate) fn auto_views(world: &World<'_>, features: &Features) -> Vec<ClaimView> {
    let view = |(id, auto): (&ClaimId, &AutoClaim)| auto_view(world, features, *id, auto);
    world.policy.auto.iter().map(view).collect()
}

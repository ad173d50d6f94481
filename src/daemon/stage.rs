//! How much gshare does on a GPU and for a user: what the stage of a claim is, and what changes when the stage does.
//!
//! A claim keeps the stage that it was granted in, or a lower one that came later: no change of stage limits, pauses,
//! moves or ends a program that runs.

use gshare_config::{Stage, Unclaimed};
use gshare_core::machine::Event;
use gshare_core::{Admission, ClaimId};
use gshare_enforcer::proc;
use gshare_proto::{AdminDone, ErrorCode, Reply, StageView, WireError};

use super::admin::Act;
use super::convert;
use super::peer::Peer;
use super::service::Service;
use crate::stage::{self, Stages};

impl Service {
    /// The stages by the configuration and the line.
    pub(crate) fn read_stages(&self) -> Stages {
        let line = stage::read(&self.paths.state_dir);
        let unset = line.is_none() && stage::pinned(self.configured()).is_none();
        let new = stage::in_force(self.configured(), line);
        if unset {
            tracing::info!(
                "stage {}: none was set; gshare admin stage changes it",
                new.machine
            );
        }
        new
    }

    /// Takes stages into force. Claims that run get a lower one at once, and never a higher one.
    pub(crate) fn follow_stages(&mut self, new: Stages) {
        self.stages = new;
        self.tell_admission();
        let lowered = |id: &ClaimId| {
            let record = &self.claims.get(id)?.record;
            let uuids = record.slices.iter().map(|s| s.uuid.as_str());
            let stage = self.stage_of(record.uid, uuids);
            (stage < record.stage).then_some((*id, stage))
        };
        let lowered: Vec<(ClaimId, Stage)> = self.claims.keys().filter_map(lowered).collect();
        for (id, stage) in &lowered {
            let Some(live) = self.claims.get_mut(id) else {
                continue;
            };
            live.record.stage = *stage;
            if let Err(error) = self.journal.put(&live.record) {
                tracing::error!(%id, %error, "its lower stage is forgotten when the service restarts");
            }
            self.limits_anew(*id);
        }
        self.call_back(|live| live.record.stage < Stage::Reclaim);
        self.tell_levers();
        if lowered.iter().any(|(_, stage)| *stage == Stage::Observe) {
            self.filters_anew();
        }
        self.apply_denial();
        self.tell_arbiter();
        self.touch();
    }

    /// The stage of a claim of this user on these GPUs.
    pub(crate) fn stage_of<'a>(&self, uid: u32, uuids: impl IntoIterator<Item = &'a str>) -> Stage {
        let gpus = uuids.into_iter().map(|uuid| self.stage_of_gpu(uuid));
        gpus.min()
            .unwrap_or(Stage::Require)
            .min(self.stage_of_user(uid))
    }

    /// The stage of a GPU; an instance has that of its GPU.
    pub(crate) fn stage_of_gpu(&self, uuid: &str) -> Stage {
        let of = self.gpu_index(uuid);
        let parent = of.and_then(|g| self.gpus[g].parent).map(|p| &self.gpus[p]);
        self.stages.of_gpu(parent.map_or(uuid, |p| &p.uuid))
    }

    /// The most that a user's groups allow.
    pub(crate) fn stage_of_user(&self, uid: u32) -> Stage {
        if self.stages.groups.is_empty() {
            return Stage::Require;
        }
        let groups = proc::groups_of(uid).unwrap_or_default();
        let names: Vec<String> = groups.into_iter().filter_map(proc::group_name).collect();
        self.stages.of_groups(names.iter().map(String::as_str))
    }

    /// Whether a claim of this user is only counted, wherever it would go.
    pub(crate) fn observes(&self, uid: u32) -> bool {
        let gpu = |g: &super::gpu::Gpu| self.stage_of_gpu(&g.uuid) == Stage::Observe;
        self.gpus.iter().all(gpu) || self.stage_of_user(uid) == Stage::Observe
    }

    /// Tells the core what decides about claims on each GPU.
    pub(crate) fn tell_admission(&mut self) {
        let ledger = self.machine.ledger();
        let event = |(g, gpu): (usize, &super::gpu::Gpu)| {
            let observed = self.stage_of_gpu(&gpu.uuid) == Stage::Observe;
            let by = match self.is_off() || observed {
                true => Admission::Pass,
                false => Admission::Queue,
            };
            let uuid = gpu.uuid.clone();
            (ledger.admission(g) != by).then_some(Event::Admission { uuid, by })
        };
        let events: Vec<Event> = self.gpus.iter().enumerate().filter_map(event).collect();
        self.drive_all(events);
    }

    /// What is done about processes outside claims, by the stage where the configuration does not say.
    pub(crate) fn unclaimed_by_stage(&self) -> Unclaimed {
        match self.denied_everywhere() {
            Ok(()) => Unclaimed::Deny,
            Err(_) => Unclaimed::Adopt,
        }
    }

    /// Whether programs without a claim are to open no GPU. The filter knows no single GPU: all have to be at stage 4.
    fn denied_everywhere(&self) -> Result<(), String> {
        let below = |g: &usize| self.stage_of_gpu(&self.gpus[*g].uuid) < Stage::Require;
        match (0..self.gpus.len()).find(below) {
            None if !self.gpus.is_empty() => Ok(()),
            gpu => Err(format!(
                "programs without a claim are refused once all GPUs are at stage 4; GPU {} is not",
                gpu.unwrap_or(0)
            )),
        }
    }

    /// For the screen.
    pub(crate) fn stage_view(&self) -> StageView {
        let index = |uuid: &str| u32::try_from(self.gpu_index(uuid)?).ok();
        let gpus = self.stages.gpus.iter();
        let groups = self.stages.groups.iter();
        StageView {
            machine: self.stages.machine.number(),
            name: self.stages.machine.name().to_owned(),
            gpus: gpus
                .filter_map(|(uuid, of)| Some((index(uuid)?, of.number())))
                .collect(),
            groups: groups
                .map(|(name, of)| (name.clone(), of.number()))
                .collect(),
            pinned: stage::pinned(self.configured()).map(|(key, _)| key.to_owned()),
        }
    }

    /// Sets a stage, for an administrator.
    pub(crate) fn admin_stage(
        &mut self,
        peer: &Peer,
        stage: &str,
        gpus: &[impl AsRef<str>],
        group: Option<&str>,
    ) -> Result<Reply, WireError> {
        let usage = |text| WireError::new(ErrorCode::Usage, text);
        let stage = Stage::parse(stage).map_err(|e| usage(format!("`{stage}`: {e}")))?;
        if let Some((key, of)) = stage::pinned(self.configured()) {
            let text = format!("{key} in gshare.toml sets stage {of}; nothing was changed");
            return Err(WireError::new(ErrorCode::NotAvailable, text)
                .with_hint("remove it there, then: systemctl reload gshared"));
        }
        let kept = self.configured().policy.unclaimed;
        if let (Stage::Require, Some(word)) = (stage, kept) {
            let text = format!(
                "`unclaimed` (\"{}\") in gshare.toml contradicts stage {stage}; nothing was changed",
                word.name()
            );
            return Err(WireError::new(ErrorCode::NotAvailable, text)
                .with_hint("remove it there, then: systemctl reload gshared"));
        }
        if let Some(group) = group
            && nix::unistd::Group::from_name(group)
                .ok()
                .flatten()
                .is_none()
        {
            return Err(usage(format!("there is no group `{group}`")));
        }
        let indices = convert::gpu_ids(&self.world(), "--gpus ", gpus)?;
        let uuids: Vec<String> = indices
            .iter()
            .map(|g| {
                let gpu = &self.gpus[*g as usize];
                let whole = gpu.parent.map_or(gpu, |p| &self.gpus[p]);
                whole.uuid.clone()
            })
            .collect();
        let new = self.stages.with(stage, &uuids, group);
        let before = self.stage_view().text();
        let list: Vec<String> = indices.iter().map(u32::to_string).collect();
        let (target, flags) = match (list.is_empty(), group) {
            (_, Some(group)) => (format!("group {group}"), format!(" --group {group}")),
            (false, None) => {
                let list = list.join(",");
                (format!("GPU {list}"), format!(" --gpus {list}"))
            }
            (true, None) => ("every GPU and user".to_owned(), String::new()),
        };
        let old = match (indices.first(), group) {
            (_, Some(group)) => self.stages.of_groups([group]),
            (Some(_), None) => self.stages.of_gpu(&uuids[0]),
            (None, None) => self.stages.machine,
        };
        let act = Act {
            action: "stage",
            target: target.clone(),
            before,
            after: stage.to_string(),
            reason: None,
        };
        self.audit(peer, vec![act], |_| Ok(()))?;
        stage::write(&self.paths.state_dir, &new).map_err(|error| {
            WireError::new(ErrorCode::Internal, format!("nothing was changed: {error}"))
                .with_hint("is there room on the disk of the state directory (gshare config path)?")
        })?;
        self.follow_stages(new);
        let mut lines = vec![format!("stage {stage} for {target}: {}", meaning(stage))];
        lines.push(
            "programs that run are neither limited, paused, moved nor ended by this".to_owned(),
        );
        if stage == Stage::Require
            && let Err(why) = self.denied_everywhere()
        {
            lines.push(why);
        }
        self.notice(None, lines[0].clone());
        Ok(Reply::Admin(AdminDone {
            message: lines.join("\n"),
            undo: Some(format!("gshare admin stage {}{flags}", old.number())),
        }))
    }
}

/// What a stage does, for people.
fn meaning(stage: Stage) -> &'static str {
    match stage {
        Stage::Observe => {
            "gshare records; claims start at once and are only counted; no program is touched"
        }
        Stage::OptIn => "claims have a queue and limits; nothing is taken from anybody",
        Stage::Reclaim => {
            "claims have guarantees; what is not used or is on loan may be taken back, announced"
        }
        Stage::Require => "as stage 3, and programs without a claim cannot open GPUs",
    }
}

//! How much gshare does on a GPU and for a user: the stage of a claim, and the effects of a change of stage.
//!
//! A claim keeps the stage in which it was granted, or a lower one that came later: a change of stage never limits,
//! suspends, moves or ends a running program.

pub(crate) mod past;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::thread;
use std::time::Duration;

use gshare_config::{Stage, Unclaimed};
use gshare_core::machine::Event;
use gshare_core::units::{many, show_duration};
use gshare_core::{Admission, ClaimId};
use gshare_proto::{AdminCall, ErrorCode, LaterView, StageView, WireError, messages};

use self::past::Past;
use super::admin::rights::may_administrate;
use super::claims::Claims;
use super::command::{Command, LimitCommand, RuleCommand, Which};
use super::conformance;
use super::connection::Sender;
use super::effects::Effects;
use super::gpu::Gpus;
use super::journal::{self, SliceRecord};
use super::live::Live;
use super::msg::Msg;
use super::order::{Act, Order};
use super::outside::NoEffect;
use super::peer::Peer;
use super::played;
use super::reasons;
use super::world::World;
use crate::clock::unix_ms;
use crate::figures;
use crate::stage::{self, Fares, Later, Stages};
use gshare_config::Mode;

/// Maximum number of lines about runs that would be treated differently.
const NAMED: usize = 50;
/// Fraction of the GPU hours without a claim above which there is a warning.
const MUCH: f64 = 0.2;

/// Tells the core who decides about claims on each GPU, where that has changed.
pub(crate) fn admission(world: &World<'_>) -> Vec<Event> {
    let ledger = world.machine.ledger();
    let event = |(g, gpu): (usize, &super::gpu::Gpu)| {
        let observed = world.gpus.gpu_in(&world.config.stages, &gpu.uuid) == Stage::Observe;
        let by = match world.config.is_off() || observed {
            true => Admission::Pass,
            false if world.config.slurm.gpus.has(&gpu.uuid, g) => Admission::Foreign,
            false => Admission::Queue,
        };
        let uuid = gpu.uuid.clone();
        (ledger.admission(g) != by).then_some(Event::Admission { uuid, by })
    };
    world.gpus.iter().enumerate().filter_map(event).collect()
}

/// Applies new stages to running claims.
pub(crate) fn follow(with: &mut Effects) -> Vec<Command> {
    let lowered = lowered(&with.world());
    for (id, stage) in &lowered {
        if let Some(live) = with.claims.get_mut(id) {
            live.record.runs.stage = *stage;
            let what = "the lower stage of a claim, which will be lost when the service restarts";
            with.journal.keep(&live.record, what);
        }
    }
    let mut out = vec![Command::Rules(RuleCommand::Admission)];
    let world = with.world();
    let remains = &with.claims.lingering;
    let opens = remains
        .iter()
        .any(|c| observed(&world, c.place().uid).next().is_some());
    out.extend(follows(&lowered, opens));
    out.push(Command::Publish);
    out
}

/// Running claims whose stage is lower now. None gets a higher one.
fn lowered(world: &World<'_>) -> Vec<(ClaimId, Stage)> {
    let lowered = |(id, live): (&ClaimId, &Live)| {
        let record = &live.record;
        let uuids = record.slices.iter().map(|s| s.uuid.as_str());
        let stage = stage_of(world, record.uid, uuids);
        (stage < record.runs.stage).then_some((*id, stage))
    };
    world.claims.iter().filter_map(lowered).collect()
}

/// Commands after new stages for running claims.
fn follows(lowered: &[(ClaimId, Stage)], opens: bool) -> Vec<Command> {
    let limits = lowered
        .iter()
        .map(|(id, _)| Command::Limits(LimitCommand::LimitsAnew(*id)));
    let mut out: Vec<Command> = limits.collect();
    out.extend([
        Command::Rules(RuleCommand::CallBack(Which::Observed)),
        Command::Rules(RuleCommand::LookAtLevers),
    ]);
    out.push(
        match opens || lowered.iter().any(|(_, stage)| *stage == Stage::Observe) {
            true => Command::Limits(LimitCommand::FiltersAnew),
            false => Command::Limits(LimitCommand::Deny),
        },
    );
    out
}

/// Reads the data for a stage's order in a thread: the journal is long, and a directory of groups may be slow. Ended
/// claims are written first.
pub(crate) fn look_back(world: &World<'_>, peer: Peer, call: AdminCall, out: &Sender) {
    if let Err(error) = may_administrate(world, &peer) {
        return out.error(error);
    }
    let path = world.host.paths.state_dir.join(journal::FILE);
    let grouped = !world.config.stages.groups.is_empty();
    let machine = played::Machine::of(world.gpus.have_instances(), world.machine.ledger().gpus());
    let (events, reply) = (world.host.events.clone(), out.clone());
    let read = move || {
        let past = Past::read(&path, &call, grouped, machine);
        // The service is ending.
        let _ = events.send(Msg::Stage {
            peer,
            call,
            past,
            out: reply,
        });
    };
    if let Err(error) = thread::Builder::new().name("stage".to_owned()).spawn(read) {
        let text = format!("the last 7 days cannot be read: {error}");
        out.error(WireError::new(ErrorCode::Internal, text));
    }
}

/// Sets a stage for an administrator, or reports what that would do.
pub(crate) fn order(world: &World<'_>, call: AdminCall, past: &Past) -> Result<Order, WireError> {
    let AdminCall::Stage {
        stage,
        gpus,
        group,
        from_ms,
        dry_run,
        plan,
    } = call
    else {
        return Err(WireError::new(ErrorCode::Internal, "not here"));
    };
    let change = stage_change(world, &stage, &gpus, group.as_deref(), from_ms)?;
    let plan = plan.as_deref();
    let Change {
        stage,
        new,
        target,
        from_ms,
        ..
    } = &change;
    let affected = affected(world, past, new);
    let id = plan_id(&(
        &world.config.stages,
        new,
        affected.keys().collect::<Vec<_>>(),
    ));
    let what = format!("stage {stage} for {target}");
    let later = from_ms.map(|from_ms| Later {
        from_ms,
        what: what.clone(),
        stages: new.clone(),
    });
    let text = later.as_ref().map_or(what, Later::text);
    let mut lines = vec![format!("{text}: {}", meaning(*stage))];
    lines.extend(stage::contradictions(world.config.configured(), *stage));
    let unclaimed = part_without_claims(world, past);
    if *stage >= Stage::Reclaim && unclaimed > MUCH {
        lines.push(format!(
            "{:.0} % of the GPU hours of the last 7 days were used without a claim; gshare can reclaim only from \
             claims",
            unclaimed * 100.0
        ));
    }
    lines.extend(
        (*stage >= Stage::Reclaim)
            .then(|| conformance::warning(world))
            .flatten(),
    );
    if dry_run {
        let opened = opened(world, new);
        if !opened.is_empty() {
            let opened = opened.join(", ");
            lines.push(format!(
                "with this change, programs without a claim would be able to open GPU {opened}"
            ));
        }
        lines.push(match affected.is_empty() {
            true => "if the last 7 days were repeated, no run would be treated differently".to_owned(),
            false => "the last 7 days were simulated with the sizes that claims asked for, and for programs without a \
                claim with their peak plus 10 %. These runs would be treated differently:"
                .to_owned(),
        });
        let row = |((who, how), (runs, longest_s)): (&(String, &str), &(usize, f64))| {
            let until = match *how == stage::WOULD_WAIT {
                true => format!(
                    ", the longest for {}",
                    show_duration(Duration::from_secs_f64(*longest_s))
                ),
                false => String::new(),
            };
            format!("  {who}, {}: {how}{until}", many(*runs, "run"))
        };
        lines.extend(affected.iter().take(NAMED).map(row));
        if let Some(more) = affected.len().checked_sub(NAMED).filter(|n| *n > 0) {
            lines.push(format!("  and {more} more"));
        }
        lines.push(format!("plan {id}; nothing was changed"));
        return Ok(Order::saying(lines.join("\n"), None));
    }
    if plan.is_some_and(|plan| plan != id) {
        let text = "the plan is out of date; nothing was changed";
        return Err(WireError::new(ErrorCode::NotAvailable, text.to_owned())
            .with_hint("plan again with --dry-run"));
    }
    if *new == world.config.stages {
        lines.push("this stage is set already; nothing was changed".to_owned());
        return Ok(Order::saying(lines.join("\n"), None));
    }
    let act = Act {
        action: "stage",
        target: target.clone(),
        before: stage_view(world).text(),
        after: text,
        reason: None,
    };
    let present = world.config.stages.without_later();
    let notice = Command::Notice(lines[0].clone());
    let cancelled = world.config.stages.later.as_ref();
    lines.extend(cancelled.map(|later| format!("cancelled: {}", later.text())));
    lines.push("this does not limit, pause, move or end running programs".to_owned());
    let (new, undo) = match later {
        None => {
            let undo = (change.new != present).then_some(change.undo);
            (change.new, undo)
        }
        Some(later) => {
            lines.push("until then, setting the present stage again cancels this".to_owned());
            let again = format!("gshare admin stage {}", present.again());
            let later = Some(Box::new(later));
            (Stages { later, ..present }, Some(again))
        }
    };
    let (dir, line) = (world.host.paths.state_dir.clone(), new.clone());
    let write = move || {
        stage::write(&dir, &line).map_err(|error| {
            WireError::new(ErrorCode::Storage, messages::nothing_changed(error))
                .with_hint(messages::state_disk_room())
        })
    };
    Ok(Order {
        acts: vec![act],
        file: Some(Box::new(write)),
        then: vec![
            notice,
            Command::Rules(RuleCommand::FollowStages(Box::new(new))),
        ],
        ..Order::saying(lines.join("\n"), undo)
    })
}

/// Stages whose time has come.
pub(crate) fn due(world: &World<'_>) -> Vec<Command> {
    let later = world.config.stages.later.as_ref();
    let Some(later) = later.filter(|later| later.from_ms <= world.now.unix_ms) else {
        return Vec::new();
    };
    let text = format!(
        "{} is in force now, as scheduled by an administrator",
        later.what
    );
    tracing::warn!("{text}");
    // If it cannot be written, a restarted service finds the old line, in which this is due.
    if let Err(error) = stage::write(&world.host.paths.state_dir, &later.stages) {
        tracing::error!(%error, "the stage is changed, but cannot be written to the state directory");
    }
    let stages = Box::new(later.stages.clone());
    vec![
        Command::Notice(text),
        Command::Rules(RuleCommand::FollowStages(stages)),
    ]
}

/// Whether a user's claims are only counted, on any GPU.
pub(crate) fn observes(world: &World<'_>, uid: u32) -> bool {
    let gpu =
        |g: &super::gpu::Gpu| world.gpus.gpu_in(&world.config.stages, &g.uuid) == Stage::Observe;
    world.gpus.iter().all(gpu) || user_in(world, uid) == Stage::Observe
}

/// Fraction of the GPU hours used by programs without a claim.
fn part_without_claims(world: &World<'_>, past: &Past) -> f64 {
    let hours = |uncapped: bool| -> f64 {
        let of = past
            .runs
            .iter()
            .filter(|r| !uncapped || r.record.origin.uncapped);
        // The GPUs of a program without a claim are not recorded: it counts as one.
        of.map(|r| match r.record.origin.uncapped {
            true => r.ms as f64,
            false => r.ms as f64 * reasons::gpus_of(world, &r.record),
        })
        .sum()
    };
    let all = hours(false);
    if all > 0.0 { hours(true) / all } else { 0.0 }
}

/// The stages by the configuration and the line in the state directory.
pub(crate) fn read_stages(world: &World<'_>) -> Stages {
    let line = stage::read(&world.host.paths.state_dir);
    let unset = line.is_none() && stage::pinned(world.config.configured()).is_none();
    let new = stage::in_force(world.config.configured(), line);
    if unset {
        tracing::info!(
            "no stage is set, so stage {} applies; to change it: gshare admin stage",
            new.machine
        );
    }
    new
}

/// The change that an administrator requests, if it is possible.
pub(crate) fn stage_change(
    world: &World<'_>,
    stage: &str,
    gpus: &[impl AsRef<str>],
    group: Option<&str>,
    from_ms: Option<u64>,
) -> Result<Change, WireError> {
    let usage = |text| WireError::new(ErrorCode::Usage, text);
    if from_ms.is_some_and(|at| at <= unix_ms()) {
        return Err(usage("the time in --from has passed".to_owned()));
    }
    let refused = |text: String| {
        WireError::new(
            ErrorCode::NotAvailable,
            format!("{text}; nothing was changed"),
        )
        .with_hint("remove it there, then: systemctl reload gshared")
    };
    let stage = Stage::parse(stage).map_err(|e| usage(format!("`{stage}`: {e}")))?;
    if let Some((key, of)) = stage::pinned(world.config.configured()) {
        return Err(refused(format!("{key} in gshare.toml sets stage {of}")));
    }
    if let (Stage::Require, Some(word)) = (stage, world.config.configured().policy.unclaimed) {
        let word = word.name();
        return Err(refused(format!(
            "`unclaimed` (\"{word}\") in gshare.toml contradicts stage {stage}"
        )));
    }
    let indices = world.gpus.gpu_ids("--gpus ", gpus)?;
    let whole = |g: &u32| {
        let gpu = &world.gpus[*g as usize];
        gpu.parent.map_or(gpu, |p| &world.gpus[p]).uuid.clone()
    };
    let uuids: Vec<String> = indices.iter().map(whole).collect();
    let list: Vec<String> = indices.iter().map(u32::to_string).collect();
    let list = list.join(",");
    let (target, flags, old) = match (uuids.first(), group) {
        (_, Some(group)) => (
            format!("group {group}"),
            format!(" --group {group}"),
            world.config.stages.of_groups([group]),
        ),
        (Some(uuid), None) => (
            figures::gpus(&indices),
            format!(" --gpus {list}"),
            world.config.stages.of_gpu(uuid),
        ),
        (None, None) => (
            "every GPU and user".to_owned(),
            String::new(),
            world.config.stages.machine,
        ),
    };
    Ok(Change {
        stage,
        new: world.config.stages.with(stage, &uuids, group),
        target,
        from_ms,
        undo: format!("gshare admin stage {}{flags}", old.number()),
    })
}

/// For the screen.
pub(crate) fn stage_view(world: &World<'_>) -> StageView {
    let index = |uuid: &str| u32::try_from(world.gpus.gpu_index(uuid)?).ok();
    let gpus = world.config.stages.gpus.iter();
    let groups = world.config.stages.groups.iter();
    StageView {
        machine: world.config.stages.machine.number(),
        name: world.config.stages.machine.name().to_owned(),
        gpus: gpus
            .filter_map(|(uuid, of)| Some((index(uuid)?, of.number())))
            .collect(),
        groups: groups
            .map(|(name, of)| (name.clone(), of.number()))
            .collect(),
        pinned: stage::pinned(world.config.configured()).map(|(key, _)| key.to_owned()),
        experimental: conformance::is_untried(world),
        no_effect: world.policy.denial.no_effect().map(NoEffect::text),
        later: world.config.stages.later.as_ref().map(|later| LaterView {
            from_ms: later.from_ms,
            text: later.text(),
        }),
    }
}

/// The measure against processes without a claim. A user's own service does not account them, because it sees others'
/// claims as use without a claim.
pub(crate) fn unclaimed_policy(world: &World<'_>) -> Unclaimed {
    match world.host.mode {
        Mode::System => {
            let set = world.config.policy.unclaimed;
            set.unwrap_or_else(|| unclaimed_by_stage(world))
        }
        Mode::User => Unclaimed::Observe,
    }
}

/// The measure against processes without a claim, by the stage if the configuration does not set it.
fn unclaimed_by_stage(world: &World<'_>) -> Unclaimed {
    match world.gpus.denied(&world.config.stages).is_empty() {
        true => Unclaimed::Adopt,
        false => Unclaimed::Deny,
    }
}

/// The highest stage that a user's groups allow.
fn user_in(world: &World<'_>, uid: u32) -> Stage {
    let stages = &world.config.stages;
    if stages.groups.is_empty() {
        return Stage::Require;
    }
    let groups = world.host.names.account(uid).group_names();
    stages.of_groups(groups.iter().map(String::as_str))
}

/// The GPUs that are in stage 1 for a user.
pub(crate) fn observed(world: &World<'_>, uid: u32) -> impl Iterator<Item = usize> {
    let stage = move |g: &usize| stage_of(world, uid, [world.gpus[*g].uuid.as_str()]);
    (0..world.gpus.len()).filter(move |g| stage(g) == Stage::Observe)
}

/// A stage that an administrator requests.
#[derive(Debug)]
pub(crate) struct Change {
    stage: Stage,
    new: Stages,
    /// Its target, for display.
    target: String,
    /// When it applies, Unix milliseconds; at once without it.
    from_ms: Option<u64>,
    /// The command that undoes it.
    undo: String,
}

/// A hash of the plan, the same for the same plan and program.
fn plan_id(of: &impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// What a stage does, for display.
fn meaning(stage: Stage) -> &'static str {
    match stage {
        Stage::Observe => {
            "gshare records; claims start at once and are only counted; no program is touched"
        }
        Stage::OptIn => "claims have a queue and limits; gshare reclaims nothing",
        Stage::Reclaim => {
            "users have guarantees; gshare may reclaim what is unused or on loan, after a warning"
        }
        Stage::Require => "as stage 3, and programs without a claim cannot open GPUs",
    }
}

impl Claims {
    /// Whether a claim above its size may be ended for it: not in stages 1 and 2.
    pub(crate) fn may_be_stopped(&self, id: ClaimId) -> bool {
        let live = self.get(&id);
        live.is_none_or(|l| l.record.runs.stage >= Stage::Reclaim)
    }
}

impl Gpus {
    /// The GPUs that programs without a claim must not open.
    pub(crate) fn denied(&self, stages: &Stages) -> BTreeSet<usize> {
        let closed = |g: &usize| self.gpu_in(stages, &self[*g].uuid) == Stage::Require;
        (0..self.len()).filter(closed).collect()
    }

    /// The stage of a GPU; an instance has that of its GPU.
    fn gpu_in(&self, stages: &Stages, uuid: &str) -> Stage {
        let of = self.gpu_index(uuid);
        let parent = of.and_then(|g| self[g].parent).map(|p| &self[p]);
        stages.of_gpu(parent.map_or(uuid, |p| &p.uuid))
    }
}

/// Runs that would be treated differently with these stages, and how; with the number of runs and the longest wait in
/// seconds.
fn affected(
    world: &World<'_>,
    past: &Past,
    new: &Stages,
) -> BTreeMap<(String, &'static str), (usize, f64)> {
    let closed = world.gpus.denied(&world.config.stages);
    let mut found = BTreeMap::new();
    for run in &past.runs {
        let record = &run.record;
        let groups = past.groups.get(&record.uid).into_iter().flatten();
        let stage = |stages: &Stages| {
            let uuids = record.slices.iter().map(|s| s.uuid.as_str());
            let user = stages.of_groups(groups.clone().map(String::as_str));
            stage_on(world, stages, uuids).min(user)
        };
        let most = |s: &SliceRecord| s.mem_limit.max(s.mem);
        let most = record.slices.iter().map(most).fold(0, u64::saturating_add);
        let how = if record.origin.uncapped {
            (!world.gpus.denied(new).is_subset(&closed))
                .then_some("could not open a GPU without a claim")
        } else {
            let came = run.came;
            let fares = Fares {
                above: run.peak > most,
                waits: came.is_some_and(|c| c.has_waited()),
                refused: came.is_some_and(|c| c.start_s.is_none()),
                taken: came.is_some_and(|c| c.taken > 0),
            };
            stage::effect(stage(&world.config.stages), stage(new), fares)
        };
        if let Some(how) = how {
            let who = figures::program_of(&record.command, &world.host.names.user(record.uid));
            let (runs, longest_s): &mut (usize, f64) = found.entry((who, how)).or_default();
            *runs += 1;
            *longest_s = longest_s.max(run.came.and_then(|c| c.start_s).unwrap_or(0.0));
        }
    }
    found
}

/// The GPUs that programs without a claim can open with these stages only.
fn opened(world: &World<'_>, new: &Stages) -> Vec<String> {
    let closed = world.gpus.denied(new);
    let now = world.gpus.denied(&world.config.stages);
    now.difference(&closed).map(usize::to_string).collect()
}

/// The lowest stage of these GPUs.
fn stage_on<'a>(
    world: &World<'_>,
    stages: &Stages,
    uuids: impl IntoIterator<Item = &'a str>,
) -> Stage {
    let gpus = uuids
        .into_iter()
        .map(|uuid| world.gpus.gpu_in(stages, uuid));
    gpus.min().unwrap_or(Stage::Require)
}

/// The stage of a claim of this user on these GPUs.
pub(crate) fn stage_of<'a>(
    world: &World<'_>,
    uid: u32,
    uuids: impl IntoIterator<Item = &'a str>,
) -> Stage {
    let stages = &world.config.stages;
    stage_on(world, stages, uuids).min(user_in(world, uid))
}

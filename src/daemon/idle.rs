//! Idle claims: since when their GPU and kernel are idle, when their owners are notified, and when they may lose the
//! GPU. The actions are a list of rules; see [`RULES`].

mod fixed;
mod release;
mod warn;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gshare_config::{IdleRule, Stage};
use gshare_core::{ClaimId, Class};
use gshare_proto::IdleView;

use super::command::{Command, LeverCommand};
use super::fact::{Fact, Tick};
use super::history::vitals::Vitals;
use super::journal::HoldingRecord;
use super::live::Live;
use super::world::World;
use crate::clock::nanos;

/// A claim without a Jupyter server counts as working while it keeps this many processors busy.
const WORKS: f64 = 0.1;
/// Shortest and longest time between two reads of its processes.
const PACE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// Name of the automatic action on an idle claim, once per pause: offload it, or shrink it instead.
const INSTEAD: &str = "offloaded or shrunk";

/// A rule: looks at one claim, and adds commands.
type Rule = fn(&World<'_>, &mut Idling, &mut Vec<Command>);

/// The rules in their order. Each sees what earlier ones have noted.
const RULES: &[Rule] = &[
    fixed::tell, // one line each
    warn::warn,
    detach_always,
    fixed::shrink,
];

/// Idleness of one claim. Times are by the clock of launches.
#[derive(Clone, Debug)]
pub(crate) struct Idling {
    id: ClaimId,
    rule: IdleRule,
    /// For how long its GPU and its kernel have been idle; for the kernel with its state and the source.
    gpu: Duration,
    kernel: Option<(String, Duration, &'static str)>,
    /// Why it can never be offloaded.
    fixed: Option<String>,
    /// The reason that its owner was last told.
    told_fixed: Option<String>,
    now_ns: u64,
    /// Time at which it got its GPU.
    since_ns: u64,
    programs: Programs,
    pause: Pause,
    /// When its end was announced to its owner.
    announced_ns: Option<u64>,
    /// Its owner keeps it until then.
    kept_ns: u64,
}

/// What was done since the claim last worked; forgotten when it works again.
#[derive(Clone, Debug, Default)]
struct Pause {
    /// When its owner was warned that it is idle.
    warned_ns: Option<u64>,
    /// Rules that act once per pause, and have acted.
    done: BTreeSet<&'static str>,
}

/// Processor use of its processes.
#[derive(Clone, Debug)]
struct Programs {
    seen: Option<Vitals>,
    asked_ns: Option<u64>,
    /// When they last kept a processor busy, and whether they did at the last read.
    worked_ns: u64,
    work: bool,
}

impl Idling {
    fn new(id: ClaimId, rule: IdleRule, now_ns: u64) -> Self {
        Self {
            id,
            rule,
            gpu: Duration::ZERO,
            kernel: None,
            fixed: None,
            told_fixed: None,
            now_ns,
            since_ns: now_ns,
            programs: Programs {
                seen: None,
                asked_ns: None,
                worked_ns: now_ns,
                work: true,
            },
            pause: Pause::default(),
            announced_ns: None,
            kept_ns: 0,
        }
    }

    fn ago(&self, at_ns: u64) -> Duration {
        Duration::from_nanos(self.now_ns.saturating_sub(at_ns))
    }

    /// For how long both its GPU and its kernel have been idle.
    fn idle(&self) -> Duration {
        let kernel = self.kernel.as_ref().map_or(Duration::ZERO, |k| k.1);
        self.gpu.min(kernel)
    }

    fn is_kept(&self) -> bool {
        self.kept_ns > self.now_ns
    }

    fn over(&self, limit: Option<Duration>) -> bool {
        limit.is_some_and(|limit| self.idle() >= limit)
    }

    /// True once per pause for each rule, named by `what`; records it.
    fn once(&mut self, what: &'static str) -> bool {
        self.pause.done.insert(what)
    }

    /// Whether its owner was warned at least this long ago.
    fn was_warned_for(&self, patience: Duration) -> bool {
        self.pause
            .warned_ns
            .is_some_and(|at| self.ago(at) >= patience)
    }

    fn look(&mut self, world: &World<'_>, live: &Live, tick: &Tick, rule: IdleRule) {
        self.now_ns = world.now.mono_ns;
        self.rule = rule;
        self.fixed = tick.fixed.get(&self.id).cloned();
        let last = live.last_launch_ns.max(live.past.launch_ns);
        self.gpu = self.ago(last.unwrap_or(0).max(self.since_ns));
        self.kernel = match tick.kernels.get(&self.id) {
            Some((state, ago)) => {
                let idle = match state.as_str() {
                    "idle" => ago.unwrap_or(self.gpu),
                    _ => {
                        // If its server stops answering, this is the last known activity of a cell that sleeps.
                        self.programs.worked_ns = self.now_ns;
                        Duration::ZERO
                    }
                };
                Some((state.clone(), idle, "Jupyter server"))
            }
            None => self.programs.seen.as_ref().map(|_| {
                let (state, idle) = match self.programs.work {
                    true => ("busy", Duration::ZERO),
                    false => ("idle", self.ago(self.programs.worked_ns)),
                };
                (state.to_owned(), idle, "processor time")
            }),
        };
        if self.idle() < rule.first().unwrap_or(Duration::MAX) {
            self.pause = Pause::default();
        }
    }

    /// Whether it is time to read its processes: often enough for the shortest configured time. Each read opens files
    /// of the kernel for every claim.
    fn is_due(&mut self) -> bool {
        let pace = self.rule.first().map_or(PACE.1, |first| first / 8);
        let pace = pace.clamp(PACE.0, PACE.1);
        let due = self.programs.asked_ns.is_none_or(|at| self.ago(at) >= pace);
        if due {
            self.programs.asked_ns = Some(self.now_ns);
        }
        due
    }

    fn take(&mut self, now: Option<Vitals>) {
        let programs = &mut self.programs;
        let busy = now
            .as_ref()
            .zip(programs.seen.as_ref())
            .map(|(n, b)| n.processors_since(b));
        programs.work = busy.is_none_or(|busy| busy >= WORKS);
        if programs.work {
            programs.worked_ns = self.now_ns;
        }
        programs.seen = now;
    }
}

/// Offloads it although nobody waits for its room.
fn detach_always(world: &World<'_>, claim: &mut Idling, out: &mut Vec<Command>) {
    let patience = world.config.reclaim.countdown;
    let may = claim.fixed.is_none() && !claim.is_kept();
    let due = may && claim.was_warned_for(patience) && claim.over(claim.rule.always);
    if due && claim.once(INSTEAD) {
        out.push(Command::Levers(LeverCommand::Offload(claim.id)));
    }
}

/// State of all claims.
#[derive(Debug, Default)]
pub(crate) struct Idle {
    claims: BTreeMap<ClaimId, Idling>,
}

impl Idle {
    pub(crate) fn on(&mut self, world: &World<'_>, fact: &Fact, out: &mut Vec<Command>) {
        match fact {
            Fact::Tick(tick) => self.tick(world, tick, out),
            Fact::Arrived { claim } => {
                if let Some(claim) = self.claims.get_mut(claim) {
                    claim.since_ns = world.now.mono_ns;
                }
            }
            Fact::Vitals(all) => {
                for (id, now) in all {
                    if let Some(claim) = self.claims.get_mut(id) {
                        claim.take(*now);
                    }
                }
            }
            Fact::FewestToEnd(chosen) => {
                for claim in self.claims.values_mut() {
                    let chosen = chosen.contains(&claim.id);
                    release::count_down(world, claim, chosen, out);
                }
            }
            Fact::Kept { claim } => {
                if let Some(claim) = self.claims.get_mut(claim) {
                    let keep = nanos(world.config.reclaim.keep);
                    claim.kept_ns = world.now.mono_ns.saturating_add(keep);
                    claim.pause.warned_ns = None;
                }
            }
            _ => {}
        }
    }

    /// Updates all claims, and applies the rules.
    fn tick(&mut self, world: &World<'_>, tick: &Tick, out: &mut Vec<Command>) {
        // Forget claims whose stage has become lower.
        let watched = |live: &Live| live.record.runs.stage >= Stage::Reclaim;
        self.claims
            .retain(|id, _| world.claims.get(id).is_some_and(watched));
        let mut look = Vec::new();
        for (id, live) in world.claims.iter() {
            let record = &live.record;
            let spared =
                record.has_no_library() || record.origin.behalf.is_some() || !watched(live);
            if !has_its_gpu(live) || spared {
                if let Some(claim) = self.claims.get_mut(id) {
                    claim.pause = Pause::default();
                }
                continue;
            }
            let groups = world.host.names.account(live.record.uid).group_names();
            let class: Class = live.record.class.parse().unwrap_or(Class::Batch);
            let idle = &world.config.idle;
            let mut rule = idle.rule(class, &groups, world.machine.minute());
            rule.no_detach = fixed::possible(rule.no_detach, live);
            let now_ns = world.now.mono_ns;
            let claim = self.claims.entry(*id);
            let claim = claim.or_insert_with(|| Idling::new(*id, rule, now_ns));
            claim.look(world, live, tick, rule);
            if claim.is_due() {
                look.push(*id);
            }
            if rule.first().is_some() {
                RULES.iter().for_each(|rule| rule(world, claim, out));
            }
        }
        if !look.is_empty() {
            out.push(Command::ReadVitals(look));
        }
        release::choose(world, &mut self.claims, out);
    }

    /// Whether a claim is offloaded for its idleness when another claim waits.
    pub(crate) fn is_idle(&self, id: ClaimId) -> bool {
        let claim = self.claims.get(&id);
        claim.is_some_and(|c| c.over(c.rule.detach) && !c.is_kept())
    }

    /// Whether the owner of a claim was warned, and can keep it.
    pub(crate) fn is_warned(&self, id: ClaimId) -> bool {
        self.claims
            .get(&id)
            .is_some_and(|c| c.pause.warned_ns.is_some())
    }

    /// For the screen.
    pub(crate) fn show(&self, world: &World<'_>, id: ClaimId) -> Option<IdleView> {
        let claim = self.claims.get(&id)?;
        let live = world.claims.get(&id)?;
        if !matches!(live.record.holding, HoldingRecord::Here) || live.record.slices.is_empty() {
            return None;
        }
        let left = |limit: Option<Duration>| Some(limit?.saturating_sub(claim.idle()).as_secs());
        Some(IdleView {
            gpu_s: claim.gpu.as_secs(),
            kernel: claim.kernel.as_ref().map(|k| k.0.clone()),
            kernel_s: claim.kernel.as_ref().map(|k| k.1.as_secs()),
            source: claim.kernel.as_ref().map(|k| k.2.to_owned()),
            warned: claim.pause.warned_ns.is_some(),
            kept: claim.is_kept(),
            detach_in_s: left(claim.rule.detach),
            always_in_s: left(claim.rule.always),
            instead: (claim.fixed.as_ref()).map(|_| claim.rule.no_detach.name().to_owned()),
            ends_in_s: claim.announced_ns.map(|at| {
                let now = Duration::from_nanos(world.now.mono_ns.saturating_sub(at));
                world.config.reclaim.countdown.saturating_sub(now).as_secs()
            }),
        })
    }

    /// When an idle claim may make room, for claims that wait for it.
    pub(crate) fn promise(&self, world: &World<'_>, id: ClaimId) -> Option<Duration> {
        let claim = self.claims.get(&id).filter(|c| !c.is_kept())?;
        let offload = claim.rule.detach?;
        if claim.idle() < Duration::from_secs(60).min(offload) / 2 || claim.fixed.is_some() {
            return None;
        }
        let left = offload.saturating_sub(claim.idle());
        let announced = left.saturating_add(world.config.reclaim.countdown);
        Some(announced.max(world.machine.min_run_left(world.now.core, id)))
    }
}

/// It is on its GPUs and does not end.
fn has_its_gpu(live: &Live) -> bool {
    let here = matches!(live.record.holding, HoldingRecord::Here);
    here && live.ending.is_none() && !live.record.slices.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::command::EndCommand;
    use crate::daemon::names::{Account, Names};
    use crate::daemon::world::scene::Scene;

    /// Ticks for an interactive claim whose Jupyter server reports its idle time, which grows. Gives the commands of
    /// all rules.
    pub(super) fn idles(
        idle: &mut Idle,
        scene: &mut Scene,
        seconds: u64,
        fixed: bool,
    ) -> Vec<Command> {
        let live = scene.claim(1, 0);
        live.record.class = "interactive".to_owned();
        let (id, mut out) = (ClaimId(1), Vec::new());
        if !idle.claims.contains_key(&id) {
            idle.on(&scene.world(), &Fact::Tick(Tick::default()), &mut out);
        }
        scene.now.mono_ns = idle.claims[&id].since_ns + seconds * 1_000_000_000;
        let mut tick = Tick::default();
        tick.kernels.insert(id, ("idle".to_owned(), None));
        if fixed {
            tick.fixed.insert(id, "it uses managed memory".to_owned());
        }
        out.clear();
        idle.on(&scene.world(), &Fact::Tick(tick), &mut out);
        out.retain(|c| !matches!(c, Command::ReadVitals(_)));
        out
    }

    fn told(commands: &[Command]) -> &str {
        match commands {
            [Command::TellOwner { text, .. }] => text,
            _ => panic!("{commands:?}"),
        }
    }

    #[test]
    fn a_claim_that_has_just_come_back_for_a_cell_is_not_idle() {
        for back in [false, true] {
            let (mut idle, mut scene) = (Idle::default(), Scene::of(1));
            assert!(idles(&mut idle, &mut scene, 19 * 60, false).is_empty());
            scene.now.mono_ns += 6 * 60_000_000_000;
            let (claim, mut out) = (ClaimId(1), Vec::new());
            if back {
                idle.on(&scene.world(), &Fact::Arrived { claim }, &mut out);
            }
            let mut tick = Tick::default();
            tick.kernels.insert(claim, ("idle".to_owned(), None));
            idle.on(&scene.world(), &Fact::Tick(tick), &mut out);
            let warned = out.iter().any(|c| matches!(c, Command::TellOwner { .. }));
            assert_eq!(warned, !back, "{out:?}");
        }
    }

    #[test]
    fn its_owner_is_warned_once_and_keeps_it() {
        let (mut idle, mut scene) = (Idle::default(), Scene::of(1));
        assert!(idles(&mut idle, &mut scene, 19 * 60, false).is_empty());
        let said = idles(&mut idle, &mut scene, 20 * 60, false);
        assert!(
            told(&said).contains("is offloaded in 10m if others wait"),
            "{said:?}"
        );
        assert!(
            idles(&mut idle, &mut scene, 21 * 60, false).is_empty(),
            "once"
        );
        assert!(!idle.is_idle(ClaimId(1)));
        idles(&mut idle, &mut scene, 30 * 60, false);
        assert!(idle.is_idle(ClaimId(1)));
        let kept = Fact::Kept { claim: ClaimId(1) };
        idle.on(&scene.world(), &kept, &mut Vec::new());
        assert!(!idle.is_idle(ClaimId(1)));
    }

    #[test]
    fn in_stages_1_and_2_nothing_is_done_about_idleness() {
        let (mut idle, mut scene) = (Idle::default(), Scene::of(1));
        idles(&mut idle, &mut scene, 30 * 60, false);
        assert!(idle.is_idle(ClaimId(1)));
        scene.claim(1, 0).record.runs.stage = Stage::OptIn;
        let mut out = Vec::new();
        idle.on(&scene.world(), &Fact::Tick(Tick::default()), &mut out);
        assert!(out.is_empty(), "{out:?}");
        assert!(!idle.is_idle(ClaimId(1)) && !idle.is_warned(ClaimId(1)));
    }

    #[test]
    fn a_launch_ends_the_pause() {
        let (mut idle, mut scene) = (Idle::default(), Scene::of(1));
        idles(&mut idle, &mut scene, 30 * 60, false);
        scene.claim(1, 0).last_launch_ns = Some(scene.now.mono_ns);
        idles(&mut idle, &mut scene, 31 * 60, false);
        assert!(!idle.is_idle(ClaimId(1)) && !idle.is_warned(ClaimId(1)));
        // The end of a process has the same effect.
        idles(&mut idle, &mut scene, 70 * 60, false);
        assert!(idle.is_idle(ClaimId(1)));
        scene.claim(1, 0).past.launch_ns = Some(scene.now.mono_ns);
        idles(&mut idle, &mut scene, 71 * 60, false);
        assert!(!idle.is_idle(ClaimId(1)));
    }

    #[test]
    fn what_the_server_says_counts_an_open_tab_does_not() {
        let (mut idle, mut scene) = (Idle::default(), Scene::of(1));
        idles(&mut idle, &mut scene, 3600, false);
        assert!(idle.is_idle(ClaimId(1)));
        let mut says = |state: &str, ago| {
            let mut tick = Tick::default();
            tick.kernels.insert(ClaimId(1), (state.to_owned(), ago));
            idle.on(&scene.world(), &Fact::Tick(tick), &mut Vec::new());
            idle.is_idle(ClaimId(1))
        };
        assert!(!says("busy", None), "a cell that launches nothing");
        assert!(!says("idle", Some(Duration::from_secs(60))));
        assert!(says("idle", Some(Duration::from_secs(1800))));
    }

    #[test]
    fn a_rule_for_a_group_holds_once_the_owners_groups_are_known() {
        let (mut idle, mut scene) = (Idle::default(), Scene::of(1));
        scene.config.idle.rules.push(gshare_config::IdleWhen {
            group: Some("students".to_owned()),
            detach: Some(Some(Duration::from_secs(60))),
            ..gshare_config::IdleWhen::default()
        });
        let uid = scene.claim(1, 0).record.uid;
        let mut detach_in = |groups: &[&str]| {
            let named = groups.iter().map(|&name| (0, Some(name.to_owned())));
            let account = Account {
                groups: named.collect(),
                ..Account::default()
            };
            scene.host.names = Names::of(uid, account);
            idles(&mut idle, &mut scene, 0, false);
            idle.show(&scene.world(), ClaimId(1))
                .and_then(|v| v.detach_in_s)
        };
        assert_eq!(detach_in(&["staff"]), Some(1800));
        assert_eq!(detach_in(&["staff", "students"]), Some(60));
    }

    #[test]
    fn where_nobody_waits_it_is_detached_only_by_the_rule_that_says_always() {
        let (mut idle, mut scene) = (Idle::default(), Scene::of(1));
        idles(&mut idle, &mut scene, 3600, false);
        assert!(idles(&mut idle, &mut scene, 7200, false).is_empty());
        scene.config.idle.always = Some(Duration::from_secs(7200));
        let done = idles(&mut idle, &mut scene, 7300, false);
        assert!(
            matches!(&*done, [Command::Levers(LeverCommand::Offload(_))]),
            "{done:?}"
        );
        assert!(idles(&mut idle, &mut scene, 7400, false).is_empty(), "once");
        // Its owner was told earlier that it cannot be offloaded.
        let (mut idle, mut scene) = (Idle::default(), Scene::of(1));
        scene.config.idle.always = Some(Duration::from_secs(7200));
        for seconds in [7200, 7300, 7400] {
            let done = idles(&mut idle, &mut scene, seconds, true);
            let offloaded = |c: &Command| matches!(c, Command::Levers(LeverCommand::Offload(_)));
            assert!(!done.iter().any(offloaded), "{done:?}");
        }
    }

    #[test]
    fn one_that_was_chosen_ends_after_the_countdown() {
        let (mut idle, mut scene) = (Idle::default(), Scene::of(1));
        idles(&mut idle, &mut scene, 3600, true);
        let mut choose = |scene: &Scene, chosen| {
            let mut out = Vec::new();
            idle.on(&scene.world(), &Fact::FewestToEnd(chosen), &mut out);
            out
        };
        let one = || vec![ClaimId(1)];
        assert!(told(&choose(&scene, one())).contains("c1 will be released in 30s"));
        assert!(choose(&scene, one()).is_empty(), "told once");
        assert!(choose(&scene, Vec::new()).is_empty(), "no longer needed");
        assert!(told(&choose(&scene, one())).contains("in 30s"), "anew");
        scene.now.mono_ns += 31_000_000_000;
        let done = choose(&scene, one());
        assert!(
            matches!(&*done, [_, Command::Ends(EndCommand::End { .. })]),
            "{done:?}"
        );
    }
}

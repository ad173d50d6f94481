//! Claims that run nothing: since when their GPU and their kernel idle, what their owners are told, and when they may be
//! taken from it.

mod fixed;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use gshare_config::{IdleRule, NoDetach};
use gshare_core::machine::Event;
use gshare_core::machine::lever::Wish;
use gshare_core::units::show_duration;
use gshare_core::{ClaimId, Class};
use gshare_enforcer::proc;
use gshare_proto::IdleView;

use super::history::vitals::Vitals;
use super::journal::HoldingRecord;
use super::service::Service;

/// Processors that a claim without a Jupyter server keeps busy at least while it counts as working.
const WORKS: f64 = 0.1;
/// Between two looks at what its processes do, at least and at most.
const PACE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// Groups of users change seldom.
const GROUPS: Duration = Duration::from_secs(300);

/// What is known of one claim's idleness.
#[derive(Debug)]
pub(crate) struct Rest {
    /// It had its GPU from here on, by the clock of launches.
    since_ns: u64,
    vitals: Option<Vitals>,
    /// When its processes last kept a processor busy, and whether they did when last looked at.
    worked: Instant,
    works: bool,
    gpu: Duration,
    kernel: Option<(String, Duration, &'static str)>,
    rule: IdleRule,
    /// Its owner has been told in this pause.
    warned: Option<Instant>,
    /// What was done in the place of detaching it in this pause.
    done: bool,
    /// Its owner has been told that it ends soon.
    announced: Option<Instant>,
    /// Its owner keeps it.
    kept: Option<Instant>,
    /// Why it cannot be detached, as it was told.
    told_fixed: Option<String>,
}

impl Rest {
    fn new(rule: IdleRule) -> Self {
        Self {
            since_ns: gshare_abi::monotonic_ns(),
            vitals: None,
            worked: Instant::now(),
            works: true,
            gpu: Duration::ZERO,
            kernel: None,
            rule,
            warned: None,
            done: false,
            announced: None,
            kept: None,
            told_fixed: None,
        }
    }

    /// For how long neither its GPU nor its kernel has done anything.
    fn idle(&self) -> Duration {
        let kernel = self.kernel.as_ref().map_or(Duration::ZERO, |k| k.1);
        self.gpu.min(kernel)
    }

    fn is_kept(&self) -> bool {
        self.kept.is_some_and(|until| until > Instant::now())
    }

    /// Its owner is warned now: with which words.
    fn warn(&mut self, id: ClaimId, fixed: Option<&str>) -> String {
        self.warned = Some(Instant::now());
        rest_text(id, self, fixed)
    }

    fn over(&self, limit: Option<Duration>) -> bool {
        limit.is_some_and(|limit| self.idle() >= limit)
    }
}

/// All of them, and the groups of their owners.
#[derive(Debug, Default)]
pub(crate) struct Rests {
    claims: BTreeMap<ClaimId, Rest>,
    groups: BTreeMap<u32, (Vec<String>, Instant)>,
}

impl Rests {
    fn groups_of(&mut self, uid: u32) -> &[String] {
        let known = self.groups.get(&uid);
        if known.is_none_or(|(_, at)| at.elapsed() >= GROUPS) {
            let gids = proc::groups_of(uid).unwrap_or_default();
            let names = gids.into_iter().filter_map(proc::group_name).collect();
            self.groups.insert(uid, (names, Instant::now()));
        }
        self.groups.get(&uid).map_or(&[], |(names, _)| names)
    }
}

impl Service {
    /// A claim has come to its GPU just now.
    pub(crate) fn begins_anew(&mut self, id: ClaimId) {
        if let Some(rest) = self.rests.claims.get_mut(&id) {
            rest.since_ns = gshare_abi::monotonic_ns();
        }
    }

    /// Whether a claim is detached for its idleness when somebody waits.
    pub(crate) fn is_idle(&self, id: ClaimId) -> bool {
        let rest = self.rests.claims.get(&id);
        rest.is_some_and(|r| r.over(r.rule.detach) && !r.is_kept())
    }

    /// Looks at all claims, and tells and does what the rules say.
    pub(crate) fn look_at_idle(&mut self) {
        let claims = &self.claims;
        self.rests.claims.retain(|id, _| claims.contains_key(id));
        let ids: Vec<ClaimId> = self.claims.keys().copied().collect();
        for id in ids {
            self.look_at_rest(id);
        }
        self.release_idle();
        self.tell_what_idling_promises();
    }

    fn look_at_rest(&mut self, id: ClaimId) {
        let Some(live) = self.claims.get(&id) else {
            return;
        };
        let here = matches!(live.record.holding, HoldingRecord::Here);
        if live.ending.is_some() || live.record.slices.is_empty() || live.record.adopted || !here {
            if let Some(rest) = self.rests.claims.get_mut(&id) {
                (rest.warned, rest.done) = (None, false);
            }
            return;
        }
        let class: Class = live.record.class.parse().unwrap_or(Class::Batch);
        let (uid, minute) = (live.record.uid, self.machine.minute());
        let mut rule = self
            .config
            .idle
            .rule(class, self.rests.groups_of(uid), minute);
        let server = self.kernel_state(id);
        let Some(live) = self.claims.get(&id) else {
            return;
        };
        rule.no_detach = fixed::possible(rule.no_detach, live);
        let last = live.last_launch_ns.max(live.past_launch_ns);
        let rest = self
            .rests
            .claims
            .entry(id)
            .or_insert_with(|| Rest::new(rule));
        rest.rule = rule;
        let last = last.unwrap_or(0).max(rest.since_ns);
        rest.gpu = Duration::from_nanos(gshare_abi::monotonic_ns().saturating_sub(last));
        // Often enough for the shortest time that is counted; each look reads files of the kernel for every claim.
        let pace = rule.first().map_or(PACE.1, |first| first / 8);
        let pace = pace.clamp(PACE.0, PACE.1);
        if rest.vitals.as_ref().is_none_or(|v| v.age() >= pace) {
            let now = Vitals::read(live);
            let busy = now
                .as_ref()
                .zip(rest.vitals.as_ref())
                .map(|(n, b)| n.processors_since(b));
            rest.works = busy.is_none_or(|busy| busy >= WORKS);
            if rest.works {
                rest.worked = Instant::now();
            }
            rest.vitals = now;
        }
        rest.kernel = match server {
            Some((state, ago)) => {
                let idle = match state.as_str() {
                    "idle" => ago.unwrap_or(rest.gpu),
                    _ => {
                        // Should its server fall silent, this was the last that is known of a cell which sleeps.
                        rest.worked = Instant::now();
                        Duration::ZERO
                    }
                };
                Some((state, idle, "Jupyter server"))
            }
            None => rest.vitals.as_ref().map(|_| {
                let idle = rest.worked.elapsed();
                let state = if rest.works { "busy" } else { "idle" };
                (state.to_owned(), idle, "processor time")
            }),
        };
        if rest.idle() < rule.first().unwrap_or(Duration::MAX) {
            (rest.warned, rest.done) = (None, false);
        }
        self.act_on_rest(id);
    }

    fn act_on_rest(&mut self, id: ClaimId) {
        let Some(rule) = self.rests.claims.get(&id).map(|r| r.rule) else {
            return;
        };
        if rule.first().is_none() {
            return;
        }
        let fixed = self.fixed(id);
        let has_members = self.claims.get(&id).is_some_and(|l| !l.members.is_empty());
        let Some(rest) = self.rests.claims.get_mut(&id) else {
            return;
        };
        if has_members && rest.told_fixed != fixed {
            rest.told_fixed.clone_from(&fixed);
            if let Some(why) = &fixed {
                let then = fixed::words(rule.no_detach);
                let text = format!(
                    "{id} cannot be detached: {why}. When it idles while others wait, {then}"
                );
                self.tell_owner(id, &text);
            }
        }
        let waits = self.machine.queue().next().is_some();
        let patience = self.config.reclaim.countdown;
        let Some(rest) = self.rests.claims.get_mut(&id).filter(|r| !r.is_kept()) else {
            return;
        };
        if (rest.over(rule.warn) || rest.over(rule.always)) && rest.warned.is_none() {
            let text = rest.warn(id, fixed.as_deref());
            self.tell_owner(id, &text);
        } else if rest.over(rule.always) && fixed.is_none() {
            if rest.warned.is_some_and(|at| at.elapsed() >= patience) && !rest.done {
                rest.done = true;
                self.drive(Event::Wish {
                    id,
                    wish: Wish::Detach,
                });
            }
        } else if rest.over(rule.detach) && waits && fixed.is_some() && !rest.done {
            if rest.warned.is_none() {
                let text = rest.warn(id, fixed.as_deref());
                self.tell_owner(id, &text);
            } else if rest.warned.is_some_and(|at| at.elapsed() >= patience) {
                rest.done = true;
                if rule.no_detach == NoDetach::Shrink {
                    self.shrink_idle(id);
                }
            }
        }
    }

    /// Why a claim can never be detached; `None` also while that is not known.
    fn fixed(&self, id: ClaimId) -> Option<String> {
        self.levers.usable.as_ref()?;
        self.may_park(id).err()
    }

    /// Its owner keeps a claim that was warned; false if it was not.
    pub(crate) fn keep_idle(&mut self, id: ClaimId) -> bool {
        let keep = self.config.reclaim.keep;
        let Some(rest) = self
            .rests
            .claims
            .get_mut(&id)
            .filter(|r| r.warned.is_some())
        else {
            return false;
        };
        rest.kept = Some(Instant::now() + keep);
        rest.warned = None;
        self.tell_levers();
        true
    }

    /// For the screen.
    pub(crate) fn idle_view(&self, id: ClaimId) -> Option<IdleView> {
        let rest = self.rests.claims.get(&id)?;
        let live = self.claims.get(&id)?;
        if !matches!(live.record.holding, HoldingRecord::Here) || live.record.slices.is_empty() {
            return None;
        }
        let left = |limit: Option<Duration>| Some(limit?.saturating_sub(rest.idle()).as_secs());
        Some(IdleView {
            gpu_s: rest.gpu.as_secs(),
            kernel: rest.kernel.as_ref().map(|k| k.0.clone()),
            kernel_s: rest.kernel.as_ref().map(|k| k.1.as_secs()),
            source: rest.kernel.as_ref().map(|k| k.2.to_owned()),
            warned: rest.warned.is_some(),
            kept: rest.is_kept(),
            detach_in_s: left(rest.rule.detach),
            always_in_s: left(rest.rule.always),
            instead: self
                .fixed(id)
                .map(|_| rest.rule.no_detach.name().to_owned()),
            ends_in_s: rest.announced.map(|at| {
                let left = self.config.reclaim.countdown.saturating_sub(at.elapsed());
                left.as_secs()
            }),
        })
    }

    /// When a claim that idles may make room: for those who wait for what it holds.
    pub(crate) fn idle_promise(&self, id: ClaimId) -> Option<Duration> {
        let rest = self.rests.claims.get(&id).filter(|r| !r.is_kept())?;
        if rest.idle() < Duration::from_secs(60).min(rest.rule.detach?) / 2
            || self.fixed(id).is_some()
        {
            return None;
        }
        let left = rest.rule.detach?.saturating_sub(rest.idle());
        let announced = left.saturating_add(self.config.reclaim.countdown);
        Some(announced.max(self.machine.min_run_left(self.now(), id)))
    }
}

/// What the owner of an idle claim is told.
fn rest_text(id: ClaimId, rest: &Rest, fixed: Option<&str>) -> String {
    let since = |time: Duration| show_duration(Duration::from_secs(time.as_secs()));
    let kernel = match &rest.kernel {
        Some((_, idle, source)) => {
            format!(", its kernel did nothing for {} ({source})", since(*idle))
        }
        None => String::new(),
    };
    let left = |limit: Duration| match limit.saturating_sub(rest.idle()).as_secs() {
        0 => "from now on".to_owned(),
        left => format!("in {}", show_duration(Duration::from_secs(left))),
    };
    let then = match (fixed, rest.rule.always, rest.rule.detach) {
        (Some(_), _, Some(at)) => match rest.rule.no_detach {
            NoDetach::Warn => {
                "It cannot be detached; please give back what you do not need".to_owned()
            }
            NoDetach::Shrink => format!(
                "If somebody waits only what it uses stays guaranteed to it, {}",
                left(at)
            ),
            NoDetach::Release => format!(
                "It cannot be detached: {}, its programs on the GPU are ended if somebody can start in their place",
                left(at)
            ),
        },
        (None, Some(at), _) => {
            format!("It is detached {}; what is in its memory is kept", left(at))
        }
        (None, None, Some(at)) => format!(
            "It is detached {} if somebody waits; what is in its memory is kept",
            left(at)
        ),
        _ => "Please give back what you do not need".to_owned(),
    };
    format!(
        "{id} launched nothing for {}{kernel}. {then}. To keep it: gshare keep {id}",
        since(rest.gpu)
    )
}

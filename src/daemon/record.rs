//! Passes the state of every line to the history at each look at the GPUs, and queries to its thread.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gshare_config::Config;
use gshare_core::{ClaimId, Held};
use gshare_proto::history::Usage;
use gshare_proto::{ClaimGpu, Identity};

use super::connection::{Sender, Turn};
use super::convert;
use super::features::Features;
use super::gpu::Gpus;
use super::gpu::STEP;
use super::history::answer::Place;
use super::history::store::{ClaimFace, Store};
use super::history::sum::{Fact, Key, STEP_S, Step as Sums, Sum};
use super::history::vitals::Vitals;
use super::history::worker::{Order, Status, Worker};
use super::history::{Ask, History, Seen, no_history};
use super::host::Host;
use super::journal::{ClaimRecord, HoldingRecord, Journal};
use super::msg::Msg;
use super::peer::Peer;
use super::played::Machine;
use super::policy::auto;
use super::tracks::Sizes;
use super::viewer::Viewer;
use super::watch;
use super::world::World;
use super::{turns, view};
use crate::clock::{millis, unix_ms};
use crate::{figures, identity};

/// Points on the screen: ten minutes.
const POINTS: usize = 60;
/// A claim without launches and GPU time for this long is idle.
const IDLE_AFTER_S: u64 = 3;
/// Fewer percent of SMs or time count as none.
const NOTHING: f64 = 1.0;
/// Longest wait for the disk at the end of the service.
const PATIENCE: Duration = Duration::from_secs(2);

impl History {
    /// Opens the file, imports points of older versions, and restores the last minutes on the screen. Time without a
    /// service is unknown.
    pub(crate) fn load(
        &mut self,
        host: &Host,
        config: &Config,
        gpus: &mut Gpus,
        journal: &mut Journal,
    ) {
        let path = host.history_path();
        let opened = Store::open(&path, config.history.max_size.0);
        let mut store = match opened {
            Ok(store) => store,
            Err(error) => {
                tracing::error!(%error, path = %path.display(), "cannot open the history: nothing is recorded for now");
                return;
            }
        };
        if let Err(error) = move_samples(journal, &mut store) {
            tracing::warn!(%error, "cannot import the history of an older version");
        }
        let now = unix_ms();
        let from = now.saturating_sub(millis(STEP) * POINTS as u64);
        for g in 0..gpus.len() {
            match store.activity_since(&gpus.lasting_name(g), from) {
                Ok(points) => gpus[g].history = spread(&points, now),
                Err(error) => tracing::warn!(%error, "cannot read the last minutes of the history"),
            }
        }
        self.store = Some(store);
    }

    /// Starts the history's thread, once the live claims are known.
    pub(crate) fn start(&mut self, world: &World<'_>) {
        let claims = world.claims.keys().map(|id| id.0).collect();
        let (path, max) = (world.host.history_path(), world.config.history.max_size.0);
        let (store, events) = (self.store.take(), world.host.events.clone());
        let tell = Box::new(move |told| {
            // The receiver is gone when the service ends.
            let _ = events.send(Msg::History(told));
        });
        match Worker::start(&path, max, store, claims, world.host.names.clone(), tell) {
            Ok(worker) => self.worker = Some(worker),
            Err(error) => {
                tracing::error!(%error, "no history is recorded: its thread could not be started");
            }
        }
    }

    /// Writes the rest at the end of the service.
    pub(crate) fn end(&mut self, world: &World<'_>, features: &Features) {
        if let Some(step) = self.collector.take() {
            self.keep(world, features, step);
        }
        if let Some(worker) = &mut self.worker {
            worker.stop(PATIENCE);
        }
    }

    /// Adds the newest look at the GPUs, and the claims' use to `sizes`.
    pub(crate) fn look(&mut self, world: &World<'_>, features: &Features, sizes: &mut Sizes) {
        let facts = self.facts_of_now(world, features, sizes);
        let most = millis(world.config.service.tick)
            .saturating_mul(3)
            .max(5_000);
        for step in self.collector.look(unix_ms(), most, &facts) {
            self.keep(world, features, step);
        }
    }

    /// State of every line at this moment.
    fn facts_of_now(
        &mut self,
        world: &World<'_>,
        features: &Features,
        sizes: &mut Sizes,
    ) -> Vec<(Key, Fact)> {
        let since = self.seen.replace(Instant::now());
        let since_ms = since.map_or(0.0, |at| at.elapsed().as_secs_f64() * 1000.0);
        let mut facts = Vec::new();
        let whole = world.gpus.iter().filter(|g| g.parent.is_none()).count();
        let machine = Fact {
            claimed: whole as f64,
            ..Fact::default()
        };
        facts.push((Key::Machine, machine));
        let names: Vec<Arc<str>> = (0..world.gpus.len())
            .map(|g| world.gpus.lasting_name(g).into())
            .collect();
        for (g, name) in names.iter().enumerate() {
            facts.push((Key::Gpu(Arc::clone(name)), gpu_fact(world, features, g)));
        }
        let mut unnamed = false;
        for seen in claims_seen(world, features) {
            let kept = self.claims.entry(seen.id).or_default();
            unnamed |= kept.face == ClaimFace::default();
            let before = std::mem::replace(&mut kept.held_back_ms, seen.held_back_ms);
            let held_back = seen
                .held_back_ms
                .zip(before)
                .map(|(now, old)| now.saturating_sub(old));
            let throttled = match held_back {
                Some(ms) if since_ms > 0.0 => ms as f64 / since_ms / seen.parts.len().max(1) as f64,
                _ => 0.0,
            };
            let throttled = throttled.min(1.0);
            sizes.look(world, features, self, &seen, throttled);
            // A claim in host memory holds nothing of a GPU.
            let live = world.claims.get(&seen.id);
            if live.is_some_and(|l| matches!(l.record.holding, HoldingRecord::Parked(_))) {
                continue;
            }
            for part in &seen.parts {
                let Some(name) = names.get(seat_of(world, seen.id, part)) else {
                    continue;
                };
                let key = Key::Claim {
                    claim: seen.id.0,
                    uid: seen.uid,
                    gpu: Arc::clone(name),
                };
                let fact = Fact {
                    throttled,
                    ..claim_fact(world, seen.id, part, seen.idle_s)
                };
                facts.push((key, fact));
            }
        }
        // A claim may end before the step, and its owner is unknown after that.
        if unnamed {
            self.name_claims(world, features);
        }
        let mut waiting: BTreeMap<u32, f64> = BTreeMap::new();
        for asked in world.claims.waiting.values() {
            let wanted = asked.request.share.as_f64() * f64::from(asked.request.gpus);
            *waiting.entry(asked.record.uid).or_default() += wanted;
        }
        facts.extend(waiting.into_iter().map(|(uid, waited)| {
            let fact = Fact {
                waited,
                ..Fact::default()
            };
            (Key::Wait(uid), fact)
        }));
        facts
    }

    /// A step has ended: idle claims in it get their cause, and it goes to the thread.
    fn keep(&mut self, world: &World<'_>, features: &Features, mut step: Sums) {
        for (key, sum) in &mut step.rows {
            let Key::Claim { claim, .. } = key else {
                continue;
            };
            let id = ClaimId(*claim);
            let live = world.claims.get(&id);
            let kept = self.claims.entry(id).or_default();
            // With several GPUs, and soon after the last read, the last result holds.
            if kept.vitals.as_ref().is_none_or(Vitals::is_old) {
                let now = live.and_then(Vitals::read);
                let hours = &world.config.history.work_hours;
                kept.cause = Vitals::cause(kept.vitals.as_ref(), now.as_ref(), hours);
                kept.vitals = now;
            }
            sum.because(kept.cause);
            kept.sum.add(sum);
        }
        self.claims
            .retain(|id, _| world.claims.contains_key(id) || world.policy.auto.contains_key(id));
        self.name_claims(world, features);
        let _ = self.tell(Order::Step(step));
    }

    /// Sends the thread new and changed names of claims.
    fn name_claims(&mut self, world: &World<'_>, features: &Features) {
        let mut changed = Vec::new();
        for (id, kept) in &self.claims {
            let face = match (world.claims.get(id), world.policy.auto.get(id)) {
                (Some(live), _) => face_of(*id, &live.record, &features.identity_of(*id, live)),
                (None, Some(auto)) => face_of(
                    *id,
                    auto.record(),
                    &features.identity.process(auto.process()),
                ),
                (None, None) => continue,
            };
            if face != kept.face {
                changed.push((*id, face));
            }
        }
        for (id, face) in changed {
            let _ = self.tell(Order::Face(face.clone()));
            self.claims.entry(id).or_default().face = face;
        }
    }

    /// Takes the past use of claims from the thread.
    pub(crate) fn remember(&mut self, claims: BTreeMap<u64, Sum>) {
        for (id, sum) in claims {
            self.claims.entry(ClaimId(id)).or_default().sum.add(&sum);
        }
    }

    /// Passes a query to the thread, after the data that it needs.
    pub(crate) fn ask(
        &mut self,
        world: &World<'_>,
        features: &Features,
        peer: &Peer,
        ask: Ask,
        out: &Sender,
        turn: Turn,
    ) {
        if let Some(step) = self.collector.take() {
            self.keep(world, features, step);
        }
        let viewer = watch::viewer(world, peer);
        let mut place = Box::new(world.gpus.place(viewer));
        if matches!(ask, Ask::Report(_)) {
            let claims = world.claims.iter().map(|(id, live)| (id.0, live.peak));
            let auto = world.policy.auto.iter().map(|(id, a)| (id.0, a.peak()));
            let peaks = claims.chain(auto).collect();
            place.played = Machine::of(world.gpus.have_instances(), world.machine.ledger().gpus())
                .map(|machine| Box::new((machine, peaks)));
        }
        let order = match ask {
            Ask::History(spec) => Order::History(Box::new(spec), place, out.clone(), turn),
            Ask::Stored(after) => Order::Stored(viewer.uid(), after, out.clone(), turn),
            Ask::Report(spec) => Order::Report(Box::new(spec), place, out.clone(), turn),
        };
        if self.tell(order).is_err() {
            out.error(no_history());
        }
    }

    /// What a user claimed and used in the last day.
    pub(crate) fn day_of(&self, uid: u32) -> Option<Usage> {
        self.day.as_ref()?.get(&uid).map(Sum::usage)
    }

    /// State of the file; absent without a thread.
    pub(crate) fn status(&self) -> Option<Status> {
        self.worker.as_ref().map(Worker::status)
    }

    /// Gives the thread an order; returns it if there is no thread.
    pub(crate) fn tell(&self, order: Order) -> Result<(), Order> {
        let Some(worker) = &self.worker else {
            return Err(order);
        };
        worker.tell(order);
        Ok(())
    }

    /// What a claim claimed and used so far.
    pub(crate) fn usage_of(&self, id: ClaimId) -> Option<Usage> {
        let kept = self.claims.get(&id)?;
        let mut sum = kept.sum;
        for mut row in self.collector.rows_of(id.0) {
            row.because(kept.cause);
            sum.add(&row);
        }
        (sum.looked > 0.0).then(|| sum.usage())
    }
}

/// Older versions kept points of the GPUs in the journal.
fn move_samples(journal: &mut Journal, store: &mut Store) -> anyhow::Result<()> {
    let samples = journal.samples()?;
    let mut steps: BTreeMap<i64, Sums> = BTreeMap::new();
    let seconds = STEP.as_secs_f64();
    for sample in samples {
        let at = (sample.at_ms / 1000) as i64;
        let at = at - at.rem_euclid(STEP_S);
        let step = steps.entry(at).or_default();
        step.at = at;
        let activity = sample.activity.map(|a| f64::from(a) / 100.0 * seconds);
        let row = Sum {
            looked: seconds,
            used: activity,
            used_s: if activity.is_some() { seconds } else { 0.0 },
            // It was busy time if the GPU did not count its SMs.
            estimate: true,
            mem_claimed: sample.claimed_bytes as f64 * seconds,
            mem_used: sample.used_bytes.map(|b| b as f64 * seconds),
            ..Sum::default()
        };
        step.rows.insert(Key::Gpu(sample.uuid.into()), row);
        let machine = step.rows.entry(Key::Machine).or_default();
        machine.looked = seconds;
        machine.claimed += seconds;
    }
    let steps: Vec<Sums> = steps.into_values().collect();
    store.take_over(&steps)?;
    journal.forget_samples()?;
    Ok(())
}

fn claim_fact(world: &World<'_>, id: ClaimId, part: &ClaimGpu, idle_s: Option<u64>) -> Fact {
    let g = part.gpu as usize;
    let whole = world.gpus.part_of(g);
    let used = part.sm_active.map(|f| f.value / 100.0);
    let busy = part.time_busy.map(|f| f.value / 100.0);
    let in_turns = world.claims.get(&id).is_some_and(|live| {
        let slice = live.record.slices.iter().find(|s| s.uuid == part.uuid);
        slice.is_some_and(|s| s.held == Held::Timeslice)
    });
    // In turns the burst is time, side by side it is SMs.
    let got = if in_turns { busy.or(used) } else { used };
    let none = |f: Option<gshare_proto::Figure>| f.is_none_or(|f| f.value < NOTHING);
    let known = part.sm_active.is_some() || part.time_busy.is_some() || part.mem_used == Some(0);
    // A moving claim is not idle by itself.
    let live = world.claims.get(&id);
    let on_its_way = live.is_some_and(|live| live.record.holding.is_on_its_way());
    let idle = known
        && !on_its_way
        && none(part.sm_active)
        && none(part.time_busy)
        && idle_s.is_none_or(|s| s >= IDLE_AFTER_S);
    Fact {
        claimed: part.sm_request * whole,
        used: used.map(|u| u * whole),
        estimate: part.sm_active.is_some_and(|f| f.estimate),
        busy: busy.map(|b| b * whole),
        mem_claimed: part.mem_request as f64,
        mem_used: part.mem_used.map(|b| b as f64),
        mem_borrowed: part
            .mem_used
            .map(|b| b.saturating_sub(part.mem_request) as f64),
        borrowed: got.map_or(0.0, |got| (got - part.sm_request).max(0.0) * whole),
        idle,
        ..Fact::default()
    }
}

fn face_of(id: ClaimId, record: &ClaimRecord, identity: &Identity) -> ClaimFace {
    let name = record.name.as_deref().or(identity::notebook_name(identity));
    let containers = identity::containers(identity);
    ClaimFace {
        claim: id.0,
        uid: record.uid,
        since_ms: record.granted_ms,
        project: record.project.clone(),
        // Visible to other users.
        what: convert::what_in(&containers, name, &figures::program(&record.command)),
        notebook: (identity.notebook.as_ref())
            .zip(identity::notebook_name(identity))
            .map(|(named, name)| (name.to_owned(), named.source.clone())),
        private: record.is_private(),
    }
}

/// The GPU to which a claim's part counts: a claim that is being restored already has its new one.
fn seat_of(world: &World<'_>, id: ClaimId, part: &ClaimGpu) -> usize {
    let live = world.claims.get(&id);
    let new = live.and_then(|live| match &live.record.holding {
        HoldingRecord::Unparking { to, .. } => {
            let slices = &live.record.slices;
            to.get(slices.iter().position(|s| s.uuid == part.uuid)?)
        }
        _ => None,
    });
    let new = new.and_then(|slice| world.gpus.gpu_index(&slice.uuid));
    new.unwrap_or(part.gpu as usize)
}

/// Points at their places in time before `now`: missing ones are unknown.
fn spread(points: &[(u64, Option<f32>)], now: u64) -> VecDeque<Option<f32>> {
    let place =
        |at: u64| usize::try_from(now.saturating_sub(at) / millis(STEP)).unwrap_or(usize::MAX);
    let Some(longest) = points.iter().map(|(at, _)| place(*at)).max() else {
        return VecDeque::new();
    };
    let mut history: VecDeque<Option<f32>> = vec![None; (longest + 1).min(POINTS)].into();
    for (at, activity) in points {
        let last = history.len() - 1;
        if let Some(slot) = last
            .checked_sub(place(*at))
            .and_then(|i| history.get_mut(i))
        {
            *slot = *activity;
        }
    }
    history
}

impl Gpus {
    /// An instance as a fraction of its GPU; 1 for a GPU.
    pub(crate) fn part_of(&self, g: usize) -> f64 {
        self[g].part.as_ref().map_or(1.0, |p| p.sm.as_f64())
    }

    fn place(&self, viewer: Viewer) -> Place {
        Place {
            viewer,
            gpus: (0..self.len()).map(|g| self.lasting_name(g)).collect(),
            now_ms: unix_ms(),
            ..Place::default()
        }
    }
}

/// Adds the newest look to the points on the screen.
pub(crate) fn add_points(gpus: &mut Gpus) {
    for g in 0..gpus.len() {
        let reading = gpus.reading(g);
        let value = reading.and_then(|r| r.gpm.and_then(|x| x.sm_active).or(r.time_busy));
        let gpu = &mut gpus[g];
        gpu.step.add(value);
        if let Some(activity) = gpu.step.finish() {
            gpu.history.push_back(activity);
            while gpu.history.len() > POINTS {
                gpu.history.pop_front();
            }
        }
    }
}

impl Host {
    fn history_path(&self) -> PathBuf {
        self.paths.state_dir.join("history.db")
    }
}

/// The claims that hold something, with the figures on the screen.
fn claims_seen(world: &World<'_>, features: &Features) -> Vec<Seen> {
    let shown = view::shown(world, features);
    let held = world.claims.iter().map(|(id, live)| {
        let parts = view::claim_parts(world, features, *id, live, &shown);
        Seen {
            id: *id,
            uid: live.record.uid,
            idle_s: parts.idle_s(),
            parts: parts.gpus,
            held_back_ms: turns::turns_view(world, *id, live).map(|t| t.held_back_ms),
        }
    });
    let auto = auto::auto_views(world, features)
        .into_iter()
        .filter_map(|view| {
            Some(Seen {
                id: view.id.parse().ok()?,
                uid: view.uid,
                parts: view.gpus,
                idle_s: None,
                held_back_ms: None,
            })
        });
    held.chain(auto).collect()
}

fn gpu_fact(world: &World<'_>, features: &Features, g: usize) -> Fact {
    let reading = world.gpus.reading(g);
    let gpu = view::gpu_view(world, features, g);
    let part = world.gpus.part_of(g);
    // An instance's use is already in its GPU's.
    let own = world.gpus[g].parent.is_none();
    let percent = |v: f64| v / 100.0 * part;
    Fact {
        claimed: gpu.sm_claimed * part,
        used: gpu.sm_active.filter(|_| own).map(|f| percent(f.value)),
        estimate: gpu.sm_active.is_some_and(|f| f.estimate),
        busy: gpu.time_busy.filter(|_| own).map(|f| percent(f.value)),
        mem_claimed: gpu.mem_claimed as f64,
        mem_used: reading
            .and_then(|r| r.mem_used)
            .filter(|_| own)
            .map(|b| b as f64),
        ..Fact::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_return_to_their_places_and_gaps_are_unknown() {
        let points = [
            (1_000, Some(10.0)),
            (11_000, Some(20.0)),
            (41_000, Some(50.0)),
        ];
        let history: Vec<_> = spread(&points, 45_000).into();
        assert_eq!(history, [Some(10.0), Some(20.0), None, None, Some(50.0)]);
        assert!(spread(&[], 45_000).is_empty());
        assert_eq!(
            spread(&[(0, Some(1.0))], 3_600_000).len(),
            POINTS,
            "never longer than the screen"
        );
    }
}

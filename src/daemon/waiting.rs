//! Those who wait: their numbers, their room, and what a service that is started anew must know of them and of
//! what was told, planned and had before.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gshare_core::machine::{Event, Kept, Memory, Now};
use gshare_core::{ClaimId, Request};

use super::claims::Claims;
use super::journal::{ClaimRecord, QueueChanges};
use super::service::{Asked, Service};
use super::stage;
use super::world::Now as Moment;
use super::world::World;
use crate::clock::unix_ms;

/// What claims have had is written down so often, where nothing else has changed.
const EVERY: Duration = Duration::from_secs(60);
/// Under which name the journal has it.
const KEY: &str = "machine";

/// A moment of the core's clock as the time since 1970.
fn unix_clock(moment: Moment, at: Now) -> Duration {
    Duration::from_millis(moment.unix_at(at))
}

/// What is worth writing down at once: all but what grows while time passes, and what the records of claims have.
fn plain(mut memory: Memory) -> Memory {
    memory.queue.clear();
    memory.past.clear();
    memory.past_at = Now::ZERO;
    memory.quiet_since = Now::ZERO;
    memory.seq = 0;
    memory.claims.retain(|_, s| {
        s.attained_s = 0.0;
        s.levers = gshare_core::machine::lever::Levers::default();
        s.since = Now::ZERO;
        s.seq = 0;
        !s.spared.is_empty() || !s.kept_for.is_empty() || s.failures > 0
    });
    memory
}

impl Service {
    /// The number of a claim that is asked for, and since when it waits: that of before, if it waited when the service
    /// before this one ended.
    pub(crate) fn number_of(&mut self, record: &ClaimRecord) -> (ClaimId, u64) {
        let absent = &mut self.claims.remembered.absent;
        let again = absent.iter().find(|(_, (old, _))| old.asks_as(record));
        if let Some(id) = again.map(|(id, _)| *id)
            && let Some((_, since_ms)) = absent.remove(&id)
            && self.core.queue().any(|(i, _)| i == id)
        {
            return (id, since_ms);
        }
        (self.journal.take_id(), unix_ms())
    }

    /// From here the claim waits, until the core has decided.
    pub(crate) fn put_before_core(
        &mut self,
        id: ClaimId,
        asked: Asked,
        patience: Option<Duration>,
    ) {
        let (uid, project) = (asked.record.uid, asked.record.project.clone());
        let request = Request {
            counted: stage::observes(&self.world(), uid),
            ..asked.request.clone()
        };
        let (sizes, history) = (&mut self.sizes, &self.history);
        sizes.ask_run_time(&self.config, history, id, &asked.record, request.gpus);
        self.claims.waiting.insert(id, asked);
        self.tell_parties(id, uid, &project);
        self.drive(Event::Submit {
            id,
            request,
            patience,
        });
    }

    /// Writes down what a service that is started anew must know, if it is another than before.
    pub(crate) fn remember(&mut self) {
        if !self.claims.remembered.read {
            return;
        }
        let memory = self.core.memory();
        let places: BTreeMap<ClaimId, Kept> =
            memory.queue.iter().map(|k| (k.id, k.clone())).collect();
        let key = plain(memory);
        let now = self.core.now();
        let due = now.saturating_sub(self.claims.remembered.at) >= EVERY;
        let mut changes = queue_changes(&self.world(), &places);
        if key != self.claims.remembered.written || due {
            let moment = self.core.moment();
            let mut memory = self.core.memory().by(|at| unix_clock(moment, at));
            memory.gpus = self.gpus.iter().map(|g| g.uuid.clone()).collect();
            match serde_json::to_string(&memory) {
                Ok(text) => changes.memory = Some((KEY.to_owned(), text)),
                Err(error) => {
                    tracing::error!(%error, "cannot encode the queue for a restart of the service");
                    return;
                }
            }
        }
        if changes.is_empty() {
            return;
        }
        // A full disk costs those who wait their places if the service ends just then, and nothing else.
        if let Err(error) = self.journal.put_queue(&changes) {
            tracing::warn!(%error, "cannot save the queue for a restart of the service");
            return;
        }
        if changes.memory.is_some() {
            self.claims.remembered.written = key;
            self.claims.remembered.at = now;
        }
        self.claims.remembered.waiting = self.claims.who_waits();
        self.claims.remembered.places = places;
    }

    /// Tells the core what the one before it knew, `waited` among it: who waited then. The claims were restored; after a
    /// start of the machine (`rebooted`) there are none, nor is anybody of those who waited.
    pub(crate) fn recall(
        &mut self,
        rebooted: bool,
        waited: Vec<ClaimRecord>,
    ) -> anyhow::Result<()> {
        self.claims.remembered.read = true;
        self.claims.remembered.waiting = waited.iter().map(|record| ClaimId(record.id)).collect();
        let moment = self.core.moment();
        let own_clock = |unix| moment.at_unix(crate::clock::millis(unix));
        let places = self.journal.places()?.into_iter();
        let places = places.map(|kept| kept.by(own_clock));
        let places: Vec<Kept> = places.collect();
        self.claims.remembered.places = places.iter().map(|k| (k.id, k.clone())).collect();
        let memory = match self.journal.meta(KEY)? {
            Some(text) if !rebooted => serde_json::from_str::<Memory>(&text),
            _ => return Ok(()),
        };
        let mut memory = match memory {
            Ok(memory) => memory.by(own_clock),
            Err(error) => {
                tracing::error!(%error, "the saved queue of the previous service is damaged");
                return Ok(());
            }
        };
        let same = memory.gpus.iter().eq(self.gpus.iter().map(|g| &g.uuid));
        memory.queue = places;
        if !same {
            // Numbers of GPUs mean others now.
            memory.plans.clear();
            memory.queue.clear();
        }
        let mut waited: BTreeMap<ClaimId, ClaimRecord> = waited
            .into_iter()
            .map(|record| (ClaimId(record.id), record))
            .collect();
        // A caller whose client is known can come back; so can a claim that is parked, and one for later.
        memory.queue.retain(|kept| {
            waited.contains_key(&kept.id)
                || self.core.holding(kept.id).is_some()
                || self.claims.is_without(kept.id)
        });
        for kept in &memory.queue {
            if let Some(waits) = waited.remove(&kept.id) {
                let since_ms = self.core.moment().unix_at(kept.since);
                self.tell_parties(kept.id, waits.uid, &waits.project);
                self.claims
                    .remembered
                    .absent
                    .insert(kept.id, (waits, since_ms));
            }
        }
        self.claims.remembered.found = true;
        self.drive(Event::Recall(Box::new(memory)));
        Ok(())
    }
}

/// What the journal does not have yet of those who wait and of their order.
fn queue_changes(world: &World<'_>, places: &BTreeMap<ClaimId, Kept>) -> QueueChanges {
    let (known, now) = (&world.claims.remembered.waiting, world.claims.who_waits());
    let record = |id: &ClaimId| {
        let asked = world.claims.waiting.get(id).map(|asked| &asked.record);
        let absent = world
            .claims
            .remembered
            .absent
            .get(id)
            .map(|(record, _)| record);
        asked.or(absent).cloned()
    };
    let old = &world.claims.remembered.places;
    let moment = world.now;
    let changed = places.iter().filter(|(id, kept)| old.get(id) != Some(kept));
    let written = changed.map(|(_, kept)| kept.clone().by(|at| unix_clock(moment, at)));
    QueueChanges {
        waiting: now.difference(known).filter_map(record).collect(),
        withdrawn: known.difference(&now).map(|id| id.0).collect(),
        places: written.collect(),
        gone: old
            .keys()
            .filter(|id| !places.contains_key(id))
            .map(|id| id.0)
            .collect(),
        memory: None,
    }
}

impl Claims {
    /// Whether it is known from the service before what owners have had.
    pub(crate) fn knows_the_past(&self) -> bool {
        self.remembered.found
    }

    /// Those who wait for a first grant; a claim for later is journaled as one that is held.
    fn who_waits(&self) -> BTreeSet<ClaimId> {
        let waiting = self.waiting.keys().chain(self.remembered.absent.keys());
        waiting
            .filter(|id| !self.contains_key(id))
            .copied()
            .collect()
    }
}

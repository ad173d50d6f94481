//! The queue in the journal: numbers of waiting claims, and the state that a restarted service needs about them,
//! plans and past use.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gshare_core::machine::{Event, Kept, Memory, Now};
use gshare_core::{ClaimId, Machine, Request};

use super::claims::{Asked, Claims};
use super::core::Core;
use super::gpu::Gpus;
use super::journal::{ClaimRecord, Journal, JournalError, QueueChanges};
use super::world::{Now as Moment, World};
use super::{slurm, stage};
use crate::clock::unix_ms;

/// Interval for saving past use if nothing else changes.
const EVERY: Duration = Duration::from_secs(60);
/// Its key in the journal.
const KEY: &str = "machine";

/// A moment of the core's clock as the time since 1970.
fn unix_clock(moment: Moment, at: Now) -> Duration {
    Duration::from_millis(moment.unix_at(at))
}

/// State that must be saved at once: all except what grows with time, and what claims' records contain.
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

/// The request of a claim that is about to wait, for the core.
pub(crate) fn event(
    world: &World<'_>,
    id: ClaimId,
    asked: &Asked,
    patience: Option<Duration>,
) -> Event {
    let request = Request {
        counted: stage::observes(world, asked.record.uid),
        ..asked.request.clone()
    };
    match slurm::given(world, asked) {
        Some(gpus) => Event::OnBehalf { id, request, gpus },
        None => Event::Submit {
            id,
            request,
            patience,
        },
    }
}

impl Claims {
    /// The number of a requested claim, and since when it waits: the earlier values if it already waited when the
    /// previous service ended.
    pub(crate) fn number_of(
        &mut self,
        core: &Machine,
        journal: &mut Journal,
        record: &ClaimRecord,
    ) -> (ClaimId, u64) {
        let absent = &mut self.remembered.absent;
        let again = absent.iter().find(|(_, (old, _))| old.asks_as(record));
        if let Some(id) = again.map(|(id, _)| *id)
            && let Some((_, since_ms)) = absent.remove(&id)
            && core.queue().any(|(i, _)| i == id)
        {
            return (id, since_ms);
        }
        (journal.take_id(), unix_ms())
    }

    /// Saves what a restarted service needs, if it has changed.
    pub(crate) fn remember(&mut self, core: &Core, gpus: &Gpus, journal: &mut Journal) {
        if !self.remembered.read {
            return;
        }
        let memory = core.memory();
        let places: BTreeMap<ClaimId, Kept> =
            memory.queue.iter().map(|k| (k.id, k.clone())).collect();
        let key = plain(memory);
        let now = core.now();
        let due = now.saturating_sub(self.remembered.at) >= EVERY;
        let mut changes = queue_changes(self, core.moment(), &places);
        if key != self.remembered.written || due {
            let moment = core.moment();
            let mut memory = core.memory().by(|at| unix_clock(moment, at));
            memory.gpus = gpus.iter().map(|g| g.uuid.clone()).collect();
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
        // With a full disk, waiting claims lose their places if the service ends just then, and nothing else.
        if let Err(error) = journal.put_queue(&changes) {
            tracing::warn!(%error, "cannot save the queue for a restart of the service");
            return;
        }
        if changes.memory.is_some() {
            self.remembered.written = key;
            self.remembered.at = now;
        }
        self.remembered.waiting = self.who_waits();
        self.remembered.places = places;
    }

    /// What the core needs from the previous one, including the claims that `waited` then. Claims were restored
    /// before; after a boot (`rebooted`) there are none, and no waiting ones either.
    pub(crate) fn recall(
        &mut self,
        core: &Core,
        gpus: &Gpus,
        journal: &Journal,
        rebooted: bool,
        waited: Vec<ClaimRecord>,
    ) -> Result<Option<Memory>, JournalError> {
        self.remembered.read = true;
        self.remembered.waiting = waited.iter().map(|record| ClaimId(record.id)).collect();
        let moment = core.moment();
        let own_clock = |unix| moment.at_unix(crate::clock::millis(unix));
        let places = journal.places()?.into_iter();
        let places = places.map(|kept| kept.by(own_clock));
        let places: Vec<Kept> = places.collect();
        self.remembered.places = places.iter().map(|k| (k.id, k.clone())).collect();
        let memory = match journal.meta(KEY)? {
            Some(text) if !rebooted => serde_json::from_str::<Memory>(&text),
            _ => return Ok(None),
        };
        let mut memory = match memory {
            Ok(memory) => memory.by(own_clock),
            Err(error) => {
                tracing::error!(%error, "the saved queue of the previous service is damaged");
                return Ok(None);
            }
        };
        let same = memory.gpus.iter().eq(gpus.iter().map(|g| &g.uuid));
        memory.queue = places;
        if !same {
            // Numbers of GPUs may have changed.
            memory.plans.clear();
            memory.queue.clear();
        }
        let mut waited: BTreeMap<ClaimId, ClaimRecord> = waited
            .into_iter()
            .map(|record| (ClaimId(record.id), record))
            .collect();
        // A caller with a known client can come back; so can an offloaded claim, and a lazy one.
        memory.queue.retain(|kept| {
            waited.contains_key(&kept.id)
                || core.holding(kept.id).is_some()
                || self.is_without(kept.id)
        });
        for kept in &memory.queue {
            if let Some(waits) = waited.remove(&kept.id) {
                let since_ms = core.moment().unix_at(kept.since);
                self.remembered.absent.insert(kept.id, (waits, since_ms));
            }
        }
        self.remembered.found = true;
        Ok(Some(memory))
    }
}

/// Changes of the queue that are not journaled yet.
fn queue_changes(
    claims: &Claims,
    moment: Moment,
    places: &BTreeMap<ClaimId, Kept>,
) -> QueueChanges {
    let (known, now) = (&claims.remembered.waiting, claims.who_waits());
    let record = |id: &ClaimId| {
        let asked = claims.waiting.get(id).map(|asked| &asked.record);
        let absent = claims.remembered.absent.get(id).map(|(record, _)| record);
        asked.or(absent).cloned()
    };
    let old = &claims.remembered.places;
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
    /// Whether owners' past use is known from the previous service.
    pub(crate) fn knows_the_past(&self) -> bool {
        self.remembered.found
    }

    /// Claims that wait for a first grant; a lazy claim is journaled as held.
    fn who_waits(&self) -> BTreeSet<ClaimId> {
        let waiting = self.waiting.keys().chain(self.remembered.absent.keys());
        waiting
            .filter(|id| !self.contains_key(id))
            .copied()
            .collect()
    }
}

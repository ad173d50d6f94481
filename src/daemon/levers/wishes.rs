//! What people and programs want of claims: offload, restore, suspend, resume, move; and calls that wait.

use std::time::{Duration, Instant};

use gshare_abi::wire::{Answer, Want};
use gshare_core::machine::Event;
use gshare_core::machine::lever::Wish;
use gshare_core::{ClaimId, Reason};
use gshare_proto::{ErrorCode, LeverWish, Queued, Reply, WireError};

use crate::daemon::claims::Claims;
use crate::daemon::connection::Sender;
use crate::daemon::engine::LeverState;
use crate::daemon::features::Features;
use crate::daemon::gpu::Gpus;
use crate::daemon::journal::HoldingRecord;
use crate::daemon::levers::facts;
use crate::daemon::peer::Peer;
use crate::daemon::service::{Live, Service};
use crate::daemon::world::World;
use crate::daemon::{ending, members, reclaim, service};

/// Calls that wait say so every second (the shim's `detach`); after this much silence they do not wait any more.
const SILENT: Duration = Duration::from_secs(5);

impl Service {
    /// A person wants something of a claim; the answer comes when it is done.
    pub(crate) fn wish_call(&mut self, peer: &Peer, word: &str, wish: LeverWish, out: &Sender) {
        let verb = wish.name();
        let id = match own_granted(&self.world(), peer, word, verb) {
            Ok(id) => id,
            Err(error) => return out.error(error),
        };
        let done = |message: String| out.reply(&Reply::Done { message });
        let holding = self.claims.get(&id).map(|l| l.record.holding.clone());
        let wish = match (wish, holding) {
            (LeverWish::Offload, Some(HoldingRecord::Parked(parked))) if !parked.frozen => {
                return done(format!("{id} is already offloaded"));
            }
            (LeverWish::Suspend, Some(HoldingRecord::Parked(parked))) if parked.frozen => {
                return done(format!("{id} is already suspended"));
            }
            (wish @ (LeverWish::Offload | LeverWish::Suspend), Some(HoldingRecord::Parked(_))) => {
                return done(self.refreeze(id, wish == LeverWish::Suspend));
            }
            (LeverWish::Restore | LeverWish::Resume, Some(HoldingRecord::Here)) => {
                return done(format!("{id} is on its GPU"));
            }
            (LeverWish::Offload, _) => Wish::Offload,
            (LeverWish::Suspend, _) => Wish::Suspend,
            (LeverWish::Restore, _) => Wish::Restore,
            (LeverWish::Resume, _) => Wish::Resume,
        };
        if matches!(wish, Wish::Offload | Wish::Suspend)
            && let Err(why) = facts::may_park(&self.world(), &self.levers, id)
        {
            let text = format!("{id} cannot be {verb}ed: {why}");
            return out.error(WireError::new(ErrorCode::NotAvailable, text));
        }
        if matches!(wish, Wish::Offload | Wish::Suspend) && self.gpus.refuses_pytorch() {
            let release = self.gpus.driver_version();
            let text = format!(
                "driver release {release} cannot checkpoint most programs, including PyTorch; if it refuses, {id} \
                 keeps running"
            );
            self.tell_owner(id, &text);
        }
        if wish == Wish::Suspend && self.claims.get(&id).is_some_and(|l| l.cgroup.is_none()) {
            let text = format!("{id} cannot be suspended: there are no cgroups to freeze it in");
            let error = WireError::new(ErrorCode::NotAvailable, text);
            return out.error(error.with_hint(format!("gshare offload {id} frees its GPU memory")));
        }
        // What a person asked for stands, whether a call waits or not.
        self.levers.wanted.remove(&id);
        let waited = self.core.reason(id).is_some();
        self.levers.waiters.entry(id).or_default().push(out.clone());
        self.drive(Event::Wish { id, wish });
        if waited {
            // Where it stands in the queue has been told, though not here.
            let queued = queued_lever(&self.world(), &self.features, id);
            queued
                .into_iter()
                .for_each(|q| out.reply(&Reply::Queued(q)));
        }
        self.screens.touch();
    }

    /// A claim whose memory is in the host anyway is frozen, or not any more.
    fn refreeze(&mut self, id: ClaimId, freeze: bool) -> String {
        let holding = self.claims.get(&id).map(|l| l.record.holding.clone());
        let Some(HoldingRecord::Parked(mut parked)) = holding else {
            return String::new();
        };
        parked.frozen = freeze;
        self.claims.set_frozen(id, freeze);
        self.claims
            .keep_holding(&mut self.journal, id, HoldingRecord::Parked(parked));
        let wish = if freeze { Wish::Suspend } else { Wish::Offload };
        self.drive(Event::Wish { id, wish });
        self.screens.touch();
        match freeze {
            true => format!("{id} is suspended"),
            false => format!("{id} is offloaded; its processes run again"),
        }
    }

    /// A person wants a claim on other GPUs.
    pub(crate) fn move_call(
        &mut self,
        peer: &Peer,
        word: &str,
        gpus: &[impl AsRef<str>],
        out: &Sender,
    ) {
        match asked_move(
            &self.world(),
            &self.features,
            &self.levers,
            peer,
            word,
            gpus,
        ) {
            Ok((id, gpus)) => {
                self.levers.waiters.entry(id).or_default().push(out.clone());
                self.drive(Event::MoveTo { id, gpus });
                self.screens.touch();
            }
            Err(error) => out.error(error),
        }
    }

    /// A member of an offloaded claim needs its memory.
    pub(super) fn member_wants(&mut self, peer: &Peer, want: &Want, out: &Sender) {
        let process = peer.process;
        let id = process
            .and_then(|p| members::claim_of(&self.world(), p.pid))
            .or_else(|| members::claim_by_hint(&self.world(), peer, want.hint));
        let Some(id) = id.filter(|id| self.claims.contains_key(id)) else {
            let why = "the process belongs to no claim".to_owned();
            return out.refuse_member("no_claim", why);
        };
        // Not where a person has asked for it already.
        let asked = self.core.reason(id).is_some();
        if !asked || self.levers.wanted.contains_key(&id) {
            self.levers.wanted.insert(id, Instant::now());
        }
        self.drive(Event::Wanted { id });
        let holding = self.claims.get(&id).map(|l| &l.record.holding);
        let text = match holding {
            Some(HoldingRecord::Unparking { .. }) => "it is being restored".to_owned(),
            Some(HoldingRecord::Parked(_)) => match self.core.reason(id) {
                Some(reason) => {
                    let start = reclaim::start_known(&self.world(), &self.features, id, reason);
                    reclaim::waits_and_start(
                        &self.world(),
                        &self.features,
                        id,
                        reason,
                        start.as_deref(),
                    )
                }
                None => "there is no room on a GPU".to_owned(),
            },
            _ => String::new(),
        };
        out.member(&Answer::Wanted { message: text });
        self.screens.touch();
    }

    /// A lever has done what it was to do.
    pub(super) fn tell_lever(&mut self, id: ClaimId, what: &str) {
        let text = format!("{id} {what}");
        if self.levers.waiters.contains_key(&id) {
            self.notice(Some(id), text.clone());
        } else {
            // It was not asked for on a command line.
            self.tell_owner(id, &text);
        }
        self.levers.answer(id, Ok(&text));
    }
}

impl LeverState {
    /// Claims whose calls do not wait any more, because they were interrupted, are not brought back.
    fn forget(&mut self, claims: &Claims) -> impl Iterator<Item = Event> {
        let parked = |live: &Live| matches!(live.record.holding, HoldingRecord::Parked(_));
        self.wanted
            .retain(|id, _| claims.get(id).is_some_and(parked));
        let silent = self.wanted.extract_if(.., |_, at| at.elapsed() >= SILENT);
        silent.map(|(id, _)| Event::Unwanted { id })
    }

    /// A parked claim waits for room.
    pub(crate) fn waits(
        &self,
        world: &World<'_>,
        features: &Features,
        (id, position): (ClaimId, usize),
        reason: &Reason,
    ) {
        let queued = lever_place(world, features, id, position, reason);
        for out in self.waiters.get(&id).into_iter().flatten() {
            out.reply(&Reply::Queued(queued.clone()));
        }
    }

    pub(crate) fn answer(&mut self, id: ClaimId, result: Result<&str, &str>) {
        for out in self.waiters.remove(&id).unwrap_or_default() {
            match result {
                Ok(message) => out.reply(&Reply::Done {
                    message: message.to_owned(),
                }),
                Err(why) => {
                    let text = format!("{id}: {why}");
                    out.error(WireError::new(ErrorCode::NotAvailable, text));
                }
            }
        }
    }

    /// For the core: what has changed in what can be done to claims.
    pub(crate) fn look(&mut self, world: &World<'_>, features: &Features) -> Vec<Event> {
        let ended = |id: &ClaimId| !world.claims.contains_key(id);
        self.unable.retain(|id, _| !ended(id));
        let waiters: Vec<ClaimId> = self.waiters.keys().copied().filter(ended).collect();
        for id in waiters {
            self.answer(id, Err("the claim has ended"));
        }
        let mut events: Vec<Event> = self.forget(world.claims).collect();
        // What was known before the engine was started anew is true until it says something else.
        if self.usable.is_some() {
            events.extend(world.claims.keys().filter_map(|&id| {
                let known = world.machine.levers(id)?;
                let levers = facts::levers_of(world, features, self, id);
                (*known != levers).then_some(Event::Levers { id, levers })
            }));
        }
        events
    }
}

fn own_granted(
    world: &World<'_>,
    peer: &Peer,
    word: &str,
    verb: &str,
) -> Result<ClaimId, WireError> {
    let id = service::find(world, peer, word)?;
    ending::may(world, peer, id, verb)?;
    let unavailable = |text| Err(WireError::new(ErrorCode::NotAvailable, text));
    match world.claims.get(&id) {
        None => unavailable(format!("{id} still waits: it has nothing to {verb}")),
        Some(live) if live.ending.is_some() => unavailable(format!("{id} ends")),
        Some(_) => Ok(id),
    }
}

impl Gpus {
    /// A GPU by index, UUID or the start of one.
    fn gpu_named(&self, word: &str) -> Result<usize, String> {
        if let Ok(index) = word.parse::<usize>() {
            return match self.get(index) {
                Some(_) => Ok(index),
                None => Err(format!("there is no GPU {index}")),
            };
        }
        let mut fits = (0..self.len()).filter(|g| self[*g].uuid.starts_with(word));
        match (fits.next(), fits.next()) {
            (Some(gpu), None) => Ok(gpu),
            (Some(_), Some(_)) => Err(format!("several GPUs begin with `{word}`")),
            (None, _) => Err(format!("there is no GPU `{word}`")),
        }
    }
}

fn asked_move(
    world: &World<'_>,
    features: &Features,
    levers: &LeverState,
    peer: &Peer,
    word: &str,
    gpus: &[impl AsRef<str>],
) -> Result<(ClaimId, Vec<usize>), WireError> {
    let id = own_granted(world, peer, word, "move")?;
    let usage = |text: String| WireError::new(ErrorCode::Usage, text);
    let mut found = Vec::new();
    for named in gpus {
        found.push(world.gpus.gpu_named(named.as_ref()).map_err(usage)?);
    }
    let has = world.claims.get(&id).map_or(0, |l| l.record.slices.len());
    if found.len() != has {
        let text = format!("{id} has {has} GPU(s); name as many with --gpu");
        return Err(usage(text));
    }
    facts::levers_of(world, features, levers, id)
        .movable
        .map_err(|why| {
            let text = format!("{id} cannot be moved: {why}");
            WireError::new(ErrorCode::NotAvailable, text)
        })?;
    Ok((id, found))
}

fn lever_place(
    world: &World<'_>,
    features: &Features,
    id: ClaimId,
    position: usize,
    reason: &Reason,
) -> Queued {
    let start = reclaim::start_known(world, features, id, reason);
    Queued {
        id: id.to_string(),
        position: u32::try_from(position).unwrap_or(u32::MAX),
        reason: reclaim::waits_and_start(world, features, id, reason, start.as_deref()),
        would_start: None,
    }
}

/// Where a parked claim stands that waits to come back.
fn queued_lever(world: &World<'_>, features: &Features, id: ClaimId) -> Option<Queued> {
    let (position, reason) = world.machine.place(id)?;
    Some(lever_place(world, features, id, position, reason))
}

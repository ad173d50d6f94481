//! Requests by users and programs: offload, restore, suspend, resume, move; and calls that wait.

use std::mem::take;
use std::time::{Duration, Instant};

use gshare_abi::wire::Want;
use gshare_core::machine::Event;
use gshare_core::machine::lever::{ParkedBy, Wish};
use gshare_core::{ClaimId, Reason};
use gshare_proto::{ErrorCode, LeverWish, Queued, Reply, WireError, messages};

use crate::daemon::claims::Claims;
use crate::daemon::command::{Command, LeverCommand};
use crate::daemon::connection::Sender;
use crate::daemon::engine::LeverState;
use crate::daemon::features::Features;
use crate::daemon::find::find;
use crate::daemon::gpu::Gpus;
use crate::daemon::journal::{HoldingRecord, ParkedRecord};
use crate::daemon::levers::facts;
use crate::daemon::live::Live;
use crate::daemon::order::Order;
use crate::daemon::peer::Peer;
use crate::daemon::whose;
use crate::daemon::world::World;
use crate::daemon::{ending, members, reclaim};

/// Waiting calls report every second (`detach` of the library); after this much silence they no longer wait.
const SILENT: Duration = Duration::from_secs(5);

/// Handles a user's request; the answer comes when it is done.
pub(crate) fn wish(
    world: &World<'_>,
    levers: &LeverState,
    peer: &Peer,
    (word, wish): (&str, LeverWish),
    out: &Sender,
) -> Result<Order, WireError> {
    let verb = wish.name();
    let id = own_granted(world, peer, word, verb)?;
    let live = world.claims.get(&id);
    let done = |message: String| Ok(Order::then(Vec::new(), |_, _| Ok(Reply::Done { message })));
    let wish = match (wish, live.map(|l| &l.record.holding)) {
        (LeverWish::Offload, Some(HoldingRecord::Parked(parked))) if !parked.frozen => {
            return done(format!("{id} is already offloaded"));
        }
        (LeverWish::Suspend, Some(HoldingRecord::Parked(parked))) if parked.frozen => {
            return done(format!("{id} is already suspended"));
        }
        (wish @ (LeverWish::Offload | LeverWish::Suspend), Some(HoldingRecord::Parked(parked))) => {
            return Ok(refreeze(id, parked.clone(), wish == LeverWish::Suspend));
        }
        (LeverWish::Restore | LeverWish::Resume, Some(HoldingRecord::Here)) => {
            return done(messages::on_its_gpu(id));
        }
        (LeverWish::Offload, _) => Wish::Offload,
        (LeverWish::Suspend, _) => Wish::Suspend,
        (LeverWish::Restore, _) => Wish::Restore,
        (LeverWish::Resume, _) => Wish::Resume,
    };
    let leaves = matches!(wish, Wish::Offload | Wish::Suspend);
    if leaves && let Err(why) = facts::may_park(world, levers, id) {
        let text = format!("{id} cannot be {verb}ed: {why}");
        return Err(WireError::new(ErrorCode::NotAvailable, text));
    }
    let mut then = Vec::new();
    if leaves && world.gpus.refuses_pytorch() {
        let release = world.gpus.driver_version();
        let text = format!(
            "driver release {release} cannot checkpoint most programs, including PyTorch; if the checkpoint fails, \
             {id} keeps running"
        );
        then.push(Command::TellOwner { id, text });
    }
    if wish == Wish::Suspend && live.is_some_and(|l| l.cgroup.is_none()) {
        let text = format!("{id} cannot be suspended: there are no cgroups to freeze it in");
        let error = WireError::new(ErrorCode::NotAvailable, text);
        return Err(error.with_hint(format!("gshare offload {id} frees its GPU memory")));
    }
    then.push(Command::Levers(LeverCommand::AwaitLever(id, out.clone())));
    then.push(Command::Core(Event::Wish { id, wish }));
    // The place in the queue was reported elsewhere.
    let waited = world.machine.reason(id).is_some();
    then.extend(waited.then(|| Command::Levers(LeverCommand::TellQueued(id, out.clone()))));
    Ok(Order {
        then,
        ..Order::default()
    })
}

/// Freezes a claim whose memory is already in the host, or lets it run.
fn refreeze(id: ClaimId, parked: ParkedRecord, freeze: bool) -> Order {
    let parked = ParkedRecord {
        frozen: freeze,
        ..parked
    };
    let wish = if freeze { Wish::Suspend } else { Wish::Offload };
    let message = match freeze {
        true => format!("{id} is suspended"),
        false => format!("{id} is offloaded; its processes run again"),
    };
    let then = vec![
        Command::Levers(LeverCommand::Freeze(id, freeze)),
        Command::Levers(LeverCommand::KeepHolding(
            id,
            Box::new(HoldingRecord::Parked(parked)),
        )),
        Command::Core(Event::Wish { id, wish }),
    ];
    Order::then(then, |_, _| Ok(Reply::Done { message }))
}

/// Handles a user's request to move a claim.
pub(crate) fn move_to(
    world: &World<'_>,
    (features, levers): (&Features, &LeverState),
    peer: &Peer,
    word: &str,
    gpus: &[impl AsRef<str>],
    out: &Sender,
) -> Result<Order, WireError> {
    let (id, gpus) = asked_move(world, features, levers, peer, word, gpus)?;
    let then = vec![
        Command::Levers(LeverCommand::AwaitLever(id, out.clone())),
        Command::Core(Event::MoveTo { id, gpus }),
    ];
    Ok(Order {
        then,
        ..Order::default()
    })
}

/// A member of an offloaded claim needs its memory.
pub(crate) fn wants(world: &World<'_>, peer: &Peer, want: &Want, out: &Sender) -> Vec<Command> {
    let process = peer.process;
    let id = process
        .and_then(|p| whose::claim_of(world, p.pid))
        .or_else(|| members::claim_by_hint(world, peer, want.hint));
    let Some(id) = id.filter(|id| world.claims.contains_key(id)) else {
        let why = "the process is not in a claim".to_owned();
        out.refuse_member("no_claim", why);
        return Vec::new();
    };
    vec![
        Command::Levers(LeverCommand::Wanted {
            id,
            // Not if a user has already requested it.
            asked: world.machine.reason(id).is_some(),
        }),
        Command::Core(Event::Wanted { id }),
        Command::Levers(LeverCommand::AnswerWanted(id, out.clone())),
        Command::Publish,
    ]
}

/// The answer to a member that needs the memory of its claim.
pub(crate) fn wanted_text(world: &World<'_>, features: &Features, id: ClaimId) -> String {
    match world.claims.get(&id).map(|l| &l.record.holding) {
        Some(HoldingRecord::Unparking { .. }) => "it is being restored".to_owned(),
        Some(HoldingRecord::Parked(_)) => match world.machine.reason(id) {
            Some(reason) => {
                let start = reclaim::start_known(world, features, id, reason);
                reclaim::waits_and_start(world, features, id, reason, start.as_deref())
            }
            None => "there is no room on a GPU".to_owned(),
        },
        _ => String::new(),
    }
}

impl LeverState {
    /// A caller waits for the result. The request stands even if no call waits.
    pub(crate) fn wait(&mut self, id: ClaimId, out: Sender) {
        let lever = self.claims.entry(id).or_default();
        lever.wanted = None;
        lever.waiters.push(out);
    }

    /// Whether a caller waits for it.
    pub(crate) fn is_awaited(&self, id: ClaimId) -> bool {
        let lever = self.claims.get(&id);
        lever.is_some_and(|lever| !lever.waiters.is_empty())
    }

    /// A call of an offloaded claim waits for its memory; a user may have requested that already.
    pub(crate) fn wanted(&mut self, id: ClaimId, asked: bool) {
        let lever = self.claims.entry(id).or_default();
        if !asked || lever.wanted.is_some() {
            lever.wanted = Some(Instant::now());
        }
    }

    /// Cancels the restore of claims whose calls no longer wait because they were interrupted.
    fn forget(&mut self, claims: &Claims) -> Vec<Event> {
        let parked = |live: &Live| matches!(live.record.holding, HoldingRecord::Parked(_));
        let mut unwanted = Vec::new();
        for (id, lever) in &mut self.claims {
            if !claims.get(id).is_some_and(parked) {
                lever.wanted = None;
            }
            if lever.wanted.take_if(|at| at.elapsed() >= SILENT).is_some() {
                unwanted.push(Event::Unwanted { id: *id });
            }
        }
        unwanted
    }

    /// Queues an offloaded claim for room.
    pub(crate) fn waits(
        &self,
        world: &World<'_>,
        features: &Features,
        (id, position): (ClaimId, usize),
        reason: &Reason,
    ) {
        let queued = lever_place(world, features, id, position, reason);
        let lever = self.claims.get(&id).into_iter();
        for out in lever.flat_map(|lever| &lever.waiters) {
            out.reply(&Reply::Queued(queued.clone()));
        }
    }

    pub(crate) fn answer(&mut self, id: ClaimId, result: Result<&str, &str>) {
        let waiters = self
            .claims
            .get_mut(&id)
            .map(|lever| take(&mut lever.waiters));
        for out in waiters.unwrap_or_default() {
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

    /// Changes in what can be done to claims, for the core.
    pub(crate) fn look(&mut self, world: &World<'_>, features: &Features) -> Vec<Event> {
        self.look_for_stopped(world);
        let known = self.claims.keys().copied();
        let ended: Vec<ClaimId> = known.filter(|id| !world.claims.contains_key(id)).collect();
        for id in ended {
            self.answer(id, Err("the claim has ended"));
            self.claims.remove(&id);
        }
        let mut events = self.forget(world.claims);
        // What was known before the engine restarted holds until it reports otherwise.
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
    let id = find(world, peer, word)?;
    ending::may(world, peer, id, verb)?;
    let unavailable = |text| Err(WireError::new(ErrorCode::NotAvailable, text));
    match world.claims.get(&id) {
        None => unavailable(format!("{id} still waits: it has nothing to {verb}")),
        Some(live) if live.ending.is_some() => unavailable(format!("{id} ends")),
        Some(live) if live.record.holding.is_by(ParkedBy::Scheduler) => unavailable(format!(
            "Slurm has suspended the job of {id}: after scontrol resume, its next GPU call brings its memory back"
        )),
        Some(_) => Ok(id),
    }
}

/// A GPU by index, UUID or prefix of one.
fn gpu_named(gpus: &Gpus, word: &str) -> Result<usize, String> {
    if let Ok(index) = word.parse::<usize>() {
        let known = gpus.get(index).map(|_| index);
        return known.ok_or_else(|| messages::no_gpu(index));
    }
    let mut fits = (0..gpus.len()).filter(|g| gpus[*g].uuid.starts_with(word));
    match (fits.next(), fits.next()) {
        (Some(gpu), None) => Ok(gpu),
        (Some(_), Some(_)) => Err(messages::several_gpus(word)),
        (None, _) => Err(messages::no_gpu(word)),
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
        found.push(gpu_named(world.gpus, named.as_ref()).map_err(usage)?);
    }
    let has = world.claims.get(&id).map_or(0, |l| l.record.slices.len());
    if found.len() != has {
        let text = format!("{id} has {has} GPU(s); give --gpu the same number of GPUs");
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

/// The place in the queue of an offloaded claim that waits to be restored.
pub(crate) fn queued(world: &World<'_>, features: &Features, id: ClaimId) -> Option<Queued> {
    let (position, reason) = world.machine.place(id)?;
    Some(lever_place(world, features, id, position, reason))
}

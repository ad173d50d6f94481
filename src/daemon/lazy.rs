//! Claims that hold nothing until a program needs the GPU: `gshare claim --lazy`, and the kernels of notebooks.
//!
//! Such a claim is journaled and has its cgroup, which opens no GPU. The first process that initialises the driver
//! asks the core for it; its registration, and those of all that follow, are answered when the GPU is there. Until
//! then they are told their place.

pub(crate) mod places;

use std::time::{Duration, Instant};

use gshare_abi::wire::{Answer, Register};
use gshare_core::machine::{Event, Now};
use gshare_core::{ClaimId, Reason, Slice};
use gshare_proto::{ClaimSpec, ErrorCode, WireError, messages};

use super::act::UNREAD_PLACES;
use super::claims::Claims;
use super::connection::{ConnId, Sender};
use super::fact::Fact;
use super::features::Features;
use super::journal::ClaimRecord;
use super::live::Wanting;
use super::peer::Peer;
use super::service::{Asked, Live, Service};
use super::tracks::Sizes;
use super::world::{World, world_of};
use super::{convert, grant, reclaim, stage, story};
use crate::clock::unix_ms;
use crate::daemon::command::Command;

/// So long after one line the library of those who wait prints another.
const HEARD: Duration = Duration::from_secs(3);

/// Registrations of one process that wait at a time.
const COPIES: usize = 16;

impl Service {
    /// A claim for later: everything but GPUs.
    pub(crate) fn lay_by(
        &mut self,
        id: ClaimId,
        peer: &Peer,
        spec: ClaimSpec,
        mut record: ClaimRecord,
        out: &Sender,
    ) {
        record.granted_ms = unix_ms();
        record.strict = self.host.driver.strict.on;
        record.lazy = Some(Box::new(spec));
        match self.try_lay_by(id, peer, record) {
            Ok(()) => {
                let text = "made: holds no GPU until its first CUDA call";
                story::write_down(&world_of!(self), &mut self.journal, id, text);
                out.reply(&grant::granted(&self.world(), id));
            }
            Err(error) => {
                let text = format!("{id} could not be made: {error:#}");
                out.error(WireError::new(ErrorCode::Internal, text.clone()));
                self.notice(Some(id), text);
                self.dismantle(id, "could not be made");
            }
        }
        self.screens.touch();
    }

    fn try_lay_by(&mut self, id: ClaimId, peer: &Peer, record: ClaimRecord) -> anyhow::Result<()> {
        self.journal.put(&record)?;
        self.claims.insert(id, Live::new(record));
        self.claims.make_cgroup(&self.host.fences, id)?;
        self.open_gpus(id)?;
        self.claims.adopt_command(&self.host, id, peer)
    }

    /// The claim of a notebook's kernel that is started anew takes the new process as its command.
    pub(crate) fn kernel_again(&mut self, peer: &Peer, spec: &ClaimSpec, out: &Sender) -> bool {
        let Some(kernel) = &spec.kernel else {
            return false;
        };
        let of_it = |live: &Live| {
            let known = live.record.kernel.as_ref();
            live.record.uid == peer.uid
                && live.ending.is_none()
                && known.is_some_and(|k| k.id == kernel.id)
        };
        let Some((&id, live)) = self.claims.iter().find(|(_, live)| of_it(live)) else {
            return false;
        };
        let (mut record, alive) = (live.record.clone(), live.command_alive);
        record.process = peer.process.map(convert::record);
        record.kernel = Some(kernel.clone());
        let adopted = self.claims.adopt_command(&self.host, id, peer);
        let adopted = adopted.and_then(|()| Ok(self.journal.put(&record)?));
        let live = self.claims.get_mut(&id);
        match adopted {
            Ok(()) => {
                if let Some(live) = live {
                    live.record = record;
                }
                let text = "its kernel was started again";
                story::write_down(&world_of!(self), &mut self.journal, id, text);
                out.reply(&grant::granted(&self.world(), id));
            }
            Err(error) => {
                // It waits on for one that can be put into it.
                live.into_iter().for_each(|l| l.command_alive = alive);
                let text = format!(
                    "{id}: could not put its restarted kernel back into the claim: {error:#}"
                );
                out.error(WireError::new(ErrorCode::Internal, text));
            }
        }
        self.screens.touch();
        true
    }

    /// A process needs the GPU of a claim that has none.
    pub(crate) fn want(&mut self, id: ClaimId, peer: &Peer, register: &Register, out: &Sender) {
        let Some(live) = self.claims.get_mut(&id) else {
            return;
        };
        // A process registers once, its copies of the library a few times: more would only be answered at once later.
        let of = |w: &&Wanting| w.peer.process == peer.process;
        let own: Vec<&Wanting> = live.wanting.iter().filter(of).collect();
        if own.iter().any(|w| w.peer.conn == peer.conn) {
            return;
        }
        if own.len() >= COPIES {
            let why =
                format!("this process already has {COPIES} requests waiting for the GPU of {id}");
            return out.refuse_member("not_available", why);
        }
        live.wanting.push(Wanting {
            peer: peer.clone(),
            register: register.clone(),
            out: out.clone(),
        });
        if self.claims.waiting.contains_key(&id) {
            // Its place is told again with the next change; the first word comes at once.
            if let Some(answer) = self.claims.get(&id).and_then(|l| l.told_wait.as_ref()) {
                out.member(answer);
            }
            return;
        }
        let asked = match self.journal.newer() {
            Some(why) => Err(WireError::new(ErrorCode::NotAvailable, why)),
            None => asked_for(&self.world(), id, peer, out),
        };
        match asked {
            Ok(asked) => self.execute(asked.into_iter().collect()),
            Err(error) => self.claims.refuse_wanting(id, &error),
        }
    }

    /// The core has found room: the claim gets its GPUs, and those who waited their pages. False if that failed:
    /// it then holds nothing, as before.
    pub(crate) fn grant_late(&mut self, id: ClaimId, slices: &[Slice], ends: Option<Now>) -> bool {
        let Some(asked) = self.claims.waiting.remove(&id) else {
            return false;
        };
        let wanted =
            |live: &Live| live.ending.is_none() && live.wanting.iter().any(|w| !w.out.gone());
        if !self.claims.get(&id).is_some_and(wanted) {
            return false;
        }
        if let Err(error) = self.try_grant_late(id, slices, ends) {
            let text = messages::not_granted(id, format_args!("{error:#}"));
            self.empty_handed(id);
            self.claims
                .refuse_wanting(id, &WireError::new(ErrorCode::Internal, text.clone()));
            self.notice(Some(id), text);
            return false;
        }
        let waited = unix_ms().saturating_sub(asked.since_ms);
        let waited = Duration::from_millis(waited);
        self.tell(Fact::Granted { waited });
        if let (Some(live), Some(text)) = (self.claims.get(&id), grant::has_text(&self.world(), id))
        {
            self.host.helpers.say(live, &text, &self.host.events);
        }
        let live = self.claims.get_mut(&id);
        let wanting = live.map(|live| {
            live.told_wait = None;
            std::mem::take(&mut live.wanting)
        });
        for wanting in wanting.into_iter().flatten() {
            self.register(&wanting.peer, &wanting.register, &wanting.out);
        }
        true
    }

    fn try_grant_late(
        &mut self,
        id: ClaimId,
        slices: &[Slice],
        ends: Option<Now>,
    ) -> anyhow::Result<()> {
        let ends_ms = ends.map(|at| self.core.moment().unix_at(at));
        let slices_of = self.gpus.slice_records(slices);
        let Some(uid) = self.claims.get(&id).map(|live| live.record.uid) else {
            return Ok(());
        };
        let stage = stage::stage_of(
            &self.world(),
            uid,
            slices_of.iter().map(|s| s.uuid.as_str()),
        );
        let Some(live) = self.claims.get_mut(&id) else {
            return Ok(());
        };
        live.record.stage = stage;
        live.record.ends_ms = ends_ms;
        live.record.slices = slices_of;
        let record = live.record.clone();
        self.journal.put(&record)?;
        self.open_gpus(id)?;
        let seats = slices
            .iter()
            .map(|s| grant::make_seat(&self.world(), id, s))
            .collect::<anyhow::Result<_>>()?;
        if let Some(live) = self.claims.get_mut(&id) {
            live.seats = seats;
        }
        self.tell(Fact::Arrived { claim: id });
        self.execute(vec![Command::LimitMemory(id)]);
        Ok(())
    }

    /// Takes back what a grant that failed has done.
    fn empty_handed(&mut self, id: ClaimId) {
        let Some(live) = self.claims.get_mut(&id) else {
            return;
        };
        live.seats.clear();
        let slices = std::mem::take(&mut live.record.slices);
        live.record.ends_ms = None;
        let record = live.record.clone();
        for slice in slices {
            if let Some(gpu) = self.gpus.gpu_index(&slice.uuid) {
                let _ = std::fs::remove_file(self.host.limits_path(&self.gpus, id, gpu));
            }
        }
        self.journal.keep(&record, "that a claim holds nothing");
        if let Err(error) = self.open_gpus(id) {
            tracing::error!(%id, "could not deny a claim access to its GPUs: {error}");
        }
    }
}

/// A claim that asks for its GPUs now.
fn asked_for(
    world: &World<'_>,
    id: ClaimId,
    peer: &Peer,
    out: &Sender,
) -> Result<Option<Command>, WireError> {
    let Some(live) = world.claims.get(&id) else {
        return Ok(None);
    };
    let record = live.record.clone();
    let owner = Peer {
        uid: record.uid,
        ..peer.clone()
    };
    let spec = record.lazy.as_deref().cloned().unwrap_or_default();
    let (request, patience, _) = convert::request(world, &owner, &spec)?;
    let asked = Asked {
        peer: peer.clone(),
        out: out.clone(),
        record,
        since_ms: unix_ms(),
        request,
        told: false,
    };
    Ok(Some(Command::Ask(id, Box::new(asked), patience)))
}

/// What those are told who wait for the GPU of a claim.
pub(crate) fn place(
    world: &World<'_>,
    features: &Features,
    (id, position): (ClaimId, usize),
    reason: &Reason,
    start: Option<&str>,
) -> Answer {
    Answer::Wait {
        claim: id.0,
        position: u32::try_from(position).unwrap_or(u32::MAX),
        reason: reclaim::waits_and_start(world, features, id, reason, start),
    }
}

/// Those who were told that nobody knows when they start are told as soon as somebody does.
pub(crate) fn starts(world: &World<'_>, features: &Features, sizes: &Sizes) -> Vec<Command> {
    let untold = |live: &Live| {
        let heard = live.told_no_start.is_some_and(|at| at.elapsed() >= HEARD);
        live.told_wait.is_some() && heard
    };
    let untold = world.claims.iter().filter(|(_, live)| untold(live));
    let told = untold.filter_map(|(&id, _)| {
        let (position, reason) = world.machine.place(id)?;
        let known = reclaim::start_known(world, features, id, reason);
        let start = known.or_else(|| reclaim::start_expected(world, sizes, id));
        let reason = reason.clone();
        Some(match start {
            Some(_) => Command::TellStart {
                id,
                position,
                reason,
                start,
            },
            None => Command::NoStart(id),
        })
    });
    told.collect()
}

impl Claims {
    /// Tells those who wait for the GPU of a claim; whether they know then when they start.
    pub(crate) fn tell_wanting(&mut self, id: ClaimId, answer: Answer, knows: bool) {
        let Some(live) = self.get_mut(&id) else {
            return;
        };
        for wanting in &live.wanting {
            if wanting.out.unsent() < UNREAD_PLACES {
                wanting.out.member(&answer);
            }
        }
        live.told_wait = Some(answer);
        live.told_no_start = (!knows).then(Instant::now);
    }

    /// Still nobody knows when they start.
    pub(crate) fn no_start(&mut self, id: ClaimId) {
        if let Some(live) = self.get_mut(&id) {
            live.told_no_start = Some(Instant::now());
        }
    }

    /// They get nothing now, and may ask again.
    pub(crate) fn refuse_wanting(&mut self, id: ClaimId, error: &WireError) {
        let Some(live) = self.get_mut(&id) else {
            return;
        };
        live.told_wait = None;
        let mut message = error.message.clone();
        if let Some(hint) = &error.hint {
            message = format!("{message}; {hint}");
        }
        if error.code == ErrorCode::NotAvailable {
            message = format!(
                "{id} gets no GPU now: {message}; this call fails with CUDA_ERROR_NO_DEVICE, the next one asks again"
            );
        }
        if error.code == ErrorCode::Usage {
            message = format!(
                "{id} cannot get a GPU here: {message}; CUDA calls fail with CUDA_ERROR_NO_DEVICE"
            );
        }
        let answer = Answer::Refused {
            code: "not_available".to_owned(),
            message,
        };
        for wanting in std::mem::take(&mut live.wanting) {
            wanting.out.member(&answer);
        }
    }

    /// A connection has ended: claims that were asked for on it are withdrawn, and its processes no longer wait.
    pub(crate) fn closed(&mut self, conn: ConnId) -> Vec<Event> {
        let mut gone: Vec<ClaimId> = Vec::new();
        for (id, live) in self.iter_mut() {
            let before = live.wanting.len();
            live.wanting.retain(|w| w.peer.conn != conn);
            if before > 0 && live.wanting.is_empty() {
                live.told_wait = None;
                gone.push(*id);
            }
        }
        let asked = self.waiting.iter().filter(|(_, a)| a.peer.conn == conn);
        let asked = asked.map(|(id, _)| *id).filter(|id| !self.contains_key(id));
        gone.extend(asked);
        gone.retain(|id| self.waiting.remove(id).is_some());
        gone.into_iter().map(|id| Event::Gone { id }).collect()
    }

    /// Whether a claim has asked for nothing yet, or not got it.
    pub(crate) fn is_without(&self, id: ClaimId) -> bool {
        let live = self.get(&id);
        live.is_some_and(|l| {
            l.record.lazy.is_some() && l.record.slices.is_empty() && l.ending.is_none()
        })
    }

    /// What one who only looks is told of a claim without GPUs.
    pub(crate) fn later(&self, id: ClaimId) -> Answer {
        let spec = self.get(&id).and_then(|l| l.record.lazy.as_deref());
        Answer::Later {
            claim: id.0,
            gpus: places::count(spec),
        }
    }
}

//! Sizes from experience: records the use of running claims and ended runs, suggests sizes and applies them. The
//! history's thread reads the records, so the state's task does not wait.

mod follow;

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::time::Duration;

use gshare_config::ShareRuns;
use gshare_core::machine::{Claimable, Event, Expected, Until};
use gshare_core::predict::Shape;
use gshare_core::{Bytes, ClaimId, GpuFacts, Share};
use gshare_proto::{ClaimSpec, ExpectedView, SuggestSpec};

use super::admin::quota;
use super::connection::{Sender, Turn};
use super::convert;
use super::features::Features;
use super::history::runs::{Told, Whose};
use super::history::say::{self, Facts};
use super::history::worker::{Order, Question, SizeAsk, Sized};
use super::history::{History, Seen, no_history};
use super::journal::ClaimRecord;
use super::line;
use super::live::Live;
use super::peer::Peer;
use super::settings::Settings;
use super::tracks::RunTrack;
use super::tracks::Sizes;
use super::world::World;
use crate::clock::unix_ms;
use crate::identity;
use gshare_core::Request;
use gshare_core::Size;
use gshare_core::machine::Caller;

/// Maximum number of waiting claims whose expected start is shown.
const FORESEEN: usize = 16;
/// Maximum number of claims whose earlier runs are looked up at a time: users ask faster than a file answers.
const LOOKED_UP: usize = 4096;

impl Sizes {
    /// A claim whose size the service chooses: looks up the records first. Without a history it comes back at once.
    pub(super) fn ask(
        &mut self,
        config: &Settings,
        history: &History,
        peer: Peer,
        spec: ClaimSpec,
        out: Sender,
        turn: Turn,
    ) -> Option<Box<Sized>> {
        self.asking.insert(peer.conn);
        let ask = SizeAsk {
            whose: config.whose_runs(peer.uid),
            shape: line::key(&spec.command),
            sized: Box::new(Sized {
                peer,
                spec,
                out,
                turn,
                told: Told::default(),
            }),
        };
        match history.tell(Order::Size(Box::new(ask))) {
            // Without a history everything is a first run.
            Err(Order::Size(ask)) => Some(ask.sized),
            _ => None,
        }
    }

    /// The records were read: the claim gets that size. False if no caller waits any more.
    pub(crate) fn size(&mut self, world: &World<'_>, sized: &mut Sized) -> bool {
        let spec = &mut sized.spec;
        let facts = size_facts(world, spec.class.as_deref());
        let suggestion = say::suggest(&sized.told, &facts, &spec.command);
        spec.mem = Some(suggestion.mem);
        spec.gpus_milli = None;
        if let Some(sm) = suggestion.sm {
            spec.sm_milli = spec.sm_milli.or(Some((sm * 1000.0).round() as u32));
        }
        // It may use all free room: a learnt size is not a limit.
        let room = capacities(world).filter(|c| c.0 >= suggestion.mem).min();
        spec.mem_limit = spec.mem_limit.or(room.map(|Bytes(b)| b));
        spec.sm_limit_milli = spec.sm_limit_milli.or(Some(Share::ONE.milli()));
        self.asking.remove(&sized.peer.conn)
    }

    /// Handles a query for sizes.
    pub(crate) fn suggest(
        &self,
        world: &World<'_>,
        history: &History,
        peer: &Peer,
        spec: SuggestSpec,
        out: &Sender,
        turn: Turn,
    ) {
        let running = if spec.running {
            running(world, self, peer.uid)
        } else {
            Vec::new()
        };
        let question = Question {
            whose: world.config.whose_runs(peer.uid),
            facts: size_facts(world, spec.class.as_deref()),
            running,
            spec,
        };
        let order = Order::Suggest(Box::new(question), out.clone(), turn);
        if history.tell(order).is_err() {
            out.error(no_history());
        }
    }

    /// Adds a look at a claim's parts of GPUs.
    pub(super) fn look(
        &mut self,
        world: &World<'_>,
        features: &Features,
        history: &History,
        seen: &Seen,
        throttled: f64,
    ) {
        let (id, follow) = (seen.id, world.config.sizes.follow);
        let Some(live) = world.claims.get(&id) else {
            return;
        };
        if live.record.has_no_library() {
            return;
        }
        // After the end of the command it is no longer known.
        let identity = features.identity_of(id, live);
        let notebook = identity::notebook_name(&identity).map(str::to_owned);
        let track = self.runs.entry(id).or_insert_with(|| RunTrack::new(follow));
        track.notebook = notebook.or(track.notebook.take());
        track.look(&seen.parts, throttled, seen.held_back_ms.is_some());
        if !track.asked {
            let (shape, uid) = (live.record.command.key().clone(), live.record.uid);
            let gpus = live.record.slices.len() as u32;
            let asked = self.ask_runs(world.config, history, id, uid, shape, gpus);
            let track = self.runs.get_mut(&id);
            track.into_iter().for_each(|t| t.asked = asked);
        }
    }

    /// Looks up how long a claim will run that is about to wait or start.
    pub(crate) fn ask_run_time(
        &mut self,
        config: &Settings,
        history: &History,
        id: ClaimId,
        record: &ClaimRecord,
        gpus: u32,
    ) {
        if !record.command.is_empty() {
            let shape = record.command.key().clone();
            self.ask_runs(config, history, id, record.uid, shape, gpus);
        }
    }

    /// Looks up earlier runs of a claim; false if too many lookups wait.
    fn ask_runs(
        &mut self,
        config: &Settings,
        history: &History,
        id: ClaimId,
        uid: u32,
        shape: Shape,
        gpus: u32,
    ) -> bool {
        if self.looked_up >= LOOKED_UP {
            return false;
        }
        let order = Order::Learn(id.0, config.whose_runs(uid), shape, gpus);
        if history.tell(order).is_ok() {
            self.looked_up += 1;
        }
        true
    }

    /// Experience from earlier runs of a waiting or running claim; their durations, for the core.
    pub(crate) fn learned(&mut self, id: ClaimId, told: Told) -> Option<Event> {
        self.looked_up = self.looked_up.saturating_sub(1);
        if let Some(track) = self.runs.get_mut(&id) {
            track.learn(&told);
        }
        told.time.map(|span| Event::RunTime { id, span })
    }

    /// Records the run of a claim that has ended.
    pub(crate) fn end_run(
        &mut self,
        world: &World<'_>,
        history: &History,
        live: &Live,
        cause: &str,
    ) {
        let record = &live.record;
        let Some(track) = self.runs.remove(&ClaimId(record.id)) else {
            return;
        };
        if record.command.is_empty() || record.has_no_library() || record.origin.uncapped {
            return;
        }
        let first = record.slices.first();
        let gpu = first.and_then(|s| world.gpus.gpu_index(&s.uuid));
        let model = gpu.map_or("", |g| &world.gpus[g].model);
        let refusals = live.past.refusals;
        let mut run = track.record(record, live.peak, model, cause, refusals, unix_ms());
        run.notebook = track.notebook;
        (run.ended.exit_code, run.ended.exit_signal) =
            live.exit.map_or((None, None), |e| (e.code(), e.signal()));
        let order = Order::Run(Box::new(run), world.config.whose_runs(record.uid));
        let _ = history.tell(order);
    }
}

/// Bytes of each GPU that claims can use.
fn capacities(world: &World<'_>) -> impl Iterator<Item = Bytes> {
    let gpus = world.machine.ledger().gpus().iter();
    gpus.filter_map(GpuFacts::capacity)
}

/// In words, from now on.
pub(crate) fn expected_view(world: &World<'_>, expected: Expected) -> ExpectedView {
    let left = |at: Duration| at.saturating_sub(world.now.core).as_secs_f64().round() as u64;
    ExpectedView {
        low_s: left(expected.low),
        high_s: expected.high.map(left),
        certain: expected.certain,
        cause: match expected.until {
            Until::Countdown => "others make room".to_owned(),
            Until::MinRun(id) => format!("minimum run time of {id}"),
            Until::Limit(id) => format!("time limit of {id}"),
            Until::Ends(id) => format!("earlier runs such as {id}"),
            Until::Turn => {
                "it has waited very long, so gshare makes room for it, for a run of up to an hour"
                    .to_owned()
            }
        },
    }
}

/// The size of a claim without earlier runs, and the machine's capacity.
fn size_facts(world: &World<'_>, class: Option<&str>) -> Facts {
    let defaults = &world.config.defaults;
    let interactive = class == Some("interactive");
    let share = if interactive {
        defaults.size_interactive
    } else {
        defaults.size_command
    };
    let smallest = capacities(world).min().unwrap_or(Bytes::ZERO);
    Facts {
        default_mem: smallest.times(share),
        default_sm: share.as_f64(),
        largest: capacities(world).max().unwrap_or(Bytes::ZERO),
        first_look: world.config.sizes.first_look,
    }
}

impl Settings {
    pub(crate) fn whose_runs(&self, uid: u32) -> Whose {
        Whose {
            uid,
            group: self.sizes.share_runs == ShareRuns::Group,
            all: self.sizes.share_runs == ShareRuns::All,
        }
    }
}

/// Expected starts of the first waiting claims. Computed once after each decision.
pub(crate) fn expected_starts<'a>(
    world: &World<'_>,
    sizes: &'a Sizes,
) -> &'a BTreeMap<ClaimId, Expected> {
    sizes.expected.get_or_init(|| {
        let first = world.machine.queue().take(FORESEEN).map(|(id, _)| id);
        let charges = world.charges();
        world
            .machine
            .expected_starts(world.now.core, &first.collect(), &charges)
    })
}

/// What a caller could claim now.
pub(crate) fn claimable_by(world: &World<'_>, caller: &Caller) -> Claimable {
    world
        .machine
        .claimable_now(world.now.core, caller, &world.charges())
}

fn plain_caller(world: &World<'_>, uid: u32) -> Caller {
    let defaults = &world.config.defaults;
    let size = Size {
        gpus: 1,
        each: Share::ONE,
    };
    let mut request = Request::of_size(size, defaults.sm_limit, defaults.class);
    request.uid = uid;
    let project = convert::project(world, uid, None).unwrap_or_default();
    Caller {
        request,
        parties: quota::parties_of(world, uid, &project),
    }
}

/// What a user could claim now with a plain `gshare claim`. Computed once after each decision.
pub(crate) fn room_of(world: &World<'_>, sizes: &Sizes, uid: u32) -> Arc<Claimable> {
    let look = || Arc::new(claimable_by(world, &plain_caller(world, uid)));
    match sizes.room.lock() {
        Ok(mut known) => Arc::clone(known.entry(uid).or_insert_with(look)),
        Err(_) => look(),
    }
}

/// A user's claims, with their use so far.
fn running(world: &World<'_>, sizes: &Sizes, uid: u32) -> Vec<say::Running> {
    let own = world
        .claims
        .iter()
        .filter(|(_, live)| live.record.uid == uid && live.ending.is_none());
    let seen = own.filter_map(|(id, live)| {
        let track = sizes.runs.get(id)?;
        let slice = live.record.slices.first()?;
        Some(say::Running {
            id: id.to_string(),
            command: live.record.command.clone(),
            asked_mem: slice.mem,
            asked_sm: f64::from(slice.sm_milli) / 1000.0,
            gpus: live.record.slices.len() as u32,
            used: track.used(),
        })
    });
    seen.collect()
}

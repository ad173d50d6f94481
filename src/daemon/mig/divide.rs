//! Making and removing the instances of a GPU: at an administrator's command, and anew after a boot. Every step looks at
//! what there is, so that a service that died between two steps goes on where it was.

use std::time::{Duration, Instant};

use gshare_config::Config;
use gshare_core::mig::{Layout, NoRoom, Place, Profile, places, profile_name};
use gshare_enforcer::gpu::{
    Divider, GpuReading, MigError, MigInstance, MigOrder, MigState, Observer,
};
use gshare_proto::{AdminDone, ErrorCode, Reply, WireError, messages};
use tokio::sync::mpsc::UnboundedSender;

use crate::daemon::admin::{Act, Order};
use crate::daemon::command::{Command, GpuCommand};
use crate::daemon::connection::Sender;
use crate::daemon::engine::LeverState;
use crate::daemon::journal::{Journal, Store};
use crate::daemon::msg::Msg;
use crate::daemon::peer::Peer;
use crate::daemon::release::Wait;
use crate::daemon::world::World;
use crate::daemon::{admin, die, release};

/// How long one step may take: the mode of some GPUs changes by a reset.
const STEP: Duration = Duration::from_secs(60);
/// How long the service itself waits for the driver's word on how a GPU is divided.
const LOOK: Duration = Duration::from_secs(2);
/// How long a start waits for others to close a GPU whose mode is to change.
const SETTLING: Duration = Duration::from_secs(5);
/// How long what has the GPU open may take to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// The journal's key of a layout that was asked for by command.
fn meta_key(uuid: &str) -> String {
    format!("mig.{uuid}")
}

/// Why a GPU is not divided as it should be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Undivided {
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    #[error(transparent)]
    Driver(#[from] MigError),
}

fn profiles(state: &MigState) -> Vec<Profile> {
    let mut all: Vec<Profile> = state
        .sizes
        .iter()
        .map(|s| Profile {
            name: profile_name(s.slices, s.bytes, state.bytes) + s.with,
            id: s.id,
            size: s.size,
            starts: s.starts.clone(),
            most: s.most as usize,
            decoders: s.decoders,
        })
        .collect();
    all.sort_by_key(|p| (p.size, p.id));
    all
}

fn place(instance: &MigInstance) -> Place {
    Place {
        profile: instance.profile,
        start: instance.start,
    }
}

/// The instances that there are, by name.
pub(crate) fn layout(state: &MigState) -> Layout {
    let profiles = profiles(state);
    let mut there: Vec<&MigInstance> = state.instances.iter().collect();
    there.sort_by_key(|i| i.start);
    let name = |i: &MigInstance| profiles.iter().find(|p| p.id == i.profile);
    let named = there.into_iter().filter_map(name);
    Layout::of(named.map(|p| p.name.clone()))
}

/// Where the instances of a layout are to be.
fn wanted(state: &MigState, layout: &Layout) -> Result<Vec<Place>, NoRoom> {
    let there: Vec<Place> = state.instances.iter().map(place).collect();
    places(&profiles(state), layout, &there)
}

/// Brings a GPU to a layout, step by step.
fn divide(
    step: &dyn Fn(MigOrder) -> Result<MigState, MigError>,
    layout: &Layout,
) -> Result<MigState, Undivided> {
    let mut state = step(MigOrder::Look)?;
    let wanted = wanted(&state, layout)?;
    if !layout.is_off() && !state.on {
        state = step(MigOrder::Mode(true))?;
        die::at("mig-mode");
    }
    let stays = |i: &MigInstance| wanted.contains(&place(i));
    for instance in state.instances.clone().iter().filter(|i| !stays(i)) {
        if instance.open {
            step(MigOrder::Close { gi: instance.gi })?;
            die::at("mig-closed");
        }
        state = step(MigOrder::Remove { gi: instance.gi })?;
        die::at("mig-removed");
    }
    for Place { profile, start } in &wanted {
        let there = |i: &&MigInstance| i.profile == *profile && i.start == *start;
        if !state.instances.iter().any(|i| there(&i)) {
            state = step(MigOrder::Make {
                profile: *profile,
                start: *start,
            })?;
            die::at("mig-made");
        }
        let made = state.instances.iter().find(there);
        if let Some(gi) = made.filter(|i| !i.open).map(|i| i.gi) {
            state = step(MigOrder::Open { gi })?;
            die::at("mig-opened");
        }
    }
    if layout.is_off() && state.on {
        state = step(MigOrder::Mode(false))?;
        die::at("mig-whole");
    }
    Ok(state)
}

/// The layout that a GPU is to have: as set by command, else as the configuration says.
fn asked(config: &Config, journal: &Journal, reading: &GpuReading) -> Option<Layout> {
    let uuid = reading.uuid.as_deref()?;
    let set = journal.meta(&meta_key(uuid)).ok().flatten();
    let set = set.and_then(|text| text.parse().ok());
    set.or_else(|| {
        let keys = config.gpu(uuid, reading.index as usize)?;
        keys.mig.clone()
    })
}

/// Makes the instances anew that a boot has taken, before any claim is found again. What could not be done is said.
pub(crate) fn restore(
    config: &Config,
    journal: &Journal,
    observer: &Observer,
    readings: &[GpuReading],
) -> Vec<String> {
    let mut undone = Vec::new();
    for reading in readings {
        let Some(layout) = asked(config, journal, reading) else {
            continue;
        };
        let divider = observer.divider(reading.index);
        let g = reading.index;
        // What had it open when the service or the machine ended may take a moment to go.
        let until = Instant::now() + SETTLING;
        let result = loop {
            let result = divide(&|order| divider.step(order, STEP), &layout);
            let pending = matches!(result, Err(Undivided::Driver(MigError::Pending(_))));
            if !pending || Instant::now() > until {
                break result;
            }
            std::thread::sleep(Duration::from_millis(100));
        };
        match result {
            Ok(_) => tracing::info!("GPU {g} is divided as requested: {layout}"),
            Err(why) => undone.push(format!("GPU {g} is not divided into {layout}: {why}")),
        }
    }
    for text in &undone {
        tracing::error!("{text}");
    }
    undone
}

/// A GPU that is to be divided, and who waits for it.
#[derive(Debug)]
pub(crate) struct Dividing {
    /// Index.
    pub(crate) gpu: usize,
    divider: Divider,
    layout: Layout,
    /// The layout is another than before.
    is_change: bool,
    undo: String,
    out: Sender,
}

impl Dividing {
    /// Divides it in a thread, once nothing of gshare has it open. False if there is no thread: the caller was told.
    pub(crate) fn start(self, waits: Vec<Wait>, events: UnboundedSender<Msg>) -> bool {
        let (g, out) = (self.gpu, self.out.clone());
        let started = std::thread::Builder::new().name("mig".to_owned());
        let working = started.spawn(move || {
            let until = Instant::now() + PATIENCE;
            let _ = waits.iter().all(|wait| wait.ended(until));
            let out = self.out.clone();
            let result = self.divide();
            let _ = events.send(Msg::Divided {
                gpu: g,
                result,
                out,
            });
        });
        let failed = working.err().map(|error| {
            let text = format!("its thread could not be started: {error}");
            out.error(WireError::new(ErrorCode::NotAvailable, text));
        });
        failed.is_none()
    }

    fn divide(self) -> Result<AdminDone, WireError> {
        let (g, undo) = (self.gpu, self.undo);
        let divider = self.divider;
        let divided = divide(&|order| divider.step(order, STEP), &self.layout);
        let state = divided.map_err(|why| undone(g, &why, &undo))?;
        let layout = layout(&state);
        let already = if self.is_change { "" } else { "already " };
        let message = match layout.is_off() {
            true => format!("GPU {g} is {already}whole"),
            false => format!("GPU {g} is {already}divided into {layout}"),
        };
        let undo = self.is_change.then_some(undo);
        Ok(AdminDone { message, undo })
    }
}

/// `gshare admin mig`: the answer comes when the instances are there.
pub(crate) fn order(
    world: &World<'_>,
    (observer, levers): (&Observer, &LeverState),
    peer: &Peer,
    (word, text): (&str, &str),
    dry_run: bool,
    out: &Sender,
) -> Result<Order, WireError> {
    admin::may_administrate(world, peer)?;
    let layout: Layout = text
        .parse()
        .map_err(|e| WireError::new(ErrorCode::Usage, format!("`{text}`: {e}")))?;
    let g = world.gpus.whole_gpus(&[word])?.into_iter().next();
    let g = g.ok_or_else(|| WireError::new(ErrorCode::Usage, messages::no_gpu_named()))?;
    let refuse = |text: String| WireError::new(ErrorCode::NotAvailable, text);
    if world.gpus.is_released(g) {
        return Err(refuse(format!("GPU {g} is released"))
            .with_hint(format!("gshare admin release {g} --take")));
    }
    if !world.gpus.dividing.is_empty() {
        return Err(refuse("another GPU is being divided".to_owned()));
    }
    let divider = observer.divider(u32::try_from(g).unwrap_or(u32::MAX));
    let undivided = |e: Undivided| {
        let error = refuse(format!("GPU {g} cannot be divided into {layout}: {e}"));
        match e {
            Undivided::NoRoom(NoRoom { fits, .. }) if !fits.is_off() => {
                error.with_hint(format!("gshare admin mig {g} {fits} --dry-run"))
            }
            _ => error,
        }
    };
    let state = divider.step(MigOrder::Look, LOOK);
    let state = state.map_err(|e| undivided(e.into()))?;
    let places = wanted(&state, &layout).map_err(|e| undivided(e.into()))?;
    let before = self::layout(&state);
    if dry_run {
        let message = would(g, &state, &places, &layout);
        return Ok(Order::saying(message, None));
    }
    release::may_be_let_go(world, levers, g)?;
    let others = release::users_without_claim(world, g);
    if !others.is_empty() {
        return Err(refuse(format!(
            "GPU {g} is in use without a claim by {others}"
        )));
    }
    let act = Act {
        action: "mig",
        target: format!("GPU {g} ({})", world.gpus[g].uuid),
        before: before.to_string(),
        after: layout.to_string(),
        reason: None,
    };
    let dividing = Dividing {
        gpu: g,
        divider,
        is_change: before != layout,
        undo: format!("gshare admin mig {g} {before}"),
        out: out.clone(),
        layout,
    };
    let key = meta_key(&world.gpus[g].uuid);
    Ok(Order {
        acts: vec![act],
        stores: vec![Store::Meta(key, dividing.layout.to_string())],
        then: vec![
            Command::Gpus(GpuCommand::Divide(Box::new(dividing))),
            Command::Refresh,
        ],
        ..Order::default()
    })
}

/// What is done when a GPU has been divided, or not.
pub(crate) fn divided(g: usize, result: Result<AdminDone, WireError>, out: Sender) -> Vec<Command> {
    let text = result.as_ref().ok().map(|done| done.message.clone());
    let mut then = vec![
        Command::Gpus(GpuCommand::Divided(g)),
        Command::Gpus(GpuCommand::TendMps),
        Command::Refresh,
    ];
    then.extend(text.map(Command::Notice));
    then.push(Command::Reply(out, result.map(Reply::Admin)));
    then
}

/// What is told of a GPU that is not divided as it should be.
fn undone(g: usize, why: &Undivided, undo: &str) -> WireError {
    let hint = match why {
        Undivided::Driver(MigError::Pending(_)) => format!(
            "no program may have the GPU open: stop other monitoring programs, then type gshare admin release {g} \
             --for 60s && nvidia-smi -i {g} --gpu-reset; gshared makes the instances when you restart it"
        ),
        _ => format!("changes made so far stay; {undo} reverts them"),
    };
    WireError::new(ErrorCode::NotAvailable, format!("GPU {g}: {why}")).with_hint(hint)
}

/// What would be done, for people.
fn would(g: usize, state: &MigState, places: &[Place], layout: &Layout) -> String {
    let profiles = profiles(state);
    let name = |id: u32| {
        profiles
            .iter()
            .find(|p| p.id == id)
            .map_or("?", |p| &p.name)
    };
    let mut lines = Vec::new();
    if !layout.is_off() && !state.on {
        lines.push(format!("would switch GPU {g} to MIG"));
    }
    for instance in &state.instances {
        if !places.contains(&place(instance)) {
            lines.push(format!(
                "would remove {} at slice {}",
                name(instance.profile),
                instance.start
            ));
        }
    }
    let there = |p: &&Place| !state.instances.iter().any(|i| place(i) == **p);
    for Place { profile, start } in places.iter().filter(there) {
        lines.push(format!("would make {} at slice {start}", name(*profile)));
    }
    if layout.is_off() && state.on {
        lines.push(format!("would switch GPU {g} back to one whole GPU"));
    }
    if lines.is_empty() {
        lines.push(format!(
            "GPU {g} already has this layout: nothing would change"
        ));
    }
    lines.join("\n")
}

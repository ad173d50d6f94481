//! Makes and removes the instances of a GPU: on an administrator's command, and after a boot. Every step looks at the
//! present state, so that a restarted service continues where the previous one ended.

use std::time::{Duration, Instant};

use gshare_config::Config;
use gshare_core::mig::{Layout, NoRoom, Place, Profile, places, profile_name};
use gshare_enforcer::gpu::{
    Divider, GpuReading, MigError, MigInstance, MigOrder, MigState, Observer,
};
use gshare_proto::{AdminDone, ErrorCode, WireError};
use tokio::sync::mpsc::UnboundedSender;

use crate::daemon::connection::Sender;
use crate::daemon::die;
use crate::daemon::journal::Journal;
use crate::daemon::msg::Msg;
use crate::daemon::release::letting_go::Wait;

/// Longest time for one step: the mode of some GPUs changes by a reset.
const STEP: Duration = Duration::from_secs(60);
/// Longest wait for the driver's report on how a GPU is divided.
pub(super) const LOOK: Duration = Duration::from_secs(2);
/// At a start, longest wait until others close a GPU whose mode must change.
const SETTLING: Duration = Duration::from_secs(5);
/// Longest wait until everything that has the GPU open has ended.
const PATIENCE: Duration = Duration::from_secs(20);

/// The journal's key of a layout that was set by command.
pub(super) fn meta_key(uuid: &str) -> String {
    format!("mig.{uuid}")
}

/// Why a GPU could not be divided as requested.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Undivided {
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    #[error(transparent)]
    Driver(#[from] MigError),
}

pub(super) fn profiles(state: &MigState) -> Vec<Profile> {
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

pub(super) fn place(instance: &MigInstance) -> Place {
    Place {
        profile: instance.profile,
        start: instance.start,
    }
}

/// The present instances, by name.
pub(crate) fn layout(state: &MigState) -> Layout {
    let profiles = profiles(state);
    let mut there: Vec<&MigInstance> = state.instances.iter().collect();
    there.sort_by_key(|i| i.start);
    let name = |i: &MigInstance| profiles.iter().find(|p| p.id == i.profile);
    let named = there.into_iter().filter_map(name);
    Layout::of(named.map(|p| p.name.clone()))
}

/// Where the instances of a layout should be.
pub(super) fn wanted(state: &MigState, layout: &Layout) -> Result<Vec<Place>, NoRoom> {
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

/// The requested layout of a GPU: as set by command, otherwise from the configuration.
fn asked(config: &Config, journal: &Journal, reading: &GpuReading) -> Option<Layout> {
    let uuid = reading.uuid.as_deref()?;
    let set = journal.meta(&meta_key(uuid)).ok().flatten();
    let set = set.and_then(|text| text.parse().ok());
    set.or_else(|| {
        let keys = config.gpu(uuid, reading.index as usize)?;
        keys.mig.clone()
    })
}

/// Makes instances again that a boot has removed, before any claim is restored. Returns what could not be done.
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
        // Programs that had it open when the service or the machine ended may need a moment to end.
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

/// A GPU that is to be divided, and the caller that waits for it.
#[derive(Debug)]
pub(crate) struct Dividing {
    pub(crate) gpu: usize,
    pub(super) divider: Divider,
    pub(super) layout: Layout,
    /// The layout changes.
    pub(super) is_change: bool,
    pub(super) undo: String,
    pub(super) out: Sender,
}

impl Dividing {
    /// Divides it in a thread, once nothing of gshare has it open. False if there is no thread; the caller was told.
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

/// The error for a GPU that could not be divided as requested.
fn undone(g: usize, why: &Undivided, undo: &str) -> WireError {
    let hint = match why {
        Undivided::Driver(MigError::Pending(_)) => format!(
            "the GPU must be reset, while no program has it open. 1. Stop monitoring programs. 2. gshare admin release \
             {g} --for 60s && nvidia-smi -i {g} --gpu-reset. 3. Restart gshared, which makes the instances"
        ),
        _ => format!("changes made so far stay; {undo} reverts them"),
    };
    WireError::new(ErrorCode::NotAvailable, format!("GPU {g}: {why}")).with_hint(hint)
}

//! Making and removing the instances of a GPU: at an administrator's command, and anew after a boot. Every step looks at
//! what there is, so that a service that died between two steps goes on where it was.

use std::time::{Duration, Instant};

use gshare_config::Config;
use gshare_core::mig::{Layout, NoRoom, Place, Profile, places, profile_name};
use gshare_enforcer::gpu::{GpuReading, MigError, MigInstance, MigOrder, MigState, Observer};
use gshare_proto::{AdminDone, ErrorCode, Reply, WireError};

use crate::daemon::admin::Act;
use crate::daemon::command::Command;
use crate::daemon::connection::Sender;
use crate::daemon::gpu::FIRST_LOOK;
use crate::daemon::journal::{Journal, put_meta};
use crate::daemon::msg::Msg;
use crate::daemon::peer::Peer;
use crate::daemon::service::Service;
use crate::daemon::{admin, die, levers, release};

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

impl Service {
    /// `gshare admin mig`: the answer comes when the instances are there.
    pub(crate) fn admin_mig(
        &mut self,
        peer: &Peer,
        word: &str,
        layout: &str,
        dry_run: bool,
        out: &Sender,
    ) {
        match self.begin_dividing(peer, word, layout, dry_run, out) {
            Ok(None) => {}
            Ok(Some(reply)) => out.reply(&reply),
            Err(error) => out.error(error),
        }
    }

    fn begin_dividing(
        &mut self,
        peer: &Peer,
        word: &str,
        text: &str,
        dry_run: bool,
        out: &Sender,
    ) -> Result<Option<Reply>, WireError> {
        admin::may_administrate(&self.world(), peer)?;
        let layout: Layout = text
            .parse()
            .map_err(|e| WireError::new(ErrorCode::Usage, format!("`{text}`: {e}")))?;
        let g = self.gpus.whole_gpus(&[word])?.into_iter().next();
        let g = g.ok_or_else(|| WireError::new(ErrorCode::Usage, "no GPU is named"))?;
        let refuse = |text: String| WireError::new(ErrorCode::NotAvailable, text);
        if self.gpus.is_released(g) {
            return Err(refuse(format!("GPU {g} is released"))
                .with_hint(format!("gshare admin release {g} --take")));
        }
        if !self.gpus.dividing.is_empty() {
            return Err(refuse("another GPU is being divided".to_owned()));
        }
        let divider = self.observer.divider(u32::try_from(g).unwrap_or(u32::MAX));
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
            return Ok(Some(Reply::Admin(AdminDone {
                message,
                undo: None,
            })));
        }
        release::may_be_let_go(&self.world(), &self.levers, g)?;
        let others = release::users_without_claim(&self.world(), g);
        if !others.is_empty() {
            return Err(refuse(format!(
                "GPU {g} is in use without a claim by {others}"
            )));
        }
        let act = Act {
            action: "mig",
            target: format!("GPU {g} ({})", self.gpus[g].uuid),
            before: before.to_string(),
            after: layout.to_string(),
            reason: None,
        };
        let key = meta_key(&self.gpus[g].uuid);
        self.journal
            .audit(&self.host.names, peer, vec![act], |tx| {
                put_meta(tx, &key, &layout.to_string())
            })?;
        die::at("mig-journaled");
        // No program may start there from now on, and what gshare itself has open goes; NVML's own handle is needed.
        self.gpus.dividing.insert(g);
        let waits = self.close_but_nvml(g);
        self.refresh();
        let undo = format!("gshare admin mig {g} {before}");
        let is_change = before != layout;
        let (events, out) = (self.host.events.clone(), out.clone());
        let started = std::thread::Builder::new().name("mig".to_owned());
        let working = started.spawn(move || {
            let until = Instant::now() + PATIENCE;
            let _ = waits.iter().all(|wait| wait.ended(until));
            let result = divide(&|order| divider.step(order, STEP), &layout);
            let result = match result {
                Ok(state) => {
                    let layout = self::layout(&state);
                    let already = if is_change { "" } else { "already " };
                    let message = match layout.is_off() {
                        true => format!("GPU {g} is {already}whole"),
                        false => format!("GPU {g} is {already}divided into {layout}"),
                    };
                    let undo = is_change.then_some(undo);
                    Ok(AdminDone { message, undo })
                }
                Err(why) => Err(undone(g, &why, &undo)),
            };
            let _ = events.send(Msg::Divided {
                gpu: g,
                result,
                out,
            });
        });
        if let Err(error) = working {
            self.gpus.dividing.remove(&g);
            return Err(refuse(format!("its thread could not be started: {error}")));
        }
        Ok(None)
    }

    /// A GPU has been divided, or not.
    pub(crate) fn divided(&mut self, g: usize, result: Result<AdminDone, WireError>, out: &Sender) {
        self.gpus.dividing.remove(&g);
        drop(levers::restrict_engine(&self.world(), &self.levers));
        if let Ok(sample) = self.observer.sample_now(FIRST_LOOK) {
            self.handle(Msg::Sample(Box::new(sample)));
        }
        if let Err(error) = self.gpus.load_overheads(&self.journal) {
            tracing::warn!("the memory of a CUDA context on new instances is unknown: {error:#}");
        }
        self.execute(vec![Command::TendMps]);
        self.refresh();
        match result {
            Ok(done) => {
                self.notice(None, done.message.clone());
                out.reply(&Reply::Admin(done));
            }
            Err(error) => out.error(error),
        }
    }
}

/// What is told of a GPU that is not divided as it should be.
fn undone(g: usize, why: &Undivided, undo: &str) -> WireError {
    let hint = match why {
        Undivided::Driver(MigError::Pending(_)) => format!(
            "nothing else may have the GPU open: stop other monitors, then gshare admin release {g} --for 60s \
             && nvidia-smi -i {g} --gpu-reset; the instances are made when gshared starts next"
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

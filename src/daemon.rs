//! `gshared`: the IO around the pure core. One task owns the state ([`service::Service`]) and handles one message at
//! a time; connections, timers, process exits and the GPU observer only send it messages ([`Msg`]).

mod act;
mod admin;
mod advice;
mod arbiter;
mod attribution;
mod behalf;
mod bound;
mod claim_for;
mod claims;
mod command;
mod conformance;
mod connection;
mod container;
mod container_names;
mod convert;
mod core;
mod cover;
mod die;
mod doctor;
mod driver;
mod effects;
mod ending;
mod engine;
mod fact;
mod fair;
mod features;
mod fences;
mod find;
mod gpu;
mod gpus;
mod grant;
mod guest;
mod health;
#[cfg(test)]
pub(crate) mod here;
pub(crate) mod history;
mod host;
mod identity;
mod idle;
pub(crate) mod journal;
mod kernels;
mod launch;
mod lazy;
mod lease;
mod levers;
pub(crate) mod line;
mod live;
mod lock;
mod manager;
mod members;
mod metrics;
mod mig;
mod modes;
mod mps;
mod mps_daemon;
mod msg;
mod names;
mod notebooks;
mod notices;
mod off;
mod older;
mod order;
mod outside;
mod overhead;
mod owners;
mod peer;
mod played;
mod policy;
mod reasons;
mod reclaim;
mod record;
mod release;
mod reload;
mod reminders;
mod resize;
mod restore;
mod rules;
mod server;
mod service;
mod settings;
mod signal;
mod sizes;
mod slurm;
mod stage;
mod start;
mod story;
mod strict;
mod submit;
mod tell;
mod tracks;
mod turns;
mod view;
mod viewer;
mod waiting;
mod watch;
mod whose;
mod world;

use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use gshare_config::{Config, ConfigError, Mode, Paths};
use gshare_enforcer::cgroup::Tree;
use tokio::sync::mpsc;

pub use container::HOOK_ARGUMENT;
pub use cover::{COVER_ARGUMENT, cover};
#[cfg(feature = "crash-points")]
pub use die::{BEHALF_STEPS, LEVER_STEPS, MIG_STEPS, STEPS};
pub use engine::ENGINE_ARGUMENT;
pub use overhead::PROBE_ARGUMENT;
#[cfg(feature = "lab")]
pub(crate) use strict::lib_dir;
#[cfg(test)]
pub(crate) use view::users;
use world::world_of;

use crate::command::args::DaemonArgs;

/// Runs the service until SIGTERM or SIGINT. Members continue under their limits after that.
///
/// # Errors
///
/// When the configuration, the driver, the journal or the socket cannot be used.
pub fn run(args: &DaemonArgs) -> anyhow::Result<i32> {
    #[cfg(feature = "crash-points")]
    die::choose(args.die_at.as_deref())?;
    let mode = Mode::of_process(args.user);
    let config = load(args, mode)?;
    manager::start_log(config.service.log.name());
    raise_descriptor_limit();
    gshare_enforcer::proc::share_one_heap();
    let paths = config.paths(mode);
    prepare_dirs(&paths, mode)?;
    gshare_abi::host::Priority::Service.take();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(serve(args, config, mode, paths))?;
    Ok(0)
}

fn load(args: &DaemonArgs, mode: Mode) -> Result<Config, ConfigError> {
    match &args.config {
        Some(file) => Config::load_file(file),
        None => Config::load(mode),
    }
}

/// One service per journal and per directory of pages.
fn lock_dirs(paths: &Paths) -> anyhow::Result<Vec<lock::Lock>> {
    let mut dirs = vec![&paths.state_dir];
    let same = |a: &Path, b: &Path| a.canonicalize().ok() == b.canonicalize().ok();
    if !same(&paths.state_dir, &paths.runtime_dir) {
        dirs.push(&paths.runtime_dir);
    }
    dirs.into_iter().map(|dir| lock::take(dir)).collect()
}

async fn serve(args: &DaemonArgs, config: Config, mode: Mode, paths: Paths) -> anyhow::Result<()> {
    let (tx, mut rx) = mpsc::unbounded_channel();
    let tick = config.service.tick;
    let idle = config.service.idle_connections;
    let socket = paths.socket.clone();
    let _locks = lock_dirs(&paths)?;
    let listener = server::bind(&socket, mode == Mode::System)?;
    let mut service = start::start(config, mode, paths, tx.clone())?;
    let listen = service.effects.config.metrics.listen.clone();
    service.features.metrics.listen(&listen, mode, &tx);
    let tree = service.effects.host.fences.tree.clone();
    tokio::spawn(server::serve(
        listener,
        idle,
        tx,
        service.features.metrics.answers(),
        tree.as_ref().and_then(Tree::units).cloned(),
        service.effects.host.names.clone(),
        warmer(tree),
    ));
    tracing::info!(socket = %socket.display(), "gshared {} serves {}", env!("CARGO_PKG_VERSION"), service::summary(&service.world()));
    let mut told = reload::status(&service.world());
    manager::ready(&told);
    let watchdog = manager::watchdog();
    let mut pulse = tokio::time::interval(watchdog.unwrap_or(tick));
    pulse.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let mut timer = tokio::time::interval(tick);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let mut thrift = tokio::time::interval_at(tokio::time::Instant::now() + SETTLED, THRIFT);
    thrift.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let mut fair = fair::Fair::default();
    let mut term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let mut int = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())?;
    let mut hup = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())?;
    loop {
        let due = service.screens.next();
        let publish_at = due.unwrap_or_else(std::time::Instant::now);
        let wake = service.effects.core.next_wake();
        let wake_at = wake.unwrap_or_else(std::time::Instant::now);
        tokio::select! {
            biased;
            _ = term.recv() => break,
            _ = int.recv() => break,
            // A user's own service ends with the terminal that started it.
            _ = hup.recv() => if mode == Mode::User { break } else {
                manager::reloading();
                service.reload(load(args, mode));
                manager::ready(&told);
            },
            _ = pulse.tick(), if watchdog.is_some() => manager::alive(),
            _ = timer.tick() => service.tick(),
            _ = thrift.tick() => {
                gshare_enforcer::proc::give_back_heap();
                let bytes = gshare_enforcer::proc::give_back_files();
                tracing::debug!(bytes, "resident pages of the program and its libraries");
            }
            () = fair.arrived(&mut rx) => {
                if let Some((owner, msg)) = fair.next() {
                    let begun = std::time::Instant::now();
                    if msg.may_move() {
                        service.execute(vec![command::Command::Gpus(command::GpuCommand::DoubtOwners)]);
                    }
                    service.handle(msg);
                    fair.took(owner, begun.elapsed());
                    // Send answers, and read other connections, before the next message.
                    tokio::task::yield_now().await;
                }
            }
            () = tokio::time::sleep_until(wake_at.into()), if wake.is_some() => service.wake(),
            () = tokio::time::sleep_until(publish_at.into()), if due.is_some() => {}
        }
        service.publish();
        let status = reload::status(&service.world());
        if status != told {
            manager::status(&status);
            told = status;
        }
    }
    manager::stopping();
    (service.history).end(&world_of!(service.effects), &service.features);
    service.effects.core.end();
    tracing::info!("gshared stops; programs in claims keep running under their limits");
    let _ = std::fs::remove_file(&socket);
    Ok(())
}

/// The first move into a cgroup after idle time waits for the kernel for some milliseconds. A separate thread makes a
/// move while a new client still sends its request.
fn warmer(tree: Option<Tree>) -> impl Fn() {
    let (wake_tx, wake_rx) = std::sync::mpsc::sync_channel(1);
    if let Some(tree) = tree {
        let started = std::thread::Builder::new()
            .name("warmer".to_owned())
            .spawn(move || {
                while wake_rx.recv().is_ok() {
                    if let Err(error) = tree.warm_up() {
                        tracing::debug!(%error, "cannot prepare the cgroups of claims");
                    }
                }
            });
        if let Err(error) = started {
            tracing::warn!(%error, "cannot start the thread that prepares cgroups: after idle time, claims start slower");
        }
    }
    // A full channel means that a move is under way.
    move || {
        let _ = wake_tx.try_send(());
    }
}

/// Each claim needs a few descriptors; the soft limit of 1024 is for programs that use `select`.
fn raise_descriptor_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        tracing::warn!(%error, "the limit of open files stays at {soft}");
    }
}

/// Makes the service's directories. Others may pass through the runtime directory, but not list it.
fn prepare_dirs(paths: &Paths, mode: Mode) -> anyhow::Result<()> {
    let (run_mode, state_mode) = match mode {
        // The libraries may be in the state directory; its journal is private.
        Mode::System => (0o711, 0o711),
        Mode::User => (0o700, 0o700),
    };
    own_dir(&paths.runtime_dir, run_mode)?;
    own_dir(&paths.state_dir, state_mode)?;
    own_dir(&paths.runtime_dir.join("claims"), run_mode)?;
    Ok(())
}

/// Checks that a directory belongs to this user and that no other user can write it.
fn own_dir(dir: &Path, mode: u32) -> anyhow::Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(dir)
        .with_context(|| format!("cannot create the directory {}", dir.display()))?;
    let meta = dir
        .symlink_metadata()
        .with_context(|| format!("cannot stat {}", dir.display()))?;
    let me = nix::unistd::Uid::effective().as_raw();
    anyhow::ensure!(
        meta.mode() & 0o002 == 0,
        "{} is world-writable\nhint: set state-dir or runtime-dir in the config to a directory below it",
        dir.display()
    );
    anyhow::ensure!(
        meta.is_dir() && meta.uid() == me,
        "{} does not belong to uid {me}\nhint: remove it, or name another directory in the config",
        dir.display()
    );
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode))
        .with_context(|| format!("cannot set the mode of {}", dir.display()))
}

/// Interval, first after the start, at which the service frees unneeded memory and pages of its program.
const SETTLED: Duration = Duration::from_secs(10);
const THRIFT: Duration = Duration::from_secs(60);

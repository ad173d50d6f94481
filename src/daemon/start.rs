//! The start of the service: the driver and its GPUs, the journal, and the restored claims.

use anyhow::Context;
use gshare_config::{Config, Mode, Paths};
use gshare_enforcer::gpu::{Observer, ObserverConfig};
use tokio::sync::mpsc;

use super::admin::quota;
use super::arbiter::Gates;
use super::claims::Claims;
use super::core::Core;
use super::driver::{Driver, stage_preload};
use super::effects::Effects;
use super::engine;
use super::engine::LeverState;
use super::fact::Fact;
use super::features::Features;
use super::fences::Fences;
use super::gpu::{FIRST_LOOK, Gpus};
use super::history::History;
use super::host::Host;
use super::journal::Journal;
use super::msg::Msg;
use super::names::Names;
use super::notebooks::helpers::Helpers;
use super::outside::Policy;
use super::service::Service;
use super::strict::Strict;
use super::watch::Screens;
use super::world::world_of;
use super::{conformance, cover, health, mig, release, restore, stage, story};
use crate::clock::unix_ms;
use crate::daemon::command::{Command, GpuCommand, RuleCommand};

/// Finds the driver and the GPUs, opens the journal, restores claims.
///
/// # Errors
///
/// When there is no driver, no GPU answers or the journal cannot be used.
pub(crate) fn start(
    config: Config,
    mode: Mode,
    paths: Paths,
    events: mpsc::UnboundedSender<Msg>,
) -> anyhow::Result<Service> {
    let mut driver = Driver::find(&config, &paths)?;
    let journal = Journal::begin(&paths.state_dir.join(super::journal::FILE))?;
    let sample_tx = events.clone();
    let released = release::load(&journal)?;
    let observed = ObserverConfig {
        interval: config.service.tick,
        released: release::readings(&released),
        ..ObserverConfig::new(&driver.nvml)
    };
    let observer = Observer::spawn(observed, move |sample| {
        let _ = sample_tx.send(Msg::Sample(Box::new(sample)));
    });
    let sample = observer
        .sample_now(FIRST_LOOK)
        .with_context(|| format!("cannot read the GPUs through {}", driver.nvml.display()))?;
    anyhow::ensure!(
        !sample.gpus.is_empty(),
        "the driver answers but shows no GPU\nhint: nvidia-smi -L should list one"
    );

    // Instances before claims: claims are restored on instances that a boot has removed.
    let undivided = mig::divide::restore(&config, &journal, &observer, &sample.gpus);
    let sample = observer.sample_now(FIRST_LOOK)?;
    let fences = Fences::find(&config, mode);
    if let Ok(real) = &driver.libcuda {
        stage_preload(&driver.dirs, real, &paths.socket)
            .context("cannot install gshare's CUDA library")?;
    }
    let cuda = driver.libcuda.as_deref().ok();
    let levers = LeverState::start(cuda, &events);
    driver.strict = Strict::decide(&config, mode, fences.tree.is_some(), cuda.is_some());
    driver.stage_strict(&config, &paths.socket);
    let simulated = driver.simulated;
    let mut effects = Effects {
        config: config.into(),
        host: Host {
            mode,
            paths,
            started_ms: unix_ms(),
            epoch: journal.starts(),
            helpers: Helpers::default(),
            gates: Gates::start()
                .inspect_err(|error| {
                    tracing::error!(%error, "shares of GPU time are not enforced");
                })
                .ok(),
            names: Names::new(Some(Box::new({
                let events = events.clone();
                move || drop(events.send(Msg::Accounts))
            }))),
            events,
            driver,
            fences,
        },
        core: Core::default(),
        journal,
        observer,
        gpus: Gpus::default(),
        claims: Claims::default(),
        policy: Policy::default(),
        levers,
    };
    effects.gpus.released = released;
    effects.gpus.identify(&sample)?;
    effects.gpus.sample = Some(sample);
    let drained = effects
        .gpus
        .meet_instances(&effects.config, &effects.claims);
    let mut service = Service {
        effects,
        history: History::default(),
        sizes: super::tracks::Sizes::default(),
        features: Features::default(),
        screens: Screens::default(),
    };
    service.drive_all(drained);
    let with = &mut service.effects;
    with.gpus.load_modes(&with.config, &with.journal)?;
    service.execute(vec![Command::Gpus(GpuCommand::TendMps)]);
    let with = &mut service.effects;
    with.gpus.load_overheads(&with.journal)?;
    let (config, journal) = (&with.config, &mut with.journal);
    (service.history).load(&with.host, config, &mut with.gpus, journal);
    let xids = health::known(&with.journal);
    service.tell(Fact::Started { xids });
    let with = &mut service.effects;
    if let Some(log) = with.config.driver.kernel_log.path(simulated) {
        let events = with.host.events.clone();
        health::watch(&log, move |xid| events.send(Msg::KernelXid(xid)).is_ok());
    }
    let drains = with.gpus.load_drains(&with.journal)?;
    with.config.load_quotas(&with.journal)?;
    service.drive_all(drains);
    service.drive_all(quota::anew(&service.world()));
    let with = &mut service.effects;
    if !with.gpus.released.is_empty() {
        drop(engine::restrict_engine(&with.world(), &with.levers));
    }
    with.config.stages = stage::read_stages(&with.world());
    with.config.conformance = conformance::read(&with.world());
    service.execute(vec![
        Command::Rules(RuleCommand::Rules),
        Command::Rules(RuleCommand::Admission),
        Command::Rules(RuleCommand::FollowOff),
    ]);
    // Facts first, without claims: their members' use must not count as use without a claim.
    let mut found = restore::read(&mut service.effects)?;
    service.execute(std::mem::take(&mut found.told));
    let mut searches = restore::Searches::default();
    for record in std::mem::take(&mut found.held) {
        let restored = restore::restore(&mut service.effects, record, &mut searches);
        service.execute(restored);
    }
    let recalled = restore::recall(&mut service.effects, &mut found)?;
    service.drive_all(recalled);
    restore::tidy(&mut service.effects, &found)?;
    service.execute(vec![Command::Gpus(GpuCommand::RenewMps)]);
    service.history.start(&world_of!(service.effects));
    let expected = service.effects.host.driver.strict.binds().to_vec();
    let looked = cover::look(&service.world(), &expected);
    service.execute(looked);
    let host = &service.effects.host;
    host.driver.watch_files(host.events.clone());
    service.execute(vec![
        Command::Gpus(GpuCommand::LookUpOwners),
        Command::Refresh,
    ]);
    service.drive_all(story::past(&service.world(), &service.effects.journal));
    let with = &mut service.effects;
    (with.gpus).measure_overheads(&with.host.driver, &mut with.journal, &with.claims);
    let stages = Box::new(with.config.stages.clone());
    service.execute(vec![Command::Rules(RuleCommand::FollowStages(stages))]);
    service.execute(undivided.into_iter().map(Command::Notice).collect());
    Ok(service)
}

//! The start of the service: the driver and its GPUs, the journal, and the claims that are found again.

use anyhow::Context;
use gshare_config::{Config, Mode, Paths};
use gshare_enforcer::gpu::{Observer, ObserverConfig};
use tokio::sync::mpsc;

use super::admin::quota;
use super::arbiter::Gates;
use super::claims::Claims;
use super::core::Core;
use super::driver::Driver;
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
use super::{conformance, cover, health, levers, mig, release, rules, stage, story};
use crate::clock::unix_ms;
use crate::daemon::command::Command;

/// Finds the driver and the GPUs, opens the journal, finds claims again.
///
/// # Errors
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

    // Instances before claims: those that a boot has taken are what claims are found on.
    let undivided = mig::restore(&config, &journal, &observer, &sample.gpus);
    let sample = observer.sample_now(FIRST_LOOK)?;
    let fences = Fences::find(&config, mode);
    if let Ok(real) = &driver.libcuda {
        cover::stage_preload(&driver.dirs, real, &paths.socket)
            .context("cannot install gshare's CUDA library")?;
    }
    let cuda = driver.libcuda.as_deref().ok();
    let levers = LeverState::start(cuda, &events);
    driver.strict = Strict::decide(&config, mode, fences.tree.is_some(), cuda.is_some());
    driver.stage_strict(&config, &paths.socket);
    let simulated = driver.simulated;
    let mut service = Service {
        config: config.into(),
        host: Host {
            mode,
            paths,
            started_ms: unix_ms(),
            epoch: journal.starts(),
            events,
            helpers: Helpers::default(),
            gates: Gates::start()
                .inspect_err(|error| {
                    tracing::error!(%error, "shares of GPU time are not enforced");
                })
                .ok(),
            names: Names::new(),
            driver,
            fences,
        },
        core: Core::default(),
        journal,
        observer,
        gpus: Gpus::default(),
        claims: Claims::default(),
        history: History::default(),
        sizes: super::tracks::Sizes::default(),
        features: Features::default(),
        policy: Policy::default(),
        levers,
        screens: Screens::default(),
    };
    service.gpus.released = released;
    service.gpus.identify(&sample)?;
    service.gpus.sample = Some(sample);
    let drained = service
        .gpus
        .meet_instances(&service.config, &service.claims);
    service.drive_all(drained);
    service.gpus.load_modes(&service.config, &service.journal)?;
    service.execute(vec![Command::TendMps]);
    service.gpus.load_overheads(&service.journal)?;
    let (config, journal) = (&service.config, &mut service.journal);
    (service.history).load(&service.host, config, &mut service.gpus, journal);
    let xids = health::known(&service.journal);
    service.tell(Fact::Started { xids });
    if let Some(log) = service.config.driver.kernel_log.path(simulated) {
        let events = service.host.events.clone();
        health::watch(&log, move |xid| events.send(Msg::KernelXid(xid)).is_ok());
    }
    let drains = service.gpus.load_drains(&service.journal)?;
    service.drive_all(drains);
    service.config.load_quotas(&service.journal)?;
    service.drive_all(quota::anew(&service.world()));
    if !service.gpus.released.is_empty() {
        drop(levers::restrict_engine(&service.world(), &service.levers));
    }
    service.drive_all(rules::all(&service.world(), &service.levers));
    service.config.stages = stage::read_stages(&service.world());
    service.config.conformance = conformance::read(&service.world());
    service.execute(vec![Command::Admission, Command::FollowOff]);
    // Facts first, without claims: what their members use must not count as unclaimed.
    service.find_claims_again()?;
    service.execute(vec![Command::RenewMps]);
    service.history.start(&world_of!(service));
    let expected = service.host.driver.strict.binds().to_vec();
    let looked = cover::look(&service.world(), &expected);
    service.execute(looked);
    service.host.driver.watch_files(service.host.events.clone());
    service.execute(vec![Command::LookUpOwners]);
    service.refresh();
    service.drive_all(story::past(&service.world(), &service.journal));
    let (journal, claims) = (&mut service.journal, &service.claims);
    (service.gpus).measure_overheads(&service.host.driver, journal, claims);
    let stages = Box::new(service.config.stages.clone());
    service.execute(vec![Command::FollowStages(stages)]);
    for text in undivided {
        service.notice(None, text);
    }
    Ok(service)
}

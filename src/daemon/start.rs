//! The start of the service: the driver and its GPUs, the journal, and the claims that are found again.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Instant;

use anyhow::Context;
use gshare_config::{Config, Mode, Paths};
use gshare_core::Machine;
use gshare_enforcer::driver::Library;
use gshare_enforcer::gpu::{Observer, ObserverConfig};
use tokio::sync::mpsc;

use super::arbiter::Gates;
use super::asked::Wishes;
use super::engine::LeverState;
use super::fact::Fact;
use super::features::{Features, Round};
use super::gpu::FIRST_LOOK;
use super::history::History;
use super::journal::Journal;
use super::msg::Msg;
use super::notebooks::helpers::Helpers;
use super::outside::Policy;
use super::owners::Owners;
use super::service::Service;
use super::strict::{LibDirs, Strict, search};
use super::{cover, health, mig, release, setup};
use crate::clock::unix_ms;

impl Service {
    /// Finds the driver and the GPUs, opens the journal, finds claims again.
    ///
    /// # Errors
    /// When there is no driver, no GPU answers or the journal cannot be used.
    pub(crate) fn start(
        config: Config,
        mode: Mode,
        paths: Paths,
        events: mpsc::UnboundedSender<Msg>,
    ) -> anyhow::Result<Self> {
        let lib_dirs = LibDirs::choose(&paths.runtime_dir, &paths.state_dir);
        let nvml_path = search(config.driver.libnvidia_ml.as_deref(), &lib_dirs)
            .locate(Library::Nvml)
            .context("no NVIDIA driver\nhint: to try gshare without a GPU: gshare demo")?;
        let libcuda = search(config.driver.libcuda.as_deref(), &lib_dirs)
            .locate(Library::Cuda)
            .map_err(|e| e.to_string());
        let journal = Journal::open(&paths.state_dir.join("gshare.db"))?;
        let epoch = journal
            .meta("epoch")?
            .and_then(|e| e.parse::<u64>().ok())
            .unwrap_or(0)
            + 1;
        journal.set_meta("epoch", &epoch.to_string())?;
        let sample_tx = events.clone();
        let released = release::load(&journal)?;
        let observed = ObserverConfig {
            interval: config.service.tick,
            released: release::readings(&released),
            ..ObserverConfig::new(&nvml_path)
        };
        let observer = Observer::spawn(observed, move |sample| {
            let _ = sample_tx.send(Msg::Sample(Box::new(sample)));
        });
        let sample = observer
            .sample_now(FIRST_LOOK)
            .with_context(|| format!("cannot read the GPUs through {}", nvml_path.display()))?;
        anyhow::ensure!(
            !sample.gpus.is_empty(),
            "the driver answers but shows no GPU\nhint: nvidia-smi -L should list one"
        );

        // Instances before claims: those that a boot has taken are what claims are found on.
        let undivided = mig::restore(&config, &journal, &observer, &sample.gpus);
        let sample = observer.sample_now(FIRST_LOOK)?;
        let (tree, no_tree) = setup::open_tree(&config, mode);
        let majors = setup::majors(&config);
        let (filters, no_filter) = setup::probe_filters(&config, tree.as_ref(), &majors);
        if let Ok(real) = &libcuda {
            cover::stage_preload(&lib_dirs, real, &paths.socket)
                .context("cannot install gshare's CUDA library")?;
        }
        let strict = Strict::decide(&config, mode, tree.is_some(), libcuda.is_ok());
        let simulated = crate::figures::is_simulated(&nvml_path);
        let next_id = journal.next_id()?;
        let levers = LeverState::start(libcuda.as_deref().ok(), &events);
        let mut service = Self {
            config,
            mode,
            paths,
            started_ms: unix_ms(),
            epoch,
            machine: Machine::default(),
            journal,
            observer,
            tree,
            no_tree,
            filters,
            no_filter,
            majors,
            libcuda,
            nvml_path,
            lib_dirs,
            strict,
            simulated,
            gpus: Vec::new(),
            mps: BTreeMap::new(),
            sample: None,
            claims: BTreeMap::new(),
            waiting: BTreeMap::new(),
            remembered: super::asked::Remembered::default(),
            wishes: Wishes::default(),
            lingering: Vec::new(),
            drains: BTreeMap::new(),
            dividing: BTreeSet::new(),
            released,
            quotas: BTreeMap::new(),
            recorder: super::recorder::Recorder::default(),
            events,
            names: super::names::Names::new(),
            owners: Owners::default(),
            history: History::default(),
            sizes: super::tracks::Sizes::default(),
            features: Features::default(),
            round: Round::default(),
            policy: Policy::default(),
            off: crate::off::Off::default(),
            stages: crate::stage::Stages::default(),
            levers,
            helpers: Helpers::default(),
            gates: Gates::start()
                .inspect_err(|error| tracing::error!(%error, "shares of GPU time are not enforced"))
                .ok(),
            unwritten: Vec::new(),
            watchers: HashMap::new(),
            todo: VecDeque::new(),
            driving: false,
            origin: Instant::now(),
            next_id,
            dirty: true,
            forget_ms: 0,
        };
        service.stage_strict();
        service.identify_gpus(&sample)?;
        service.sample = Some(sample);
        service.meet_instances();
        service.load_modes()?;
        service.tend_mps();
        service.load_overheads()?;
        service.load_history();
        let xids = health::known(&service.journal);
        service.tell(Fact::Started { xids });
        if let Some(log) = service.config.driver.kernel_log.path(simulated) {
            let events = service.events.clone();
            health::watch(&log, move |xid| events.send(Msg::KernelXid(xid)).is_ok());
        }
        service.load_drains()?;
        service.load_quotas()?;
        if !service.released.is_empty() {
            drop(service.restrict_engine());
        }
        service.tell_classes();
        service.tell_lease_rules();
        service.tell_reclaim_rules();
        service.stages = service.read_stages();
        service.tell_admission();
        service.follow_off();
        // Facts first, without claims: what their members use must not count as unclaimed.
        service.find_claims_again()?;
        service.renew_mps();
        let events = service.events.clone();
        service.start_history(events);
        let expected = service.strict.binds().to_vec();
        service.check_cover(&expected);
        service.watch_driver_files();
        service.look_up_owners();
        service.refresh_facts();
        service.remember_past();
        service.measure_overheads();
        service.follow_stages(service.stages.clone());
        for text in undivided {
            service.notice(None, text);
        }
        Ok(service)
    }
}

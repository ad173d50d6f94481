//! The read-only monitor: what the driver says, where no service runs. Nothing is claimed and nothing
//! is held; every figure of a ledger is absent.

use std::thread;
use std::time::Duration;

use gshare_config::{Config, Mode};
use gshare_enforcer::driver::{Library, Search};
use gshare_enforcer::gpu::{
    GpuReading, GpuSample, GpuState as Seen, Health, Observer, ObserverConfig,
};
use gshare_enforcer::proc;
use gshare_proto::{
    Caps, ErrorCode, Figure, GpuState, GpuView, Snapshot, Source, UnclaimedView, UserView,
    WireError,
};
use gshare_ui::{Failure as Refusal, Feed, Request, Update, channel};

use super::failure::{self, Failure};

/// How long the first look at the GPUs may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// A feed for the screen from NVML alone.
///
/// # Errors
/// When there is no driver or no GPU answers.
pub(crate) fn feed() -> Result<Feed, Failure> {
    let configured = Config::load(Mode::of_process(false))?.driver.libnvidia_ml;
    let search = Search {
        configured,
        ..Search::of_this_process()
    };
    let library = search.locate(Library::Nvml).map_err(|e| {
        let text = e.to_string();
        let why = text.split('\n').next().unwrap_or_default();
        Failure::new(
            failure::NO_SERVICE,
            format!("neither a gshare service nor an NVIDIA driver on this machine: {why}"),
        )
        .with_hint("to see gshare without a GPU: gshare demo")
    })?;
    let simulated = library
        .parent()
        .and_then(std::path::Path::parent)
        .is_some_and(|dir| dir.join("board").exists());
    let (feeder, feed) = channel();
    let updates = feeder.updates.clone();
    let observer = Observer::spawn(ObserverConfig::new(&library), move |sample| {
        updates.send(Update::Snapshot(Box::new(snapshot(&sample, simulated))));
    });
    match observer.sample_now(PATIENCE) {
        Ok(sample) => {
            let first = Box::new(snapshot(&sample, simulated));
            feeder.updates.send(Update::Snapshot(first));
        }
        Err(e) => {
            let why = match observer.health() {
                Health::Unavailable(why) => why,
                _ => e.to_string(),
            };
            return Err(Failure::new(
                failure::NO_SERVICE,
                format!("no gshare service, and the NVIDIA driver does not answer: {why}"),
            ));
        }
    }
    let mut requests = feeder.requests;
    let updates = feeder.updates;
    thread::Builder::new()
        .name("monitor".to_owned())
        .spawn(move || {
            // The observer lives as long as the screen asks.
            let _observer = observer;
            while let Some(request) = requests.blocking_recv() {
                let Request::Call { seq, .. } = request else {
                    continue;
                };
                let refusal = refusal();
                let outcome = Err(Refusal {
                    message: refusal.message,
                    hint: refusal.hint,
                });
                updates.send(Update::CallResult { seq, outcome });
            }
        })?;
    Ok(feed)
}

fn refusal() -> WireError {
    WireError::new(ErrorCode::NotAvailable, "no gshare service on this machine")
        .with_hint(failure::START)
}

fn snapshot(sample: &GpuSample, simulated: bool) -> Snapshot {
    let unclaimed: Vec<UnclaimedView> = sample.gpus.iter().flat_map(processes).collect();
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Snapshot {
        taken_ms: since.map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX)),
        host: nix::unistd::gethostname()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default(),
        driver: sample.driver_version.clone(),
        simulated,
        caps: Caps::None,
        service: None,
        gpus: sample.gpus.iter().map(gpu).collect(),
        users: users(&unclaimed),
        unclaimed,
        ..Snapshot::default()
    }
}

fn gpu(reading: &GpuReading) -> GpuView {
    let figure = |value: Option<f64>, source| {
        value.map(|value| Figure {
            value,
            source,
            estimate: false,
        })
    };
    let model = reading
        .name
        .clone()
        .unwrap_or_else(|| "unknown GPU".to_owned());
    let short = model
        .trim_start_matches("NVIDIA ")
        .trim_start_matches("GeForce ");
    GpuView {
        index: reading.index,
        uuid: reading.uuid.clone().unwrap_or_default(),
        short: short.to_owned(),
        state: match reading.state {
            Seen::Ok => GpuState::Ok,
            Seen::Lost => GpuState::Lost,
            Seen::Hung => GpuState::Hung,
        },
        sms: reading.sm_count,
        mem_total: reading.mem_total,
        mem_used: reading.mem_used,
        mem_unclaimed: reading.mem_used,
        sm_active: figure(reading.gpm.and_then(|g| g.sm_active), Source::Gpm),
        sm_occupancy: figure(reading.gpm.and_then(|g| g.sm_occupancy), Source::Gpm),
        time_busy: figure(reading.time_busy, Source::TimeBusy),
        temperature_c: reading.temperature,
        power_w: reading.power_w,
        power_limit_w: reading.power_limit_w,
        model,
        ..GpuView::default()
    }
}

fn processes(reading: &GpuReading) -> Vec<UnclaimedView> {
    let listed = reading.processes.iter().flatten();
    listed
        .map(|process| {
            let uid = proc::uids(process.pid).map(|u| u.real);
            let command: Vec<String> = proc::cmdline(process.pid)
                .unwrap_or_default()
                .iter()
                .map(|a| a.to_string_lossy().into_owned())
                .collect();
            UnclaimedView {
                pid: process.pid.cast_unsigned(),
                uid,
                user: uid.map(|u| proc::user_name(u).unwrap_or_else(|| u.to_string())),
                what: command.join(" "),
                gpu: reading.index,
                mem_used: process.bytes,
                graphics: process.graphics && !process.compute,
            }
        })
        .collect()
}

/// Users by what their processes use; a sum with an unknown part is unknown.
fn users(unclaimed: &[UnclaimedView]) -> Vec<UserView> {
    let mut users: Vec<UserView> = Vec::new();
    for process in unclaimed {
        let (Some(uid), Some(name)) = (process.uid, &process.user) else {
            continue;
        };
        match users.iter_mut().find(|u| u.uid == uid) {
            Some(user) => {
                let sum = user.mem_used.zip(process.mem_used);
                user.mem_used = sum.map(|(a, b)| a.saturating_add(b));
            }
            None => users.push(UserView {
                uid,
                user: name.clone(),
                mem_used: process.mem_used,
                ..UserView::default()
            }),
        }
    }
    users
}

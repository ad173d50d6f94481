//! The read-only monitor: the screen over NVML alone, without a service.

use gshare_enforcer::driver::{Library, Search};
use gshare_enforcer::gpu::{GpuSample, Observer, ObserverConfig};
use gshare_enforcer::proc;
use gshare_proto::{Caps, Snapshot, messages};
use gshare_ui::{Failure, Feed, Feeder, Request, Update};

use crate::clock::unix_ms;
use crate::figures;

/// A feed from the GPUs of this machine until the screen is closed.
///
/// # Errors
/// When there is no NVIDIA driver.
pub fn source() -> anyhow::Result<Feed> {
    let library = Search::of_this_process().locate(Library::Nvml)?;
    let (feeder, feed) = gshare_ui::channel();
    let Feeder {
        updates,
        mut requests,
    } = feeder;
    let news = updates.clone();
    let simulated = figures::is_simulated(&library);
    let observer = Observer::spawn(ObserverConfig::new(library), move |sample| {
        news.send(Update::Snapshot(Box::new(snapshot(&sample, simulated))));
    });
    std::thread::Builder::new()
        .name("monitor".to_owned())
        .spawn(move || {
            // Kept until the screen ends.
            let _observer = observer;
            while let Some(request) = requests.blocking_recv() {
                if let Request::Call { seq, .. } = request {
                    let failure = Failure {
                        message: messages::no_service(),
                        hint: Some(messages::no_service_hint()),
                    };
                    updates.send(Update::CallResult {
                        seq,
                        outcome: Err(failure),
                    });
                }
            }
        })?;
    Ok(feed)
}

fn snapshot(sample: &GpuSample, simulated: bool) -> Snapshot {
    let user = |uid: u32| proc::user_name(uid).unwrap_or_else(|| uid.to_string());
    let unclaimed = sample
        .gpus
        .iter()
        .flat_map(|g| g.processes.iter().flatten().map(move |p| (g.index, p)))
        .map(|(gpu, p)| figures::unclaimed(p, gpu, Some(&figures::Face::of(p.pid)), user))
        .collect();
    Snapshot {
        taken_ms: unix_ms(),
        host: figures::host(),
        driver: sample.driver_version.clone(),
        simulated,
        caps: Caps::None,
        gpus: sample
            .gpus
            .iter()
            .map(|g| figures::gpu_view(g, true))
            .collect(),
        unclaimed,
        ..Snapshot::default()
    }
}

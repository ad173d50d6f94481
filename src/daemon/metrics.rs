//! Metrics for Prometheus: off unless the config names an address.
//!
//! The exporter has its own thread and runtime, so that slow or hostile scrapers take no time from the state's task,
//! which only provides a page, at most a few times per second.

mod count;
mod families;
mod ledger;
mod page;
mod request;
mod serve;

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

use anyhow::Context;
use gshare_config::{Listen, Mode};
use gshare_core::Quota;
use gshare_proto::{Snapshot, messages};
use tokio::sync::mpsc;

pub(crate) use count::Answers;
use page::{Histogram, Page};

use super::command::Command;
use super::fact::Fact;
use super::msg::Msg;
use super::world::World;

/// A value that can fall.
const GAUGE: &str = "gauge";
/// A value that only grows until the service restarts.
const COUNTER: &str = "counter";

/// The address of the exporter, if there is one; the error is for `gshare doctor`.
pub(crate) type Exporter = Result<Option<String>, String>;

/// Bounds of waiting times in seconds: from none to a day.
const WAITS: &[f64] = &[
    0.1, 1.0, 10.0, 60.0, 300.0, 1800.0, 3600.0, 14_400.0, 86_400.0,
];
/// Bounds of decision times in seconds.
const DECISIONS: &[f64] = &[0.000_01, 0.000_1, 0.001, 0.01, 0.1, 1.0];

/// The service's own counters since it started, and its exporter.
#[derive(Debug)]
pub(crate) struct Metrics {
    decisions: Histogram,
    waits: Histogram,
    answers: Answers,
    granted: u64,
    refused: u64,
    leases_over: u64,
    caps: u64,
    ended: u64,
    past_refusals: u64,
    exporter: Exporter,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            decisions: Histogram::new(DECISIONS),
            waits: Histogram::new(WAITS),
            answers: Answers::default(),
            granted: 0,
            refused: 0,
            leases_over: 0,
            caps: 0,
            ended: 0,
            past_refusals: 0,
            exporter: Ok(None),
        }
    }
}

/// Figures of the service besides its world.
#[derive(Debug, Default)]
pub(crate) struct About {
    /// The driver is simulated.
    pub(crate) simulated: bool,
    /// When it started, Unix milliseconds.
    pub(crate) started_ms: u64,
    /// Number of services that have started on this journal.
    pub(crate) epoch: u64,
    /// Ended claims that are not journaled yet.
    pub(crate) unwritten: usize,
    pub(crate) quotas: Vec<Quota>,
}

impl Metrics {
    pub(crate) fn on(&mut self, _: &World<'_>, fact: &Fact, _: &mut Vec<Command>) {
        match fact {
            Fact::Decided(step) => {
                self.decisions.observe(step.took.as_secs_f64());
                self.refused += step.refused;
                self.leases_over += step.leases_over;
                self.caps += step.caps;
            }
            // A grant counts when it is done.
            Fact::Granted { waited } => {
                self.granted += 1;
                self.waits.observe(waited.as_secs_f64());
            }
            Fact::Ended { refusals } => {
                self.ended += 1;
                self.past_refusals += refusals;
            }
            _ => {}
        }
    }

    /// Starts to listen as configured. If the address is in use, the service runs on without metrics.
    pub(crate) fn listen(&mut self, at: &Listen, mode: Mode, events: &mpsc::UnboundedSender<Msg>) {
        self.exporter = start(at, mode, events);
    }

    /// The address of the exporter, or why there is none.
    pub(crate) fn exporter(&self) -> &Exporter {
        &self.exporter
    }

    /// The recorder of answer times.
    pub(crate) fn answers(&self) -> Answers {
        self.answers.clone()
    }

    /// The page with all current figures.
    pub(crate) fn page(&self, world: &World<'_>, snapshot: &Snapshot, about: &About) -> String {
        let mut page = Page::default();
        families::dcgm(&mut page, world, snapshot);
        ledger::gpus(&mut page, snapshot);
        ledger::claims(&mut page, snapshot);
        ledger::users(&mut page, snapshot);
        families::quotas(&mut page, &about.quotas);
        families::service(&mut page, self, world, snapshot, about);
        families::process(&mut page);
        page.finish()
    }
}

fn start(listen: &Listen, mode: Mode, events: &mpsc::UnboundedSender<Msg>) -> Exporter {
    match begin(listen, mode, events.clone()) {
        Ok(place) => Ok(place),
        Err(error) => {
            let text = format!("{error:#}");
            tracing::error!("no metrics: {text}");
            Err(text)
        }
    }
}

fn begin(
    listen: &Listen,
    mode: Mode,
    events: mpsc::UnboundedSender<Msg>,
) -> anyhow::Result<Option<String>> {
    let (listener, place) = match listen {
        Listen::Off => return Ok(None),
        Listen::Tcp(address) => {
            let listener = TcpListener::bind(address)
                .with_context(|| format!("cannot listen at {address}"))?;
            let place = format!("http://{}/metrics", listener.local_addr()?);
            (serve::Listener::Tcp(listener), place)
        }
        Listen::Unix(path) => {
            let place = format!("unix:{}", path.display());
            (serve::Listener::Unix(bind(path, mode)?), place)
        }
    };
    std::thread::Builder::new()
        .name("metrics".to_owned())
        .spawn(move || serve::run(listener, events))
        .context("cannot start the thread for the metrics")?;
    tracing::info!("metrics at {place}");
    Ok(Some(place))
}

/// Binds a socket, replacing one that a previous service left.
fn bind(path: &Path, mode: Mode) -> anyhow::Result<UnixListener> {
    use std::os::unix::fs::FileTypeExt;
    if let Ok(meta) = path.symlink_metadata() {
        anyhow::ensure!(
            meta.file_type().is_socket(),
            messages::not_a_socket(path.display())
        );
        let served = std::os::unix::net::UnixStream::connect(path).is_ok();
        anyhow::ensure!(!served, "another program listens at {}", path.display());
        std::fs::remove_file(path)?;
    }
    let listener =
        UnixListener::bind(path).with_context(|| format!("cannot listen at {}", path.display()))?;
    // The figures contain no more than `gshare ps` shows to everybody.
    let bits = if mode == Mode::System { 0o666 } else { 0o600 };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(bits))?;
    Ok(listener)
}

#[cfg(test)]
mod tests;

//! Figures for Prometheus: off unless the config names a place to listen.
//!
//! The exporter has a thread and a runtime of its own, so that scrapers, slow or hostile, take no time from
//! the task that owns the state; that task only answers with a page, at most a few times a second.

mod families;
mod ledger;
mod page;
mod serve;

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

use anyhow::Context;
use gshare_config::{Listen, Mode};
use tokio::sync::{mpsc, oneshot};

use super::Msg;
use super::service::Service;

pub(crate) use page::Histogram;

/// What can go down as well.
const GAUGE: &str = "gauge";
/// What only grows, until the service starts anew.
const COUNTER: &str = "counter";

/// A request for the page.
pub(crate) type Scrape = oneshot::Sender<String>;

/// Whether and where figures can be scraped; the error is for `gshare doctor`.
pub(crate) type Exporter = Result<Option<String>, String>;

/// Starts to listen as configured. A place that is taken does not keep the service from its work.
pub(crate) fn start(listen: &Listen, mode: Mode, events: &mpsc::UnboundedSender<Msg>) -> Exporter {
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
        .context("no thread for the metrics")?;
    tracing::info!("metrics at {place}");
    Ok(Some(place))
}

/// A socket in the place of one that a service before left.
fn bind(path: &Path, mode: Mode) -> anyhow::Result<UnixListener> {
    use std::os::unix::fs::FileTypeExt;
    if let Ok(meta) = path.symlink_metadata() {
        anyhow::ensure!(
            meta.file_type().is_socket(),
            "{} exists but is not a socket",
            path.display()
        );
        let served = std::os::unix::net::UnixStream::connect(path).is_ok();
        anyhow::ensure!(!served, "somebody else listens at {}", path.display());
        std::fs::remove_file(path)?;
    }
    let listener =
        UnixListener::bind(path).with_context(|| format!("cannot listen at {}", path.display()))?;
    // The figures are no more than `gshare ps` shows to everybody.
    let bits = if mode == Mode::System { 0o666 } else { 0o600 };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(bits))?;
    Ok(listener)
}

impl Service {
    /// Answers a scrape.
    pub(crate) fn scrape(&self, out: Scrape) {
        // The caller may have gone.
        let _ = out.send(self.metrics_page());
    }
}

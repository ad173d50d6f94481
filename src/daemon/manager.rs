//! Interface to the service manager: notifications to systemd (`sd_notify`), its watchdog, and the log. Without a
//! manager it does nothing, and the log goes to stderr.

use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;
use std::time::Duration;

use sd_notify::NotifyState;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, reload};

/// Log target for administrators' acts, whatever the level.
pub(crate) const AUDIT: &str = "gshare_audit";

/// Overrides the level of the config.
const LEVEL: &str = "GSHARE_LOG";

static FILTER: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();

fn filter(level: &str) -> Targets {
    let set = std::env::var(LEVEL).ok().and_then(|set| set.parse().ok());
    set.or_else(|| format!("{level},{AUDIT}=info").parse().ok())
        .unwrap_or_default()
}

/// Starts the log: to the journal with its priorities if stderr leads there, otherwise to stderr.
pub(super) fn start_log(level: &str) {
    let (filter, handle) = reload::Layer::new(filter(level));
    let log = tracing_subscriber::registry().with(filter);
    let journal = is_journal().then(tracing_journald::layer);
    let done = match journal {
        Some(Ok(journal)) => log
            .with(journal.with_field_prefix(Some("GSHARE".to_owned())))
            .try_init(),
        _ => {
            let stderr = tracing_subscriber::fmt::layer()
                .with_writer(std::io::stderr)
                .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
                .with_target(false);
            log.with(stderr).try_init()
        }
    };
    if done.is_ok() {
        let _ = FILTER.set(handle);
    }
}

/// Changes the lowest severity that is logged.
pub(super) fn set_level(level: &str) {
    if let Some(handle) = FILTER.get()
        && let Err(error) = handle.reload(filter(level))
    {
        tracing::warn!(%error, "cannot change the log level");
    }
}

/// Whether stderr is the journal's stream, given as `device:inode` in `JOURNAL_STREAM`.
fn is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    std::fs::metadata("/proc/self/fd/2")
        .is_ok_and(|stderr| stream == format!("{}:{}", stderr.dev(), stderr.ino()))
}

/// Reports that the service answers its clients.
pub(super) fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Reports that the configuration is being read again, until [`ready`].
pub(super) fn reloading() {
    let now = NotifyState::monotonic_usec_now();
    match now {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(_) => tell(&[NotifyState::Reloading]),
    }
}

/// Reports that the service is ending.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// One line for `systemctl status`.
pub(super) fn status(text: &str) {
    tell(&[NotifyState::Status(text)]);
}

/// Interval for the watchdog; `None` without one.
pub(super) fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|most| most / 3)
}

/// Tells the watchdog that the service is alive.
pub(super) fn alive() {
    tell(&[NotifyState::Watchdog]);
}

fn tell(what: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(what) {
        tracing::debug!(%error, "cannot notify the service manager");
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn what_administrators_do_is_logged_at_every_level() {
        for level in ["error", "warn", "info", "debug"] {
            assert!(filter(level).would_enable(AUDIT, &Level::INFO), "{level}");
        }
        assert!(!filter("warn").would_enable("gshare", &Level::INFO));
        assert!(filter("debug").would_enable("gshare", &Level::DEBUG));
    }
}

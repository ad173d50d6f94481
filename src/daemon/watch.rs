//! Those who watch: a snapshot now and after every change, as fast as each takes them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gshare_proto::Reply;

use super::connection::Sender;
use super::peer::Peer;
use super::service::Service;
use super::viewer::{Viewer, Watcher};

/// No screen needs more than this, and whoever asks for more must not slow the service down.
const SHORTEST: Duration = Duration::from_millis(50);
/// Time between two snapshots for all screens of one user together.
const SPACING: Duration = Duration::from_millis(10);

/// How long so many screens of one user take, one after the other.
fn spaced(screens: usize) -> Duration {
    SPACING.saturating_mul(u32::try_from(screens).unwrap_or(u32::MAX))
}

impl Service {
    /// Sends snapshots to a connection from now on.
    pub(crate) fn watch(&mut self, peer: &Peer, out: Sender, min_interval_ms: u64) {
        // An hour is as good as never, and cannot overflow the clock.
        let least =
            Duration::from_millis(min_interval_ms).clamp(SHORTEST, Duration::from_secs(3600));
        // Many screens of one user come one after the other, also where each asks again at once.
        let own = || self.watchers.values().filter(|w| w.uid == peer.uid);
        let old = self.watchers.get(&peer.conn);
        let next = match old.map(|old| (old.sent, old.next)) {
            Some((Some(sent), _)) => sent + least.max(spaced(own().count())),
            Some((None, next)) => next,
            None => Instant::now() + spaced(own().filter(|w| w.sent.is_none()).count()),
        };
        let sent = old.and_then(|old| old.sent);
        let watcher = Watcher {
            uid: peer.uid,
            viewer: self.viewer(peer),
            out,
            least,
            next,
            sent,
        };
        self.watchers.insert(peer.conn, watcher);
        self.touch();
    }

    /// Sends the newest snapshot to those who watch and have taken the last one.
    pub(crate) fn publish(&mut self) {
        let now = Instant::now();
        let is_due = |w: &Watcher| w.due().is_some_and(|at| at <= now);
        if !self.dirty || !self.watchers.values().any(is_due) {
            return;
        }
        let snapshot = self.snapshot();
        let now = Instant::now();
        let mut screens: BTreeMap<u32, usize> = BTreeMap::new();
        for watcher in self.watchers.values() {
            *screens.entry(watcher.uid).or_default() += 1;
        }
        let mut lines: BTreeMap<Viewer, Arc<[u8]>> = BTreeMap::new();
        let is_due = |w: &&Watcher| w.due().is_some_and(|at| at <= now);
        for viewer in self.watchers.values().filter(is_due).map(|w| w.viewer) {
            lines.entry(viewer).or_insert_with(|| {
                let seen = self.with_room(viewer.uid(), snapshot.clone());
                Sender::encode(&Reply::Snapshot(Box::new(viewer.sees(seen)))).into()
            });
        }
        for watcher in self.watchers.values_mut() {
            if let Some(line) = lines.get(&watcher.viewer)
                && watcher.due().is_some_and(|at| at <= now)
            {
                watcher.out.line(Arc::clone(line));
                watcher.sent = Some(now);
                let all = screens.get(&watcher.uid).copied().unwrap_or(1);
                watcher.next = now + watcher.least.max(spaced(all));
            }
        }
        self.dirty = self.watchers.values().any(|w| w.sent != Some(now));
    }

    /// When somebody who watches is due for what has changed.
    pub(crate) fn next_publish(&self) -> Option<Instant> {
        let due = || self.watchers.values().filter_map(Watcher::due).min();
        self.dirty.then(due).flatten()
    }

    /// As what a client looks.
    pub(crate) fn viewer(&self, peer: &Peer) -> Viewer {
        let own = nix::unistd::Uid::effective().as_raw();
        if peer.is_root() || (own != 0 && peer.uid == own) {
            Viewer::All(peer.uid)
        } else {
            Viewer::User(peer.uid)
        }
    }
}

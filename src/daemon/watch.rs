//! Watching clients: a snapshot now and after every change, as fast as each reads them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gshare_proto::{Reply, Snapshot};

use super::connection::{ConnId, Sender};
use super::peer::Peer;
use super::viewer::{Viewer, Watcher};
use super::world::World;

/// Shortest time between two snapshots, so that no client slows the service down.
const SHORTEST: Duration = Duration::from_millis(50);
/// Time between two snapshots for all screens of one user together.
const SPACING: Duration = Duration::from_millis(10);

/// Time for one snapshot to each of this many screens of one user.
fn spaced(screens: usize) -> Duration {
    SPACING.saturating_mul(u32::try_from(screens).unwrap_or(u32::MAX))
}

/// The watching connections.
#[derive(Debug, Default)]
pub(crate) struct Screens {
    all: HashMap<ConnId, Watcher>,
    /// Their content has changed.
    dirty: bool,
}

impl Screens {
    /// Marks that their content has changed.
    pub(crate) fn touch(&mut self) {
        self.dirty = true;
    }

    /// Sends snapshots to a connection from now on.
    pub(crate) fn watch(&mut self, peer: &Peer, viewer: Viewer, out: Sender, min_interval_ms: u64) {
        // An hour is as good as never, and cannot overflow the clock.
        let least =
            Duration::from_millis(min_interval_ms).clamp(SHORTEST, Duration::from_secs(3600));
        // Several screens of one user follow one after the other, even if each asks again at once.
        let own = || self.all.values().filter(|w| w.uid == peer.uid);
        let old = self.all.get(&peer.conn);
        let next = match old.map(|old| (old.sent, old.next)) {
            Some((Some(sent), _)) => sent + least.max(spaced(own().count())),
            Some((None, next)) => next,
            None => Instant::now() + spaced(own().filter(|w| w.sent.is_none()).count()),
        };
        let sent = old.and_then(|old| old.sent);
        let watcher = Watcher {
            uid: peer.uid,
            viewer,
            out,
            least,
            next,
            sent,
        };
        self.all.insert(peer.conn, watcher);
        self.touch();
    }

    /// Stops sending to a connection.
    pub(crate) fn close(&mut self, conn: ConnId) {
        self.all.remove(&conn);
    }

    /// When the next one gets the changed content.
    pub(crate) fn next(&self) -> Option<Instant> {
        let due = || self.all.values().filter_map(Watcher::due).min();
        self.dirty.then(due).flatten()
    }

    /// Sends snapshots to those that have read the last one.
    pub(crate) fn publish(&mut self, seen_by: impl Fn(Viewer) -> Snapshot) {
        let now = Instant::now();
        let mut screens: BTreeMap<u32, usize> = BTreeMap::new();
        for watcher in self.all.values() {
            *screens.entry(watcher.uid).or_default() += 1;
        }
        let mut lines: BTreeMap<Viewer, Arc<[u8]>> = BTreeMap::new();
        let due = |w: &&mut Watcher| w.due().is_some_and(|at| at <= now);
        for watcher in self.all.values_mut().filter(due) {
            let line = lines.entry(watcher.viewer).or_insert_with(|| {
                Sender::encode(&Reply::Snapshot(Box::new(seen_by(watcher.viewer)))).into()
            });
            watcher.out.line(Arc::clone(line));
            watcher.sent = Some(now);
            let all = screens.get(&watcher.uid).copied().unwrap_or(1);
            watcher.next = now + watcher.least.max(spaced(all));
        }
        self.dirty = self.all.values().any(|w| w.sent != Some(now));
    }
}

/// The viewer of a client.
pub(crate) fn viewer(world: &World<'_>, peer: &Peer) -> Viewer {
    let own = nix::unistd::Uid::effective().as_raw();
    let uid = peer.uid;
    if peer.is_root() || (own != 0 && uid == own) {
        Viewer::All(uid)
    } else {
        let names = world.config.privacy.names_of_all;
        Viewer::User { uid, names }
    }
}

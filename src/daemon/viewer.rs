//! What one user may see of others: that a claim is there and which program runs in it, not its arguments, which may
//! name data, hosts or keys.

use std::time::{Duration, Instant};

use gshare_proto::{Identity, Snapshot};

use super::connection::Sender;
use crate::figures;
use crate::identity;

/// The one who looks at a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Viewer {
    /// Root and the service's own user.
    All(u32),
    /// Any other user.
    User(u32),
}

impl Viewer {
    /// Whose claims theirs would be.
    pub(crate) fn uid(self) -> u32 {
        match self {
            Self::All(uid) | Self::User(uid) => uid,
        }
    }

    /// The snapshot as it is for this viewer.
    pub(crate) fn sees(self, mut snapshot: Snapshot) -> Snapshot {
        let Self::User(uid) = self else {
            return snapshot;
        };
        for claim in snapshot.claims.iter_mut().filter(|c| c.uid != uid) {
            let named = claim.name.is_some() || identity::notebook_name(&claim.identity).is_some();
            if !named {
                claim.what = program(&claim.what);
            }
            claim.command = figures::program(&claim.command);
            claim.cgroup = None;
            for process in &mut claim.processes {
                process.what = program(&process.what);
            }
            hide(&mut claim.identity);
        }
        for queued in snapshot.queue.iter_mut().filter(|q| q.uid != uid) {
            if queued.name.is_none() {
                queued.what = program(&queued.what);
            }
        }
        for process in snapshot.unclaimed.iter_mut().filter(|u| u.uid != Some(uid)) {
            process.what = program(&process.what);
            hide(&mut process.identity);
        }
        snapshot
    }
}

/// One watching connection.
#[derive(Debug)]
pub(crate) struct Watcher {
    pub(super) uid: u32,
    pub(super) viewer: Viewer,
    pub(super) out: Sender,
    pub(super) least: Duration,
    pub(super) next: Instant,
    /// When it was last sent one.
    pub(super) sent: Option<Instant>,
}

impl Watcher {
    /// When it gets its next snapshot; `None` while it has not taken the last one.
    pub(super) fn due(&self) -> Option<Instant> {
        self.out.idle().then_some(self.next)
    }
}

/// The name of a model is from an argument.
fn hide(identity: &mut Identity) {
    identity.model = None;
}

/// Program and script of a command line as text, `[container] python train.py --lr 1`.
fn program(what: &str) -> String {
    let (lead, command) = match what.strip_prefix('[').and_then(|w| w.split_once("] ")) {
        Some((container, command)) => (format!("[{container}] "), command),
        None => (String::new(), what),
    };
    let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
    format!("{lead}{}", figures::program(&words).join(" "))
}

#[cfg(test)]
mod tests {
    use gshare_proto::{ClaimView, QueueView};

    use super::*;

    #[test]
    fn others_see_program_and_script_and_owners_all() {
        let words = ["python3", "t.py", "--data", "/secret"].map(str::to_owned);
        let snapshot = Snapshot {
            claims: vec![ClaimView {
                uid: 1,
                what: "[trainer] python3 t.py --data secret".into(),
                command: words.to_vec(),
                ..ClaimView::default()
            }],
            queue: vec![QueueView {
                uid: 1,
                what: "python3 t.py --data secret".into(),
                ..QueueView::default()
            }],
            ..Snapshot::default()
        };
        assert_eq!(Viewer::User(1).sees(snapshot.clone()), snapshot);
        assert_eq!(Viewer::All(0).sees(snapshot.clone()), snapshot);
        let seen = Viewer::User(2).sees(snapshot);
        assert_eq!(seen.claims[0].what, "[trainer] python3 t.py");
        assert_eq!(seen.claims[0].command, ["python3", "t.py"]);
        assert_eq!(seen.queue[0].what, "python3 t.py");
    }
}

//! What one user may see of others: their claims and the programs, but not their arguments, which may contain names
//! of data, hosts or keys.

use std::time::{Duration, Instant};

use gshare_proto::{Identity, Snapshot, messages};

use super::connection::Sender;
use super::history::store::ClaimFace;
use super::journal::ClaimRecord;
use crate::figures;
use crate::identity;

/// Shown instead of a program without a name.
const NAMELESS: &str = "-";

/// The viewer of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Viewer {
    /// Root and the service's own user.
    All(u32),
    /// Any other user; `names` is whether they may see others' programs and notebooks.
    User { uid: u32, names: bool },
}

impl Default for Viewer {
    fn default() -> Self {
        Self::All(0)
    }
}

impl Viewer {
    /// A user without claims here, such as a reader of the metrics.
    pub(crate) fn stranger(names: bool) -> Self {
        Self::User {
            uid: u32::MAX,
            names,
        }
    }

    /// The user as whose claims the viewer's would count.
    pub(crate) fn uid(self) -> u32 {
        match self {
            Self::All(uid) | Self::User { uid, .. } => uid,
        }
    }

    /// The user who sees no private claims of others; `None` sees all.
    pub(crate) fn only(self) -> Option<u32> {
        match self {
            Self::All(_) => None,
            Self::User { uid, .. } => Some(uid),
        }
    }

    /// Whether this viewer may read notices about the owner's programs.
    pub(crate) fn may_read(self, owner: u32) -> bool {
        match self {
            Self::All(_) => true,
            Self::User { uid, names } => names || owner == uid,
        }
    }

    /// A claim's program in a sentence: `trainer of ada`.
    pub(crate) fn program_of(self, record: &ClaimRecord, user: &str) -> String {
        if self.may_read(record.uid) {
            figures::program_of(&record.command, user)
        } else {
            format!("a program of {user}")
        }
    }

    /// A claim's name in the history.
    pub(crate) fn sees_face(self, mut face: ClaimFace) -> ClaimFace {
        if !self.may_read(face.uid) {
            NAMELESS.clone_into(&mut face.what);
            face.notebook = None;
        }
        face
    }

    /// The snapshot for this viewer.
    pub(crate) fn sees(self, mut snapshot: Snapshot) -> Snapshot {
        let Self::User { uid, names } = self else {
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
            if !names {
                NAMELESS.clone_into(&mut claim.what);
                (claim.name, claim.containers) = (None, Vec::new());
                claim.command.clear();
                if let Some(text) = &mut claim.overuse {
                    *text = messages::uses_more();
                }
                claim.identity = Identity::default();
                let processes = claim.processes.iter_mut();
                processes.for_each(|p| NAMELESS.clone_into(&mut p.what));
            }
        }
        for queued in snapshot.queue.iter_mut().filter(|q| q.uid != uid) {
            if !names {
                NAMELESS.clone_into(&mut queued.what);
                queued.name = None;
            } else if queued.name.is_none() {
                queued.what = program(&queued.what);
            }
        }
        for process in snapshot.unclaimed.iter_mut().filter(|u| u.uid != Some(uid)) {
            process.what = program(&process.what);
            hide(&mut process.identity);
            if !names {
                NAMELESS.clone_into(&mut process.what);
                process.identity = Identity::default();
            }
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
    /// When it gets its next snapshot; `None` while it has not read the last one.
    pub(super) fn due(&self) -> Option<Instant> {
        self.out.idle().then_some(self.next)
    }
}

/// The name of a model comes from an argument.
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
        let user = |uid, names| Viewer::User { uid, names };
        assert_eq!(user(1, false).sees(snapshot.clone()), snapshot);
        assert_eq!(Viewer::All(0).sees(snapshot.clone()), snapshot);
        let nameless = user(2, false).sees(snapshot.clone());
        assert_eq!(
            (&*nameless.claims[0].what, &*nameless.queue[0].what),
            ("-", "-")
        );
        assert_eq!(nameless.claims[0].command, [""; 0]);
        let seen = user(2, true).sees(snapshot);
        assert_eq!(seen.claims[0].what, "[trainer] python3 t.py");
        assert_eq!(seen.claims[0].command, ["python3", "t.py"]);
        assert_eq!(seen.queue[0].what, "python3 t.py");
    }
}

//! What one user may see of others: that a claim is there and which program runs in it, not its arguments, which may
//! name data, hosts or keys.

use gshare_proto::{Identity, Snapshot};

use super::peer::Peer;
use super::service::Service;
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

impl Service {
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

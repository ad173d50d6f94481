//! State on which commands are carried out: rules in force, journal, core, GPUs, claims, and the host. The module
//! that owns a command carries it out, and returns the commands that follow.

use gshare_enforcer::gpu::Observer;

use super::admin::rights;
use super::claims::Claims;
use super::command::Command;
use super::core::Core;
use super::engine::LeverState;
use super::gpu::Gpus;
use super::health::boot_id;
use super::host::Host;
use super::journal::{Journal, Store};
use super::outside::Policy;
use super::settings::Settings;
use super::world::{World, world_of};

#[derive(Debug)]
pub(crate) struct Effects {
    pub(crate) config: Settings,
    pub(crate) host: Host,
    pub(crate) core: Core,
    pub(crate) journal: Journal,
    pub(crate) observer: Observer,
    pub(crate) gpus: Gpus,
    pub(crate) claims: Claims,
    pub(crate) policy: Policy,
    /// Offloading, restoring, moving.
    pub(crate) levers: LeverState,
}

impl Effects {
    /// What features may read.
    pub(crate) fn world(&self) -> World<'_> {
        world_of!(self)
    }
}

/// Journals the records of a batch in one transaction. Returns the commands that remain: the rest of the batch, or,
/// if the journal fails, only the replies to its callers. Observations of GPUs are reported even if they cannot be
/// journaled.
pub(crate) fn written(journal: &Journal, batch: Vec<Command>) -> Vec<Command> {
    let (mut stored, mut rest) = (Vec::new(), Vec::new());
    for command in batch {
        match command {
            Command::Store(store) => stored.push(store),
            command => rest.push(command),
        }
    }
    if stored.is_empty() {
        return rest;
    }
    let Err(error) = journal.store(&boot_id(), &stored) else {
        return rest;
    };
    tracing::warn!(%error, ?stored, "not written down");
    if stored.iter().all(Store::is_seen) {
        return rest;
    }
    let told = |command| match command {
        Command::Reply(out, _) => Some(Command::Reply(out, Err(rights::unwritten(&error)))),
        _ => None,
    };
    rest.into_iter().filter_map(told).collect()
}

#[cfg(test)]
mod tests {
    use gshare_proto::{ErrorCode, Reply};

    use super::*;
    use crate::daemon::connection::Sender;
    use crate::daemon::journal::XidRecord;

    #[test]
    fn nothing_of_a_batch_is_done_that_cannot_be_written_down() {
        let dir = tempfile::tempdir().expect("a directory");
        let journal = Journal::open(&dir.path().join("db")).expect("opened");
        let batch = |store: Store| {
            let message = "done".to_owned();
            vec![
                Command::Refresh,
                Command::Store(store),
                Command::Reply(Sender::closed(), Ok(Reply::Done { message })),
            ]
        };
        let decision = || Store::Meta("mode.GPU-0".to_owned(), "exclusive".to_owned());
        let xid = Store::AddXid(XidRecord {
            uuid: "GPU-0".to_owned(),
            at_ms: 1,
            code: 79,
            pid: None,
            source: "nvml".to_owned(),
        });
        let done = written(&journal, batch(decision()));
        assert!(
            matches!(done[..], [Command::Refresh, Command::Reply(_, Ok(_))]),
            "{done:?}"
        );
        journal.take_no_more();
        let done = written(&journal, batch(decision()));
        assert!(
            matches!(&done[..], [Command::Reply(_, Err(error))] if error.code == ErrorCode::Storage),
            "{done:?}"
        );
        let done = written(&journal, batch(xid));
        assert_eq!(done.len(), 2, "a broken GPU is told of: {done:?}");
    }
}

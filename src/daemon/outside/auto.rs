//! Accounts of processes without a claim: a number, an owner, their use. `policy/auto.rs` chooses the processes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;

use gshare_core::machine::Event;
use gshare_core::{Bytes, ClaimId};
use gshare_enforcer::proc::{PidFd, ProcessKey};

use crate::daemon::command::{ClaimCommand, Command};
use crate::daemon::fact::Fact;
use crate::daemon::gpu::DriverUse;
use crate::daemon::journal::{ClaimRecord, Ended, Journal};

/// Use of accounted processes, by process and GPU.
pub(crate) type Seen = BTreeMap<ProcessKey, BTreeMap<usize, DriverUse>>;

/// A process without a claim that is accounted as a claim.
#[derive(Debug)]
pub(crate) struct AutoClaim {
    /// Its journaled record.
    record: ClaimRecord,
    process: ProcessKey,
    /// Its use, by GPU.
    uses: BTreeMap<usize, DriverUse>,
    /// Highest sum of its bytes.
    peak: u64,
}

impl AutoClaim {
    /// A new account without use.
    pub(crate) fn new(record: ClaimRecord, process: ProcessKey) -> Self {
        Self {
            record,
            process,
            uses: BTreeMap::new(),
            peak: 0,
        }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.process.pid
    }

    /// Identity of the process.
    pub(crate) fn process(&self) -> ProcessKey {
        self.process
    }

    /// Its journaled record.
    pub(crate) fn record(&self) -> &ClaimRecord {
        &self.record
    }

    pub(crate) fn uid(&self) -> u32 {
        self.record.uid
    }

    /// Its use, by GPU.
    pub(crate) fn uses(&self) -> &BTreeMap<usize, DriverUse> {
        &self.uses
    }

    /// Highest sum of its bytes.
    pub(crate) fn peak(&self) -> u64 {
        self.peak
    }

    /// Updates its use.
    pub(crate) fn note(&mut self, uses: BTreeMap<usize, DriverUse>) {
        let bytes = uses.values().filter_map(|u| u.bytes).sum();
        self.peak = self.peak.max(bytes);
        self.uses = uses;
    }
}

/// A change of the accounts after a look.
#[derive(Debug)]
pub(crate) enum Change {
    /// A process is accounted from now on, with a notice to everybody.
    Begin {
        /// Its record, with the number.
        record: Box<ClaimRecord>,
        process: ProcessKey,
        /// Reports its end.
        pidfd: Arc<PidFd>,
        text: String,
    },
    /// An account ends.
    End(ClaimId, String),
}

/// All accounts, by number.
#[derive(Debug, Default)]
pub(crate) struct Autos(BTreeMap<ClaimId, AutoClaim>);

impl Deref for Autos {
    type Target = BTreeMap<ClaimId, AutoClaim>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Autos {
    /// Updates the accounts by what was seen. Beginnings and ends are journaled.
    pub(crate) fn follow(
        &mut self,
        journal: &mut Journal,
        seen: Seen,
        changes: Vec<Change>,
    ) -> Vec<Command> {
        let mut told = Vec::new();
        let any = !self.0.is_empty() || !changes.is_empty();
        for change in changes {
            match change {
                Change::Begin {
                    record,
                    process,
                    pidfd,
                    text,
                } => {
                    let id = ClaimId(record.id);
                    journal.take_ids_to(id);
                    journal.keep(&record, "an auto-claim");
                    self.enter(AutoClaim::new(*record, process));
                    told.push(Command::Claims(ClaimCommand::WatchExit(id, process, pidfd)));
                    told.push(Command::NoticeOf { id, text });
                }
                Change::End(id, cause) => drop(self.end(journal, id, &cause)),
            }
        }
        for auto in self.0.values_mut() {
            if let Some(uses) = seen.get(&auto.process) {
                auto.note(uses.clone());
            }
        }
        if any {
            told.push(Command::Tell(Fact::Accounted(self.pids())));
            told.push(Command::Core(Event::Uncapped(self.held())));
        }
        told
    }

    /// Adds an account.
    pub(crate) fn enter(&mut self, auto: AutoClaim) {
        self.0.insert(ClaimId(auto.record.id), auto);
    }

    /// True if the claim was such an account, which has now ended.
    pub(crate) fn end(&mut self, journal: &mut Journal, id: ClaimId, cause: &str) -> bool {
        let Some(auto) = self.0.remove(&id) else {
            return false;
        };
        journal.put_end(Ended::new(auto.record, cause, auto.peak, 0));
        true
    }

    fn pids(&self) -> BTreeSet<u32> {
        let pids = self.0.values().map(|auto| auto.pid().cast_unsigned());
        pids.collect()
    }

    /// Their memory, for the core.
    fn held(&self) -> Vec<(ClaimId, usize, Bytes)> {
        let of = |(id, auto): (&ClaimId, &AutoClaim)| {
            let id = *id;
            let of = move |(g, u): (&usize, &DriverUse)| Some((id, *g, Bytes(u.bytes?)));
            auto.uses.iter().filter_map(of).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of).collect()
    }

    /// Whether one of them uses a GPU.
    pub(crate) fn any_on(&self, gpu: usize) -> bool {
        self.0.values().any(|a| a.uses.contains_key(&gpu))
    }
}

#[cfg(test)]
mod tests {
    use gshare_enforcer::proc;

    use super::*;
    use crate::daemon::journal::OriginRecord;

    #[test]
    fn an_account_has_its_peak_and_its_end_in_the_journal() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("db");
        let mut journal = Journal::open(&path).expect("opened");
        let pid = std::process::id().cast_signed();
        let process = proc::key(pid).expect("it lives");
        let id = journal.next_id();
        let record = Box::new(ClaimRecord {
            id: id.0,
            origin: OriginRecord {
                uncapped: true,
                ..OriginRecord::default()
            },
            ..ClaimRecord::default()
        });
        let begin = Change::Begin {
            record,
            process,
            pidfd: Arc::new(PidFd::open(pid).expect("it may").expect("it lives")),
            text: "counted".to_owned(),
        };
        let uses = |bytes| {
            let used = DriverUse {
                processes: 1,
                bytes: Some(bytes),
                busy: None,
            };
            Seen::from([(process, BTreeMap::from([(1, used)]))])
        };
        let mut autos = Autos::default();
        assert!(
            autos
                .follow(&mut journal, Seen::new(), Vec::new())
                .is_empty()
        );
        let told = autos.follow(&mut journal, uses(7), vec![begin]);
        let held = Event::Uncapped(vec![(id, 1, Bytes(7))]);
        assert!(
            matches!(&told[..], [Command::Claims(ClaimCommand::WatchExit(..)), Command::NoticeOf { .. },
                Command::Tell(Fact::Accounted(pids)), Command::Core(event)]
                if pids.contains(&pid.cast_unsigned()) && *event == held),
            "{told:?}"
        );
        assert!(journal.next_id() > id && autos.any_on(1) && !autos.any_on(0));
        autos.follow(&mut journal, uses(5), Vec::new());
        let end = Change::End(id, "left the GPU".to_owned());
        let told = autos.follow(&mut journal, Seen::new(), vec![end]);
        let none = Event::Uncapped(Vec::new());
        assert!(
            matches!(&told[..], [Command::Tell(Fact::Accounted(pids)), Command::Core(event)]
                if pids.is_empty() && *event == none),
            "the core forgets what it had: {told:?}"
        );
        let ended = journal.uncapped_since(0).expect("read");
        assert_eq!(ended.len(), 1);
        assert!(!autos.end(&mut journal, id, "again"));
    }
}

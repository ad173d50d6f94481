//! What features want to be done. Closed. The commands of one fact are collected while all features see it, and then
//! carried out by the service, the journal first.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use gshare_core::machine::Event;
use gshare_core::{Bytes, ClaimId};
use gshare_enforcer::proc::{PidFd, ProcessKey, Terminal};

use super::fact::Fact;
use super::journal::Store;

/// Something to do.
#[derive(Debug)]
pub(crate) enum Command {
    /// Write it into the journal, in one transaction with the others of the same fact. A full disk loses it, and nothing
    /// else.
    Store(Store),
    /// The core hears of something.
    Core(Event),
    /// All features hear of something.
    Tell(Fact),
    /// The core hears what the GPUs are like now.
    Refresh,
    /// Start the MPS daemons that are wanted, and let the others go.
    TendMps,
    /// Give MPS daemons a new directory whose user has gone.
    RenewMps,
    /// Let a user through to the MPS daemon of a GPU.
    LetIntoMps {
        /// Index.
        gpu: usize,
        /// The user.
        uid: u32,
    },
    /// Bring the filter that keeps programs outside claims from GPUs to where it belongs.
    Deny,
    /// Make the filters of all claims, of what is left of ended ones, and of programs without a claim anew.
    FiltersAnew,
    /// Account processes outside claims by the newest sample.
    Account,
    /// Compare the newest sample with what claims may have.
    Reconcile,
    /// Find out on which GPUs the driver itself can limit memory.
    ProbeLimits,
    /// Have the driver hold a claim to its size.
    LimitMemory(ClaimId),
    /// Write the caps of a claim on a GPU into its page.
    WriteCaps(ClaimId, usize),
    /// A member of a claim that has nothing but a context uses so much of a GPU.
    Relearn(ClaimId, usize, Bytes),
    /// Tell the end of a process, which belongs to this claim.
    WatchExit(ClaimId, ProcessKey, Arc<PidFd>),
    /// Send a signal to processes of claims.
    Signal(Vec<ProcessKey>, i32),
    /// MPS has ended the work of a claim that ends: its processes are signalled.
    SignalEnd(ClaimId),
    /// End the command of a claim and queue it again.
    Requeue {
        /// Which.
        id: ClaimId,
        /// Why.
        why: String,
    },
    /// Keep a claim when its command has ended.
    Hold(ClaimId),
    /// Offload a claim although nobody waits.
    Offload(ClaimId),
    /// Guarantee to a claim no more than it uses.
    Shrink(ClaimId),
    /// End a claim.
    End {
        /// Which.
        id: ClaimId,
        /// Why.
        cause: Cow<'static, str>,
    },
    /// Use the cgroup of a claim on behalf that has appeared.
    Enter(ClaimId),
    /// Find out which of these to end: as few as let somebody start.
    FewestToEnd(Vec<ClaimId>),
    /// Read what these claims have used of processors and disks.
    ReadVitals(Vec<ClaimId>),
    /// Look up the groups of a user.
    LookUpGroups(u32),
    /// Ask the Jupyter servers of all kernels.
    AskServers,
    /// Look, as the owner of a claim, whether its kernel's connection file is there.
    LookFor(ClaimId, u32, PathBuf),
    /// GPUs are shared in another way: MPS follows, and the core is told.
    ShareAnew,
    /// What is shown has changed.
    Publish,
    /// Tell everybody on the screen.
    Notice(String),
    /// Tell on the screen what is about a claim, and write it down.
    NoticeOf {
        /// Which.
        id: ClaimId,
        /// What.
        text: String,
    },
    /// Write a line to the terminal of a program without a claim.
    Say(Terminal, String),
    /// Tell a user on the screen.
    TellUser(u32, String),
    /// Tell the owner of a claim, also on its terminals and in its notebook.
    TellOwner {
        /// Which.
        id: ClaimId,
        /// What.
        text: String,
    },
}

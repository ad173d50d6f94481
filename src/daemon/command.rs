//! What features want to be done. Closed. The commands of one fact are collected while all features see it, and then
//! carried out by the service, the journal first.

use std::path::PathBuf;

use gshare_core::ClaimId;
use gshare_enforcer::proc::Terminal;

use super::journal::Store;

/// Something to do.
#[derive(Debug)]
pub(crate) enum Command {
    /// Write it into the journal, in one transaction with the others of the same fact. A full disk loses it, and nothing
    /// else.
    Store(Store),
    /// Offload a claim although nobody waits.
    Offload(ClaimId),
    /// Guarantee to a claim no more than it uses.
    Shrink(ClaimId),
    /// End a claim.
    End {
        /// Which.
        id: ClaimId,
        /// Why.
        cause: &'static str,
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

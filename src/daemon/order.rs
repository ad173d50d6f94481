//! What a caller has asked for and may have: what is written down, then done, then answered.

use gshare_proto::{AdminDone, Reply, WireError};

use super::command::Command;
use super::features::Features;
use super::journal::Store;
use super::world::World;

/// One decision for the audit log.
#[derive(Debug)]
pub(crate) struct Act {
    /// `drain`.
    pub(crate) action: &'static str,
    /// On what.
    pub(crate) target: String,
    /// The state before.
    pub(crate) before: String,
    /// The state after.
    pub(crate) after: String,
    /// The reason given.
    pub(crate) reason: Option<String>,
}

/// What a caller has asked for and may have. It is written down first, in one transaction, or nothing of it is done.
#[derive(Default)]
pub(crate) struct Order {
    /// For the audit log.
    pub(crate) acts: Vec<Act>,
    /// Written with them.
    pub(crate) stores: Vec<Store>,
    /// Written then: a line in the state directory. If that fails nothing else is done.
    pub(crate) file: Option<File>,
    /// Done then, in order.
    pub(crate) then: Vec<Command>,
    /// What the caller is told of that; `None` where a command answers.
    pub(crate) answer: Option<Answer>,
}

type File = Box<dyn FnOnce() -> Result<(), WireError>>;
type Answer = Box<dyn FnOnce(&World<'_>, &Features) -> Result<Reply, WireError>>;

impl std::fmt::Debug for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut order = f.debug_struct("Order");
        order
            .field("acts", &self.acts)
            .field("stores", &self.stores);
        order.field("then", &self.then).finish_non_exhaustive()
    }
}

impl Order {
    /// One that does this; its answer is made when all is done.
    pub(crate) fn then(
        then: Vec<Command>,
        answer: impl FnOnce(&World<'_>, &Features) -> Result<Reply, WireError> + 'static,
    ) -> Self {
        Self {
            then,
            answer: Some(Box::new(answer)),
            ..Self::default()
        }
    }

    /// An administrator's that does nothing yet; its answer is made when all is done.
    pub(crate) fn answered(
        answer: impl FnOnce(&World<'_>, &Features) -> AdminDone + 'static,
    ) -> Self {
        Self::then(Vec::new(), |world, features| {
            Ok(Reply::Admin(answer(world, features)))
        })
    }

    /// An administrator's that does nothing yet, with an answer that is known.
    pub(crate) fn saying(message: String, undo: Option<String>) -> Self {
        Self::answered(move |_, _| AdminDone { message, undo })
    }

    /// Whether something is to be written down.
    pub(crate) fn is_kept(&self) -> bool {
        !self.acts.is_empty() || !self.stores.is_empty()
    }
}

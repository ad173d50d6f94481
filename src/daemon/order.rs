//! A permitted request: what is journaled, then done, then answered.

use gshare_proto::{AdminDone, Reply, WireError};

use super::command::Command;
use super::features::Features;
use super::journal::Store;
use super::world::World;

/// One entry of the audit log.
#[derive(Debug)]
pub(crate) struct Act {
    /// `drain`.
    pub(crate) action: &'static str,
    pub(crate) target: String,
    pub(crate) before: String,
    pub(crate) after: String,
    pub(crate) reason: Option<String>,
}

/// A permitted request. It is journaled first, in one transaction; if that fails, nothing of it is done.
#[derive(Default)]
pub(crate) struct Order {
    /// Entries of the audit log.
    pub(crate) acts: Vec<Act>,
    /// Records written with them.
    pub(crate) stores: Vec<Store>,
    /// A line in the state directory, written next. If that fails, nothing else is done.
    pub(crate) file: Option<File>,
    /// Commands carried out next, in order.
    pub(crate) then: Vec<Command>,
    /// The answer; `None` if a command answers.
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
    /// An order with these commands; its answer is made afterwards.
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

    /// An administrator's order without commands yet; its answer is made afterwards.
    pub(crate) fn answered(
        answer: impl FnOnce(&World<'_>, &Features) -> AdminDone + 'static,
    ) -> Self {
        Self::then(Vec::new(), |world, features| {
            Ok(Reply::Admin(answer(world, features)))
        })
    }

    /// An administrator's order without commands yet, with a known answer.
    pub(crate) fn saying(message: String, undo: Option<String>) -> Self {
        Self::answered(move |_, _| AdminDone { message, undo })
    }

    /// Whether something must be written.
    pub(crate) fn is_kept(&self) -> bool {
        !self.acts.is_empty() || !self.stores.is_empty()
    }
}

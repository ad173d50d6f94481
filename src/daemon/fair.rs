//! Order of messages: the service's own messages first; clients' messages by owner, the owner with the least recent
//! work first. A flood of messages delays only its own sender.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;

use super::msg::Msg;

/// Maximum number of owners whose work is remembered.
const REMEMBERED: usize = 1024;

#[derive(Debug, Default)]
struct Owner {
    waiting: VecDeque<Msg>,
    /// Work for them, counted from the smallest value when they arrived.
    spent: Duration,
}

/// Messages in the queue.
#[derive(Debug, Default)]
pub(crate) struct Fair {
    own: VecDeque<Msg>,
    owners: BTreeMap<u32, Owner>,
    /// Work of the last served owner before that message.
    floor: Duration,
}

impl Fair {
    /// Waits for a message, and takes in all that have arrived. Cancel safe.
    pub(crate) async fn arrived(&mut self, inbox: &mut UnboundedReceiver<Msg>) {
        if self.is_empty()
            && let Some(msg) = inbox.recv().await
        {
            self.put(msg);
        }
        while let Ok(msg) = inbox.try_recv() {
            self.put(msg);
        }
    }

    fn is_empty(&self) -> bool {
        self.own.is_empty() && self.owners.values().all(|o| o.waiting.is_empty())
    }

    fn put(&mut self, msg: Msg) {
        let Some(uid) = msg.owner() else {
            self.own.push_back(msg);
            return;
        };
        if self.owners.len() >= REMEMBERED {
            self.owners.retain(|_, owner| !owner.waiting.is_empty());
        }
        let owner = self.owners.entry(uid).or_default();
        if owner.waiting.is_empty() {
            // An owner cannot save up credit for a flood.
            owner.spent = owner.spent.max(self.floor);
        }
        owner.waiting.push_back(msg);
    }

    /// The next message, and its owner.
    pub(crate) fn next(&mut self) -> Option<(Option<u32>, Msg)> {
        if let Some(msg) = self.own.pop_front() {
            return Some((None, msg));
        }
        let waiting = self
            .owners
            .iter_mut()
            .filter(|(_, o)| !o.waiting.is_empty());
        let (uid, owner) = waiting.min_by_key(|(_, o)| o.spent)?;
        self.floor = owner.spent;
        Some((Some(*uid), owner.waiting.pop_front()?))
    }

    /// Adds the time that the message took.
    pub(crate) fn took(&mut self, owner: Option<u32>, time: Duration) {
        if let Some(owner) = owner.and_then(|uid| self.owners.get_mut(&uid)) {
            owner.spent += time;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_waits_behind_itself() {
        let mut fair = Fair::default();
        let closed = |conn, uid| Msg::Closed { conn, uid };
        (0..100).for_each(|n| fair.put(closed(n, 7)));
        fair.put(closed(1000, 8));
        fair.put(closed(1001, 8));
        fair.put(Msg::Places);
        let mut order = Vec::new();
        while let Some((owner, _)) = fair.next() {
            fair.took(owner, Duration::from_millis(5));
            order.push(owner);
        }
        assert_eq!(order[..5], [None, Some(7), Some(8), Some(7), Some(8)]);
        assert_eq!(order.len(), 103);
        // A new owner starts without credit and without debt.
        (0..10).for_each(|n| fair.put(closed(n, 7)));
        (0..10).for_each(|n| fair.put(closed(n, 9)));
        let mut first = Vec::new();
        for _ in 0..6 {
            let (owner, _) = fair.next().expect("waits");
            fair.took(owner, Duration::from_millis(5));
            first.push(owner);
        }
        let nine = first.iter().filter(|o| **o == Some(9)).count();
        assert!((2..=4).contains(&nine), "{first:?}");
    }
}

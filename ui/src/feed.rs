//! Messages between the screen and its feeder: the service, the read-only monitor or the demo.
//!
//! Neither side ever waits for the other: a snapshot that the screen has not yet taken is replaced by the next one,
//! and requests are answered later by an update with the same number.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gshare_proto::{Call, Reply, Snapshot};
use tokio::sync::{Notify, mpsc};

/// News for the screen.
#[derive(Clone, Debug, PartialEq)]
pub enum Update {
    /// The state of everything; only the newest one counts.
    Snapshot(Box<Snapshot>),
    /// The source of snapshots is gone, in words; it ends with the next snapshot.
    Disconnected(String),
    /// The answer to [`Request::Call`].
    CallResult {
        /// Number of the request.
        seq: u64,
        /// The service's reply, or the error.
        outcome: Result<Reply, Failure>,
    },
    /// The line at the bottom of the demo; `None` removes it.
    Caption(Option<String>),
    /// Close the screen, at the end of the demo.
    Close,
}

/// Why a request failed, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Sentence, lower case, no full stop.
    pub message: String,
    /// What the user can do.
    pub hint: Option<String>,
}

impl Failure {
    /// Message and hint as one sentence.
    #[must_use]
    pub fn sentence(&self) -> String {
        let hint = self.hint.as_ref().map(|h| format!(". {h}"));
        format!("{}{}", self.message, hint.unwrap_or_default())
    }
}

/// Requests of the screen to its feeder.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// A call to the service, to be answered by [`Update::CallResult`].
    Call {
        /// Number that the answer will have.
        seq: u64,
        call: Box<Call>,
    },
    /// Pause or continue the demo's captions or the replay.
    Captions { paused: bool },
    /// Seek in a recording.
    Replay(Seek),
}

/// Direction of a seek in a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// Twice as fast.
    Faster,
    /// Half as fast.
    Slower,
    /// Some seconds on.
    Forward,
    /// Some seconds back.
    Back,
}

#[derive(Default)]
struct Pending {
    news: Vec<Update>,
    closed: bool,
}

/// Is called with all updates for the screen.
type Tap = Box<dyn FnMut(&Update) + Send>;

#[derive(Default)]
struct Shared {
    pending: Mutex<Pending>,
    wake: Notify,
    tap: Mutex<Option<Tap>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The feeder's end for updates; works from threads and tasks, and never blocks.
#[derive(Clone)]
pub struct UpdateSender(Arc<Shared>);

impl UpdateSender {
    /// Sends an update to the screen. `false` when the screen is closed.
    pub fn send(&self, update: Update) -> bool {
        let tap = &self.0.tap;
        if let Some(tap) = &mut *tap.lock().unwrap_or_else(PoisonError::into_inner) {
            tap(&update);
        }
        let mut pending = self.0.lock();
        if pending.closed {
            return false;
        }
        // A snapshot replaces the previous one, and cancels an earlier disconnection.
        let new = matches!(update, Update::Snapshot(_));
        let lost = matches!(update, Update::Disconnected(_));
        pending.news.retain(|old| match old {
            Update::Snapshot(_) => !new,
            Update::Disconnected(_) => !new && !lost,
            _ => true,
        });
        pending.news.push(update);
        drop(pending);
        self.0.wake.notify_one();
        true
    }

    /// Whether the screen is closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.lock().closed
    }
}

/// The screen's end for updates.
pub struct Updates(Arc<Shared>);

impl Updates {
    /// All updates since the last call, with only the newest snapshot. Waits for at least one.
    pub(crate) async fn next(&self) -> Vec<Update> {
        loop {
            let woken = self.0.wake.notified();
            let news = self.take();
            if !news.is_empty() {
                return news;
            }
            woken.await;
        }
    }

    /// All updates since the last call, with only the newest snapshot.
    #[must_use]
    pub fn take(&self) -> Vec<Update> {
        std::mem::take(&mut self.0.lock().news)
    }
}

impl Drop for Updates {
    fn drop(&mut self) {
        self.0.lock().closed = true;
    }
}

/// Both directions, at the screen's end.
pub struct Feed {
    /// From the feeder.
    pub updates: Updates,
    /// To the feeder.
    pub requests: mpsc::UnboundedSender<Request>,
}

impl Feed {
    /// The same; `tap` sees all updates, including those that are never drawn.
    #[must_use]
    pub fn tapped(self, tap: impl FnMut(&Update) + Send + 'static) -> Self {
        let shared = &self.updates.0.tap;
        *shared.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(tap));
        self
    }

    /// Another sender of updates, for closing the screen from outside.
    #[must_use]
    pub fn sender(&self) -> UpdateSender {
        UpdateSender(Arc::clone(&self.updates.0))
    }
}

/// Both directions, at the feeder's end.
pub struct Feeder {
    /// To the screen.
    pub updates: UpdateSender,
    /// Requests; ends when the screen is closed.
    pub requests: mpsc::UnboundedReceiver<Request>,
}

/// A screen's feed and its feeder.
#[must_use]
pub fn channel() -> (Feeder, Feed) {
    let shared = Arc::new(Shared::default());
    let (request_tx, request_rx) = mpsc::unbounded_channel();
    (
        Feeder {
            updates: UpdateSender(Arc::clone(&shared)),
            requests: request_rx,
        },
        Feed {
            updates: Updates(shared),
            requests: request_tx,
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(at: u64) -> Update {
        Update::Snapshot(Box::new(Snapshot {
            taken_ms: at,
            ..Snapshot::default()
        }))
    }

    #[test]
    fn only_the_newest_snapshot_is_kept_and_nothing_else_is_lost() {
        let (feeder, feed) = channel();
        let answer = Update::CallResult {
            seq: 7,
            outcome: Ok(Reply::Done {
                message: "c3 released".to_owned(),
            }),
        };
        assert!(feeder.updates.send(Update::Disconnected("gone".to_owned())));
        for at in 1..=100 {
            feeder.updates.send(snapshot(at));
        }
        feeder.updates.send(answer.clone());
        assert_eq!(feed.updates.take(), [snapshot(100), answer]);
        assert!(feed.updates.take().is_empty());
    }

    #[test]
    fn a_tap_sees_what_the_screen_has_no_time_for() {
        let (feeder, feed) = channel();
        let seen = Arc::new(Mutex::new(0));
        let count = Arc::clone(&seen);
        let feed = feed.tapped(move |_| *count.lock().unwrap() += 1);
        for at in 0..5 {
            feeder.updates.send(snapshot(at));
        }
        assert_eq!(feed.updates.take().len(), 1);
        assert_eq!(*seen.lock().unwrap(), 5);
    }

    #[test]
    fn a_loss_after_the_snapshot_is_told_after_it() {
        let (feeder, feed) = channel();
        feeder.updates.send(snapshot(1));
        feeder.updates.send(Update::Disconnected("gone".to_owned()));
        assert_eq!(
            feed.updates.take(),
            [snapshot(1), Update::Disconnected("gone".to_owned())]
        );
    }

    #[test]
    fn the_feeder_learns_that_the_screen_is_closed() {
        let (feeder, feed) = channel();
        drop(feed);
        assert!(feeder.updates.is_closed());
        assert!(!feeder.updates.send(snapshot(1)));
    }
}

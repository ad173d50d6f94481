//! Resources of the service that one user's connections may use together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of one user's requests that are read and not answered yet. A long one counts as several.
const REQUESTS: u32 = 32;
/// Bytes per counted request.
const REQUEST_BYTES: usize = 8 * 1024;
/// Maximum bytes per second of one user's longer lines: reading one blocks the thread that serves everybody.
const LONG_A_SECOND: f64 = 8.0 * 1024.0 * 1024.0;
/// Bytes of an incomplete line that are free for a connection.
pub(super) const SMALL: usize = 4 * 1024;
/// Maximum bytes above that, over all connections of a user.
const UNFINISHED: usize = 2 << 20;
/// Maximum number of one user's connections read or written at a time; then others are served.
const AT_A_TIME: usize = 4;
/// Maximum number of one user's new connections whose owner is being determined at a time.
const ARRIVALS: usize = 2;
/// Sustained rate of new connections per user and second; size of a burst; and longest wait of those beyond.
const A_SECOND: u32 = 250;
const AT_ONCE: u32 = 1000;
const HELD_BACK: Duration = Duration::from_secs(8);

/// One user's budget.
#[derive(Debug)]
pub(super) struct Budget {
    requests: Arc<Semaphore>,
    /// When the next long line is accepted.
    long: tokio::sync::Mutex<Instant>,
    rounds: Semaphore,
    unfinished: AtomicUsize,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            requests: Arc::new(Semaphore::new(REQUESTS as usize)),
            long: tokio::sync::Mutex::new(Instant::now()),
            rounds: Semaphore::new(AT_A_TIME),
            unfinished: AtomicUsize::new(0),
        }
    }
}

impl Budget {
    /// Waits until a request of this length may be handled.
    pub(super) async fn request(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let weight = u32::try_from(1 + bytes / REQUEST_BYTES).unwrap_or(REQUESTS);
        let requests = Arc::clone(&self.requests);
        let permit = requests.acquire_many_owned(weight.min(REQUESTS)).await;
        if weight > 1 {
            let mut long = self.long.lock().await;
            tokio::time::sleep_until((*long).into()).await;
            *long = Instant::now() + Duration::from_secs_f64(bytes as f64 / LONG_A_SECOND);
        }
        permit.ok()
    }

    /// Waits for this connection's turn among those of its user, and runs `act`; then all others have theirs.
    pub(super) async fn round<T>(&self, act: impl FnOnce() -> T) -> T {
        let _round = self.rounds.acquire().await;
        let done = act();
        tokio::task::yield_now().await;
        done
    }
}

/// Bytes of an incomplete line of one connection.
#[derive(Debug)]
pub(super) struct Unfinished {
    budget: Arc<Budget>,
    counted: usize,
}

impl Unfinished {
    pub(super) fn new(budget: Arc<Budget>) -> Self {
        Self { budget, counted: 0 }
    }

    /// Reserves this much; false if it exceeds the budget.
    pub(super) fn hold(&mut self, bytes: usize) -> bool {
        let counted = bytes.saturating_sub(SMALL);
        let all = &self.budget.unfinished;
        if counted > self.counted {
            let more = counted - self.counted;
            let before = all.fetch_add(more, Ordering::Relaxed);
            self.counted = counted;
            return before + more <= UNFINISHED;
        }
        all.fetch_sub(self.counted - counted, Ordering::Relaxed);
        self.counted = counted;
        true
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.hold(0);
    }
}

/// Connection rate of a user.
#[derive(Debug)]
pub(super) struct Pace {
    /// Time until which the connections so far use up the rate.
    until: Instant,
    arrivals: Arc<Semaphore>,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            until: Instant::now(),
            arrivals: Arc::new(Semaphore::new(ARRIVALS)),
        }
    }
}

impl Pace {
    /// One more connection: how long it must wait first; `None` if it is one too many.
    pub(super) fn connect(&mut self, now: Instant) -> Option<Duration> {
        const EACH: Duration = Duration::from_nanos(1_000_000_000 / A_SECOND as u64);
        let until = self.until.max(now);
        let wait = (until - now).saturating_sub(EACH * AT_ONCE);
        if wait > HELD_BACK {
            return None;
        }
        self.until = until + EACH;
        Some(wait)
    }

    /// For determining the owner of a connection, which reads files of the kernel.
    pub(super) fn arrivals(&self) -> Arc<Semaphore> {
        Arc::clone(&self.arrivals)
    }

    /// Whether nothing is left to remember.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.until <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_of_one_user_are_taken_one_after_the_other_and_short_ones_at_once() {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_time().build().unwrap();
        let took = |bytes: usize| {
            let begun = Instant::now();
            runtime.block_on(async {
                let budget = Budget::default();
                for _ in 0..9 {
                    drop(budget.request(bytes).await);
                }
            });
            begun.elapsed()
        };
        // Eight times 256 KiB, after the first.
        assert!(took(256 << 10) >= Duration::from_millis(250));
        assert!(took(4 << 10) < Duration::from_millis(100));
    }

    #[test]
    fn halves_of_lines_share_one_budget_and_give_it_back() {
        let budget = Arc::new(Budget::default());
        let mut held = Vec::new();
        let room = loop {
            let mut one = Unfinished::new(Arc::clone(&budget));
            if !one.hold(256 * 1024) {
                break held.len();
            }
            held.push(one);
        };
        assert!((6..=8).contains(&room), "{room}");
        let mut small = Unfinished::new(Arc::clone(&budget));
        assert!(small.hold(SMALL), "a small one is always read");
        held.clear();
        assert!(small.hold(256 * 1024));
        drop(small);
        assert_eq!(budget.unfinished.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_user_connects_a_thousand_times_at_once_and_then_at_a_pace() {
        let begin = Instant::now();
        let mut pace = Pace {
            until: begin,
            ..Pace::default()
        };
        let millis = |n: u64| Some(Duration::from_millis(n));
        let seen: Vec<_> = (0..4000).map(|_| pace.connect(begin)).collect();
        for (n, wait) in [
            (0, 0),
            (999, 0),
            (1000, 0),
            (1001, 4),
            (1250, 1000),
            (3000, 8000),
        ] {
            assert_eq!(seen[n], millis(wait), "{n}");
        }
        assert!(seen[3001..].iter().all(Option::is_none));
        assert_eq!(pace.connect(begin + Duration::from_secs(2)), millis(6004));
        assert!(!pace.is_over(begin + Duration::from_secs(12)));
        let later = begin + Duration::from_secs(13);
        assert!(pace.is_over(later));
        assert_eq!(pace.connect(later), millis(0));
    }
}

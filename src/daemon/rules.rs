//! Rules of classes: the core hears of them, and of the local time by which some of them hold.

use chrono::Timelike;
use gshare_core::machine::Event;
use gshare_proto::{ErrorCode, WireError};

use super::server::Peer;
use super::service::Service;

/// Claims that one user may hold and await together: each costs descriptors and a place in every decision.
const CLAIMS_PER_USER: usize = 512;

/// Local time in minutes from midnight.
fn minute_now() -> u16 {
    let now = chrono::Local::now();
    u16::try_from(now.hour() * 60 + now.minute()).unwrap_or(0)
}

impl Service {
    /// Gives the core the rules of the configuration.
    pub(crate) fn tell_classes(&mut self) {
        self.drive(Event::Classes(self.config.classes.clone()));
        self.tell_minute();
    }

    /// Gives the core the time of the day, when it has changed.
    pub(crate) fn tell_minute(&mut self) {
        let minute = minute_now();
        if self.machine.minute() != minute {
            self.drive(Event::Minute(minute));
        }
    }

    /// Whether a user may have one more claim.
    pub(crate) fn room_for(&self, peer: &Peer) -> Result<(), WireError> {
        let held = self.claims.values().map(|l| l.record.uid);
        let waiting = self.waiting.values().map(|a| a.record.uid);
        let own = held.chain(waiting).filter(|uid| *uid == peer.uid).count();
        if own < CLAIMS_PER_USER {
            return Ok(());
        }
        Err(WireError::new(
            ErrorCode::NotAvailable,
            format!("you hold and await {own} claims, the most that one user may"),
        )
        .with_hint("gshare queue shows what waits; gshare release gives claims back"))
    }
}

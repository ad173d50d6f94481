//! Rules of classes: the core hears of them, and of the local time by which some of them hold.

use chrono::Timelike;
use gshare_core::machine::Event;

use super::service::Service;

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
}

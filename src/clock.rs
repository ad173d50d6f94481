//! Times as whole numbers.

use std::time::{Duration, Instant};

use chrono::{DateTime, Datelike, Local, NaiveDate, NaiveTime, TimeZone, Weekday};

#[cfg(test)]
thread_local! {
    /// The time of a test that sets it: by both clocks.
    pub(crate) static SET: std::cell::Cell<Option<(Instant, u64)>> = const { std::cell::Cell::new(None) };
}

/// This moment of the monotonic clock.
pub(crate) fn instant() -> Instant {
    #[cfg(test)]
    if let Some((at, _)) = SET.get() {
        return at;
    }
    Instant::now()
}

pub(crate) fn unix_ms() -> u64 {
    #[cfg(test)]
    if let Some((_, at)) = SET.get() {
        return at;
    }
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, millis)
}

/// `Mon 30 Nov 08:00`, as the machine's clock shows it.
pub(crate) fn local(unix_ms: u64) -> String {
    let at = i64::try_from(unix_ms).ok();
    let at = at.and_then(DateTime::from_timestamp_millis);
    at.map_or_else(String::new, |at| {
        at.with_timezone(&Local)
            .format("%a %-d %b %H:%M")
            .to_string()
    })
}

/// The next time at which a clock shows this: `08:00`, `Mon 08:00`, `2026-12-01 08:00`. `now` is the present time.
///
/// # Errors
///
/// The accepted forms, in words.
pub(crate) fn next<Tz: TimeZone>(text: &str, now: &DateTime<Tz>) -> Result<DateTime<Tz>, String> {
    let wrong = || {
        "expected a time in the future, such as \"Mon 08:00\", \"08:00\" or \"2026-12-01 08:00\""
            .to_owned()
    };
    let (day, time) = text.trim().rsplit_once(' ').unwrap_or(("", text.trim()));
    let time = NaiveTime::parse_from_str(time, "%H:%M").map_err(|_| wrong())?;
    let date = NaiveDate::parse_from_str(day.trim(), "%Y-%m-%d").ok();
    let weekday = match (date, day.trim()) {
        (Some(_), _) | (None, "") => None,
        (None, day) => Some(day.parse::<Weekday>().map_err(|_| wrong())?),
    };
    // A day on which the clock skips that time is passed over.
    let days = date.unwrap_or(now.date_naive()).iter_days();
    let days = days.take(if date.is_some() { 1 } else { 15 });
    let at = |day: NaiveDate| {
        day.and_time(time)
            .and_local_timezone(now.timezone())
            .earliest()
    };
    days.filter(|day| weekday.is_none_or(|w| w == day.weekday()))
        .filter_map(at)
        .find(|at| at > now)
        .ok_or_else(wrong)
}

/// Whole nanoseconds of a duration.
pub(crate) fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

/// Whole milliseconds of a duration.
pub(crate) fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_the_next_that_the_clock_shows() {
        // A Wednesday, 14:30 UTC.
        let now = chrono::Utc
            .with_ymd_and_hms(2026, 11, 25, 14, 30, 0)
            .unwrap();
        let of = |text: &str| next(text, &now).map(|at| at.naive_utc().to_string());
        for (text, wanted) in [
            ("Mon 08:00", "2026-11-30 08:00:00"),
            ("monday 8:00", "2026-11-30 08:00:00"),
            ("Wed 15:00", "2026-11-25 15:00:00"),
            ("Wed 14:30", "2026-12-02 14:30:00"),
            ("08:00", "2026-11-26 08:00:00"),
            ("2027-01-04 07:05", "2027-01-04 07:05:00"),
        ] {
            assert_eq!(of(text).as_deref(), Ok(wanted), "{text}");
        }
        for text in [
            "",
            "soon",
            "Mon",
            "Xday 08:00",
            "25:00",
            "2026-11-24 08:00",
            "2026-13-01 08:00",
        ] {
            assert!(of(text).is_err_and(|e| e.contains("Mon 08:00")), "{text}");
        }
    }
}

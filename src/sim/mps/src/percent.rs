//! Percentages, sizes and lists as the control program reads and prints them.

/// A percentage in (0, 100]; text after the number is ignored.
pub(crate) fn percentage(text: &str) -> Option<f64> {
    let ends = (1..=text.len()).rev().filter(|n| text.is_char_boundary(*n));
    let value: f64 = ends.filter_map(|n| text[..n].parse().ok()).next()?;
    (value > 0.0 && value <= 100.0).then_some(value)
}

/// For example `25` as `25.0`.
pub(crate) fn shown(percentage: f64) -> String {
    format!("{percentage:.1}")
}

/// The SMs of a client: whole pairs (TPCs), rounded down, never fewer than one pair.
#[must_use]
pub(crate) fn sms(all: u32, percentage: f64) -> u32 {
    if percentage >= 100.0 {
        return all;
    }
    let pairs = (f64::from(all) * percentage / 200.0).floor();
    (pairs as u32).max(1) * 2
}

/// MiB of `2G`, `512M`, `512`; 0 (no limit) if it is not a number.
pub(crate) fn mebibytes(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit());
    let (digits, unit) = text.split_at(end.unwrap_or(text.len()));
    let unit = if unit.starts_with(['G', 'g']) {
        1024
    } else {
        1
    };
    digits.parse::<u64>().unwrap_or(0).checked_mul(unit)
}

/// A device's limit in MiB from an environment variable (`0=1G,GPU-x=512M`). An entry for a device that the server does
/// not have drops all entries, as in the real program.
pub(crate) fn limit_of(list: &str, devices: &[String], wanted: usize) -> Option<u64> {
    let mut found = None;
    for entry in list.split(',').filter(|e| !e.is_empty()) {
        let (device, size) = entry.split_once('=')?;
        let index = match device.parse::<usize>() {
            Ok(index) => index,
            Err(_) => devices.iter().position(|uuid| uuid == device)?,
        };
        devices.get(index)?;
        if index == wanted {
            found = mebibytes(size);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sms_as_they_were_measured_and_predicted() {
        for (all, percentage, expect) in [
            (188, 25.0, 46),
            (188, 50.0, 94),
            (188, 75.0, 140),
            (40, 10.0, 4),
            (132, 25.0, 32),
            (132, 50.0, 66),
            (132, 33.0, 42),
            (132, 0.5, 2),
            (132, 100.0, 132),
        ] {
            assert_eq!(sms(all, percentage), expect, "{percentage} % of {all}");
        }
    }

    #[test]
    fn limits_of_clients() {
        let devices = ["GPU-a".to_owned(), "GPU-b".to_owned()];
        for (list, wanted, expect) in [
            ("0=1G,GPU-b=512M", 0, Some(1024)),
            ("0=1G,GPU-b=512M", 1, Some(512)),
            ("1=7", 0, None),
            ("0=1G,GPU-strange=1G", 0, None),
            ("0=1G,9=1G", 0, None),
            ("", 0, None),
        ] {
            assert_eq!(limit_of(list, &devices, wanted), expect, "{list}");
        }
    }
}

//! Parsers of values in their usual notation, shared by the configuration files and the command line.

use std::time::Duration;

use gshare_core::units::{UnitError, parse_duration};
use gshare_core::{Bytes, Share, Size};

/// A guaranteed share of SMs: `30%`; a bare number of at least 1 is percent, as in
/// `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`.
///
/// # Errors
///
/// When it is not a percentage, or a bare number below 1 (0.3 could mean either).
pub fn sm(text: &str) -> Result<Share, String> {
    let share = Share::parse_percent(text).map_err(|e| e.to_string())?;
    if !text.contains('%') && share.milli() < 10 {
        return Err(format!(
            "SM share `{text}` is ambiguous: write a percentage such as 30%"
        ));
    }
    Ok(share)
}

/// A limit of SMs: a fraction of a GPU such as `0.8`, or `80%`.
///
/// # Errors
///
/// When it is neither, or above one GPU.
pub fn limit(text: &str) -> Result<Share, String> {
    let bad = || format!("limit `{text}` is not a part of a GPU: write 0.8, 1.0 or 80%");
    let share = if text.contains('%') {
        Share::parse_percent(text).map_err(|_| bad())?
    } else {
        text.parse().map_err(|_: UnitError| bad())?
    };
    if share > Share::ONE {
        return Err(bad());
    }
    Ok(share)
}

/// The size of a claim: a fraction of one GPU such as `0.5`, or whole GPUs such as `2`.
pub fn gpus(text: &str) -> Result<Share, String> {
    let share: Share = text.parse().map_err(|e: UnitError| e.to_string())?;
    Size::from_share(share).map_err(|e| e.to_string())?;
    Ok(share)
}

/// The size of a claim: a part of one GPU (`0.5`), whole GPUs (`2`) or parts of several (`2x0.5`).
pub fn claim_size(text: &str) -> Result<Size, String> {
    text.parse()
}

/// A size in bytes, at least one: `8G`, `512 MiB`.
///
/// # Errors
/// When it is not a size with a unit, or zero.
pub fn size(text: &str) -> Result<Bytes, String> {
    some(text.parse().map_err(|e: UnitError| e.to_string())?)
}

/// Memory of a claim, which cannot be zero.
pub(crate) fn some(bytes: Bytes) -> Result<Bytes, String> {
    if bytes == Bytes::ZERO {
        return Err("a claim needs some memory, so 0 is not possible".to_owned());
    }
    Ok(bytes)
}

/// GPU memory on the command line, at least one byte: `8G`, `512 MiB`; a bare number is GiB.
///
/// # Errors
/// When it is not a size, or zero.
pub fn gpu_memory(text: &str) -> Result<Bytes, String> {
    let bare = text.trim();
    if !bare.is_empty() && bare.chars().all(|c| c.is_ascii_digit() || c == '.') {
        return size(&format!("{bare}G"));
    }
    size(text)
}

/// A time of the command line: `90s`, `30m`, `2h`, `1-12:00:00`; a bare number is minutes, as in Slurm.
///
/// # Errors
/// When it is not a time, or zero.
pub fn time(text: &str) -> Result<Duration, String> {
    let duration = parse_duration(text).map_err(|e| e.to_string())?;
    if duration.is_zero() {
        return Err(format!("time `{text}` is zero"));
    }
    Ok(duration)
}

/// A number above 0 in thousandths, up to 64: GPUs of a guarantee, or a weight.
pub fn milli(text: &str) -> Result<u32, String> {
    let bad = || format!("`{text}` is not a number above 0 and up to 64, such as 1.5");
    let number: f64 = text.trim().parse().map_err(|_| bad())?;
    let milli = (number * 1000.0).round();
    if !(1.0..=64_000.0).contains(&milli) {
        return Err(bad());
    }
    Ok(milli as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_sms_are_read_as_people_write_them() {
        assert_eq!(sm("30%"), Ok(Share::from_milli(300)));
        assert_eq!(sm("30"), Ok(Share::from_milli(300)));
        assert_eq!(sm("0.5%"), Ok(Share::from_milli(5)));
        assert!(sm("0.3").is_err_and(|e| e.contains("30%")));
        assert!(sm("120%").is_err());
        assert_eq!(limit("0.8"), Ok(Share::from_milli(800)));
        assert_eq!(limit("80%"), Ok(Share::from_milli(800)));
        assert!(limit("80").is_err());
        assert!(limit("1.2").is_err());
    }

    #[test]
    fn a_claim_is_a_part_of_one_gpu_or_whole_gpus() {
        assert_eq!(gpus("0.5"), Ok(Share::from_milli(500)));
        assert_eq!(gpus("2"), Ok(Share::from_milli(2000)));
        assert!(gpus("1.5").is_err());
        assert!(gpus("0").is_err());
        assert!(size("0").is_err());
        assert!(time("0s").is_err());
    }
}

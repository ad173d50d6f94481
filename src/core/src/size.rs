//! Sizes of claims as users write them: `0.5` of a GPU, `2` GPUs, `2x0.5` (half of each of two GPUs).

use std::fmt;
use std::str::FromStr;

use crate::claim::RequestError;
use crate::units::{Share, UnitError};

/// Number of GPUs, and the part of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub gpus: u32,
    /// Part of each.
    pub each: Share,
}

/// More GPUs than one machine has.
const MOST: u32 = 64;

impl Size {
    /// From thousandths: a part of one GPU, or a number of whole GPUs.
    ///
    /// # Errors
    /// When the share is above 1 and not whole.
    pub fn from_share(share: Share) -> Result<Self, RequestError> {
        if share <= Share::ONE {
            return Ok(Self {
                gpus: 1,
                each: share,
            });
        }
        if !share.milli().is_multiple_of(1000) {
            return Err(RequestError::NotWhole(share));
        }
        Ok(Self {
            gpus: share.milli() / 1000,
            each: Share::ONE,
        })
    }

    /// As one number; `None` for parts of several GPUs.
    #[must_use]
    pub fn as_share(self) -> Option<Share> {
        match (self.gpus, self.each) {
            (1, each) => Some(each),
            (gpus, Share::ONE) => Some(Share::from_milli(gpus.saturating_mul(1000))),
            _ => None,
        }
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is not a size: write 0.5, 2 or 2x0.5");
        let plain = |e: UnitError| e.to_string();
        let Some((gpus, each)) = text.split_once(['x', 'X', '\u{d7}']) else {
            let share = part(text).map_err(plain)?;
            return Self::from_share(share)
                .map_err(|e| format!("{e}; parts of several are written 2x0.75"));
        };
        let gpus: u32 = gpus.trim().parse().map_err(|_| bad())?;
        let each = part(each).map_err(|_| bad())?;
        if !(1..=MOST).contains(&gpus) || each > Share::ONE || each == Share::ZERO {
            return Err(bad());
        }
        Ok(Self { gpus, each })
    }
}

/// `0.5`, or `50%` of one GPU.
fn part(text: &str) -> Result<Share, UnitError> {
    if text.contains('%') {
        Share::parse_percent(text)
    } else {
        text.trim().parse()
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_share() {
            Some(share) => f.pad(&share.short()),
            None => f.pad(&format!("{}x{}", self.gpus, self.each.short())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_printed_as_they_are_typed() {
        for (text, gpus, milli) in [
            ("0.5", 1, 500),
            ("1", 1, 1000),
            ("2", 2, 1000),
            ("2x0.5", 2, 500),
            ("4x0.125", 4, 125),
        ] {
            let size: Size = text.parse().expect(text);
            assert_eq!((size.gpus, size.each.milli()), (gpus, milli), "{text}");
            assert_eq!(size.to_string(), text);
        }
        assert_eq!("2x1".parse::<Size>(), "2".parse());
        assert_eq!(" 1 x 0.5".trim().parse::<Size>(), "0.5".parse());
        assert_eq!("50%".parse::<Size>(), "0.5".parse());
        assert_eq!("2x12.5 %".parse::<Size>(), "2x0.125".parse());
        for bad in [
            "150%", "%", "1.5", "2x1.5", "0x0.5", "2x0", "x0.5", "2x", "65x0.5", "a", "",
        ] {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
    }
}

//! Differences between releases of NVIDIA's driver.

use std::fmt::{self, Display};
use std::str::FromStr;

/// The first two numbers of a driver's version: `550.163`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release(pub u32, pub u32);

/// First release with the functions that save and restore the memory of a process (`cuCheckpointProcess*`).
pub(crate) const OFFLOADS_SINCE: u32 = 570;
/// First release that restores onto other GPUs.
pub(crate) const MOVES_SINCE: u32 = 580;
/// Oldest release whose libraries were compared with gshare's list of functions.
pub(crate) const COMPARED_SINCE: u32 = 535;

/// Releases whose checkpoints refuse even simple PyTorch programs: from the first, to before the second
/// (cuda-checkpoint issue 34: 570.86 to 570.158 refuse them, 575.57.08 does not).
pub(crate) const REFUSES_PYTORCH: [Release; 2] = [Release(570, 0), Release(575, 57)];

impl Release {
    /// Whether only a person's request to offload is tried.
    pub(crate) fn refuses_pytorch(self) -> bool {
        let [since, until] = REFUSES_PYTORCH;
        since <= self && self < until
    }
}

impl Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self(first, 0) => write!(f, "{first}"),
            Self(first, second) => write!(f, "{first}.{second}"),
        }
    }
}

impl FromStr for Release {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut numbers = text.trim().split('.').map(str::parse);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(first)), None) => Ok(Self(first, 0)),
            (Some(Ok(first)), Some(Ok(second))) => Ok(Self(first, second)),
            _ => Err(format!(
                "`{text}` is not a driver version such as 550 or 580.95.05"
            )),
        }
    }
}

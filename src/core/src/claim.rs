//! The request of a claim: size, limits, class and mode.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ledger::{Held, Sharing};
use crate::size::Size;
use crate::units::{Bytes, Share, UnitError};

/// Number of a claim; printed and read as `c12`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClaimId(pub u64);

impl fmt::Display for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("c{}", self.0))
    }
}

impl FromStr for ClaimId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.strip_prefix('c').unwrap_or(text).parse().map(Self)
    }
}

/// What kind of work a claim is for; sets priority, preemptibility and idle rules.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Notebooks and shells.
    Interactive,
    /// Commands that run to an end.
    #[default]
    Batch,
    /// Servers that answer requests.
    Inference,
}

impl Class {
    /// All classes, in the order in which help texts list them.
    pub const ALL: [Self; 3] = [Self::Interactive, Self::Batch, Self::Inference];

    /// The word used in the command line, the config and on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Interactive => "interactive",
            Self::Batch => "batch",
            Self::Inference => "inference",
        }
    }
}

impl FromStr for Class {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|c| c.name() == text)
            .ok_or_else(|| format!("class `{text}` is not one of interactive, batch, inference"))
    }
}

/// How a claim wants its GPUs to be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModeWish {
    /// Takes turns with other claims.
    Timeslice,
    /// Runs beside other claims through MPS.
    Mps,
    /// A GPU to itself.
    Exclusive,
    /// A MIG instance.
    Mig,
}

impl ModeWish {
    /// All, in the order in which help texts list them.
    pub const ALL: [Self; 4] = [Self::Timeslice, Self::Mps, Self::Exclusive, Self::Mig];

    /// The word used in the command line and on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Timeslice => "timeslice",
            Self::Mps => "mps",
            Self::Exclusive => "exclusive",
            Self::Mig => "mig",
        }
    }

    /// Whether a GPU with this sharing can ever satisfy the wish.
    #[must_use]
    pub const fn possible(self, sharing: Sharing) -> bool {
        matches!(
            (self, sharing),
            (Self::Timeslice, Sharing::Timeslice | Sharing::Auto { .. })
                | (
                    Self::Mps,
                    Sharing::Mps { .. } | Sharing::Auto { mps: Some(_) }
                )
                | (Self::Exclusive, Sharing::Exclusive)
                | (Self::Mig, Sharing::Instance { .. })
        )
    }

    /// Whether a claim that holds a GPU in this way has its wish.
    #[must_use]
    pub const fn met(self, sharing: Sharing, held: Held) -> bool {
        self.possible(sharing)
            && match self {
                Self::Timeslice => matches!(held, Held::Timeslice),
                Self::Mps => matches!(held, Held::Mps),
                Self::Exclusive | Self::Mig => matches!(held, Held::Whole),
            }
    }
}

impl FromStr for ModeWish {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|m| m.name() == text)
            .ok_or_else(|| format!("mode `{text}` is not one of timeslice, mps, exclusive, mig"))
    }
}

/// The request and limit of a claim, checked: limit >= request, a part of one GPU or whole GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// How many GPUs, all of one model.
    pub gpus: u32,
    /// Guaranteed part of each GPU's memory, unless [`Request::mem`] is set.
    pub share: Share,
    /// Guaranteed bytes on each GPU; `None` takes `share` of the allocatable.
    pub mem: Option<Bytes>,
    /// Upper limit in bytes on each GPU; `None` is [`Request::mem_limit_share`].
    pub mem_limit: Option<Bytes>,
    /// Upper limit as a part of the allocatable, if not set in bytes; `None` is the request.
    pub mem_limit_share: Option<Share>,
    /// Guaranteed part of each GPU's SMs; `None` is the part of the GPU's memory that [`Request::mem`] is.
    pub sm: Option<Share>,
    /// Upper limit on SMs when others leave them free.
    pub sm_limit: Share,
    /// Only these GPUs (indices in the service's order); empty means any.
    #[serde(rename = "only")]
    pub only_gpus: Vec<u32>,
    /// Only GPUs that are shared in this way; `None` is any.
    pub mode: Option<ModeWish>,
    /// gshare may move it to other GPUs while it runs.
    pub movable: bool,
    /// Its owner is only counted: the claim starts at once, outside the ledger, whoever decides about the GPU.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub counted: bool,
    /// Lease: the claim ends after this time.
    #[serde(rename = "lease_ms", with = "crate::millis")]
    pub lease: Option<Duration>,
    pub class: Class,
    pub uid: u32,
}

/// What is wrong with the sizes of a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// A unit could not be read.
    #[error(transparent)]
    Unit(#[from] UnitError),
    #[error("{0} is neither a part of one GPU (up to 1) nor a whole number of GPUs")]
    NotWhole(Share),
    #[error(
        "{what} limit {limit} is below the size {request}; a limit is the most a claim may use, so it cannot be lower"
    )]
    LimitBelowRequest {
        what: &'static str,
        limit: String,
        request: String,
    },
    #[error("{0} of a GPU's SMs is more than all of them")]
    TooManySms(Share),
    #[error("a claim needs some memory; --gpu-mem is 0")]
    NoMemory,
}

impl Request {
    /// The request for `-g <gpus>` with every other part at its default: SMs as the share, SM limit
    /// `sm_limit`, memory limit equal to the request.
    ///
    /// # Errors
    /// When `gpus` is above one and not whole.
    pub fn from_gpus(gpus: Share, sm_limit: Share, class: Class) -> Result<Self, RequestError> {
        Ok(Self::of_size(Size::from_share(gpus)?, sm_limit, class))
    }

    /// The request for a part of each of several GPUs, with every other part at its default.
    #[must_use]
    pub fn of_size(size: Size, sm_limit: Share, class: Class) -> Self {
        Self {
            gpus: size.gpus,
            share: size.each,
            mem: None,
            mem_limit: None,
            mem_limit_share: None,
            sm: Some(size.each),
            sm_limit: sm_limit.max(size.each),
            only_gpus: Vec::new(),
            mode: None,
            movable: true,
            counted: false,
            lease: None,
            class,
            uid: 0,
        }
    }

    /// A request without sizes.
    pub(crate) fn nothing(sm: Share) -> Self {
        Self {
            gpus: 1,
            share: sm,
            mem: None,
            mem_limit: None,
            mem_limit_share: None,
            sm: Some(sm),
            sm_limit: sm,
            only_gpus: Vec::new(),
            mode: None,
            movable: true,
            counted: false,
            lease: None,
            class: Class::default(),
            uid: 0,
        }
    }

    /// The request of `uid` for `-g <share>`, of the default class.
    pub(crate) fn anybody(share: Share, uid: u32) -> Self {
        Self {
            uid,
            ..Self::nothing(share)
        }
    }

    /// Checks that limits are not below requests and that the request is not empty.
    ///
    /// # Errors The first problem found.
    pub fn check(&self) -> Result<(), RequestError> {
        let sm = self.sm.unwrap_or_default();
        if sm > Share::ONE || self.sm_limit > Share::ONE {
            return Err(RequestError::TooManySms(sm.max(self.sm_limit)));
        }
        if self.sm_limit < sm {
            return Err(RequestError::LimitBelowRequest {
                what: "SM",
                limit: format!("{} %", self.sm_limit.percent()),
                request: format!("{} %", sm.percent()),
            });
        }
        if self.mem == Some(Bytes::ZERO) {
            return Err(RequestError::NoMemory);
        }
        if let (Some(limit), Some(mem)) = (self.mem_limit, self.mem)
            && limit < mem
        {
            return Err(RequestError::LimitBelowRequest {
                what: "memory",
                limit: limit.to_string(),
                request: mem.to_string(),
            });
        }
        Ok(())
    }
}

//! Keys that say how GPUs are shared: `[gpu.NAME]` and `[mps]`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use gshare_core::mig::Layout;
use toml::de::DeTable;

use crate::read::{self, Reader};

/// How a GPU is to be shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GpuMode {
    /// In turns.
    #[default]
    Timeslice,
    /// Side by side, through MPS.
    Mps,
    /// Through MPS while all claims on it are batch or inference of one owner, else in turns.
    Auto,
    /// One claim at a time has it whole.
    Exclusive,
    /// Divided into MIG instances by the administrator.
    Mig,
}

impl GpuMode {
    /// The word in the file and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Timeslice => "timeslice",
            Self::Mps => "mps",
            Self::Auto => "auto",
            Self::Exclusive => "exclusive",
            Self::Mig => "mig",
        }
    }

    /// The mode of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        MODES.iter().find(|(n, _)| *n == name).map(|(_, m)| *m)
    }
}

/// One entry of `[gpu]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuKeys {
    /// `mode`: how claims share it.
    pub mode: GpuMode,
    /// `mig`: the instances that it is divided into, made anew after a boot; `None` leaves it as it is.
    pub mig: Option<Layout>,
}

impl crate::Config {
    /// The keys of a GPU: by its UUID before its index before `all`.
    #[must_use]
    pub fn gpu(&self, uuid: &str, index: usize) -> Option<&GpuKeys> {
        let mut keys = self.gpus.iter();
        let by_uuid =
            keys.find(|(name, _)| name.starts_with("GPU-") && uuid.starts_with(name.as_str()));
        by_uuid
            .map(|(_, keys)| keys)
            .or_else(|| self.gpus.get(&index.to_string()))
            .or_else(|| self.gpus.get("all"))
    }
}

/// `[mps]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mps {
    /// `control`: NVIDIA's `nvidia-cuda-mps-control`; `None` looks on `PATH`.
    pub control: Option<PathBuf>,
    /// `multi-user`: whether claims of several users may share one MPS server, and with it its faults.
    pub multi_user: bool,
    /// `share`: what a client's thread percentage is taken from.
    pub share: MpsShare,
    /// `on-fault`: what becomes of the claims on a GPU whose MPS server failed.
    pub on_fault: OnFault,
}

/// What a client's thread percentage is taken from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MpsShare {
    /// The guaranteed part: no claim is in the way of another.
    #[default]
    Request,
    /// The most that the claim may use: idle SMs are used, busy claims overlap.
    Limit,
}

/// What becomes of the claims on a GPU whose MPS server failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFault {
    /// Their programs are ended, and with them the claims.
    #[default]
    End,
    /// Their programs are ended; the claims are held for what their owners start next.
    Keep,
    /// Their programs are ended; commands that may be started again are, the other claims end.
    Requeue,
}

impl Default for Mps {
    fn default() -> Self {
        Self {
            control: None,
            multi_user: false,
            share: MpsShare::Request,
            on_fault: OnFault::End,
        }
    }
}

const MODES: &[(&str, GpuMode)] = &[
    ("timeslice", GpuMode::Timeslice),
    ("mps", GpuMode::Mps),
    ("auto", GpuMode::Auto),
    ("exclusive", GpuMode::Exclusive),
    ("mig", GpuMode::Mig),
];
const ACCEPT: &[(&str, bool)] = &[("off", false), ("accept", true)];
pub(crate) const SHARES: &[(&str, MpsShare)] =
    &[("request", MpsShare::Request), ("limit", MpsShare::Limit)];
pub(crate) const ON_FAULT: &[(&str, OnFault)] = &[
    ("end", OnFault::End),
    ("keep", OnFault::Keep),
    ("requeue", OnFault::Requeue),
];

impl Mps {
    pub(crate) fn walk<'t>(reader: &mut Reader<'t>, root: &DeTable<'t>) -> Self {
        let d = Self::default();
        let mut s = reader.section(root, "mps");
        let value = Self {
            control: s.get("control", d.control, read::auto_or_path),
            multi_user: s.get("multi-user", d.multi_user, read::word(ACCEPT)),
            share: s.get("share", d.share, read::word(SHARES)),
            on_fault: s.get("on-fault", d.on_fault, read::word(ON_FAULT)),
        };
        s.finish();
        value
    }
}

pub(crate) fn walk_gpus<'t>(
    reader: &mut Reader<'t>,
    root: &DeTable<'t>,
) -> BTreeMap<String, GpuKeys> {
    let mut gpus = BTreeMap::new();
    let section = reader.section(root, "gpu");
    section.named("NAME", |name, s| {
        let keys = GpuKeys {
            mode: s.get("mode", GpuMode::default(), read::word(MODES)),
            mig: s.optional("mig", read::layout),
        };
        let plain = name == "all" || name.starts_with("GPU-") || name.parse::<u32>().is_ok();
        if s.exists() && !plain {
            s.complain(
                "",
                format!("`{name}` is no GPU"),
                Some("an index such as 0, a UUID such as GPU-..., or all".to_owned()),
            );
        }
        if s.exists() {
            gpus.insert(name.to_owned(), keys);
        }
    });
    gpus
}

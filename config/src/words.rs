//! Values that are one of a few words.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::form;

macro_rules! words {
    ($($(#[$meta:meta])* $name:ident { $($(#[$about:meta])* $variant:ident = $word:literal,)* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$about])* $variant,)* }

        impl $name {
            /// The words and what they mean.
            pub(crate) const WORDS: &[(&str, Self)] = &[$(($word, Self::$variant)),*];

            /// The word in the file.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }

            /// The value of this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                Self::WORDS.iter().find(|(word, _)| *word == name).map(|(_, value)| *value)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let value = toml::Value::deserialize(deserializer)?;
                form::word(&value, Self::WORDS).map_err(serde::de::Error::custom)
            }
        }
    )*};
}

words! {
    /// Lowest severity that is logged; the words are filter directives of `tracing`.
    LogLevel {
        /// Failures of the service.
        Error = "error",
        /// Also events that an administrator should know.
        Warn = "warn",
        /// Also beginnings and ends of claims.
        #[default]
        Info = "info",
        /// Also every request.
        Debug = "debug",
        /// Everything.
        Trace = "trace",
    }

    /// What to do with an idle claim that cannot be offloaded.
    NoDetach {
        /// Its owner is warned, nothing is taken.
        #[default]
        Warn = "warn",
        /// Its unused memory is given to waiting claims.
        Shrink = "shrink",
        /// It ends; its processes live on without a GPU.
        Release = "release",
    }

    /// What to do with unused sizes.
    AutoShrink {
        /// Nothing.
        Off = "off",
        /// Suggest a smaller size, with the command.
        #[default]
        Advise = "advise",
        /// Lower the memory limit to the need of earlier runs of the command, never below the size.
        Burst = "burst",
        /// Also let the sizes of claims made with `-g auto` follow their need, in both directions.
        Request = "request",
    }

    /// Whose runs, besides their own, suggestions for users may be based on.
    ShareRuns {
        /// Nobody's.
        #[default]
        None = "none",
        /// Those of users with the same primary group.
        Group = "group",
        /// Everybody's.
        All = "all",
    }

    /// How a GPU is shared.
    GpuMode {
        /// In turns.
        #[default]
        Timeslice = "timeslice",
        /// Side by side, through MPS.
        Mps = "mps",
        /// Through MPS while all claims on it are batch or inference of one owner, otherwise in turns.
        Auto = "auto",
        /// One claim at a time has the whole GPU.
        Exclusive = "exclusive",
        /// Divided into MIG instances by the administrator.
        Mig = "mig",
    }

    /// Basis of a client's thread percentage.
    MpsShare {
        /// The size: no claim slows another.
        #[default]
        Request = "request",
        /// The limit: idle SMs are used, busy claims overlap.
        Limit = "limit",
    }

    /// What to do with the claims on a GPU whose MPS server failed.
    OnFault {
        /// Their programs are ended, and with them the claims.
        #[default]
        End = "end",
        /// Their programs are ended; the claims are held for later programs of their owners.
        Keep = "keep",
        /// Their programs are ended; commands that may be restarted are, the other claims end.
        Requeue = "requeue",
    }

    /// What happens to Slurm jobs with a part of a GPU while the service does not answer.
    Silent {
        /// They fail at launch, and `gshare slurm health` drains the node.
        #[default]
        Drain = "drain",
        /// They run, without a limit.
        Open = "open",
    }

    /// How much gshare does on a GPU or for a user; each stage includes the earlier ones.
    Stage {
        /// 1: it records, and touches no program.
        Observe = "observe",
        /// 2: claims have a queue and limits; no claim loses anything.
        OptIn = "opt-in",
        /// 3: also guarantees, idle rules, and reclaiming, always announced.
        #[default]
        Reclaim = "reclaim",
        /// 4: also programs without a claim cannot open GPUs.
        Require = "require",
    }

    /// What to do about GPU processes without a claim.
    Unclaimed {
        /// They are shown.
        Observe = "observe",
        /// They are accounted to their owners, as claims without a cap.
        #[default]
        Adopt = "adopt",
        /// No new ones: programs without a claim cannot open a GPU. Running ones are treated as with `adopt`.
        Deny = "deny",
    }

    /// What to do about a claim with more use than is counted.
    Overuse {
        /// It cannot grow, and its owner is warned.
        #[default]
        Warn = "warn",
        /// After the grace time the offending process is ended, too.
        Stop = "stop",
    }

    /// Division of the GPU time beyond all sizes, on GPUs that claims share in turns.
    ExcessTime {
        /// All, in proportion to their sizes.
        #[default]
        Equal = "equal",
        /// The same, but interactive and inference claims twice as much as batch.
        Weights = "weights",
        /// Interactive claims first, then inference, then batch.
        Strict = "strict",
    }

    /// How strictly a claim's command is limited.
    LaunchCaps {
        /// Strict if the launcher is installed and this is the system service, otherwise by the library path.
        #[default]
        Auto = "auto",
        /// By the launcher or not at all.
        Strict = "strict",
        /// By the library path.
        Preload = "preload",
    }
}

impl Stage {
    /// 1 to 4.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8 + 1
    }

    /// The stage of this number or name.
    ///
    /// # Errors
    /// In words, what would be one.
    pub fn parse(text: &str) -> Result<Self, String> {
        let numbers = Self::WORDS.iter().map(|(_, stage)| *stage);
        let mut numbered = numbers.filter(|stage| stage.number().to_string() == text);
        let found = numbered.next().or_else(|| Self::from_name(text));
        found.ok_or_else(|| {
            "expected 1 (observe), 2 (opt-in), 3 (reclaim) or 4 (require)".to_owned()
        })
    }
}

impl std::fmt::Display for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.number(), self.name())
    }
}

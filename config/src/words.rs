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
    /// Least severity that is logged; the words are filter directives of `tracing`.
    LogLevel {
        /// Failures of the service.
        Error = "error",
        /// Also what an administrator should know.
        Warn = "warn",
        /// Also claims coming and going.
        #[default]
        Info = "info",
        /// Also every request.
        Debug = "debug",
        /// Everything.
        Trace = "trace",
    }

    /// What is done with an idle claim that cannot be offloaded.
    NoDetach {
        /// Its owner is told, nothing is taken.
        #[default]
        Warn = "warn",
        /// What it does not use of its memory is given to those who wait.
        Shrink = "shrink",
        /// It ends; its processes live on without a GPU.
        Release = "release",
    }

    /// What becomes of what claims asked for and do not use.
    AutoShrink {
        /// Nothing.
        Off = "off",
        /// It is said, with the command that would change it.
        #[default]
        Advise = "advise",
        /// The memory limit goes down to what earlier runs of the command needed, never below the request.
        Burst = "burst",
        /// Also the request of claims that were made with `-g auto` follows their need, in both directions.
        Request = "request",
    }

    /// Whose runs a user's suggestions may rest on, besides the own ones.
    ShareRuns {
        /// Nobody's.
        #[default]
        None = "none",
        /// Those of users with the same primary group.
        Group = "group",
        /// Everybody's.
        All = "all",
    }

    /// How a GPU is to be shared.
    GpuMode {
        /// In turns.
        #[default]
        Timeslice = "timeslice",
        /// Side by side, through MPS.
        Mps = "mps",
        /// Through MPS while all claims on it are batch or inference of one owner, else in turns.
        Auto = "auto",
        /// One claim at a time has it whole.
        Exclusive = "exclusive",
        /// Divided into MIG instances by the administrator.
        Mig = "mig",
    }

    /// What a client's thread percentage is taken from.
    MpsShare {
        /// The guaranteed part: no claim is in the way of another.
        #[default]
        Request = "request",
        /// The most that the claim may use: idle SMs are used, busy claims overlap.
        Limit = "limit",
    }

    /// What becomes of the claims on a GPU whose MPS server failed.
    OnFault {
        /// Their programs are ended, and with them the claims.
        #[default]
        End = "end",
        /// Their programs are ended; the claims are held for what their owners start next.
        Keep = "keep",
        /// Their programs are ended; commands that may be started again are, the other claims end.
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

    /// How much gshare does on a GPU or for a user, each stage more than the one before.
    Stage {
        /// 1: it records, and touches no program.
        Observe = "observe",
        /// 2: claims have a queue and limits; nothing is taken from anybody.
        OptIn = "opt-in",
        /// 3: also guarantees, idle rules, and taking back, always announced.
        #[default]
        Reclaim = "reclaim",
        /// 4: also programs without a claim cannot open GPUs.
        Require = "require",
    }

    /// What is done about GPU processes outside claims.
    Unclaimed {
        /// They are shown.
        Observe = "observe",
        /// They are accounted to their owners, as claims without a cap.
        #[default]
        Adopt = "adopt",
        /// No new ones: programs outside claims cannot open a GPU. Those that run are as with `adopt`.
        Deny = "deny",
    }

    /// What is done about a claim that uses more than it is counted.
    Overuse {
        /// Its growth is refused and its owner warned.
        #[default]
        Warn = "warn",
        /// After the grace time the offending process is ended, too.
        Stop = "stop",
    }

    /// How the GPU time above what was requested is divided, on GPUs that claims share in turns.
    ExcessTime {
        /// All, in proportion to their requests.
        #[default]
        Equal = "equal",
        /// The same, but interactive and inference claims twice as much as batch.
        Weights = "weights",
        /// Interactive claims first, then inference, then batch.
        Strict = "strict",
    }

    /// How firmly a claim's command is held.
    LaunchCaps {
        /// Strict where the launcher is installed and this is the system service, else by the library path.
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

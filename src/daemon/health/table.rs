//! Meaning of the driver's error numbers for users and administrators, after NVIDIA's catalogue of Xids.

use gshare_proto::Grade;

/// The GPU has fallen off the bus.
pub(super) const OFF_THE_BUS: u64 = 79;

/// Required action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Nothing,
    /// The owner fixes the program.
    Program,
    /// Reset the GPU once it is unused.
    Later,
    /// Reset the GPU.
    Reset,
    /// Restart the machine.
    Restart,
    /// An administrator checks the links between GPUs.
    Links,
}

/// Meaning of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meaning {
    pub(super) text: &'static str,
    pub(super) act: Act,
}

impl Act {
    /// How serious an error with this action is.
    pub(super) const fn grade(self) -> Grade {
        match self {
            Self::Nothing | Self::Program => Grade::Good,
            Self::Later | Self::Links => Grade::Warned,
            Self::Reset | Self::Restart => Grade::Sick,
        }
    }

    /// Advice for the holders and the administrator.
    pub(super) fn tell(self, gpu: usize) -> String {
        match self {
            Self::Nothing => "nothing to do".to_owned(),
            Self::Program => {
                "the GPU is fine: run the program under compute-sanitizer; with MPS all clients of the GPU get the error"
                    .to_owned()
            }
            Self::Later => format!(
                "work continues; when no claim holds GPU {gpu}: sudo gshare admin release {gpu} --for 60s && sudo \
                 nvidia-smi --gpu-reset -i {gpu}"
            ),
            Self::Reset => format!(
                "save what can be saved and end claims on GPU {gpu}; then sudo gshare admin release {gpu} --for 60s && sudo nvidia-smi --gpu-reset -i {gpu}"
            ),
            Self::Restart => format!(
                "programs on GPU {gpu} are lost; restart the machine to use that GPU again"
            ),
            Self::Links => {
                "check nvidia-smi nvlink --status; a cable or bridge may be loose".to_owned()
            }
        }
    }
}

/// The meaning of an Xid.
pub(super) fn of(code: u64) -> Meaning {
    let (text, act) = match code {
        13 => (
            "a program's kernel failed (graphics engine exception)",
            Act::Program,
        ),
        31 => ("a program accessed an invalid address", Act::Program),
        32 => ("a program's commands were not understood", Act::Program),
        43 => (
            "a program's work was stopped after an error of its own",
            Act::Program,
        ),
        45 => (
            "work was cleaned up after a program was killed or failed",
            Act::Nothing,
        ),
        46 => ("the GPU stopped processing", Act::Reset),
        48 => ("an uncorrectable memory error", Act::Reset),
        62 => ("the GPU's own controller has halted", Act::Reset),
        63 => ("a memory row is recorded for remapping", Act::Later),
        64 => (
            "a memory row could not be recorded for remapping",
            Act::Reset,
        ),
        69 => ("a program's graphics state was wrong", Act::Program),
        74 => ("an error on a link between GPUs", Act::Links),
        OFF_THE_BUS => ("the GPU has fallen off the bus", Act::Restart),
        92 => ("many corrected memory errors", Act::Nothing),
        93 => ("the GPU's settings could not be read in full", Act::Nothing),
        94 => (
            "a memory error contained to the program that used the memory",
            Act::Later,
        ),
        95 => (
            "a memory error that may have affected other programs",
            Act::Reset,
        ),
        109 => ("switching between programs took too long", Act::Reset),
        110 => ("a security fault of the GPU", Act::Reset),
        119 => ("the GPU's system processor does not answer", Act::Reset),
        120 => ("the GPU's system processor has failed", Act::Reset),
        140 => (
            "an uncorrectable error in the GPU's memory controller",
            Act::Reset,
        ),
        143 => ("the GPU could not be started", Act::Reset),
        154 => (
            "the driver now recommends another action to recover the GPU; see gshare doctor",
            Act::Nothing,
        ),
        _ => (
            "an error that gshare does not know; see NVIDIA's list of Xids",
            Act::Links,
        ),
    };
    // An unknown error deserves a check.
    let act = if act == Act::Links && code != 74 {
        Act::Later
    } else {
        act
    };
    Meaning { text, act }
}

/// The driver's recovery action; absent if it reports none.
pub(super) fn recovery(action: Option<u64>) -> Option<(&'static str, Act)> {
    Some(match action? {
        0 => return None,
        1 => ("reset", Act::Reset),
        2 => ("restart of the machine", Act::Restart),
        3 => ("stop of its peer-to-peer work", Act::Links),
        4 => ("drain and a reset", Act::Reset),
        6 => ("reset of its bus", Act::Reset),
        7 => ("restart of the machine", Act::Restart),
        _ => ("repair", Act::Reset),
    })
}

/// Why clocks are throttled, if that needs attention: not for idleness or the power limit.
pub(super) fn throttled(bits: u64) -> Vec<String> {
    [
        (0x8, "hardware slowdown"),
        (0x20, "too warm (software)"),
        (0x40, "too warm (hardware)"),
        (0x80, "power brake"),
    ]
    .into_iter()
    .filter(|(bit, _)| bits & bit != 0)
    .map(|(_, text)| text.to_owned())
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_to_act_follows_the_catalogue() {
        let check = |codes: &[u64], act| {
            for code in codes {
                assert_eq!(of(*code).act, act, "{code}");
            }
        };
        check(&[13, 31, 32, 43, 69], Act::Program);
        check(
            &[46, 48, 62, 64, 95, 109, 110, 119, 120, 140, 143],
            Act::Reset,
        );
        check(&[45, 92, 93, 154], Act::Nothing);
        check(&[63, 94, 999, 500], Act::Later);
        check(&[79], Act::Restart);
        check(&[74], Act::Links);
        assert_eq!(of(79).act.grade(), Grade::Sick);
        assert_eq!(of(31).act.grade(), Grade::Good);
    }

    #[test]
    fn only_alarming_clock_reasons_are_told() {
        assert!(throttled(0x1 | 0x4 | 0x100).is_empty());
        assert_eq!(throttled(0x40 | 0x1), ["too warm (hardware)"]);
        assert_eq!(recovery(Some(0)), None);
        assert_eq!(recovery(None), None);
        assert_eq!(recovery(Some(2)).map(|r| r.1), Some(Act::Restart));
    }
}

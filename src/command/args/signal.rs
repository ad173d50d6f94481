//! `--signal=[B:]USR1@90`, as Slurm has it.

use gshare_proto::SignalSpec;
use nix::sys::signal::Signal;

/// Seconds before the end where none are said.
const USUAL_S: u32 = 60;

pub(super) fn signal(text: &str) -> Result<SignalSpec, String> {
    let wrong = || "expected a signal and seconds such as USR1@90, or B:USR1@90".to_owned();
    let (command, rest) = match text.strip_prefix("B:") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (name, before_s) = match rest.split_once('@') {
        Some((name, seconds)) => (name, seconds.parse().map_err(|_| wrong())?),
        None => (rest, USUAL_S),
    };
    let upper = name.to_uppercase();
    let named = || {
        format!("SIG{}", upper.trim_start_matches("SIG"))
            .parse()
            .ok()
    };
    let numbered = name
        .parse()
        .ok()
        .and_then(|n: i32| Signal::try_from(n).ok());
    let signal = numbered.or_else(named).ok_or_else(wrong)?;
    Ok(SignalSpec {
        number: signal as i32,
        before_s,
        command,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_written_as_for_slurm() {
        let of = |text: &str| signal(text).map(|s| (s.number, s.before_s, s.command));
        let (usr1, term) = (Signal::SIGUSR1 as i32, Signal::SIGTERM as i32);
        for (text, wanted) in [
            ("USR1@90", (usr1, 90, false)),
            ("B:USR1@90", (usr1, 90, true)),
            ("SIGTERM", (term, USUAL_S, false)),
            ("term@5", (term, 5, false)),
            ("B:10@120", (10, 120, true)),
        ] {
            assert_eq!(of(text), Ok(wanted), "{text}");
        }
        for text in [
            "",
            "@90",
            "USR9@90",
            "USR1@",
            "USR1@soon",
            "R:USR1@90",
            "0@5",
        ] {
            assert!(of(text).is_err_and(|e| e.contains("USR1@90")), "{text}");
        }
    }
}

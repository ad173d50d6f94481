//! `gshare claim --dry-run`: where a claim would start, or what it would wait for and how it would get room.

use std::path::Path;

use gshare_proto::{Call, ClaimSpec, Reply, Tried, messages, starts_when};

use super::claim::unexpected;
use super::failure::{self, Failure};
use super::table::plain;
use super::waiting::{left, ordinal};
use super::{Outcome, connect, out};
use crate::figures;

pub(crate) fn run(socket: Option<&Path>, spec: ClaimSpec, json: bool) -> Outcome {
    let reply = connect::connect(socket)?.call(&Call::Try(Box::new(spec)))?;
    let Reply::Tried(tried) = reply else {
        return Err(unexpected(&reply));
    };
    if json {
        out::json(&tried)?;
    } else if tried.starts {
        out::print(&format!("{}\n", plain(&tried.message)))?;
    }
    if tried.starts {
        return Ok(0);
    }
    let code = if tried.never {
        failure::USAGE
    } else {
        failure::NOT_AVAILABLE
    };
    if json {
        return Ok(code);
    }
    let now = u64::try_from(chrono::Utc::now().timestamp_millis()).unwrap_or(0);
    let failure = Failure::new(code, text(&tried, now));
    Err(match &tried.would_start {
        Some(arguments) => failure.with_hint(messages::starts_now(plain(arguments))),
        None => failure,
    })
}

/// Refuse early what can never start here, before the program has worked for hours without a GPU.
pub(crate) fn not_in_vain(socket: Option<&Path>, spec: &ClaimSpec) -> Result<(), Failure> {
    let mut client = connect::connect(socket)?;
    match client.call(&Call::Try(Box::new(spec.clone()))) {
        Ok(Reply::Tried(tried)) if tried.never => {
            Err(Failure::new(failure::USAGE, plain(&tried.message)))
        }
        // Other errors are reported for the claim itself.
        _ => Ok(()),
    }
}

/// Why it would wait, what comes first, how it gets room, and when it would start.
pub(super) fn text(tried: &Tried, now_ms: u64) -> String {
    let mut lines = vec![plain(&tried.message)];
    let span = |at: u64| left(now_ms, at);
    if let Some(position) = tried.position {
        let standing = match (tried.by_hours, tried.entitled) {
            (true, _) => "",
            (_, true) => ", within your guarantee",
            (_, false) => ", above your guarantee",
        };
        lines.push(format!(
            "it would be {} in the queue{standing}",
            ordinal(position)
        ));
    }
    for taking in &tried.takings {
        let to = match taking.to.is_empty() {
            true => String::new(),
            false => format!(" ({})", figures::gpus(&taking.to)),
        };
        lines.push(format!(
            "in {} {} of {} {}{to}",
            span(taking.at_ms),
            plain(&taking.id),
            plain(&taking.user),
            plain(&taking.what)
        ));
    }
    lines.extend(tried.alone.iter().map(|text| plain(text)));
    let made = !tried.takings.is_empty();
    let expected = tried.expected.as_ref();
    let starts = match starts_when(now_ms, tried.expected_ms, expected, (tried.by_hours, made)) {
        Some(when) => Some(format!("it would start {when}")),
        None if !tried.alone.is_empty() => Some("start time unknown".to_owned()),
        None if !made && !tried.never => Some(messages::start_unknown()),
        None => None,
    };
    lines.extend(starts);
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use gshare_proto::TakingView;

    use super::*;

    #[test]
    fn it_says_what_would_be_done_to_whom_and_when() {
        let tried = Tried {
            message: "would wait: needs 24.0 GiB".into(),
            position: Some(1),
            entitled: true,
            takings: vec![TakingView {
                id: "c3".into(),
                user: "ada".into(),
                what: "moves to another GPU".into(),
                to: vec![1],
                at_ms: 31_000,
            }],
            expected_ms: Some(31_000),
            ..Tried::default()
        };
        assert_eq!(
            text(&tried, 1500),
            "would wait: needs 24.0 GiB\nit would be 1st in the queue, within your guarantee\nin 30s c3 of ada moves \
             to another GPU (GPU 1)\nit would start in 30s, once the other claims have made room"
        );
    }
}

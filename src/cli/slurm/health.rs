//! `gshare slurm health`, for HealthCheckProgram. Unlike the epilog it calls Slurm.

use gshare_config::Silent;
use gshare_proto::Call;

use super::{Not, Outcome, Site, job};

/// Reason for draining a node, by which gshare recognises its own drains.
const SILENT: &str = "gshare: service not answering";
const NO_PLUGIN: &str = "gshare: plugin not loaded";

pub(super) fn run(site: &Site) -> Outcome {
    if !site.is_on() || site.config.slurm.silent == Silent::Open {
        return Ok(0);
    }
    let why = match site.ask(Call::Env { id: "c0".into() }) {
        Err(Not::Silent) => Some(SILENT),
        // An answer about a missing claim is an answer.
        _ => match job::slurmd(&site.jobs) {
            Some(_) => None,
            None => Some(NO_PLUGIN),
        },
    };
    let node = node();
    let name = format!("NodeName={node}");
    let shown = site.scontrol(&["show", "node", &node, "--oneliner"])?;
    match next(&shown, why) {
        None => {}
        Some(Next::Drain(why)) => {
            site.scontrol(&["update", &name, "State=DRAIN", &format!("Reason={why}")])?;
        }
        Some(Next::Resume) => {
            site.scontrol(&["update", &name, "State=RESUME"])?;
        }
    }
    Ok(0)
}

#[derive(Debug, PartialEq, Eq)]
enum Next<'a> {
    Drain(&'a str),
    Resume,
}

/// The action for a node in this state. A node drained for another reason is left alone.
fn next<'a>(shown: &str, why: Option<&'a str>) -> Option<Next<'a>> {
    let drained = word(shown, "State=").contains("DRAIN");
    match why {
        Some(why) if !drained => Some(Next::Drain(why)),
        None if drained && after(shown, "Reason=").starts_with(SILENT) => Some(Next::Resume),
        _ => None,
    }
}

/// The note about a drained node, and how it is resumed.
pub(super) fn drained(shown: &str) -> Option<String> {
    let (reason, name) = (reason(shown), word(shown, "NodeName="));
    let next = match reason {
        SILENT => "gshare slurm health resumes it when the service answers".to_owned(),
        NO_PLUGIN => format!("when that is fixed: scontrol update nodename={name} state=resume"),
        _ => "gshare did not do that and does not resume it".to_owned(),
    };
    let drained = word(shown, "State=").contains("DRAIN");
    drained.then(|| format!("this node is drained ({reason}); {next}"))
}

/// The note about a node that slurmctld counts as down.
pub(super) fn down(shown: &str) -> Option<String> {
    let reason = reason(shown);
    let text = || format!("slurmctld counts this node as down ({reason}): see slurmd's log");
    word(shown, "State=").contains("DOWN").then(text)
}

/// Why a node is drained or down, without by whom and when.
fn reason(shown: &str) -> &str {
    let reason = after(shown, "Reason=").split(" [").next();
    reason.unwrap_or("").trim()
}

/// What follows a key of `scontrol show node --oneliner`.
fn after<'a>(shown: &'a str, key: &str) -> &'a str {
    shown.split_once(key).map_or("", |(_, rest)| rest)
}

fn word<'a>(shown: &'a str, key: &str) -> &'a str {
    let mut words = after(shown, key).split_whitespace();
    words.next().unwrap_or("")
}

/// This node's name in Slurm.
pub(super) fn node() -> String {
    let set = ["SLURMD_NODENAME", "SLURM_NODE_NAME"];
    let set = set.into_iter().find_map(|name| std::env::var(name).ok());
    set.unwrap_or_else(|| {
        let host = crate::figures::host();
        host.split('.').next().unwrap_or_default().to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_gshare_drained_is_resumed() {
        let node = |state: &str, reason: &str| {
            format!("NodeName=n1 State={state} CPUs=8 Reason={reason} [root@x]")
        };
        let up = "NodeName=n1 State=IDLE CPUs=8";
        assert_eq!(next(up, None), None);
        assert_eq!(next(up, Some(SILENT)), Some(Next::Drain(SILENT)));
        let own = node("IDLE+DRAIN", SILENT);
        assert_eq!(next(&own, Some(SILENT)), None);
        assert_eq!(next(&own, None), Some(Next::Resume));
        assert_eq!(next(&node("IDLE+DRAIN", NO_PLUGIN), None), None);
        assert_eq!(next(&node("IDLE+DRAIN", "new fan"), None), None);
        assert_eq!(next(&node("MIXED+DRAIN", "new fan"), Some(SILENT)), None);
        assert_eq!(next(&node("MIXED", SILENT), None), None, "resumed by hand");
        let said = |reason: &str| drained(&node("IDLE+DRAIN", reason)).expect("named");
        assert!(
            said(SILENT).contains("health resumes it"),
            "{}",
            said(SILENT)
        );
        let others = said("new fan");
        assert!(
            others.contains("(new fan); gshare did not do that"),
            "{others}"
        );
        assert_eq!(drained(up), None);
    }

    #[test]
    fn a_node_whose_slurmd_is_gone_is_named() {
        let gone = "NodeName=n1 State=DOWN+NOT_RESPONDING CPUs=8 Reason=Not responding [root@x]";
        let said = down(gone).expect("named");
        assert!(said.contains("as down (Not responding)"), "{said}");
        assert_eq!(down("NodeName=n1 State=IDLE CPUs=8"), None);
    }
}

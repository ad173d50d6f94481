//! `gshare doctor`: which limits are enforced here, where they have been tested, and how to fix the rest.

use std::path::Path;

use gshare_core::units::many;
use gshare_enforcer::cgroup::Mount;
use gshare_enforcer::driver::{Library, Search};
use gshare_proto::call::Check;
use gshare_proto::{Call, Reply, figures, messages};
use serde_json::json;

use super::args::DoctorArgs;
use super::claim::unexpected;
use super::table::plain;
use super::{Outcome, conformance, connect, failure, out, prospect};

/// Columns of the state, with its indent.
const STATE: usize = 11;

pub(crate) fn run(socket: Option<&Path>, args: &DoctorArgs) -> Outcome {
    if args.prospect.driver.is_some() || args.prospect.gpu.is_some() {
        let (verdict, checks) = prospect::of(&args.prospect);
        show(&verdict, &checks, args.json)?;
        return Ok(0);
    }
    if let Some(only) = &args.conformance {
        return conformance::run(socket, only, args.json);
    }
    let mut client = match connect::connect(socket) {
        Ok(client) => client,
        Err(e) => {
            let mut checks = vec![Check {
                fix: e.hint,
                ..local("service", "service", "missing", e.message)
            }];
            checks.extend(machine());
            show(&verdict(&checks), &checks, args.json)?;
            return Ok(e.code);
        }
    };
    match client.call(&Call::Doctor)? {
        Reply::Doctor { checks } => {
            show(&verdict(&checks), &checks, args.json)?;
            Ok(0)
        }
        other => Err(unexpected(&other)),
    }
}

fn local(group: &str, name: &str, state: &str, detail: String) -> Check {
    Check {
        group: group.to_owned(),
        name: name.to_owned(),
        state: state.to_owned(),
        detail,
        status: String::new(),
        fix: None,
    }
}

/// Rows about the machine without a service.
fn machine() -> Vec<Check> {
    let search = Search::of_this_process();
    let library = |library, name: &str| match search.locate(library) {
        Ok(path) => local("driver and GPUs", name, "ok", path.display().to_string()),
        Err(why) => {
            // Omit the long list of searched places; the remedy follows below.
            let text = why.to_string();
            let why = text.split("\nhint: ").next().unwrap_or_default();
            Check {
                fix: Some(format!("install NVIDIA's driver; {}", messages::try_demo())),
                ..local("driver and GPUs", name, "missing", why.to_owned())
            }
        }
    };
    let cgroups = match Mount::find() {
        Ok(mount) => local(
            "service",
            "cgroups",
            "ok",
            format!("cgroup v2 is mounted at {}", mount.point.display()),
        ),
        Err(error) => {
            let text = error.to_string();
            let (why, hint) = text.split_once("\nhint: ").unwrap_or((&text, ""));
            Check {
                fix: (!hint.is_empty()).then(|| hint.to_owned()),
                ..local("service", "cgroups", "missing", why.to_owned())
            }
        }
    };
    vec![
        cgroups,
        library(Library::Cuda, "libcuda"),
        library(Library::Nvml, "libnvidia-ml"),
    ]
}

fn show(verdict: &str, checks: &[Check], json: bool) -> Result<(), failure::Failure> {
    if json {
        return out::json(&json!({ "checks": checks }));
    }
    out::print(&page(verdict, checks, out::columns(), out::colour()))
}

/// The rows under their headings. On a terminal sentences are wrapped to `width`; otherwise they are whole, for grep.
fn page(verdict: &str, checks: &[Check], width: Option<usize>, colour: bool) -> String {
    let mut text = wrapped(verdict, width.map(|width| width + STATE)).join("\n") + "\n\n";
    let mut heading = None;
    for check in checks {
        if heading != Some(&check.group) && !check.group.is_empty() {
            let gap = if heading.is_some() { "\n" } else { "" };
            let title = paint(&plain(&check.group), "1", colour);
            text.push_str(&format!("{gap}{title}\n"));
        }
        heading = Some(&check.group);
        text.push_str(&row(check, width, colour));
    }
    text.push_str(
        "\nThe text after each name says on what kind of machine that check was tested.\n",
    );
    text
}

/// The verdict in one line: whether gshare works here, and what could be better.
fn verdict(checks: &[Check]) -> String {
    let with = |state: &str| {
        checks
            .iter()
            .filter(|c| c.state == state)
            .collect::<Vec<_>>()
    };
    let names = |checks: &[&Check]| {
        let names: Vec<String> = checks.iter().map(|c| plain(&c.name)).collect();
        names.join(", ")
    };
    let (ok, limited, missing) = (with("ok"), with("limited"), with("missing"));
    let service = missing
        .iter()
        .any(|c| c.group == "service" && c.name == "service");
    let mut text = match (service, limited.len() + missing.len()) {
        (true, _) => "the gshare service does not work on this machine".to_owned(),
        (false, 0) => format!("gshare works here, all {} passed", many(ok.len(), "check")),
        (false, _) => format!(
            "gshare works here, but not fully: {} passed",
            many(ok.len(), "check")
        ),
    };
    for (word, checks) in [("limited", limited), ("missing", missing)] {
        if !checks.is_empty() {
            text.push_str(&format!("; {} {word}: {}", checks.len(), names(&checks)));
        }
    }
    text
}

fn row(check: &Check, width: Option<usize>, colour: bool) -> String {
    let state = format!("  {:<width$}", plain(&check.state), width = STATE - 2);
    let sign = match check.state.as_str() {
        "ok" => "32",
        "limited" => "33",
        _ => "31",
    };
    let seen = if check.status.is_empty() {
        String::new()
    } else {
        format!(": {}", plain(&check.status))
    };
    let mut text = format!(
        "{}{}{seen}\n",
        paint(&state, sign, colour),
        plain(&check.name)
    );
    for line in wrapped(&plain(&check.detail), width) {
        text.push_str(&format!("{:STATE$}{line}\n", ""));
    }
    let fix = check.fix.iter().map(|fix| format!("fix: {}", plain(fix)));
    for line in fix.flat_map(|fix| wrapped(&fix, width)) {
        text.push_str(&format!("{:STATE$}{line}\n", ""));
    }
    text
}

fn paint(text: &str, code: &str, colour: bool) -> String {
    if colour {
        format!("\x1b[{code}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}

/// Lines of at most `width` columns less the indent; longer words stay whole.
fn wrapped(text: &str, width: Option<usize>) -> Vec<String> {
    let Some(width) = width else {
        return vec![text.to_owned()];
    };
    figures::wrap(text, width.saturating_sub(STATE).max(20), usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(group: &str, name: &str, state: &str) -> Check {
        Check {
            group: group.into(),
            name: name.into(),
            state: state.into(),
            detail:
                "claims live below /sys/fs/cgroup/unified/gshare and nobody can leave one of them"
                    .into(),
            status: "simulation only".into(),
            fix: Some("mount -o remount,favordynmods /sys/fs/cgroup/unified".into()),
        }
    }

    #[test]
    fn rows_stand_under_headings_and_fit_80_columns() {
        let rows = [
            check("service", "cgroups", "ok"),
            check("memory", "memory cap", "missing"),
            check("memory", "memory limits", "missing"),
        ];
        let text = page(&verdict(&rows), &rows, Some(80), false);
        assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
        assert_eq!(text.matches("\nmemory\n").count(), 1, "{text}");
        assert!(text.contains("\n\nservice\n  ok       cgroups: simulation only\n"));
        let first = "gshare works here, but not fully: 1 check passed; 2 missing: memory cap, memory limits";
        assert_eq!(
            page(&verdict(&rows), &rows, None, false).lines().next(),
            Some(first)
        );
        let words = |t: &str| t.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            words(&text),
            words(&page(&verdict(&rows), &rows, None, false)),
            "nothing is lost"
        );
    }
}

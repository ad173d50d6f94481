//! `gshare suggest`: sizes from experience.

use std::path::Path;

use gshare_core::Bytes;
use gshare_proto::figures::percent_of;
use gshare_proto::{Call, Client, Reply, ResizeSpec, SuggestSpec, SuggestView, Suggestion, Wait};

use super::args::suggest::SuggestArgs;
use super::claim::{shown_command, unexpected};
use super::failure::Failure;
use super::table::plain;
use super::{Outcome, connect, out};

pub(crate) fn run(socket: Option<&Path>, args: &SuggestArgs) -> Outcome {
    let mut client = connect::connect(socket)?;
    let spec = SuggestSpec {
        command: shown_command(&args.command).into(),
        running: args.running,
        records: args.records,
        class: args.class.map(|c| c.name().to_owned()).map(Into::into),
    };
    let view = ask(&mut client, spec)?;
    if args.records {
        let lines: String = view.records.iter().map(|l| format!("{l}\n")).collect();
        out::print(&lines)?;
        return Ok(0);
    }
    if args.apply {
        return apply(&mut client, &view, args.json);
    }
    if args.json {
        out::json(&view)?;
        return Ok(0);
    }
    if view.suggestions.is_empty() {
        let text = if args.running {
            "you have no running claim\n"
        } else {
            "no run of yours is recorded yet\nhint: gshare suggest -- CMD says what a command would get\n"
        };
        out::print(text)?;
    }
    let texts: Vec<String> = view.suggestions.iter().map(text).collect();
    out::print(&texts.join("\n"))?;
    Ok(0)
}

/// One question.
pub(crate) fn ask(client: &mut Client, spec: SuggestSpec) -> Result<SuggestView, Failure> {
    match client.call(&Call::Suggest(spec))? {
        Reply::Suggest(view) => Ok(*view),
        other => Err(unexpected(&other)),
    }
}

fn text(said: &Suggestion) -> String {
    let mut lines = vec![plain(&said.command)];
    let id = said
        .id
        .as_ref()
        .map_or_else(String::new, |id| format!("{id} "));
    let sm = said
        .sm
        .map_or_else(String::new, |sm| format!(", SMs {}", percent_of(sm)));
    lines.push(format!(
        "  {id}{}: memory {}{sm}; confidence: {}",
        plain(&said.what),
        Bytes(said.mem),
        said.confidence
    ));
    for reason in &said.reasons {
        lines.push(format!("  - {}", plain(reason)));
    }
    if let Some(next) = said.next_mem {
        let sm = said.next_sm.map_or_else(String::new, |sm| {
            format!(" and {} of a GPU", percent_of(sm))
        });
        lines.push(format!(
            "  - expected in the next 10 minutes: up to {}{sm}",
            Bytes(next)
        ));
    }
    let asked = if said.id.is_some() {
        "the current size"
    } else {
        "the size of the last run"
    };
    match (said.frees_mem, said.frees_sm) {
        (Some(mem), sm) if mem > 0 || sm.is_some_and(|s| s > 0.0) => {
            let sm = sm.filter(|s| *s > 0.0);
            let sm = sm.map_or_else(String::new, |sm| {
                format!(" and {} of compute", percent_of(sm))
            });
            lines.push(format!(
                "  frees {}{sm} of {asked}",
                Bytes(mem.unsigned_abs())
            ));
        }
        (Some(mem), _) if mem < 0 => {
            lines.push(format!("  {} more than {asked}", Bytes(mem.unsigned_abs())));
        }
        _ => {}
    }
    lines.join("\n") + "\n"
}

fn apply(client: &mut Client, view: &SuggestView, json: bool) -> Outcome {
    let mut done = Vec::new();
    let mut failed = None;
    for said in &view.suggestions {
        let Some(id) = said.id.clone() else { continue };
        let same = said.frees_mem == Some(0) && said.frees_sm.is_none_or(|s| s.abs() < 0.005);
        if same {
            continue;
        }
        let spec = ResizeSpec {
            id: id.into(),
            mem: Some(said.mem),
            sm_milli: said.sm.map(|sm| (sm * 1000.0).round() as u32),
            wait: Wait::No,
            ..ResizeSpec::default()
        };
        match client.call(&Call::Resize(Box::new(spec))) {
            Ok(Reply::Resized(resized)) => done.push(resized),
            Ok(other) => return Err(unexpected(&other)),
            // A claim that cannot be changed now does not stop the others.
            Err(error) => failed = Some(Failure::from(error)),
        }
    }
    if json {
        out::json(&done)?;
    } else if done.is_empty() && failed.is_none() {
        out::print("nothing to change: your claims have the sizes that they need\n")?;
    } else {
        let lines: String = done
            .iter()
            .map(|r| format!("{}\n", plain(&r.message)))
            .collect();
        out::print(&lines)?;
    }
    failed.map_or(Ok(0), Err)
}

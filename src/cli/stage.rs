//! `gshare admin stage`: shows or sets how much gshare does.

use gshare_proto::{AdminCall, Call, Client, Reply};

use super::admin::{ask, show};
use super::args::admin::StageArgs;
use super::claim::unexpected;
use super::failure::{self, Failure};
use super::table::plain;
use super::{Outcome, out};

pub(crate) fn stage(client: &mut Client, args: &StageArgs) -> Outcome {
    if let Some(stage) = args.stage {
        let call = AdminCall::Stage {
            stage: stage.number().to_string().into(),
            gpus: args.gpus.clone().into(),
            group: args.group.clone().map(Into::into),
            from_ms: args.from,
            dry_run: args.dry_run,
            plan: args.plan.clone().map(Into::into),
        };
        return show(&ask(client, call)?, args.json);
    }
    let snapshot = match client.call(&Call::Snapshot)? {
        Reply::Snapshot(snapshot) => snapshot,
        other => return Err(unexpected(&other)),
    };
    let view = snapshot.service.and_then(|service| service.stage);
    let view = view.ok_or_else(|| {
        Failure::new(failure::NOT_AVAILABLE, "this service knows no stages")
            .with_hint("it is older than this command: sudo systemctl restart gshared")
    })?;
    if args.json {
        out::json(&view)?;
        return Ok(0);
    }
    let pinned = view.pinned.iter();
    let pinned = pinned.map(|key| format!(" (set by {key} in gshare.toml)"));
    let open = view
        .no_effect
        .iter()
        .map(|text| format!("! {}\n", plain(text)));
    let text = format!(
        "{}{}\n{}",
        plain(&view.text()),
        pinned.collect::<String>(),
        open.collect::<String>()
    );
    out::print(&text)?;
    Ok(0)
}

//! `gshare admin`: sends requests to the service, which decides who may make them.

use std::path::Path;
use std::time::{Duration, Instant};

use gshare_proto::{
    AdminCall, AdminDone, AuditEntry, Call, ClaimFor, ClaimSpec, Client, ClientError, QuotaView,
    Reply, Snapshot, messages,
};
use serde_json::json;

use super::args::admin::{
    AdminArgs, AdminCommand, ClaimForArgs, DrainArgs, KillArgs, LogArgs, ModeArgs, QuotaCommand,
    ReleaseArgs,
};
use super::claim::{request, sized, unexpected, wait_of};
use super::failure::{self, Failure};
use super::phases::Phases;
use super::table::{Align, Table, plain};
use super::waiting::Waiting;
use super::{Outcome, connect, off, out, stage};

/// Time between two looks of `--wait`.
const LOOK_MS: u64 = 500;

pub(crate) fn run(socket: Option<&Path>, args: &AdminArgs) -> Outcome {
    // Commands without a connection, or with one of their own.
    match &args.command {
        AdminCommand::ClaimFor(args) => return claim_for(socket, args),
        AdminCommand::Off(args) => return off::off(socket, args),
        AdminCommand::On(args) => return off::on(socket, args),
        _ => {}
    }
    let mut client = connect::connect(socket)?;
    match &args.command {
        AdminCommand::ClaimFor(_) | AdminCommand::Off(_) | AdminCommand::On(_) => Ok(0),
        AdminCommand::Drain(args) => drain(&mut client, args),
        AdminCommand::Undrain(args) => {
            let gpus = args.gpus.clone();
            let done = ask(&mut client, AdminCall::Undrain { gpus: gpus.into() })?;
            show(&done, args.json)
        }
        AdminCommand::Kill(args) => kill(&mut client, args),
        AdminCommand::Quota(args) => quota(&mut client, &args.command),
        AdminCommand::Mode(args) => mode(socket, &mut client, args),
        AdminCommand::Mig(args) => {
            let call = AdminCall::Mig {
                gpu: args.gpu.clone().into(),
                layout: args.layout.clone().into(),
                dry_run: args.dry_run,
            };
            show(&ask(&mut client, call)?, args.json)
        }
        AdminCommand::Release(args) => release(&mut client, args),
        AdminCommand::Stage(args) => stage::stage(&mut client, args),
        AdminCommand::Log(args) => log(&mut client, args),
    }
}

/// Sends a request that is answered with a sentence.
pub(crate) fn ask(client: &mut Client, call: AdminCall) -> Result<AdminDone, Failure> {
    match client.call(&Call::Admin(call))? {
        Reply::Admin(done) => Ok(done),
        other => Err(unexpected(&other)),
    }
}

/// Prints what was done, and the command that undoes it.
pub(crate) fn show(done: &AdminDone, json: bool) -> Outcome {
    if json {
        out::json(done)?;
        return Ok(0);
    }
    for line in done.message.lines() {
        out::print(&format!("{}\n", plain(line)))?;
    }
    if let Some(undo) = &done.undo {
        out::print(&format!("undo: {}\n", plain(undo)))?;
    }
    Ok(0)
}

fn drain(client: &mut Client, args: &DrainArgs) -> Outcome {
    let done = ask(
        client,
        AdminCall::Drain {
            gpus: args.gpus.clone().into(),
            reason: args.reason.clone().map(Into::into),
        },
    )?;
    show(&done, args.json)?;
    match args.wait {
        None => Ok(0),
        Some(patience) => wait_until_empty(client, &args.gpus, patience),
    }
}

/// Waits until no claim is left on the drained GPUs; progress goes to stderr.
fn wait_until_empty(client: &mut Client, gpus: &[String], patience: Option<Duration>) -> Outcome {
    let until = patience.map(|p| Instant::now() + p);
    let mut reply = client.call(&Call::Watch {
        min_interval_ms: LOOK_MS,
    })?;
    let mut told = String::new();
    loop {
        let Reply::Snapshot(snapshot) = reply else {
            return Err(unexpected(&reply));
        };
        let left = left_on(&snapshot, gpus);
        if left.is_empty() {
            out::note("no claim is left on the drained GPUs");
            return Ok(0);
        }
        let text = left.join(", ");
        if text != told {
            out::note(&format!("waits for {}: {}", left.len(), plain(&text)));
            told = text;
        }
        if until.is_some_and(|end| Instant::now() >= end) {
            return Err(Failure::new(
                failure::NOT_AVAILABLE,
                format!("time is up, and claims are still there: {told}"),
            )
            .with_hint(
                "the GPU stays drained; gshare admin kill --gpu GPU ends the claims there",
            ));
        }
        reply = client.next_reply()?;
    }
}

fn is_meant(words: &[String], index: u32, uuid: &str) -> bool {
    let mut words = words.iter();
    words.any(|w| w.parse() == Ok(index) || (w.len() >= 5 && uuid.starts_with(w.as_str())))
}

/// Claims on these GPUs, for display.
fn left_on(snapshot: &Snapshot, words: &[String]) -> Vec<String> {
    let claims = snapshot.claims.iter();
    // An offloaded claim comes back to another GPU.
    let here = claims.filter(|c| !c.place.in_host());
    let there = here.filter(|c| c.gpus.iter().any(|g| is_meant(words, g.gpu, &g.uuid)));
    there
        .map(|c| format!("{} ({}, {})", c.id, c.user, c.state_text))
        .collect()
}

fn kill(client: &mut Client, args: &KillArgs) -> Outcome {
    let millis = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
    let done = ask(
        client,
        AdminCall::Kill {
            ids: args.ids.clone().into(),
            user: args.user.clone().map(Into::into),
            gpu: args.gpu.clone().map(Into::into),
            grace_ms: args.grace.map(millis),
            reason: args.reason.clone().map(Into::into),
        },
    )?;
    show(&done, args.json)
}

fn quota(client: &mut Client, command: &QuotaCommand) -> Outcome {
    match command {
        QuotaCommand::Set {
            party,
            gpus,
            weight,
            max,
            json,
        } => {
            let quota = QuotaView {
                party: party.clone().into(),
                gpus_milli: *gpus,
                weight_milli: *weight,
                max_milli: *max,
                from_config: false,
            };
            show(&ask(client, AdminCall::QuotaSet(quota))?, *json)
        }
        QuotaCommand::Remove { party, json } => {
            let party = party.clone();
            show(
                &ask(
                    client,
                    AdminCall::QuotaRemove {
                        party: party.into(),
                    },
                )?,
                *json,
            )
        }
        QuotaCommand::List { json } => {
            let quotas = match client.call(&Call::Admin(AdminCall::QuotaList))? {
                Reply::Quotas { quotas } => quotas,
                other => return Err(unexpected(&other)),
            };
            if *json {
                out::json(&json!({ "quotas": quotas }))?;
                return Ok(0);
            }
            out::print(&quota_table(&quotas))?;
            Ok(0)
        }
    }
}

fn quota_table(quotas: &[QuotaView]) -> String {
    if quotas.is_empty() {
        return "no quotas: everybody may hold what is free\n".to_owned();
    }
    let mut table = Table::new(&[
        ("WHOSE", Align::Left),
        ("GUARANTEED", Align::Right),
        ("WEIGHT", Align::Right),
        ("AT MOST", Align::Right),
        ("FROM", Align::Left),
    ]);
    let number = |milli: Option<u32>| {
        milli.map_or_else(
            || "-".to_owned(),
            |m| format!("{:.2}", f64::from(m) / 1000.0),
        )
    };
    for quota in quotas {
        let from = if quota.from_config { "config" } else { "admin" };
        table.row(vec![
            quota.party.to_string(),
            number(quota.gpus_milli),
            number(quota.weight_milli),
            number(quota.max_milli),
            from.to_owned(),
        ]);
    }
    table.text(out::columns(), out::colour())
}

fn mode(socket: Option<&Path>, client: &mut Client, args: &ModeArgs) -> Outcome {
    let call = |mode: &str, when_empty| AdminCall::Mode {
        gpu: args.gpu.clone().into(),
        mode: mode.to_owned().into(),
        when_empty,
    };
    let done = ask(client, call(&args.mode, args.wait.is_some()))?;
    let Some(patience) = args.wait else {
        return show(&done, args.json);
    };
    let until = patience.map(|p| Instant::now() + p);
    let watch = Call::Watch {
        min_interval_ms: LOOK_MS,
    };
    let mut next = client.call(&watch);
    let mut told = String::new();
    loop {
        let reply = match next {
            // A restarting service keeps the request.
            Err(lost @ (ClientError::Closed | ClientError::Io(_))) => {
                let back = Instant::now() + connect::patience();
                let found = connect::again(socket, back, &Waiting::new(true))?;
                *client = found.ok_or(lost)?;
                next = client.call(&watch);
                continue;
            }
            reply => reply?,
        };
        let Reply::Snapshot(snapshot) = reply else {
            return Err(unexpected(&reply));
        };
        let gpus = [args.gpu.clone()];
        let gpu = snapshot
            .gpus
            .iter()
            .find(|g| is_meant(&gpus, g.index, &g.uuid));
        match gpu {
            Some(g) if g.mode_wanted.is_none() => return show(&done, args.json),
            None => return Err(Failure::new(failure::NOT_AVAILABLE, "the GPU is gone")),
            Some(_) => {}
        }
        let left = left_on(&snapshot, &gpus).join(", ");
        if left != told {
            out::note(&format!("waits for {}", plain(&left)));
            told = left;
        }
        if until.is_some_and(|end| Instant::now() >= end) {
            let now = gpu.map_or_else(String::new, |g| g.mode.clone());
            // A second connection, which only watches.
            let mut other = connect::connect(socket)?;
            ask(&mut other, call(&now, true))?;
            return Err(Failure::new(
                failure::NOT_AVAILABLE,
                format!(
                    "time is up, and the mode stays {now}, because claims are still there: {told}"
                ),
            )
            .with_hint("gshare admin kill --gpu GPU ends the claims there"));
        }
        next = client.next_reply();
    }
}

fn release(client: &mut Client, args: &ReleaseArgs) -> Outcome {
    let gpus = args.gpus.clone().into();
    let millis = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
    let call = match args.take {
        true => AdminCall::Take { gpus },
        false => AdminCall::Release {
            gpus,
            for_ms: args.back_after.map(millis),
        },
    };
    show(&ask(client, call)?, args.json)
}

fn claim_for(socket: Option<&Path>, args: &ClaimForArgs) -> Outcome {
    let uid = match args.user.parse() {
        Ok(uid) => uid,
        Err(_) => nix::unistd::User::from_name(&args.user)
            .ok()
            .flatten()
            .map(|user| user.uid.as_raw())
            .ok_or_else(|| Failure::new(failure::USAGE, messages::no_user(&args.user)))?,
    };
    let spec = ClaimSpec {
        gpu_ids: args.gpu_ids.clone().into(),
        project: args.project.clone().map(Into::into),
        class: args.class.map(|c| c.name().to_owned()).map(Into::into),
        wait: args.wait.map_or(gshare_proto::Wait::No, wait_of),
        ..sized(args.gpus, &args.part)
    };
    let call = |spec: ClaimSpec| {
        Call::Admin(AdminCall::ClaimFor(Box::new(ClaimFor {
            uid,
            name: args.name.clone().into(),
            spec: Box::new(spec),
            cgroup: args.cgroup.clone().into(),
            ..ClaimFor::default()
        })))
    };
    let granted = request(socket, spec, args.json, &mut Phases::default(), call)?;
    if args.json {
        out::json(&granted)?;
    } else {
        out::print(&format!("{}\n", plain(&granted.message)))?;
    }
    Ok(0)
}

fn log(client: &mut Client, args: &LogArgs) -> Outcome {
    let call = Call::Admin(AdminCall::Log { last: args.last });
    let entries = match client.call(&call)? {
        Reply::Audit { entries } => entries,
        other => return Err(unexpected(&other)),
    };
    if args.json {
        out::json(&json!({ "entries": entries }))?;
        return Ok(0);
    }
    if entries.is_empty() {
        out::print("no administrator has done anything yet\n")?;
        return Ok(0);
    }
    let mut table = Table::new(&[
        ("NR", Align::Right),
        ("WHEN", Align::Left),
        ("WHO", Align::Left),
        ("DID", Align::Left),
        ("ON", Align::Left),
        ("BEFORE", Align::Left),
        ("AFTER", Align::Left),
        ("REASON", Align::Left),
    ]);
    for entry in &entries {
        table.row(row(entry));
    }
    // Not cut, because a log is read in full and searched.
    out::print(&table.text(None, out::colour()))?;
    Ok(0)
}

fn row(entry: &AuditEntry) -> Vec<String> {
    vec![
        entry.seq.to_string(),
        local_time(entry.at_ms),
        format!("{} ({})", entry.user, entry.uid),
        entry.action.clone(),
        entry.target.clone(),
        entry.before.clone(),
        entry.after.clone(),
        entry.reason.clone().unwrap_or_default(),
    ]
}

/// `2026-11-20 18:31:02` in the user's time zone.
pub(crate) fn local_time(unix_ms: u64) -> String {
    let at = i64::try_from(unix_ms).ok();
    let at = at.and_then(chrono::DateTime::from_timestamp_millis);
    at.map_or_else(String::new, |at| {
        let local = at.with_timezone(&chrono::Local);
        local.format("%Y-%m-%d %H:%M:%S").to_string()
    })
}

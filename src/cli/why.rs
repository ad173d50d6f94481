//! `gshare why`, `gshare log` and `gshare keep`: one claim, in words.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use gshare_core::units::show_duration;
use gshare_proto::{Call, ClaimView, Client, Notice, QueueView, Reply, Snapshot, messages};
use serde_json::json;

use super::args::sizes::{ClaimIdArgs, KeepArgs};
use super::claim::unexpected;
use super::failure::{self, Failure};
use super::list::is_named;
use super::slurm::SlurmJob;
use super::table::plain;
use super::waiting::ordinal;
use super::{Outcome, connect, out};
use crate::figures;

pub(crate) fn why(socket: Option<&Path>, args: &ClaimIdArgs) -> Outcome {
    let reply = connect::connect(socket)?.call(&Call::Snapshot)?;
    let Reply::Snapshot(snapshot) = reply else {
        return Err(unexpected(&reply));
    };
    let slurm = snapshot.service.as_ref().is_some_and(|s| s.slurm);
    let Some(wanted) = &args.id else {
        let mut all = json!({ "queue": snapshot.queue });
        let mut text = all_waiting(&snapshot);
        match slurm.then(SlurmJob::waiting) {
            Some(Ok(jobs)) => {
                text.extend(jobs.iter().map(SlurmJob::text));
                all["slurm_jobs"] = json!(jobs);
            }
            Some(Err(failure)) => text.push_str(&format!("{}\n", failure.message)),
            None => {}
        }
        return if args.json {
            out::json(&all).map(|()| 0)
        } else if text.is_empty() {
            let none = match slurm {
                true => messages::none_waits_here(),
                false => "no claim waits".to_owned(),
            };
            out::print(&format!("{none}; gshare why ID explains one that runs\n")).map(|()| 0)
        } else {
            out::print(&text).map(|()| 0)
        };
    };
    let means = |id: &str, name: Option<&String>| is_named(wanted, id, name);
    if let Some(waiting) = snapshot
        .queue
        .iter()
        .find(|q| means(&q.id, q.name.as_ref()))
    {
        if args.json {
            out::json(waiting)?;
        } else {
            out::print(&waits(waiting, &snapshot))?;
        }
        return Ok(0);
    }
    let Some(held) = snapshot
        .claims
        .iter()
        .find(|c| means(&c.id, c.name.as_ref()))
    else {
        if let Some(job) = slurm.then(|| SlurmJob::of(wanted)).transpose()?.flatten() {
            match args.json {
                true => out::json(&job)?,
                false => out::print(&job.text())?,
            }
            return Ok(0);
        }
        let text = messages::no_claim(wanted);
        return Err(Failure::new(failure::USAGE, text).with_hint(
            "gshare queue lists waiting claims; gshare log ID explains one that has ended",
        ));
    };
    if args.json {
        out::json(held)?;
    } else {
        out::print(&runs(held, snapshot.taken_ms))?;
    }
    Ok(0)
}

/// One line for each waiting claim, and how to read more about one.
fn all_waiting(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    for waiting in &snapshot.queue {
        let waited = snapshot.taken_ms.saturating_sub(waiting.since_ms);
        text += &format!(
            "{} ({}) has waited for {}: {}\n",
            waiting.id,
            plain(&waiting.user),
            show_duration(Duration::from_millis(waited)),
            plain(&waiting.reason)
        );
    }
    for claim in come_back(snapshot) {
        let reason = claim.place.waits.as_deref().unwrap_or_default();
        text += &format!(
            "{} ({}) is offloaded and waits for room on a GPU: {}\n",
            claim.id,
            plain(&claim.user),
            plain(reason)
        );
    }
    let stuck = snapshot.claims.iter().filter_map(|c| c.turns?.stuck);
    let told: BTreeSet<String> = stuck.map(|stuck| stuck.told()).collect();
    for told in told {
        text += &format!("{told}\n");
    }
    if !text.is_empty() {
        text += "gshare why ID explains one of them\n";
    }
    text
}

fn waits(waiting: &QueueView, snapshot: &Snapshot) -> String {
    let span = |ms: u64| show_duration(Duration::from_millis(ms));
    let mut lines = vec![format!(
        "{} waits for {} ({} of {}): {}",
        waiting.id,
        span(snapshot.taken_ms.saturating_sub(waiting.since_ms)),
        ordinal(waiting.position),
        snapshot.queue.len() + come_back(snapshot).count(),
        plain(&waiting.reason)
    )];
    let user = plain(waiting.party.as_ref().unwrap_or(&waiting.user));
    let standing = if waiting.entitled {
        format!(
            "it is within the guarantee of {user}, so it has priority over claims above their owner's guarantee"
        )
    } else {
        format!(
            "it is above the guarantee of {user}: claims within a guarantee go first, then those of users with the \
             lowest recent use"
        )
    };
    // The order of the queue counts from that hour on.
    if !waiting.by_hours {
        lines.push(standing);
    }
    if let Some(arguments) = &waiting.would_start {
        lines.push(messages::starts_now(plain(arguments)));
    }
    if let Some(plan) = &waiting.plan {
        lines.push(format!("room is made for it: {}", plain(plan)));
    }
    lines.extend(waiting.alone.iter().map(|text| plain(text)));
    lines.push(waiting.starts_in_full("it ", snapshot.taken_ms));
    lines.join("\n") + "\n"
}

/// Offloaded claims that wait for room in the same queue.
pub(crate) fn come_back(snapshot: &Snapshot) -> impl Iterator<Item = &ClaimView> {
    let claims = snapshot.claims.iter();
    claims.filter(|c| c.place.waits.is_some())
}

/// The text about an offloaded claim.
fn away(claim: &ClaimView, now_ms: u64) -> Option<String> {
    let since = claim.place.since_ms?;
    let span = Duration::from_millis(now_ms.saturating_sub(since));
    let mut text = format!(
        "{} is not on a GPU: {} for {}\n",
        claim.id,
        plain(&claim.state_text),
        show_duration(span)
    );
    text += &match &claim.place.waits {
        Some(reason) => format!("it comes back when there is room: {}\n", plain(reason)),
        None if claim.place.word.as_deref() == Some("suspended") => {
            format!("gshare resume {} brings it back\n", claim.id)
        }
        None if claim.slurm_job.is_some() => {
            "its next GPU call after scontrol resume brings it back\n".to_owned()
        }
        None => format!(
            "its next GPU call brings it back, or gshare restore {}\n",
            claim.id
        ),
    };
    text += &format!("gshare log {} shows what happened\n", claim.id);
    Some(text)
}

fn runs(claim: &ClaimView, now_ms: u64) -> String {
    if let Some(text) = away(claim, now_ms) {
        return text;
    }
    let span = Duration::from_millis(now_ms.saturating_sub(claim.since_ms));
    let mut text = format!(
        "{} is in no queue: it got its part of {} {} ago ({})\n",
        claim.id,
        figures::gpus(claim.gpus.iter().map(|g| g.gpu)),
        show_duration(span),
        plain(&claim.state_text)
    );
    if let Some(stuck) = claim.turns.and_then(|turns| turns.stuck) {
        text += &format!("{}\n", stuck.told());
    } else if let Some(turns) = claim.turns.filter(|turns| turns.contended) {
        text += &format!(
            "it takes turns with other claims now; its launches have waited for {} in all\n",
            show_duration(Duration::from_millis(turns.held_back_ms))
        );
    }
    if let Some(over) = &claim.overuse {
        text += &format!("{}\n", plain(over));
    }
    let place = &claim.place;
    if let (Some(_), Some(why)) = (claim.slurm_job, &place.levers.not_detachable)
        && place.word.is_none()
    {
        text += &(messages::not_offloadable(&claim.id, plain(why)) + "\n");
    }
    if let Some(announced) = &claim.announced {
        text += &format!(
            "announced: {id} {}; to postpone: gshare keep {id}\n",
            plain(announced),
            id = claim.id
        );
    }
    text
}

/// `gshare keep`.
pub(crate) fn keep(socket: Option<&Path>, args: &KeepArgs) -> Outcome {
    let call = Call::Keep {
        id: args.id.clone().into(),
    };
    match connect::connect(socket)?.call(&call)? {
        Reply::Done { message } => out::print(&format!("{message}\n"))?,
        other => return Err(unexpected(&other)),
    }
    Ok(0)
}

pub(crate) fn log(socket: Option<&Path>, args: &ClaimIdArgs) -> Outcome {
    let Some(wanted) = &args.id else {
        return claims(socket, args.json);
    };
    let (id, _, entries) = logged(&mut connect::connect(socket)?, Some(wanted))?;
    if args.json {
        out::json(&json!({ "id": id, "entries": entries }))?;
        return Ok(0);
    }
    for entry in &entries {
        let at = super::admin::local_time(entry.at_ms);
        out::print(&format!("{at}  {}\n", plain(&entry.text)))?;
    }
    Ok(0)
}

type Logged = (Option<String>, Vec<String>, Vec<Notice>);

fn logged(client: &mut Client, id: Option<&String>) -> Result<Logged, Failure> {
    let id = id.map(|id| id.clone().into());
    match client.call(&Call::Log { id })? {
        Reply::Log {
            id,
            present,
            entries,
        } => Ok((id, present, entries)),
        other => Err(unexpected(&other)),
    }
}

/// Claims whose logs the caller may read: those that run or wait, then the last that ended.
fn claims(socket: Option<&Path>, json: bool) -> Outcome {
    let mut client = connect::connect(socket)?;
    let reply = client.call(&Call::Snapshot)?;
    let Reply::Snapshot(mut snapshot) = reply else {
        return Err(unexpected(&reply));
    };
    let (_, present, ended) = logged(&mut client, None)?;
    snapshot.claims.retain(|c| present.contains(&c.id));
    snapshot.queue.retain(|q| present.contains(&q.id));
    snapshot.unclaimed.clear();
    if json {
        let mut all = super::list::ps_json(&snapshot, true);
        all["ended"] = json!(ended);
        out::json(&all)?;
        return Ok(0);
    }
    let running = super::rows::claims(&snapshot, true);
    let mut text = running.text(out::columns(), out::colour());
    if !ended.is_empty() {
        text += "\nended, newest first:\n";
    }
    for entry in &ended {
        let at = super::admin::local_time(entry.at_ms);
        let id = entry.claim.as_deref().unwrap_or_default();
        text += &format!("{at}  {id}: {}\n", plain(&entry.text));
    }
    text += "\ngshare log ID shows what happened to a claim, even after its end\n";
    out::print(&text)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use gshare_proto::{PlaceView, StuckView, TurnsView};

    use super::*;

    #[test]
    fn it_names_the_claim_whose_kernel_does_not_end() {
        let stuck = StuckView {
            claim: 3,
            gpu: 0,
            seconds: 40,
        };
        let claim = ClaimView {
            turns: Some(TurnsView {
                stuck: Some(stuck),
                ..TurnsView::default()
            }),
            ..ClaimView::default()
        };
        let said = runs(&claim, 1000);
        let told = "c3 has run one kernel for 40s; GPU 0 cannot be shared meanwhile\n";
        assert!(said.contains(told), "{said}");
        // Both claims that share the GPU know of it.
        let snapshot = Snapshot {
            claims: vec![claim.clone(), claim],
            ..Snapshot::default()
        };
        assert_eq!(all_waiting(&snapshot).matches(told).count(), 1);
    }

    #[test]
    fn it_says_whose_guarantee_it_is_which_hour_and_who_else_is_in_the_queue() {
        let back = ClaimView {
            id: "c7".into(),
            place: PlaceView {
                waits: Some("needs 78.6 GiB".into()),
                ..PlaceView::default()
            },
            ..ClaimView::default()
        };
        let mut waiting = QueueView {
            id: "c9".into(),
            user: "ada".into(),
            position: 2,
            reason: "needs 23.2 GiB".into(),
            entitled: true,
            party: Some("project vision".into()),
            ..QueueView::default()
        };
        let snapshot = Snapshot {
            taken_ms: 5000,
            claims: vec![back, ClaimView::default()],
            queue: vec![waiting.clone()],
            ..Snapshot::default()
        };
        let said = waits(&waiting, &snapshot);
        assert!(said.contains("(2nd of 2): needs"), "{said}");
        assert!(
            said.contains("within the guarantee of project vision"),
            "{said}"
        );
        (waiting.by_hours, waiting.expected_ms) = (true, Some(65_000));
        let said = waits(&waiting, &snapshot);
        assert!(!said.contains("guarantee"), "its turn is not yet: {said}");
        assert!(
            said.ends_with("it starts in 1m at the earliest\n"),
            "{said}"
        );
    }
}

//! `gshare ps`, `queue` and `status`: one snapshot, or a series of them.

use std::path::Path;
use std::time::Duration;

use gshare_core::Bytes;
use gshare_core::units::many;
use gshare_proto::{Call, Client, Reply, Snapshot, messages};
use serde_json::json;

use super::args::{ListArgs, PsArgs};
use super::claim::unexpected;
use super::failure::Failure;
use super::table::{cut, plain};
use super::{Outcome, connect, out, rows};

pub(crate) fn ps(socket: Option<&Path>, args: &PsArgs) -> Outcome {
    each(socket, &args.list, |snapshot| {
        let of_job = args.job.map(|job| of_job(snapshot, job)).transpose()?;
        let snapshot = of_job.as_ref().unwrap_or(snapshot);
        if args.csv {
            return out::print(&rows::csv(snapshot));
        }
        if args.list.json {
            return out::json(&ps_json(snapshot, args.all));
        }
        let table = rows::claims(snapshot, args.all);
        let text = table.text(out::columns(), out::colour());
        out::print(
            &(off_text(snapshot)
                + &text
                + &by_driver(snapshot)
                + &uncounted(snapshot)
                + &through_mps(snapshot)
                + &stay(snapshot)
                + &hidden(snapshot)),
        )
    })
}

/// Only the claim of a Slurm job.
fn of_job(snapshot: &Snapshot, job: u32) -> Result<Snapshot, Failure> {
    let mut snapshot = snapshot.clone();
    snapshot.claims.retain(|c| c.slurm_job == Some(job));
    if snapshot.claims.is_empty() {
        let text = format!("Slurm job {job} has no claim on this machine");
        let hint = format!(
            "it waits, has ended, or has no GPU here. Tasks of an array have numbers of their own: squeue --jobs {job} \
             --format '%A %i %T'"
        );
        return Err(Failure::new(super::failure::USAGE, text).with_hint(hint));
    }
    Ok(snapshot)
}

pub(super) fn ps_json(snapshot: &Snapshot, all: bool) -> serde_json::Value {
    let mut object = json!({ "claims": snapshot.claims });
    if all {
        object["queue"] = json!(snapshot.queue);
        object["unclaimed"] = json!(snapshot.unclaimed);
    }
    object
}

/// Whether a user's word names this claim: its id (c3), the number of the id, or its name.
pub(crate) fn is_named(word: &str, id: &str, name: Option<&String>) -> bool {
    id == word || id.strip_prefix('c') == Some(word) || name.is_some_and(|name| name == word)
}

/// Memory that the driver itself uses for claims, which counts against their limits.
fn by_driver(snapshot: &Snapshot) -> String {
    let lines = snapshot.claims.iter().filter_map(|claim| {
        let bytes: u64 = claim.gpus.iter().filter_map(|g| g.mem_driver).sum();
        (bytes >= 1 << 20).then(|| {
            format!(
                "{}: the driver itself uses {} of the claim's memory limit (modules, graphs, stack)\n",
                claim.id,
                Bytes(bytes)
            )
        })
    });
    lines.collect()
}

/// Note that there are jobs of others which this user does not see.
fn hidden(snapshot: &Snapshot) -> String {
    match snapshot.hidden {
        0 => String::new(),
        1 => "1 Slurm job of another user is not shown (PrivateData=jobs)\n".to_owned(),
        n => format!("{n} Slurm jobs of other users are not shown (PrivateData=jobs)\n"),
    }
}

/// `pid 7`, `pids 7, 8`.
fn pids(pids: &[u32]) -> String {
    let s = if pids.len() == 1 { "" } else { "s" };
    let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
    format!("pid{s} {}", pids.join(", "))
}

/// Processes of claims that gshare neither counts nor limits.
fn uncounted(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    for claim in &snapshot.claims {
        let id = &claim.id;
        for part in &claim.gpus {
            let gpu = part.gpu;
            if !part.past_library.is_empty() {
                let uses = if part.past_library.len() == 1 {
                    "uses"
                } else {
                    "use"
                };
                text.push_str(&format!(
                    "{id}: {} {uses} GPU {gpu} without gshare's library, so its limits do not apply (see gshare doctor)\n",
                    pids(&part.past_library)
                ));
            }
            if !part.cannot_tell.is_empty() {
                text.push_str(&format!(
                    "{id}: gshare cannot count all that {} ran on GPU {gpu}: it does not see launches of OptiX, OpenCL, Vulkan and OpenGL, or kernels that other kernels start\n",
                    pids(&part.cannot_tell)
                ));
            }
        }
    }
    text
}

/// The SMs that MPS gives claims, if they differ from their sizes, and processes beside MPS.
fn through_mps(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    for claim in &snapshot.claims {
        let id = &claim.id;
        for part in &claim.gpus {
            let gpu = snapshot.gpus.iter().find(|g| g.index == part.gpu);
            let all = gpu.and_then(|g| g.sms).filter(|all| *all > 0);
            if let (Some(sms), Some(all)) = (part.mps_sms, all) {
                let given = sms.value / f64::from(all) * 100.0;
                let asked = part.sm_request * 100.0;
                if (given - asked).abs() >= 0.05 {
                    let about = if sms.estimate { "~" } else { "" };
                    text.push_str(&format!(
                        "{id} has {about}{:.0} of the {all} SMs of GPU {} through MPS: {given:.1} %, asked for {asked:.1} %\n",
                        sms.value, part.gpu
                    ));
                }
            }
            if !part.beside_mps.is_empty() {
                let run = if part.beside_mps.len() == 1 {
                    "runs"
                } else {
                    "run"
                };
                text.push_str(&format!(
                    "{id}: {} {run} on GPU {} outside MPS: its SMs are not limited\n",
                    pids(&part.beside_mps),
                    part.gpu
                ));
            }
        }
    }
    text
}

/// Claims that cannot be offloaded, and others that cannot be moved, with a line for each reason.
fn stay(snapshot: &Snapshot) -> String {
    let mut reasons: Vec<(&str, &str, Vec<&str>)> = Vec::new();
    // With one GPU there is no other GPU to move to.
    let several = snapshot.gpus.len() > 1;
    // One that is offloaded, or moves, has its own words in its row.
    let here = snapshot.claims.iter().filter(|c| c.place.word.is_none());
    for claim in here {
        let levers = &claim.place.levers;
        // What holds for any job of Slurm, `gshare why` says.
        let own = |why: &&String| *why != gshare_proto::MOVED_BY_SLURM;
        let movable = levers.not_movable.as_ref().filter(|_| several);
        let detachable = levers.not_detachable.as_ref();
        let (what, why) = match (detachable.filter(own), movable.filter(own)) {
            (Some(why), _) => ("offloaded", why),
            (None, Some(why)) => ("moved", why),
            (None, None) => continue,
        };
        let known = reasons.iter_mut().find(|r| (r.0, r.1) == (what, why));
        match known {
            Some((.., ids)) => ids.push(&claim.id),
            None => reasons.push((what, why, vec![&claim.id])),
        }
    }
    // The most restricted first.
    reasons.sort_by_key(|(what, ..)| *what);
    let line = |(what, why, ids): (&str, &str, Vec<&str>)| match ids.as_slice() {
        [id] => format!("{id} cannot be {what}: {}\n", plain(why)),
        _ => format!(
            "{} cannot be {what}, all for the same reason: {}\n",
            ids.join(", "),
            plain(why)
        ),
    };
    reasons.into_iter().map(line).collect()
}

pub(crate) fn queue(socket: Option<&Path>, args: &ListArgs) -> Outcome {
    each(socket, args, |snapshot| {
        if args.json {
            return out::json(&json!({ "queue": snapshot.queue }));
        }
        let back = come_back(snapshot);
        let mut text = off_text(snapshot);
        if snapshot.queue.is_empty() {
            let slurm = snapshot.service.as_ref().is_some_and(|s| s.slurm);
            text += &match slurm {
                _ if !back.is_empty() => back,
                true => format!("{}\n", messages::none_waits_here()),
                false => "no claim waits\n".to_owned(),
            };
            return out::print(&text);
        }
        text += &rows::queue(snapshot).text(out::columns(), out::colour());
        for waiting in &snapshot.queue {
            text.push_str(&format!("{}: {}", waiting.id, plain(&waiting.reason)));
            if let Some(plan) = &waiting.plan {
                text.push_str(&format!("; {}", plain(plan)));
            }
            if let Some(arguments) = &waiting.would_start {
                text.push_str(&format!("; {}", messages::starts_now(plain(arguments))));
            }
            text.push('\n');
        }
        out::print(&(text + &back))
    })
}

/// Offloaded claims that wait in the same queue to be restored.
fn come_back(snapshot: &Snapshot) -> String {
    let ids: Vec<String> = super::why::come_back(snapshot)
        .map(|c| format!("{} ({})", c.id, plain(&c.user)))
        .collect();
    match ids.as_slice() {
        [] => String::new(),
        [one] => format!(
            "{one} also waits for room, to come back from host RAM: gshare why shows the reason\n"
        ),
        _ => format!(
            "{} also wait for room, to come back from host RAM: gshare why shows the reason\n",
            ids.join(", ")
        ),
    }
}

pub(crate) fn status(socket: Option<&Path>, args: &ListArgs) -> Outcome {
    each(socket, args, |snapshot| {
        if args.json {
            return out::json(snapshot);
        }
        out::print(&status_text(snapshot))
    })
}

fn status_text(snapshot: &Snapshot) -> String {
    let (width, bold) = (out::columns(), out::colour());
    let mut text =
        off_text(snapshot) + &no_effect_text(snapshot) + &cut(&headline(snapshot), width) + "\n\n";
    text.push_str(&rows::gpus(snapshot).blocks(width, bold));
    if !snapshot.users.is_empty() {
        text.push('\n');
        text.push_str(&rows::users(snapshot).blocks(width, bold));
    }
    if let Some(day) = rows::last_day(&snapshot.users) {
        text.push('\n');
        text.push_str(&day.text(width, bold));
    }
    let adopted = snapshot.claims.iter().filter(|c| c.adopted).count();
    let outside = snapshot.unclaimed.len() + adopted;
    text.push_str(&format!(
        "\n{} running, {} waiting, {} without a claim\n",
        snapshot.claims.len() - adopted,
        snapshot.queue.len(),
        many(outside, "GPU process")
    ));
    for advice in &snapshot.advice {
        text.push_str(&format!("! {}", plain(&advice.text)));
        if let Some(command) = &advice.command {
            text.push_str(&format!(": {}", plain(command)));
        }
        text.push('\n');
    }
    text
}

/// A note that gshare is off, before everything else.
fn off_text(snapshot: &Snapshot) -> String {
    let service = snapshot.service.as_ref();
    let Some(off) = service.and_then(|s| s.off.as_ref()) else {
        return String::new();
    };
    let until = off.until_ms.map_or_else(String::new, |at| {
        format!(" until {}", super::admin::local_time(at))
    });
    format!(
        "gshare is OFF{until} (by {}): nothing is limited, reclaimed or refused. To switch it on: gshare admin on\n\n",
        plain(&off.by)
    )
}

/// A note that the stage has no effect.
fn no_effect_text(snapshot: &Snapshot) -> String {
    let stage = snapshot.service.as_ref().and_then(|s| s.stage.as_ref());
    let text = stage.and_then(|s| s.no_effect.as_deref());
    text.map_or_else(String::new, |text| format!("! {}\n\n", plain(text)))
}

fn headline(snapshot: &Snapshot) -> String {
    let mut parts = vec![plain(&snapshot.host)];
    parts.push(snapshot.gpus_text());
    if snapshot.simulated {
        parts.push("SIMULATED DRIVER".to_owned());
    }
    if let Some(driver) = &snapshot.driver {
        parts.push(format!("driver {}", plain(driver)));
    }
    parts.push(
        match snapshot.caps {
            gshare_proto::Caps::Strict => "limits: strict",
            gshare_proto::Caps::Cooperative => "limits: cooperative",
            gshare_proto::Caps::None => "limits: none",
        }
        .to_owned(),
    );
    if let Some(service) = &snapshot.service {
        let off = |on: bool, what: &str| {
            if on {
                String::new()
            } else {
                format!(", no {what}")
            }
        };
        parts.extend(service.stage.as_ref().map(|s| plain(&s.text())));
        parts.push(format!(
            "{} service{}{}",
            service.mode,
            off(service.cgroups, "cgroups"),
            off(service.device_filter, "device filter")
        ));
    }
    parts.join("  ")
}

/// Shows one snapshot, or with `--watch` every new one.
pub(crate) fn each(
    socket: Option<&Path>,
    args: &ListArgs,
    mut show: impl FnMut(&Snapshot) -> Result<(), Failure>,
) -> Outcome {
    let mut client = connect::connect(socket)?;
    let Some(every) = args.watch else {
        let snapshot = snapshot(client.call(&Call::Snapshot)?)?;
        show(&filtered(snapshot, args.user.as_deref()))?;
        return Ok(0);
    };
    watch(&mut client, every, |snapshot| {
        if !args.json {
            out::clear()?;
        }
        show(&filtered(snapshot, args.user.as_deref()))
    })
}

fn watch(
    client: &mut Client,
    every: Duration,
    mut show: impl FnMut(Snapshot) -> Result<(), Failure>,
) -> Outcome {
    let call = Call::Watch {
        min_interval_ms: u64::try_from(every.as_millis()).unwrap_or(u64::MAX),
    };
    let mut reply = client.call(&call)?;
    loop {
        show(snapshot(reply)?)?;
        reply = client.next_reply()?;
    }
}

fn snapshot(reply: Reply) -> Result<Snapshot, Failure> {
    match reply {
        Reply::Snapshot(snapshot) => Ok(*snapshot),
        other => Err(unexpected(&other)),
    }
}

/// Only rows of `user` (a login name or a uid); GPUs stay.
fn filtered(mut snapshot: Snapshot, user: Option<&str>) -> Snapshot {
    let Some(user) = user else { return snapshot };
    let uid: Option<u32> = user.parse().ok();
    let is = |name: &str, id: u32| name == user || uid == Some(id);
    snapshot.claims.retain(|c| is(&c.user, c.uid));
    snapshot.queue.retain(|q| is(&q.user, q.uid));
    snapshot.users.retain(|u| is(&u.user, u.uid));
    snapshot.unclaimed.retain(|p| {
        p.uid
            .is_some_and(|id| is(p.user.as_deref().unwrap_or_default(), id))
    });
    snapshot
}

#[cfg(test)]
mod tests {
    use gshare_proto::{ClaimGpu, ClaimView, Figure, GpuView, Source};

    use super::*;

    fn claim(id: &str, why: Option<&str>) -> ClaimView {
        let mut claim = ClaimView {
            id: id.to_owned(),
            gpus: vec![ClaimGpu {
                sm_request: 0.25,
                ..ClaimGpu::default()
            }],
            ..ClaimView::default()
        };
        claim.place.levers.not_detachable = why.map(str::to_owned);
        claim
    }

    #[test]
    fn a_reason_suits_one_claim_and_several() {
        let mut snapshot = Snapshot {
            claims: vec![
                claim("c1", Some("it uses managed memory")),
                claim("c2", None),
            ],
            ..Snapshot::default()
        };
        assert_eq!(
            stay(&snapshot),
            "c1 cannot be offloaded: it uses managed memory\n"
        );
        let more = claim("c3", Some("it uses managed memory"));
        snapshot.claims.push(more);
        assert_eq!(
            stay(&snapshot),
            "c1, c3 cannot be offloaded, all for the same reason: it uses managed memory\n"
        );
        for claim in &mut snapshot.claims {
            claim.place.word = Some("offloaded".to_owned());
        }
        assert_eq!(stay(&snapshot), "");
    }

    #[test]
    fn what_mps_gives_is_said_where_it_is_not_what_was_asked_for() {
        let mut snapshot = Snapshot {
            gpus: vec![GpuView {
                sms: Some(132),
                ..GpuView::default()
            }],
            claims: vec![claim("c1", None)],
            ..Snapshot::default()
        };
        let given = |value, estimate| Figure {
            value,
            source: Source::Shim,
            estimate,
        };
        snapshot.claims[0].gpus[0].mps_sms = Some(given(33.0, false));
        assert_eq!(through_mps(&snapshot), "");
        snapshot.claims[0].gpus[0].mps_sms = Some(given(32.0, true));
        assert_eq!(
            through_mps(&snapshot),
            "c1 has ~32 of the 132 SMs of GPU 0 through MPS: 24.2 %, asked for 25.0 %\n"
        );
        snapshot.claims[0].gpus[0].mps_sms = None;
        snapshot.claims[0].gpus[0].beside_mps = vec![7, 8];
        assert_eq!(
            through_mps(&snapshot),
            "c1: pids 7, 8 run on GPU 0 outside MPS: its SMs are not limited\n"
        );
    }
}

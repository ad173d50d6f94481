//! `gshare smi`: one claim from outside, as `nvidia-smi` inside the claim shows it.

use std::path::Path;

use gshare_proto::figures::percent;
use gshare_proto::{ClaimView, GpuView, Snapshot, messages};
use serde_json::json;

use super::args::SmiArgs;
use super::failure::{self, Failure};
use super::table::{Align, Table, UNKNOWN, cut, plain};
use super::{Outcome, list, out};

pub(crate) fn run(socket: Option<&Path>, args: &SmiArgs) -> Outcome {
    let own = std::env::var("GSHARE_CLAIM_ID")
        .ok()
        .filter(|id| !id.is_empty());
    let word = args.id.clone().or(own).ok_or_else(|| {
        Failure::new(failure::USAGE, "which claim? this shell is in none")
            .with_hint("gshare ps lists the claims; gshare smi c3 shows one")
    })?;
    list::each(socket, &args.list, |snapshot| {
        let claim = find(snapshot, &word)?;
        if args.list.json {
            return out::json(&json!({ "claim": claim, "gpus": gpus(snapshot, claim) }));
        }
        out::print(&text(snapshot, claim))
    })
}

fn find<'s>(snapshot: &'s Snapshot, word: &str) -> Result<&'s ClaimView, Failure> {
    let fits = |c: &&ClaimView| list::is_named(word, &c.id, c.name.as_ref());
    snapshot.claims.iter().find(fits).ok_or_else(|| {
        Failure::new(
            failure::USAGE,
            format!("there is no running claim `{word}`"),
        )
        .with_hint(messages::claims_are_listed())
    })
}

fn gpus<'s>(snapshot: &'s Snapshot, claim: &ClaimView) -> Vec<&'s GpuView> {
    let of = |index: u32| snapshot.gpus.iter().find(|g| g.index == index);
    claim.gpus.iter().filter_map(|part| of(part.gpu)).collect()
}

fn text(snapshot: &Snapshot, claim: &ClaimView) -> String {
    let (width, bold) = (out::columns(), out::colour());
    let mib =
        |bytes: Option<u64>| bytes.map_or_else(|| UNKNOWN.to_owned(), |b| (b >> 20).to_string());
    let percent = |v: Option<f64>| v.map_or_else(|| UNKNOWN.to_owned(), |v| percent(v) + " %");
    let driver = snapshot.driver.as_deref().unwrap_or(UNKNOWN);
    let simulated = if snapshot.simulated {
        "SIMULATED DRIVER  "
    } else {
        ""
    };
    let head = format!(
        "{simulated}claim {} of {}  driver {}",
        claim.id,
        plain(&claim.user),
        plain(driver)
    );
    let mut text = cut(&head, width) + "\n\n";
    let mut parts = Table::new(&[
        ("GPU", Align::Right),
        ("MODEL", Align::Left),
        ("MEM MiB used/limit", Align::Right),
        ("SMs claimed", Align::Right),
        ("TIME BUSY", Align::Right),
        ("SM ACTIVE", Align::Right),
        ("TEMP", Align::Right),
    ]);
    for (part, gpu) in claim.gpus.iter().zip(gpus(snapshot, claim)) {
        parts.row(vec![
            gpu.index.to_string(),
            gpu.model.clone(),
            format!("{}/{}", mib(part.mem_charge), part.mem_limit >> 20),
            format!("{:.0} %", part.sm_request * 100.0),
            percent(part.time_busy.map(|f| f.value)),
            percent(part.sm_active.map(|f| f.value)),
            gpu.temperature_c
                .map_or_else(|| UNKNOWN.to_owned(), |t| format!("{t} C")),
        ]);
    }
    text.push_str(&parts.text(width, bold));
    text.push('\n');
    if claim.processes.is_empty() {
        text.push_str("no process of the claim is on a GPU\n");
        return text;
    }
    let mut processes = Table::new(&[
        ("GPU", Align::Right),
        ("PID", Align::Right),
        ("MEM MiB", Align::Right),
        ("TIME BUSY", Align::Right),
        ("COMMAND", Align::Left),
    ]);
    for process in &claim.processes {
        processes.row(vec![
            process.gpu.to_string(),
            process.pid.to_string(),
            mib(process.mem_used),
            percent(process.time_busy),
            process.what.clone(),
        ]);
    }
    text.push_str(&processes.text(width, bold));
    text
}

//! `gshare release`.

use std::io::{self, IsTerminal};
use std::path::Path;

use gshare_proto::{Call, ClaimView, Client, Reply};
use serde_json::json;

use super::args::ReleaseArgs;
use super::claim::unexpected;
use super::failure::Failure;
use super::list::is_named;
use super::table::plain;
use super::{Outcome, connect, out};

/// Asks before notebook kernels are ended; true if there are none.
fn may_end_kernels(client: &mut Client, args: &ReleaseArgs) -> Result<bool, Failure> {
    let snapshot = match client.call(&Call::Snapshot)? {
        Reply::Snapshot(snapshot) => snapshot,
        other => return Err(unexpected(&other)),
    };
    let uid = nix::unistd::getuid().as_raw();
    let is_named = |claim: &ClaimView| {
        let mut ids = args.ids.iter();
        ids.any(|word| is_named(word, &claim.id, claim.name.as_ref()))
    };
    let is_ended = |claim: &&ClaimView| {
        (args.all && claim.uid == uid || is_named(claim)) && claim.identity.notebook.is_some()
    };
    let notebooks: Vec<&ClaimView> = snapshot.claims.iter().filter(is_ended).collect();
    if notebooks.is_empty() {
        return Ok(true);
    }
    for claim in &notebooks {
        let (id, what) = (&claim.id, plain(&claim.what));
        out::note(&format!(
            "{id} is the notebook {what}: its kernel will be ended and its variables are lost; \
             gshare offload {id} frees the GPU memory and keeps them"
        ));
    }
    eprint!("Release and end the kernel? [y/N] ");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

pub(crate) fn run(socket: Option<&Path>, args: &ReleaseArgs) -> Outcome {
    let mut client = connect::connect(socket)?;
    let asks = !args.yes && !args.json && io::stdin().is_terminal() && io::stderr().is_terminal();
    if asks && !may_end_kernels(&mut client, args)? {
        out::note("nothing was released");
        return Ok(0);
    }
    let mut calls: Vec<Call> = Vec::new();
    if args.all {
        calls.push(Call::ReleaseAll);
    }
    calls.extend(args.ids.iter().map(|id| Call::Release {
        id: id.clone().into(),
    }));
    let mut worst: Option<Failure> = None;
    let mut done = Vec::new();
    // A claim that cannot be released does not stop the others.
    for call in &calls {
        match client.call(call) {
            Ok(Reply::Done { message }) => done.push(message),
            Ok(other) => return Err(unexpected(&other)),
            Err(e) => {
                let failure = Failure::from(e);
                let last = failure.code == super::failure::NO_SERVICE;
                if let Some(earlier) = worst.replace(failure) {
                    out::failure(&earlier);
                }
                if last {
                    break;
                }
            }
        }
    }
    if args.json {
        out::json(&json!({ "done": done }))?;
    } else {
        for message in &done {
            out::print(&format!("{message}\n"))?;
        }
    }
    worst.map_or(Ok(0), Err)
}

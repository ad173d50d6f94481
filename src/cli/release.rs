//! `gshare release`.

use std::path::Path;

use gshare_proto::{Call, Reply};
use serde_json::json;

use super::args::ReleaseArgs;
use super::claim::unexpected;
use super::failure::Failure;
use super::{Outcome, connect, out};

pub(crate) fn run(socket: Option<&Path>, args: &ReleaseArgs) -> Outcome {
    let mut client = connect::connect(socket)?;
    let mut calls: Vec<Call> = Vec::new();
    if args.all {
        calls.push(Call::ReleaseAll);
    }
    calls.extend(args.ids.iter().map(|id| Call::Release {
        id: id.clone().into(),
    }));
    let mut worst: Option<Failure> = None;
    let mut done = Vec::new();
    // One claim that cannot be released does not keep the others.
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

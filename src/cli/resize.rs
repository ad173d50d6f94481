//! `gshare resize` and `gshare extend`.

use std::path::Path;

use gshare_proto::{Call, Reply, ResizeSpec, Resized, Wait};

use super::args::sizes::{ExtendArgs, ResizeArgs};
use super::claim::{sized, unexpected, wait_of, whole_seconds};
use super::failure::Failure;
use super::waiting::Waiting;
use super::{Outcome, connect, out};

pub(crate) fn run(socket: Option<&Path>, args: &ResizeArgs) -> Outcome {
    let mut waiting = Waiting::new(args.quiet);
    let outcome = resize(socket, args, &mut waiting);
    waiting.end()?;
    let resized = outcome?;
    if args.json {
        out::json(&resized)?;
    } else if !args.quiet {
        out::print(&format!("{}\n", resized.message))?;
    }
    Ok(0)
}

/// `gshare extend`.
pub(crate) fn extend(socket: Option<&Path>, args: &ExtendArgs) -> Outcome {
    let call = Call::Extend {
        id: args.id.clone().into(),
        by_s: whole_seconds(args.time),
    };
    match connect::connect(socket)?.call(&call)? {
        Reply::Done { message } if args.quiet => drop(message),
        Reply::Done { message } => out::print(&format!("{message}\n"))?,
        other => return Err(unexpected(&other)),
    }
    Ok(0)
}

fn resize(
    socket: Option<&Path>,
    args: &ResizeArgs,
    waiting: &mut Waiting,
) -> Result<Resized, Failure> {
    let mut client = connect::connect(socket)?;
    let mut next = client.call(&Call::Resize(Box::new(spec(args))))?;
    while let Reply::Queued(queued) = &next {
        waiting.show(queued)?;
        next = client.next_reply()?;
    }
    match next {
        Reply::Resized(resized) => Ok(resized),
        other => Err(unexpected(&other)),
    }
}

fn spec(args: &ResizeArgs) -> ResizeSpec {
    let size = sized(args.gpus, &args.part);
    ResizeSpec {
        id: args.id.clone().into(),
        gpus_milli: size.gpus_milli,
        gpu_count: size.gpu_count,
        mem: size.mem,
        mem_limit: size.mem_limit,
        sm_milli: size.sm_milli,
        sm_limit_milli: size.sm_limit_milli,
        wait: args.wait.map_or(Wait::No, wait_of),
    }
}

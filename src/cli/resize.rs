//! `gshare resize` and `gshare extend`.

use std::path::Path;

use gshare_config::Wait as Asked;
use gshare_core::Share;
use gshare_proto::{Call, Reply, ResizeSpec, Resized, Wait};

use super::args::sizes::{ExtendArgs, ResizeArgs};
use super::claim::{parts_of_several, unexpected, whole_seconds};
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
    ResizeSpec {
        id: args.id.clone().into(),
        gpus_milli: args.gpus.map(|g| g.as_share().unwrap_or(g.each).milli()),
        gpu_count: args.gpus.and_then(parts_of_several),
        mem: args.gpu_mem.map(|b| b.0),
        mem_limit: args.gpu_mem_limit.map(|b| b.0),
        sm_milli: args.sm.map(Share::milli),
        sm_limit_milli: args.limit.map(Share::milli),
        wait: match args.wait {
            None | Some(Asked::No) => Wait::No,
            Some(Asked::Forever) => Wait::Forever,
            Some(Asked::For(time)) => Wait::Seconds(whole_seconds(time)),
        },
    }
}

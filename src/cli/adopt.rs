//! `gshare adopt`: a running process becomes a claim.

use std::path::Path;

use gshare_proto::{Call, ClaimSpec, Wait};

use super::args::AdoptArgs;
use super::claim::granted;
use super::{Outcome, connect, out};

pub(crate) fn run(socket: Option<&Path>, args: &AdoptArgs) -> Outcome {
    let spec = ClaimSpec {
        gpus_milli: args.gpus.map(gshare_core::Share::milli),
        mem: args.gpu_mem.map(|b| b.0),
        sm_milli: args.sm.map(gshare_core::Share::milli),
        name: args.name.clone().map(Into::into),
        project: args.project.clone().map(Into::into),
        class: args.class.map(|c| c.name().to_owned()).map(Into::into),
        lease_s: args.time.map(|t| t.as_secs()),
        wait: Wait::No,
        ..ClaimSpec::default()
    };
    let call = Call::Adopt {
        pid: args.pid,
        spec: Box::new(spec),
    };
    let granted = granted(connect::connect(socket)?.call(&call)?)?;
    if args.json {
        out::json(&granted)?;
    } else if args.quiet {
        out::print(&format!("{}\n", granted.id))?;
    } else {
        out::print(&format!("{}\n", granted.message))?;
    }
    Ok(0)
}

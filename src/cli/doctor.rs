//! `gshare doctor`: what is enforced here, and what would mend the rest.

use std::path::Path;

use gshare_proto::call::Check;
use gshare_proto::{Call, Reply};
use serde_json::json;

use super::args::DoctorArgs;
use super::claim::unexpected;
use super::table::{Align, Table, plain};
use super::{Outcome, connect, failure, out};

pub(crate) fn run(socket: Option<&Path>, args: &DoctorArgs) -> Outcome {
    let mut client = match connect::connect(socket) {
        Ok(client) => client,
        Err(e) => {
            let check = Check {
                name: "service".to_owned(),
                state: "missing".to_owned(),
                detail: e.message,
                status: String::new(),
                fix: e.hint,
            };
            show(&[check], args.json)?;
            return Ok(e.code);
        }
    };
    match client.call(&Call::Doctor)? {
        Reply::Doctor { checks } => {
            show(&checks, args.json)?;
            Ok(0)
        }
        other => Err(unexpected(&other)),
    }
}

fn show(checks: &[Check], json: bool) -> Result<(), failure::Failure> {
    if json {
        return out::json(&json!({ "checks": checks }));
    }
    let mut table = Table::new(&[
        ("CHECK", Align::Left),
        ("STATE", Align::Left),
        ("SEEN", Align::Left),
        ("FOUND", Align::Left),
    ]);
    for check in checks {
        let status = if check.status.is_empty() {
            "-".to_owned()
        } else {
            check.status.clone()
        };
        table.row(vec![
            check.name.clone(),
            check.state.clone(),
            status,
            check.detail.clone(),
        ]);
    }
    // Sentences are not cut: this text is read once, and pasted into questions.
    out::print(&table.text(None, out::colour()))?;
    for check in checks {
        if let Some(fix) = &check.fix {
            out::print(&format!("fix {}: {}\n", check.name, plain(fix)))?;
        }
    }
    Ok(())
}

//! `gshare doctor --driver 550 --gpu rtx4090`: what gshare could do with a driver and a GPU that are not installed.

use gshare_enforcer::gpu::{GpuReading, counters};
use gshare_proto::call::Check;
use gshare_proto::messages;

use crate::command::args::prospect::{Model, ProspectArgs};
use crate::release::{COMPARED_SINCE, MOVES_SINCE, OFFLOADS_SINCE, REFUSES_PYTORCH, Release};

/// The rows, and the verdict in one line.
pub(super) fn of(args: &ProspectArgs) -> (String, Vec<Check>) {
    let mut rows = Vec::new();
    let mut of = Vec::new();
    if let Some(release) = args.driver {
        of.push(format!("driver {release}"));
        rows.extend(driver_rows(release));
    }
    if let Some(model) = args.gpu {
        of.push(model.name.to_owned());
        // Under the driver's heading.
        rows.insert(rows.len().min(1), gpu_row(model));
    }
    let missing = rows.iter().filter(|row| row.state != "ok");
    let missing: Vec<&str> = missing.map(|row| row.name.as_str()).collect();
    let rest = match missing.as_slice() {
        [] => "all of this would work".to_owned(),
        names => format!("would not work, or only in part: {}", names.join(", ")),
    };
    (format!("gshare with {}: {rest}", of.join(" and ")), rows)
}

fn row(group: &str, name: &str, state: &str, detail: String) -> Check {
    Check {
        group: group.to_owned(),
        name: name.to_owned(),
        state: state.to_owned(),
        detail,
        status: "simulation only".to_owned(),
        fix: None,
    }
}

fn driver_rows(release: Release) -> Vec<Check> {
    // What is available, or what is lacking before the release to install.
    let of = |group: &str, name: &str, can: &str, before: Option<(&str, &str, String)>| match before
    {
        None => row(group, name, "ok", can.to_owned()),
        Some((state, why, wanted)) => Check {
            fix: Some(format!("install driver release {wanted} or later")),
            ..row(group, name, state, why.to_owned())
        },
    };
    let [_, offloads] = REFUSES_PYTORCH;
    let offload = messages::needs_driver(OFFLOADS_SINCE);
    let moving = messages::needs_driver(MOVES_SINCE);
    let weak = messages::cannot_checkpoint(release);
    vec![
        of(
            "driver and GPUs",
            "driver",
            "gshare was checked against the libraries of driver releases 535 and 550, but not on a GPU",
            (release.0 < COMPARED_SINCE).then(|| {
                let why =
                    "gshare was never checked against the libraries of driver releases before 535";
                ("limited", why, COMPARED_SINCE.to_string())
            }),
        ),
        of(
            "memory",
            "memory limit (library)",
            "works with every driver release",
            None,
        ),
        of(
            "compute",
            "compute limit",
            "claims can take turns with every driver release, and run side by side where NVIDIA's MPS is installed",
            None,
        ),
        of(
            "compute",
            "offload and restore",
            "an idle claim's GPU memory moves to host RAM and back",
            match release.0 < OFFLOADS_SINCE {
                true => Some(("missing", offload.as_str(), offloads.to_string())),
                false => release
                    .refuses_pytorch()
                    .then(|| ("limited", weak.as_str(), offloads.to_string())),
            },
        ),
        of(
            "compute",
            "moving between GPUs",
            "a claim moves to another GPU of the same model while its programs run",
            (release.0 < MOVES_SINCE)
                .then(|| ("missing", moving.as_str(), MOVES_SINCE.to_string())),
        ),
    ]
}

fn gpu_row(model: &Model) -> Check {
    let reading = GpuReading {
        name: Some(model.name.to_owned()),
        compute_capability: Some(model.capability),
        gpm_supported: model.gpm,
        ..GpuReading::unread(0)
    };
    let source = counters::chosen(&reading, &counters::Found::default()).0;
    let activity = match source {
        Some(source) => format!("SM activity is measured by {}", source.name()),
        None => {
            "SM activity is estimated from the kernels that programs in claims launch".to_owned()
        }
    };
    let mig = match model.mig {
        true => "can be divided by gshare admin mig",
        false => "has no MIG",
    };
    let detail = format!("{activity}; {mig}");
    row("driver and GPUs", model.name, "ok", detail)
}

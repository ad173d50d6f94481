//! The rows of `gshare doctor`, and the heading of each.

use gshare_proto::Check;

/// Status of a mechanism that has been tested on the simulated driver only; docs/hardware.md uses the same words.
pub(crate) const SIMULATION: &str = "simulation only";

/// Status of a mechanism that needs only a kernel.
const KERNEL: &str = "no GPU involved (Linux 6.18)";

/// Headings in the order of the page, each with the beginnings of its rows' names.
pub(super) const GROUPS: &[(&str, &[&str])] = &[
    (
        "service",
        &[
            "service",
            "journal",
            "history",
            "systemd",
            "cgroups",
            "administrators",
        ],
    ),
    (
        "driver and GPUs",
        &["driver", "GPU ", "health", "conformance"],
    ),
    (
        "GPU access",
        &[
            "device filter",
            "strict",
            "deny",
            "unclaimed",
            "over-use",
            "adopt",
        ],
    ),
    ("memory", &["memory"]),
    (
        "compute",
        &[
            "compute", "MPS", "mps", "MIG", "mig", "gate", "mode", "offload", "moving",
        ],
    ),
    ("containers and metrics", &["containers", "metrics"]),
];

/// The default status of a row.
fn usual_status(name: &str) -> &'static str {
    match name {
        "service" | "journal" | "history" | "administrators" | "cgroups" | "systemd" => KERNEL,
        _ => SIMULATION,
    }
}

/// The heading of a row.
fn group(name: &str) -> &'static str {
    let group = GROUPS
        .iter()
        .find(|(_, names)| names.iter().any(|n| name.starts_with(n)));
    group.map_or("more", |(heading, _)| heading)
}

/// A row; its name determines the heading and the status.
pub(crate) fn check(name: &str, state: &str, detail: impl Into<String>) -> Check {
    Check {
        group: group(name).to_owned(),
        name: name.to_owned(),
        state: state.to_owned(),
        detail: detail.into(),
        status: usual_status(name).to_owned(),
        fix: None,
    }
}

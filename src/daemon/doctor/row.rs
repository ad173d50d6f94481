//! The rows of `gshare doctor`: under which heading each stands.

use gshare_proto::Check;

/// Where a mechanism has been seen to work so far; docs/hardware.md has the same words.
pub(crate) const SIMULATION: &str = "simulation only";

/// For what needs a kernel only.
const KERNEL: &str = "no GPU involved (Linux 6.18)";

/// Headings in the order of the page, each with how the names of its rows begin.
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

/// The status of a row that has none of its own.
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

/// A row; its heading and its status are by its name.
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

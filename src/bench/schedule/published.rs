//! B0: the baselines match the published ones. The whole openb cluster is filled to 130 % of its capacity, as in the
//! FGD paper.

use std::path::Path;

use anyhow::Context;
use gshare_core::play::cluster::{Score, fill, hosts, pods};
use serde_json::{Value, json};

use crate::bench::say;
use gshare_core::play::cases::Goal;
use gshare_core::play::figures::mean;

const SEEDS: u64 = 10;

/// Fills the cluster if the directory has its lists.
pub(super) fn run(dir: &Path) -> anyhow::Result<Option<(Value, Vec<Goal>)>> {
    let files = ["openb_node_list_gpu_node.csv", "openb_pod_list_default.csv"];
    let files = files.map(|name| dir.join(name));
    if files.iter().any(|file| !file.exists()) {
        say("\nB0 needs the lists of nodes and pods of the openb cluster; they are not there");
        return Ok(None);
    }
    let [nodes, list] = files.map(|file| {
        std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))
    });
    let (hosts, pods) = (hosts(&nodes?)?, pods(&list?)?);
    let gpus: usize = hosts.iter().map(|h| h.gpus).sum();
    say(&format!(
        "\nbaselines: {} pods and more drawn from them until 130 % of {gpus} GPUs are asked for, none leaves, {SEEDS} orders",
        pods.len()
    ));
    let (mut goals, mut figures) = (Vec::new(), Vec::new());
    for (name, score, published, most) in [
        ("fgd", Score::Fgd, 95.4, 0.3),
        ("best-fit", Score::BestFit, 93.1, 0.5),
    ] {
        let all: Vec<f64> = (0..SEEDS)
            .map(|seed| fill(&hosts, &pods, 1.3, score, 42 + seed) * 100.0)
            .collect();
        let got = mean(&all);
        let spread = mean(&all.iter().map(|x| (x - got).powi(2)).collect::<Vec<f64>>()).sqrt();
        say(&format!(
            "{name:<10} {got:.2} % held (sd {spread:.2}); published {published}"
        ));
        goals.push(Goal::most(
            format!("B0 {name}: {got:.2} % held; points from the published {published}"),
            (got - published).abs(),
            most,
        ));
        figures.push(json!({ "policy": name, "held": got / 100.0, "sd": spread / 100.0, "published": published / 100.0 }));
    }
    Ok(Some((json!({ "published": figures }), goals)))
}

use std::collections::BTreeSet;
use std::time::Duration;

use gshare_core::Share;
use gshare_proto::{ClaimView, GpuView, TurnsView};
use serde_json::Value;

use super::*;
use crate::daemon::fact::Decided;
use crate::daemon::world::scene::Scene;

/// The page of a machine with one GPU and these claims.
fn page(metrics: &Metrics, claims: Vec<ClaimView>, about: &About) -> String {
    let snapshot = Snapshot {
        gpus: vec![GpuView::default()],
        claims,
        ..Snapshot::default()
    };
    metrics.page(&Scene::of(1).world(), &snapshot, about)
}

fn has(page: &str, line: &str) -> bool {
    page.lines().any(|l| l == line)
}

#[test]
fn what_happens_is_counted() {
    let mut metrics = Metrics::default();
    let scene = Scene::of(1);
    let mut on = |fact| metrics.on(&scene.world(), &fact, &mut Vec::new());
    on(Fact::Decided(Decided {
        took: Duration::from_micros(50),
        refused: 1,
        leases_over: 2,
        caps: 3,
    }));
    let waited = Duration::from_secs(5);
    on(Fact::Granted { waited });
    on(Fact::Granted { waited });
    on(Fact::Ended { refusals: 7 });
    let live = ClaimView {
        refusals: 4,
        ..ClaimView::default()
    };
    let page = page(&metrics, vec![live], &About::default());
    for line in [
        "gshare_refused_total 1",
        "gshare_leases_over_total 2",
        "gshare_caps_written_total 3",
        "gshare_granted_total 2",
        "gshare_ended_total 1",
        "gshare_claims 1",
        "gshare_queue_wait_seconds_bucket{le=\"1\"} 0",
        "gshare_queue_wait_seconds_bucket{le=\"10\"} 2",
        "gshare_decision_seconds_count 1",
        // Of ended and running claims.
        "gshare_allocation_refusals_total 11",
    ] {
        assert!(has(&page, line), "{line}: {page}");
    }
}

#[test]
fn turns_over_use_and_quotas_have_their_true_values() {
    let claim = |id: &str, contended, overuse: Option<&str>| ClaimView {
        id: id.to_owned(),
        turns: Some(TurnsView {
            contended,
            held_back_ms: 1500,
            ..TurnsView::default()
        }),
        overuse: overuse.map(str::to_owned),
        slurm_job: (id == "c2").then_some(4711),
        ..ClaimView::default()
    };
    let quota = |party: &str, gpus, max: Option<u32>| Quota {
        party: party.parse().expect("a party"),
        gpus: Some(Share::from_milli(gpus)),
        weight_milli: None,
        max: max.map(Share::from_milli),
    };
    let about = About {
        quotas: vec![
            quota("project:vision", 500, Some(1500)),
            quota("project:text", 1000, None),
        ],
        ..About::default()
    };
    let claims = vec![claim("c1", true, None), claim("c2", false, Some("more"))];
    let page = page(&Metrics::default(), claims, &about);
    let value = |family: &str, label: &str| {
        let mut own = page.lines().filter(|l| {
            l.split('{').next() == Some(family) && l.contains(&format!("=\"{label}\""))
        });
        let found = own
            .next()
            .and_then(|l| l.rsplit(' ').next()?.parse::<f64>().ok());
        assert!(own.next().is_none(), "{family} {label}");
        found
    };
    for (family, label, wanted) in [
        ("gshare_claim_contended", "c1", Some(1.0)),
        ("gshare_claim_contended", "c2", Some(0.0)),
        ("gshare_claim_throttled_seconds", "c1", Some(1.5)),
        ("gshare_claim_overuse", "c1", Some(0.0)),
        ("gshare_claim_overuse", "c2", Some(1.0)),
        ("gshare_claim_info", "4711", Some(1.0)),
        ("gshare_claim_overuse", "4711", Some(1.0)),
        ("gshare_quota_gpus", "project:vision", Some(0.5)),
        ("gshare_quota_max_gpus", "project:vision", Some(1.5)),
        ("gshare_quota_gpus", "project:text", Some(1.0)),
        // Without a maximum there is no sample, rather than 0.
        ("gshare_quota_max_gpus", "project:text", None),
    ] {
        assert_eq!(value(family, label), wanted, "{family} {label}: {page}");
    }
}

#[test]
fn the_dashboard_asks_for_what_is_exported() {
    let page = page(&Metrics::default(), Vec::new(), &About::default());
    let mut names = BTreeSet::new();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            names.insert(name.to_owned());
            if kind == "histogram" {
                names.extend(["bucket", "sum", "count"].map(|s| format!("{name}_{s}")));
            }
        }
    }
    assert!(names.len() > 50, "{names:?}");
    let text = include_str!("../../../config/grafana.json");
    let board: Value = serde_json::from_str(text).expect("JSON");
    let mut queries = vec![
        board["templating"]["list"][1]["query"]["query"]
            .as_str()
            .expect("a query")
            .to_owned(),
    ];
    let mut ids = BTreeSet::new();
    for panel in board["panels"].as_array().expect("panels") {
        assert!(ids.insert(panel["id"].as_u64()), "panel ids are unique");
        for target in panel["targets"].as_array().into_iter().flatten() {
            queries.push(target["expr"].as_str().expect("a query").to_owned());
        }
    }
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut asked = 0;
    for query in &queries {
        let words = query.split(|c: char| !is_name(c));
        let metrics = words.filter(|w| {
            ["gshare_", "DCGM_", "process_"]
                .iter()
                .any(|p| w.starts_with(p))
        });
        for metric in metrics {
            asked += 1;
            assert!(names.contains(metric), "{metric} is not exported: {query}");
        }
    }
    assert!(queries.len() > 25 && asked >= queries.len(), "{asked}");
}

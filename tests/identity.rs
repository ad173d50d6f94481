//! What the screen calls a process: notebook, script and model, with where each
//! word is from.

use crate::support;

use std::time::Duration;

use gshare_proto::Named;
use support::{Raw, claim_of, example, station_with, until};

const SOON: Duration = Duration::from_secs(5);

fn named(value: &str, source: &str) -> Option<Named> {
    Some(Named {
        value: value.to_owned(),
        source: source.to_owned(),
    })
}

#[test]
fn a_claim_says_its_notebook_and_its_model_and_where_that_is_from() {
    let station = station_with(|o| o.tick = "0.1s".to_owned());
    let mut command = station.command();
    command
        .env("JPY_SESSION_NAME", "/home/ada/vit/vit.ipynb")
        .args(["claim", "-q", "-g", "0.25", "--"])
        .arg(example("raw_client"))
        .args(["libcuda.so.1", "--model", "meta-llama/Llama-3-8B"]);
    let mut program = Raw::start(command);
    assert_eq!(program.ask("alloc 1048576"), "ok 0");
    let pid = program.pid();
    let claim = until("the notebook is known", SOON, || {
        let snapshot = station.snapshot().ok()?;
        let claim = claim_of(&snapshot, pid)?.clone();
        (claim.identity.notebook.is_some() && !claim.processes.is_empty()).then_some(claim)
    });
    let source = format!("JPY_SESSION_NAME of pid {pid}");
    assert_eq!(
        claim.identity.notebook,
        named("/home/ada/vit/vit.ipynb", &source)
    );
    assert_eq!(
        claim.identity.model,
        named("Llama-3-8B", "argument --model")
    );
    assert_eq!(claim.what, "vit.ipynb");
    assert_eq!(claim.project, {
        let gid = gshare_enforcer::proc::primary_gid(claim.uid).expect("a group");
        gshare_enforcer::proc::group_name(gid).expect("a name")
    });

    // The same in the list, for people and as JSON.
    let text = |args: &[&str]| {
        let output = station.command().args(args).output().expect("runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let list = text(&["ps"]);
    assert!(list.contains("vit.ipynb"), "{list}");
    let json: serde_json::Value = serde_json::from_str(&text(&["ps", "--json"])).expect("JSON");
    let identity = &json["claims"][0]["identity"];
    assert_eq!(identity["model"]["value"], "Llama-3-8B");
    assert_eq!(identity["notebook"]["source"], source);
    let csv = text(&["ps", "--csv"]);
    let columns: Vec<&str> = csv.lines().next().expect("a head").split(',').collect();
    assert!(
        columns.contains(&"notebook") && columns.contains(&"model"),
        "{csv}"
    );
    assert!(csv.contains("/home/ada/vit/vit.ipynb"), "{csv}");
}

//! A notebook as people use one: a real Jupyter server, JupyterLab, a browser, and a part of a simulated GPU.

use crate::support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use gshare::station::Station;
use gshare_proto::ClaimView;
use serde_json::{Value, json};
use support::notebook::{ADD, ADDED, Driven};
use support::{Raw, python, station_with, until};

/// A name that was changed is shown within this.
const SOON: Duration = Duration::from_secs(12);

/// The browser with its server.
struct Lab(Driven);

impl Lab {
    fn start(station: &Station, bin: &Path, lab: &Path, chromium: &Path) -> Self {
        let install = ["-g", "0.25", "--user"];
        let browser = |command: &mut Command| {
            // What Numba thinks of so small a grid is not what the pictures are of.
            command
                .env("CHROMIUM", chromium)
                .env("PYTHONWARNINGS", "ignore");
        };
        let script = ["lab.py", "stop"];
        let mut lab = Self(Driven::start(
            station,
            [bin, lab],
            &install,
            script,
            browser,
        ));
        let dir = lab.0.home.path().to_owned();
        lab.act(&json!({ "do": "start", "dir": dir }));
        lab
    }

    /// Does one step; the text of all outputs.
    fn act(&mut self, step: &Value) -> String {
        let said = self.0.act(step);
        if let Some(failed) = said["failed"].as_str() {
            let log = std::fs::read_to_string(self.0.home.path().join("server.log"));
            panic!("{step}: {failed}\n{}", log.unwrap_or_default());
        }
        said["output"].as_str().unwrap_or_default().to_owned()
    }

    fn run(&mut self, code: &str, until: &str) -> String {
        self.act(&json!({ "do": "run", "code": code, "until": until }))
    }

    /// A picture for the documentation, where those are made anew.
    fn picture(&mut self, name: &str) {
        let file = self.0.home.path().join(name);
        self.act(&json!({ "do": "picture", "file": file }));
        if std::env::var_os("GSHARE_PICTURES").is_some() {
            let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
            std::fs::copy(&file, docs.join(name)).expect("copied");
        }
    }
}

fn chromium(test: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut dirs = std::env::split_paths(&path);
    let found = dirs.find_map(|dir| {
        let names = ["chromium", "chromium-browser", "google-chrome"];
        names.iter().map(|n| dir.join(n)).find(|f| f.is_file())
    });
    if found.is_none() {
        println!("skipped: {test} needs Chromium");
    }
    found
}

fn claim_of_kernel(station: &Station) -> Option<ClaimView> {
    let claims = station.snapshot().ok()?.claims;
    claims.into_iter().find(|c| c.class == "interactive")
}

fn named(station: &Station, path: &str) -> ClaimView {
    until(&format!("it is listed as {path}"), SOON, || {
        let claim = claim_of_kernel(station)?;
        let notebook = claim.identity.notebook.clone()?;
        let by_server = notebook.source.starts_with("Jupyter server");
        (by_server && notebook.value.ends_with(path)).then_some(claim)
    })
}

#[test]
fn a_notebook_of_jupyterlab_with_a_quarter_of_a_gpu() {
    let test = "a_notebook_of_jupyterlab_with_a_quarter_of_a_gpu";
    let (Some(bin), Some(lab), Some(chromium)) =
        (python::bin(test), python::lab(test), chromium(test))
    else {
        return;
    };
    let station = station_with(|o| {
        o.gpus.truncate(1);
        o.config = "[claims]\nleftover-grace = \"1s\"\n".to_owned();
    });
    let mut lab = Lab::start(&station, &bin, &lab, &chromium);
    lab.picture("notebook-launcher.png");
    let hog = Raw::claim(&station, &["-q", "-g", "1"]);
    lab.act(&json!({ "do": "launch", "shown": "Python 3 (gshare 0.25)" }));
    let first = named(&station, "/papers/Untitled.ipynb");
    assert!(
        first.gpus.is_empty(),
        "the kernel holds nothing yet: {first:?}"
    );

    lab.run(ADD, "in the queue");
    lab.picture("notebook-waits.png");
    lab.act(&json!({ "do": "interrupt" }));
    let said = lab.act(&json!({ "do": "wait", "until": "KeyboardInterrupt" }));
    assert!(said.contains("stopped waiting"), "{said}");
    drop(hog);
    let said = lab.run(ADD, ADDED);
    println!("{said}");
    let claim = named(&station, "/papers/Untitled.ipynb");
    assert_eq!(
        claim.id, first.id,
        "Numba was not the worse for the interrupt"
    );
    assert_eq!(claim.gpus.len(), 1, "{claim:?}");
    assert!((claim.gpus[0].sm_request - 0.25).abs() < 1e-9, "{claim:?}");
    let listed = station.command().arg("ps").output().expect("runs");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(
        listed.contains("Untitled.ipynb") && listed.contains("0.25"),
        "{listed}"
    );

    lab.act(&json!({ "do": "restart" }));
    let again = claim_of_kernel(&station).expect("the claim outlives the restart");
    assert_eq!(again.id, first.id);
    assert_ne!(again.pid, claim.pid, "another process");
    lab.run(ADD, ADDED);
    lab.picture("notebook-result.png");

    lab.act(&json!({ "do": "rename", "to": "study.ipynb" }));
    let renamed = named(&station, "/papers/study.ipynb");
    assert_eq!(
        (renamed.id.as_str(), renamed.what.as_str()),
        (first.id.as_str(), "study.ipynb")
    );

    let kernel = renamed.pid.expect("it runs");
    lab.act(&json!({ "do": "shutdown" }));
    let proc = PathBuf::from(format!("/proc/{kernel}"));
    until("the kernel has ended", SOON, || {
        (!proc.exists()).then_some(())
    });
    let begun = Instant::now();
    until(
        "the claim is gone with the kernel",
        Duration::from_secs(2),
        || claim_of_kernel(&station).is_none().then_some(()),
    );
    println!(
        "the claim was gone {:.2?} after the kernel",
        begun.elapsed()
    );
}

//! The screen of the real program on a real terminal, before a real service with real claims.

use crate::support;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use gshare::station::Station;
use gshare_proto::ClaimView;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::terminal::Terminal;
use support::{GSHARE, Raw, claim_of, station, until};

const SOON: Duration = Duration::from_secs(10);
/// For the demo: six jobs and a service start, and its scenes come one after the other.
const LATE: Duration = Duration::from_secs(30);

/// The claims as `gshare ps --json` prints them.
fn ps(station: &Station) -> Vec<ClaimView> {
    let output = station
        .command()
        .args(["ps", "--json"])
        .output()
        .expect("gshare starts");
    assert!(output.status.success());
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    serde_json::from_value(value["claims"].clone()).expect("claims")
}

/// The row of a claim; before its id stands whether it is the viewer's.
fn row<'a>(text: &'a str, id: &str) -> Option<&'a str> {
    let named = |l: &str| {
        l.trim_start_matches([' ', '▌'])
            .strip_prefix(id)
            .map(str::to_owned)
    };
    let begins = |l: &&str| named(l).is_some_and(|rest| rest.starts_with(' '));
    text.lines().find(begins)
}

/// The first lines that the four GPUs have on the Overview.
fn four_gpus(text: &str) -> Option<()> {
    let names = ["0 RTX 4090", "1 RTX 4090", "2 H100 80GB", "3 H100 80GB"];
    let shown = |name: &&str| text.lines().any(|l| l.starts_with(*name));
    names.iter().all(shown).then_some(())
}

fn signal(screen: &Terminal, signal: Signal) {
    let pid = Pid::from_raw(screen.pid().cast_signed());
    kill(pid, signal).expect("sent");
}

#[test]
fn claims_appear_are_made_and_released_on_the_screen() {
    let station = station();
    let mut screen = Terminal::start(&station.command(), 40, 120);
    screen.wait("the four GPUs", SOON, four_gpus);
    screen.shows(&["SIMULATED DRIVER", "n claim", "q quit"], SOON);
    assert!(!screen.restored(), "the screen has the terminal");

    // A claim that starts elsewhere appears, with its part, and goes.
    let raw = Raw::claim(
        &station,
        &["-q", "-g", "0.5", "--gpu-ids", "2", "--name", "elsewhere"],
    );
    let snapshot = station.snapshot().expect("served");
    let id = claim_of(&snapshot, raw.pid()).expect("listed").id.clone();
    let shown = screen.wait("the claim's row", SOON, |text| {
        row(text, &id)
            .filter(|r| r.contains("elsewhere"))
            .map(str::to_owned)
    });
    let words: Vec<&str> = shown.split_whitespace().collect();
    assert!(words.contains(&"50") && words.contains(&"2"), "{shown}");
    assert_eq!(raw.finish(), Some(0));
    screen.wait("the row goes", SOON, |text| {
        row(text, &id).is_none().then_some(())
    });

    // n: the dialog proposes a quarter; Enter claims and holds it.
    screen.send("n");
    screen.shows(&["0.25", "now, on GPU"], SOON);
    screen.send("\r");
    let held = until("the claim is listed", SOON, || ps(&station).pop());
    assert!(held.gpus.len() == 1 && held.pid.is_none(), "{held:?}");
    assert!((held.gpus[0].sm_request - 0.25).abs() < 1e-9);

    let told = format!("{} is yours", held.id);
    screen.shows(&[&told, &format!("gshare env {}", held.id)], SOON);
    screen.send("\r");
    screen.wait("the answer goes", SOON, |text| {
        (!text.contains(&told)).then_some(())
    });
    screen.wait("its row", SOON, |text| {
        row(text, &held.id)
            .filter(|r| r.contains(" 25 "))
            .map(|_| ())
    });
    // The command that it names works.
    let mut shell = station.client_environment(Command::new("sh"));
    let line = format!(
        "eval \"$({} env {})\" && echo $LD_LIBRARY_PATH && cat /proc/self/cgroup",
        station.program().display(),
        held.id
    );
    let output = shell.args(["-c", &line]).output().expect("sh starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}");
    let shim = station.dir().join("run").display().to_string();
    assert!(text.starts_with(&shim), "{text}");
    let service = station.snapshot().expect("served").service;
    if service.is_some_and(|s| s.cgroups) {
        assert!(text.contains(station.cgroup_root()), "{text}");
    }

    // x asks first: n keeps it, y releases it.
    let question = format!("Release {}", held.id);
    screen.send("\x1b[B");
    screen.send("x");
    screen.shows(&[&question, "y yes"], SOON);
    screen.send("n");
    screen.wait("the question goes", SOON, |text| {
        (!text.contains(&question)).then_some(())
    });
    assert_eq!(ps(&station).len(), 1, "kept");
    screen.send("x");
    screen.shows(&[&question], SOON);
    screen.send("y");
    until("it is released", SOON, || {
        ps(&station).is_empty().then_some(())
    });
    screen.wait("its row goes", SOON, |text| {
        row(text, &held.id).is_none().then_some(())
    });

    screen.send("q");
    assert_eq!(screen.ended(SOON), 0);
    assert!(screen.restored(), "{:?}", screen.text());
}

#[test]
fn the_service_may_die_and_come_back_under_the_screen() {
    let mut station = station();
    let mut screen = Terminal::start(&station.command(), 40, 120);
    screen.wait("the four GPUs", SOON, four_gpus);
    let raw = Raw::claim(&station, &["-q", "-g", "0.5", "--name", "survivor"]);
    screen.shows(&["survivor"], SOON);
    station.stop_service(Signal::SIGKILL).expect("killed");
    // The last figures stay, with the time that they are of.
    let figures_from = |text: &str| {
        let words: Vec<&str> = text.split_whitespace().collect();
        words.windows(2).any(|w| w == ["figures", "from"])
    };
    screen.wait("its last figures", SOON, |text| {
        (text.contains("survivor") && figures_from(text)).then_some(())
    });
    station.start_service().expect("starts again");
    screen.wait("news again", LATE, |text| {
        (text.contains("survivor") && !figures_from(text)).then_some(())
    });
    assert_eq!(raw.finish(), Some(0));
    screen.wait("the row goes", SOON, |text| {
        (!text.contains("survivor")).then_some(())
    });
    signal(&screen, Signal::SIGTERM);
    assert_eq!(screen.ended(SOON), 143);
    assert!(screen.restored());
}

#[test]
fn without_a_service_the_screen_looks_only() {
    if std::fs::exists("/run/gshare/gshared.sock").unwrap_or(true) {
        println!("skipped: a service of the machine is running");
        return;
    }
    let station = station();
    let home = tempfile::tempdir().expect("a directory");
    let mut command = station.client_environment(Command::new(GSHARE));
    command
        .env_remove("GSHARE_SOCKET")
        .env("HOME", home.path())
        .env("XDG_CONFIG_HOME", home.path())
        .env("XDG_RUNTIME_DIR", home.path())
        .current_dir(home.path());
    let mut screen = Terminal::start(&command, 40, 120);
    screen.wait("the four GPUs", SOON, four_gpus);
    screen.shows(&["read-only: no gshare service", "sudo gshare setup"], SOON);
    // What runs is seen; with nobody to ask, it is in no claim.
    let mut outside =
        Raw::start(station.client_environment(Command::new(support::example("raw_client"))));
    assert_eq!(outside.ask(&format!("alloc {}", 6u64 << 30)), "ok 0");
    let pid = outside.pid().to_string();
    screen.shows(&[&pid], SOON);
    // There is nothing to claim from.
    screen.send("n");
    screen.shows(&["read-only"], SOON);
    assert!(!screen.text().contains("starts now"));
    signal(&screen, Signal::SIGTERM);
    assert_eq!(screen.ended(SOON), 143);
    assert!(screen.restored());
}

/// What is left in a directory.
fn left(dir: &Path) -> Vec<std::ffi::OsString> {
    let entries = std::fs::read_dir(dir).expect("readable").flatten();
    entries.map(|e| e.file_name()).collect()
}

/// The demo on a terminal, its files in a directory that nothing else uses.
fn demo() -> (tempfile::TempDir, Terminal) {
    let tmp = tempfile::tempdir().expect("a directory");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(tmp.path(), open).expect("set");
    let mut command = Command::new(GSHARE);
    command.arg("demo").env("TMPDIR", tmp.path());
    let screen = Terminal::start(&command, 40, 120);
    (tmp, screen)
}

/// The caption, if it says all of this.
fn caption(text: &str, words: &[&str]) -> Option<String> {
    let line = text.lines().find(|l| l.contains("Space pauses"))?;
    let said = words.iter().all(|w| line.contains(w));
    said.then(|| line.to_owned())
}

#[test]
fn the_demo_says_that_it_is_simulated_tells_its_scenes_and_cleans_up() {
    let (tmp, mut screen) = demo();
    screen.wait("the four GPUs", LATE, four_gpus);
    screen.shows(&["SIMULATED DRIVER"], SOON);
    // The first scene, with the figures that are on the screen at that moment.
    let told = screen.wait("the first caption", LATE, |text| {
        caption(text, &["SMs are idle"])
    });
    assert!(told.contains("% busy"), "{told}");
    // The hog's own words, at its cap; then what nobody else needs, before somebody needs it.
    screen.wait("the hog", LATE, |text| {
        caption(text, &["hit its cap", "keeps its"])
    });
    // On a busy machine that may have been told between two looks: then somebody needs a GPU by now.
    screen.wait("the bursts, then somebody who needs a GPU", LATE, |text| {
        let needed = text.contains("finetune.py").then(String::new);
        needed.or_else(|| caption(text, &["nobody else needs it"]))
    });
    // Space stops the captions.
    screen.send(" ");
    screen.shows(&["Space resumes"], SOON);
    screen.send("q");
    assert_eq!(screen.ended(LATE), 0);
    assert!(screen.restored());
    assert!(left(tmp.path()).is_empty(), "{:?}", left(tmp.path()));
}

#[test]
fn a_killed_terminal_ends_the_demo_in_order() {
    let (tmp, mut screen) = demo();
    screen.wait("the four GPUs", LATE, four_gpus);
    signal(&screen, Signal::SIGHUP);
    screen.ended(LATE);
    assert!(left(tmp.path()).is_empty(), "{:?}", left(tmp.path()));
}

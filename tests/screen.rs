//! The screen of the real program on a real terminal, `gshare top` without one, and independent monitors: what they
//! show equals the board.

use crate::support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gshare::station::Station;
use gshare_proto::{ClaimView, GpuView};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::detach::{ANYBODY, SOON_OVER, fill, holder, ready, settles, station_of};
use support::terminal::Terminal;
use support::{
    GSHARE, MIB, Raw, SOON, board, board_bytes, claim, claim_of, has_all, ok, python, run, station,
    station_with, until,
};

// The screen of the real program on a real terminal, with a real service and real claims.

/// For the demo: six jobs and a service start, and its scenes follow one another.
const LATE: Duration = Duration::from_secs(30);

/// The claims as `gshare ps --json` prints them.
fn ps(station: &Station) -> Vec<ClaimView> {
    let output = run(station, &["ps", "--json"]);
    assert!(output.status.success());
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    serde_json::from_value(value["claims"].clone()).expect("claims")
}

/// The row of a claim; the mark before its id shows the viewer's own.
fn row<'a>(text: &'a str, id: &str) -> Option<&'a str> {
    let named = |l: &str| {
        l.trim_start_matches([' ', '▌'])
            .strip_prefix(id)
            .map(str::to_owned)
    };
    let begins = |l: &&str| named(l).is_some_and(|rest| rest.starts_with(' '));
    text.lines().find(begins)
}

/// The first lines of the four GPUs on the Overview.
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

    // A claim that starts elsewhere appears, with its size, and disappears.
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
    screen.wait("the row goes", SOON, |text| row(text, &id).is_none());

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
    screen.wait("the answer goes", SOON, |text| !text.contains(&told));
    screen.wait("its row", SOON, |text| {
        row(text, &held.id)
            .filter(|r| r.contains(" 25 "))
            .map(|_| ())
    });
    // The named command works.
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
        has_all(&text, &[station.cgroup_root()]);
    }

    // x asks first: n keeps it, y releases it.
    let question = format!("Release {}", held.id);
    screen.send("\x1b[B");
    screen.send("x");
    screen.shows(&[&question, "y yes"], SOON);
    screen.send("n");
    screen.wait("the question goes", SOON, |text| !text.contains(&question));
    assert_eq!(ps(&station).len(), 1, "kept");
    screen.send("x");
    screen.shows(&[&question], SOON);
    screen.send("y");
    until("it is released", SOON, || ps(&station).is_empty());
    screen.wait("its row goes", SOON, |text| row(text, &held.id).is_none());

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
    // The last figures stay, with their time.
    let figures_from = |text: &str| {
        let words: Vec<&str> = text.split_whitespace().collect();
        words.windows(2).any(|w| w == ["figures", "from"])
    };
    screen.wait("its last figures", SOON, |text| {
        text.contains("survivor") && figures_from(text)
    });
    station.start_service().expect("starts again");
    screen.wait("news again", LATE, |text| {
        text.contains("survivor") && !figures_from(text)
    });
    assert_eq!(raw.finish(), Some(0));
    screen.wait("the row goes", SOON, |text| !text.contains("survivor"));
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
    // Running programs are shown; without a service they have no claim.
    let mut outside = Raw::outside(&station);
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
    // The first scene, with the figures on the screen at that moment.
    let told = screen.wait("the first caption", LATE, |text| {
        caption(text, &["SMs are idle"])
    });
    has_all(&told, &["% busy"]);
    // The hog's output, at its cap; then unused GPUs, before a claim needs them.
    screen.wait("the hog", LATE, |text| {
        caption(text, &["hit its limit", "keeps its"])
    });
    // On a busy machine that caption may have been missed: then a claim needs a GPU by now.
    screen.wait("the bursts, then somebody who needs a GPU", LATE, |text| {
        let needed = text.contains("finetune.py").then(String::new);
        needed.or_else(|| caption(text, &["nobody else needs it"]))
    });
    // Space pauses the captions.
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

// Keys that act on claims and GPUs, pressed on a real terminal with a real service.

fn screen(station: &Station) -> Terminal {
    let screen = Terminal::start(&station.command(), 40, 120);
    screen.shows(&["0 RTX 4090", "q quit"], SOON);
    screen
}

/// Presses a key with a question, and confirms it.
fn yes(screen: &mut Terminal, key: &str, title: &str) {
    screen.send(key);
    screen.shows(&[title, "y yes"], SOON);
    screen.send("y");
    closed(screen, "y yes");
}

/// Waits until a row with this beginning has this word: a key acts on the present screen, which may be behind the
/// test.
fn row_says(screen: &Terminal, begins: &str, word: &str) {
    screen.wait(&format!("`{begins}` says {word}"), SOON, |text| {
        let mut rows = text.lines().filter(|l| l.starts_with(begins));
        let says = |row: &str| row.split_whitespace().any(|w| w == word);
        rows.any(says)
    });
}

/// Waits until a box is closed: until then it takes the keys.
fn closed(screen: &Terminal, title: &str) {
    screen.wait(&format!("{title} goes"), SOON, |text| !text.contains(title));
}

fn gpu(station: &Station, index: usize) -> GpuView {
    station.snapshot().expect("served").gpus[index].clone()
}

#[test]
fn a_claim_is_detached_attached_resized_extended_and_killed_by_keys() {
    let station = station_of(1, "");
    let (mut raw, sum) = holder(&station, &["-q", "-g", "0.5"]);
    let pid = raw.pid();
    let id = &claim(&station, pid).id;
    let mut screen = screen(&station);
    screen.shows(&[id], SOON);
    screen.send("\x1b[B");

    yes(&mut screen, "d", &format!("Offload {id}"));
    settles(&station, pid, Some("offloaded"));
    screen.shows(&["offloaded", "in host RAM"], SOON);
    // The second time there is nothing to offload, and the screen says so.
    screen.send("d");
    screen.shows(&[&format!("{id} is offloaded")], SOON);
    screen.send("a");
    settles(&station, pid, None);
    assert_eq!(raw.ask("sum 0"), sum, "its memory is as it was");
    screen.wait("it is said to be back", SOON, |text| {
        let begins = |l: &&str| l.trim_start_matches([' ', '▌']).starts_with(id.as_str());
        let row = text.lines().find(begins)?;
        let away = ["offload", "restor"];
        (!away.iter().any(|word| row.contains(word))).then_some(())
    });
    screen.send("a");
    screen.shows(&[&format!("{id} is already on its GPU")], SOON);

    // The typed size and end are applied.
    screen.send("r");
    screen.shows(&[&format!("Another size for {id}")], SOON);
    screen.send("0.3\r");
    until("it has the other size", SOON, || {
        let part = claim(&station, pid).gpus[0].sm_request;
        (part - 0.3).abs() < 1e-9
    });
    closed(&screen, "Another size for");
    screen.send("e");
    screen.shows(&[&format!("{id} has no time limit")], SOON);
    ok(&station, &["claim", "-q", "-g", "0.1", "--time", "2h"]);
    let held = || {
        let claims = station.snapshot().expect("served").claims;
        claims.into_iter().find(|c| c.id != *id)
    };
    let before = until("it is listed", SOON, held);
    screen.shows(&[&before.id], SOON);
    screen.send("\x1b[B");
    screen.send("e");
    screen.shows(&[&format!("More time for {}", before.id), "1h"], SOON);
    screen.send("\r");
    let ends = before.ends_ms.expect("it has an end");
    until("it ends an hour later", SOON, || {
        (held()?.ends_ms? == ends + 3_600_000).then_some(())
    });

    if !nix::unistd::geteuid().is_root() {
        println!("skipped: only root may kill others' claims");
        return;
    }
    closed(&screen, "More time for");
    screen.send("\x1b[A");
    yes(&mut screen, "\rK", &format!("Kill {id}"));
    until("it is gone", SOON, || {
        let snapshot = station.snapshot().ok()?;
        claim_of(&snapshot, pid).is_none().then_some(())
    });
    raw.kill();
}

#[test]
fn what_is_announced_is_put_off_by_a_key() {
    let rules = format!(
        "{ANYBODY}[projects]\np1 = {{ users = [\"root\"] }}\np2 = {{ users = [\"root\"] }}\n\
         [quotas]\n\"project:p1\" = {{ gpus = 0.1 }}\n\"project:p2\" = {{ gpus = 0.9 }}\n\
         [reclaim]\n{SOON_OVER}countdown = \"15s\"\nkeep = \"60s\"\n"
    );
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: the projects of the test are root's");
        return;
    }
    let station = station_of(1, &rules);
    let (mut raw, sum) = holder(&station, &["-q", "-g", "1", "--project", "p1"]);
    let (pid, id) = (raw.pid(), claim(&station, raw.pid()).id);
    let mut screen = screen(&station);
    screen.shows(&[&id], SOON);
    screen.send("p");
    screen.shows(&["nothing is announced for your claims"], SOON);

    let other = Raw::asks(&station, &["-q", "-g", "0.9", "--project", "p2"]);
    let announced = until("it is announced", SOON, || claim(&station, pid).announced);
    // The screen shows the announcement before the key is pressed.
    let first: String = announced
        .split_whitespace()
        .take(2)
        .collect::<Vec<_>>()
        .join(" ");
    screen.shows(&[&first], SOON);
    // With any row chosen: the first of the user's claims with an announcement is meant.
    screen.send("p");
    until("it is taken back", SOON, || {
        claim(&station, pid).announced.is_none()
    });
    screen.shows(&["keeps what it has"], SOON);
    assert_eq!(claim(&station, pid).place.word, None);
    assert_eq!(raw.ask("sum 0"), sum);
    drop(other);
}

#[test]
fn gpus_are_drained_and_change_their_mode_by_keys() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: only root may");
        return;
    }
    let station = station_of(2, "");
    let mut raw = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "0"]);
    fill(&mut raw, 0);
    ready(&station, raw.pid());
    let mut screen = screen(&station);
    screen.send("5");
    screen.shows(&["ENFORCEMENT"], SOON);
    // From the page of the second GPU; from the list the key does nothing.
    screen.send("\x1b[B");
    yes(&mut screen, "\rD", "Drain GPU 1");
    until("it is drained", SOON, || gpu(&station, 1).drain);
    row_says(&screen, "1 RTX 4090", "drained");
    yes(&mut screen, "\rD", "Undrain GPU 1");
    until("it is open again", SOON, || {
        gpu(&station, 1).drain.is_none()
    });
    yes(&mut screen, "\rM", "GPU 1: mps");
    until("its mode is another", Duration::from_secs(30), || {
        gpu(&station, 1).mode == "mps"
    });
    assert_eq!(gpu(&station, 0).mode, "timeslice", "no other GPU's is");
    row_says(&screen, "1 RTX 4090", "mps");
    yes(&mut screen, "\rM", "GPU 1: timeslice");
    until("and back", Duration::from_secs(30), || {
        gpu(&station, 1).mode == "timeslice"
    });
    raw.kill();
}

// `gshare top`: once as text, recorded, replayed; all screens of the real program on a real terminal.

/// The screens, with a text that only each of them has.
const SCREENS: [(&str, &str, &str); 5] = [
    ("1", "overview", "[1 Overview]"),
    ("2", "claims", "[2 Claims]"),
    ("3", "queue", "[3 Queue"),
    ("4", "history", "[4 History]"),
    ("5", "health", "[5 Health"),
];

fn top(station: &Station, args: &[&str]) -> Command {
    let mut command = station.command();
    command.arg("top").args(args);
    command
}

/// What it prints.
fn printed(mut command: Command) -> String {
    let output = command.output().expect("gshare starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn every_screen_is_printed_once_without_a_terminal() {
    let station = station();
    let raw = Raw::claim(&station, &["-q", "-g", "0.5", "--name", "printed"]);
    for (_, name, mark) in SCREENS {
        for (size, rows) in [("80x24", 24), ("120x40", 40), ("200x60", 60)] {
            let text = printed(top(&station, &["--once", "--screen", name, "--size", size]));
            assert_eq!(text.lines().count(), rows, "{text}");
            has_all(&text, &[mark, " SIM"]);
        }
    }
    let claims = printed(top(&station, &["--once", "--screen", "2"]));
    has_all(&claims, &["printed"]);
    let health = printed(top(&station, &["--once", "--screen", "5", "--ascii"]));
    has_all(&health, &["TO FIX", "FINE "]);
    assert!(health.is_ascii(), "{health}");
    assert_eq!(raw.finish(), Some(0));
}

/// Screens redraw for each snapshot. While nothing happens, one is sent for each look at the GPUs.
#[test]
fn a_screen_gets_one_snapshot_for_each_look() {
    let station = station_with(|o| "1s".clone_into(&mut o.tick));
    let raw = Raw::claim(&station, &["-q", "-g", "0.5"]);
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("recording");
    let path = file.to_str().expect("text");
    // By then the claim has started, and all about it is known.
    std::thread::sleep(Duration::from_secs(3));
    let mut recorder = top(&station, &["--record", path, "--for", "10s"]);
    assert!(recorder.status().expect("gshare starts").success());
    let text = std::fs::read_to_string(&file).expect("text");
    let snapshots = text.matches("\"snapshot\"").count();
    assert!((8..=12).contains(&snapshots), "{snapshots} in 10 s");
    assert_eq!(raw.finish(), Some(0));
}

#[test]
fn what_was_recorded_is_replayed() {
    let station = station();
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("recording");
    let path = file.to_str().expect("text");
    let raw = Raw::claim(&station, &["-q", "-g", "0.5", "--name", "recorded"]);
    // An existing file is made private too.
    std::fs::write(&file, "old").expect("written");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(&file, open).expect("set");
    let mut recorder = top(&station, &["--record", path, "--for", "5s"]);
    assert!(recorder.status().expect("gshare starts").success());
    assert_eq!(raw.finish(), Some(0));
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(&file).expect("there").permissions(),
    );
    assert_eq!(mode & 0o077, 0, "others can read it");
    let lines = std::fs::read_to_string(&file)
        .expect("text")
        .lines()
        .count();
    assert!(lines >= 3, "{lines}");

    // On a terminal it ends with its time as well, and contains all requested data.
    let shown = dir.path().join("shown");
    let shown = shown.to_str().expect("text");
    let recorder = top(&station, &["--record", shown, "--for", "2s"]);
    let mut screen = Terminal::start(&recorder, 24, 80);
    screen.shows(&[" SIM"], SOON);
    assert_eq!(screen.ended(SOON), 0);
    assert!(screen.restored());

    // Without a service; as text, and on a terminal.
    drop(station);
    let once = |file: &str, screen: &str| {
        let mut once = Command::new(GSHARE);
        once.args(["top", "--replay", file, "--once", "--screen", screen]);
        printed(once)
    };
    assert!(once(path, "overview").contains("recorded"));
    let text = once(path, "history");
    has_all(&text, &["GPU HOURS"]);
    let text = once(path, "health");
    has_all(&text, &["FINE"]);
    // Data that nobody requested are missing, and cannot be requested now.
    let text = once(shown, "history");
    assert!(
        text.contains("the recording does not contain this") && !text.contains("asking"),
        "{text}"
    );
    let mut show = Command::new(GSHARE);
    show.args(["top", "--replay", path]);
    let mut screen = Terminal::start(&show, 24, 100);
    screen.shows(&["recorded", "RECORDING", "at its end"], SOON);
    screen.send(" ");
    screen.shows(&["stopped", "Space resumes"], SOON);
    screen.send("<");
    screen.send(" ");
    screen.shows(&["at its end"], SOON);
    // A recording accepts no requests.
    screen.send("n\r");
    screen.shows(&["a recording cannot answer that"], SOON);
    screen.send("\x1b");
    screen.wait("it closes", SOON, |text| !text.contains("Hold for"));
    screen.send("q");
    assert_eq!(screen.ended(SOON), 0);
    assert!(screen.restored());

    let mut other = Command::new(GSHARE);
    other.args(["top", "--once", "--replay", "/etc/hostname"]);
    let output = other.output().expect("gshare starts");
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is not a gshare recording"));
}

/// A mouse report: button 0 is the left one, 64 and 65 are the wheel; cells count from 1.
fn mouse(button: u8, column: usize, row: usize) -> String {
    format!("\x1b[<{button};{};{}M", column + 1, row + 1)
}

/// Where a text is on the terminal: column and row, from 0.
fn place(text: &str, what: &str) -> Option<(usize, usize)> {
    let mut lines = text.lines().enumerate();
    let (row, line) = lines.find(|(_, l)| l.contains(what))?;
    Some((line[..line.find(what)?].chars().count(), row))
}

/// The row of a claim in the table, from 0: the GPUs above name their claims too, but do not begin with them.
fn claim_row(text: &str, name: &str) -> Option<usize> {
    let mut lines = text.lines();
    let begins = |l: &str| l.trim_start_matches([' ', '▌']).starts_with('c');
    lines.position(|l| begins(l) && l.contains(name))
}

#[test]
fn all_screens_work_on_terminals_of_three_sizes_with_keys_and_mouse() {
    let station = station();
    let raw = Raw::claim(&station, &["-q", "-g", "0.5", "--name", "shown"]);
    for (rows, cols) in [(24, 80), (40, 120), (60, 200)] {
        let mut screen = Terminal::start(&top(&station, &[]), rows, cols);
        screen.shows(&[" SIM", "[1 Overview]", "shown"], SOON);
        for (key, _, mark) in SCREENS.into_iter().rev() {
            screen.send(key);
            screen.shows(&[mark, "q quit"], SOON);
        }
        for (_, _, mark) in SCREENS.into_iter().skip(1) {
            screen.send("\t");
            screen.shows(&[mark], SOON);
        }
        // The tabs, a row, the wheel.
        let tab = screen.wait("the tab", SOON, |text| place(text, "1 Overview"));
        screen.send(&mouse(0, tab.0, tab.1));
        screen.shows(&["[1 Overview]"], SOON);
        // The first click chooses the row, and the second opens it. Rows above may come and go meanwhile, so each
        // click is on the present place.
        until("the row opens", SOON, || {
            let text = screen.text();
            if text.contains("Claim c") && text.contains("owner ") {
                return Some(());
            }
            let row = claim_row(&text, "shown")?;
            screen.send(&mouse(0, 10, row));
            None
        });
        screen.send("\x1b");
        screen.wait("it closes", SOON, |text| !text.contains("owner "));
        screen.send("?");
        screen.shows(&["On the screens"], SOON);
        for _ in 0..3 {
            screen.send(&mouse(65, 40, 10));
        }
        screen.wait("the help scrolls", SOON, |text| {
            text.contains("Help") && !text.contains("On the screens")
        });
        screen.send("q");
        screen.send("q");
        assert_eq!(screen.ended(SOON), 0);
        assert!(screen.restored());
    }
    assert_eq!(raw.finish(), Some(0));
}

#[test]
fn changes_are_printed_as_lines() {
    let station = station();
    let mut reading = top(&station, &["--plain", "--for", "8s"]);
    reading.stdin(std::process::Stdio::null());
    let reader = std::thread::spawn(move || printed(reading));
    std::thread::sleep(Duration::from_secs(1));
    let raw = Raw::claim(&station, &["-q", "-g", "0.5", "--name", "spoken"]);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(raw.finish(), Some(0));
    let text = reader.join().expect("it ends");
    let at = |words: &str| {
        text.find(words)
            .unwrap_or_else(|| panic!("no {words}: {text}"))
    };
    let (free, starts, ended) = (at("FREE NOW"), at("spoken"), at("has ended"));
    assert!(free < starts && starts < ended, "{text}");
    assert!(!text.contains('\x1b'), "{text}");
}

#[test]
fn colours_and_characters_are_as_asked() {
    let station = station();
    for (how, sign) in [("rgb", "\x1b[38;2;"), ("256", "\x1b[38;5;")] {
        let mut screen = Terminal::start(&top(&station, &["--colours", how]), 24, 80);
        screen.shows(&[" SIM", "q quit"], SOON);
        assert!(screen.written().contains(sign), "{how}");
        screen.send("q");
        assert_eq!(screen.ended(SOON), 0);
    }
    let mut command = top(&station, &["--ascii"]);
    command.env("NO_COLOR", "1");
    let mut screen = Terminal::start(&command, 24, 80);
    screen.shows(&[" SIM", "q quit"], SOON);
    let written = screen.written();
    for colour in ["\x1b[38;", "\x1b[48;"] {
        let at = written.find(colour);
        assert!(at.is_none(), "{:?}", at.map(|at| &written[at..at + 20]));
    }
    assert!(screen.text().is_ascii());
    screen.send("q");
    assert_eq!(screen.ended(SOON), 0);
}

/// The line of a table that begins with these words.
fn line(text: &str, start: &str) -> Option<String> {
    let begins = |l: &&str| l.trim_start().starts_with(start);
    text.lines().find(begins).map(str::to_owned)
}

#[test]
fn a_lost_and_a_hanging_gpu_have_dashes_in_status_ps_and_on_every_screen() {
    type Set = fn(&gshare_sim_board::Board, bool);
    let faults: [(&str, Set); 2] = [
        ("lost", |board, on| board.set_lost(0, on).expect("set")),
        ("hung", |board, on| {
            board
                .set_fault(gshare_sim_board::Fault::NvmlHangs, on)
                .expect("set");
        }),
    ];
    for (word, fault) in faults {
        let station = station();
        let mut raw = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "0"]);
        assert_eq!(raw.ask("alloc 1073741824"), "ok 0");
        let say = |args: &[&str]| {
            let mut command = station.command();
            command.args(args);
            printed(command)
        };
        until("the GPU's figures are there", SOON, || {
            let row = line(&say(&["status"]), "0 ")?;
            (!row.contains("—/")).then_some(())
        });
        fault(&board(&station), true);
        let row = until(&format!("{word} in status"), SOON, || {
            line(&say(&["status"]), "0 ").filter(|row| row.contains(word))
        });
        // Memory, occupancy, time busy, temperature, power; SM activity except for the claims' own counters.
        let dashes = row.matches('—').count();
        assert!(dashes >= 6 || dashes == 5 && row.contains('~'), "{row}");
        assert!(!row.contains(" 0 %") && !row.contains(" 0.0/"), "{row}");
        let ps = say(&["ps"]);
        let claim = line(&ps, "c1 ").unwrap_or_else(|| panic!("no c1 in {ps}"));
        // The claim's own counters are still there, at the same place; they are marked as estimates.
        assert!(
            claim.contains("—/50") || claim.contains("~0/50"),
            "time of a claim: {claim}"
        );
        for (_, name, mark) in SCREENS {
            let once = ["--once", "--screen", name, "--size", "120x40"];
            let text = printed(top(&station, &once));
            has_all(&text, &[mark]);
            if name == "overview" {
                let gpu = line(&text, "0 RTX").expect("its row");
                assert!(
                    gpu.contains("fallen off the bus") || gpu.contains("not answer"),
                    "{gpu}"
                );
                assert!(!gpu.contains('%'), "{gpu}");
            }
            if name == "health" {
                let gpu = line(&text, "0 RTX").expect("its row");
                assert!(gpu.contains("—/") && !gpu.contains(" 0/"), "{gpu}");
            }
        }
        fault(&board(&station), false);
    }
}

// Independent monitors (nvitop, gpustat, nvtop) run unmodified on the simulated NVML, on a real terminal: their
// screens equal the board.

/// Maximum difference of a displayed utilisation from the board's, in points: both are means over windows of a second
/// or two with different beginnings.
const POINTS: f64 = 15.0;

/// The GPUs of the station, as NVML names them.
const NAMES: [&str; 4] = [
    "GeForce RTX 4090",
    "GeForce RTX 4090",
    "H100 80GB HBM3",
    "H100 80GB HBM3",
];

/// A station in which GPU 1 is partly busy, GPU 2 has memory only, GPU 3 is busy, and GPU 0 is free.
struct Load {
    station: Station,
    /// Process id and MiB on GPUs 1, 2 and 3.
    members: [(u32, u64); 3],
    from: Vec<u64>,
    since: Instant,
    _busy: [Raw; 2],
    stop: Arc<AtomicBool>,
    paced: Option<JoinHandle<()>>,
}

impl Load {
    fn start() -> Self {
        let station = station_with(|o| o.costs = "add_one 20ms\n".to_owned());
        // A short path, so that no screen has to cut it.
        let program: PathBuf = station.dir().join("raw_client");
        let original = support::example("raw_client");
        if std::fs::hard_link(&original, &program).is_err() {
            support::copy_program(&original, &program);
        }
        let board = board(&station);
        let member = |gpu: &str, mib: u64| {
            let mut command = station.command();
            command
                .args(["claim", "-q", "-g", "0.5", "--gpu-ids", gpu, "--"])
                .arg(&program);
            let mut raw = Raw::start(command);
            assert_eq!(raw.ask(&format!("alloc {}", mib * MIB)), "ok 0");
            assert_eq!(raw.ask("launch 1"), "ok 1");
            raw
        };
        let mut half = member("1", 5000);
        let still = member("2", 10_000);
        let mut full = member("3", 15_000);
        let seen = board.snapshot();
        let members = [(1, &half), (2, &still), (3, &full)].map(|(gpu, raw)| {
            let bytes = board_bytes(&seen, gpu, &[raw.pid()]);
            assert!(bytes > 5000 * MIB);
            (raw.pid(), bytes / MIB)
        });
        // Longer than a test: a kernel after the other.
        full.tell("launch 100000");
        // 20 ms of every 50 ms.
        let stop = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&stop);
        let paced = std::thread::spawn(move || {
            let started = Instant::now();
            for round in 1.. {
                if end.load(Ordering::Relaxed) {
                    return;
                }
                assert!(half.ask("launch 1").starts_with("ok"));
                let next = started + Duration::from_millis(50) * round;
                std::thread::park_timeout(next.saturating_duration_since(Instant::now()));
            }
        });
        Self {
            from: board.snapshot().gpus.iter().map(|g| g.busy_ns).collect(),
            since: Instant::now(),
            station,
            members,
            _busy: [still, full],
            stop,
            paced: Some(paced),
        }
    }

    /// Busy time of each GPU by the board, in percent.
    fn busy(&self) -> Vec<f64> {
        let now = board(&self.station).snapshot();
        let ns = self.since.elapsed().as_nanos() as f64;
        let grown = now.gpus.iter().zip(&self.from);
        grown
            .map(|(g, from)| 100.0 * (g.busy_ns - from) as f64 / ns)
            .collect()
    }

    fn open(&self, program: &str, args: &[&str], size: (u16, u16)) -> Terminal {
        let mut command = self.station.client_environment(Command::new(program));
        command.args(args);
        Terminal::start(&command, size.0, size.1)
    }

    /// Waits until the screen shows everything on the GPUs: the rows that `read` finds must have, per GPU, its name,
    /// the MiB of its processes and its utilisation, and per process its GPU, the MiB and perhaps its own
    /// utilisation.
    fn agrees(&self, screen: &Terminal, read: impl Fn(&str) -> Option<Shown>) {
        let last = std::cell::RefCell::new(String::new());
        let judge = |text: &str| {
            let shown = read(text)?;
            // The first seconds of the load are not yet in every window.
            if self.since.elapsed() < Duration::from_secs(4) {
                return None;
            }
            match self.differs(&shown) {
                None => Some(shown),
                Some(why) => {
                    *last.borrow_mut() = why;
                    None
                }
            }
        };
        let end = Instant::now() + Duration::from_secs(40);
        let shown = loop {
            if let Some(shown) = judge(&screen.text()) {
                break shown;
            }
            assert!(
                Instant::now() < end,
                "{}; {:?}; the screen:\n{}",
                last.borrow(),
                read(&screen.text()),
                screen.text()
            );
            std::thread::park_timeout(Duration::from_millis(50));
        };
        println!("board: {:.0?} % busy; shown: {shown:?}", self.busy());
    }

    /// Differences from the board.
    fn differs(&self, shown: &Shown) -> Option<String> {
        let mib = [0, self.members[0].1, self.members[1].1, self.members[2].1];
        let truth = self.busy();
        assert!(truth[1] > 10.0 && truth[1] < 70.0 && truth[2] < 1.0 && truth[3] > 90.0);
        let near = |a: f64, b: f64| (a - b).abs() <= POINTS;
        for (g, gpu) in shown.gpus.iter().enumerate() {
            if !gpu.name.contains(NAMES[g]) {
                return Some(format!("GPU {g} is called {}", gpu.name));
            }
            if gpu.mib.is_some_and(|m| m != mib[g]) {
                return Some(format!("GPU {g} has {} MiB", mib[g]));
            }
            if !near(gpu.util, truth[g]) {
                return Some(format!("GPU {g} was busy {:.0} %", truth[g]));
            }
        }
        for (g, (pid, mib)) in (1..).zip(self.members) {
            let Some(row) = shown.processes.iter().find(|p| p.pid == pid) else {
                return Some(format!("process {pid} is on GPU {g}"));
            };
            if row.gpu != g || row.mib != mib {
                return Some(format!("process {pid} has {mib} MiB on GPU {g}"));
            }
            if row.util.is_some_and(|u| !near(u, truth[g])) {
                return Some(format!("process {pid} was busy {:.0} %", truth[g]));
            }
        }
        (shown.processes.len() != 3).then(|| "three processes use GPUs".to_owned())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(paced) = self.paced.take() {
            let ended = paced.join();
            assert!(ended.is_ok() || std::thread::panicking());
        }
    }
}

/// The content of a monitor.
#[derive(Debug)]
struct Shown {
    gpus: [Gpu; 4],
    processes: Vec<Process>,
}

#[derive(Debug)]
struct Gpu {
    name: String,
    /// Used memory, if the monitor leaves out the driver's own.
    mib: Option<u64>,
    util: f64,
}

#[derive(Debug)]
struct Process {
    pid: u32,
    gpu: usize,
    mib: u64,
    util: Option<f64>,
}

/// The number before a unit: `5510MiB`, `40%`.
fn number<T: std::str::FromStr>(text: &str, unit: &str) -> Option<T> {
    text.trim().strip_suffix(unit)?.trim().parse().ok()
}

fn four(gpus: Vec<Gpu>) -> Option<[Gpu; 4]> {
    gpus.try_into().ok()
}

#[test]
fn nvitop_shows_what_the_board_did() {
    let Some(bin) = python::bin("nvitop") else {
        return;
    };
    let load = Load::start();
    let program = bin.join("nvitop").display().to_string();
    let mut screen = load.open(&program, &["--monitor"], (60, 140));
    load.agrees(&screen, |text| {
        let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split('│').collect()).collect();
        // A GPU has two lines; the second has temperature, memory and utilisation.
        let gpus = lines.iter().zip(lines.iter().skip(1));
        let gpus = gpus.filter_map(|(first, second)| {
            let (index, name) = first.get(1)?.trim().split_once("  ")?;
            index.parse::<usize>().ok()?;
            let used = second.get(2)?.split('/').next()?;
            let zero = (used.trim() == "0B").then_some(0);
            Some(Gpu {
                name: name.to_owned(),
                mib: Some(zero.or_else(|| number(used, "MiB"))?),
                util: number(second.get(3)?.split_whitespace().next()?, "%")?,
            })
        });
        let processes = lines.iter().filter_map(|cells| {
            let words: Vec<&str> = cells.get(1)?.split_whitespace().collect();
            let [gpu, pid, "C", _user, mib, sm, ..] = words.as_slice() else {
                return None;
            };
            cells[1].contains("raw_client").then_some(())?;
            Some(Process {
                pid: pid.parse().ok()?,
                gpu: gpu.parse().ok()?,
                mib: number(mib, "MiB")?,
                util: sm.parse().ok(),
            })
        });
        Some(Shown {
            gpus: four(gpus.collect())?,
            processes: processes.collect(),
        })
    });
    screen.send("q");
    assert_eq!(screen.ended(Duration::from_secs(10)), 0);
}

#[test]
fn gpustat_shows_what_the_board_did() {
    let Some(bin) = python::bin("gpustat") else {
        return;
    };
    let load = Load::start();
    let program = bin.join("gpustat").display().to_string();
    let args = ["--show-cmd", "--show-user", "--show-pid", "-i", "1"];
    let screen = load.open(&program, &args, (30, 140));
    load.agrees(&screen, |text| {
        let mut processes = Vec::new();
        let mut gpus = Vec::new();
        // [1] NVIDIA GeForce RTX 4090 | 48°C, 100 % |  5510 / 24564 MB | root:raw_client/11457(5510M)
        for line in text.lines().filter(|l| l.starts_with('[')) {
            let cells: Vec<&str> = line.split('|').collect();
            let [name, state, memory, who] = cells.as_slice() else {
                return None;
            };
            let used = memory.split('/').next()?.trim();
            gpus.push(Gpu {
                name: (*name).to_owned(),
                mib: Some(used.parse().ok()?),
                util: number(state.rsplit(',').next()?, "%")?,
            });
            for process in who.split_whitespace() {
                let (command, rest) = process.split_once('/')?;
                assert!(command.ends_with(":raw_client"), "{line}");
                let (pid, mib) = rest.split_once('(')?;
                processes.push(Process {
                    pid: pid.parse().ok()?,
                    gpu: gpus.len() - 1,
                    mib: number(mib, "M)")?,
                    util: None,
                });
            }
        }
        Some(Shown {
            gpus: four(gpus)?,
            processes,
        })
    });
}

#[test]
fn nvtop_shows_what_the_board_did() {
    if let Err(why) = Command::new("nvtop").arg("--version").output() {
        println!("skipped: nvtop does not start: {why}");
        return;
    }
    let load = Load::start();
    let mut screen = load.open("nvtop", &["-d", "5"], (60, 140));
    load.agrees(&screen, |text| {
        let lines: Vec<&str> = text.lines().collect();
        let mut gpus = Vec::new();
        for (at, line) in lines.iter().enumerate() {
            // Device 1 [NVIDIA GeForce RTX 4090] PCIe ..., clocks, GPU[||| 40%] MEM[||| 5.7Gi/23.9Gi]
            let Some(rest) = line.trim_start().strip_prefix("Device ") else {
                continue;
            };
            let bar = lines.get(at + 2)?.split(']').next()?;
            gpus.push(Gpu {
                name: rest.to_owned(),
                // This monitor counts the driver's memory as used.
                mib: None,
                util: number(bar.rsplit(['|', '[', ' ']).next()?, "%")?,
            });
        }
        let processes = lines.iter().filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [pid, _user, gpu, "Compute", util, mib, ..] = words.as_slice() else {
                return None;
            };
            line.contains("raw_client").then_some(())?;
            Some(Process {
                pid: pid.parse().ok()?,
                gpu: gpu.parse().ok()?,
                mib: number(mib, "MiB")?,
                util: number(util, "%"),
            })
        });
        Some(Shown {
            gpus: four(gpus)?,
            processes: processes.collect(),
        })
    });
    screen.send("q");
    assert_eq!(screen.ended(Duration::from_secs(10)), 0);
}

//! Keys of the screen that do something to claims and GPUs, pressed on a real terminal before a real service.

use crate::support;

use std::time::Duration;

use gshare::station::Station;
use gshare_proto::GpuView;
use support::detach::{
    ANYBODY, SOON, SOON_OVER, claim, end, fill, holder, ok, ready, settles, station_of, waiter,
};
use support::terminal::Terminal;
use support::{Raw, claim_of, until};

fn screen(station: &Station) -> Terminal {
    let screen = Terminal::start(&station.command(), 40, 120);
    screen.shows(&["0 RTX 4090", "q quit"], SOON);
    screen
}

/// Presses a key that asks first, and says yes to what it asks.
fn yes(screen: &mut Terminal, key: &str, title: &str) {
    screen.send(key);
    screen.shows(&[title, "y yes"], SOON);
    screen.send("y");
    closed(screen, "y yes");
}

/// Waits until a row of the screen that begins so has this word: a key means what is on the screen then, and the
/// screen may know it later than the test does.
fn row_says(screen: &Terminal, begins: &str, word: &str) {
    screen.wait(&format!("`{begins}` says {word}"), SOON, |text| {
        let mut rows = text.lines().filter(|l| l.starts_with(begins));
        let says = |row: &str| row.split_whitespace().any(|w| w == word);
        rows.any(says).then_some(())
    });
}

/// Waits until a box is closed: until then keys are its own.
fn closed(screen: &Terminal, title: &str) {
    screen.wait(&format!("{title} goes"), SOON, |text| {
        (!text.contains(title)).then_some(())
    });
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
    // A second time there is nothing to offload, and that is said.
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
    screen.shows(&[&format!("{id} is on its GPU already")], SOON);

    // The size and the end that are typed are those that it has then.
    screen.send("r");
    screen.shows(&[&format!("Another size for {id}")], SOON);
    screen.send("0.3\r");
    until("it has the other size", SOON, || {
        let part = claim(&station, pid).gpus[0].sm_request;
        ((part - 0.3).abs() < 1e-9).then_some(())
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

    let other = waiter(&station, &["-g", "0.9", "--project", "p2"]);
    let announced = until("it is announced", SOON, || claim(&station, pid).announced);
    // The screen says what was announced before it is pressed away.
    let first: String = announced
        .split_whitespace()
        .take(2)
        .collect::<Vec<_>>()
        .join(" ");
    screen.shows(&[&first], SOON);
    // Whatever row is chosen: the first claim of one's own that something was announced for is meant.
    screen.send("p");
    until("it is taken back", SOON, || {
        claim(&station, pid).announced.is_none().then_some(())
    });
    screen.shows(&["keeps what it has"], SOON);
    assert_eq!(claim(&station, pid).place.word, None);
    assert_eq!(raw.ask("sum 0"), sum);
    end(other);
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
        gpu(&station, 1).drain.is_none().then_some(())
    });
    yes(&mut screen, "\rM", "GPU 1: mps");
    until("its mode is another", Duration::from_secs(30), || {
        (gpu(&station, 1).mode == "mps").then_some(())
    });
    assert_eq!(gpu(&station, 0).mode, "timeslice", "no other GPU's is");
    row_says(&screen, "1 RTX 4090", "mps");
    yes(&mut screen, "\rM", "GPU 1: timeslice");
    until("and back", Duration::from_secs(30), || {
        (gpu(&station, 1).mode == "timeslice").then_some(())
    });
    raw.kill();
}

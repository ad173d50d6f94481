//! `gshare top`: once as text, recorded, replayed; all screens of the real program on a real terminal.

use crate::support;

use std::process::Command;
use std::time::Duration;

use gshare::station::Station;
use support::terminal::Terminal;
use support::{Raw, station, until};

const SOON: Duration = Duration::from_secs(10);

/// The screens, and something that only each of them says.
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
            assert!(text.contains(mark) && text.contains(" SIM"), "{text}");
        }
    }
    let claims = printed(top(&station, &["--once", "--screen", "2"]));
    assert!(claims.contains("printed"), "{claims}");
    let health = printed(top(&station, &["--once", "--screen", "5", "--ascii"]));
    assert!(
        health.contains("TO FIX") && health.contains("FINE "),
        "{health}"
    );
    assert!(health.is_ascii(), "{health}");
    assert_eq!(raw.finish(), Some(0));
}

#[test]
fn what_was_recorded_is_replayed() {
    let station = station();
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("recording");
    let path = file.to_str().expect("text");
    let raw = Raw::claim(&station, &["-q", "-g", "0.5", "--name", "recorded"]);
    // One that is there already is not left open to others either.
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

    // On a terminal it ends with its time as well, and all that was asked for is in it.
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
        let mut once = Command::new(support::GSHARE);
        once.args(["top", "--replay", file, "--once", "--screen", screen]);
        printed(once)
    };
    assert!(once(path, "overview").contains("recorded"));
    let text = once(path, "history");
    assert!(text.contains("GPU HOURS"), "{text}");
    let text = once(path, "health");
    assert!(text.contains("FINE"), "{text}");
    // What nobody looked at is not in it, and nobody will be asked.
    let text = once(shown, "history");
    assert!(
        text.contains("the recording does not contain this") && !text.contains("asking"),
        "{text}"
    );
    let mut show = Command::new(support::GSHARE);
    show.args(["top", "--replay", path]);
    let mut screen = Terminal::start(&show, 24, 100);
    screen.shows(&["recorded", "RECORDING", "at its end"], SOON);
    screen.send(" ");
    screen.shows(&["stopped", "Space resumes"], SOON);
    screen.send("<");
    screen.send(" ");
    screen.shows(&["at its end"], SOON);
    // Nothing can be asked of a recording.
    screen.send("n\r");
    screen.shows(&["a recording cannot answer that"], SOON);
    screen.send("\x1b");
    screen.wait("it closes", SOON, |text| {
        (!text.contains("Hold for")).then_some(())
    });
    screen.send("q");
    assert_eq!(screen.ended(SOON), 0);
    assert!(screen.restored());

    let mut other = Command::new(support::GSHARE);
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
        // click is on what is seen then.
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
        screen.wait("it closes", SOON, |text| {
            (!text.contains("owner ")).then_some(())
        });
        screen.send("?");
        screen.shows(&["On the screens"], SOON);
        for _ in 0..3 {
            screen.send(&mouse(65, 40, 10));
        }
        screen.wait("the help scrolls", SOON, |text| {
            (text.contains("Help") && !text.contains("On the screens")).then_some(())
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

#[test]
fn what_the_driver_does_not_say_is_a_dash() {
    let station = station();
    let board = support::board(&station);
    let line = |screen: &str, start: &str| {
        let text = printed(top(&station, &["--once", "--screen", screen]));
        let found = text.lines().find(|l| l.starts_with(start));
        found.map(str::to_owned)
    };
    board.set_lost(0, true).expect("set");
    let lost = until("the GPU is lost", SOON, || {
        line("health", "0 RTX").filter(|l| l.contains("lost"))
    });
    assert!(lost.contains("—/"), "{lost}");
    let lost = line("overview", "0 RTX").expect("there");
    assert!(
        lost.contains("fallen off the bus") && !lost.contains('%'),
        "{lost}"
    );
    board
        .set_fault(gshare_sim_board::Fault::NvmlHangs, true)
        .expect("set");
    let hangs = until("the driver hangs", Duration::from_secs(20), || {
        line("health", "1 RTX").filter(|l| l.contains("hangs"))
    });
    assert!(hangs.contains("—/"), "{hangs}");
    board
        .set_fault(gshare_sim_board::Fault::NvmlHangs, false)
        .expect("set");
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
        fault(&support::board(&station), true);
        let row = until(
            &format!("{word} in status"),
            Duration::from_secs(20),
            || line(&say(&["status"]), "0 ").filter(|row| row.contains(word)),
        );
        // Memory, occupancy, time busy, temperature, power; SM activity but for what the claims' own counters say.
        let dashes = row.matches('—').count();
        assert!(dashes >= 6 || dashes == 5 && row.contains('~'), "{row}");
        assert!(!row.contains(" 0 %") && !row.contains(" 0.0/"), "{row}");
        let ps = say(&["ps"]);
        let claim = line(&ps, "c1 ").unwrap_or_else(|| panic!("no c1 in {ps}"));
        // Of the claim its own counters are still there, where they were before; they are estimates, and say so.
        assert!(
            claim.contains("—/50") || claim.contains("~0/50"),
            "time of a claim: {claim}"
        );
        for (_, name, mark) in SCREENS {
            let once = ["--once", "--screen", name, "--size", "120x40"];
            let text = printed(top(&station, &once));
            assert!(text.contains(mark), "{text}");
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
        fault(&support::board(&station), false);
    }
}

//! The screen on a real pseudo-terminal, seen through a terminal emulator: what it draws, and that the terminal is
//! restored however the program ends.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the message")]

#[path = "support/pty.rs"]
mod pty;

use std::num::NonZeroU16;
use std::sync::PoisonError;

use nix::sys::signal::Signal;
use pty::{Canned, example, size};

/// The colour of the first such sign on the row with the use of GPU 0.
fn of_use(screen: &vt100::Screen, sign: &str) -> vt100::Color {
    let mut cells = (7..80).filter_map(|x| screen.cell(6, x));
    let cell = cells.find(|c| c.contents() == sign);
    cell.unwrap_or_else(|| panic!("no {sign}")).fgcolor()
}

#[test]
fn it_draws_and_gives_the_terminal_back_on_q() {
    let mut canned = Canned::start(&["workstation"]);
    // The first frame may come before the first snapshot, with the key line already there.
    canned.until_text(" 15.3  17.7 of 23.5");
    canned.until_text("? help  q quit");
    canned.look(|s| {
        let screen = s.parser.screen();
        assert!(screen.alternate_screen() && screen.hide_cursor());
        let raw = String::from_utf8_lossy(&s.raw);
        assert!(raw.contains("\u{1b}[?2026h") && raw.contains("\u{1b}[?2026l"));
        // Used, burst and unused are three depths of one hue.
        assert_eq!(of_use(screen, "█"), vt100::Color::Idx(195));
        assert_eq!(of_use(screen, "▒"), vt100::Color::Idx(32));
        assert_eq!(of_use(screen, "░"), vt100::Color::Idx(236));
    });
    assert_ne!(canned.settings(), canned.before, "raw mode was never on");
    assert!(canned.text().contains(" 15.3  17.7 of 23.5"));
    canned.press("q");
    assert!(canned.end("left: quit").success());
}

#[test]
fn a_light_terminal_that_says_so_has_the_colours_for_it() {
    // Over a network there is more time for the answer.
    let far = [("SSH_CONNECTION", "192.0.2.1 1 192.0.2.2 22")];
    let mut canned = Canned::start_at((80, 24), &["workstation"], &far);
    canned.until("question", |c| {
        c.look(|s| String::from_utf8_lossy(&s.raw).contains("\u{1b}]11;?"))
    });
    canned.press("\u{1b}]11;rgb:ffff/ffff/ffff\u{1b}\\\u{1b}[?64;1c");
    canned.until_text(" 15.3  17.7 of 23.5");
    canned.until_text("? help  q quit");
    canned.look(|s| {
        let used = of_use(s.parser.screen(), "█");
        assert!(!matches!(used, vt100::Color::Idx(195)), "for a dark one");
    });
    // The answer must not be read as keys.
    assert!(canned.text().contains("[1 Overview]"), "{}", canned.text());
    canned.press("q");
    assert!(canned.end("left: quit").success());
}

/// Small, usual and large terminals.
const SIZES: [(u16, u16); 3] = [(60, 15), (80, 24), (200, 60)];

#[test]
fn signals_that_end_it_give_the_terminal_back() {
    for size in SIZES {
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            let canned = Canned::start_at(size, &["demo"], &[]);
            canned.until_text(" SIM");
            canned.signal(signal);
            canned.end(&format!("left: signal {}", signal as i32));
        }
    }
}

#[test]
fn a_panic_is_readable_and_gives_the_terminal_back() {
    for size in SIZES {
        for flag in ["--panic", "--panic-elsewhere"] {
            let canned = Canned::start_at(size, &["workstation", flag], &[]);
            let status = canned.end("on purpose");
            assert!(!status.success());
        }
    }
}

#[test]
fn it_stops_and_goes_on_like_any_program() {
    for size in SIZES {
        let mut canned = Canned::start_at(size, &["workstation"], &[]);
        canned.until_text("q quit");
        for round in ["kill -TSTP", "Ctrl-Z"] {
            if round == "Ctrl-Z" {
                canned.press("\u{1a}");
            } else {
                canned.signal(Signal::SIGTSTP);
            }
            canned.until(&format!("stop by {round}"), |c| c.state() == Some('T'));
            canned.assert_given_back();
            canned.signal(Signal::SIGCONT);
            canned.until("screen after the stop", |c| {
                c.look(|s| s.parser.screen().alternate_screen()) && c.text().contains("q quit")
            });
            assert_ne!(canned.settings(), canned.before, "{round}: raw mode is off");
        }
        // It still reads keys.
        canned.press("?");
        canned.until_text("On the screens");
        canned.press("\u{1b}");
        canned.until("closed help", |c| !c.text().contains("On the screens"));
        canned.press("q");
        canned.end("left: quit");
    }
}

/// A key for each screen, and its tab.
const PAGES: [(&str, &str); 5] = [
    ("1", "[1 Overview]"),
    ("2", "[2 Claims]"),
    ("3", "[3 Queue (1)]"),
    ("4", "[4 History]"),
    ("5", "[5 Health]"),
];

#[test]
fn the_terminal_decides_colours_and_signs() {
    use vt100::Color::{Default, Idx, Rgb};
    type Vars = &'static [(&'static str, &'static str)];
    let themes: [(Vars, vt100::Color, &str); 6] = [
        (&[("TERM", "xterm")], Idx(12), "█"),
        (&[("TERM", "xterm-256color")], Idx(195), "█"),
        (&[("COLORTERM", "truecolor")], Rgb(0xb5, 0xdc, 0xff), "█"),
        (&[("TERM", "vt100")], Default, "█"),
        (
            &[("NO_COLOR", "1"), ("COLORTERM", "truecolor")],
            Default,
            "█",
        ),
        (&[("LC_ALL", "C")], Idx(195), "#"),
    ];
    for (vars, colour, used) in themes {
        let mut canned = Canned::start_at((80, 24), &["workstation"], vars);
        canned.until_text(" 15.3  17.7 of 23.5");
        for (key, tab) in PAGES {
            canned.press(key);
            canned.until_text(tab);
            canned.look(|s| {
                let screen = s.parser.screen();
                let cells = (0..24).flat_map(|y| (0..80).map(move |x| (y, x)));
                for (y, x) in cells {
                    let Some(cell) = screen.cell(y, x) else {
                        continue;
                    };
                    let (fg, bg) = (cell.fgcolor(), cell.bgcolor());
                    if colour == Default {
                        assert!(fg == Default && bg == Default, "{vars:?} {tab} {x},{y}");
                    }
                    if used == "#" {
                        assert!(cell.contents().is_ascii(), "{tab}: {}", cell.contents());
                    }
                }
            });
        }
        canned.press("1");
        canned.until_text("[1 Overview]");
        canned.look(|s| {
            assert_eq!(of_use(s.parser.screen(), used), colour, "{vars:?}");
        });
        canned.press("q");
        canned.end("left: quit");
    }
}

#[test]
fn a_new_size_is_drawn_in_full() {
    let mut canned = Canned::start(&["workstation"]);
    canned.until_text("? help  q quit");
    let some = |n| NonZeroU16::new(n).unwrap();
    {
        let mut seen = canned.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.parser.screen_mut().set_size(some(40), some(120));
    }
    canned.master.resize(size(40, 120)).unwrap();
    canned.until_text("% of a GPU");
    canned.until_text("10 min");
    canned.press("q");
    canned.end("left: quit");
}

#[test]
fn while_nothing_changes_little_is_written() {
    let mut canned = Canned::start(&["workstation"]);
    canned.until_text("? help  q quit");
    let written = |c: &Canned| c.look(|s| s.raw.len());
    let clock = |c: &Canned| c.look(|s| s.parser.screen().contents_between(0, 72, 0, 80));
    // From one second of the clock to the second after the next.
    let first = clock(&canned);
    canned.until("next second", |c| clock(c) != first);
    let (start, second) = (written(&canned), clock(&canned));
    canned.until("second after", |c| clock(c) != second);
    let bytes = written(&canned) - start;
    assert!(
        (1..200).contains(&bytes),
        "{bytes} bytes for a second of the clock"
    );
    canned.press("q");
    canned.end("left: quit");
}

#[test]
fn without_a_terminal_it_says_so() {
    let output = std::process::Command::new(example()).output().unwrap();
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("needs a terminal"), "{error}");
}

//! Every key of the help does what it says, on a real terminal. The keys come from the table that handles them: a new
//! key without a check here fails the test.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the message")]

#[path = "support/pty.rs"]
mod pty;

use gshare_ui::key_table;
use nix::sys::signal::Signal;
use pty::Canned;

const DOWN: &str = "\x1b[B";
const UP: &str = "\x1b[A";
const RIGHT: &str = "\x1b[C";
const LEFT: &str = "\x1b[D";
const HOME: &str = "\x1b[H";
const END: &str = "\x1b[F";
const PAGE_DOWN: &str = "\x1b[6~";
const PAGE_UP: &str = "\x1b[5~";
const DELETE: &str = "\x1b[3~";
const BACK_TAB: &str = "\x1b[Z";
const ESC: &str = "\x1b";

/// What must appear.
#[derive(Clone, Copy)]
enum Seen {
    Text(&'static str),
    /// This text has disappeared.
    Gone(&'static str),
    /// The chosen row begins like this.
    Chosen(&'static str),
    /// No row is chosen.
    NoneChosen,
    /// Another row than before is chosen.
    Another,
    /// The cursor is further down (1) or up (-1).
    Cursor(i32),
    /// The program has ended with a message.
    Left,
    /// It has stopped and the terminal is restored.
    Stopped,
    /// This was sent to the terminal.
    Sent(&'static str),
    /// The whole screen was cleared again.
    Cleared,
}

use Seen::{Another, Chosen, Cleared, Cursor, Gone, Left, NoneChosen, Sent, Stopped, Text};

/// How a key is checked.
struct Check {
    /// Arguments of the example.
    of: &'static [&'static str],
    /// Keys before, and what shows that they were handled.
    before: (&'static str, Seen),
    /// Keys of this row, which have the same effect.
    keys: &'static [&'static str],
    /// The effect of each.
    seen: Seen,
}

const PLAIN: &[&str] = &["workstation"];
const EVENTFUL: &[&str] = &["eventful"];
const EVENTFUL_ROOT: &[&str] = &["eventful", "--root"];
const ROOT: &[&str] = &["workstation", "--root"];
const CROWD: &[&str] = &["crowd"];
const CAPTION: &[&str] = &["workstation", "--caption", "scene one"];
const RECORDED: &[&str] = &["workstation", "--recorded"];

/// Key sequences of the tests, by where they lead.
const START: (&str, Seen) = ("", Text("? help"));
const FIRST: (&str, Seen) = ("", Chosen("c12"));
const SECOND: (&str, Seen) = ("j", Chosen("c14"));
const SOME: (&str, Seen) = ("j", Another);
const GPUS: (&str, Seen) = ("\x1b[C\x1b[C", Chosen("0 4090"));
const GPU: (&str, Seen) = ("\x1b[C\x1b[C\r", Text("GPU 0"));
const CLAIM: (&str, Seen) = ("\r", Text("Claim c12"));
const WARNINGS: (&str, Seen) = ("!", Text("Warnings ("));
const FORM: (&str, Seen) = ("n", Text("Claim a part"));
const THIRD_LINE: (&str, Seen) = ("n\t\t", Text("Claim a part"));
const VIS: (&str, Seen) = ("/vis", Text("filter: vis"));
const HELP: (&str, Seen) = ("?", Text("On the screens"));
const HELP_READ: (&str, Seen) = ("?j", Gone("On the screens"));
const HELP_PAGE: (&str, Seen) = ("? ", Gone("On the screens"));
const QUESTION: (&str, Seen) = ("x", Text("Release c12"));
const DAY: (&str, Seen) = ("4", Text("[day]"));

/// `c12` for the clipboard, in OSC 52.
const COPIED: &str = "\x1b]52;c;YzEy";

type Keys = &'static [&'static str];

/// The check of a row of the help.
fn check_of(place: &str, keys: &str) -> Option<Check> {
    let (of, before, keys, seen): (Keys, (&str, Seen), Keys, Seen) = match (place, keys) {
        ("On the screens", "n") => (PLAIN, START, &["n"], Text("Claim a part of a GPU")),
        ("On the screens", "Enter") => (PLAIN, FIRST, &["\r"], Text("Claim c12")),
        ("On the screens", "r") => (PLAIN, FIRST, &["r"], Text("Another size for c12")),
        ("On the screens", "o d") => (PLAIN, FIRST, &["o", "d"], Text("Offload c12")),
        ("On the screens", "O a") => (EVENTFUL_ROOT, SECOND, &["O", "a"], Text("c14: restore")),
        ("On the screens", "p") => (EVENTFUL, START, &["p"], Text("c12 keeps what it has")),
        ("On the screens", "e") => (EVENTFUL, FIRST, &["e"], Text("More time for c12")),
        ("On the screens", "x Del F9") => (
            PLAIN,
            FIRST,
            &["x", DELETE, "\x1b[20~"],
            Text("Release c12"),
        ),
        ("On the screens", "/ F3") => (PLAIN, START, &["/", "\x1bOR"], Text("filter: ")),
        ("On the screens", "s F6") => (PLAIN, START, &["s", "\x1b[17~"], Text("by user▾")),
        ("On the screens", "S") => (PLAIN, ("s", Text("by user▾")), &["S"], Text("by user▴")),
        ("On the screens", "Tab") => (PLAIN, START, &["\t"], Text("[2 Claims]")),
        ("On the screens", "Shift-Tab") => (PLAIN, START, &[BACK_TAB], Text("[5 Health]")),
        ("On the screens", "1") => (
            PLAIN,
            ("2", Text("[2 Claims]")),
            &["1"],
            Text("[1 Overview]"),
        ),
        ("On the screens", "2") => (PLAIN, START, &["2"], Text("[2 Claims]")),
        ("On the screens", "3") => (PLAIN, START, &["3"], Text("[3 Queue (1)]")),
        ("On the screens", "4") => (PLAIN, START, &["4"], Text("[4 History]")),
        ("On the screens", "5") => (PLAIN, START, &["5"], Text("[5 Health]")),
        ("On the screens", "Down j") => (PLAIN, FIRST, &[DOWN, "j"], Chosen("c14")),
        ("On the screens", "Up k") => (PLAIN, SECOND, &[UP, "k"], Chosen("c12")),
        ("On the screens", "PgDn Ctrl-D") => (CROWD, SOME, &[PAGE_DOWN, "\x04"], Another),
        ("On the screens", "PgUp Ctrl-U") => (CROWD, (END, Another), &[PAGE_UP, "\x15"], Another),
        ("On the screens", "Home g") => (PLAIN, (END, Chosen("u1")), &[HOME, "g"], Chosen("c12")),
        ("On the screens", "End G") => (PLAIN, FIRST, &[END, "G"], Chosen("u1")),
        ("On the screens", "Esc") => (PLAIN, FIRST, &[ESC], NoneChosen),
        ("On the screens", "Space") => {
            let told = Text("asked: Captions { paused: true }");
            (CAPTION, ("", Text("Space pauses")), &[" "], told)
        }
        ("On the screens", ">") => (RECORDED, START, &[">"], Text("Replay(Faster)")),
        ("On the screens", "<") => (RECORDED, START, &["<"], Text("Replay(Slower)")),
        ("On the screens", ".") => (RECORDED, START, &["."], Text("Replay(Forward)")),
        ("On the screens", ",") => (RECORDED, START, &[","], Text("Replay(Back)")),
        ("On the screens", "!") => (PLAIN, START, &["!"], Text("Warnings (")),
        ("On the screens", "L") => (PLAIN, START, &["L"], Text("What has happened")),
        ("On the screens", "y") => (PLAIN, FIRST, &["y"], Sent(COPIED)),
        ("On the screens", "m") => (PLAIN, START, &["m"], Text("CLAIMS 1 ")),
        ("On a detail page", "y") => (PLAIN, CLAIM, &["y"], Sent(COPIED)),
        ("On a detail page", "K") => (ROOT, CLAIM, &["K"], Text("Kill c12")),
        ("On a detail page", "D") => (ROOT, GPU, &["D"], Text("Drain GPU 0")),
        ("On a detail page", "M") => (ROOT, GPU, &["M"], Text("GPU 0: mps")),
        ("In the list of warnings", "Down j") => {
            (EVENTFUL, WARNINGS, &[DOWN, "j"], Text("gshare release c12"))
        }
        ("In the list of warnings", "Up k") => {
            let second = ("!j", Text("gshare release c12"));
            (EVENTFUL, second, &[UP, "k"], Text("gshare keep c12"))
        }
        ("In the list of warnings", "Enter") => (EVENTFUL, WARNINGS, &["\r"], Text("What to do")),
        ("In the list of warnings", "Esc q") => (PLAIN, WARNINGS, &[ESC, "q"], Gone("Warnings (")),
        ("On the screens", "? F1") => (PLAIN, START, &["?", "\x1bOP"], Text("On the screens")),
        ("On the screens", "q F10") => (PLAIN, START, &["q", "\x1b[21~"], Left),
        ("On the Overview", "Right l") => (PLAIN, START, &[RIGHT, "l"], Chosen("QUEUE 1  1 c22")),
        ("On the Overview", "Left h") => (PLAIN, GPUS, &[LEFT, "h"], Chosen("QUEUE 1  1 c22")),
        ("On Claims", "v F5") => (
            PLAIN,
            ("2", Text("▾ vis")),
            &["v", "\x1b[15~"],
            Gone("▾ vis"),
        ),
        ("On Claims", "Right l") => {
            let folded = ("2\x1b[H\x1b[D", Text("▸ nlp"));
            (PLAIN, folded, &[RIGHT, "l"], Text("▾ nlp"))
        }
        ("On Claims", "Left h") => {
            let open = ("2\x1b[H", Chosen("▾ nlp"));
            (PLAIN, open, &[LEFT, "h"], Text("▸ nlp"))
        }
        ("On Queue", "+") => (PLAIN, ("3-", Text("next 2 h")), &["+"], Text("next 1 h")),
        ("On Queue", "-") => (PLAIN, ("3", Text("next 1 h")), &["-"], Text("next 2 h")),
        ("On Queue", "]") => (PLAIN, ("3", Text("next 1 h")), &["]"], Text("1 h from ")),
        ("On Queue", "[") => (PLAIN, ("3]", Text("1 h from ")), &["["], Text("next 1 h")),
        ("On History", "Right l") => (PLAIN, DAY, &[RIGHT, "l"], Text("[week]")),
        ("On History", "Left h") => (PLAIN, DAY, &[LEFT, "h"], Text("[hour]")),
        ("On History", "b") => (PLAIN, DAY, &["b"], Text("of each user")),
        ("On History", "[") => (PLAIN, DAY, &["["], Text("[day, 1 back]")),
        ("On History", "]") => (PLAIN, ("4[", Text("[day, 1 back]")), &["]"], Text("[day]")),
        ("On Health", "u") => {
            let once = ("5", Text("looked 1 times"));
            (PLAIN, once, &["u"], Text("looked 2 times"))
        }
        ("While filling in", "Enter") => (PLAIN, FORM, &["\r"], Text("c23 is yours")),
        ("While filling in", "Tab Down") => (PLAIN, FORM, &["\t", DOWN], Cursor(1)),
        ("While filling in", "Shift-Tab Up") => (PLAIN, THIRD_LINE, &[BACK_TAB, UP], Cursor(-1)),
        ("While filling in", "Ctrl-Y") => {
            (PLAIN, FORM, &["\x19"], Sent("\x1b]52;c;Z3NoYXJlIGNsYWlt"))
        }
        ("While filling in", "Esc") => (PLAIN, FORM, &[ESC], Gone("Claim a part")),
        ("While filtering", "Enter") => (PLAIN, VIS, &["\r"], Text("filter `vis`")),
        ("While filtering", "Esc") => (PLAIN, VIS, &[ESC], Text("vit.ipynb")),
        ("In a question", "y") => (PLAIN, QUESTION, &["y"], Text("c12 released")),
        ("In a question", "n Esc") => (PLAIN, QUESTION, &["n", ESC], Gone("Release c12")),
        ("While reading", "Down j") => (PLAIN, HELP, &[DOWN, "j"], Gone("On the screens")),
        ("While reading", "Up k") => (PLAIN, HELP_READ, &[UP, "k"], Text("On the screens")),
        ("While reading", "PgDn Space") => (PLAIN, HELP, &[PAGE_DOWN, " "], Gone("On the screens")),
        ("While reading", "PgUp") => (PLAIN, HELP_PAGE, &[PAGE_UP], Text("On the screens")),
        ("While reading", "Esc Enter q") => {
            (PLAIN, HELP, &[ESC, "\r", "q"], Gone("On the screens"))
        }
        ("Everywhere", "Ctrl-C") => (PLAIN, FORM, &["\x03"], Left),
        ("Everywhere", "Ctrl-Z") => (PLAIN, FORM, &["\x1a"], Stopped),
        ("Everywhere", "Ctrl-L") => (PLAIN, START, &["\x0c"], Cleared),
        _ => return None,
    };
    Some(Check {
        of,
        before,
        keys,
        seen,
    })
}

/// What can be compared before and after a key.
struct Now {
    chosen: String,
    cleared: usize,
    cursor: i32,
}

impl Now {
    fn of(canned: &Canned) -> Self {
        let chosen = canned.chosen();
        canned.look(|s| Self {
            chosen,
            cleared: String::from_utf8_lossy(&s.raw).matches("\x1b[2J").count(),
            cursor: i32::from(s.parser.screen().cursor_position().0),
        })
    }
}

/// Waits for what must appear; `false` when the program has ended.
fn wait(canned: &Canned, seen: Seen, before: &Now, what: &str) {
    let is_seen = |c: &Canned| {
        let now = Now::of(c);
        match seen {
            Text(text) => c.text().contains(text),
            Gone(text) => !c.text().contains(text),
            Chosen(row) => now.chosen.starts_with(row),
            NoneChosen => now.chosen.is_empty(),
            Another => !now.chosen.is_empty() && now.chosen != before.chosen,
            Cursor(by) => (now.cursor - before.cursor).signum() == by,
            Cleared => now.cleared > before.cleared,
            Left => c.text().contains("left: quit"),
            Sent(bytes) => c.look(|s| String::from_utf8_lossy(&s.raw).contains(bytes)),
            Stopped => c.state() == Some('T'),
        }
    };
    canned.until(what, is_seen);
}

fn run(place: &str, shown: &str, check: &Check) {
    for key in check.keys {
        let what = format!("effect of {key:?} ({shown}, {})", place.to_lowercase());
        let mut canned = Canned::start(check.of);
        canned.until("figures", |c| c.text().contains("██ used"));
        let (keys, taken) = check.before;
        let fresh = Now::of(&canned);
        canned.press(keys);
        wait(&canned, taken, &fresh, &format!("start of {what}"));
        let before = Now::of(&canned);
        canned.press(key);
        wait(&canned, check.seen, &before, &what);
        match check.seen {
            Left => {
                canned.end("left: quit");
                continue;
            }
            Stopped => {
                canned.assert_given_back();
                canned.signal(Signal::SIGCONT);
                canned.until_text("Claim a part");
            }
            _ => {}
        }
        canned.press("\x03");
        canned.end("left: quit");
    }
}

#[test]
fn every_key_of_the_help_does_what_it_says() {
    let table = key_table();
    assert!(table.len() > 50, "{}", table.len());
    for [place_of, keys, help] in table {
        let place = place_of.to_lowercase();
        let check = check_of(place_of, keys)
            .unwrap_or_else(|| panic!("no check for `{}` {place}: {}", keys, help));
        let (names, tried) = (keys.split(' ').count(), check.keys.len());
        assert!(
            tried >= names,
            "{}: {tried} of {names} keys are tried",
            keys
        );
        run(place_of, keys, &check);
    }
}

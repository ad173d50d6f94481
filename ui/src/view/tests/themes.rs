//! Every screen in every theme, and what is announced.

use super::*;
use crate::testing::{check_text, styled_screen};

/// The terminal's environment, by the name of the theme.
const THEMES: [(&str, &[(&str, &str)]); 5] = [
    ("16", &[("TERM", "xterm"), ("LANG", "C.UTF-8")]),
    ("256", &[("TERM", "xterm-256color"), ("LANG", "C.UTF-8")]),
    (
        "truecolor",
        &[
            ("TERM", "xterm-256color"),
            ("COLORTERM", "truecolor"),
            ("LANG", "C.UTF-8"),
        ],
    ),
    ("monochrome", &[("TERM", "vt100"), ("LANG", "C.UTF-8")]),
    ("ascii", &[("TERM", "xterm-256color"), ("LC_ALL", "C")]),
];

fn look(vars: &[(&str, &str)]) -> Look {
    let of = |name: &str| vars.iter().find(|(n, _)| *n == name);
    Look::detect(|name| of(name).map(|(_, value)| (*value).to_owned()))
}

/// A screen with everything on it.
fn full(page: Page) -> Model {
    let mut m = model(NLP, (80, 24), canned::eventful());
    known(&mut m);
    open(&mut m, page);
    press(&mut m, "j");
    m
}

#[test]
fn every_screen_in_every_theme() {
    for page in Page::ALL {
        let m = full(page);
        for (name, vars) in THEMES {
            let page = format!("{page:?}").to_lowercase();
            check_text(
                &format!("theme-{name}-{page}"),
                &styled_screen(&m, &look(vars)),
            );
        }
    }
}

#[test]
fn no_color_is_the_monochrome_theme_whatever_the_terminal_has() {
    let wish = look(&[
        ("NO_COLOR", "1"),
        ("TERM", "xterm-256color"),
        ("COLORTERM", "truecolor"),
        ("LANG", "C.UTF-8"),
    ]);
    assert_eq!(wish, look(THEMES[3].1));
}

#[test]
fn what_is_announced_is_told_on_every_screen_that_shows_claims() {
    let text = |page| screen(&full(page));
    let told = "c12 moves from GPU 0 to GPU 3 in 12s for c22";
    let keep = "gshare keep c12";
    let overview = text(Page::Overview);
    let line = overview.lines().find(|l| l.starts_with("▲ c12 moves"));
    let line = line.unwrap_or_else(|| panic!("{overview}"));
    assert!(line.contains(told) && line.ends_with(keep), "{overview}");
    let mut claims = model(NLP, (120, 40), canned::eventful());
    open(&mut claims, Page::Claims);
    press(&mut claims, "/nlp<enter>");
    let claims = screen(&claims);
    assert!(claims.contains(told) && claims.contains(keep), "{claims}");
    let queue = text(Page::Queue);
    assert!(
        queue.contains("room is made: c12 moves from GPU 0 to GPU 3 in 12s"),
        "{queue}"
    );
    // The key is on the key line while a claim can be kept, and for its owner only.
    assert!(
        overview.lines().last().unwrap().contains("p keep"),
        "{overview}"
    );
    let other = Viewer {
        uid: 1002,
        admin: false,
    };
    let other = screen(&model(other, (80, 24), canned::eventful()));
    assert!(other.contains(told) && !other.contains("p keep"), "{other}");
    assert!(!other.contains(keep), "{other}");
    assert!(other.contains("nlp can postpone"), "{other}");
    let nothing = screen(&model(NLP, (80, 24), canned::workstation()));
    assert!(!nothing.contains("p keep"), "{nothing}");
    // The plan for the waiting claim is on the Overview, too.
    assert!(
        overview.contains("1 GPU  —  c12 moves from GPU 0 to GPU 3 in 12s"),
        "{overview}"
    );
    // Enter shows both.
    let mut m = full(Page::Overview);
    press(&mut m, "<home><enter>");
    let announced = "▲ c12 moves from GPU 0 to GPU 3 in 12s for c22; p, or: gshare";
    assert!(screen(&m).contains(announced), "{}", screen(&m));
}

#[test]
fn idleness_is_told_with_who_says_so_and_what_comes_of_it() {
    let mut snapshot = canned::workstation();
    snapshot.claims[0].idle = Some(gshare_proto::IdleView {
        gpu_s: 22 * 60,
        kernel: Some("idle".to_owned()),
        kernel_s: Some(21 * 60),
        source: Some("Jupyter server".to_owned()),
        warned: true,
        detach_in_s: Some(8 * 60),
        ..gshare_proto::IdleView::default()
    });
    let mut m = model(NLP, (120, 40), snapshot);
    press(&mut m, "2/nlp<enter>");
    let told = "GPU idle 22m, notebook kernel idle 21m (Jupyter server); offloaded in 8m if another claim waits";
    assert!(screen(&m).contains(told), "{}", screen(&m));
    // A claim that cannot be offloaded has another fate.
    for (how, ends_in_s, comes) in [
        ("warn", None, "; cannot be offloaded"),
        (
            "shrink",
            None,
            "will be made smaller in 8m if another claim waits",
        ),
        (
            "release",
            None,
            "will be ended in 8m if another claim can then start",
        ),
        (
            "release",
            Some(24),
            "will be ended in 24s, because others wait",
        ),
    ] {
        let mut snapshot = canned::workstation();
        snapshot.claims[0].idle = Some(gshare_proto::IdleView {
            gpu_s: 22 * 60,
            detach_in_s: Some(8 * 60),
            instead: Some(how.to_owned()),
            ends_in_s,
            ..gshare_proto::IdleView::default()
        });
        let mut fixed = model(NLP, (120, 40), snapshot);
        press(&mut fixed, "2/nlp<enter>");
        assert!(screen(&fixed).contains(comes), "{}", screen(&fixed));
    }
    // Its owner can keep it.
    press(&mut m, "1j");
    let asked = press(&mut m, "p");
    assert_eq!(asked.len(), 1, "{}", screen(&m));
}

//! No cut is within a word: a sentence ends with a whole word and a sign; only names of users, programs and GPUs lose
//! letters.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::*;

/// Adjacent letters and figures.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_alphanumeric() && !matches!(c, '.' | '-' | '_' | '…'));
    words.filter(|w| w.chars().any(char::is_alphabetic))
}

/// Names of users, programs and GPUs.
fn names(m: &Model) -> String {
    let Some(s) = &m.snapshot else {
        return String::new();
    };
    let claims = s
        .claims
        .iter()
        .flat_map(|c| [c.user.clone(), crate::view::what(c), c.command.join(" ")]);
    let queue = s
        .queue
        .iter()
        .flat_map(|q| [q.user.clone(), q.what.clone()]);
    let programs = s
        .unclaimed
        .iter()
        .flat_map(|u| [u.user.clone().unwrap_or_default(), u.what.clone()]);
    let gpus = s.gpus.iter().map(|g| g.short.clone());
    let all = claims
        .chain(queue)
        .chain(programs)
        .chain(gpus)
        .chain([s.host.clone()]);
    all.collect::<Vec<_>>().join(" ")
}

/// A known word that lost letters on this screen.
fn lost(text: &str, known: &BTreeSet<String>, names: &str) -> Option<String> {
    words(text).find_map(|word| {
        let bare = word.trim_end_matches('…').trim_matches(['.', '-']);
        let is_cut = word.ends_with('…') && !bare.is_empty();
        let longer = (Bound::Excluded(bare), Bound::Unbounded);
        let begins = |k: &String| k.starts_with(bare);
        let is_clipped =
            bare.chars().count() >= 4 && known.range::<str, _>(longer).next().is_some_and(begins);
        let is_whole = known.contains(bare) || names.contains(bare);
        ((is_cut || is_clipped) && !is_whole).then(|| word.to_owned())
    })
}

/// The rows of a screen; with a box, only its contents, because it covers the rest.
fn rows(m: &Model) -> Vec<String> {
    let drawn = screen(m);
    // A wide letter has two columns.
    let wide = |c: char| {
        [
            Some(c),
            (crate::text::width(&c.to_string()) > 1).then_some('\0'),
        ]
    };
    let cells = |l: &str| l.chars().flat_map(wide).flatten().collect();
    let lines: Vec<Vec<char>> = drawn.lines().map(cells).collect();
    let of = |line: &[char], sign| line.iter().position(|c| *c == sign);
    let frame = lines.iter().enumerate().find_map(|(y, line)| {
        let (from, to) = (of(line, '╭')?, of(line, '╮')?);
        let height = lines[y..].iter().position(|l| l.get(from) == Some(&'╰'))?;
        Some((y..=y + height, from..=to))
    });
    let (down, across) = match frame.filter(|_| m.dialog.is_some()) {
        Some(frame) => frame,
        None if m.dialog.is_some() => return Vec::new(),
        None => (0..=lines.len() - 1, 0..=usize::MAX - 1),
    };
    let part = |line: &Vec<char>| {
        line.iter()
            .skip(*across.start())
            .take(across.end() - across.start() + 1)
            .filter(|c| **c != '\0')
            .collect()
    };
    lines[down].iter().map(part).collect()
}

#[test]
fn no_word_is_cut_at_any_width() {
    let more = [
        ("workstation", canned::workstation()),
        ("demo", canned::demo()),
        ("eventful", canned::eventful()),
        ("monitor", canned::monitor()),
        ("crowd", canned::crowd()),
    ];
    let keys = [
        "1",
        "2",
        "3",
        "4",
        "5",
        "?",
        "n",
        "!",
        "L",
        "<enter>",
        "1<right><enter>",
        "5<end><enter>",
    ];
    let mut wrong = BTreeMap::new();
    let mut seen = 0;
    for (name, snapshot) in laboratory().into_iter().chain(more_states()).chain(more) {
        for keys in keys {
            let mut m = model(NLP, (120, 40), snapshot.clone());
            known(&mut m);
            press(&mut m, keys);
            let (names, mut known) = (names(&m), BTreeSet::new());
            for size in [(250, 60), (200, 60), (160, 60), (120, 60)] {
                m.size = size;
                let text = screen(&m);
                known.extend(
                    words(&text)
                        .filter(|w| !w.contains('…'))
                        .map(|w| w.trim_matches(['.', '-']).to_owned()),
                );
            }
            for width in [60, 80, 100, 120, 160, 200, 250] {
                for height in [15, 24, 40, 60] {
                    m.size = (width, height);
                    for line in rows(&m) {
                        if let Some(word) = lost(&line, &known, &names) {
                            let at = format!("{name} `{keys}` {width}x{height}: {line}");
                            wrong.entry(word).or_insert(at);
                        }
                    }
                    seen += 1;
                }
            }
        }
    }
    assert!(seen > 4000, "{seen}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

//! The help: keys from the table that handles them, and the meaning of the signs.

use ratatui::text::Line;

use crate::keymap::{Command, Context, commands};
use crate::view::{Facts, View, line};

const KEYS: usize = 14;

/// With this many columns or more it has two columns.
const TWO: usize = 100;

pub(super) fn lines(view: &View<'_>, cols: usize) -> Vec<Line<'static>> {
    let (theme, glyphs, model) = (view.theme, view.glyphs, view.model);
    let across = if cols >= TWO { 2 } else { 1 };
    let each = cols / across - (across - 1);
    let mut out = Facts::new(view.look, each, (0, KEYS));
    let entry = |sign: &str, text: &str, out: &mut Facts<'_>| {
        out.signed((sign, theme.key), (text, theme.text), 4);
    };
    for (context, title) in Context::ALL {
        // Keys of the demo and of recordings are listed only there.
        let works = |c: &&Command| {
            (c.shown != "Space" || model.caption.is_some())
                && (!c.help.starts_with("in a recording") || model.recorded)
        };
        let mut rows = commands()
            .filter(|c| c.context == context)
            .filter(works)
            .peekable();
        if rows.peek().is_none() {
            continue;
        }
        if !out.lines.is_empty() {
            out.lines.push(Line::default());
        }
        out.lines.push(line!(view; heading title));
        for command in rows {
            entry(command.shown, command.help, &mut out);
        }
    }
    out.lines.push(Line::default());
    out.lines.push(line!(view; heading "Signs"));
    let signs = [
        (glyphs.used, "used part of the claim"),
        (
            glyphs.burst,
            "burst: used above the claim while others leave room",
        ),
        (glyphs.unused, "claimed and not used"),
        (glyphs.free, "nobody's"),
        (glyphs.tick[0], "mark in a bar: the size of the claim"),
        (glyphs.mine, "yours"),
        (glyphs.sign, "needs attention"),
        (glyphs.broken, "broken"),
        (glyphs.dash, "not known (never drawn as 0)"),
        ("~", "an estimate"),
        (
            "time %",
            "GPU time in use; shown as comp % where MPS or MIG divides SMs instead of time",
        ),
        (
            "SM %",
            "SMs with work on them; below (occ): resident warps, in % of the maximum",
        ),
        (
            "% used",
            "GPU time (with MPS and MIG: SMs) used and claimed, in % of one GPU",
        ),
        ("GiB used", "memory used and claimed"),
        ("u1", "a program without a claim"),
    ];
    for (sign, text) in signs {
        entry(sign, text, &mut out);
    }
    let mut lines = out.lines;
    if across > 1 {
        // The second column begins with a heading.
        let half = lines.len().div_ceil(2);
        let blank = lines[half..].iter().position(|line| line.spans.is_empty());
        let mut right = lines
            .split_off(half + blank.unwrap_or(0))
            .into_iter()
            .skip(1);
        for line in &mut lines {
            line.push_span(" ".repeat((each + 2).saturating_sub(line.width())));
            line.extend(right.next().unwrap_or_default());
        }
    }
    lines
}

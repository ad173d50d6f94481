//! The help: keys from the table that handles them, and what the signs mean.

use ratatui::text::Line;

use crate::keymap::{Command, Context, commands};
use crate::model::Model;
use crate::text::{left, wrap};
use crate::theme::Look;
use crate::view::span;

/// Columns of keys and signs.
const KEYS: usize = 14;

/// The text in `cols` columns.
pub(super) fn lines(model: &Model, look: &Look, cols: usize) -> Vec<Line<'static>> {
    let (theme, glyphs) = (&look.theme, &look.glyphs);
    let mut out = Vec::new();
    let entry = |sign: &str, text: &str, out: &mut Vec<Line<'static>>| {
        let rows = wrap(text, cols.saturating_sub(KEYS), 3, glyphs);
        for (i, row) in rows.into_iter().enumerate() {
            let sign = if i == 0 { sign } else { "" };
            out.push(Line::from(vec![
                span(left(sign, KEYS, glyphs), theme.key),
                span(row, theme.text),
            ]));
        }
    };
    for context in Context::ALL {
        // The keys of the demo and of a recording are none elsewhere.
        let works = |c: &&Command| {
            (c.shown != "Space" || model.caption.is_some())
                && (!c.name.starts_with("replay") || model.recorded)
        };
        let mut rows = commands()
            .filter(|c| c.context == context)
            .filter(works)
            .peekable();
        if rows.peek().is_none() {
            continue;
        }
        if !out.is_empty() {
            out.push(Line::default());
        }
        out.push(Line::styled(context.title(), theme.heading));
        for command in rows {
            entry(command.shown, command.help, &mut out);
        }
    }
    out.push(Line::default());
    out.push(Line::styled("Signs", theme.heading));
    let signs = [
        (glyphs.used, "used, up to the claim"),
        (
            glyphs.burst,
            "burst: used above the claim while others leave room",
        ),
        (glyphs.unused, "claimed and not used"),
        (glyphs.free, "nobody's"),
        (glyphs.tick[0], "in a bar: where the claim ends"),
        (glyphs.mine, "yours"),
        (glyphs.sign, "worth a look"),
        (glyphs.broken, "broken"),
        (glyphs.dash, "not known (never drawn as 0)"),
        ("~", "an estimate"),
        (
            "time %",
            "GPU time in use, as shares of a GPU are shares of its time; with MPS and MIG of its SMs (comp %)",
        ),
        (
            "SM %",
            "SMs with work on them, and below (occ) resident warps, of the most possible",
        ),
        (
            "% used",
            "GPU time (with MPS and MIG: SMs) that the claim uses, and its claim, in percent of one GPU",
        ),
        ("GiB used", "memory in use, and claimed"),
        ("u1", "a program without a claim"),
    ];
    for (sign, text) in signs {
        entry(sign, text, &mut out);
    }
    out
}

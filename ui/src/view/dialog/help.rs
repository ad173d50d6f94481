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
            .filter(|c| c.context == context && !c.keys.is_empty())
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
        (glyphs.used, "used, within what is claimed"),
        (
            glyphs.burst,
            "used above what is claimed: borrowed while others leave it free",
        ),
        (glyphs.claimed, "claimed and not used"),
        (
            glyphs.unclaimed,
            "used by processes that are in no claim (u1, u2)",
        ),
        (glyphs.free, "free"),
        (glyphs.dash, "not known (never drawn as 0)"),
        ("~", "an estimate"),
        (
            "!",
            "before a line: advice; before memory: the claim was refused at its cap",
        ),
        (
            "a/b/c",
            "memory in GiB: used, claimed, all that can be claimed or is used outside claims",
        ),
        (
            "SM active",
            "percent of the SMs with work on them, against the percent claimed",
        ),
        ("occ", "resident warps of the most possible, percent"),
        (
            "busy",
            "percent of the time with any kernel on the GPU; says nothing about how many SMs work",
        ),
        (
            "TIME/REQ",
            "percent of the GPU's time that the claim got, against its request",
        ),
        (
            "REQ LIM",
            "guaranteed part of the GPU, and the most while others leave it free",
        ),
    ];
    for (sign, text) in signs {
        entry(sign, text, &mut out);
    }
    out
}

//! The help: keys from the table that handles them, and what the signs mean.

use ratatui::text::Line;

use crate::keymap::{Command, Context, commands};
use crate::view::{Facts, View, line};

/// Columns of keys and signs.
const KEYS: usize = 14;

/// The text in `cols` columns.
pub(super) fn lines(view: &View<'_>, cols: usize) -> Vec<Line<'static>> {
    let (theme, glyphs, model) = (view.theme, view.glyphs, view.model);
    let mut out = Facts::new(view.look, cols, (0, KEYS));
    let entry = |sign: &str, text: &str, out: &mut Facts<'_>| {
        out.signed((sign, theme.key), (text, theme.text), 3);
    };
    for (context, title) in Context::ALL {
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
        (glyphs.used, "used, up to the claim"),
        (
            glyphs.burst,
            "burst: used above the claim while others leave room",
        ),
        (glyphs.unused, "claimed and not used"),
        (glyphs.free, "nobody's"),
        (glyphs.tick[0], "in a bar: where the claim ends"),
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
    out.lines
}

//! The heading of the GPUs, which is the legend of their bars as well.

use ratatui::text::{Line, Span};

use super::{FIGURE, Table};
use crate::model::Section;
use crate::text::{left, right, width};
use crate::view::{fit, span};

impl Table<'_> {
    /// The heading; `hidden` GPUs are out of sight.
    pub(super) fn heading(&self, hidden: usize) -> Line<'static> {
        let (theme, glyphs) = (&self.look.theme, &self.look.glyphs);
        let focus = self.model.section == Section::Gpus;
        let name_style = if focus { theme.focus } else { theme.heading };
        let more = if hidden > 0 {
            format!(" +{hidden}")
        } else {
            String::new()
        };
        let mut spans = vec![span("GPU", name_style)];
        spans.push(span(
            left(&more, self.name.saturating_sub(3) + 1, glyphs),
            theme.dim,
        ));
        let signs = [
            (glyphs.used, "used", theme.used),
            (glyphs.burst, "burst", theme.burst),
            (glyphs.claimed, "claimed", theme.claimed),
            (glyphs.unclaimed, "unclaimed", theme.unclaimed),
            (glyphs.free, "free", theme.free),
        ];
        let legend = |lead: &str, n: usize| {
            let mut spans = vec![span(lead, theme.heading)];
            for (sign, word, style) in signs.iter().take(n) {
                if width(&spans[0].content) > 0 || spans.len() > 1 {
                    spans.push(Span::raw(" "));
                }
                spans.push(span(*sign, *style));
                spans.push(span(*word, theme.dim));
            }
            spans
        };
        let choose = |room: usize| {
            let tries = [
                legend("memory GiB", 5),
                legend("memory GiB", 4),
                legend("GiB", 4),
                legend("", 4),
                legend("GiB", 3),
                legend("memory", 0),
            ];
            let fits = |s: &Vec<Span<'static>>| crate::text::span_width(s) <= room;
            let last = legend("mem", 0);
            tries.into_iter().find(fits).unwrap_or(last)
        };
        let fill = |spans: &mut Vec<Span<'static>>, room: usize, text: &[Span<'static>]| {
            let gap = room.saturating_sub(crate::text::span_width(text));
            spans.push(Span::raw(" ".repeat(gap)));
        };
        if self.tall {
            let room = self.mem_bar + 5;
            spans.push(Span::raw("     "));
            let room = room.saturating_sub(5);
            let fits = |s: &Vec<Span<'static>>| crate::text::span_width(s) <= room;
            let tries = (1..=5).rev().map(|n| legend("", n));
            let words = tries.into_iter().find(fits).unwrap_or_default();
            spans.extend(words.clone());
            fill(&mut spans, room, &words);
            for title in ["claimed", "used", "of"] {
                spans.push(span(right(title, FIGURE, glyphs), theme.heading));
            }
            spans.push(span(right("SM occ", self.occ, glyphs), theme.heading));
            spans.push(span(right("busy", self.busy, glyphs), theme.heading));
            let history = right("SM history", self.history + 2, glyphs);
            spans.push(span(history, theme.heading));
            return fit(Line::from(spans), self.width, self.look);
        }
        // The names of the signs may reach up to the title of the SMs.
        let mut cols = self.mem_bar + 1 + self.mem_text + 1 + self.sm_text;
        let mut title = "SM";
        if self.sm_bar > 0 {
            cols += self.sm_bar + 1;
            let room = self.sm_bar + 1 + self.sm_text;
            let titles = ["SM active/claimed", "SM act/cl", "SM"];
            title = titles.into_iter().find(|t| width(t) <= room).unwrap_or("");
        }
        let room = cols.saturating_sub(width(title));
        let words = choose(room.saturating_sub(2));
        spans.extend(words.clone());
        fill(&mut spans, room, &words);
        spans.push(span(title, theme.heading));
        if self.occ > 0 {
            spans.push(span(right("occ", self.occ + 1, glyphs), theme.heading));
        }
        spans.push(span(right("busy", self.busy + 1, glyphs), theme.heading));
        fit(Line::from(spans), self.width, self.look)
    }
}

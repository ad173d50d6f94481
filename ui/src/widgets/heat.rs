//! The hours of the week: how much of the machine was used in each, beside what was claimed.

use gshare_proto::Heat;
use ratatui::text::{Line, Span};

use crate::theme::Look;

/// Rows of days with a column for each hour.
type Days = [Vec<Option<f32>>];

/// A figure of an hour of a table.
type Hour<'a> = dyn Fn(&Days, usize) -> Option<f32> + 'a;

const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const HOURS: usize = 24;

/// Columns from which on the whole week is one line.
const ONE_LINE: usize = 8 + 7 * HOURS + 6;

/// Rows that it takes where there is room.
pub(crate) fn rows(cols: usize) -> usize {
    if cols >= ONE_LINE { 3 } else { 1 + DAYS.len() }
}

/// The sign of a percentage; what nobody knows is a dash.
fn sign(value: Option<f32>, look: &Look) -> &'static str {
    match value {
        None => look.glyphs.dash,
        Some(v) => {
            let level = (v.clamp(0.0, 100.0) / 100.0 * 8.0) as usize;
            look.glyphs.levels[level.min(7)]
        }
    }
}

fn at(table: &Days, day: usize, hour: usize) -> Option<f32> {
    table.get(day)?.get(hour).copied().flatten()
}

/// The mean of an hour over the days where it is known.
fn mean(table: &Days, hour: usize) -> Option<f32> {
    let known: Vec<f32> = (0..DAYS.len()).filter_map(|d| at(table, d, hour)).collect();
    (!known.is_empty()).then(|| known.iter().sum::<f32>() / known.len() as f32)
}

/// At most `rows` lines.
pub(crate) fn lines(heat: &Heat, cols: usize, rows: usize, look: &Look) -> Vec<Line<'static>> {
    let theme = &look.theme;
    let text = |signs: String| Span::styled(signs, theme.used);
    let label = |words: &str| Span::styled(format!("{words:<7}"), theme.dim);
    let heading = |words: &str| Line::styled(words.to_owned(), theme.heading);
    if cols >= ONE_LINE && rows >= 3 {
        let line = |name: &str, table: &Days| {
            let mut spans = vec![Span::styled(format!("{name:<8}"), theme.dim)];
            for day in 0..DAYS.len() {
                let signs = (0..HOURS).map(|h| sign(at(table, day, h), look)).collect();
                spans.push(text(signs));
                spans.push(Span::raw(" "));
            }
            Line::from(spans)
        };
        let mut days = String::from("HOURS   ");
        for day in DAYS {
            days.push_str(&format!("{day:<25}"));
        }
        return vec![
            heading(days.trim_end()),
            line("claimed", &heat.claimed),
            line("used", &heat.used),
        ];
    }
    // Claimed at the left, used at the right, an hour a column; two columns where there is room.
    let wide = usize::from(cols >= 7 + 4 * HOURS + 6) + 1;
    let signs = |table: &Days, of: &Hour<'_>| {
        let all = (0..HOURS).map(|h| sign(of(table, h), look).repeat(wide));
        all.collect::<String>()
    };
    let pad = HOURS * wide;
    let ruler = |word: &str| {
        let hours: String = (0..HOURS)
            .step_by(6)
            .map(|h| format!("{h:<width$}", width = 6 * wide))
            .collect();
        let word = format!("{word} ");
        format!("{word}{}", &hours[word.len().min(hours.len())..])
    };
    let mut out = vec![heading(
        format!("HOURS  {:<pad$}  {}", ruler("claimed"), ruler("used")).trim_end(),
    )];
    if rows < 1 + DAYS.len() {
        out.push(Line::from(vec![
            label("week"),
            text(signs(&heat.claimed, &mean)),
            Span::raw("  "),
            text(signs(&heat.used, &mean)),
        ]));
        return out;
    }
    for (day, name) in DAYS.iter().enumerate() {
        let of = move |table: &Days, hour: usize| at(table, day, hour);
        out.push(Line::from(vec![
            label(name),
            text(signs(&heat.claimed, &of)),
            Span::raw("  "),
            text(signs(&heat.used, &of)),
        ]));
    }
    out
}

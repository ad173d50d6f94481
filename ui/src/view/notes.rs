//! What is about to be taken from whom, with the command that stops it; advice that is true now, with the command
//! that acts on it; and what has just happened.

use gshare_proto::{ClaimView, Snapshot};
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::{fit, span};
use crate::model::{Model, can_be_kept, ends_idle};
use crate::text::{cut, seconds, width, wrap};
use crate::theme::{Depth, Look};

/// Claims that something will be done to, with what and when.
fn announced(snapshot: &Snapshot) -> impl Iterator<Item = (&ClaimView, String)> {
    let claims = snapshot.claims.iter();
    claims.filter_map(|c| Some((c, c.announced.clone().or_else(|| ended(c))?)))
}

/// When an idle claim that cannot be detached is ended.
fn ended(claim: &ClaimView) -> Option<String> {
    let idle = claim.idle.as_ref().filter(|_| ends_idle(claim))?;
    let (since, left) = (seconds(idle.gpu_s), seconds(idle.ends_in_s?));
    Some(format!("is ended in {left}: idle {since}, and others wait"))
}

/// Rows of one note at most.
const MOST: usize = 3;

/// A sentence, and what can be done about it.
pub(super) struct Note {
    pub(super) text: String,
    /// A command, or the user to whom it is up.
    pub(super) command: String,
    /// Whether it can be typed here.
    key: bool,
}

impl Note {
    /// In at most `most` rows of `cols` columns; the command stands at the right of the last.
    fn lines(&self, cols: usize, most: usize, style: Style, look: &Look) -> Vec<Line<'static>> {
        let (theme, glyphs) = (&look.theme, &look.glyphs);
        let room = cols.saturating_sub(2);
        let command = width(&self.command);
        let tail = if command > 0 && command + 24 <= cols {
            command + 2
        } else {
            0
        };
        let mut texts = wrap(&self.text, room, most, glyphs);
        let last = texts.last().map_or(0, |row| width(row));
        if last + tail > room {
            // The command is worth more than the end of the sentence.
            texts = wrap(&self.text, room, most.saturating_sub(1).max(1), glyphs);
            match most > 1 {
                true => texts.push(String::new()),
                false => texts = vec![cut(&self.text, room.saturating_sub(tail), glyphs)],
            }
        }
        let n = texts.len();
        let line = |(i, text): (usize, String)| {
            let sign = if i == 0 { glyphs.sign } else { " " };
            let gap = cols.saturating_sub(2 + width(&text) + command);
            let mut line = Line::from(vec![
                span(sign, theme.warn),
                span(format!(" {text}"), style),
            ]);
            if tail > 0 && i + 1 == n {
                let style = if self.key { theme.key } else { theme.dim };
                line.push_span(Span::raw(" ".repeat(gap)));
                line.push_span(span(self.command.clone(), style));
            }
            line
        };
        texts.into_iter().enumerate().map(line).collect()
    }
}

/// What is announced, then advice.
pub(super) fn warnings(model: &Model, snapshot: &Snapshot) -> Vec<Note> {
    let warning = |text: String, command: String, key: bool| Note { text, command, key };
    let told = announced(snapshot).map(move |(claim, text)| {
        let (command, key) = match (model.may(claim.uid), can_be_kept(claim)) {
            (true, true) => (format!("p, or: gshare keep {}", claim.id), true),
            (false, true) => (format!("{} can postpone", claim.user), false),
            _ => (String::new(), false),
        };
        warning(format!("{} {text}", claim.id), command, key)
    });
    let given = snapshot.advice.iter().map(move |advice| {
        let command = advice.command.clone().unwrap_or_default();
        warning(advice.text.clone(), command, true)
    });
    told.chain(given).collect()
}

/// Warnings in so many rows, the first one bold. Rows to spare go to the first that need more than one.
pub(super) fn lines(
    model: &Model,
    snapshot: &Snapshot,
    look: &Look,
    cols: usize,
    rows: usize,
) -> Vec<Line<'static>> {
    let shown: Vec<Note> = warnings(model, snapshot).into_iter().take(rows).collect();
    let mut spare = rows - shown.len();
    let mut out = Vec::new();
    for (i, note) in shown.into_iter().enumerate() {
        let style = if i == 0 {
            look.theme.strong
        } else {
            look.theme.text
        };
        let lines = note.lines(cols, (1 + spare).min(MOST), style, look);
        spare -= lines.len().saturating_sub(1);
        out.extend(lines.into_iter().map(|line| fit(line, cols, look)));
    }
    out
}

/// Rows in which nothing of them is cut.
pub(super) fn whole(model: &Model, snapshot: &Snapshot, cols: usize, most: usize) -> usize {
    let look = Look::new(Depth::Mono, true);
    let notes = warnings(model, snapshot).into_iter().take(most);
    let style = Style::new();
    notes
        .map(|note| note.lines(cols, MOST, style, &look).len())
        .sum()
}

/// What has just happened, the newest first.
pub(super) fn news(
    model: &Model,
    snapshot: &Snapshot,
    look: &Look,
    cols: usize,
    rows: usize,
) -> Vec<Line<'static>> {
    let theme = &look.theme;
    let line = |(i, notice): (usize, &gshare_proto::Notice)| {
        let claim = notice.claim.as_ref();
        let claim = claim.filter(|id| !notice.text.starts_with(id.as_str()));
        let claim = claim.map(|id| format!("{id}: ")).unwrap_or_default();
        let line = Line::from(vec![
            span(if i == 0 { "LAST " } else { "     " }, theme.heading),
            span(format!("{} ", model.clock.time(notice.at_ms)), theme.dim),
            span(
                cut(
                    &format!("{claim}{}", notice.text),
                    cols.saturating_sub(14),
                    &look.glyphs,
                ),
                theme.text,
            ),
        ]);
        fit(line, cols, look)
    };
    snapshot
        .notices
        .iter()
        .enumerate()
        .take(rows)
        .map(line)
        .collect()
}

//! What is about to be taken from whom, with the command that stops it; advice that is true now, with the command
//! that acts on it; and what has just happened.

use gshare_proto::{ClaimView, Snapshot};
use ratatui::text::Line;

use super::plan::Plan;
use super::{fit, span};
use crate::model::{Model, can_be_kept, ends_idle};
use crate::text::{cut, seconds, width, wrap};
use crate::theme::{Glyphs, Look};

/// Rows, if each has one.
pub(super) fn wanted(snapshot: &Snapshot) -> usize {
    announced(snapshot).count() + snapshot.advice.len() + snapshot.notices.len()
}

/// Rows in which nothing is cut.
pub(super) fn whole(model: &Model, snapshot: &Snapshot, glyphs: &Glyphs, cols: usize) -> usize {
    let notes = notes(model, snapshot);
    notes.map(|note| note.rows(cols, MOST, glyphs).len()).sum()
}

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

/// A sentence, what stands before it, and the command behind it.
struct Note {
    /// `! ` or a time.
    mark: String,
    warns: bool,
    text: String,
    command: String,
}

impl Note {
    /// Its text in at most `most` rows, each with whether the command stands behind it; the command may have a row
    /// of its own.
    fn rows(&self, cols: usize, most: usize, glyphs: &Glyphs) -> Vec<(String, bool)> {
        let room = cols.saturating_sub(width(&self.mark));
        let command = width(&self.command);
        let fits = command > 0 && command + 24 <= cols;
        let tail = if fits { command + 2 } else { 0 };
        if most < 2 || width(&self.text) + tail <= room {
            return vec![(cut(&self.text, room.saturating_sub(tail), glyphs), fits)];
        }
        let rows = wrap(&self.text, room, most, glyphs);
        let last = rows.last().map_or(0, |row| width(row));
        let beside = tail == 0 || last + tail <= room;
        if beside || rows.len() < most {
            let mut rows: Vec<(String, bool)> = rows.into_iter().map(|r| (r, false)).collect();
            if tail > 0 && !beside {
                rows.push((String::new(), false));
            }
            if let (true, Some(last)) = (tail > 0, rows.last_mut()) {
                last.1 = true;
            }
            return rows;
        }
        // The command is worth more than the end of the sentence.
        let mut rows: Vec<(String, bool)> = wrap(&self.text, room, most - 1, glyphs)
            .into_iter()
            .map(|r| (r, false))
            .collect();
        rows.push((String::new(), true));
        rows
    }

    fn lines(&self, cols: usize, most: usize, look: &Look) -> Vec<Line<'static>> {
        let theme = &look.theme;
        let mark = if self.warns { theme.warn } else { theme.dim };
        let indent = " ".repeat(width(&self.mark));
        let rows = self.rows(cols, most, &look.glyphs).into_iter();
        let line = |(i, (text, command)): (usize, (String, bool))| {
            let before = if i == 0 { &self.mark } else { &indent };
            let gap = if text.is_empty() { "" } else { "  " };
            let mut line = Line::from(vec![span(before.clone(), mark), span(text, theme.text)]);
            if command {
                line.push_span(span(format!("{gap}{}", self.command), theme.key));
            }
            line
        };
        rows.enumerate().map(line).collect()
    }
}

/// What is announced, then advice, then the newest notices.
fn notes(model: &Model, snapshot: &Snapshot) -> impl Iterator<Item = Note> {
    let warning = |text: String, command: String| Note {
        mark: "! ".to_owned(),
        warns: true,
        text,
        command,
    };
    let told = announced(snapshot).map(move |(claim, text)| {
        let command = match model.may(claim.uid) && can_be_kept(claim) {
            true => format!("p, or: gshare keep {}", claim.id),
            false => String::new(),
        };
        warning(format!("{} {text}", claim.id), command)
    });
    let given = snapshot.advice.iter().map(move |advice| {
        let command = advice.command.clone().unwrap_or_default();
        warning(advice.text.clone(), command)
    });
    let notices = snapshot.notices.iter().map(|notice| {
        let claim = notice.claim.as_ref();
        let claim = claim.filter(|id| !notice.text.starts_with(id.as_str()));
        let claim = claim.map(|id| format!("{id}: ")).unwrap_or_default();
        Note {
            mark: format!("{} ", model.clock.time(notice.at_ms)),
            warns: false,
            text: format!("{claim}{}", notice.text),
            command: String::new(),
        }
    });
    told.chain(given).chain(notices)
}

/// As many as there are rows for; what is left of them goes to the first that need more than one.
pub(super) fn lines(
    model: &Model,
    snapshot: &Snapshot,
    look: &Look,
    plan: &Plan,
) -> Vec<Line<'static>> {
    let cols = plan.width;
    let (mut warnings, news): (Vec<Note>, Vec<Note>) =
        notes(model, snapshot).partition(|note| note.warns);
    // A notice is shown even when there is much advice.
    warnings.truncate(
        plan.notes
            .saturating_sub(usize::from(!news.is_empty() && plan.notes > 1)),
    );
    let shown: Vec<Note> = warnings.into_iter().chain(news).take(plan.notes).collect();
    let mut spare = plan.notes - shown.len();
    let mut out = Vec::new();
    for note in shown {
        let lines = note.lines(cols, (1 + spare).min(MOST), look);
        spare -= lines.len() - 1;
        out.extend(lines.into_iter().map(|line| fit(line, cols, look)));
    }
    out
}

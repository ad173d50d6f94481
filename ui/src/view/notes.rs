//! Announced actions on claims, with the command that postpones them; current advice, with the command to act on it;
//! and the latest events.

use gshare_proto::{Advice, ClaimView, Snapshot, Usage};
use ratatui::style::Style;
use ratatui::text::Line;

use super::{Facts, View, line, span};
use crate::model::{can_be_kept, ends_idle, told};
use crate::text::{seconds, width, wrap};

/// Claims with an announced action, with what and when.
fn announced(snapshot: &Snapshot) -> impl Iterator<Item = (&ClaimView, String)> {
    let claims = snapshot.claims.iter();
    claims.filter_map(|c| Some((c, c.announced.clone().or_else(|| ended(c))?)))
}

/// When an idle claim that cannot be offloaded is ended.
fn ended(claim: &ClaimView) -> Option<String> {
    let idle = claim.idle.as_ref().filter(|_| ends_idle(claim))?;
    let (since, left) = (seconds(idle.gpu_s), seconds(idle.ends_in_s?));
    Some(format!("is ended in {left}: idle {since}, and others wait"))
}

const MOST: usize = 3;

/// A sentence, and what can be done about it.
pub(super) struct Note {
    pub(super) text: String,
    /// A command, or the user who decides.
    pub(super) command: String,
    key: bool,
}

impl Note {
    /// In at most `most` rows of `cols` columns. The command is at the right end of the last row, or in a row of its
    /// own; if there is room for neither, the key that shows it and the whole sentence.
    fn lines(&self, view: &View<'_>, cols: usize, most: usize, style: Style) -> Vec<Line<'static>> {
        let room = cols.saturating_sub(2);
        let text = |cols, most| wrap(&self.text, cols, most, view.glyphs.ellipsis);
        let whole = text(room, usize::MAX);
        let last = whole.last().map_or(0, |row| width(row) + 2);
        let is_own = !self.command.is_empty() && last + width(&self.command) > room;
        let (mut texts, command) = match whole.len() + usize::from(is_own) <= most {
            true => (whole, self.command.as_str()),
            false if most == 1 => (vec![view.brief(&self.text, room.saturating_sub(3))], "!"),
            false => (text(room.saturating_sub(3), most), "!"),
        };
        if command != "!" && is_own {
            texts.push(String::new());
        }
        let signs = [view.glyphs.sign].into_iter().chain(std::iter::repeat(" "));
        let line = |(sign, text)| {
            let mut line = line!(view; warn sign);
            line.push_span(span(format!(" {text}"), style));
            line
        };
        let mut lines: Vec<Line<'static>> = signs.zip(texts).map(line).collect();
        if let Some(last) = lines.last_mut() {
            let gap = " ".repeat(cols.saturating_sub(last.width() + width(command)));
            last.extend(match self.key || command == "!" {
                true => line!(view; text gap, key command),
                false => line!(view; text gap, dim command),
            });
        }
        lines
    }
}

/// Whether a command acts on this claim.
fn is_on(command: &str, id: &str) -> bool {
    command.split(' ').any(|word| word == id)
}

pub(super) fn advice_on<'a>(snapshot: &'a Snapshot, id: &str) -> Option<&'a str> {
    let mut commands = snapshot.advice.iter().filter_map(|a| a.command.as_deref());
    commands.find(|command| is_on(command, id))
}

/// GPU seconds that the claim of a command has wasted so far.
fn lost(snapshot: &Snapshot, command: Option<&String>) -> f64 {
    let is_named = |c: &&ClaimView| command.is_some_and(|text| is_on(text, &c.id));
    let claim = snapshot.claims.iter().find(is_named);
    let usage = claim.and_then(|c| c.usage.as_ref());
    usage.and_then(Usage::idle_gpu_s).unwrap_or(0.0)
}

/// Announcements, the soonest first and ends of claims last; then advice, by what was wasted so far.
pub(super) fn warnings(view: &View<'_>) -> Vec<Note> {
    let mut taken: Vec<_> = announced(view.snapshot).collect();
    let left = |c: &ClaimView| c.idle.as_ref().and_then(|i| i.ends_in_s);
    taken.sort_by_key(|(claim, _)| left(claim));
    let taken = taken.into_iter().map(|(claim, text)| {
        let may = view.model.may(claim.uid);
        let command = match (may, can_be_kept(claim)) {
            (true, true) => format!("p, or: gshare keep {}", claim.id),
            (false, true) => format!("{} can postpone", claim.user),
            _ => String::new(),
        };
        Note {
            text: format!("{} {text}", claim.id),
            command,
            key: may,
        }
    });
    let advice = view.snapshot.advice.iter();
    let lost = |advice: &Advice| lost(view.snapshot, advice.command.as_ref());
    let mut given = Vec::from_iter(advice.map(|advice| (lost(advice), advice)));
    given.sort_by(|a, b| b.0.total_cmp(&a.0));
    let given = given.into_iter().map(|(_, advice)| Note {
        text: advice.text.clone(),
        command: advice.command.clone().unwrap_or_default(),
        key: true,
    });
    taken.chain(given).collect()
}

/// Warnings in this many rows, the first one bold. Spare rows go to the first that need more than one.
pub(super) fn lines(
    view: &View<'_>,
    notes: &[Note],
    cols: usize,
    rows: usize,
) -> Vec<Line<'static>> {
    let mut spare = rows.saturating_sub(notes.len());
    let mut out = Vec::new();
    for (i, note) in notes.iter().take(rows).enumerate() {
        let style = [view.theme.strong, view.theme.text][i.min(1)];
        let lines = note.lines(view, cols, (1 + spare).min(MOST), style);
        spare -= lines.len().saturating_sub(1);
        out.extend(lines);
    }
    out
}

/// Rows needed to show them without cuts.
pub(super) fn whole(view: &View<'_>, notes: &[Note], cols: usize) -> usize {
    let rows = |note: &Note| note.lines(view, cols, MOST, Style::new()).len();
    notes.iter().map(rows).sum()
}

/// The latest events, the newest first, in at most `most` rows each and this many rows in all.
pub(super) fn news(
    view: &View<'_>,
    (cols, rows): (usize, usize),
    most: usize,
) -> Vec<Line<'static>> {
    let mut out = Facts::new(view.look, cols, (0, 9));
    for notice in &view.snapshot.notices {
        if out.lines.len() >= rows {
            break;
        }
        let at = view.model.clock.time(notice.at_ms);
        out.tell(&at, &told(notice), view.theme.text, most);
    }
    out.lines.truncate(rows);
    out.lines
}

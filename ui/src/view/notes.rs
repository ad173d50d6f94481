//! What is about to be taken from whom, with the command that stops it; advice that is true now, with the command
//! that acts on it; and what has just happened.

use gshare_proto::{ClaimView, Snapshot};
use ratatui::text::Line;

use super::plan::Plan;
use super::{fit, span};
use crate::model::Model;
use crate::text::{cut, width};
use crate::theme::Look;

/// Rows, if everything is shown.
pub(super) fn wanted(snapshot: &Snapshot) -> usize {
    announced(snapshot).count() + snapshot.advice.len() + snapshot.notices.len()
}

/// Claims that something will be done to, with what and when.
pub(super) fn announced(snapshot: &Snapshot) -> impl Iterator<Item = (&ClaimView, &str)> {
    let claims = snapshot.claims.iter();
    claims.filter_map(|c| Some((c, c.announced.as_deref()?)))
}

/// A sentence, and behind it the command if there is room for both.
fn warning(text: &str, command: &str, look: &Look, cols: usize) -> Line<'static> {
    let theme = &look.theme;
    let fits = width(command) + 24 <= cols;
    let tail = if command.is_empty() || !fits {
        0
    } else {
        width(command) + 2
    };
    let text = cut(text, cols.saturating_sub(2 + tail), &look.glyphs);
    let mut line = Line::from(vec![span("! ", theme.warn), span(text, theme.text)]);
    if tail > 0 {
        line.push_span(span(format!("  {command}"), theme.key));
    }
    line
}

/// What is announced, then advice, then the newest notices.
pub(super) fn lines(
    model: &Model,
    snapshot: &Snapshot,
    look: &Look,
    plan: &Plan,
) -> Vec<Line<'static>> {
    let (theme, cols) = (&look.theme, plan.width);
    // A notice is shown even when there is much advice.
    let news = snapshot.notices.len();
    let advice = plan
        .notes
        .saturating_sub(usize::from(news > 0 && plan.notes > 1));
    let told = announced(snapshot).map(|(claim, text)| {
        let text = format!("{} {text}", claim.id);
        let command = match model.may(claim.uid) {
            true => format!("p, or: gshare keep {}", claim.id),
            false => String::new(),
        };
        warning(&text, &command, look, cols)
    });
    let given = snapshot.advice.iter().map(|advice| {
        let command = advice.command.as_deref().unwrap_or_default();
        warning(&advice.text, command, look, cols)
    });
    let advice = told.chain(given).take(advice);
    let notices = snapshot.notices.iter().map(|notice| {
        let time = model.clock.time(notice.at_ms);
        let claim = notice.claim.as_ref();
        let claim = claim.filter(|id| !notice.text.starts_with(id.as_str()));
        let claim = claim.map(|id| format!("{id}: ")).unwrap_or_default();
        Line::from(vec![
            span(format!("{time} "), theme.dim),
            span(format!("{claim}{}", notice.text), theme.text),
        ])
    });
    let all = advice.chain(notices).take(plan.notes);
    all.map(|line| fit(line, cols, look)).collect()
}

//! Advice that is true now, with the command that acts on it, and what has just happened.

use gshare_proto::Snapshot;
use ratatui::text::Line;

use super::plan::Plan;
use super::{fit, span};
use crate::model::Model;
use crate::text::{cut, width};
use crate::theme::Look;

/// Rows, if everything is shown.
pub(super) fn wanted(snapshot: &Snapshot) -> usize {
    snapshot.advice.len() + snapshot.notices.len()
}

/// Advice first, then the newest notices.
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
    let advice = snapshot.advice.iter().take(advice).map(|advice| {
        let command = advice.command.as_deref().unwrap_or_default();
        let fits = width(command) + 24 <= cols;
        let tail = if command.is_empty() || !fits {
            0
        } else {
            width(command) + 2
        };
        let text = cut(&advice.text, cols.saturating_sub(2 + tail), &look.glyphs);
        let mut line = Line::from(vec![span("! ", theme.warn), span(text, theme.text)]);
        if tail > 0 {
            line.push_span(span(format!("  {command}"), theme.key));
        }
        line
    });
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

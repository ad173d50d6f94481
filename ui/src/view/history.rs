//! Allocated against used over time.

use gshare_proto::Snapshot;
use ratatui::text::Line;

use super::plan::Plan;
use super::{Row, fit, span};
use crate::model::Model;
use crate::theme::Look;
use crate::widgets::spark::spark;

/// The history in `room` rows.
pub(super) fn rows(
    model: &Model,
    snapshot: &Snapshot,
    look: &Look,
    plan: &Plan,
    room: usize,
) -> Vec<Row> {
    let theme = &look.theme;
    let mut out = vec![Row::from(Line::styled(
        format!("last ten minutes ({})", model.past.span.name()),
        theme.heading,
    ))];
    for gpu in snapshot.gpus.iter().take(room.saturating_sub(1)) {
        let line = Line::from(vec![
            span(format!("{} {}  ", gpu.index, gpu.short), theme.text),
            span(spark(&gpu.history, 60, &look.glyphs), theme.used),
        ]);
        out.push(fit(line, plan.width, look).into());
    }
    out
}

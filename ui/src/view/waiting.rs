//! Waiting claims: why each waits, when it starts, what would start now; then what is free and what ends next.

use gshare_proto::{ExpectedView, GpuState, GpuView, QueueView, Snapshot};
use ratatui::text::Line;

use super::{Plan, Row, chosen, fit, gap, queue, span};
use crate::model::{Model, RowKey, Section, condition};
use crate::text::{gib, share, wrap};
use crate::theme::Look;

/// Columns before a reason.
const INDENT: usize = 5;

/// The waiting claims in `room` rows.
pub(super) fn rows(
    model: &Model,
    snapshot: &Snapshot,
    look: &Look,
    plan: &Plan,
    room: usize,
) -> Vec<Row> {
    let theme = &look.theme;
    let mut below = free(snapshot, look);
    below.extend(ends(model, snapshot, look, room / 4));
    below.truncate(room / 2);
    let room = room.saturating_sub(below.len() + 1);
    let waiting = model.queue_rows();
    let mut out = vec![Row::from(Line::from(vec![
        span("QUEUE", theme.heading),
        span(format!(" {}", waiting.len()), theme.text),
        span("  in the order of service", theme.dim),
    ]))];
    if waiting.is_empty() {
        let text = if snapshot.service.is_some() {
            "nobody waits"
        } else {
            "no service, so nobody can wait"
        };
        out.push(Line::styled(text, theme.dim).into());
    }
    // From the first so that the chosen one is in sight. Only what is in sight is laid out: there may be hundreds.
    let at = model.chosen_index(Section::Queue).unwrap_or(0);
    let (mut above, mut size, mut from) = (Vec::new(), 0, at);
    for (i, q) in waiting.iter().enumerate().take(at + 1).rev() {
        let rows = block(model, q, look, plan);
        size += rows.len();
        if i < at && size > room.saturating_sub(1) {
            break;
        }
        from = i;
        above.push(rows);
    }
    let before = from;
    let mut shown = 0;
    let below_it = waiting.iter().skip(at + 1);
    let blocks = above.into_iter().rev();
    for block in blocks.chain(below_it.map(|q| block(model, q, look, plan))) {
        // The head is always seen, a part of another one never.
        if shown > 0 && out.len() + block.len() > room {
            break;
        }
        out.extend(block);
        shown += 1;
    }
    if shown < waiting.len() && shown > 0 {
        let text = format!("  {}-{} of {}", before + 1, before + shown, waiting.len());
        out[0].line.push_span(span(text, theme.dim));
    }
    out.truncate(room);
    out.push(gap(look, plan));
    out.extend(
        below
            .into_iter()
            .map(|l| Row::from(fit(l, plan.width, look))),
    );
    out
}

fn block(model: &Model, waiting: &QueueView, look: &Look, plan: &Plan) -> Vec<Row> {
    let theme = &look.theme;
    let key = RowKey::Waiting(waiting.id.clone());
    let who = fit(queue::who(model, waiting, look, plan), plan.width, look);
    let who = if model.current() == Some(&key) {
        chosen(who, plan.width, look)
    } else {
        who
    };
    let mut lines = vec![who];
    let indent = " ".repeat(INDENT);
    let room = plan.width.saturating_sub(INDENT);
    for text in wrap(&waiting.reason, room, 4, &look.glyphs) {
        lines.push(Line::from(vec![
            span(indent.clone(), theme.text),
            span(text, theme.text),
        ]));
    }
    if let Some(text) = &waiting.plan {
        let text = format!("room is made: {text}");
        for text in wrap(&text, room, 3, &look.glyphs) {
            lines.push(Line::from(vec![
                span(indent.clone(), theme.text),
                span(text, theme.good),
            ]));
        }
    }
    for text in waiting.alone.iter().take(2) {
        for text in wrap(text, room, 2, &look.glyphs) {
            lines.push(Line::from(vec![
                span(indent.clone(), theme.text),
                span(text, theme.text),
            ]));
        }
    }
    let start = match waiting.expected_ms {
        Some(at) if at <= model.clock.now_ms => "starts at any moment".to_owned(),
        _ if waiting.expected.is_some() && !waiting.by_hours => {
            let expected = waiting.expected.as_ref().map(ExpectedView::text);
            format!("starts {}", expected.unwrap_or_default())
        }
        Some(at) => format!(
            "starts about {} at the earliest (in {})",
            model.clock.short_time(at),
            model.clock.until(at)
        ),
        None if waiting.plan.is_some() => "starts when that is done".to_owned(),
        None if !waiting.alone.is_empty() => format!("start {}", look.glyphs.dash),
        None => format!("start {}: nobody ahead has an end", look.glyphs.dash),
    };
    let mut words = vec![span(indent.clone(), theme.text), span(start, theme.text)];
    if waiting.entitled {
        let text = format!(
            " {} within what {} is guaranteed",
            look.glyphs.dot,
            waiting.party.as_ref().unwrap_or(&waiting.user)
        );
        words.push(span(text, theme.good));
    }
    lines.push(Line::from(words));
    if let Some(args) = &waiting.would_start {
        lines.push(Line::from(vec![
            span(format!("{indent}would start now: "), theme.dim),
            span(format!("gshare claim {args}"), theme.key),
        ]));
    }
    lines
        .into_iter()
        .map(|l| Row::of(fit(l, plan.width, look), Section::Queue, key.clone()))
        .collect()
}

/// For whom the rest is.
fn planned(gpu: &GpuView) -> String {
    let planned = gpu.planned_for.as_ref();
    planned.map_or_else(String::new, |id| format!(", planned for {id}"))
}

fn free(snapshot: &Snapshot, look: &Look) -> Vec<Line<'static>> {
    let theme = &look.theme;
    if snapshot.service.is_none() {
        return Vec::new();
    }
    let mut lines = vec![Line::from(span("FREE NOW", theme.heading))];
    let text = |g: &GpuView| {
        let bytes = g.mem_allocatable.map(|m| m.saturating_sub(g.mem_claimed));
        let bytes = bytes.map_or_else(|| look.glyphs.dash.to_owned(), gib);
        match (g.state, &g.drain) {
            (GpuState::Ok, _) if condition(g) == "sick" => "sick: no new claims".to_owned(),
            (GpuState::Ok, None) => format!(
                "{} claimable; {bytes} GiB and {:.0}% of the SMs unclaimed{}",
                share(g.claimable),
                ((1.0 - g.sm_claimed) * 100.0).max(0.0),
                planned(g)
            ),
            (GpuState::Ok, Some(_)) => "drained: no new claims".to_owned(),
            (GpuState::Lost, _) => "lost".to_owned(),
            (GpuState::Hung, _) => "does not answer".to_owned(),
            (GpuState::Released, _) => "released by an administrator: no new claims".to_owned(),
        }
    };
    for gpu in &snapshot.gpus {
        lines.push(Line::from(vec![
            span(format!("  GPU {:<3}", gpu.index), theme.text),
            span(text(gpu), theme.dim),
        ]));
    }
    lines
}

/// Leases that end next.
fn ends(model: &Model, snapshot: &Snapshot, look: &Look, most: usize) -> Vec<Line<'static>> {
    let theme = &look.theme;
    let mut ends: Vec<_> = snapshot
        .claims
        .iter()
        .filter_map(|c| Some((c.ends_ms?, c)))
        .collect();
    ends.sort_by_key(|(at, _)| *at);
    if ends.is_empty() || most < 2 {
        return Vec::new();
    }
    let mut lines = vec![Line::from(span("ENDS NEXT", theme.heading))];
    for (at, claim) in ends.into_iter().take(most - 1) {
        let gpus = match claim.place.in_host() {
            true => " in host memory".to_owned(),
            false => format!(" on GPU {}", super::claims::gpus(claim)),
        };
        lines.push(Line::from(vec![
            span(format!("  {}  ", model.clock.short_time(at)), theme.text),
            span(
                format!("{} {}{gpus}: {}", claim.id, claim.user, claim.what),
                theme.dim,
            ),
        ]));
    }
    lines
}

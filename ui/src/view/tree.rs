//! The claims as a tree, and below it the GPUs of the chosen row.

use gshare_proto::{ClaimGpu, ClaimView, Figure, GpuView, ProcessView, Snapshot};
use ratatui::text::{Line, Span};

use super::claims;
use super::{Plan, Row, chosen, fit, gap, span, window};
use crate::model::{
    AtLeast, ClaimRow, Grouping, Model, RowKey, Section, TreeRow, can_be_kept, least, mem_used,
    mem_whole, sm_active,
};
use crate::text::{figure_percent, gib, gib_or, parts, percent, width};
use crate::theme::Look;
use crate::widgets::bullet::Bullet;

/// Columns before a claim.
const INDENT: usize = 2;

/// The tree in `room` rows.
pub(super) fn rows(
    model: &Model,
    snapshot: &Snapshot,
    look: &Look,
    plan: &Plan,
    room: usize,
) -> Vec<Row> {
    let (theme, glyphs) = (&look.theme, &look.glyphs);
    let mut pane = pane(model, snapshot, look, plan);
    pane.truncate(room / 2);
    if room < 12 {
        pane.clear();
    }
    let below = if pane.is_empty() { 0 } else { pane.len() + 1 };
    let room = room.saturating_sub(below);
    let tree = model.tree();
    let claims = model.claim_rows();
    let table = claims::Table {
        model,
        snapshot,
        look,
        width: plan.width.saturating_sub(INDENT),
        figures: true,
    };
    let columns = table.columns(&claims);
    let shown = window(
        tree.len(),
        room.saturating_sub(1),
        model.chosen_index(Section::Tree),
    );
    let mut head = table.heading(&columns, &claims.len().to_string(), true);
    head.line.spans.insert(0, Span::raw(" ".repeat(INDENT)));
    for (cols, _) in &mut head.hits {
        *cols = cols.start + INDENT..cols.end + INDENT;
    }
    let mut out = vec![head];
    if tree.is_empty() {
        let hints = claims::nothing(model).into_iter();
        out.extend(hints.map(|text| Row::from(Line::styled(text, theme.dim))));
    }
    for item in &tree[shown] {
        let cells = |line: Line<'static>| {
            let mut spans = vec![Span::raw(" ".repeat(INDENT))];
            spans.extend(line.spans);
            Line::from(spans)
        };
        let line = match item {
            TreeRow::Group(group, open) => {
                let sign = if *open { glyphs.open } else { glyphs.pointer };
                let mut spans = vec![span(format!("{sign} {}", group.title), theme.heading)];
                spans.push(span(
                    sums(model, snapshot, &group.title, &group.claims, look),
                    theme.dim,
                ));
                if !group.unclaimed.is_empty() {
                    let n = group.unclaimed.len();
                    let bytes: Option<u64> = group.unclaimed.iter().map(|(_, u)| u.mem_used).sum();
                    let text = format!(", {n} outside claims with {} GiB", gib_or(bytes, glyphs));
                    spans.push(span(text, theme.text));
                }
                Line::from(spans)
            }
            TreeRow::Claim(c, _) => cells(table.row(&ClaimRow::Claim(c), &columns)),
            TreeRow::Unclaimed(n, u) => cells(table.row(&ClaimRow::Unclaimed(*n, u), &columns)),
            TreeRow::Process(p) => process(p, look),
        };
        let line = fit(line, plan.width, look);
        let key = item.key();
        let line = if model.current() == Some(&key) {
            chosen(line, plan.width, look)
        } else {
            line
        };
        out.push(Row::of(line, Section::Tree, key));
    }
    if !pane.is_empty() {
        out.resize(room, Row::default());
        out.push(gap(look, plan));
        out.extend(
            pane.into_iter()
                .map(|l| Row::from(fit(l, plan.width, look))),
        );
    }
    out
}

/// `2 claims, .75 GPUs claimed, ~.71 used, 17.6 GiB`.
fn sums(
    model: &Model,
    snapshot: &Snapshot,
    title: &str,
    claims: &[&ClaimView],
    look: &Look,
) -> String {
    let glyphs = &look.glyphs;
    let claimed: f64 = claims
        .iter()
        .filter(|c| !c.place.in_host())
        .flat_map(|c| &c.gpus)
        .map(|g| g.sm_request)
        .sum();
    let bytes: Option<u64> = claims.iter().map(|c| mem_used(c)).sum();
    // The service's own sum where there is one.
    let user = snapshot.users.iter().find(|u| u.user == title);
    let user = user.filter(|_| model.grouping == Grouping::User);
    let used = match user.and_then(|u| u.sm_used) {
        Some(known) => AtLeast::Known(Some(known)),
        None => added(claims),
    };
    let used = match used {
        AtLeast::Known(None) => glyphs.dash.to_owned(),
        AtLeast::Known(Some(f)) if f.estimate => format!("~{}", parts(f.value)),
        AtLeast::Known(Some(f)) => parts(f.value),
        AtLeast::Some(sum) => format!("{}{}", glyphs.at_least, parts(sum)),
    };
    let n = claims.len();
    let many = if n == 1 { "" } else { "s" };
    if n == 0 {
        return "  no claims".to_owned();
    }
    format!(
        "  {n} claim{many}: {} GPU claimed, {used} used; {} GiB",
        parts(claimed),
        gib_or(bytes, glyphs)
    )
}

/// SM activity of several claims, in GPUs.
fn added(claims: &[&ClaimView]) -> AtLeast {
    let in_gpus = |figure: Figure| Figure {
        value: figure.value / 100.0,
        ..figure
    };
    least(claims.iter().map(|c| sm_active(c).map(in_gpus)))
}

fn process(process: &ProcessView, look: &Look) -> Line<'static> {
    let (theme, glyphs) = (&look.theme, &look.glyphs);
    let busy = process
        .time_busy
        .map_or_else(|| glyphs.dash.to_owned(), |b| format!("{} %", percent(b)));
    Line::from(vec![
        span(format!("    {:<8} ", process.pid), theme.text),
        span(process.what.clone(), theme.text),
        span(
            format!(
                "  GPU {}  {} GiB  {busy} of the time",
                process.gpu,
                gib_or(process.mem_used, glyphs)
            ),
            theme.dim,
        ),
    ])
}

/// The GPUs of the chosen row.
fn pane(model: &Model, snapshot: &Snapshot, look: &Look, plan: &Plan) -> Vec<Line<'static>> {
    let theme = &look.theme;
    let claim = match model.current() {
        Some(RowKey::Claim(id)) => model.claim(id),
        Some(RowKey::Process { pid, .. }) => {
            let mut claims = snapshot.claims.iter();
            claims.find(|c| c.processes.iter().any(|p| p.pid == *pid))
        }
        Some(RowKey::Group(title)) => model.tree().into_iter().find_map(|row| match row {
            TreeRow::Group(group, _) if group.title == *title => group.claims.first().copied(),
            _ => None,
        }),
        Some(_) => None,
        // Until one is chosen, the first.
        None => model.tree().into_iter().find_map(|row| match row {
            TreeRow::Claim(c, _) => Some(c),
            _ => None,
        }),
    };
    let Some(claim) = claim else {
        let text = "choose a claim to see its part of each GPU; Enter shows everything";
        return vec![Line::styled(text, theme.dim)];
    };
    let mut lines = Vec::new();
    if let Some(text) = &claim.announced {
        let mut words = vec![
            span(format!("{} ", look.glyphs.sign), theme.warn),
            span(format!("{} {text}", claim.id), theme.strong),
        ];
        if model.may(claim.uid) && can_be_kept(claim) {
            words.push(span(
                format!("  p, or: gshare keep {}", claim.id),
                theme.key,
            ));
        }
        lines.push(Line::from(words));
    }
    if let Some(text) = claims::idle(claim) {
        lines.push(Line::styled(format!("{} {text}", claim.id), theme.dim));
    }
    for part in &claim.gpus {
        let gpu = snapshot.gpus.iter().find(|g| g.index == part.gpu);
        lines.extend(claim_gpu(claim, part, gpu, look, plan.width));
    }
    lines
}

/// A claim's part of a GPU: memory, SMs, time.
fn claim_gpu(
    claim: &ClaimView,
    part: &ClaimGpu,
    gpu: Option<&GpuView>,
    look: &Look,
    cols: usize,
) -> Vec<Line<'static>> {
    let (theme, glyphs) = (&look.theme, &look.glyphs);
    let dash = || glyphs.dash.to_owned();
    let model = gpu.map(|g| format!(" {}", g.short)).unwrap_or_default();
    let title = Line::from(vec![
        span(
            format!("{} on GPU {}{model}", claim.id, part.gpu),
            theme.heading,
        ),
        span(
            format!("  {} of {}", claims::what(claim), claim.user),
            theme.text,
        ),
    ]);
    let whole = gpu.and_then(mem_whole);
    let memory = Bullet {
        used: part.mem_used.or(part.mem_charge).map(|b| b as f64),
        claim: part.mem_request as f64,
        whole: whole.map_or(0.0, |b| b as f64),
    };
    let of_gpu = |used: Option<Figure>| Bullet {
        used: used.map(|f| f.value),
        claim: part.sm_request * 100.0,
        whole: 100.0,
    };
    let time_got = part.time_busy.or(part.time_got);
    let (sms, time) = (of_gpu(part.sm_active), of_gpu(time_got));
    let percents = |used: Option<Figure>| {
        let claimed = percent(part.sm_request * 100.0);
        format!("{} of {claimed}% claimed", figure_percent(used, glyphs))
    };
    let short = cols < 90;
    let texts = [
        (
            "memory",
            memory,
            if short {
                format!(
                    "{} of {} GiB claimed",
                    gib_or(part.mem_used.or(part.mem_charge), glyphs),
                    gib(part.mem_request)
                )
            } else {
                format!(
                    "{} used of {} claimed, cap {} of {} GiB",
                    gib_or(part.mem_used.or(part.mem_charge), glyphs),
                    gib(part.mem_request),
                    gib(part.mem_limit),
                    whole.map_or_else(dash, gib)
                )
            },
        ),
        (
            "SM",
            sms,
            if short {
                percents(part.sm_active)
            } else {
                format!(
                    "{} active of {}% claimed, up to {}%; occupancy {}",
                    figure_percent(part.sm_active, glyphs),
                    percent(part.sm_request * 100.0),
                    percent(part.sm_limit * 100.0),
                    figure_percent(part.sm_occupancy, glyphs)
                )
            },
        ),
        (
            "time",
            time,
            if short {
                percents(time_got)
            } else {
                format!(
                    "{} of the GPU's time got, {}% requested",
                    figure_percent(time_got, glyphs),
                    percent(part.sm_request * 100.0)
                )
            },
        ),
    ];
    let longest = texts.iter().map(|(_, _, t)| width(t)).max().unwrap_or(0);
    let bar = cols.saturating_sub(longest + 11).clamp(8, 60);
    let mut lines = vec![title];
    for (label, share, text) in texts {
        let mut spans = vec![span(format!("  {label:<7}"), theme.dim)];
        spans.extend(share.spans(bar, look));
        spans.push(span(format!("  {text}"), theme.text));
        lines.push(Line::from(spans));
    }
    lines
}

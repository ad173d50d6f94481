//! The claims as a tree with sums in the columns of the claims, and below it the chosen claim since it began.

use gshare_proto::{ClaimView, Figure, HistoryPoint, ProcessView, Snapshot};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::Widget;

use super::{Row, Scene, chosen, claims, dialog, fit, history, span, window};
use crate::model::{
    AtLeast, ClaimRow, Group, Grouping, Model, RowKey, Section, TreeRow, can_be_kept, claimed,
    compute_of, is_by_sms, least, mem_claimed, mem_used, sm_active, sm_occupancy, words,
};
use crate::text::{figure_percent, gib, gib_or, hours, percent, width, wrap};
use crate::theme::Look;
use crate::widgets::columns::{Column, GAP, row, total};
use crate::widgets::over_time::{OverTime, per_cell};

/// Columns before a claim.
const INDENT: usize = 2;

/// From so many rows on there is room for the chosen claim.
const TALL: u16 = 14;

pub(super) fn draw(
    model: &Model,
    snapshot: &Snapshot,
    look: &Look,
    area: Rect,
    scene: &mut Scene<'_>,
) {
    let claim = subject(model, snapshot).filter(|_| area.height >= TALL);
    // The tree has the rows that it needs, the claim the others: half of them at least.
    let needed = u16::try_from(model.tree().len().max(4) + 3).unwrap_or(u16::MAX);
    let tree = needed.min(if claim.is_some() {
        area.height / 2
    } else {
        area.height
    });
    let [tree, below] =
        Layout::vertical([Constraint::Length(tree), Constraint::Fill(1)]).areas(area);
    scene.rows(tree_rows(model, snapshot, look, tree), tree, look);
    if let Some(claim) = claim {
        sheet(model, snapshot, claim, look, below, scene);
    }
}

/// `by user  v by notebook, GPU   sorted by need   20 claims of 8 users, 5.25 GPUs claimed`.
fn about(model: &Model, snapshot: &Snapshot, look: &Look) -> Line<'static> {
    let theme = &look.theme;
    let by = model.grouping.name();
    let sum = claimed_by(snapshot.claims.iter().filter(|c| !c.adopted)) / 100.0;
    let uids: std::collections::BTreeSet<u32> = snapshot.claims.iter().map(|c| c.uid).collect();
    let sorted = model.sort.name();
    let sorted = sorted.split([':', ',']).next().unwrap_or(sorted);
    let claims = gshare_proto::counts::many(snapshot.claims.len(), "claim");
    let mine = if model.mine { "yours, " } else { "" };
    Line::from(vec![
        span(format!("{mine}by {by}"), theme.heading),
        span("  v by ", theme.key),
        span(model.grouping.next().name(), theme.dim),
        span(format!("  sorted by {sorted}"), theme.dim),
        span(
            format!(
                "  {claims} of {}, {} GPUs claimed",
                gshare_proto::counts::many(uids.len(), "user"),
                super::zero(crate::text::parts(sum))
            ),
            theme.dim,
        ),
    ])
}

/// Percent of one GPU that claims have on GPUs.
fn claimed_by<'a>(claims: impl Iterator<Item = &'a ClaimView>) -> f64 {
    claims.filter(|c| !c.place.in_host()).map(claimed).sum()
}

fn tree_rows(model: &Model, snapshot: &Snapshot, look: &Look, area: Rect) -> Vec<Row> {
    let cols = usize::from(area.width);
    let tree = model.tree();
    let claims = model.claim_rows();
    let table = claims::Table {
        model,
        snapshot,
        look,
        width: cols.saturating_sub(INDENT),
        figures: true,
    };
    let columns = table.columns(&claims);
    let room = usize::from(area.height).saturating_sub(2);
    let shown = window(tree.len(), room, model.chosen_index(Section::Tree));
    let mut head = table.heading(&columns, &claims.len().to_string(), true);
    head.line.spans.insert(0, Span::raw(" ".repeat(INDENT)));
    for (cols, _) in &mut head.hits {
        *cols = cols.start + INDENT..cols.end + INDENT;
    }
    let mut out = vec![about(model, snapshot, look).into(), head];
    if tree.is_empty() {
        out.extend(super::plain(
            claims::nothing(model)
                .into_iter()
                .map(|text| Line::styled(text, look.theme.dim))
                .collect(),
        ));
    }
    for item in &tree[shown] {
        let cells = |line: Line<'static>| {
            let mut spans = vec![Span::raw(" ".repeat(INDENT))];
            spans.extend(line.spans);
            Line::from(spans)
        };
        let line = match item {
            TreeRow::Group(group, open) => {
                group_line(model, snapshot, group, *open, &columns, look)
            }
            TreeRow::Claim(c, _) => cells(table.row(&ClaimRow::Claim(c), &columns)),
            TreeRow::Unclaimed(n, u) => cells(table.row(&ClaimRow::Unclaimed(*n, u), &columns)),
            TreeRow::Process(p) => process(p, look),
        };
        let key = item.key();
        let line = fit(line, cols, look);
        let line = match model.current() == Some(&key) {
            true => chosen(line, cols, look),
            false => line,
        };
        out.push(Row::of(line, Section::Tree, key));
    }
    out
}

/// The sums of a group, in the columns of its claims.
fn group_line(
    model: &Model,
    snapshot: &Snapshot,
    group: &Group<'_>,
    open: bool,
    columns: &[Column<claims::Col>],
    look: &Look,
) -> Line<'static> {
    use claims::Col;
    let (theme, glyphs) = (&look.theme, &look.glyphs);
    let sign = if open { glyphs.open } else { glyphs.pointer };
    let n = match (group.claims.len(), group.unclaimed.len()) {
        (0, n) => format!("{n} without a claim"),
        (n, 0) => gshare_proto::counts::many(n, "claim"),
        (n, more) => format!("{}, {more} without", gshare_proto::counts::many(n, "claim")),
    };
    let is_name = |c: &&Column<Col>| matches!(c.key, Col::Id | Col::User | Col::What);
    let names: Vec<Column<Col>> = columns.iter().filter(is_name).cloned().collect();
    let figures: Vec<Column<Col>> = columns.iter().filter(|c| !is_name(c)).cloned().collect();
    let name = format!("{sign} {}", group.title);
    let cols = (INDENT + total(&names) + GAP).saturating_sub(width(&name));
    let rest = crate::text::left(&format!("  {n}"), cols, glyphs);
    let held = || group.claims.iter().filter(|c| !c.place.in_host());
    let of_programs = |bytes: Option<u64>| -> Option<u64> {
        let programs: Option<u64> = group.unclaimed.iter().map(|(_, u)| u.mem_used).sum();
        Some(bytes? + programs?)
    };
    let bytes: Option<u64> = held().map(|c| mem_used(c)).sum();
    let worst = group.claims.iter().find_map(|c| {
        let words = words(c, snapshot, model.clock, glyphs.arrow);
        words
            .sign
            .then(|| format!(" {} {} {}", glyphs.sign, c.id, words.text))
    });
    let none = group.claims.is_empty();
    // What is on no GPU uses nothing of one.
    let of_held = |sum: AtLeast| match held().next() {
        None => "0".to_owned(),
        Some(_) => sum_of(sum, look),
    };
    let cell = |c: &Column<Col>| match c.key {
        Col::Used | Col::Claim | Col::MemClaim | Col::Sm if none => ("-".to_owned(), theme.dim),
        Col::Used => (
            of_held(least(held().map(|c| compute_of(c, snapshot)))),
            theme.dim,
        ),
        Col::Claim => (percent(claimed_by(held().copied())), theme.dim),
        Col::Sm => (of_held(sm_of(model, snapshot, group)), theme.dim),
        Col::MemUsed => (gib_or(of_programs(bytes), glyphs), theme.dim),
        Col::MemClaim => (gib(held().map(|c| mem_claimed(c)).sum()), theme.dim),
        Col::State if !open => (worst.clone().unwrap_or_default(), theme.text),
        _ => (String::new(), theme.text),
    };
    let mut line = Line::from(vec![span(name, theme.heading), span(rest, theme.dim)]);
    line.spans.extend(row(&figures, glyphs, cell).spans);
    line
}

fn sum_of(sum: AtLeast, look: &Look) -> String {
    match sum {
        AtLeast::Known(known) => crate::text::figure(known, &look.glyphs),
        AtLeast::Some(sum) => format!("{}{}", look.glyphs.at_least, percent(sum)),
    }
}

/// SM activity of a group: the service's own sum where there is one.
fn sm_of(model: &Model, snapshot: &Snapshot, group: &Group<'_>) -> AtLeast {
    let user = snapshot.users.iter().find(|u| u.user == group.title);
    let user = user.filter(|_| model.grouping == Grouping::User);
    match user.and_then(|u| u.sm_used) {
        Some(known) => AtLeast::Known(Some(Figure {
            value: known.value * 100.0,
            ..known
        })),
        None => least(group.claims.iter().map(|c| sm_active(c))),
    }
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

/// The claim that the chosen row belongs to.
fn subject<'a>(model: &'a Model, snapshot: &'a Snapshot) -> Option<&'a ClaimView> {
    let mut claims = snapshot.claims.iter();
    match model.current()? {
        RowKey::Claim(id) => model.claim(id),
        RowKey::Process { pid, .. } => claims.find(|c| c.processes.iter().any(|p| p.pid == *pid)),
        RowKey::Group(title) => model.tree().into_iter().find_map(|row| match row {
            TreeRow::Group(group, _) if group.title == *title => group.claims.first().copied(),
            _ => None,
        }),
        _ => None,
    }
}

/// The chosen claim: use and memory since it began, what is the matter, what can be done, its programs, what happened.
fn sheet(
    model: &Model,
    snapshot: &Snapshot,
    claim: &ClaimView,
    look: &Look,
    area: Rect,
    scene: &mut Scene<'_>,
) {
    let on: Vec<String> = snapshot
        .gpus
        .iter()
        .filter(|g| super::overview::is_on(claim, g.index))
        .map(|g| format!("GPU {} {}", g.index, g.short))
        .collect();
    let on = match on.is_empty() {
        true => "on no GPU".to_owned(),
        false => on.join(", "),
    };
    let title = format!(
        "{}  {}  {}, {on}",
        claim.id,
        claims::what(claim),
        claim.user
    );
    let until = claim.ends_ms.map_or_else(
        || "no time limit".to_owned(),
        |at| format!("ends {}", model.clock.short_time(at)),
    );
    let since = format!("since {}, {until}", model.clock.short_time(claim.since_ms));
    let block = dialog::frame(
        look,
        &title,
        area.width.saturating_sub(since.len() as u16 + 4),
    );
    let block = block.title_top(Line::from(format!(" {since} ")).right_aligned());
    let inner = block.inner(area);
    block.render(area, scene.buf);
    scene.buf.set_style(inner, ratatui::style::Style::reset());
    let facts = facts(model, snapshot, claim, look, inner.width.into());
    let rows = u16::try_from(facts.len()).unwrap_or(u16::MAX);
    // The plots have what the facts leave, five rows at least where there are as many.
    let plots = inner
        .height
        .saturating_sub(rows + 1)
        .clamp(5.min(inner.height / 2), 20);
    let sizes = [1, plots].map(Constraint::Length);
    let [figures, plots, rest] =
        Layout::vertical(sizes.into_iter().chain([Constraint::Fill(1)])).areas(inner);
    let halves = [Constraint::Percentage(50), Constraint::Percentage(50)];
    let [left, right] = Layout::horizontal(halves).spacing(2).areas(figures);
    let [compute_at, memory_at] = Layout::horizontal(halves).spacing(2).areas(plots);
    let [compute, memory] = figures_of(snapshot, claim, look, left.width >= 50);
    scene.line(&fit(compute, left.width.into(), look), left);
    scene.line(&fit(memory, right.width.into(), look), right);
    let by_sms = snapshot
        .gpus
        .iter()
        .any(|g| is_by_sms(g) && super::overview::is_on(claim, g.index));
    let used = |p: &HistoryPoint| if by_sms { p.used } else { p.busy.or(p.used) };
    let gpus = claim.gpus.len().max(1) as f64;
    let scale = (gpus, format!("0 to {:.0} %", gpus * 100.0));
    plot(model, claim, look, compute_at, scale, scene, |p| {
        (p.claimed, used(p))
    });
    let most = claim
        .gpus
        .iter()
        .map(|g| g.mem_limit.max(g.mem_request) as f64)
        .sum();
    let scale = (most, format!("0 to {} GiB", gib(most as u64)));
    plot(model, claim, look, memory_at, scale, scene, |p| {
        (p.mem_claimed, p.mem_used)
    });
    let facts = facts
        .into_iter()
        .map(|line| fit(line, rest.width.into(), look));
    scene.rows(super::plain(facts.collect()), rest, look);
}

/// Compute, and memory, in a line each.
fn figures_of(
    snapshot: &Snapshot,
    claim: &ClaimView,
    look: &Look,
    wide: bool,
) -> [Line<'static>; 2] {
    let (theme, glyphs) = (&look.theme, &look.glyphs);
    let peak: Option<u64> = claim.gpus.iter().map(|g| g.mem_peak).sum();
    let limit: u64 = claim.gpus.iter().map(|g| g.mem_limit).sum();
    let more = |text: String| if wide { text } else { String::new() };
    let line = |label: &str, used: String, rest: String| {
        Line::from(vec![
            span(format!("{label} "), theme.dim),
            span(used, theme.strong),
            span(rest, theme.text),
        ])
    };
    [
        line(
            "compute",
            figure_percent(compute_of(claim, snapshot), glyphs),
            format!(
                "  claim {}, SM {}{}",
                percent(claimed(claim)),
                crate::text::figure(sm_active(claim), glyphs),
                more(format!(
                    ", occ {}",
                    crate::text::figure(sm_occupancy(claim), glyphs)
                ))
            ),
        ),
        line(
            "memory",
            gib_or(mem_used(claim), glyphs),
            format!(
                " GiB  claim {}{}, peak {}",
                gib(mem_claimed(claim)),
                more(format!(", limit {}", gib(limit))),
                gib_or(peak, glyphs)
            ),
        ),
    ]
}

/// A figure of the claim since it began.
fn plot(
    model: &Model,
    claim: &ClaimView,
    look: &Look,
    area: Rect,
    (top, scale): (f64, String),
    scene: &mut Scene<'_>,
    of: impl Fn(&HistoryPoint) -> (f64, Option<f64>),
) {
    let Some(view) = model.past.of_claim(&claim.id) else {
        let text = match model.service() {
            Ok(()) => "asking the service what it recorded",
            Err(_) => "nothing is recorded",
        };
        scene.line(&Line::styled(text, look.theme.dim), area);
        return;
    };
    let [plot, axis] = Layout::vertical([Constraint::Fill(1), Constraint::Length(1)]).areas(area);
    let points = view.series.first().map(|s| s.points.as_slice());
    let moments = history::moments(
        points.unwrap_or_default(),
        view,
        usize::from(plot.width) * per_cell(look),
        |p| {
            let (claimed, used) = of(p);
            (claimed, used, 0.0)
        },
    );
    OverTime {
        moments: &moments,
        top,
        look,
    }
    .render(plot, scene.buf);
    let from = model.clock.short_time(view.from_ms);
    let gap = usize::from(axis.width).saturating_sub(width(&from) + 3);
    let text = format!("{from}{scale:^gap$}now");
    scene.line(&Line::styled(text, look.theme.dim), axis);
}

/// What is known of it beside its figures.
fn facts(
    model: &Model,
    snapshot: &Snapshot,
    claim: &ClaimView,
    look: &Look,
    cols: usize,
) -> Vec<Line<'static>> {
    let (theme, glyphs) = (&look.theme, &look.glyphs);
    let mut out = Vec::new();
    let mut told = |label: &str, text: &str| {
        for (i, text) in wrap(text, cols.saturating_sub(9), 2, glyphs)
            .into_iter()
            .enumerate()
        {
            let label = if i == 0 { label } else { "" };
            out.push(Line::from(vec![
                span(format!("{label:<9}"), theme.dim),
                span(text, theme.text),
            ]));
        }
    };
    let now = words(claim, snapshot, model.clock, glyphs.arrow);
    let sign = if now.sign {
        format!("{} ", glyphs.sign)
    } else {
        String::new()
    };
    match (&claim.announced, claims::idle(claim)) {
        (Some(text), _) if model.may(claim.uid) && can_be_kept(claim) => {
            told(
                "now",
                &format!(
                    "{} {} {text}; p, or: gshare keep {1}",
                    glyphs.sign, claim.id
                ),
            );
        }
        (Some(text), _) => told("now", &format!("{} {} {text}", glyphs.sign, claim.id)),
        (None, Some(text)) => told("now", &format!("{} {text}", glyphs.sign)),
        _ if now.text.is_empty() => told("now", "runs"),
        _ => told("now", &format!("{sign}{}", now.text)),
    }
    if let Some(usage) = &claim.usage {
        let known = |s: Option<f64>| s.map_or_else(|| glyphs.dash.to_owned(), hours);
        told(
            "so far",
            &format!(
                "{} GPU h claimed, {} used, {} idle; burst {} on top",
                hours(usage.claimed_gpu_s),
                known(usage.used_gpu_s),
                known(usage.idle_gpu_s()),
                known(usage.borrowed())
            ),
        );
    }
    let levers = &claim.place.levers;
    let can = |word: &str, why: &Option<String>| match why {
        None => format!("can be {word}"),
        Some(why) => format!("cannot be {word}: {why}"),
    };
    if !claim.adopted {
        told(
            "moves",
            &format!(
                "{}; {}",
                can("moved", &levers.not_movable),
                can("detached", &levers.not_detachable)
            ),
        );
    }
    for program in claim.processes.iter().take(3) {
        let busy = program
            .time_busy
            .map_or_else(|| glyphs.dash.to_owned(), percent);
        let bytes = gib_or(program.mem_used, glyphs);
        told(
            &program.pid.to_string(),
            &format!("{bytes} GiB, {busy} % of the time: {}", program.what),
        );
    }
    let events = snapshot.notices.iter();
    let events = events.filter(|n| n.claim.as_deref() == Some(claim.id.as_str()));
    for event in events.take(3) {
        told(&model.clock.short_time(event.at_ms), &event.text);
    }
    if claim.uid == model.viewer.uid && !claim.adopted {
        told("join", &format!("gshare join {} -- CMD", claim.id));
    }
    out
}

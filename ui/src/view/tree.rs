//! The claims as a tree with sums in the columns of the claims, and below it the chosen claim since it began.

use std::collections::BTreeSet;

use gshare_proto::counts::many;
use gshare_proto::{ClaimView, HistoryPoint, ProcessView, Usage, messages};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row as Cells, Widget};

use super::{Facts, Scene, View, claims, dialog, fit, history, line, span, window};
use crate::model::{
    AtLeast, Group, RowKey, Section, TreeRow, can_be_kept, claimed, compute_of, is_by_sms,
    mem_claimed, mem_used, sm_active, sm_occupancy, sums,
};
use crate::text::{gib, hours, parts, percent, width};
use crate::widgets::over_time::{OverTime, per_cell};

/// With this many rows or more there is room for the chosen claim.
const TALL: u16 = 14;

pub(super) fn draw(view: &View<'_>, area: Rect, scene: &mut Scene<'_>) {
    let claim = subject(view).filter(|_| area.height >= TALL);
    // The tree has the rows that it needs, the claim the others: at least half of them.
    let needed = super::cells(view.model.tree().len().max(4) + 3);
    let most = area.height / if claim.is_some() { 2 } else { 1 };
    let parts = [Constraint::Length(needed.min(most)), Constraint::Fill(1)];
    let [tree, below] = Layout::vertical(parts).areas(area);
    draw_tree(view, tree, scene);
    if let Some(claim) = claim {
        sheet(view, claim, below, scene);
    }
}

/// `by user  v by notebook   sorted by need   20 claims of 8 users, 5.25 GPUs claimed`.
fn about(view: &View<'_>) -> Line<'static> {
    let (model, snapshot) = (view.model, view.snapshot);
    let claims = snapshot.claims.iter().filter(|c| !c.adopted);
    let sum = sums(claims, snapshot).claimed / 100.0;
    let uids: BTreeSet<u32> = snapshot.claims.iter().map(|c| c.uid).collect();
    let sorted = model.sort.name();
    let sorted = sorted.split([':', ',']).next().unwrap_or(sorted);
    let mine = if model.mine { "yours, " } else { "" };
    let (claims, users) = (
        many(snapshot.claims.len(), "claim"),
        many(uids.len(), "user"),
    );
    let sums = format!("  {claims} of {users}, {} GPUs claimed", parts(sum));
    line!(view;
        heading format!("{mine}by {}", model.grouping.name()),
        key "  v by ",
        dim model.grouping.next().name(),
        dim format!("  sorted by {sorted}{sums}"),
    )
}

fn draw_tree(view: &View<'_>, area: Rect, scene: &mut Scene<'_>) {
    let tree = view.model.tree();
    let rows = view.model.claim_rows();
    let table = claims::Claims::new(view, area.width.into(), true);
    let columns = table.columns(&rows);
    let room = usize::from(area.height).saturating_sub(2);
    let shown = window(tree.len(), room, view.model.chosen_index(Section::Tree));
    scene.line(about(view), area, 0);
    let area = super::below(area, 1);
    if tree.is_empty() {
        scene.rows(claims::hints(view), super::below(area, 1));
    }
    let keys = tree[shown.clone()].iter().map(TreeRow::key).collect();
    let lines = tree[shown].iter().map(|item| match item {
        TreeRow::Group(group, open) => group_line(view, group, *open, &columns),
        TreeRow::Row(row) => table.row(row, &columns),
        TreeRow::Process(p) => {
            let line = fit(process(view, p), area.width.into(), view.look);
            Cells::new([Cell::from(line).column_span(super::cells(columns.len()))])
        }
    });
    let lines = lines.collect();
    let (word, n) = claims::counted(&(0..rows.len()), &rows);
    let table = table.table(&columns, (word, &n, true), lines, area, scene);
    scene.table(view, table, area, (Section::Tree, 1, keys));
}

/// The sums of a group, in the columns of its claims.
fn group_line(
    view: &View<'_>,
    group: &Group<'_>,
    open: bool,
    columns: &claims::Columns,
) -> Cells<'static> {
    use claims::Col;
    let (snapshot, glyphs) = (view.snapshot, view.glyphs);
    let sign = if open { glyphs.open } else { glyphs.pointer };
    let n = match (group.claims.len(), group.unclaimed.len()) {
        (0, n) => format!("{n} without a claim"),
        (n, 0) => many(n, "claim"),
        (n, more) => format!("{}, {more} without", many(n, "claim")),
    };
    let name = format!("{sign} {}", group.title);
    let sum = sums(group.claims.iter().copied(), snapshot);
    let programs = group.unclaimed.iter().filter(|(_, u)| !u.graphics);
    let programs: Option<u64> = programs.map(|(_, u)| u.mem_used).sum();
    let bytes = sum.mem_used.zip(programs).map(|(a, b)| a + b);
    let worst = || {
        let mut words = group.claims.iter().map(|c| (&c.id, view.words(c)));
        words.find(|(_, words)| words.sign)
    };
    // A claim that is on no GPU uses none.
    let in_host = group.claims.iter().all(|c| c.place.in_host());
    let of_held = |sum: AtLeast| match in_host {
        true => "0".to_owned(),
        false => view.at_least(sum),
    };
    let state = columns.iter().find(|(col, _)| *col == Col::State);
    let state = state.map_or(0, |(_, cols)| *cols);
    let cell = |col: Col| {
        let text = match col {
            Col::Used | Col::Claim | Col::MemClaim | Col::Sm if group.claims.is_empty() => {
                "-".to_owned()
            }
            Col::Used => of_held(sum.compute),
            Col::Claim => percent(sum.claimed),
            Col::Sm => of_held(sum.sm),
            Col::MemUsed => view.gib(bytes),
            Col::MemClaim => gib(sum.mem_claimed),
            Col::State if !open => {
                let Some((id, words)) = worst() else {
                    return Line::default();
                };
                let text = view.brief(&format!("{id} {}", words.text), state.saturating_sub(3));
                let fits = Some(text).filter(|t| !t.ends_with(glyphs.ellipsis));
                let text = fits.unwrap_or_else(|| id.clone());
                return line!(view; text " ", warn glyphs.sign, text format!(" {text}"));
            }
            _ => String::new(),
        };
        line!(view; dim text)
    };
    // A group is on no GPU of its own.
    let is_first = |col: Col| col.is_name() || col == Col::Gpu;
    let first = columns.iter().take_while(|c| is_first(c.0));
    let room: usize = first.map(|c| c.1 + 1).sum();
    let n = match width(&name) + 3 + width(&n) <= room {
        true => &n,
        false => n.split(' ').next().unwrap_or_default(),
    };
    let name = line!(view; heading name, dim format!("  {n}"));
    claims::joined(columns, view, (is_first, name), cell)
}

fn process(view: &View<'_>, process: &ProcessView) -> Line<'static> {
    let busy = view.or_dash(process.time_busy.map(|b| format!("{} %", percent(b))));
    let memory = view.gib(process.mem_used);
    line!(view;
        text format!("    {:<8} {}", process.pid, process.what),
        dim format!("  GPU {}  {memory} GiB  {busy} of the time", process.gpu),
    )
}

fn subject<'a>(view: &View<'a>) -> Option<&'a ClaimView> {
    match view.model.current()? {
        RowKey::Claim(id) => view.model.claim(id),
        RowKey::Process(pid, _) => view.model.claim_of(*pid),
        RowKey::Group(title) => view.model.tree().into_iter().find_map(|row| match row {
            TreeRow::Group(group, _) if group.title == *title => group.claims.first().copied(),
            _ => None,
        }),
        _ => None,
    }
}

/// The chosen claim: use and memory since it began, problems, actions, programs, events.
pub(super) fn sheet(view: &View<'_>, claim: &ClaimView, area: Rect, scene: &mut Scene<'_>) {
    let clock = view.model.clock;
    let gpus = view.snapshot.gpus.iter();
    let on = gpus.filter(|g| super::overview::is_on(claim, g.index));
    let on: Vec<String> = on.map(|g| format!("GPU {} {}", g.index, g.short)).collect();
    let on = match on.is_empty() {
        true => "on no GPU".to_owned(),
        false => on.join(", "),
    };
    let (id, what, user) = (&claim.id, claims::what(claim), &claim.user);
    let title = format!("{id}  {what}  {user}, {on}");
    let until = match claim.ends_ms {
        Some(at) => format!("ends {}", clock.short_time(at)),
        None => "no time limit".to_owned(),
    };
    let since = format!(" since {}, {until} ", clock.short_time(claim.since_ms));
    let cols = area.width.saturating_sub(since.len() as u16 + 2);
    let block = dialog::frame(view.look, &title, cols);
    let block = block.title_top(Line::from(since).right_aligned());
    let inner = block.inner(area);
    block.render(area, scene.buf);
    let facts = facts(view, claim, (inner.width.into(), 9));
    // The plots have what the facts leave, at least five rows if available.
    let plots = inner.height.saturating_sub(super::cells(facts.len() + 1));
    let plots = plots.max(5.min(inner.height / 2));
    let [plots, rest] = super::parts(inner, [(plots + 1).into(), usize::MAX]);
    pictures(view, claim, plots, scene);
    scene.rows(facts, rest);
}

/// Compute and memory of a claim: figures, with a plot of each since it began.
pub(super) fn pictures(view: &View<'_>, claim: &ClaimView, area: Rect, scene: &mut Scene<'_>) {
    let halves = Layout::horizontal([Constraint::Percentage(50); 2]).spacing(2);
    let [left, right] = halves.areas(area);
    let figures = figures_of(view, claim, left.width.min(right.width).into());
    for (line, at) in figures.into_iter().zip([left, right]) {
        scene.rows([line], at);
    }
    let mut gpus = view.snapshot.gpus.iter();
    let by_sms = gpus.any(|g| is_by_sms(g) && super::overview::is_on(claim, g.index));
    let used = |p: &HistoryPoint| if by_sms { p.used } else { p.busy.or(p.used) };
    let gpus = claim.gpus.len().max(1) as f64;
    let scale = (gpus, format!("0 to {:.0} %", gpus * 100.0));
    let compute_at = super::below(left, 1);
    plot(view, claim, compute_at, scale, scene, |p| {
        (p.claimed, used(p))
    });
    let most = claim.gpus.iter().map(|g| g.mem_limit.max(g.mem_request));
    let most = most.sum::<u64>();
    let scale = (most as f64, format!("0 to {} GiB", gib(most)));
    plot(view, claim, super::below(right, 1), scale, scene, |p| {
        (p.mem_claimed, p.mem_used)
    });
}

/// Compute, and memory, one line each, with as many whole figures as fit into `cols` columns.
fn figures_of(view: &View<'_>, claim: &ClaimView, cols: usize) -> [Line<'static>; 2] {
    let peak: Option<u64> = claim.gpus.iter().map(|g| g.mem_peak).sum();
    let limit: u64 = claim.gpus.iter().map(|g| g.mem_limit).sum();
    let used = view.percent(compute_of(claim, view.snapshot));
    let mem_used = view.gib(mem_used(claim));
    let compute = [
        format!("  claim {}", percent(claimed(claim))),
        format!(", SM {}", view.figure(sm_active(claim))),
        format!(", occ {}", view.figure(sm_occupancy(claim))),
    ];
    let memory = [
        format!(" GiB  claim {}", gib(mem_claimed(claim))),
        format!(", peak {}", view.gib(peak)),
        format!(", limit {}", gib(limit)),
    ];
    let lines = [
        (line!(view; dim "compute ", strong used), compute),
        (line!(view; dim "memory ", strong mem_used), memory),
    ];
    lines.map(|(mut line, parts)| {
        for part in parts {
            if line.width() + width(&part) > cols {
                break;
            }
            line.push_span(span(part, view.theme.text));
        }
        line
    })
}

fn plot(
    view: &View<'_>,
    claim: &ClaimView,
    area: Rect,
    (top, scale): (f64, String),
    scene: &mut Scene<'_>,
    of: impl Fn(&HistoryPoint) -> (f64, Option<f64>),
) {
    let (model, look) = (view.model, view.look);
    let Some(past) = model.past.of_claim(&claim.id) else {
        let text = match model.service() {
            Ok(()) => messages::asking_for_history(),
            Err(_) => "nothing is recorded".to_owned(),
        };
        return scene.line(line!(view; dim text), area, 0);
    };
    let [plot, axis] = Layout::vertical([Constraint::Fill(1), Constraint::Length(1)]).areas(area);
    let points = past.series.first().map(|s| s.points.as_slice());
    let cols = usize::from(plot.width) * per_cell(look);
    let (points, time) = (points.unwrap_or_default(), (past.from_ms, past.to_ms));
    let moments = history::moments(points, time, past.step_ms, cols, |p| {
        let (claimed, used) = of(p);
        (claimed, used, 0.0)
    });
    let moments = &moments;
    OverTime { moments, top, look }.render(plot, scene.buf);
    let from = model.clock.short_time(past.from_ms);
    let gap = usize::from(axis.width).saturating_sub(width(&from) + 3);
    scene.line(line!(view; dim format!("{from}{scale:^gap$}now")), axis, 0);
}

pub(super) fn sums_of(view: &View<'_>, usage: &Usage) -> String {
    let known = |s: Option<f64>| view.or_dash(s.map(hours));
    let (claimed, used) = (hours(usage.claimed_gpu_s), known(usage.used_gpu_s));
    let idle = known(usage.idle_gpu_s());
    format!("{claimed} GPU h claimed, {used} SM used, {idle} idle")
}

/// Facts about it besides its figures.
pub(super) fn facts(
    view: &View<'_>,
    claim: &ClaimView,
    (cols, label): (usize, usize),
) -> Vec<Line<'static>> {
    let (model, glyphs, style) = (view.model, view.glyphs, view.theme.text);
    let (id, clock) = (&claim.id, model.clock);
    let mut out = Facts::new(view.look, cols, (0, label));
    let mut tell = |label: &str, text: &str| out.tell(label, text, style, 2);
    let now = view.words(claim);
    let sign = format!("{} ", glyphs.sign);
    let text = match (&claim.announced, claims::idle(claim)) {
        (Some(text), _) if model.may(claim.uid) && can_be_kept(claim) => {
            format!("{sign}{id} {text}; p, or: gshare keep {id}")
        }
        (Some(text), _) => format!("{sign}{id} {text}"),
        (None, Some(text)) => format!("{sign}{text}"),
        _ if now.text.is_empty() => "runs".to_owned(),
        _ if now.sign => sign + &now.text,
        _ => now.text,
    };
    tell("now", &text);
    if let Some(usage) = &claim.usage {
        let burst = view.or_dash(usage.borrowed().map(hours));
        // No sum: a burst on a GPU shared in turns is time.
        let text = format!("{}, {burst} burst", sums_of(view, usage));
        tell("so far", &text);
    }
    let levers = &claim.place.levers;
    let can = |word: &str, why: &Option<String>| match why {
        None => format!("can be {word}"),
        Some(why) => format!("cannot be {word}: {why}"),
    };
    let (moved, offloaded) = (&levers.not_movable, &levers.not_detachable);
    let text = match moved == offloaded {
        true => can("moved or offloaded", moved),
        false => format!("{}; {}", can("moved", moved), can("offloaded", offloaded)),
    };
    if !claim.adopted {
        tell("moves", &text);
    }
    for program in claim.processes.iter().take(3) {
        let busy = view.or_dash(program.time_busy.map(percent));
        let bytes = view.gib(program.mem_used);
        let text = format!("{bytes} GiB, {busy} % of the time: {}", program.what);
        tell(&program.pid.to_string(), &text);
    }
    let events = view.snapshot.notices.iter();
    let events = events.filter(|n| n.claim.as_ref() == Some(id));
    for event in events.take(3) {
        tell(&clock.short_time(event.at_ms), &event.text);
    }
    if claim.uid == model.viewer.uid && !claim.adopted {
        tell("join", &format!("gshare join {id} -- CMD"));
    }
    out.lines
}

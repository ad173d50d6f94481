//! The claims, and the processes that are in none.

use std::ops::Range;

use gshare_proto::{Caps, ClaimState, ClaimView, UnclaimedView};
use ratatui::style::Style;
use ratatui::text::Line;

use super::plan::Plan;
use super::{Row, Target, chosen, fit, window};
use crate::model::{
    ClaimRow, Model, Section, Sort, mem_cap, mem_used, sm_active, sm_occupancy, time_busy,
};
use crate::text::{cut, figure, figure_percent, gib, gib_or, percent, seconds, share, width};
use crate::theme::Look;
use crate::widgets::columns::{Column, GAP, row, total};

/// Columns of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Col {
    Id,
    User,
    Class,
    What,
    Gpu,
    Request,
    Limit,
    Memory,
    Time,
    Sm,
    Occ,
    State,
}

/// Heading and rows.
pub(super) fn lines(model: &Model, look: &Look, plan: &Plan) -> Vec<Row> {
    let (theme, glyphs) = (&look.theme, &look.glyphs);
    let rows = model.claim_rows();
    let columns = columns(&rows, plan, look, model.sort);
    let focus = model.section == Section::Claims;
    let shown = window(rows.len(), plan.claims, model.chosen_index(Section::Claims));
    let place = if shown.len() < rows.len() {
        format!(" {}-{} of {}", shown.start + 1, shown.end, rows.len())
    } else {
        String::new()
    };
    let head = row(&columns, glyphs, |c| {
        let style = if focus && c.key == Col::Id {
            theme.focus
        } else {
            theme.heading
        };
        let mark = mark(c.key, model.sort, look);
        let place = if c.key == Col::What { &place } else { "" };
        // The place matters more than the word before it.
        let room = c.width.saturating_sub(width(place) + width(mark));
        let title = if place.is_empty() {
            // So does the mark.
            c.title.chars().take(room).collect()
        } else {
            cut(c.title, room, glyphs)
        };
        (format!("{title}{mark}{place}"), style)
    });
    let mut out = vec![Row {
        line: fit(head, plan.width, look),
        hits: sort_hits(&columns),
    }];
    if rows.is_empty() {
        let line = Line::styled(nothing(model), theme.dim);
        out.push(fit(line, plan.width, look).into());
    }
    for claim in &rows[shown] {
        let line = match claim {
            ClaimRow::Claim(c) => row(&columns, glyphs, |col| claim_cell(c, col.key, plan, look)),
            ClaimRow::Unclaimed(n, u) => {
                row(&columns, glyphs, |col| unclaimed_cell(*n, u, col.key, look))
            }
        };
        let line = fit(line, plan.width, look);
        let is_chosen = focus && model.current() == Some(&claim.key());
        let line = if is_chosen {
            chosen(line, plan.width, look)
        } else {
            line
        };
        out.push(Row::of(line, Section::Claims, claim.key()));
    }
    out
}

/// What a click on each heading sorts by.
pub(super) fn sort_hits(columns: &[Column<Col>]) -> Vec<(Range<usize>, Target)> {
    let mut from = 0;
    let mut hits = Vec::new();
    for column in columns {
        let to = from + column.width;
        if let Some(sort) = sorted(column.key) {
            hits.push((from..to, Target::Sort(sort)));
        }
        from = to + GAP;
    }
    hits
}

pub(super) fn nothing(model: &Model) -> String {
    if !model.filter.text().is_empty() {
        return format!("no row has `{}`; Esc shows all", model.filter.text());
    }
    match model.service() {
        Ok(()) => "no claims. Press n, or run: gshare claim -g 0.5 -- python train.py".to_owned(),
        Err(_) => "no GPU processes".to_owned(),
    }
}

/// The order that a column is for.
fn sorted(col: Col) -> Option<Sort> {
    match col {
        Col::Id => Some(Sort::Id),
        Col::User => Some(Sort::User),
        Col::Gpu => Some(Sort::Gpu),
        Col::Memory => Some(Sort::Memory),
        Col::Time => Some(Sort::Time),
        Col::Sm => Some(Sort::Sm),
        Col::Class | Col::What | Col::Request | Col::Limit | Col::Occ | Col::State => None,
    }
}

/// The sign of the column that the rows are sorted by, where that is another order than usual.
pub(super) fn mark(col: Col, sort: Sort, look: &Look) -> &'static str {
    if sort != Sort::Id && sorted(col) == Some(sort) {
        look.glyphs.sorted
    } else {
        ""
    }
}

/// The columns for the width: figures get what they need, words share the rest, and when there is too
/// little room the figures that matter less go.
pub(super) fn columns(
    rows: &[ClaimRow<'_>],
    plan: &Plan,
    look: &Look,
    sort: Sort,
) -> Vec<Column<Col>> {
    let longest = |f: &dyn Fn(&ClaimRow<'_>) -> usize| rows.iter().map(f).max().unwrap_or(0);
    let id = longest(&|r| match r {
        ClaimRow::Claim(c) => width(&c.id),
        ClaimRow::Unclaimed(n, _) => 1 + n.to_string().len(),
    });
    let user = longest(&|r| match r {
        ClaimRow::Claim(c) => width(&c.user),
        ClaimRow::Unclaimed(_, u) => width(u.user.as_deref().unwrap_or_default()),
    });
    let gpu = longest(&|r| match r {
        ClaimRow::Claim(c) => width(&gpus(c)),
        ClaimRow::Unclaimed(..) => 1,
    });
    let memory = longest(&|r| match r {
        ClaimRow::Claim(c) => width(&memory(c, look)),
        ClaimRow::Unclaimed(..) => 4,
    });
    let state = longest(&|r| match r {
        ClaimRow::Claim(c) => width(&state(c)),
        ClaimRow::Unclaimed(..) => 7,
    });
    let mut columns = vec![
        Column::words(Col::Id, "ID", id.clamp(3, 6)),
        Column::words(
            Col::User,
            "USER",
            user.clamp(4, if plan.wide { 12 } else { 8 }),
        ),
    ];
    if plan.wide {
        columns.push(Column::words(Col::Class, "CLASS", 5));
        columns.push(Column::words(Col::What, "NOTEBOOK / COMMAND", 0));
    } else {
        columns.push(Column::words(Col::What, "WHAT", 0));
    }
    columns.push(Column::figures(Col::Gpu, "GPU", gpu.clamp(3, 8)));
    columns.push(Column::figures(Col::Request, "REQ", 4));
    columns.push(Column::figures(Col::Limit, "LIM", 4));
    columns.push(Column::figures(Col::Memory, "MEM GiB", memory.clamp(9, 13)));
    let (sm, occ) = if plan.wide { (6, 5) } else { (4, 4) };
    columns.push(Column::figures(Col::Time, "TIME/REQ", 8));
    columns.push(Column::figures(
        Col::Sm,
        if plan.wide { "SM act" } else { "SM" },
        sm,
    ));
    columns.push(Column::figures(Col::Occ, "OCC", occ));
    columns.push(Column::words(Col::State, " STATE", state.clamp(8, 22) + 1));
    // The sign of the order stands behind a whole word.
    for column in &mut columns {
        let sign = width(mark(column.key, sort, look));
        if sign > 0 {
            column.width = column.width.max(width(column.title) + sign);
        }
    }
    let least = |columns: &[Column<Col>]| total(columns) + 10;
    for drop in [
        Col::Occ,
        Col::Limit,
        Col::Gpu,
        Col::Time,
        Col::Request,
        Col::User,
        Col::Sm,
    ] {
        if least(&columns) > plan.width {
            columns.retain(|c| c.key != drop);
        }
    }
    let rest = plan.width.saturating_sub(total(&columns));
    let wanted = longest(&|r| match r {
        ClaimRow::Claim(c) => width(&what(c)),
        ClaimRow::Unclaimed(_, u) => width(&process(u)),
    });
    let (least, most) = if plan.wide { (18, 48) } else { (14, 24) };
    let wanted = wanted.clamp(least, most);
    for column in &mut columns {
        match column.key {
            Col::What => column.width = rest.min(wanted),
            Col::State => column.width += rest - rest.min(wanted),
            _ => {}
        }
    }
    columns
}

/// `0,1`.
pub(super) fn gpus(claim: &ClaimView) -> String {
    if claim.place.in_host() {
        return "-".to_owned();
    }
    let names: Vec<String> = claim.gpus.iter().map(|g| g.gpu.to_string()).collect();
    names.join(",")
}

pub(super) fn what(claim: &ClaimView) -> String {
    match &claim.name {
        Some(name) if claim.what.is_empty() => name.clone(),
        Some(name) if *name != claim.what => format!("{name}: {}", claim.what),
        _ if claim.what.is_empty() => "(held, no program)".to_owned(),
        _ => claim.what.clone(),
    }
}

/// `4.1/5.9`, and a mark when the claim was refused at its cap.
fn memory(claim: &ClaimView, look: &Look) -> String {
    let mark = if claim.refusals > 0 { "!" } else { "" };
    let used = gib_or(mem_used(claim), &look.glyphs);
    if claim.adopted {
        return used;
    }
    format!("{mark}{used}/{}", gib(mem_cap(claim)))
}

/// Idleness from here on is told.
const IDLE_SHOWN_S: u64 = 60;

/// Since when a claim runs nothing, who says so, and what becomes of it.
pub(super) fn idle(claim: &ClaimView) -> Option<String> {
    let idle = claim.idle.as_ref()?;
    // A pause between two kernels is no news.
    if idle.gpu_s < IDLE_SHOWN_S && !idle.warned && !idle.kept {
        return None;
    }
    let mut text = format!("GPU idle {}", seconds(idle.gpu_s));
    if let Some(kernel) = &idle.kernel {
        let time = idle.kernel_s.map(|s| format!(" {}", seconds(s)));
        let time = time.unwrap_or_default();
        // Only a Jupyter server knows of kernels.
        text.push_str(&match idle.source.as_deref() {
            Some(source) if source.starts_with("Jupyter") => {
                format!(", kernel {kernel}{time} ({source})")
            }
            _ => format!(", its processes {kernel}{time}"),
        });
    }
    if idle.kept {
        text.push_str("; kept by its owner");
    } else if let Some(left) = idle.ends_in_s {
        text.push_str(&format!(
            "; ended in {}, because others wait",
            seconds(left)
        ));
    } else if let Some(how) = idle.instead.as_deref() {
        let left = idle.detach_in_s.map(seconds);
        text.push_str(&match (how, left) {
            ("shrink", Some(left)) => {
                format!("; cannot be detached: made smaller in {left} if somebody waits")
            }
            ("release", Some(left)) => {
                format!("; cannot be detached: ended in {left} if that lets somebody start")
            }
            _ => "; cannot be detached".to_owned(),
        });
    } else if let Some(left) = idle.always_in_s {
        text.push_str(&format!("; detached in {}", seconds(left)));
    } else if let Some(left) = idle.detach_in_s {
        text.push_str(&format!(
            "; detached in {} if somebody waits",
            seconds(left)
        ));
    }
    Some(text)
}

/// The state in words.
pub(super) fn state(claim: &ClaimView) -> String {
    let text = if claim.state_text.is_empty() {
        match claim.state {
            ClaimState::Running => "run",
            ClaimState::Held => "held",
            ClaimState::Ending => "ending",
        }
    } else {
        &claim.state_text
    };
    match claim.caps {
        // Its state says so.
        Caps::None if !text.contains("no cap") => format!("{text}, no cap"),
        _ => text.to_owned(),
    }
}

pub(super) fn claim_cell(claim: &ClaimView, col: Col, plan: &Plan, look: &Look) -> (String, Style) {
    let (theme, glyphs) = (&look.theme, &look.glyphs);
    let sum = |f: fn(&gshare_proto::ClaimGpu) -> f64| claim.gpus.iter().map(f).sum::<f64>();
    let measured = |value| {
        if plan.wide {
            figure_percent(value, glyphs)
        } else {
            figure(value, glyphs)
        }
    };
    let plain = if claim.adopted {
        theme.unclaimed
    } else {
        theme.text
    };
    match col {
        // Nothing is requested, so there is nothing to be unknown about.
        Col::Request | Col::Limit if claim.adopted => ("-".to_owned(), theme.dim),
        Col::Time if claim.adopted => (figure(time_busy(claim), glyphs), theme.text),
        Col::State if claim.adopted => (format!(" {}", state(claim)), theme.unclaimed),
        Col::Id => (claim.id.clone(), plain),
        Col::User => (claim.user.clone(), plain),
        Col::Class => (short_class(&claim.class), theme.dim),
        Col::What => (what(claim), plain),
        Col::Gpu => (gpus(claim), theme.text),
        Col::Request => (share(sum(|g| g.sm_request)), theme.text),
        Col::Limit => (share(sum(|g| g.sm_limit)), theme.dim),
        Col::Memory => {
            let style = if claim.refusals > 0 {
                theme.warn
            } else {
                theme.text
            };
            (memory(claim, look), style)
        }
        Col::Time => {
            let n = claim.gpus.len().max(1) as f64;
            let requested = percent(sum(|g| g.sm_request) / n * 100.0);
            let time = figure(time_busy(claim), glyphs);
            (format!("{time}/{requested}"), theme.text)
        }
        Col::Sm => (measured(sm_active(claim)), theme.text),
        Col::Occ => (measured(sm_occupancy(claim)), theme.dim),
        Col::State => {
            let text = state(claim);
            let style = match claim.state {
                ClaimState::Ending => theme.dim,
                _ if claim.overuse.is_some()
                    || text.contains("idle")
                    || text.contains("at cap") =>
                {
                    theme.warn
                }
                ClaimState::Held => theme.dim,
                ClaimState::Running => theme.good,
            };
            (format!(" {text}"), style)
        }
    }
}

/// `inter`, `batch`, `infer`.
pub(super) fn short_class(class: &str) -> String {
    class.chars().take(5).collect()
}

fn process(process: &UnclaimedView) -> String {
    format!("{} {}", process.what, process.pid)
}

pub(super) fn unclaimed_cell(
    n: usize,
    unclaimed: &UnclaimedView,
    col: Col,
    look: &Look,
) -> (String, Style) {
    let (theme, glyphs) = (&look.theme, &look.glyphs);
    let dash = || (glyphs.dash.to_owned(), theme.dim);
    let text = |t: String| (t, theme.unclaimed);
    match col {
        Col::Id => text(format!("u{n}")),
        Col::User => unclaimed.user.clone().map_or_else(dash, text),
        Col::What => text(process(unclaimed)),
        Col::Gpu => text(unclaimed.gpu.to_string()),
        // Nothing is requested, so there is nothing to be unknown about.
        Col::Request | Col::Limit => ("-".to_owned(), theme.dim),
        Col::Memory => unclaimed.mem_used.map_or_else(dash, |b| text(gib(b))),
        Col::Time | Col::Sm | Col::Occ => dash(),
        Col::Class => ("-".to_owned(), theme.dim),
        Col::State if unclaimed.graphics => (" desktop".to_owned(), theme.dim),
        Col::State => (" no cap".to_owned(), theme.unclaimed),
    }
}

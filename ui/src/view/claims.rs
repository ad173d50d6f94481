//! The claims, and the processes that are in none: what each uses beside what it has claimed.

use std::ops::Range;

use gshare_proto::{Caps, ClaimState, ClaimView, GpuView, Snapshot, UnclaimedView};
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::{Row, Target, chosen, span, window};
use crate::model::{
    ClaimRow, Model, Section, Sort, claimed, compute_of, mem_claimed, mem_used, sm_active, words,
};
use crate::text::{cut, figure, gib, gib_or, percent, seconds, width};
use crate::theme::Look;
use crate::widgets::bullet::Bullet;
use crate::widgets::columns::{Column, GAP, row, total};

/// Columns of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Col {
    Id,
    User,
    What,
    Gpu,
    Compute,
    Used,
    Claim,
    Sm,
    Memory,
    MemUsed,
    MemClaim,
    State,
}

/// What a table of claims is drawn with.
#[derive(Clone, Copy)]
pub(super) struct Table<'a> {
    pub(super) model: &'a Model,
    pub(super) snapshot: &'a Snapshot,
    pub(super) look: &'a Look,
    pub(super) width: usize,
    /// Whether SM activity and occupancy are shown instead of bars.
    pub(super) figures: bool,
}

/// Heading and rows, in `room` rows.
pub(super) fn lines(table: Table<'_>, room: usize) -> Vec<Row> {
    let Table {
        model,
        look,
        width: cols,
        ..
    } = table;
    let rows = model.claim_rows();
    let columns = table.columns(&rows);
    let focus = model.section == Section::Claims;
    let places = room.saturating_sub(1);
    let at = model.chosen_index(Section::Claims).filter(|_| focus);
    let shown = window(rows.len(), places, at);
    let place = match shown.len() < rows.len() {
        true => format!("{}-{} of {}", shown.start + 1, shown.end, rows.len()),
        false => {
            let held = rows
                .iter()
                .filter(|r| matches!(r, ClaimRow::Claim(_)))
                .count();
            match rows.len() - held {
                0 => held.to_string(),
                n => format!("{held}, no claim {n}"),
            }
        }
    };
    let mut out = vec![table.heading(&columns, &place, focus)];
    for claim in &rows[shown] {
        let line = table.row(claim, &columns);
        let is_chosen = focus && model.current() == Some(&claim.key());
        let line = if is_chosen {
            chosen(line, cols, look)
        } else {
            line
        };
        out.push(Row::of(line, Section::Claims, claim.key()));
    }
    // What to do where nobody has a claim yet.
    if !rows.iter().any(|r| matches!(r, ClaimRow::Claim(_))) {
        let hints = nothing(model)
            .into_iter()
            .take(room.saturating_sub(out.len()));
        out.extend(hints.map(|text| Row::from(Line::styled(text, look.theme.dim))));
    }
    out
}

/// What to do where there are no rows.
pub(super) fn nothing(model: &Model) -> Vec<String> {
    if !model.filter.text().is_empty() {
        return vec![format!(
            "no row has `{}`; Esc shows all",
            model.filter.text()
        )];
    }
    match model.service() {
        Ok(()) => [
            "no claims. Press n, or run:",
            "gshare claim -g 0.5 -- python train.py   half a GPU for one program",
            "gshare claim -g 0.25 --hold              a quarter to keep, for many programs",
            "gshare adopt PID                         a claim for a program that runs",
        ]
        .map(str::to_owned)
        .to_vec(),
        Err(_) => vec!["no GPU processes".to_owned()],
    }
}

/// The order that a column is for.
fn sorted(col: Col) -> Option<Sort> {
    match col {
        Col::Id => Some(Sort::Id),
        Col::User => Some(Sort::User),
        Col::Gpu => Some(Sort::Gpu),
        Col::MemUsed => Some(Sort::Memory),
        Col::Used => Some(Sort::Time),
        Col::Sm => Some(Sort::Sm),
        _ => None,
    }
}

/// Cells of the bars.
const COMPUTE: usize = 18;
const MEMORY: usize = 10;

impl Table<'_> {
    /// The heading, and what a click on each of its columns sorts by.
    pub(super) fn heading(&self, columns: &[Column<Col>], place: &str, focus: bool) -> Row {
        let (theme, glyphs) = (&self.look.theme, &self.look.glyphs);
        let sort = self.model.sort;
        let names = [Col::Id, Col::User, Col::What];
        let is_name = |c: &&Column<Col>| names.contains(&c.key);
        let cols = total(&columns.iter().filter(is_name).cloned().collect::<Vec<_>>());
        let by = match sort {
            Sort::Id | Sort::User => format!("by {}{} ", sort.name(), glyphs.sorted),
            _ => String::new(),
        };
        let style = if focus { theme.focus } else { theme.heading };
        let rest = cut(&format!(" {by}{place}"), cols.saturating_sub(6), glyphs);
        let gap = cols.saturating_sub(6 + width(&rest)) + GAP;
        let mut spans = vec![
            span("CLAIMS", style),
            span(format!("{rest}{}", " ".repeat(gap)), theme.dim),
        ];
        let figures: Vec<Column<Col>> = columns.iter().filter(|c| !is_name(c)).cloned().collect();
        let title = |c: &Column<Col>| {
            let mark = if sorted(c.key) == Some(sort) {
                glyphs.sorted
            } else {
                ""
            };
            (format!("{}{mark}", c.title), theme.dim)
        };
        spans.extend(row(&figures, glyphs, title).spans);
        let mut from = 0;
        let mut hits: Vec<(Range<usize>, Target)> = Vec::new();
        for column in columns {
            let to = from + column.width;
            let by = sorted(column.key);
            hits.extend(by.map(|sort| (from..to, Target::Sort(sort))));
            from = to + GAP;
        }
        let line = Line::from(spans);
        Row { line, hits }
    }

    /// The columns for the width: figures get what they need, words share the rest, and where there is too little room
    /// what matters less goes.
    pub(super) fn columns(&self, rows: &[ClaimRow<'_>]) -> Vec<Column<Col>> {
        let longest = |col: Col| rows.iter().map(|r| width(&self.cell(r, col).0)).max();
        let longest = |col: Col| longest(col).unwrap_or(0);
        let wide = self.width >= super::WIDE;
        let user = longest(Col::User).clamp(4, if wide { 12 } else { 8 });
        let mut columns = vec![
            Column::words(Col::Id, "", longest(Col::Id).clamp(4, 7)),
            Column::words(Col::User, "", user),
            Column::words(Col::What, "", 0),
            Column::figures(Col::Gpu, "GPU", longest(Col::Gpu).clamp(3, 8)),
        ];
        if self.width >= 110 {
            columns.push(Column::words(Col::Compute, "  % of a GPU", COMPUTE + 2));
        }
        columns.extend([
            Column::figures(Col::Used, "% used", 6),
            Column::figures(Col::Claim, "claim", 5),
        ]);
        if self.figures {
            columns.push(Column::figures(Col::Sm, "SM %", 6));
        }
        if self.width >= if self.figures { 130 } else { 110 } {
            columns.push(Column::words(Col::Memory, "  of the GPU", MEMORY + 2));
        }
        columns.extend([
            Column::figures(Col::MemUsed, "GiB used", 8),
            Column::figures(Col::MemClaim, "claim", 5),
            Column::words(
                Col::State,
                " state",
                longest(Col::State).clamp(7, if wide { 40 } else { 23 }) + 1,
            ),
        ]);
        // The sign of the order stands behind a whole word.
        for column in &mut columns {
            if sorted(column.key) == Some(self.model.sort) {
                let sign = width(self.look.glyphs.sorted);
                column.width = column.width.max(width(column.title) + sign);
            }
        }
        // Words have 8 columns at least.
        let least = |columns: &[Column<Col>]| total(columns) + 8;
        for drop in [
            Col::Sm,
            Col::State,
            Col::User,
            Col::Gpu,
            Col::Claim,
            Col::MemClaim,
        ] {
            if least(&columns) <= self.width {
                break;
            }
            // What is to be said of it may be cut, down to a word.
            columns.retain(|c| c.key != drop || drop == Col::State);
            let state = columns.iter_mut().find(|c| c.key == drop);
            if let Some(state) = state {
                state.width = state.width.min(13);
            }
        }
        let rest = self.width.saturating_sub(total(&columns));
        let wanted = longest(Col::What).clamp(8, if wide { 36 } else { 24 });
        for column in &mut columns {
            match column.key {
                Col::What => column.width = rest.min(wanted),
                Col::State => column.width += rest - rest.min(wanted),
                _ => {}
            }
        }
        columns
    }

    /// A claim, or a program without one.
    pub(super) fn row(&self, of: &ClaimRow<'_>, columns: &[Column<Col>]) -> Line<'static> {
        let (theme, glyphs) = (&self.look.theme, &self.look.glyphs);
        let mut line = row(columns, glyphs, |c| self.cell(of, c.key));
        // A cell and a gap are two spans; bars and signs have colours of their own.
        let spans = std::mem::take(&mut line.spans);
        for (i, drawn) in spans.into_iter().enumerate() {
            let column = columns.get(i / 2).filter(|_| i % 2 == 0);
            let bar = column.and_then(|c| self.bar(of, c.key));
            match (bar, column.map(|c| c.key)) {
                (Some((bullet, cells)), _) => {
                    line.push_span(Span::raw("  "));
                    line.spans.extend(bullet.spans(cells, self.look));
                }
                (None, Some(Col::State)) if drawn.content.contains(glyphs.sign) => {
                    let (before, after) = drawn.content.split_once(glyphs.sign).unwrap_or_default();
                    line.push_span(Span::raw(before.to_owned()));
                    line.push_span(Span::styled(glyphs.sign, theme.warn));
                    line.push_span(Span::styled(after.to_owned(), drawn.style));
                }
                _ => line.push_span(drawn),
            }
        }
        line
    }

    /// A bar of a whole GPU, and its cells.
    fn bar(&self, of: &ClaimRow<'_>, col: Col) -> Option<(Bullet, usize)> {
        let ClaimRow::Claim(claim) = of else {
            return matches!(col, Col::Compute | Col::Memory).then(|| (Bullet::default(), 0));
        };
        let gpus = claim.gpus.len().max(1) as f64;
        match col {
            Col::Compute => Some((
                Bullet {
                    used: compute_of(claim, self.snapshot).map(|f| f.value / gpus),
                    claim: claimed(claim) / gpus,
                    whole: 100.0,
                },
                COMPUTE,
            )),
            Col::Memory => {
                let on = |g: &&GpuView| claim.gpus.iter().any(|p| p.gpu == g.index);
                let whole: Option<u64> = self
                    .snapshot
                    .gpus
                    .iter()
                    .filter(on)
                    .map(GpuView::mem_whole)
                    .sum();
                let bullet = Bullet {
                    used: mem_used(claim).map(|b| b as f64),
                    claim: mem_claimed(claim) as f64,
                    whole: whole.unwrap_or(0) as f64,
                };
                Some((bullet, MEMORY))
            }
            _ => None,
        }
    }

    fn cell(&self, of: &ClaimRow<'_>, col: Col) -> (String, Style) {
        match of {
            ClaimRow::Claim(claim) => self.claim_cell(claim, col),
            ClaimRow::Unclaimed(n, program) => self.program_cell(*n, program, col),
        }
    }

    fn claim_cell(&self, claim: &ClaimView, col: Col) -> (String, Style) {
        let (theme, glyphs) = (&self.look.theme, &self.look.glyphs);
        let mine = claim.uid == self.model.viewer.uid;
        let name = if mine { theme.strong } else { theme.text };
        let size = |text: String| match claim.adopted {
            true => ("-".to_owned(), theme.dim),
            false => (text, theme.dim),
        };
        match col {
            Col::Id => (
                format!("{}{}", if mine { glyphs.mine } else { " " }, claim.id),
                name,
            ),
            Col::User => (claim.user.clone(), name),
            Col::What => (what(claim), name),
            Col::Gpu => (gpus(claim), theme.text),
            Col::Used => (
                figure(compute_of(claim, self.snapshot), glyphs),
                theme.strong,
            ),
            Col::Claim => size(percent(claimed(claim))),
            Col::Sm => (figure(sm_active(claim), glyphs), theme.text),
            Col::MemUsed => (gib_or(mem_used(claim), glyphs), theme.strong),
            Col::MemClaim => size(gib(mem_claimed(claim))),
            Col::State => {
                let words = words(claim, self.snapshot, self.model.clock, glyphs.arrow);
                let sign = if words.sign {
                    format!(" {} ", glyphs.sign)
                } else {
                    " ".to_owned()
                };
                (format!("{sign}{}", words.text), theme.text)
            }
            Col::Compute | Col::Memory => (String::new(), theme.text),
        }
    }

    fn program_cell(&self, n: usize, program: &UnclaimedView, col: Col) -> (String, Style) {
        let (theme, glyphs) = (&self.look.theme, &self.look.glyphs);
        let dash = || (glyphs.dash.to_owned(), theme.dim);
        match col {
            Col::Id => (format!(" u{n}"), theme.text),
            Col::User => program.user.clone().map_or_else(dash, |u| (u, theme.text)),
            Col::What => (format!("{} {}", program.what, program.pid), theme.text),
            Col::Gpu => (program.gpu.to_string(), theme.text),
            // Nothing is claimed, so there is nothing to be unknown about.
            Col::Claim | Col::MemClaim => ("-".to_owned(), theme.dim),
            Col::MemUsed => program
                .mem_used
                .map_or_else(dash, |b| (gib(b), theme.strong)),
            Col::Sm => (figure(program.sm_active, glyphs), theme.text),
            Col::Used => dash(),
            Col::State if program.graphics => (" desktop".to_owned(), theme.dim),
            Col::State => (format!(" {} no claim", glyphs.sign), theme.text),
            Col::Compute | Col::Memory => (String::new(), theme.text),
        }
    }
}

/// `0,1`.
pub(super) fn gpus(claim: &ClaimView) -> String {
    if claim.place.in_host() {
        return "-".to_owned();
    }
    let names: Vec<String> = claim.gpus.iter().map(|g| g.gpu.to_string()).collect();
    names.join(",")
}

pub(crate) fn what(claim: &ClaimView) -> String {
    match &claim.name {
        Some(name) if claim.what.is_empty() => name.clone(),
        Some(name) if *name != claim.what => format!("{name}: {}", claim.what),
        _ if claim.what.is_empty() && claim.state == ClaimState::Held => {
            "(held, no program)".to_owned()
        }
        _ => claim.what.clone(),
    }
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

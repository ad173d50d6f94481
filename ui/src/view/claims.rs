//! The claims, and the processes that are in none: what each uses beside what it has claimed.

use std::ops::Range;

use gshare_proto::{ClaimState, ClaimView, GpuView, UnclaimedView};
use ratatui::text::Line;

use super::{Row, Target, View, line, place, span, window};
use crate::model::{
    ClaimRow, Model, Section, Sort, claimed, compute_of, mem_claimed, mem_used, sm_active,
};
use crate::text::{gib, percent, seconds, width};
use crate::widgets::bullet::Bullet;
use crate::widgets::columns::{Column, GAP, row, total};

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

#[derive(Clone, Copy)]
pub(super) struct Table<'a> {
    pub(super) view: View<'a>,
    pub(super) width: usize,
    /// Whether SM activity and occupancy are shown instead of bars.
    pub(super) figures: bool,
}

/// Heading and rows, in `room` rows.
pub(super) fn lines(table: Table<'_>, room: usize) -> Vec<Row> {
    let model = table.view.model;
    let rows = model.claim_rows();
    let columns = table.columns(&rows);
    let focus = model.section == Section::Claims;
    let at = model.chosen_index(Section::Claims).filter(|_| focus);
    let shown = window(rows.len(), room.saturating_sub(1), at);
    let is_claim = |r: &&ClaimRow<'_>| matches!(r, ClaimRow::Claim(_));
    let held = rows.iter().filter(is_claim).count();
    let place = match (shown.len() < rows.len(), rows.len() - held) {
        (true, _) => place(&shown, rows.len()),
        (false, 0) => held.to_string(),
        (false, n) => format!("{held}, no claim {n}"),
    };
    let mut out = vec![table.heading(&columns, &place, focus)];
    for claim in &rows[shown] {
        let line = table.row(claim, &columns);
        out.push(
            table
                .view
                .row(line, table.width, Section::Claims, claim.key()),
        );
    }
    // What to do where nobody has a claim yet.
    if held == 0 {
        let room = room.saturating_sub(out.len());
        out.extend(hints(&table.view).take(room));
    }
    out
}

/// What to do, a row for each line.
pub(super) fn hints(view: &View<'_>) -> impl Iterator<Item = Row> {
    let style = view.theme.dim;
    let lines = nothing(view.model).into_iter();
    lines.map(move |text| Line::styled(text, style).into())
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

impl Col {
    /// Whether it says whose a claim is and what it runs; the heading of the table stands above these.
    pub(super) fn is_name(self) -> bool {
        matches!(self, Self::Id | Self::User | Self::What)
    }

    /// The order that it is for.
    fn sorted(self) -> Option<Sort> {
        match self {
            Self::Id => Some(Sort::Id),
            Self::User => Some(Sort::User),
            Self::Gpu => Some(Sort::Gpu),
            Self::MemUsed => Some(Sort::Memory),
            Self::Used => Some(Sort::Time),
            Self::Sm => Some(Sort::Sm),
            _ => None,
        }
    }
}

/// The columns of names, and those of figures, which stand behind them.
pub(super) fn halves(columns: &[Column<Col>]) -> (&[Column<Col>], &[Column<Col>]) {
    columns.split_at(columns.iter().take_while(|c| c.key.is_name()).count())
}

const COMPUTE: usize = 18;
const MEMORY: usize = 10;

impl Table<'_> {
    /// The heading, and what a click on each of its columns sorts by.
    pub(super) fn heading(&self, columns: &[Column<Col>], place: &str, focus: bool) -> Row {
        let (theme, glyphs) = (self.view.theme, self.view.glyphs);
        let sort = self.view.model.sort;
        let (names, figures) = halves(columns);
        let cols = total(names);
        let by = match sort {
            Sort::Id | Sort::User => format!("by {}{} ", sort.name(), glyphs.sorted),
            _ => String::new(),
        };
        let style = if focus { theme.focus } else { theme.heading };
        let rest = self
            .view
            .cut(&format!(" {by}{place}"), cols.saturating_sub(6));
        let gap = cols.saturating_sub(6 + width(&rest)) + GAP;
        let mut line = Line::from(span("CLAIMS", style));
        line.push_span(span(format!("{rest}{}", " ".repeat(gap)), theme.dim));
        let title = |c: &Column<Col>| {
            let is_sorted = c.key.sorted() == Some(sort);
            let mark = if is_sorted { glyphs.sorted } else { "" };
            Line::styled(format!("{}{mark}", c.title), theme.dim)
        };
        line.extend(row(figures, self.view.look, title));
        let mut from = 0;
        let mut hits: Vec<(Range<usize>, Target)> = Vec::new();
        for column in columns {
            let to = from + column.width;
            let by = column.key.sorted();
            hits.extend(by.map(|sort| (from..to, Target::Sort(sort))));
            from = to + GAP;
        }
        Row { line, hits }
    }

    /// The columns for the width: figures get what they need, words share the rest, and where there is too little room
    /// what matters less goes.
    pub(super) fn columns(&self, rows: &[ClaimRow<'_>]) -> Vec<Column<Col>> {
        let longest = |col: Col| rows.iter().map(|r| self.cell(r, col).width()).max();
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
            if column.key.sorted() == Some(self.view.model.sort) {
                let sign = width(self.view.glyphs.sorted);
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
        row(columns, self.view.look, |c| self.cell(of, c.key))
    }

    /// A bar behind two blanks.
    fn bar(&self, bullet: Bullet, cells: usize) -> Line<'static> {
        let mut line = Line::from("  ");
        line.extend(bullet.spans(cells, self.view.look));
        line
    }

    fn cell(&self, of: &ClaimRow<'_>, col: Col) -> Line<'static> {
        match of {
            ClaimRow::Claim(claim) => self.claim_cell(claim, col),
            ClaimRow::Unclaimed(n, program) => self.program_cell(*n, program, col),
        }
    }

    fn claim_cell(&self, claim: &ClaimView, col: Col) -> Line<'static> {
        let (view, snapshot) = (&self.view, self.view.snapshot);
        let mine = claim.uid == view.model.viewer.uid;
        let name = |text: String| match mine {
            true => line!(view; strong text),
            false => line!(view; text text),
        };
        let size = |text: String| match claim.adopted {
            true => line!(view; dim "-"),
            false => line!(view; dim text),
        };
        let gpus_of = claim.gpus.len().max(1) as f64;
        match col {
            Col::Id => {
                let mark = if mine { view.glyphs.mine } else { " " };
                name(format!("{mark}{}", claim.id))
            }
            Col::User => name(claim.user.clone()),
            Col::What => name(what(claim)),
            Col::Gpu => gpus(claim).into(),
            Col::Used => line!(view; strong view.figure(compute_of(claim, snapshot))),
            Col::Claim => size(percent(claimed(claim))),
            Col::Sm => view.figure(sm_active(claim)).into(),
            Col::MemUsed => line!(view; strong view.gib(mem_used(claim))),
            Col::MemClaim => size(gib(mem_claimed(claim))),
            Col::State => {
                let words = view.words(claim);
                match words.sign {
                    true => {
                        line!(view; text " ", warn view.glyphs.sign, text format!(" {}", words.text))
                    }
                    false => format!(" {}", words.text).into(),
                }
            }
            Col::Compute => {
                let bullet = Bullet {
                    used: compute_of(claim, snapshot).map(|f| f.value / gpus_of),
                    claim: claimed(claim) / gpus_of,
                    whole: 100.0,
                };
                self.bar(bullet, COMPUTE)
            }
            Col::Memory => {
                let on = |g: &&GpuView| claim.gpus.iter().any(|p| p.gpu == g.index);
                let gpus = snapshot.gpus.iter().filter(on);
                let whole: Option<u64> = gpus.map(GpuView::mem_whole).sum();
                let bullet = Bullet {
                    used: mem_used(claim).map(|b| b as f64),
                    claim: mem_claimed(claim) as f64,
                    whole: whole.unwrap_or(0) as f64,
                };
                self.bar(bullet, MEMORY)
            }
        }
    }

    fn program_cell(&self, n: usize, program: &UnclaimedView, col: Col) -> Line<'static> {
        let view = &self.view;
        let known = |text: Option<String>| match text {
            Some(text) => line!(view; text text),
            None => line!(view; dim view.glyphs.dash),
        };
        match col {
            Col::Id => format!(" u{n}").into(),
            Col::User => known(program.user.clone()),
            Col::What => format!("{} {}", program.what, program.pid).into(),
            Col::Gpu => program.gpu.to_string().into(),
            // Nothing is claimed, so there is nothing to be unknown about.
            Col::Claim | Col::MemClaim => line!(view; dim "-"),
            Col::MemUsed => known(program.mem_used.map(gib)),
            Col::Sm => view.figure(program.sm_active).into(),
            Col::Used => known(None),
            Col::State if program.graphics => line!(view; dim " desktop"),
            Col::State => line!(view; text " ", warn view.glyphs.sign, text " no claim"),
            Col::Compute | Col::Memory => Line::default(),
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
        text += &match idle.source.as_deref() {
            Some(source) if source.starts_with("Jupyter") => {
                format!(", kernel {kernel}{time} ({source})")
            }
            _ => format!(", its processes {kernel}{time}"),
        };
    }
    let left = idle.detach_in_s.map(seconds);
    text += &match (idle.instead.as_deref(), left) {
        _ if idle.kept => "; kept by its owner".to_owned(),
        _ if let Some(left) = idle.ends_in_s => {
            format!("; ended in {}, because others wait", seconds(left))
        }
        (Some("shrink"), Some(left)) => {
            format!("; cannot be offloaded: made smaller in {left} if somebody waits")
        }
        (Some("release"), Some(left)) => {
            format!("; cannot be offloaded: ended in {left} if that lets somebody start")
        }
        (Some(_), _) => "; cannot be offloaded".to_owned(),
        _ if let Some(left) = idle.always_in_s => format!("; offloaded in {}", seconds(left)),
        (None, Some(left)) => format!("; offloaded in {left} if somebody waits"),
        (None, None) => String::new(),
    };
    Some(text)
}

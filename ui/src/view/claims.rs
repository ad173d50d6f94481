//! The table of claims and of processes without a claim: what each uses beside what it has claimed.

use std::ops::Range;

use gshare_proto::counts::many;
use gshare_proto::gain::{self, Gain};
use gshare_proto::{ClaimState, ClaimView, GpuView, Snapshot, UnclaimedView};
use ratatui::layout::{Constraint, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row as Cells, Table};

use super::{Scene, Target, View, below, cells, fit, line, line_width, place, span, window};
use crate::model::{
    ClaimRow, Model, Section, Sort, Words, claimed, compute_of, mem_claimed, mem_used, sm_active,
};
use crate::text::{gib, percent, seconds, width};
use crate::widgets::bullet::Bullet;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Col {
    /// Indent of claims in their groups.
    Indent,
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

/// The visible columns, with their widths.
pub(super) type Columns = [(Col, usize)];

#[derive(Clone, Copy)]
pub(super) struct Claims<'a> {
    view: View<'a>,
    width: usize,
    /// Whether the claims are grouped, with SM activity.
    groups: bool,
}

pub(super) fn draw(view: &View<'_>, rows: &[ClaimRow<'_>], area: Rect, scene: &mut Scene<'_>) {
    let table = Claims::new(view, area.width.into(), false);
    let columns = table.columns(rows);
    let focus = view.model.section == Section::Claims;
    let is_chosen = |row: &ClaimRow<'_>| view.is_chosen(Section::Claims, &row.key());
    let at = rows.iter().position(is_chosen);
    let held = held(rows);
    // Hints for a machine without claims matter more than the last programs.
    let room = usize::from(area.height).saturating_sub(1);
    let hinted = room >= 8 && held == 0;
    let gain = if hinted { gain(view).len() } else { 0 };
    let shown = window(rows.len(), room - gain, at);
    let (word, place) = counted(&shown, rows);
    let lines = rows[shown]
        .iter()
        .map(|row| (row.key(), table.row(row, &columns)));
    let (keys, lines): (Vec<_>, Vec<_>) = lines.unzip();
    if held == 0 {
        scene.rows(hints(view), below(area, 1 + cells(keys.len())));
    }
    let table = table.table(&columns, (word, &place, focus), lines, area, scene);
    scene.table(view, table, area, (Section::Claims, 1, keys));
}

fn held(rows: &[ClaimRow<'_>]) -> usize {
    let is_claim = |row: &&ClaimRow<'_>| matches!(row, ClaimRow::Claim(_));
    rows.iter().filter(is_claim).count()
}

/// The title above these rows, with their number or range: claims, then programs without one.
pub(super) fn counted(shown: &Range<usize>, rows: &[ClaimRow<'_>]) -> (&'static str, String) {
    let (held, all) = (held(rows), rows.len());
    let part = |from: usize, to: usize| {
        let shown = shown.start.clamp(from, to) - from..shown.end.clamp(from, to) - from;
        match shown.len() {
            n if n == 0 || n == to - from => (to - from).to_string(),
            _ => place(&shown, to - from),
        }
    };
    match (held, shown.end > held) {
        (0, true) => ("NO CLAIM", part(0, all)),
        (_, true) => (
            "CLAIMS",
            format!("{}, no claim {}", part(0, held), part(held, all)),
        ),
        (_, false) => ("CLAIMS", part(0, held)),
    }
}

/// What claims would gain if there are none, and how to make one; one row for each line.
pub(super) fn hints(view: &View<'_>) -> impl Iterator<Item = Line<'static>> {
    let style = view.theme.dim;
    let lines = nothing(view.model).into_iter();
    let lines = lines.map(move |text| Line::styled(text, style));
    gain(view).into_iter().chain(lines)
}

/// How few GPUs the programs without a claim would need.
fn gain(view: &View<'_>) -> Vec<Line<'static>> {
    let is_held = |gain: &Gain| gain.held > 1 && view.model.filter.text().is_empty();
    let Some(gain) = gain::gain(view.snapshot).filter(is_held) else {
        return Vec::new();
    };
    let row = |needed: usize, text: String| {
        let free = many(gain.held.saturating_sub(needed), "GPU");
        line!(view; strong format!(" {free} would be free  "), text text)
    };
    let (all, gpus) = (many(gain.programs, "program"), many(gain.needed, "GPU"));
    let fit = format!("{all} fit on {gpus}, by their memory and GPU time");
    let mut out = vec![
        line!(view; heading "WHAT SHARING WOULD GAIN"),
        row(gain.needed, fit),
    ];
    if gain.needed_by_busy < gain.needed {
        let (idle, bytes) = (many(gain.idle, "program"), gib(gain.idle_bytes));
        let text = format!("if {idle} ({bytes} GiB, idle for 10 min) also moved to RAM");
        out.push(row(gain.needed_by_busy, text));
    }
    out.push(line!(view; dim "  only what has a claim is moved or offloaded"));
    out
}

fn nothing(model: &Model) -> Vec<String> {
    let filter = model.filter.text();
    let lines = match model.service() {
        _ if !filter.is_empty() => return vec![format!("no row has `{filter}`; Esc shows all")],
        Err(_) => return vec!["no GPU processes".to_owned()],
        Ok(()) if model.mine => return vec!["no claims of yours; m shows all".to_owned()],
        Ok(()) => [
            "no claims. Press n, or run:",
            "gshare claim -g 0.5 -- python3 train.py  half a GPU for one program",
            "gshare claim -g 0.25 --hold              a quarter to keep, for many programs",
            "gshare adopt PID                         a claim for a program that runs",
        ],
    };
    lines.map(str::to_owned).to_vec()
}

impl Col {
    /// Whether it names a claim's owner and program; the heading of the table stands above these.
    pub(super) fn is_name(self) -> bool {
        matches!(self, Self::Indent | Self::Id | Self::User | Self::What)
    }

    /// Its title, its sort order, and whether it has words, which are left-aligned.
    fn about(self) -> (&'static str, Option<Sort>, bool) {
        match self {
            Self::Indent | Self::What => ("", None, true),
            Self::Id => ("", Some(Sort::Id), true),
            Self::User => ("", Some(Sort::User), true),
            Self::Gpu => ("GPU", Some(Sort::Gpu), false),
            Self::Compute => ("  % of a GPU", None, true),
            Self::Used => ("% used", Some(Sort::Time), false),
            Self::Claim | Self::MemClaim => ("claim", None, false),
            Self::Sm => ("SM %", Some(Sort::Sm), false),
            Self::Memory => ("  of the GPU", None, true),
            Self::MemUsed => ("GiB used", Some(Sort::Memory), false),
            Self::State => (" state", None, true),
        }
    }

    /// Figures are right-aligned; what does not fit is cut with an ellipsis.
    fn cell(self, cols: usize, view: &View<'_>, line: Line<'static>) -> Cell<'static> {
        let line = fit(line, cols, view.look);
        Cell::from(if self.about().2 {
            line
        } else {
            line.right_aligned()
        })
    }
}

fn total(columns: &Columns) -> usize {
    let all: usize = columns.iter().map(|(_, cols)| cols + 1).sum();
    all.saturating_sub(1)
}

/// A row whose first columns share one cell.
pub(super) fn joined(
    columns: &Columns,
    view: &View<'_>,
    (is_first, name): (fn(Col) -> bool, Line<'static>),
    cell: impl Fn(Col) -> Line<'static>,
) -> Cells<'static> {
    let n = columns.iter().take_while(|c| is_first(c.0)).count();
    let (first, figures) = columns.split_at(n);
    let name = Cell::from(fit(name, total(first), view.look)).column_span(cells(n));
    let figures = figures.iter().map(|c| c.0.cell(c.1, view, cell(c.0)));
    Cells::new([name].into_iter().chain(figures))
}

const COMPUTE: usize = 18;
const MEMORY: usize = 10;

impl<'a> Claims<'a> {
    pub(super) fn new(view: &View<'a>, width: usize, groups: bool) -> Self {
        let view = *view;
        Self {
            view,
            width,
            groups,
        }
    }

    /// These rows below the heading, on which a click sorts.
    pub(super) fn table(
        &self,
        columns: &Columns,
        head: (&'static str, &str, bool),
        rows: Vec<Cells<'static>>,
        area: Rect,
        scene: &mut Scene<'_>,
    ) -> Table<'static> {
        let mut x = area.x;
        for (col, cols) in columns {
            let title = Rect::new(x, area.y, cells(*cols), 1).intersection(area);
            if let Some(sort) = col.about().1 {
                scene.hit(title, Target::Sort(sort));
            }
            x += title.width + 1;
        }
        let widths = columns.iter().map(|c| Constraint::Length(cells(c.1)));
        let head = self.heading(columns, head);
        Table::new([head].into_iter().chain(rows), widths)
    }

    fn sorted(&self) -> &'static str {
        self.view.glyphs.sorted[usize::from(self.view.model.reversed)]
    }

    fn heading(
        &self,
        columns: &Columns,
        (word, place, focus): (&'static str, &str, bool),
    ) -> Cells<'static> {
        let theme = self.view.theme;
        let sort = self.view.model.sort;
        let by = match sort {
            Sort::Id | Sort::User => format!("by {}{} ", sort.name(), self.sorted()),
            Sort::Need if self.view.model.reversed => format!("by need{} ", self.sorted()),
            _ => String::new(),
        };
        let style = if focus { theme.focus } else { theme.heading };
        let names = columns.iter().filter(|(col, _)| col.is_name());
        let room: usize = names.map(|(_, cols)| cols + 1).sum();
        // `1-3/6` if `1-3 of 6` would be cut, and claims alone if both do not fit.
        let short = place.replace(" of ", "/");
        let alone = short.split(',').next().unwrap_or_default();
        let fits = |p: &&str| width(word) + 1 + width(&by) + width(p) < room;
        let place = [place, &short].into_iter().find(fits).unwrap_or(alone);
        let head = vec![span(word, style), span(format!(" {by}{place}"), theme.dim)];
        joined(columns, &self.view, (Col::is_name, head.into()), |col| {
            let (title, order, _) = col.about();
            let mark = Some(self.sorted()).filter(|_| order == Some(sort));
            line!(self.view; dim title, dim mark.unwrap_or_default())
        })
    }

    /// The columns for the width: figures get what they need, words share the rest, and the least important columns
    /// are dropped.
    pub(super) fn columns(&self, rows: &[ClaimRow<'_>]) -> Vec<(Col, usize)> {
        let longest = |col: Col| rows.iter().map(|r| line_width(&self.cell(r, col))).max();
        let longest = |col: Col| longest(col).unwrap_or(0);
        let wide = self.width >= super::WIDE;
        let user = longest(Col::User).clamp(4, if wide { 12 } else { 8 });
        let state = longest(Col::State).clamp(7, if wide { 40 } else { 23 });
        let all = [
            (Col::Indent, 1),
            (Col::Id, longest(Col::Id).clamp(4, 7)),
            (Col::User, user),
            (Col::What, 0),
            (Col::Gpu, longest(Col::Gpu).clamp(3, 8)),
            (Col::Compute, COMPUTE + 2),
            (Col::Used, 6),
            (Col::Claim, 5),
            (Col::Sm, 6),
            (Col::Memory, MEMORY + 2),
            (Col::MemUsed, 8),
            (Col::MemClaim, 5),
            (Col::State, state + 1),
        ];
        let mut columns = all.to_vec();
        columns.retain(|(col, _)| match col {
            Col::Indent | Col::Sm => self.groups,
            Col::Compute => self.width >= 110,
            Col::Memory => self.width >= if self.groups { 130 } else { 110 },
            _ => true,
        });
        // The sign of the order needs a whole word before it.
        for (col, cols) in &mut columns {
            let (title, order, _) = col.about();
            if order == Some(self.view.model.sort) {
                *cols = (*cols).max(width(title) + width(self.sorted()));
            }
        }
        // Words have at least 8 columns.
        for drop in [
            Col::Sm,
            Col::State,
            Col::User,
            Col::Gpu,
            Col::Claim,
            Col::MemClaim,
        ] {
            if total(&columns) + 8 <= self.width {
                break;
            }
            // The state may be cut, down to a word.
            columns.retain(|(col, _)| *col != drop || drop == Col::State);
            let state = columns.iter_mut().find(|(col, _)| *col == drop);
            if let Some((_, cols)) = state {
                *cols = (*cols).min(13);
            }
        }
        let rest = self.width.saturating_sub(total(&columns));
        let wanted = longest(Col::What).clamp(8, if wide { 36 } else { 24 });
        for (col, cols) in &mut columns {
            match col {
                Col::What => *cols = rest.min(wanted),
                Col::State => *cols += rest - rest.min(wanted),
                _ => {}
            }
        }
        columns
    }

    pub(super) fn row(&self, of: &ClaimRow<'_>, columns: &Columns) -> Cells<'static> {
        let line = |col: Col, cols| match (col, of) {
            (Col::State, ClaimRow::Claim(claim)) => self.state(claim, cols),
            _ => self.cell(of, col),
        };
        let cells = columns.iter();
        Cells::new(cells.map(|(col, cols)| col.cell(*cols, &self.view, line(*col, *cols))))
    }

    /// A bar after two blanks.
    fn bar(&self, bullet: Bullet, cells: usize) -> Line<'static> {
        let mut line = Line::from("  ");
        line.extend(bullet.line(cells, self.view.look));
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
        match col {
            Col::Indent => Line::default(),
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
            Col::State => self.state(claim, usize::MAX),
            Col::Compute => self.bar(compute(claim, snapshot), COMPUTE),
            Col::Memory => {
                let on = |g: &&GpuView| claim.gpus.iter().any(|p| p.gpu == g.index);
                let gpus = snapshot.gpus.iter().filter(on);
                let whole: Option<u64> = gpus.map(GpuView::mem_whole).sum();
                let memory = Bullet::bytes(mem_used(claim), mem_claimed(claim), whole);
                self.bar(memory, MEMORY)
            }
        }
    }

    /// The state of a claim, in whole words.
    fn state(&self, claim: &ClaimView, cols: usize) -> Line<'static> {
        let view = &self.view;
        let Words { sign, mut text } = view.words(claim);
        let room = cols.saturating_sub(if sign { 3 } else { 1 });
        if width(&text) > room {
            // Shorten to the number of refusals.
            let short = text.replace(" allocations", "").replace(" allocation", "");
            text = view.brief(&short, room);
        }
        match sign {
            true => line!(view; text " ", warn view.glyphs.sign, text format!(" {text}")),
            false => format!(" {text}").into(),
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
            // Nothing is claimed, so nothing is unknown.
            Col::Claim | Col::MemClaim => line!(view; dim "-"),
            Col::MemUsed => known(program.mem_used.map(gib)),
            Col::Sm => view.figure(program.sm_active).into(),
            Col::Used => known(None),
            Col::State if program.graphics => line!(view; dim " desktop"),
            Col::State => line!(view; text " ", warn view.glyphs.sign, text " no claim"),
            Col::Indent | Col::Compute | Col::Memory => Line::default(),
        }
    }
}

/// Use beside the claim on the scale of its GPUs.
pub(super) fn compute(claim: &ClaimView, snapshot: &Snapshot) -> Bullet {
    Bullet {
        used: compute_of(claim, snapshot).map(|f| f.value),
        claim: claimed(claim),
        whole: 100.0 * claim.gpus.len().max(1) as f64,
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
    // A claim without a command runs nothing.
    let what = if claim.what == "-" { "" } else { &claim.what };
    match &claim.name {
        Some(name) if what.is_empty() => name.clone(),
        Some(name) if name != what => format!("{name}: {what}"),
        _ if what.is_empty() && claim.state == ClaimState::Held => "(no program)".to_owned(),
        _ => what.to_owned(),
    }
}

/// Shorter idleness is not shown, in seconds.
const IDLE_SHOWN_S: u64 = 60;

/// Since when a claim is idle, the source, and what will happen.
pub(super) fn idle(claim: &ClaimView) -> Option<String> {
    let idle = claim.idle.as_ref()?;
    // A pause between two kernels is not shown.
    if idle.gpu_s < IDLE_SHOWN_S && !idle.warned && !idle.kept {
        return None;
    }
    let mut text = format!("GPU idle {}", seconds(idle.gpu_s));
    if let Some(kernel) = &idle.kernel {
        let time = idle.kernel_s.map(|s| format!(" {}", seconds(s)));
        let time = time.unwrap_or_default();
        // Only a Jupyter server knows the state of kernels.
        text += &match idle.source.as_deref() {
            Some(source) if source.starts_with("Jupyter") => {
                format!(", notebook kernel {kernel}{time} ({source})")
            }
            _ => format!(", its processes {kernel}{time}"),
        };
    }
    let left = idle.detach_in_s.map(seconds);
    text += &match (idle.instead.as_deref(), left) {
        _ if idle.kept => "; kept by its owner".to_owned(),
        _ if let Some(left) = idle.ends_in_s => {
            format!("; will be ended in {}, because others wait", seconds(left))
        }
        (Some("shrink"), Some(left)) => {
            format!("; cannot be offloaded: will be made smaller in {left} if another claim waits")
        }
        (Some("release"), Some(left)) => {
            format!(
                "; cannot be offloaded: will be ended in {left} if another claim can then start"
            )
        }
        (Some(_), _) => "; cannot be offloaded".to_owned(),
        _ if let Some(left) = idle.always_in_s => format!("; offloaded in {}", seconds(left)),
        (None, Some(left)) => format!("; offloaded in {left} if another claim waits"),
        (None, None) => String::new(),
    };
    Some(text)
}

//! The GPUs: allocation beside use, for memory and for SMs, and the time busy apart from both.

mod heading;

use gshare_proto::{ClaimView, GpuState, GpuView, Snapshot};
use ratatui::text::{Line, Span};

use super::plan::Plan;
use super::{Row, chosen, fit, span, window};
use crate::model::{Model, RowKey, Section, condition};
use crate::text::{cut, figure, figure_percent, gib, gib_or, left, percent, right, share, width};
use crate::theme::Look;
use crate::widgets::share_bar::ShareBar;
use crate::widgets::spark::spark;

/// Whether a claim holds a part of a GPU.
pub(super) fn is_on(claim: &ClaimView, gpu: u32) -> bool {
    !claim.place.in_host() && claim.gpus.iter().any(|g| g.gpu == gpu)
}

/// Whether there is something to say under each GPU.
pub(super) fn has_notes(snapshot: &Snapshot) -> bool {
    snapshot.service.is_some()
}

/// Heading and GPUs.
pub(super) fn lines(model: &Model, snapshot: &Snapshot, look: &Look, plan: &Plan) -> Vec<Row> {
    let table = Table::new(model, snapshot, look, plan);
    let n = snapshot.gpus.len();
    let shown = window(n, plan.gpus, model.chosen_index(Section::Gpus));
    let hidden = n - shown.len();
    let mut out = vec![Row::from(table.heading(hidden))];
    for gpu in &snapshot.gpus[shown] {
        let mut rows = table.gpu(gpu);
        rows.truncate(plan.gpu_rows);
        rows.resize(plan.gpu_rows, Line::default());
        let is_chosen =
            model.section == Section::Gpus && model.current() == Some(&RowKey::Gpu(gpu.index));
        for (i, row) in rows.into_iter().enumerate() {
            let row = fit(row, plan.width, look);
            let row = if is_chosen && i == 0 {
                chosen(row, plan.width, look)
            } else {
                row
            };
            out.push(Row::of(row, Section::Gpus, RowKey::Gpu(gpu.index)));
        }
    }
    out
}

/// `4090` of `RTX 4090`, `H100` of `H100 80GB`.
fn tiny(short: &str) -> String {
    let words: Vec<&str> = short
        .split_whitespace()
        .filter(|w| *w != "RTX" && *w != "NVIDIA" && *w != "GeForce" && !w.ends_with("GB"))
        .collect();
    if words.is_empty() {
        short.to_owned()
    } else {
        words.join(" ")
    }
}

/// Widths that all GPUs share.
struct Table<'a> {
    model: &'a Model,
    snapshot: &'a Snapshot,
    look: &'a Look,
    width: usize,
    tall: bool,
    /// Index and name.
    name: usize,
    /// Bars with brackets.
    mem_bar: usize,
    sm_bar: usize,
    /// Figures behind them.
    mem_text: usize,
    sm_text: usize,
    occ: usize,
    busy: usize,
    history: usize,
}

/// What is drawn of one GPU, in bytes and percent.
struct Sums {
    mem: ShareBar,
    sm: ShareBar,
    /// Bytes of the whole bar.
    mem_whole: Option<u64>,
    /// Requested bytes; nobody can request without a service.
    mem_claimed: Option<u64>,
    /// Requested percent of the SMs.
    sm_claimed: Option<f64>,
}

impl<'a> Table<'a> {
    fn new(model: &'a Model, snapshot: &'a Snapshot, look: &'a Look, plan: &Plan) -> Self {
        let tall = plan.gpu_rows > 1;
        let mut table = Self {
            model,
            snapshot,
            look,
            width: plan.width,
            tall,
            name: 0,
            mem_bar: 0,
            sm_bar: 0,
            mem_text: 0,
            sm_text: 0,
            occ: 5,
            busy: 4,
            history: 0,
        };
        let gpus = || snapshot.gpus.iter();
        let widest = |f: &dyn Fn(&GpuView) -> String, least: usize| {
            gpus().map(|g| width(&f(g))).max().unwrap_or(0).max(least)
        };
        if tall {
            table.name = widest(&|g| table.long_name(g), 15).min(24);
            table.history = (plan.width / 10).clamp(10, 40);
            table.occ = 7;
            table.busy = 6;
            let right = 3 * FIGURE + table.occ + table.busy + 2 + table.history;
            table.mem_bar = plan.width.saturating_sub(table.name + 6 + right);
            return table;
        }
        table.name = widest(&|g| table.short_name(g), 5).min(12);
        table.mem_text = widest(&|g| table.mem_figures(g), 11);
        // The bars keep their length when a figure comes to 100.
        table.sm_text = gpus().map(|g| table.sm_room(g)).max().unwrap_or(0).max(7);
        let fixed = |t: &Self| t.name + t.mem_text + t.sm_text + t.occ + t.busy + 6;
        let mut bars = plan.width.saturating_sub(fixed(&table));
        if bars < 22 {
            bars += table.occ + 1;
            table.occ = 0;
        }
        if bars < 14 {
            table.mem_bar = bars + 1;
        } else {
            table.mem_bar = bars * 8 / 13;
            table.sm_bar = bars - table.mem_bar;
        }
        table
    }

    /// The index, as wide as the longest one.
    fn index(&self, gpu: &GpuView) -> String {
        let most = self.snapshot.gpus.iter().map(|g| g.index).max();
        let cols = most.unwrap_or(0).to_string().len();
        format!("{:>cols$}", gpu.index)
    }

    fn short_name(&self, gpu: &GpuView) -> String {
        format!("{} {}", self.index(gpu), tiny(&gpu.short))
    }

    fn long_name(&self, gpu: &GpuView) -> String {
        // What it becomes is news, what it is until then is on Health.
        let wanted = gpu.mode_wanted.as_ref().map(|mode| format!("to {mode}"));
        match wanted.or_else(|| gpu.mode_shown()) {
            Some(mode) => format!("{} {} {mode}", self.index(gpu), gpu.short),
            None => format!("{} {}", self.index(gpu), gpu.short),
        }
    }

    /// `61 C  285/450 W`.
    fn health(gpu: &GpuView) -> String {
        let degrees = gpu.temperature_c.map(|t| format!("{t}C"));
        let watts = match (gpu.power_w, gpu.power_limit_w) {
            (Some(w), Some(limit)) => Some(format!("{w:.0}/{limit:.0}W")),
            (Some(w), None) => Some(format!("{w:.0}W")),
            (None, _) => None,
        };
        let words: Vec<String> = degrees.into_iter().chain(watts).collect();
        words.join(" ")
    }

    fn sums(&self, gpu: &GpuView) -> Sums {
        let held = self.snapshot.service.is_some();
        let used = gpu.mem_used;
        let alone = gpu.mem_claimed == 0;
        let unclaimed = gpu.mem_unclaimed.or(used.filter(|_| alone)).unwrap_or(0);
        let mem_whole = match gpu.mem_allocatable {
            Some(part) => Some(part + unclaimed),
            None => gpu.mem_total,
        };
        let active = gpu.sm_active.map(|f| f.value);
        let sm_claimed = gpu.sm_claimed * 100.0;
        Sums {
            mem: ShareBar::of(
                used.map(|b| b as f64),
                gpu.mem_claimed as f64,
                unclaimed as f64,
                mem_whole.map_or(0.0, |b| b as f64),
            ),
            sm: ShareBar::of(active, sm_claimed, self.sm_unclaimed(gpu), 100.0),
            mem_whole,
            mem_claimed: held.then_some(gpu.mem_claimed),
            sm_claimed: held.then_some(sm_claimed),
        }
    }

    /// Percent of the SMs that no claim accounts for, where processes outside claims run and the
    /// claims' own figures are known.
    fn sm_unclaimed(&self, gpu: &GpuView) -> f64 {
        let Some(active) = gpu.sm_active else {
            return 0.0;
        };
        let adopted = self.snapshot.claims.iter().filter(|c| c.adopted);
        let mut adopted = adopted.flat_map(|c| &c.gpus);
        let outside = self.snapshot.unclaimed.iter().any(|u| u.gpu == gpu.index)
            || adopted.any(|g| g.gpu == gpu.index);
        let held = self.snapshot.claims.iter().filter(|c| !c.adopted);
        let parts = held.flat_map(|c| &c.gpus);
        let own: Option<f64> = parts
            .filter(|g| g.gpu == gpu.index)
            .map(|g| g.sm_active.map(|f| f.value))
            .sum();
        own.filter(|_| outside)
            .map_or(0.0, |own| (active.value - own).max(0.0))
    }

    /// `15.3/17.7/23.5`.
    fn mem_figures(&self, gpu: &GpuView) -> String {
        let glyphs = &self.look.glyphs;
        let sums = self.sums(gpu);
        format!(
            "{:>4}/{:>4}/{:>4}",
            gib_or(gpu.mem_used, glyphs),
            gib_or(sums.mem_claimed, glyphs),
            gib_or(sums.mem_whole, glyphs)
        )
    }

    /// `~61/75%`.
    fn sm_figures(&self, gpu: &GpuView) -> String {
        let active = figure(gpu.sm_active, &self.look.glyphs);
        format!("{active}/{}", self.sm_claimed(gpu))
    }

    fn sm_claimed(&self, gpu: &GpuView) -> String {
        let dash = || self.look.glyphs.dash.to_owned();
        let claimed = self.sums(gpu).sm_claimed;
        claimed.map_or_else(dash, |c| format!("{}%", percent(c)))
    }

    /// Columns of the figures of a GPU whose SMs are all active.
    fn sm_room(&self, gpu: &GpuView) -> usize {
        let active = match gpu.sm_active {
            None => 1,
            Some(figure) => "100".len() + usize::from(figure.estimate),
        };
        active + 1 + width(&self.sm_claimed(gpu))
    }

    fn gpu(&self, gpu: &GpuView) -> Vec<Line<'static>> {
        let trouble = match gpu.state {
            GpuState::Ok => None,
            GpuState::Lost => Some("lost: the driver says that this GPU has fallen off the bus"),
            GpuState::Hung => {
                Some("the driver does not answer for this GPU; its figures are not known")
            }
            GpuState::Released => Some(
                "released by an administrator; its figures are not known until it is taken back",
            ),
        };
        if let Some(trouble) = trouble {
            let name = if self.tall {
                self.long_name(gpu)
            } else {
                self.short_name(gpu)
            };
            let name = left(&name, self.name + 1, &self.look.glyphs);
            return vec![Line::from(vec![
                span(name, self.look.theme.text),
                span(trouble, self.look.theme.error),
            ])];
        }
        if self.tall {
            self.tall_rows(gpu)
        } else {
            vec![self.short_row(gpu)]
        }
    }

    fn short_row(&self, gpu: &GpuView) -> Line<'static> {
        let (theme, glyphs) = (&self.look.theme, &self.look.glyphs);
        let sums = self.sums(gpu);
        let name = match condition(gpu) {
            "sick" => theme.error,
            "drained" => theme.warn,
            _ => theme.text,
        };
        let mut spans = vec![span(left(&self.short_name(gpu), self.name, glyphs), name)];
        spans.push(Span::raw(" "));
        spans.extend(sums.mem.spans(self.mem_bar, self.look));
        spans.push(Span::raw(" "));
        spans.push(span(
            right(&self.mem_figures(gpu), self.mem_text, glyphs),
            theme.text,
        ));
        if self.sm_bar > 0 {
            spans.push(Span::raw(" "));
            spans.extend(sums.sm.spans(self.sm_bar, self.look));
        }
        spans.push(Span::raw(" "));
        spans.push(span(
            right(&self.sm_figures(gpu), self.sm_text, glyphs),
            theme.text,
        ));
        if self.occ > 0 {
            let occ = figure_percent(gpu.sm_occupancy, glyphs);
            spans.push(span(right(&occ, self.occ + 1, glyphs), theme.dim));
        }
        let busy = figure_percent(gpu.time_busy, glyphs);
        spans.push(span(right(&busy, self.busy + 1, glyphs), theme.dim));
        Line::from(spans)
    }

    fn tall_rows(&self, gpu: &GpuView) -> Vec<Line<'static>> {
        let (theme, glyphs) = (&self.look.theme, &self.look.glyphs);
        let sums = self.sums(gpu);
        let unit = |text: String, unit: &str| {
            if text == glyphs.dash {
                text
            } else {
                format!("{text} {unit}")
            }
        };
        let cells = |texts: [String; 3]| texts.map(|t| right(&t, FIGURE, glyphs));
        let [claimed, used, whole] = cells([
            unit(gib_or(sums.mem_claimed, glyphs), "G"),
            unit(gib_or(gpu.mem_used, glyphs), "G"),
            unit(gib_or(sums.mem_whole, glyphs), "G"),
        ]);
        let mut mem = vec![
            span(left(&self.long_name(gpu), self.name, glyphs), theme.text),
            span(" mem  ", theme.dim),
        ];
        mem.extend(sums.mem.spans(self.mem_bar, self.look));
        mem.extend([
            span(claimed, theme.text),
            span(used, theme.text),
            span(whole, theme.dim),
        ]);
        let sm_claimed = sums.sm_claimed.map(percent);
        let [claimed, used, whole] = cells([
            unit(sm_claimed.unwrap_or_else(|| glyphs.dash.to_owned()), "%"),
            unit(figure(gpu.sm_active, glyphs), "%"),
            gpu.sms
                .map_or_else(|| glyphs.dash.to_owned(), |n| format!("{n} SM")),
        ]);
        let health = format!("  {}", Self::health(gpu));
        let mut sm = vec![
            span(left(&health, self.name, glyphs), theme.dim),
            span(" SM   ", theme.dim),
        ];
        sm.extend(sums.sm.spans(self.mem_bar, self.look));
        sm.extend([
            span(claimed, theme.text),
            span(used, theme.text),
            span(whole, theme.dim),
        ]);
        let occ = figure_percent(gpu.sm_occupancy, glyphs);
        let busy = figure_percent(gpu.time_busy, glyphs);
        sm.push(span(right(&occ, self.occ, glyphs), theme.text));
        sm.push(span(right(&busy, self.busy, glyphs), theme.text));
        let past = spark(&gpu.history, self.history, glyphs);
        sm.push(span(format!("  {past}"), theme.used));
        vec![Line::from(mem), Line::from(sm), self.note(gpu)]
    }

    /// The claims on it, and what is left.
    fn note(&self, gpu: &GpuView) -> Line<'static> {
        let (theme, glyphs) = (&self.look.theme, &self.look.glyphs);
        let dot = format!(" {} ", glyphs.dot);
        let on = |c: &&ClaimView| is_on(c, gpu.index);
        let mut who: Vec<String> = self
            .snapshot
            .claims
            .iter()
            .filter(on)
            .map(|c| format!("{} {} {}", c.id, c.user, cut(&c.what, 24, glyphs)))
            .collect();
        let outside = self
            .snapshot
            .unclaimed
            .iter()
            .filter(|u| u.gpu == gpu.index);
        let bytes: Option<u64> = outside.clone().map(|u| u.mem_used).sum();
        match outside.count() {
            0 => {}
            n => {
                let size = bytes.map_or_else(|| glyphs.dash.to_owned(), gib);
                who.push(format!("{n} unclaimed ({size} G)"));
            }
        }
        if who.is_empty() {
            who.push("nobody".to_owned());
        }
        let indent = " ".repeat(self.name + 6);
        let sick = condition(gpu) == "sick";
        let tail = match &gpu.drain {
            Some(drain) if !sick => {
                let why = drain.reason.as_deref().map(|r| cut(r, 24, glyphs));
                let why = why.map(|r| format!(": {r}")).unwrap_or_default();
                format!("{dot}drained{why}")
            }
            _ if sick => format!("{dot}sick: no new claims"),
            _ => format!("{dot}{} claimable", share(gpu.claimable)),
        };
        let room = self.width.saturating_sub(width(&indent) + width(&tail));
        Line::from(vec![
            span(indent, theme.text),
            span(cut(&who.join(&dot), room, glyphs), theme.dim),
            span(
                tail,
                match (&gpu.drain, gpu.claimable > 0.0) {
                    _ if sick => theme.error,
                    (Some(_), _) => theme.warn,
                    (None, true) => theme.good,
                    (None, false) => theme.dim,
                },
            ),
        ])
    }
}

/// Columns of a figure with its unit.
const FIGURE: usize = 9;

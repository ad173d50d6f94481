//! What the typed claim would get: where, when, for how long, and how the GPU is used.

use gshare_proto::figures::gpus;
use gshare_proto::{GpuView, TakingView, Tried, messages};
use ratatui::text::Line;

use super::widget;
use crate::model::{Model, is_by_sms};
use crate::text::{gib, percent};
use crate::view::{Facts, View, cells, overview, span};
use crate::widgets::slice_map::SliceMap;

const LABEL: usize = 11;

fn part(tried: &Tried, gpu: &GpuView) -> Option<String> {
    let got = tried.gpus.first()?;
    let size = percent(got.sm * 100.0);
    let each = if tried.gpus.len() > 1 { " each" } else { "" };
    let compute = match (is_by_sms(gpu), got.sm >= 0.9995) {
        (_, true) => "all of its compute".to_owned(),
        (true, false) => format!("{size} % of its SMs"),
        (false, false) => format!("{size} % of its time, all of it while others are idle"),
    };
    let (memory, model) = (gib(got.mem), &gpu.short);
    Some(format!("{memory} GiB of {model}{each}, {compute}"))
}

/// When it starts, and what others lose for it.
fn start(tried: &Tried, model: &Model) -> String {
    if tried.starts {
        return match tried.gpus.is_empty() {
            true => tried.message.clone(),
            false => format!("now, on {}", gpus(tried.gpus.iter().map(|g| g.gpu))),
        };
    }
    let taking = |t: &TakingView| format!("{} of {} {}", t.id, t.user, t.what);
    let doing: Vec<String> = tried.takings.iter().map(taking).collect();
    let message = &tried.message;
    match (overview::when(tried, model.clock.now_ms), tried.expected_ms) {
        (Some(when), _) if !doing.is_empty() => format!("{when}; {}", doing.join("; ")),
        (Some(when), _) => format!("{message}; starts {when}"),
        (None, Some(at)) => {
            let at = model.clock.short_time(at);
            format!("{message}; about {at} at the earliest")
        }
        (None, None) => message.clone(),
    }
}

/// Its fixed number of rows, so that the box keeps its height during typing.
pub(super) const ROWS: usize = 9;

pub(super) fn lines(tried: &Tried, view: &View<'_>, cols: usize) -> Vec<Line<'static>> {
    let theme = view.theme;
    let mut out = Facts::new(view.look, cols, (2, LABEL - 2));
    let first = tried.gpus.first();
    let gpu = first.and_then(|first| view.model.gpu(first.gpu));
    let off = view.model.off().is_some();
    if let Some(text) = gpu.filter(|_| !off).and_then(|gpu| part(tried, gpu)) {
        out.tell("you get", &text, theme.text, 2);
    }
    let style = if tried.starts { theme.good } else { theme.text };
    out.tell("starts", &start(tried, view.model), style, 3);
    if let Some(args) = &tried.would_start {
        out.tell("or", &messages::starts_now(args), theme.key, 2);
    }
    let keeps = match tried.entitled {
        _ if off => "nothing: gshare is off, so any program may use any GPU",
        true => "yours: within your guarantee",
        false => "on loan: above your guarantee, so it may be taken back",
    };
    if !tried.never {
        out.tell("keeps", keeps, theme.text, 2);
        let then = "gshare join ID -- CMD; released with x";
        out.tell("then", then, theme.dim, 1);
    }
    if let Some((gpu, first)) = gpu.zip(first).filter(|_| !off) {
        // The GPU with the viewer's future part.
        let (look, slices) = (view.look, overview::slices_with(view, gpu, first.sm));
        let map = SliceMap { slices, look };
        let size = (cells(cols.saturating_sub(LABEL).min(60)), 2);
        for (i, mut line) in widget(map, size, look).into_iter().enumerate() {
            let name = format!("GPU {}", gpu.index);
            let label = format!("  {:<9}", if i == 0 { &name } else { "" });
            line.spans.insert(0, span(label, theme.dim));
            out.lines.push(line);
        }
    }
    out.lines.resize(ROWS.max(out.lines.len()), Line::default());
    out.lines
}

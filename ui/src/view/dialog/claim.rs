//! What a claim that is being typed would get: where, when, whether it lasts, and how it is used.

use gshare_proto::{GpuView, Snapshot, Tried};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Line;
use ratatui::widgets::Widget;

use crate::form::Form;
use crate::model::{Model, is_by_sms};
use crate::text::{gib, percent, wrap};
use crate::theme::Look;
use crate::view::{overview, span};
use crate::widgets::slice_map::SliceMap;

/// Columns of a label.
const LABEL: usize = 11;

/// A widget as lines.
fn drawn(widget: impl Widget, (cols, rows): (u16, u16)) -> Vec<Line<'static>> {
    let mut buf = Buffer::empty(Rect::new(0, 0, cols, rows));
    widget.render(buf.area, &mut buf);
    let cell = |x: u16, y: u16| span(buf[(x, y)].symbol().to_owned(), buf[(x, y)].style());
    let line = |y| (0..cols).map(|x| cell(x, y)).collect::<Line<'static>>();
    (0..rows).map(line).collect()
}

/// `0`, `0 and 2`.
fn named(gpus: &[String]) -> String {
    match gpus {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        _ => gpus.concat(),
    }
}

/// What it gets of its first GPU.
fn part(tried: &Tried, gpu: &GpuView) -> Option<String> {
    let got = tried.gpus.first()?;
    let size = percent(got.sm * 100.0);
    let each = if tried.gpus.len() > 1 { " each" } else { "" };
    let compute = match (is_by_sms(gpu), got.sm >= 0.9995) {
        (_, true) => "all of its compute".to_owned(),
        (true, false) => format!("{size} % of its SMs"),
        (false, false) => format!("{size} % of its time, all of it while others are idle"),
    };
    Some(format!(
        "{} GiB of {}{each}, {compute}",
        gib(got.mem),
        gpu.short
    ))
}

/// When it starts, and what would be done to others for it.
fn start(tried: &Tried, model: &Model) -> String {
    let gpus: Vec<String> = tried.gpus.iter().map(|g| g.gpu.to_string()).collect();
    if tried.starts {
        return match gpus.is_empty() {
            true => tried.message.clone(),
            false => format!("now, on GPU {}", named(&gpus)),
        };
    }
    let mut text = tried.message.clone();
    if let Some(expected) = tried.expected.as_ref().filter(|_| !tried.by_hours) {
        text.push_str(&format!("; starts {}", expected.text()));
    } else if let Some(at) = tried.expected_ms {
        text.push_str(&format!(
            "; about {} at the earliest",
            model.clock.short_time(at)
        ));
    }
    for taking in &tried.takings {
        text.push_str(&format!(
            "; {} of {} {}",
            taking.id, taking.user, taking.what
        ));
    }
    text
}

/// Rows that it always takes, so that the box keeps its height while somebody types.
const ROWS: usize = 9;

pub(super) fn lines(form: &Form, model: &Model, look: &Look, cols: usize) -> Vec<Line<'static>> {
    let theme = &look.theme;
    let mut out = Vec::new();
    let mut told = |label: &str, text: &str, style: Style, most: usize| {
        let room = cols.saturating_sub(LABEL);
        for (i, text) in wrap(text, room, most, &look.glyphs).into_iter().enumerate() {
            let label = if i == 0 { label } else { "" };
            out.push(Line::from(vec![
                span(format!("  {label:<9}"), theme.dim),
                span(text, style),
            ]));
        }
    };
    let wrong = match (&form.refused, form.spec(), form.answer()) {
        (Some(refused), ..) => Some((refused.sentence(), theme.error)),
        (None, Err(wrong), _) => Some((wrong, theme.text)),
        (None, Ok(_), Some(Err(failure))) => Some((failure.sentence(), theme.text)),
        _ if form.sent.is_some() => Some(("asking the service".to_owned(), theme.dim)),
        (None, Ok(_), None) => Some((
            model
                .service()
                .err()
                .unwrap_or_else(|| "asking the service".to_owned()),
            theme.dim,
        )),
        (None, Ok(_), Some(Ok(_))) => None,
    };
    if let Some((text, style)) = wrong {
        told("", &text, style, 3);
    } else if let (Some(Ok(tried)), Some(snapshot)) = (form.answer(), &model.snapshot) {
        let of = |index: u32| snapshot.gpus.iter().find(|g| g.index == index);
        let gpu = tried.gpus.first().and_then(|g| of(g.gpu));
        if let Some(text) = gpu.and_then(|gpu| part(tried, gpu)) {
            told("you get", &text, theme.text, 1);
        }
        let style = if tried.starts { theme.good } else { theme.text };
        told("starts", &start(tried, model), style, 3);
        if let Some(args) = &tried.would_start {
            told("or", &format!("{args} starts now"), theme.key, 1);
        }
        match (tried.never, tried.entitled) {
            (true, _) => {}
            (false, true) => told("keeps", "yours: within your guarantee", theme.text, 1),
            (false, false) => {
                let text = "on loan: above your guarantee, so it may be taken back";
                told("keeps", text, theme.text, 1);
            }
        }
        told(
            "then",
            "gshare join ID -- CMD; released with x",
            theme.dim,
            1,
        );
        if let Some(gpu) = gpu {
            out.extend(map(gpu, tried, model, snapshot, look, cols));
        }
    }
    out.resize(ROWS.max(out.len()), Line::default());
    out
}

/// The GPU with the part that would be the viewer's.
fn map(
    gpu: &GpuView,
    tried: &Tried,
    model: &Model,
    snapshot: &Snapshot,
    look: &Look,
    cols: usize,
) -> Vec<Line<'static>> {
    let size = tried.gpus.first().map_or(0.0, |g| g.sm);
    let slices = overview::slices_with(model, snapshot, look, gpu, size);
    let width = u16::try_from(cols.saturating_sub(LABEL).min(60)).unwrap_or(0);
    let lines = drawn(SliceMap { slices, look }, (width, 2));
    let labels = [format!("GPU {}", gpu.index), String::new()];
    let line = |(label, mut line): (String, Line<'static>)| {
        line.spans
            .insert(0, span(format!("  {label:<9}"), look.theme.dim));
        line
    };
    labels.into_iter().zip(lines).map(line).collect()
}

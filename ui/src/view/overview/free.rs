//! FREE NOW: what the viewer could claim now, by model.

use std::cmp::Reverse;

use gshare_proto::totals::{size_of, slows, wasted};
use gshare_proto::{GpuView, ModelRoomView, Tried};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;

use super::gpus;
use crate::model::{Model, WHOLE, bytes_of, split};
use crate::text::{gib, parts, share, until, width};
use crate::view::{Scene, View, below, line, span};

pub(super) struct Answer {
    /// The large figure: `0.40`, `3`.
    amount: String,
    /// Its description: `RTX 4090, 9.3 GiB, GPU 6`.
    of: String,
    /// Whether it lasts: `yours`.
    lasts: Option<&'static str>,
    /// Fraction of a GPU, or of an instance.
    size: f64,
    of_instance: bool,
}

fn answer(view: &View<'_>, room: &ModelRoomView) -> Answer {
    let gpus = view.model.gpus_of(room);
    let of_instance = gpus.clone().any(GpuView::is_instance);
    let (mut amount, mut words, size) = match room.whole {
        0 => (share(room.largest), "", room.largest),
        1 => ("1".to_owned(), "whole GPU ", 1.0),
        n => (n.to_string(), "whole GPUs ", f64::from(n)),
    };
    let has = |g: &&GpuView| size > 0.0 && g.claimable + 1e-6 >= size.min(1.0);
    let touched = |g: &&GpuView| room.whole > 0 && g.is_used_without_claim();
    let mut has: Vec<&GpuView> = gpus.filter(|g| has(g) && !touched(g)).collect();
    let names: Vec<String> = has.iter().map(|g| g.index.to_string()).collect();
    let place = match (&names[..], room.whole) {
        ([], _) => String::new(),
        // The first of those with the most memory.
        (_, 0) => {
            has.sort_by_key(|g| Reverse(bytes_of(g, size)));
            let mut at = format!(", GPU {}", has[0].index);
            match bytes_of(has[0], size).map(gib) {
                // In GiB, as on its map.
                Some(bytes) if has[0].is_used_without_claim() => {
                    (amount, words) = (bytes, "GiB of ");
                }
                bytes => at.insert_str(0, &bytes.map_or(String::new(), |b| format!(", {b} GiB"))),
            }
            at
        }
        ([a, b, c, _, ..], _) => format!(", GPUs {a},{b},{c}{}", view.glyphs.ellipsis),
        (all, _) => format!(", {}", gshare_proto::figures::gpus(all)),
    };
    let tried = view.model.dry_run(room).map(|(_, tried)| tried);
    let lasts = tried
        .filter(|t| t.starts)
        .map(|tried| match view.model.has_half(room) {
            true => "0.50 yours, more on loan",
            false => keeps(tried),
        });
    Answer {
        amount,
        of: format!("{words}{}{place}", short(view, room)),
        lasts,
        size,
        of_instance,
    }
}

/// The model, named as beside its GPUs.
fn short(view: &View<'_>, room: &ModelRoomView) -> String {
    let gpu = view.model.gpus_of(room).next();
    gpu.map_or_else(|| room.model.clone(), gpus::called)
}

pub(in crate::view) fn keeps(tried: &Tried) -> &'static str {
    if tried.entitled { "yours" } else { "on loan" }
}

/// By model, the largest first, instances after GPUs; none if the service does not report it, or while any program
/// may use any GPU.
pub(super) fn answers(view: &View<'_>) -> Option<Vec<Answer>> {
    let now = view.snapshot.claimable_now.as_ref()?;
    let mut all: Vec<Answer> = now.models.iter().map(|m| answer(view, m)).collect();
    all.sort_by(|a, b| b.size.total_cmp(&a.size));
    all.sort_by_key(|a| (a.size == 0.0, a.of_instance));
    Some(all)
}

pub(super) fn rows(view: &View<'_>, answers: Option<&[Answer]>, cols: u16) -> usize {
    match answers {
        None => 2,
        Some([best, ..]) if best.size > 0.0 && usize::from(cols) >= crate::view::WIDE => 4,
        Some(all) => 2 + usize::from(all.len() > 1 || !later(view, false, usize::MAX).is_empty()),
    }
}

fn whose(model: &Model) -> String {
    match model.viewer_name() {
        Some(name) => format!(" for {name}"),
        None if model.viewer.admin => " for anyone".to_owned(),
        None => String::new(),
    }
}

impl Answer {
    /// Its description; with `whole` also whether it lasts, which otherwise stands in another row.
    fn text(&self, whole: bool) -> String {
        match self.lasts.filter(|_| whole) {
            Some(lasts) => format!("{}: {lasts}", self.of),
            None => self.of.clone(),
        }
    }
}

/// `none now`, or what there is.
fn said(view: &View<'_>, answer: &Answer, whole: bool) -> Line<'static> {
    match answer.size > 0.0 {
        true => line!(view; good answer.amount.clone(), text format!(" {}", answer.text(whole))),
        false => line!(view; text format!("{} ", answer.of), strong "none now"),
    }
}

/// For whom, how much of each model, and when there may be more, as a sentence.
pub(in crate::view) fn free_now(view: &View<'_>) -> String {
    let Some(all) = answers(view) else {
        return String::new();
    };
    let said = all.iter().map(|a| said(view, a, true).to_string());
    let said = Vec::from_iter(said).join("; ");
    format!("FREE NOW{}: {said}", whose(view.model))
}

/// `in 30s: others make room`, `in 44m: c2 ends`; none if it starts now or nobody knows when.
pub(in crate::view) fn when(tried: &Tried, asked_ms: u64) -> Option<String> {
    if let Some(expected) = tried.expected.as_ref().filter(|_| !tried.by_hours) {
        return Some(format!("{}: {}", expected.when(), expected.cause));
    }
    let at = tried.expected_ms.filter(|_| !tried.takings.is_empty())?;
    Some(format!("in {}: others make room", until(asked_ms, at)))
}

/// When a part starts where nothing is free, who comes first, and when a whole GPU starts where a part is free; without
/// the cause where that would be cut. `has`: a part is free, and nobody comes first there.
fn later(view: &View<'_>, has: bool, cols: usize) -> Vec<Line<'static>> {
    let now = view.snapshot.claimable_now.iter();
    let rooms = now.flat_map(|now| &now.models);
    let runs = rooms.flat_map(|room| view.model.runs_of(room).map(move |run| (room, run)));
    let told = runs.filter_map(|(room, (run, tried))| {
        let (size, model) = (share(f64::from(run.milli) / 1000.0), short(view, room));
        let size = size.trim_end_matches(".00");
        let (keeps, when) = (keeps(tried), when(tried, run.asked.0)?);
        let text = format!("{size} {model} {keeps} {when}");
        let brief = text.split_once(": ").filter(|_| width(&text) > cols);
        let text = brief.map_or(text.clone(), |(brief, _)| brief.to_owned());
        Some((run.milli, line!(view; good text)))
    });
    let first = match view.snapshot.queue.len() {
        n @ 1.. if has => Some(format!("{n} before you for more")),
        _ => first(view),
    };
    let who = first.map(|text| (WHOLE - 1, line!(view; dim text)));
    let mut all: Vec<_> = told.chain(who).collect();
    all.sort_by_key(|(size, _)| *size);
    all.into_iter().map(|(_, line)| line).collect()
}

pub(in crate::view) fn first(view: &View<'_>) -> Option<String> {
    match view.snapshot.queue.len() {
        0 => None,
        1 => Some("1 waits before you".to_owned()),
        n => Some(format!("{n} wait before you")),
    }
}

pub(super) fn draw(view: &View<'_>, answers: Option<&[Answer]>, area: Rect, scene: &mut Scene<'_>) {
    let look = view.look;
    let mut head = line!(view; heading "FREE NOW", dim whose(view.model), text "  ");
    let indent = head.width();
    let cols = usize::from(area.width);
    let Some(all) = answers else {
        let why = match view.snapshot.service {
            None => "no gshare service to claim from",
            Some(_) if view.model.off().is_some() => "gshare is off: any program may use any GPU",
            Some(_) => "this service does not report it",
        };
        head.extend(line!(view; strong format!("{} ", look.glyphs.dash), dim why));
        scene.line(head, area, 0);
        return scene.line(others_line(view, area.width), area, 1);
    };
    let has = all.first().is_some_and(|a| a.size > 0.0);
    if area.height >= 4 && look.glyphs.lines && has {
        scene.line(head, area, 0);
        return large(view, all, area, scene);
    }
    // The best in the first row, the others and the future in the second.
    let mut rest: Vec<Line<'static>> = Vec::new();
    if has {
        let whole = head.width() + said(view, &all[0], true).width() <= cols;
        head.extend(said(view, &all[0], whole));
        let lasts = all[0].lasts.filter(|_| !whole);
        rest.extend(lasts.map(|text| line!(view; text text)));
        rest.extend(all[1..].iter().map(|a| said(view, a, true)));
    } else {
        head.push_span(span("none now", view.theme.strong));
    }
    scene.line(head, area, 0);
    rest.extend(later(view, has, cols.saturating_sub(indent)));
    let second = u16::from(!rest.is_empty());
    let mut line = Line::from(" ".repeat(indent));
    for (i, next) in rest.into_iter().enumerate() {
        let gap = if i > 0 { ";  " } else { "" };
        if line.width() + width(gap) + next.width() <= cols {
            line.push_span(span(gap, view.theme.dim));
            line.extend(next);
        }
    }
    scene.line(line, area, 1);
    scene.line(others_line(view, area.width), area, 1 + second);
}

fn others_line(view: &View<'_>, cols: u16) -> Line<'static> {
    let joined = |most| {
        let [mut line, wasted] = others(view, most);
        line.push_span("   ");
        line.extend(wasted);
        line
    };
    let line = Some(joined(usize::MAX)).filter(|line| line.width() <= cols.into());
    line.unwrap_or_else(|| joined(0))
}

/// One line each; a line that is too wide has no names of users.
fn others(view: &View<'_>, most: usize) -> [Line<'static>; 2] {
    let said = [
        ("SLOWS YOU ", slows(view.snapshot, view.model.viewer.uid)),
        ("MOST WASTED ", wasted(view.snapshot)),
    ];
    said.map(|(label, text)| {
        let short = text.split_once(": ").map(|(who, what)| {
            let id = who.split(' ').next().filter(|id| id.starts_with('c'));
            let gpu = who.split(" (").next().unwrap_or(who);
            format!("{}: {what}", id.unwrap_or(gpu))
        });
        let is_long = width(label) + width(&text) > most;
        let text = short.filter(|_| is_long).unwrap_or(text);
        line!(view; heading label, text text)
    })
}

/// The digits in three rows, three cells each.
const DIGITS: [&str; 3] = [
    "█▀█ ▀█▀▀█▀▀██ ██▀▀█▀▀▀▀██▀██▀█",
    "█ █  ██▀▀ ▀█▀▀█▀▀██▀█  ██▀█▀▀█",
    "▀▀▀  ▀▀▀▀▀▀▀  ▀▀▀▀▀▀▀  ▀▀▀▀▀▀▀",
];

/// A row of a digit or of the point.
fn digit(c: char, row: usize) -> String {
    match c.to_digit(10) {
        Some(n) => DIGITS[row].chars().skip(n as usize * 3).take(3).collect(),
        None => [" ", " ", "▀"][row].to_owned(),
    }
}

/// Columns of the viewer's own sums, and of others.
const OTHERS: u16 = 54;

/// With large figures, and the viewer's own sums at the right.
fn large(view: &View<'_>, all: &[Answer], area: Rect, scene: &mut Scene<'_>) {
    let big = |row: usize| -> String {
        let digits = all[0].amount.chars().map(|c| digit(c, row));
        format!(" {}", digits.collect::<Vec<_>>().join(" "))
    };
    let sizes = [
        Constraint::Length(crate::view::cells(width(&big(0))) + 1),
        Constraint::Fill(1),
        Constraint::Length(OTHERS),
    ];
    let [digits, words_at, you] = Layout::horizontal(sizes).spacing(1).areas(area);
    let style = |row| Line::styled(big(row), view.theme.good);
    let whole = width(&all[0].text(true)) <= words_at.width.into();
    let mut lines = vec![line!(view; strong all[0].text(whole))];
    let lasts = all[0].lasts.filter(|_| !whole);
    lines.extend(lasts.map(|text| line!(view; strong text)));
    lines.extend(all[1..].iter().map(|a| said(view, a, true)));
    lines.extend(later(view, true, words_at.width.into()));
    let mut sums = yours(view);
    sums.extend(others(view, OTHERS.into()));
    scene.rows((0..3).map(style), below(digits, 1));
    scene.rows(lines, below(words_at, 1));
    scene.rows(sums, below(you, 1));
}

fn yours(view: &View<'_>) -> Vec<Line<'static>> {
    let claims = &view.snapshot.claims;
    let mine = || claims.iter().filter(|c| c.uid == view.model.viewer.uid);
    if mine().next().is_none() {
        return Vec::new();
    }
    // Rounded as displayed, so that used and unused add up to claimed.
    let written = |sum: f64| (sum * 100.0).round() / 100.0;
    let claimed = written(size_of(mine(), view.snapshot));
    let mut text = format!("claimed {}", parts(claimed));
    if let Some(sum) = split(mine(), view.snapshot) {
        let used = written(sum.used);
        text += &format!(": used {}, unused {}", parts(used), parts(claimed - used));
        if sum.burst >= 0.005 {
            text += &format!(", burst {}", parts(sum.burst));
        }
    }
    vec![line!(view; heading "YOU ", text text)]
}

//! The first line: the screens with their counts and warnings, the enforcement of limits, and the banner.

use gshare_proto::{Caps, Snapshot};
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Line;
use ratatui::widgets::{Tabs, Widget};

use super::{Facts, Scene, Target, View, columns, line};
use crate::model::{Model, Page};
use crate::text::width;

/// The text of a tab: its name, then what waits or is wrong there.
fn tab(model: &Model, page: Page, short: bool) -> String {
    let n = page.place() + 1;
    let news = match (&model.snapshot, page) {
        (Some(s), Page::Queue) if !s.queue.is_empty() => format!(" ({})", s.queue.len()),
        (Some(s), Page::Health) if super::health::troubles(s) > 0 => " !".to_owned(),
        _ => String::new(),
    };
    match (page == model.page, short) {
        (true, _) => format!("[{n} {}{news}]", page.name()),
        (false, true) => format!(" {n}{news} "),
        (false, false) => format!(" {n} {}{news} ", page.name()),
    }
}

/// The stage if the service reports one, and the enforcement of limits: `stage 3 reclaim, strict`.
fn limits(snapshot: &Snapshot) -> String {
    let word = match (&snapshot.service, snapshot.caps) {
        (None, _) | (_, Caps::None) => return "read-only".to_owned(),
        (Some(service), _) if service.off.is_some() => return "no limits".to_owned(),
        (_, Caps::Strict) => "strict",
        (_, Caps::Cooperative) => "cooperative",
    };
    match snapshot.service.as_ref().and_then(|s| s.stage.as_ref()) {
        None => format!("limits: {word}"),
        // It has no limits.
        Some(s) if s.machine < 2 => format!("stage {} {}", s.machine, s.name),
        Some(s) => format!("stage {} {}, {word}", s.machine, s.name),
    }
}

/// The right end, in at most `room` columns: words are dropped first, then the time, the mark of the simulated driver
/// never.
fn right(view: &View<'_>, room: usize) -> Line<'static> {
    let time = view.model.clock.time(view.model.clock.now_ms);
    if view.model.snapshot.is_none() {
        return Line::from(time);
    }
    let simulated = view.snapshot.simulated;
    let limits = limits(view.snapshot);
    // `reclaim, strict`, then `strict`.
    let brief = limits.trim_start_matches("limits: ");
    let brief = brief.splitn(3, ' ').nth(2).unwrap_or(brief);
    let word = brief.rsplit(", ").next().unwrap_or(brief);
    let lines = [
        (&*limits, "SIMULATED DRIVER", true),
        (brief, "SIMULATED DRIVER", true),
        (brief, "SIM", true),
        (brief, "SIM", !simulated),
        (word, "SIM", true),
        (word, "SIM", !simulated),
        ("", "SIM", true),
        ("", "SIM", false),
    ];
    let line = |(limits, mark, timed): (&str, _, bool)| {
        let gap = |n: bool| if n { "  " } else { "" };
        let mut line = line!(view; dim limits.to_owned());
        if simulated {
            let mark = line!(view; text gap(!limits.is_empty()), caption format!(" {mark} "));
            line.extend(mark);
        }
        if timed {
            line.extend(line!(view; text gap(line.width() > 0), text time.clone()));
        }
        line
    };
    let mut lines = lines.into_iter().map(line);
    lines.find(|line| line.width() <= room).unwrap_or_default()
}

pub(super) fn draw(view: &View<'_>, area: Rect, scene: &mut Scene<'_>) {
    let (model, theme) = (view.model, view.theme);
    let cols = usize::from(area.width);
    let tabs = |short| Page::ALL.map(|page| (page, tab(model, page, short)));
    let wide = |tabs: &[(Page, String); 5]| tabs.iter().map(|(_, t)| width(t)).sum::<usize>();
    let mut shown = tabs(false);
    // The time while nothing else is known; otherwise only the mark of the simulated driver is required.
    let least = match &model.snapshot {
        None => 8,
        Some(snapshot) => 5 * usize::from(snapshot.simulated),
    };
    if wide(&shown) + least + 1 > cols {
        shown = tabs(true);
    }
    let mut at = area.x;
    let host = &view.snapshot.host;
    if model.snapshot.is_some() && wide(&shown) + width(host) + 44 < cols {
        let line = line!(view; heading "gshare ", text format!("{} ", view.cut(host, 20)));
        at += line.width() as u16;
        scene.line(line, area, 0);
    }
    let place = columns(area, at - area.x, super::cells(wide(&shown)));
    let styled = shown.iter().map(|(page, text)| {
        let wrong = *page == Page::Health && text.contains('!');
        let style = if wrong { theme.strong } else { theme.dim };
        Line::styled(text.clone(), style)
    });
    // Each title has its own blanks.
    Tabs::new(styled)
        .select(model.page.place())
        .style(Style::new())
        .highlight_style(theme.focus)
        .divider("")
        .padding("", "")
        .render(place, scene.buf);
    for (page, text) in &shown {
        let width = width(text) as u16;
        scene.hit(columns(area, at - area.x, width), Target::Page(*page));
        at += width;
    }
    let rest = usize::from(area.right().saturating_sub(at + 1));
    let line = right(view, rest.max(least)).right_aligned();
    scene.line(line, area, 0);
}

pub(super) fn banner(view: &View<'_>, width: usize, rows: usize) -> Vec<Line<'static>> {
    let Some(text) = view.model.banner() else {
        return Vec::new();
    };
    let (sign, style, words) = match (&view.model.disconnected, view.model.off()) {
        (Some(_), _) => (view.glyphs.broken, view.theme.error, view.theme.strong),
        (None, Some(off)) if off == text => {
            (view.glyphs.broken, view.theme.error, view.theme.error)
        }
        (None, _) => (view.glyphs.sign, view.theme.warn, view.theme.strong),
    };
    let mut out = Facts::new(view.look, width, (0, 2));
    out.signed((sign, style), (&text, words), rows);
    out.lines
}

pub(super) fn waiting(view: &View<'_>) -> Line<'static> {
    match &view.model.disconnected {
        Some(why) => line!(view; error why.clone()),
        None => line!(view; dim "asking for the first figures"),
    }
}

//! The first line: the screens, what waits or is wrong there, how limits hold; and what must be said above everything.

use gshare_proto::{Caps, Snapshot};
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Tabs, Widget};

use super::{Scene, Target, fit, span};
use crate::model::{Model, Page};
use crate::text::{span_width, width, wrap};
use crate::theme::Look;

/// What a tab says; behind the name, what waits or is wrong there.
fn tab(model: &Model, page: Page, short: bool) -> String {
    let n = page.place() + 1;
    let news = match (&model.snapshot, page) {
        (Some(s), Page::Queue) if !s.queue.is_empty() => format!(" ({})", s.queue.len()),
        (Some(s), Page::Health) if super::health::trouble(s) > 0 => " !".to_owned(),
        _ => String::new(),
    };
    let hidden = short && page != model.page;
    let text = match hidden {
        true => format!("{n}{news}"),
        false => format!("{n} {}{news}", page.name()),
    };
    if page == model.page {
        format!("[{text}]")
    } else {
        format!(" {text} ")
    }
}

fn limits(snapshot: &Snapshot) -> &'static str {
    match (&snapshot.service, snapshot.caps) {
        (None, _) | (_, Caps::None) => "look only",
        (_, Caps::Strict) => "limits: strict",
        (_, Caps::Cooperative) => "limits: cooperative",
    }
}

/// What stands at the right, in at most `room` columns: the time goes first, that the driver is simulated never.
fn right(model: &Model, look: &Look, room: usize) -> Vec<Span<'static>> {
    let theme = &look.theme;
    let time = span(model.clock.time(model.clock.now_ms), theme.text);
    let Some(snapshot) = &model.snapshot else {
        return vec![time];
    };
    let limits = limits(snapshot);
    let word = limits.strip_prefix("limits: ").unwrap_or(limits);
    let mark = |text: &'static str| snapshot.simulated.then(|| span(text, theme.caption));
    let items: [Vec<Span<'static>>; 5] = [
        [
            Some(span(limits, theme.dim)),
            mark(" SIMULATED DRIVER "),
            Some(time.clone()),
        ],
        [
            Some(span(word, theme.dim)),
            mark(" SIMULATED DRIVER "),
            Some(time.clone()),
        ],
        [
            Some(span(word, theme.dim)),
            mark(" SIM "),
            (!snapshot.simulated).then(|| time.clone()),
        ],
        [mark(" SIM "), Some(time.clone()), None],
        [mark(" SIM "), None, None],
    ]
    .map(|items| {
        let items: Vec<Span<'static>> = items.into_iter().flatten().collect();
        let gaps = items.into_iter().enumerate();
        let gaps = gaps.flat_map(|(i, item)| [Span::raw(if i > 0 { "  " } else { "" }), item]);
        gaps.collect()
    });
    let fits = |spans: &Vec<Span<'static>>| span_width(spans) <= room;
    items.into_iter().find(fits).unwrap_or_default()
}

/// The first line.
pub(super) fn draw(model: &Model, look: &Look, area: Rect, scene: &mut Scene<'_>) {
    let theme = &look.theme;
    let cols = usize::from(area.width);
    let tabs = |short| Page::ALL.map(|page| (page, tab(model, page, short)));
    let wide = |tabs: &[(Page, String); 5]| tabs.iter().map(|(_, t)| width(t)).sum::<usize>();
    let mut shown = tabs(false);
    let least = span_width(&right(model, look, 6));
    if wide(&shown) + least + 1 > cols {
        shown = tabs(true);
    }
    let mut at = area.x;
    if let Some(host) = model.snapshot.as_ref().map(|s| s.host.as_str())
        && wide(&shown) + width(host) + 44 < cols
    {
        let line = Line::from(vec![
            span("gshare ", theme.title),
            span(
                format!("{} ", crate::text::cut(host, 20, &look.glyphs)),
                theme.text,
            ),
        ]);
        scene.line(&line, area);
        at += line.width() as u16;
    }
    let taken = wide(&shown) as u16;
    let place = Rect {
        x: at,
        width: taken.min(area.right().saturating_sub(at)),
        ..area
    };
    let styled = shown.iter().map(|(page, text)| {
        let wrong = *page == Page::Health && text.contains('!');
        let style = if wrong { theme.strong } else { theme.dim };
        Line::styled(text.clone(), style)
    });
    // Each brings its own blanks.
    Tabs::new(styled)
        .select(model.page.place())
        .style(Style::new())
        .highlight_style(theme.focus)
        .divider("")
        .padding("", "")
        .render(place, scene.buf);
    for (page, text) in &shown {
        let cell = Rect {
            x: at,
            width: width(text) as u16,
            ..area
        };
        scene.hit(cell, Target::Page(*page));
        at += cell.width;
    }
    let rest = usize::from(area.right().saturating_sub(at + 1));
    let spans = right(model, look, rest.max(least));
    let from = area.right().saturating_sub(span_width(&spans) as u16);
    scene.line(
        &Line::from(spans),
        Rect {
            x: from,
            width: area.right() - from,
            ..area
        },
    );
}

/// The banner in at most `rows` rows.
pub(super) fn banner(model: &Model, look: &Look, width: usize, rows: usize) -> Vec<Line<'static>> {
    let Some(text) = model.banner() else {
        return Vec::new();
    };
    let (sign, style) = match model.disconnected {
        Some(_) => (look.glyphs.broken, look.theme.error),
        None => (look.glyphs.sign, look.theme.warn),
    };
    let lines = wrap(&format!("{sign} {text}"), width, rows, &look.glyphs).into_iter();
    let line = |(i, text): (usize, String)| match text.strip_prefix(sign) {
        Some(rest) if i == 0 => Line::from(vec![span(sign, style), span(rest, look.theme.strong)]),
        _ => Line::styled(text, look.theme.strong),
    };
    lines.enumerate().map(line).collect()
}

/// Before the first snapshot.
pub(super) fn waiting(model: &Model, look: &Look, width: usize) -> Line<'static> {
    let line = match &model.disconnected {
        Some(why) => Line::styled(why.clone(), look.theme.error),
        None => Line::styled("asking for the first figures", look.theme.dim),
    };
    fit(line, width, look)
}

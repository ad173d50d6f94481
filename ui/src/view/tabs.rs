//! The tabs: which screens there are, and which one this is.

use ratatui::text::Line;

use super::plan::Plan;
use super::{Row, Target, span};
use crate::model::{Model, Page};
use crate::text::width;
use crate::theme::Look;

/// What a tab says; behind the name, what waits or is wrong there.
fn text(model: &Model, page: Page, short: bool) -> String {
    let n = page.place() + 1;
    let news = match (&model.snapshot, page) {
        (Some(s), Page::Queue) if !s.queue.is_empty() => format!(" ({})", s.queue.len()),
        (Some(s), Page::Health) if super::health::trouble(s) > 0 => " !".to_owned(),
        _ => String::new(),
    };
    let name = if short && page != model.page {
        ""
    } else {
        page.name()
    };
    let text = format!("{n} {name}{news}");
    let text = text.trim_end();
    if page == model.page {
        format!("[{text}]")
    } else {
        format!(" {text} ")
    }
}

/// The row of tabs.
pub(super) fn row(model: &Model, look: &Look, plan: &Plan) -> Row {
    let theme = &look.theme;
    let texts = |short| -> Vec<(Page, String)> {
        let all = Page::ALL.into_iter();
        all.map(|page| (page, text(model, page, short))).collect()
    };
    let cols = |tabs: &[(Page, String)]| tabs.iter().map(|(_, t)| width(t)).sum::<usize>();
    let mut tabs = texts(false);
    if cols(&tabs) > plan.width {
        tabs = texts(true);
    }
    let (mut spans, mut hits, mut at) = (Vec::new(), Vec::new(), 0);
    for (page, text) in tabs {
        let to = at + width(&text);
        hits.push((at..to, Target::Page(page)));
        at = to;
        let style = match page == model.page {
            true => theme.focus,
            false if text.contains('!') => theme.warn,
            false => theme.dim,
        };
        spans.push(span(text, style));
    }
    if plan.wide && at + 1 < plan.width {
        let rule = look.glyphs.rule.repeat(plan.width - at - 1);
        spans.push(span(format!(" {rule}"), theme.free));
    }
    let line = Line::from(spans);
    Row { line, hits }
}

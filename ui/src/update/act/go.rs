//! Going about: screens, parts, rows, groups.

use super::refresh;
use crate::model::{Model, Page, Section, Span, Tone};
use crate::msg::Cmd;
use crate::view;

pub(crate) fn open_page(model: &mut Model, page: Page) -> Vec<Cmd> {
    model.page = page;
    model.settle();
    refresh(model)
}

fn turn_page(model: &mut Model, by: usize) -> Vec<Cmd> {
    let all = Page::ALL;
    open_page(model, all[(model.page.place() + by) % all.len()])
}

pub(crate) fn next_page(model: &mut Model) -> Vec<Cmd> {
    turn_page(model, 1)
}

pub(crate) fn previous_page(model: &mut Model) -> Vec<Cmd> {
    turn_page(model, Page::ALL.len() - 1)
}

pub(crate) fn go_overview(model: &mut Model) -> Vec<Cmd> {
    open_page(model, Page::Overview)
}

pub(crate) fn go_claims(model: &mut Model) -> Vec<Cmd> {
    open_page(model, Page::Claims)
}

pub(crate) fn go_queue(model: &mut Model) -> Vec<Cmd> {
    open_page(model, Page::Queue)
}

pub(crate) fn go_history(model: &mut Model) -> Vec<Cmd> {
    open_page(model, Page::History)
}

pub(crate) fn go_health(model: &mut Model) -> Vec<Cmd> {
    open_page(model, Page::Health)
}

fn turn_section(model: &mut Model, by: usize) -> Vec<Cmd> {
    let all = Section::OVERVIEW;
    let at = all.iter().position(|s| *s == model.section).unwrap_or(0);
    let next = (1..all.len())
        .map(|step| all[(at + step * by) % all.len()])
        .find(|s| !model.keys(*s).is_empty());
    match next {
        Some(section) => {
            model.section = section;
            if model.current().is_none() {
                model.choose(0);
            }
        }
        None => model.say(Tone::Plain, "nothing else on the screen has rows"),
    }
    Vec::new()
}

pub(crate) fn next_section(model: &mut Model) -> Vec<Cmd> {
    turn_section(model, 1)
}

pub(crate) fn previous_section(model: &mut Model) -> Vec<Cmd> {
    turn_section(model, Section::OVERVIEW.len() - 1)
}

pub(crate) fn next_grouping(model: &mut Model) -> Vec<Cmd> {
    model.grouping = model.grouping.next();
    model.settle();
    model.say(
        Tone::Plain,
        format!("claims grouped by {}", model.grouping.name()),
    );
    Vec::new()
}

/// Shows or hides what is in the chosen row.
fn turn(model: &mut Model, open: bool) -> Vec<Cmd> {
    let key = model.current().cloned();
    if !key.is_some_and(|key| model.turn(&key, open)) {
        model.say(Tone::Plain, "choose a group or a claim first: Down or j");
    }
    model.settle();
    Vec::new()
}

pub(crate) fn unfold(model: &mut Model) -> Vec<Cmd> {
    turn(model, true)
}

pub(crate) fn fold(model: &mut Model) -> Vec<Cmd> {
    turn(model, false)
}

/// Steps of the axis at most in each direction.
const ZOOM: isize = 5;

pub(crate) fn zoom_in(model: &mut Model) -> Vec<Cmd> {
    model.zoom = (model.zoom - 1).max(-ZOOM);
    Vec::new()
}

pub(crate) fn zoom_out(model: &mut Model) -> Vec<Cmd> {
    model.zoom = (model.zoom + 1).min(ZOOM);
    Vec::new()
}

fn look_back(model: &mut Model, by: isize) -> Vec<Cmd> {
    let all = Span::ALL;
    let at = all.iter().position(|s| *s == model.past.span).unwrap_or(0);
    model
        .past
        .turn(all[at.saturating_add_signed(by).min(all.len() - 1)]);
    refresh(model)
}

pub(crate) fn longer(model: &mut Model) -> Vec<Cmd> {
    look_back(model, 1)
}

pub(crate) fn shorter(model: &mut Model) -> Vec<Cmd> {
    look_back(model, -1)
}

fn go(model: &mut Model, to: impl FnOnce(usize) -> usize, unchosen: usize) -> Vec<Cmd> {
    let section = model.focus();
    let to = model.chosen_index(section).map_or(unchosen, to);
    model.choose(to);
    Vec::new()
}

pub(crate) fn down(model: &mut Model) -> Vec<Cmd> {
    go(model, |i| i + 1, 0)
}

pub(crate) fn up(model: &mut Model) -> Vec<Cmd> {
    go(model, |i| i.saturating_sub(1), usize::MAX)
}

pub(crate) fn page_down(model: &mut Model) -> Vec<Cmd> {
    let page = view::page(model);
    go(model, |i| i + page, page)
}

pub(crate) fn page_up(model: &mut Model) -> Vec<Cmd> {
    let page = view::page(model);
    go(model, |i| i.saturating_sub(page), 0)
}

pub(crate) fn first(model: &mut Model) -> Vec<Cmd> {
    go(model, |_| 0, 0)
}

pub(crate) fn last(model: &mut Model) -> Vec<Cmd> {
    go(model, |_| usize::MAX, usize::MAX)
}

/// Goes by some rows, as the wheel does.
pub(crate) fn by_rows(model: &mut Model, by: isize) -> Vec<Cmd> {
    let unchosen = if by < 0 { usize::MAX } else { 0 };
    go(model, |i| i.saturating_add_signed(by), unchosen)
}

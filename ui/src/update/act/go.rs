//! Navigation: screens, sections, rows, groups.

use gshare_proto::HistoryBy;

use super::{need, refresh};
use crate::model::{Model, Page, Section, Span, Tone, around};
use crate::view::waiting::axis_of;

pub(crate) fn open_page(model: &mut Model, page: Page) {
    model.page = page;
    model.ahead_ms = 0;
    model.settle();
    refresh(model);
}

pub(crate) fn turn_page(model: &mut Model, by: usize) {
    open_page(model, around(&Page::ALL, model.page, by));
}

pub(crate) fn turn_section(model: &mut Model, by: usize) {
    let all = Section::OVERVIEW;
    let others = (1..all.len()).map(|step| around(&all, model.section, step * by));
    match others.into_iter().find(|s| !model.keys(*s).is_empty()) {
        Some(section) => {
            model.section = section;
            if model.current().is_none() {
                model.choose(0);
            }
        }
        None => model.say(Tone::Plain, "the other parts of this screen are empty"),
    }
}

pub(crate) fn next_grouping(model: &mut Model) {
    model.grouping = model.grouping.next();
    model.settle();
    let text = format!("claims grouped by {}", model.grouping.name());
    model.say(Tone::Plain, text);
}

pub(crate) fn some_folded(model: &Model) -> Result<(), String> {
    let hides = model.current().is_some_and(|key| model.hides(key));
    let why = "nothing is hidden in this row: choose a folded group, or a claim with processes";
    need(hides, why)
}

pub(crate) fn turn(model: &mut Model, open: bool) {
    if let Some(key) = model.current().cloned() {
        model.turn(&key, open);
    }
    model.settle();
}

/// Maximum zoom steps of the axis in each direction.
const ZOOM: isize = 5;

pub(crate) fn zoom(model: &mut Model, by: isize) {
    model.zoom = (model.zoom + by).clamp(-ZOOM, ZOOM);
}

/// Half of the Queue's axis, and the time after now at which that axis and the last known event end.
pub(crate) fn half_axis(model: &Model) -> (u64, u64) {
    let axis = model.snapshot.as_ref().map(|s| axis_of(model, s));
    axis.map_or((0, 0), |(length, last)| (length / 2, last.max(length)))
}

/// Whether anything is known after the first half of the Queue's axis.
pub(crate) fn some_ahead(model: &Model) -> Result<(), String> {
    let (half, last) = half_axis(model);
    let why = "nothing is known about a later time";
    need(model.ahead_ms + half < last, why)
}

pub(crate) fn look_ahead(model: &mut Model, on: bool) {
    let (half, _) = half_axis(model);
    model.ahead_ms = match on {
        true => model.ahead_ms + half,
        false => model.ahead_ms.saturating_sub(half),
    };
}

pub(crate) fn look_back(model: &mut Model, by: isize) {
    let all = Span::ALL;
    let at = all.iter().position(|s| *s == model.past.span).unwrap_or(0);
    // The previous period stays visible until the answer arrives.
    model.past.span = all[at.saturating_add_signed(by).min(all.len() - 1)];
    model.past.back = 0;
    refresh(model);
}

pub(crate) fn go_back(model: &mut Model, by: i64) {
    model.past.back = model.past.back.saturating_add_signed(by);
    refresh(model);
}

pub(crate) fn next_split(model: &mut Model) {
    let all = [HistoryBy::All, HistoryBy::User, HistoryBy::Gpu];
    model.past.by = around(&all, model.past.by, 1);
    refresh(model);
}

/// Moves by some rows; without a choice, to the first or the last.
pub(crate) fn by_rows(model: &mut Model, by: isize) {
    let unchosen = if by < 0 { usize::MAX } else { 0 };
    let at = model.chosen_index(model.focus());
    model.choose(at.map_or(unchosen, |at| at.saturating_add_signed(by)));
}

pub(crate) fn by_pages(model: &mut Model, by: isize) {
    let page = isize::try_from(crate::view::page(model)).unwrap_or(1);
    by_rows(model, by * page);
}

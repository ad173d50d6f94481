//! The mouse: a click does what a key would do there.

use crossterm::event::{MouseButton, MouseEvent, MouseEventKind};

use super::{act, run};
use crate::model::{Dialog, Model, Page};
use crate::view::{self, Target};

const WHEEL: isize = 3;

pub(super) fn event(model: &mut Model, event: MouseEvent) {
    match event.kind {
        MouseEventKind::Down(MouseButton::Left) => click(model, (event.column, event.row)),
        MouseEventKind::ScrollDown => wheel(model, WHEEL),
        MouseEventKind::ScrollUp => wheel(model, -WHEEL),
        _ => {}
    }
}

fn wheel(model: &mut Model, by: isize) {
    match &model.dialog {
        None => act::by_rows(model, by),
        Some(Dialog::Form(_)) => {}
        Some(_) => act::step(model, by),
    }
}

fn click(model: &mut Model, at: (u16, u16)) {
    model.toast = None;
    match view::target(model, at) {
        None => {}
        Some(Target::Command(command)) => run(model, command),
        Some(Target::Page(page)) => act::open_page(model, page),
        Some(Target::Row(section, key)) => {
            if model.page == Page::Overview {
                model.section = section;
            }
            // The second click on a row opens it, and the first one on a row that cannot be chosen here.
            if model.focus() != section || model.current() == Some(&key) {
                model.dialog = Some(Dialog::Detail { key, scroll: 0 });
            } else if let Some(place) = model.keys(section).iter().position(|k| *k == key) {
                model.choose(place);
            }
        }
        Some(Target::Sort(sort)) => act::sort_by(model, sort),
        Some(Target::Entry(index)) => match &mut model.dialog {
            Some(Dialog::Form(form)) => {
                form.focus = index.min(form.entries.len().saturating_sub(1));
            }
            Some(Dialog::Warnings(chosen)) => {
                *chosen = index;
                act::open_warning(model);
            }
            _ => {}
        },
    }
}

//! The mouse: a click does what a key would, on what is under it.

use crossterm::event::{MouseButton, MouseEvent, MouseEventKind};

use super::{act, run};
use crate::model::{Dialog, Model, Sort, Tone};
use crate::msg::Cmd;
use crate::view::{self, Target};

/// Rows that the wheel goes by.
const WHEEL: isize = 3;

pub(super) fn event(model: &mut Model, event: MouseEvent) -> Vec<Cmd> {
    match event.kind {
        MouseEventKind::Down(MouseButton::Left) => click(model, (event.column, event.row)),
        MouseEventKind::ScrollDown => wheel(model, WHEEL),
        MouseEventKind::ScrollUp => wheel(model, -WHEEL),
        _ => Vec::new(),
    }
}

fn wheel(model: &mut Model, by: isize) -> Vec<Cmd> {
    match &model.dialog {
        None => act::by_rows(model, by),
        Some(Dialog::Help { .. } | Dialog::Detail { .. }) => act::scroll(model, by),
        Some(Dialog::Warnings { .. }) => act::move_warning(model, by.signum()),
        Some(Dialog::Palette { .. }) if by > 0 => act::next_named(model),
        Some(Dialog::Palette { .. }) => act::previous_named(model),
        Some(_) => Vec::new(),
    }
}

fn click(model: &mut Model, at: (u16, u16)) -> Vec<Cmd> {
    model.toast = None;
    match view::target(model, at) {
        None => Vec::new(),
        Some(Target::Command(command)) => run(model, command),
        Some(Target::Page(page)) => act::open_page(model, page),
        Some(Target::Row(section, key)) => {
            model.section = section;
            // The second click on a row opens it.
            if model.current() == Some(&key) {
                return act::open_detail(model);
            }
            let place = model.keys(section).iter().position(|k| *k == key);
            if let Some(place) = place {
                model.choose(place);
            }
            Vec::new()
        }
        Some(Target::Sort(sort)) => sort_by(model, sort),
        Some(Target::Field(index)) => {
            if let Some(Dialog::Form(form)) = &mut model.dialog {
                form.focus = index.min(form.entries.len().saturating_sub(1));
            }
            Vec::new()
        }
        Some(Target::Named(index)) => {
            if let Some(Dialog::Palette { chosen, .. }) = &mut model.dialog {
                *chosen = index;
            }
            act::run_named(model)
        }
        Some(Target::Warning(index)) => {
            model.dialog = Some(Dialog::Warnings { chosen: index });
            act::open_warning(model)
        }
    }
}

fn sort_by(model: &mut Model, sort: Sort) -> Vec<Cmd> {
    model.sort = sort;
    model.settle();
    model.say(Tone::Plain, format!("claims by {}", sort.name()));
    Vec::new()
}

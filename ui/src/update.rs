//! What happens when something happens: pure, so that every key can be tested without a terminal.

pub(crate) mod act;

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind};
use gshare_proto::{Call, Reply};

use crate::feed::{Failure, Request, Update};
use crate::form::{CLASSES, ClaimForm, Field};
use crate::keymap::{self, Context};
use crate::model::{Asked, Dialog, Model, Tone};
use crate::msg::{Cmd, Msg};
use crate::text;

/// Takes a message in.
pub(crate) fn update(model: &mut Model, msg: Msg) -> Vec<Cmd> {
    match msg {
        Msg::Key(event) if event.kind == KeyEventKind::Release => Vec::new(),
        Msg::Key(event) => key(model, event),
        Msg::Paste(text) => {
            match &mut model.dialog {
                Some(Dialog::Claim(form)) => {
                    if let Some(line) = form.line() {
                        line.insert(&text);
                    }
                }
                None if model.filtering => {
                    model.filter.insert(&text);
                    model.settle();
                }
                _ => {}
            }
            Vec::new()
        }
        Msg::Resize(width, height) => {
            model.size = (width, height);
            Vec::new()
        }
        Msg::Tick(clock) => {
            model.clock = clock;
            let over = |until: u64| until <= clock.now_ms;
            model.toast.take_if(|t| over(t.until_ms));
            Vec::new()
        }
        Msg::Update(news) => take(model, news),
    }
}

fn key(model: &mut Model, event: KeyEvent) -> Vec<Cmd> {
    model.toast = None;
    let context = Context::of(model);
    if let Some(command) = keymap::find(context, event) {
        return match (command.able)(model) {
            Ok(()) => (command.run)(model),
            Err(why) => {
                model.say(Tone::Bad, why);
                Vec::new()
            }
        };
    }
    match &mut model.dialog {
        Some(Dialog::Claim(form)) => form_key(form, event),
        None if model.filtering => {
            model.filter.key(event);
            model.settle();
        }
        _ => {}
    }
    Vec::new()
}

fn form_key(form: &mut ClaimForm, event: KeyEvent) {
    form.refused = None;
    if form.focus == Field::Class {
        let n = CLASSES.len();
        match event.code {
            KeyCode::Right | KeyCode::Char(' ') => form.class = (form.class + 1) % n,
            KeyCode::Left => form.class = (form.class + n - 1) % n,
            _ => {}
        }
    } else if let Some(line) = form.line() {
        line.key(event);
    }
}

fn take(model: &mut Model, news: Update) -> Vec<Cmd> {
    match news {
        Update::Snapshot(snapshot) => {
            model.snapshot = Some(snapshot);
            model.received_ms = model.clock.now_ms;
            model.disconnected = None;
            model.settle();
        }
        Update::Disconnected(why) => model.disconnected = Some(why),
        Update::Caption(text) => model.caption = text,
        Update::Close => return vec![Cmd::Quit],
        Update::CallResult { seq, outcome } => answer(model, seq, outcome),
    }
    Vec::new()
}

fn answer(model: &mut Model, seq: u64, outcome: Result<Reply, Failure>) {
    let Some(asked) = model.asked.remove(&seq) else {
        return;
    };
    let form = match &mut model.dialog {
        Some(Dialog::Claim(form)) if form.sent == Some(seq) => Some(form),
        _ => None,
    };
    match (asked, outcome, form) {
        (_, Err(failure), Some(form)) => {
            form.sent = None;
            form.refused = Some(failure);
        }
        (_, Err(failure), None) => tell(model, failure),
        (Asked::Claim, Ok(Reply::Granted(granted)), form) => {
            let lines = vec![
                granted.message,
                String::new(),
                "It is held until you release it (x) and belongs to no program yet.".to_owned(),
                format!("Use it in a shell:  eval \"$(gshare env {})\"", granted.id),
            ];
            if form.is_some() || model.dialog.is_none() {
                let title = format!("{} is yours", granted.id);
                model.dialog = Some(Dialog::Message { title, lines });
            } else {
                model.say(Tone::Good, lines[0].clone());
            }
        }
        (_, Ok(Reply::Done { message }), _) => model.say(Tone::Good, message),
        (_, Ok(other), form) => {
            let text = match other {
                Reply::Queued(q) => format!("{} waits: {}", q.id, q.reason),
                _ => "the service gave an answer that this screen does not understand".to_owned(),
            };
            if let Some(form) = form {
                form.sent = None;
            }
            model.say(Tone::Plain, text);
        }
    }
}

/// Tells a failure on one line, or in a box where that is too short.
fn tell(model: &mut Model, failure: Failure) {
    let hint = failure.hint.as_ref().map(|h| format!(". {h}"));
    let text = format!("{}{}", failure.message, hint.unwrap_or_default());
    if text::width(&text) <= usize::from(model.size.0) || model.dialog.is_some() {
        model.say(Tone::Bad, text);
        return;
    }
    let title = "That was not done".to_owned();
    let lines = std::iter::once(failure.message)
        .chain(failure.hint)
        .collect();
    model.dialog = Some(Dialog::Message { title, lines });
}

/// A call to the service, remembered until its answer.
pub(crate) fn ask(model: &mut Model, asked: Asked, call: Call) -> (u64, Vec<Cmd>) {
    let seq = model.next_seq;
    model.next_seq += 1;
    model.asked.insert(seq, asked);
    let call = Box::new(call);
    (seq, vec![Cmd::Ask(Request::Call { seq, call })])
}

#[cfg(test)]
mod tests;

//! What happens when something happens: pure, so that every key can be tested without a terminal.

pub(crate) mod act;
mod mouse;

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind};
use gshare_proto::{Call, Reply, Tried};

use crate::feed::{Failure, Request, Update};
use crate::form::{Form, Kind};
use crate::keymap::{self, Command, Context};
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
                Some(Dialog::Form(form)) => {
                    if let Some(line) = form.line() {
                        line.insert(&text);
                    }
                }
                Some(Dialog::Palette { input, chosen }) => {
                    input.insert(&text);
                    *chosen = 0;
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
            model.wall_ms = clock.now_ms;
            model.clock.offset_s = clock.offset_s;
            if !model.recorded {
                model.clock = clock;
            }
            let over = |until: u64| until <= clock.now_ms;
            model.toast.take_if(|t| over(t.until_ms));
            act::refresh(model)
        }
        Msg::Mouse(event) => mouse::event(model, event),
        Msg::Update(news) => take(model, news),
    }
}

fn key(model: &mut Model, event: KeyEvent) -> Vec<Cmd> {
    model.toast = None;
    let context = Context::of(model);
    if let Some(command) = keymap::find(context, event) {
        return run(model, command);
    }
    match &mut model.dialog {
        Some(Dialog::Form(form)) => {
            form_key(form, event);
            return try_claim(model);
        }
        Some(Dialog::Palette { input, chosen }) => {
            input.key(event);
            *chosen = 0;
        }
        None if model.filtering => {
            model.filter.key(event);
            model.settle();
        }
        _ => {}
    }
    Vec::new()
}

/// Runs a command, or says why it cannot be run.
pub(crate) fn run(model: &mut Model, command: &Command) -> Vec<Cmd> {
    match (command.able)(model) {
        Ok(()) => (command.run)(model),
        Err(why) => {
            model.say(Tone::Bad, why);
            Vec::new()
        }
    }
}

fn form_key(form: &mut Form, event: KeyEvent) {
    form.refused = None;
    if let Some((n, at)) = form.choice() {
        match event.code {
            KeyCode::Right | KeyCode::Char(' ') => *at = (*at + 1) % n,
            KeyCode::Left => *at = (*at + n - 1) % n,
            _ => {}
        }
    } else if let Some(line) = form.line() {
        line.key(event);
    }
}

/// Asks the service whether the claim in the dialog would start, one question at a time.
pub(crate) fn try_claim(model: &mut Model) -> Vec<Cmd> {
    if model.service().is_err() {
        return Vec::new();
    }
    let Some(Dialog::Form(form)) = &model.dialog else {
        return Vec::new();
    };
    if form.kind != Kind::Claim || form.trying.is_some() || form.sent.is_some() {
        return Vec::new();
    }
    let Ok(spec) = form.spec() else {
        return Vec::new();
    };
    if form.tried.as_ref().is_some_and(|(tried, _)| *tried == spec) {
        return Vec::new();
    }
    let (seq, commands) = ask(model, Asked::Try, Call::Try(Box::new(spec.clone())));
    if let Some(Dialog::Form(form)) = &mut model.dialog {
        form.trying = Some((seq, spec));
    }
    commands
}

fn take(model: &mut Model, news: Update) -> Vec<Cmd> {
    match news {
        Update::Snapshot(snapshot) => {
            if model.recorded {
                model.clock.now_ms = snapshot.taken_ms;
            }
            model.snapshot = Some(snapshot);
            model.received_ms = model.clock.now_ms;
            model.disconnected = None;
            model.settle();
        }
        Update::Disconnected(why) => model.disconnected = Some(why),
        Update::Caption(text) => model.caption = text,
        Update::Close => return vec![Cmd::Quit],
        Update::CallResult { seq, outcome } => return answer(model, seq, outcome),
    }
    Vec::new()
}

fn answer(model: &mut Model, seq: u64, outcome: Result<Reply, Failure>) -> Vec<Cmd> {
    let Some(asked) = model.asked.remove(&seq) else {
        return Vec::new();
    };
    match asked {
        Asked::Try => return tried(model, seq, outcome),
        Asked::Checks => {
            model.checks.rows = Some(match outcome {
                Ok(Reply::Doctor { checks }) => Ok(checks),
                Ok(_) => Err(STRANGE.to_owned()),
                Err(failure) => Err(failure.sentence()),
            });
            model.settle();
            return Vec::new();
        }
        Asked::Past => {
            model.past.view = Some(match outcome {
                Ok(Reply::History(view)) => Ok(view),
                Ok(_) => Err(STRANGE.to_owned()),
                Err(failure) => Err(failure.sentence()),
            });
            model.settle();
            return Vec::new();
        }
        Asked::Worst => {
            if let Ok(Reply::Report(report)) = outcome {
                model.past.report = Some(report);
            }
            return Vec::new();
        }
        Asked::ClaimPast => {
            if let Ok(Reply::History(view)) = outcome {
                model.past.claim = Some(view);
            }
            return Vec::new();
        }
        Asked::Claim | Asked::Act => {}
    }
    let form = match &mut model.dialog {
        Some(Dialog::Form(form)) if form.sent == Some(seq) => Some(form),
        _ => None,
    };
    match (outcome, form) {
        (Err(failure), Some(form)) => {
            form.sent = None;
            form.refused = Some(failure);
        }
        (Err(failure), None) => tell(model, failure),
        (Ok(Reply::Granted(granted)), form) if asked == Asked::Claim => {
            let until = match form.as_ref().and_then(|f| f.get("Hold for")) {
                Some(time) => format!("for {time}, or until you release it"),
                None => "until you release it".to_owned(),
            };
            let lines = vec![
                granted.message,
                String::new(),
                format!("It is held {until} (x) and belongs to no program yet."),
                format!("Use it in a shell:  eval \"$(gshare env {})\"", granted.id),
            ];
            if form.is_some() || model.dialog.is_none() {
                let title = format!("{} is yours", granted.id);
                model.dialog = Some(Dialog::Message { title, lines });
            } else {
                model.say(Tone::Good, lines[0].clone());
            }
        }
        (Ok(reply), form) => {
            let (tone, text) = match reply {
                Reply::Done { message } => (Tone::Good, message),
                Reply::Resized(resized) => (Tone::Good, resized.message.replace('\n', "; ")),
                Reply::Admin(done) => (Tone::Good, done.message.replace('\n', "; ")),
                Reply::Queued(q) => (Tone::Plain, format!("{} waits: {}", q.id, q.reason)),
                _ => (Tone::Plain, STRANGE.to_owned()),
            };
            if form.is_some() {
                model.dialog = None;
            }
            model.say(tone, text);
        }
    }
    Vec::new()
}

/// An answer of another version.
const STRANGE: &str = "the service gave an answer that this screen does not understand";

/// What the service says to a claim that is being typed; what was typed since is tried next.
fn tried(model: &mut Model, seq: u64, outcome: Result<Reply, Failure>) -> Vec<Cmd> {
    let Some(Dialog::Form(form)) = &mut model.dialog else {
        return Vec::new();
    };
    let Some((_, spec)) = form.trying.take_if(|(asked, _)| *asked == seq) else {
        return Vec::new();
    };
    let said = match outcome {
        Ok(Reply::Tried(tried)) => Ok(tried),
        // As older services say it.
        Ok(Reply::Done { message }) => Ok(Tried {
            starts: true,
            message,
            ..Tried::default()
        }),
        Ok(_) => Err(Failure {
            message: STRANGE.to_owned(),
            hint: None,
        }),
        Err(failure) => Err(failure),
    };
    form.tried = Some((spec, said));
    try_claim(model)
}

/// Tells a failure on one line, or in a box where that is too short.
fn tell(model: &mut Model, failure: Failure) {
    let text = failure.sentence();
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

//! Reactions to messages: pure, so that every key can be tested without a terminal.

pub(crate) mod act;
mod mouse;

use crossterm::event::{KeyEvent, KeyEventKind};
use gshare_proto::{Call, Reply, messages};

use crate::feed::{Failure, Request, Update};
use crate::form::Kind;
use crate::input::LineInput;
use crate::keymap::{self, Command, Context};
use crate::model::{Asked, Dialog, Model, Tone};
use crate::msg::{Cmd, Msg};
use crate::text;

pub(crate) fn update(model: &mut Model, msg: Msg) -> Vec<Cmd> {
    take_in(model, msg);
    std::mem::take(&mut model.out)
}

fn take_in(model: &mut Model, msg: Msg) {
    match msg {
        Msg::Key(event) if event.kind == KeyEventKind::Release => {}
        Msg::Key(event) => key(model, event),
        Msg::Paste(text) => typed(model, |line| line.insert(&text)),
        Msg::Resize(width, height) => model.size = (width, height),
        Msg::Tick(clock) => {
            model.wall_ms = clock.now_ms;
            model.clock.offset_s = clock.offset_s;
            if !model.recorded {
                model.clock = clock;
            }
            let over = |until: u64| until <= clock.now_ms;
            model.toast.take_if(|t| over(t.until_ms));
            act::refresh(model);
        }
        Msg::Mouse(event) => mouse::event(model, event),
        Msg::Update(news) => take(model, news),
    }
}

fn key(model: &mut Model, event: KeyEvent) {
    model.toast = None;
    let context = Context::of(model);
    if let Some(command) = keymap::find(context, event) {
        return run(model, command);
    }
    if let Some(Dialog::Form(form)) = &mut model.dialog {
        form.refused = None;
    }
    typed(model, |line| line.key(event));
}

/// Edits the line with the cursor.
fn typed(model: &mut Model, edit: impl FnOnce(&mut LineInput)) {
    match &mut model.dialog {
        Some(Dialog::Form(form)) => {
            form.line().map(edit);
            try_claim(model);
        }
        None if model.filtering => {
            edit(&mut model.filter);
            model.settle();
        }
        _ => {}
    }
}

pub(crate) fn run(model: &mut Model, command: &Command) {
    match (command.able)(model) {
        Ok(()) => (command.run)(model),
        Err(why) => model.say(Tone::Bad, why),
    }
}

/// Requests a dry run of the claim in the dialog, one at a time.
pub(crate) fn try_claim(model: &mut Model) {
    let able = model.service().is_ok();
    let Some(Dialog::Form(form)) = &model.dialog else {
        return;
    };
    if !able || form.kind != Kind::Claim || form.trying.is_some() || form.sent.is_some() {
        return;
    }
    let Ok(spec) = form.spec() else { return };
    if form.tried.as_ref().is_some_and(|(tried, _)| *tried == spec) {
        return;
    }
    let seq = ask(model, Asked::Try, Call::Try(Box::new(spec.clone())));
    if let Some(Dialog::Form(form)) = &mut model.dialog {
        form.trying = Some((seq, spec));
    }
}

fn take(model: &mut Model, news: Update) {
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
        Update::Close => model.out.push(Cmd::Quit),
        Update::CallResult { seq, outcome } => answer(model, seq, outcome),
    }
}

/// The expected part of an answer, or why it is missing.
fn part<T>(
    outcome: Result<Reply, Failure>,
    of: impl FnOnce(Reply) -> Option<T>,
) -> Result<T, String> {
    let reply = outcome.map_err(|failure| failure.sentence())?;
    of(reply).ok_or_else(messages::strange_answer)
}

fn answer(model: &mut Model, seq: u64, outcome: Result<Reply, Failure>) {
    let history = |reply| match reply {
        Reply::History(view) => Some(view),
        _ => None,
    };
    match model.asked.remove(&seq) {
        None => {}
        Some(Asked::Try) => tried(model, seq, outcome),
        Some(Asked::DryRun) => {
            if let Ok(Reply::Tried(tried)) = outcome {
                model.tried(seq, tried);
            }
        }
        Some(Asked::Checks) => {
            model.checks.rows = Some(part(outcome, |reply| match reply {
                Reply::Doctor { checks } => Some(checks),
                _ => None,
            }));
            model.settle();
        }
        Some(Asked::Past) => {
            model.past.answered(part(outcome, history));
            model.settle();
        }
        Some(Asked::PastGpus) => model.past.gpus = part(outcome, history).ok(),
        Some(Asked::Worst) => {
            if let Ok(Reply::Report(report)) = outcome {
                model.past.report = Some(report);
            }
        }
        Some(Asked::ClaimPast) => {
            if let Ok(view) = part(outcome, history) {
                model.past.claim = Some(view);
            }
        }
        Some(asked @ (Asked::Claim | Asked::Act)) => done(model, seq, asked, outcome),
    }
}

/// The service's reply to an action.
fn done(model: &mut Model, seq: u64, asked: Asked, outcome: Result<Reply, Failure>) {
    let form = match &mut model.dialog {
        Some(Dialog::Form(form)) if form.sent == Some(seq) => Some(form),
        _ => None,
    };
    match (outcome, form) {
        (Err(failure), Some(form)) => {
            form.sent = None;
            form.refused = Some(failure.sentence());
        }
        (Err(failure), None) => tell(model, failure),
        (Ok(Reply::Granted(granted)), form) if asked == Asked::Claim => {
            let id = &granted.id;
            let lines = vec![
                granted.message,
                String::new(),
                format!("No program uses it yet. To start one: gshare join {id} -- CMD"),
                format!(
                    "To move a whole shell into {id}: eval \"$(gshare env {id})\". Key x releases {id}."
                ),
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
                _ => (Tone::Plain, messages::strange_answer()),
            };
            if form.is_some() {
                model.dialog = None;
            }
            model.say(tone, text);
        }
    }
}

/// The service's answer to the typed claim; what was typed since is tried next.
fn tried(model: &mut Model, seq: u64, outcome: Result<Reply, Failure>) {
    let Some(Dialog::Form(form)) = &mut model.dialog else {
        return;
    };
    let Some((_, spec)) = form.trying.take_if(|(asked, _)| *asked == seq) else {
        return;
    };
    let said = part(outcome, |reply| match reply {
        Reply::Tried(tried) => Some(tried),
        _ => None,
    });
    form.tried = Some((spec, said));
    try_claim(model);
}

/// Shows a failure on one line, or in a box if it is too long.
fn tell(model: &mut Model, failure: Failure) {
    let text = failure.sentence();
    if text::width(&text) <= usize::from(model.size.0) || model.dialog.is_some() {
        model.say(Tone::Bad, text);
        return;
    }
    let title = "The request failed".to_owned();
    let lines = [failure.message].into_iter().chain(failure.hint).collect();
    model.dialog = Some(Dialog::Message { title, lines });
}

/// Sends a call to the service, and remembers it until its answer.
pub(crate) fn ask(model: &mut Model, asked: Asked, call: Call) -> u64 {
    let seq = model.next_seq;
    model.next_seq += 1;
    model.asked.insert(seq, asked);
    let call = Box::new(call);
    model.out.push(Cmd::Ask(Request::Call { seq, call }));
    seq
}

#[cfg(test)]
mod tests;

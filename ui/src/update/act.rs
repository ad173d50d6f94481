//! What the commands of the table do.

mod admin;
mod go;
pub(crate) mod levers;

use gshare_proto::units::{Bytes, Share};
use gshare_proto::{Call, ClaimView, LeverWish, ReportSpec, ResizeSpec, Wait};

use super::{ask, run, try_claim};
use crate::feed::{Failure, Request, Seek};
use crate::form::{Form, Kind};
use crate::input::LineInput;
use crate::keymap;
use crate::model::{Asked, Dialog, Model, Page, Question, RowKey, Tone};
use crate::msg::Cmd;
use crate::text;
use crate::view;

pub(crate) use admin::{ask_drain, ask_kill, ask_mode, can_drain, can_kill};
pub(crate) use go::*;

const NO_ROW: &str = "choose a row first: Down or j";

/// Whether there is something to see.
pub(crate) fn some_snapshot(model: &Model) -> Result<(), String> {
    let snapshot = model.snapshot.as_ref().map(|_| ());
    snapshot.ok_or_else(|| "no figures yet".to_owned())
}

/// Whether the focus has rows.
pub(crate) fn some_row(model: &Model) -> Result<(), String> {
    if model.keys(model.focus()).is_empty() {
        return Err("there is no row to look at here".to_owned());
    }
    Ok(())
}

/// Whether the chosen row is a claim that the viewer may change.
pub(crate) fn own_claim(model: &Model) -> Result<(), String> {
    model.service()?;
    chosen_claim(model).map(|_| ())
}

/// The id of the chosen claim, if the viewer may change it.
fn chosen_claim(model: &Model) -> Result<String, String> {
    let claim = match model.current() {
        None => return Err(NO_ROW.to_owned()),
        Some(RowKey::Claim(id)) => model.claim(id).ok_or_else(gone)?,
        Some(RowKey::Waiting(id)) => return Err(format!("{id} still waits")),
        Some(_) => return Err("choose a claim first".to_owned()),
    };
    if claim.adopted {
        let id = &claim.id;
        return Err(format!(
            "{id} is a process outside claims: nothing holds it to a size"
        ));
    }
    if !model.may(claim.uid) {
        let (id, user) = (&claim.id, &claim.user);
        return Err(format!(
            "{id} belongs to {user}: only {user} or root can change it"
        ));
    }
    Ok(claim.id.clone())
}

fn gone() -> String {
    "it has just ended".to_owned()
}

/// Whether this is a recording.
pub(crate) fn some_recording(model: &Model) -> Result<(), String> {
    if model.recorded {
        return Ok(());
    }
    Err("only a recording can be gone about in (gshare top --replay FILE)".to_owned())
}

fn seek(to: Seek) -> Vec<Cmd> {
    vec![Cmd::Ask(Request::Replay(to))]
}

pub(crate) fn faster(_: &mut Model) -> Vec<Cmd> {
    seek(Seek::Faster)
}

pub(crate) fn slower(_: &mut Model) -> Vec<Cmd> {
    seek(Seek::Slower)
}

pub(crate) fn forward(_: &mut Model) -> Vec<Cmd> {
    seek(Seek::Forward)
}

pub(crate) fn back(_: &mut Model) -> Vec<Cmd> {
    seek(Seek::Back)
}

/// Whether there is something to stop.
pub(crate) fn some_caption(model: &Model) -> Result<(), String> {
    let caption = model.caption.as_ref().map(|_| ());
    caption.ok_or_else(|| "only the demo and a replay have something to stop".to_owned())
}

pub(crate) fn open_claim(model: &mut Model) -> Vec<Cmd> {
    model.dialog = Some(Dialog::Form(Box::new(Form::claim())));
    try_claim(model)
}

pub(crate) fn open_resize(model: &mut Model) -> Vec<Cmd> {
    let claim = chosen_claim(model).ok();
    if let Some(claim) = claim.and_then(|id| model.claim(&id).cloned()) {
        model.dialog = Some(Dialog::Form(Box::new(Form::resize(&claim))));
    }
    Vec::new()
}

pub(crate) fn open_extend(model: &mut Model) -> Vec<Cmd> {
    let claim = chosen_claim(model).ok();
    let Some(claim) = claim.and_then(|id| model.claim(&id).cloned()) else {
        return Vec::new();
    };
    match claim.ends_ms {
        Some(at) => {
            let form = Form::extend(&claim, &model.clock.short_time(at));
            model.dialog = Some(Dialog::Form(Box::new(form)));
        }
        None => model.say(
            Tone::Bad,
            format!("{} has no end: there is nothing to put off", claim.id),
        ),
    }
    Vec::new()
}

pub(crate) fn open_detail(model: &mut Model) -> Vec<Cmd> {
    match model.current().cloned() {
        Some(key) => model.dialog = Some(Dialog::Detail { key, scroll: 0 }),
        None => model.say(Tone::Plain, NO_ROW),
    }
    Vec::new()
}

pub(crate) fn open_help(model: &mut Model) -> Vec<Cmd> {
    model.dialog = Some(Dialog::Help { scroll: 0 });
    Vec::new()
}

pub(crate) fn ask_release(model: &mut Model) -> Vec<Cmd> {
    match question(model) {
        Ok((id, text)) => confirm(
            model,
            format!("Release {id}"),
            text,
            format!("releasing {id}"),
            Call::Release { id: id.into() },
        ),
        Err(why) => model.say(Tone::Bad, why),
    }
    Vec::new()
}

/// Opens a question.
fn confirm(model: &mut Model, title: String, text: String, doing: String, call: Call) {
    let question = Question {
        title,
        text,
        doing,
        call,
    };
    model.dialog = Some(Dialog::Confirm(Box::new(question)));
}

/// A claim in a question: `c3 of ada (train.py)`; a claim that is only held runs nothing.
fn called(claim: &ClaimView, owner: bool) -> String {
    let mut text = claim.id.clone();
    if owner {
        text.push_str(&format!(" of {}", claim.user));
    }
    if !matches!(claim.what.as_str(), "" | "-") {
        text.push_str(&format!(" ({})", claim.what));
    }
    text
}

/// What releasing the chosen row means, or why it cannot be.
fn question(model: &Model) -> Result<(String, String), String> {
    let not_yours = |id: &str, user: &str| {
        format!("{id} belongs to {user}: only {user} or root can release it")
    };
    let may = |uid: u32| model.may(uid);
    match model.current() {
        None => Err(NO_ROW.to_owned()),
        Some(RowKey::Gpu(index)) => Err(format!("GPU {index} is not a claim")),
        Some(RowKey::Unclaimed { pid, .. }) => Err(format!(
            "process {pid} is in no claim, so there is nothing to release"
        )),
        Some(RowKey::Process { pid, .. }) => Err(format!(
            "process {pid} is a part of its claim: choose the claim to release it"
        )),
        Some(RowKey::Group(_) | RowKey::User(_) | RowKey::Check(_)) => {
            Err("choose a claim first".to_owned())
        }
        Some(RowKey::Waiting(id)) => {
            let waiting = model.waiting(id).ok_or_else(gone)?;
            if !may(waiting.uid) {
                return Err(not_yours(id, &waiting.user));
            }
            Ok((
                id.clone(),
                format!("Withdraw {id} ({}) from the queue?", waiting.what),
            ))
        }
        Some(RowKey::Claim(id)) => {
            let claim = model.claim(id).ok_or_else(gone)?;
            if !may(claim.uid) {
                return Err(not_yours(id, &claim.user));
            }
            let gpus: Vec<String> = claim
                .gpus
                .iter()
                .map(|g| format!("{} of GPU {}", text::share(g.sm_request), g.gpu))
                .collect();
            let members = match claim.members.len() {
                0 => "No process is in it.".to_owned(),
                1 => "One process is in it and loses the GPU.".to_owned(),
                n => format!("{n} processes are in it and lose the GPU."),
            };
            let claim = called(claim, model.viewer.uid != claim.uid);
            let text = format!("Release {claim}, {}? {members}", gpus.join(" and "));
            Ok((id.clone(), text))
        }
    }
}

/// Does what was asked.
pub(crate) fn confirmed(model: &mut Model) -> Vec<Cmd> {
    let Some(Dialog::Confirm(question)) = model.dialog.take() else {
        return Vec::new();
    };
    model.say(Tone::Plain, question.doing);
    ask(model, Asked::Act, question.call).1
}

pub(crate) fn start_filter(model: &mut Model) -> Vec<Cmd> {
    model.filtering = true;
    Vec::new()
}

pub(crate) fn keep_filter(model: &mut Model) -> Vec<Cmd> {
    model.filtering = false;
    Vec::new()
}

pub(crate) fn drop_filter(model: &mut Model) -> Vec<Cmd> {
    model.filtering = false;
    model.filter = LineInput::default();
    model.settle();
    Vec::new()
}

/// One step back: the choice, then the filter.
pub(crate) fn clear(model: &mut Model) -> Vec<Cmd> {
    if model.current().is_some() {
        model.choose_none();
        return Vec::new();
    }
    drop_filter(model)
}

pub(crate) fn next_sort(model: &mut Model) -> Vec<Cmd> {
    model.sort = model.sort.next();
    model.settle();
    model.say(Tone::Plain, format!("claims by {}", model.sort.name()));
    Vec::new()
}

/// Only what is the viewer's, or everything again.
pub(crate) fn mine_only(model: &mut Model) -> Vec<Cmd> {
    model.mine = !model.mine;
    model.settle();
    let words = if model.mine {
        "only yours; m shows everything"
    } else {
        "everything"
    };
    model.say(Tone::Plain, words);
    Vec::new()
}

/// Whether anything is worth a look.
pub(crate) fn some_warning(model: &Model) -> Result<(), String> {
    match view::warnings(model).is_empty() {
        true => Err("no warnings".to_owned()),
        false => Ok(()),
    }
}

pub(crate) fn open_warnings(model: &mut Model) -> Vec<Cmd> {
    model.dialog = Some(Dialog::Warnings { chosen: 0 });
    Vec::new()
}

pub(crate) fn move_warning(model: &mut Model, by: isize) -> Vec<Cmd> {
    let last = view::warnings(model).len().saturating_sub(1);
    if let Some(Dialog::Warnings { chosen }) = &mut model.dialog {
        *chosen = chosen.saturating_add_signed(by).min(last);
    }
    Vec::new()
}

pub(crate) fn next_warning(model: &mut Model) -> Vec<Cmd> {
    move_warning(model, 1)
}

pub(crate) fn previous_warning(model: &mut Model) -> Vec<Cmd> {
    move_warning(model, -1)
}

/// The call that a command of advice means, where the screen can make it.
fn call_of(command: &str) -> Option<Call> {
    let mut words = command.rsplit("gshare ").next()?.split_whitespace();
    let (verb, id) = (words.next()?, words.next()?.to_owned());
    match (verb, words.next(), words.next()) {
        ("release", None, _) => Some(Call::Release { id: id.into() }),
        ("keep", None, _) => Some(Call::Keep { id: id.into() }),
        ("detach", None, _) => Some(Call::Lever {
            id: id.into(),
            wish: LeverWish::Detach,
        }),
        ("resize", Some(flag @ ("-g" | "--gpu-mem")), Some(size)) => {
            let mut spec = ResizeSpec {
                id: id.into(),
                wait: Wait::No,
                ..ResizeSpec::default()
            };
            match flag {
                "-g" => spec.gpus_milli = Some(size.parse::<Share>().ok()?.milli()),
                _ => spec.mem = Some(size.parse::<Bytes>().ok()?.0),
            }
            Some(Call::Resize(Box::new(spec)))
        }
        _ => None,
    }
}

/// The chosen warning and the exact command, as a question where the screen can run it.
pub(crate) fn open_warning(model: &mut Model) -> Vec<Cmd> {
    let Some(Dialog::Warnings { chosen }) = model.dialog else {
        return Vec::new();
    };
    let Some((text, command)) = view::warnings(model).into_iter().nth(chosen) else {
        return Vec::new();
    };
    let title = "What to do".to_owned();
    match call_of(&command) {
        Some(call) => {
            let shown = &command[command.find("gshare ").unwrap_or(0)..];
            let text = format!("{text}. Run: {shown}");
            confirm(model, title, text, shown.to_owned(), call);
        }
        None => {
            let lines = vec![text, String::new(), command];
            model.dialog = Some(Dialog::Message { title, lines });
        }
    }
    Vec::new()
}

pub(crate) fn pause_captions(model: &mut Model) -> Vec<Cmd> {
    model.captions_paused = !model.captions_paused;
    vec![Cmd::Ask(Request::Captions {
        paused: model.captions_paused,
    })]
}

pub(crate) fn quit(_: &mut Model) -> Vec<Cmd> {
    vec![Cmd::Quit]
}

pub(crate) fn redraw(_: &mut Model) -> Vec<Cmd> {
    vec![Cmd::Redraw]
}

pub(crate) fn suspend(_: &mut Model) -> Vec<Cmd> {
    vec![Cmd::Suspend]
}

pub(crate) fn close(model: &mut Model) -> Vec<Cmd> {
    model.dialog = None;
    Vec::new()
}

fn move_field(model: &mut Model, forward: bool) -> Vec<Cmd> {
    if let Some(Dialog::Form(form)) = &mut model.dialog {
        form.step(forward);
    }
    Vec::new()
}

pub(crate) fn next_field(model: &mut Model) -> Vec<Cmd> {
    move_field(model, true)
}

pub(crate) fn previous_field(model: &mut Model) -> Vec<Cmd> {
    move_field(model, false)
}

pub(crate) fn send_form(model: &mut Model) -> Vec<Cmd> {
    let able = model.service();
    let Some(Dialog::Form(form)) = &mut model.dialog else {
        return Vec::new();
    };
    if form.sent.is_some() {
        return Vec::new();
    }
    let call = match able.and_then(|()| form.call()) {
        Ok(call) => call,
        Err(message) => {
            form.refused = Some(Failure {
                message,
                hint: None,
            });
            return Vec::new();
        }
    };
    let asked = match form.kind {
        Kind::Claim => Asked::Claim,
        Kind::Resize { .. } | Kind::Extend { .. } => Asked::Act,
    };
    let (seq, commands) = ask(model, asked, call);
    if let Some(Dialog::Form(form)) = &mut model.dialog {
        form.sent = Some(seq);
        form.refused = None;
    }
    commands
}

pub(crate) fn open_palette(model: &mut Model) -> Vec<Cmd> {
    model.dialog = Some(Dialog::Palette {
        input: LineInput::default(),
        chosen: 0,
    });
    Vec::new()
}

fn move_named(model: &mut Model, forward: bool) -> Vec<Cmd> {
    let Some(Dialog::Palette { input, chosen }) = &model.dialog else {
        return Vec::new();
    };
    let n = keymap::named(model, input.text()).len().max(1);
    let next = (*chosen + if forward { 1 } else { n - 1 }) % n;
    if let Some(Dialog::Palette { chosen, .. }) = &mut model.dialog {
        *chosen = next;
    }
    Vec::new()
}

pub(crate) fn next_named(model: &mut Model) -> Vec<Cmd> {
    move_named(model, true)
}

pub(crate) fn previous_named(model: &mut Model) -> Vec<Cmd> {
    move_named(model, false)
}

pub(crate) fn run_named(model: &mut Model) -> Vec<Cmd> {
    let Some(Dialog::Palette { input, chosen }) = &model.dialog else {
        return Vec::new();
    };
    let found = keymap::named(model, input.text());
    let Some(command) = found.get(*chosen).copied() else {
        let text = format!("no command is called `{}`", input.text());
        model.say(Tone::Bad, text);
        return Vec::new();
    };
    model.dialog = None;
    run(model, command)
}

pub(crate) fn scroll(model: &mut Model, by: isize) -> Vec<Cmd> {
    // The end of the text is known only for a size of the terminal.
    let end = view::scroll_end(model);
    if let Some(Dialog::Help { scroll } | Dialog::Detail { scroll, .. }) = &mut model.dialog {
        *scroll = scroll.saturating_add_signed(by).min(end);
    }
    Vec::new()
}

pub(crate) fn scroll_down(model: &mut Model) -> Vec<Cmd> {
    scroll(model, 1)
}

pub(crate) fn scroll_up(model: &mut Model) -> Vec<Cmd> {
    scroll(model, -1)
}

/// Lines of a page of a box.
fn box_page(model: &Model) -> isize {
    isize::try_from(model.size.1.saturating_sub(6).max(1)).unwrap_or(1)
}

pub(crate) fn scroll_page_down(model: &mut Model) -> Vec<Cmd> {
    scroll(model, box_page(model))
}

pub(crate) fn scroll_page_up(model: &mut Model) -> Vec<Cmd> {
    scroll(model, -box_page(model))
}

/// Between two questions for what changes slowly, in milliseconds.
const SLOWLY_MS: u64 = 30_000;

/// Asks for what the screen shows and the snapshot does not have, when it is missing or old.
pub(crate) fn refresh(model: &mut Model) -> Vec<Cmd> {
    if model.service().is_err() {
        return Vec::new();
    }
    let now = model.clock.now_ms;
    if model.page == Page::Health && now.saturating_sub(model.checks.asked_ms) >= SLOWLY_MS {
        model.checks.asked_ms = now;
        return ask(model, Asked::Checks, Call::Doctor).1;
    }
    if model.page == Page::Claims {
        return ask_claim(model);
    }
    if model.page == Page::History
        && let Some(spec) = model.past.question(now)
    {
        let report = ReportSpec {
            from_ms: spec.from_ms,
            ..ReportSpec::default()
        };
        let mut commands = ask(model, Asked::Past, Call::History(spec)).1;
        commands.extend(ask(model, Asked::Worst, Call::Report(report)).1);
        return commands;
    }
    Vec::new()
}

/// Asks for what was recorded of the claim that is shown on Claims.
fn ask_claim(model: &mut Model) -> Vec<Cmd> {
    let Some(RowKey::Claim(id)) = model.current().cloned() else {
        return Vec::new();
    };
    let since = model.claim(&id).map(|c| c.since_ms);
    let now = model.clock.now_ms;
    match since.and_then(|since| model.past.claim_question(&id, since, now)) {
        Some(spec) => ask(model, Asked::ClaimPast, Call::History(spec)).1,
        None => Vec::new(),
    }
}

/// Asks the doctor again.
pub(crate) fn look_again(model: &mut Model) -> Vec<Cmd> {
    model.checks.asked_ms = 0;
    refresh(model)
}

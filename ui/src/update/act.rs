//! Actions of the commands in the table.

mod admin;
mod go;
pub(crate) mod levers;

use gshare_proto::units::{Bytes, Share};
use gshare_proto::{
    Call, ClaimGpu, ClaimView, HistoryBy, LeverWish, ReportSpec, ResizeSpec, Wait, messages,
};

use super::{ask, try_claim};
use crate::feed::{Request, Seek};
use crate::form::{Form, Kind};
use crate::input::LineInput;
use crate::model::{Asked, Dialog, Model, Page, Question, RowKey, Sort, Tone};
use crate::msg::Cmd;
use crate::text;
use crate::view;

pub(crate) use admin::{drain, kill, mode};
pub(crate) use go::*;

pub(crate) const NO_ROW: &str = "choose a row first: Down or j";

pub(crate) fn need(is: bool, why: &str) -> Result<(), String> {
    is.then_some(()).ok_or_else(|| why.to_owned())
}

pub(crate) fn some_claims(model: &Model) -> Result<(), String> {
    let is_table = matches!(model.page, Page::Overview | Page::Claims);
    let why = "only the claims on screens 1 and 2 can be sorted";
    need(is_table && model.claim_rows().len() > 1, why)
}

/// What is copied: the command of the open form, the fix of the chosen check, or the id of the chosen row.
pub(crate) fn copyable(model: &Model) -> Result<String, String> {
    if let Some(Dialog::Form(form)) = &model.dialog {
        return Ok(form.command());
    }
    Ok(match model.subject().ok_or(NO_ROW)? {
        RowKey::Claim(id) | RowKey::Waiting(id) => id.clone(),
        RowKey::Group(name) => name.clone(),
        RowKey::Gpu(n) | RowKey::Process(n, _) | RowKey::User(n) => n.to_string(),
        RowKey::Check(name) => {
            let rows = model.check_rows().into_iter();
            let fix = rows.filter(|c| c.name == *name).find_map(|c| c.fix.clone());
            fix.unwrap_or_else(|| name.clone())
        }
    })
}

pub(crate) fn copy(model: &mut Model) {
    if let Ok(text) = copyable(model) {
        model.say(Tone::Plain, format!("copied: {text}"));
        model.out.push(Cmd::Copy(text));
    }
}

/// The claim of the open page or the chosen row; for a process, its claim.
fn subject(model: &Model) -> Result<&ClaimView, String> {
    match model.subject() {
        None => Err(NO_ROW.to_owned()),
        Some(RowKey::Claim(id)) => model.claim(id).ok_or_else(gone),
        Some(RowKey::Waiting(id)) => Err(format!("{id} still waits")),
        Some(RowKey::Process(pid, _)) => model
            .claim_of(*pid)
            .ok_or_else(|| format!("process {pid} is in no claim")),
        Some(_) => Err("choose a claim first".to_owned()),
    }
}

fn may(model: &Model, id: &str, (uid, user): (u32, &str)) -> Result<(), String> {
    let why = messages::only_owner(id, user, "change");
    need(model.may(uid), &why)
}

pub(crate) fn own_claim(model: &Model) -> Result<&ClaimView, String> {
    model.service()?;
    let claim = subject(model)?;
    if claim.adopted {
        let id = &claim.id;
        return Err(format!("{id} is a process without a claim: it has no size"));
    }
    may(model, &claim.id, (claim.uid, &claim.user))?;
    Ok(claim)
}

fn gone() -> String {
    "it has just ended".to_owned()
}

pub(crate) fn seek(model: &mut Model, to: Seek) {
    model.out.push(Cmd::Ask(Request::Replay(to)));
}

pub(crate) fn open_claim(model: &mut Model) {
    model.dialog = Some(Dialog::Form(Box::new(Form::claim())));
    try_claim(model);
}

pub(crate) fn open_resize(model: &mut Model) {
    if let Ok(claim) = own_claim(model) {
        let form = Form::resize(claim);
        model.dialog = Some(Dialog::Form(Box::new(form)));
    }
}

/// The chosen claim and its end, if the viewer may change that.
pub(crate) fn limited_claim(model: &Model) -> Result<(&ClaimView, u64), String> {
    let claim = own_claim(model)?;
    let ends = claim.ends_ms;
    let ends = ends.ok_or_else(|| format!("{} has no time limit to extend", claim.id))?;
    Ok((claim, ends))
}

pub(crate) fn open_extend(model: &mut Model) {
    if let Ok((claim, at)) = limited_claim(model) {
        let form = Form::extend(claim, &model.clock.short_time(at));
        model.dialog = Some(Dialog::Form(Box::new(form)));
    }
}

pub(crate) fn open_detail(model: &mut Model) {
    if let Some(key) = model.current().cloned() {
        model.dialog = Some(Dialog::Detail { key, scroll: 0 });
    }
}

/// A confirmation, or why the action is not possible.
pub(crate) type Asking = Result<Question, String>;

pub(crate) fn put(model: &mut Model, question: Asking) {
    match question {
        Ok(question) => model.dialog = Some(Dialog::Confirm(Box::new(question))),
        Err(why) => model.say(Tone::Bad, why),
    }
}

/// A claim in a question: `c3 of ada (train.py)`; a claim without a command runs nothing.
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

/// The confirmation for releasing the chosen row, or why it is not possible.
pub(crate) fn release(model: &Model) -> Asking {
    model.service()?;
    let (id, text) = if let Some(RowKey::Waiting(id)) = model.subject() {
        let waiting = model.waiting(id).ok_or_else(gone)?;
        may(model, id, (waiting.uid, &waiting.user))?;
        let text = format!("Withdraw {id} ({}) from the queue?", waiting.what);
        (id, text)
    } else {
        let claim = subject(model)?;
        may(model, &claim.id, (claim.uid, &claim.user))?;
        let part = |g: &ClaimGpu| format!("{} of GPU {}", text::share(g.sm_request), g.gpu);
        let gpus: Vec<String> = claim.gpus.iter().map(part).collect();
        let members = match claim.members.len() {
            0 => "No process is in it.".to_owned(),
            1 => "One process is in it and loses the GPU.".to_owned(),
            n => format!("{n} processes are in it and lose the GPU."),
        };
        let called = called(claim, model.viewer.uid != claim.uid);
        let text = format!("Release {called}, {}? {members}", gpus.join(" and "));
        (&claim.id, text)
    };
    let title = format!("Release {id}");
    let call = Call::Release {
        id: id.clone().into(),
    };
    Ok(Question { title, text, call })
}

pub(crate) fn confirmed(model: &mut Model) {
    if let Some(Dialog::Confirm(question)) = model.dialog.take() {
        let sent = format!("{}: request sent to the service", question.title);
        model.say(Tone::Plain, sent);
        ask(model, Asked::Act, question.call);
    }
}

pub(crate) fn drop_filter(model: &mut Model) {
    model.filtering = false;
    model.filter = LineInput::default();
    model.settle();
}

/// Undoes one step: the choice, then the filter.
pub(crate) fn clear(model: &mut Model) {
    match model.current().is_some() {
        true => model.choose_none(),
        false => drop_filter(model),
    }
}

/// Sorts by this column, or reverses the order if it is already sorted by it.
pub(crate) fn sort_by(model: &mut Model, sort: Sort) {
    model.reversed = model.sort == sort && !model.reversed;
    model.sort = sort;
    model.settle();
    let round = if model.reversed { ", reversed" } else { "" };
    model.say(Tone::Plain, format!("claims by {}{round}", sort.name()));
}

pub(crate) fn mine_only(model: &mut Model) {
    model.mine = !model.mine;
    model.settle();
    let words = match model.mine {
        true => "only yours; m shows everything",
        false => "everything",
    };
    model.say(Tone::Plain, words);
}

/// The call for a command of advice, if the screen can make it.
fn call_of(command: &str) -> Option<Call> {
    let mut words = command.rsplit("gshare ").next()?.split_whitespace();
    let (verb, id) = (words.next()?, words.next()?.to_owned());
    match (verb, words.next(), words.next()) {
        ("release", None, _) => Some(Call::Release { id: id.into() }),
        ("keep", None, _) => Some(Call::Keep { id: id.into() }),
        ("offload", None, _) => Some(Call::Lever {
            id: id.into(),
            wish: LeverWish::Offload,
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

/// Opens the chosen warning with the exact command, as a question if the screen can run it.
pub(crate) fn open_warning(model: &mut Model) {
    let Some(Dialog::Warnings(chosen)) = model.dialog else {
        return;
    };
    let Some((text, command)) = view::warnings(model).into_iter().nth(chosen) else {
        return;
    };
    match call_of(&command) {
        Some(call) => {
            let shown = &command[command.find("gshare ").unwrap_or(0)..];
            let title = format!("What to do: {shown}");
            let text = format!("{text}. Run: {shown}");
            put(model, Ok(Question { title, text, call }));
        }
        None => {
            let title = "What to do".to_owned();
            let lines = vec![text, String::new(), command];
            model.dialog = Some(Dialog::Message { title, lines });
        }
    }
}

pub(crate) fn pause_captions(model: &mut Model) {
    model.captions_paused = !model.captions_paused;
    let paused = model.captions_paused;
    model.out.push(Cmd::Ask(Request::Captions { paused }));
}

pub(crate) fn send_form(model: &mut Model) {
    let able = model.service();
    let Some(Dialog::Form(form)) = &mut model.dialog else {
        return;
    };
    if form.sent.is_some() {
        return;
    }
    let call = match able.and_then(|()| form.call()) {
        Ok(call) => call,
        Err(message) => {
            form.refused = Some(message);
            return;
        }
    };
    let asked = match form.kind {
        Kind::Claim => Asked::Claim,
        Kind::Resize(_) | Kind::Extend(_) => Asked::Act,
    };
    let seq = ask(model, asked, call);
    if let Some(Dialog::Form(form)) = &mut model.dialog {
        form.sent = Some(seq);
        form.refused = None;
    }
}

/// Moves in the box: by lines of a text, or to the next line or entry of a list.
pub(crate) fn step(model: &mut Model, by: isize) {
    let n = match &model.dialog {
        Some(Dialog::Form(form)) => form.entries.len(),
        Some(Dialog::Warnings(_)) => view::warnings(model).len(),
        // The end of the text depends on the size of the terminal.
        _ => view::scroll_end(model) + 1,
    };
    let last = n.max(1) - 1;
    let around = |at: usize| match by > 0 {
        true if at >= last => 0,
        false if at == 0 => last,
        _ => at.saturating_add_signed(by.signum()),
    };
    match &mut model.dialog {
        Some(Dialog::Form(form)) => form.focus = around(form.focus),
        Some(Dialog::Warnings(chosen)) => *chosen = around(*chosen),
        Some(Dialog::Help(scroll) | Dialog::Log(scroll) | Dialog::Detail { scroll, .. }) => {
            *scroll = scroll.saturating_add_signed(by).min(last);
        }
        _ => {}
    }
}

pub(crate) fn step_pages(model: &mut Model, by: isize) {
    let page = isize::try_from(model.size.1.saturating_sub(6).max(1)).unwrap_or(1);
    step(model, by * page);
}

/// Time between two requests for slowly changing data, in milliseconds.
const SLOWLY_MS: u64 = 30_000;

/// Requests what the screen shows and the snapshot does not have, if it is missing or old.
pub(crate) fn refresh(model: &mut Model) {
    if model.service().is_err() {
        return;
    }
    let now = model.clock.now_ms;
    if matches!(model.page, Page::Overview | Page::Queue) {
        for run in model.untried(model.next_seq) {
            ask(model, Asked::DryRun, run.call());
        }
    }
    match model.page {
        Page::Health if now.saturating_sub(model.checks.asked_ms) >= SLOWLY_MS => {
            model.checks.asked_ms = now;
            ask(model, Asked::Checks, Call::Doctor);
        }
        // Large screens and its page show the chosen claim since it began.
        Page::Overview if model.size.0 >= view::SIDE || model.dialog.is_some() => ask_claim(model),
        Page::Claims => ask_claim(model),
        Page::Queue | Page::History => {
            if let Some(spec) = model.past.question(now) {
                let report = ReportSpec {
                    from_ms: spec.from_ms,
                    to_ms: spec.to_ms,
                    ..ReportSpec::default()
                };
                if model.past.by == HistoryBy::Gpu {
                    let mut gpus = spec.clone();
                    gpus.by = HistoryBy::Gpu;
                    ask(model, Asked::PastGpus, Call::History(gpus));
                }
                ask(model, Asked::Past, Call::History(spec));
                ask(model, Asked::Worst, Call::Report(report));
            }
        }
        _ => {}
    }
}

/// Requests the record of the claim that is shown on Claims.
fn ask_claim(model: &mut Model) {
    let Some(RowKey::Claim(id)) = model.subject().cloned() else {
        return;
    };
    let since = model.claim(&id).map(|c| c.since_ms);
    let now = model.clock.now_ms;
    if let Some(spec) = since.and_then(|since| model.past.claim_question(&id, since, now)) {
        ask(model, Asked::ClaimPast, Call::History(spec));
    }
}

pub(crate) fn look_again(model: &mut Model) {
    model.checks.asked_ms = 0;
    refresh(model);
}

//! What the commands of the key table do.

use gshare_proto::Call;

use super::ask;
use crate::feed::{Failure, Request};
use crate::form::ClaimForm;
use crate::model::{Asked, Dialog, Model, RowKey, Section, Tone};
use crate::msg::Cmd;
use crate::text;
use crate::view;

const NO_ROW: &str = "choose a row first: Down or j";

/// Whether there is something to see.
pub(crate) fn some_snapshot(model: &Model) -> Result<(), String> {
    let snapshot = model.snapshot.as_ref().map(|_| ());
    snapshot.ok_or_else(|| "no figures yet".to_owned())
}

/// Whether the focus has rows.
pub(crate) fn some_row(model: &Model) -> Result<(), String> {
    if model.keys(model.section).is_empty() {
        return Err("nothing to look at here: Tab goes to the next part of the screen".to_owned());
    }
    Ok(())
}

/// Whether this is the demo.
pub(crate) fn some_caption(model: &Model) -> Result<(), String> {
    let caption = model.caption.as_ref().map(|_| ());
    caption.ok_or_else(|| "only the demo has captions to stop".to_owned())
}

pub(crate) fn open_claim(model: &mut Model) -> Vec<Cmd> {
    model.dialog = Some(Dialog::Claim(ClaimForm::default()));
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
        Ok((id, question)) => model.dialog = Some(Dialog::Confirm { id, question }),
        Err(why) => model.say(Tone::Bad, why),
    }
    Vec::new()
}

/// What releasing the chosen row means, or why it cannot be.
fn question(model: &Model) -> Result<(String, String), String> {
    let not_yours = |id: &str, user: &str| {
        format!("{id} belongs to {user}: only {user} or root can release it")
    };
    let gone = || "it has just ended".to_owned();
    let may = |uid: u32| model.viewer.admin || model.viewer.uid == uid;
    match model.current() {
        None => Err(NO_ROW.to_owned()),
        Some(RowKey::Gpu(index)) => Err(format!(
            "GPU {index} is not a claim: Tab goes to the claims"
        )),
        Some(RowKey::Unclaimed { pid, .. }) => Err(format!(
            "process {pid} is in no claim, so there is nothing to release"
        )),
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
            let owner = if model.viewer.uid == claim.uid {
                String::new()
            } else {
                format!(" of {}", claim.user)
            };
            Ok((
                id.clone(),
                format!(
                    "Release {id}{owner} ({}; {})? {members}",
                    claim.what,
                    gpus.join(", ")
                ),
            ))
        }
    }
}

pub(crate) fn release(model: &mut Model) -> Vec<Cmd> {
    let Some(Dialog::Confirm { id, .. }) = model.dialog.take() else {
        return Vec::new();
    };
    model.say(Tone::Plain, format!("releasing {id}"));
    ask(model, Asked::Release, Call::Release { id }).1
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
    model.filter = crate::input::LineInput::default();
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

pub(crate) fn next_section(model: &mut Model) -> Vec<Cmd> {
    let all = Section::ALL;
    let at = all.iter().position(|s| *s == model.section).unwrap_or(0);
    let next = (1..all.len())
        .map(|step| all[(at + step) % all.len()])
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

fn go(model: &mut Model, to: impl FnOnce(usize) -> usize, unchosen: usize) -> Vec<Cmd> {
    let section = model.section;
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

pub(crate) fn pause_captions(model: &mut Model) -> Vec<Cmd> {
    model.captions_paused = !model.captions_paused;
    vec![Cmd::Ask(Request::Captions {
        paused: model.captions_paused,
    })]
}

pub(crate) fn quit(_: &mut Model) -> Vec<Cmd> {
    vec![Cmd::Quit]
}

pub(crate) fn suspend(_: &mut Model) -> Vec<Cmd> {
    vec![Cmd::Suspend]
}

pub(crate) fn close(model: &mut Model) -> Vec<Cmd> {
    model.dialog = None;
    Vec::new()
}

fn move_field(model: &mut Model, forward: bool) -> Vec<Cmd> {
    if let Some(Dialog::Claim(form)) = &mut model.dialog {
        form.focus = form.focus.step(forward);
    }
    Vec::new()
}

pub(crate) fn next_field(model: &mut Model) -> Vec<Cmd> {
    move_field(model, true)
}

pub(crate) fn previous_field(model: &mut Model) -> Vec<Cmd> {
    move_field(model, false)
}

pub(crate) fn send_claim(model: &mut Model) -> Vec<Cmd> {
    let able = model.service();
    let Some(Dialog::Claim(form)) = &mut model.dialog else {
        return Vec::new();
    };
    if form.sent.is_some() {
        return Vec::new();
    }
    let spec = able.and_then(|()| form.spec());
    let spec = match spec {
        Ok(spec) => spec,
        Err(message) => {
            form.refused = Some(Failure {
                message,
                hint: None,
            });
            return Vec::new();
        }
    };
    let (seq, commands) = ask(model, Asked::Claim, Call::Claim(Box::new(spec)));
    if let Some(Dialog::Claim(form)) = &mut model.dialog {
        form.sent = Some(seq);
        form.refused = None;
    }
    commands
}

fn scroll(model: &mut Model, by: isize) -> Vec<Cmd> {
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

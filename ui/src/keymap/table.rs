//! The table: context, keys, label and rank on the key line, whether it works, the action, and a sentence. In the
//! order of the key line and the help.

use super::Context::{Any, Confirm, Detail, Filter, Form, Page, Reading, Screen, Warnings};
use super::{Command, always};
use crate::feed::Seek;
use crate::model::Page::{Claims, Health, History, Overview, Queue};
use crate::model::{Dialog, Model, Span};
use crate::msg::Cmd;
use crate::update::act::{self, levers, need};
use crate::view;

/// Why a live screen cannot seek.
const RECORDED: &str = "you can seek only in a recording (gshare top --replay FILE)";

fn some_figures(model: &Model) -> Result<(), String> {
    need(model.snapshot.is_some(), "no figures yet")
}

fn able<'a, T>(
    model: &'a Model,
    able: impl FnOnce(&'a Model) -> Result<T, String>,
) -> Result<(), String> {
    able(model).map(|_| ())
}

macro_rules! commands {
    ($($context:expr, $shown:literal, $label:literal $rank:literal, $able:expr => $run:expr, $help:literal;)*) => {
        &[$(Command {
            context: $context,
            shown: $shown,
            label: $label,
            rank: $rank,
            help: $help,
            able: |m| able(m, $able),
            run: $run,
        }),*]
    };
}

pub(super) static COMMANDS: &[Command] = commands! {
    Screen, "n", "claim" 9, Model::service => act::open_claim,
        "claim a part of a GPU and hold it until it is released";
    Screen, "Enter", "detail" 6, |m| need(m.current().is_some(), act::NO_ROW) => act::open_detail,
        "everything about the chosen row";
    Screen, "r", "resize" 5, act::own_claim => act::open_resize,
        "give the chosen claim another size while its programs run";
    Screen, "o d", "offload" 4, levers::offload => |m| act::put(m, levers::offload(m)),
        "take the chosen claim off its GPU: its memory moves to host RAM, its programs keep running; asks first";
    Screen, "O a", "restore" 4, levers::restorable => levers::restore,
        "bring the chosen claim back onto a GPU";
    Screen, "p", "keep" 9, levers::keepable => levers::keep,
        "postpone what is announced for the chosen claim; without one, the first announcement for any claim of yours";
    Screen, "e", "extend" 2, act::limited_claim => act::open_extend,
        "extend the chosen claim's time limit";
    Screen, "x Del F9", "release" 7, act::release => |m| act::put(m, act::release(m)),
        "release the chosen claim of yours, or withdraw it from the queue; asks first";
    Screen, "/ F3", "filter" 5, some_figures => |m| m.filtering = true,
        "show only rows with a user, claim, name, command or state that you type";
    Screen, "s F6", "sort" 3, act::some_claims => |m| act::sort_by(m, m.sort.next()),
        "sort the claims by id, user, GPU, memory, GPU time, SM activity";
    Screen, "S", "" 0, act::some_claims => |m| act::sort_by(m, m.sort),
        "reverse the order of the claims; a second click on a heading does the same";
    Screen, "!", "warnings" 5, |m| need(!view::warnings(m).is_empty(), "no \
        warnings") => |m| m.dialog = Some(Dialog::Warnings(0)),
        "all warnings, and what can be done about each";
    Screen, "L", "" 0, |m| need(m.snapshot.iter().any(|s| !s.notices.is_empty()), "nothing has happened \
        yet") => |m| m.dialog = Some(Dialog::Log(0)),
        "what has happened, the newest first";
    Screen, "y", "" 0, act::copyable => act::copy,
        "copy the id of the chosen row, or the command that fixes the chosen check (OSC 52)";
    Screen, "m", "mine" 1, |m| need(m.page != Health, "this key has no effect here: GPUs and checks belong to no user") => act::mine_only,
        "show only your rows, or all rows again";
    Screen, "Tab", "next" 4, always => |m| act::turn_page(m, 1),
        "go to the next screen";
    Screen, "Shift-Tab", "" 0, always => |m| act::turn_page(m, 4),
        "go to the previous screen";
    Screen, "1", "" 0, always => |m| act::open_page(m, Overview),
        "everything at a glance";
    Screen, "2", "" 0, always => |m| act::open_page(m, Claims),
        "the claims as a tree, and the GPUs of the chosen one";
    Screen, "3", "" 0, always => |m| act::open_page(m, Queue),
        "the claims that wait, why and until when";
    Screen, "4", "" 0, always => |m| act::open_page(m, History),
        "how much was claimed and used in an hour, a day, a week";
    Screen, "5", "" 0, always => |m| act::open_page(m, Health),
        "the health of the GPUs, and what is enforced here";
    Screen, "Down j", "" 0, some_figures => |m| act::by_rows(m, 1),
        "choose the next row";
    Screen, "Up k", "" 0, some_figures => |m| act::by_rows(m, -1),
        "choose the previous row";
    Screen, "PgDn Ctrl-D", "" 0, some_figures => |m| act::by_pages(m, 1),
        "go down by a page";
    Screen, "PgUp Ctrl-U", "" 0, some_figures => |m| act::by_pages(m, -1),
        "go up by a page";
    Screen, "Home g", "" 0, some_figures => |m| m.choose(0),
        "choose the first row";
    Screen, "End G", "" 0, some_figures => |m| m.choose(usize::MAX),
        "choose the last row";
    Screen, "Esc", "" 0, always => act::clear,
        "clear the choice, or if there is none, the filter";
    Screen, "Space", "" 0, |m| need(m.caption.is_some(), "only the demo and a replay can be paused") => act::pause_captions,
        "pause or resume the demo's captions or the replay";
    Page(Overview), "Right l", "" 0, some_figures => |m| act::turn_section(m, 1),
        "go to the next part: claims, queue, GPUs";
    Page(Overview), "Left h", "" 0, some_figures => |m| act::turn_section(m, 2),
        "go to the previous part";
    Page(Claims), "v F5", "group" 6, always => act::next_grouping,
        "group the claims by user, notebook or GPU";
    Page(Claims), "Right l", "open" 4, act::some_folded => |m| act::turn(m, true),
        "show what is in the chosen group, or the processes of the chosen claim";
    Page(Claims), "Left h", "" 0, |m| need(m.current().is_some(), act::NO_ROW) => |m| act::turn(m, false),
        "hide the group or the processes again";
    Page(Queue), "+", "zoom" 1, |m| need(act::half_axis(m).0 > 1_800_000, "an hour is the shortest \
        time") => |m| act::zoom(m, -1),
        "show a shorter time ahead";
    Page(Queue), "-", "" 0, always => |m| act::zoom(m, 1),
        "show a longer time ahead";
    Page(Queue), "]", "later" 1, act::some_ahead => |m| act::look_ahead(m, true),
        "show the next period";
    Page(Queue), "[", "" 0, |m| need(m.ahead_ms > 0, "the chart already starts at the present time; ] shows a later \
        period") => |m| act::look_ahead(m, false),
        "show the period before, but nothing before now";
    Page(History), "b", "by" 5, always => act::next_split,
        "split the chart: everybody, each user, each GPU";
    Page(History), "[", "back" 4, always => |m| act::go_back(m, 1),
        "show the previous period";
    Page(History), "]", "" 0, |m| need(m.past.back > 0, "the chart already ends now") => |m| act::go_back(m, -1),
        "show the next period";
    Page(History), "Right l", "longer" 6, |m| need(m.past.span != Span::Week, "a week is the longest time") => |m| act::look_back(m, 1),
        "look further back: an hour, a day, a week";
    Page(History), "Left h", "" 0, always => |m| act::look_back(m, -1),
        "look less far back";
    Page(Health), "u", "look again" 6, Model::service => act::look_again,
        "run the service's checks again";
    Screen, ">", "" 0, |m| need(m.recorded, RECORDED) => |m| act::seek(m, Seek::Faster),
        "in a recording: twice as fast";
    Screen, "<", "" 0, |m| need(m.recorded, RECORDED) => |m| act::seek(m, Seek::Slower),
        "in a recording: half as fast";
    Screen, ".", "" 0, |m| need(m.recorded, RECORDED) => |m| act::seek(m, Seek::Forward),
        "in a recording: ten seconds forward";
    Screen, ",", "" 0, |m| need(m.recorded, RECORDED) => |m| act::seek(m, Seek::Back),
        "in a recording: ten seconds back";
    Screen, "? F1", "help" 10, always => |m| m.dialog = Some(Dialog::Help(0)),
        "these keys, and what the signs mean";
    Screen, "q F10", "quit" 8, always => |m| m.out.push(Cmd::Quit),
        "leave; claims stay as they are";
    Filter, "Enter", "keep" 8, always => |m| m.filtering = false,
        "keep the filter";
    Filter, "Esc", "show all" 7, always => act::drop_filter,
        "show all rows again";
    Form, "Enter", "do it" 8, always => act::send_form,
        "send the form";
    Form, "Tab Down", "next line" 6, always => |m| act::step(m, 1),
        "go to the next line";
    Form, "Shift-Tab Up", "" 5, always => |m| act::step(m, -1),
        "go to the previous line";
    Form, "Ctrl-Y", "copy" 4, act::copyable => act::copy,
        "copy the command that does the same (OSC 52)";
    Form, "Esc", "close" 7, always => |m| m.dialog = None,
        "close the form without sending it";
    Confirm, "y", "yes" 8, always => act::confirmed,
        "yes, do it";
    Confirm, "n Esc", "no" 7, always => |m| m.dialog = None,
        "no, leave it as it is";
    Reading, "Down j", "" 0, always => |m| act::step(m, 1),
        "read on";
    Reading, "Up k", "" 0, always => |m| act::step(m, -1),
        "read back";
    Reading, "PgDn Space", "" 0, always => |m| act::step_pages(m, 1),
        "read on by a page";
    Reading, "PgUp", "" 0, always => |m| act::step_pages(m, -1),
        "read back by a page";
    Reading, "Esc Enter q", "close" 8, always => |m| m.dialog = None,
        "close the box";
    Detail, "y", "copy" 1, act::copyable => act::copy,
        "copy the id of this page (OSC 52)";
    Detail, "K", "kill" 3, act::kill => |m| act::put(m, act::kill(m)),
        "for administrators: end the claim of this page with all its processes; asks first";
    Detail, "D", "drain" 3, act::drain => |m| act::put(m, act::drain(m)),
        "for administrators: start no new claims on the GPU of this page, or let them start again; asks first";
    Detail, "M", "mode" 2, act::mode => |m| act::put(m, act::mode(m)),
        "for administrators: share this GPU side by side (MPS), or in turns again, once it is empty; asks first";
    Warnings, "Down j", "" 0, always => |m| act::step(m, 1),
        "choose the next warning";
    Warnings, "Up k", "" 0, always => |m| act::step(m, -1),
        "choose the previous warning";
    Warnings, "Enter", "what to do" 8, always => act::open_warning,
        "show the exact command; y runs it";
    Warnings, "Esc q", "close" 7, always => |m| m.dialog = None,
        "close the list";
    Any, "Ctrl-C", "" 0, always => |m| m.out.push(Cmd::Quit),
        "leave at once";
    Any, "Ctrl-Z", "" 0, always => |m| m.out.push(Cmd::Suspend),
        "stop and give the terminal back; fg brings the screen back";
    Any, "Ctrl-L", "" 0, always => |m| m.out.push(Cmd::Redraw),
        "draw everything anew";
};

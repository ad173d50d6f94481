use crossterm::event::{KeyEventKind, KeyEventState};
use gshare_proto::{Call, Granted, Reply, Wait};

use super::*;
use crate::keymap::commands;
use crate::model::{RowKey, Section};
use crate::testing::{NLP, ROOT, canned, known, model, press, screen, show};

fn at_work() -> Model {
    model(NLP, (80, 24), canned::workstation())
}

fn claim_key(id: &str) -> RowKey {
    RowKey::Claim(id.to_owned())
}

/// The calls among commands.
fn calls(commands: Vec<Cmd>) -> Vec<(u64, Call)> {
    commands
        .into_iter()
        .filter_map(|c| match c {
            Cmd::Ask(Request::Call { seq, call }) => Some((seq, *call)),
            _ => None,
        })
        .collect()
}

/// Those that are not dry runs.
fn claims(commands: Vec<Cmd>) -> Vec<(u64, Call)> {
    let all = calls(commands).into_iter();
    all.filter(|(_, c)| !matches!(c, Call::Try(_))).collect()
}

fn answer_with(m: &mut Model, seq: u64, outcome: Result<Reply, Failure>) {
    update(m, Msg::Update(Update::CallResult { seq, outcome }));
}

fn refused(message: &str) -> Result<Reply, Failure> {
    Err(Failure {
        message: message.to_owned(),
        hint: Some("-g .2 starts now".to_owned()),
    })
}

#[test]
fn no_key_has_two_meanings() {
    let all: Vec<_> = commands().collect();
    for (i, a) in all.iter().enumerate() {
        // Every word of the table is a key.
        let words = a.shown.split(' ').count();
        assert!(
            !a.help.is_empty() && a.keys().count() == words,
            "{}",
            a.shown
        );
        for b in &all[i + 1..] {
            let together = Context::ALL
                .into_iter()
                .any(|(now, _)| a.context.holds(now) && b.context.holds(now));
            let shared = a.keys().any(|k| b.keys().any(|other| k == other));
            assert!(!together || !shared, "{} and {}", a.help, b.help);
        }
    }
}

#[test]
fn quitting_works_from_everywhere() {
    for start in ["", "n", "/x", "?", "x", "<enter>"] {
        let mut m = at_work();
        press(&mut m, start);
        assert_eq!(press(&mut m, "<c-c>"), [Cmd::Quit], "{start}");
    }
    assert_eq!(press(&mut at_work(), "q"), [Cmd::Quit]);
    assert_eq!(press(&mut at_work(), "<c-z>"), [Cmd::Suspend]);
}

#[test]
fn letters_are_text_while_typing() {
    let mut m = at_work();
    assert!(
        calls(press(&mut m, "n<tab><tab><tab>q?x"))
            .iter()
            .all(|(_, c)| matches!(c, Call::Try(_)))
    );
    let Some(Dialog::Form(form)) = &m.dialog else {
        panic!("the dialog is gone")
    };
    assert_eq!(form.get("Name").as_deref(), Some("q?x"));
    let mut m = at_work();
    press(&mut m, "/qs");
    assert_eq!((m.filter.text(), m.filtering), ("qs", true));
}

#[test]
fn a_choice_stays_on_its_claim() {
    let mut m = at_work();
    press(&mut m, "j");
    assert_eq!(m.current(), Some(&claim_key("c14")));
    let mut next = canned::workstation();
    next.claims.reverse();
    next.claims.retain(|c| c.id != "c12");
    show(&mut m, next.clone());
    assert_eq!(m.current(), Some(&claim_key("c14")));
    press(&mut m, "ss");
    assert_eq!(m.current(), Some(&claim_key("c14")));
    // When it ends, the choice moves to the row that takes its place.
    press(&mut m, "ssss<home>");
    next.claims.retain(|c| c.id != "c14");
    show(&mut m, next);
    assert_eq!(m.current(), Some(&claim_key("c15")));
}

#[test]
fn sorting_puts_what_is_not_known_last() {
    let mut snapshot = canned::workstation();
    snapshot.claims[1].gpus[0].time_busy = None;
    let mut m = model(NLP, (80, 24), snapshot);
    press(&mut m, "ssss");
    let order = m.keys(Section::Claims);
    let ids: Vec<&RowKey> = order.iter().take(5).collect();
    let want = ["c20", "c15", "c17", "c12", "c14"].map(claim_key);
    assert_eq!(ids, want.iter().collect::<Vec<_>>());
    press(&mut m, "S");
    let order = m.keys(Section::Claims);
    let ids: Vec<&RowKey> = order.iter().take(5).collect();
    let want = ["c12", "c17", "c15", "c20", "c14"].map(claim_key);
    assert_eq!(ids, want.iter().collect::<Vec<_>>());
}

#[test]
fn filtering_finds_users_and_words() {
    let mut m = at_work();
    press(&mut m, "/CHEM");
    assert_eq!(m.claim_rows().len(), 2);
    press(&mut m, "<enter>");
    assert!(screen(&m).contains("filter `CHEM`: 2 rows"));
    press(&mut m, "<esc><esc>");
    assert_eq!(m.claim_rows().len(), 6);
    press(&mut m, "/no claim<enter>");
    assert_eq!(m.claim_rows().len(), 1);
    press(&mut m, "/<c-u>nobody<enter>");
    assert!(screen(&m).contains("no row has `nobody`"));
    update(&mut m, Msg::Paste("x".to_owned()));
    assert_eq!(m.filter.text(), "nobody");
}

#[test]
fn a_filter_is_for_the_rows_of_the_screen_that_is_shown() {
    let mut m = at_work();
    known(&mut m);
    let (users, checks) = (m.past.users().len(), canned::checks().len());
    press(&mut m, "4/vis");
    assert_eq!(m.keys(Section::Users).len(), 1);
    press(&mut m, "<enter>");
    let text = screen(&m);
    assert!(
        text.contains("filter `vis`: 1 row ") && !text.contains("\nchem "),
        "{text}"
    );
    press(&mut m, "<esc>");
    assert_eq!(m.keys(Section::Users).len(), users);

    press(&mut m, "5/limited<enter>");
    let text = screen(&m);
    let rows = |text: &str, word: &str| text.lines().filter(|l| l.starts_with(word)).count();
    assert!(
        rows(&text, "TO FIX 1") == 1 && rows(&text, "FINE") == 0,
        "{text}"
    );
    assert_eq!(m.filtered_rows(), m.keys(Section::Health).len());
    press(&mut m, "<esc><esc>/gpu 3<enter>");
    let text = screen(&m);
    assert!(
        rows(&text, "3 RTX 4090") == 1 && rows(&text, "2 RTX 4090") == 0,
        "{text}"
    );
    press(&mut m, "<esc><esc>");
    assert_eq!(m.check_rows().len(), checks);
}

#[test]
fn questions_say_what_is_there_and_nothing_else() {
    let mut m = model(ROOT, (100, 30), canned::workstation());
    let claims = &mut m.snapshot.as_mut().unwrap().claims;
    (claims[0].members, claims[0].what) = (vec![4711], "train.py".to_owned());
    claims[1].members.clear();
    claims[1].what = "-".to_owned();
    claims[1].command.clear();
    let id = claims[1].id.clone();
    press(&mut m, "<enter>K");
    assert!(
        screen(&m).contains("Its process gets SIGTERM"),
        "{}",
        screen(&m)
    );
    press(&mut m, "nd");
    assert!(
        screen(&m).contains("Its GPU memory (4.1 GiB) moves to"),
        "{}",
        screen(&m)
    );
    press(&mut m, "nj<enter>K");
    assert!(screen(&m).contains("No process is in it"), "{}", screen(&m));
    press(&mut m, "nx");
    let text = screen(&m);
    assert!(text.contains(&format!("Release {id} of vis, 0.")), "{text}");
    press(&mut m, "n<enter>");
    assert!(!screen(&m).contains("command"), "{}", screen(&m));
}

#[test]
fn releasing_asks_first_and_only_for_own_claims() {
    let mut m = at_work();
    assert!(press(&mut m, "<esc>x").is_empty());
    assert!(screen(&m).contains("choose a row first"));
    // c14 is another user's.
    assert!(press(&mut m, "jjx").is_empty());
    assert_eq!(m.dialog, None);
    assert!(screen(&m).contains("c14 belongs to vis; only vis and root can change it"));
    // c12 is the viewer's.
    assert!(press(&mut m, "kx").is_empty());
    assert!(screen(&m).contains("Release c12 (vit.ipynb), 0.25 of GPU 0?"));
    assert!(press(&mut m, "n").is_empty());
    let sent = calls(press(&mut m, "xy"));
    let id = "c12".to_owned();
    assert_eq!(sent, [(1, Call::Release { id: id.into() })]);
    let message = "c12 released".to_owned();
    answer_with(&mut m, 1, Ok(Reply::Done { message }));
    assert!(screen(&m).contains("c12 released"));
}

#[test]
fn root_may_release_everybodys_claims() {
    let mut m = model(ROOT, (80, 24), canned::workstation());
    press(&mut m, "jx");
    assert!(screen(&m).contains("Release c14 of vis"));
    assert_eq!(calls(press(&mut m, "y")).len(), 1);
}

#[test]
fn what_is_no_claim_cannot_be_released() {
    let mut m = model(ROOT, (80, 24), canned::workstation());
    press(&mut m, "<end>x");
    assert!(screen(&m).contains("process 48211 is in no claim"));
    press(&mut m, "<right><right>x");
    assert!(screen(&m).contains("choose a claim first"));
    let mut m = model(NLP, (80, 24), canned::workstation());
    press(&mut m, "<right>x");
    assert!(screen(&m).contains("c22 belongs to bio"));
}

#[test]
fn a_claim_is_made_held_and_never_waits() {
    let mut m = at_work();
    press(&mut m, "n<backspace><backspace>5");
    let sent = claims(press(
        &mut m,
        "<tab>4090<tab>2h<tab>probe<tab>2G<tab>0.8<tab><c-u>batch<enter>",
    ));
    let [(seq, Call::Claim(spec))] = &sent[..] else {
        panic!("{sent:?}")
    };
    assert_eq!(spec.gpus_milli, Some(500));
    assert_eq!(spec.mem, Some(2 << 30));
    assert_eq!(spec.name.as_deref(), Some("probe"));
    assert_eq!(spec.class.as_deref(), Some("batch"));
    assert_eq!(spec.lease_s, Some(7200));
    assert_eq!(spec.sm_limit_milli, Some(800));
    assert!(spec.hold && spec.command.is_empty());
    assert_eq!(spec.wait, Wait::No);
    // A second Enter before the answer claims nothing more.
    assert!(press(&mut m, "<enter>").is_empty());
    answer_with(
        &mut m,
        *seq,
        refused("needs 23.5 GiB; most free is 5.8 on GPU 0"),
    );
    let text = screen(&m);
    assert!(
        text.contains("needs 23.5 GiB; most free is 5.8 on GPU 0. -g .2 starts now"),
        "{text}"
    );
    let sent = claims(press(&mut m, "<enter>"));
    let granted = Granted {
        id: "c23".to_owned(),
        message: "c23: 0.50 of GPU 3 (2.0 GiB)".to_owned(),
        ..Granted::default()
    };
    answer_with(&mut m, sent[0].0, Ok(Reply::Granted(granted)));
    let text = screen(&m);
    assert!(text.contains("c23: 0.50 of GPU 3 (2.0 GiB)"), "{text}");
    assert!(text.contains("eval \"$(gshare env c23)\""), "{text}");
    press(&mut m, "<esc>");
    assert_eq!(m.dialog, None);
}

#[test]
fn a_wrong_claim_is_not_sent() {
    let mut m = at_work();
    assert!(claims(press(&mut m, "n<c-u>1.5<enter>")).is_empty());
    assert!(screen(&m).contains("write a whole number"));
    assert!(claims(press(&mut m, "<c-u>many<enter>")).is_empty());
    assert!(screen(&m).contains("`many` is not valid"));
}

#[test]
fn an_answer_to_a_closed_dialog_is_told_all_the_same() {
    let mut m = at_work();
    let sent = claims(press(&mut m, "n<enter>"));
    press(&mut m, "<esc>");
    answer_with(&mut m, sent[0].0, refused("not now"));
    assert!(screen(&m).contains("not now. -g .2 starts now"));
    // A text that is longer than the line gets a box.
    let sent = calls(press(&mut m, "xy"));
    let long =
        "the service could not move the processes of c12 out of its group because it is busy";
    answer_with(&mut m, sent[0].0, refused(long));
    assert!(screen(&m).contains("The request failed"));
    // Answered twice, or never asked: nothing.
    let before = m.clone();
    answer_with(&mut m, sent[0].0, refused("again"));
    answer_with(&mut m, 99, refused("strange"));
    assert_eq!(m, before);
}

#[test]
fn without_a_service_claims_are_explained_not_offered() {
    let mut m = model(ROOT, (120, 24), canned::monitor());
    assert!(press(&mut m, "n").is_empty());
    assert_eq!(m.dialog, None);
    assert!(screen(&m).contains("Ask your admin: sudo gshare setup"));
    let mut m = at_work();
    update(
        &mut m,
        Msg::Update(Update::Disconnected("no gshare service answers".to_owned())),
    );
    press(&mut m, "n");
    assert_eq!(m.dialog, None);
}

#[test]
fn captions_pause_in_the_demo_only() {
    let mut m = at_work();
    assert!(press(&mut m, "<space>").is_empty());
    update(
        &mut m,
        Msg::Update(Update::Caption(Some("a hog hits its cap".to_owned()))),
    );
    assert!(screen(&m).contains("a hog hits its cap"));
    let pause = |paused| [Cmd::Ask(Request::Captions { paused })];
    assert_eq!(press(&mut m, "<space>"), pause(true));
    assert!(screen(&m).contains("Space resumes"));
    assert_eq!(press(&mut m, "<space>"), pause(false));
}

#[test]
fn the_feeder_can_close_the_screen() {
    assert_eq!(
        update(&mut at_work(), Msg::Update(Update::Close)),
        [Cmd::Quit]
    );
}

#[test]
fn news_pass_and_keys_released_are_no_keys() {
    let mut m = at_work();
    press(&mut m, "s");
    assert!(m.toast.is_some());
    let mut clock = m.clock;
    clock.now_ms += 60_000;
    update(&mut m, Msg::Tick(clock));
    assert_eq!(m.toast, None);
    let up = KeyEvent {
        kind: KeyEventKind::Release,
        state: KeyEventState::NONE,
        ..crossterm::event::KeyCode::Char('q').into()
    };
    assert!(update(&mut m, Msg::Key(up)).is_empty());
}

mod screens;

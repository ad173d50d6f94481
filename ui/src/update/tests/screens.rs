//! Screens, dialogs and the mouse.

use crossterm::event::{KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use gshare_proto::{AdminCall, Check, ProcessView, Resized, Tried};

use super::*;
use crate::model::{Page, Sort};

#[test]
fn the_dialog_shows_what_the_service_says_to_what_is_typed() {
    let mut m = at_work();
    let trials = calls(press(&mut m, "n<backspace>"));
    // One dry run at a time: text typed meanwhile is tried after the first answer.
    let [(seq, Call::Try(spec))] = &trials[..] else {
        panic!("{trials:?}")
    };
    assert_eq!(spec.gpus_milli, Some(250));
    let no = || -> Result<Reply, Failure> {
        Ok(Reply::Tried(Tried {
            message: "would wait: vis is at its quota".to_owned(),
            would_start: Some("-g .2".to_owned()),
            expected_ms: Some(canned::NOW_MS + 5_580_000),
            ..Tried::default()
        }))
    };
    let next = calls(update(
        &mut m,
        Msg::Update(Update::CallResult {
            seq: *seq,
            outcome: no(),
        }),
    ));
    let [(seq, Call::Try(spec))] = &next[..] else {
        panic!("{next:?}")
    };
    assert_eq!(spec.gpus_milli, Some(200));
    assert!(screen(&m).contains("asking the service"), "said of 0.25");
    answer_with(&mut m, *seq, no());
    let text = screen(&m);
    assert!(
        text.contains("would wait: vis is at its quota; about 16:05"),
        "{text}"
    );
    assert!(text.contains("with -g .2 it would start now"), "{text}");
    // If the service finds room, the screen's own guess does not count.
    press(&mut m, "<c-u>2");
    let seq = *m.asked.keys().next_back().unwrap();
    let yes = Tried {
        starts: true,
        message: "would start now: it is there".to_owned(),
        ..Tried::default()
    };
    answer_with(&mut m, seq, Ok(Reply::Tried(yes)));
    assert!(
        screen(&m).contains("would start now: it is there"),
        "{}",
        screen(&m)
    );
}

#[test]
fn a_claim_gets_another_size() {
    let mut m = at_work();
    assert!(press(&mut m, "<esc>r").is_empty());
    assert_eq!(m.dialog, None);
    press(&mut m, "jr");
    assert!(
        screen(&m).contains("Another size for c12"),
        "{}",
        screen(&m)
    );
    assert!(press(&mut m, "<enter>").is_empty());
    assert!(screen(&m).contains("fill in at least one"));
    let sent = calls(press(&mut m, "0.2<enter>"));
    let [(seq, Call::Resize(spec))] = &sent[..] else {
        panic!("{sent:?}")
    };
    assert_eq!((spec.id.as_str(), spec.gpus_milli), ("c12", Some(200)));
    let resized = Resized {
        id: "c12".to_owned(),
        message: "c12: 0.20 of GPU 0, was 0.25".to_owned(),
        gpus: Vec::new(),
    };
    answer_with(&mut m, *seq, Ok(Reply::Resized(resized)));
    assert_eq!(m.dialog, None);
    assert!(screen(&m).contains("c12: 0.20 of GPU 0"));
    // Neither another user's, nor a process without a claim.
    press(&mut m, "jr");
    assert!(screen(&m).contains("c14 belongs to vis"));
    press(&mut m, "<end>r");
    assert!(screen(&m).contains("process 48211 is in no claim"));
}

#[test]
fn a_lease_is_put_off() {
    let mut snapshot = canned::workstation();
    snapshot.claims[0].ends_ms = Some(canned::NOW_MS + 3_600_000);
    let mut m = model(NLP, (80, 24), snapshot);
    press(&mut m, "e");
    assert!(screen(&m).contains("More time for c12"), "{}", screen(&m));
    assert!(screen(&m).contains("now until 15:32"), "{}", screen(&m));
    assert!(calls(press(&mut m, "<c-u>soon<enter>")).is_empty());
    let sent = calls(press(&mut m, "<c-u>30m<enter>"));
    let id = "c12".to_owned();
    assert_eq!(
        sent[0].1,
        Call::Extend {
            id: id.into(),
            by_s: 1800
        }
    );
    // A claim without an end cannot be extended.
    let mut m = at_work();
    press(&mut m, "e");
    assert!(screen(&m).contains("c12 has no time limit"));
}

#[test]
fn a_claim_leaves_its_gpu_and_comes_back() {
    let mut m = at_work();
    assert!(press(&mut m, "d").is_empty());
    assert!(
        screen(&m).contains("Offload c12 (vit.ipynb)? Its GPU memory (4.1 GiB)"),
        "{}",
        screen(&m)
    );
    let sent = calls(press(&mut m, "y"));
    let lever = |wish| Call::Lever {
        id: "c12".to_owned().into(),
        wish,
    };
    assert_eq!(sent[0].1, lever(gshare_proto::LeverWish::Offload));
    press(&mut m, "a");
    assert!(screen(&m).contains("c12 is already on its GPU"));
    let place = |m: &mut Model, word: &str| {
        let mut next = canned::workstation();
        next.claims[0].place.word = Some(word.to_owned());
        show(m, next);
    };
    place(&mut m, "offloaded");
    assert_eq!(
        calls(press(&mut m, "a"))[0].1,
        lever(gshare_proto::LeverWish::Restore)
    );
    press(&mut m, "d");
    assert!(screen(&m).contains("c12 is offloaded"));
    place(&mut m, "suspended");
    assert_eq!(
        calls(press(&mut m, "a"))[0].1,
        lever(gshare_proto::LeverWish::Resume)
    );
    // Why not, where it cannot.
    let mut next = canned::workstation();
    next.claims[0].place.levers.not_detachable = Some("it shares memory with c14".to_owned());
    show(&mut m, next);
    assert!(press(&mut m, "d").is_empty());
    assert!(screen(&m).contains("cannot be offloaded: it shares memory with c14"));
}

#[test]
fn administrators_act_on_anybodys_claims_and_gpus_after_a_yes() {
    let admin = |commands: Vec<Cmd>| match calls(commands).pop() {
        Some((_, Call::Admin(call))) => call,
        other => panic!("{other:?}"),
    };
    let mut m = model(ROOT, (80, 24), canned::workstation());
    press(&mut m, "j<enter>K");
    assert!(screen(&m).contains("Kill c14 of vis"), "{}", screen(&m));
    let killed = admin(press(&mut m, "y"));
    assert!(matches!(killed, AdminCall::Kill { ids, .. } if ids == ["c14"]));
    press(&mut m, "<right><right>j<enter>D");
    assert!(
        screen(&m).contains("Start no new claims on GPU 1?"),
        "{}",
        screen(&m)
    );
    let drained = admin(press(&mut m, "y"));
    assert!(matches!(drained, AdminCall::Drain { gpus, .. } if gpus == ["1"]));
    press(&mut m, "<enter>M");
    assert!(screen(&m).contains("side by side (MPS)"));
    let mode = admin(press(&mut m, "y"));
    assert!(
        matches!(mode, AdminCall::Mode { gpu, mode, when_empty: true } if gpu == "1" && mode == "mps")
    );
    // Others are told why not.
    let mut m = at_work();
    assert!(press(&mut m, "<enter>K").is_empty());
    assert!(matches!(m.dialog, Some(Dialog::Detail { .. })));
    assert!(screen(&m).contains("that is for administrators"));
    // Not from the list itself, to guard against Caps Lock.
    let mut m = model(ROOT, (80, 24), canned::workstation());
    assert!(press(&mut m, "KDM").is_empty());
    assert_eq!(m.dialog, None);
}

/// Until the viewer chooses a row, the first one is marked, whatever arrives; a chosen one is kept.
#[test]
fn the_first_row_is_marked_until_the_viewer_chooses_another() {
    let mut m = model(ROOT, (110, 30), canned::workstation());
    let first = m.current().cloned();
    let mut turned = canned::workstation();
    turned.claims[4].refusals = 1;
    for claim in &mut turned.claims[..4] {
        (claim.refusals, claim.state_text) = (0, "run".to_owned());
    }
    show(&mut m, turned.clone());
    assert_eq!(m.current(), Some(&claim_key("c20")));
    assert_ne!(m.current().cloned(), first);
    press(&mut m, "jk");
    show(&mut m, canned::workstation());
    assert_eq!(m.current(), Some(&claim_key("c20")));
    assert_ne!(m.chosen_index(m.focus()), Some(0));
}

#[test]
fn the_tree_is_grouped_folded_and_unfolded() {
    let mut m = at_work();
    m.snapshot.as_mut().unwrap().claims[0].processes = vec![ProcessView {
        pid: 5001,
        gpu: 0,
        mem_used: None,
        time_busy: None,
        what: "python -m ipykernel".to_owned(),
    }];
    press(&mut m, "2");
    let text = screen(&m);
    for title in [
        "chem  2 claims",
        "nlp  1 claim",
        "vis  2 claims",
        "ext  1 without a claim",
    ] {
        assert!(text.contains(title), "{title}: {text}");
    }
    assert!(!text.contains("\n    5001"), "{text}");
    // The viewer's own group comes first.
    press(&mut m, "<home>j<right>");
    assert_eq!(m.current(), Some(&claim_key("c12")));
    let text = screen(&m);
    assert!(text.contains("\n    5001") && text.contains("—"), "{text}");
    assert!(
        text.contains("c12  vit.ipynb  nlp, GPU 0 RTX 4090"),
        "{text}"
    );
    press(&mut m, "<left>");
    assert!(!screen(&m).contains("\n    5001"));
    press(&mut m, "j<left>");
    assert!(!screen(&m).contains("c15 chem"), "{}", screen(&m));
    press(&mut m, "v");
    assert!(screen(&m).contains("vit.ipynb"));
    press(&mut m, "v");
    assert!(screen(&m).contains("GPU 0  2 claims"), "{}", screen(&m));
}

fn click(m: &mut Model, x: u16, y: u16) -> Vec<Cmd> {
    update(
        m,
        Msg::Mouse(mouse(MouseEventKind::Down(MouseButton::Left), x, y)),
    )
}

fn mouse(kind: MouseEventKind, column: u16, row: u16) -> MouseEvent {
    MouseEvent {
        kind,
        column,
        row,
        modifiers: KeyModifiers::NONE,
    }
}

/// The place of a text on the screen.
fn place(m: &Model, text: &str) -> (u16, u16) {
    let shown = screen(m);
    let (y, line) = shown
        .lines()
        .enumerate()
        .find(|(_, l)| l.contains(text))
        .unwrap();
    let at = line.find(text).unwrap();
    let x = text::width(&line[..at]);
    (x.try_into().unwrap(), y.try_into().unwrap())
}

#[test]
fn a_click_does_what_is_under_it() {
    let mut m = at_work();
    let (x, y) = place(&m, " c15 chem");
    click(&mut m, x + 3, y);
    assert_eq!(m.current(), Some(&claim_key("c15")));
    click(&mut m, x + 3, y);
    assert!(
        matches!(m.dialog, Some(Dialog::Detail { .. })),
        "a second click opens it"
    );
    press(&mut m, "<esc>");
    let (x, y) = place(&m, "GiB used");
    click(&mut m, x, y);
    assert_eq!(m.sort, Sort::Memory);
    let (x, y) = place(&m, "2 4090");
    click(&mut m, x, y);
    assert_eq!(m.current(), Some(&RowKey::Gpu(2)));
    for (word, page) in [("5 Health", Page::Health), ("2 Claims", Page::Claims)] {
        let (x, y) = place(&m, word);
        click(&mut m, x, y);
        assert_eq!(m.page, page);
    }
    let (x, y) = place(&m, "? help");
    click(&mut m, x, y);
    assert!(matches!(m.dialog, Some(Dialog::Help(_))));
    update(&mut m, Msg::Mouse(mouse(MouseEventKind::ScrollDown, 5, 5)));
    assert!(matches!(m.dialog, Some(Dialog::Help(3))));
    press(&mut m, "<esc>n");
    let (x, y) = place(&m, "  Name ");
    click(&mut m, x + 2, y);
    assert!(matches!(&m.dialog, Some(Dialog::Form(form)) if form.focus == 3));
    press(&mut m, "<esc>");
    // The wheel moves through the rows.
    press(&mut m, "1<right><right><right><home>");
    update(&mut m, Msg::Mouse(mouse(MouseEventKind::ScrollDown, 5, 5)));
    assert_eq!(m.chosen_index(m.focus()), Some(3));
    // Lines of a dialog.
    press(&mut m, "n");
    let (x, y) = place(&m, "Hold for");
    click(&mut m, x, y);
    let Some(Dialog::Form(form)) = &m.dialog else {
        panic!()
    };
    assert_eq!(form.entries[form.focus].label, "Hold for");
}

#[test]
fn a_click_stays_in_the_part_that_it_was_made_in() {
    let mut m = model(NLP, (120, 40), canned::workstation());
    press(&mut m, "2");
    let (x, y) = place(&m, "c14 ");
    click(&mut m, x, y);
    // On the Overview the keys move in its own rows.
    press(&mut m, "1j");
    assert_eq!(m.focus(), Section::Claims);
    assert_eq!(m.chosen_index(Section::Claims), Some(1));
    // A GPU beside the waiting claims is opened, and chooses none of them.
    press(&mut m, "3");
    let before = m.current().cloned();
    let (x, y) = place(&m, "2 RTX");
    click(&mut m, x, y);
    let opened = matches!(
        m.dialog,
        Some(Dialog::Detail {
            key: RowKey::Gpu(2),
            ..
        })
    );
    assert!(opened, "{:?}", m.dialog);
    press(&mut m, "<esc>");
    assert_eq!(m.current().cloned(), before);
}

#[test]
fn the_doctor_is_asked_when_the_health_is_looked_at() {
    let mut m = at_work();
    let asked = calls(press(&mut m, "5"));
    let [(seq, Call::Doctor)] = &asked[..] else {
        panic!("{asked:?}")
    };
    assert!(screen(&m).contains("asking the service"));
    let check = |name: &str, state: &str| Check {
        group: "memory".to_owned(),
        name: name.to_owned(),
        state: state.to_owned(),
        detail: "what was found there".to_owned(),
        status: "simulation only".to_owned(),
        fix: Some("mend it so".to_owned()),
    };
    let checks = vec![check("memory cap", "ok"), check("device filter", "limited")];
    answer_with(&mut m, *seq, Ok(Reply::Doctor { checks }));
    let text = screen(&m);
    assert!(text.contains("COULD BE STRONGER 1"), "{text}");
    press(&mut m, "<end><enter>");
    assert!(screen(&m).contains("mend it so"), "{}", screen(&m));
    // Not again at once, but on request; the Overview requests only its own dry run.
    let asked = calls(press(&mut m, "<esc>15"));
    assert!(
        asked.iter().all(|(_, call)| matches!(call, Call::Try(_))),
        "{asked:?}"
    );
    assert_eq!(calls(press(&mut m, "u")).len(), 1);
    let seq = m.next_seq - 1;
    answer_with(&mut m, seq, refused("not now"));
    assert!(screen(&m).contains("CHECKS  not now"));
}

#[test]
fn the_log_and_the_clipboard() {
    let mut m = model(NLP, (120, 40), canned::workstation());
    let news = m.snapshot.as_ref().unwrap().notices[0].text.clone();
    press(&mut m, "L");
    assert!(matches!(m.dialog, Some(Dialog::Log(0))));
    let text = screen(&m);
    assert!(
        text.contains("What has happened") && text.contains(&news[..12]),
        "{text}"
    );
    assert_eq!(press(&mut m, "<esc>y"), [Cmd::Copy("c12".to_owned())]);
    assert!(screen(&m).contains("copied: c12"));
    assert!(press(&mut m, "n<c-y>").contains(&Cmd::Copy("gshare claim -g 0.25 --hold".to_owned())));
    assert_eq!(
        press(&mut m, "<esc><enter>y"),
        [Cmd::Copy("c12".to_owned())]
    );
    m.snapshot.as_mut().unwrap().notices.clear();
    press(&mut m, "<esc>L");
    assert!(m.dialog.is_none());
}

#[test]
fn the_history_goes_back_by_its_length_and_not_beyond_now() {
    let day = 24 * 3_600_000;
    let asked = |cmds: Vec<Cmd>| {
        cmds.into_iter().find_map(|cmd| match cmd {
            Cmd::Ask(Request::Call { call, .. }) => match *call {
                Call::History(spec) => Some((spec.from_ms, spec.to_ms)),
                _ => None,
            },
            _ => None,
        })
    };
    let mut m = model(NLP, (120, 40), canned::workstation());
    let now = canned::NOW_MS;
    assert_eq!(asked(press(&mut m, "4")), Some((now - day, 0)));
    assert_eq!(asked(press(&mut m, "[")), Some((now - 2 * day, now - day)));
    assert_eq!(asked(press(&mut m, "]")), Some((now - day, 0)));
    assert_eq!(asked(press(&mut m, "]")), None);
}

#[test]
fn the_order_turns_round_by_a_key_and_by_a_second_click() {
    let ids = |m: &Model| {
        let rows = m.keys(Section::Claims).into_iter();
        let claims = rows.filter(|key| matches!(key, RowKey::Claim(_)));
        claims.collect::<Vec<_>>()
    };
    let mut m = model(NLP, (120, 40), canned::workstation());
    press(&mut m, "s");
    let mut users = ids(&m);
    press(&mut m, "S");
    users.reverse();
    assert_eq!(ids(&m), users);
    assert!(screen(&m).contains("by user▴"), "{}", screen(&m));
    press(&mut m, "s");
    let (x, y) = place(&m, "GPU▾");
    let gpus = ids(&m);
    click(&mut m, x, y);
    assert!(ids(&m) != gpus && screen(&m).contains("GPU▴"));
    click(&mut m, x, y);
    assert_eq!(ids(&m), gpus);
}

#[test]
fn the_axis_of_the_queue_goes_on_and_back_but_not_before_now() {
    let mut m = model(NLP, (120, 40), canned::workstation());
    let end = m.clock.now_ms + 20 * 3_600_000;
    m.snapshot.as_mut().unwrap().claims[0].ends_ms = Some(end);
    press(&mut m, "3");
    // Without the key line.
    let screen = |m: &Model| screen(m).lines().take(38).collect::<String>();
    let first = screen(&m);
    press(&mut m, "[");
    assert_eq!(screen(&m), first);
    press(&mut m, "]");
    let later = screen(&m);
    assert!(
        later.contains(" h from ") && !later.contains("for you now"),
        "{later}"
    );
    // A shorter axis begins where the longer one did.
    let begin = |m: &Model| {
        screen(m)
            .split(" h from ")
            .nth(1)
            .map(|s| s[..5].to_owned())
    };
    let at = begin(&m);
    press(&mut m, "+");
    assert_eq!(begin(&m), at);
    press(&mut m, "-");
    press(&mut m, "[");
    assert_eq!(screen(&m), first);
    // Up to the end of what is known; another page resets it.
    for _ in 0..100 {
        press(&mut m, "]");
    }
    assert!(m.ahead_ms < 72 * 3_600_000, "{}", m.ahead_ms);
    press(&mut m, "1");
    press(&mut m, "3");
    assert_eq!(screen(&m), first);
}

#[test]
fn the_default_order_says_when_it_is_turned_round() {
    let mut m = model(NLP, (120, 40), canned::workstation());
    press(&mut m, "2");
    assert!(!screen(&m).contains("CLAIMS by "), "{}", screen(&m));
    press(&mut m, "S");
    assert!(screen(&m).contains("CLAIMS by need▴"), "{}", screen(&m));
}

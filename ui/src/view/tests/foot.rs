//! The bottom of the screen, the sign of the order in headings, and things that must not appear.

use crate::model::Model;
use crate::testing::{NLP, canned, model, press, screen};

const LONG: &str = "GPU 1: 99 % busy, but ~77 of 128 SMs are idle on average; all of it is chem's and could run side by side";
const COMMAND: &str = "sudo gshare admin mode 1 mps --wait";

/// A screen with one long piece of advice and a long notice.
fn advised(size: (u16, u16)) -> Model {
    let mut snapshot = canned::workstation();
    snapshot.advice.truncate(1);
    snapshot.advice[0].text = LONG.to_owned();
    snapshot.advice[0].command = Some(COMMAND.to_owned());
    model(NLP, size, snapshot)
}

/// The text of a screen without its line breaks.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn advice_is_told_whole_where_there_is_room() {
    for size in [(120, 44), (100, 50), (158, 50)] {
        let text = screen(&advised(size));
        let told = words(&text);
        assert!(told.contains(&format!("▲ {LONG} {COMMAND}")), "{text}");
    }
    // Without room a key shows everything, and a command takes no room from its sentence.
    let mut m = advised((80, 24));
    let line = |text: &str| {
        text.lines()
            .find(|l| l.starts_with("▲ GPU 1"))
            .unwrap()
            .to_owned()
    };
    let brief = line(&screen(&m));
    assert!(
        brief.contains("SMs are idle on average ") && brief.ends_with(" !"),
        "{brief}"
    );
    m.snapshot.as_mut().unwrap().advice[0].text = LONG[..70].to_owned();
    assert!(line(&screen(&m)).contains(&LONG[..70]), "{}", screen(&m));
    press(&mut m, "!");
    assert!(screen(&m).contains(COMMAND), "{}", screen(&m));
}

#[test]
fn what_is_on_its_way_cannot_be_kept() {
    let mut snapshot = canned::eventful();
    let claim = snapshot.claims.iter_mut().find(|c| c.id == "c12").unwrap();
    claim.place.on_its_way = Some(true);
    let mut m = model(NLP, (120, 40), snapshot);
    let text = screen(&m);
    assert!(text.contains("▲ c12 moves from GPU 0"), "{text}");
    assert!(
        !text.contains("gshare keep") && !text.contains("p keep"),
        "{text}"
    );
    assert!(press(&mut m, "p").is_empty());
    let text = screen(&m);
    assert!(
        text.contains("too late: what was announced for c12 has begun"),
        "{text}"
    );
}

#[test]
fn of_a_service_that_does_not_say_whether_a_claim_is_on_its_way_the_key_is_not_offered() {
    let mut snapshot = canned::eventful();
    let claim = snapshot.claims.iter_mut().find(|c| c.id == "c12").unwrap();
    claim.place = serde_json::from_str(r#"{"levers":{}}"#).unwrap();
    let mut m = model(NLP, (120, 40), snapshot);
    let text = screen(&m);
    assert!(text.contains("▲ c12 moves from GPU 0"), "{text}");
    assert!(!text.contains("gshare keep"), "{text}");
    assert!(press(&mut m, "p").is_empty());
    let text = screen(&m);
    assert!(text.contains("this service does not say"), "{text}");
}

#[test]
fn that_an_idle_claim_is_ended_is_told_at_a_glance() {
    let mut snapshot = canned::workstation();
    snapshot.claims[0].place.on_its_way = Some(false);
    snapshot.claims[0].idle = Some(gshare_proto::IdleView {
        gpu_s: 22 * 60,
        instead: Some("release".to_owned()),
        ends_in_s: Some(24),
        warned: true,
        ..gshare_proto::IdleView::default()
    });
    let mut m = model(NLP, (80, 24), snapshot);
    let text = screen(&m);
    let told = "▲ c12 is ended in 24s: idle 22m, and others wait p, or: gshare keep c12";
    assert!(words(&text).contains(told), "{text}");
    assert_eq!(press(&mut m, "p").len(), 1, "{}", screen(&m));
}

#[test]
fn the_sign_of_the_order_stands_behind_a_whole_word() {
    for (keys, title) in [
        ("s", "by user▾"),
        ("ss", "GPU▾"),
        ("sss", "GiB used▾"),
        ("ssss", "% used▾"),
    ] {
        for page in ["1", "2"] {
            for size in [(80, 24), (120, 40)] {
                let mut m = model(NLP, size, canned::workstation());
                press(&mut m, &format!("{page}{keys}"));
                assert!(screen(&m).contains(title), "{}", screen(&m));
            }
        }
    }
}

/// Keys without a label are in the help only.
#[test]
fn every_key_that_is_offered_does_something() {
    for mut m in super::states((120, 40)) {
        m.past.view = Some(Ok(Box::new(canned::recorded())));
        m.toast = None;
        for command in crate::keymap::line(&m) {
            let mut after = m.clone();
            (command.run)(&mut after);
            let is_error = |t: &crate::model::Toast| t.tone == crate::model::Tone::Bad;
            after.toast.take_if(|t| is_error(t));
            let name = (command.shown, command.label);
            assert!(after != m, "{name:?} does nothing on\n{}", screen(&m));
        }
    }
}

#[test]
fn long_events_and_answers_are_told_whole() {
    let mut snapshot = canned::workstation();
    let long = "moves from GPU 3 to GPU 2 in 3s: c7 of bio waits for room, within the guarantee of bio; the end";
    snapshot.notices[0].text = long.to_owned();
    let mut m = model(NLP, (80, 24), snapshot);
    press(&mut m, "L");
    assert!(screen(&m).contains("the end"), "{}", screen(&m));
    // Keys and signs stand in two columns where there is room.
    let mut m = model(NLP, (120, 40), canned::workstation());
    press(&mut m, "?");
    let text = screen(&m);
    let first = text.lines().find(|l| l.contains("On the screens")).unwrap();
    let second = first
        .split("On the screens")
        .nth(1)
        .unwrap()
        .split('│')
        .next();
    assert!(second.unwrap().contains(char::is_alphabetic), "{text}");
}

#[test]
fn a_caption_has_a_second_row_on_a_narrow_screen() {
    let caption =
        "c6 (bio) waits for a whole GPU: c5 (vis, 4.4 GiB) moves from GPU 3 to GPU 2 in 3s";
    let mut m = model(NLP, (80, 24), canned::demo());
    m.caption = Some(caption.to_owned());
    let text = screen(&m);
    let foot: Vec<&str> = text.lines().rev().take(2).collect();
    assert!(foot[1].ends_with("Space pauses"), "{text}");
    assert_eq!(
        words(&format!(
            "{} {}",
            foot[1].replace("Space pauses", ""),
            foot[0]
        )),
        caption
    );
    // Its place does not depend on its length, so that nothing jumps.
    let keys = |m: &Model| screen(m).lines().position(|l| l.contains("? help"));
    let before = keys(&m);
    m.caption = Some("your turn".to_owned());
    assert_eq!(before, keys(&m));
    assert!(before.is_some());
}

#[test]
fn a_box_leaves_the_keys_and_the_caption_alone() {
    for size in [(80, 24), (60, 15), (120, 40)] {
        let mut m = model(NLP, size, canned::demo());
        m.caption = Some("your turn: press n and claim 0.25 yourself; q ends the demo".to_owned());
        press(&mut m, "?");
        let text = screen(&m);
        let foot: Vec<&str> = text.lines().rev().take(3).collect();
        assert!(foot.iter().any(|l| l.starts_with("Esc close")), "{text}");
        assert!(foot.iter().any(|l| l.starts_with(" your turn")), "{text}");
        // Its last line can be read.
        press(&mut m, &"j".repeat(200));
        let text = screen(&m);
        assert!(text.contains("a program without a claim"), "{text}");
    }
}

#[test]
fn the_maps_keep_their_length_when_figures_grow() {
    let mut snapshot = canned::workstation();
    let maps = |s: &gshare_proto::Snapshot| {
        let text = screen(&model(NLP, (80, 24), s.clone()));
        let line = text.lines().find(|l| l.starts_with("0 4090")).unwrap();
        line.chars()
            .collect::<Vec<_>>()
            .iter()
            .rposition(|c| *c == '┃')
    };
    let before = maps(&snapshot);
    for active in [3.0, 100.0] {
        for gpu in &mut snapshot.gpus {
            for figure in [&mut gpu.sm_active, &mut gpu.time_busy]
                .into_iter()
                .flatten()
            {
                figure.value = active;
            }
        }
        assert_eq!(before, maps(&snapshot));
    }
    assert!(before.is_some());
}

#[test]
fn one_row_is_one_row() {
    let mut m = model(NLP, (80, 24), canned::workstation());
    press(&mut m, "/c12<enter>");
    let text = screen(&m);
    assert!(text.contains("filter `c12`: 1 row  "), "{text}");
}

#[test]
fn what_is_in_host_memory_is_on_no_gpu() {
    let mut snapshot = canned::workstation();
    let claim = snapshot.claims.iter_mut().find(|c| c.id == "c12").unwrap();
    claim.place.word = Some("offloaded".to_owned());
    claim.place.host_bytes = Some(4 << 30);
    claim.state_text = "offloaded, 4.0 GiB in host RAM".to_owned();
    let mut m = model(NLP, (120, 40), snapshot);
    let text = screen(&m);
    let row = text.lines().find(|l| l.starts_with("▌c12")).unwrap();
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells[3], "-", "{text}");
    // It has no slice of GPU 0 any more, and its part is not claimed.
    let gpu = text.lines().find(|l| l.starts_with("0 RTX")).unwrap();
    assert!(gpu.contains("┃c14") && !gpu.contains("c12"), "{text}");
    press(&mut m, "2");
    let text = screen(&m);
    let group = text.lines().find(|l| l.contains("nlp  1 claim")).unwrap();
    let cells: Vec<&str> = group.split_whitespace().collect();
    assert_eq!(&cells[4..6], ["0", "0"], "{text}");
    press(&mut m, "vv");
    let text = screen(&m);
    assert!(text.contains("in host memory  1 claim"), "{text}");
}

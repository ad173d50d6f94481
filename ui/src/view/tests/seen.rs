//! Faults that were seen on the screen beside the demo: untrue, cut off or missing.

use gshare_proto::{Call, Check, HistoryPoint, Reply};

use super::*;
use crate::feed::{Request, Update};
use crate::msg::{Cmd, Msg};
use crate::testing::{canned, press, screen};
use crate::update::update;

fn line(text: &str, with: &str) -> String {
    let found = text.lines().find(|l| l.contains(with));
    found
        .unwrap_or_else(|| panic!("no `{with}` on\n{text}"))
        .to_owned()
}

/// History of a service that began in the middle of its only step.
fn young() -> gshare_proto::HistoryView {
    let mut view = canned::recorded();
    view.heat = view.heat.map(|mut heat| {
        for hours in heat.claimed.iter_mut().chain(&mut heat.used) {
            hours.iter_mut().skip(1).for_each(|hour| *hour = None);
        }
        heat
    });
    for series in &mut view.series {
        series.points = vec![HistoryPoint {
            at_ms: canned::NOW_MS - 600_000,
            known: 0.25,
            claimed: 3.0,
            used: Some(2.0),
            ..HistoryPoint::default()
        }];
    }
    view.step_ms = 600_000;
    view
}

#[test]
fn a_young_service_is_drawn_from_the_moment_that_it_knows() {
    let mut m = model(NLP, (120, 40), canned::workstation());
    open(&mut m, Page::History);
    m.past.view = Some(Ok(Box::new(young())));
    let text = screen(&m);
    // It is 14:32:07, and the step began ten minutes ago; the service 2:30 ago.
    let axis = text.lines().find(|l| l.ends_with(" now")).unwrap();
    assert!(axis.contains("14:30") && !axis.contains("14:2"), "{axis}");
    assert!(!text.contains("WEEK"), "a week of seven hours\n{text}");
    // The step is not over yet.
    let mut current = young();
    for point in current.series.iter_mut().flat_map(|s| &mut s.points) {
        point.at_ms += 300_000;
    }
    m.past.view = Some(Ok(Box::new(current)));
    let text = screen(&m);
    let axis = text
        .lines()
        .find(|l| l.ends_with(" now"))
        .unwrap_or_default();
    assert!(axis.contains("14:30") && !axis.contains("14:2"), "{text}");
    m.past.view = Some(Ok(Box::new(canned::recorded())));
    assert!(screen(&m).contains("WEEK"));
}

#[test]
fn a_peak_is_whole_or_not_there() {
    for cols in 60..140 {
        let mut snapshot = canned::workstation();
        for part in snapshot.claims.iter_mut().flat_map(|c| &mut c.gpus) {
            part.mem_request = canned::gib(13.9);
            (part.mem_used, part.mem_peak) = (Some(canned::gib(12.1)), Some(canned::gib(12.1)));
        }
        let mut m = model(NLP, (cols, 30), snapshot);
        open(&mut m, Page::Claims);
        let text = screen(&m);
        assert!(
            !text.contains("peak …") && !text.contains("limit …"),
            "{text}"
        );
    }
}

#[test]
fn what_is_to_fix_is_told_whole_where_there_is_room() {
    let mut m = model(NLP, (120, 40), canned::workstation());
    open(&mut m, Page::Health);
    let check = Check {
        name: "strict launcher".to_owned(),
        state: "missing".to_owned(),
        detail: "a program can load the driver without the library; ".repeat(3) + "the end",
        fix: Some("sudo gshare setup".to_owned()),
        ..canned::checks()[0].clone()
    };
    m.checks.rows = Some(Ok(vec![check]));
    line(&screen(&m), "the end");
}

#[test]
fn what_holds_a_claim_is_whole_at_80_columns() {
    let mut m = model(NLP, (80, 24), canned::lab());
    open(&mut m, Page::Health);
    m.checks.rows = Some(Ok(canned::checks()));
    line(&screen(&m), "(cooperative)");
}

#[test]
fn a_claim_that_is_slowed_above_its_size_only_bursts() {
    let mut snapshot = canned::workstation();
    let claim = snapshot.claims.iter_mut().find(|c| c.id == "c15").unwrap();
    let part = &mut claim.gpus[0];
    part.throttled = part
        .time_busy
        .map(|f| gshare_proto::Figure { value: 47.0, ..f });
    let text = screen(&model(NLP, (120, 40), snapshot.clone()));
    assert!(line(&text, " c15 chem").contains("bursts"), "{text}");
    // A claim with less than its size is throttled.
    let claim = snapshot.claims.iter_mut().find(|c| c.id == "c15").unwrap();
    let part = &mut claim.gpus[0];
    part.time_busy = part
        .time_busy
        .map(|f| gshare_proto::Figure { value: 20.0, ..f });
    part.time_got = part.time_busy;
    part.sm_active = part.time_busy;
    let text = screen(&model(NLP, (120, 40), snapshot));
    assert!(
        line(&text, " c15 chem").contains("▲ throttled 47 % by others"),
        "{text}"
    );
}

#[test]
fn of_a_young_service_only_the_time_that_it_knows_is_asked_for() {
    let mut m = model(NLP, (120, 40), canned::workstation());
    let asked = |cmds: Vec<Cmd>| {
        cmds.into_iter().find_map(|cmd| match cmd {
            Cmd::Ask(Request::Call { seq, call }) => match *call {
                Call::History(spec) => Some((seq, spec.from_ms)),
                _ => None,
            },
            _ => None,
        })
    };
    let (seq, _) = asked(press(&mut m, "4")).unwrap();
    let outcome = Ok(Reply::History(Box::new(young())));
    update(&mut m, Msg::Update(Update::CallResult { seq, outcome }));
    let clock = m.clock;
    let again = asked(update(&mut m, Msg::Tick(clock)));
    assert_eq!(again.unwrap().1, canned::NOW_MS - 150_000);
}

#[test]
fn what_is_wasted_most_has_the_command_of_the_advice() {
    let mut m = model(NLP, (120, 40), canned::workstation());
    open(&mut m, Page::History);
    m.past.view = Some(Ok(Box::new(canned::recorded())));
    let worst = gshare_proto::IdleHolding {
        id: "c12".to_owned(),
        user: "nlp".to_owned(),
        ..gshare_proto::IdleHolding::default()
    };
    let mut little = worst.clone();
    little.usage.idle.other = 17.0;
    let mut worst = worst;
    worst.usage.idle.other = 3600.0;
    let worst = vec![worst, little];
    m.past.report = Some(Box::new(gshare_proto::ReportView {
        worst,
        ..gshare_proto::ReportView::default()
    }));
    let said = line(&screen(&m), "GPU h idle of");
    assert!(said.trim_end().ends_with("gshare release c12"), "{said}");
    assert!(!screen(&m).contains("<0.01 GPU h idle"), "{}", screen(&m));
}

#[test]
fn what_few_people_type_is_one_line_until_it_is_wanted() {
    let mut m = model(NLP, (80, 24), canned::workstation());
    press(&mut m, "n");
    line(&screen(&m), "more     memory, limit, class");
    press(&mut m, "<tab><tab><tab><tab>8G");
    line(&screen(&m), "Memory   8G");
    // The typed text stays visible.
    press(&mut m, "<tab><tab><tab>");
    line(&screen(&m), "Memory   8G");
}

#[test]
fn a_claim_that_is_throttled_is_not_called_wasteful() {
    let mut snapshot = canned::lab();
    let wasted = gshare_proto::totals::wasted(&snapshot);
    let id = wasted.split(' ').next().unwrap().to_owned();
    let claim = snapshot.claims.iter_mut().find(|c| c.id == id).unwrap();
    claim.gpus[0].throttled = Some(gshare_proto::Figure {
        value: 40.0,
        source: gshare_proto::Source::Shim,
        estimate: false,
    });
    let now = gshare_proto::totals::wasted(&snapshot);
    assert!(!now.starts_with(&format!("{id} ")), "{wasted}, then {now}");
}

#[test]
fn later_nothing_is_free_beside_a_program_without_an_end_nor_of_what_is_planned() {
    let mut snapshot = canned::workstation();
    // A program without a claim runs on GPU 3, and GPU 2 is planned for another.
    snapshot.gpus[3].claimable = 0.4;
    snapshot.gpus[2].planned_for = Some("c22 bio".to_owned());
    snapshot.claims[0].ends_ms = Some(canned::NOW_MS + 20 * 3_600_000);
    let mut m = model(NLP, (120, 40), snapshot);
    press(&mut m, "3]");
    let text = screen(&m);
    let under = |gpu: &str| {
        let mut lines = text.lines().skip_while(|l| !l.starts_with(gpu));
        lines.nth(1).unwrap_or_default().trim().to_owned()
    };
    assert_eq!(
        (under("3 RTX").as_str(), under("2 RTX").as_str()),
        ("~0.40", ""),
        "{text}"
    );
}

/// What readers of the pictures took for something else.
#[test]
fn a_picture_is_read_in_one_way() {
    let text = screen(&model(NLP, (80, 24), canned::first_day()));
    for wanted in [
        "FREE NOW  13.6 GiB of RTX 4090, GPU 7",
        "GPU 7 (mia): 100 % of its time unused",
        "time %  used/claim GiB",
        "2 GPUs would be free  14 programs fit on 6 GPUs, by their memory and GPU time",
    ] {
        line(&text, wanted);
    }
    let mut snapshot = canned::workstation();
    let levers = &mut snapshot.claims[0].place.levers;
    levers.not_movable = Some("it uses managed memory".to_owned());
    levers.not_detachable = levers.not_movable.clone();
    let mut m = model(NLP, (120, 40), snapshot);
    open(&mut m, Page::Claims);
    let told = line(&screen(&m), "cannot be moved or offloaded: it uses managed");
    assert_eq!(told.matches("managed memory").count(), 1, "{told}");
}

#[test]
fn a_long_name_stands_apart_from_its_gpu_hours() {
    let mut snapshot = canned::workstation();
    let user = &mut snapshot.users[0];
    (user.user, user.day) = ("maximilian".to_owned(), Some(Default::default()));
    let text = screen(&model(NLP, (120, 40), snapshot));
    assert!(text.contains("DAY  maximil… 0 GPU h claimed"), "{text}");
}

use std::collections::BTreeSet;

use ratatui::style::Color;
use ratatui::text::{Line, Span};

use gshare_proto::{Caps, ExpectedView, LaterView, OffView, StageView, StuckView, TurnsView};

use crate::keymap;
use crate::model::{Model, Page, RowKey, Viewer};
use crate::testing::{
    NLP, ROOT, buffer, canned, check_screen, known, model, open, press, row, screen,
};
use crate::theme::{Depth, Look};

#[test]
fn the_overview_at_the_usual_sizes() {
    for (size, name) in [
        ((80, 24), "80x24"),
        ((120, 40), "120x40"),
        ((200, 50), "200x50"),
        ((60, 15), "60x15"),
    ] {
        for (state, snapshot) in [
            ("workstation", canned::workstation()),
            ("demo", canned::demo()),
            ("crowd", canned::crowd()),
        ] {
            let mut m = model(NLP, size, snapshot);
            rehearse(&mut m);
            check_screen(&format!("{state}-{name}"), &m);
        }
    }
    check_screen("monitor-80x24", &model(NLP, (80, 24), canned::monitor()));
}

/// Eight claims share a GPU: a large one and seven small ones.
fn eight_on_one() -> gshare_proto::Snapshot {
    let mut base = canned::workstation();
    let one = base.claims[0].clone();
    base.claims = (0..8u8)
        .map(|n| {
            let mut claim = one.clone();
            (claim.id, claim.uid) = (format!("c{}", 30 + n), 1001 + u32::from(n));
            (claim.user, claim.what) = (format!("user{n}"), format!("job{n}.py"));
            claim.state_text = "run".to_owned();
            let part = &mut claim.gpus[0];
            part.sm_request = if n == 0 { 0.3 } else { 0.1 };
            part.mem_request = canned::gib(23.5 * part.sm_request);
            part.mem_used = Some(part.mem_request / 2);
            let of_all = |figure: Option<gshare_proto::Figure>| {
                figure.map(|mut f| {
                    f.value *= part.sm_request;
                    f
                })
            };
            let gpu = &base.gpus[0];
            part.time_busy = of_all(gpu.time_busy);
            part.sm_active = of_all(gpu.sm_active);
            part.sm_occupancy = of_all(gpu.sm_occupancy);
            claim
        })
        .collect();
    base.gpus.truncate(1);
    base.unclaimed.clear();
    base.users.clear();
    base.gpus[0].sm_claimed = 1.0;
    base.gpus[0].mem_claimed = canned::gib(23.5);
    base.gpus[0].mem_used = Some(canned::gib(11.75));
    base.gpus[0].claimable = 0.0;
    if let Some(now) = &mut base.claimable_now {
        (now.models[0].largest, now.models[0].whole) = (0.0, 0);
    }
    base.queue[0].uid = 1009;
    base.queue[0].reason = "needs 23.5 GiB on one GPU; c30 ends 16:05".to_owned();
    base.notices[0].claim = Some("c31".to_owned());
    base.notices[0].text = "refused 1.2 GiB at its limit of 2.3 GiB".to_owned();
    base.advice.clear();
    base
}

/// Long names, wide letters, and letters of several cells.
fn long_names() -> gshare_proto::Snapshot {
    let mut base = canned::workstation();
    let names = [
        (
            "maximilian.von-der-lauterbach",
            "a-very-long-notebook-name-for-a-thesis.ipynb",
        ),
        ("山田太郎", "画像認識モデルの学習.ipynb"),
        ("jürgen", "größenänderung.py 🚀"),
    ];
    for claim in &mut base.claims {
        let (user, what) = names[claim.uid as usize - 1001];
        (claim.user, claim.what) = (user.to_owned(), what.to_owned());
    }
    base.queue[0].uid = 1002;
    base.users.clear();
    base.queue[0].user = names[1].0.to_owned();
    base.queue[0].what = names[1].1.to_owned();
    base
}

/// gshare is off for an hour.
fn off() -> gshare_proto::Snapshot {
    let mut base = canned::workstation();
    base.service.as_mut().unwrap().off = Some(OffView {
        until_ms: Some(base.taken_ms + 3_600_000),
        by: "bob".to_owned(),
        ..OffView::default()
    });
    // As the service answers while it is off.
    base.claimable_now = None;
    base.gpus.iter_mut().for_each(|g| g.claimable = 0.0);
    base
}

/// Additional states of the Overview.
fn more_states() -> [(&'static str, gshare_proto::Snapshot); 3] {
    [
        ("off", off()),
        ("eight-on-one", eight_on_one()),
        ("long-names", long_names()),
    ]
}

/// States of a laboratory for every screen.
fn laboratory() -> [(&'static str, gshare_proto::Snapshot); 5] {
    [
        ("first-day", canned::first_day()),
        ("lab", canned::lab()),
        ("nothing-free", canned::nothing_free()),
        ("mig", canned::mig()),
        ("old-driver", unknown::old_driver()),
    ]
}

#[test]
fn the_overview_in_the_states_of_a_laboratory() {
    for (name, snapshot) in laboratory().into_iter().chain(more_states()) {
        // A user has one name, so that `FREE NOW for` and the marks of own claims are about the same one.
        let claims = snapshot.claims.iter().map(|c| (c.uid, &c.user));
        let queue = snapshot.queue.iter().map(|q| (q.uid, &q.user));
        let users = snapshot.users.iter().map(|u| (u.uid, &u.user));
        let names: BTreeSet<_> = claims.chain(queue).chain(users).collect();
        let uids: BTreeSet<u32> = names.iter().map(|(uid, _)| *uid).collect();
        assert_eq!(names.len(), uids.len(), "{name}: {names:?}");
        for (size, cols) in [((80, 24), "80x24"), ((120, 40), "120x40")] {
            let mut m = model(NLP, size, snapshot.clone());
            rehearse(&mut m);
            check_screen(&format!("{name}-{cols}"), &m);
        }
    }
}

/// Has the service answer what the Overview asks: half a GPU is the viewer's own, more is on loan, where nothing is
/// free others make room for a quarter in half a minute, and nobody knows when a whole GPU is free.
fn rehearse(m: &mut Model) {
    let free = m.snapshot.as_ref().and_then(|s| s.claimable_now.as_ref());
    let models = free.map_or(&[][..], |now| &now.models);
    let whole = models.iter().any(|r| r.largest >= 1.0);
    let free = models.iter().any(|r| r.largest > 0.0);
    let takings = (!free).then(gshare_proto::TakingView::default);
    // Twice, for requests that follow an answer.
    for _ in 0..2 {
        for cmd in crate::update::update(m, crate::msg::Msg::Tick(m.clock)) {
            if let crate::msg::Cmd::Ask(crate::feed::Request::Call { seq, call }) = cmd
                && let gshare_proto::Call::Try(spec) = call.as_ref()
            {
                let tried = gshare_proto::Tried {
                    starts: free && (whole || spec.gpus_milli < Some(1000)),
                    // An instance is less than half of a GPU.
                    entitled: spec.gpus_milli <= Some(500)
                        || spec.models.iter().any(|m| m.contains("g.")),
                    takings: takings.iter().cloned().collect(),
                    expected_ms: (!free).then_some(canned::NOW_MS + 30_000),
                    ..Default::default()
                };
                m.tried(seq, tried);
            }
        }
    }
}

/// Answers the dry run of the typed claim.
fn said(m: &mut Model, tried: gshare_proto::Tried) {
    let Some(crate::model::Dialog::Form(form)) = &mut m.dialog else {
        panic!("no form");
    };
    form.tried = Some((form.spec().unwrap(), Ok(tried)));
}

#[test]
fn boxes() {
    let part = |gpu, gib, sm| gshare_proto::TriedGpu {
        gpu,
        mem: canned::gib(gib),
        sm,
        ..Default::default()
    };
    let starts = gshare_proto::Tried {
        starts: true,
        entitled: true,
        gpus: vec![part(6, 5.8, 0.25)],
        ..Default::default()
    };
    let mut large = model(NLP, (120, 40), canned::lab());
    press(&mut large, "n<tab><tab>2h");
    said(&mut large, starts.clone());
    check_screen("dialog-claim-lab", &large);
    let waits = gshare_proto::Tried {
        message: "would wait: needs an empty GPU".to_owned(),
        position: Some(6),
        expected_ms: Some(canned::NOW_MS + 5_580_000),
        would_start: Some("-g 0.4".to_owned()),
        ..Default::default()
    };
    press(&mut large, "<esc>n<c-u>1");
    said(&mut large, waits);
    check_screen("dialog-claim-waits", &large);
    let made = gshare_proto::Tried {
        message: "would wait".to_owned(),
        entitled: true,
        expected_ms: Some(canned::NOW_MS + 30_000),
        takings: vec![gshare_proto::TakingView {
            id: "c9".to_owned(),
            user: "ben".to_owned(),
            what: "is offloaded".to_owned(),
            ..Default::default()
        }],
        ..Default::default()
    };
    press(&mut large, "<esc>n");
    said(&mut large, made);
    let text = screen(&large);
    let wanted = "starts   in 30s: others make room; c9 of ben is offloaded";
    assert!(text.contains(wanted), "{text}");
    let mut m = model(NLP, (80, 24), canned::workstation());
    press(&mut m, "n");
    let gpus = vec![part(0, 5.9, 0.25)];
    said(&mut m, gshare_proto::Tried { gpus, ..starts });
    check_screen("dialog-claim", &m);
    press(&mut m, "<esc><enter>");
    check_screen("dialog-detail", &m);
    press(&mut m, "<esc>x");
    check_screen("dialog-release", &m);
    press(&mut m, "<esc>?");
    check_screen("dialog-help", &m);
    press(&mut m, "<esc><right><enter>");
    check_screen("dialog-waiting", &m);
    press(&mut m, "<esc><right><enter>");
    check_screen("dialog-gpu", &m);
    press(&mut m, "<esc><right>r");
    check_screen("dialog-resize", &m);
}

/// A page has pictures, and its claims in the columns of their table; ending a claim from there asks first.
#[test]
fn pages_of_a_user_and_of_a_process() {
    let mut m = model(ROOT, (110, 34), canned::workstation());
    m.snapshot.as_mut().unwrap().claims[1].processes = vec![gshare_proto::ProcessView {
        pid: 4711,
        gpu: 0,
        what: "python train.py".to_owned(),
        mem_used: Some(canned::gib(11.2)),
        time_busy: Some(98.0),
    }];
    for (key, name) in [
        (RowKey::User(1002), "page-user"),
        (RowKey::Process(4711, 0), "page-process"),
        (RowKey::Process(48211, 3), "page-program"),
    ] {
        m.dialog = Some(crate::model::Dialog::Detail { key, scroll: 0 });
        check_screen(name, &m);
    }
    m.dialog = Some(crate::model::Dialog::Detail {
        key: RowKey::Process(4711, 0),
        scroll: 0,
    });
    assert_eq!(press(&mut m, "K"), []);
    assert!(screen(&m).contains("Kill c14 of vis"), "{}", screen(&m));
    press(&mut m, "n");
    assert!(m.dialog.is_none());
}

#[test]
fn history_by_user_and_by_gpu() {
    let mut m = model(NLP, (120, 40), canned::workstation());
    m.past.view = Some(Ok(Box::new(canned::recorded())));
    press(&mut m, "4b");
    check_screen("history-by-user-120x40", &m);
    m.size = (80, 24);
    check_screen("history-by-user-80x24", &m);
    let mut gpus = canned::recorded();
    for (n, series) in gpus.series.iter_mut().enumerate() {
        series.label = format!("GPU {n}");
        for point in &mut series.points {
            point.claimed /= 4.0;
            point.used = point.used.map(|used| used / 4.0);
        }
    }
    m.size = (120, 40);
    press(&mut m, "b");
    m.past.gpus = Some(Box::new(gpus));
    check_screen("history-by-gpu-120x40", &m);
    press(&mut m, "b");
    assert!(screen(&m).contains("GPUS IN USE of everybody"));
}

/// Waiting has a row of levels below the plot.
#[test]
fn time_that_was_waited_for_is_drawn() {
    let mut m = model(NLP, (120, 40), canned::workstation());
    let mut recorded = canned::recorded();
    for point in recorded.series.iter_mut().flat_map(|s| &mut s.points) {
        point.waiting = 0.5;
    }
    m.past.view = Some(Ok(Box::new(recorded)));
    open(&mut m, Page::History);
    let text = screen(&m);
    let row = text.lines().find(|l| l.starts_with("wait")).unwrap();
    let drawn = row.chars().filter(|c| "▁▂▃▄▅▆▇█".contains(*c)).count();
    assert!(drawn > 60, "{text}");
}

#[test]
fn what_is_lost_most_is_warned_of_first() {
    let mut snapshot = canned::workstation();
    let names: Vec<String> = snapshot.claims.iter().map(|c| c.id.clone()).collect();
    snapshot.advice = names
        .iter()
        .map(|id| gshare_proto::Advice {
            text: format!("{id} idles"),
            command: Some(format!("gshare release {id}")),
        })
        .collect();
    for (n, claim) in snapshot.claims.iter_mut().enumerate() {
        let usage = claim.usage.get_or_insert_default();
        (usage.claimed_gpu_s, usage.busy_gpu_s) = (9e9, Some(1.0));
        usage.idle = gshare_proto::Idle {
            cpu: 3600.0 * n as f64,
            ..Default::default()
        };
    }
    let m = model(NLP, (120, 40), snapshot);
    let told = super::warnings(&m).into_iter().map(|(text, _)| text);
    let told: Vec<String> = told.filter(|text| text.ends_with("idles")).collect();
    let wanted: Vec<String> = names.iter().rev().map(|id| format!("{id} idles")).collect();
    assert_eq!(told, wanted);
}

/// Everything that can be on the screen.
fn states(size: (u16, u16)) -> Vec<Model> {
    let all = [
        canned::workstation(),
        canned::demo(),
        canned::monitor(),
        canned::crowd(),
        gshare_proto::Snapshot::default(),
    ];
    let mut out = Vec::new();
    for snapshot in all {
        for keys in [
            "",
            "jj",
            "<right>",
            "<right><right>",
            "2",
            "2jj",
            "2vv<end>",
            "3",
            "3<end>",
            "4",
            "5",
            "5<end>",
            "jr",
            "n",
            "?",
            "j<enter>",
            "jx",
            "/vis",
            "/vis<enter>",
        ] {
            let mut m = model(ROOT, size, snapshot.clone());
            press(&mut m, keys);
            out.push(m);
        }
    }
    let mut m = model(NLP, size, canned::demo());
    m.caption = Some("GPU 1 is 99 % busy and 77 of its SMs are idle".to_owned());
    m.disconnected = Some("the gshare service closed the connection".to_owned());
    out.push(m.clone());
    m.snapshot = None;
    out.push(m);
    out
}

#[test]
fn no_size_of_the_terminal_breaks_it() {
    let looks = [Look::new(Depth::Rgb, true), Look::new(Depth::Mono, false)];
    let sizes = (0..=220u16).flat_map(|w| (0..=64u16).map(move |h| (w, h)));
    // All small sizes, where edges meet, and a sample of the others.
    let wanted = |(w, h): &(u16, u16)| {
        (*w < 6 && *h < 6) || (w % 44 == 0 && h % 12 == 0) || (w % 31 == 1 && h % 13 == 3)
    };
    let (mut all, mut seen) = (states((80, 24)), 0);
    for size in sizes.filter(wanted) {
        for (i, m) in all.iter_mut().enumerate() {
            m.size = size;
            buffer(m, &looks[i % 2]);
            seen += 1;
        }
    }
    assert!(seen > 3000, "{seen}");
}

/// Whether a cut went through a figure: digits right before an ellipsis.
fn cut_figure(line: &str) -> bool {
    let chars: Vec<char> = line.chars().collect();
    let figure = |c: &&char| c.is_ascii_digit() || **c == '.';
    let cuts = (0..chars.len()).filter(|at| chars[*at] == '…');
    let mut before = cuts.map(|at| chars[..at].iter().rev().take_while(figure));
    before.any(|mut run| run.any(char::is_ascii_digit))
}

#[test]
fn every_screen_fits_every_size_from_60x15_to_250x60() {
    let mut seen = 0;
    for (n, snapshot) in [canned::workstation(), canned::lab(), canned::mig()]
        .into_iter()
        .enumerate()
    {
        let mut m = model(ROOT, (80, 24), snapshot);
        known(&mut m);
        for page in Page::ALL {
            open(&mut m, page);
            let usual = [60, 80, 100, 120, 160, 200, 250];
            let widths = (60..=250).filter(|w| usual.contains(w) || w % 23 == n);
            for width in widths {
                for height in (15..=60).filter(|h| h % 5 == n || [15, 24, 40, 60].contains(h)) {
                    m.size = (width as u16, height as u16);
                    let text = screen(&m);
                    assert_eq!(text.lines().count(), height, "{page:?} {width}x{height}");
                    for line in text.lines() {
                        assert!(!cut_figure(line), "{page:?} {width}x{height}: {line}");
                    }
                    seen += 1;
                }
            }
        }
    }
    assert!(seen > 2000, "{seen}");
}

#[test]
fn the_other_screens_at_the_usual_sizes() {
    let pages = [
        ("2", "claims"),
        ("3", "queue"),
        ("4", "history"),
        ("5", "health"),
    ];
    for (keys, name) in pages {
        for (size, cols) in [
            ((80, 24), "80x24"),
            ((120, 40), "120x40"),
            ((200, 60), "200x60"),
            ((60, 15), "60x15"),
        ] {
            let mut m = model(NLP, size, canned::workstation());
            known(&mut m);
            let mut one = canned::recorded();
            one.series.truncate(1);
            one.series[0].key = "c12".to_owned();
            for point in &mut one.series[0].points {
                (point.claimed, point.busy) = (0.25, point.used.map(|u| u / 8.0));
                point.mem_claimed = canned::gib(5.9) as f64;
                point.mem_used = point.used.map(|u| u * canned::gib(1.4) as f64);
            }
            m.past.claim = Some(Box::new(one));
            m.snapshot.as_mut().unwrap().claims[4].ends_ms = Some(canned::NOW_MS + 5_580_000);
            m.snapshot.as_mut().unwrap().queue[0].expected_ms = Some(canned::NOW_MS + 5_580_000);
            press(&mut m, keys);
            check_screen(&format!("{name}-{cols}"), &m);
        }
    }
}

#[test]
fn the_other_screens_in_the_states_of_a_laboratory() {
    for (name, snapshot) in laboratory().into_iter().chain(more_states()) {
        for (size, cols) in [((80, 24), "80x24"), ((120, 40), "120x40")] {
            for page in [Page::Claims, Page::Queue, Page::History, Page::Health] {
                let mut m = model(NLP, size, snapshot.clone());
                m.checks.rows = Some(Ok(canned::checks()));
                // An old service keeps no history; without claims there is none yet.
                m.past.view = match name {
                    "old-driver" => Some(Err("unknown variant `history`".to_owned())),
                    "first-day" => {
                        let mut nothing = canned::recorded();
                        (nothing.gpu_count, nothing.heat) = (8, None);
                        nothing.series.clear();
                        Some(Ok(Box::new(nothing)))
                    }
                    _ => Some(Ok(Box::new(canned::recorded()))),
                };
                open(&mut m, page);
                let page = format!("{page:?}").to_lowercase();
                check_screen(&format!("{page}-{name}-{cols}"), &m);
            }
        }
    }
}

/// Figures of a row after its first word; those in a map are labels.
fn figures_of(line: &str) -> usize {
    let map = line.find('┃').zip(line.rfind('┃'));
    let words = match map {
        Some((from, to)) => format!("{} {}", &line[..from], &line[to..]),
        None => line.to_owned(),
    };
    let trim = |w: &str| {
        w.trim_matches(['~', '≥', '%', ',', ';', '▌', ' '])
            .to_owned()
    };
    let figure = |w: &str| w.parse::<f64>().is_ok() && !["4090", "100"].contains(&w);
    let words = words.split_whitespace().skip(1).map(trim);
    words.filter(|w| figure(w)).count()
}

#[test]
fn rows_have_few_figures_and_screens_few_blank_rows_while_something_is_hidden() {
    let more = [
        ("workstation", canned::workstation()),
        ("crowd", canned::crowd()),
    ];
    let ten = laboratory().into_iter().chain(more_states()).chain(more);
    let (mut most, mut blank_most) = (0, 0);
    for (name, snapshot) in ten {
        for size in [
            (60, 15),
            (80, 24),
            (100, 30),
            (120, 40),
            (160, 45),
            (200, 50),
            (250, 60),
        ] {
            for page in Page::ALL {
                let mut snapshot = snapshot.clone();
                for user in &mut snapshot.users {
                    user.day = Some(gshare_proto::Usage::default());
                }
                let days = snapshot.users.len();
                let more = (1..20).map(|n| gshare_proto::Notice {
                    text: format!("event {n} of twenty"),
                    ..gshare_proto::Notice::default()
                });
                snapshot.notices.extend(more);
                let mut events = snapshot.notices.clone().into_iter().map(|n| n.text);
                let mut m = model(NLP, size, snapshot);
                known(&mut m);
                open(&mut m, page);
                let text = screen(&m);
                for line in text.lines() {
                    let n = figures_of(line);
                    // On large screens two parts stand side by side.
                    let parts = if size.0 >= crate::view::SIDE { 2 } else { 1 };
                    assert!(
                        n <= 7 * parts,
                        "{name} {page:?} {size:?}: {n} figures: {line}"
                    );
                    most = most.max(n);
                }
                // `1-8 of 21`, `+1 on 3`.
                let range = |part: &str| {
                    let last = part.split_whitespace().last().unwrap_or_default();
                    let ends = last.split_once('-');
                    ends.is_some_and(|(a, b)| a.parse::<u32>().is_ok() && b.parse::<u32>().is_ok())
                };
                let more = text.split("  +").skip(1);
                let mut more = more.filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
                // Events, and the sums of the day.
                let begins = |said: String| text.contains(said.get(..9).unwrap_or(&said));
                let untold = !events.all(begins) || text.matches("GPU h claimed").count() < days;
                let untold = untold && page == Page::Overview;
                let hidden = text.split(" of ").any(range) || more.next().is_some() || untold;
                let blank = text.lines().filter(|l| l.trim().is_empty()).count();
                assert!(
                    !hidden || blank <= 6,
                    "{name} {page:?} {size:?}: {blank} blank: {text}"
                );
                if hidden {
                    blank_most = blank_most.max(blank);
                }
            }
        }
    }
    println!("most figures in a row {most}, most blank rows beside something hidden {blank_most}");
}

#[test]
fn a_sick_gpu_is_told_on_every_screen_that_names_it() {
    let mut m = model(NLP, (160, 45), canned::workstation());
    let xid = gshare_proto::XidView {
        at_ms: canned::NOW_MS,
        code: 95,
        text: "a memory error that may have reached others".to_owned(),
        ..Default::default()
    };
    m.snapshot.as_mut().unwrap().gpus[1].health = Some(gshare_proto::HealthView {
        grade: gshare_proto::Grade::Sick,
        reasons: vec![format!("Xid 95: {}", xid.text)],
        xids: vec![xid],
        tell: Some("sudo nvidia-smi --gpu-reset -i 1".to_owned()),
        ..Default::default()
    });
    let changing = &mut m.snapshot.as_mut().unwrap().gpus[2];
    (changing.mode, changing.mode_wanted) = ("timeslice".to_owned(), Some("mps".to_owned()));
    let text = screen(&m);
    assert!(text.contains("\n2 RTX 4090 to mps "), "{text}");
    let sick = text.lines().skip_while(|l| !l.starts_with("1 RTX")).nth(1);
    assert!(sick.is_some_and(|l| l.starts_with("✗ sick")), "{text}");
    press(&mut m, "3");
    let until = row(&screen(&m), "1 RTX");
    assert!(until.contains("sick: no new claims"), "{until}");
    press(&mut m, "5");
    m.size = (200, 45);
    let health = row(&screen(&m), "1 RTX 4090");
    assert_eq!(health.matches("Xid 95").count(), 1, "{health}");
    assert!(
        health.contains("14:32") && health.contains("--gpu-reset -i 1"),
        "{health}"
    );
}

#[test]
fn the_line_that_is_typed_is_in_sight_on_a_small_terminal() {
    let mut m = model(NLP, (40, 8), canned::workstation());
    press(&mut m, "n");
    assert!(screen(&m).contains("Size") && !screen(&m).contains("Name"));
    press(&mut m, "<tab><tab><tab>run1");
    let text = screen(&m);
    assert!(text.contains("Name") && text.contains("run1"), "{text}");
    assert!(
        !text.contains("Down, Up"),
        "these keys do not scroll it: {text}"
    );
}

#[test]
fn rows_without_room_are_counted() {
    let mut m = model(NLP, (60, 14), canned::workstation());
    m.caption = Some("it takes a row".to_owned());
    known(&mut m);
    press(&mut m, "5");
    let text = screen(&m);
    assert!(text.contains("GPU 1-3 of 4"), "{text}");
    let users = m.past.users().len();
    press(&mut m, "4");
    let text = screen(&m);
    let all = format!("\nall {users}  ");
    assert!(
        text.contains(&all) && !text.contains("\neverybody"),
        "{text}"
    );
    assert!(text.contains(" waited\n"), "no column goes for it: {text}");
    m.size = (120, 40);
    let text = screen(&m);
    assert!(text.contains("\neverybody "), "{text}");
}

#[test]
fn when_a_claim_starts_is_told_with_its_spread_and_its_cause() {
    let shown = |at: Option<u64>, low_s: Option<u64>, keys: &str, size| {
        let mut snapshot = canned::workstation();
        let waiting = &mut snapshot.queue[0];
        waiting.expected_ms = at;
        waiting.expected = low_s.map(|low_s| ExpectedView {
            low_s,
            high_s: Some(720),
            certain: low_s == 720,
            cause: "minimum run time of c3".to_owned(),
        });
        waiting.plan = None;
        let mut m = model(NLP, size, snapshot);
        press(&mut m, keys);
        screen(&m)
    };
    let at = |minutes: u64| Some(canned::NOW_MS + minutes * 60_000);
    let queue = shown(None, Some(720), "3", (120, 40));
    let words = "starts in 12m (minimum run time of c3)";
    assert!(queue.contains(words), "{queue}");
    // The earliest start by time limits is less certain than the expected one.
    let queue = shown(at(5), Some(300), "3", (120, 40));
    assert!(queue.contains("starts in 5m to 12m ("), "{queue}");
    let overview = shown(at(5), Some(300), "", (120, 40));
    assert!(
        overview.contains("1 GPU  in 5m to 12m  needs"),
        "{overview}"
    );
    let overview = shown(at(5), None, "", (120, 40));
    assert!(overview.contains("1 GPU  in 5m  needs"), "{overview}");
    // Its time has come.
    let overview = shown(at(0), None, "", (120, 40));
    assert!(overview.contains("1 GPU  now  needs"), "{overview}");
    let queue = shown(at(0), None, "3", (120, 40));
    assert!(queue.contains("starts any moment now"), "{queue}");
    let queue = shown(None, None, "3", (120, 40));
    assert!(
        queue.contains("gshare cannot tell when room will be free"),
        "{queue}"
    );
    let overview = shown(None, None, "", (120, 40));
    assert!(overview.contains("1 GPU  —  needs"), "{overview}");
}

#[test]
fn why_others_are_left_alone_is_told_who_waits() {
    let mut snapshot = canned::workstation();
    let waiting = &mut snapshot.queue[0];
    waiting.expected_ms = None;
    waiting.plan = None;
    waiting.alone = vec!["c5 (ada) cannot make room: it uses managed memory".to_owned()];
    let mut m = model(NLP, (120, 40), snapshot);
    press(&mut m, "3");
    let text = screen(&m);
    assert!(
        text.contains("c5 (ada) cannot make room: it uses managed memory"),
        "{text}"
    );
    assert!(
        !text.contains("gshare cannot tell when room will be free"),
        "{text}"
    );
}

#[test]
fn of_hundreds_that_wait_the_chosen_one_is_in_sight() {
    let mut snapshot = canned::workstation();
    let one = snapshot.queue[0].clone();
    snapshot.queue = (1..=500)
        .map(|n| gshare_proto::QueueView {
            id: format!("c{}", 1000 + n),
            position: n,
            ..one.clone()
        })
        .collect();
    let mut m = model(NLP, (120, 40), snapshot);
    press(&mut m, "3<end>");
    let text = screen(&m);
    assert!(
        text.contains("c1500") && text.contains("500 of 500"),
        "{text}"
    );
    press(&mut m, "<up><up>");
    let text = screen(&m);
    assert!(text.contains("c1498"), "{text}");
    press(&mut m, "<home>");
    let text = screen(&m);
    assert!(text.contains("c1001") && text.contains("1-"), "{text}");
}

#[test]
fn a_line_that_is_too_long_says_so() {
    let look = Look::new(Depth::Mono, true);
    let line = || Line::from(vec![Span::raw("train"), Span::raw(".py"), Span::raw("")]);
    for (width, want) in [
        (9, "train.py"),
        (8, "train.py"),
        (7, "train.…"),
        (6, "train…"),
        (5, "trai…"),
        (1, "…"),
        (0, ""),
    ] {
        assert_eq!(
            super::fit(line(), width, &look).to_string(),
            want,
            "{width}"
        );
    }
}

#[test]
fn what_is_not_known_is_never_drawn_as_nothing() {
    let mut snapshot = canned::workstation();
    for gpu in &mut snapshot.gpus {
        gpu.mem_used = None;
        gpu.mem_charged = None;
        gpu.mem_allocatable = None;
        gpu.mem_total = None;
        gpu.sms = None;
        gpu.sm_active = None;
        gpu.sm_occupancy = None;
        gpu.time_busy = None;
        gpu.temperature_c = None;
        gpu.power_w = None;
        gpu.history = vec![None; 10];
    }
    for claim in &mut snapshot.claims {
        for part in &mut claim.gpus {
            part.mem_used = None;
            part.mem_charge = None;
            part.time_busy = None;
            part.sm_active = None;
            part.sm_occupancy = None;
        }
    }
    for user in &mut snapshot.users {
        user.sm_used = None;
        user.mem_used = None;
    }
    snapshot.unclaimed[0].mem_used = None;
    snapshot.unclaimed[0].user = None;
    let text = screen(&model(NLP, (80, 24), snapshot.clone()));
    let line = |start: &str| row(&text, start);
    let gpu = line("0 4090");
    assert!(gpu.ends_with("┃      —     —  17.7 of —"), "{gpu}");
    let claim = line("c14");
    assert!(claim.contains("—    50        —  11.8"), "{claim}");
    let unclaimed = line("u1");
    assert_eq!(unclaimed.matches('—').count(), 3, "{unclaimed}");
    // The same on a wide screen, whose maps and bars must not say that nothing is used.
    let text = screen(&model(NLP, (140, 44), snapshot));
    let rows: Vec<&str> = text
        .lines()
        .skip_while(|l| !l.starts_with("0 RTX"))
        .take(2)
        .collect();
    assert!(rows[0].contains("—      —     —  17.7 of —"), "{}", rows[0]);
    assert!(rows[1].contains("no figure"), "{}", rows[1]);
    assert!(!rows[1].contains(['·', '░', '█']), "{rows:?}");
}

#[test]
fn the_simulated_driver_is_always_named() {
    for width in 24..=200 {
        let text = screen(&model(NLP, (width, 20), canned::demo()));
        assert!(
            text.lines().next().unwrap().contains(" SIM"),
            "{width}: {text}"
        );
        let words = text.contains("SIMULATED DRIVER");
        assert!(words || width < 110, "{width}: {text}");
    }
}

#[test]
fn the_stage_is_said_in_the_first_row() {
    let mut m = model(NLP, (100, 24), canned::workstation());
    for (machine, name, said) in [
        (1, "observe", "  stage 1 observe  14:32:07"),
        (2, "opt-in", "  stage 2 opt-in, strict  14:32:07"),
        (3, "reclaim", "  stage 3 reclaim, strict  14:32:07"),
    ] {
        let snapshot = m.snapshot.as_mut().unwrap();
        snapshot.caps = Caps::Strict;
        let name = name.to_owned();
        let stage = StageView {
            machine,
            name,
            ..StageView::default()
        };
        snapshot.service.as_mut().unwrap().stage = Some(stage);
        let text = screen(&m);
        assert!(text.lines().next().unwrap().contains(said), "{text}");
    }
    // With the mark of the simulated driver, and the time where there is room.
    m.snapshot.as_mut().unwrap().simulated = true;
    for (cols, said) in [
        (80, "  reclaim, strict   SIM"),
        (100, "  reclaim, strict   SIM   14:32:07"),
        (120, "  reclaim, strict   SIMULATED DRIVER   14:32:07"),
        (140, "stage 3 reclaim, strict   SIMULATED DRIVER   14:32:07"),
    ] {
        m.size.0 = cols;
        let text = screen(&m);
        let first = text.lines().next().unwrap();
        assert!(first.trim_end().ends_with(said), "{text}");
    }
}

#[test]
fn a_kernel_that_does_not_end_is_told_of_whoever_runs_it_and_of_whoever_waits() {
    let mut snapshot = eight_on_one();
    let stuck = StuckView {
        claim: 30,
        gpu: 0,
        seconds: 40,
    };
    for claim in &mut snapshot.claims {
        claim.turns = Some(TurnsView {
            stuck: Some(stuck),
            ..TurnsView::default()
        });
    }
    let mut m = model(NLP, (120, 40), snapshot);
    press(&mut m, "2");
    let text = screen(&m);
    let row = |id: &str| text.lines().find(|l| l.contains(id)).unwrap();
    assert!(row("c30").contains("runs one long kernel"), "{text}");
    assert!(row("c31").contains("waits for a kernel of c30"), "{text}");
    press(&mut m, "<enter>");
    let told = "c30 has run one kernel for 40s; GPU 0 cannot be shared meanwhile";
    assert!(screen(&m).contains(told), "{}", screen(&m));
}

#[test]
fn a_stage_that_comes_later_is_announced_above_everything() {
    let mut m = model(NLP, (80, 24), canned::workstation());
    let text = "stage 3 (reclaim) for every GPU and user from Mon 30 Nov 08:00";
    let later = LaterView {
        from_ms: 1,
        text: text.to_owned(),
    };
    let stage = StageView {
        later: Some(later),
        ..StageView::default()
    };
    m.snapshot.as_mut().unwrap().service.as_mut().unwrap().stage = Some(stage);
    let shown = screen(&m);
    assert!(shown.lines().nth(1).unwrap().contains(text), "{shown}");
    // A missing effect comes before a later change.
    let stage = m
        .snapshot
        .as_mut()
        .unwrap()
        .service
        .as_mut()
        .unwrap()
        .stage
        .as_mut();
    stage.unwrap().no_effect = Some("stage 4 has no effect here".to_owned());
    let shown = screen(&m);
    assert!(
        shown.lines().nth(1).unwrap().contains("no effect here"),
        "{shown}"
    );
}

#[test]
fn off_is_said_in_the_first_row_and_nothing_is_promised() {
    let mut m = model(NLP, (80, 24), off());
    let text = screen(&m);
    let rows: Vec<&str> = text.lines().collect();
    assert!(rows[0].contains("no limits"), "{text}");
    let said = "OFF until 15:32 (bob): no limits, no queue";
    assert!(rows[1].ends_with(said), "{text}");
    let none = "gshare is off: any program may use any GPU";
    assert!(rows[2].contains(none), "{text}");
    // Its meaning replaces the queue.
    m.size.1 = 30;
    let text = screen(&m);
    let means = [
        "WHAT OFF MEANS",
        "limits    none",
        "5 claims still there; sizes are not enforced",
    ];
    for said in means
        .into_iter()
        .chain(["memory is free; waiting: 1", "at 15:32  limits apply again"])
    {
        assert!(
            text.contains(said) && !text.contains("QUEUE 1"),
            "{said}: {text}"
        );
    }
    let look = Look::new(Depth::Rgb, true);
    assert_eq!(buffer(&m, &look)[(2, 1)].fg, look.theme.error.fg.unwrap());
}

#[test]
fn a_lost_service_is_told_with_the_age_of_the_figures() {
    let mut m = model(NLP, (100, 30), canned::workstation());
    m.disconnected = Some("the gshare service closed the connection".to_owned());
    assert!(screen(&m).contains("closed the connection; figures from 14:32:07"));
    m.disconnected = None;
    m.clock.now_ms += 12_000;
    assert!(screen(&m).contains("no news for 12s; figures from 14:32:07"));
    // Stale figures have one colour.
    let look = Look::new(Depth::Rgb, true);
    let old = buffer(&m, &look);
    let figures = (2..28).flat_map(|y| (0..100).map(move |x| (x, y)));
    assert!(
        figures
            .clone()
            .all(|at| Some(old[at].fg) == look.theme.dim.fg)
    );
    m.clock.now_ms -= 8_000;
    assert!(!screen(&m).contains("no news"));
    let new = buffer(&m, &look);
    assert!(figures.clone().any(|at| new[at].bg != Color::Reset));
}

#[test]
fn the_chosen_claim_is_in_sight_wherever_it_is() {
    let mut m = model(NLP, (80, 24), canned::crowd());
    for keys in ["<end>", "<home>", "<pgdn>", "<pgdn>", "j", "<up>"] {
        press(&mut m, keys);
        let Some(RowKey::Claim(id)) = m.current().cloned() else {
            assert!(screen(&m).contains("u1 "), "{keys}");
            continue;
        };
        let is_row = |l: &str| l.starts_with([' ', '▌']) && l[1..].contains(&format!("{id} "));
        let shown = screen(&m).lines().any(is_row);
        assert!(shown, "{keys}: {id}");
    }
}

#[test]
fn the_key_line_comes_from_the_table() {
    let m = model(NLP, (200, 24), canned::workstation());
    let text = screen(&m);
    let last = text.lines().last().unwrap();
    for command in keymap::line(&m) {
        assert!(
            last.contains(&format!(
                "{} {}",
                command.shown.split(' ').next().unwrap(),
                command.label
            )),
            "{last}"
        );
    }
    let monitor = screen(&model(NLP, (80, 24), canned::monitor()));
    let last = monitor.lines().last().unwrap().to_owned();
    assert!(
        !last.contains("claim") && !last.contains("release"),
        "{last}"
    );
}

#[test]
fn words_from_outside_cannot_move_the_cursor() {
    let mut snapshot = canned::workstation();
    snapshot.claims[0].what = "evil\u{1b}[2J\r\n\u{7}name".to_owned();
    snapshot.notices[0].text = "bell\u{7}\u{9b}31m".to_owned();
    snapshot.host = "host\u{1b}]0;title\u{7}".to_owned();
    let mut m = model(NLP, (120, 40), snapshot);
    press(&mut m, "j");
    for keys in ["", "<enter>"] {
        press(&mut m, keys);
        let text = screen(&m);
        assert!(
            text.chars().all(|c| c == '\n' || !c.is_control()),
            "{text:?}"
        );
    }
}

#[test]
fn without_utf8_every_character_is_ascii() {
    for snapshot in [
        canned::workstation(),
        canned::demo(),
        canned::monitor(),
        canned::lab(),
    ] {
        for keys in ["", "n", "?", "j<enter>", "s"] {
            let mut m = model(NLP, (120, 40), snapshot.clone());
            press(&mut m, keys);
            let text = crate::picture::buffer_text(&buffer(&m, &Look::new(Depth::Ansi, false)));
            assert!(text.is_ascii(), "{text}");
        }
    }
}

mod contrast;
mod cuts;
mod foot;
mod seen;
mod themes;
mod truth;
mod unknown;

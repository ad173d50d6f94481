//! Each quantity has one name, one unit and one value, on every screen.

use gshare_proto::{Figure, GpuView, Source};

use super::*;
use crate::model::{Split, split};
use crate::testing::canned::states::{Random, any_state};

fn on(page: Page, snapshot: gshare_proto::Snapshot) -> String {
    // Nothing is folded for a user without claims.
    let viewer = if page == Page::Claims { ROOT } else { NLP };
    let rows = if page == Page::Claims { 90 } else { 40 };
    let mut m = model(viewer, (120, rows), snapshot);
    open(&mut m, page);
    screen(&m)
}

#[test]
fn the_memory_of_a_gpu_is_one_figure_on_every_screen() {
    // Programs without a claim use 9.2 of GPU 3, so 14.3 can be claimed; its hardware has 24.0.
    let snapshot = canned::workstation();
    let overview = row(&on(Page::Overview, snapshot.clone()), "3 RTX");
    assert!(overview.contains("  9.2   0.0 of 23.5"), "{overview}");
    let health = row(&on(Page::Health, snapshot.clone()), "3 RTX");
    assert!(health.contains(" 9.2/23.5"), "{health}");
}

#[test]
fn use_above_the_claim_has_room_in_the_bars_of_users() {
    let mut m = model(NLP, (100, 40), canned::workstation());
    let mut recorded = canned::recorded();
    for series in &mut recorded.series {
        series.usage.claimed_gpu_s = 3600.0;
        series.usage.used_gpu_s = Some(if series.label == "vis" {
            7200.0
        } else {
            1800.0
        });
    }
    m.past.view = Some(Ok(Box::new(recorded)));
    open(&mut m, Page::History);
    let text = screen(&m);
    let bar = |start: &str| {
        let row = row(&text, start);
        let signs = row.chars().filter(|c| "█▒░·│┃▌▋▊▉▍▎▏".contains(*c));
        signs.collect::<String>()
    };
    // Twice its claim: the tick stands in the middle, and at the same place in the row of a user with half.
    let (vis, nlp) = (bar("vis "), bar("nlp "));
    let tick = vis.chars().position(|c| c == '┃').expect("a tick");
    assert!(
        vis.ends_with('▒') && tick.abs_diff(vis.chars().count() / 2) <= 1,
        "{vis}"
    );
    assert_eq!(nlp.chars().position(|c| c == '│'), Some(tick), "{nlp}");
    // The sum would have another scale: it has figures and no bar.
    assert_eq!(bar("everybody "), "", "{text}");
}

#[test]
fn a_claim_of_two_gpus_has_sums_in_all_its_columns() {
    let line = row(&on(Page::Claims, canned::lab()), "c12");
    let words: Vec<&str> = line.split_whitespace().collect();
    for figures in [["193", "200"], ["44.0", "46.4"]] {
        assert!(
            words.windows(2).any(|w| w == figures),
            "{figures:?}: {line}"
        );
    }
}

#[test]
fn an_instance_is_a_whole_of_its_own() {
    // Two GPUs, one of them in three instances: a user who has and uses a whole instance has a full bar.
    let mut snapshot = canned::mig();
    let part = &mut snapshot.claims[0].gpus[0];
    part.sm_active = Some(Figure {
        value: 100.0,
        source: Source::Gpm,
        estimate: false,
    });
    let line = row(&on(Page::Overview, snapshot), "▌c1");
    assert!(line.contains("   ██████████████████   "), "{line}");
}

/// What the pictures call free is what the service would: the largest part of a GPU, and whole ones that nothing uses.
#[test]
fn what_is_free_of_a_model_is_free_on_a_gpu_of_it() {
    let all = laboratory().into_iter().chain(more_states());
    for (name, snapshot) in all {
        let now = snapshot.claimable_now.clone().unwrap_or_default();
        for room in &now.models {
            let of = |g: &&GpuView| room.model.ends_with(&g.short);
            let parts = |g: &GpuView| (g.claimable * 100.0).round() as u32;
            let most = snapshot.gpus.iter().filter(of).map(parts).max();
            let whole = snapshot.gpus.iter().filter(of);
            let whole = whole.filter(|g| parts(g) >= 100 && !g.is_used_without_claim());
            let largest = (room.largest * 100.0).round() as u32;
            assert_eq!(Some(largest), most, "{name}: {}", room.model);
            assert!(
                room.whole as usize <= whole.count(),
                "{name}: {}",
                room.model
            );
        }
    }
}

#[test]
fn programs_without_a_claim_are_not_counted_as_claims() {
    for (snapshot, page, wanted) in [
        (canned::lab(), Page::Overview, "CLAIMS 1-8 of 20 "),
        (canned::lab(), Page::Claims, "CLAIMS 20, no claim 1 "),
        (canned::first_day(), Page::Overview, "NO CLAIM 1-9 of 14 "),
        (canned::first_day(), Page::Claims, "NO CLAIM 14 "),
        (
            canned::workstation(),
            Page::Overview,
            "CLAIMS 5, no claim 1 ",
        ),
    ] {
        let mut m = model(NLP, (120, 40), snapshot);
        open(&mut m, page);
        let text = screen(&m);
        assert!(
            text.lines().any(|l| l.starts_with(wanted)),
            "{wanted}: {text}"
        );
    }
}

#[test]
fn what_is_known_is_not_hidden_by_what_is_not() {
    let mut snapshot = canned::workstation();
    // An adopted program has no figures of its own, and without counters its GPU has none either.
    let mut adopted = snapshot.claims[1].clone();
    adopted.id = "c30".to_owned();
    adopted.adopted = true;
    adopted.gpus[0].sm_active = None;
    adopted.gpus[0].sm_request = 0.0;
    snapshot.claims.push(adopted);
    snapshot.gpus[0].sm_active = None;
    snapshot.users.clear();
    let gpu = row(&on(Page::Overview, snapshot.clone()), "0 RTX");
    assert!(gpu.contains("≥59"), "{gpu}");
    let group = row(&on(Page::Claims, snapshot), "▾ vis");
    assert!(group.contains("≥119"), "{group}");
}

/// Use up to the size and unused add up to claimed, to the last digit; burst is extra.
#[test]
fn used_and_unused_are_what_is_claimed() {
    for snapshot in [
        canned::workstation(),
        canned::lab(),
        canned::demo(),
        canned::nothing_free(),
    ] {
        let claims = || snapshot.claims.iter();
        let claimed: f64 = claims().flat_map(|c| &c.gpus).map(|g| g.sm_request).sum();
        let Split {
            used,
            unused,
            burst,
        } = split(claims(), &snapshot).expect("all is known");
        assert!(
            (used + unused - claimed).abs() < 1e-9,
            "{used} {unused} {claimed}"
        );
        assert!(burst > 0.0);
    }
}

/// A GPU's figures are the sums of its claims and programs, in each state that is kept as a picture.
#[test]
fn in_every_picture_the_sums_agree_and_claims_that_are_named_are_there() {
    let others = [
        ("workstation", canned::workstation()),
        ("demo", canned::demo()),
    ];
    let all = laboratory().into_iter().chain(more_states()).chain(others);
    for (state, snapshot) in all.filter(|(state, _)| *state != "old-driver") {
        for gpu in &snapshot.gpus {
            let what = format!("{state}, GPU {}", gpu.index);
            let claims = snapshot.claims.iter().flat_map(|c| &c.gpus);
            let parts: Vec<_> = claims.filter(|g| g.gpu == gpu.index).collect();
            let programs = snapshot.unclaimed.iter().filter(|u| u.gpu == gpu.index);
            let outside: u64 = programs.filter_map(|u| u.mem_used).sum();
            let agrees = |name: &str, sum: f64, said: f64, by: f64| {
                assert!((sum - said).abs() <= by, "{what}, {name}: {sum} and {said}");
            };
            let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
            let used = parts.iter().filter_map(|g| g.mem_used).sum::<u64>() + outside;
            agrees("GiB used", gib(used), gib(gpu.mem_used.unwrap_or(0)), 0.051);
            let claimed = parts.iter().map(|g| g.mem_request).sum();
            agrees("GiB claimed", gib(claimed), gib(gpu.mem_claimed), 0.051);
            let size: f64 = parts.iter().map(|g| g.sm_request).sum();
            agrees("claimed", size, gpu.sm_claimed, 0.005);
            assert!(
                size + gpu.claimable < 1.005,
                "{what}: {} free",
                gpu.claimable
            );
            let times: Vec<f64> = parts
                .iter()
                .filter_map(|g| g.time_busy)
                .map(|f| f.value)
                .collect();
            if let (Some(busy), 1.., 0) = (gpu.time_busy, times.len(), outside) {
                agrees("time", times.iter().sum(), busy.value, 1.0);
            }
        }
        let places = snapshot.queue.iter().map(|q| q.position);
        assert!(places.eq(1..=snapshot.queue.len() as u32), "{state}");
        let reasons = snapshot.queue.iter().map(|q| &q.reason);
        let notices = snapshot.notices.iter();
        let texts = notices.flat_map(|n| n.claim.iter().chain([&n.text]));
        let texts = texts.chain(snapshot.advice.iter().map(|a| &a.text));
        for word in texts
            .chain(reasons)
            .flat_map(|t| t.split(|c: char| !c.is_alphanumeric()))
        {
            let number = word
                .strip_prefix('c')
                .is_some_and(|n| n.parse::<u32>().is_ok());
            let mut there = snapshot
                .claims
                .iter()
                .map(|c| &c.id)
                .chain(snapshot.queue.iter().map(|q| &q.id));
            assert!(
                !number || there.any(|id| id == word),
                "{state}: there is no {word}"
            );
        }
        for room in snapshot.claimable_now.iter().flat_map(|now| &now.models) {
            let gpus = snapshot.gpus.iter().filter(|g| g.model == room.model);
            let most = gpus.map(|g| g.claimable).fold(0.0, f64::max);
            assert!(
                (most - room.largest).abs() < 0.005,
                "{state}: {room:?}, {most}"
            );
        }
    }
}

/// The drawing never suggests shrinking a throttled claim: its bar is full up to its tick.
#[test]
fn a_share_of_turns_is_gpu_time_and_sm_activity_stands_beside_it() {
    let line = row(&on(Page::Overview, canned::lab()), "c4 ");
    assert!(
        line.contains("███▋│") && line.contains("▲ throttled 62 %"),
        "{line}"
    );
    let claims = row(&on(Page::Claims, canned::lab()), "c4 ");
    assert!(claims.contains("  20    20    ~12"), "{claims}");
    // Without a claim that bursts the cause is the size.
    let mut snapshot = canned::lab();
    snapshot.claims.retain(|c| c.id != "c3");
    let line = row(&on(Page::Overview, snapshot), "c4 ");
    assert!(line.contains("▲ throttled 62 % by its own size"), "{line}");
}

/// The dry runs that the screen asks for now: their numbers and sizes.
fn asked(m: &mut Model) -> Vec<(u64, Option<u32>)> {
    let clock = m.clock;
    let commands = crate::update::update(m, crate::msg::Msg::Tick(clock)).into_iter();
    let size = |cmd| match cmd {
        crate::msg::Cmd::Ask(crate::feed::Request::Call { seq, call }) => match *call {
            gshare_proto::Call::Try(spec) => (seq, spec.gpus_milli),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    commands.map(size).collect()
}

/// FREE NOW says whether it lasts by the viewer's own dry run of that size, and nothing until the answer.
#[test]
fn free_now_is_yours_or_on_loan_by_a_dry_run() {
    let said = |starts: bool, entitled: bool, size: (u16, u16)| {
        let mut m = model(NLP, size, canned::lab());
        let dry_runs = asked(&mut m);
        let [(seq, Some(400)), (whole, Some(1000))] = dry_runs[..] else {
            panic!("{dry_runs:?}");
        };
        assert!(!screen(&m).contains(": yours") && !screen(&m).contains(": on loan"));
        let answer = |seq, starts, expected| {
            let tried = gshare_proto::Tried {
                starts,
                entitled,
                expected,
                ..Default::default()
            };
            let outcome = Ok(gshare_proto::Reply::Tried(tried));
            crate::msg::Msg::Update(crate::feed::Update::CallResult { seq, outcome })
        };
        let later = ExpectedView {
            low_s: 9300,
            high_s: Some(9300),
            certain: true,
            cause: "c12 ends".to_owned(),
        };
        crate::update::update(&mut m, answer(seq, starts, None));
        crate::update::update(&mut m, answer(whole, false, Some(later.clone())));
        // It is not requested again each second.
        assert_eq!(asked(&mut m), []);
        let text = screen(&m);
        let keeps = if entitled { "yours" } else { "on loan" };
        let both = format!("5 before you for more;  1 RTX 4090 {keeps} in 2h 35m: c12 ends");
        assert!(text.contains(&both) || size.0 > 80, "{text}");
        let line = row(
            &text,
            if size.0 < 100 {
                "FREE NOW"
            } else {
                "█▀█"
            },
        );
        let later = ExpectedView {
            cause: "c12 ends, or its owner takes it off the GPU, whichever is first of the two"
                .to_owned(),
            ..later
        };
        let mut long = m.clone();
        crate::update::update(&mut long, answer(whole, false, Some(later)));
        let text = screen(&long);
        let brief = format!("1 RTX 4090 {keeps} in 2h 35m");
        assert!(
            text.contains(&brief) && !text.contains("its owner takes"),
            "{text}"
        );
        let mut changed = m;
        let now = &mut changed.snapshot.as_mut().unwrap().claimable_now;
        now.as_mut().unwrap().models[0].largest = 0.3;
        assert!(!screen(&changed).contains(": yours"), "of another size");
        line
    };
    for size in [(80, 24), (120, 40)] {
        assert!(said(true, true, size).contains("GPU 6: yours"));
        assert!(said(true, false, size).contains("GPU 6: on loan"));
        let line = said(false, true, size);
        assert!(!line.contains(": yours"), "{line}");
    }
}

/// Whole GPUs are named; if everything free would be on loan, half a GPU may be the viewer's own.
#[test]
fn whole_gpus_are_named_and_half_of_what_is_on_loan_may_be_yours() {
    for half_is_yours in [true, false] {
        let mut m = model(NLP, (80, 24), canned::lab());
        let snapshot = m.snapshot.as_mut().unwrap();
        // A program without a claim holds 18 GiB of GPU 3, so it is no whole GPU.
        for gpu in [3, 6, 7] {
            snapshot.gpus[gpu].claimable = 1.0;
        }
        snapshot.claimable_now.as_mut().unwrap().models[0].whole = 2;
        for (milli, entitled) in [(2000, false), (500, half_is_yours)] {
            let dry_runs = asked(&mut m);
            assert_eq!((dry_runs.len(), dry_runs[0].1), (1, Some(milli)));
            let tried = gshare_proto::Tried {
                starts: true,
                entitled,
                ..Default::default()
            };
            m.tried(dry_runs[0].0, tried);
        }
        let line = row(&screen(&m), "FREE NOW");
        let lasts = match half_is_yours {
            true => "0.50 yours, more on loan",
            false => "on loan",
        };
        let wanted = format!("2 whole GPUs RTX 4090, GPUs 6,7: {lasts}");
        assert!(line.ends_with(&wanted), "{line}");
    }
}

/// If nothing is free, FREE NOW has the result of a dry run: when others make room for a quarter, and whether it
/// lasts.
#[test]
fn where_nothing_is_free_it_is_said_when_others_make_room() {
    for size in [(80, 24), (120, 40)] {
        let mut m = model(NLP, size, canned::nothing_free());
        let dry_runs = asked(&mut m);
        let [(seq, Some(250))] = dry_runs[..] else {
            panic!("{dry_runs:?}");
        };
        let mut said = |takings: Vec<gshare_proto::TakingView>| {
            let tried = gshare_proto::Tried {
                entitled: true,
                takings,
                expected_ms: Some(canned::NOW_MS + 30_000),
                ..Default::default()
            };
            m.tried(seq, tried);
            screen(&m)
        };
        let text = said(vec![gshare_proto::TakingView::default()]);
        let made = "0.25 RTX 4090 yours in 30s: others make room";
        assert!(row(&text, "0.25 RTX").contains(made), "{text}");
        // A claim that ends by itself does not make room.
        assert!(!said(Vec::new()).contains("make room"));
    }
}

/// A figure that may be unknown, as every screen writes it.
fn written(figure: Option<Figure>) -> String {
    gshare_proto::figures::measured(figure, "—")
}

/// Each figure of each claim is read back from the screen and compared with the sum of the snapshot's own figures.
#[test]
fn what_is_drawn_is_what_the_snapshot_has_in_any_state() {
    let gib = gshare_proto::figures::gib;
    let known = |bytes: Option<u64>| bytes.map_or_else(|| "—".to_owned(), gib);
    let states = std::env::var("GSHARE_TEST_STATES").ok();
    let states: u64 = states.and_then(|n| n.parse().ok()).unwrap_or(400);
    let (mut rows, mut random) = (0, Random(1));
    for state in 0..states {
        let snapshot = any_state(&mut random);
        let wide = random.below(2) == 0;
        let size = if wide { (140, 90) } else { (80, 90) };
        let m = model(NLP, size, snapshot.clone());
        let text = screen(&m);
        let by_sms = |gpu: u32| {
            let gpu = snapshot.gpus.iter().find(|g| g.index == gpu);
            gpu.is_some_and(|g| g.is_instance() || g.mode == "mps" || g.mode == "mig")
        };
        // FREE NOW shows the service's value for this viewer, and the largest one; instances only if no GPU has any.
        let now = snapshot.claimable_now.as_ref().unwrap();
        let largest_of = |instances: bool| {
            let gpus = &snapshot.gpus;
            let is_one = |m: &&gshare_proto::ModelRoomView| {
                let known = |g: &GpuView| g.model == m.model || g.short == m.model;
                gpus.iter().any(|g| known(g) && g.is_instance()) == instances
            };
            let sizes = now.models.iter().filter(is_one).map(|m| m.largest);
            sizes.fold(0.0, f64::max)
        };
        let largest = Some(largest_of(false)).filter(|size| *size > 0.0);
        let largest = largest.unwrap_or_else(|| largest_of(true));
        if now.models.iter().all(|m| m.whole == 0) && largest > 0.0 && !wide {
            let size = gshare_proto::figures::share(largest);
            let head = row(&text, "FREE NOW");
            // Beside programs without a claim it is in GiB.
            let shared = snapshot.gpus.iter().any(GpuView::is_used_without_claim);
            assert!(
                head.contains(&format!("  {size} ")) || shared && head.contains(" GiB of "),
                "{state}: {size}: {head}"
            );
        }
        let table = text.split("\nCLAIMS ").nth(1).unwrap_or_default();
        for claim in &snapshot.claims {
            let id = format!("{} ", claim.id);
            let is_it = |l: &&str| l.trim_start_matches([' ', '▌']).starts_with(&id);
            let Some(line) = table.lines().find(is_it) else {
                panic!("{state}: {text}")
            };
            // Without memory on the GPU the claim has a known use of zero.
            let nothing = |g: &gshare_proto::ClaimGpu| {
                (g.mem_used == Some(0)).then_some(Figure {
                    value: 0.0,
                    source: Source::Shim,
                    estimate: false,
                })
            };
            let of = |g: &gshare_proto::ClaimGpu| match by_sms(g.gpu) {
                true => g.sm_active.or(nothing(g)),
                false => g.time_busy.or(nothing(g)),
            };
            let parts: Option<Vec<Figure>> = claim.gpus.iter().map(of).collect();
            let used = parts.filter(|p| !p.is_empty()).map(|parts| Figure {
                value: parts.iter().map(|f| f.value).sum(),
                source: Source::Shim,
                estimate: parts.iter().any(|f| f.estimate),
            });
            let size: f64 = claim.gpus.iter().map(|g| g.sm_request * 100.0).sum();
            let memory: Option<u64> = claim.gpus.iter().map(|g| g.mem_used).sum();
            let bytes: u64 = claim.gpus.iter().map(|g| g.mem_request).sum();
            let sized = |text: String| if claim.adopted { "-".to_owned() } else { text };
            let wanted = [
                written(used),
                sized(gshare_proto::figures::percent(size)),
                known(memory),
                sized(gib(bytes)),
            ];
            // Bars stand between the figures if there is room.
            let is_figure = |w: &&str| !w.contains(['░', '█', '│', '·', '┃', '▒']);
            let words: Vec<&str> = line.split_whitespace().filter(is_figure).collect();
            let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
            // An empty bar has a dash of its own.
            let pair = |from: usize, two: &[&str]| {
                let at = words[from..].windows(2).position(|w| w == two);
                at.map(|at| from + at + 2)
            };
            let found = pair(0, &wanted[..2]).and_then(|end| pair(end, &wanted[2..]));
            assert!(found.is_some(), "{state}: {wanted:?}: {line}");
            rows += 1;
        }
        // YOU: used up to the size and unused add up to claimed.
        if let Some((_, you)) = text.split_once("YOU claimed ") {
            let numbers = you.lines().next().unwrap_or_default();
            let numbers = numbers
                .split([' ', ',', ':'])
                .filter_map(|w| w.parse::<f64>().ok());
            let numbers: Vec<f64> = numbers.collect();
            if let [claimed, used, unused, ..] = numbers[..] {
                assert!(
                    (claimed - used - unused).abs() < 0.005,
                    "{state}: {numbers:?}"
                );
            }
        }
    }
    assert!(rows as u64 > states * 3, "{rows}");
    println!("{rows} rows of {states} states");
}

/// The page of a user or a process, open.
fn page(m: &Model, key: RowKey) -> String {
    let mut m = m.clone();
    open(&mut m, Page::Overview);
    m.dialog = Some(crate::model::Dialog::Detail { key, scroll: 0 });
    // The contents of the box.
    let text = screen(&m);
    let inside = text.lines().filter_map(|line| line.split_once("│ "));
    inside.map(|(_, line)| format!("{line}\n")).collect()
}

#[test]
fn pages_of_users_and_processes_say_what_their_rows_say() {
    let mut random = Random(11);
    let (mut users, mut processes) = (0, 0);
    for _ in 0..60 {
        let mut snapshot = any_state(&mut random);
        for (n, claim) in (0..).zip(&mut snapshot.claims) {
            claim.processes = vec![gshare_proto::ProcessView {
                pid: 7000 + n,
                gpu: claim.gpus[0].gpu,
                what: "python train.py".to_owned(),
                mem_used: (random.below(5) > 0).then(|| (random.part() * 3e10) as u64),
                time_busy: random.figure(100.0).map(|f| f.value),
            }];
        }
        snapshot.users = snapshot
            .claims
            .iter()
            .map(|c| (c.uid, c.user.clone()))
            .collect::<std::collections::BTreeMap<_, _>>()
            .into_iter()
            .map(|(uid, user)| {
                let claims = snapshot.claims.iter().filter(|c| c.uid == uid);
                let programs = snapshot.unclaimed.iter();
                let programs = programs.filter(|u| u.user.as_ref() == Some(&user) && !u.graphics);
                let held = crate::model::sums(claims, &snapshot).mem_used;
                let bytes: Option<u64> = programs.map(|u| u.mem_used).sum();
                gshare_proto::UserView {
                    uid,
                    user,
                    mem_used: held.zip(bytes).map(|(a, b)| a + b),
                    ..Default::default()
                }
            })
            .collect();
        let mut m = model(ROOT, (140, 200), snapshot.clone());
        open(&mut m, Page::Claims);
        for claim in &snapshot.claims {
            m.turn(&RowKey::Claim(claim.id.clone()), true);
        }
        let tree = screen(&m);
        for user in &snapshot.users {
            // A claim in host memory uses nothing of a GPU, and its row has a zero for missing values.
            let mut own = snapshot.claims.iter().filter(|c| c.uid == user.uid);
            if own.all(|c| c.place.in_host()) {
                continue;
            }
            let line = row(&tree, &format!("▾ {} ", user.user));
            let text = page(&m, RowKey::User(user.uid));
            let said = row(&text, "compute");
            let part = said.split("uses ").nth(1).unwrap();
            let (used, rest) = part.split_once(", claims ").unwrap();
            let claimed = rest.split(' ').next().unwrap();
            let said = row(&text, "memory");
            let words: Vec<&str> = said.split_whitespace().collect();
            let bytes = words[words.iter().position(|w| *w == "GiB").unwrap() - 1];
            let words: Vec<&str> = line.split_whitespace().collect();
            for figure in [used, claimed, bytes] {
                assert!(words.contains(&figure), "{figure}: {line}\n{text}");
            }
            users += 1;
        }
        for process in snapshot.claims.iter().flat_map(|c| &c.processes) {
            let line = row(&tree, &format!("{} ", process.pid));
            let text = page(&m, RowKey::Process(process.pid, process.gpu));
            let said = row(&text, "memory");
            let words: Vec<&str> = said.split_whitespace().collect();
            let bytes = words[words.iter().position(|w| *w == "GiB").unwrap() - 1];
            let said = row(&text, "GPU time");
            let (_, busy) = said.split_once("GPU time").unwrap();
            let busy = busy.trim_matches(['│', ' ']);
            assert!(
                line.contains(&format!(" {bytes} GiB  {busy} of the time")),
                "{bytes} {busy}: {line}\n{text}"
            );
            processes += 1;
        }
    }
    assert!(users > 200 && processes > 200, "{users} {processes}");
}

/// The machine has two GPUs, one of them in instances; an instance of three sevenths is 43 % of a GPU.
#[test]
fn an_instance_counts_for_its_part_of_a_gpu_in_sums() {
    let snapshot = canned::mig();
    let mine = || snapshot.claims.iter().filter(|c| c.uid == 1001);
    let sums = crate::model::sums(mine(), &snapshot);
    assert_eq!(sums.claimed.round(), 43.0);
    let split = split(mine(), &snapshot).unwrap();
    assert!(
        (split.used + split.unused - 3.0 / 7.0).abs() < 1e-9,
        "{split:?}"
    );
    let group = row(&on(Page::Claims, snapshot), "▾ ada");
    assert!(group.contains(" 43 "), "{group}");
}

#[test]
fn an_instance_counts_for_its_part_of_a_gpu_where_use_is_added_up() {
    let text = screen(&model(NLP, (120, 40), canned::mig()));
    assert!(
        text.contains("YOU claimed 0.43: used 0.27, unused 0.16"),
        "{text}"
    );
    assert!(
        text.contains("MOST WASTED c1 ada: 0.16 of 0.43 unused"),
        "{text}"
    );
}

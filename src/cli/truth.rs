//! One quantity has one value: the screens, `status`, `ps`, `queue`, their JSON and a dry run agree about a machine
//! in any state. `GSHARE_TEST_STATES` is the number of random states.

#[path = "../../ui/tests/support/canned.rs"]
mod canned;

use std::time::Duration;

use gshare_proto::{
    AdminCall, Call, ClaimSpec, ClaimView, GpuState, LeverWish, OffView, QuotaView, Reply,
    ResizeSpec, Snapshot, Text, Tried, Wait,
};
use gshare_ui::{Depth, Frame, Look, Options, Page, Viewer, frame_text};

use self::canned::states::{Random, any_state};
use super::{dry_run, list, rows};
use crate::daemon::here::{Here, Program};

/// Owner of claims in most of the states.
const VIEWER: Viewer = Viewer {
    uid: 1001,
    admin: false,
};

/// A screen with room for all rows, for a user with this uid.
fn screen(frame: &Frame, page: Page, viewer: Viewer) -> String {
    let options = Options {
        viewer,
        look: Look::new(Depth::Mono, true),
        ask_background: false,
        page,
        recorded: true,
    };
    frame_text(frame, &options, (140, 120), 0)
}

/// The words of a line without bars.
fn words(line: &str) -> Vec<&str> {
    let is_bar = |w: &&str| w.contains(['░', '█', '│', '·', '┃', '▒']);
    line.split_whitespace().filter(|w| !is_bar(w)).collect()
}

/// Whether these words appear in this order, with others between them.
fn in_order(line: &str, wanted: &[&str]) -> bool {
    let mut words = words(line).into_iter();
    wanted.iter().all(|w| words.any(|word| word == *w))
}

fn halves(text: &str) -> (&str, &str) {
    text.split_once('/').expect("two figures")
}

/// The rows of claims on the screen, below the heading.
fn row<'a>(text: &'a str, heading: &str, start: &str) -> &'a str {
    let rows = text
        .lines()
        .skip_while(|l| !l.trim_start().starts_with(heading));
    let plain = |l: &&str| {
        let mut words = l.trim_start_matches([' ', '▌', '▾']).split_whitespace();
        start.split_whitespace().all(|w| words.next() == Some(w))
    };
    let mut found = rows.skip(1).filter(plain);
    found
        .next()
        .unwrap_or_else(|| panic!("no `{start}` in\n{text}"))
}

/// The figures of `ps` for a claim equal those on both screens.
fn claim(snapshot: &Snapshot, claim: &ClaimView, overview: &str, tree: &str) {
    let cells = rows::claim_row(claim, snapshot);
    let (used, size) = match claim.adopted {
        true => (cells[8].as_str(), "-"),
        false => halves(&cells[8]),
    };
    let (bytes, claimed) = match claim.adopted {
        true => (cells[7].clone(), "-".to_owned()),
        false => {
            let sum = claim.gpus.iter().map(|g| g.mem_request).sum();
            (
                halves(&cells[7]).0.to_owned(),
                gshare_proto::figures::gib(sum),
            )
        }
    };
    let start = format!("{} ", claim.id);
    let line = row(overview, "CLAIMS", &start);
    assert!(
        in_order(line, &[used, size, &bytes, &claimed]),
        "{cells:?}: {line}"
    );
    let line = row(tree, "CLAIMS", &start);
    assert!(
        in_order(line, &[used, size, &cells[9], &bytes, &claimed]),
        "{cells:?}: {line}"
    );
}

/// How many random states.
fn states() -> u64 {
    let states = std::env::var("GSHARE_TEST_STATES").ok();
    states.and_then(|n| n.parse().ok()).unwrap_or(200)
}

/// What the screens, the tables and the JSON show of a snapshot and of the dry runs of a viewer agrees; returns the
/// number of compared figures, and of dry runs in FREE NOW.
fn agree(snapshot: &Snapshot, tried: Vec<(String, u32, Tried)>, viewer: Viewer) -> (u64, u64) {
    let (mut compared, mut made, mut is_due) = (0, 0, false);
    // The JSON of the commands is the snapshot that the screen draws.
    let json = serde_json::to_value(snapshot).unwrap();
    let ps = list::ps_json(snapshot, true);
    for part in ["claims", "queue", "unclaimed"] {
        assert_eq!(ps[part], json[part]);
    }
    let frame = Frame {
        snapshot: serde_json::from_value(json).unwrap(),
        tried,
        ..Frame::default()
    };
    let overview = screen(&frame, Page::Overview, viewer.clone());
    // Nothing is folded for a user without claims.
    let root = Viewer {
        uid: 0,
        admin: true,
    };
    let tree = screen(&frame, Page::Claims, root);
    let queue = screen(&frame, Page::Queue, viewer.clone());
    let health = screen(&frame, Page::Health, viewer);
    for gpu in &snapshot.gpus {
        if gpu.state != GpuState::Ok {
            continue;
        }
        let cells = rows::gpu_row(gpu, snapshot);
        let figures: Vec<&str> = cells[6].split('/').collect();
        let [used, claimed, whole] = figures[..] else {
            panic!("{cells:?}")
        };
        let (compute, sm) = (halves(&cells[3]).0, cells[4].as_str());
        let start = format!("{} ", gpu.index);
        let line = row(&overview, "GPUS", &start).rsplit('┃').next().unwrap();
        assert!(
            in_order(line, &[compute, sm, used, claimed, "of", whole]),
            "{cells:?}: {line}"
        );
        let line = row(&health, "GPU", &start);
        assert!(
            in_order(line, &[&format!("{used}/{whole}")]),
            "{cells:?}: {line}"
        );
        compared += 8;
    }
    let off = snapshot.service.as_ref().is_some_and(|s| s.off.is_some());
    let promised = snapshot
        .gpus
        .iter()
        .any(|gpu| rows::gpu_row(gpu, snapshot)[2] != "—")
        || overview.contains("┃free")
        || queue.contains("free for you");
    assert!(!(off && promised), "{overview}{queue}");
    for one in &snapshot.claims {
        claim(snapshot, one, &overview, &tree);
        compared += 9;
    }
    for user in &snapshot.users {
        let cells = rows::user_row(user, snapshot);
        let Some(line) = tree
            .lines()
            .find(|l| l.starts_with(&format!("▾ {} ", user.user)))
        else {
            // A user who only waits has no rows.
            assert!(user.claims == 0 && user.mem_claimed == 0, "{user:?}");
            continue;
        };
        let (used, claimed) = halves(&cells[4]);
        let own = snapshot.claims.iter().any(|c| c.uid == user.uid);
        let claimed = if own { claimed } else { "-" };
        assert!(in_order(line, &[used, claimed]), "{cells:?}: {line}");
        if own {
            // GPUs in the table are percent of one in the row.
            let percent = gshare_proto::figures::percent(user.claimed * 100.0);
            assert!(in_order(line, &[&percent, used]), "{cells:?}: {line}");
        }
        compared += 3;
    }
    for waiting in &snapshot.queue {
        let line = row(
            &queue,
            "WAITING",
            &format!("{} {} ", waiting.position, waiting.id),
        );
        let table = rows::queue(snapshot).text(None, false);
        let starts = waiting.starts(snapshot.taken_ms).unwrap_or("—".to_owned());
        let mut lines = table.lines().map(|l| format!("{l} "));
        let printed = lines.find(|l| words(l).get(1) == Some(&waiting.id.as_str()));
        assert!(line.contains(&format!(" {starts} ")), "{starts}: {line}");
        assert!(
            printed.is_some_and(|l| l.contains(&format!(" {starts} "))),
            "{starts}: {table}"
        );
        compared += 1;
    }
    // FREE NOW is the service's value, or a dry run's result if that is nothing.
    let head: String = overview.lines().take(5).collect();
    let now = snapshot.claimable_now.iter().flat_map(|now| &now.models);
    for (model, (name, _, tried)) in now.zip(&frame.tried) {
        let keeps = match tried.entitled {
            true => "yours",
            false => "on loan",
        };
        let said = dry_run::text(tried, snapshot.taken_ms);
        let when = said.split("it would start ").nth(1).unwrap_or_default();
        let is_known = when.starts_with(['i', 'w']) && !when.contains("at the earliest");
        let wanted = match when.split([',', '(']).next() {
            Some(when) if is_known => format!("{keeps} {}", when.trim_end()),
            _ if model.whole > 0 || model.largest > 0.0 => keeps.to_owned(),
            _ => continue,
        };
        let is_shown = head.contains(&wanted);
        // Where FREE NOW has no room for it, it says nothing else.
        let other = [" yours in ", " on loan in "].map(|word| format!("{name}{word}"));
        let is_other = other.iter().any(|words| head.contains(words));
        assert!(is_shown || !is_other, "{name}: {wanted}: {overview}");
        made += u64::from(is_shown);
        is_due |= is_known && model.whole == 0 && model.largest == 0.0;
    }
    // It has room for one of them.
    let is_one = frame.tried.iter().any(|(name, ..)| {
        let runs = [
            " yours in ",
            " on loan in ",
            " yours within ",
            " on loan within ",
        ];
        runs.iter()
            .any(|words| head.contains(&format!("{name}{words}")))
    });
    assert!(!is_due || is_one, "{overview}");
    (compared, made)
}

#[test]
fn screens_tables_and_json_say_the_same_in_any_state() {
    let (states, mut compared) = (states(), 0);
    let mut random = Random(7);
    for _ in 0..states {
        let mut snapshot = any_state(&mut random);
        if random.below(8) == 0 {
            // As the service answers while no room is planned.
            snapshot.service.get_or_insert_default().off = Some(OffView::default());
            snapshot.claimable_now = None;
            snapshot.gpus.iter_mut().for_each(|g| g.claimable = 0.0);
        }
        snapshot.users = crate::daemon::users(
            &snapshot.claims,
            &snapshot.queue,
            &snapshot.unclaimed,
            &snapshot.gpus,
        );
        compared += agree(&snapshot, Vec::new(), VIEWER).0;
    }
    assert!(compared > states * 50, "{compared}");
    println!("{compared} figures of {states} states");
}

const USERS: [(u32, &str); 4] = [
    (61_001, "ada"),
    (61_002, "ben"),
    (61_003, "cem"),
    (61_004, "eva"),
];
const GPUS: [(&str, u64); 4] = [
    ("NVIDIA GeForce RTX 4090", 24),
    ("NVIDIA GeForce RTX 4090", 24),
    ("NVIDIA H100 80GB HBM3", 80),
    ("NVIDIA H100 80GB HBM3", 80),
];

/// What the driver and gshare keep of each.
const RESERVED: u64 = 1 << 30;

fn snapshot(here: &mut Here, uid: u32) -> Snapshot {
    match here.call(uid, Call::Snapshot) {
        Some(Reply::Snapshot(snapshot)) => *snapshot,
        other => panic!("{other:?}"),
    }
}

fn tried(here: &mut Here, uid: u32, spec: &ClaimSpec) -> Result<Tried, String> {
    match here.call(uid, Call::Try(Box::new(spec.clone()))) {
        Some(Reply::Tried(tried)) => Ok(tried),
        Some(Reply::Error(error)) => Err(error.message),
        other => panic!("{spec:?}: {other:?}"),
    }
}

/// Any claim that a user may make.
fn any_claim(random: &mut Random) -> ClaimSpec {
    let part = 10 * (1 + random.below(100) as u32);
    let some = |random: &mut Random, words: &[&'static str]| {
        let word = words.get(random.below(2 * words.len() as u64) as usize);
        Vec::from_iter(word.map(|word| Text::<128>::from(*word)))
    };
    ClaimSpec {
        gpus_milli: Some([part, 250, 500, 1000, 2000, 3000][random.below(6) as usize]),
        models: some(random, &["4090", "H100"]).into(),
        gpu_ids: match random.below(4) {
            0 => some(random, &["0", "1", "2", "3"]).into(),
            _ => Default::default(),
        },
        class: some(random, &["interactive", "batch", "inference"])
            .pop()
            .map(|word| word.as_ref().into()),
        lease_s: (random.below(3) == 0).then(|| 60 * (1 + random.below(200))),
        movable: (random.below(4) == 0).then_some(false),
        wait: Wait::Forever,
        hold: true,
        ..ClaimSpec::default()
    }
}

/// A dry run says what then happens to that claim.
fn keeps_its_word(here: &mut Here, uid: u32, spec: ClaimSpec) -> Result<(), String> {
    let said = tried(here, uid, &spec);
    let got = here.call(uid, Call::Claim(Box::new(spec)));
    let said = match (said, &got) {
        (Ok(said), _) => said,
        (Err(why), Some(Reply::Error(error))) if error.message == why => return Ok(()),
        (Err(why), _) => return Err(format!("it says {why}, but {got:?}")),
    };
    let now = snapshot(here, uid);
    let differs = |what: &str| Err(format!("{what}: {said:?}, but {got:?}"));
    match &got {
        Some(Reply::Granted(granted)) => {
            let claim = now.claims.iter().find(|c| c.id == granted.id);
            let parts = claim.into_iter().flat_map(|c| &c.gpus);
            let parts =
                parts.map(|g| (g.gpu, g.mem_request, g.mem_limit, g.sm_request, g.sm_limit));
            let said = said
                .gpus
                .iter()
                .map(|g| (g.gpu, g.mem, g.mem_limit, g.sm, g.sm_limit));
            if !parts.eq(said) {
                return differs("it started otherwise");
            }
        }
        Some(Reply::Queued(queued)) => {
            let Some(row) = now.queue.iter().find(|q| q.id == queued.id) else {
                return differs("it is not in the queue");
            };
            let starts = dry_run::text(&said, now.taken_ms);
            let when = row.starts(now.taken_ms).unwrap_or_default();
            let taken = now.claims.iter().filter(|c| {
                let text = c.announced.as_deref().unwrap_or_default();
                text.ends_with(&format!(" for {}", row.id))
            });
            let mut taken: Vec<&str> = taken.map(|c| c.id.as_str()).collect();
            let mut takings: Vec<&str> = said.takings.iter().map(|t| t.id.as_str()).collect();
            taken.sort_unstable();
            takings.sort_unstable();
            takings.dedup();
            let same = (said.position, said.entitled, said.expected_ms)
                == (Some(row.position), row.entitled, row.expected_ms);
            if said.starts || said.never || !same || taken != takings || !starts.contains(&when) {
                return differs(&format!("it waits otherwise, {taken:?}, {when}, {row:?}"));
            }
        }
        Some(Reply::Error(_)) if said.never => {}
        _ => return differs("the answer is another"),
    }
    Ok(())
}

/// What is free for a user is what their dry runs say; returns those for each model.
fn is_free(here: &mut Here, uid: u32, now: &Snapshot) -> Vec<(String, u32, Tried)> {
    let spec = |milli: u32| ClaimSpec {
        gpus_milli: Some(milli),
        wait: Wait::No,
        ..ClaimSpec::default()
    };
    let milli = |part: f64| (part * 1000.0).round() as u32;
    let mut runs = Vec::new();
    if now.claimable_now.is_none() {
        return runs;
    }
    for gpu in &now.gpus {
        let at = |milli| ClaimSpec {
            gpu_ids: vec![Text::from(gpu.index.to_string().as_str())].into(),
            ..spec(milli)
        };
        let most = milli(gpu.claimable);
        for (size, starts) in [(most, true), (most + 10, false)] {
            if (10..=1000).contains(&size) {
                let said = tried(here, uid, &at(size)).expect("an answer");
                assert_eq!(said.starts, starts, "{size} of GPU {}: {said:?}", gpu.index);
            }
        }
    }
    for room in now.claimable_now.iter().flat_map(|now| &now.models) {
        let of = |milli| ClaimSpec {
            models: vec![Text::from(room.model.as_str())].into(),
            ..spec(milli)
        };
        let gpus = now.gpus.iter().filter(|g| g.short == room.model);
        // A whole GPU is one without use outside claims.
        let touched = gpus
            .clone()
            .any(|g| g.mem_allocatable < g.mem_total.map(|b| b - RESERVED));
        let (size, more) = match (room.whole, milli(room.largest)) {
            (0, part) => (part, 1000.min(part + 10)),
            (n, _) => (n * 1000, (n + 1) * 1000),
        };
        let first = if size == 0 { 250 } else { size };
        let said = tried(here, uid, &of(first)).expect("an answer");
        assert_eq!(said.starts, size > 0, "{first} of {room:?}: {said:?}");
        if room.whole > 0 {
            let untouched = gpus
                .clone()
                .filter(|g| g.claimable == 1.0 && !g.is_used_without_claim());
            assert!(untouched.count() >= room.whole as usize, "{room:?}");
        }
        runs.push((room.model.clone(), first, said));
        if !touched && more > size && more <= 1000 * gpus.count() as u32 {
            let said = tried(here, uid, &of(more)).expect("an answer");
            assert!(!said.starts, "{more} of {room:?}: {said:?}");
        }
    }
    runs
}

/// What is claimed of a GPU is the sum of the claims there, and room for a claim that comes has its name.
fn is_held(now: &Snapshot) {
    let frame = Frame {
        snapshot: now.clone(),
        ..Frame::default()
    };
    let overview = screen(&frame, Page::Overview, VIEWER);
    for gpu in &now.gpus {
        let here = now.claims.iter().filter(|c| !c.place.in_host());
        let parts = here.flat_map(|c| &c.gpus).filter(|g| g.gpu == gpu.index);
        let sum = parts.fold((0, 0.0), |(mem, sm), g| {
            (mem + g.mem_request, sm + g.sm_request)
        });
        assert_eq!(gpu.mem_claimed, sum.0, "GPU {}: {overview}", gpu.index);
        assert!((gpu.sm_claimed - sum.1).abs() < 1e-9, "{sum:?}: {overview}");
        let line = row(&overview, "GPUS", &format!("{} ", gpu.index));
        // A name needs some cells: claims made while gshare is off may be more than the GPU.
        let fits = |part: f64| {
            part / gpu.sm_claimed.max(1.0) > 0.1 && Some(gpu.mem_claimed) <= gpu.mem_total
        };
        let comes = |c: &&ClaimView| c.place.to.contains(&gpu.index) && fits(c.gpus[0].sm_request);
        for claim in now.claims.iter().filter(comes) {
            assert!(line.contains(&claim.id), "{}: {overview}", claim.id);
        }
    }
}

/// Something happens, and time passes.
fn go_on(here: &mut Here, random: &mut Random, drained: &mut bool) {
    let now = snapshot(here, 0);
    let any = |random: &mut Random| {
        let ids = now
            .claims
            .iter()
            .map(|c| &c.id)
            .chain(now.queue.iter().map(|q| &q.id));
        let ids: Vec<&String> = ids.collect();
        let at = random.below(ids.len().max(1) as u64) as usize;
        ids.get(at).map_or("c1", |id| id.as_str()).to_owned()
    };
    let id = any(random).as_str().into();
    let gpu = vec![Text::from(random.below(4).to_string().as_str())].into();
    let call = match random.below(16) {
        0..=3 => Call::Release { id },
        4 => Call::Lever {
            id,
            wish: [
                LeverWish::Offload,
                LeverWish::Restore,
                LeverWish::Suspend,
                LeverWish::Resume,
            ][random.below(4) as usize],
        },
        5 => Call::Keep { id },
        6 => Call::Move { id, gpus: gpu },
        7 => Call::Resize(Box::new(ResizeSpec {
            id,
            gpus_milli: Some(10 * (1 + random.below(100) as u32)),
            ..serde_json::from_str("{\"id\":\"\"}").unwrap()
        })),
        8 => Call::Extend { id, by_s: 600 },
        9 => Call::Admin(match std::mem::replace(drained, !*drained) {
            true => AdminCall::Undrain {
                gpus: ["0", "1", "2", "3"].map(Text::from).to_vec().into(),
            },
            false => AdminCall::Drain {
                gpus: gpu,
                reason: None,
            },
        }),
        10 => Call::Admin(AdminCall::QuotaSet(QuotaView {
            party: format!("user:{}", USERS[random.below(4) as usize].1)
                .as_str()
                .into(),
            gpus_milli: Some(250 * random.below(6) as u32),
            max_milli: (random.below(4) == 0).then_some(1500),
            ..QuotaView::default()
        })),
        11 if random.below(3) == 0 => Call::Admin(AdminCall::Off {
            for_ms: Some(60_000 * (1 + random.below(30))),
        }),
        11 => Call::Admin(AdminCall::On),
        _ => Call::Snapshot,
    };
    here.call(0, call);
    let seconds = [
        0,
        1 + random.below(4),
        random.below(120),
        random.below(4000),
    ];
    here.pass(Duration::from_secs(seconds[random.below(4) as usize]));
    let mut programs = Vec::new();
    for claim in snapshot(here, 0).claims {
        for part in &claim.gpus {
            if random.below(3) > 0 {
                programs.push(Program {
                    gpu: part.gpu as usize,
                    claim: claim.id[1..].parse().ok(),
                    bytes: random.below(part.mem_limit.min(1 << 30)),
                    busy: random.part() * 50.0,
                });
            }
        }
    }
    if random.below(6) == 0 {
        programs.push(Program {
            gpu: random.below(4) as usize,
            claim: None,
            bytes: random.below(20 << 30),
            busy: 10.0,
        });
    }
    here.look(&programs);
}

/// States in which one service's history passes.
const STEPS: u64 = 40;

#[test]
fn a_dry_run_says_what_the_screen_says_and_what_happens_in_any_state() {
    let (states, mut compared, mut made) = (states(), 0, 0);
    let mut random = Random(11);
    for _ in 0..states.div_ceil(STEPS) {
        let mut here = Here::of(&GPUS, &USERS);
        let mut drained = false;
        for step in 0..STEPS {
            let uid = USERS[random.below(4) as usize].0;
            let now = snapshot(&mut here, uid);
            let runs = is_free(&mut here, uid, &now);
            let agreed = agree(&now, runs, Viewer { uid, admin: false });
            compared += agreed.0;
            made += agreed.1;
            is_held(&now);
            let spec = any_claim(&mut random);
            let told = keeps_its_word(&mut here, uid, spec.clone());
            assert_eq!(told, Ok(()), "{step}: {spec:?}");
            go_on(&mut here, &mut random, &mut drained);
        }
    }
    assert!(
        compared > states * 50 && made > states / 10,
        "{compared} {made}"
    );
    println!("{compared} figures and {made} dry runs of {states} states");
}

//! One quantity has one value: the screens, `status`, `ps`, `queue`, their JSON and a dry run agree about a machine
//! in any state. `GSHARE_TEST_STATES` is the number of random states.

#[path = "../../ui/tests/support/canned.rs"]
mod canned;

use gshare_proto::{ClaimView, OffView, Snapshot, TakingView, Tried};
use gshare_ui::{Depth, Frame, Look, Options, Page, Viewer, frame_text};

use self::canned::states::{Random, any_state};
use super::{dry_run, list, rows};

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
    let plain = |l: &&str| l.trim_start_matches([' ', '▌', '▾']).starts_with(start);
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

#[test]
fn screens_tables_json_and_a_dry_run_say_the_same_in_any_state() {
    let states = std::env::var("GSHARE_TEST_STATES").ok();
    let states: u64 = states.and_then(|n| n.parse().ok()).unwrap_or(200);
    let (mut compared, mut made) = (0_u64, 0);
    let mut random = Random(7);
    for _ in 0..states {
        let mut snapshot = any_state(&mut random);
        let off = random.below(8) == 0;
        if off {
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
        // The JSON of the commands is the snapshot that the screen draws.
        let json = serde_json::to_value(&snapshot).unwrap();
        let ps = list::ps_json(&snapshot, true);
        for part in ["claims", "queue", "unclaimed"] {
            assert_eq!(ps[part], json[part]);
        }
        let mut frame = Frame {
            snapshot: serde_json::from_value(json).unwrap(),
            ..Frame::default()
        };
        // A dry run of a size that is not free now.
        let room = snapshot.claimable_now.as_ref().map(|now| &now.models[..]);
        for model in room.unwrap_or_default() {
            let wait = 1000 * (1 + random.below(4000));
            let tried = Tried {
                entitled: random.below(2) == 0,
                position: Some(1),
                takings: vec![TakingView::default()],
                expected_ms: Some(snapshot.taken_ms + wait),
                ..Tried::default()
            };
            frame.tried.push((model.model.clone(), 250, tried));
        }
        let overview = screen(&frame, Page::Overview, VIEWER);
        // Nothing is folded for a user without claims.
        let tree = screen(
            &frame,
            Page::Claims,
            Viewer {
                uid: 0,
                admin: true,
            },
        );
        let queue = screen(&frame, Page::Queue, VIEWER);
        let health = screen(&frame, Page::Health, VIEWER);
        for gpu in &snapshot.gpus {
            if gpu.state != gshare_proto::GpuState::Ok {
                continue;
            }
            let cells = rows::gpu_row(gpu, &snapshot);
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
        let promised = snapshot
            .gpus
            .iter()
            .any(|gpu| rows::gpu_row(gpu, &snapshot)[2] != "—")
            || overview.contains("┃free")
            || queue.contains("free for you");
        assert!(!(off && promised), "{overview}{queue}");
        for one in &snapshot.claims {
            claim(&snapshot, one, &overview, &tree);
            compared += 9;
        }
        for user in &snapshot.users {
            let cells = rows::user_row(user, &snapshot);
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
            let table = rows::queue(&snapshot).text(None, false);
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
        for (model, (name, _, tried)) in room.unwrap_or_default().iter().zip(&frame.tried) {
            if model.whole > 0 || model.largest > 0.0 {
                continue;
            }
            let said = dry_run::text(tried, snapshot.taken_ms);
            let wait = said.split("it would start in ").nth(1).unwrap();
            let wait = wait.split(',').next().unwrap();
            let keeps = match said.contains("within your guarantee") {
                true => "yours",
                false => "on loan",
            };
            let wanted = format!("{keeps} in {wait}: others make room");
            // FREE NOW has room for at least two models.
            let is_shown = head.contains(&wanted);
            assert!(
                is_shown || frame.tried.len() > 2,
                "{name}: {wanted}: {overview}"
            );
            made += u64::from(is_shown);
        }
    }
    assert!(
        compared > states * 50 && made > states / 10,
        "{compared} {made}"
    );
    println!("{compared} figures and {made} dry runs of {states} states");
}

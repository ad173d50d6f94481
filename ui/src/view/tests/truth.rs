//! Each quantity has one name, one unit and one value, on whatever screen it stands.

use gshare_proto::{Figure, Source};

use super::*;
use crate::model::{Split, split};

fn row(text: &str, start: &str) -> String {
    let found = text.lines().find(|l| l.trim_start().starts_with(start));
    let found = found.unwrap_or_else(|| panic!("no `{start}` on\n{text}"));
    found.to_owned()
}

fn on(page: Page, snapshot: gshare_proto::Snapshot) -> String {
    // Nothing is folded for somebody without claims.
    let viewer = if page == Page::Claims { ROOT } else { NLP };
    let rows = if page == Page::Claims { 90 } else { 40 };
    let mut m = model(viewer, (120, rows), snapshot);
    m.page = page;
    screen(&m)
}

#[test]
fn the_memory_of_a_gpu_is_one_figure_on_every_screen() {
    // Programs without a claim take 9.2 of GPU 3, so 14.3 can be claimed; 24.0 are soldered on.
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
    m.page = Page::History;
    let text = screen(&m);
    let bar = |start: &str| {
        let row = row(&text, start);
        let signs = row.chars().filter(|c| "█▒░·│┃▌▋▊▉▍▎▏".contains(*c));
        signs.collect::<String>()
    };
    // Twice its claim: the tick stands in the middle, and on the same place in the row of one who uses half.
    let (vis, nlp) = (bar("vis "), bar("nlp "));
    let tick = vis.chars().position(|c| c == '┃').expect("a tick");
    assert!(
        vis.ends_with('▒') && tick.abs_diff(vis.chars().count() / 2) <= 1,
        "{vis}"
    );
    assert_eq!(nlp.chars().position(|c| c == '│'), Some(tick), "{nlp}");
    // The sum would be on another scale: it has figures and no bar.
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
    // Two GPUs, one of them in three instances: the bar of who has all of an instance and uses it is full.
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

#[test]
fn what_is_known_is_not_hidden_by_what_is_not() {
    let mut snapshot = canned::workstation();
    // A program that was adopted has no figures of its own, and without counters its GPU has none either.
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

/// Use up to the size and unused are what is claimed, to the last digit; burst is counted on top.
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

/// A claim that is throttled is never told to shrink by what the screen draws: its bar is full up to its tick.
#[test]
fn a_share_of_turns_is_gpu_time_and_sm_activity_stands_beside_it() {
    let line = row(&on(Page::Overview, canned::lab()), "c4 ");
    assert!(
        line.contains("███▋│") && line.contains("▲ throttled 62 %"),
        "{line}"
    );
    let claims = row(&on(Page::Claims, canned::lab()), "c4 ");
    assert!(claims.contains("  20    20    ~12"), "{claims}");
}

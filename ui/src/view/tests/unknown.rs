//! Unknown is never zero: one test for each way of not knowing, over all screens.

use gshare_proto::{GpuState, Snapshot};

use super::*;

fn row(m: &Model, start: &str) -> String {
    crate::testing::row(&screen(m), start)
}

fn on(page: Page, snapshot: &Snapshot) -> Model {
    let mut m = model(NLP, (100, 30), snapshot.clone());
    open(&mut m, page);
    m
}

#[test]
fn without_counters_sm_activity_is_a_dash_and_time_busy_is_called_so() {
    let mut snapshot = canned::workstation();
    for gpu in &mut snapshot.gpus {
        (gpu.sm_active, gpu.sm_occupancy) = (None, None);
        gpu.history.clear();
    }
    for part in snapshot.claims.iter_mut().flat_map(|c| &mut c.gpus) {
        (part.sm_active, part.sm_occupancy) = (None, None);
    }
    for user in &mut snapshot.users {
        user.sm_used = None;
    }
    let m = model(NLP, (80, 24), snapshot.clone());
    assert!(
        row(&m, "0 4090").contains("┃     98  15.3"),
        "{}",
        screen(&m)
    );
    assert!(row(&m, "61°C").contains("SM —"), "{}", screen(&m));
    assert!(row(&m, "GPUS").contains("time %"));
    let m = on(Page::Claims, &snapshot);
    assert!(
        row(&m, "▾ vis").contains("198   150      —"),
        "{}",
        screen(&m)
    );
    assert!(screen(&m).contains("claim 25, SM —"), "{}", screen(&m));
    let m = on(Page::History, &snapshot);
    assert!(
        !screen(&m).contains(crate::theme::UTF8.levels[0]),
        "{}",
        screen(&m)
    );
}

#[test]
fn a_gpu_that_hangs_or_is_lost_has_no_figures() {
    for (state, words) in [
        (GpuState::Hung, "does not answer"),
        (GpuState::Lost, "fallen off the bus"),
    ] {
        let mut snapshot = canned::workstation();
        let gpu = &mut snapshot.gpus[1];
        gpu.state = state;
        (gpu.mem_used, gpu.mem_charged, gpu.mem_unclaimed) = (None, None, None);
        (gpu.sm_active, gpu.sm_occupancy, gpu.time_busy) = (None, None, None);
        (gpu.temperature_c, gpu.power_w, gpu.power_limit_w) = (None, None, None);
        let overview = row(&model(NLP, (100, 30), snapshot.clone()), "1 RTX");
        assert!(overview.contains(words), "{overview}");
        let figures = overview.chars().filter(char::is_ascii_digit).count();
        assert_eq!(figures, "1".len() + "4090".len(), "{overview}");
        let m = on(Page::Health, &snapshot);
        let health = row(&m, "1 RTX");
        assert!(
            health.contains("—/23.5") && health.contains("—/—"),
            "{health}"
        );
        assert!(screen(&m).contains("[5 Health !]"), "{}", screen(&m));
        let queue = row(&on(Page::Queue, &snapshot), "1 RTX");
        let why = if state == GpuState::Lost {
            "lost"
        } else {
            words
        };
        assert!(queue.contains(why) && !queue.contains("~"), "{queue}");
    }
}

#[test]
fn health_that_nobody_told_is_a_dash() {
    let m = on(Page::Health, &canned::workstation());
    assert!(row(&m, "0 RTX").ends_with('—'), "{}", screen(&m));
    let mut m = on(Page::Health, &canned::workstation());
    press(&mut m, "j<enter>");
    let text = screen(&m);
    assert!(!text.contains("0 corrected"), "{text}");
}

/// Snapshot of a service without the later figures.
const OLD: &str = r#"{"taken_ms":1795185127000,"host":"old","driver":"550.1","simulated":false,"caps":"cooperative",
"service":{"version":"0.0.9","mode":"system","started_ms":1,"cgroups":true,"device_filter":true,"shim":true,"uid":0},
"gpus":[{"index":0,"uuid":"GPU-1","model":"NVIDIA A100","short":"A100","mode":"timeslice","state":"ok","mem_claimed":0,
"sm_claimed":0.5,"claimable":0.5}],
"claims":[{"id":"c1","uid":1001,"user":"nlp","project":"","class":"batch","what":"x","command":[],"caps":"cooperative",
"state":"running","state_text":"run","since_ms":1,"gpus":[{"gpu":0,"uuid":"GPU-1","sm_request":0.5,"sm_limit":1.0,
"mem_request":1073741824,"mem_limit":1073741824}],"members":[],"refusals":0}],
"queue":[{"id":"c2","uid":1,"user":"vis","project":"","class":"batch","what":"y","gpus":1,"share":1.0,"sm_limit":1.0,
"since_ms":1,"position":1,"reason":"full"}],
"users":[{"uid":1001,"user":"nlp","claimed":0.5,"mem_claimed":0,"waiting":0.0,"claims":1}],
"unclaimed":[],"notices":[]}"#;

pub(super) fn old_driver() -> Snapshot {
    serde_json::from_str(OLD).expect("still understood")
}

#[test]
fn an_old_service_leaves_dashes() {
    let snapshot = old_driver();
    let m = on(Page::Overview, &snapshot);
    let gpu = row(&m, "0 A100");
    assert!(gpu.contains("—      —     —   0.0 of —"), "{}", screen(&m));
    assert!(row(&m, "FREE NOW").contains("— this service does not report it"));
    assert!(screen(&m).contains("┃no figure"), "{}", screen(&m));
    let claim = row(&m, "▌c1");
    assert!(claim.contains("—    50        —   1.0"), "{}", screen(&m));
    assert!(row(&on(Page::Queue, &snapshot), "when ").contains("unknown"));
    let text = screen(&on(Page::Claims, &snapshot));
    assert!(text.contains("compute —  claim 50, SM —"), "{text}");
    assert!(screen(&on(Page::Health, &snapshot)).contains("—/—"));
    // Unknown values have words, and nothing is drawn as zero.
    let mut m = on(Page::Overview, &snapshot);
    let mut asked = Vec::new();
    for keys in ["4", "5"] {
        asked.extend(press(&mut m, keys));
    }
    assert_eq!(asked.len(), 3);
    for seq in [1, 2, 3] {
        let outcome = Err(crate::feed::Failure {
            message: "unknown variant `history`".to_owned(),
            hint: None,
        });
        let answer = crate::feed::Update::CallResult { seq, outcome };
        crate::update::update(&mut m, crate::msg::Msg::Update(answer));
    }
    open(&mut m, Page::History);
    assert!(screen(&m).contains("unknown variant"), "{}", screen(&m));
    open(&mut m, Page::Health);
    assert!(screen(&m).contains("unknown variant"));
}

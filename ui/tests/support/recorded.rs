//! A recorded day: two users, a night, an hour without a service.

use gshare_proto::{Heat, HistoryPoint, HistorySeries, HistoryView, Idle, Usage};

use super::NOW_MS;

const STEP_MS: u64 = 480_000;

fn hour(at_ms: u64) -> f64 {
    (at_ms / 1000 % 86_400) as f64 / 3600.0
}

fn series(label: &str, uid: Option<u32>, most: f64) -> HistorySeries {
    let mut usage = Usage::default();
    let mut points = Vec::new();
    for i in 0..180 {
        let at_ms = NOW_MS - (180 - i) * STEP_MS;
        let time = hour(at_ms);
        // There are no looks from four to five.
        if (4.0..5.0).contains(&time) {
            continue;
        }
        let claimed = if (9.0..19.0).contains(&time) {
            most
        } else {
            most / 2.0
        };
        let used = if (9.0..13.0).contains(&time) {
            claimed * 0.8
        } else {
            claimed * 0.3
        };
        let known = !(20.0..22.0).contains(&time);
        let seconds = (STEP_MS / 1000) as f64;
        usage.claimed_gpu_s += claimed * seconds;
        if known {
            *usage.used_gpu_s.get_or_insert(0.0) += used * seconds;
            usage.used_known_gpu_s += claimed * seconds;
            usage.idle.off_hours += (claimed - used) * seconds;
        }
        points.push(HistoryPoint {
            at_ms,
            known: 1.0,
            claimed,
            used: known.then_some(used),
            estimate: true,
            idle: Idle::default(),
            ..HistoryPoint::default()
        });
    }
    usage.estimate = true;
    HistorySeries {
        key: label.to_owned(),
        label: label.to_owned(),
        uid,
        usage,
        points,
    }
}

/// A day of four GPUs.
pub(crate) fn recorded() -> HistoryView {
    let day = |most: f32| {
        (0..24).map(move |h| {
            (h != 4).then(|| {
                if (9..19).contains(&h) {
                    most
                } else {
                    most / 4.0
                }
            })
        })
    };
    let week = |most: f32| {
        (0..7)
            .map(|d| day(if d < 5 { most } else { most / 3.0 }).collect())
            .collect()
    };
    HistoryView {
        from_ms: NOW_MS - 180 * STEP_MS,
        to_ms: NOW_MS,
        step_ms: STEP_MS,
        gpu_count: 4,
        series: vec![
            series("all", None, 3.2),
            series("nlp", Some(1001), 2.2),
            series("vis", Some(1002), 1.0),
        ],
        heat: Some(Heat {
            claimed: week(90.0),
            used: week(45.0),
        }),
    }
}

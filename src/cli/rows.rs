//! The rows of tables from a snapshot. An unknown figure is a dash, an estimate has `~`.

use std::time::Duration;

use gshare_core::units::show_duration;
use gshare_proto::figures::{about, gib, hours, measured, parts, percent as whole_percent, share};
use gshare_proto::{
    ClaimGpu, ClaimView, Figure, GpuState, GpuView, Grade, Identity, Named, Snapshot, Usage,
    UserView,
};

use gshare_proto::totals::{
    AtLeast, claimed, compute_of, is_by_sms, mem_used, sm_active, sm_occupancy, sm_of_gpu, sums,
};

use super::report::average;
use super::table::{Align, Table, UNKNOWN};
use super::waiting::ordinal;

/// Column before which the sums of a claim are inserted.
const SUMS_AT: usize = 11;

/// Claims and, if `all`, waiting ones and programs without a claim.
pub(crate) fn claims(snapshot: &Snapshot, all: bool) -> Table {
    // Sums since each claim was granted, if the service keeps them.
    let summed = snapshot.claims.iter().any(|c| c.usage.is_some());
    let mut columns = vec![
        ("ID", Align::Left),
        ("USER", Align::Left),
        ("NAME", Align::Left),
        ("CLASS", Align::Left),
        ("GPU", Align::Left),
        ("SIZE", Align::Right),
        ("LIMIT", Align::Right),
        ("GiB/LIMIT", Align::Right),
        ("USE/SIZE", Align::Right),
        ("SM %", Align::Right),
        ("OCC %", Align::Right),
        ("AGE", Align::Right),
        ("STATE", Align::Left),
        ("WHAT", Align::Left),
    ];
    // Identity of claims besides their command, if any is known.
    let named = |of: fn(&Identity) -> &Option<Named>| {
        let mut claims = snapshot.claims.iter();
        claims.any(|c| of(&c.identity).is_some())
    };
    let (models, units) = (named(|i| &i.model), named(|i| &i.unit));
    for (wanted, title) in [(models, "MODEL"), (units, "UNIT")] {
        if wanted {
            columns.push((title, Align::Left));
        }
    }
    if summed {
        columns.splice(
            SUMS_AT..SUMS_AT,
            [("AVG USE", Align::Right), ("IDLE h", Align::Right)],
        );
    }
    // The state of a claim is shown at any width.
    let mut table =
        Table::new(&columns).spare("STATE", &["IDLE h", "AVG USE", "OCC %", "USE/SIZE"]);
    let with_sums =
        |mut cells: Vec<String>, usage: Option<&Usage>, identity: Option<&Identity>, none: &str| {
            let word = |named: Option<&Named>| match (named, identity) {
                (Some(named), _) => named.value.clone(),
                (None, Some(_)) => unknown(),
                (None, None) => "-".to_owned(),
            };
            if models {
                cells.push(word(identity.and_then(|i| i.model.as_ref())));
            }
            if units {
                cells.push(word(identity.and_then(|i| i.unit.as_ref())));
            }
            if summed {
                let sums = usage.map_or([none.to_owned(), none.to_owned()], |u| {
                    let idle = u.idle_gpu_s();
                    [average(u), idle.map_or_else(unknown, hours)]
                });
                cells.splice(SUMS_AT..SUMS_AT, sums);
            }
            cells
        };
    for claim in &snapshot.claims {
        let cells = claim_row(claim, snapshot);
        let identity = Some(&claim.identity);
        table.row(with_sums(cells, claim.usage.as_ref(), identity, UNKNOWN));
    }
    if !all {
        return table;
    }
    for waiting in &snapshot.queue {
        let cells = vec![
            waiting.id.clone(),
            waiting.user.clone(),
            waiting.name.clone().unwrap_or_default(),
            waiting.class.clone(),
            "-".to_owned(),
            many(waiting.gpus, waiting.share),
            format!("{:.2}", waiting.sm_limit),
            waiting.mem_request.map_or_else(unknown, gib),
            "-".to_owned(),
            "-".to_owned(),
            "-".to_owned(),
            age(waiting.since_ms, snapshot.taken_ms),
            format!("waits ({})", ordinal(waiting.position)),
            waiting.what.clone(),
        ];
        table.row(with_sums(cells, None, None, "-"));
    }
    for (n, process) in snapshot.unclaimed.iter().enumerate() {
        let cells = vec![
            format!("u{}", n + 1),
            process.user.clone().unwrap_or_else(unknown),
            String::new(),
            if process.graphics { "graphics" } else { "-" }.to_owned(),
            process.gpu.to_string(),
            "-".to_owned(),
            "-".to_owned(),
            process.mem_used.map_or_else(unknown, gib),
            unknown(),
            unknown(),
            unknown(),
            unknown(),
            "no claim".to_owned(),
            format!("{} (pid {})", process.what, process.pid),
        ];
        table.row(with_sums(cells, None, Some(&process.identity), UNKNOWN));
    }
    table
}

pub(super) fn claim_row(claim: &ClaimView, snapshot: &Snapshot) -> Vec<String> {
    let gpus: Vec<String> = claim.gpus.iter().map(|g| g.gpu.to_string()).collect();
    let first = claim.gpus.first();
    let cap: u64 = claim.gpus.iter().map(|g| g.mem_limit).sum();
    let request = |g: &ClaimGpu| many(gpus.len().try_into().unwrap_or(0), g.sm_request);
    let used = mem_used(claim).map_or_else(unknown, gib);
    let compute = figure(compute_of(claim, snapshot));
    // A claim without limits claims nothing.
    let nothing = || "-".to_owned();
    vec![
        claim.id.clone(),
        claim.user.clone(),
        claim.name.clone().unwrap_or_default(),
        claim.class.clone(),
        match claim.place.in_host() {
            true => nothing(),
            false => gpus.join(","),
        },
        first.map_or_else(
            unknown,
            |g| if claim.adopted { nothing() } else { request(g) },
        ),
        first.map_or_else(unknown, |g| {
            if claim.adopted {
                nothing()
            } else {
                format!("{:.2}", g.sm_limit)
            }
        }),
        if claim.adopted {
            used
        } else {
            format!("{used}/{}", gib(cap))
        },
        match claim.adopted {
            true => compute,
            false => format!("{compute}/{}", whole_percent(claimed(claim))),
        },
        figure(sm_active(claim)),
        figure(sm_occupancy(claim)),
        age(claim.since_ms, snapshot.taken_ms),
        claim.state_text.clone(),
        claim.what.clone(),
    ]
}

/// Claims as comma-separated values, one line per claim and GPU; unknown is empty.
pub(crate) fn csv(snapshot: &Snapshot) -> String {
    let mut out = String::from(
        "id,user,project,class,gpu,sm_request,sm_limit,mem_request_bytes,mem_limit_bytes,\
         mem_charge_bytes,mem_used_bytes,time_busy_percent,sm_active_percent,since_ms,state,name,what,notebook,model\n",
    );
    let number = |n: Option<u64>| n.map_or_else(String::new, |n| n.to_string());
    let figure = |f: Option<Figure>| f.map_or_else(String::new, |f| format!("{:.1}", f.value));
    let word = |n: Option<&Named>| n.map_or_else(String::new, |n| n.value.clone());
    for claim in &snapshot.claims {
        // A claim without a cap holds what it uses, and has no limit.
        let share_held = |s: f64| {
            Some(s)
                .filter(|_| !claim.adopted)
                .map_or_else(String::new, |s| s.to_string())
        };
        for gpu in &claim.gpus {
            let fields = [
                claim.id.clone(),
                claim.user.clone(),
                claim.project.clone(),
                claim.class.clone(),
                gpu.gpu.to_string(),
                share_held(gpu.sm_request),
                share_held(gpu.sm_limit),
                number(Some(gpu.mem_request)),
                number(Some(gpu.mem_limit).filter(|_| !claim.adopted)),
                number(gpu.mem_charge),
                number(gpu.mem_used),
                figure(gpu.time_busy),
                figure(gpu.sm_active),
                claim.since_ms.to_string(),
                claim.state_text.clone(),
                claim.name.clone().unwrap_or_default(),
                claim.what.clone(),
                word(claim.identity.notebook.as_ref()),
                word(claim.identity.model.as_ref()),
            ];
            out.push_str(&fields.map(|f| csv_field(&f)).join(","));
            out.push('\n');
        }
    }
    out
}

pub(crate) fn csv_field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// Waiting claims; their reasons follow below the table.
pub(crate) fn queue(snapshot: &Snapshot) -> Table {
    let mut table = Table::new(&[
        ("PLACE", Align::Right),
        ("ID", Align::Left),
        ("USER", Align::Left),
        ("NAME", Align::Left),
        ("CLASS", Align::Left),
        ("SIZE", Align::Right),
        ("LIMIT", Align::Right),
        ("GiB", Align::Right),
        ("WAITS", Align::Right),
        ("STARTS", Align::Right),
        ("WHAT", Align::Left),
    ]);
    for waiting in &snapshot.queue {
        table.row(vec![
            waiting.position.to_string(),
            waiting.id.clone(),
            waiting.user.clone(),
            waiting.name.clone().unwrap_or_default(),
            waiting.class.clone(),
            many(waiting.gpus, waiting.share),
            format!("{:.2}", waiting.sm_limit),
            waiting.mem_request.map_or_else(unknown, gib),
            age(waiting.since_ms, snapshot.taken_ms),
            waiting.starts(snapshot.taken_ms).unwrap_or_else(unknown),
            waiting.what.clone(),
        ]);
    }
    table
}

/// GPUs: claimed beside used.
pub(crate) fn gpus(snapshot: &Snapshot) -> Table {
    // As on the screen: shares of time, and of SMs with MPS and MIG.
    let compute = match snapshot.gpus.iter().any(is_by_sms) {
        true => "COMP % used/claim",
        false => "TIME % used/claim",
    };
    let mut table = Table::new(&[
        ("GPU", Align::Right),
        ("MODEL", Align::Left),
        ("FREE", Align::Right),
        (compute, Align::Right),
        ("SM %", Align::Right),
        ("OCC %", Align::Right),
        ("GiB used/claim/all", Align::Right),
        ("TEMP", Align::Right),
        ("POWER", Align::Right),
        ("STATE", Align::Left),
        ("HEALTH", Align::Left),
    ]);
    for gpu in &snapshot.gpus {
        table.row(gpu_row(gpu, snapshot));
    }
    table
}

pub(super) fn gpu_row(gpu: &GpuView, snapshot: &Snapshot) -> Vec<String> {
    vec![
        gpu.index.to_string(),
        match gpu.mode_shown() {
            Some(mode) => format!("{}, {mode}", gpu.short),
            None => gpu.short.clone(),
        },
        match snapshot.claimable_now {
            Some(_) => share(gpu.claimable),
            None => unknown(),
        },
        format!(
            "{}/{}",
            figure(match is_by_sms(gpu) {
                true => gpu.sm_active,
                false => gpu.time_busy,
            }),
            whole_percent(gpu.sm_claimed * 100.0)
        ),
        sm_of_gpu(gpu, snapshot).text(UNKNOWN, "≥"),
        figure(gpu.sm_occupancy),
        format!(
            "{}/{}/{}",
            gpu.mem_used.map_or_else(unknown, gib),
            gib(gpu.mem_claimed),
            gpu.mem_whole().map_or_else(unknown, gib)
        ),
        gpu.temperature_c.map_or_else(unknown, |c| format!("{c} C")),
        gpu.power_w.map_or_else(unknown, |w| format!("{w:.0} W")),
        gpu_state(gpu),
        health(gpu),
    ]
}

/// `good`, `sick: Xid 79 (GPU has fallen off the bus)`; reasons for low clocks are always shown.
fn health(gpu: &GpuView) -> String {
    let Some(health) = &gpu.health else {
        return unknown();
    };
    let word = match health.grade {
        Grade::Good => "good",
        Grade::Warned => "warned",
        Grade::Sick => "sick",
    };
    let mut why: Vec<&str> = health.reasons.iter().map(String::as_str).collect();
    why.extend(health.throttle.iter().flatten().map(String::as_str));
    match why.is_empty() {
        true => word.to_owned(),
        false => format!("{word}: {}", why.join(", ")),
    }
}

/// `ok`, `draining` while claims remain on a drained GPU, `drained: new fan`.
fn gpu_state(gpu: &GpuView) -> String {
    let state = match gpu.state {
        GpuState::Ok => "ok",
        GpuState::Lost => "lost",
        GpuState::Hung => "hung",
        GpuState::Released => "released",
    };
    let Some(drain) = &gpu.drain else {
        return state.to_owned();
    };
    let held = gpu.mem_claimed > 0 || gpu.sm_claimed > 0.0;
    let word = if held { "draining" } else { "drained" };
    let why = drain.reason.as_ref().map(|r| format!(": {r}"));
    let also = (gpu.state != GpuState::Ok).then(|| format!("{state}, "));
    format!(
        "{}{word}{}",
        also.unwrap_or_default(),
        why.unwrap_or_default()
    )
}

/// Users: claimed beside used, both in the unit of sizes.
pub(crate) fn users(snapshot: &Snapshot) -> Table {
    let mut table = Table::new(&[
        ("USER", Align::Left),
        ("CLAIMS", Align::Right),
        ("GPUs claimed", Align::Right),
        ("GPUs used", Align::Right),
        ("GiB used/claim", Align::Right),
        ("waiting", Align::Right),
    ]);
    for user in &snapshot.users {
        table.row(user_row(user, snapshot));
    }
    table
}

pub(super) fn user_row(user: &UserView, snapshot: &Snapshot) -> Vec<String> {
    let own = snapshot.claims.iter().filter(|c| c.uid == user.uid);
    let used = match sums(own, snapshot).compute {
        AtLeast::Known(known) => {
            known.map_or_else(unknown, |f| about(f.estimate, parts(f.value / 100.0)))
        }
        AtLeast::Some(least) => format!("≥{}", parts(least / 100.0)),
    };
    vec![
        user.user.clone(),
        user.claims.to_string(),
        format!("{:.2}", user.claimed),
        used,
        format!(
            "{}/{}",
            user.mem_used.map_or_else(unknown, gib),
            gib(user.mem_claimed)
        ),
        format!("{:.2}", user.waiting),
    ]
}

/// What users claimed and used in the last day, if the service knows it.
pub(crate) fn last_day(users: &[UserView]) -> Option<Table> {
    let days: Vec<(&UserView, &Usage)> = users
        .iter()
        .filter_map(|u| Some((u, u.day.as_ref()?)))
        .collect();
    let mut table = Table::new(&[
        ("last 24 h, GPU hours", Align::Left),
        ("CLAIMED", Align::Right),
        ("SM USED", Align::Right),
        ("AVG USE", Align::Right),
        ("BURST", Align::Right),
        ("THROTTLED", Align::Right),
        ("WAITED", Align::Right),
        ("IDLE", Align::Right),
        ("MOSTLY", Align::Left),
    ]);
    for (user, day) in &days {
        let mark = if day.estimate { "~" } else { "" };
        table.row(vec![
            user.user.clone(),
            hours(day.claimed_gpu_s),
            day.used_gpu_s
                .map_or_else(unknown, |s| format!("{mark}{}", hours(s))),
            average(day),
            day.borrowed().map_or_else(unknown, hours),
            hours(day.throttled_gpu_s),
            hours(day.waited_gpu_s),
            day.idle_gpu_s().map_or_else(unknown, hours),
            day.idle.main().unwrap_or_default().to_owned(),
        ]);
    }
    (!days.is_empty()).then_some(table)
}

fn unknown() -> String {
    UNKNOWN.to_owned()
}

/// `0.50`, or `2x1.00` for two GPUs.
fn many(gpus: u32, share: f64) -> String {
    if gpus > 1 {
        format!("{gpus}x{share:.2}")
    } else {
        format!("{share:.2}")
    }
}

fn figure(figure: Option<Figure>) -> String {
    measured(figure, UNKNOWN)
}

fn age(since_ms: u64, now_ms: u64) -> String {
    show_duration(Duration::from_millis(now_ms.saturating_sub(since_ms)))
}

#[cfg(test)]
mod tests {
    use gshare_proto::Source;

    use super::*;

    fn figure_of(value: f64, estimate: bool) -> Option<Figure> {
        Some(Figure {
            value,
            source: Source::Shim,
            estimate,
        })
    }

    #[test]
    fn the_memory_of_a_gpu_is_all_that_is_divided_as_on_the_screen() {
        let gpu = GpuView {
            mem_allocatable: Some(20 << 30),
            mem_unclaimed: Some(3 << 30),
            mem_used: Some(4 << 30),
            ..GpuView::default()
        };
        assert_eq!(gpu_row(&gpu, &Snapshot::default())[6], "4.0/0.0/23.0");
    }

    #[test]
    fn what_is_not_known_is_a_dash_and_never_zero() {
        let gpu = |charge, active| ClaimGpu {
            gpu: 1,
            sm_request: 0.5,
            sm_limit: 1.0,
            mem_limit: 12 << 30,
            mem_charge: charge,
            sm_active: active,
            ..ClaimGpu::default()
        };
        let claim = |gpus| ClaimView {
            id: "c3".into(),
            user: "ada".into(),
            gpus,
            ..ClaimView::default()
        };
        let known = claim_row(
            &claim(vec![
                gpu(Some(6 << 30), figure_of(40.0, false)),
                gpu(Some(3 << 30), figure_of(60.0, true)),
            ]),
            &Snapshot::default(),
        );
        assert_eq!(known[5], "2x0.50");
        assert_eq!(known[7], "9.0/24.0");
        assert_eq!(known[8], "\u{2014}/100");
        assert_eq!(known[9], "~100");
        let partly = claim_row(
            &claim(vec![gpu(Some(1), figure_of(0.0, false)), gpu(None, None)]),
            &Snapshot::default(),
        );
        assert_eq!(partly[7], "\u{2014}/24.0");
        assert_eq!(partly[9], UNKNOWN);
    }

    #[test]
    fn fields_with_commas_are_quoted() {
        assert_eq!(csv_field("a, \"b\""), "\"a, \"\"b\"\"\"");
        assert_eq!(csv_field("plain"), "plain");
    }
}

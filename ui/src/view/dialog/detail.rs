//! Everything about one row.

use gshare_proto::{
    Caps, Check, ClaimView, DrainView, GpuView, Grade, HealthView, ProcessView, QueueView, Source,
    UnclaimedView, UserView,
};
use ratatui::text::Line;

use crate::model::{Model, RowKey, can_be_kept};
use crate::text::{figure_percent, gib, gib_or, left, percent, share, wrap};
use crate::theme::Look;
use crate::view::claims::{self, gpus, state};
use crate::view::overview::is_on;
use crate::view::{span, waiting};

/// Label and text.
type Entry = (&'static str, String);

/// Title and lines in `cols` columns.
pub(super) fn lines(
    model: &Model,
    key: &RowKey,
    look: &Look,
    cols: usize,
) -> (String, Vec<Line<'static>>) {
    let gone = |what: String| (what, vec![("", "It has ended.".to_owned())]);
    let snapshot = model.snapshot.as_ref();
    let (title, entries) = match key {
        RowKey::Claim(id) => match model.claim(id) {
            Some(claim) => (format!("Claim {id}"), claim_entries(model, claim, look)),
            None => gone(format!("Claim {id}")),
        },
        RowKey::Waiting(id) => match model.waiting(id) {
            Some(waiting) => (format!("{id} waits"), waiting_entries(model, waiting)),
            None => gone(id.clone()),
        },
        RowKey::Unclaimed { pid, gpu } => {
            let found = snapshot.and_then(|s| {
                let mut all = s.unclaimed.iter();
                all.find(|u| u.pid == *pid && u.gpu == *gpu)
            });
            match found {
                Some(u) => (format!("Process {pid}"), unclaimed_entries(u, look)),
                None => gone(format!("Process {pid}")),
            }
        }
        RowKey::Process { pid, gpu } => {
            let claims = snapshot.into_iter().flat_map(|s| &s.claims);
            let mut all = claims.flat_map(|c| c.processes.iter().map(move |p| (c, p)));
            match all.find(|(_, p)| p.pid == *pid && p.gpu == *gpu) {
                Some((claim, p)) => (format!("Process {pid}"), process_entries(claim, p, look)),
                None => gone(format!("Process {pid}")),
            }
        }
        RowKey::Group(title) => {
            let text = "Right shows what is in it, Left hides it.".to_owned();
            (title.clone(), vec![("", text)])
        }
        RowKey::User(uid) => {
            let found = snapshot.and_then(|s| s.users.iter().find(|u| u.uid == *uid));
            match found {
                Some(user) => (format!("User {}", user.user), user_entries(user, look)),
                None => gone(format!("uid {uid}")),
            }
        }
        RowKey::Check(name) => {
            let rows = model.checks.rows.iter().flatten().flatten();
            match rows.into_iter().find(|c| c.name == *name) {
                Some(check) => (name.clone(), check_entries(check)),
                None => gone(name.clone()),
            }
        }
        RowKey::Gpu(index) => {
            let found = snapshot.and_then(|s| s.gpus.iter().find(|g| g.index == *index));
            match found {
                Some(gpu) => (format!("GPU {index}"), gpu_entries(model, gpu, look)),
                None => (format!("GPU {index}"), vec![("", "It is gone.".to_owned())]),
            }
        }
    };
    let mut lines = table(entries, look, cols);
    if let RowKey::Waiting(id) = key {
        lines.extend(waiting::detail(model, id, look, cols));
    }
    (title, lines)
}

fn table(entries: Vec<Entry>, look: &Look, cols: usize) -> Vec<Line<'static>> {
    const LABEL: usize = 13;
    let mut out = Vec::new();
    for (label, text) in entries {
        let rows = wrap(&text, cols.saturating_sub(LABEL), 4, &look.glyphs);
        for (i, row) in rows.into_iter().enumerate() {
            let label = if i == 0 { label } else { "" };
            out.push(Line::from(vec![
                span(left(label, LABEL, &look.glyphs), look.theme.dim),
                span(row, look.theme.text),
            ]));
        }
    }
    out
}

fn caps(caps: Caps) -> &'static str {
    match caps {
        Caps::Strict => "strict",
        Caps::Cooperative => "cooperative: holds for programs that do not try to get around it",
        Caps::None => "none",
    }
}

fn source(source: Source) -> &'static str {
    match source {
        Source::Gpm => "GPM",
        Source::Dcgm => "DCGM",
        Source::CuptiPm => "PM sampling",
        Source::Shim => "shim",
        Source::TimeBusy => "time busy",
        Source::Nvml => "NVML",
        Source::Ledger => "ledger",
    }
}

fn measured(value: Option<gshare_proto::Figure>, look: &Look) -> String {
    let text = figure_percent(value, &look.glyphs);
    value.map_or(text.clone(), |f| format!("{text} ({})", source(f.source)))
}

fn claim_entries(model: &Model, claim: &ClaimView, look: &Look) -> Vec<Entry> {
    let dash = look.glyphs.dash;
    let clock = model.clock;
    let mut out = vec![
        (
            "owner",
            format!(
                "{} (uid {}), project {}",
                claim.user, claim.uid, claim.project
            ),
        ),
        ("class", claim.class.clone()),
        ("state", state(claim)),
        (
            "granted",
            format!(
                "{}, {} ago",
                clock.time(claim.since_ms),
                clock.since(claim.since_ms)
            ),
        ),
        ("caps", caps(claim.caps).to_owned()),
    ];
    if let Some(name) = &claim.name {
        out.insert(0, ("name", name.clone()));
    }
    let named = [
        ("notebook", &claim.identity.notebook),
        ("script", &claim.identity.script),
        ("model", &claim.identity.model),
        ("unit", &claim.identity.unit),
    ];
    for (label, named) in named {
        out.extend(
            named
                .iter()
                .map(|n| (label, format!("{} ({})", n.value, n.source))),
        );
    }
    if let Some(ends) = claim.ends_ms {
        out.push(("ends", clock.time(ends)));
    }
    if let Some(text) = &claim.announced {
        let id = &claim.id;
        let text = match can_be_kept(claim) {
            true => format!("{id} {text}; p, or gshare keep {id}, puts it off"),
            false => format!("{id} {text}"),
        };
        out.push(("announced", text));
    }
    out.extend(claims::idle(claim).map(|text| ("idle", text)));
    if let Some(overuse) = &claim.overuse {
        out.push(("over-use", overuse.clone()));
    }
    let was = match claim.place.in_host() {
        true => "none now, was on ",
        false => "",
    };
    for g in &claim.gpus {
        if claim.adopted {
            let used = gib_or(g.mem_used, &look.glyphs);
            let text = format!("{}: {used} GiB used outside claims, without a cap", g.gpu);
            out.push(("GPU", text));
            continue;
        }
        out.push((
            "GPU",
            format!(
                "{was}{}: SMs {}% guaranteed, up to {}%",
                g.gpu,
                percent(g.sm_request * 100.0),
                percent(g.sm_limit * 100.0)
            ),
        ));
        if let Some(sms) = g.mps_sms {
            let about = if sms.estimate { "~" } else { "" };
            let text = format!("{about}{:.0} SMs, fixed when a program starts", sms.value);
            out.push(("  MPS", text));
        }
        if !g.beside_mps.is_empty() {
            let pids: Vec<String> = g.beside_mps.iter().map(u32::to_string).collect();
            let text = format!("pid {} beside it: nothing limits its SMs", pids.join(", "));
            out.push(("  MPS", text));
        }
        out.push((
            "  memory",
            format!(
                "{} GiB used, {} charged (at most {}), {} guaranteed, cap {}",
                gib_or(g.mem_used, &look.glyphs),
                gib_or(g.mem_charge, &look.glyphs),
                gib_or(g.mem_peak, &look.glyphs),
                gib(g.mem_request),
                gib(g.mem_limit)
            ),
        ));
        let rate = |f: Option<gshare_proto::Figure>, unit: &str| match f {
            None => dash.to_owned(),
            Some(f) => {
                let about = if f.estimate { "~" } else { "" };
                format!("{about}{:.0}{unit}", f.value)
            }
        };
        let copied = g.copied.map_or_else(
            || dash.to_owned(),
            |f| {
                format!(
                    "{}{} GiB/s",
                    if f.estimate { "~" } else { "" },
                    gib(f.value.max(0.0) as u64)
                )
            },
        );
        out.push((
            "  work",
            format!(
                "kernels ran {} of the time, held back {}; {} launches/s, copies {copied}",
                figure_percent(g.time_got, &look.glyphs),
                figure_percent(g.throttled, &look.glyphs),
                rate(g.launch_rate, "")
            ),
        ));
        out.push((
            "  use",
            format!(
                "time {}, SM active {}, occupancy {}",
                measured(g.time_busy.or(g.time_got), look),
                measured(g.sm_active, look),
                measured(g.sm_occupancy, look)
            ),
        ));
    }
    let launches = claim
        .launches
        .map_or_else(|| dash.to_owned(), |n| n.to_string());
    let idle = claim.idle_s.map_or_else(
        || dash.to_owned(),
        |s| gshare_proto::units::show_duration(std::time::Duration::from_secs(s)) + " ago",
    );
    out.push(("launches", format!("{launches}, last {idle}")));
    let refused = match claim.refusals {
        0 => "none".to_owned(),
        1 => "one allocation at the cap".to_owned(),
        n => format!("{n} allocations at the cap"),
    };
    out.push(("refusals", refused));
    if let Some(turns) = claim.turns {
        let seconds = |ms: u64| format!("{}.{} s", ms / 1000, ms % 1000 / 100);
        let now = if turns.contended {
            "in turns with others now"
        } else {
            "no turns needed now"
        };
        let so_far = format!(
            "{} in turns, held back {}",
            seconds(turns.turns_ms),
            seconds(turns.held_back_ms)
        );
        out.push(("GPU time", format!("{now}; {so_far}")));
    }
    if claim.members.is_empty() {
        out.push(("processes", "none".to_owned()));
    } else {
        let pids: Vec<String> = claim.members.iter().map(u32::to_string).collect();
        out.push(("processes", pids.join(" ")));
    }
    let command = if claim.command.is_empty() {
        claim.what.clone()
    } else {
        claim.command.join(" ")
    };
    // A claim that is only held runs nothing.
    if !matches!(command.as_str(), "" | "-") {
        out.push(("command", command));
    }
    out
}

fn waiting_entries(model: &Model, waiting: &QueueView) -> Vec<Entry> {
    let clock = model.clock;
    vec![
        (
            "owner",
            format!(
                "{} (uid {}), project {}",
                waiting.user, waiting.uid, waiting.project
            ),
        ),
        ("class", waiting.class.clone()),
        (
            "waits",
            format!(
                "{}, since {}, place {}",
                clock.since(waiting.since_ms),
                clock.time(waiting.since_ms),
                waiting.position
            ),
        ),
    ]
}

fn unclaimed_entries(unclaimed: &UnclaimedView, look: &Look) -> Vec<Entry> {
    let owner = match (&unclaimed.user, unclaimed.uid) {
        (Some(user), Some(uid)) => format!("{user} (uid {uid})"),
        (Some(user), None) => user.clone(),
        (None, Some(uid)) => format!("uid {uid}"),
        (None, None) => look.glyphs.dash.to_owned(),
    };
    let kind = if unclaimed.graphics {
        "graphics: it needs no claim"
    } else {
        "in no claim: nothing holds it to a cap"
    };
    vec![
        ("owner", owner),
        ("GPU", unclaimed.gpu.to_string()),
        (
            "memory",
            format!("{} GiB", gib_or(unclaimed.mem_used, &look.glyphs)),
        ),
        ("kind", kind.to_owned()),
        ("command", unclaimed.what.clone()),
    ]
}

fn process_entries(claim: &ClaimView, process: &ProcessView, look: &Look) -> Vec<Entry> {
    let glyphs = &look.glyphs;
    let busy = process.time_busy.map(percent);
    vec![
        ("claim", format!("{} of {}", claim.id, claim.user)),
        ("GPU", process.gpu.to_string()),
        (
            "memory",
            format!("{} GiB", gib_or(process.mem_used, glyphs)),
        ),
        (
            "GPU time",
            busy.map_or_else(|| glyphs.dash.to_owned(), |b| format!("{b}%")),
        ),
        ("command", process.what.clone()),
    ]
}

fn user_entries(user: &UserView, look: &Look) -> Vec<Entry> {
    let used = match user.sm_used {
        None => look.glyphs.dash.to_owned(),
        Some(f) => format!("{}{:.2}", if f.estimate { "~" } else { "" }, f.value),
    };
    vec![
        ("claims", user.claims.to_string()),
        (
            "claimed",
            format!("{:.2} GPUs, {} GiB", user.claimed, gib(user.mem_claimed)),
        ),
        (
            "used",
            format!("{used} GPUs, {} GiB", gib_or(user.mem_used, &look.glyphs)),
        ),
        ("waiting", format!("{:.2} GPUs", user.waiting)),
    ]
}

fn check_entries(check: &Check) -> Vec<Entry> {
    let mut out = vec![
        ("state", check.state.clone()),
        ("found", check.detail.clone()),
    ];
    if !check.status.is_empty() {
        out.push(("seen", check.status.clone()));
    }
    if let Some(fix) = &check.fix {
        out.push(("mend", fix.clone()));
    }
    out
}

/// `by root: new fan; no new claims start here`.
fn drained(drain: &DrainView) -> String {
    let why = drain.reason.as_ref().map(|r| format!(": {r}"));
    format!(
        "by {}{}; no new claims start here",
        drain.by,
        why.unwrap_or_default()
    )
}

fn health_entries(model: &Model, health: &HealthView, look: &Look) -> Vec<Entry> {
    let dash = || look.glyphs.dash.to_owned();
    let grade = match health.grade {
        Grade::Good => "good",
        Grade::Warned => "warned",
        Grade::Sick => "sick: no new claims start here",
    };
    let mut out = vec![("health", grade.to_owned())];
    out.extend(health.reasons.iter().map(|r| ("  because", r.clone())));
    out.extend(health.tell.iter().map(|t| ("  do", t.clone())));
    for xid in &health.xids {
        let pid = xid.pid.map(|p| format!(", process {p}"));
        let text = format!(
            "{} at {}{}: {}; {}",
            xid.code,
            model.clock.time(xid.at_ms),
            pid.unwrap_or_default(),
            xid.text,
            xid.tell
        );
        out.push(("  Xid", text));
    }
    let count = |n: Option<u64>| n.map_or_else(dash, |n| n.to_string());
    let ecc = format!(
        "{} corrected, {} uncorrected",
        count(health.ecc_corrected),
        count(health.ecc_uncorrected)
    );
    out.push(("  ECC", ecc));
    let rows = health.remapped.map_or_else(dash, |r| {
        let more = match (r.failed, r.pending) {
            (true, _) => ", failed",
            (false, true) => ", waits for a reset",
            (false, false) => "",
        };
        format!(
            "{} corrected, {} uncorrected{more}",
            r.corrected, r.uncorrected
        )
    });
    out.push(("  remapped", rows));
    let slowed = match &health.throttle {
        None => dash(),
        Some(why) if why.is_empty() => "no".to_owned(),
        Some(why) => why.join(", "),
    };
    out.push(("  slowed", slowed));
    out
}

fn gpu_entries(model: &Model, gpu: &GpuView, look: &Look) -> Vec<Entry> {
    let glyphs = &look.glyphs;
    let dash = || glyphs.dash.to_owned();
    let held = model.snapshot.as_ref().is_some_and(|s| s.service.is_some());
    let mut out = vec![
        ("model", gpu.model.clone()),
        ("uuid", gpu.uuid.clone()),
        ("SMs", gpu.sms.map_or_else(dash, |n| n.to_string())),
        (
            "memory",
            format!(
                "{} GiB, {} used, {} by processes in no claim",
                gib_or(gpu.mem_total, glyphs),
                gib_or(gpu.mem_used, glyphs),
                gib_or(gpu.mem_unclaimed, glyphs)
            ),
        ),
    ];
    if held {
        out.push((
            "claims",
            format!(
                "{} of {} GiB allocatable, {} charged; SMs {}%",
                gib(gpu.mem_claimed),
                gib_or(gpu.mem_allocatable, glyphs),
                gib_or(gpu.mem_charged, glyphs),
                percent(gpu.sm_claimed * 100.0)
            ),
        ));
        out.push(("claimable", format!("{} of the GPU", share(gpu.claimable))));
        out.push(("shared by", gpu.mode.clone()));
        if let Some(drain) = &gpu.drain {
            out.push(("drained", drained(drain)));
        }
    }
    out.push(("SM active", measured(gpu.sm_active, look)));
    out.push(("occupancy", measured(gpu.sm_occupancy, look)));
    if gpu.sm_unattributed.is_some() || gpu.occupancy_unattributed.is_some() {
        let text = format!(
            "SM active {}, occupancy {}: in no claim",
            figure_percent(gpu.sm_unattributed, glyphs),
            figure_percent(gpu.occupancy_unattributed, glyphs)
        );
        out.push(("unattributed", text));
    }
    out.push(("time busy", figure_percent(gpu.time_busy, glyphs)));
    out.push((
        "tensor, DRAM",
        format!(
            "{}, {}",
            figure_percent(gpu.tensor_active, glyphs),
            figure_percent(gpu.dram_active, glyphs)
        ),
    ));
    let link =
        |f: Option<gshare_proto::Figure>| f.map_or_else(dash, |f| gib(f.value.max(0.0) as u64));
    out.push((
        "GiB/s in/out",
        format!(
            "PCIe {}/{}, NVLink {}/{}",
            link(gpu.pcie_rx),
            link(gpu.pcie_tx),
            link(gpu.nvlink_rx),
            link(gpu.nvlink_tx)
        ),
    ));
    if let Some(health) = &gpu.health {
        out.extend(health_entries(model, health, look));
    }
    let watts = |w: Option<f64>| w.map_or_else(dash, |w| format!("{w:.0} W"));
    out.push((
        "power",
        format!("{} of {}", watts(gpu.power_w), watts(gpu.power_limit_w)),
    ));
    out.push((
        "temperature",
        gpu.temperature_c.map_or_else(dash, |t| format!("{t} C")),
    ));
    let claims = model.snapshot.iter().flat_map(|s| &s.claims);
    for claim in claims.filter(|c| is_on(c, gpu.index)) {
        let text = format!(
            "{} {}: {} (GPU {})",
            claim.id,
            claim.user,
            claim.what,
            gpus(claim)
        );
        out.push(("on it", text));
    }
    out
}

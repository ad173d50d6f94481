//! The health of the GPUs, and what this machine and its service can do.

use gshare_proto::{Caps, Check, GpuState, GpuView, Grade, HealthView, Snapshot};
use ratatui::text::Line;

use super::{Plan, Row, chosen, fit, gap, span, window};
use crate::model::{Model, RowKey, Section, Weight, condition, weight};
use crate::text::{gib_or, left, right, width};
use crate::theme::Look;

/// How many things are wrong with the GPUs.
pub(super) fn trouble(snapshot: &Snapshot) -> usize {
    let gpus = snapshot.gpus.iter();
    gpus.filter(|g| g.state != GpuState::Ok || graded(g) != Some(Grade::Good) && g.health.is_some())
        .count()
}

/// GPUs above, then what to fix, what could be stronger, what holds a claim, and what is fine.
pub(super) fn rows(
    model: &Model,
    snapshot: &Snapshot,
    look: &Look,
    plan: &Plan,
    room: usize,
) -> Vec<Row> {
    let at = model.chosen_index(Section::Health);
    let gpus = model.health_gpus();
    let n = gpus.len();
    let mut out = vec![service(model, snapshot, look).into()];
    let gpu_rows = n.min((room / 2).saturating_sub(2)).max(1);
    let shown = window(n, gpu_rows, at.filter(|at| *at < n));
    let place = match shown.len() {
        some if some == n => String::new(),
        1 => format!(" {} of {n}", shown.start + 1),
        _ => format!(" {}-{} of {n}", shown.start + 1, shown.end),
    };
    out.push(heading(look, plan, &place).into());
    for gpu in &gpus[shown] {
        let line = fit(gpu_line(model, gpu, look, plan), plan.width, look);
        out.push(row(model, line, RowKey::Gpu(gpu.index), look, plan));
    }
    out.push(gap(look, plan));
    let room = room.saturating_sub(out.len());
    let mut rows = checks(model, snapshot, look, plan, true);
    if rows.len() > room {
        rows = checks(model, snapshot, look, plan, false);
    }
    // The chosen one is in sight.
    let at = model.chosen(Section::Health);
    let is_chosen = |row: &Row| {
        row.hits.iter().any(|(_, target)| match target {
            super::Target::Row(_, key) => Some(key) == at,
            _ => false,
        })
    };
    let at = rows.iter().position(is_chosen);
    let shown = window(rows.len(), room, at.filter(|at| *at >= room));
    out.extend(rows.into_iter().skip(shown.start).take(shown.len()));
    out
}

fn graded(gpu: &GpuView) -> Option<Grade> {
    gpu.health.as_ref().map(|h| h.grade)
}

/// What is wrong with a GPU, and what to do; or what is known to be right.
fn health(health: &HealthView, model: &Model, look: &Look) -> String {
    let mut words: Vec<String> = health.reasons.clone();
    if let Some(xid) = health.xids.first() {
        let at = model.clock.short_time(xid.at_ms);
        let said = format!("Xid {}: {}", xid.code, xid.text);
        let again = format!("Xid {} at {at}: {}", xid.code, xid.text);
        // What makes it sick is said once, with its time.
        match words.iter_mut().find(|w| **w == said) {
            Some(reason) => *reason = again,
            None => words.push(again),
        }
    }
    words.extend(
        health
            .throttle
            .iter()
            .flatten()
            .map(|t| format!("slowed: {t}")),
    );
    if let Some(rows) = health.remapped.filter(|r| r.pending || r.failed) {
        let what = if rows.failed {
            "failed"
        } else {
            "waits for a reset"
        };
        words.push(format!("remapping of memory rows {what}"));
    }
    words.extend(health.tell.clone());
    if words.is_empty() {
        let errors = health.ecc_uncorrected.map(|n| n.to_string());
        let errors = errors.unwrap_or_else(|| look.glyphs.dash.to_owned());
        return format!("good; ECC {errors}");
    }
    words.join("; ")
}

fn row(model: &Model, line: Line<'static>, key: RowKey, look: &Look, plan: &Plan) -> Row {
    let line = if model.current() == Some(&key) {
        chosen(line, plan.width, look)
    } else {
        line
    };
    Row::of(line, Section::Health, key)
}

/// `gshared 0.1.0 (system) since 09:12:44`.
fn service(model: &Model, snapshot: &Snapshot, look: &Look) -> Line<'static> {
    let theme = &look.theme;
    let text = match &snapshot.service {
        Some(s) => {
            let yes = |on: bool, what: &str| (!on).then(|| format!("; no {what}"));
            let lacks = [
                yes(s.cgroups, "cgroups"),
                yes(s.device_filter, "device filter"),
                yes(s.shim, "shim"),
            ];
            format!(
                "gshared {} ({}), up {}{}",
                s.version,
                s.mode,
                model.clock.since(s.started_ms),
                lacks.into_iter().flatten().collect::<String>()
            )
        }
        None => "no service on this machine".to_owned(),
    };
    Line::from(vec![
        span("SERVICE ", theme.heading),
        span(text, theme.text),
    ])
}

/// Columns of the table of GPUs; those that matter less go where there is little room.
fn cells(look: &Look, plan: &Plan, texts: [&str; 6]) -> String {
    let glyphs = &look.glyphs;
    let [name, state, mode, memory, degrees, watts] = texts;
    let (name_cols, mode_cols) = if plan.wide { (22, 18) } else { (14, 10) };
    let mut cells = vec![left(name, name_cols, glyphs), left(state, 8, glyphs)];
    if plan.width >= 80 {
        cells.push(left(mode, mode_cols, glyphs));
    }
    cells.push(right(memory, 10, glyphs));
    cells.push(right(degrees, 5, glyphs));
    if plan.width >= 70 {
        cells.push(right(watts, 9, glyphs));
    }
    cells.join(" ")
}

fn heading(look: &Look, plan: &Plan, place: &str) -> Line<'static> {
    let name = format!("GPU{place}");
    let titles = [&name, "state", "mode", "mem GiB", "temp", "power W"];
    let text = format!("{}  health", cells(look, plan, titles));
    Line::styled(text, look.theme.heading)
}

fn gpu_line(model: &Model, gpu: &GpuView, look: &Look, plan: &Plan) -> Line<'static> {
    let (theme, glyphs) = (&look.theme, &look.glyphs);
    let dash = || glyphs.dash.to_owned();
    let state = condition(gpu);
    let style = match state {
        "ok" => theme.text,
        "drained" | "warned" => theme.text,
        _ => theme.error,
    };
    let name = format!("{} {}", gpu.index, gpu.short);
    let mode = gpu.mode_shown().unwrap_or_else(|| gpu.mode.clone());
    let memory = format!(
        "{}/{}",
        gib_or(gpu.mem_used, glyphs),
        gib_or(gpu.mem_whole(), glyphs)
    );
    let degrees = gpu.temperature_c.map_or_else(dash, |t| format!("{t}C"));
    let watts = |w: Option<f64>| w.map_or_else(dash, |w| format!("{w:.0}"));
    let watts = format!("{}/{}", watts(gpu.power_w), watts(gpu.power_limit_w));
    let text = cells(look, plan, [&name, state, &mode, &memory, &degrees, &watts]);
    let note = match (gpu.state, &gpu.drain) {
        (GpuState::Lost, _) => "fallen off the bus: its claims have lost it".to_owned(),
        (GpuState::Hung, _) => "the driver does not answer for it".to_owned(),
        (GpuState::Released, _) => "released by an administrator".to_owned(),
        (_, Some(drain)) => {
            let why = drain.reason.as_ref().map(|r| format!(": {r}"));
            format!("by {}{}", drain.by, why.unwrap_or_default())
        }
        _ => match &gpu.health {
            Some(h) => health(h, model, look),
            None => look.glyphs.dash.to_owned(),
        },
    };
    Line::from(vec![span(text, style), span(format!("  {note}"), style)])
}

/// What holds a claim here, a sentence for each.
fn holds(snapshot: &Snapshot) -> [(&'static str, &'static str); 3] {
    let service = snapshot.service.as_ref();
    let mps = snapshot.gpus.iter().any(|g| g.mode == "mps");
    let mig = snapshot.gpus.iter().any(GpuView::is_instance);
    [
        (
            "memory",
            match snapshot.caps {
                Caps::Strict => "a program cannot exceed its limit (strict)",
                Caps::Cooperative => {
                    "a program cannot exceed its limit by accident; on purpose it can (cooperative)"
                }
                Caps::None => "nothing holds a program to a limit",
            },
        ),
        (
            "compute",
            match (snapshot.caps, mps, mig) {
                (Caps::None, ..) => "nothing holds a program to a limit",
                (_, true, _) => {
                    "with MPS each claim has its part of the SMs, else of the GPU's time"
                }
                (_, _, true) => {
                    "an instance has its SMs; on other GPUs each claim has its part of the time"
                }
                _ => "in turns: each claim gets its part of the GPU's time",
            },
        ),
        (
            "place",
            match service {
                Some(s) if s.device_filter => "a program sees only the GPUs of its claim",
                Some(_) => "a program can open other GPUs: there is no device filter",
                None => "a program can open every GPU",
            },
        ),
    ]
}

/// What was found; what is fine with its details where `whole`, else by name.
fn checks(model: &Model, snapshot: &Snapshot, look: &Look, plan: &Plan, whole: bool) -> Vec<Row> {
    let (theme, glyphs) = (&look.theme, &look.glyphs);
    let heading = |title: &str, n: Option<usize>| {
        let n = n.map_or_else(String::new, |n| format!(" {n}"));
        Row::from(Line::from(vec![
            span(title.to_owned(), theme.heading),
            span(n, theme.text),
        ]))
    };
    let words = |text: String| Row::from(fit(Line::styled(text, theme.dim), plan.width, look));
    let found = model.check_rows();
    let of = |wanted: Weight| found.iter().filter(move |c| weight(c) == wanted);
    let mut out = Vec::new();
    match &model.checks.rows {
        Some(Ok(_)) => {}
        Some(Err(why)) => out.push(words(format!("CHECKS  {why}"))),
        None if model.service().is_err() => {
            out.push(words("CHECKS  without a service: gshare doctor".to_owned()));
        }
        None => out.push(words("CHECKS  asking the service".to_owned())),
    }
    let told = |check: &Check| {
        let (sign, style) = match (weight(check), check.state.as_str()) {
            (Weight::Fix, "missing") => (glyphs.broken, theme.error),
            (Weight::Fix, _) => (glyphs.sign, theme.warn),
            _ => (" ", theme.dim),
        };
        let text = match weight(check) {
            Weight::Fix => theme.text,
            _ => theme.dim,
        };
        let line = Line::from(vec![
            span(format!("{sign} "), style),
            span(format!("{}: {}", check.name, check.detail), text),
        ]);
        let key = RowKey::Check(check.name.clone());
        let mut rows = vec![row(model, fit(line, plan.width, look), key, look, plan)];
        if let (Weight::Fix, Some(fix)) = (weight(check), &check.fix) {
            let line = Line::styled(format!("    {fix}"), theme.key);
            rows.push(fit(line, plan.width, look).into());
        }
        rows
    };
    for (title, weight) in [
        ("TO FIX", Weight::Fix),
        ("COULD BE STRONGER", Weight::Stronger),
    ] {
        if of(weight).next().is_some() {
            out.push(heading(title, Some(of(weight).count())));
            out.extend(of(weight).flat_map(|check| told(check)));
        }
    }
    if snapshot.service.is_some() && model.filter.text().is_empty() {
        out.push(heading("WHAT HOLDS A CLAIM", None));
        for (what, text) in holds(snapshot) {
            let line = Line::from(vec![
                span(format!("  {what:<8} "), theme.dim),
                span(text, theme.text),
            ]);
            out.push(fit(line, plan.width, look).into());
        }
    }
    // Names in columns; each is a row to choose.
    let fine: Vec<&&Check> = of(Weight::Fine).collect();
    if !fine.is_empty() {
        out.push(heading("FINE", Some(fine.len())));
    }
    if whole {
        out.extend(fine.iter().flat_map(|check| told(check)));
    } else if !fine.is_empty() {
        let longest = fine
            .iter()
            .map(|c| width(&c.name))
            .max()
            .unwrap_or(0)
            .min(30)
            + 2;
        let across = (plan.width.saturating_sub(2) / longest).max(1);
        for names in fine.chunks(across) {
            let mut out_row = Row::from(Line::from("  "));
            for (i, check) in names.iter().enumerate() {
                let key = RowKey::Check(check.name.clone());
                let style = match model.current() == Some(&key) {
                    true => theme.selected,
                    false => theme.dim,
                };
                let from = 2 + i * longest;
                let name = left(&check.name, longest - 2, glyphs);
                out_row.line.push_span(span(name, style));
                out_row.line.push_span(span("  ", theme.dim));
                let target = super::Target::Row(Section::Health, key);
                out_row.hits.push((from..from + longest - 2, target));
            }
            out.push(out_row);
        }
    }
    out
}

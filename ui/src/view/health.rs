//! The health of the GPUs, and what this machine and its service can do.

use gshare_proto::{Check, GpuState, GpuView, Grade, HealthView, Snapshot};
use ratatui::style::Style;
use ratatui::text::Line;

use super::{Plan, Row, chosen, fit, gap, span, window};
use crate::model::{Model, RowKey, Section, condition, mem_whole};
use crate::text::{gib_or, left, right, width};
use crate::theme::Look;

/// How many things are wrong with the GPUs.
pub(super) fn trouble(snapshot: &Snapshot) -> usize {
    let gpus = snapshot.gpus.iter();
    gpus.filter(|g| g.state != GpuState::Ok || graded(g) != Some(Grade::Good) && g.health.is_some())
        .count()
}

/// GPUs above, mechanisms below, in `room` rows.
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
    out.extend(checks(
        model,
        look,
        plan,
        room,
        at.and_then(|at| at.checked_sub(n)),
    ));
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
        gib_or(mem_whole(gpu), glyphs)
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

fn sign(check: &Check, look: &Look) -> Style {
    match check.state.as_str() {
        "ok" => look.theme.good,
        "limited" => look.theme.text,
        _ => look.theme.error,
    }
}

fn checks(model: &Model, look: &Look, plan: &Plan, room: usize, at: Option<usize>) -> Vec<Row> {
    let theme = &look.theme;
    let words = |text: String| {
        vec![Row::from(fit(
            Line::styled(text, theme.dim),
            plan.width,
            look,
        ))]
    };
    let rows = match &model.checks.rows {
        Some(Ok(rows)) => rows,
        Some(Err(why)) => return words(format!("DOCTOR  {why}")),
        None if model.service().is_err() => {
            return words("DOCTOR  without a service: gshare doctor".to_owned());
        }
        None => return words("DOCTOR  asking the service".to_owned()),
    };
    let count = |state: &str| rows.iter().filter(|c| c.state == state).count();
    let found = model.check_rows();
    let shown = window(found.len(), room.saturating_sub(1), at);
    let place = if shown.len() < found.len() && !shown.is_empty() {
        format!("  {}-{} of {}", shown.start + 1, shown.end, found.len())
    } else {
        String::new()
    };
    let mut out = vec![Row::from(Line::from(vec![
        span("DOCTOR", theme.heading),
        span(
            format!(
                "  {} ok, {} limited, {} missing{place}",
                count("ok"),
                count("limited"),
                count("missing")
            ),
            theme.text,
        ),
    ]))];
    let longest = rows.iter().map(|c| width(&c.name)).max().unwrap_or(0);
    let names = longest.min(if plan.wide { 32 } else { 20 });
    for check in &found[shown] {
        let state = left(&check.state, 8, &look.glyphs);
        let line = Line::from(vec![
            span(state, sign(check, look)),
            span(left(&check.name, names, &look.glyphs), theme.text),
            span(format!("  {}", check.detail), theme.dim),
        ]);
        let line = fit(line, plan.width, look);
        out.push(row(
            model,
            line,
            RowKey::Check(check.name.clone()),
            look,
            plan,
        ));
    }
    out
}

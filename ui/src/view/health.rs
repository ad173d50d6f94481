//! The health of the GPUs, and what this machine and its service can do.

use gshare_proto::{Caps, Check, GpuState, GpuView, Grade, HealthView, Snapshot};
use ratatui::layout::{Constraint, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Row as Cells, Table};

use super::{Row, Scene, View, cells, line, place, span, window};
use crate::model::{RowKey, Section, Weight, trouble, weight};
use crate::text::{width, wrap};

/// How many things are wrong with the GPUs.
pub(super) fn troubles(snapshot: &Snapshot) -> usize {
    let gpus = snapshot.gpus.iter();
    let wrong = |g: &&GpuView| {
        let grade = g.health.as_ref().map(|h| h.grade);
        g.state != GpuState::Ok || grade.is_some_and(|grade| grade != Grade::Good)
    };
    gpus.filter(wrong).count()
}

/// GPUs above, then what to fix, what could be stronger, what holds a claim, and what is fine.
pub(super) fn draw(view: &View<'_>, area: Rect, scene: &mut Scene<'_>) {
    let (model, look) = (view.model, view.look);
    let cols = usize::from(area.width);
    let at = model.chosen_index(Section::Health);
    let gpus = model.health_gpus();
    let n = gpus.len();
    let room = usize::from(area.height);
    let shown = n.min((room / 2).saturating_sub(2)).max(1);
    let shown = window(n, shown, at.filter(|at| *at < n));
    let part = place(&shown, n);
    let [head, table, rest] = super::parts(area, [1, shown.len() + 1, usize::MAX]);
    scene.line(&service(view), head, 0);
    draw_gpus(view, &gpus[shown], &part, table, scene);
    let area = rest;
    let rule = match cols >= super::WIDE {
        true => line!(view; free look.glyphs.rule.repeat(cols)),
        false => Line::default(),
    };
    scene.line(&rule, area, 0);
    let room = usize::from(area.height).saturating_sub(1);
    // Whole sentences where there is room, then what is fine by name.
    let forms = [(true, 4), (true, 1), (false, 4), (false, 1)].map(|form| checks(view, cols, form));
    let fits = forms.iter().position(|rows| rows.len() <= room);
    let rows = forms.into_iter().nth(fits.unwrap_or(3)).unwrap_or_default();
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
    let rows = rows.into_iter().skip(shown.start).take(shown.len());
    scene.rows(rows.collect(), super::below(area, 1), look);
}

/// What is wrong with a GPU, and what to do; or what is known to be right.
pub(super) fn health(view: &View<'_>, health: &HealthView) -> String {
    let mut words: Vec<String> = health.reasons.clone();
    if let Some(xid) = health.xids.first() {
        let at = view.model.clock.short_time(xid.at_ms);
        let said = format!("Xid {}: {}", xid.code, xid.text);
        let again = format!("Xid {} at {at}: {}", xid.code, xid.text);
        // What makes it sick is said once, with its time.
        match words.iter_mut().find(|w| **w == said) {
            Some(reason) => *reason = again,
            None => words.push(again),
        }
    }
    let slowed = health.throttle.iter().flatten();
    words.extend(slowed.map(|t| format!("slowed: {t}")));
    match health.remapped {
        Some(rows) if rows.failed => words.push("remapping of memory rows failed".to_owned()),
        Some(rows) if rows.pending => {
            words.push("remapping of memory rows waits for a reset".to_owned());
        }
        _ => {}
    }
    words.extend(health.tell.clone());
    match words.is_empty() {
        true => format!("good; ECC {}", view.or_dash(health.ecc_uncorrected)),
        false => words.join("; "),
    }
}

/// `gshared 0.1.0 (system), up 3h`.
fn service(view: &View<'_>) -> Line<'static> {
    let text = match &view.snapshot.service {
        Some(s) => {
            let parts = [
                (s.cgroups, "; no cgroups"),
                (s.device_filter, "; no device filter"),
                (s.shim, "; no shim"),
            ];
            let lacks = parts.into_iter().filter(|(has, _)| !has);
            let lacks: String = lacks.map(|(_, what)| what).collect();
            let up = view.model.clock.since(s.started_ms);
            format!("gshared {} ({}), up {up}{lacks}", s.version, s.mode)
        }
        None => "no service on this machine".to_owned(),
    };
    line!(view; heading "SERVICE ", text text)
}

/// Without the columns that matter less, where there is little room.
fn kept<T>(cols: usize, all: [T; 7]) -> impl Iterator<Item = T> {
    let goes = move |i| (i == 2 && cols < 80) || (i == 5 && cols < 70);
    let kept = all.into_iter().enumerate().filter(move |(i, _)| !goes(*i));
    kept.map(|(_, one)| one)
}

fn draw_gpus(view: &View<'_>, gpus: &[&GpuView], part: &str, area: Rect, scene: &mut Scene<'_>) {
    let cols = usize::from(area.width);
    let (names, modes) = if cols >= super::WIDE {
        (22, 18)
    } else {
        (14, 10)
    };
    let sizes = [names, 8, modes, 10, 5, 9, 0];
    let rest = cols.saturating_sub(kept(cols, sizes).map(|n| n + 1).sum::<usize>() - 1);
    let figures = |text: &str| Line::from(text.to_owned()).right_aligned();
    let row = |gpu: &&GpuView| {
        let state = gpu.condition();
        let style = match state {
            "ok" | "drained" | "warned" => view.theme.text,
            _ => view.theme.error,
        };
        let watts = |w: Option<f64>| view.or_dash(w.map(|w| format!("{w:.0}")));
        let note = match (trouble(gpu), &gpu.drain) {
            (Some(trouble), _) => trouble.to_owned(),
            (_, Some(drain)) => {
                let why = drain.reason.as_ref().map(|r| format!(": {r}"));
                format!("by {}{}", drain.by, why.unwrap_or_default())
            }
            _ => view.or_dash(gpu.health.as_ref().map(|h| health(view, h))),
        };
        let mode = gpu.mode_shown().unwrap_or_else(|| gpu.mode.clone());
        let (used, whole) = (view.gib(gpu.mem_used), view.gib(gpu.mem_whole()));
        let (power, most) = (watts(gpu.power_w), watts(gpu.power_limit_w));
        let degrees = view.or_dash(gpu.temperature_c.map(|t| format!("{t}C")));
        let cells = [
            view.cut(&format!("{} {}", gpu.index, gpu.short), names)
                .into(),
            state.into(),
            view.cut(&mode, modes).into(),
            figures(&format!("{used}/{whole}")),
            figures(&degrees),
            figures(&format!("{power}/{most}")),
            view.cut(&format!(" {note}"), rest).into(),
        ];
        Cells::new(kept(cols, cells)).style(style)
    };
    let [memory, heat, power] = ["mem GiB", "temp", "power W"].map(figures);
    let gpu = format!("GPU {part}").into();
    let head = [
        gpu,
        "state".into(),
        "mode".into(),
        memory,
        heat,
        power,
        " health".into(),
    ];
    let head = Cells::new(kept(cols, head)).style(view.theme.heading);
    let width = |n| match n {
        0 => Constraint::Fill(1),
        n => Constraint::Length(cells(n)),
    };
    let rows = [head].into_iter().chain(gpus.iter().map(row));
    let table = Table::new(rows, kept(cols, sizes).map(width));
    let keys = gpus.iter().map(|g| RowKey::Gpu(g.index)).collect();
    scene.table(view, table, area, (Section::Health, keys));
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
                Caps::None => "no limit is enforced",
            },
        ),
        (
            "compute",
            match (snapshot.caps, mps, mig) {
                (Caps::None, ..) => "no limit is enforced",
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

/// What was found, in so many rows each at most; what is fine with its details where `whole`, else by name.
fn checks(view: &View<'_>, cols: usize, (whole, most): (bool, usize)) -> Vec<Row> {
    let (model, theme, glyphs) = (view.model, view.theme, view.glyphs);
    let heading =
        |title: &str, n: usize| Row::from(line!(view; heading title, text format!(" {n}")));
    let found = model.check_rows();
    let of = |wanted: Weight| -> Vec<&Check> {
        let all = found.iter().copied();
        all.filter(|c| weight(c) == wanted).collect()
    };
    let mut out: Vec<Row> = Vec::new();
    let why = match &model.checks.rows {
        Some(Ok(_)) => None,
        Some(Err(why)) => Some(why.as_str()),
        None if model.service().is_err() => Some("without a service: gshare doctor"),
        None => Some("asking the service"),
    };
    out.extend(why.map(|why| line!(view; dim format!("CHECKS  {why}")).into()));
    let told = |check: &Check| {
        let (sign, style) = match (weight(check), check.state.as_str()) {
            (Weight::Fix, "missing") => (glyphs.broken, theme.error),
            (Weight::Fix, _) => (glyphs.sign, theme.warn),
            _ => (" ", theme.dim),
        };
        let fix = check.fix.as_ref().filter(|_| weight(check) == Weight::Fix);
        let text = match weight(check) {
            Weight::Fix => theme.text,
            _ => theme.dim,
        };
        let said = format!("{}: {}", check.name, check.detail);
        let said = wrap(&said, cols.saturating_sub(2), most, glyphs).into_iter();
        let row = |(i, said)| {
            let sign = if i == 0 { sign } else { " " };
            let line = Line::from(vec![span(format!("{sign} "), style), span(said, text)]);
            let key = RowKey::Check(check.name.clone());
            view.row(line, cols, Section::Health, key)
        };
        let mut rows: Vec<Row> = said.enumerate().map(row).collect();
        rows.extend(fix.map(|fix| line!(view; key format!("    {fix}")).into()));
        rows
    };
    for (title, weight) in [
        ("TO FIX", Weight::Fix),
        ("COULD BE STRONGER", Weight::Stronger),
    ] {
        let rows = of(weight);
        if !rows.is_empty() {
            out.push(heading(title, rows.len()));
            out.extend(rows.into_iter().flat_map(told));
        }
    }
    if view.snapshot.service.is_some() && model.filter.text().is_empty() {
        out.push(line!(view; heading "ENFORCEMENT").into());
        let rows = holds(view.snapshot).into_iter();
        out.extend(
            rows.map(|(what, text)| line!(view; dim format!("  {what:<8} "), text text).into()),
        );
    }
    let fine = of(Weight::Fine);
    if fine.is_empty() {
        return out;
    }
    out.push(heading("FINE", fine.len()));
    if whole {
        out.extend(fine.into_iter().flat_map(told));
        return out;
    }
    // Names in columns; each is a row to choose.
    let longest = fine.iter().map(|c| width(&c.name)).max();
    let longest = longest.unwrap_or(0).min(30) + 2;
    let across = (cols.saturating_sub(2) / longest).max(1);
    for names in fine.chunks(across) {
        let mut row = Row::from(Line::from("  "));
        for (i, check) in names.iter().enumerate() {
            let key = RowKey::Check(check.name.clone());
            let style = match model.current() == Some(&key) {
                true => theme.selected,
                false => theme.dim,
            };
            let from = 2 + i * longest;
            let name = view.left(&check.name, longest - 2);
            row.line.push_span(span(name, style));
            row.line.push_span("  ");
            let target = super::Target::Row(Section::Health, key);
            row.hits.push((from..from + longest - 2, target));
        }
        out.push(row);
    }
    out
}

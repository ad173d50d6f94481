//! The health of the GPUs, and the abilities of this machine and its service.

use gshare_proto::{Caps, Check, GpuState, GpuView, Grade, HealthView, Snapshot, messages};
use ratatui::layout::{Constraint, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Row as Cells, Table};

use super::{Facts, Scene, Target, View, cells, line, place, window};
use crate::model::{RowKey, Section, Weight, trouble, weight};

pub(super) fn troubles(snapshot: &Snapshot) -> usize {
    let gpus = snapshot.gpus.iter();
    let wrong = |g: &&GpuView| {
        let grade = g.health.as_ref().map(|h| h.grade);
        g.state != GpuState::Ok || grade.is_some_and(|grade| grade != Grade::Good)
    };
    gpus.filter(wrong).count()
}

/// GPUs at the top, then what to fix, what could be stronger, what limits a claim, and what is fine.
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
    scene.line(service(view), head, 0);
    draw_gpus(view, &gpus[shown], &part, table, scene);
    let room = usize::from(rest.height).saturating_sub(1);
    // Rows that are fine get one line each if whole sentences have no room.
    let whole = checks(view, cols, MOST);
    let rows = match whole.len() <= room {
        true => whole,
        false => checks(view, cols, 1),
    };
    // Keep the chosen one visible.
    let is_chosen = |(key, _): &Told| {
        let key = key.as_ref();
        key.is_some_and(|key| view.is_chosen(Section::Health, key))
    };
    let at = rows.iter().position(is_chosen);
    let shown = window(rows.len(), room, at.filter(|at| *at >= room));
    let rule = match shown.len() < rows.len() {
        true => line!(view; dim place(&shown, rows.len())).right_aligned(),
        false if cols >= super::WIDE => line!(view; free look.glyphs.rule.repeat(cols)),
        false => Line::default(),
    };
    scene.line(rule, rest, 0);
    let places = super::below(rest, 1).rows();
    for (told, at) in rows.into_iter().skip(shown.start).zip(places) {
        let is_chosen = is_chosen(&told);
        let (key, line) = told;
        scene.line(line, at, 0);
        if is_chosen {
            scene.buf.set_style(at, view.theme.selected);
        }
        if let Some(key) = key {
            scene.hit(at, Target::Row(Section::Health, key));
        }
    }
}

const MOST: usize = 4;

/// What is wrong with a GPU, and what to do; or what is known to be right.
pub(super) fn health(view: &View<'_>, health: &HealthView) -> String {
    let mut words: Vec<String> = health.reasons.clone();
    if let Some(xid) = health.xids.first() {
        let at = view.model.clock.short_time(xid.at_ms);
        let said = format!("Xid {}: {}", xid.code, xid.text);
        let again = format!("Xid {} at {at}: {}", xid.code, xid.text);
        // The reason for its sickness appears once, with its time.
        match words.iter_mut().find(|w| **w == said) {
            Some(reason) => *reason = again,
            None => words.push(again),
        }
    }
    let slowed = health.throttle.iter().flatten();
    words.extend(slowed.map(|t| format!("slowed: {t}")));
    match health.remapped {
        Some(rows) if rows.failed => words.push(messages::remapping_failed()),
        Some(rows) if rows.pending => words.push(messages::remapping_waits()),
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
            let up = view.model.clock.since(s.started_ms);
            format!("gshared {} ({}), up {up}", s.version, s.mode)
        }
        None => messages::no_service(),
    };
    line!(view; heading "SERVICE ", text text)
}

/// Drops the less important columns if there is little room.
fn kept<T>(cols: usize, all: [T; 7]) -> impl Iterator<Item = T> {
    let goes = move |i| (i == 2 && cols < 80) || (i == 5 && cols < 70);
    let kept = all.into_iter().enumerate().filter(move |(i, _)| !goes(*i));
    kept.map(|(_, one)| one)
}

fn draw_gpus(view: &View<'_>, gpus: &[&GpuView], part: &str, area: Rect, scene: &mut Scene<'_>) {
    let cols = usize::from(area.width);
    let is_wide = cols >= super::WIDE;
    let (names, modes) = if is_wide { (22, 18) } else { (14, 10) };
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
        let degrees = view.degrees(gpu);
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
    let [state, mode, health] = ["state", "mode", " health"].map(Line::from);
    let head = [gpu, state, mode, memory, heat, power, health];
    let head = Cells::new(kept(cols, head)).style(view.theme.heading);
    let width = |n| match n {
        0 => Constraint::Fill(1),
        n => Constraint::Length(cells(n)),
    };
    let rows = [head].into_iter().chain(gpus.iter().map(row));
    let table = Table::new(rows, kept(cols, sizes).map(width));
    let keys = gpus.iter().map(|g| RowKey::Gpu(g.index)).collect();
    scene.table(view, table, area, (Section::Health, 1, keys));
}

/// What limits a claim here, one sentence each.
fn holds(snapshot: &Snapshot) -> [(&'static str, &'static str); 3] {
    let mps = snapshot.gpus.iter().any(|g| g.mode == "mps");
    let mig = snapshot.gpus.iter().any(GpuView::is_instance);
    if snapshot.service.as_ref().is_some_and(|s| s.off.is_some()) {
        let none = "gshare is off: nothing is limited";
        return ["memory", "compute", "place"].map(|what| (what, none));
    }
    let memory = match snapshot.caps {
        Caps::Strict => "a program cannot exceed its limit (strict)",
        Caps::Cooperative => {
            "a program cannot exceed its limit by accident; on purpose it can (cooperative)"
        }
        Caps::None => "no limit is enforced",
    };
    let compute = match (snapshot.caps, mps, mig) {
        (Caps::None, ..) => "no limit is enforced",
        (_, true, _) => {
            "with MPS each claim has its part of the SMs; on other GPUs it gets its part of the time"
        }
        (_, _, true) => {
            "each MIG instance has its own SMs; on other GPUs each claim gets its part of the time"
        }
        _ => "in turns: each claim gets its part of the GPU's time",
    };
    let place = match &snapshot.service {
        Some(s) if s.device_filter => "a program sees only the GPUs of its claim",
        Some(_) => "a program can open other GPUs: there is no device filter",
        None => "a program can open every GPU",
    };
    [("memory", memory), ("compute", compute), ("place", place)]
}

/// A line, and the row that it belongs to.
type Told = (Option<RowKey>, Line<'static>);

/// The checks, and what limits a claim; those that are fine in at most this many rows each.
fn checks(view: &View<'_>, cols: usize, fine: usize) -> Vec<Told> {
    let (model, theme, glyphs) = (view.model, view.theme, view.glyphs);
    let found = model.check_rows();
    let mut out: Vec<Told> = Vec::new();
    let why = match &model.checks.rows {
        Some(Ok(_)) => None,
        Some(Err(why)) => Some(why.as_str()),
        None if model.service().is_err() => Some("without a service: gshare doctor"),
        None => Some("asking the service"),
    };
    out.extend(why.map(|why| (None, line!(view; dim format!("CHECKS  {why}")))));
    let told = |check: &&Check| -> Vec<Told> {
        let (sign, mark, text) = match (weight(check), check.state.as_str()) {
            (Weight::Fix, "missing") => (glyphs.broken, theme.error, theme.text),
            (Weight::Fix, _) => (glyphs.sign, theme.warn, theme.text),
            _ => (" ", theme.dim, theme.dim),
        };
        let is_fine = weight(check) == Weight::Fine;
        let most = if is_fine { fine } else { MOST };
        let said = format!("{}: {}", check.name, check.detail);
        let mut facts = Facts::new(view.look, cols, (0, 2));
        facts.signed((sign, mark), (&said, text), most);
        let row = |line| (Some(RowKey::Check(check.name.clone())), line);
        let fix = check.fix.iter().filter(|_| weight(check) == Weight::Fix);
        let fix = fix.map(|fix| (None, line!(view; key format!("    {fix}"))));
        facts.lines.into_iter().map(row).chain(fix).collect()
    };
    for (title, of) in [
        ("TO FIX", Weight::Fix),
        ("COULD BE STRONGER", Weight::Stronger),
        ("FINE", Weight::Fine),
    ] {
        if of == Weight::Fine && view.snapshot.service.is_some() && model.filter.text().is_empty() {
            let mut facts = Facts::new(view.look, cols, (2, 9));
            facts.lines.push(line!(view; heading "ENFORCEMENT"));
            for (what, text) in holds(view.snapshot) {
                facts.tell(what, text, theme.text, MOST);
            }
            out.extend(facts.lines.into_iter().map(|line| (None, line)));
        }
        let rows: Vec<&&Check> = found.iter().filter(|c| weight(c) == of).collect();
        if !rows.is_empty() {
            let head = line!(view; heading title, text format!(" {}", rows.len()));
            out.push((None, head));
            out.extend(rows.into_iter().flat_map(told));
        }
    }
    out
}

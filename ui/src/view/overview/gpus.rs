//! The GPUs as maps: who holds which part, and what is used of it.

use gshare_proto::{ClaimView, Figure, GpuState, GpuView, Grade, Snapshot};
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{RenderDirection, Sparkline, Widget};

use crate::model::{
    AtLeast, Model, RowKey, Section, compute, condition, is_by_sms, sm_of_gpu, words,
};
use crate::text::{cut, figure, gib_or, left, percent, right, share, width};
use crate::theme::Look;
use crate::view::claims::what;
use crate::view::{Scene, Target, fit, span, window, zero};
use crate::widgets::bullet::Bullet;
use crate::widgets::slice_map::{Kind, Slice, SliceMap};

/// Whether a claim holds a part of a GPU.
pub(in crate::view) fn is_on(claim: &ClaimView, gpu: u32) -> bool {
    !claim.place.in_host() && claim.gpus.iter().any(|g| g.gpu == gpu)
}

/// The slices of a GPU with one of this size for the viewer, of what is free.
pub(in crate::view) fn slices_with(
    model: &Model,
    snapshot: &Snapshot,
    look: &Look,
    gpu: &GpuView,
    size: f64,
) -> Vec<Slice> {
    let mut slices = Table::new(model, snapshot, look, 80, 1).slices(gpu);
    let free = slices.pop_if(|s| matches!(s.kind, Kind::Free | Kind::Rest));
    slices.push(Slice {
        names: vec![format!("yours {}", zero(share(size))), "yours".to_owned()],
        size,
        kind: Kind::Mine,
        used: Some(0.0),
        ..Slice::default()
    });
    let rest = free.map_or(0.0, |f| f.size) - size;
    if rest > 0.005 {
        slices.push(Slice {
            names: vec![zero(share(rest))],
            size: rest,
            kind: Kind::Rest,
            ..Slice::default()
        });
    }
    slices
}

/// A map is not wider than this.
const MAP: usize = 60;

/// `4090` of `RTX 4090`, `H100` of `H100 80GB`.
fn tiny(short: &str) -> String {
    let words: Vec<&str> = short
        .split_whitespace()
        .filter(|w| *w != "RTX" && *w != "NVIDIA" && *w != "GeForce" && !w.ends_with("GB"))
        .collect();
    if words.is_empty() {
        short.to_owned()
    } else {
        words.join(" ")
    }
}

/// Columns that all GPUs share.
struct Table<'a> {
    model: &'a Model,
    snapshot: &'a Snapshot,
    look: &'a Look,
    /// Rows of one GPU.
    each: usize,
    name: usize,
    map: usize,
    /// SM activity has a column of its own.
    sm: bool,
    /// The words at the end, or the plot.
    rest: usize,
}

/// Columns of figures.
const COMPUTE: usize = 7;
const GIB: usize = 6;

impl<'a> Table<'a> {
    fn new(
        model: &'a Model,
        snapshot: &'a Snapshot,
        look: &'a Look,
        cols: usize,
        each: usize,
    ) -> Self {
        let sm = each > 1 && cols >= super::super::WIDE;
        let mut table = Self {
            model,
            snapshot,
            look,
            each,
            name: 0,
            map: 0,
            sm,
            rest: 0,
        };
        let names = snapshot.gpus.iter().map(|g| width(&table.name_of(g)));
        let most = match (each, table.is_one_model()) {
            _ if sm => 19,
            (1, true) => 3,
            _ => 9,
        };
        // Below it stand the temperature and, where there is room, the power.
        let least = match each {
            1 => 1,
            _ if sm => 14,
            _ => 6,
        };
        table.name = names.max().unwrap_or(0).max(least).min(most);
        let figures = COMPUTE + 2 * GIB + if sm { 7 } else { 0 };
        let room = cols.saturating_sub(table.name + 1 + figures);
        // Words at the end have their place where the map keeps its own.
        table.rest = match room {
            100.. => (room - MAP).min(40),
            50.. if sm => (room - 50).clamp(8, 24),
            36.. => 14.min(room - 30),
            _ => 0,
        };
        table.map = (room - table.rest).min(MAP);
        table
    }

    fn is_one_model(&self) -> bool {
        let mut gpus = self.snapshot.gpus.iter().map(|g| &g.short);
        let first = gpus.next();
        gpus.all(|g| Some(g) == first)
    }

    /// The index, as wide as the longest one, and the model where there is room or need for it.
    fn name_of(&self, gpu: &GpuView) -> String {
        let most = self.snapshot.gpus.iter().map(|g| g.index).max();
        let cols = most.unwrap_or(0).to_string().len();
        let index = format!("{:>cols$}", gpu.index);
        // What it becomes is news, what it is until then is on Health.
        let wanted = gpu.mode_wanted.as_ref().map(|mode| format!("to {mode}"));
        let mode = wanted.or_else(|| gpu.mode_shown()).filter(|_| self.sm);
        let mode = mode.map_or_else(String::new, |m| format!(" {m}"));
        match self.each {
            1 if self.is_one_model() => index,
            _ if self.sm => format!("{index} {}{mode}", gpu.short),
            _ => format!("{index} {}", tiny(&gpu.short)),
        }
    }

    fn heading(&self, hidden: usize) -> Line<'static> {
        let (theme, glyphs) = (&self.look.theme, &self.look.glyphs);
        let focus = self.model.section == Section::Gpus;
        let style = if focus { theme.focus } else { theme.heading };
        let more = if hidden > 0 {
            format!(" +{hidden}")
        } else {
            String::new()
        };
        let first = self.name + 1 + self.map;
        let held = ["held, and below in use", "held:"].into_iter();
        let mut held = held.skip(usize::from(self.each == 1));
        let mut spans = vec![span("GPUS", style), span(more, theme.dim)];
        let legend = [
            (glyphs.used, "used", theme.used),
            (glyphs.burst, "burst", theme.burst),
            (glyphs.unused, "unused", theme.unused),
        ];
        let cols: usize = legend.iter().map(|(_, word, _)| 4 + width(word)).sum();
        let at = crate::text::span_width(&spans);
        let room = first.saturating_sub(at + cols);
        let words = held.find(|words| width(words) + 2 <= room).unwrap_or("");
        // The signs stand over the end of the maps where there is room, else behind the words.
        let gap = if words.len() > 5 {
            room
        } else {
            width(words) + 2
        };
        let words = left(&format!(" {words}"), gap.min(room), glyphs);
        spans.push(span(words, theme.dim));
        if at + cols <= first {
            for (sign, word, style) in legend {
                spans.extend([
                    span(sign.repeat(2), style),
                    span(format!(" {word} "), theme.dim),
                ]);
            }
        }
        let gap = first.saturating_sub(crate::text::span_width(&spans));
        spans.push(Span::raw(" ".repeat(gap)));
        let by_sms = self.snapshot.gpus.iter().any(is_by_sms);
        spans.push(span(
            right(if by_sms { "comp %" } else { "time %" }, COMPUTE, glyphs),
            theme.dim,
        ));
        if self.sm {
            spans.push(span(right("SM %", 7, glyphs), theme.dim));
        }
        spans.push(span(right("used", GIB, glyphs), theme.dim));
        spans.push(span(right("claim", GIB, glyphs), theme.dim));
        let tail = match (self.sm, self.rest) {
            (true, 12..) => format!(" GiB{}", right("10 min", self.rest - 4, glyphs)),
            (_, 4..) => " GiB".to_owned(),
            _ => String::new(),
        };
        spans.push(span(tail, theme.dim));
        Line::from(spans)
    }

    /// Its holders, from the left, and what is left.
    fn slices(&self, gpu: &GpuView) -> Vec<Slice> {
        let glyphs = &self.look.glyphs;
        let whole = gpu.mem_whole().unwrap_or(0) as f64;
        let part = |bytes: Option<u64>| match bytes {
            Some(bytes) if whole > 0.0 => bytes as f64 / whole,
            _ => 0.0,
        };
        let mut out = Vec::new();
        for claim in self.snapshot.claims.iter().filter(|c| is_on(c, gpu.index)) {
            let mine = claim.uid == self.model.viewer.uid;
            let parts = claim.gpus.iter().filter(|g| g.gpu == gpu.index);
            for held in parts {
                let used = compute(held, self.snapshot).map(|f| f.value / 100.0);
                let size = held.sm_request;
                let name = what(claim);
                let more = claim.gpus.iter().position(|g| g.gpu == gpu.index);
                let more = more.filter(|_| name.is_empty() && claim.gpus.len() > 1);
                let n = claim.gpus.len();
                let name = more.map_or(name, |at| format!("{} of {n} GPUs", at + 1));
                let ClaimView { id, user, .. } = claim;
                let moves = words(claim, self.snapshot, self.model.clock, glyphs.arrow);
                let moves = claim.announced.is_some().then_some(moves.text);
                let moves = moves.filter(|text| text.starts_with(glyphs.arrow));
                let names = match (claim.adopted, mine) {
                    (true, _) => vec![
                        format!("no claim: {user}"),
                        format!("no claim {user}"),
                        user.clone(),
                    ],
                    (_, true) => vec![
                        format!("{}{id} {name}", glyphs.mine),
                        format!("{}{id}", glyphs.mine),
                        id.clone(),
                    ],
                    _ if name.is_empty() => vec![format!("{id} {user}"), id.clone()],
                    _ => vec![
                        format!("{id} {user} {name}"),
                        format!("{id} {user}"),
                        id.clone(),
                    ],
                };
                let moved = moves
                    .iter()
                    .flat_map(|to| [format!("{id} {user} {to}"), format!("{id} {to}")]);
                out.push(Slice {
                    names: moved.chain(names).collect(),
                    id: id.clone(),
                    size: size.max(part(Some(held.mem_request))).max(0.001),
                    kind: if mine { Kind::Mine } else { Kind::Held },
                    // Of nothing, all that is used is use.
                    used: match size > 0.0 {
                        true => used.map(|u| (u / size).min(1.0)),
                        false => used.map(|u| u / part(held.mem_used).max(u).max(0.001)),
                    },
                    burst: if size > 0.0 {
                        used.map_or(0.0, |u| (u - size).max(0.0))
                    } else {
                        0.0
                    },
                });
            }
        }
        for program in self
            .snapshot
            .unclaimed
            .iter()
            .filter(|u| u.gpu == gpu.index)
        {
            let user = program.user.as_deref().unwrap_or("unknown user");
            out.push(Slice {
                names: vec![
                    format!("no claim: {user}"),
                    format!("no claim {user}"),
                    "no claim".to_owned(),
                    user.to_owned(),
                ],
                size: part(program.mem_used).max(0.001),
                used: None,
                ..Slice::default()
            });
        }
        // Where nobody has a claim, all of the use is of the programs without one.
        if let ([only], Some(busy)) = (&mut out[..], gpu.time_busy)
            && only.used.is_none()
            && gpu.sm_claimed <= 0.0
        {
            only.used = Some(busy.value / 100.0);
        }
        let taken: f64 = out.iter().map(|s| s.size).sum();
        let rest = 1.0 - taken;
        let claimable = match self.snapshot.service {
            Some(_) => gpu.claimable,
            None => 0.0,
        };
        if rest > 0.005 || claimable > 0.0 || out.is_empty() {
            let (kind, names) = match (claimable > 0.0, &gpu.drain) {
                (_, Some(drain)) => {
                    let why = drain.reason.as_ref().map(|r| format!("drained: {r}"));
                    (
                        Kind::Rest,
                        why.into_iter().chain(["drained".to_owned()]).collect(),
                    )
                }
                _ if condition(gpu) == "sick" => (
                    Kind::Rest,
                    vec!["sick: no new claims".to_owned(), "sick".to_owned()],
                ),
                (true, None) => {
                    let size = share(claimable);
                    let full = zero(size.clone());
                    (Kind::Free, vec![format!("free {full}"), full, size])
                }
                (false, None) => {
                    let planned = gpu.planned_for.as_ref();
                    let names = planned.map(|who| {
                        let id = who.split(' ').next().unwrap_or_default();
                        vec![
                            format!("planned for {who}"),
                            format!("for {id}"),
                            id.to_owned(),
                        ]
                    });
                    (Kind::Rest, names.unwrap_or_default())
                }
            };
            let size = rest.max(claimable).max(0.001);
            out.push(Slice {
                names,
                size,
                kind,
                ..Slice::default()
            });
        }
        out
    }

    /// What to look at, in a few words.
    fn sign(&self, gpu: &GpuView) -> Option<String> {
        let claims = self.snapshot.claims.iter().filter(|c| is_on(c, gpu.index));
        let health = gpu.health.as_ref();
        let slowed = health
            .and_then(|h| h.throttle.as_ref())
            .is_some_and(|t| !t.is_empty());
        let outside = self
            .snapshot
            .unclaimed
            .iter()
            .any(|u| u.gpu == gpu.index && !u.graphics);
        let word = match condition(gpu) {
            "ok" if slowed => gpu
                .temperature_c
                .map_or_else(|| "slowed".to_owned(), |t| format!("{t} °C")),
            "ok" if outside => "no claim".to_owned(),
            "ok" => {
                let mut words = claims.map(|c| words(c, self.snapshot, self.model.clock, ""));
                words.find(|w| w.sign && w.text.starts_with("throttled"))?;
                "throttled".to_owned()
            }
            word => word.to_owned(),
        };
        Some(word)
    }

    /// SM activity: `61`, `~61`, `≥15`, or a dash.
    fn sm_active(&self, gpu: &GpuView) -> String {
        let glyphs = &self.look.glyphs;
        match sm_of_gpu(gpu, self.snapshot) {
            AtLeast::Known(known) => figure(known, glyphs),
            AtLeast::Some(sum) => format!("{}{}", glyphs.at_least, percent(sum)),
        }
    }

    /// The sign and the word, in the colours of both.
    fn signed(&self, gpu: &GpuView, word: &str) -> Vec<Span<'static>> {
        let (theme, glyphs) = (&self.look.theme, &self.look.glyphs);
        let grade = gpu.health.as_ref().map(|h| h.grade);
        let (sign, style) = match grade == Some(Grade::Sick) {
            true => (glyphs.broken, theme.error),
            false => (glyphs.sign, theme.warn),
        };
        let word = if self.look.is_utf8() {
            word.to_owned()
        } else {
            word.replace('°', "")
        };
        vec![span(sign, style), span(format!(" {word}"), theme.text)]
    }

    /// One GPU from the top of `area`.
    fn draw(&self, gpu: &GpuView, area: Rect, scene: &mut Scene<'_>) {
        let (theme, glyphs) = (&self.look.theme, &self.look.glyphs);
        let row = |y: u16| Rect {
            y: area.y + y,
            height: 1.min(area.height.saturating_sub(y)),
            ..area
        };
        let key = RowKey::Gpu(gpu.index);
        let is_chosen = self.model.section == Section::Gpus && self.model.current() == Some(&key);
        let style = if is_chosen {
            theme.selected
        } else {
            theme.strong
        };
        let name = left(&self.name_of(gpu), self.name, glyphs);
        scene.line(
            &Line::from(vec![span(name, style), span(" ", style)]),
            row(0),
        );
        scene.hit(area, Target::Row(Section::Gpus, key));
        let x = area.x + (self.name + 1) as u16;
        let beside = Rect {
            x,
            width: area.right().saturating_sub(x),
            ..area
        };
        let trouble = match gpu.state {
            GpuState::Ok => None,
            GpuState::Lost => Some("lost: the driver says that this GPU has fallen off the bus"),
            GpuState::Hung => {
                Some("the driver does not answer for this GPU; its figures are not known")
            }
            GpuState::Released => Some(
                "released by an administrator; its figures are not known until it is taken back",
            ),
        };
        if let Some(trouble) = trouble {
            let line = Line::from(vec![
                span(format!("{} ", glyphs.broken), theme.error),
                span(trouble, theme.text),
            ]);
            scene.line(&fit(line, beside.width.into(), self.look), beside);
            return;
        }
        let tall = self.each > 1 && area.height > 1;
        let map = Rect {
            width: (self.map as u16).min(beside.width),
            height: if tall { 2 } else { 1 },
            ..beside
        };
        let slices = self.slices(gpu);
        let look = self.look;
        SliceMap { slices, look }.render(map, scene.buf);
        let held = self.snapshot.service.is_some();
        let claimed = gib_or(held.then_some(gpu.mem_claimed), glyphs);
        let compute: Option<Figure> = if is_by_sms(gpu) {
            gpu.sm_active
        } else {
            gpu.time_busy
        };
        let mut first = vec![span(
            right(&figure(compute, glyphs), COMPUTE, glyphs),
            theme.strong,
        )];
        if self.sm {
            first.push(span(right(&self.sm_active(gpu), 7, glyphs), theme.text));
        }
        first.push(span(
            right(&gib_or(gpu.mem_used, glyphs), GIB, glyphs),
            theme.strong,
        ));
        first.push(span(right(&claimed, GIB, glyphs), theme.dim));
        let whole = gib_or(gpu.mem_whole(), glyphs);
        let sign = self.sign(gpu);
        match &sign {
            Some(word) if !tall && self.rest > width(word) + 2 => {
                first.push(Span::raw(" "));
                first.extend(self.signed(gpu, word));
            }
            _ if tall && self.rest > 6 => first.push(span(format!(" of {whole}"), theme.dim)),
            _ => {}
        }
        let figures = Rect {
            x: map.right(),
            width: beside.width.saturating_sub(map.width),
            ..row(0)
        };
        scene.line(&fit(Line::from(first), figures.width.into(), look), figures);
        if !tall {
            return;
        }
        let space = if self.sm { " " } else { "" };
        let degrees = gpu.temperature_c.map(|t| format!("{t}{space}°C"));
        let watts = gpu.power_w.map(|w| format!("{w:.0} W")).filter(|_| self.sm);
        let both: Vec<String> = degrees.into_iter().chain(watts).collect();
        let state = match (&sign, condition(gpu)) {
            (Some(word), "ok") if !word.contains('°') && self.name >= 10 => word.clone(),
            (_, "ok") => both.join(" "),
            (_, word) => word.to_owned(),
        };
        let state = cut(&state, self.name.saturating_sub(2), glyphs);
        let line = match sign {
            Some(_) => Line::from(self.signed(gpu, &state)),
            None if look.is_utf8() => span(format!("  {state}"), theme.dim).into(),
            None => span(format!("  {}", state.replace('°', "")), theme.dim).into(),
        };
        scene.line(&fit(line, self.name, look), row(1));
        let below = Rect {
            y: figures.y + 1,
            ..figures
        };
        let second = match self.sm {
            true => format!(
                "{}{}",
                right("occ", COMPUTE, glyphs),
                right(&figure(gpu.sm_occupancy, glyphs), 7, glyphs)
            ),
            false => right(&format!("SM {}", self.sm_active(gpu)), COMPUTE, glyphs),
        };
        let cells = (2 * GIB).min(usize::from(figures.width).saturating_sub(width(&second) + 1));
        let bullet = Bullet {
            used: gpu.mem_used.map(|b| b as f64),
            claim: gpu.mem_claimed as f64,
            whole: gpu.mem_whole().unwrap_or(0) as f64,
        };
        let mut line = Line::from(vec![span(second, theme.dim), Span::raw(" ")]);
        line.spans.extend(bullet.spans(cells, look));
        scene.line(&line, below);
        self.plot(gpu, figures, scene);
    }

    /// The last minutes, at the right of both rows.
    fn plot(&self, gpu: &GpuView, from: Rect, scene: &mut Scene<'_>) {
        let cols = self.rest.saturating_sub(9);
        if !self.sm || cols < 6 || !self.look.glyphs.lines {
            return;
        }
        let right = from.right();
        let area = Rect {
            x: right.saturating_sub(cols as u16),
            y: from.y,
            width: cols as u16,
            height: 2,
        };
        let area = area.intersection(scene.buf.area);
        let newest = gpu.history.iter().rev();
        let values: Vec<Option<u64>> = newest
            .map(|v| {
                v.filter(|v| v.is_finite())
                    .map(|v| v.clamp(0.0, 100.0) as u64)
            })
            .collect();
        Sparkline::default()
            .data(values)
            .max(100)
            .direction(RenderDirection::RightToLeft)
            .style(self.look.theme.used)
            .absent_value_symbol(" ")
            .render(area, scene.buf);
    }
}

/// Heading and GPUs, so many rows each.
pub(super) fn draw(
    model: &Model,
    snapshot: &Snapshot,
    look: &Look,
    (area, each): (Rect, usize),
    scene: &mut Scene<'_>,
) {
    if area.is_empty() {
        return;
    }
    let table = Table::new(model, snapshot, look, area.width.into(), each);
    let n = snapshot.gpus.len();
    let room = usize::from(area.height - 1) / each.max(1);
    let at = model
        .chosen_index(Section::Gpus)
        .filter(|_| model.section == Section::Gpus);
    let shown = window(n, room, at);
    let heading = table.heading(n - shown.len());
    scene.line(&fit(heading, area.width.into(), look), area);
    for (i, gpu) in snapshot.gpus[shown].iter().enumerate() {
        let y = area.y + 1 + (i * each) as u16;
        let place = Rect {
            y,
            height: (each.min(2) as u16).min(area.bottom().saturating_sub(y)),
            ..area
        };
        table.draw(gpu, place, scene);
    }
}

//! The GPUs as maps: who holds which part, and how much of it is used.

use gshare_proto::totals::throttled;
use gshare_proto::{ClaimGpu, ClaimView, GpuView, Grade, Snapshot, UnclaimedView};
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::Widget;

use crate::model::{Model, RowKey, Section, bytes_of, compute, is_by_sms, sm_of_gpu, trouble};
use crate::text::{gib, share, width};
use crate::view::claims::what;
use crate::view::{Scene, Target, View, columns, line, span, window};
use crate::widgets::bullet::Bullet;
use crate::widgets::slice_map::{Kind, Slice, SliceMap};
use crate::widgets::spark::spark;

pub(in crate::view) fn is_on(claim: &ClaimView, gpu: u32) -> bool {
    !claim.place.in_host() && claim.gpus.iter().any(|g| g.gpu == gpu)
}

/// Programs without a claim on a GPU, without the desktop.
pub(in crate::view) fn programs(
    snapshot: &Snapshot,
    gpu: u32,
) -> impl Iterator<Item = &UnclaimedView> {
    let all = snapshot.unclaimed.iter();
    all.filter(move |u| u.gpu == gpu && !u.graphics)
}

/// The slices of a GPU with one of this size for the viewer, taken from the free part.
pub(in crate::view) fn slices_with(view: &View<'_>, gpu: &GpuView, size: f64) -> Vec<Slice> {
    let mut out = slices(view, gpu);
    let free = out.pop_if(|s| matches!(s.kind, Kind::Free | Kind::Rest));
    let mine = [format!("yours {}", share(size)), "yours".to_owned()];
    out.push(Slice {
        used: Some(0.0),
        ..Slice::new(Kind::Mine, size, mine)
    });
    let rest = free.map_or(0.0, |f| f.size) - size;
    if rest > 0.005 {
        out.push(Slice::new(Kind::Rest, rest, [share(rest)]));
    }
    out
}

/// The slice of a claim on a GPU, as wide as the larger of its two parts.
fn held(view: &View<'_>, claim: &ClaimView, part: &ClaimGpu, bytes: impl Fn(u64) -> f64) -> Slice {
    let mine = claim.uid == view.model.viewer.uid;
    let ClaimView { id, user, .. } = claim;
    let mut name = what(claim);
    if name.is_empty() && claim.gpus.len() > 1 {
        let at = claim.gpus.iter().position(|g| g.gpu == part.gpu);
        name = format!("{} of {} GPUs", at.unwrap_or(0) + 1, claim.gpus.len());
    }
    let who = match mine {
        true => format!("{}{id}", view.glyphs.mine),
        false => format!("{id} {user}"),
    };
    let names = match claim.adopted {
        true => without(user),
        false => vec![format!("{who} {name}"), who, id.clone()],
    };
    let to = claim.announced.is_some().then(|| view.words(claim).text);
    let to = to.filter(|text| text.starts_with(view.glyphs.arrow));
    let moved = to
        .iter()
        .flat_map(|to| [format!("{id} {user} {to}"), format!("{id} {to}")]);
    let used = compute(part, view.snapshot).map(|f| f.value / 100.0);
    let size = part.sm_request;
    // With a size of zero, all use is within the claim.
    let (used, burst) = match size > 0.0 {
        true => (
            used.map(|u| (u / size).min(1.0)),
            used.map_or(0.0, |u| (u - size).max(0.0)),
        ),
        false => {
            let memory = part.mem_used.map_or(0.0, &bytes);
            (used.map(|u| u / memory.max(u).max(0.001)), 0.0)
        }
    };
    let kind = if mine { Kind::Mine } else { Kind::Held };
    let whole = size.max(bytes(part.mem_request)).max(0.001);
    let names = moved.chain(names.iter().map(|n| n.trim_end().to_owned()));
    Slice {
        id: id.clone(),
        used,
        burst,
        ..Slice::new(kind, whole, names)
    }
}

fn without(user: &str) -> Vec<String> {
    vec![
        format!("no claim: {user}"),
        format!("no claim {user}"),
        user.to_owned(),
    ]
}

/// The rest of a GPU: what the viewer could claim of it, otherwise why it cannot be claimed.
fn left(view: &View<'_>, gpu: &GpuView, rest: f64) -> Slice {
    let is_served = view.snapshot.service.is_some();
    let claimable = if is_served { gpu.claimable } else { 0.0 };
    let outside = gpu.is_used_without_claim();
    let size = if outside { rest } else { rest.max(claimable) }.max(0.001);
    let names = match (&gpu.drain, &gpu.planned_for) {
        (Some(drain), _) => {
            let why = drain.reason.as_ref().map(|r| format!("drained: {r}"));
            why.into_iter().chain(["drained".to_owned()]).collect()
        }
        _ if gpu.mode == "mig" && !gpu.is_instance() => {
            vec!["divided into instances".to_owned(), "divided".to_owned()]
        }
        _ if gpu.condition() == "sick" => vec!["sick: no new claims".to_owned(), "sick".to_owned()],
        _ if claimable > 0.0 => {
            let bytes = bytes_of(gpu, claimable).filter(|_| outside);
            let full =
                bytes.map_or_else(|| share(claimable), |bytes| format!("{} GiB", gib(bytes)));
            let short = full.trim_start_matches('0').to_owned();
            let names = [format!("free {full}"), full, short];
            return Slice::new(Kind::Free, size, names);
        }
        (None, Some(who)) => {
            let id = who.split(' ').next().unwrap_or_default();
            vec![
                format!("planned for {who}"),
                format!("for {id}"),
                id.to_owned(),
            ]
        }
        (None, None) => Vec::new(),
    };
    Slice::new(Kind::Rest, size, names)
}

/// The holders of a GPU, from the left, and the rest.
pub(in crate::view) fn slices(view: &View<'_>, gpu: &GpuView) -> Vec<Slice> {
    let whole = gpu.mem_whole().filter(|whole| *whole > 0);
    let bytes = |bytes: u64| whole.map_or(0.0, |whole| bytes as f64 / whole as f64);
    let mut out = Vec::new();
    for claim in view.snapshot.claims.iter().filter(|c| is_on(c, gpu.index)) {
        let parts = claim.gpus.iter().filter(|g| g.gpu == gpu.index);
        out.extend(parts.map(|part| held(view, claim, part, bytes)));
    }
    let comes = |c: &&ClaimView| c.place.to.contains(&gpu.index) && !is_on(c, gpu.index);
    for claim in view.snapshot.claims.iter().filter(comes) {
        let ClaimView { id, user, .. } = claim;
        let names = [
            format!("{id} {user} arrives"),
            format!("{id} arrives"),
            id.clone(),
        ];
        let part = claim.gpus.first();
        let size = part.map_or(0.0, |p| p.sm_request.max(bytes(p.mem_request)));
        out.push(Slice::new(Kind::Rest, size.max(0.001), names));
    }
    let programs = view.snapshot.unclaimed.iter();
    for program in programs.filter(|u| u.gpu == gpu.index) {
        let mut names = without(program.user.as_deref().unwrap_or("unknown user"));
        names.insert(2, "no claim".to_owned());
        let size = program.mem_used.map_or(0.0, bytes).max(0.001);
        out.push(Slice::new(Kind::Held, size, names));
    }
    // On a GPU without claims, all use is by the programs without one.
    if let ([only], Some(busy)) = (&mut out[..], gpu.time_busy)
        && only.used.is_none()
        && gpu.sm_claimed <= 0.0
    {
        only.used = Some(busy.value / 100.0);
    }
    let rest = 1.0 - out.iter().map(|s| s.size).sum::<f64>();
    let claimable = view.snapshot.service.is_some() && gpu.claimable > 0.0;
    if rest > 0.005 || claimable || out.is_empty() {
        out.push(left(view, gpu, rest));
    }
    out
}

/// The first cell and the number of cells of this GPU's map, and whether it is the last: an instance has its place on
/// its GPU, after earlier instances.
fn place(gpu: &GpuView, snapshot: &Snapshot, cells: u16) -> (u16, u16, bool) {
    let Some(instance) = &gpu.instance else {
        return (0, cells, false);
    };
    let is_one = |g: &&GpuView| g.instance.as_ref().is_some_and(|i| i.of == instance.of);
    let all = || snapshot.gpus.iter().filter(is_one);
    let before: f64 = all()
        .take_while(|g| g.index != gpu.index)
        .map(GpuView::part_of_a_gpu)
        .sum();
    // Neighbours share a wall.
    let cell = |part: f64| (part.min(1.0) * f64::from(cells.saturating_sub(1))).round() as u16;
    let (from, to) = (cell(before), cell(before + instance.sm));
    let is_last = all().next_back().is_some_and(|g| g.index == gpu.index);
    (from, to - from + 1, is_last)
}

const MAP: usize = 60;

/// `4090` of `RTX 4090`, `H100` of `H100 80GB`, `A100` of `A100-SXM4-80GB`, `3g.40gb` of `A100 MIG 3g.40gb`.
fn tiny(gpu: &GpuView) -> String {
    if gpu.is_instance() {
        return called(gpu);
    }
    let is_maker = |w: &&str| matches!(*w, "RTX" | "NVIDIA" | "GeForce") || w.ends_with("GB");
    let words = gpu.short.split_whitespace();
    let words = words.map(|w| w.split('-').next().unwrap_or(w));
    let words: Vec<&str> = words.filter(|w| !is_maker(w)).collect();
    words.join(" ")
}

/// Its model; for an instance only the profile.
pub(super) fn called(gpu: &GpuView) -> String {
    let profile = gpu.short.rsplit(' ').next().filter(|_| gpu.is_instance());
    profile.unwrap_or(&gpu.short).to_owned()
}

struct Table<'a> {
    view: View<'a>,
    each: usize,
    name: usize,
    map: usize,
    sm: bool,
    rest: usize,
}

const COMPUTE: usize = 7;
const GIB: usize = 6;

impl<'a> Table<'a> {
    fn new(view: View<'a>, cols: usize, each: usize) -> Self {
        let sm = each > 1 && cols >= crate::view::WIDE;
        let mut table = Self {
            view,
            each,
            name: 0,
            map: 0,
            sm,
            rest: 0,
        };
        let gpus = &view.snapshot.gpus;
        let names = gpus.iter().map(|g| width(&table.name_of(g)));
        // Below it come the temperature and, if there is room, the power.
        let (least, most) = match each {
            1 if table.is_one_model() => (1, 3),
            1 => (1, 9),
            _ if sm => (14, 19),
            _ => (6, 10),
        };
        table.name = names.max().unwrap_or(0).max(least).min(most);
        let figures = COMPUTE + 2 * GIB + if sm { 7 } else { 0 };
        let room = cols.saturating_sub(table.name + 1 + figures);
        // The words at the end have the place that the map leaves for its own.
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
        let mut gpus = self.view.snapshot.gpus.iter().map(|g| &g.short);
        let first = gpus.next();
        gpus.all(|g| Some(g) == first)
    }

    /// The index, as wide as the longest one, and the model if there is room or need for it.
    fn name_of(&self, gpu: &GpuView) -> String {
        let most = self.view.snapshot.gpus.iter().map(|g| g.index).max();
        let cols = most.unwrap_or(0).to_string().len();
        let index = format!("{:>cols$}", gpu.index);
        // A pending mode is news; the present one is on Health.
        let wanted = gpu.mode_wanted.as_ref().map(|mode| format!("to {mode}"));
        // The name of an instance contains it already.
        let shown = gpu.mode_shown().filter(|_| !gpu.is_instance());
        let mode = wanted.or(shown).filter(|_| self.sm);
        let mode = mode.map_or_else(String::new, |m| format!(" {m}"));
        match self.each {
            1 if self.is_one_model() => index,
            _ if self.sm => format!("{index} {}{mode}", called(gpu)),
            _ => format!("{index} {}", tiny(gpu)),
        }
    }

    /// The headings of the columns, and the meaning of the signs above the maps if there is room.
    fn heading(&self, hidden: usize, area: Rect, scene: &mut Scene<'_>) {
        let (view, glyphs) = (self.view, self.view.glyphs);
        let hidden = Some(hidden).filter(|n| *n > 0);
        let more = hidden.map_or_else(String::new, |n| format!(" +{n}"));
        let mut line = match view.model.section == Section::Gpus {
            true => line!(view; focus "GPUS", dim more),
            false => line!(view; heading "GPUS", dim more),
        };
        let mut signs = line!(view;
            used glyphs.used.repeat(2), dim " used ",
            burst glyphs.burst.repeat(2), dim " burst ",
            unused glyphs.unused.repeat(2), dim " unused ",
        );
        let first = self.name + 1 + self.map;
        let fits = |line: &Line<'_>, words: &str, signs: &Line<'_>| {
            line.width() + width(words) + signs.width() <= first
        };
        let yours = line!(view; strong glyphs.mine, dim " yours ");
        let is_mine = |c: &ClaimView| c.uid == view.model.viewer.uid;
        if view.snapshot.claims.iter().any(is_mine) && fits(&signs, " held: GPUS", &yours) {
            signs.extend(yours);
        }
        let words = [" held above, used below   ", " held: ", "  "].into_iter();
        let mut words = words.skip(usize::from(self.each == 1));
        if let Some(words) = words.find(|words| fits(&line, words, &signs)) {
            line.extend(line!(view; dim words).into_iter().chain(signs));
        }
        scene.line(line, area, 0);
        let by_sms = view.snapshot.gpus.iter().any(is_by_sms);
        let compute = if by_sms { "comp %" } else { "time %" };
        let sm = if self.sm { "   SM %" } else { "" };
        let tail = match (self.sm, self.rest) {
            (true, 12..) => format!(" GiB{}", view.right("10 min", self.rest - 4)),
            (_, 4..) => " GiB".to_owned(),
            _ => String::new(),
        };
        let figures = format!(
            "{compute:>COMPUTE$}{sm}{:>GIB$}{:>GIB$}{tail}",
            "used", "/claim"
        );
        let at = columns(area, first as u16, u16::MAX);
        scene.line(line!(view; dim figures), at, 0);
    }

    /// The warning, in a few words.
    fn sign(&self, gpu: &GpuView) -> Option<String> {
        let snapshot = self.view.snapshot;
        let mut claims = snapshot.claims.iter().filter(|c| is_on(c, gpu.index));
        let slowed = gpu.health.as_ref().and_then(|h| h.throttle.as_ref());
        let slowed = slowed.is_some_and(|why| !why.is_empty());
        let throttled =
            |c| throttled(c).is_some() && self.view.words(c).text.starts_with("throttled");
        Some(match gpu.condition() {
            "ok" if slowed => match gpu.temperature_c {
                Some(t) => format!("{t} {}", self.view.glyphs.degrees),
                None => "slowed".to_owned(),
            },
            "ok" if programs(snapshot, gpu.index).next().is_some() => "no claim".to_owned(),
            "ok" if claims.any(throttled) => "throttled".to_owned(),
            "ok" => return None,
            word => word.to_owned(),
        })
    }

    fn sm_active(&self, gpu: &GpuView) -> String {
        self.view.at_least(sm_of_gpu(gpu, self.view.snapshot))
    }

    /// The sign and the word, each in its colour.
    fn signed(&self, gpu: &GpuView, word: &str) -> Line<'static> {
        let (theme, glyphs) = (self.view.theme, self.view.glyphs);
        let (sign, style) = match gpu.health.as_ref().map(|h| h.grade) {
            Some(Grade::Sick) => (glyphs.broken, theme.error),
            _ => (glyphs.sign, theme.warn),
        };
        vec![span(sign, style), span(format!(" {word}"), theme.text)].into()
    }

    fn draw(&self, gpu: &GpuView, area: Rect, scene: &mut Scene<'_>) {
        let view = self.view;
        let look = view.look;
        let key = RowKey::Gpu(gpu.index);
        let name = view.left(&self.name_of(gpu), self.name) + " ";
        let name = match view.is_chosen(Section::Gpus, &key) {
            true => line!(view; selected name),
            false => line!(view; strong name),
        };
        scene.line(name, area, 0);
        scene.hit(area, Target::Row(Section::Gpus, key));
        let beside = columns(area, (self.name + 1) as u16, u16::MAX);
        if let Some(trouble) = trouble(gpu) {
            let line = line!(view; error format!("{} ", view.glyphs.broken), text trouble);
            return scene.line(line, beside, 0);
        }
        let tall = self.each > 1 && area.height > 1;
        let mut map = columns(beside, 0, self.map as u16);
        map.height = if tall { 2 } else { 1 };
        let slices = slices(&view, gpu);
        let (from, cells, is_last) = place(gpu, view.snapshot, map.width);
        let part = columns(map, from, cells);
        SliceMap { slices, look }.render(part, scene.buf);
        if is_last {
            // The rest of the GPU outside instances.
            let rest = columns(map, from + cells, u16::MAX);
            let none = view.glyphs.free.repeat(rest.width.into());
            scene.line(line!(view; free none), rest, 0);
        }
        let figures = columns(beside, map.width, u16::MAX);
        let sign = self.sign(gpu);
        let first = self.figures(gpu, sign.as_deref(), tall);
        scene.line(first, figures, 0);
        if !tall {
            return;
        }
        let space = if self.sm { " " } else { "" };
        let sign_of = view.glyphs.degrees;
        let degrees = gpu.temperature_c.map(|t| format!("{t}{space}{sign_of}"));
        let watts = gpu.power_w.map(|w| format!("{w:.0} W"));
        let both = Vec::from_iter(degrees.into_iter().chain(watts.filter(|_| self.sm)));
        let state = match (&sign, gpu.condition()) {
            (Some(word), "ok") if !word.ends_with(sign_of) && self.name >= 10 => word.clone(),
            (_, "ok") => both.join(" "),
            (_, word) => word.to_owned(),
        };
        let state = view.cut(&state, self.name.saturating_sub(2));
        let mut state = self.signed(gpu, &state);
        if sign.is_none() {
            state = line!(view; dim format!(" {}", state.spans[1].content));
        }
        scene.line(state, area, 1);
        let second = match self.sm {
            true => format!("{:>COMPUTE$}{:>7}", "occ", view.figure(gpu.sm_occupancy)),
            false => format!("{:>COMPUTE$}", format!("SM {}", self.sm_active(gpu))),
        };
        let room = usize::from(figures.width).saturating_sub(width(&second) + 1);
        let bullet = Bullet::bytes(gpu.mem_used, gpu.mem_claimed, gpu.mem_whole());
        let mut line = line!(view; dim second, text " ");
        line.extend(bullet.line((2 * GIB).min(room), look));
        scene.line(line, figures, 1);
        self.plot(gpu, figures, scene);
    }

    /// Compute and memory in figures, and the warning if there is no row for it below.
    fn figures(&self, gpu: &GpuView, sign: Option<&str>, tall: bool) -> Line<'static> {
        let view = self.view;
        let compute = match is_by_sms(gpu) {
            true => gpu.sm_active,
            false => gpu.time_busy,
        };
        let sm = match self.sm {
            true => view.right(&self.sm_active(gpu), 7),
            false => String::new(),
        };
        let held = view.snapshot.service.is_some();
        let claimed = view.gib(held.then_some(gpu.mem_claimed));
        let mut line = line!(view;
            strong view.right(&view.figure(compute), COMPUTE),
            text sm,
            strong view.right(&view.gib(gpu.mem_used), GIB),
            dim view.right(&claimed, GIB),
        );
        match sign {
            Some(word) if !tall && self.rest > width(word) + 2 => {
                line.push_span(Span::raw(" "));
                line.extend(self.signed(gpu, word));
            }
            _ if tall && self.rest > 6 => {
                let whole = format!(" of {}", view.gib(gpu.mem_whole()));
                line.push_span(span(whole, view.theme.dim));
            }
            _ => {}
        }
        line
    }

    /// The last minutes, at the right of both rows.
    fn plot(&self, gpu: &GpuView, from: Rect, scene: &mut Scene<'_>) {
        let cols = self.rest.saturating_sub(9);
        if !self.sm || cols < 6 {
            return;
        }
        let at = from.width.saturating_sub(cols as u16);
        let area = columns(from, at, u16::MAX).intersection(scene.buf.area);
        spark(&gpu.history, 2, self.view.look).render(area, scene.buf);
    }
}

/// Heading and GPUs, with this many rows each.
pub(super) fn draw(view: &View<'_>, area: Rect, each: usize, scene: &mut Scene<'_>) {
    if area.is_empty() {
        return;
    }
    let table = Table::new(*view, area.width.into(), each);
    let n = view.snapshot.gpus.len();
    let room = usize::from(area.height - 1) / each.max(1);
    let at = |model: &Model| model.chosen_index(Section::Gpus);
    let focus = view.model.section == Section::Gpus;
    let shown = window(n, room, at(view.model).filter(|_| focus));
    table.heading(n - shown.len(), area, scene);
    for (i, gpu) in view.snapshot.gpus[shown].iter().enumerate() {
        let place = crate::view::below(area, 1 + (i * each) as u16);
        let height = place.height.min(each.min(2) as u16);
        table.draw(gpu, Rect { height, ..place }, scene);
    }
}

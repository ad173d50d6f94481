//! The first screen: what you can have now, who holds what and uses how much of it, who waits, what to look at. In this
//! order; what does not fit is counted.

mod free;
mod gpus;

use gshare_proto::{Figure, UserView};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Padding, Widget};

use super::{Row, Scene, View, claims, line, notes, queue, zero};
use crate::model::{Model, Section};
use crate::text::parts;
use crate::theme::{Depth, Look};
use crate::widgets::columns::{Column, row};
pub(super) use free::free_now;
pub(super) use gpus::{is_on, slices, slices_with};

/// From so many columns on the queue and what happened stand at the right; tables take no more than the rest.
const SIDE: u16 = 180;
const LEFT: u16 = 122;

/// Warnings at most.
const WARNINGS: usize = 3;

/// Waiting claims at most.
const QUEUE: usize = 5;

/// The rows of each part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Parts {
    /// What is free, in two rows or, with large figures, in four.
    free: usize,
    /// Rows for GPUs, without the heading.
    gpus: usize,
    /// Rows of one GPU: 1, 2 (names above the use), 3 (and a gap).
    each: usize,
    /// Rows of the claims without the heading.
    claims: usize,
    /// Rows of the queue without its heading, which is beside the first.
    queue: usize,
    warnings: usize,
    news: usize,
    /// Rules between the parts.
    rules: usize,
}

/// Hands out rows.
struct Rows(usize);

impl Rows {
    /// Up to `want` rows.
    fn some(&mut self, want: usize) -> usize {
        let got = want.min(self.0);
        self.0 -= got;
        got
    }

    /// All of `want` rows, or none.
    fn all(&mut self, want: usize) -> bool {
        let fits = want <= self.0;
        if fits {
            self.0 -= want;
        }
        fits
    }

    /// Raises `part` towards `to`.
    fn raise(&mut self, part: &mut usize, to: usize) {
        *part += self.some(to.saturating_sub(*part));
    }
}

impl Parts {
    fn new(view: &View<'_>, area: Rect) -> Self {
        let View {
            model, snapshot, ..
        } = *view;
        let mut rows = Rows(area.height.into());
        let side = area.width >= SIDE;
        let gpus = snapshot.gpus.len();
        let claims = match (model.claim_rows().len(), snapshot.claims.len()) {
            (n, 0) => n + claims::nothing(model).len(),
            (n, _) => n.max(1),
        };
        let at_side = |n: usize| if side { 0 } else { n };
        let queue = at_side(model.queue_rows().len().min(QUEUE));
        let warnings = notes::warnings(view).len().min(WARNINGS);
        let news = at_side(snapshot.notices.len());
        let free = free::rows(view, area.width);
        let mut parts = Self {
            each: 1,
            ..Self::default()
        };
        // A few of each, so that no part hides another.
        parts.free = rows.some(1);
        rows.some(2);
        parts.gpus = rows.some(gpus.min((rows.0 / 2).max(1)));
        let (mut first_claims, mut first_queue) = (3, 1);
        match model.section {
            Section::Queue => (first_claims, first_queue) = (1, QUEUE),
            Section::Gpus => {
                first_claims = 1;
                rows.raise(&mut parts.gpus, gpus);
            }
            _ => {}
        }
        rows.raise(&mut parts.queue, queue.min(first_queue));
        rows.raise(&mut parts.claims, claims.min(first_claims));
        rows.raise(&mut parts.warnings, warnings.min(1));
        rows.raise(&mut parts.free, free.min(2));
        rows.raise(&mut parts.gpus, gpus);
        rows.raise(&mut parts.warnings, warnings.min(2));
        rows.raise(&mut parts.claims, claims.min(4));
        rows.raise(&mut parts.queue, queue.min(4));
        if parts.gpus == gpus && area.width >= 76 && rows.all(gpus) {
            parts.each = 2;
        }
        rows.raise(&mut parts.claims, claims.min(6));
        if free > parts.free && rows.all(free - parts.free) {
            parts.free = free;
        }
        rows.raise(&mut parts.claims, claims.min(8));
        rows.raise(&mut parts.queue, queue);
        rows.raise(&mut parts.rules, 1);
        rows.raise(&mut parts.warnings, warnings);
        rows.raise(&mut parts.news, news.min(1));
        rows.raise(&mut parts.rules, 4);
        rows.raise(&mut parts.claims, claims);
        if parts.warnings == warnings {
            let whole = notes::whole(view, area.width.min(LEFT).into(), WARNINGS);
            rows.raise(&mut parts.warnings, whole);
        }
        if parts.each == 2 && rows.0 > gpus && rows.all(gpus) {
            parts.each = 3;
        }
        rows.raise(&mut parts.news, news.min(6));
        parts.gpus *= parts.each;
        parts
    }

    /// The places of free, GPUs, claims, queue, warnings and news, with the rules between them.
    fn places(&self, area: Rect) -> [Rect; 6] {
        let ruled =
            |rows: usize, place: usize, has: bool| rows + usize::from(has && place < self.rules);
        let sizes = [
            self.free,
            ruled(self.gpus + 1, 1, true),
            ruled(self.claims + 1, 2, true),
            ruled(self.queue, 3, self.queue > 0),
            ruled(self.warnings, 0, self.warnings + self.news > 0),
            self.news,
        ];
        super::parts(area, sizes)
    }
}

/// Rows of the claims that fit: what PgDn moves by.
pub(super) fn page(model: &Model) -> usize {
    let (width, height) = model.size;
    let area = Rect::new(0, 0, width, height.saturating_sub(2));
    let look = Look::new(Depth::Mono, true);
    Parts::new(&View::new(model, &look), area).claims.max(1)
}

/// All of it.
pub(super) fn draw(view: &View<'_>, area: Rect, scene: &mut Scene<'_>) {
    if area.is_empty() {
        return;
    }
    let look = view.look;
    let parts = Parts::new(view, area);
    let side = area.width >= SIDE;
    let columns = [
        Constraint::Max(if side { LEFT } else { u16::MAX }),
        Constraint::Fill(1),
    ];
    let columns = Layout::horizontal(columns).spacing(u16::from(side));
    let [left, right] = columns.areas(area);
    let [mut free, gpus, claims, queue, warnings, news] = parts.places(left);
    free.width = area.width.min(LEFT);
    free::draw(view, free, scene);
    let gpus = scene.ruled(gpus, parts.rules > 1, look);
    gpus::draw(view, gpus, parts.each, scene);
    let claims = scene.ruled(claims, parts.rules > 2, look);
    let table = claims::Table {
        view: *view,
        width: claims.width.into(),
        figures: false,
    };
    scene.rows(claims::lines(table, claims.height.into()), claims, look);
    let queue = scene.ruled(queue, parts.rules > 3, look);
    let (cols, rows) = (usize::from(queue.width), usize::from(queue.height));
    scene.rows(queue::list(view, cols, rows), queue, look);
    let warnings = scene.ruled(warnings, parts.rules > 0, look);
    let rows = usize::from(warnings.height);
    scene.rows(notes::lines(view, cols, rows), warnings, look);
    scene.rows(notes::news(view, cols, news.height.into()), news, look);
    if side {
        beside(view, right, scene);
    }
}

/// What large screens show more: the whole queue, the users, what happened last.
fn beside(view: &View<'_>, area: Rect, scene: &mut Scene<'_>) {
    let look = view.look;
    let inner = Block::new().padding(Padding::left(2)).inner(area);
    if look.glyphs.lines {
        let block = Block::new().borders(Borders::LEFT);
        block.border_style(look.theme.free).render(area, scene.buf);
    }
    let waiting = view.model.queue_rows().len().clamp(1, 12);
    let users = (view.snapshot.users.len() + 1).min(14);
    let [queue, people, last] = super::parts(inner, [waiting + 2, users + 1, usize::MAX]);
    let cols = usize::from(inner.width);
    let mut list = queue::list(view, cols, queue.height.saturating_sub(1).into());
    if list.is_empty() {
        list.push(line!(view; heading "QUEUE", dim " nobody waits").into());
    }
    scene.rows(list, queue, look);
    let rows = people.height.saturating_sub(1).into();
    scene.rows(by_user(view, rows), people, look);
    scene.rows(notes::news(view, cols, last.height.into()), last, look);
}

/// What each user has claimed and uses, in GPUs.
fn by_user(view: &View<'_>, room: usize) -> Vec<Row> {
    let (snapshot, look) = (view.snapshot, view.look);
    let columns = [
        Column::words('u', "USERS", 14),
        Column::figures('c', "claimed", 8),
        Column::figures('s', "SMs used", 9),
        Column::figures('w', "waits", 7),
    ];
    let head = |c: &Column<char>| match c.key {
        'u' => line!(view; heading c.title),
        _ => line!(view; dim c.title),
    };
    let used = |f: Figure| {
        let about = if f.estimate { "~" } else { "" };
        format!("{about}{}", zero(parts(f.value)))
    };
    let line = |user: &UserView| {
        row(&columns, look, |c| match c.key {
            'u' => line!(view; text user.user.clone()),
            'c' => line!(view; dim zero(parts(user.claimed))),
            's' => line!(view; strong view.or_dash(user.sm_used.map(used))),
            _ if user.waiting > 0.0 => line!(view; text zero(parts(user.waiting))),
            _ => Line::default(),
        })
    };
    let most = room.saturating_sub(1);
    let hides = snapshot.users.len() > most;
    let shown = most.saturating_sub(usize::from(hides));
    let mut out = vec![Row::from(row(&columns, look, head))];
    out.extend(snapshot.users.iter().take(shown).map(|u| line(u).into()));
    if hides {
        let text = format!("+{} more", snapshot.users.len() - shown);
        out.push(line!(view; dim text).into());
    }
    out
}

//! The first screen: what you can have now, who holds what and uses how much of it, who waits, what to look at. In this
//! order; what does not fit is counted.

mod free;
mod gpus;

use gshare_proto::{Snapshot, UserView};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Widget};

use super::{Row, Scene, claims, notes, plain, queue, span, zero};
use crate::model::{Model, Section};
use crate::text::{figure, parts};
use crate::theme::Look;
use crate::widgets::columns::{Column, row};
pub(super) use free::free_now;
pub(super) use gpus::{is_on, slices_with};

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
    fn new(model: &Model, snapshot: &Snapshot, area: Rect) -> Self {
        let mut rows = Rows(area.height.into());
        let side = area.width >= SIDE;
        let gpus = snapshot.gpus.len();
        let claims = match (model.claim_rows().len(), snapshot.claims.len()) {
            (n, 0) => n + claims::nothing(model).len(),
            (n, _) => n.max(1),
        };
        let queue = if side {
            0
        } else {
            model.queue_rows().len().min(QUEUE)
        };
        let warnings = notes::warnings(model, snapshot).len().min(WARNINGS);
        let news = if side {
            0
        } else {
            snapshot.notices.len().min(1)
        };
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
        rows.raise(
            &mut parts.free,
            free::rows(model, snapshot, area.width).min(2),
        );
        rows.raise(&mut parts.gpus, gpus);
        rows.raise(&mut parts.warnings, warnings.min(2));
        rows.raise(&mut parts.claims, claims.min(4));
        rows.raise(&mut parts.queue, queue.min(4));
        if parts.gpus == gpus && area.width >= 76 && rows.all(gpus) {
            parts.each = 2;
        }
        rows.raise(&mut parts.claims, claims.min(6));
        let free = free::rows(model, snapshot, area.width);
        if free > parts.free && rows.all(free - parts.free) {
            parts.free = free;
        }
        rows.raise(&mut parts.claims, claims.min(8));
        rows.raise(&mut parts.queue, queue);
        rows.raise(&mut parts.rules, 1);
        rows.raise(&mut parts.warnings, warnings);
        rows.raise(&mut parts.news, news);
        rows.raise(&mut parts.rules, 4);
        rows.raise(&mut parts.claims, claims);
        if parts.warnings == warnings {
            let whole = notes::whole(model, snapshot, area.width.min(LEFT).into(), WARNINGS);
            rows.raise(&mut parts.warnings, whole);
        }
        if parts.each == 2 && rows.0 > gpus && rows.all(gpus) {
            parts.each = 3;
        }
        if !side {
            rows.raise(&mut parts.news, snapshot.notices.len().min(6));
        }
        parts.gpus *= parts.each;
        parts
    }

    /// The places of free, GPUs, claims, queue, warnings and news, with the rules between them.
    fn places(&self, area: Rect) -> [Rect; 6] {
        let rule = |place: usize| usize::from(place < self.rules);
        let shown = |rows: usize| if rows > 0 { rows } else { 0 };
        let news = shown(self.news);
        let warnings = self.warnings + if self.warnings + news > 0 { rule(0) } else { 0 };
        let queue = if self.queue > 0 {
            self.queue + rule(3)
        } else {
            0
        };
        let sizes = [
            self.free,
            self.gpus + 1 + rule(1),
            self.claims + 1 + rule(2),
            queue,
            warnings,
            news,
        ];
        let sizes = sizes.map(|n| Constraint::Max(u16::try_from(n).unwrap_or(u16::MAX)));
        Layout::vertical(sizes).areas(area)
    }
}

/// Rows of the claims that fit: what PgDn moves by.
pub(super) fn page(model: &Model, snapshot: &Snapshot) -> usize {
    let (width, height) = model.size;
    let parts = Parts::new(
        model,
        snapshot,
        Rect::new(0, 0, width, height.saturating_sub(2)),
    );
    parts.claims.max(1)
}

/// A rule above a part that has a row for it.
pub(super) fn ruled(area: Rect, has: bool, look: &Look, scene: &mut Scene<'_>) -> Rect {
    if !has || area.is_empty() {
        return area;
    }
    if look.glyphs.lines {
        let block = Block::new()
            .borders(Borders::TOP)
            .border_style(look.theme.free);
        let inner = block.inner(area);
        block.render(area, scene.buf);
        return inner;
    }
    let line = look.glyphs.rule.repeat(area.width.into());
    scene.line(&Line::styled(line, look.theme.free), area);
    Rect {
        y: area.y + 1,
        height: area.height - 1,
        ..area
    }
}

/// All of it.
pub(super) fn draw(
    model: &Model,
    snapshot: &Snapshot,
    look: &Look,
    area: Rect,
    scene: &mut Scene<'_>,
) {
    if area.is_empty() {
        return;
    }
    let parts = Parts::new(model, snapshot, area);
    let side = area.width >= SIDE;
    let columns = [
        Constraint::Max(if side { LEFT } else { u16::MAX }),
        Constraint::Fill(1),
    ];
    let [left, right] = Layout::horizontal(columns)
        .spacing(u16::from(side))
        .areas(area);
    let [free, gpus, claims, queue, warnings, news] = parts.places(left);
    free::draw(
        model,
        snapshot,
        look,
        Rect {
            width: area.width.min(LEFT),
            ..free
        },
        scene,
    );
    let gpus = ruled(gpus, parts.rules > 1, look, scene);
    gpus::draw(model, snapshot, look, (gpus, parts.each), scene);
    let claims = ruled(claims, parts.rules > 2, look, scene);
    let table = claims::Table {
        model,
        snapshot,
        look,
        width: claims.width.into(),
        figures: false,
    };
    scene.rows(claims::lines(table, claims.height.into()), claims, look);
    let queue = ruled(queue, parts.rules > 3, look, scene);
    let cols = usize::from(queue.width);
    scene.rows(
        queue::list(model, look, cols, queue.height.into()),
        queue,
        look,
    );
    let warnings = ruled(warnings, parts.rules > 0, look, scene);
    let (cols, rows) = (usize::from(warnings.width), usize::from(warnings.height));
    scene.rows(
        plain(notes::lines(model, snapshot, look, cols, rows)),
        warnings,
        look,
    );
    scene.rows(
        plain(notes::news(model, snapshot, look, cols, news.height.into())),
        news,
        look,
    );
    if side {
        beside(model, snapshot, look, right, scene);
    }
}

/// What large screens show more: the whole queue, the users, what happened last.
fn beside(model: &Model, snapshot: &Snapshot, look: &Look, area: Rect, scene: &mut Scene<'_>) {
    let block = match look.glyphs.lines {
        true => Block::new()
            .borders(Borders::LEFT)
            .border_style(look.theme.free),
        false => Block::new(),
    };
    let inner = block.inner(area);
    block.render(area, scene.buf);
    let inner = Rect {
        x: inner.x + 1,
        width: inner.width.saturating_sub(1),
        ..inner
    };
    let rows = |n: usize| Constraint::Max(u16::try_from(n).unwrap_or(u16::MAX));
    let waiting = model.queue_rows().len().max(1);
    let users = snapshot.users.len() + 1;
    let sizes = [
        rows(waiting.min(12) + 2),
        rows(users.min(14) + 1),
        Constraint::Fill(1),
    ];
    let [queue, people, last] = Layout::vertical(sizes).areas(inner);
    let cols = usize::from(inner.width);
    let mut list = queue::list(model, look, cols, queue.height.saturating_sub(1).into());
    if list.is_empty() {
        list.push(
            Line::from(vec![
                span("QUEUE", look.theme.heading),
                span(" nobody waits", look.theme.dim),
            ])
            .into(),
        );
    }
    scene.rows(list, queue, look);
    scene.rows(
        by_user(snapshot, look, people.height.saturating_sub(1).into()),
        people,
        look,
    );
    let news = notes::news(model, snapshot, look, cols, last.height.into());
    scene.rows(plain(news), last, look);
}

/// What each user has claimed and uses, in GPUs.
fn by_user(snapshot: &Snapshot, look: &Look, room: usize) -> Vec<Row> {
    let (theme, glyphs) = (&look.theme, &look.glyphs);
    let columns = [
        Column::words('u', "USERS", 14),
        Column::figures('c', "claimed", 8),
        Column::figures('s', "SMs used", 9),
        Column::figures('w', "waits", 7),
    ];
    let head = row(&columns, glyphs, |c| {
        let style: Style = if c.key == 'u' {
            theme.heading
        } else {
            theme.dim
        };
        (c.title.to_owned(), style)
    });
    let used = |user: &UserView| match user.sm_used {
        Some(f) => format!(
            "{}{}",
            if f.estimate { "~" } else { "" },
            zero(parts(f.value))
        ),
        None => figure(None, glyphs),
    };
    let line = |user: &UserView| {
        row(&columns, glyphs, |c| match c.key {
            'u' => (user.user.clone(), theme.text),
            'c' => (zero(parts(user.claimed)), theme.dim),
            's' => (used(user), theme.strong),
            _ if user.waiting > 0.0 => (zero(parts(user.waiting)), theme.text),
            _ => (String::new(), theme.text),
        })
    };
    let mut out = vec![Row::from(head)];
    let most = room.saturating_sub(1);
    let shown = if snapshot.users.len() > most {
        most.saturating_sub(1)
    } else {
        most
    };
    out.extend(snapshot.users.iter().take(shown).map(|u| line(u).into()));
    if snapshot.users.len() > shown {
        let text = format!("+{} more", snapshot.users.len() - shown);
        out.push(Line::styled(text, theme.dim).into());
    }
    out
}

//! The first screen, in this order: what the viewer can have now, who holds and uses what, who waits, and warnings.
//! What does not fit is counted.

mod free;
mod gpus;

use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;

use super::{Facts, Scene, View, claims, line, notes, queue, tree};
use crate::model::{ClaimRow, Model, RowKey, Section};
pub(super) use free::{first, free_now, keeps, when};
pub(super) use gpus::{is_on, programs, slices, slices_with};

/// With this many columns or more, the queue and the events stand at the right; tables take no more than the rest.
pub(crate) const SIDE: u16 = 180;
const LEFT: u16 = 122;

const WARNINGS: usize = 3;

/// Maximum number of waiting claims, or of rows about the effect of off.
const QUEUE: usize = 6;

/// The latest events, and the sums of the last day by user.
type Latest = [Vec<Line<'static>>; 2];

/// The parts, from the top, with rules between them.
const FREE: usize = 0;
const GPUS: usize = 1;
const CLAIMS: usize = 2;
const WAIT: usize = 3;
const WARN: usize = 4;
const NEWS: usize = 5;
const RULES: usize = 6;

/// Data that several parts of a frame need, and the rows of each part, without headings.
struct Parts<'a> {
    answers: Option<Vec<free::Answer>>,
    claims: Vec<ClaimRow<'a>>,
    notes: Vec<notes::Note>,
    latest: Latest,
    rows: [usize; 7],
    /// Rows of one GPU: 1, 2 (names above the use), or 3 (and a gap).
    each: usize,
}

impl<'a> Parts<'a> {
    fn new(view: &View<'a>, area: Rect) -> Self {
        let (model, snapshot) = (view.model, view.snapshot);
        let side = area.width >= SIDE;
        let gpus = snapshot.gpus.len();
        let shown = model.claim_rows();
        let claims = match (shown.len(), snapshot.claims.len()) {
            (n, 0) => n + claims::hints(view).count(),
            (n, _) => n.max(1),
        };
        let mut notes = notes::warnings(view);
        notes.truncate(WARNINGS);
        let warnings = notes.len();
        let answers = free::answers(view);
        let free = free::rows(view, answers.as_deref(), area.width);
        let whole = notes::whole(view, &notes, area.width.min(LEFT).into());
        // Rows that each could fill.
        let (queue, latest) = match side {
            true => (0, Latest::default()),
            false => {
                let size = (area.width.saturating_sub(5), area.height);
                (queue::wanted(view).min(QUEUE), latest(view, size))
            }
        };
        let news = latest.iter().map(Vec::len).sum();
        let wanted = [free, gpus, claims, queue, warnings, news, 4];
        let mut left = usize::from(area.height);
        let mut rows = [0; 7];
        rows[FREE] = left.min(1);
        left -= left.min(3);
        let half = (left / 2).max(1);
        let (first_claims, first_queue, first_gpus) = match model.section {
            Section::Queue => (1, QUEUE, 0),
            Section::Gpus => (1, 1, gpus),
            _ => (3, 1, 0),
        };
        let mut each = 1;
        let all = usize::MAX;
        // A few rows of each first, so that no part hides another.
        let steps = [
            (GPUS, half.max(first_gpus)),
            (WAIT, first_queue),
            (CLAIMS, first_claims),
            (WARN, 1),
            (FREE, 3),
            (GPUS, all),
            (WARN, 2),
            (CLAIMS, 4),
            (WAIT, 4),
            (GPUS, 0),
            (CLAIMS, 6),
            (FREE, all),
            (CLAIMS, 8),
            (WAIT, all),
            (RULES, 1),
            (WARN, all),
            (NEWS, 1),
            (RULES, 4),
            (CLAIMS, all),
        ];
        for (part, to) in steps {
            let more = to.min(wanted[part]).saturating_sub(rows[part]);
            match (part, to) {
                // Two rows a GPU, if all of them get two.
                (GPUS, 0) if rows[GPUS] == gpus && area.width >= 76 && gpus <= left => {
                    each = 2;
                    left -= gpus;
                }
                // Large figures, or none.
                (FREE, usize::MAX) if more > left => {}
                _ => {
                    rows[part] += more.min(left);
                    left -= more.min(left);
                }
            }
        }
        if rows[WARN] == warnings {
            let more = whole.saturating_sub(warnings).min(left);
            (rows[WARN], left) = (warnings + more, left - more);
        }
        let more = news.saturating_sub(rows[NEWS]).min(left);
        rows[NEWS] += more;
        if each == 2 && left - more > gpus {
            each = 3;
        }
        rows[GPUS] *= each;
        Self {
            answers,
            claims: shown,
            notes,
            latest,
            rows,
            each,
        }
    }

    /// Whether there is a rule at this place; more important ones come first.
    fn ruled(&self, place: usize) -> bool {
        place < self.rows[RULES]
    }

    /// The places of free, GPUs, claims, queue, warnings and events, with the rules between them.
    fn places(&self, area: Rect) -> [Rect; 6] {
        let [free, gpus, claims, queue, warnings, news, _] = self.rows;
        let rule = |place: usize, has: usize| usize::from(has > 0 && self.ruled(place));
        let sizes = [
            free,
            gpus + 1 + rule(1, 1),
            claims + 1 + rule(2, 1),
            queue + rule(3, queue),
            warnings + rule(0, warnings + news),
            news,
        ];
        super::parts(area, sizes)
    }
}

/// Visible rows of the claims, the step of PgDn.
pub(super) fn page(model: &Model) -> usize {
    let (width, height) = model.size;
    let area = Rect::new(0, 0, width, height.saturating_sub(2));
    Parts::new(&View::bare(model), area).rows[CLAIMS].max(1)
}

pub(super) fn draw(view: &View<'_>, area: Rect, scene: &mut Scene<'_>) {
    if area.is_empty() {
        return;
    }
    let mut parts = Parts::new(view, area);
    let side = area.width >= SIDE;
    let columns = [
        Constraint::Max(if side { LEFT } else { u16::MAX }),
        Constraint::Fill(1),
    ];
    let columns = Layout::horizontal(columns).spacing(u16::from(side));
    let [left, right] = columns.areas(area);
    let [mut free, gpus, claims, queue, warnings, news] = parts.places(left);
    free.width = area.width.min(LEFT);
    free::draw(view, parts.answers.as_deref(), free, scene);
    let gpus = scene.ruled(gpus, parts.ruled(1));
    gpus::draw(view, gpus, parts.each, scene);
    let claims = scene.ruled(claims, parts.ruled(2));
    claims::draw(view, &parts.claims, claims, scene);
    let queue = scene.ruled(queue, parts.ruled(3));
    queue::draw(view, queue, scene);
    let cols = usize::from(left.width);
    let warnings = scene.ruled(warnings, parts.ruled(0));
    let rows = usize::from(warnings.height);
    scene.rows(notes::lines(view, &parts.notes, cols, rows), warnings);
    last(view, news, std::mem::take(&mut parts.latest), scene);
    if side {
        beside(view, right, scene);
    }
}

/// Draws them, events in full if there is room.
fn last(view: &View<'_>, area: Rect, [mut events, day]: Latest, scene: &mut Scene<'_>) {
    let at = super::columns(area, 5, u16::MAX);
    if view.snapshot.notices.len() >= at.height.into() {
        events = notes::news(view, (at.width.into(), at.height.into()), 1);
    }
    let mut y = 0;
    for (head, lines) in [("LAST", events), ("DAY", day)] {
        let rows = super::cells(lines.len());
        if rows > 0 && y < area.height {
            scene.line(line!(view; heading head), area, y);
            scene.rows(lines, super::below(at, y));
        }
        y += rows;
    }
}

/// All of that in full, those with most claimed first.
fn latest(view: &View<'_>, (cols, rows): (u16, u16)) -> Latest {
    let users = view.snapshot.users.iter();
    let mut users = Vec::from_iter(users.filter_map(|u| Some((u.day.as_ref()?, &u.user))));
    users.sort_by(|a, b| b.0.claimed_gpu_s.total_cmp(&a.0.claimed_gpu_s));
    let mut day = Facts::new(view.look, cols.into(), (0, 9));
    for (sums, user) in users {
        day.tell(user, &tree::sums_of(view, sums), view.theme.text, 1);
    }
    let events = notes::news(view, (cols.into(), rows.into()), 3);
    [events, day.lines]
}

/// Additional parts of large screens: the whole queue, the chosen claim since it began, the events.
fn beside(view: &View<'_>, area: Rect, scene: &mut Scene<'_>) {
    let inner = super::columns(area, 2, u16::MAX);
    if view.glyphs.lines {
        let wall = vec![line!(view; free "│"); area.height.into()];
        scene.rows(wall, super::columns(area, 0, 1));
    }
    let claim = match view.model.chosen(Section::Claims) {
        Some(RowKey::Claim(id)) => view.model.claim(id).filter(|_| area.height >= 20),
        _ => None,
    };
    let waiting = queue::wanted(view).clamp(1, 12);
    // The claim gets the rest.
    let latest = latest(view, (inner.width.saturating_sub(5), 9));
    let news = latest.iter().map(Vec::len).sum::<usize>().min(9);
    let sheet = if claim.is_some() { usize::MAX } else { 0 };
    let [queue, chosen, news] = super::parts(inner, [waiting + 1, sheet, news]);
    let height = queue.height.saturating_sub(1);
    queue::draw(view, Rect { height, ..queue }, scene);
    if let Some(claim) = claim {
        tree::sheet(view, claim, chosen, scene);
    }
    last(view, news, latest, scene);
}

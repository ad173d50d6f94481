//! How many rows each part of the screen gets: first what everybody needs, then more of everything as
//! long as there is room.

use gshare_proto::Snapshot;

use super::{gpus, notes, queue, users};
use crate::model::{Model, Page, Section};
use crate::text::wrap;
use crate::theme::Glyphs;

/// The division of the screen. All figures are rows, except the width in columns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Columns.
    pub(super) width: usize,
    /// Rows above the key line.
    pub(super) body: usize,
    /// Whether tables have all their columns.
    pub(super) wide: bool,
    /// Rows of the banner.
    pub(super) banner: usize,
    /// GPUs shown at a time.
    pub(super) gpus: usize,
    /// Rows of one GPU: 1, 2 (memory and SMs), 3 (and who is on it), 4 (and a gap).
    pub(super) gpu_rows: usize,
    /// Rows of users with the heading.
    pub(super) users: usize,
    /// Rows of claims without the heading.
    pub(super) claims: usize,
    /// Rows of the queue with the heading.
    pub(super) queue: usize,
    /// Rows of a reason to wait.
    pub(super) why: usize,
    /// Rows of advice and notices.
    pub(super) notes: usize,
    /// Gaps between parts.
    pub(super) gaps: usize,
}

/// From this many columns on there is room for all columns.
const WIDE: usize = 100;

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

impl Plan {
    /// Divides `width` columns and `height` rows.
    pub(super) fn new(model: &Model, width: usize, height: usize, glyphs: &Glyphs) -> Self {
        let foot = super::keys::rows(model, (width, height));
        let body = height.saturating_sub(foot);
        let mut plan = Self {
            width,
            body,
            wide: width >= WIDE,
            gpu_rows: 1,
            why: 1,
            ..Self::default()
        };
        let mut rows = Rows(body);
        // The header and the tabs.
        rows.some(2);
        let banner = model.banner();
        let banner = banner.map_or(0, |text| wrap(&text, width, 2, glyphs).len());
        plan.banner = rows.some(banner);
        if let Some(snapshot) = &model.snapshot
            && model.page == Page::Overview
        {
            plan.divide(model, snapshot, &mut rows, glyphs);
        }
        plan
    }

    fn divide(&mut self, model: &Model, snapshot: &Snapshot, rows: &mut Rows, glyphs: &Glyphs) {
        let gpus = snapshot.gpus.len();
        let claims = model.claim_rows().len().max(1);
        let queue = queue::wanted(model);
        let notes = notes::wanted(snapshot);
        // A few of each, so that no part hides another.
        rows.some(1);
        let most_gpus = (rows.0 / 2).max(1);
        self.gpus = rows.some(gpus.min(most_gpus));
        rows.some(1);
        let (mut first_claims, mut first_queue) = (3, 2);
        match model.section {
            Section::Queue => (first_claims, first_queue) = (1, 6),
            Section::Gpus => first_claims = 1,
            _ => {}
        }
        rows.raise(&mut self.queue, queue.min(first_queue));
        rows.raise(&mut self.claims, claims.min(first_claims));
        if model.section == Section::Gpus {
            rows.raise(&mut self.gpus, gpus);
        }
        rows.raise(&mut self.notes, notes.min(1));
        rows.raise(&mut self.queue, queue.min(3));
        let some_users = usize::from(!snapshot.users.is_empty());
        rows.raise(&mut self.users, some_users);
        rows.raise(&mut self.notes, notes.min(2));
        rows.raise(&mut self.claims, claims.min(6));
        rows.raise(&mut self.gaps, 4);
        rows.raise(&mut self.claims, claims.min(12));
        rows.raise(&mut self.gpus, gpus);
        rows.raise(&mut self.queue, queue.min(7));
        if self.wide && self.gpus == gpus && rows.all(gpus) {
            self.gpu_rows = 2;
        }
        if self.wide {
            let table = users::table_rows(snapshot);
            if self.users > 0 && rows.all(table.saturating_sub(self.users)) {
                self.users = table;
            }
        }
        rows.raise(&mut self.notes, notes.min(4));
        if self.gpu_rows == 2 && gpus::has_notes(snapshot) && rows.all(gpus) {
            self.gpu_rows = 3;
        }
        rows.raise(&mut self.claims, claims);
        rows.raise(&mut self.queue, queue);
        let waiting = model.queue_rows().len();
        if self.queue == queue && queue::long(model, self.width) && rows.all(waiting) {
            self.queue += waiting;
            self.why = 2;
        }
        rows.raise(&mut self.notes, notes.min(8));
        // Whole sentences.
        if self.notes == notes {
            let whole = notes::whole(model, snapshot, glyphs, self.width);
            rows.raise(&mut self.notes, whole.min(12));
        }
        // Room to spare sets the GPUs apart.
        if self.gpu_rows == 3 && rows.0 > gpus + 4 && rows.all(gpus) {
            self.gpu_rows = 4;
        }
    }
}

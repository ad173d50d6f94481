//! The state of the screen. Nothing here reads a clock, a terminal or a socket.

mod page;
mod past;
mod sort;
mod tree;
mod words;

/// The element that many places further, wrapping around.
pub(crate) fn around<T: Copy + PartialEq>(all: &[T], from: T, by: usize) -> T {
    let at = all.iter().position(|one| *one == from).unwrap_or(0);
    all[(at + by) % all.len()]
}

use std::collections::{BTreeMap, BTreeSet};

use gshare_proto::{
    Call, Check, ClaimSpec, ClaimView, GpuState, GpuView, HistorySeries, ModelRoomView, QueueView,
    Snapshot, Tried, UnclaimedView, Wait,
};

use crate::form::Form;
use crate::input::LineInput;
use crate::msg::Cmd;
use crate::text::Clock;

#[cfg(test)]
pub(crate) use gshare_proto::totals::Split;
pub(crate) use gshare_proto::totals::{
    AtLeast, claimed, compute, compute_of, is_by_sms, mem_claimed, mem_used, sm_active,
    sm_occupancy, sm_of_gpu, split, sums,
};
pub use page::Page;
pub(crate) use past::{Past, Span, young};
pub(crate) use sort::Sort;
pub(crate) use tree::{Group, Grouping, TreeRow};
pub(crate) use words::{Words, words};

/// The user at the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Viewer {
    pub uid: u32,
    /// Whether the viewer may act on everybody's claims (root).
    pub admin: bool,
}

/// Whether an announced action on a claim can still be postponed, because it has not begun. An older service does not
/// report that.
pub(crate) fn can_be_kept(claim: &ClaimView) -> bool {
    claim.place.on_its_way == Some(false)
}

pub(crate) fn ends_idle(claim: &ClaimView) -> bool {
    let idle = claim.idle.as_ref();
    idle.is_some_and(|idle| idle.ends_in_s.is_some() && !idle.kept)
}

/// A part of the screen with selectable rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Section {
    #[default]
    Claims,
    Queue,
    Gpus,
    Tree,
    Users,
    Health,
}

impl Section {
    /// Sections of the Overview, in the order of Right.
    pub(crate) const OVERVIEW: [Self; 3] = [Self::Claims, Self::Queue, Self::Gpus];
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RowKey {
    Claim(String),
    Waiting(String),
    Gpu(u32),
    Group(String),
    /// A process on a GPU, by pid and index of the GPU; with or without a claim.
    Process(u32, u32),
    User(u32),
    Check(String),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ClaimRow<'a> {
    Claim(&'a ClaimView),
    /// The n-th process without a claim, shown as `u<n>`.
    Unclaimed(usize, &'a UnclaimedView),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Dialog {
    Form(Box<Form>),
    /// An action that needs a confirmation.
    Confirm(Box<Question>),
    Detail {
        key: RowKey,
        scroll: usize,
    },
    Help(usize),
    /// The log, from this line on.
    Log(usize),
    /// The list of warnings, with actions for the chosen one.
    Warnings(usize),
    Message {
        title: String,
        lines: Vec<String>,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Question {
    pub(crate) title: String,
    pub(crate) text: String,
    pub(crate) call: Call,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Good,
    Plain,
    Bad,
}

/// A line of news above the keys, for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Toast {
    pub(crate) text: String,
    pub(crate) tone: Tone,
    /// Shown until then, Unix milliseconds.
    pub(crate) until_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Claim,
    Act,
    Try,
    /// For FREE NOW.
    DryRun,
    Checks,
    Past,
    /// The same time by GPU.
    PastGpus,
    Worst,
    ClaimPast,
}

/// The doctor's rows, and when they were requested.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Checks {
    /// Rows, or why there are none.
    pub(crate) rows: Option<Result<Vec<Check>, String>>,
    /// Last request, Unix milliseconds.
    pub(crate) asked_ms: u64,
}

/// A dry run for the viewer: of everything that is free of a model, or of [`SOME`] if nothing is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DryRun {
    pub(crate) model: String,
    /// The requested size, thousandths of a GPU.
    pub(crate) milli: u32,
    /// Time of the request, Unix milliseconds, and its number.
    pub(crate) asked: (u64, u64),
    pub(crate) said: Option<Tried>,
}

impl DryRun {
    /// Whether it is for this size of this model.
    fn is_of(&self, room: &ModelRoomView, milli: u32) -> bool {
        self.model == room.model && self.milli == milli
    }

    pub(crate) fn call(&self) -> Call {
        Call::Try(Box::new(ClaimSpec {
            gpus_milli: Some(self.milli),
            models: vec![self.model.clone()].into(),
            wait: Wait::No,
            ..ClaimSpec::default()
        }))
    }
}

/// How long a dry run stays valid, in milliseconds.
const TRIED_MS: u64 = 30_000;

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Model {
    pub(crate) viewer: Viewer,
    pub(crate) size: (u16, u16),
    pub(crate) clock: Clock,
    pub(crate) snapshot: Option<Box<Snapshot>>,
    /// Time of arrival, Unix milliseconds.
    pub(crate) received_ms: u64,
    pub(crate) disconnected: Option<String>,
    pub(crate) page: Page,
    pub(crate) section: Section,
    pub(crate) grouping: Grouping,
    /// Groups that are folded and claims that are unfolded, by name.
    pub(crate) turned: BTreeSet<String>,
    pub(crate) checks: Checks,
    pub(crate) past: Past,
    pub(crate) dry_runs: Vec<DryRun>,
    /// The chosen row of each section, and its last place; none if the viewer has cleared the choice.
    chosen: BTreeMap<Section, Option<(RowKey, usize)>>,
    /// Sections in which the viewer has chosen a row; in the others the first row stays chosen.
    touched: BTreeSet<Section>,
    /// Zoom steps of the Queue's axis beyond its minimum length.
    pub(crate) zoom: isize,
    /// Beginning of the Queue's axis after now, in milliseconds.
    pub(crate) ahead_ms: u64,
    pub(crate) mine: bool,
    pub(crate) sort: Sort,
    pub(crate) reversed: bool,
    pub(crate) filter: LineInput,
    pub(crate) filtering: bool,
    pub(crate) dialog: Option<Dialog>,
    pub(crate) toast: Option<Toast>,
    pub(crate) caption: Option<String>,
    pub(crate) captions_paused: bool,
    pub(crate) recorded: bool,
    /// The wall clock, Unix milliseconds; in a recording, its own clock.
    pub(crate) wall_ms: u64,
    pub(crate) asked: BTreeMap<u64, Asked>,
    pub(crate) next_seq: u64,
    /// Commands that follow from the last message.
    pub(crate) out: Vec<Cmd>,
}

/// How long a message stays, in milliseconds.
const TOAST_MS: u64 = 8000;

/// A snapshot older than this is stale, in milliseconds.
const STALE_MS: u64 = 5000;

impl Model {
    pub(crate) fn new(viewer: Viewer, size: (u16, u16), clock: Clock) -> Self {
        Self {
            viewer,
            size,
            clock,
            received_ms: clock.now_ms,
            wall_ms: clock.now_ms,
            next_seq: 1,
            ..Self::default()
        }
    }

    /// The service behind the snapshot, or why there is none.
    pub(crate) fn service(&self) -> Result<(), String> {
        if let Some(why) = &self.disconnected {
            return Err(why.clone());
        }
        match &self.snapshot {
            None => Err("no figures yet".to_owned()),
            Some(s) if s.service.is_none() => {
                Err("read-only: no gshare service. Ask your admin: sudo gshare setup".to_owned())
            }
            Some(_) => Ok(()),
        }
    }

    pub(crate) fn is_stale(&self) -> bool {
        let age = self.clock.now_ms.saturating_sub(self.received_ms);
        self.disconnected.is_some() || age > STALE_MS
    }

    pub(crate) fn off(&self) -> Option<String> {
        let off = self.snapshot.as_ref()?.service.as_ref()?.off.as_ref()?;
        let until = off.until_ms.map(|at| self.clock.short_time(at));
        let until = until.map_or_else(String::new, |at| format!(" until {at}"));
        let by = match off.by.as_str() {
            "" => String::new(),
            by => format!(" ({by})"),
        };
        Some(format!("OFF{until}{by}: no limits, no queue"))
    }

    /// The banner: the source is gone or silent, gshare is off or has no effect, a stage will change, or the screen
    /// is read-only.
    pub(crate) fn banner(&self) -> Option<String> {
        let snapshot = self.snapshot.as_ref()?;
        let taken = || self.clock.time(snapshot.taken_ms);
        if let Some(why) = &self.disconnected {
            return Some(format!("{why}; figures from {}", taken()));
        }
        if self.is_stale() {
            let age = self.clock.since(self.received_ms);
            return Some(format!("no news for {age}; figures from {}", taken()));
        }
        if let Err(why) = self.service() {
            return Some(why);
        }
        let stage = snapshot.service.as_ref()?.stage.as_ref();
        let open = stage.and_then(|s| s.no_effect.clone());
        let later = || Some(stage?.later.as_ref()?.text.clone());
        self.off().or(open).or_else(later)
    }

    /// Claims, then processes without a claim, filtered and sorted.
    pub(crate) fn claim_rows(&self) -> Vec<ClaimRow<'_>> {
        let Some(snapshot) = &self.snapshot else {
            return Vec::new();
        };
        let shown = |c: &&ClaimView| {
            let name = c.name.as_deref().unwrap_or_default();
            self.owned(Some(c.uid))
                && self.matches(&[&c.user, &c.id, name, &c.what, &c.class, &c.state_text])
        };
        let mut claims: Vec<&ClaimView> = snapshot.claims.iter().filter(shown).collect();
        claims.sort_by(|a, b| self.sort.compare(self.reversed, a, b));
        if self.sort == Sort::Need {
            let turned = if self.reversed { u8::MAX } else { 0 };
            claims.sort_by_cached_key(|c| turned ^ words::rank(c, &self.viewer, snapshot));
        }
        let shown = |u: &UnclaimedView| {
            let user = u.user.as_deref().unwrap_or_default();
            self.owned(u.uid) && self.matches(&[user, &u.what, "no claim"])
        };
        let programs = (1..).zip(&snapshot.unclaimed).filter(|(_, u)| shown(u));
        let programs = programs.map(|(n, u)| ClaimRow::Unclaimed(n, u));
        let claims = claims.into_iter().map(ClaimRow::Claim);
        claims.chain(programs).collect()
    }

    pub(crate) fn gpus(&self) -> impl Iterator<Item = &GpuView> {
        self.snapshot.iter().flat_map(|s| &s.gpus)
    }

    pub(crate) fn gpus_of(&self, room: &ModelRoomView) -> impl Iterator<Item = &GpuView> + Clone {
        let of = |g: &&GpuView| g.model == room.model || g.short == room.model;
        self.snapshot.iter().flat_map(|s| &s.gpus).filter(of)
    }

    pub(crate) fn gpu(&self, index: u32) -> Option<&GpuView> {
        self.gpus().find(|g| g.index == index)
    }

    pub(crate) fn checks(&self) -> impl Iterator<Item = &Check> {
        self.checks.rows.iter().flatten().flatten()
    }

    pub(crate) fn queue_rows(&self) -> Vec<&QueueView> {
        let shown = |q: &&QueueView| {
            let name = q.name.as_deref().unwrap_or_default();
            self.owned(Some(q.uid)) && self.matches(&[&q.user, &q.id, name, &q.what, &q.class])
        };
        let queue = self.snapshot.iter().flat_map(|s| &s.queue);
        queue.filter(shown).collect()
    }

    pub(crate) fn past_rows(&self) -> Vec<&HistorySeries> {
        let mut users = self.past.users();
        users.retain(|u| self.owned(u.uid) && self.matches(&[&u.label]));
        users
    }

    pub(crate) fn health_gpus(&self) -> Vec<&GpuView> {
        let shown = |g: &&GpuView| {
            let name = format!("GPU {} {}", g.index, g.short);
            self.matches(&[&name, g.condition(), &g.mode])
        };
        self.gpus().filter(shown).collect()
    }

    /// The doctor's rows, filtered; those to fix first.
    pub(crate) fn check_rows(&self) -> Vec<&Check> {
        let shown = |c: &&Check| self.matches(&[&c.name, &c.state, &c.detail]);
        let mut rows: Vec<&Check> = self.checks().filter(shown).collect();
        rows.sort_by_key(|c| weight(c));
        rows
    }

    pub(crate) fn filtered_rows(&self) -> usize {
        let rows = |section| self.keys(section).len();
        match self.page {
            Page::Overview => rows(Section::Claims) + rows(Section::Queue),
            Page::Claims => rows(Section::Claims),
            _ => rows(self.focus()),
        }
    }

    /// Whether rows of this user are shown.
    fn owned(&self, uid: Option<u32>) -> bool {
        !self.mine || uid == Some(self.viewer.uid)
    }

    pub(crate) fn matches(&self, texts: &[&str]) -> bool {
        let wanted = self.filter.text().trim().to_lowercase();
        wanted.is_empty() || texts.iter().any(|t| t.to_lowercase().contains(&wanted))
    }

    pub(crate) fn keys(&self, section: Section) -> Vec<RowKey> {
        let gpu = |g: &GpuView| RowKey::Gpu(g.index);
        let check = |c: &Check| RowKey::Check(c.name.clone());
        let waiting = |q: &QueueView| RowKey::Waiting(q.id.clone());
        match section {
            Section::Claims => self.claim_rows().iter().map(ClaimRow::key).collect(),
            Section::Queue => self.queue_rows().into_iter().map(waiting).collect(),
            Section::Gpus => self.gpus().map(gpu).collect(),
            Section::Tree => self.tree().iter().map(TreeRow::key).collect(),
            Section::Users => {
                let uids = self.past_rows().into_iter().filter_map(|u| u.uid);
                uids.map(RowKey::User).collect()
            }
            Section::Health => {
                let gpus = self.health_gpus().into_iter().map(gpu);
                gpus.chain(self.check_rows().into_iter().map(check))
                    .collect()
            }
        }
    }

    pub(crate) fn focus(&self) -> Section {
        match self.page {
            Page::Overview => self.section,
            Page::Claims => Section::Tree,
            Page::Queue => Section::Queue,
            Page::History => Section::Users,
            Page::Health => Section::Health,
        }
    }

    pub(crate) fn chosen(&self, section: Section) -> Option<&RowKey> {
        let chosen = self.chosen.get(&section)?;
        chosen.as_ref().map(|(key, _)| key)
    }

    /// The chosen row of the focused section.
    pub(crate) fn current(&self) -> Option<&RowKey> {
        self.chosen(self.focus())
    }

    /// The row whose page is open, otherwise the chosen one.
    pub(crate) fn subject(&self) -> Option<&RowKey> {
        match &self.dialog {
            Some(Dialog::Detail { key, .. }) => Some(key),
            _ => self.current(),
        }
    }

    pub(crate) fn chosen_index(&self, section: Section) -> Option<usize> {
        let key = self.chosen(section)?;
        self.keys(section).iter().position(|k| k == key)
    }

    /// Chooses the row at `index` (or the last) of the focused section.
    pub(crate) fn choose(&mut self, index: usize) {
        let section = self.focus();
        let keys = self.keys(section);
        let index = index.min(keys.len().saturating_sub(1));
        self.touched.insert(section);
        if let Some(key) = keys.into_iter().nth(index) {
            self.chosen.insert(section, Some((key, index)));
        }
    }

    pub(crate) fn choose_none(&mut self) {
        self.chosen.insert(self.focus(), None);
    }

    /// Keeps each choice of this screen on its row; if the row is gone, on the row that took its place.
    pub(crate) fn settle(&mut self) {
        let sections = match self.page {
            Page::Overview => Section::OVERVIEW.to_vec(),
            _ => vec![self.focus()],
        };
        for section in sections {
            let keys = self.keys(section);
            if keys.is_empty() && self.page == Page::Overview && self.section == section {
                self.section = Section::default();
            }
            let place = match self.chosen.get(&section) {
                Some(None) => continue,
                Some(Some((key, index))) if self.touched.contains(&section) => {
                    keys.iter().position(|k| k == key).unwrap_or(*index)
                }
                // No choice means all users.
                None if section == Section::Users => continue,
                // A claim rather than the heading of its group.
                _ => keys
                    .iter()
                    .position(|k| !matches!(k, RowKey::Group(_)))
                    .unwrap_or(0),
            };
            let place = place.min(keys.len().saturating_sub(1));
            match keys.into_iter().nth(place) {
                Some(key) => self.chosen.insert(section, Some((key, place))),
                None => self.chosen.remove(&section),
            };
        }
    }

    pub(crate) fn may(&self, uid: u32) -> bool {
        self.viewer.admin || self.viewer.uid == uid
    }

    /// The viewer's name, if the snapshot has it.
    pub(crate) fn viewer_name(&self) -> Option<&str> {
        let snapshot = self.snapshot.as_ref()?;
        let users = snapshot.users.iter().map(|u| (u.uid, &u.user));
        let claims = snapshot.claims.iter().map(|c| (c.uid, &c.user));
        let queue = snapshot.queue.iter().map(|q| (q.uid, &q.user));
        let mut all = users.chain(claims).chain(queue);
        let found = all.find(|(uid, _)| *uid == self.viewer.uid);
        found.map(|(_, name)| name.as_str())
    }

    pub(crate) fn claim(&self, id: &str) -> Option<&ClaimView> {
        self.snapshot.as_ref()?.claims.iter().find(|c| c.id == id)
    }

    pub(crate) fn claim_of(&self, pid: u32) -> Option<&ClaimView> {
        let mut claims = self.snapshot.iter().flat_map(|s| &s.claims);
        claims.find(|c| c.processes.iter().any(|p| p.pid == pid))
    }

    pub(crate) fn waiting(&self, id: &str) -> Option<&QueueView> {
        self.snapshot.as_ref()?.queue.iter().find(|q| q.id == id)
    }

    /// The result of a dry run for what is free of a model; none until its answer.
    pub(crate) fn dry_run(&self, room: &ModelRoomView) -> Option<(&DryRun, &Tried)> {
        self.dry_run_of(room, milli(room))
    }

    /// The sizes to try: all that is free, half a GPU if that would be on loan, and a whole GPU if only a part is free.
    fn sizes(&self, room: &ModelRoomView) -> impl Iterator<Item = u32> {
        let is_part = (1..WHOLE).contains(&milli(room)) && room.largest > 0.0;
        let more = is_part && !self.gpus_of(room).any(GpuView::is_instance);
        let half = self.is_on_loan(room).then_some(HALF);
        let sizes = [Some(milli(room)), half, more.then_some(WHOLE)];
        sizes.into_iter().flatten()
    }

    /// The results for a model.
    pub(crate) fn runs_of(&self, room: &ModelRoomView) -> impl Iterator<Item = (&DryRun, &Tried)> {
        let run = |n| self.dry_run_of(room, n);
        self.sizes(room).filter_map(run)
    }

    fn dry_run_of(&self, room: &ModelRoomView, milli: u32) -> Option<(&DryRun, &Tried)> {
        let run = self.dry_runs.iter().find(|d| d.is_of(room, milli))?;
        Some((run, run.said.as_ref()?))
    }

    /// Whether everything that is free of a model would be on loan, and exceeds half a GPU.
    fn is_on_loan(&self, room: &ModelRoomView) -> bool {
        let said = self.dry_run(room).map(|(_, tried)| tried);
        milli(room) > HALF && said.is_some_and(|t| t.starts && !t.entitled)
    }

    /// Whether half a GPU of it is within the guarantee, although all of it is on loan.
    pub(crate) fn has_half(&self, room: &ModelRoomView) -> bool {
        let half = self.dry_run_of(room, HALF);
        self.is_on_loan(room) && half.is_some_and(|(_, t)| t.starts && t.entitled)
    }

    /// The dry runs to request; `seq` is the number of the first request.
    pub(crate) fn untried(&mut self, seq: u64) -> Vec<DryRun> {
        let now = self.clock.now_ms;
        let is_new = |d: &DryRun| now.saturating_sub(d.asked.0) < TRIED_MS;
        self.dry_runs.retain(is_new);
        let room = self.snapshot.iter().flat_map(|s| &s.claimable_now);
        let sizes = |room| self.sizes(room).map(move |milli| (room, milli));
        let is_known =
            |of: &(&ModelRoomView, u32)| self.dry_runs.iter().any(|d| d.is_of(of.0, of.1));
        let rooms = room.flat_map(|room| &room.models).flat_map(sizes);
        let new = rooms.filter(|of| !is_known(of)).zip(seq..);
        let new = new.map(|((room, milli), seq)| DryRun {
            model: room.model.clone(),
            milli,
            asked: (now, seq),
            said: None,
        });
        let new: Vec<DryRun> = new.collect();
        self.dry_runs.extend(new.iter().cloned());
        new
    }

    /// Stores the answer to one of these.
    pub(crate) fn tried(&mut self, seq: u64, said: Tried) {
        if let Some(run) = self.dry_runs.iter_mut().find(|d| d.asked.1 == seq) {
            run.said = Some(said);
        }
    }

    pub(crate) fn say(&mut self, tone: Tone, text: impl Into<String>) {
        self.toast = Some(Toast {
            text: text.into(),
            tone,
            until_ms: self.wall_ms + TOAST_MS,
        });
    }
}

/// Sizes for dry runs, in thousandths of a GPU: if nothing is free, and besides what is free.
const SOME: u32 = 250;
const HALF: u32 = 500;
pub(crate) const WHOLE: u32 = 1000;

/// What could be claimed of a model at once, in thousandths of a GPU: whole GPUs, otherwise the largest part of one,
/// otherwise [`SOME`].
fn milli(room: &ModelRoomView) -> u32 {
    match (room.whole, (room.largest * 1000.0).round() as u32) {
        (0, 0) => SOME,
        (0, part) => part,
        (n, _) => n * WHOLE,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Weight {
    /// Broken, or can be improved by a command that ends no job.
    Fix,
    /// Works, and could be improved by other means.
    Stronger,
    Fine,
}

/// The weight of a row of the doctor.
pub(crate) fn weight(check: &Check) -> Weight {
    let command = |fix: &String| fix.starts_with("sudo ") || fix.starts_with("gshare ");
    match (check.state.as_str(), &check.fix) {
        ("ok", _) => Weight::Fine,
        ("missing", Some(_)) => Weight::Fix,
        (_, Some(fix)) if command(fix) => Weight::Fix,
        _ => Weight::Stronger,
    }
}

/// Memory of this fraction of a GPU; for an instance all, because it is claimed as a whole.
pub(crate) fn bytes_of(gpu: &GpuView, part: f64) -> Option<u64> {
    let part = if gpu.is_instance() { 1.0 } else { part };
    gpu.mem_allocatable
        .map(|bytes| (bytes as f64 * part) as u64)
}

/// Why nothing is known of a GPU.
pub(crate) fn trouble(gpu: &GpuView) -> Option<&'static str> {
    match gpu.state {
        GpuState::Ok => None,
        GpuState::Lost => Some("lost: it has fallen off the bus"),
        GpuState::Hung => Some("the driver does not answer for it"),
        GpuState::Released => Some("released by an administrator: no new claims"),
    }
}

/// `c14: refused 1.2 GiB`; the claim is added if the text does not begin with it.
pub(crate) fn told(notice: &gshare_proto::Notice) -> String {
    let claim = notice.claim.as_ref();
    let claim = claim.filter(|id| !notice.text.starts_with(id.as_str()));
    let claim = claim.map(|id| format!("{id}: ")).unwrap_or_default();
    format!("{claim}{}", notice.text)
}

impl ClaimRow<'_> {
    pub(crate) fn key(&self) -> RowKey {
        match self {
            Self::Claim(c) => RowKey::Claim(c.id.clone()),
            Self::Unclaimed(_, u) => RowKey::Process(u.pid, u.gpu),
        }
    }
}

//! The state of the screen. Nothing here reads a clock, a terminal or a socket.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use gshare_proto::{ClaimView, QueueView, Snapshot, UnclaimedView};

use crate::feed::Failure;
use crate::form::ClaimForm;
use crate::input::LineInput;
use crate::text::Clock;

/// Who looks at the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Viewer {
    /// uid.
    pub uid: u32,
    /// Whether the viewer may act on everybody's claims (root).
    pub admin: bool,
}

/// A part of the screen with rows to choose from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Section {
    /// Claims and unclaimed processes.
    #[default]
    Claims,
    /// Waiting claims.
    Queue,
    /// GPUs.
    Gpus,
}

impl Section {
    /// All, in the order of Tab.
    pub(crate) const ALL: [Self; 3] = [Self::Claims, Self::Queue, Self::Gpus];
}

/// Names a row over updates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RowKey {
    /// A granted claim.
    Claim(String),
    /// A process outside claims on a GPU.
    Unclaimed {
        /// Process.
        pid: u32,
        /// Index of the GPU.
        gpu: u32,
    },
    /// A waiting claim.
    Waiting(String),
    /// A GPU by index.
    Gpu(u32),
}

/// A row of the claims table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ClaimRow<'a> {
    /// A claim.
    Claim(&'a ClaimView),
    /// The n-th process outside claims, shown as `u<n>`.
    Unclaimed(usize, &'a UnclaimedView),
}

/// Order of the claims table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sort {
    /// By id.
    #[default]
    Id,
    /// By owner.
    User,
    /// By GPU.
    Gpu,
    /// Most memory first.
    Memory,
    /// Most GPU time first.
    Time,
    /// Most SM activity first.
    Sm,
}

impl Sort {
    /// The next one.
    pub(crate) fn next(self) -> Self {
        match self {
            Self::Id => Self::User,
            Self::User => Self::Gpu,
            Self::Gpu => Self::Memory,
            Self::Memory => Self::Time,
            Self::Time => Self::Sm,
            Self::Sm => Self::Id,
        }
    }

    /// For people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::User => "user",
            Self::Gpu => "GPU",
            Self::Memory => "memory, most first",
            Self::Time => "GPU time, most first",
            Self::Sm => "SM activity, most first",
        }
    }
}

/// A box above the screen.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Dialog {
    /// Make a claim.
    Claim(ClaimForm),
    /// Release or withdraw a claim.
    Confirm {
        /// The claim.
        id: String,
        /// What would happen.
        question: String,
    },
    /// Everything about a row.
    Detail {
        /// The row.
        key: RowKey,
        /// Lines scrolled away.
        scroll: usize,
    },
    /// Keys and signs.
    Help {
        /// Lines scrolled away.
        scroll: usize,
    },
    /// Something to read.
    Message {
        /// Title.
        title: String,
        /// Sentences.
        lines: Vec<String>,
    },
}

/// How a line of news is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    /// Good.
    Good,
    /// Neither.
    Plain,
    /// Bad.
    Bad,
}

/// A line of news above the keys, for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Toast {
    /// Sentence.
    pub(crate) text: String,
    /// How it is meant.
    pub(crate) tone: Tone,
    /// Until when, Unix milliseconds.
    pub(crate) until_ms: u64,
}

/// A request that has not been answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Claim.
    Claim,
    /// Release or withdraw.
    Release,
}

/// All of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Model {
    /// Who looks.
    pub(crate) viewer: Viewer,
    /// Columns and rows of the terminal.
    pub(crate) size: (u16, u16),
    /// Now.
    pub(crate) clock: Clock,
    /// The newest snapshot.
    pub(crate) snapshot: Option<Box<Snapshot>>,
    /// When it came, Unix milliseconds.
    pub(crate) received_ms: u64,
    /// Why there are no new ones.
    pub(crate) disconnected: Option<String>,
    /// The section with the focus.
    pub(crate) section: Section,
    /// The chosen row of each section, and where it was last seen.
    chosen: BTreeMap<Section, (RowKey, usize)>,
    /// Order of the claims.
    pub(crate) sort: Sort,
    /// Only rows with this text.
    pub(crate) filter: LineInput,
    /// Whether the filter is being typed.
    pub(crate) filtering: bool,
    /// The box above the screen.
    pub(crate) dialog: Option<Dialog>,
    /// A line of news.
    pub(crate) toast: Option<Toast>,
    /// The demo's line.
    pub(crate) caption: Option<String>,
    /// Whether the demo's captions stand still.
    pub(crate) captions_paused: bool,
    /// Requests without an answer.
    pub(crate) asked: BTreeMap<u64, Asked>,
    /// Number of the next request.
    pub(crate) next_seq: u64,
}

/// How long a line of news stays, in milliseconds.
const TOAST_MS: u64 = 8000;

/// A snapshot older than this is stale, in milliseconds.
const STALE_MS: u64 = 5000;

impl Model {
    /// An empty screen.
    pub(crate) fn new(viewer: Viewer, size: (u16, u16), clock: Clock) -> Self {
        Self {
            viewer,
            size,
            clock,
            snapshot: None,
            received_ms: clock.now_ms,
            disconnected: None,
            section: Section::default(),
            chosen: BTreeMap::new(),
            sort: Sort::default(),
            filter: LineInput::default(),
            filtering: false,
            dialog: None,
            toast: None,
            caption: None,
            captions_paused: false,
            asked: BTreeMap::new(),
            next_seq: 1,
        }
    }

    /// The service behind the snapshot, or why nothing can be asked of it.
    pub(crate) fn service(&self) -> Result<(), String> {
        if let Some(why) = &self.disconnected {
            return Err(why.clone());
        }
        match &self.snapshot {
            None => Err("no figures yet".to_owned()),
            Some(s) if s.service.is_none() => {
                Err("look only: no gshare service. Start one: sudo gshare daemon".to_owned())
            }
            Some(_) => Ok(()),
        }
    }

    /// What must be said above everything: the source is gone, silent, or look only.
    pub(crate) fn banner(&self) -> Option<String> {
        let snapshot = self.snapshot.as_ref()?;
        let taken = self.clock.time(snapshot.taken_ms);
        if let Some(why) = &self.disconnected {
            return Some(format!("{why}; figures of {taken}"));
        }
        if self.clock.now_ms.saturating_sub(self.received_ms) > STALE_MS {
            let age = self.clock.since(self.received_ms);
            return Some(format!("no news for {age}; figures of {taken}"));
        }
        snapshot.service.is_none().then(|| {
            "look only: no gshare service on this machine. Start one: sudo gshare daemon \
             (or gshare daemon --user)"
                .to_owned()
        })
    }

    /// Claims, then processes outside claims, as filtered and sorted.
    pub(crate) fn claim_rows(&self) -> Vec<ClaimRow<'_>> {
        let Some(snapshot) = &self.snapshot else {
            return Vec::new();
        };
        let mut claims: Vec<&ClaimView> = snapshot
            .claims
            .iter()
            .filter(|c| {
                let name = c.name.as_deref().unwrap_or_default();
                self.matches(&[&c.user, &c.id, name, &c.what, &c.class, &c.state_text])
            })
            .collect();
        claims.sort_by(|a, b| self.order(a, b).then_with(|| by_id(&a.id, &b.id)));
        let unclaimed = snapshot.unclaimed.iter().enumerate().filter(|(_, u)| {
            self.matches(&[u.user.as_deref().unwrap_or_default(), &u.what, "no cap"])
        });
        claims
            .into_iter()
            .map(ClaimRow::Claim)
            .chain(unclaimed.map(|(n, u)| ClaimRow::Unclaimed(n + 1, u)))
            .collect()
    }

    /// Waiting claims as filtered, head first.
    pub(crate) fn queue_rows(&self) -> Vec<&QueueView> {
        let queue = self.snapshot.iter().flat_map(|s| &s.queue);
        queue
            .filter(|q| {
                let name = q.name.as_deref().unwrap_or_default();
                self.matches(&[&q.user, &q.id, name, &q.what, &q.class])
            })
            .collect()
    }

    fn matches(&self, texts: &[&str]) -> bool {
        let wanted = self.filter.text().trim().to_lowercase();
        texts.iter().any(|t| t.to_lowercase().contains(&wanted))
    }

    fn order(&self, a: &ClaimView, b: &ClaimView) -> Ordering {
        match self.sort {
            Sort::Id => Ordering::Equal,
            Sort::User => a.user.cmp(&b.user),
            Sort::Gpu => {
                let gpus = |c: &ClaimView| c.gpus.iter().map(|g| g.gpu).collect::<Vec<_>>();
                gpus(a).cmp(&gpus(b))
            }
            Sort::Memory => most(mem_used(a).map(|b| b as f64), mem_used(b).map(|b| b as f64)),
            Sort::Time => most(time_busy(a).map(|f| f.value), time_busy(b).map(|f| f.value)),
            Sort::Sm => most(sm_active(a).map(|f| f.value), sm_active(b).map(|f| f.value)),
        }
    }

    /// Names of the rows of a section.
    pub(crate) fn keys(&self, section: Section) -> Vec<RowKey> {
        match section {
            Section::Claims => {
                let rows = self.claim_rows();
                rows.iter().map(ClaimRow::key).collect()
            }
            Section::Queue => {
                let rows = self.queue_rows();
                rows.iter().map(|q| RowKey::Waiting(q.id.clone())).collect()
            }
            Section::Gpus => {
                let gpus = self.snapshot.iter().flat_map(|s| &s.gpus);
                gpus.map(|g| RowKey::Gpu(g.index)).collect()
            }
        }
    }

    /// The chosen row of a section.
    pub(crate) fn chosen(&self, section: Section) -> Option<&RowKey> {
        self.chosen.get(&section).map(|(key, _)| key)
    }

    /// The chosen row of the section that has the focus.
    pub(crate) fn current(&self) -> Option<&RowKey> {
        self.chosen(self.section)
    }

    /// Where the chosen row of a section is.
    pub(crate) fn chosen_index(&self, section: Section) -> Option<usize> {
        let key = self.chosen(section)?;
        self.keys(section).iter().position(|k| k == key)
    }

    /// Chooses the row at `index` (or the last) of the section with the focus.
    pub(crate) fn choose(&mut self, index: usize) {
        let keys = self.keys(self.section);
        let index = index.min(keys.len().saturating_sub(1));
        if let Some(key) = keys.into_iter().nth(index) {
            self.chosen.insert(self.section, (key, index));
        }
    }

    /// No row of the section with the focus is chosen.
    pub(crate) fn choose_none(&mut self) {
        self.chosen.remove(&self.section);
    }

    /// Keeps each choice on its row; where the row is gone, the one that took its place.
    pub(crate) fn settle(&mut self) {
        for section in Section::ALL {
            let keys = self.keys(section);
            let Some((key, index)) = self.chosen.remove(&section) else {
                continue;
            };
            let place = keys.iter().position(|k| *k == key).unwrap_or(index);
            let place = place.min(keys.len().saturating_sub(1));
            if let Some(key) = keys.into_iter().nth(place) {
                self.chosen.insert(section, (key, place));
            }
        }
        if self.keys(self.section).is_empty() {
            self.section = Section::default();
        }
    }

    /// The claim with this id.
    pub(crate) fn claim(&self, id: &str) -> Option<&ClaimView> {
        self.snapshot.as_ref()?.claims.iter().find(|c| c.id == id)
    }

    /// The waiting claim with this id.
    pub(crate) fn waiting(&self, id: &str) -> Option<&QueueView> {
        self.snapshot.as_ref()?.queue.iter().find(|q| q.id == id)
    }

    /// Tells something for a while.
    pub(crate) fn say(&mut self, tone: Tone, text: impl Into<String>) {
        self.toast = Some(Toast {
            text: text.into(),
            tone,
            until_ms: self.clock.now_ms + TOAST_MS,
        });
    }

    /// Tells a failure for a while.
    pub(crate) fn say_failure(&mut self, failure: &Failure) {
        let hint = failure.hint.iter().map(|h| format!(". {h}"));
        let text = std::iter::once(failure.message.clone())
            .chain(hint)
            .collect::<String>();
        self.say(Tone::Bad, text);
    }
}

impl ClaimRow<'_> {
    /// The row's name.
    pub(crate) fn key(&self) -> RowKey {
        match self {
            Self::Claim(c) => RowKey::Claim(c.id.clone()),
            Self::Unclaimed(_, u) => RowKey::Unclaimed {
                pid: u.pid,
                gpu: u.gpu,
            },
        }
    }
}

pub(crate) use totals::{mem_cap, mem_used, sm_active, sm_occupancy, time_busy};

/// Figures of a claim over its GPUs: bytes add up, percentages are averaged, and what is not known on
/// one GPU is not known.
mod totals {
    use gshare_proto::{ClaimGpu, ClaimView, Figure};

    /// Bytes used: as the driver says, else as charged.
    pub(crate) fn mem_used(claim: &ClaimView) -> Option<u64> {
        let used = |g: &ClaimGpu| g.mem_used.or(g.mem_charge);
        claim.gpus.iter().map(used).sum()
    }

    /// The cap in bytes.
    pub(crate) fn mem_cap(claim: &ClaimView) -> u64 {
        claim.gpus.iter().map(|g| g.mem_limit).sum()
    }

    fn mean(claim: &ClaimView, of: impl Fn(&ClaimGpu) -> Option<Figure>) -> Option<Figure> {
        let figures: Vec<Figure> = claim.gpus.iter().map(of).collect::<Option<_>>()?;
        let first = figures.first()?;
        Some(Figure {
            value: figures.iter().map(|f| f.value).sum::<f64>() / figures.len() as f64,
            source: first.source,
            estimate: figures.iter().any(|f| f.estimate),
        })
    }

    /// Percent of the time of its GPUs.
    pub(crate) fn time_busy(claim: &ClaimView) -> Option<Figure> {
        mean(claim, |g| g.time_busy)
    }

    /// Percent of the SMs of its GPUs.
    pub(crate) fn sm_active(claim: &ClaimView) -> Option<Figure> {
        mean(claim, |g| g.sm_active)
    }

    /// Percent of the warps of its GPUs.
    pub(crate) fn sm_occupancy(claim: &ClaimView) -> Option<Figure> {
        mean(claim, |g| g.sm_occupancy)
    }
}

/// Most first; what is not known last.
fn most(a: Option<f64>, b: Option<f64>) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => b.total_cmp(&a),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => Ordering::Equal,
    }
}

/// `c9` before `c12`.
fn by_id(a: &str, b: &str) -> Ordering {
    a.len().cmp(&b.len()).then_with(|| a.cmp(b))
}

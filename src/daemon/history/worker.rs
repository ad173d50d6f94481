//! The thread that owns the history's file: it alone writes it and answers queries, so that the state's task never
//! waits for a disk.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use gshare_core::predict::Shape;
use gshare_proto::history::{HistorySpec, ReportSpec};
use gshare_proto::{ClaimSpec, ErrorCode, Reply, StoredPlace, SuggestSpec, SuggestView, WireError};

use super::answer::Place;
use super::runs::{self, RunRecord, Whose};
use super::store::{ClaimFace, Store};
use super::sum::{Step, Sum};
use super::{say, sharing};
use crate::clock::unix_ms;
use crate::daemon::connection::{Sender, Turn};
use crate::daemon::journal;
use crate::daemon::line;
use crate::daemon::names::Names;
use crate::daemon::peer::Peer;
use crate::daemon::played::Run;

/// Maximum number of steps that wait for a failing disk: an hour. The oldest are dropped.
const MOST_WAITING: usize = 360;

/// Orders for the thread. A query carries the turn of its connection, which is returned with the answer.
#[derive(Debug)]
pub(crate) enum Order {
    /// A step has ended.
    Step(Step),
    /// A claim's name.
    Face(ClaimFace),
    /// A query for lines.
    History(Box<HistorySpec>, Box<Place>, Sender, Turn),
    /// A query for a report.
    Report(Box<ReportSpec>, Box<Place>, Sender, Turn),
    /// A query for the data stored about a user, from a position on.
    Stored(u32, Option<StoredPlace>, Sender, Turn),
    /// A run has ended.
    Run(Box<RunRecord>, Whose),
    /// Look up earlier runs for a running claim.
    Learn(u64, Whose, Shape, u32),
    /// Look up the size of a new claim.
    Size(Box<SizeAsk>),
    /// A query for sizes.
    Suggest(Box<Question>, Sender, Turn),
    /// Write everything and end.
    Stop,
}

/// A claim whose size is looked up.
#[derive(Debug)]
pub(crate) struct SizeAsk {
    pub(crate) whose: Whose,
    pub(crate) shape: Shape,
    pub(crate) sized: Box<Sized>,
}

/// A query for sizes.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) whose: Whose,
    pub(crate) facts: say::Facts,
    pub(crate) running: Vec<say::Running>,
    pub(crate) spec: SuggestSpec,
}

/// Messages of the thread to the service.
#[derive(Debug)]
pub(crate) enum Told {
    /// Use of each user in the last day.
    Day(BTreeMap<u32, Sum>),
    /// Use of live claims before this service started.
    Claims(BTreeMap<u64, Sum>),
    /// Earlier runs of a running claim.
    Learned(u64, runs::Told),
    /// The size of a new claim.
    Sized(Box<Sized>),
}

/// The size of a new claim.
#[derive(Debug)]
pub(crate) struct Sized {
    pub(crate) peer: Peer,
    pub(crate) spec: ClaimSpec,
    pub(crate) out: Sender,
    /// Until it is returned, the connection has no other request.
    pub(crate) turn: Turn,
    pub(crate) told: runs::Told,
}

/// Passes a message on.
pub(crate) type Tell = Box<dyn Fn(Told) + Send>;

/// State of the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Status {
    /// Why it cannot be written.
    pub(crate) trouble: Option<String>,
    /// Steps that wait to be written.
    pub(crate) waiting: usize,
    /// Steps that were lost.
    pub(crate) lost: u64,
    /// Bytes in use.
    pub(crate) bytes: u64,
}

#[derive(Debug)]
pub(crate) struct Worker {
    orders: mpsc::Sender<Order>,
    status: Arc<Mutex<Status>>,
    thread: Option<JoinHandle<()>>,
}

struct Desk {
    path: PathBuf,
    max_bytes: u64,
    store: Option<Store>,
    waiting: VecDeque<Step>,
    names: Names,
    status: Arc<Mutex<Status>>,
    tell: Tell,
    minutes: i64,
    /// The last day was reported, with at least one user.
    day_told: bool,
}

impl Worker {
    /// Starts the thread. `store` is the file if it is already open; `claims` are the live ones.
    pub(crate) fn start(
        path: &Path,
        max_bytes: u64,
        store: Option<Store>,
        claims: Vec<u64>,
        names: Names,
        tell: Tell,
    ) -> std::io::Result<Self> {
        let (orders, inbox) = mpsc::channel();
        let status = Arc::new(Mutex::new(Status::default()));
        let mut desk = Desk {
            path: path.to_owned(),
            max_bytes,
            store,
            waiting: VecDeque::new(),
            names,
            status: Arc::clone(&status),
            tell,
            minutes: 0,
            day_told: false,
        };
        let thread = std::thread::Builder::new()
            .name("history".to_owned())
            .spawn(move || {
                gshare_abi::host::Priority::Background.take();
                desk.run(&inbox, &claims);
            })?;
        Ok(Self {
            orders,
            status,
            thread: Some(thread),
        })
    }

    /// Sends the thread an order.
    pub(crate) fn tell(&self, order: Order) {
        let Err(mpsc::SendError(order)) = self.orders.send(order) else {
            return;
        };
        let out = match order {
            Order::History(_, _, out, _) | Order::Report(_, _, out, _) => out,
            Order::Suggest(_, out, _) | Order::Stored(_, _, out, _) => out,
            Order::Size(ask) => ask.sized.out,
            _ => return,
        };
        let text = "the thread that keeps the history has ended";
        out.error(WireError::new(ErrorCode::Internal, text));
    }

    /// How the file is doing.
    pub(crate) fn status(&self) -> Status {
        let status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        status.clone()
    }

    /// Lets the thread write everything, and waits for a limited time, since a disk may hang.
    pub(crate) fn stop(&mut self, patience: Duration) {
        let _ = self.orders.send(Order::Stop);
        let Some(thread) = self.thread.take() else {
            return;
        };
        let until = std::time::Instant::now() + patience;
        while !thread.is_finished() && std::time::Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Desk {
    fn run(&mut self, inbox: &Receiver<Order>, claims: &[u64]) {
        self.tell_claims(claims);
        self.tell_day();
        while let Ok(order) = inbox.recv() {
            match order {
                Order::Step(step) => {
                    let minute = step.at / 60;
                    self.waiting.push_back(step);
                    self.write();
                    if minute != self.minutes {
                        self.minutes = minute;
                        self.tell_day();
                        self.tidy();
                    } else if !self.day_told {
                        // Report the first day as soon as there is a user in it.
                        self.tell_day();
                    }
                }
                Order::Face(face) => {
                    if let Some(Err(error)) = self.store().map(|s| s.name_claim(&face)) {
                        tracing::debug!(%error, claim = face.claim, "cannot store the name of a claim");
                    }
                }
                Order::History(spec, place, out, _turn) => {
                    self.write();
                    let answer = self.ask(|s, names| s.history(&spec, &place, names));
                    out.answer(answer.map(|v| Reply::History(Box::new(v))));
                }
                Order::Report(spec, place, out, turn) => {
                    self.write();
                    let path = self.path.with_file_name(journal::FILE);
                    let answer = self.ask(|s, names| {
                        let mut report = s.report(&spec, &place, names)?;
                        let runs = journal::reader(&path)
                            .and_then(|db| s.to_be_played(&db, &place, &mut report));
                        // If the file cannot be read, the rest of the report remains.
                        let runs = runs.unwrap_or_else(|error| {
                            report.not_played = Some(error.to_string());
                            None
                        });
                        let user = spec.user.as_ref().and_then(|user| names.uid(user));
                        Ok((report, runs, user))
                    });
                    match answer {
                        Ok((report, Some(runs), user)) => {
                            let (names, only) = (self.names.clone(), place.viewer.only());
                            let shown = move |run: &Run| {
                                user.is_none_or(|u| u == run.uid) && run.is_seen_by(only)
                            };
                            sharing::answer(report, runs, shown, names, &out, turn);
                        }
                        answer => {
                            out.answer(answer.map(|(view, ..)| Reply::Report(Box::new(view))));
                        }
                    }
                }
                Order::Stored(uid, after, out, _turn) => {
                    self.write();
                    let path = self.path.with_file_name(journal::FILE);
                    let answer = self.ask(|s, names| {
                        let journal = journal::reader(&path).map_err(unreadable)?;
                        let user = names.user(uid);
                        let found = s.stored(&journal, (uid, &user), after.as_ref());
                        found.map_err(unreadable)
                    });
                    out.answer(answer.map(Reply::Stored));
                }
                Order::Run(run, whose) => {
                    if let Some(Err(error)) = self.store().map(|s| s.add_run(*run, &whose)) {
                        tracing::warn!(%error, "the record of a run is lost");
                    }
                }
                Order::Learn(id, whose, shape, gpus) => {
                    let told = self.told(&whose, &shape, gpus);
                    (self.tell)(Told::Learned(id, told));
                }
                Order::Size(ask) => {
                    let mut sized = ask.sized;
                    let gpus = sized.spec.gpu_count.unwrap_or(1);
                    sized.told = self.told(&ask.whose, &ask.shape, gpus);
                    (self.tell)(Told::Sized(sized));
                }
                Order::Suggest(question, out, _turn) => {
                    let answer = self.ask(|s, _| suggest(s, &question));
                    out.answer(answer.map(|v| Reply::Suggest(Box::new(v))));
                }
                Order::Stop => {
                    self.write();
                    return;
                }
            }
        }
    }

    /// The file; opened again if it could not be opened.
    fn store(&mut self) -> Option<&mut Store> {
        if self.store.is_none() {
            match Store::open(&self.path, self.max_bytes) {
                Ok(store) => self.store = Some(store),
                Err(error) => {
                    let text = format!("cannot open {}: {error}", self.path.display());
                    self.note(|s| s.trouble = Some(text));
                }
            }
        }
        self.store.as_mut()
    }

    fn ask<T>(
        &mut self,
        question: impl FnOnce(&Store, &Names) -> Result<T, WireError>,
    ) -> Result<T, WireError> {
        let _ = self.store();
        match &self.store {
            Some(store) => question(store, &self.names),
            None => Err(WireError::new(
                ErrorCode::NotAvailable,
                format!("the history cannot be opened: {}", self.path.display()),
            )
            .with_hint("gshare doctor says why")),
        }
    }

    /// Experience from earlier runs; none if the file cannot be read.
    fn told(&mut self, whose: &Whose, shape: &Shape, gpus: u32) -> runs::Told {
        let found = self.store().map(|s| s.told(whose, shape, gpus));
        match found {
            Some(Ok(told)) => told,
            Some(Err(error)) => {
                tracing::warn!(%error, "the records of runs cannot be read");
                runs::Told::default()
            }
            None => runs::Told::default(),
        }
    }

    fn write(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let steps: Vec<Step> = self.waiting.drain(..).collect();
        let result = self.store().map(|store| store.add_all(&steps));
        match result {
            Some(Ok(())) => {
                let bytes = self.store.as_ref().and_then(|s| s.bytes().ok());
                self.note(|s| {
                    if s.trouble.take().is_some() {
                        tracing::info!("writing to the history works again");
                    }
                    s.bytes = bytes.unwrap_or(s.bytes);
                });
            }
            failed => {
                if let Some(Err(error)) = failed {
                    let text = error.to_string();
                    self.note(|s| {
                        if s.trouble.as_ref() != Some(&text) {
                            tracing::warn!("cannot write the history: {text}");
                        }
                        s.trouble = Some(text);
                    });
                }
                self.waiting.extend(steps);
                while self.waiting.len() > MOST_WAITING {
                    self.waiting.pop_front();
                    self.note(|s| s.lost += 1);
                }
            }
        }
        let waiting = self.waiting.len();
        self.note(|s| s.waiting = waiting);
    }

    fn note(&self, change: impl FnOnce(&mut Status)) {
        change(&mut self.status.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn tell_claims(&mut self, claims: &[u64]) {
        let found = self.store().map(|s| s.of_claims(0, unix_ms()));
        if let Some(Ok(mut found)) = found {
            found.retain(|id, _| claims.contains(id));
            (self.tell)(Told::Claims(found));
        }
    }

    fn tell_day(&mut self) {
        if let Some(Ok(day)) = self.store().map(|s| s.day(unix_ms())) {
            self.day_told = !day.is_empty();
            (self.tell)(Told::Day(day));
        }
    }

    fn tidy(&mut self) {
        if let Some(Err(error)) = self.store().map(|s| s.shrink()) {
            tracing::debug!(%error, "could not shrink the history's file");
        }
    }
}

fn unreadable(error: rusqlite::Error) -> WireError {
    let text = format!("what is stored cannot be read: {error}");
    WireError::new(ErrorCode::Internal, text)
}

/// Number of the latest different commands in an answer for which none is named.
const LAST: usize = 5;

fn suggest(store: &Store, question: &Question) -> Result<SuggestView, WireError> {
    let failed = |error: rusqlite::Error| {
        WireError::new(
            ErrorCode::Internal,
            format!("the records of runs cannot be read: {error}"),
        )
    };
    let (whose, facts, spec) = (&question.whose, &question.facts, &question.spec);
    let mut view = SuggestView::default();
    if spec.records {
        let records = store.runs_of(whose.uid, usize::MAX >> 1).map_err(failed)?;
        let lines = records.iter().rev().map(serde_json::to_string);
        view.records = lines.filter_map(Result::ok).collect();
    } else if spec.running {
        for claim in &question.running {
            let told = store.told(whose, claim.command.key(), claim.gpus);
            let told = told.map_err(failed)?;
            view.suggestions.push(say::running(&told, facts, claim));
        }
    } else if !spec.command.is_empty() {
        let told = store
            .told(whose, &line::key(&spec.command), 1)
            .map_err(failed)?;
        view.suggestions
            .push(say::suggest(&told, facts, &spec.command));
    } else {
        let mut seen: Vec<String> = Vec::new();
        for record in store.runs_of(whose.uid, 200).map_err(failed)? {
            if seen.contains(&record.shape.script) || seen.len() >= LAST {
                continue;
            }
            let told = store
                .told(whose, &record.shape, record.asked.gpus)
                .map_err(failed)?;
            let mut said = say::suggest(&told, facts, &[]);
            said.what.clone_from(&record.shape.script);
            seen.push(record.shape.script.clone());
            let words = crate::figures::program_and_script(record.shape).join(" ");
            said.command = said.command.replace(" -- ", &format!(" -- {words}"));
            view.suggestions.push(said);
        }
    }
    Ok(view)
}

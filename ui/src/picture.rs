//! The screen as text and as cells: for captures, recordings and tests.

use gshare_proto::{Call, Check, Client, ClientError, HistoryView, Reply, Snapshot, Tried};
use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::Rect;

use crate::feed::{Request, Update};
use crate::model::{DryRun, Model, Page, Span};
use crate::msg::{Cmd, Msg};
use crate::run::Options;
use crate::text::{self, Clock};
use crate::update::{act, update};
use crate::view::draw;

/// The data of a frame.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    /// The state of everything.
    pub snapshot: Snapshot,
    /// The record for the History screen; for the Claims screen, that of one claim.
    pub history: Option<HistoryView>,
    /// Rows of the doctor, for the Health screen.
    pub checks: Option<Vec<Check>>,
    /// Dry runs for the Overview: model, thousandths of a GPU, result.
    pub tried: Vec<(String, u32, Tried)>,
}

/// The query for the day before this time.
#[must_use]
pub fn last_day(now_ms: u64) -> Call {
    Call::History(Span::Day.spec(now_ms, 0))
}

impl Frame {
    /// Requests what a screen shows now from a service.
    ///
    /// # Errors
    ///
    /// When the service does not answer. Data for this screen alone are absent if they cannot be had.
    pub fn ask(client: &mut Client, page: Page) -> Result<Self, ClientError> {
        let mut frame = Self::default();
        if let Reply::Snapshot(snapshot) = client.call(&Call::Snapshot)? {
            frame.snapshot = *snapshot;
        }
        let options = Options {
            page,
            ..Options::default()
        };
        // Sends the same requests as the screen, and stores the answers.
        let mut model = frame.model(&options, (120, 40), 0);
        // Twice: after the first answer of a new service, a shorter period is requested.
        for _ in 0..2 {
            act::refresh(&mut model);
            for cmd in std::mem::take(&mut model.out) {
                if let Cmd::Ask(Request::Call { seq, call }) = cmd
                    && let Ok(reply) = client.call(&call)
                {
                    let outcome = Ok(reply);
                    update(&mut model, Msg::Update(Update::CallResult { seq, outcome }));
                }
            }
        }
        frame.history = match page {
            Page::Claims => model.past.claim,
            _ => model.past.view.and_then(Result::ok),
        }
        .map(|view| *view);
        frame.checks = model.checks.rows.and_then(Result::ok);
        let said = |run: DryRun| Some((run.model, run.milli, run.said?));
        frame.tried = model.dry_runs.into_iter().filter_map(said).collect();
        Ok(frame)
    }

    /// At the time of its snapshot, this many seconds east of UTC.
    fn model(&self, options: &Options, size: (u16, u16), offset_s: i32) -> Model {
        let now_ms = self.snapshot.taken_ms;
        let clock = Clock { now_ms, offset_s };
        let mut model = Model::new(options.viewer.clone(), size, clock);
        model.page = options.page;
        model.snapshot = Some(Box::new(self.snapshot.clone()));
        let history = self.history.clone().map(Box::new);
        match options.page {
            Page::Claims => model.past.claim = history,
            _ => model.past.view = history.map(Ok),
        }
        model.checks.rows = self.checks.clone().map(Ok);
        let run = |(name, milli, said): &(String, u32, Tried)| DryRun {
            model: name.clone(),
            milli: *milli,
            asked: (clock.now_ms, 0),
            said: Some(said.clone()),
        };
        model.dry_runs = self.tried.iter().map(run).collect();
        // Data that a recording does not have are not requested.
        if options.recorded && self.snapshot.service.is_some() {
            let nothing = || "the recording does not contain this".to_owned();
            model.past.view.get_or_insert_with(|| Err(nothing()));
            model.checks.rows.get_or_insert_with(|| Err(nothing()));
        }
        // The first screen has no chosen row; on the others the chosen row is part of the content.
        if matches!(options.page, Page::Claims | Page::Queue) {
            model.settle();
        }
        model
    }
}

/// The cells of a terminal of `size` columns and rows that shows `frame`, at the time of its snapshot.
#[must_use]
pub fn frame_cells(frame: &Frame, options: &Options, size: (u16, u16), offset_s: i32) -> Buffer {
    let model = frame.model(options, size, offset_s);
    let mut buf = Buffer::empty(Rect::new(0, 0, size.0, size.1));
    let area = buf.area;
    draw(&model, &options.look, area, &mut buf);
    buf
}

/// The characters of [`frame_cells`], line by line, without blanks at the end.
#[must_use]
pub fn frame_text(frame: &Frame, options: &Options, size: (u16, u16), offset_s: i32) -> String {
    buffer_text(&frame_cells(frame, options, size, offset_s))
}

pub(crate) fn buffer_text(buf: &Buffer) -> String {
    let mut out = String::new();
    for row in buf.content.chunks(usize::from(buf.area.width).max(1)) {
        let mut line = String::new();
        let mut hidden = 0;
        for symbol in row.iter().map(Cell::symbol) {
            // A wide character hides the cell behind it.
            if hidden == 0 {
                line.push_str(symbol);
                hidden = text::width(symbol).saturating_sub(1);
            } else {
                hidden -= 1;
            }
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

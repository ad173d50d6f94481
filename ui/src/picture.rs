//! The screen as text and as cells: for captures, recordings and tests.

use gshare_proto::{
    Call, Check, Client, ClientError, HistoryBy, HistorySpec, HistoryView, Reply, Snapshot,
};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::model::{Lasts, Model, Page, RowKey, free_room};
use crate::run::Options;
use crate::text::{self, Clock};
use crate::view::draw;

/// What a frame is drawn from.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    /// The state of everything.
    pub snapshot: Snapshot,
    /// What was recorded, for the History screen; of one claim, for the Claims screen.
    pub history: Option<HistoryView>,
    /// Rows of the doctor, for the Health screen.
    pub checks: Option<Vec<Check>>,
    /// Whether so much of a model (in thousandths of a GPU) would be the viewer's and not on loan, for the Overview.
    pub yours: Vec<(String, u32, bool)>,
}

/// The history that is printed and recorded, in milliseconds.
const DAY_MS: u64 = 24 * 3_600_000;

/// The question for the day before this time.
#[must_use]
pub fn last_day(now_ms: u64) -> Call {
    Call::History(HistorySpec {
        from_ms: now_ms.saturating_sub(DAY_MS),
        to_ms: 0,
        points: 180,
        by: HistoryBy::User,
        key: None,
    })
}

impl Frame {
    /// What a screen shows now, asked of a service.
    ///
    /// # Errors
    /// When the service does not answer. What only this screen shows is absent where it cannot be had.
    pub fn ask(client: &mut Client, page: Page) -> Result<Self, ClientError> {
        let mut frame = Self::default();
        if let Reply::Snapshot(snapshot) = client.call(&Call::Snapshot)? {
            frame.snapshot = *snapshot;
        }
        let options = Options {
            page,
            ..Options::default()
        };
        let mut model = frame.model(&options, (120, 40), 0);
        if page == Page::Overview {
            for (name, milli) in model.untried(0) {
                if let Ok(Reply::Tried(tried)) = client.call(&free_room(&name, milli))
                    && tried.starts
                {
                    frame.yours.push((name, milli, tried.entitled));
                }
            }
        }
        let question = match (page, model.current()) {
            (Page::History, _) => Some(last_day(frame.snapshot.taken_ms)),
            (Page::Claims, Some(RowKey::Claim(id))) => Some(Call::History(HistorySpec {
                from_ms: model.claim(id).map_or(0, |c| c.since_ms),
                points: 180,
                by: HistoryBy::Claim,
                key: Some(id.clone().into()),
                ..HistorySpec::default()
            })),
            _ => None,
        };
        if let Some(call) = question
            && let Ok(Reply::History(view)) = client.call(&call)
        {
            frame.history = Some(*view);
        }
        if page == Page::Health
            && let Ok(Reply::Doctor { checks }) = client.call(&Call::Doctor)
        {
            frame.checks = Some(checks);
        }
        Ok(frame)
    }

    fn model(&self, options: &Options, size: (u16, u16), utc_offset_s: i32) -> Model {
        let clock = Clock {
            now_ms: self.snapshot.taken_ms,
            offset_s: utc_offset_s,
        };
        let mut model = Model::new(options.viewer.clone(), size, clock);
        model.page = options.page;
        model.snapshot = Some(Box::new(self.snapshot.clone()));
        let history = self.history.clone().map(Box::new);
        match options.page {
            Page::Claims => model.past.claim = history,
            _ => model.past.view = history.map(Ok),
        }
        model.checks.rows = self.checks.clone().map(Ok);
        for (name, milli, yours) in &self.yours {
            model.lasts.push(Lasts::new(name, *milli, Some(*yours)));
        }
        // Nobody will be asked for what a recording does not have.
        if options.recorded && self.snapshot.service.is_some() {
            let nothing = || "that is not known here".to_owned();
            model.past.view.get_or_insert_with(|| Err(nothing()));
            model.checks.rows.get_or_insert_with(|| Err(nothing()));
        }
        // A picture of the first screen has no cursor; on the others the chosen row is what there is to see.
        if matches!(options.page, Page::Claims | Page::Queue) {
            model.settle();
        }
        model
    }
}

/// The cells that a terminal of `size` columns and rows would show of `frame`, at the moment when its snapshot was
/// taken.
#[must_use]
pub fn frame_cells(
    frame: &Frame,
    options: &Options,
    size: (u16, u16),
    utc_offset_s: i32,
) -> Buffer {
    let model = frame.model(options, size, utc_offset_s);
    let mut buf = Buffer::empty(Rect::new(0, 0, size.0, size.1));
    let area = buf.area;
    draw(&model, &options.look, area, &mut buf);
    buf
}

/// The characters of [`frame_cells`], line by line. Lines end without blanks.
#[must_use]
pub fn frame_text(frame: &Frame, options: &Options, size: (u16, u16), utc_offset_s: i32) -> String {
    buffer_text(&frame_cells(frame, options, size, utc_offset_s))
}

/// The characters of a buffer, line by line.
pub(crate) fn buffer_text(buf: &Buffer) -> String {
    let mut out = String::new();
    for y in 0..buf.area.height {
        let mut line = String::new();
        let mut hidden = 0;
        for x in 0..buf.area.width {
            let symbol = buf[(x, y)].symbol();
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

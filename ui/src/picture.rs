//! The screen as text and as a picture: for captures, recordings and tests.

use std::fmt::Write as _;

use gshare_proto::{
    Call, Check, Client, ClientError, HistoryBy, HistorySpec, HistoryView, Reply, Snapshot,
};
use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier};

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

    fn drawn(&self, options: &Options, (columns, rows): (u16, u16), offset_s: i32) -> Buffer {
        let model = self.model(options, (columns, rows), offset_s);
        let area = Rect::new(0, 0, columns, rows);
        let mut buf = Buffer::empty(area);
        draw(&model, &options.look, area, &mut buf);
        buf
    }
}

/// The screen as text, for captures: what a terminal of this size would show of `frame` at the
/// moment when its snapshot was taken. Lines end without blanks.
#[must_use]
pub fn frame_text(frame: &Frame, options: &Options, size: (u16, u16), utc_offset_s: i32) -> String {
    buffer_text(&frame.drawn(options, size, utc_offset_s))
}

/// The same as a picture (SVG) with the colours of the look.
#[must_use]
pub fn frame_svg(frame: &Frame, options: &Options, size: (u16, u16), utc_offset_s: i32) -> String {
    buffer_svg(&frame.drawn(options, size, utc_offset_s))
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

/// A cell in a picture, in pixels.
const CELL: (u32, u32) = (8, 17);

/// Page and ink of a dark terminal.
const PAGE: &str = "#10151c";
const INK: &str = "#d6dde6";

/// A colour of 24 bits; the picture has no palette for others.
fn hex(colour: Color) -> Option<String> {
    match colour {
        Color::Rgb(r, g, b) => Some(format!("#{r:02x}{g:02x}{b:02x}")),
        _ => None,
    }
}

/// Ink, page, and whether it is bold.
fn style(cell: &Cell) -> (String, Option<String>, bool) {
    let ink = hex(cell.fg).unwrap_or_else(|| INK.to_owned());
    let bold = cell.modifier.contains(Modifier::BOLD);
    (ink, hex(cell.bg), bold)
}

fn buffer_svg(buf: &Buffer) -> String {
    let (w, h) = CELL;
    let (columns, rows) = (u32::from(buf.area.width), u32::from(buf.area.height));
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" font-family=\"monospace\" \
         font-size=\"13\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"{PAGE}\"/>\n",
        columns * w,
        rows * h
    );
    for y in 0..buf.area.height {
        let mut x = 0;
        while x < buf.area.width {
            let first = style(&buf[(x, y)]);
            let same = |at: &u16| style(&buf[(*at, y)]) == first;
            let run = (x..buf.area.width).take_while(same).count() as u16;
            let signs = (x..x + run).map(|at| buf[(at, y)].symbol());
            let text: String = signs.collect();
            let (ink, page, bold) = first;
            let (left, top) = (u32::from(x) * w, u32::from(y) * h);
            let cols = u32::from(run) * w;
            if let Some(page) = page {
                let _ = writeln!(
                    out,
                    "<rect x=\"{left}\" y=\"{top}\" width=\"{cols}\" height=\"{h}\" fill=\"{page}\"/>"
                );
            }
            if !text.trim().is_empty() {
                let text = text.replace('&', "&amp;").replace('<', "&lt;");
                let bold = if bold { " font-weight=\"bold\"" } else { "" };
                let _ = writeln!(
                    out,
                    "<text x=\"{left}\" y=\"{}\" textLength=\"{cols}\" lengthAdjust=\"spacingAndGlyphs\" \
                     xml:space=\"preserve\" fill=\"{ink}\"{bold}>{text}</text>",
                    top + h - 4
                );
            }
            x += run;
        }
    }
    out.push_str("</svg>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{NLP, canned};
    use crate::theme::{Depth, Look};

    #[test]
    fn a_picture_has_the_text_and_the_colours_of_the_screen() {
        let frame = Frame {
            snapshot: canned::workstation(),
            ..Frame::default()
        };
        let options = Options {
            viewer: NLP,
            look: Look::new(Depth::Rgb, true),
            ask_background: false,
            page: Page::Overview,
            recorded: true,
        };
        let svg = frame_svg(&frame, &options, (80, 24), 0);
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert!(svg.contains("viewBox=\"0 0 640 408\""));
        for part in ["#b5dcff", "#3577ba", ">FREE NOW<", "vit.ipynb"] {
            assert!(svg.contains(part), "{part}: {svg}");
        }
        let opened = svg.matches("<text ").count();
        assert_eq!(opened, svg.matches("</text>").count());
    }
}

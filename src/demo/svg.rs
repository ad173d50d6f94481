//! The screen as a picture (SVG), for `docs/capture`.

use std::fmt::Write as _;

use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};

/// A cell in a picture, in pixels.
const CELL: (u32, u32) = (8, 17);

/// Page and ink of a dark terminal.
const PAGE: &str = "#10151c";
const INK: &str = "#d6dde6";

/// A 24-bit colour; the picture has no palette for others.
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

/// The cells as a picture (SVG), with 24-bit colours.
pub(super) fn svg(buf: &Buffer) -> String {
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

    #[test]
    fn a_picture_has_the_text_and_the_colours_of_the_cells() {
        let mut buf = Buffer::with_lines(["a <b>", "& c"]);
        buf[(2, 0)].set_fg(Color::Rgb(0xb5, 0xdc, 0xff));
        buf[(0, 1)].set_bg(Color::Rgb(0x35, 0x77, 0xba));
        let svg = svg(&buf);
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert!(svg.contains("viewBox=\"0 0 40 34\""));
        for part in ["#b5dcff", "#3577ba", "&lt;", "&amp;"] {
            assert!(svg.contains(part), "{part}: {svg}");
        }
        let opened = svg.matches("<text ").count();
        assert_eq!(opened, svg.matches("</text>").count());
    }
}

//! Users: what they claimed against what they use.

use gshare_proto::{Snapshot, UserView};
use ratatui::text::{Line, Span};

use super::plan::Plan;
use super::{fit, span};
use crate::text::{gib, gib_or, parts, span_width, width};
use crate::theme::Look;
use crate::widgets::columns::{Column, row, total};
use crate::widgets::share_bar::ShareBar;

/// Users in the table at most; the rest are counted.
const MOST: usize = 8;

/// Rows of the table with its heading.
pub(super) fn table_rows(snapshot: &Snapshot) -> usize {
    1 + snapshot.users.len().min(MOST)
}

/// Used GPUs: `~1.27`, or a dash.
fn used(user: &UserView, look: &Look) -> String {
    match user.sm_used {
        None => look.glyphs.dash.to_owned(),
        Some(f) if f.estimate => format!("~{}", parts(f.value)),
        Some(f) => parts(f.value),
    }
}

/// A line or a table, as planned.
pub(super) fn lines(snapshot: &Snapshot, look: &Look, plan: &Plan) -> Vec<Line<'static>> {
    if plan.users == 1 {
        vec![one_line(snapshot, look, plan.width)]
    } else {
        table(snapshot, look, plan)
    }
}

fn one_line(snapshot: &Snapshot, look: &Look, cols: usize) -> Line<'static> {
    let theme = &look.theme;
    let mut spans = vec![
        span("USERS", theme.heading),
        span(" claimed>SM used", theme.dim),
    ];
    let n = snapshot.users.len();
    for (i, user) in snapshot.users.iter().enumerate() {
        let mut item = vec![span(format!("  {} ", user.user), theme.text)];
        if user.claimed > 0.0 || user.waiting <= 0.0 {
            item.push(span(
                format!("{}>{}", parts(user.claimed), used(user, look)),
                theme.text,
            ));
        } else {
            item.push(span("0", theme.text));
        }
        if user.waiting > 0.0 {
            item.push(span(" (waits)", theme.warn));
        }
        let more = format!("  +{}", n - i);
        let reserve = if i + 1 < n { width(&more) } else { 0 };
        if span_width(&spans) + span_width(&item) + reserve > cols {
            spans.push(span(more, theme.dim));
            break;
        }
        spans.extend(item);
    }
    fit(Line::from(spans), cols, look)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Col {
    User,
    Claimed,
    Used,
    MemClaimed,
    MemUsed,
    Claims,
    Waiting,
}

fn table(snapshot: &Snapshot, look: &Look, plan: &Plan) -> Vec<Line<'static>> {
    let (theme, glyphs) = (&look.theme, &look.glyphs);
    let names = snapshot.users.iter().map(|u| width(&u.user)).max();
    let columns = [
        Column::words(Col::User, "USER", names.unwrap_or(0).clamp(6, 16)),
        Column::figures(Col::Claimed, "claimed", 9),
        Column::figures(Col::Used, "SM used", 9),
        Column::figures(Col::MemClaimed, "mem claimed", 13),
        Column::figures(Col::MemUsed, "mem used", 10),
        Column::figures(Col::Claims, "claims", 8),
        Column::figures(Col::Waiting, "waiting", 9),
    ];
    let bar = plan.width.saturating_sub(total(&columns) + 3).min(60);
    let mut head = row(&columns, glyphs, |c| (c.title.to_owned(), theme.heading));
    let gpus = snapshot.gpus.len();
    head.push_span(span(
        format!("   SM used of what is claimed, of {gpus} GPUs"),
        theme.dim,
    ));
    let mut out = vec![fit(head, plan.width, look)];
    let room = plan.users.saturating_sub(1);
    let hidden = snapshot.users.len().saturating_sub(room);
    let shown = if hidden > 0 {
        room.saturating_sub(1)
    } else {
        room
    };
    for user in snapshot.users.iter().take(shown) {
        let mut line = row(&columns, glyphs, |c| match c.key {
            Col::User => (user.user.clone(), theme.text),
            Col::Claimed => (parts(user.claimed), theme.text),
            Col::Used => (used(user, look), theme.text),
            Col::MemClaimed => (format!("{} G", gib(user.mem_claimed)), theme.text),
            Col::MemUsed => match user.mem_used {
                None => (gib_or(None, glyphs), theme.text),
                Some(bytes) => (format!("{} G", gib(bytes)), theme.text),
            },
            Col::Claims => (user.claims.to_string(), theme.text),
            Col::Waiting if user.waiting > 0.0 => (parts(user.waiting), theme.warn),
            Col::Waiting => ("0".to_owned(), theme.dim),
        });
        if bar > 10 {
            line.push_span(Span::raw("   "));
            let value = user.sm_used.map(|f| f.value);
            let shares = ShareBar::of(value, user.claimed, 0.0, gpus as f64);
            line.spans.extend(shares.spans(bar, look));
        }
        out.push(line);
    }
    if hidden > 0 {
        out.push(Line::styled(
            format!("+{} more users", hidden + 1),
            theme.dim,
        ));
    }
    out
}

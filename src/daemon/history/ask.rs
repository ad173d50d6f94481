//! Queries of the history: sums over a time, by line and step. A time is assembled from the requested level, from
//! finer levels where it is not rolled up yet, and from coarser ones where it is already dropped.

use rusqlite::Connection;
use std::collections::BTreeMap;

use super::store::{LEVELS, Level, Store, read, summed};
use super::sum::Sum;

/// How sums are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    All,
    /// UUID of the GPU.
    Gpu,
    /// uid.
    User,
    /// Number of the claim.
    Claim,
    /// Project of the claim.
    Project,
}

impl Group {
    const fn sql(self) -> &'static str {
        match self {
            Self::All => "''",
            Self::Gpu => "s.gpu",
            Self::User => "CAST(s.uid AS TEXT)",
            Self::Claim => "CAST(s.claim AS TEXT)",
            Self::Project => "coalesce((SELECT project FROM face WHERE face.claim = s.claim), '')",
        }
    }
}

/// Which lines are included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Filter {
    pub(super) kinds: Vec<i64>,
    /// Only this GPU.
    pub(super) gpu: Option<String>,
    /// Only this user.
    pub(super) uid: Option<u32>,
    /// Only this claim.
    pub(super) claim: Option<u64>,
    /// Only claims with this name.
    pub(super) name: Option<String>,
    /// Without private claims of users other than this one.
    pub(super) private_of: Option<u32>,
}

/// A time in Unix seconds, the level to read, and the length of a step of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from: i64,
    pub(super) to: i64,
    /// Index into [`LEVELS`].
    pub(super) level: usize,
    pub(super) step: i64,
}

impl Span {
    /// About `points` steps between two moments.
    pub(super) fn of(from: i64, to: i64, points: i64) -> Self {
        let raw = ((to - from) / points.max(1)).max(1);
        let level = LEVELS.iter().rposition(|l| l.step <= raw).unwrap_or(0);
        Self::with_level(from, to, points, level)
    }

    /// The same, from this level.
    pub(super) fn with_level(from: i64, to: i64, points: i64, level: usize) -> Self {
        let unit = LEVELS[level].step;
        let from = from - from.rem_euclid(unit);
        let raw = ((to - from) / points.max(1)).max(1);
        Self {
            from,
            to,
            level,
            step: (raw + unit - 1) / unit * unit,
        }
    }
}

/// Sums by line, and by step from the beginning of the span.
pub(super) type Sums = BTreeMap<String, BTreeMap<i64, Sum>>;

impl Store {
    /// The sums of a span.
    pub(super) fn sums(
        &self,
        span: &Span,
        group: Group,
        filter: &Filter,
    ) -> rusqlite::Result<Sums> {
        let mut found = Sums::new();
        let mut conditions = Vec::new();
        let kinds: Vec<String> = filter.kinds.iter().map(ToString::to_string).collect();
        conditions.push(format!("s.kind IN ({})", kinds.join(", ")));
        // Sums without a claim form no line.
        conditions.extend((group == Group::Claim).then(|| "s.claim <> 0".to_owned()));
        conditions.extend(filter.uid.map(|uid| format!("s.uid = {uid}")));
        conditions.extend(filter.claim.map(|c| format!("s.claim = {c}")));
        let named = "s.claim IN (SELECT claim FROM face WHERE ?6 =
            iif(what LIKE '[%] %', substr(what, instr(what, '] ') + 2), what))"
            .to_owned();
        conditions.extend(filter.name.as_ref().map(|_| named));
        conditions.extend(filter.private_of.map(|uid| {
            format!("(s.uid = {uid} OR s.claim NOT IN (SELECT claim FROM face WHERE private))")
        }));
        conditions.extend(filter.gpu.as_ref().map(|_| "s.gpu = ?4".to_owned()));
        for (level, from, to) in self.parts(span)? {
            let sql = format!(
                "SELECT (at - ?1) / ?5 AS b, {} AS k, {} FROM {} JOIN series s ON s.id = series \
                 WHERE at >= ?2 AND at < ?3 AND (?4 IS NULL OR ?6 IS NULL OR 1) AND {} GROUP BY b, k",
                group.sql(),
                summed(),
                level.table,
                conditions.join(" AND ")
            );
            let mut rows = self.db.prepare_cached(&sql)?;
            let mut rows = rows.query(rusqlite::params![
                span.from,
                from,
                to,
                filter.gpu,
                span.step,
                filter.name
            ])?;
            while let Some(row) = rows.next()? {
                let line = found.entry(row.get(1)?).or_default();
                line.entry(row.get(0)?).or_default().add(&read(row, 2)?);
            }
        }
        Ok(found)
    }

    /// The tables from which a span is read.
    fn parts(&self, span: &Span) -> rusqlite::Result<Vec<(&'static Level, i64, i64)>> {
        let mut parts = Vec::new();
        let (mut from, mut to) = (span.from, span.to);
        // Finer levels at the end, where this one is not rolled up yet.
        for pair in (0..span.level).rev() {
            let coarse = &LEVELS[pair + 1];
            let mark = self.mark(coarse)?.unwrap_or(i64::MIN).clamp(from, to);
            parts.push((&LEVELS[pair + 1], from, mark));
            from = mark;
        }
        // The level itself if no finer one is used, otherwise the finest.
        let last = if span.level == 0 { 0 } else { usize::MAX };
        if last == 0 {
            // Coarser levels at the beginning, where this one is already dropped.
            for (level, coarse) in LEVELS.iter().zip(&LEVELS[1..]) {
                let oldest = oldest(&self.db, level)?.unwrap_or(to).clamp(from, to);
                let oldest = (oldest - oldest.rem_euclid(coarse.step)).max(from);
                parts.push((level, oldest, to));
                to = oldest;
            }
            parts.push((&LEVELS[2], from, to));
        } else {
            parts.push((&LEVELS[0], from, to));
            if span.level == 1 {
                // Minutes that are already dropped.
                let (_, begin, end) = parts[0];
                let oldest = oldest(&self.db, &LEVELS[1])?
                    .unwrap_or(end)
                    .clamp(begin, end);
                let oldest = (oldest - oldest.rem_euclid(3600)).max(begin);
                parts[0].1 = oldest;
                parts.push((&LEVELS[2], begin, oldest));
            }
        }
        parts.retain(|(_, from, to)| from < to);
        Ok(parts)
    }
}

fn oldest(db: &Connection, level: &Level) -> rusqlite::Result<Option<i64>> {
    let sql = format!("SELECT min(at) FROM {}", level.table);
    db.prepare_cached(&sql)?.query_row([], |r| r.get(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_level_follows_from_the_wanted_points() {
        let check = |seconds, points, level, step| {
            let span = Span::of(0, seconds, points);
            assert_eq!((span.level, span.step), (level, step), "{seconds} {points}");
        };
        check(3600, 360, 0, 10);
        check(3600, 120, 0, 30);
        check(86_400, 120, 1, 720);
        check(7 * 86_400, 120, 2, 7200);
        check(35 * 86_400, 120, 2, 25_200);
        check(60, 120, 0, 10);
    }
}

//! The recorded past, and the period that is shown.

use gshare_proto::{HistoryBy, HistorySeries, HistorySpec, HistoryView, IdleHolding, ReportView};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Span {
    Hour,
    #[default]
    Day,
    Week,
}

impl Span {
    pub(crate) const ALL: [Self; 3] = [Self::Hour, Self::Day, Self::Week];

    /// Its name, its length, and the time after which it is requested again, both in milliseconds.
    const fn about(self) -> (&'static str, u64, u64) {
        match self {
            Self::Hour => ("hour", 3_600_000, 10_000),
            Self::Day => ("day", 24 * 3_600_000, 60_000),
            Self::Week => ("week", 7 * 24 * 3_600_000, 300_000),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        self.about().0
    }

    pub(crate) fn ms(self) -> u64 {
        self.about().1
    }

    /// The query for this period, `back` periods before now.
    pub(crate) fn spec(self, now_ms: u64, back: u64) -> HistorySpec {
        let to_ms = now_ms.saturating_sub(back * self.ms());
        HistorySpec {
            from_ms: to_ms.saturating_sub(self.ms()),
            to_ms: if back > 0 { to_ms } else { 0 },
            points: POINTS,
            by: HistoryBy::User,
            ..HistorySpec::default()
        }
    }
}

/// Points of a period: more than any terminal has columns.
const POINTS: u32 = 180;

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Past {
    pub(crate) span: Span,
    /// Number of periods back.
    pub(crate) back: u64,
    /// What the charts are split by.
    pub(crate) by: HistoryBy,
    /// The same period, a line for each GPU.
    pub(crate) gpus: Option<Box<HistoryView>>,
    /// The service's record of that period, or why there is none.
    pub(crate) view: Option<Result<Box<HistoryView>, String>>,
    /// The claims that were held and idle in that period.
    pub(crate) report: Option<Box<ReportView>>,
    pub(crate) claim: Option<Box<HistoryView>>,
    /// The claim of the last request, and its time, Unix milliseconds.
    asked_claim: Option<(String, u64)>,
    /// The last request, and its time, Unix milliseconds.
    asked: Option<((Span, u64, HistoryBy, u64), u64)>,
    /// Beginning of a new service's record, Unix milliseconds.
    since_ms: u64,
}

impl Past {
    /// The query to send now, if the data are missing or old. For a new service no longer than its record, so that
    /// the steps are short.
    pub(crate) fn question(&mut self, now_ms: u64) -> Option<HistorySpec> {
        let wanted = (self.span, self.back, self.by, self.since_ms);
        let (_, _, fresh_ms) = self.span.about();
        let fresh = |(asked, at)| asked == wanted && now_ms.saturating_sub(at) < fresh_ms;
        if self.asked.is_some_and(fresh) {
            return None;
        }
        self.asked = Some((wanted, now_ms));
        let mut spec = self.span.spec(now_ms, self.back);
        if self.back == 0 {
            spec.from_ms = spec.from_ms.max(self.since_ms);
        }
        Some(spec)
    }

    pub(crate) fn answered(&mut self, answer: Result<Box<HistoryView>, String>) {
        if let Ok(view) = &answer {
            self.since_ms = young(view).unwrap_or(self.since_ms);
        }
        self.view = Some(answer);
    }

    /// The query for this claim, which began at that time, if the data are missing or old.
    pub(crate) fn claim_question(
        &mut self,
        id: &str,
        since_ms: u64,
        now_ms: u64,
    ) -> Option<HistorySpec> {
        let (_, _, fresh_ms) = Span::Hour.about();
        let asked = self.asked_claim.as_ref();
        if asked.is_some_and(|(of, at)| of == id && now_ms.saturating_sub(*at) < fresh_ms) {
            return None;
        }
        self.asked_claim = Some((id.to_owned(), now_ms));
        Some(HistorySpec {
            from_ms: since_ms,
            points: POINTS,
            by: HistoryBy::Claim,
            key: Some(id.to_owned().into()),
            ..HistorySpec::default()
        })
    }

    pub(crate) fn of_claim(&self, id: &str) -> Option<&HistoryView> {
        let view = self.claim.as_deref()?;
        let line = view.series.first()?;
        (line.key == id).then_some(view)
    }

    pub(crate) fn worst(&self) -> &[IdleHolding] {
        self.report.as_ref().map_or(&[], |r| &r.worst)
    }

    fn series(&self) -> &[HistorySeries] {
        match &self.view {
            Some(Ok(view)) => &view.series,
            _ => &[],
        }
    }

    pub(crate) fn all(&self) -> Option<&HistorySeries> {
        self.series().iter().find(|s| s.uid.is_none())
    }

    /// Users with a record, those with most claimed first.
    pub(crate) fn users(&self) -> Vec<&HistorySeries> {
        let users = self.series().iter().filter(|s| s.uid.is_some());
        let mut users = Vec::from_iter(users);
        users.sort_by(|a, b| b.usage.claimed_gpu_s.total_cmp(&a.usage.claimed_gpu_s));
        users
    }
}

/// Beginning of the record, if it covers less than a quarter of the period. In its first step, which may be
/// incomplete, a new service has looked only at the end.
pub(crate) fn young(view: &HistoryView) -> Option<u64> {
    let all = view.series.iter().find(|s| s.uid.is_none())?;
    let first = all.points.first()?;
    let end = (first.at_ms + view.step_ms).min(view.to_ms);
    let began = end.saturating_sub((first.known * view.step_ms as f64) as u64);
    let began = began.max(view.from_ms);
    let length = view.to_ms.saturating_sub(view.from_ms);
    (view.to_ms.saturating_sub(began) * 4 < length).then_some(began)
}

//! What was recorded, and how far back one looks.

use gshare_proto::{HistoryBy, HistorySeries, HistorySpec, HistoryView, IdleHolding, ReportView};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Span {
    Hour,
    #[default]
    Day,
    Week,
}

impl Span {
    /// All, the shortest first.
    pub(crate) const ALL: [Self; 3] = [Self::Hour, Self::Day, Self::Week];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
        }
    }

    /// Its length in milliseconds.
    pub(crate) fn ms(self) -> u64 {
        match self {
            Self::Hour => 3_600_000,
            Self::Day => 24 * 3_600_000,
            Self::Week => 7 * 24 * 3_600_000,
        }
    }

    /// The question for this time, which ended so many of its lengths ago.
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

    /// After how many milliseconds it has changed enough to be asked for again.
    fn fresh_ms(self) -> u64 {
        match self {
            Self::Hour => 10_000,
            Self::Day => 60_000,
            Self::Week => 300_000,
        }
    }
}

/// Points of a span: more than any terminal has columns for.
const POINTS: u32 = 180;

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Past {
    pub(crate) span: Span,
    /// How many spans before now it ended.
    pub(crate) back: u64,
    /// What has a chart of its own.
    pub(crate) by: HistoryBy,
    /// The same time, a line for each GPU.
    pub(crate) gpus: Option<Box<HistoryView>>,
    /// What the service recorded in that time, or why it does not say.
    pub(crate) view: Option<Result<Box<HistoryView>, String>>,
    /// The claims that held and idled in that time.
    pub(crate) report: Option<Box<ReportView>>,
    pub(crate) claim: Option<Box<HistoryView>>,
    /// The claim that was asked for last, and when, Unix milliseconds.
    asked_claim: Option<(String, u64)>,
    /// What was asked for last, and when, Unix milliseconds.
    asked: Option<((Span, u64, HistoryBy), u64)>,
}

impl Past {
    /// What is to be asked now, if what is known is missing or old.
    pub(crate) fn question(&mut self, now_ms: u64) -> Option<HistorySpec> {
        let wanted = (self.span, self.back, self.by);
        let fresh = self.asked.is_some_and(|(asked, at)| {
            asked == wanted && now_ms.saturating_sub(at) < self.span.fresh_ms()
        });
        if fresh {
            return None;
        }
        self.asked = Some((wanted, now_ms));
        Some(self.span.spec(now_ms, self.back))
    }

    /// What is to be asked of this claim, which began then, if what is known is missing or old.
    pub(crate) fn claim_question(
        &mut self,
        id: &str,
        since_ms: u64,
        now_ms: u64,
    ) -> Option<HistorySpec> {
        let fresh = Span::Hour.fresh_ms();
        let asked = self.asked_claim.as_ref();
        if asked.is_some_and(|(of, at)| of == id && now_ms.saturating_sub(*at) < fresh) {
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

    /// What was recorded of this claim.
    pub(crate) fn of_claim(&self, id: &str) -> Option<&HistoryView> {
        let view = self.claim.as_deref()?;
        let line = view.series.first()?;
        (line.key == id).then_some(view)
    }

    /// The claims that idled most, the worst first.
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

    /// Users with something recorded, whoever claimed most first.
    pub(crate) fn users(&self) -> Vec<&HistorySeries> {
        let mut users: Vec<&HistorySeries> =
            self.series().iter().filter(|s| s.uid.is_some()).collect();
        users.sort_by(|a, b| b.usage.claimed_gpu_s.total_cmp(&a.usage.claimed_gpu_s));
        users
    }
}

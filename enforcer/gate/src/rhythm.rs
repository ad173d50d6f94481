//! A recurring time.

/// Samples needed for a prediction, and the part of the time that their mean deviation may reach.
const SEEN: u32 = 4;
pub(crate) const APART: u64 = 8;

/// Usual value of a time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rhythm {
    seen: u32,
    pub(crate) mean_ns: u64,
    /// Mean deviation.
    pub(crate) off_ns: u64,
}

impl Rhythm {
    pub(crate) fn saw(&mut self, ns: u64) {
        if self.seen == 0 {
            (self.mean_ns, self.off_ns) = (ns, 0);
        }
        self.seen = self.seen.saturating_add(1);
        self.off_ns = self.off_ns - self.off_ns / 8 + ns.abs_diff(self.mean_ns) / 8;
        self.mean_ns = self.mean_ns - self.mean_ns / 8 + ns / 8;
    }

    pub(crate) fn forget(&mut self) {
        self.seen = 0;
    }

    pub(crate) fn is_seen(&self) -> bool {
        self.seen >= SEEN
    }

    /// Whether it is known well enough, compared with such a time.
    pub(crate) fn is_known(&self, beside_ns: u64) -> bool {
        self.is_seen() && self.off_ns <= beside_ns / APART
    }
}

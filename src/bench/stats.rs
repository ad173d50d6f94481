//! Order statistics of measured times.

/// Sorted times in the caller's unit.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Times(Vec<f64>);

impl Times {
    pub(crate) fn new(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        Self(times)
    }

    /// The value below which a fraction `q` (0 to 1) of the times lies; `None` without times.
    pub(crate) fn quantile(&self, q: f64) -> Option<f64> {
        let last = self.0.len().checked_sub(1)?;
        let rank = (q * last as f64).round() as usize;
        self.0.get(rank.min(last)).copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn median(&self) -> Option<f64> {
        self.quantile(0.5)
    }

    pub(crate) fn p99(&self) -> Option<f64> {
        self.quantile(0.99)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles() {
        let t = Times::new((1..=101).rev().map(f64::from).collect());
        assert_eq!(
            (t.median(), t.p99(), t.quantile(1.0)),
            (Some(51.0), Some(100.0), Some(101.0))
        );
        assert_eq!(Times::new(Vec::new()).median(), None);
    }
}

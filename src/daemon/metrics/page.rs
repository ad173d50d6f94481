//! The text format of Prometheus, version 0.0.4.

use std::fmt::Write as _;

/// Counts of values up to each bound, in seconds.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    bounds: &'static [f64],
    counts: Vec<u64>,
    sum: f64,
    count: u64,
}

impl Histogram {
    /// An empty one with these bounds, in ascending order.
    pub(crate) fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            counts: vec![0; bounds.len()],
            sum: 0.0,
            count: 0,
        }
    }

    /// Counts one.
    pub(crate) fn observe(&mut self, value: f64) {
        for (bound, count) in self.bounds.iter().zip(&mut self.counts) {
            if value <= *bound {
                *count += 1;
            }
        }
        self.sum += value;
        self.count += 1;
    }
}

/// A page in progress. Each name with its help precedes its samples; a family without samples has no known values at
/// present.
#[derive(Debug, Default)]
pub(super) struct Page {
    text: String,
}

/// Labels of a sample, as name and value.
pub(super) type Labels<'a> = &'a [(&'a str, &'a str)];

impl Page {
    /// The text.
    pub(super) fn finish(self) -> String {
        self.text
    }

    /// Begins a family: `gauge` or `counter`.
    pub(super) fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a String cannot fail.
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// Adds a sample to the current family; unknown values are left out.
    pub(super) fn sample(&mut self, name: &str, labels: Labels<'_>, value: Option<f64>) {
        let Some(value) = value.filter(|v| v.is_finite()) else {
            return;
        };
        self.text.push_str(name);
        self.labels(labels);
        let _ = writeln!(self.text, " {value}");
    }

    /// Adds a family with one sample.
    pub(super) fn single(&mut self, name: &str, kind: &str, help: &str, value: Option<f64>) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    /// Adds a family that is a histogram.
    pub(super) fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.family(name, "histogram", help);
        self.buckets(name, &[], histogram);
    }

    /// Adds a histogram to the current family.
    pub(super) fn buckets(&mut self, name: &str, labels: Labels<'_>, histogram: &Histogram) {
        let Histogram { sum, count, .. } = histogram;
        let bounds = histogram.bounds.iter().map(f64::to_string);
        let counts = histogram.counts.iter().chain([count]);
        for (bound, count) in bounds.chain(["+Inf".to_owned()]).zip(counts) {
            let labels = [labels, &[("le", &bound)]].concat();
            self.sample(&format!("{name}_bucket"), &labels, Some(*count as f64));
        }
        self.sample(&format!("{name}_sum"), labels, Some(*sum));
        self.sample(&format!("{name}_count"), labels, Some(*count as f64));
    }

    fn labels(&mut self, labels: Labels<'_>) {
        let all: Vec<String> = labels
            .iter()
            .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
            .collect();
        if !all.is_empty() {
            let _ = write!(self.text, "{{{}}}", all.join(","));
        }
    }
}

fn escaped(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_labels_stay_within_their_quotes_and_the_unknown_is_absent() {
        let mut page = Page::default();
        page.family("x", "gauge", "Help.");
        page.sample("x", &[("user", "a\"} 1\nb\\")], Some(0.5));
        page.sample("x", &[("user", "c")], None);
        page.sample("x", &[], Some(f64::NAN));
        assert_eq!(
            page.finish(),
            "# HELP x Help.\n# TYPE x gauge\nx{user=\"a\\\"} 1\\nb\\\\\"} 0.5\n"
        );
    }

    #[test]
    fn histograms_are_cumulative() {
        let mut histogram = Histogram::new(&[0.1, 1.0]);
        for value in [0.05, 0.5, 7.0] {
            histogram.observe(value);
        }
        let mut page = Page::default();
        page.histogram("h", "Help.", &histogram);
        let text = page.finish();
        for line in [
            "h_bucket{le=\"0.1\"} 1",
            "h_bucket{le=\"1\"} 2",
            "h_bucket{le=\"+Inf\"} 3",
            "h_sum 7.55",
            "h_count 3",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}: {text}");
        }
    }
}

//! The screens.

use std::str::FromStr;

/// A screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Page {
    /// Everything at a glance.
    #[default]
    Overview,
    /// The claims as a tree, and the GPUs of the chosen one.
    Claims,
    /// Waiting claims: why each waits, and until when.
    Queue,
    /// Claimed and used over time.
    History,
    /// The GPUs' health, and the limits that are enforced.
    Health,
}

impl Page {
    /// All screens, in the order of Tab; the first has the key 1.
    pub const ALL: [Self; 5] = [
        Self::Overview,
        Self::Claims,
        Self::Queue,
        Self::History,
        Self::Health,
    ];

    /// The text of its tab.
    #[must_use]
    pub fn name(self) -> &'static str {
        ["Overview", "Claims", "Queue", "History", "Health"][self.place()]
    }

    /// Its index.
    pub(crate) fn place(self) -> usize {
        self as usize
    }
}

impl FromStr for Page {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = text.to_lowercase();
        let is =
            |p: &&Self| p.name().to_lowercase() == wanted || (p.place() + 1).to_string() == wanted;
        Self::ALL.iter().find(is).copied().ok_or_else(|| {
            format!("`{text}` is not a screen: overview, claims, queue, history or health")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn screens_have_names_and_numbers() {
        assert_eq!("history".parse(), Ok(Page::History));
        assert_eq!("2".parse(), Ok(Page::Claims));
        assert!("6".parse::<Page>().is_err());
    }
}

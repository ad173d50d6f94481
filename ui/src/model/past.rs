//! What was recorded: the span that is looked at.

use gshare_proto::UserView;

/// How far the history looks back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Span {
    /// An hour.
    #[default]
    Hour,
    /// A day.
    Day,
    /// A week.
    Week,
}

impl Span {
    /// All, the shortest first.
    pub(crate) const ALL: [Self; 3] = [Self::Hour, Self::Day, Self::Week];

    /// For people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
        }
    }
}

/// What the history shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Past {
    /// How far back.
    pub(crate) span: Span,
}

impl Past {
    /// Users with something recorded.
    pub(crate) fn users(&self) -> impl Iterator<Item = &UserView> {
        std::iter::empty()
    }
}

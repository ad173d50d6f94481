//! The claims as a tree: groups, claims, and the processes of unfolded claims.

use std::collections::BTreeMap;

use gshare_proto::figures::gpus;
use gshare_proto::{ClaimView, ProcessView, UnclaimedView};

use super::{ClaimRow, Model, RowKey, around};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Grouping {
    #[default]
    User,
    Notebook,
    Gpu,
}

impl Grouping {
    pub(crate) fn next(self) -> Self {
        around(&[Self::User, Self::Notebook, Self::Gpu], self, 1)
    }

    pub(crate) fn name(self) -> &'static str {
        ["user", "notebook", "GPU"][self as usize]
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Group<'a> {
    pub(crate) title: String,
    pub(crate) claims: Vec<&'a ClaimView>,
    /// Its processes without a claim, with their numbers.
    pub(crate) unclaimed: Vec<(usize, &'a UnclaimedView)>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TreeRow<'a> {
    /// A group, and whether its rows are shown.
    Group(Group<'a>, bool),
    Row(ClaimRow<'a>),
    Process(&'a ProcessView),
}

impl TreeRow<'_> {
    pub(crate) fn key(&self) -> RowKey {
        match self {
            Self::Group(group, _) => RowKey::Group(group.title.clone()),
            Self::Row(row) => row.key(),
            Self::Process(p) => RowKey::Process(p.pid, p.gpu),
        }
    }
}

/// With this many claims or more, only the viewer's own group is open at first.
const MANY: usize = 12;

impl Model {
    /// The default state of the row, and the name under which a change is stored.
    fn turnable(&self, key: &RowKey) -> Option<(bool, String)> {
        match key {
            RowKey::Group(title) => {
                let claims = self.snapshot.as_ref().map_or(&[][..], |s| &s.claims);
                let mine = self.viewer_name();
                let has_own = claims.iter().any(|c| c.uid == self.viewer.uid);
                let many = claims.len() > MANY && self.grouping == Grouping::User && has_own;
                let open = !many || mine == Some(title.as_str());
                Some((open, format!("group {title}")))
            }
            RowKey::Claim(id) => Some((false, format!("claim {id}"))),
            _ => None,
        }
    }

    /// Whether the contents of this row are shown; none for a row without contents.
    fn is_open(&self, key: &RowKey) -> Option<bool> {
        let (open, name) = self.turnable(key)?;
        Some(open != self.turned.contains(&name))
    }

    /// Whether this row has contents that are not shown.
    pub(crate) fn hides(&self, key: &RowKey) -> bool {
        let is_empty = match key {
            RowKey::Claim(id) => self.claim(id).is_none_or(|c| c.processes.is_empty()),
            _ => false,
        };
        !is_empty && self.is_open(key) == Some(false)
    }

    pub(crate) fn turn(&mut self, key: &RowKey, open: bool) {
        match self.turnable(key) {
            Some((usual, name)) if open == usual => self.turned.remove(&name),
            Some((_, name)) => self.turned.insert(name),
            None => false,
        };
    }

    fn group_of(&self, row: &ClaimRow<'_>) -> String {
        match (self.grouping, row) {
            (Grouping::User, ClaimRow::Claim(c)) => c.user.clone(),
            (Grouping::User, ClaimRow::Unclaimed(_, u)) => {
                u.user.clone().unwrap_or_else(|| "unknown user".to_owned())
            }
            (Grouping::Notebook, ClaimRow::Claim(c)) => notebook(c),
            (Grouping::Notebook, ClaimRow::Unclaimed(..)) => "no claim".to_owned(),
            (Grouping::Gpu, ClaimRow::Claim(c)) if c.place.in_host() => "in host memory".to_owned(),
            (Grouping::Gpu, ClaimRow::Claim(c)) => gpus(c.gpus.iter().map(|g| g.gpu)),
            (Grouping::Gpu, ClaimRow::Unclaimed(_, u)) => format!("GPU {}", u.gpu),
        }
    }

    pub(crate) fn tree(&self) -> Vec<TreeRow<'_>> {
        // The viewer's own group first.
        let mine = self.viewer_name();
        let mut groups: BTreeMap<(bool, String), Group<'_>> = BTreeMap::new();
        for row in self.claim_rows() {
            let title = self.group_of(&row);
            let key = (mine != Some(title.as_str()), title.clone());
            let group = groups.entry(key).or_default();
            group.title = title;
            match row {
                ClaimRow::Claim(c) => group.claims.push(c),
                ClaimRow::Unclaimed(n, u) => group.unclaimed.push((n, u)),
            }
        }
        let mut out = Vec::new();
        for group in groups.into_values() {
            let open = self.is_open(&RowKey::Group(group.title.clone())) == Some(true);
            let (claims, unclaimed) = (group.claims.clone(), group.unclaimed.clone());
            out.push(TreeRow::Group(group, open));
            if !open {
                continue;
            }
            for claim in claims {
                let row = ClaimRow::Claim(claim);
                let unfolded = self.is_open(&row.key()) == Some(true);
                out.push(TreeRow::Row(row));
                if unfolded {
                    out.extend(claim.processes.iter().map(TreeRow::Process));
                }
            }
            let programs = unclaimed.into_iter();
            out.extend(programs.map(|(n, u)| TreeRow::Row(ClaimRow::Unclaimed(n, u))));
        }
        out
    }
}

/// Name of a claim in the group of notebooks: the notebook, otherwise its script or program.
fn notebook(claim: &ClaimView) -> String {
    let identity = &claim.identity;
    let named = identity.notebook.as_ref().or(identity.script.as_ref());
    named
        .map(|n| n.value.clone())
        .or_else(|| Some(claim.what.clone()).filter(|w| !w.is_empty()))
        .or_else(|| claim.name.clone())
        .unwrap_or_else(|| "no program".to_owned())
}

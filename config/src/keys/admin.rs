//! Keys for administrators.

use toml::de::DeTable;

use crate::read::{self, Reader};

/// Who may use `gshare admin`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admin {
    /// `groups`: Unix groups whose members may, besides root.
    pub groups: Vec<String>,
}

impl Admin {
    pub(super) fn walk<'t>(reader: &mut Reader<'t>, root: &DeTable<'t>) -> Self {
        let mut s = reader.section(root, "admin");
        let value = Self {
            groups: s.get("groups", Vec::new(), read::texts),
        };
        s.finish();
        value
    }
}

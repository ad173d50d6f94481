//! Prints a configuration as a file that reads back as the same configuration.

use std::fmt::Write as _;

use toml::{Table, Value};

use crate::keys::{Config, GpuKeys, Project};

impl Config {
    /// Every key with the value in force, as a valid file.
    #[must_use]
    pub fn show(&self) -> String {
        let mut out = String::new();
        for (section, keys) in self.table() {
            let gap = if out.is_empty() { "" } else { "\n" };
            // Writing to a String cannot fail.
            let _ = writeln!(out, "{gap}[{section}]");
            for (key, value) in keys.as_table().into_iter().flatten() {
                let _ = writeln!(out, "{} = {value}", quoted(key));
            }
        }
        out
    }

    /// The keys whose values differ in `other`, with their sections: `memory.reserve`, `projects.vision`.
    #[must_use]
    pub fn changed(&self, other: &Self) -> Vec<String> {
        let (old, new) = (self.table(), other.table());
        let mut keys: Vec<String> = Vec::new();
        for (section, values) in new.iter().chain(&old) {
            for (key, _) in values.as_table().into_iter().flatten() {
                let of = |table: &Table| table.get(section)?.get(key).cloned();
                let name = format!("{section}.{key}");
                if of(&old) != of(&new) && !keys.contains(&name) {
                    keys.push(name);
                }
            }
        }
        keys
    }

    /// Every key, with its section: `("service", "tick")`. Keys of a project stand under `projects.NAME`.
    #[must_use]
    pub fn keys() -> Vec<(String, String)> {
        let mut all = Self::default();
        all.gpus.insert(
            "NAME".to_owned(),
            GpuKeys {
                mig: Some(gshare_core::mig::Layout::default()),
                ..GpuKeys::default()
            },
        );
        all.projects.insert("NAME".to_owned(), Project::default());
        all.quotas.push(gshare_core::Quota {
            party: gshare_core::quota::Party::User("NAME".to_owned()),
            gpus: Some(gshare_core::Share::ONE),
            weight_milli: Some(1000),
            max: Some(gshare_core::Share::ONE),
        });
        let mut keys = Vec::new();
        for (section, values) in all.table() {
            for (key, value) in values.as_table().into_iter().flatten() {
                match value {
                    Value::Table(named) => keys.extend(
                        named
                            .keys()
                            .map(|k| (format!("{section}.{key}"), k.clone())),
                    ),
                    _ => keys.push((section.clone(), key.clone())),
                }
            }
        }
        keys
    }

    /// The file as tables.
    fn table(&self) -> Table {
        Table::try_from(self).expect("every key can be written as TOML")
    }
}

/// A key in quotes, where it needs them.
fn quoted(key: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    match !key.is_empty() && key.chars().all(bare) {
        true => key.to_owned(),
        false => Value::from(key).to_string(),
    }
}

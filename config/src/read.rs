//! Reads a file over its defaults with serde, and collects all problems: each refused value is noted and removed, and
//! the rest is read again.

use std::ops::Range;
use std::path::Path;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue, Deserializer};

use crate::form::article;
use crate::keys::Config;
use crate::problem::{Problem, nearest};
use crate::words::{Stage, Unclaimed};

type Value<'t> = Spanned<DeValue<'t>>;

/// A problem with one key: its path, the problem, and the expected form.
type Complaint<'a> = (&'a [&'a str], String, Option<String>);

impl Config {
    /// Reads the text of a file; `file` is only named in problems.
    ///
    /// # Errors
    /// All problems, in the order of the file.
    pub fn check(text: &str, file: &Path) -> Result<Self, Vec<Problem>> {
        read(
            text,
            file,
            &Self::default().show(),
            &Self::keys(),
            Self::complain,
        )
    }

    /// Checks that concern several keys.
    fn complain(&self, complain: &mut dyn FnMut(Complaint<'_>)) {
        let memory = &self.memory;
        if memory.display_reserve < memory.reserve {
            let (display, reserve) = (memory.display_reserve, memory.reserve);
            let what = format!(
                "`display-reserve` ({display}) is below `reserve` ({reserve}), but a GPU with a display needs more"
            );
            let hint = format!("set `display-reserve` to {reserve} or more");
            complain((&["memory", "display-reserve"], what, Some(hint)));
        }
        if let (Some(stage), Some(unclaimed)) = (self.stage.machine, self.policy.unclaimed)
            && (stage == Stage::Require) != (unclaimed == Unclaimed::Deny)
        {
            let what = format!(
                "`unclaimed` (\"{}\") contradicts the stage (\"{}\")",
                unclaimed.name(),
                stage.name()
            );
            let hint = "remove `unclaimed`: the stage sets it".to_owned();
            complain((&["policy", "unclaimed"], what, Some(hint)));
        }
        for quota in &self.quotas {
            let party = quota.party.to_string();
            if quota.gpus.is_none() && quota.weight_milli.is_none() && quota.max.is_none() {
                let what = format!("the quota of {party} is empty");
                complain((
                    &["quotas", &party],
                    what,
                    Some("add gpus, weight or max".to_owned()),
                ));
            }
            if quota
                .gpus
                .zip(quota.max)
                .is_some_and(|(gpus, max)| gpus > max)
            {
                let what = format!("{party} is guaranteed more than it may hold");
                complain((&["quotas", &party, "max"], what, None));
            }
        }
        for name in self.gpus.keys() {
            if name != "all" && !name.starts_with("GPU-") && name.parse::<u32>().is_err() {
                let hint = "an index such as 0, a UUID such as GPU-..., or all".to_owned();
                complain((&["gpu", name], format!("`{name}` is not a GPU"), Some(hint)));
            }
        }
        for (name, project) in &self.projects {
            if project.users.is_empty() && project.groups.is_empty() {
                let what = format!("nobody may claim for project `{name}`");
                let hint = "add users = [\"...\"] or groups = [\"...\"]".to_owned();
                complain((&["projects", name], what, Some(hint)));
            }
        }
    }
}

/// Reads `text` laid over the text `base`. `keys` are those of all sections, to find the section of a misplaced key.
///
/// # Errors
///
/// All problems, in the order of the file; only syntax errors, if there are any.
pub(crate) fn read<T: DeserializeOwned>(
    text: &str,
    file: &Path,
    base: &str,
    keys: &[(String, String)],
    check: impl Fn(&T, &mut dyn FnMut(Complaint<'_>)),
) -> Result<T, Vec<Problem>> {
    let (root, mut errors) = DeTable::parse_recoverable(text);
    errors.sort_by_key(|e| e.span().map_or(0, |s| s.start));
    let at = |span, message: String, expected| Problem::at(file, text, span, message, expected);
    if !errors.is_empty() {
        let problem = |e: &toml::de::Error| {
            let message = e.message().replace('\n', ", ");
            at(e.span().unwrap_or(0..0), message, None)
        };
        return Err(errors.iter().map(problem).collect());
    }
    let root = root.into_inner();
    let base = DeTable::parse_recoverable(base).0.into_inner();
    let mut rest = root.clone();
    let mut found: Vec<(usize, Problem)> = Vec::new();
    let mut cuts: Vec<Vec<String>> = Vec::new();
    let value = loop {
        let mut merged = base.clone();
        lay(&mut merged, rest.clone(), false);
        let error = match T::deserialize(Deserializer::from(Spanned::new(0..0, merged))) {
            Ok(value) => break value,
            Err(error) => error,
        };
        let span = error.span().unwrap_or(0..0);
        let Some((path, kind)) = cut(&mut rest, &span) else {
            return Err(vec![at(span, error.message().to_owned(), None)]);
        };
        let (message, expected) = explain(error.message(), &path, kind, keys);
        found.push((span.start, at(span, message, expected)));
        cuts.push(path);
    };
    check(&value, &mut |(path, message, expected)| {
        // The rest of an entry with mistakes is not checked.
        if !cuts
            .iter()
            .any(|cut| path.iter().zip(cut).take(2).all(|(a, b)| a == b))
        {
            let span = place(&root, path);
            found.push((span.start, at(span, message, expected)));
        }
    });
    if found.is_empty() {
        return Ok(value);
    }
    found.sort_by_key(|(at, _)| *at);
    Err(found.into_iter().map(|(_, problem)| problem).collect())
}

/// Lays the keys of `over` over those of `table`, whose entries are tables if it is `of_tables`. A list instead of a
/// table is made unacceptable to serde, which would take its items for the keys in their order.
fn lay<'t>(table: &mut DeTable<'t>, over: DeTable<'t>, of_tables: bool) {
    for (key, value) in over {
        let (span, mut value) = (value.span(), value.into_inner());
        let below = table.get_mut(key.get_ref().as_ref()).map(Spanned::get_mut);
        let is_table = of_tables || matches!(below, Some(DeValue::Table(_)));
        match (below, &mut value) {
            (Some(DeValue::Table(inner)), DeValue::Table(over)) => {
                let of_tables = inner.is_empty();
                lay(inner, std::mem::take(over), of_tables);
                continue;
            }
            (_, DeValue::Array(_)) if is_table => value = DeValue::Boolean(false),
            (_, DeValue::Array(items)) => {
                let lists = items.iter_mut().filter(|item| item.get_ref().is_array());
                lists.for_each(|list| *list.get_mut() = DeValue::Boolean(false));
            }
            _ => {}
        }
        table.insert(key, Spanned::new(span, value));
    }
}

/// Removes the key, value or list item at `span`: returns its path, and the kind of its value.
fn cut(table: &mut DeTable<'_>, span: &Range<usize>) -> Option<(Vec<String>, &'static str)> {
    let holds = |of: &Range<usize>| of.start <= span.start && span.end <= of.end;
    let mut leaf = None;
    for (key, value) in table.iter_mut() {
        let name = key.get_ref().to_string();
        let of = value.span();
        let in_value = holds(&of);
        let kind = kind(value, span);
        let inner = match value.get_mut() {
            DeValue::Table(inner) => cut(inner, span),
            DeValue::Array(items) if in_value && of != *span => {
                let mut tables = items
                    .iter_mut()
                    .filter(|i| i.get_ref().is_table() && holds(&i.span()));
                let inner = tables.next().map(|item| match item.get_mut() {
                    DeValue::Table(inner) => cut(inner, span).unwrap_or((Vec::new(), kind)),
                    _ => (Vec::new(), kind),
                });
                if inner.is_some() {
                    let rest = std::mem::replace(items, DeArray::new()).into_iter();
                    *items = rest.filter(|item| !holds(&item.span())).collect();
                }
                inner
            }
            _ => None,
        };
        if let Some((path, kind)) = inner {
            return Some(([vec![name], path].concat(), kind));
        }
        if key.span() == *span || in_value {
            leaf = Some((name, kind));
        }
    }
    let (name, kind) = leaf?;
    table.remove(name.as_str());
    Some((vec![name], kind))
}

/// The kind of value at `span`.
fn kind(value: &Value<'_>, span: &Range<usize>) -> &'static str {
    let items = value.get_ref().as_array().into_iter().flatten();
    let inner = items
        .filter(|i| i.span() == *span && value.span() != *span)
        .map(|i| kind(i, span))
        .next();
    inner.unwrap_or(value.get_ref().type_str())
}

/// The place of a key: an entry by its name, another by its value; if it is absent, the rest of its section.
fn place(root: &DeTable<'_>, path: &[&str]) -> Range<usize> {
    let (mut table, mut span) = (root, 0..0);
    for name in path {
        let Some((key, value)) = table.get_key_value(*name).or_else(|| table.iter().next()) else {
            break;
        };
        let Some(inner) = value.get_ref().as_table() else {
            return value.span();
        };
        (table, span) = (inner, key.span());
    }
    span
}

/// serde's error about a key at `path` with a value of this `kind`, for display: the problem and the expected form.
fn explain(
    message: &str,
    path: &[String],
    kind: &str,
    keys: &[(String, String)],
) -> (String, Option<String>) {
    let Some((key, section)) = path.split_last() else {
        return (message.to_owned(), None);
    };
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    if message.starts_with("unknown field") {
        let what = match section {
            [] if keys.is_empty() => format!("unknown key `{key}`"),
            [] => format!("unknown section or key `{key}`"),
            _ => format!("unknown key `{key}` in [{}]", section.join(".")),
        };
        let known = quoted.get(1..).unwrap_or_default();
        let near = nearest(key, known.iter().copied());
        let elsewhere = keys.iter().find(|(_, name)| name == key);
        let expected = match (near, elsewhere) {
            (Some(near), _) => format!("did you mean `{near}`?"),
            (None, Some((section, _))) => format!("`{key}` belongs in [{section}]"),
            (None, None) => format!("expected one of: {}", known.join(", ")),
        };
        return (what, Some(expected));
    }
    if message.starts_with("missing field") {
        return (
            format!("`{key}`: {} is missing", quoted.first().unwrap_or(&"a key")),
            None,
        );
    }
    if let Some((_, expected)) = message
        .strip_prefix("invalid type: ")
        .and_then(|m| m.split_once(", expected "))
    {
        let given = article(kind);
        let expected = match expected {
            "a boolean" => "true or false",
            "a sequence" => "a list",
            "a string" => "a string in quotes",
            _ if section.is_empty() => return (format!("[{key}] is a table, not {given}"), None),
            _ => return (format!("{} is a table, not {given}", path.join(".")), None),
        };
        return (format!("`{key}`: expected {expected}, not {given}"), None);
    }
    match message.split_once('\n') {
        Some((what, hint)) => (what.to_owned(), Some(hint.to_owned())),
        None => (format!("`{key}`: {message}"), None),
    }
}

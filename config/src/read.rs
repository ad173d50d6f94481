//! The walk over a parsed file: every value asked for by name, every problem collected.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gshare_core::units::parse_duration;
use gshare_core::{Bytes, Share, Size};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::problem::{Problem, nearest};

type Value<'t> = Spanned<DeValue<'t>>;

/// Reads one file and collects what is wrong with it.
pub(crate) struct Reader<'t> {
    file: &'t Path,
    text: &'t str,
    problems: Vec<(usize, Problem)>,
    known: BTreeMap<String, Vec<&'static str>>,
    unknown: Vec<(String, String, Range<usize>)>,
}

/// The keys of one table; `name` is empty for the top of the file.
pub(crate) struct Section<'r, 't, 'd> {
    reader: &'r mut Reader<'t>,
    name: String,
    table: Option<&'d DeTable<'t>>,
    span: Range<usize>,
    problems_before: usize,
}

impl<'t> Reader<'t> {
    /// Parses `text` and lets `walk` ask for every key.
    ///
    /// # Errors
    /// All problems, in the order of the file; syntax errors only, where there are any.
    pub(crate) fn read<T>(
        text: &'t str,
        file: &'t Path,
        walk: impl FnOnce(&mut Self, &DeTable<'t>) -> T,
    ) -> Result<T, Vec<Problem>> {
        let (root, mut errors) = DeTable::parse_recoverable(text);
        errors.sort_by_key(|e| e.span().map_or(0, |s| s.start));
        if !errors.is_empty() {
            return Err(errors
                .iter()
                .map(|e| {
                    let span = e.span().unwrap_or(0..0);
                    Problem::at(file, text, span, e.message().replace('\n', ", "), None)
                })
                .collect());
        }
        let mut reader = Self {
            file,
            text,
            problems: Vec::new(),
            known: BTreeMap::new(),
            unknown: Vec::new(),
        };
        let value = walk(&mut reader, root.get_ref());
        reader.report_unknown();
        if reader.problems.is_empty() {
            return Ok(value);
        }
        reader.problems.sort_by_key(|(at, _)| *at);
        Err(reader.problems.into_iter().map(|(_, p)| p).collect())
    }

    /// Names of all keys that a walk asks for, as `section.key`.
    pub(crate) fn keys(
        walk: impl FnOnce(&mut Reader<'static>, &DeTable<'static>),
    ) -> Vec<(String, &'static str)> {
        let mut reader = Reader {
            file: Path::new(""),
            text: "",
            problems: Vec::new(),
            known: BTreeMap::new(),
            unknown: Vec::new(),
        };
        walk(&mut reader, &DeTable::new());
        let known = std::mem::take(&mut reader.known);
        known
            .into_iter()
            .filter(|(section, _)| section != ROOT)
            .flat_map(|(section, keys)| keys.into_iter().map(move |k| (section.clone(), k)))
            .collect()
    }

    /// The top of the file, whose keys are `keys` (of a file without sections).
    pub(crate) fn top<'r, 'd>(&'r mut self, root: &'d DeTable<'t>) -> Section<'r, 't, 'd> {
        Section::open(self, String::new(), Some(root))
    }

    /// The table `[name]` of `root`; absent is empty.
    pub(crate) fn section<'r, 'd>(
        &'r mut self,
        root: &'d DeTable<'t>,
        name: &'static str,
    ) -> Section<'r, 't, 'd> {
        self.known.entry(ROOT.to_owned()).or_default().push(name);
        let table = self.table_of(root.get(name), &format!("[{name}]"));
        Section::open(self, name.to_owned(), table)
    }

    /// Reports every table of `root` that was not asked for.
    pub(crate) fn no_other_sections(&mut self, root: &DeTable<'_>) {
        let known = self.known.get(ROOT).cloned().unwrap_or_default();
        for (key, _) in root {
            if !known.contains(&key.get_ref().as_ref()) {
                self.unknown
                    .push((ROOT.to_owned(), key.get_ref().to_string(), key.span()));
            }
        }
    }

    fn table_of<'d>(
        &mut self,
        value: Option<&'d Value<'t>>,
        what: &str,
    ) -> Option<&'d DeTable<'t>> {
        let value = value?;
        let table = value.get_ref().as_table();
        if table.is_none() {
            let kind = article(value.get_ref());
            self.problem(value.span(), format!("{what} is a table, not {kind}"), None);
        }
        table
    }

    fn problem(&mut self, span: Range<usize>, message: String, expected: Option<String>) {
        let at = span.start;
        let problem = Problem::at(self.file, self.text, span, message, expected);
        self.problems.push((at, problem));
    }

    fn report_unknown(&mut self) {
        for (section, key, span) in std::mem::take(&mut self.unknown) {
            let siblings = self.known.get(&section).cloned().unwrap_or_default();
            let elsewhere = self
                .known
                .iter()
                .find(|(s, keys)| s.as_str() != ROOT && keys.contains(&key.as_str()))
                .map(|(s, _)| s.clone());
            let expected = if let Some(near) = nearest(&key, siblings.iter().copied()) {
                format!("did you mean `{near}`?")
            } else if let Some(elsewhere) = elsewhere {
                format!("`{key}` belongs in [{elsewhere}]")
            } else {
                format!("expected one of: {}", siblings.join(", "))
            };
            let what = match section.as_str() {
                ROOT => format!("unknown section or key `{key}`"),
                "" => format!("unknown key `{key}`"),
                section => format!("unknown key `{key}` in [{section}]"),
            };
            self.problem(span, what, Some(expected));
        }
    }
}

/// Stands for the list of sections; no section can have this name.
const ROOT: &str = "\0";

impl<'r, 't, 'd> Section<'r, 't, 'd> {
    fn open(reader: &'r mut Reader<'t>, name: String, table: Option<&'d DeTable<'t>>) -> Self {
        reader.known.entry(name.clone()).or_default();
        Self {
            problems_before: reader.problems.len(),
            reader,
            name,
            table,
            span: 0..0,
        }
    }

    /// The value of `key` through `read`; `default` where the key is absent or wrong.
    pub(crate) fn get<T>(
        &mut self,
        key: &'static str,
        default: T,
        read: impl FnOnce(&DeValue<'_>) -> Result<T, String>,
    ) -> T {
        let known = self.reader.known.entry(self.name.clone()).or_default();
        if !known.contains(&key) {
            known.push(key);
        }
        let Some(value) = self.table.and_then(|t| t.get(key)) else {
            return default;
        };
        read(value.get_ref()).unwrap_or_else(|why| {
            self.reader
                .problem(value.span(), format!("`{key}`: {why}"), None);
            default
        })
    }

    /// As [`Self::get`] for a key without a default.
    pub(crate) fn optional<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&DeValue<'_>) -> Result<T, String>,
    ) -> Option<T> {
        self.get(key, None, |v| read(v).map(Some))
    }

    /// Whether the file has the key.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.table.is_some_and(|t| t.contains_key(key))
    }

    /// Whether the section is there; the example of [`Self::named`] is not.
    pub(crate) fn exists(&self) -> bool {
        self.table.is_some()
    }

    /// Whether the section is there and nothing in it was wrong so far.
    pub(crate) fn is_sound(&self) -> bool {
        self.exists() && self.reader.problems.len() == self.problems_before
    }

    /// A problem with the value of `key`, or with the section where the key is absent.
    pub(crate) fn complain(&mut self, key: &str, message: String, expected: Option<String>) {
        let span = self
            .table
            .and_then(|t| t.get(key))
            .map_or_else(|| self.span.clone(), Spanned::span);
        self.reader.problem(span, message, expected);
    }

    /// Every key of the section is a name given by the user and its value a table.
    pub(crate) fn named(
        self,
        example: &'static str,
        mut each: impl FnMut(&str, &mut Section<'_, 't, 'd>),
    ) {
        let Some(table) = self.table else {
            // Keys of named tables are known even when there are none.
            let mut section = Section::open(self.reader, format!("{}.{example}", self.name), None);
            each(example, &mut section);
            return;
        };
        for (key, value) in table {
            let what = format!("{}.{}", self.name, key.get_ref());
            let inner = self.reader.table_of(Some(value), &what);
            let mut section = Section::open(self.reader, what, inner);
            section.span = key.span();
            if inner.is_some() {
                each(key.get_ref(), &mut section);
                section.finish();
            }
        }
    }

    /// Reports every key that was not asked for.
    pub(crate) fn finish(self) {
        for (key, _) in self.table.into_iter().flatten() {
            let known = &self.reader.known[&self.name];
            if !known.contains(&key.get_ref().as_ref()) {
                self.reader.unknown.push((
                    self.name.clone(),
                    key.get_ref().to_string(),
                    key.span(),
                ));
            }
        }
    }
}

/// A string.
pub(crate) fn text(value: &DeValue<'_>) -> Result<String, String> {
    value
        .as_str()
        .map(ToOwned::to_owned)
        .ok_or_else(|| format!("expected a string in quotes, not {}", article(value)))
}

/// A list of strings.
pub(crate) fn texts(value: &DeValue<'_>) -> Result<Vec<String>, String> {
    let array = value
        .as_array()
        .ok_or_else(|| format!("expected a list of strings, not {}", article(value)))?;
    array.iter().map(|v| text(v.get_ref())).collect()
}

/// A number or its text, so that `gpus = 0.5` and `gpus = "0.5"` both work.
pub(crate) fn number_text(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(s) => Ok(s.to_string()),
        DeValue::Float(f) => Ok(f.as_str().to_owned()),
        DeValue::Integer(i) => Ok(i.as_str().to_owned()),
        other => Err(format!("expected a number, not {}", article(other))),
    }
}

/// A whole number within `range`.
pub(crate) fn whole(
    range: std::ops::RangeInclusive<u32>,
) -> impl FnOnce(&DeValue<'_>) -> Result<u32, String> {
    move |value| {
        let bad = || {
            format!(
                "expected a whole number from {} to {}",
                range.start(),
                range.end()
            )
        };
        let DeValue::Integer(i) = value else {
            return Err(format!("{}, not {}", bad(), article(value)));
        };
        let n = u32::from_str_radix(i.as_str(), i.radix()).map_err(|_| bad())?;
        if range.contains(&n) {
            Ok(n)
        } else {
            Err(bad())
        }
    }
}

/// A time with its unit, within `range`.
pub(crate) fn time(
    range: std::ops::RangeInclusive<Duration>,
) -> impl FnOnce(&DeValue<'_>) -> Result<Duration, String> {
    move |value| {
        const HOW: &str = "write a time with its unit in quotes, for example \"30s\" or \"1h30m\"";
        let DeValue::String(s) = value else {
            return Err(HOW.to_owned());
        };
        if s.trim().parse::<f64>().is_ok() {
            return Err(format!("`{s}` has no unit; {HOW}"));
        }
        let duration = parse_duration(s).map_err(|_| format!("`{s}` is not a time; {HOW}"))?;
        if !range.contains(&duration) {
            return Err(format!(
                "`{s}` is not possible; the value must lie between {} and {}",
                crate::show::duration(*range.start()),
                crate::show::duration(*range.end())
            ));
        }
        Ok(duration)
    }
}

/// A size with its unit; zero is allowed.
pub(crate) fn size(value: &DeValue<'_>) -> Result<Bytes, String> {
    const HOW: &str =
        "write a size with its unit in quotes, for example \"512 MiB\" or \"1.5 GiB\"";
    let DeValue::String(s) = value else {
        return Err(HOW.to_owned());
    };
    s.parse().map_err(|_| format!("`{s}` is not a size; {HOW}"))
}

/// A size with its unit, not zero.
pub(crate) fn memory(value: &DeValue<'_>) -> Result<Bytes, String> {
    match size(value)? {
        Bytes::ZERO => Err("a claim needs some memory; 0 is none".to_owned()),
        bytes => Ok(bytes),
    }
}

/// A part of one GPU or whole GPUs.
pub(crate) fn gpus(value: &DeValue<'_>) -> Result<Share, String> {
    crate::value::gpus(&number_text(value)?)
}

/// The most SMs, as a part of a GPU.
pub(crate) fn limit(value: &DeValue<'_>) -> Result<Share, String> {
    crate::value::limit(&number_text(value)?)
}

/// `true` or `false`.
pub(crate) fn truth(value: &DeValue<'_>) -> Result<bool, String> {
    match value {
        DeValue::Boolean(b) => Ok(*b),
        other => Err(format!("expected true or false, not {}", article(other))),
    }
}

/// The size of a claim.
pub(crate) fn claim_size(value: &DeValue<'_>) -> Result<Size, String> {
    crate::value::claim_size(&number_text(value)?)
}

/// The instances that a GPU is divided into.
pub(crate) fn layout(value: &DeValue<'_>) -> Result<gshare_core::mig::Layout, String> {
    text(value)?
        .parse()
        .map_err(|e: gshare_core::mig::NoLayout| e.to_string())
}

/// An absolute path, or `"auto"` (which is `None`).
pub(crate) fn auto_or_path(value: &DeValue<'_>) -> Result<Option<PathBuf>, String> {
    match text(value)?.as_str() {
        "auto" => Ok(None),
        _ => path(value)
            .map(Some)
            .map_err(|e| format!("{e} or \"auto\"")),
    }
}

/// An absolute path.
pub(crate) fn path(value: &DeValue<'_>) -> Result<PathBuf, String> {
    let path = PathBuf::from(text(value)?);
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(format!(
            "`{}` is not an absolute path; expected a path that begins with /",
            path.display()
        ))
    }
}

/// One of a few words.
pub(crate) fn word<T: Copy>(
    words: &'static [(&'static str, T)],
) -> impl FnOnce(&DeValue<'_>) -> Result<T, String> {
    move |value| {
        let names: Vec<&str> = words.iter().map(|(w, _)| *w).collect();
        let given = text(value)?;
        words
            .iter()
            .find(|(w, _)| *w == given)
            .map(|(_, t)| *t)
            .ok_or_else(|| {
                let guess = nearest(&given, names.iter().copied())
                    .map(|n| format!("; did you mean \"{n}\"?"))
                    .unwrap_or_default();
                format!("`{given}` is not one of {}{guess}", names.join(", "))
            })
    }
}

fn article(value: &DeValue<'_>) -> String {
    match value.type_str() {
        kind @ ("integer" | "array") => format!("an {kind}"),
        kind => format!("a {kind}"),
    }
}

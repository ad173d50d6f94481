//! The files of the proxy stand in layers: those of `src/lib.rs`. A file imports from its own or a lower one.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

fn files(directory: &Path, found: &mut Vec<(String, String)>, module: Option<&str>) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().and_then(|name| name.to_str());
        let own = module.or(name).expect("a name").to_owned();
        if path.is_dir() {
            files(&path, found, Some(&own));
        } else {
            found.push((own, fs::read_to_string(&path).expect("a text")));
        }
    }
}

/// The modules that a text names as its own crate's, in lists too; its tests may look further.
fn imports(text: &str) -> Vec<String> {
    let text = text.split("mod tests {").next().unwrap_or_default();
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    let text: String = lines.collect();
    let mut named = Vec::new();
    for rest in text.split("crate::").skip(1) {
        let mut depth = 0;
        let mut word = String::new();
        for c in rest.chars() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ if c.is_alphanumeric() || c == '_' => word.push(c),
                _ => {}
            }
            let ends = !(c.is_alphanumeric() || c == '_');
            if ends && !word.is_empty() {
                named.push((depth, std::mem::take(&mut word)));
            }
            if ends && depth == 0 && c != '{' {
                break;
            }
        }
    }
    named.into_iter().map(|(_, name)| name).collect()
}

#[test]
fn no_file_imports_from_a_layer_above_its_own_and_none_in_a_circle() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let list = fs::read_to_string(source.join("lib.rs")).expect("a text");
    let mut layers = BTreeMap::new();
    let mut layer = 0;
    for line in list.lines() {
        layer += usize::from(line.starts_with("// "));
        let name = line.trim_start_matches("pub ").strip_prefix("mod ");
        if let Some(name) = name.and_then(|name| name.strip_suffix(';')) {
            layers.insert(name.to_owned(), layer);
        }
    }
    let mut found = Vec::new();
    files(&source, &mut found, None);
    let mut arrows: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (module, text) in found.iter().filter(|(module, _)| module != "lib") {
        assert!(layers.contains_key(module), "{module} has no layer");
        let others = imports(text).into_iter();
        let others = others.filter(|name| name != module && layers.contains_key(name));
        arrows.entry(module.clone()).or_default().extend(others);
    }
    let all = arrows
        .iter()
        .flat_map(|(from, to)| to.iter().map(move |to| (from, to)));
    let up: Vec<_> = all
        .filter(|(from, to)| layers[*to] > layers[*from])
        .collect();
    assert_eq!(up, Vec::new());
    assert!(
        arrows.values().map(BTreeSet::len).sum::<usize>() > 90,
        "{arrows:?}"
    );
    // Whatever imports nothing that is left goes: what stays is in a circle, or leads to one.
    while let Some(low) = arrows.iter().find(|(_, to)| to.is_empty()) {
        let low = low.0.clone();
        arrows.remove(&low);
        arrows
            .values_mut()
            .for_each(|to| to.retain(|name| *name != low));
    }
    assert_eq!(arrows, BTreeMap::new());
}

//! The documents agree with the program: commands and flags exist, links and paths lead somewhere, and the status of
//! a mechanism is described in the same words.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{GSHARE, station};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files of the repository; says why it skips where git cannot tell.
fn files() -> Vec<PathBuf> {
    let listed = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(root())
        .output();
    let listed = match listed {
        Ok(output) if output.status.success() && !output.stdout.is_empty() => output.stdout,
        _ => {
            println!(
                "skipped: git does not list the files of {}",
                root().display()
            );
            return Vec::new();
        }
    };
    let names = String::from_utf8(listed).expect("UTF-8 names");
    let paths = names.split('\0').filter(|n| !n.is_empty());
    // A file that is being removed is still listed.
    paths
        .map(PathBuf::from)
        .filter(|p| root().join(p).is_file())
        .collect()
}

fn text(path: &Path) -> String {
    let bytes = std::fs::read(root().join(path)).expect("readable");
    String::from_utf8_lossy(&bytes).into_owned()
}

fn documents() -> Vec<PathBuf> {
    let is_document = |p: &PathBuf| p.extension().is_some_and(|e| e == "md");
    files().into_iter().filter(is_document).collect()
}

/// The text of a document without its fenced blocks, which show output, not commands.
fn without_fences(text: &str) -> String {
    let mut inside = false;
    let keep = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        inside ^= fence;
        !inside && !fence
    });
    keep.collect::<Vec<_>>().join("\n")
}

/// The command lines of a document: indented blocks, and text between backticks.
fn command_lines(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in without_fences(text).lines() {
        if line.starts_with("    ") {
            let code = line.split(" # ").next().unwrap_or(line);
            found.push(code.to_owned());
        } else {
            let spans = line.split('`').skip(1).step_by(2);
            found.extend(spans.map(str::to_owned));
        }
    }
    found
}

/// The words after the program's name in a command line, up to the command that it runs or the next command.
fn calls(line: &str) -> Vec<Vec<String>> {
    let line = line
        .replace("cargo run --release -- ", "gshare ")
        .replace("cargo run --profile dist -- ", "gshare ");
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut found = Vec::new();
    for (at, word) in words.iter().enumerate() {
        if word
            .trim_start_matches(|c: char| !c.is_alphanumeric())
            .rsplit("$(")
            .next()
            != Some("gshare")
        {
            continue;
        }
        let ends = |w: &&str| ["--", "|", "||", "&&", "&", ";", ">"].contains(w);
        let mut call = Vec::new();
        for next in words[at + 1..].iter().take_while(|w| !ends(w)) {
            call.push(next.trim_end_matches([')', ';', '"', '.', ',']).to_owned());
            if next.ends_with([')', ';']) {
                break;
            }
        }
        found.push(call);
    }
    found
}

/// `gshare help WORDS`, or nothing if there is no such command.
fn help(words: &[&str]) -> Option<String> {
    let output = Command::new(GSHARE)
        .arg("help")
        .args(words)
        .output()
        .expect("gshare starts");
    let ok = output.status.success();
    ok.then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn is_name(word: &str) -> bool {
    !word.is_empty()
        && word.chars().all(|c| c.is_ascii_lowercase() || c == '-')
        && !word.starts_with('-')
}

/// The error in a call that a document names.
fn wrong(call: &[String], cache: &mut BTreeMap<String, Option<String>>) -> Option<String> {
    let first = call.first().filter(|w| is_name(w))?;
    let mut path = vec![first.as_str()];
    let mut explain = |path: &[&str]| {
        let key = path.join(" ");
        cache.entry(key).or_insert_with(|| help(path)).clone()
    };
    let Some(mut page) = explain(&path) else {
        return Some(format!("there is no gshare {first}"));
    };
    while page.contains("\nCommands:") {
        let next = call.get(path.len()).filter(|w| is_name(w))?;
        path.push(next);
        match explain(&path) {
            Some(next) => page = next,
            None => return Some(format!("there is no gshare {}", path.join(" "))),
        }
    }
    // The flags of the page: `-g, --gpus <N>`, `[alias: --gpu-memory]`.
    let known: Vec<&str> = page
        .split(|c: char| c.is_whitespace() || [',', '[', ']', '=', '<'].contains(&c))
        .filter(|w| w.starts_with('-'))
        .collect();
    let flags = call.iter().filter(|w| w.starts_with('-') && w.len() > 1);
    let mut flags = flags.map(|w| w.split('=').next().unwrap_or(w));
    let unknown = flags.find(|f| !known.contains(f))?;
    Some(format!("gshare {} has no {unknown}", path.join(" ")))
}

#[test]
fn every_command_in_the_documents_exists() {
    let (mut problems, mut seen) = (Vec::new(), 0);
    let mut cache = BTreeMap::new();
    let documents = documents();
    for document in &documents {
        for line in command_lines(&text(document)) {
            for call in calls(&line) {
                seen += 1;
                let problem = wrong(&call, &mut cache);
                problems.extend(problem.map(|p| format!("{}: {p}: {line}", document.display())));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(
        documents.is_empty() || seen > 20,
        "only {seen} commands were found"
    );
    // The check itself finds mistakes.
    for (line, mistakes) in [
        ("gshare claim -g 0.5 --gpu-mem 8G -- python --flag", 0),
        ("sudo gshare daemon &", 0),
        ("id=$(gshare claim -g 0.25 --shortly)", 1),
        ("gshare configure check", 1),
        ("gshare config chek", 1),
        ("gshare ps -a | gshare qeue", 1),
        ("gshare admin quota set group:lab --maximum 2", 1),
    ] {
        let found = calls(line);
        let found = found.iter().filter_map(|c| wrong(c, &mut cache));
        assert_eq!(found.count(), mistakes, "{line}");
    }
}

/// The anchor of a heading: `## What is *said*, and how` is `what-is-said-and-how`.
fn anchors(text: &str) -> Vec<String> {
    let text = without_fences(text);
    let headings = text.lines().filter(|l| l.starts_with('#'));
    headings
        .map(|l| l.trim_start_matches('#').trim().to_lowercase())
        .map(|l| l.replace(' ', "-"))
        .map(|l| {
            let keep = |c: &char| c.is_alphanumeric() || ['-', '_'].contains(c);
            l.chars().filter(keep).collect()
        })
        .collect()
}

#[test]
fn every_link_in_the_documents_leads_somewhere() {
    let mut problems = Vec::new();
    for document in documents() {
        let own = text(&document);
        let shown = without_fences(&own);
        for target in shown
            .split("](")
            .skip(1)
            .filter_map(|t| t.split(')').next())
        {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let at = match path {
                "" => document.clone(),
                path => document.with_file_name(path),
            };
            let exists = root().join(&at).exists();
            if !exists || (!anchor.is_empty() && !anchors(&text(&at)).iter().any(|a| a == anchor)) {
                problems.push(format!("{}: {target}", document.display()));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Limits the length of pages that are read at one sitting.
#[test]
fn the_first_pages_are_short() {
    for (page, most) in [
        ("README.md", 100),
        ("ARCHITECTURE.md", 210),
        ("docs/users.md", 70),
    ] {
        let lines = text(Path::new(page)).lines().count();
        assert!(lines <= most, "{page} has {lines} lines, more than {most}");
    }
}

#[test]
fn the_table_of_day_one_names_tests_that_are_there() {
    let sources = files()
        .into_iter()
        .filter(|p| p.extension().is_some_and(|e| e == "rs"));
    let sources: Vec<String> = sources.map(|p| text(&p)).collect();
    let page = text(Path::new("tests/day-one.md"));
    let rows = page
        .lines()
        .filter(|l| l.starts_with("| ") && !l.starts_with("| #") && !l.starts_with("| -"));
    let mut seen = 0;
    for row in rows {
        seen += 1;
        let (_, tests) = row.trim_end_matches('|').rsplit_once('|').expect(row);
        for name in tests.split('`').skip(1).step_by(2) {
            let named = format!("fn {name}(");
            assert!(
                sources.is_empty() || sources.iter().any(|s| s.contains(&named)),
                "no test {name}"
            );
        }
    }
    assert_eq!(seen, 25);
}

/// `file.rs`, or `file.rs`: `test`, `the_beginning_of_another_...`
#[test]
fn the_page_about_hardware_names_files_and_tests_that_are_there() {
    let sources = files()
        .into_iter()
        .filter(|p| p.extension().is_some_and(|e| e == "rs"));
    let sources: Vec<(PathBuf, String)> = sources.map(|p| (p.clone(), text(&p))).collect();
    let mut seen = 0;
    for line in text(Path::new("docs/hardware.md")).lines() {
        let parts: Vec<&str> = line.split('`').collect();
        let mut within: Vec<&str> = Vec::new();
        for pair in parts.chunks_exact(2) {
            let (before, name) = (pair[0], pair[1]);
            if name.ends_with(".rs") {
                let named = sources.iter().filter(|(path, _)| path.ends_with(name));
                within = named.map(|(_, text)| text.as_str()).collect();
                assert!(sources.is_empty() || !within.is_empty(), "no file {name}");
            } else if [": ", ", "].contains(&before) && !within.is_empty() {
                let function = match name.strip_suffix("...") {
                    Some(beginning) => format!("fn {beginning}"),
                    None => format!("fn {name}("),
                };
                let there = within.iter().any(|text| text.contains(&function));
                assert!(there, "no test {name}: {line}");
                seen += 1;
            } else {
                within.clear();
            }
        }
    }
    assert!(sources.is_empty() || seen > 30, "only {seen} tests");
}

#[test]
fn the_faq_quotes_messages_that_the_program_prints() {
    let sources = files().into_iter().filter(|p| {
        p.extension().is_some_and(|e| e == "rs")
            && (p.starts_with("src") || p.starts_with("enforcer") || p.starts_with("config"))
    });
    // A text may go on in the next line.
    let whole = |source: String| -> String { source.split("\\\n").map(str::trim_start).collect() };
    let sources: Vec<String> = sources.map(|p| whole(text(&p))).collect();
    let page = text(Path::new("docs/faq.md"));
    let headings = page.lines().filter(|l| l.starts_with("### "));
    let quotes = headings.flat_map(|l| l.split('`').skip(1).step_by(2));
    // And the last quote in the first column of the table of the command line.
    let rows = page.split("## Command line").nth(1).expect("the table");
    let rows = rows.split("\n## ").next().into_iter().flat_map(str::lines);
    let cells = rows.filter_map(|l| l.strip_prefix("| `")?.split('|').next());
    let quotes = quotes.chain(cells.filter_map(|cell| cell.rsplit('`').nth(1)));
    let mut seen = 0;
    for quote in quotes {
        seen += 1;
        assert!(
            sources.is_empty() || sources.iter().any(|s| s.contains(quote)),
            "no message has `{quote}`"
        );
    }
    assert!(seen > 10, "only {seen} messages");
}

#[test]
fn the_code_map_is_the_code() {
    let text = text(Path::new("ARCHITECTURE.md"));
    let map = text.split("## Code map").nth(1).expect("a code map");
    let map = map.split("\n## ").next().expect("its section");
    let mut paths = 0;
    for row in map.lines().filter(|l| l.starts_with("| `")) {
        let cell = row.split('|').nth(1).expect("a first column");
        for path in cell.split('`').skip(1).step_by(2) {
            paths += 1;
            assert!(root().join(path).exists(), "{path} is in the code map only");
        }
    }
    assert!(paths > 10, "only {paths} paths were found");
}

#[test]
fn files_refer_to_nothing_outside() {
    // Written in two parts, so that this file does not have them.
    let outside = [["shar", "ed/"], ["far", "m-"], ["/wor", "k/"]].map(|p| p.concat());
    let mut problems = Vec::new();
    for path in files() {
        let text = text(&path);
        for word in &outside {
            if let Some(line) = text.lines().find(|l| l.contains(word.as_str())) {
                problems.push(format!("{} has {word}: {}", path.display(), line.trim()));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Cargo finds no tests by itself here (`autotests = false`): a file that nobody names would never run.
#[test]
fn every_file_of_tests_runs() {
    let manifest = text(Path::new("Cargo.toml"));
    let modules = text(Path::new("tests/workstation.rs"));
    let tests = files();
    let tests = tests.iter().filter(|p| {
        p.parent() == Some(Path::new("tests")) && p.extension().is_some_and(|e| e == "rs")
    });
    let mut seen = 0;
    for name in tests.filter_map(|p| p.file_stem()?.to_str()) {
        seen += 1;
        let own = manifest.contains(&format!("[[test]]\nname = \"{name}\"\n"));
        let module = modules.lines().any(|l| l == format!("mod {name};"));
        assert!(
            own || module,
            "tests/{name}.rs is neither in tests/workstation.rs nor a [[test]] of Cargo.toml"
        );
    }
    assert!(
        files().is_empty() || seen > 20,
        "only {seen} files of tests"
    );
}

/// Nor does it run examples in comments (`doctest = false`).
#[test]
fn no_comment_has_an_example() {
    for path in files() {
        if path.extension().is_some_and(|e| e == "rs") {
            let text = text(&path);
            let fences = |kind: &str| {
                let begun = ["///", "//!"].map(|c| text.matches(&format!("{c} ```{kind}")).count());
                begun.iter().sum::<usize>()
            };
            let example = fences("") != 2 * fences("text");
            assert!(!example, "{} has one, which never runs", path.display());
        }
        let is_package = path.ends_with("Cargo.toml") && path.with_file_name("src/lib.rs").exists();
        let looks = is_package && !text(&path).contains("doctest = false");
        assert!(!looks, "{} looks for examples", path.display());
    }
}

/// The statuses of the list in docs/hardware.md.
fn statuses(page: &str) -> Vec<String> {
    let bold = page.lines().filter_map(|l| l.strip_prefix("- **"));
    bold.filter_map(|l| l.split("**").next())
        .map(str::to_owned)
        .collect()
}

/// The row of the table in docs/hardware.md whose mechanism has this word: its status.
fn documented(page: &str, mechanism: &str) -> Option<String> {
    let rows = page.lines().filter(|l| l.starts_with("| "));
    let mut cells = rows.map(|l| l.split('|').map(str::trim).collect::<Vec<_>>());
    let row = cells.find(|c| c.get(1).is_some_and(|m| m.starts_with(mechanism)))?;
    row.get(2).map(|s| (*s).to_owned())
}

/// The mechanism of a row of the doctor: `memory limit (library)`, `compute limit GPU 0`.
fn mechanism(row: &str) -> &str {
    if row.starts_with("GPU ") {
        return "GPU figures";
    }
    let name = row.split(" (").next().unwrap_or(row);
    name.split(" GPU ").next().unwrap_or(name)
}

#[test]
fn the_doctor_claims_what_the_hardware_page_claims() {
    let page = text(Path::new("docs/hardware.md"));
    let statuses = statuses(&page);
    assert_eq!(statuses.len(), 5, "{statuses:?}");
    let station = station();
    let output = station
        .command()
        .args(["doctor", "--json"])
        .output()
        .expect("gshare starts");
    assert!(output.status.success());
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let checks = value["checks"].as_array().expect("checks");
    let mut compared = 0;
    for check in checks {
        let (name, status) = (&check["name"], check["status"].as_str().expect("a text"));
        assert!(
            !status.contains("hardware"),
            "{name} was never seen on hardware"
        );
        assert_ne!(status, "", "{name} has no status");
        let mechanism = match name.as_str().expect("a name") {
            n if n.starts_with("compute limit") => match check["detail"].as_str() {
                Some(d) if d.contains("mig") => "MIG:",
                Some(d) if d.contains("exclusive") => "MPS: claims",
                Some(d) if d.contains("timeslice") => "compute limit",
                _ => "MPS: control",
            },
            // The default unless the administrator says `deny`.
            "unclaimed use" => "use outside claims",
            n => mechanism(n),
        };
        let told = documented(&page, mechanism)
            .unwrap_or_else(|| panic!("`{mechanism}` is not in docs/hardware.md"));
        assert!(
            statuses.iter().any(|s| told.starts_with(s.as_str())),
            "{told}"
        );
        assert_eq!(status, told, "{name}");
        compared += 1;
    }
    let filter = station
        .snapshot()
        .expect("served")
        .service
        .is_some_and(|s| s.device_filter);
    assert!(compared >= 3 + usize::from(filter), "{checks:?}");
}

/// The privileged program is small enough to be read: a few hundred lines, and few crates. The screen does not grow with
/// what it shows.
#[test]
fn the_launcher_and_the_screen_stay_small() {
    for (dir, most) in [("enforcer/exec/src", 700), ("ui/src", 8_750)] {
        let mut code = 0;
        let is_test = |f: &Path| {
            f.iter()
                .any(|part| part.to_string_lossy().starts_with("test"))
        };
        for file in files().iter().filter(|f| f.starts_with(dir) && !is_test(f)) {
            let text = text(file);
            let (own, _tests) = text.split_once("#[cfg(test)]\nmod ").unwrap_or((&text, ""));
            let line = |l: &&str| !l.trim().is_empty() && !l.trim_start().starts_with("//");
            code += own.lines().filter(line).count();
        }
        assert!((100..=most).contains(&code), "{dir}: {code} lines of code");
    }
    let manifest = text(Path::new("enforcer/exec/Cargo.toml"));
    let (_, after) = manifest.split_once("[dependencies]").expect("a section");
    let (own, _) = after.split_once("\n[").expect("another section");
    let own: Vec<&str> = own
        .lines()
        .filter_map(|l| l.split(['.', ' ']).next())
        .filter(|n| !n.is_empty())
        .collect();
    assert_eq!(own, ["gshare-abi", "libc", "nix"]);
}

/// The definition of a type in the wire module.
fn definition(wire: &str, name: &str) -> Option<String> {
    let begin = ["struct", "enum"]
        .iter()
        .find_map(|kind| wire.find(&format!("pub {kind} {name} {{")))?;
    let end = wire[begin..].find("\n}")?;
    Some(wire[begin..begin + end].to_owned())
}

/// Input of clients has bounded types: a plain text or list could have any length.
#[test]
fn what_clients_send_is_bounded() {
    let files = files();
    let wire: Vec<String> = files
        .iter()
        .filter(|p| p.starts_with("src/proto/src") && !p.ends_with("bounds.rs"))
        .map(|p| text(p))
        .collect();
    let wire = wire.join("\n");
    let (mut todo, mut seen) = (vec!["Hello".to_owned(), "Call".to_owned()], Vec::new());
    while let Some(name) = todo.pop() {
        let Some(definition) = definition(&wire, &name) else {
            continue;
        };
        for line in definition.lines() {
            let code = line.split("//").next().unwrap_or_default();
            for plain in [
                "String", "Vec<", "PathBuf", "OsString", "Map<", "Set<", "Value",
            ] {
                assert!(
                    !code.contains(plain),
                    "{name}: `{}` has no bound",
                    line.trim()
                );
            }
            // The content of a variant, not its name.
            let held = code.split_once([':', '(']).map_or("", |(_, held)| held);
            let words = held.split(|c: char| !c.is_alphanumeric());
            for word in words.filter(|w| w.starts_with(char::is_uppercase)) {
                if !seen.iter().chain(&todo).any(|s| s == word) && word != name {
                    todo.push(word.to_owned());
                }
            }
        }
        seen.push(name);
    }
    // Members and the launcher send only numbers.
    let abi = [
        "enforcer/abi/src/wire.rs",
        "enforcer/abi/src/wire/launch.rs",
    ];
    let abi = abi.map(|p| text(Path::new(p))).join("\n");
    for name in ["Register", "Want", "Launch"] {
        let definition = definition(&abi, name).expect("is there");
        for line in definition
            .lines()
            .filter(|l| l.trim().starts_with("pub ") && l.contains(':'))
        {
            let kind = line.split_once(": ").map_or("", |(_, kind)| kind);
            let kind = kind.trim_end_matches(',');
            let plain = ["u32", "u64", "Option<u64>", "bool"].contains(&kind);
            assert!(plain, "{name}: `{}` has no bound", line.trim());
        }
    }
    for name in [
        "ClaimSpec",
        "KernelSpec",
        "AdminCall",
        "QuotaView",
        "SuggestSpec",
    ] {
        assert!(
            seen.iter().any(|s| s == name),
            "{name} is looked at: {seen:?}"
        );
    }
}

/// Every path in a list of imports: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn expand(before: &[&str], list: &str, found: &mut Vec<Vec<String>>) {
    let (head, group) = match list.find('{') {
        Some(at) => (&list[..at], list[at + 1..].strip_suffix('}')),
        None => (list.split(" as ").next().unwrap_or_default(), None),
    };
    let names = head.split("::").map(str::trim).filter(|n| !n.is_empty());
    let path: Vec<&str> = before.iter().copied().chain(names).collect();
    let Some(group) = group else {
        found.push(path.into_iter().map(str::to_owned).collect());
        return;
    };
    let (mut depth, mut from) = (0, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                expand(&path, group[from..at].trim(), found);
                from = at + 1;
            }
            _ => {}
        }
    }
    expand(&path, group[from..].trim(), found);
}

type Arrows = BTreeMap<Vec<String>, BTreeSet<Vec<String>>>;

/// The modules of these parts of a crate that each of them imports, by their paths from its root, the directory
/// `root`. Imports by tests are left out.
fn arrows(root: &str, parts: &[&str]) -> Arrows {
    let of = |file: &Path| {
        let inside = file.strip_prefix(root).ok()?.with_extension("");
        Some(
            inside
                .iter()
                .map(|n| n.to_string_lossy().into_owned())
                .collect::<Vec<_>>(),
        )
    };
    let is_test = |p: &PathBuf| {
        p.file_stem()
            .is_some_and(|n| n.to_string_lossy().ends_with("tests"))
    };
    let mut sources = files();
    sources.retain(|p| {
        let part = p
            .strip_prefix(root)
            .ok()
            .and_then(|inside| inside.iter().next());
        let part = part.and_then(|name| name.to_str()).unwrap_or_default();
        let wanted = parts.is_empty() || parts.contains(&part.trim_end_matches(".rs"));
        p.starts_with(root) && wanted && p.extension().is_some_and(|e| e == "rs") && !is_test(p)
    });
    let modules: BTreeMap<_, _> = sources
        .iter()
        .filter_map(|p| Some((of(p)?, text(p))))
        .collect();
    let mut arrows = BTreeMap::new();
    for (module, text) in &modules {
        let product = text.split("\nmod tests {").next().unwrap_or_default();
        let code = product
            .lines()
            .map(|l| l.split("//").next().unwrap_or_default());
        let code = code.collect::<Vec<_>>().join(" ");
        let mut paths = Vec::new();
        for list in code
            .split("use ")
            .skip(1)
            .filter_map(|rest| rest.split(';').next())
        {
            expand(&[], list.trim(), &mut paths);
        }
        for word in code.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':') {
            if word.starts_with("crate::") || word.starts_with("super::") {
                expand(&[], word, &mut paths);
            }
        }
        let to = paths.into_iter().filter_map(|path| {
            let ups = path.iter().take_while(|n| *n == "super").count();
            let start = match path.first()?.as_str() {
                "crate" => &[][..],
                _ => &module[..module.len().checked_sub(ups)?],
            };
            let rest = path
                .into_iter()
                .skip_while(|n| matches!(n.as_str(), "crate" | "super" | "self"));
            let whole: Vec<String> = start.iter().cloned().chain(rest).collect();
            let named = (1..=whole.len()).rev().map(|n| &whole[..n]);
            named
                .into_iter()
                .find(|n| modules.contains_key(*n))
                .map(<[_]>::to_vec)
        });
        arrows.insert(module.clone(), to.filter(|to| to != module).collect());
    }
    arrows
}

/// Everything that can be reached from somewhere.
fn reached<T: Ord + Clone>(arrows: &BTreeMap<T, BTreeSet<T>>, from: &T) -> BTreeSet<T> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(at) = next.pop() {
        next.extend(arrows[at].iter().filter(|to| seen.insert((*to).clone())));
    }
    seen
}

/// Demo, benches and setup are beside the command line, not on it; users' commands import no bench; and the arguments
/// are below all of them.
#[test]
fn the_laboratory_and_the_command_line_do_not_import_each_other() {
    let may_not: [(&str, &[&str]); 6] = [
        ("bench", &["cli", "setup"]),
        ("demo", &["cli", "setup", "bench"]),
        ("setup", &["cli", "bench", "demo", "station"]),
        (
            "command",
            &["cli", "setup", "bench", "demo", "station", "daemon"],
        ),
        ("cli", &["bench", "demo", "station"]),
        ("daemon", &["cli", "bench", "demo", "station", "setup"]),
    ];
    let mut parts = may_not.map(|(name, _)| name).to_vec();
    parts.push("station");
    let mut arrows = arrows("src", &parts);
    assert!(arrows.is_empty() || arrows.len() > 150, "{}", arrows.len());
    // Where the command line calls the others.
    arrows.remove(&["cli".to_owned()][..]);
    for (module, to) in &arrows {
        let others = may_not.iter().find(|(name, _)| *name == module[0]);
        let others = others.map_or(&[][..], |(_, others)| others);
        let wrong = to.iter().find(|to| others.contains(&to[0].as_str()));
        assert_eq!(wrong, None, "imported by {module:?}");
    }
}

/// A change of one module concerns that module and those that it imports: circles have at most three modules.
#[test]
fn the_modules_of_the_service_stand_in_no_larger_circle_than_three() {
    let mut arrows = arrows("src", &["daemon"]);
    // The module that declares them all does not count.
    let above = vec!["daemon".to_owned()];
    arrows.remove(&above);
    for to in arrows.values_mut() {
        to.remove(&above);
    }
    let count: usize = arrows.values().map(BTreeSet::len).sum();
    assert!(arrows.is_empty() || count > 900, "only {count} arrows");
    let reached: BTreeMap<_, _> = arrows.keys().map(|m| (m, reached(&arrows, m))).collect();
    for (module, to) in &reached {
        let circle: Vec<_> = to
            .iter()
            .filter(|other| reached[other].contains(*module))
            .collect();
        assert!(circle.len() <= 3, "{module:?}: {circle:?}");
    }
}

/// A feature's state by claim is in one collection, so that one removal is enough when the claim ends. Claims
/// themselves, and facts, which nobody keeps, have several.
#[test]
fn a_feature_keeps_one_collection_by_claim() {
    let kinds = ["BTreeMap<", "BTreeSet<", "HashMap<", "HashSet<", "Vec<"];
    let mut seen = 0;
    for file in files() {
        let name = file.display().to_string();
        let several = ["claims.rs", "fact.rs"].iter().any(|n| name.ends_with(n));
        if several || !name.contains("src/daemon/") || !name.ends_with(".rs") {
            continue;
        }
        for body in text(&file).split("\npub(crate) struct ").skip(1) {
            let body = body.split("\n}\n").next().unwrap_or_default();
            let keeps = |line: &&str| {
                let kept = line.split_once(": ").map_or("", |(_, kind)| kind);
                let key = kinds.iter().find_map(|kind| kept.strip_prefix(kind));
                key.is_some_and(|key| key.trim_start_matches('(').starts_with("ClaimId"))
            };
            let kept: Vec<_> = body.lines().filter(keeps).collect();
            seen += kept.len();
            assert!(kept.len() <= 1, "{name}: {kept:?}");
        }
    }
    assert!(seen > 5, "only {seen} were seen");
}

/// The files of the proxy of libcuda are in layers, those of its `src/lib.rs`: each imports from its own or a lower
/// one.
#[test]
fn the_proxy_stands_in_layers_and_in_no_circle() {
    let source = "enforcer/shim/src";
    let (mut layers, mut layer) = (BTreeMap::new(), 0);
    for line in text(&Path::new(source).join("lib.rs")).lines() {
        layer += usize::from(line.starts_with("// "));
        let name = line.trim_start_matches("pub ").strip_prefix("mod ");
        if let Some(name) = name.and_then(|name| name.strip_suffix(';')) {
            layers.insert(name.to_owned(), layer);
        }
    }
    let mut arrows_of = Arrows::new();
    for (module, to) in arrows(source, &[]) {
        let to = to.into_iter().map(|to| vec![to[0].clone()]);
        let own = vec![module[0].clone()];
        let to = to.filter(|to| *to != own && to[0] != "lib");
        arrows_of.entry(own.clone()).or_default().extend(to);
    }
    arrows_of.remove(&["lib".to_owned()][..]);
    let count: usize = arrows_of.values().map(BTreeSet::len).sum();
    assert!(arrows_of.is_empty() || count > 90, "only {count} arrows");
    for (module, to) in &arrows_of {
        let up = to.iter().find(|to| layers[&to[0]] > layers[&module[0]]);
        assert_eq!(up, None, "imported by {module:?}");
        assert!(
            !reached(&arrows_of, module).contains(module),
            "a circle of {module:?}"
        );
    }
}

/// The fault of a line of a comment, a text or a document: a user who is a man, or a sentence that hides its subject.
fn not_plain(line: &str) -> Option<String> {
    let words = line.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '\'');
    // Written in two parts, so that this file does not have them.
    let a_man = [["h", "e"], ["hi", "m"], ["hi", "s"], ["himse", "lf"]].map(|w| w.concat());
    for word in words {
        let small = word.to_lowercase();
        let small = small.trim_end_matches("'s");
        if a_man.iter().any(|w| w == small) {
            return Some(word.to_owned());
        }
    }
    for opener in [["Wh", "o "], ["Wh", "om "], ["Whoe", "ver "]] {
        let opener = opener.concat();
        for (at, _) in line.match_indices(&opener) {
            let rest = &line[at + opener.len()..];
            let sentence = rest.split(['.', ';', '"']).next().unwrap_or_default();
            let whole = line[..at]
                .chars()
                .next_back()
                .is_none_or(|c| !c.is_alphanumeric());
            if whole && rest.starts_with(char::is_lowercase) && !sentence.contains('?') {
                return Some(format!("{opener}{sentence}"));
            }
        }
    }
    // A comment or a paragraph with an indefinite subject.
    let opens = line.trim_start();
    let opens = opens.trim_start_matches(['/', '!']).trim_start();
    ["Some", "No"]
        .map(|part| format!("{part}body "))
        .into_iter()
        .chain(["Of so m".to_owned() + "any "])
        .find(|opener| opens.starts_with(opener))
}

/// Users are "they" or have a name, and a sentence has a subject that acts.
#[test]
fn the_english_is_plain() {
    let (mut problems, mut seen) = (Vec::new(), 0);
    for file in files() {
        let kind = file
            .extension()
            .and_then(|e| e.to_str())
            .unwrap_or_default();
        if !["rs", "md", "toml", "sh", "py"].contains(&kind) {
            continue;
        }
        seen += 1;
        for (n, line) in text(&file).lines().enumerate() {
            if let Some(what) = not_plain(line) {
                problems.push(format!("{}:{}: {what}", file.display(), n + 1));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(files().is_empty() || seen > 100, "only {seen} files");
    // The check itself finds them.
    for line in [
        ["// W", "ho waits is told."],
        ["says it to h", "im"],
        ["//! Over. Whoe", "ver reads this."],
        ["the user and h", "is files"],
        ["    /// Some", "body waits."],
        ["// No", "body is told."],
    ] {
        assert!(not_plain(&line.concat()).is_some(), "{line:?}");
    }
    for line in ["Who is this?", "enum Who { A }", "the history of this"] {
        assert_eq!(not_plain(line), None, "{line}");
    }
}

/// The modules that docs/internals.md names as boundaries exist, and a fuzz target reads the input of each.
#[test]
fn every_boundary_names_its_module_and_its_fuzz_target() {
    let page = text(Path::new("docs/internals.md"));
    let (_, after) = page.split_once("## Boundaries").expect("a section");
    let (section, _) = after.split_once("\n## ").expect("another section");
    let rows: Vec<Vec<&str>> = section
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| what comes in"))
        .map(|line| line.trim_matches('|').split(" | ").collect())
        .collect();
    assert!(rows.len() >= 15, "{} rows", rows.len());
    // The crates with public readers, and their folders.
    let crates = [
        ("gshare_abi::", "enforcer/abi/src/"),
        ("gshare_proto::", "src/proto/src/"),
    ];
    for row in &rows {
        let [what, _, through, bound, target] = row.as_slice() else {
            panic!("five cells: {row:?}");
        };
        let modules: Vec<&str> = through.split('`').skip(1).step_by(2).collect();
        assert!(!modules.is_empty(), "{what}: no module");
        for module in &modules {
            assert!(Path::new(module).is_file(), "{what}: {module}");
        }
        assert!(!bound.trim().is_empty(), "{what}: nothing is bounded");
        let target = target.trim().trim_matches('`');
        let target = text(Path::new(&format!("tests/fuzz/targets/{target}.rs")));
        let reads = |module: &&str| {
            let by_file = target.contains(&format!("../../../{module}\""));
            let mut by_crate = crates.iter().filter(|(_, dir)| module.starts_with(dir));
            by_file || by_crate.any(|(name, _)| target.contains(name))
        };
        assert!(modules.iter().any(reads), "{what}: {modules:?}");
    }
}

/// The texts of a source file for users: string literals of two words or more, outside comments and tests.
fn texts(source: &str) -> Vec<String> {
    const SQL: [&str; 7] = [
        "SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "PRAGMA", "ALTER",
    ];
    // Other items may be for tests, too, in front of more of the product.
    let product = source.split("#[cfg(test)]\nmod tests {").next();
    let product = product.unwrap_or_default();
    // Reasons of lints are for people who read the code.
    let code = |l: &&str| {
        !["//", "reason = "]
            .iter()
            .any(|c| l.trim_start().starts_with(c))
    };
    let lines: Vec<&str> = product.lines().filter(code).collect();
    let (mut found, mut text) = (Vec::new(), String::new());
    let (mut inside, mut escaped) = (false, false);
    for c in lines.join("\n").replace("'\"'", "").chars() {
        match c {
            _ if escaped => {
                escaped = false;
                text.push(if c == 'n' { ' ' } else { c });
            }
            '\\' if inside => escaped = true,
            '"' => {
                inside = !inside;
                let words: Vec<&str> = text.split_whitespace().collect();
                let is_sql = words.first().is_some_and(|w| SQL.contains(w));
                if !inside && words.len() > 1 && !is_sql {
                    found.push(words.join(" "));
                }
                text.clear();
            }
            _ if inside => text.push(c),
            _ => {}
        }
    }
    found
}

/// All texts of the program, on one page to be read through: `target/tmp/texts.md`. Must not contain words of the code, or
/// words that stand for a usual one.
#[test]
fn the_texts_are_in_the_words_of_users() {
    // Each in two parts, so that this file does not have them.
    let private: Vec<String> = [
        ["run", "gs"],
        ["lodg", "ing"],
        ["entit", "led"],
        ["arbi", "ter"],
        ["recon", "cile"],
        ["men", "ds"],
        ["in va", "in"],
        ["put o", "ff"],
        ["held ba", "ck"],
        ["who", "ever"],
        ["goes o", "n"],
        ["is to", "ld"],
        ["leas", "e"],
        ["sh", "im"],
        ["pro", "xy"],
    ]
    .map(|word| format!(" {} ", word.concat()))
    .into();
    let of_users = |p: &&PathBuf| {
        let path = p.to_string_lossy();
        let laboratory = [
            "src/sim",
            "src/bench",
            "src/demo",
            "src/core/src/play",
            "src/station",
        ];
        path.ends_with(".rs")
            && ["src/", "enforcer/", "config/", "ui/src/"]
                .iter()
                .any(|d| path.starts_with(d))
            && !laboratory.iter().any(|d| path.starts_with(d))
            && !["/tests", "test", "/examples/"]
                .iter()
                .any(|d| path.contains(d))
    };
    // Modules of tests that are files of their own, and what is below them.
    let of_tests: Vec<PathBuf> = (files().iter())
        .filter(|file| file.extension().is_some_and(|e| e == "rs"))
        .flat_map(|file| {
            let source = text(file);
            let after = source.split("#[cfg(test)]\n").skip(1);
            let names = after.filter_map(|rest| {
                let line = rest.lines().next()?.trim().strip_suffix(';')?;
                Some(line.rsplit_once("mod ")?.1.to_owned())
            });
            let below = match file.file_stem().and_then(|s| s.to_str()) {
                Some("lib" | "main" | "mod") => file.with_file_name(""),
                _ => file.with_extension(""),
            };
            names.map(|name| below.join(name)).collect::<Vec<_>>()
        })
        .collect();
    let of_product = |p: &&PathBuf| !of_tests.iter().any(|t| p.with_extension("").starts_with(t));
    let (mut page, mut problems) = (String::new(), Vec::new());
    let mut said: BTreeMap<String, &PathBuf> = BTreeMap::new();
    let all = files();
    for file in all.iter().filter(of_users).filter(of_product) {
        let texts = texts(&text(file));
        // The crates below the protocol cannot reach the catalogue.
        let speaks = [
            "src/cli",
            "src/command",
            "src/daemon",
            "src/kernel",
            "src/setup",
            "ui/src",
        ];
        let speaks = speaks.iter().any(|d| file.starts_with(d));
        // Not what continues a sentence.
        let whole = |t: &str| !t.starts_with(',') && t.split_whitespace().count() > 4;
        let sentence = |t: &&String| speaks && whole(t);
        for text in texts.iter().filter(sentence) {
            // With other names for its values it is the same sentence.
            let mut name = false;
            let is_word = |c: &char| {
                name = *c == '{' || name && *c != '}';
                !name
            };
            if let Some(other) = said
                .insert(text.chars().filter(is_word).collect(), file)
                .filter(|other| *other != file)
            {
                problems.push(format!(
                    "{} and {} both say `{text}`: say it in src/proto/src/messages.rs",
                    other.display(),
                    file.display()
                ));
            }
        }
        let read = texts.iter().filter(|t| t.split_whitespace().count() >= 4);
        let read: Vec<&str> = read.map(String::as_str).collect();
        if !read.is_empty() {
            page += &format!("\n## {}\n\n{}\n", file.display(), read.join("\n"));
        }
        for text in texts {
            let plain: String = text
                .chars()
                .map(|c| {
                    if c.is_alphanumeric() || c == '-' {
                        c
                    } else {
                        ' '
                    }
                })
                .collect();
            let plain = format!(" {} ", plain.to_lowercase());
            // Text that older versions have stored stays.
            let is_stored = text == "lease ended";
            let mut words = private.iter().filter(|_| !is_stored);
            let word = words.find(|w| plain.contains(w.as_str()));
            problems.extend(word.map(|w| format!("{}: `{}`: {text}", file.display(), w.trim())));
        }
    }
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("texts.md");
    std::fs::write(&file, &page).expect("written");
    println!("all texts of the program: {}", file.display());
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(
        files().is_empty() || page.lines().count() > 1000,
        "{}",
        page.lines().count()
    );
    let source = "let a = \"It \\\n   is \\\"there\\\" now\"; // \"not this one here\"\n// \"nor this one here\"\n";
    assert_eq!(texts(source), ["It is \"there\" now", "not this one here"]);
}

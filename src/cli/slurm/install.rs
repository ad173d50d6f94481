//! `gshare slurm install` and `uninstall`: adds gshare's lines to the files of a Slurm with one host, between marks.
//! A block contains the lines that it replaced, so that everything can be restored.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::super::args::slurm::{InstallArgs, SiteArgs, UninstallArgs};
use super::conf::{self, Conf};
use super::files::{self, RESTART};
use super::{Outcome, Site, gres};
use crate::command::failure::{self, Failure};
use crate::command::out;

/// Marks of a block, after the sign of a comment.
const BEGIN: &str = ">>> gshare slurm install";
const END: &str = "<<< gshare slurm install";
/// After [`BEGIN`]: the file did not exist.
const NEW: &str = ", new file";
/// After [`BEGIN`]: the line before had no line end.
const OPEN: &str = ", after an open line";
/// In a block, before a replaced line; the second if that had no line end.
const WAS: &str = "was: ";
const WAS_OPEN: &str = "was, open: ";

/// Programs that slurmd starts.
const PROGRAMS: [&str; 2] = ["gshare-epilog", "gshare-health"];
/// The files with a block, and their sign of a comment.
const EDITED: [(&str, &str); 5] = [
    ("slurm.conf", "#"),
    ("gres.conf", "#"),
    ("plugstack.conf", "#"),
    ("job_submit.lua", "--"),
    ("cli_filter.lua", "--"),
];

/// A change of a file; `None` means that it does not exist.
#[derive(Debug)]
struct Change {
    path: PathBuf,
    before: Option<Vec<u8>>,
    after: Option<Vec<u8>>,
    mode: u32,
}

pub(super) fn install(site: &Site, config: Option<&Path>, args: &InstallArgs) -> Outcome {
    let mut left = Vec::new();
    let changes = planned(site, config, &args.site, &mut left)?;
    show_or_do(&changes, args.write)?;
    if !args.write {
        out::print(
            "Nothing is changed yet. To make these changes: gshare slurm install --write\nBy hand, after that:\n",
        )?;
    }
    left.push(RESTART.to_owned());
    left.push("Then: gshare slurm check".to_owned());
    for line in left {
        out::print(&format!("{line}\n"))?;
    }
    Ok(0)
}

pub(super) fn uninstall(args: &UninstallArgs) -> Outcome {
    let mut changes = Vec::new();
    for (_, sign, path) in edited(&args.dir) {
        let before = read(&path)?;
        let (rest, new) = without_block(&path, before.as_deref().unwrap_or_default(), sign)?;
        let after = (!new || !rest.is_empty()).then_some(rest);
        changes.push(Change {
            after: before.as_ref().and(after),
            path,
            before,
            mode: 0o644,
        });
    }
    for name in PROGRAMS {
        let path = args.dir.join(name);
        let before = read(&path)?;
        let own = before.as_ref().is_some_and(|text| is_own(text));
        changes.push(Change {
            path,
            after: before.clone().filter(|_| !own),
            before,
            mode: 0o755,
        });
    }
    show_or_do(&changes, !args.dry_run)?;
    if !args.dry_run {
        out::print(&format!("{RESTART}\n"))?;
    }
    Ok(0)
}

/// The files with a block, their sign of a comment, and their paths; slurm.conf determines that of the SPANK plugins.
fn edited(dir: &Path) -> [(&'static str, &'static str, PathBuf); EDITED.len()] {
    let conf = Conf::read(&dir.join("slurm.conf"));
    EDITED.map(|(name, sign)| {
        let stack = conf.last("plugstackconfig");
        let elsewhere = name == "plugstack.conf" && !stack.is_empty();
        (name, sign, dir.join(if elsewhere { stack } else { name }))
    })
}

fn usage(text: String, hint: &str) -> Failure {
    Failure::new(failure::USAGE, text).with_hint(hint)
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, Failure> {
    match fs::read(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Failure::new(
            failure::INTERNAL,
            format!("{}: {e}", path.display()),
        )),
    }
}

/// Whether a program was written by install.
fn is_own(text: &[u8]) -> bool {
    let mark = format!("# {BEGIN}{NEW}\n");
    text.windows(mark.len()).any(|part| part == mark.as_bytes())
}

/// The planned contents of all files; adds steps that remain for the administrator to `left`.
fn planned(
    site: &Site,
    config: Option<&Path>,
    args: &SiteArgs,
    left: &mut Vec<String>,
) -> Result<Vec<Change>, Failure> {
    let dir = &args.dir;
    let slurm_conf = dir.join("slurm.conf");
    let Some(text) = read(&slurm_conf)? else {
        let text = format!("{} does not exist", slurm_conf.display());
        return Err(usage(text, "name Slurm's directory: --dir /etc/slurm"));
    };
    let (text, _) = without_block(&slurm_conf, &text, "#")?;
    let conf = Conf::of(&text, dir);
    let node = the_node(&conf)?;
    let (gpus, had) = (gres::total(&node, "gpu"), gres::total(&node, "shard"));
    let mut args = args.clone();
    if let Some(per_gpu) = (had.checked_div(gpus)).and_then(|n| u32::try_from(n).ok())
        && per_gpu > 0
    {
        // Keeps the site's own number of shards.
        args.shards = per_gpu;
    }
    let shards = gpus * u64::from(args.shards);
    let printed = |file: &str| files::text(site, config, &args, file);
    let mut changes = Vec::new();
    for (name, sign, path) in edited(dir) {
        let before = read(&path)?;
        let (mut rest, new) = without_block(&path, before.as_deref().unwrap_or_default(), sign)?;
        // Whether a file contains something already, outside gshare's block.
        let says = |what: &str| {
            let lines = conf::lines(&rest, path.parent().unwrap_or(dir)).into_iter();
            let mut lines = lines.filter(|l| !l.starts_with(sign));
            lines.any(|l| l.to_ascii_lowercase().contains(what))
        };
        let block = match name {
            "slurm.conf" => own_lines(&conf, dir, &printed(name)?, left),
            "gres.conf" if says("name=shard") => String::new(),
            "gres.conf" => format!("Name=shard Count={shards}\n"),
            "plugstack.conf" if says("gshare_spank.so") => String::new(),
            _ if says("local per_gpu = ") => String::new(),
            _ => printed(name)?,
        };
        if name == "slurm.conf" && had == 0 {
            match with_shards(&rest, shards) {
                Some(with) => rest = with,
                None => left.push(format!(
                    "{}: the line of the node cannot be edited; add to its Gres: shard:{shards}",
                    path.display()
                )),
            }
        }
        let after = if block.is_empty() {
            before.as_ref().and(Some(rest))
        } else {
            Some(with_block(&rest, new || before.is_none(), sign, &block))
        };
        changes.push(Change {
            path,
            before,
            after,
            mode: 0o644,
        });
    }
    for name in PROGRAMS {
        let (path, printed) = (dir.join(name), printed(name)?);
        let before = read(&path)?;
        let marked = printed.replacen('\n', &format!("\n# {BEGIN}{NEW}\n"), 1);
        let after = match &before {
            Some(text) if !is_own(text) => text.clone(),
            _ => marked.into_bytes(),
        };
        changes.push(Change {
            path,
            before,
            after: Some(after),
            mode: 0o755,
        });
    }
    if !args.plugin.exists() {
        left.push(format!(
            "Compile the plugin: {}",
            files::compile(args.plugin.display())
        ));
    }
    if !site.is_on() {
        left.push(
            "In gshare.toml, list the GPUs that Slurm gives out: [slurm] gpus = \"all\"".to_owned(),
        );
    }
    Ok(changes)
}

/// The resources of the only node.
fn the_node(conf: &Conf) -> Result<String, Failure> {
    let own = |line: &&str| !line.to_ascii_uppercase().starts_with("DEFAULT");
    let nodes: Vec<&str> = conf.all("nodename").filter(own).collect();
    let one = nodes.first().filter(|_| nodes.len() == 1);
    let one = one.filter(|line| {
        let name = line.split_whitespace().next().unwrap_or_default();
        !name.contains(['[', ','])
    });
    let Some(line) = one else {
        let text = "gshare slurm install edits the files of a Slurm with one node, and this one has several";
        return Err(usage(
            text.to_owned(),
            "gshare slurm config prints the lines for each file",
        ));
    };
    let resources = line.split_whitespace().find_map(gres_of);
    match resources {
        Some(resources) if gres::total(resources, "gpu") > 0 => Ok(resources.to_owned()),
        _ => Err(usage(
            format!("NodeName={line} has no GPUs"),
            "Slurm must give out the GPUs first: add Gres=gpu:N to this line, and list the GPUs in gres.conf",
        )),
    }
}

fn gres_of(word: &str) -> Option<&str> {
    let (key, value) = word.split_once('=')?;
    key.eq_ignore_ascii_case("gres").then_some(value)
}

/// Lines to add to slurm.conf: a list gets another word, and a program of the site stays.
fn own_lines(conf: &Conf, dir: &Path, printed: &str, left: &mut Vec<String>) -> String {
    let mut block = String::new();
    for line in printed.lines() {
        let Some((key, value)) = line.split_once('=').filter(|_| !line.starts_with('#')) else {
            continue;
        };
        let has = conf.last(&key.to_ascii_lowercase());
        let value = match key {
            "HealthCheckInterval" if !has.is_empty() => continue,
            "Epilog" | "HealthCheckProgram" if has == value => continue,
            "Epilog" | "HealthCheckProgram" if !has.is_empty() => {
                if !fs::read_to_string(has).is_ok_and(|text| text.contains("gshare")) {
                    let own = Path::new(value).file_name().unwrap_or_default();
                    let own = dir.join(own);
                    left.push(format!(
                        "{key}={has} is not changed: call {} from that program",
                        own.display()
                    ));
                }
                continue;
            }
            "JobSubmitPlugins" | "CliFilterPlugins" | "GresTypes" => {
                let mut words: Vec<&str> = has.split(',').filter(|w| !w.is_empty()).collect();
                let more: Vec<&str> = value.split(',').filter(|w| !words.contains(w)).collect();
                if more.is_empty() {
                    continue;
                }
                words.extend(more);
                words.join(",")
            }
            _ => value.to_owned(),
        };
        block.push_str(&format!("{key}={value}\n"));
    }
    block
}

/// A file whose line of the only node has this many shards, with the old line in a block; `None` if there is no such
/// plain line.
fn with_shards(text: &[u8], shards: u64) -> Option<Vec<u8>> {
    let mut after = Vec::new();
    let mut done = false;
    for line in text.split_inclusive(|b| *b == b'\n') {
        let plain = std::str::from_utf8(line).unwrap_or_default();
        let end = plain.trim_end_matches(['\r', '\n']);
        let setting = end.split('#').next().unwrap_or_default();
        let key = setting.split_once('=').map_or("", |(key, _)| key.trim());
        let is_default = setting.to_ascii_uppercase().contains("=DEFAULT");
        if !key.eq_ignore_ascii_case("nodename") || is_default {
            after.extend_from_slice(line);
            continue;
        }
        let resources = setting.split_whitespace().find(|w| gres_of(w).is_some())?;
        if done || setting.trim_end().ends_with('\\') {
            return None;
        }
        done = true;
        let new = end.replacen(resources, &format!("{resources},shard:{shards}"), 1);
        let was = match line.ends_with(b"\n") {
            true => format!("# {WAS}{plain}"),
            false => format!("# {WAS_OPEN}{plain}\n"),
        };
        after.extend_from_slice(format!("# {BEGIN}\n{was}{new}\n# {END}\n").as_bytes());
    }
    done.then_some(after)
}

/// A file with these lines between marks: in Lua before the final `return`, otherwise at the end.
fn with_block(text: &[u8], new: bool, sign: &str, lines: &str) -> Vec<u8> {
    let mut at = text.len();
    if sign == "--" {
        let mut begin = 0;
        for line in text.split_inclusive(|b| *b == b'\n') {
            let word = line.trim_ascii();
            if line.starts_with(b"return") {
                at = begin;
            } else if !word.is_empty() && !word.starts_with(b"--") {
                at = text.len();
            }
            begin += line.len();
        }
    }
    let (before, behind) = text.split_at(at);
    let open = !before.is_empty() && !before.ends_with(b"\n");
    let mark = match (new, open) {
        (true, _) => NEW,
        (false, true) => OPEN,
        (false, false) => "",
    };
    let (line_end, more) = (
        if open { "\n" } else { "" },
        if lines.ends_with('\n') { "" } else { "\n" },
    );
    let block = format!("{line_end}{sign} {BEGIN}{mark}\n{lines}{more}{sign} {END}\n");
    [before, block.as_bytes(), behind].concat()
}

/// A file without its blocks, and whether install created it.
fn without_block(path: &Path, text: &[u8], sign: &str) -> Result<(Vec<u8>, bool), Failure> {
    let mark = |what: &str| format!("{sign} {what}").into_bytes();
    let (begin, end) = (mark(BEGIN), mark(END));
    let (was, was_open) = (mark(WAS), mark(WAS_OPEN));
    let half = |line: usize| {
        let text = format!(
            "{}, line {line}: the block that gshare slurm install wrote is incomplete, so the file is not edited",
            path.display()
        );
        let hint = "remove the rest of the block by hand, with the marks `>>>` and `<<<`";
        Err(usage(text, hint))
    };
    let mut rest = Vec::new();
    let (mut inside, mut new, mut open) = (None, false, false);
    for (n, line) in text.split_inclusive(|b| *b == b'\n').enumerate() {
        if line.starts_with(&begin) {
            if inside.is_some() {
                return half(n + 1);
            }
            inside = Some(n + 1);
            let flags = line[begin.len()..].trim_ascii_end();
            new |= flags == NEW.as_bytes();
            if flags == OPEN.as_bytes() && rest.last() == Some(&b'\n') {
                rest.pop();
                open = true;
            }
        } else if line.starts_with(&end) {
            if inside.take().is_none() {
                return half(n + 1);
            }
        } else if inside.is_none() {
            // Lines were added after a block whose last line had no line end.
            if std::mem::take(&mut open) {
                rest.push(b'\n');
            }
            rest.extend_from_slice(line);
        } else if let Some(line) = line.strip_prefix(&*was_open) {
            rest.extend_from_slice(line.strip_suffix(b"\n").unwrap_or(line));
            open = true;
        } else if let Some(line) = line.strip_prefix(&*was) {
            rest.extend_from_slice(line);
        }
    }
    match inside {
        Some(line) => half(line),
        None => Ok((rest, new)),
    }
}

/// Applies the changes, or shows them.
fn show_or_do(changes: &[Change], write: bool) -> Result<(), Failure> {
    let mut any = false;
    for change in changes.iter().filter(|c| c.before != c.after) {
        any = true;
        let path = change.path.display();
        if write {
            put(change).map_err(|e| {
                let failed = Failure::new(failure::INTERNAL, format!("{path}: {e}"));
                match e.kind() {
                    std::io::ErrorKind::PermissionDenied => failed.with_hint("run it as root"),
                    _ => failed,
                }
            })?;
            let what = match change.after {
                Some(_) => "written",
                None => "removed",
            };
            out::print(&format!("{what}: {path}\n"))?;
        } else {
            out::print(&diff(change)?)?;
        }
    }
    if !any {
        out::print("no file has to change\n")?;
    }
    Ok(())
}

/// Replaces a file as a whole, with its owner and mode.
fn put(change: &Change) -> std::io::Result<()> {
    // A link stays a link.
    let path = fs::canonicalize(&change.path).unwrap_or_else(|_| change.path.clone());
    let Some(text) = &change.after else {
        return fs::remove_file(&path);
    };
    let dir = path.parent().unwrap_or(Path::new("/"));
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    file.write_all(text)?;
    let known = fs::metadata(&path).ok();
    let mode = known.as_ref().map_or(change.mode, MetadataExt::mode);
    file.as_file()
        .set_permissions(PermissionsExt::from_mode(mode))?;
    if let Some(known) = known {
        std::os::unix::fs::fchown(file.as_file(), Some(known.uid()), Some(known.gid()))?;
    }
    file.as_file().sync_all()?;
    file.persist(&path).map_err(|e| e.error)?;
    Ok(())
}

/// The output of diff for a change.
fn diff(change: &Change) -> Result<String, Failure> {
    let failed = |e: std::io::Error| Failure::new(failure::NOT_FOUND, format!("diff: {e}"));
    let name = change.path.display().to_string();
    let mut diff = Command::new("diff");
    diff.args(["-u", "--label", &name, "--label", &name]);
    match &change.before {
        Some(_) => diff.arg(&change.path),
        None => diff.arg("/dev/null"),
    };
    let mut diff = (diff.arg("-").stdin(Stdio::piped()).stdout(Stdio::piped()))
        .spawn()
        .map_err(failed)?;
    let mut stdin = diff.stdin.take().expect("piped");
    // The output of diff may exceed a pipe's buffer.
    let text = change.after.clone().unwrap_or_default();
    let writer = std::thread::spawn(move || stdin.write_all(&text));
    let said = diff.wait_with_output().map_err(failed)?;
    // A diff that ended early has reported the reason.
    let _ = writer.join();
    Ok(String::from_utf8_lossy(&said.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_made_is_gone_again_unless_something_was_added() {
        let with = with_block(b"", true, "#", "a=b\n");
        let rest = |text: &[u8]| without_block(Path::new("x"), text, "#").map_err(|f| f.message);
        assert_eq!(rest(&with), Ok((Vec::new(), true)));
        let more = [&with[..], b"c=d\n"].concat();
        assert_eq!(rest(&more), Ok((b"c=d\n".to_vec(), true)));
    }

    /// The text after a block was added, added again, and removed.
    fn there_and_back(text: &[u8], sign: &str) -> Vec<u8> {
        let path = Path::new("x");
        let plain = |text: &[u8]| without_block(path, text, sign).map_err(|f| f.message);
        let with = with_block(text, false, sign, "a=b\nc=d\n");
        let (rest, new) = plain(&with).expect("whole");
        assert!(!new && with != text);
        assert_eq!(with_block(&rest, false, sign, "a=b\nc=d\n"), with, "again");
        rest
    }

    #[test]
    fn odd_files_are_byte_for_byte_what_they_were() {
        for text in [
            &b""[..],
            b"\n",
            b"ClusterName=x",
            b"ClusterName=x\n\n\n",
            b"A=1\r\nInclude more.conf\r\nB=2",
            b"A=1\r\n\r\n",
            b"# caf\xe9\nA=1\n",
        ] {
            assert_eq!(there_and_back(text, "#"), text);
        }
        for text in [
            &b"function f()\n   return 1\nend\nreturn slurm.SUCCESS"[..],
            b"return slurm.SUCCESS\n-- the end\n",
            b"function f()\n   return 1\nend",
        ] {
            assert_eq!(there_and_back(text, "--"), text);
        }
        let lua = with_block(b"x = 1\nreturn x\n\n", false, "--", "y = 2\n");
        let text = String::from_utf8(lua).unwrap();
        let at = |what: &str| text.find(what).unwrap();
        assert!(
            at("x = 1") < at("y = 2") && at("y = 2") < at("return"),
            "{text}"
        );
    }

    #[test]
    fn a_line_that_is_replaced_is_what_it_was() {
        for (text, behind) in [
            (&b"A=1\nNodeName=n1 CPUs=4 Gres=gpu:2 # ours\nB=2\n"[..], ""),
            (b"A=1\r\nNodename=n1 gres=gpu:a100:2(S:0)\r\n", ""),
            (b"NodeName=DEFAULT RealMemory=1\nNodeName=n1 Gres=gpu:2", ""),
            (b"NodeName=n1 Gres=gpu:2", "C=3\n"),
        ] {
            let with = with_shards(text, 200).expect("it has the node");
            let shown = String::from_utf8_lossy(&with);
            assert!(shown.contains(",shard:200"), "{shown}");
            let both = with_block(&with, false, "#", "D=4\n");
            let both = [&both[..], behind.as_bytes()].concat();
            let (rest, _) = without_block(Path::new("x"), &both, "#")
                .map_err(|f| f.message)
                .unwrap();
            let open = if behind.is_empty() { "" } else { "\n" };
            assert_eq!(rest, [text, open.as_bytes(), behind.as_bytes()].concat());
        }
        for text in [
            &b"NodeName=n1 \\\nGres=gpu:2\n"[..],
            b"Include nodes.conf\n",
        ] {
            assert_eq!(with_shards(text, 200), None);
        }
    }

    #[test]
    fn a_block_that_is_there_in_part_is_left_alone() {
        let whole = with_block(b"A=1\n", false, "#", "B=2\n");
        let text = String::from_utf8(whole).unwrap();
        let half = |gone: &str| {
            let lines = text.lines().filter(|line| !line.contains(gone));
            let text: String = lines.map(|line| format!("{line}\n")).collect();
            let refused = without_block(Path::new("slurm.conf"), text.as_bytes(), "#");
            refused.expect_err("half").message
        };
        assert!(
            half("<<<").contains("slurm.conf, line 2"),
            "{}",
            half("<<<")
        );
        assert!(half(">>>").contains("line 3"), "{}", half(">>>"));
        let twice = format!("{text}{text}");
        assert!(without_block(Path::new("x"), twice.as_bytes(), "#").is_ok());
    }

    #[test]
    fn lists_get_a_word_and_programs_of_the_site_stay() {
        let printed = "Epilog=/d/gshare-epilog\nHealthCheckInterval=60\nGresTypes=gpu,shard\n\
                       JobSubmitPlugins=lua\nCliFilterPlugins=lua\n# x=y\n";
        let text = b"Epilog=/site/epilog\nGresTypes=gpu\nJobSubmitPlugins=throttle,lua\nHealthCheckInterval=300\n";
        let conf = Conf::of(text, Path::new("/none"));
        let mut left = Vec::new();
        let block = own_lines(&conf, Path::new("/d"), printed, &mut left);
        assert_eq!(block, "GresTypes=gpu,shard\nCliFilterPlugins=lua\n");
        assert_eq!(
            left,
            ["Epilog=/site/epilog is not changed: call /d/gshare-epilog from that program"]
        );
    }

    #[test]
    fn only_a_site_with_one_node_is_edited() {
        let of = |text: &str| {
            let conf = Conf::of(text.as_bytes(), Path::new("/none"));
            the_node(&conf).map_err(|f| f.message)
        };
        assert_eq!(
            of("NodeName=DEFAULT CPUs=1\nNodeName=n1 Gres=gpu:2 State=UNKNOWN\n"),
            Ok("gpu:2".to_owned())
        );
        for several in [
            "NodeName=n[1-2] Gres=gpu:2\n",
            "NodeName=a Gres=gpu:1\nNodeName=b\n",
            "",
        ] {
            assert!(of(several).unwrap_err().contains("one node"));
        }
        assert!(of("NodeName=n1 CPUs=4\n").unwrap_err().contains("no GPUs"));
    }
}

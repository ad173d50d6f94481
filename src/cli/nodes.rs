//! `gshare nodes`: an overview of several machines, and `gshare claim --on`. Each machine decides for itself; there
//! is no common queue.

mod source;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use gshare_proto::counts::many;
use gshare_proto::figures::{parts, share};
use gshare_proto::totals::{AtLeast, sums, wasted};
use gshare_proto::{GpuView, Snapshot};
use gshare_ui::{Item, List, Options, choose_blocking};
use serde::{Deserialize, Serialize};

use super::args::ListArgs;
use super::args::nodes::NodesArgs;
use super::failure::{self, Failure};
use super::table::{Align, Table, UNKNOWN};
use super::{Outcome, list as lists, out, top};
pub(super) use source::ssh;
use source::{Source, Sources};

/// A machine without data for this long is silent.
const SILENT: Duration = Duration::from_secs(3);
/// Files with lists of machines; the user's comes first.
const LIST: &str = "gshare/nodes";
const SYSTEM_LIST: &str = "/etc/gshare/nodes";

/// The state of a machine, and the content of a status file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Node {
    host: String,
    /// Time, Unix milliseconds.
    taken_ms: u64,
    /// Number and models: `8 GPUs (H100)`.
    gpus: String,
    /// What the caller would get at once, in GPUs; absent without a service.
    free_now: Option<f64>,
    /// The largest part of one GPU of that.
    largest: Option<f64>,
    /// GPUs used by claims; a lower bound if some use is unknown.
    used: Option<f64>,
    /// The use of some claims is unknown.
    used_at_least: bool,
    /// GPUs claimed.
    claimed: f64,
    /// Claims that wait.
    waiting: usize,
    /// The most wasteful claim.
    wasted: String,
    /// Problems, each in a few words.
    wrong: Vec<String>,
}

impl Node {
    fn of(snapshot: &Snapshot) -> Self {
        let sums = sums(snapshot.claims.iter(), snapshot);
        let (used, used_at_least) = match sums.compute {
            AtLeast::Known(figure) => (figure.map(|f| f.value / 100.0), false),
            AtLeast::Some(least) => (Some(least / 100.0), true),
        };
        let models: BTreeSet<&str> = snapshot.gpus.iter().map(|g| g.short.as_str()).collect();
        let models = Vec::from_iter(models).join(", ");
        let free = snapshot.claimable_now.as_ref();
        let largest = |parts: &[gshare_proto::ModelRoomView]| {
            parts.iter().map(|m| m.largest).fold(0.0, f64::max)
        };
        let off = snapshot.service.as_ref().and_then(|s| s.off.as_ref());
        let off = off.map(|_| "gshare is off".to_owned());
        let none = snapshot
            .service
            .is_none()
            .then(|| "no gshare service".to_owned());
        let gpus = snapshot.gpus.iter().filter_map(wrong);
        // Of private Slurm jobs only the sum is known.
        let of_gpus = snapshot
            .gpus
            .iter()
            .map(|g| g.sm_claimed * g.part_of_a_gpu());
        let (hidden, of_gpus) = (snapshot.hidden > 0, of_gpus.sum::<f64>());
        Self {
            host: snapshot.host.clone(),
            taken_ms: snapshot.taken_ms,
            gpus: format!("{} ({models})", snapshot.gpus_text()),
            free_now: free.map(|free| free.sum),
            largest: free.map(|free| largest(&free.models)),
            used,
            used_at_least: used_at_least || hidden,
            claimed: if hidden {
                of_gpus
            } else {
                sums.claimed / 100.0
            },
            waiting: snapshot.queue.len(),
            wasted: wasted(snapshot),
            wrong: off.into_iter().chain(none).chain(gpus).collect(),
        }
    }

    fn free_text(&self) -> String {
        match (self.free_now, self.largest) {
            (Some(sum), Some(largest)) if sum > largest => {
                format!("{}, {} on one GPU", parts(sum), share(largest))
            }
            (Some(sum), _) => parts(sum),
            (None, _) => UNKNOWN.to_owned(),
        }
    }

    /// GPUs used, of those claimed.
    fn used_text(&self) -> String {
        let used = self.used.map_or_else(|| UNKNOWN.to_owned(), parts);
        let least = if self.used_at_least { "\u{2265}" } else { "" };
        format!("{least}{used}/{}", parts(self.claimed))
    }
}

/// A problem of a GPU.
fn wrong(gpu: &GpuView) -> Option<String> {
    match gpu.condition() {
        "ok" | "warned" => None,
        what => Some(format!("GPU {} {what}", gpu.index)),
    }
}

/// What is known of a machine.
#[derive(Debug, Serialize)]
struct Row {
    /// Its name in the request.
    name: String,
    /// Its last state.
    node: Option<Node>,
    /// Why there is nothing newer; absent while it answers.
    silent: Option<String>,
    /// Which of the sources has it.
    #[serde(skip)]
    source: usize,
}

impl Row {
    /// Its state, unless it is silent: figures of a silent machine are out of date.
    fn known(&self) -> Option<&Node> {
        self.node.as_ref().filter(|_| self.silent.is_none())
    }

    fn state(&self) -> String {
        match (&self.silent, &self.node) {
            (Some(why), _) => why.clone(),
            (None, Some(node)) if !node.wrong.is_empty() => node.wrong.join(", "),
            (None, _) => "ok".to_owned(),
        }
    }
}

pub(crate) fn run(socket: Option<&Path>, args: &NodesArgs) -> Outcome {
    if let Some(dir) = &args.write {
        return write(socket, dir);
    }
    let sources = Sources::open(socket, asked(args)?);
    if let (Some(every), false) = (args.every(), args.json)
        && io::stdin().is_terminal()
        && io::stdout().is_terminal()
    {
        return screen(socket, &sources, every);
    }
    let begun = Instant::now();
    loop {
        // The first output waits for all machines, or until they count as silent.
        while !sources.all_told() && begun.elapsed() < SILENT {
            std::thread::sleep(Duration::from_millis(20));
        }
        let (taken, rows) = (Instant::now(), sources.rows());
        match args.json {
            true => out::json(&serde_json::json!({ "nodes": rows }))?,
            false => out::print(&table(&rows).text(out::columns(), out::colour()))?,
        }
        let Some(every) = args.every() else {
            return Ok(0);
        };
        std::thread::sleep(sources.holds(every, taken));
    }
}

/// The machines on a screen until the user quits.
fn screen(socket: Option<&Path>, sources: &Sources, every: Duration) -> Outcome {
    let begun = Instant::now();
    let look = |cols| {
        let asks = !sources.all_told() && begun.elapsed() < SILENT;
        let (taken, rows) = (Instant::now(), sources.rows());
        let holds = match asks {
            true => Duration::from_millis(50),
            false => sources.holds(every, taken),
        };
        (list(&rows, cols), holds)
    };
    let open = |name: &str| {
        let at = name.split(' ').next().and_then(|n| n.parse().ok());
        let host = at.and_then(|at: usize| sources.host(at)).ok_or(FROM_FILE)?;
        let socket = socket.map(|path| super::env::quoted(&path.to_string_lossy()));
        let socket = socket.iter().flat_map(|path| ["--socket", path]);
        Ok(far(host, true, socket.chain(["top"])))
    };
    Ok(top::code(choose_blocking(Options::default(), look, open)?))
}

/// Why a machine has no screen to open.
const FROM_FILE: &str =
    "its figures come from a status file: gshare top on that machine shows more";

fn list(rows: &[Row], cols: usize) -> List {
    let text = table(rows).text(Some(cols), false);
    let mut lines = text.lines().map(str::to_owned);
    let heading = lines.next().unwrap_or_default();
    let item = |(row, text): (&Row, String)| {
        let node = row.known();
        let of = |label, text: fn(&Node) -> String| node.map(|node| (label, text(node)));
        let detail = [
            Some(("state", row.state())),
            of("free for you now", Node::free_text),
            of("GPUs used of claimed", Node::used_text),
            of("wastes most", |n| n.wasted.clone()),
            of("GPUs", |n| n.gpus.clone()),
        ];
        Item {
            name: format!("{} {}", row.source, row.name),
            text,
            wrong: node.is_none_or(|node| !node.wrong.is_empty()),
            detail: detail
                .into_iter()
                .flatten()
                .filter(|(_, text)| !text.is_empty())
                .collect(),
        }
    };
    let items: Vec<Item> = rows.iter().zip(lines).map(item).collect();
    let free: f64 = rows.iter().filter_map(|row| row.known()?.free_now).sum();
    let wrong = items.iter().filter(|item| item.wrong).count();
    List {
        title: format!(
            "{}: {} GPUs free for you now, {wrong} silent or with a problem",
            many(rows.len(), "machine"),
            parts(free)
        ),
        heading,
        items,
    }
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        ("HOST", Align::Left),
        ("FREE NOW", Align::Left),
        ("USED/CLAIMED", Align::Right),
        ("WAIT", Align::Right),
        ("STATE", Align::Left),
        ("WASTES MOST", Align::Left),
        ("GPUS", Align::Left),
    ])
    .spare("STATE", &["WAIT"]);
    for row in rows {
        let node = row.known();
        let of = |text: fn(&Node) -> String| node.map_or_else(|| UNKNOWN.to_owned(), text);
        table.row(vec![
            row.name.clone(),
            of(Node::free_text),
            of(Node::used_text),
            of(|n| n.waiting.to_string()),
            row.state(),
            of(|n| n.wasted.clone()),
            of(|n| n.gpus.clone()),
        ]);
    }
    table
}

/// The requested machines, otherwise those of a list.
fn asked(args: &NodesArgs) -> Result<Vec<Source>, Failure> {
    let mut names = args.named();
    if names.is_empty() {
        let own = gshare_config::user_file().and_then(|f| Some(f.parent()?.parent()?.join(LIST)));
        names = first_list(own.into_iter().chain([PathBuf::from(SYSTEM_LIST)]));
    }
    if names.is_empty() {
        let text = "you gave no machine, and there is no list of machines";
        return Err(Failure::new(failure::USAGE, text).with_hint(
            "type gshare nodes HOST..., or write the hosts, one per line, into ~/.config/gshare/nodes or /etc/gshare/nodes",
        ));
    }
    names.into_iter().map(Source::of).collect()
}

/// The machines of the first readable file.
fn first_list(mut files: impl Iterator<Item = PathBuf>) -> Vec<OsString> {
    let text = files.find_map(|file| std::fs::read_to_string(file).ok());
    listed(&text.unwrap_or_default())
}

/// The words of a list, without comments.
fn listed(text: &str) -> Vec<OsString> {
    let line = |line: &str| line.split('#').next().unwrap_or_default().trim().to_owned();
    let lines = text.lines().map(line).filter(|line| !line.is_empty());
    lines.map(OsString::from).collect()
}

/// Writes the status file of this machine until the service ends.
fn write(socket: Option<&Path>, dir: &Path) -> Outcome {
    let every = ListArgs {
        watch: Some(Duration::from_secs(1)),
        json: true,
        ..ListArgs::default()
    };
    let failed = |e: io::Error| {
        let text = format!("cannot write a status file into {}: {e}", dir.display());
        Failure::new(failure::NOT_AVAILABLE, text)
    };
    lists::each(socket, &every, |snapshot| {
        // Everybody can read the file, so leave out private claims.
        let mut snapshot = snapshot.clone();
        let all = snapshot.claims.len();
        snapshot.claims.retain(|c| !c.private);
        snapshot.hidden += all - snapshot.claims.len();
        let node = Node::of(&snapshot);
        let name = Path::new(&node.host).file_name();
        let name = name.ok_or_else(|| failed(io::Error::other("this machine has no name")))?;
        let mut file = tempfile::NamedTempFile::new_in(dir).map_err(failed)?;
        let text = out::json_text(&node, false)?;
        file.write_all(text.as_bytes()).map_err(failed)?;
        let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        file.as_file().set_permissions(readable).map_err(failed)?;
        let at = dir.join(name).with_added_extension("json");
        file.persist(at).map_err(|e| failed(e.error))?;
        Ok(())
    })
}

/// The host for ssh that `what` needs.
pub(super) fn host(word: &OsStr, what: &str) -> Result<OsString, Failure> {
    match Source::of(word.to_owned())? {
        Source::Ssh(host) => Ok(host),
        Source::Files(path) => {
            let text = format!(
                "{what} needs a host for ssh (HOST or USER@HOST), not the path `{}`",
                path.display()
            );
            Err(Failure::new(failure::USAGE, text))
        }
    }
}

/// `--on HOST`: executes the same command there, by ssh.
pub(crate) fn on(word: &OsStr) -> Outcome {
    let host = host(word, "--on")?;
    let terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    let words = there(std::env::args_os().skip(1))?;
    let error = far(&host, terminal, words).exec();
    Err(source::no_ssh(&error))
}

/// A command of gshare's on another machine, on this terminal.
fn far(
    host: &OsStr,
    terminal: bool,
    words: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> Command {
    let mut ssh = Command::new("ssh");
    if terminal {
        ssh.arg("-t");
    }
    ssh.arg(host).arg("gshare").args(words);
    ssh
}

/// The arguments without `--on HOST`, for the shell of the other machine.
fn there(mut args: impl Iterator<Item = OsString>) -> Result<Vec<String>, Failure> {
    let mut words = Vec::new();
    let mut found = false;
    while let Some(word) = args.next() {
        // Only the first one is gshare's: later ones belong to the command.
        if !found && word == "--on" {
            args.next();
            found = true;
            continue;
        }
        let word = word.into_string().map_err(|word| {
            let text = format!("{} is not UTF-8, which --on needs", word.display());
            Failure::new(failure::USAGE, text)
        })?;
        if !found && word.starts_with("--on=") {
            found = true;
            continue;
        }
        words.push(super::env::quoted(&word));
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use gshare_proto::{ClaimableView, GpuState, ModelRoomView};

    use super::*;

    #[test]
    fn the_other_machine_gets_the_same_words() {
        let args = [
            "claim", "--on", "box", "-g", "0.5", "--", "echo", "it's", "--on",
        ];
        let words = there(args.into_iter().map(OsString::from));
        let words = words.map_err(|f| f.message).expect("UTF-8");
        assert_eq!(
            words,
            [
                "'claim'",
                "'-g'",
                "'0.5'",
                "'--'",
                "'echo'",
                r"'it'\''s'",
                "'--on'"
            ]
        );
        let short = there(["claim", "--on=box", "x"].into_iter().map(OsString::from));
        assert_eq!(
            short.map_err(|f| f.message),
            Ok(vec!["'claim'".to_owned(), "'x'".to_owned()])
        );
    }

    #[test]
    fn a_list_has_a_host_in_a_line() {
        let text = "# ours\nh100box  # two H100\n\n ada@gpu2\n/nfs/gshare/\n";
        assert_eq!(listed(text), ["h100box", "ada@gpu2", "/nfs/gshare/"]);
    }

    #[test]
    fn the_users_list_comes_before_that_of_the_machine() {
        let dir = tempfile::tempdir().expect("a directory");
        let files = ["own", "system"].map(|name| dir.path().join(name));
        let first = || first_list(files.iter().cloned());
        assert!(first().is_empty());
        std::fs::write(&files[1], "box1\nbox2\n").expect("written");
        assert_eq!(first(), ["box1", "box2"]);
        std::fs::write(&files[0], "box3\n").expect("written");
        assert_eq!(first(), ["box3"]);
    }

    #[test]
    fn a_row_says_what_is_free_and_what_is_wrong() {
        let mut snapshot = Snapshot {
            host: "h100box".to_owned(),
            claimable_now: Some(ClaimableView {
                sum: 1.5,
                models: vec![ModelRoomView {
                    largest: 0.75,
                    ..ModelRoomView::default()
                }],
            }),
            service: Some(gshare_proto::ServiceView::default()),
            ..Snapshot::default()
        };
        snapshot.gpus.push(GpuView {
            index: 3,
            state: GpuState::Hung,
            ..GpuView::default()
        });
        let row = |silent: Option<&str>| Row {
            name: "h100box".to_owned(),
            node: Some(Node::of(&snapshot)),
            silent: silent.map(str::to_owned),
            source: 0,
        };
        let text = table(&[row(None)]).text(None, false);
        let said = text.lines().nth(1).expect("a row");
        assert!(said.contains("1.50, 0.75 on one GPU"), "{text}");
        assert!(said.contains("GPU 3 hangs"), "{text}");
        let mut private = snapshot.clone();
        private.hidden = 1;
        private.gpus[0].sm_claimed = 0.5;
        let node = Node::of(&private);
        assert_eq!((node.claimed, node.used_at_least), (0.5, true));
        let text = table(&[row(Some("silent for 4s"))]).text(None, false);
        assert!(
            text.contains("silent for 4s") && !text.contains("1.50"),
            "{text}"
        );
    }
}

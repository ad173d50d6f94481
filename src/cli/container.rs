//! `gshare claim -- podman run ...`: adds the flags that put the container into the claim to the command.
//!
//! They are a convenience, not enforcement: the cgroup of a container decides, and one that starts without them is
//! outside the claim and gets no device of it.

mod inside;

use std::ffi::OsString;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd as _, IntoRawFd as _};
use std::path::Path;
use std::process::{Command, Stdio};

use gshare_proto::{Call, ContainerPlace, Granted, Reply};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use super::claim::unexpected;
use super::env::quoted;
use super::failure::{self, Failure};
use super::{connect, out};
use inside::Inside;
pub(crate) use inside::hook;

/// Which program starts the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Podman,
    /// `podman start`: an existing container.
    Again,
    /// Passes podman's flags on.
    PodmanCompose,
    Docker,
    /// `docker compose`, or `docker-compose`.
    Compose,
    Apptainer,
}

/// Positions in a command that starts a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Start {
    /// Index of the program, or of `compose`: flags for all its verbs follow.
    program: usize,
    /// Index of `run`, `create`, `start`, `up` or `exec`.
    verb: usize,
    kind: Kind,
    sudo: bool,
    /// With root's rights: by `sudo`, or as root.
    root: bool,
    /// apptainer shows it little of `/dev`.
    contained: bool,
}

/// The command with the claim's flags, if it starts a container; otherwise unchanged.
///
/// # Errors
///
/// When the service cannot have containers in claims: the container would be outside.
pub(crate) fn placed(
    socket: Option<&Path>,
    command: &[OsString],
    granted: &Granted,
    quiet: bool,
) -> Result<Vec<OsString>, Failure> {
    let root = nix::unistd::Uid::effective().is_root();
    let Some(start) = find(command, root) else {
        return Ok(command.to_vec());
    };
    let (before, after) = command.split_at(start.verb);
    if start.kind == Kind::Again {
        knows_no_slice(before, &after[1..])?;
    }
    let docker = [Kind::Docker, Kind::Compose].contains(&start.kind);
    let call = Call::Container {
        id: granted.id.clone().into(),
        slice: docker && knows_slices_only(before),
        hook: start.kind == Kind::Again,
    };
    let place = match connect::connect(socket)?.call(&call)? {
        Reply::Container(place) if place.device.is_empty() => return Ok(command.to_vec()),
        Reply::Container(place) => place,
        other => return Err(unexpected(&other)),
    };
    let (global, own) = flags(start, &place);
    if !quiet {
        let short = |f: &&String| !place.flags.contains(f) && !f.starts_with("--bind=");
        let mut added: Vec<&str> = global
            .iter()
            .chain(&own)
            .filter(short)
            .map(String::as_str)
            .collect();
        let many = format!(
            "and {} flags for its devices, libraries and environment",
            place.flags.len()
        );
        if place.flags.len() > 1 && start.kind != Kind::Podman || own.iter().any(|f| !short(&f)) {
            added.push(&many);
        }
        out::note(&format!("added for the container: {}", added.join(" ")));
    }
    match start.kind {
        Kind::Compose => composed(command, start, &place),
        _ => Ok(with(command, start, global, own)),
    }
}

/// The command with these flags of the program and of its verb, and without flags that request GPUs.
fn with(
    command: &[OsString],
    start: Start,
    global: Vec<String>,
    own: Vec<String>,
) -> Vec<OsString> {
    let (before, after) = command.split_at(start.verb + 1);
    let mut whole = before.to_vec();
    let at = start.program + 1;
    whole.splice(at..at, global.into_iter().map(OsString::from));
    whole.extend(own.into_iter().map(OsString::from));
    whole.extend(without_gpus(start.kind, after));
    whole
}

/// The project as one file, with the claim added to each service. The program replaces this process and reads the
/// file from its descriptor; `sudo` closes descriptors, so there it is standard input.
fn composed(
    command: &[OsString],
    start: Start,
    place: &ContainerPlace,
) -> Result<Vec<OsString>, Failure> {
    let before = &command[..start.verb];
    let shown = asked(before, &["config", "--format", "json"]);
    let mut project = serde_json::from_slice(&shown.unwrap_or_default()).map_err(|_| {
        let text = "docker compose does not print its configuration, which gshare needs to put the services into the claim";
        Failure::new(failure::CANNOT_RUN, text)
            .with_hint("see what it says: docker compose config --format json. It needs Compose 2")
    })?;
    Inside::of(&place.flags).add_to_services(&mut project, &place.cgroup_parent);
    let mut file = File::from(gshare_abi::memfd("gshare-compose")?);
    file.write_all(project.to_string().as_bytes())?;
    std::io::Seek::rewind(&mut file)?;
    let path = if start.sudo {
        nix::unistd::dup2_stdin(&file).map_err(std::io::Error::from)?;
        "-".to_owned()
    } else {
        fcntl(file.as_fd(), FcntlArg::F_SETFD(FdFlag::empty())).map_err(std::io::Error::from)?;
        format!("/proc/{}/fd/{}", std::process::id(), file.into_raw_fd())
    };
    let mut whole = command[..=start.program].to_vec();
    whole.extend(["-f".into(), path.into()]);
    let mut words = command[start.program + 1..start.verb].iter();
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("-f" | "--file") => {
                let _ = words.next();
            }
            Some(one) if one.starts_with("--file=") || one.starts_with("-f") => {}
            _ => whole.push(word.clone()),
        }
    }
    whole.extend_from_slice(&command[start.verb..]);
    Ok(whole)
}

/// Standard output of the program with these words; `None` if it does not run.
fn asked(program: &[OsString], words: &[&str]) -> Option<Vec<u8>> {
    let (name, rest) = program.split_first()?;
    let answer = Command::new(name)
        .args(rest.iter().filter(|w| *w != "container"))
        .args(words)
        .stdin(Stdio::null())
        .output();
    answer.ok().map(|o| o.stdout)
}

/// Whether docker's daemon uses only systemd slices, by its cgroup driver. A daemon that does not answer reports that
/// itself.
fn knows_slices_only(before: &[OsString]) -> bool {
    let compose = before.iter().position(|w| w == "compose");
    let docker = match before {
        [one] if one == "docker-compose" => &["docker".into()],
        _ => &before[..compose.unwrap_or(before.len())],
    };
    let answer = asked(docker, &["info", "--format", "{{.CgroupDriver}}"]);
    answer.is_some_and(|o| o.trim_ascii() == b"systemd")
}

/// Refuses a container that podman made for systemd slices: it cannot be placed elsewhere.
fn knows_no_slice(before: &[OsString], words: &[OsString]) -> Result<(), Failure> {
    let mut ask = vec![
        "container",
        "inspect",
        "--format",
        "{{.HostConfig.CgroupManager}}",
    ];
    ask.extend(
        words
            .iter()
            .filter_map(|w| w.to_str())
            .filter(|w| !w.starts_with('-')),
    );
    let answer = asked(before, &ask).unwrap_or_default();
    if String::from_utf8_lossy(&answer).contains("systemd") {
        let text =
            "podman made this container for a systemd slice, so it would be outside the claim";
        return Err(Failure::new(failure::NOT_AVAILABLE, text).with_hint(
            "make it in a claim: gshare claim -- podman create ..., or with podman --cgroup-manager=cgroupfs create ...",
        ));
    }
    Ok(())
}

/// Flags of `podman-compose` that pass flags to podman and its `run`.
fn handed_on(global: &[String], own: &[String]) -> Vec<String> {
    let words = |flags: &[String]| {
        let quoted: Vec<String> = flags.iter().map(|f| quoted(f)).collect();
        quoted.join(" ")
    };
    vec![
        format!("--podman-args={}", words(global)),
        format!("--podman-run-args={}", words(own)),
    ]
}

/// Flags of the program, and flags of its verb.
fn flags(start: Start, place: &ContainerPlace) -> (Vec<String>, Vec<String>) {
    let parent = format!("--cgroup-parent={}", place.cgroup_parent);
    let cgroupfs = "--cgroup-manager=cgroupfs".to_owned();
    // Limits of its own would need controllers below a cgroup with processes, so podman's default one is left out.
    let unlimited = "--pids-limit=-1".to_owned();
    let mut own = match (start.kind, start.root) {
        (Kind::Podman | Kind::PodmanCompose, true) => {
            let device = format!("--device={}", place.device);
            vec![device, parent, unlimited]
        }
        // Without the right to make cgroups the container stays in podman's own cgroup: in the claim.
        (Kind::Podman | Kind::PodmanCompose, false) => vec![unlimited],
        (Kind::Docker | Kind::Compose, _) => vec![parent],
        (Kind::Apptainer, _) => Inside::of(&place.flags).for_apptainer(start.contained),
        (Kind::Again, _) => Vec::new(),
    };
    if start.kind == Kind::Docker || own == ["--pids-limit=-1"] {
        own.extend(place.flags.iter().cloned());
    }
    match start.kind {
        Kind::Podman => (vec![cgroupfs], own),
        Kind::PodmanCompose => (handed_on(&[cgroupfs], &own), Vec::new()),
        Kind::Again => (vec![cgroupfs, format!("--hooks-dir={}", place.hooks)], own),
        Kind::Docker | Kind::Compose | Kind::Apptainer => (Vec::new(), own),
    }
}

/// A flag in front of the image, or several letters of which the last may have a value.
struct Flag<'a> {
    name: &'a str,
    value: &'a str,
    words: &'a [OsString],
}

/// Flags of `podman run` and `docker run` without a value; all others have one.
const ALONE: [&str; 15] = [
    "ditPq",
    "--rm",
    "--detach",
    "--interactive",
    "--tty",
    "--init",
    "--privileged",
    "--read-only",
    "--publish-all",
    "--quiet",
    "--replace",
    "--no-healthcheck",
    "--oom-kill-disable",
    "--sig-proxy",
    "--rmi",
];

/// Flags of apptainer with a value; all others have none.
const VALUED: [&str; 16] = [
    "BHWSo",
    "--bind",
    "--mount",
    "--env",
    "--env-file",
    "--home",
    "--workdir",
    "--scratch",
    "--overlay",
    "--pwd",
    "--cwd",
    "--app",
    "--network",
    "--security",
    "--memory",
    "--cpus",
];

/// The flags among the words after the verb.
fn flags_before_image(kind: Kind, words: &[OsString]) -> impl Iterator<Item = Flag<'_>> {
    let valued = move |name: &str| match kind {
        Kind::Apptainer => VALUED[0].contains(name) || VALUED.contains(&name),
        _ => !ALONE[0].contains(name) && !ALONE.contains(&name),
    };
    let mut rest = words;
    std::iter::from_fn(move || {
        let word = rest.first()?.to_str()?;
        let long = word.starts_with("--");
        let mut letters = word.char_indices().skip(1);
        let end = match long {
            true => word.find('='),
            false => letters
                .find_map(|(i, c)| Some(i + c.len_utf8()).filter(|end| valued(&word[i..*end]))),
        };
        let (name, attached) = word.split_at(end.unwrap_or(word.len()));
        if !name.starts_with('-') || name == "--" {
            return None;
        }
        let follows = attached.is_empty() && if long { valued(name) } else { end.is_some() };
        let next = rest.get(1).filter(|_| follows);
        let words;
        (words, rest) = rest.split_at(1 + usize::from(next.is_some()));
        let value = next.map_or(attached, |w| w.to_str().unwrap_or_default());
        let value = value.trim_start_matches('=');
        Some(Flag { name, value, words })
    })
}

impl Flag<'_> {
    /// The container has the claim's GPUs, and with the driver's own library beside gshare's its limits would not
    /// hold.
    fn asks_for_gpus(&self) -> bool {
        match self.name {
            "--gpus" | "--nv" | "--nvccli" => true,
            "--device" => self.value.starts_with("nvidia.com/"),
            "--runtime" => self.value == "nvidia",
            _ => false,
        }
    }

    /// apptainer then shows the container little of `/dev`.
    fn contains(&self) -> bool {
        match self.name.strip_prefix("--") {
            Some(name) => ["contain", "containall", "compat"].contains(&name),
            None => self.name.contains(['c', 'C']),
        }
    }
}

/// The words after a verb, without flags that request GPUs.
fn without_gpus(kind: Kind, words: &[OsString]) -> Vec<OsString> {
    let (asking, others): (Vec<Flag<'_>>, Vec<Flag<'_>>) =
        flags_before_image(kind, words).partition(Flag::asks_for_gpus);
    let flags: usize = asking.iter().chain(&others).map(|f| f.words.len()).sum();
    let others = others.iter().flat_map(|f| f.words);
    others.chain(&words[flags..]).cloned().collect()
}

/// Whether a command starts a container, and where its parts are. A command that already names a device of gshare is
/// not changed.
fn find(command: &[OsString], root: bool) -> Option<Start> {
    let words: Vec<&str> = command
        .iter()
        .map(|w| w.to_str().unwrap_or_default())
        .collect();
    if words.iter().any(|w| w.contains("gshare.dev/")) {
        return None;
    }
    let base = |w: &str| w.rsplit('/').next().unwrap_or_default().to_owned();
    let sudo = words.first().is_some_and(|w| base(w) == "sudo");
    let mut program = 0;
    if sudo {
        program = 1 + words[1..].iter().position(|w| !w.starts_with('-'))?;
    }
    let (mut kind, mut verbs): (Kind, &[&str]) = match base(words.get(program)?).as_str() {
        "podman" => (Kind::Podman, &["run", "create", "start"]),
        "docker" => (Kind::Docker, &["run", "create"]),
        "podman-compose" => (Kind::PodmanCompose, &["run", "up"]),
        "docker-compose" => (Kind::Compose, COMPOSED),
        "apptainer" | "singularity" => (Kind::Apptainer, &["run", "exec", "shell"]),
        _ => return None,
    };
    // Global flags may have values.
    let mut value = false;
    for (at, word) in words.iter().enumerate().skip(program + 1) {
        match *word {
            verb if verbs.contains(&verb) => {
                if kind == Kind::Podman && verb == "start" {
                    kind = Kind::Again;
                }
                return Some(Start {
                    program,
                    verb: at,
                    kind,
                    sudo,
                    root: root || sudo,
                    contained: flags_before_image(kind, &command[at + 1..]).any(|f| f.contains()),
                });
            }
            "compose" if kind == Kind::Docker => {
                (program, kind, verbs) = (at, Kind::Compose, COMPOSED);
            }
            "container" => {}
            w if w.starts_with('-') => value = !w.contains('='),
            _ if value => value = false,
            _ => return None,
        }
    }
    None
}

/// Verbs of `docker compose` that make containers.
const COMPOSED: &[&str] = &["up", "run", "create"];

#[cfg(test)]
mod tests {
    use super::*;

    fn start(line: &str, root: bool) -> Option<Start> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        find(&words, root)
    }

    #[test]
    fn commands_that_start_containers_are_known() {
        let at = |line: &str| start(line, false).map(|s| (s.program, s.verb, s.kind, s.root));
        for (line, program, verb, kind, root) in [
            ("podman run -it img sh", 0, 1, Kind::Podman, false),
            (
                "/usr/bin/podman --root /x --log-level=debug container run img",
                0,
                5,
                Kind::Podman,
                false,
            ),
            ("podman start -a trainer", 0, 1, Kind::Again, false),
            ("sudo -n docker create img", 2, 3, Kind::Docker, true),
            (
                "docker -H unix:///s compose -f a.yml --profile p up -d",
                3,
                8,
                Kind::Compose,
                false,
            ),
            ("docker-compose run one", 0, 1, Kind::Compose, false),
            (
                "sudo podman-compose -f a.yml up -d",
                1,
                4,
                Kind::PodmanCompose,
                true,
            ),
            (
                "apptainer -q exec --nv a.sif python3",
                0,
                2,
                Kind::Apptainer,
                false,
            ),
        ] {
            assert_eq!(at(line), Some((program, verb, kind, root)), "{line}");
        }
        assert_eq!(start("podman run img", true).map(|s| s.root), Some(true));
        for other in [
            "python run",
            "podman exec run sh",
            "podman ps",
            "podman",
            "sudo -n",
            "podman run --device gshare.dev/claim=c3 img",
            "podman-compose down",
            "podman up",
            "docker start img",
            "docker compose ps",
            "apptainer build a.sif a.def",
            "sh -c podman",
        ] {
            assert_eq!(at(other), None, "{other}");
        }
    }

    #[test]
    fn flags_put_the_container_below_the_claim() {
        let place = ContainerPlace {
            device: "gshare.dev/claim=c3".into(),
            cgroup_parent: "/gshare/user-7/claim-3".into(),
            flags: vec!["--env=A=b".into()],
            hooks: "/run/cdi/h".into(),
        };
        let start = |line| start(line, false).expect("a container");
        let (global, own) = flags(start("sudo podman run img"), &place);
        assert_eq!(global, ["--cgroup-manager=cgroupfs"]);
        assert_eq!(
            own,
            [
                "--device=gshare.dev/claim=c3",
                "--cgroup-parent=/gshare/user-7/claim-3",
                "--pids-limit=-1"
            ]
        );
        // Neither certainly supports CDI, and rootless podman makes no device nodes.
        let (global, own) = flags(start("podman run img"), &place);
        assert_eq!(global, ["--cgroup-manager=cgroupfs"]);
        assert_eq!(own, ["--pids-limit=-1", "--env=A=b"]);
        let (global, own) = flags(start("docker run img"), &place);
        assert!(global.is_empty());
        assert_eq!(
            handed_on(
                &["--a".to_owned()],
                &["--env=A=b c".to_owned(), own[0].clone()]
            ),
            [
                "--podman-args='--a'",
                "--podman-run-args='--env=A=b c' '--cgroup-parent=/gshare/user-7/claim-3'"
            ]
        );
        assert_eq!(own, ["--cgroup-parent=/gshare/user-7/claim-3", "--env=A=b"]);
        let again = flags(start("podman start trainer"), &place).0;
        assert_eq!(
            again,
            ["--cgroup-manager=cgroupfs", "--hooks-dir=/run/cdi/h"]
        );
    }

    #[test]
    fn flags_that_ask_for_gpus_are_left_out_and_words_of_the_program_are_not() {
        for (line, left) in [
            (
                "docker run --gpus all -it -v /a:/b img train --gpus 2",
                "docker run -it -v /a:/b img train --gpus 2",
            ),
            (
                "docker run --rm --gpus=all --runtime nvidia img --gpus 2",
                "docker run --rm img --gpus 2",
            ),
            (
                "podman run -d --device nvidia.com/gpu=all --device /dev/fuse img",
                "podman run -d --device /dev/fuse img",
            ),
            (
                "docker run -p8080:80 -itv/a:/b -v /c:/d --gpus all img",
                "docker run -p8080:80 -itv/a:/b -v /c:/d img",
            ),
            (
                "apptainer exec --nv -B /a:/b -eC img --nv",
                "apptainer exec -B /a:/b -eC img --nv",
            ),
            (
                "apptainer exec --nv img python3 -c 1",
                "apptainer exec img python3 -c 1",
            ),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let start = find(&words, false).expect("a container");
            assert_eq!(start.contained, line.contains("-eC"), "{line}");
            let whole = with(&words, start, Vec::new(), Vec::new());
            assert_eq!(whole.join(" ".as_ref()).to_str(), Some(left), "{line}");
        }
    }
}

//! `gshare claim -- podman run ...`: the flags that put the container into the claim are added to the command.
//!
//! They are a convenience, no enforcement: where a container belongs is decided by its cgroup, and one that is
//! started without them is outside the claim and gets no device of it.

use std::ffi::OsString;
use std::path::Path;

use gshare_proto::{Call, ContainerPlace, Granted, Reply};

use super::claim::unexpected;
use super::env::quoted;
use super::failure::Failure;
use super::{connect, out};

/// Where the parts of a command are that starts a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Start {
    /// Index of `podman`, `docker` or `podman-compose`.
    program: usize,
    /// Index of `run`, `create` or `up`.
    verb: usize,
    podman: bool,
    /// By `podman-compose`, which hands flags on.
    compose: bool,
    /// With the rights of root: by `sudo`, or as root.
    root: bool,
}

/// The command with the claim's flags, if it starts a container; else as it is.
///
/// # Errors
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
    let call = Call::Container {
        id: granted.id.clone().into(),
        slice: !start.podman && knows_slices_only(&command[..start.verb]),
    };
    let place = match connect::connect(socket)?.call(&call)? {
        Reply::Container(place) if place.device.is_empty() => return Ok(command.to_vec()),
        Reply::Container(place) => place,
        other => return Err(unexpected(&other)),
    };
    let (global, own) = flags(start, &place);
    if !quiet {
        let short = |f: &&String| !place.flags.contains(f);
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
        if own.iter().any(|f| !short(&f)) {
            added.push(&many);
        }
        out::note(&format!("added for the container: {}", added.join(" ")));
    }
    let (global, own) = match start.compose {
        true => (handed_on(&global, &own), Vec::new()),
        false => (global, own),
    };
    let mut whole = command.to_vec();
    let after = start.verb + 1;
    whole.splice(after..after, own.into_iter().map(OsString::from));
    let after = start.program + 1;
    whole.splice(after..after, global.into_iter().map(OsString::from));
    Ok(whole)
}

/// Whether docker's daemon puts containers into slices of systemd only: by its driver. One that does not answer has words of
/// its own.
fn knows_slices_only(words: &[OsString]) -> bool {
    let asked = words.split_first().and_then(|(program, rest)| {
        std::process::Command::new(program)
            .args(rest.iter().filter(|w| *w != "container"))
            .args(["info", "--format", "{{.CgroupDriver}}"])
            .stdin(std::process::Stdio::null())
            .output()
            .ok()
    });
    asked.is_some_and(|o| o.stdout.trim_ascii() == b"systemd")
}

/// The flags of `podman-compose` for flags of podman and of its `run`.
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

/// Flags of the program, and flags of `run`.
fn flags(start: Start, place: &ContainerPlace) -> (Vec<String>, Vec<String>) {
    let parent = format!("--cgroup-parent={}", place.cgroup_parent);
    let cgroupfs = || vec!["--cgroup-manager=cgroupfs".to_owned()];
    // The claim's cgroup is a plain one. Limits of its own would need controllers below a cgroup that has
    // processes, so podman's default one is left out.
    let unlimited = "--pids-limit=-1".to_owned();
    match (start.podman, start.root) {
        (true, true) => {
            let device = format!("--device={}", place.device);
            (cgroupfs(), vec![device, parent, unlimited])
        }
        // Without the right to make cgroups the container stays where podman is: in the claim.
        (true, false) => {
            let mut own = vec![unlimited];
            own.extend(place.flags.iter().cloned());
            (cgroupfs(), own)
        }
        (false, _) => {
            let mut own = vec![parent];
            own.extend(place.flags.iter().cloned());
            (Vec::new(), own)
        }
    }
}

/// Whether a command starts a container, and where its parts are. One that names a device of gshare already
/// is left alone.
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
    let name = base(words.get(program)?);
    let compose = name == "podman-compose";
    let verbs = match name.as_str() {
        "podman" | "docker" => ["run", "create"],
        "podman-compose" => ["run", "up"],
        _ => return None,
    };
    // Global flags may have values of their own.
    let mut value = false;
    for (at, word) in words.iter().enumerate().skip(program + 1) {
        match *word {
            verb if verbs.contains(&verb) => {
                return Some(Start {
                    program,
                    verb: at,
                    podman: name != "docker",
                    compose,
                    root: root || sudo,
                });
            }
            "container" => {}
            w if w.starts_with('-') => value = !w.contains('='),
            _ if value => value = false,
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(line: &str, root: bool) -> Option<Start> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        find(&words, root)
    }

    #[test]
    fn commands_that_start_containers_are_known() {
        let at = |line: &str| start(line, false).map(|s| (s.program, s.verb, s.podman, s.root));
        assert_eq!(at("podman run -it img sh"), Some((0, 1, true, false)));
        assert_eq!(
            at("/usr/bin/podman --root /x --log-level=debug container run img"),
            Some((0, 5, true, false))
        );
        assert_eq!(at("sudo -n docker create img"), Some((2, 3, false, true)));
        assert_eq!(
            at("sudo podman-compose -f a.yml up -d"),
            Some((1, 4, true, true))
        );
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
        // Neither knows CDI for certain, and rootless podman makes no device nodes.
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
    }
}

//! Identity of a process: its notebook, script, model (from the arguments), container or unit. Users control all of
//! these: they are displayed, and nothing depends on them.

use std::path::{Component, Path};

use gshare_core::Party;
use gshare_enforcer::cgroup::container_id;
use gshare_enforcer::proc;
use gshare_proto::snapshot::{Identity, Named};

use crate::figures::printable;

/// Options whose value names a model or a checkpoint.
const MODEL_OPTIONS: [&str; 16] = [
    "--model",
    "--model-name",
    "--model-path",
    "--model-id",
    "--model-dir",
    "--model-name-or-path",
    "--pretrained-model-name-or-path",
    "--base-model",
    "--served-model-name",
    "--checkpoint",
    "--checkpoint-path",
    "--ckpt",
    "--ckpt-path",
    "--resume",
    "--resume-from",
    "--resume-from-checkpoint",
];
/// Programs whose `-m` names a model; elsewhere it is a Python module.
const SHORT_MODEL: [&str; 3] = ["llama-server", "llama-cli", "llama-bench"];
/// Programs that run a Python program given as an argument.
const STARTERS: [&str; 8] = [
    "torchrun",
    "accelerate",
    "deepspeed",
    "uvicorn",
    "gunicorn",
    "mpirun",
    "nsys",
    "ncu",
];
/// File names that every checkpoint has: the directory is more informative.
const ANY_CHECKPOINT: [&str; 7] = [
    "checkpoint",
    "last",
    "latest",
    "best",
    "model",
    "pytorch_model",
    "snapshots",
];
/// Maximum length of a word.
const LONGEST: usize = 200;

fn word(text: &str) -> String {
    printable(text).take(LONGEST).collect()
}

fn named(value: &str, source: impl Into<String>) -> Option<Named> {
    let value = word(value.trim());
    (!value.is_empty()).then(|| Named {
        value,
        source: source.into(),
    })
}

fn base(path: &str) -> &str {
    path.trim_end_matches('/')
        .rsplit('/')
        .next()
        .unwrap_or(path)
}

/// Identity by the arguments of a command.
pub(crate) fn of_command(command: &[String]) -> Identity {
    Identity {
        script: script(command),
        model: model(command),
        ..Identity::default()
    }
}

/// Identity of a process, and its command line.
pub(crate) fn of_process(pid: i32) -> (Vec<String>, Identity) {
    let words = |list: Option<Vec<std::ffi::OsString>>| -> Vec<String> {
        let words = list.unwrap_or_default().into_iter();
        words.map(|a| a.to_string_lossy().into_owned()).collect()
    };
    let command = words(proc::cmdline(pid));
    let environ = words(proc::environ(pid));
    let cgroup = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let notebook = environ
        .iter()
        .find_map(|line| line.strip_prefix("JPY_SESSION_NAME="));
    let identity = Identity {
        notebook: match notebook {
            Some(name) => named(name, format!("JPY_SESSION_NAME of pid {pid}")),
            None if is_kernel(&command) => of_directory(pid),
            None => None,
        },
        unit: unit(&cgroup),
        ..of_command(&command)
    };
    (command, identity)
}

/// Whether a command is a notebook kernel without the name of a notebook, as some editors start it.
fn is_kernel(command: &[String]) -> bool {
    let mut words = command.iter().take(8);
    words.any(|w| matches!(base(w), "ipykernel_launcher" | "ipykernel"))
}

/// Editors start kernels in the notebook's directory.
fn of_directory(pid: i32) -> Option<Named> {
    let dir = std::fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
    named(&dir.to_string_lossy(), format!("directory of pid {pid}"))
}

/// Adds fields that only the other has.
pub(crate) fn merge(into: &mut Identity, from: &Identity) {
    let fill = |slot: &mut Option<Named>, other: &Option<Named>| {
        if slot.is_none() {
            slot.clone_from(other);
        }
    };
    fill(&mut into.notebook, &from.notebook);
    fill(&mut into.script, &from.script);
    fill(&mut into.model, &from.model);
    fill(&mut into.unit, &from.unit);
}

/// Source text for a process that is identified by its container.
pub(crate) const CONTAINER: &str = "container that the process runs in";

/// The container of a process without a claim, if there is one.
pub(crate) fn containers(identity: &Identity) -> Vec<String> {
    let unit = identity.unit.iter().filter(|unit| unit.source == CONTAINER);
    unit.map(|unit| unit.value.clone()).collect()
}

/// The name of a notebook's file; a path or a bare word alike.
pub(crate) fn notebook_name(identity: &Identity) -> Option<&str> {
    let name = base(&identity.notebook.as_ref()?.value);
    (!name.is_empty()).then_some(name)
}

/// The script or module. A notebook kernel has none: its code comes from the notebook.
fn script(command: &[String]) -> Option<Named> {
    let (program, rest) = command.split_first()?;
    let program = base(program);
    let python = program.starts_with("python") || program.starts_with("pypy");
    if python {
        let mut rest = rest.iter();
        while let Some(argument) = rest.next() {
            match argument.as_str() {
                "-m" => {
                    let module = rest.next()?;
                    let kernel = module.contains("ipykernel") || module.contains("jupyter");
                    return (!kernel).then(|| named(module, "argument -m")).flatten();
                }
                // Only the program text follows.
                "-c" | "-" => return None,
                "-W" | "-X" | "--check-hash-based-pycs" => {
                    rest.next();
                }
                flag if flag.starts_with('-') => {}
                file => {
                    // An entry point: `vllm`, `jupyter-lab`.
                    return named(base(file), "argument 1");
                }
            }
        }
        return None;
    }
    let shell = matches!(program, "sh" | "bash" | "zsh" | "dash");
    if !shell && !STARTERS.contains(&program) {
        return None;
    }
    let file = rest.iter().enumerate().find(|(_, a)| {
        let extension = Path::new(a.as_str()).extension().and_then(|e| e.to_str());
        !a.starts_with('-') && matches!(extension, Some("py" | "sh"))
    });
    let (place, file) = file?;
    named(base(file), format!("argument {}", place + 1))
}

/// The model or checkpoint in the arguments.
fn model(command: &[String]) -> Option<Named> {
    let (program, rest) = command.split_first()?;
    let short = SHORT_MODEL.contains(&base(program));
    for (place, argument) in rest.iter().enumerate() {
        let (option, inline) = match argument.split_once('=') {
            Some((option, value)) => (option, Some(value)),
            None => (argument.as_str(), None),
        };
        let spelled = option.replace('_', "-");
        // Hydra options have no dashes: `model=vit_base`.
        let hydra = inline.is_some() && matches!(option, "model" | "model.name" | "checkpoint");
        let known = MODEL_OPTIONS.contains(&spelled.as_str()) || (short && option == "-m");
        if !known && !hydra {
            continue;
        }
        let value = inline.or_else(|| rest.get(place + 1).map(String::as_str))?;
        if value.starts_with('-') || matches!(value, "" | "auto" | "true" | "false" | "None") {
            continue;
        }
        return named(&model_name(value), format!("argument {option}"));
    }
    // `vllm serve NAME`, also under its interpreter.
    let serve = command.windows(3).find(|w| {
        matches!(base(&w[0]), "vllm" | "sglang") && w[1] == "serve" && !w[2].starts_with('-')
    })?;
    named(&model_name(&serve[2]), "argument of serve")
}

/// `meta-llama/Llama-3-8B` as `Llama-3-8B`, `runs/vit/checkpoint-500` as `vit/checkpoint-500`.
fn model_name(value: &str) -> String {
    let parts: Vec<&str> = Path::new(value)
        .components()
        .filter_map(|c| match c {
            Component::Normal(part) => part.to_str(),
            _ => None,
        })
        .collect();
    // A cache of Hugging Face: models--ORG--NAME/snapshots/HASH.
    if let Some(cached) = parts.iter().rev().find_map(|p| p.strip_prefix("models--")) {
        return cached.rsplit("--").next().unwrap_or(cached).to_owned();
    }
    let Some((last, before)) = parts.split_last() else {
        return value.to_owned();
    };
    let stem = last.split(['-', '.', '=']).next().unwrap_or(last);
    match before.last() {
        Some(dir) if ANY_CHECKPOINT.contains(&stem) => format!("{dir}/{last}"),
        _ => (*last).to_owned(),
    }
}

/// The container or unit by the cgroups of a process (the text of `/proc/PID/cgroup`).
fn unit(cgroup: &str) -> Option<Named> {
    let lines = cgroup.lines();
    // Version 2 has the line `0::PATH`; on machines with both, systemd's hierarchy has its name.
    let path = |line: &str| line.splitn(3, ':').nth(2).map(str::to_owned);
    let own = |line: &&str| line.starts_with("0::") || line.contains(":name=systemd:");
    lines
        .filter(own)
        .filter_map(path)
        .find_map(|p| unit_of_path(&p))
}

fn unit_of_path(path: &str) -> Option<Named> {
    for part in path.split('/').rev() {
        if let Some(id) = container_id(part) {
            return named(
                &id[..12],
                format!("container, by cgroup {part}").replace(id, &id[..12]),
            );
        }
        // Sessions and users' managers contain everything of a user, so they identify nothing.
        let of_user = part.starts_with("user@") || part.starts_with("session-");
        if (part.ends_with(".service") || part.ends_with(".scope")) && !of_user {
            return named(part, "unit, by cgroup");
        }
    }
    None
}

/// A warning that the name does not exist here; it may be a mistake or a future user.
pub(crate) fn unknown(party: &Party) -> Option<String> {
    let known = match party {
        Party::User(name) => proc::user_exists(name),
        Party::Group(name) => proc::group_exists(name),
        Party::Project(_) => true,
    };
    (!known).then(|| format!("note: this machine has no {party} (yet)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn scripts_and_modules_are_found() {
        for (command, expect) in [
            (
                "/usr/bin/python3 -u /home/a/train.py --lr 1",
                Some("train.py"),
            ),
            (
                "python -m torch.distributed.run x.py",
                Some("torch.distributed.run"),
            ),
            ("python -X dev -W ignore eval.py", Some("eval.py")),
            ("python3 -m ipykernel_launcher -f kernel-1.json", None),
            ("python3 -c print(1)", None),
            (
                "torchrun --nproc-per-node 2 finetune.py --model x",
                Some("finetune.py"),
            ),
            ("bash run.sh", Some("run.sh")),
            ("/opt/bin/infer --batch 4", None),
        ] {
            let found = script(&words(command)).map(|n| n.value);
            assert_eq!(found.as_deref(), expect, "{command}");
        }
        assert_eq!(
            script(&words("python -m pkg.train")).unwrap().source,
            "argument -m"
        );
        assert_eq!(script(&[]), None);
    }

    #[test]
    fn models_are_found_in_options_and_checkpoints() {
        for (command, expect) in [
            (
                "vllm serve meta-llama/Llama-3-8B --port 1",
                Some("Llama-3-8B"),
            ),
            ("/usr/bin/python3 /opt/bin/vllm serve org/m", Some("m")),
            ("python train.py --model resnet50", Some("resnet50")),
            (
                "python train.py --model_name_or_path=bert-base",
                Some("bert-base"),
            ),
            (
                "python t.py --resume runs/vit/checkpoint-500",
                Some("vit/checkpoint-500"),
            ),
            ("python t.py --ckpt /data/a/last.ckpt", Some("a/last.ckpt")),
            (
                "python t.py --model /c/models--org--phi-2/snapshots/0123",
                Some("phi-2"),
            ),
            ("python t.py model=vit_base lr=1", Some("vit_base")),
            ("llama-server -m /m/qwen.gguf", Some("qwen.gguf")),
            ("python t.py -m mode", None),
            ("python t.py --resume auto", None),
            ("python t.py --model", None),
            ("python t.py --model --lr 1", None),
        ] {
            let found = model(&words(command)).map(|n| n.value);
            assert_eq!(found.as_deref(), expect, "{command}");
        }
        let source = model(&words("python t.py --model x")).unwrap().source;
        assert_eq!(source, "argument --model");
    }

    #[test]
    fn units_and_containers_are_told_by_cgroup() {
        let id = "0123456789abcdef".repeat(4);
        let check = |text: &str, expect: Option<&str>| {
            assert_eq!(unit(text).map(|n| n.value).as_deref(), expect, "{text}");
        };
        check("0::/system.slice/tagger.service\n", Some("tagger.service"));
        check(
            &format!("0::/system.slice/docker-{id}.scope\n"),
            Some(&id[..12]),
        );
        check(
            &format!("0::/gshare/u1/c3/libpod-{id}/x\n"),
            Some(&id[..12]),
        );
        check("0::/user.slice/user-1.slice/session-3.scope\n", None);
        check(
            "0::/user.slice/user-1.slice/user@1.service/app.slice\n",
            None,
        );
        check(
            "0::/user.slice/user@1.service/app.slice/jupyter.service\n",
            Some("jupyter.service"),
        );
        check(
            "3:cpu:/\n1:name=systemd:/system.slice/a.service\n0::/\n",
            Some("a.service"),
        );
        check("0::/\n", None);
        check("", None);
    }

    #[test]
    fn a_notebooks_path_is_the_users_word_and_is_cleaned() {
        let identity = Identity {
            notebook: named("/home/a/vit.ipynb\u{1b}[2J", "x"),
            ..Identity::default()
        };
        assert_eq!(notebook_name(&identity), Some("vit.ipynb [2J"));
        assert_eq!(named("  ", "x"), None);
        let mut into = Identity::default();
        merge(&mut into, &identity);
        assert_eq!(into, identity);
    }
}

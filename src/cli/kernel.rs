//! `gshare kernel`: Jupyter kernels with a part of a GPU.

use std::path::{Path, PathBuf};

use gshare_core::{Class, Request, Share};

use crate::kernel::install::{self, InstallError, Outcome as Installed};
use crate::kernel::places::{Surroundings, Target};
use crate::kernel::spec::{Kernel, Size};

mod exec;

use super::args::kernel::{
    InstallArgs, KernelArgs, KernelCommand, KernelSize, PlaceArgs, RemoveArgs,
};
use super::failure::{self, Failure};
use super::table::{Align, Table, UNKNOWN};
use super::{Outcome, out};

/// Default fraction of a GPU, without `-g` and `--gpu-mem`.
const DEFAULT_GPUS: gshare_core::Size = gshare_core::Size {
    gpus: 1,
    each: Share::from_milli(250),
};

pub(crate) fn run(socket: Option<&Path>, args: &KernelArgs) -> Outcome {
    match &args.command {
        KernelCommand::Install(args) => install(socket, args),
        KernelCommand::List { json } => list(*json),
        KernelCommand::Remove(args) => remove(args),
        KernelCommand::Exec(args) => exec::run(socket, args),
    }
}

/// A size as arguments, and for names.
///
/// # Errors
///
/// When no claim of this size is possible: the kernel itself would report that only in Jupyter's log.
fn size(given: &KernelSize, socket: Option<&Path>) -> Result<Size, Failure> {
    let (mut args, mut label) = (Vec::new(), Vec::new());
    let mut add = |flag: &str, value: String| args.extend([flag.to_owned(), value]);
    if let Some(socket) = socket {
        add("--socket", socket.display().to_string());
    }
    let part = given.part;
    let gpus = match (given.gpus, part.gpu_mem) {
        (Some(gpus), _) => Some(gpus),
        (None, Some(_)) => None,
        (None, None) => Some(DEFAULT_GPUS),
    };
    let limit = part.limit.unwrap_or(Share::ONE);
    let mut request = Request::of_size(gpus.unwrap_or(DEFAULT_GPUS), limit, Class::Interactive);
    request.sm_limit = limit;
    // With memory alone, the GPU determines the SMs.
    request.sm = part.sm.or(request.sm.filter(|_| gpus.is_some()));
    (request.mem, request.mem_limit) = (part.gpu_mem, part.gpu_mem_limit);
    request.check().map_err(|wrong| usage(wrong.to_string()))?;
    if let Some(gpus) = gpus {
        label.push(gpus.to_string());
        add("-g", gpus.to_string());
    }
    // A prefix distinguishes a limit from a size.
    if let Some(sm) = part.sm {
        let sm = format!("{}%", sm.percent());
        label.push(sm.replace('%', "sm"));
        add("--sm", sm);
    }
    if let Some(limit) = part.limit {
        let limit = limit.short();
        let max = if gpus.is_none() { "max" } else { "" };
        label.push(format!("{max}{limit}"));
        add("--limit", limit);
    }
    if let Some(mem) = part.gpu_mem {
        label.push(short(mem.0));
        add("--gpu-mem", short(mem.0));
    }
    if let Some(limit) = part.gpu_mem_limit {
        let limit = short(limit.0);
        let max = if part.gpu_mem.is_none() { "max" } else { "" };
        label.push(format!("{max}{limit}"));
        add("--gpu-mem-limit", limit);
    }
    if let Some(project) = &given.project {
        add("--project", project.clone());
    }
    Ok(Size {
        args,
        label: label.join("-"),
    })
}

/// Bytes in the form of `--gpu-mem`: the largest exact unit.
fn short(bytes: u64) -> String {
    let units = [(30, "G"), (20, "M"), (10, "K")];
    let unit = units
        .iter()
        .find(|(shift, _)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    unit.map_or_else(
        || format!("{bytes}B"),
        |(shift, name)| format!("{}{name}", bytes >> shift),
    )
}

fn target(place: &PlaceArgs) -> Target {
    match &place.prefix {
        Some(prefix) => Target::Prefix(prefix.clone()),
        None if place.sys_prefix => Target::SysPrefix,
        None if place.user => Target::User,
        None => Target::Default,
    }
}

fn usage(message: impl Into<String>) -> Failure {
    Failure::new(failure::USAGE, message)
}

impl From<InstallError> for Failure {
    fn from(error: InstallError) -> Self {
        let text = error.to_string();
        match error {
            InstallError::Name(_) => usage(text),
            InstallError::Foreign(_) => usage(text).with_hint(
                "choose another name with --name; `gshare kernel list` shows which are gshare's",
            ),
            InstallError::Io { source, .. } => match source.kind() {
                std::io::ErrorKind::PermissionDenied => Self::new(failure::NOT_PERMITTED, text)
                    .with_hint("--user installs for yourself, --prefix DIR elsewhere"),
                _ => Self::new(failure::INTERNAL, text),
            },
        }
    }
}

fn install(socket: Option<&Path>, args: &InstallArgs) -> Outcome {
    let around = Surroundings::of_this_process();
    let kernels_dir = target(&args.place)
        .dir(&around, nix::unistd::Uid::effective().is_root())
        .map_err(usage)?;
    let (offered, problems) = around.kernels();
    problems
        .iter()
        .for_each(|problem| out::note(&format!("gshare: skipped a kernel: {problem}")));
    let chosen = chosen(&offered, args)?;
    if chosen.len() > 1 && (args.name.is_some() || args.display_name.is_some()) {
        return Err(usage("--name and --display-name are for one kernel"));
    }
    let gshare = program()?;
    let socket = socket.map(std::path::absolute).transpose()?;
    let size = size(&args.size, socket.as_deref())?;
    let mut done = Vec::new();
    for kernel in chosen {
        let name = args
            .name
            .clone()
            .unwrap_or_else(|| format!("{}-gshare-{}", kernel.name, size.label.to_lowercase()));
        let shown = args
            .display_name
            .clone()
            .unwrap_or_else(|| kernel.display_name_with(&size));
        let json = kernel.wrapped(&gshare, &size, &shown).map_err(|why| {
            usage(why).with_hint("activate the environment that it belongs to, and install again")
        })?;
        let outcome = install::install(kernel, &json, &kernels_dir, &name)?;
        done.push((kernel, name.to_lowercase(), shown, outcome));
    }
    if args.json {
        let rows = done.iter().map(|(kernel, name, shown, outcome)| {
            serde_json::json!({ "name": name, "display_name": shown, "kernel": kernel.name, "size": size.label,
                "dir": kernels_dir.join(name), "outcome": word(*outcome) })
        });
        out::json(&rows.collect::<Vec<_>>())?;
    } else {
        for (_, name, shown, outcome) in &done {
            out::print(&format!(
                "{}: {name}, \"{shown}\", in {}\n",
                word(*outcome),
                kernels_dir.display()
            ))?;
        }
    }
    if !around.kernel_dirs().contains(&kernels_dir) {
        out::note(&format!(
            "hint: Jupyter does not look there by itself: start it with JUPYTER_PATH={}",
            kernels_dir.parent().unwrap_or(&kernels_dir).display()
        ));
    }
    Ok(0)
}

fn word(outcome: Installed) -> &'static str {
    match outcome {
        Installed::Installed => "installed",
        Installed::Replaced => "replaced",
        Installed::Unchanged => "unchanged",
    }
}

fn chosen<'a>(offered: &'a [Kernel], args: &InstallArgs) -> Result<Vec<&'a Kernel>, Failure> {
    let own: Vec<&Kernel> = offered.iter().filter(|k| k.made_from().is_none()).collect();
    if args.all {
        if own.is_empty() {
            return Err(none_at_all());
        }
        return Ok(own);
    }
    let python = ["python3".to_owned()];
    let names = if args.kernels.is_empty() {
        &python[..]
    } else {
        &args.kernels
    };
    let find = |name: &String| match offered.iter().find(|k| k.name == name.to_lowercase()) {
        Some(kernel) => match kernel.made_from() {
            None => Ok(kernel),
            Some(from) => Err(usage(format!("{name} is gshare's own, made from {from}"))
                .with_hint(format!("gshare kernel install {from}"))),
        },
        None if own.is_empty() => Err(none_at_all()),
        None => {
            let names: Vec<&str> = own.iter().map(|k| k.name.as_str()).collect();
            Err(usage(format!("there is no kernel {name}"))
                .with_hint(format!("kernels here: {}", names.join(", "))))
        }
    };
    names.iter().map(find).collect()
}

fn none_at_all() -> Failure {
    usage("Jupyter has no kernels here").with_hint(
        "activate an environment that has kernels (pip install ipykernel adds the kernel python3), or add its \
         share/jupyter to JUPYTER_PATH",
    )
}

/// This program, by its permanent path: a kernelspec outlives the shell that made it.
fn program() -> Result<PathBuf, Failure> {
    let program = std::env::current_exe()?;
    if program.to_str().is_none() {
        let text = format!(
            "{} is not UTF-8, so a kernelspec cannot name it",
            program.display()
        );
        return Err(Failure::new(failure::INTERNAL, text));
    }
    Ok(program)
}

fn list(json: bool) -> Outcome {
    let (kernels, problems) = Surroundings::of_this_process().kernels();
    if json {
        let rows = kernels.iter().map(|k| {
            serde_json::json!({ "name": k.name, "display_name": k.display_name(), "dir": k.dir,
                "kernel": k.made_from(), "size": k.size() })
        });
        out::json(
            &serde_json::json!({ "kernels": rows.collect::<Vec<_>>(), "problems": problems }),
        )?;
        return Ok(0);
    }
    let headings = ["NAME", "SHOWN AS", "CLAIMS", "MADE FROM", "WHERE"];
    let mut rows = Table::new(&headings.map(|heading| (heading, Align::Left)));
    for k in &kernels {
        let dash = |word: Option<&str>| word.unwrap_or(UNKNOWN).to_owned();
        let place = k.dir.display().to_string();
        rows.row(vec![
            k.name.clone(),
            k.display_name().to_owned(),
            dash(k.size()),
            dash(k.made_from()),
            place,
        ]);
    }
    out::print(&rows.text(out::columns(), out::colour()))?;
    problems
        .iter()
        .for_each(|problem| out::note(&format!("gshare: skipped a kernel: {problem}")));
    if kernels.is_empty() {
        out::note("hint: activate the environment that has kernels, or name it in JUPYTER_PATH");
    }
    Ok(0)
}

fn remove(args: &RemoveArgs) -> Outcome {
    let (offered, _) = Surroundings::of_this_process().kernels();
    let own = offered.iter().filter(|k| k.made_from().is_some());
    let chosen: Vec<&Kernel> = if args.all {
        own.collect()
    } else {
        let find = |name: &String| {
            let found = offered.iter().find(|k| k.name == name.to_lowercase());
            found.ok_or_else(|| {
                usage(format!("there is no kernel {name}"))
                    .with_hint("`gshare kernel list` shows which are gshare's")
            })
        };
        args.names.iter().map(find).collect::<Result<_, _>>()?
    };
    // All or none: check the names before removing anything.
    if let Some(foreign) = chosen.iter().find(|k| k.made_from().is_none()) {
        let text = InstallError::Foreign(foreign.dir.clone()).to_string();
        return Err(usage(text).with_hint("`jupyter kernelspec remove` removes any kernel"));
    }
    for kernel in &chosen {
        install::remove(kernel)?;
    }
    if args.json {
        out::json(&chosen.iter().map(|k| &k.name).collect::<Vec<_>>())?;
    } else if chosen.is_empty() {
        out::print("nothing to remove\n")?;
    } else {
        for kernel in chosen {
            out::print(&format!(
                "removed: {}, from {}\n",
                kernel.name,
                kernel.dir.display()
            ))?;
        }
    }
    Ok(0)
}

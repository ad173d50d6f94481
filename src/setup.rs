//! `gshare setup`: installs gshare on a machine, and removes it. Every change is printed first, recorded with the
//! previous state, and undone byte for byte by `--undo`.

mod files;
mod plan;
mod tree;
mod units;

use std::path::{Path, PathBuf};

use crate::command::args::setup::SetupArgs;
use crate::command::failure::{self, Failure};
use crate::command::{Outcome, out};
use files::{Installed, Step};
use plan::{Layout, Target};
use tree::Tree;

/// The record of an installation, below the root.
const MEMORY: &str = "/var/lib/gshare/setup";
/// Path of the program in a package.
const PACKAGED: &str = "/usr/bin/gshare";
/// The service's state: journal and history.
const STATE: &str = "/var/lib/gshare";

/// Runs the command.
pub(crate) fn run(args: &SetupArgs) -> Outcome {
    let changes = args.undo || !args.dry_run;
    if changes && !nix::unistd::Uid::effective().is_root() {
        return Err(Failure::new(
            failure::NOT_PERMITTED,
            "setup changes the machine and needs root",
        )
        .with_hint("sudo gshare setup; gshare setup --dry-run only shows what it would do"));
    }
    let exe = std::env::current_exe()?;
    if args.root.is_none() && plan::is_packaged(&exe) {
        return packaged(args);
    }
    let root = args.root.clone().unwrap_or_else(|| PathBuf::from("/"));
    let live = args.root.is_none();
    if live && !args.dry_run && !gshare_enforcer::systemd::booted() {
        return Err(Failure::new(
            failure::NO_SERVICE,
            "systemd is not running here, so setup cannot start the service",
        )
        .with_hint(
            "gshare setup --root / installs the files only; then have your init system run gshared",
        ));
    }
    if live && !args.undo && plan::is_packaged(Path::new(PACKAGED)) {
        return Err(Failure::new(
            failure::USAGE,
            "gshare is installed from a package here; a second installation would hide that one",
        )
        .with_hint("upgrade the package, or remove it first: sudo apt remove gshare"));
    }
    if args.undo {
        undo(&root, args.dry_run, live)
    } else {
        install(&root, &args.prefix, &exe, args.dry_run, live)
    }
}

fn opened(root: &Path) -> Result<Tree, Failure> {
    Tree::open(root).map_err(|error| {
        Failure::new(
            failure::NOT_PERMITTED,
            format!("cannot use {}: {error}", root.display()),
        )
    })
}

/// A package has installed the files already: only activation is left.
fn packaged(args: &SetupArgs) -> Outcome {
    // dpkg sets this while it runs the package's scripts; those start and stop the unit.
    let by_dpkg = std::env::var_os("DPKG_MAINTSCRIPT_PACKAGE").is_some_and(|p| p == "gshare");
    if args.undo {
        if !by_dpkg {
            return Err(Failure::new(
                failure::USAGE,
                "gshare was installed from a package: remove it with the package manager",
            )
            .with_hint(
                "apt remove gshare keeps configuration and history, apt purge gshare deletes them",
            ));
        }
        if gshare_enforcer::systemd::booted() {
            units::leave()?;
        }
        // The package's list of files does not contain it: a package carries no capabilities.
        let launcher = plan::launcher_path(Path::new("/usr"));
        match std::fs::remove_file(&launcher) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        if let Some(dir) = launcher.parent() {
            let _ = std::fs::remove_dir(dir);
        }
        return Ok(0);
    }
    let launcher = plan::launcher_path(Path::new("/usr"));
    if args.dry_run {
        out::print(&format!("install  {}\n", launcher.display()))?;
        return Ok(0);
    }
    crate::launcher::install(&launcher, None)?;
    observe(&mut opened(Path::new("/"))?, false)?;
    if by_dpkg {
        return Ok(0);
    }
    out::print("gshare was installed from a package: setup changed none of its files\n")?;
    units::start(false)?;
    doctor(Path::new(PACKAGED))
}

/// A machine without a journal starts in stage 1: nothing changes for users until the administrator decides.
fn observe(tree: &mut Tree, dry: bool) -> Result<(), Failure> {
    let state = Path::new(STATE);
    let there = |name: &str| tree.find(&state.join(name)).is_ok();
    if there("gshare.db") || there(crate::stage::FILE) {
        let config = tree.shown(Path::new(gshare_config::SYSTEM_FILE));
        let config = gshare_config::Config::load_file(&config).unwrap_or_default();
        let line = crate::stage::read(&tree.shown(state));
        let stage = crate::stage::in_force(&config, line).machine;
        return out::print(&format!(
            "stage    {} ({}), as before; to see or change it: gshare admin stage\n",
            stage.number(),
            stage.name()
        ));
    }
    let path = state.join(crate::stage::FILE);
    out::print(&format!(
        "stage    1 (observe), {}: gshare records, and touches no program until gshare admin stage\n",
        tree.shown(&path).display()
    ))?;
    out::print(&for_users(tree))?;
    if !dry {
        tree.make_dirs(&path).map_err(|(_, error)| error)?;
        std::fs::write(&*tree.place(&path)?, crate::stage::fresh())?;
    }
    Ok(())
}

/// Three sentences for administrators to show to their users.
fn for_users(tree: &Tree) -> String {
    let file = tree.shown(Path::new(gshare_config::SYSTEM_FILE));
    let names = gshare_config::Config::load_file(&file).is_ok_and(|c| c.privacy.names_of_all);
    let programs = if names { "and" } else { "not" };
    format!(
        "note     for the message of the day (/etc/motd):\n\
         \x20          gshare records which user of this machine uses which GPU, how much and when. It deletes the names\n\
         \x20          after 90 days; only its log of administrators' actions keeps names longer.\n\
         \x20          Other users see your name and the size and time of your claims, {programs} your programs and notebooks.\n\
         \x20          To see all that is stored about you: gshare report --mine --raw\n"
    )
}

fn install(root: &Path, prefix: &Path, exe: &Path, dry: bool, live: bool) -> Outcome {
    #[cfg(feature = "lab")]
    out::note(
        "note: this build includes the simulator and the demo; `packaging/build` makes the one to install",
    );
    let layout = Layout::new(prefix)?;
    let targets = plan::targets(&layout, exe)?;
    let mut known = Installed::load(opened(root)?, Path::new(MEMORY))?;
    let steps: Vec<(Target, Step)> = targets
        .into_iter()
        .map(|target| {
            let step = known.step(&target)?;
            Ok((target, step))
        })
        .collect::<Result<_, Failure>>()?;
    let changes: Vec<&Target> = steps
        .iter()
        .filter(|(_, step)| step.changes())
        .map(|(target, _)| target)
        .collect();
    files::check_writable(known.tree(), changes.iter().map(|t| t.path.as_path()))?;
    if !dry && known.is_new() && !changes.is_empty() {
        known.note_state(Path::new(STATE));
    }
    for (target, step) in &steps {
        out::print(&format!("{}\n", step.line(known.tree(), target)))?;
        if !dry {
            known.apply(target, step)?;
        }
    }
    observe(known.tree_mut(), dry)?;
    let changed = !changes.is_empty();
    if !live {
        return Ok(0);
    }
    for line in units::plan(changed)? {
        out::print(&format!("run      {line}\n"))?;
    }
    if dry {
        out::print("nothing was changed (--dry-run)\n")?;
        return Ok(0);
    }
    units::start(changed)?;
    doctor(&layout.program())
}

fn undo(root: &Path, dry: bool, live: bool) -> Outcome {
    let memory = Path::new(MEMORY);
    let known = Installed::load(opened(root)?, memory)?;
    if known.is_new() {
        return Err(Failure::new(
            failure::USAGE,
            format!(
                "nothing to undo: {} is not there",
                known.tree().shown(memory).display()
            ),
        )
        .with_hint("gshare setup records its changes there"));
    }
    if live {
        let members = units::members();
        if members > 0 {
            out::print(&format!(
                "note     processes of claims that keep running: {members}; without the service nothing manages their claims\n"
            ))?;
        }
        out::print("run      systemctl disable --now gshared.service\n")?;
        if !dry {
            units::stop()?;
        }
    }
    let kept = known.undo(Path::new(STATE), dry)?;
    if live && !dry {
        units::reload()?;
    }
    if dry {
        out::print("nothing was changed (--dry-run)\n")?;
    } else if kept > 0 {
        out::print(&format!(
            "{kept} file(s) were edited after setup and stay; remove them by hand if you do not want them\n"
        ))?;
    }
    Ok(0)
}

/// The machine's abilities, in the output of the installed program.
fn doctor(program: &Path) -> Outcome {
    out::print("\n")?;
    let status = std::process::Command::new(program)
        .arg("doctor")
        .env_remove("GSHARE_SOCKET")
        .status()?;
    Ok(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1))
}

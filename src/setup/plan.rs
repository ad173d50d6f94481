//! Contents of an installation: each file, its place, and its owner.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap_complete::Shell;

use crate::command::complete::{man_pages, script};
use crate::command::failure::{self, Failure};
use crate::launcher;
use gshare_artifacts::Part;

const UNIT: &str = include_str!("../../config/systemd/gshared.service");
const PROFILE: &str = include_str!("../../config/systemd/gshare.sh");

/// List of the files of the package `gshare`.
const PACKAGE_LIST: &str = "/var/lib/dpkg/info/gshare.list";

/// Whether the program was installed by a package.
pub(super) fn is_packaged(exe: &Path) -> bool {
    std::fs::read_to_string(PACKAGE_LIST)
        .is_ok_and(|list| list.lines().any(|line| Path::new(line) == exe))
}

/// Directories of an installation.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    prefix: PathBuf,
}

impl Layout {
    pub(super) fn new(prefix: &Path) -> Result<Self, Failure> {
        if !prefix.is_absolute() || prefix.as_os_str().as_bytes().contains(&b'\n') {
            return Err(Failure::new(
                failure::USAGE,
                format!("--prefix {} is not an absolute path", prefix.display()),
            ));
        }
        Ok(Self {
            prefix: prefix.to_owned(),
        })
    }

    pub(super) fn program(&self) -> PathBuf {
        self.prefix.join("bin/gshare")
    }

    /// Units of an administrator's own installations go where packages put none.
    fn units(&self) -> PathBuf {
        if self.prefix == Path::new("/usr") {
            PathBuf::from("/usr/lib/systemd/system")
        } else {
            PathBuf::from("/etc/systemd/system")
        }
    }
}

/// Contents of a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum What {
    /// A file with these bytes.
    File(Vec<u8>),
    /// A symbolic link to this.
    Link(PathBuf),
}

/// One file of the installation. Its path is absolute, without the root it may be installed below.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) path: PathBuf,
    pub(super) what: What,
    pub(super) mode: u32,
    /// A configuration that the administrator may change or remove: then it is neither replaced nor restored.
    pub(super) config: bool,
    /// The launcher, which needs its capability.
    pub(super) launcher: bool,
}

/// Everything that is installed.
pub(super) fn targets(layout: &Layout, exe: &Path) -> Result<Vec<Target>, Failure> {
    let p = |below: &str| layout.prefix.join(below);
    let program = std::fs::read(exe).map_err(|e| {
        Failure::new(
            failure::INTERNAL,
            format!("cannot read {}: {e}", exe.display()),
        )
    })?;
    let bin = layout.prefix.join("bin");
    let unit = UNIT.replace("/usr/bin/gshared", &bin.join("gshared").to_string_lossy());
    let mut all = vec![
        Target {
            mode: 0o755,
            ..file(layout.program(), program)
        },
        Target {
            path: p("bin/gshared"),
            what: What::Link("gshare".into()),
            mode: 0o777,
            config: false,
            launcher: false,
        },
        launcher_in(&layout.prefix)?,
        Target {
            config: true,
            ..file(gshare_config::SYSTEM_FILE.into(), gshare_config::SHIPPED)
        },
        file(layout.units().join("gshared.service"), unit),
        Target {
            config: true,
            ..file("/etc/profile.d/gshare.sh".into(), PROFILE)
        },
        file(
            p("share/bash-completion/completions/gshare"),
            script(Shell::Bash),
        ),
        file(p("share/zsh/site-functions/_gshare"), script(Shell::Zsh)),
        file(
            p("share/fish/vendor_completions.d/gshare.fish"),
            script(Shell::Fish),
        ),
    ];
    for part in Part::ALL {
        let path = p(gshare_artifacts::BESIDE).join(part.file());
        all.push(Target {
            mode: 0o755,
            ..file(path, part.read()?)
        });
    }
    for (name, page) in man_pages()? {
        all.push(file(p("share/man/man1").join(name), page));
    }
    Ok(all)
}

fn file(path: PathBuf, bytes: impl Into<Vec<u8>>) -> Target {
    Target {
        path,
        what: What::File(bytes.into()),
        mode: 0o644,
        config: false,
        launcher: false,
    }
}

/// The launcher below a prefix.
fn launcher_in(prefix: &Path) -> Result<Target, Failure> {
    Ok(Target {
        mode: 0o755,
        launcher: true,
        ..file(launcher_path(prefix), Part::Launcher.read()?)
    })
}

pub(super) fn launcher_path(prefix: &Path) -> PathBuf {
    prefix.join("lib/gshare").join(launcher::NAME)
}

//! Where Jupyter looks for kernelspecs, and where new ones go.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use super::spec::Kernel;

/// Environment that determines where kernelspecs are.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    pub home: Option<PathBuf>,
    /// `JUPYTER_PATH`: directories that come first.
    pub jupyter_path: Option<OsString>,
    /// `JUPYTER_DATA_DIR`: replaces the user's own.
    pub data_dir: Option<PathBuf>,
    /// `XDG_DATA_HOME`.
    pub data_home: Option<PathBuf>,
    /// Prefix of the active Python environment, if there is one.
    pub prefix: Option<PathBuf>,
    /// The machine's directories, in Jupyter's order.
    pub system: Vec<PathBuf>,
}

impl Surroundings {
    /// The environment of this process. The Python environment is the active one (`VIRTUAL_ENV`, `CONDA_PREFIX`),
    /// otherwise that of the `jupyter` on PATH.
    #[must_use]
    pub fn of_this_process() -> Self {
        let dir = |name: &str| {
            env::var_os(name)
                .filter(|v| !v.is_empty())
                .map(PathBuf::from)
        };
        Self {
            home: directories::BaseDirs::new().map(|dirs| dirs.home_dir().to_owned()),
            jupyter_path: env::var_os("JUPYTER_PATH"),
            data_dir: dir("JUPYTER_DATA_DIR"),
            data_home: dir("XDG_DATA_HOME"),
            prefix: dir("VIRTUAL_ENV")
                .or_else(|| dir("CONDA_PREFIX"))
                .or_else(|| prefix_of_script(&on_path("jupyter")?)),
            system: vec![
                "/usr/local/share/jupyter".into(),
                "/usr/share/jupyter".into(),
            ],
        }
    }

    /// The user's own data directory.
    #[must_use]
    pub fn user_dir(&self) -> Option<PathBuf> {
        self.data_dir.clone().or_else(|| match &self.data_home {
            Some(data) => Some(data.join("jupyter")),
            None => Some(self.home.as_ref()?.join(".local/share/jupyter")),
        })
    }

    /// All directories with kernelspecs; the first with a given name wins.
    #[must_use]
    pub fn kernel_dirs(&self) -> Vec<PathBuf> {
        let named = self.jupyter_path.iter().flat_map(env::split_paths);
        let shared = self.prefix.iter().map(|p| p.join("share/jupyter"));
        let mut dirs: Vec<PathBuf> = Vec::new();
        for dir in named
            .chain(self.user_dir())
            .chain(shared)
            .chain(self.system.clone())
        {
            let dir = dir.join("kernels");
            if !dirs.contains(&dir) {
                dirs.push(dir);
            }
        }
        dirs
    }

    /// Every kernelspec that Jupyter offers, by name, and errors for unreadable files.
    #[must_use]
    pub fn kernels(&self) -> (Vec<Kernel>, Vec<String>) {
        let (mut kernels, mut problems) = (Vec::<Kernel>::new(), Vec::new());
        for dir in self.kernel_dirs() {
            for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
                let path = entry.path();
                if !path.join("kernel.json").is_file() {
                    continue;
                }
                match Kernel::read(&path) {
                    Ok(kernel) if kernels.iter().any(|k| k.name == kernel.name) => {}
                    Ok(kernel) => kernels.push(kernel),
                    Err(problem) => problems.push(problem.to_string()),
                }
            }
        }
        kernels.sort_by(|a, b| a.name.cmp(&b.name));
        (kernels, problems)
    }
}

/// Destination of a new kernelspec.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Target {
    /// For this user; for root, for everybody.
    #[default]
    Default,
    /// For this user.
    User,
    /// Into the active Python environment.
    SysPrefix,
    /// Below this directory, in `share/jupyter/kernels`.
    Prefix(PathBuf),
}

impl Target {
    /// The directory of kernelspecs there.
    ///
    /// # Errors
    ///
    /// When there is no such place, in a sentence.
    pub fn dir(&self, around: &Surroundings, root: bool) -> Result<PathBuf, String> {
        let base = match self {
            Self::Default if root => PathBuf::from("/usr/local/share/jupyter"),
            Self::Default | Self::User => around
                .user_dir()
                .ok_or("there is no home directory: name a place with --prefix")?,
            Self::SysPrefix => around
                .prefix
                .as_ref()
                .ok_or("no Python environment is in use: neither VIRTUAL_ENV nor CONDA_PREFIX is set, and jupyter is not on PATH")?
                .join("share/jupyter"),
            Self::Prefix(prefix) => std::path::absolute(prefix)
                .map_err(|e| format!("{}: {e}", prefix.display()))?
                .join("share/jupyter"),
        };
        Ok(base.join("kernels"))
    }
}

#[must_use]
pub fn on_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|dir| dir.join(program))
        .find(|file| file.is_file())
}

/// The environment of a script, by the interpreter in its first line: `/x/bin/python3` is in `/x`.
fn prefix_of_script(script: &Path) -> Option<PathBuf> {
    let file = fs::File::open(script).ok()?;
    let mut line = Vec::new();
    BufReader::new(std::io::Read::take(file, 4096))
        .read_until(b'\n', &mut line)
        .ok()?;
    let line = String::from_utf8(line).ok()?;
    let interpreter = Path::new(line.strip_prefix("#!")?.split_whitespace().next()?);
    let bin = interpreter.parent()?;
    let python = interpreter.file_name()?.to_str()?.starts_with("python");
    (python && bin.file_name()? == "bin").then(|| bin.parent().map(Path::to_owned))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_come_in_jupyters_order() {
        let around = Surroundings {
            home: Some("/h".into()),
            jupyter_path: Some("/a:/b".into()),
            prefix: Some("/venv".into()),
            system: vec!["/usr/share/jupyter".into()],
            ..Surroundings::default()
        };
        let dirs = around.kernel_dirs();
        let expect = [
            "/a",
            "/b",
            "/h/.local/share/jupyter",
            "/venv/share/jupyter",
            "/usr/share/jupyter",
        ];
        assert_eq!(dirs, expect.map(|d| PathBuf::from(d).join("kernels")));
        let moved = Surroundings {
            data_home: Some("/x".into()),
            ..around.clone()
        };
        assert_eq!(moved.user_dir(), Some("/x/jupyter".into()));
        let named = Surroundings {
            data_dir: Some("/d".into()),
            ..moved
        };
        assert_eq!(Target::Default.dir(&named, false), Ok("/d/kernels".into()));
        assert_eq!(
            Target::SysPrefix.dir(&named, true),
            Ok("/venv/share/jupyter/kernels".into())
        );
        assert!(
            Target::SysPrefix
                .dir(&Surroundings::default(), true)
                .is_err()
        );
    }

    #[test]
    fn a_scripts_environment_is_that_of_its_interpreter() {
        let dir = tempfile::tempdir().expect("made");
        for (first, prefix) in [
            ("#!/opt/lab/bin/python3.11\n", Some("/opt/lab")),
            ("#!/bin/sh\n", None),
            ("#!/usr/bin/env python3\n", None),
            ("", None),
        ] {
            let script = dir.path().join("jupyter");
            fs::write(&script, first).expect("written");
            assert_eq!(
                prefix_of_script(&script),
                prefix.map(PathBuf::from),
                "{first}"
            );
        }
    }
}

//! `.gshare.toml`: a project's defaults for claims, searched from the working directory upwards.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use directories::BaseDirs;
use gshare_core::{Bytes, Class, Share, Size};
use nix::unistd::Uid;
use serde::Deserialize;

use crate::ConfigError;
use crate::form::{ClaimSize, ClassWord, Form as _, Limit, Optional, Sm, SomeMemory, Time};
use crate::problem::Problem;
use crate::read::read;

pub const PROJECT_FILE: &str = ".gshare.toml";

/// Defaults of one project; the command line overrides them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ProjectDefaults {
    /// `gpus`: as `-g`.
    #[serde(deserialize_with = "Optional::<ClaimSize>::deserialize")]
    pub gpus: Option<Size>,
    /// `gpu-mem`: guaranteed bytes per GPU.
    #[serde(deserialize_with = "Optional::<SomeMemory>::deserialize")]
    pub gpu_mem: Option<Bytes>,
    /// `gpu-mem-limit`: limit in bytes per GPU.
    #[serde(deserialize_with = "Optional::<SomeMemory>::deserialize")]
    pub gpu_mem_limit: Option<Bytes>,
    /// `sm`: guaranteed fraction of the SMs.
    #[serde(deserialize_with = "Optional::<Sm>::deserialize")]
    pub sm: Option<Share>,
    /// `limit`: limit of SMs.
    #[serde(deserialize_with = "Optional::<Limit>::deserialize")]
    pub limit: Option<Share>,
    /// `class`: class of work.
    #[serde(deserialize_with = "Optional::<ClassWord>::deserialize")]
    pub class: Option<Class>,
    /// `project`: the project that the claim counts for.
    pub project: Option<String>,
    /// `name`: name of the claim.
    pub name: Option<String>,
    /// `time`: time limit.
    #[serde(deserialize_with = "Optional::<Time<1000, { 366 * 86_400_000 }>>::deserialize")]
    pub time: Option<Duration>,
}

/// A file that was found but not read, because another user could have written it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IgnoredFile {
    pub path: PathBuf,
    pub owner: u32,
}

/// The result of the search from a directory upwards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProjectFile {
    /// The file that was read.
    pub path: Option<PathBuf>,
    /// Its values.
    pub defaults: ProjectDefaults,
    /// Nearer files of other users.
    pub ignored: Vec<IgnoredFile>,
}

impl ProjectDefaults {
    /// Reads the text of a file; `file` is only named in problems.
    ///
    /// # Errors
    /// All problems, in the order of the file.
    pub fn check(text: &str, file: &Path) -> Result<Self, Vec<Problem>> {
        read(text, file, "", &[], |_, _| {})
    }
}

impl ProjectFile {
    /// The nearest file from `start` upwards, up to the home directory (or the root, outside it), that belongs to
    /// this user or to root.
    pub fn find(start: &Path) -> Result<Self, ConfigError> {
        let home = BaseDirs::new().map(|b| b.home_dir().to_owned());
        Self::find_below(start, home.as_deref(), Uid::effective().as_raw())
    }

    fn find_below(start: &Path, home: Option<&Path>, uid: u32) -> Result<Self, ConfigError> {
        let mut found = Self::default();
        for dir in start.ancestors() {
            let path = dir.join(PROJECT_FILE);
            match owner(&path, uid) {
                Ok(Owner::Trusted(file)) => {
                    let text = io::read_to_string(file).map_err(|source| {
                        let path = path.clone();
                        ConfigError::Unreadable { path, source }
                    })?;
                    found.defaults =
                        ProjectDefaults::check(&text, &path).map_err(ConfigError::Invalid)?;
                    found.path = Some(path);
                    return Ok(found);
                }
                Ok(Owner::Other(owner)) => found.ignored.push(IgnoredFile { path, owner }),
                Err(e) if absent(&e) => {}
                Err(source) => return Err(ConfigError::Unreadable { path, source }),
            }
            if Some(dir) == home {
                break;
            }
        }
        Ok(found)
    }
}

/// Owner of a file.
enum Owner {
    /// The user's or root's: the open file.
    Trusted(File),
    /// Another user's.
    Other(u32),
}

/// Opens `path` if it and, if it is a link, the link belong to `uid` or to root: in a directory that others can
/// write, a link could point at any file of the user.
fn owner(path: &Path, uid: u32) -> io::Result<Owner> {
    let trusted = |owner: u32| owner == uid || owner == 0;
    let link = fs::symlink_metadata(path)?.uid();
    if !trusted(link) {
        return Ok(Owner::Other(link));
    }
    let file = File::open(path)?;
    let owner = file.metadata()?.uid();
    Ok(if trusted(owner) {
        Owner::Trusted(file)
    } else {
        Owner::Other(owner)
    })
}

/// A directory that may not be searched counts as one without the file.
fn absent(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::NotADirectory
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_file_of_the_user_counts() {
        let tmp = tempfile::tempdir().expect("tempdir");
        let home = tmp.path().join("home");
        let deep = home.join("a/b");
        fs::create_dir_all(&deep).expect("dirs");
        let uid = fs::metadata(&deep).expect("metadata").uid();

        fs::write(tmp.path().join(PROJECT_FILE), "gpus = 2").expect("write");
        let none = ProjectFile::find_below(&deep, Some(&home), uid).expect("find");
        assert_eq!(none.path, None, "the search ends at the home directory");

        fs::write(home.join(PROJECT_FILE), "gpus = 0.25\nsm = \"30%\"").expect("write");
        let far = ProjectFile::find_below(&deep, Some(&home), uid).expect("find");
        assert_eq!(far.defaults.gpus, "0.25".parse().ok());
        assert_eq!(far.defaults.sm, Some(Share::from_milli(300)));

        fs::write(deep.join(PROJECT_FILE), "gpus = 1").expect("write");
        let near = ProjectFile::find_below(&deep, Some(&home), uid).expect("find");
        assert_eq!(near.path, Some(deep.join(PROJECT_FILE)));
        assert_eq!(near.defaults.gpus, "1".parse().ok());
        assert_eq!(near.defaults.sm, None, "files do not add up");
    }

    #[test]
    fn a_file_of_somebody_else_is_ignored_and_named() {
        let tmp = tempfile::tempdir().expect("tempdir");
        let path = tmp.path().join(PROJECT_FILE);
        fs::write(&path, "gpus = 2").expect("write");
        let owner = fs::metadata(&path).expect("metadata").uid();
        if owner == 0 && nix::unistd::chown(&path, Some(4711.into()), None).is_err() {
            println!("skipped: cannot give a file to another user");
            return;
        }
        let owner = if owner == 0 { 4711 } else { owner };
        let found = ProjectFile::find_below(tmp.path(), None, owner + 1).expect("find");
        assert_eq!(found.defaults, ProjectDefaults::default());
        assert_eq!(found.ignored[0], IgnoredFile { path, owner });
        assert_eq!(found.ignored.len(), 1, "{found:?}");

        // A link of another user's to a file of the user's own is refused too.
        let dir = tmp.path().join("shared");
        fs::create_dir(&dir).expect("dir");
        let own = tmp.path().join("own.toml");
        fs::write(&own, "gpus = 1").expect("write");
        let link = dir.join(PROJECT_FILE);
        std::os::unix::fs::symlink(&own, &link).expect("link");
        let uid = fs::metadata(&own).expect("metadata").uid();
        if uid != 0 {
            println!("skipped: cannot give a link to another user");
            return;
        }
        let (user, other) = (Some(4712.into()), Some(4711.into()));
        nix::unistd::chown(&own, user, None).expect("chown");
        nix::unistd::fchownat(
            nix::fcntl::AT_FDCWD,
            &link,
            other,
            None,
            nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW,
        )
        .expect("chown");
        let found = ProjectFile::find_below(&dir, Some(&dir), 4712).expect("find");
        assert_eq!(found.path, None);
        assert_eq!(found.ignored[0].owner, 4711);
    }
}

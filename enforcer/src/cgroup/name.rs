//! Names of cgroups in the words of others.

use std::path::{Component, Path, PathBuf};

/// Longest name (`PATH_MAX`), in bytes.
const LONGEST: usize = 4096;

/// An absolute name that leads nowhere but downwards, each part once.
pub(crate) fn plain(name: &str) -> Option<PathBuf> {
    let path = Path::new(name);
    let down = |part| matches!(part, Component::RootDir | Component::Normal(_));
    let fits = path.is_absolute()
        && name.len() <= LONGEST
        && !name.contains(char::is_control)
        && path.components().all(down);
    fits.then(|| path.components().collect())
}

//! Checks of cgroup names from other programs.

use std::path::{Component, Path, PathBuf};

/// Maximum length (`PATH_MAX`), in bytes.
const LONGEST: usize = 4096;

/// An absolute name without `..`, control characters or superfluous parts.
pub(crate) fn plain(name: &str) -> Option<PathBuf> {
    let path = Path::new(name);
    let down = |part| matches!(part, Component::RootDir | Component::Normal(_));
    let fits = path.is_absolute()
        && name.len() <= LONGEST
        && !name.contains(char::is_control)
        && path.components().all(down);
    fits.then(|| path.components().collect())
}

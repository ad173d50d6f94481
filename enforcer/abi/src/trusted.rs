//! Whether only root can have put a file at a path: nobody else can write the file or rename any part of its path.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Component, Path, PathBuf},
};

/// Checks every part of an absolute path without links.
///
/// # Errors
/// A sentence that names the part and its fault.
pub fn trusted(path: &Path) -> Result<(), String> {
    if !path.is_absolute() {
        return Err(format!("{} is not absolute", path.display()));
    }
    let mut so_far = PathBuf::new();
    // A directory in which everybody may create entries, but whose sticky bit protects others' entries.
    let mut shared: Option<PathBuf> = None;
    for part in path.components() {
        if matches!(part, Component::ParentDir | Component::CurDir) {
            return Err(format!("{} is not a plain path", path.display()));
        }
        so_far.push(part);
        let found = fs::symlink_metadata(&so_far)
            .map_err(|error| format!("cannot stat {}: {error}", so_far.display()))?;
        if found.is_symlink() {
            return Err(format!("{} is a link", so_far.display()));
        }
        if found.uid() != 0 {
            return Err(format!(
                "{} belongs to uid {}, not to root",
                so_far.display(),
                found.uid()
            ));
        }
        // It is root's, so the directory's sticky bit protects it from others.
        shared = None;
        let others = found.mode() & 0o002 != 0;
        let group = found.mode() & 0o020 != 0 && found.gid() != 0;
        if !(others || group) {
            continue;
        }
        if found.is_dir() && found.mode() & 0o1000 != 0 {
            shared = Some(so_far.clone());
            continue;
        }
        let who = if others {
            "everybody".to_owned()
        } else {
            format!("group {}", found.gid())
        };
        return Err(format!("{} can be written by {who}", so_far.display()));
    }
    match shared {
        Some(dir) => Err(format!("{} can be written by others", dir.display())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    #[test]
    fn what_others_can_write_is_not_trusted() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path().canonicalize().unwrap();
        let dir = root.join("dir");
        let file = dir.join("file");
        fs::create_dir(&dir).unwrap();
        fs::write(&file, "").unwrap();
        let mode = |path: &Path, mode: u32| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        let check = || trusted(&file);
        let refused = |what: &str| {
            let error = check().unwrap_err();
            assert!(error.contains(what), "{error}");
        };
        // The scratch directory lies in a directory that all can write, with the sticky bit: only root's entries there
        // are safe.
        if fs::metadata(&root).unwrap().uid() != 0 {
            println!("skipped: needs root");
            return;
        }
        mode(&dir, 0o755);
        mode(&file, 0o644);
        assert_eq!(check(), Ok(()));
        for (bits, path) in [(0o666, &file), (0o646, &file), (0o757, &dir)] {
            let before = fs::metadata(path).unwrap().mode();
            mode(path, bits);
            refused("can be written by everybody");
            mode(path, before & 0o7777);
        }
        mode(&dir, 0o1777);
        assert_eq!(check(), Ok(()), "root's file in a sticky directory");
        chown(&file, Some(4711), None).unwrap();
        refused("belongs to uid 4711");
        chown(&file, Some(0), Some(4711)).unwrap();
        mode(&file, 0o664);
        refused("can be written by group 4711");
        mode(&file, 0o644);
        mode(&dir, 0o755);
        chown(&dir, Some(4711), None).unwrap();
        refused("dir belongs to uid 4711");
        chown(&dir, Some(0), None).unwrap();
        assert_eq!(check(), Ok(()));
        let link = root.join("link");
        symlink(&dir, &link).unwrap();
        assert!(
            trusted(&link.join("file"))
                .unwrap_err()
                .contains("is a link")
        );
        assert!(trusted(&dir.join("../dir/file")).is_err());
        assert!(trusted(&dir.join("absent")).is_err());
        assert!(trusted(Path::new("etc/passwd")).is_err());
    }
}

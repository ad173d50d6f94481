//! The launcher `gshare-exec`: where it is, whether it can be trusted, how it is installed. It is part of the program
//! (`gshare_artifacts::Part`), so that any `gshare` can install it.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use gshare_abi::trusted;
use xattr::FileExt;

pub const NAME: &str = "gshare-exec";
/// A file beside it: one line with the path of the service's socket, if it is not the usual one.
pub const SOCKET_FILE: &str = "gshare-exec.socket";

const ATTRIBUTE: &str = "security.capability";
/// CAP_SYS_ADMIN among the permitted ones, revision 2 of the attribute (linux/capability.h): little-endian
/// words magic, permitted, inheritable, permitted, inheritable (low half, then high half).
const VALUE: [u8; 20] = [
    0, 0, 0, 2, //
    0, 0, 0x20, 0, 0, 0, 0, 0, //
    0, 0, 0, 0, 0, 0, 0, 0,
];

/// Directories used by packages and `gshare setup`, searched after the program's own.
const PLACES: [&str; 2] = ["/usr/lib/gshare", "/usr/local/lib/gshare"];

/// The launcher of the configuration, otherwise the first installed one.
///
/// # Errors
///
/// Why none can be used, in words.
pub fn find(configured: Option<&Path>) -> Result<PathBuf, String> {
    if let Some(path) = configured {
        return check(path);
    }
    let beside = std::env::current_exe()
        .ok()
        .and_then(|exe| Some(exe.parent()?.parent()?.join("lib/gshare")));
    let mut places = beside.into_iter().chain(PLACES.map(PathBuf::from));
    let found = places.find_map(|dir| Some(dir.join(NAME)).filter(|path| path.exists()));
    match found {
        Some(path) => check(&path),
        None => Err(format!("{NAME} is not installed")),
    }
}

/// Checks that it can enforce limits: only root can write it, and it has its capability, if capabilities matter.
/// Returns its path without links.
///
/// # Errors
///
/// What is wrong, in words.
pub fn check(path: &Path) -> Result<PathBuf, String> {
    let path = path
        .canonicalize()
        .map_err(|error| format!("{}: {error}", path.display()))?;
    trusted(&path)?;
    let shown = path.display();
    let found = fs::metadata(&path).map_err(|error| format!("{shown}: {error}"))?;
    if !found.is_file() || found.mode() & 0o111 != 0o111 {
        return Err(format!("{shown} is not a file that all users can run"));
    }
    let attribute = xattr::get(&path, ATTRIBUTE).map_err(|error| format!("{shown}: {error}"))?;
    if !attribute.is_some_and(|value| permits(&value)) {
        return Err(format!("{shown} has no capability"));
    }
    let nosuid = nix::sys::statvfs::statvfs(&path)
        .is_ok_and(|fs| fs.flags().contains(nix::sys::statvfs::FsFlags::ST_NOSUID));
    if nosuid {
        return Err(format!("{shown} is on a file system mounted nosuid"));
    }
    Ok(path)
}

/// Whether a file has the launcher's capability.
#[must_use]
pub fn has_capability(path: &Path) -> bool {
    xattr::get(path, ATTRIBUTE).is_ok_and(|value| value.is_some_and(|value| permits(&value)))
}

/// Whether the attribute has CAP_SYS_ADMIN among the permitted ones.
fn permits(value: &[u8]) -> bool {
    value.get(4..8).is_some_and(|low| low[2] & 0x20 != 0)
}

/// Writes the launcher to `path` with its capability, and the service's socket path beside it if it is not the usual
/// one. The file is replaced as a whole: running launchers are not affected. Needs root.
///
/// # Errors
///
/// When a file cannot be written or the file system does not support capabilities.
pub fn install(path: &Path, socket: Option<&Path>) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(dir)?;
    let beside = dir.join(SOCKET_FILE);
    match socket {
        Some(socket) => {
            fs::write(&beside, format!("{}\n", socket.display()))?;
            fs::set_permissions(&beside, fs::Permissions::from_mode(0o644))?;
        }
        None => match fs::remove_file(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        },
    }
    let scratch = dir.join(format!(".{NAME}.{}", std::process::id()));
    let _ = fs::remove_file(&scratch);
    let launcher = gshare_artifacts::Part::Launcher.read()?;
    let written = write(&scratch, &launcher).and_then(|()| fs::rename(&scratch, path));
    if written.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(&scratch);
    }
    written
}

/// Writes the launcher to a new file. Everything is done through the open file: another user may own the directory
/// and replace the file by a link.
fn write(path: &Path, launcher: &[u8]) -> io::Result<()> {
    use std::io::Write;
    let mut file = fs::File::create_new(path)?;
    file.write_all(launcher)?;
    file.set_permissions(fs::Permissions::from_mode(0o755))?;
    file.set_xattr(ATTRIBUTE, &VALUE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installed_launcher_is_found_sound_until_it_is_not() {
        if !nix::unistd::Uid::effective().is_root() {
            println!("skipped: needs root");
            return;
        }
        let dir = tempfile::tempdir().expect("made");
        let path = dir.path().join("lib/gshare").join(NAME);
        fs::create_dir_all(path.parent().expect("below")).expect("made");
        assert!(check(&path).is_err());
        install(&path, Some(Path::new("/x/y.sock"))).expect("installed");
        assert_eq!(check(&path), Ok(path.canonicalize().expect("there")));
        assert_eq!(find(Some(&path)), check(&path));
        let beside = path.with_file_name(SOCKET_FILE);
        assert_eq!(fs::read_to_string(&beside).expect("written"), "/x/y.sock\n");
        let refused = |why: &str| {
            let error = check(&path).expect_err("refused");
            assert!(error.contains(why), "{error}");
        };
        fs::set_permissions(&path, fs::Permissions::from_mode(0o757)).expect("set");
        refused("can be written by everybody");
        install(&path, None).expect("again");
        assert!(!beside.exists());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("set");
        refused("all users can run");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("set");
        xattr::remove(&path, ATTRIBUTE).expect("removed");
        refused("no capability");
    }

    #[test]
    fn only_the_capability_for_mounts_counts() {
        assert!(permits(&VALUE));
        assert!(!permits(&[0; 20]));
        assert!(!permits(b""));
        let mut other = VALUE;
        other[6] = 0x10;
        assert!(!permits(&other));
    }
}

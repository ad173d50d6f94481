//! Installs and removes wrapped kernelspecs. A kernelspec is made in a temporary place and renamed, so that Jupyter
//! sees all of it or nothing.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::spec::{Kernel, is_name};

/// Result of an installation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was not there.
    Installed,
    /// It was there with other contents.
    Replaced,
    /// It was there with the same contents.
    Unchanged,
}

/// Why a kernelspec could not be installed or removed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error("`{0}` is not a name for a kernel: use letters, digits, `-`, `.` and `_`")]
    Name(String),
    #[error("{} is a kernel that gshare has not made", .0.display())]
    Foreign(PathBuf),
    #[error("{}: {source}", path.display())]
    Io {
        /// File or directory.
        path: PathBuf,
        source: io::Error,
    },
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> InstallError + '_ {
    move |source| InstallError::Io {
        path: path.to_owned(),
        source,
    }
}

/// Installs a copy of `from` with another `kernel.json` into `kernels` under a name.
///
/// # Errors
///
/// When another kernel has the name, or a file operation fails.
pub fn install(
    from: &Kernel,
    json: &str,
    kernels: &Path,
    name: &str,
) -> Result<Outcome, InstallError> {
    if !is_name(name) {
        return Err(InstallError::Name(name.to_owned()));
    }
    let place = kernels.join(name.to_lowercase());
    let there = place.symlink_metadata().is_ok();
    if there {
        match Kernel::read(&place) {
            Ok(kernel) if kernel.made_from().is_some() => {}
            _ => return Err(InstallError::Foreign(place)),
        }
        if same(from, json, &place) {
            return Ok(Outcome::Unchanged);
        }
    }
    fs::create_dir_all(kernels).map_err(at(kernels))?;
    let new = tempfile::Builder::new()
        .prefix(".gshare-")
        .tempdir_in(kernels)
        .map_err(at(kernels))?;
    copy(&from.dir, new.path())?;
    let file = new.path().join("kernel.json");
    fs::write(&file, json).map_err(at(&file))?;
    // Temporary directories are private; make it readable.
    fs::set_permissions(
        new.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .map_err(at(new.path()))?;
    let old = there.then(|| new.path().with_extension("old"));
    if let Some(old) = &old {
        fs::rename(&place, old).map_err(at(&place))?;
    }
    if let Err(error) = fs::rename(new.path(), &place) {
        if let Some(old) = &old {
            fs::rename(old, &place).map_err(at(&place))?;
        }
        return Err(at(&place)(error));
    }
    let _moved = new.keep();
    match old {
        Some(old) => {
            fs::remove_dir_all(&old).map_err(at(&old))?;
            Ok(Outcome::Replaced)
        }
        None => Ok(Outcome::Installed),
    }
}

/// Removes a kernelspec that gshare has made.
///
/// # Errors
///
/// When it is not gshare's, or a file operation fails.
pub fn remove(kernel: &Kernel) -> Result<(), InstallError> {
    if kernel.made_from().is_none() {
        return Err(InstallError::Foreign(kernel.dir.clone()));
    }
    fs::remove_dir_all(&kernel.dir).map_err(at(&kernel.dir))
}

/// The other files of a kernelspec (logos, scripts), without directories.
fn others(dir: &Path) -> Result<Vec<PathBuf>, InstallError> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(at(dir))? {
        let path = entry.map_err(at(dir))?.path();
        if path.is_file() && path.file_name().is_some_and(|name| name != "kernel.json") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn copy(from: &Path, to: &Path) -> Result<(), InstallError> {
    for file in others(from)? {
        let name = file.file_name().unwrap_or_default();
        fs::copy(&file, to.join(name)).map_err(at(&file))?;
    }
    Ok(())
}

fn same(from: &Kernel, json: &str, place: &Path) -> bool {
    let equal = |file: &PathBuf| {
        let name = file.file_name().unwrap_or_default();
        matches!((fs::read(file), fs::read(place.join(name))), (Ok(a), Ok(b)) if a == b)
    };
    let (Ok(wanted), Ok(there)) = (others(&from.dir), others(place)) else {
        return false;
    };
    fs::read_to_string(place.join("kernel.json")).is_ok_and(|text| text == json)
        && wanted.len() == there.len()
        && wanted.iter().all(equal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::spec::Size;

    #[test]
    fn a_kernel_is_installed_once_and_others_are_left_alone() {
        let dir = tempfile::tempdir().expect("made");
        let (from, kernels) = (dir.path().join("src/ir"), dir.path().join("kernels"));
        fs::create_dir_all(&from).expect("made");
        fs::write(
            from.join("kernel.json"),
            r#"{"argv": ["/bin/R"], "display_name": "R"}"#,
        )
        .expect("written");
        fs::write(from.join("logo-64x64.png"), "png").expect("written");
        let kernel = Kernel::read(&from).expect("reads");
        let text = |label: &str| {
            let size = Size {
                args: vec!["-g".into(), label.into()],
                label: label.into(),
            };
            kernel
                .wrapped(
                    Path::new("/gshare"),
                    &size,
                    &kernel.display_name_with(&size),
                )
                .expect("wrapped")
        };
        let put = |label: &str| install(&kernel, &text(label), &kernels, "IR-gshare");
        assert_eq!(put("0.25").expect("put"), Outcome::Installed);
        assert_eq!(put("0.25").expect("put"), Outcome::Unchanged);
        assert_eq!(put("0.5").expect("put"), Outcome::Replaced);
        fs::remove_file(kernels.join("ir-gshare/logo-64x64.png")).expect("removed");
        assert_eq!(put("0.5").expect("put"), Outcome::Replaced);
        let made = Kernel::read(&kernels.join("ir-gshare")).expect("reads");
        assert_eq!(
            (made.made_from(), made.size(), made.display_name()),
            (Some("ir"), Some("0.5"), "R (gshare 0.5)")
        );
        assert_eq!(
            fs::read_to_string(made.dir.join("logo-64x64.png")).expect("read"),
            "png"
        );
        let left: Vec<_> = fs::read_dir(&kernels).expect("read").flatten().collect();
        assert_eq!(left.len(), 1, "nothing half-made is left: {left:?}");
        remove(&made).expect("removed");
        assert!(!made.dir.exists());

        fs::create_dir_all(kernels.join("ir-gshare")).expect("made");
        fs::write(
            kernels.join("ir-gshare/kernel.json"),
            r#"{"argv": ["/bin/R"]}"#,
        )
        .expect("written");
        assert!(matches!(put("0.5"), Err(InstallError::Foreign(_))));
        let foreign = Kernel::read(&kernels.join("ir-gshare")).expect("reads");
        assert!(matches!(remove(&foreign), Err(InstallError::Foreign(_))));
        assert!(matches!(
            install(&kernel, "{}", &kernels, "../x"),
            Err(InstallError::Name(_))
        ));
    }
}

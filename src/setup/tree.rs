//! The tree of an installation. It may belong to another user, such as an image that a user builds: links in it are
//! resolved with the tree as the root directory, and never lead outside.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::Mode;

/// Maximum bytes of a file: five times gshare's own largest, a debug build.
const LONGEST: u64 = 1 << 30;

/// The tree. Paths in it are written as they are seen from inside: `/usr/bin`.
#[derive(Debug)]
pub(super) struct Tree {
    path: PathBuf,
    /// Absent while there is no such directory.
    top: Option<OwnedFd>,
}

/// A place in the tree, relative to an open directory: changes of the tree by others do not move it.
#[derive(Debug)]
pub(super) struct Place {
    _dir: OwnedFd,
    path: PathBuf,
}

impl std::ops::Deref for Place {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

impl Tree {
    /// # Errors
    ///
    /// When it cannot be opened; a missing directory is no error.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let top = match open(path, flags, Mode::empty()) {
            Ok(top) => Some(top),
            Err(nix::Error::ENOENT) => None,
            Err(error) => return Err(error.into()),
        };
        Ok(Self {
            path: path.to_owned(),
            top,
        })
    }

    /// A path for display.
    pub(super) fn shown(&self, path: &Path) -> PathBuf {
        self.path.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Opens a path, with links resolved within the tree; the handle cannot read or write.
    pub(super) fn find(&self, path: &Path) -> io::Result<OwnedFd> {
        let top = self.top.as_ref().ok_or(ErrorKind::NotFound)?;
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        let below = path.strip_prefix("/").unwrap_or(path);
        let below = if below.as_os_str().is_empty() {
            Path::new(".")
        } else {
            below
        };
        Ok(openat2(top, below, how)?)
    }

    /// The place of a file in an existing directory. The last part of the path is not resolved if it is a link.
    pub(super) fn place(&self, path: &Path) -> io::Result<Place> {
        let invalid = || io::Error::from(ErrorKind::InvalidInput);
        let name = path.file_name().ok_or_else(invalid)?;
        let dir = self.find(path.parent().ok_or_else(invalid)?)?;
        if !is_dir(&dir)? {
            return Err(ErrorKind::NotADirectory.into());
        }
        let path = Path::new("/proc/self/fd")
            .join(dir.as_raw_fd().to_string())
            .join(name);
        Ok(Place { _dir: dir, path })
    }

    /// Creates the directories above a path; returns the new ones, parents first.
    ///
    /// # Errors
    ///
    /// With the directory that could not be created.
    pub(super) fn make_dirs(&mut self, path: &Path) -> Result<Vec<PathBuf>, (PathBuf, io::Error)> {
        if self.top.is_none() {
            fs::create_dir_all(&self.path).map_err(|e| (self.path.clone(), e))?;
            *self = Self::open(&self.path).map_err(|e| (self.path.clone(), e))?;
        }
        let missing = |dir: &&Path| {
            self.find(dir)
                .is_err_and(|e| e.kind() == ErrorKind::NotFound)
        };
        let missing: Vec<&Path> = path.ancestors().skip(1).take_while(missing).collect();
        let mut made = Vec::new();
        for dir in missing.into_iter().rev() {
            let make = || {
                let place = self.place(dir)?;
                fs::create_dir(&*place)?;
                fs::set_permissions(&*place, Permissions::from_mode(0o755))
            };
            make().map_err(|e| (self.shown(dir), e))?;
            made.push(dir.to_owned());
        }
        Ok(made)
    }
}

/// Whether an open file is a directory.
pub(super) fn is_dir(file: &OwnedFd) -> io::Result<bool> {
    let stat = nix::sys::stat::fstat(file)?;
    Ok(stat.st_mode & libc::S_IFMT == libc::S_IFDIR)
}

/// Reads a file, but never through a link in its place.
///
/// # Errors
///
/// The kernel's, including `ELOOP` for a link; and for no file, or one of more than 1 GiB.
pub(super) fn read(place: &Path) -> io::Result<Vec<u8>> {
    use io::Read;
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let file = nix::fcntl::openat(AT_FDCWD, place, flags, Mode::empty())?;
    let file = fs::File::from(file);
    let meta = file.metadata()?;
    if !meta.is_file() || meta.len() > LONGEST {
        return Err(io::Error::other(
            "it is not a regular file, or is larger than 1 GiB",
        ));
    }
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

//! The files that belong to an installed program. They are opened once: packages replace files and do not write into
//! them, so a service keeps its own files during an upgrade.

use std::{
    borrow::Cow,
    env,
    fs::File,
    io::{self, Read, Seek},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

/// Directory of the files of a program in `PREFIX/bin`, below `PREFIX`.
pub const BESIDE: &str = "lib/gshare/parts";

/// A file that belongs to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The proxy of libcuda, before the paths of the driver and the service are written into it.
    Shim,
    /// The proxy of libnvidia-ml, likewise.
    NvmlProxy,
    /// The launcher `gshare-exec`, without its capability.
    Launcher,
}

impl Part {
    /// All parts.
    pub const ALL: [Self; 3] = [Self::Shim, Self::NvmlProxy, Self::Launcher];

    /// Name of its file.
    #[must_use]
    pub fn file(self) -> &'static str {
        match self {
            Self::Shim => "libgshare_shim.so",
            Self::NvmlProxy => "libgshare_nvml_proxy.so",
            Self::Launcher => "gshare-exec",
        }
    }

    #[cfg(feature = "carried")]
    pub(crate) fn carried(self) -> &'static [u8] {
        match self {
            Self::Shim => crate::carried::SHIM,
            Self::NvmlProxy => crate::carried::NVML_PROXY,
            Self::Launcher => crate::carried::EXEC,
        }
    }

    /// Its content: from the file beside the program, or from the program itself in a clone.
    ///
    /// # Errors
    /// If the file does not exist or cannot be read; the text names it.
    pub fn read(self) -> io::Result<Cow<'static, [u8]>> {
        static OPEN: Mutex<Option<Files>> = Mutex::new(None);
        let directory = beside(&env::current_exe()?);
        #[cfg(feature = "carried")]
        if !directory.is_dir() {
            return Ok(Cow::Borrowed(self.carried()));
        }
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let files = match &mut *open {
            Some(files) => files,
            none => none.insert(Files::open(&directory)?),
        };
        files.read(self).map(Cow::Owned)
    }
}

/// The open files, in the order of [`Part::ALL`].
struct Files([File; 3]);

impl Files {
    fn open(directory: &Path) -> io::Result<Self> {
        let open = |part: Part| {
            let path = directory.join(part.file());
            File::open(&path).map_err(|error| {
                let text = format!(
                    "gshare is not completely installed: {}: {error}",
                    path.display()
                );
                io::Error::new(error.kind(), text)
            })
        };
        let [shim, nvml_proxy, launcher] = Part::ALL;
        Ok(Self([open(shim)?, open(nvml_proxy)?, open(launcher)?]))
    }

    fn read(&mut self, part: Part) -> io::Result<Vec<u8>> {
        let file = &mut self.0[part as usize];
        let mut bytes = Vec::new();
        file.rewind()?;
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// Directory of an installed program's files.
#[must_use]
pub fn beside(program: &Path) -> PathBuf {
    let prefix = program.parent().and_then(Path::parent);
    prefix.unwrap_or_else(|| Path::new("/")).join(BESIDE)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_upgrade_does_not_mix_two_versions() {
        let prefix = tempfile::tempdir().unwrap();
        let directory = beside(&prefix.path().join("bin/gshare"));
        fs::create_dir_all(&directory).unwrap();
        for part in Part::ALL {
            fs::write(directory.join(part.file()), part.file()).unwrap();
        }
        let mut files = Files::open(&directory).unwrap();
        // Like a package: the new file takes the old one's name.
        for part in Part::ALL {
            fs::write(directory.join("new"), "newer").unwrap();
            fs::rename(directory.join("new"), directory.join(part.file())).unwrap();
        }
        for part in Part::ALL {
            assert_eq!(files.read(part).unwrap(), part.file().as_bytes());
            assert_eq!(files.read(part).unwrap().len(), part.file().len(), "again");
        }
        let mut newer = Files::open(&directory).unwrap();
        assert_eq!(newer.read(Part::Launcher).unwrap(), b"newer");
    }

    #[test]
    fn a_file_that_is_missing_is_named() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(Part::Shim.file()), "").unwrap();
        let error = Files::open(directory.path()).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(
            error.to_string().contains(Part::NvmlProxy.file()),
            "{error}"
        );
    }
}

//! The paths of the driver's own libraries: `libcuda.so.1` and `libnvidia-ml.so.1`.
//!
//! Searches like the dynamic loader: the configured path, `LD_LIBRARY_PATH`, the loader's cache, the usual directories.
//! gshare's own stand-ins for these names are skipped, or the shim would be mounted over itself.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The cache that ldconfig writes.
const CACHE: &str = "/etc/ld.so.cache";
/// Directories of the driver if the cache does not contain it (NixOS, WSL, no ldconfig).
const USUAL: [&str; 9] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/lib",
    "/usr/local/lib",
    "/run/opengl-driver/lib",
    "/usr/lib/wsl/lib",
];

/// Further directories, which only contain other processors' libraries, or several drivers' (Debian's alternatives).
const OTHERS: [&str; 6] = [
    "/usr/lib/i386-linux-gnu",
    "/usr/lib/i686-linux-gnu",
    "/usr/lib32",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/i386-linux-gnu/nvidia/current",
    "/usr/lib/nvidia",
];
/// Error for a library of another word size or processor.
const FOREIGN: &str = "for another processor";

/// A library of the NVIDIA driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    /// The CUDA driver API.
    Cuda,
    Nvml,
}

impl Library {
    /// The file name that programs load.
    #[must_use]
    pub fn file_name(self) -> &'static str {
        match self {
            Self::Cuda => "libcuda.so.1",
            Self::Nvml => "libnvidia-ml.so.1",
        }
    }
}

/// Where to search, and where not.
#[derive(Debug, Clone, Default)]
pub struct Search {
    /// Configured path of the file or its directory. If set, nothing else counts.
    pub configured: Option<PathBuf>,
    /// The value of `LD_LIBRARY_PATH`.
    pub library_path: Option<std::ffi::OsString>,
    /// Directories to skip: those with gshare's stand-ins.
    pub without: Vec<PathBuf>,
}

/// A file of a driver library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    /// The path without links.
    pub path: PathBuf,
    /// Whether it is for this processor and word size; other programs load the others.
    pub loads: bool,
}

/// The library was not found.
#[derive(Debug, thiserror::Error)]
#[error(
    "no usable {} found; looked at {}\n\
     hint: install the NVIDIA driver, or name the library in the configuration",
    library.file_name(),
    if looked.is_empty() { "nothing".to_owned() } else { looked.join(", ") }
)]
pub struct NotFound {
    pub library: Library,
    /// The places, each with its error.
    pub looked: Vec<String>,
}

impl Search {
    /// The search for this process: its environment, nothing configured.
    #[must_use]
    pub fn of_this_process() -> Self {
        Self {
            library_path: std::env::var_os("LD_LIBRARY_PATH"),
            ..Self::default()
        }
    }

    /// The absolute path of the library, with links kept (a driver update changes their targets).
    ///
    /// # Errors
    /// [`NotFound`] with all places that were tried.
    pub fn locate(&self, library: Library) -> Result<PathBuf, NotFound> {
        let cache = std::fs::read(CACHE).unwrap_or_default();
        let usual = USUAL.map(PathBuf::from);
        self.locate_in(library, &cache, &usual)
    }

    /// Every file under which programs can find the library on this machine: `libcuda.so.1`, `libcuda.so` and the
    /// versioned name, in all of the loader's directories and for all word sizes, with links resolved, each once.
    /// `found` is the result of [`Self::locate`].
    #[must_use]
    pub fn installed(&self, library: Library, found: &Path) -> Vec<Installed> {
        let cache = std::fs::read(CACHE).unwrap_or_default();
        let usual = USUAL
            .iter()
            .chain(&OTHERS)
            .map(PathBuf::from)
            .collect::<Vec<_>>();
        self.installed_in(library, found, &cache, &usual)
    }

    fn installed_in(
        &self,
        library: Library,
        found: &Path,
        cache: &[u8],
        usual: &[PathBuf],
    ) -> Vec<Installed> {
        let stem = library.file_name().trim_end_matches(".1");
        let is_name = |name: &str| {
            name.strip_prefix(stem)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let listed = entries(cache)
            .filter(|(key, _)| is_name(key))
            .map(|(_, path)| PathBuf::from(path));
        let files = listed.chain([found.to_owned()]);
        let mut dirs: Vec<PathBuf> = files.filter_map(|f| Some(f.parent()?.to_owned())).collect();
        dirs.extend_from_slice(usual);
        let mut seen = std::collections::BTreeSet::new();
        let mut installed = Vec::new();
        for dir in dirs {
            for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
                let named = entry.file_name().to_str().is_some_and(is_name);
                let Ok(path) = entry.path().canonicalize() else {
                    continue;
                };
                if !named || self.is_ours(&path) || !path.is_file() || !seen.insert(path.clone()) {
                    continue;
                }
                match check_elf(&path) {
                    Ok(()) => installed.push(Installed { path, loads: true }),
                    Err(error) if error.to_string() == FOREIGN => {
                        installed.push(Installed { path, loads: false });
                    }
                    Err(_) => {}
                }
            }
        }
        installed
    }

    fn locate_in(
        &self,
        library: Library,
        cache: &[u8],
        usual: &[PathBuf],
    ) -> Result<PathBuf, NotFound> {
        let name = library.file_name();
        let mut looked = Vec::new();
        for path in self.candidates(name, cache, usual) {
            let fault = if self.is_ours(&path) {
                "is gshare's own".to_owned()
            } else {
                match check_elf(&path) {
                    Ok(()) => return Ok(path),
                    Err(e) if e.kind() == io::ErrorKind::NotFound => "not there".to_owned(),
                    Err(e) => e.to_string(),
                }
            };
            let line = format!("{} ({fault})", path.display());
            if !looked.contains(&line) {
                looked.push(line);
            }
        }
        Err(NotFound { library, looked })
    }

    fn candidates(&self, name: &str, cache: &[u8], usual: &[PathBuf]) -> Vec<PathBuf> {
        if let Some(configured) = &self.configured {
            let path = if configured.is_dir() {
                configured.join(name)
            } else {
                configured.clone()
            };
            return vec![path];
        }
        let library_path = self.library_path.clone().unwrap_or_default();
        std::env::split_paths(&library_path)
            .filter(|dir| dir.is_absolute())
            .map(|dir| dir.join(name))
            .chain(cached(cache, name))
            .chain(usual.iter().map(|dir| dir.join(name)))
            .collect()
    }

    fn is_ours(&self, path: &Path) -> bool {
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.into());
        let Some(dir) = path.parent() else {
            return false;
        };
        self.without.iter().any(|ours| real(ours) == real(dir))
    }
}

/// Refuses files that the loader would refuse: other word sizes, other processors, linker scripts.
fn check_elf(path: &Path) -> io::Result<()> {
    let mut head = [0_u8; 20];
    File::open(path)?
        .read_exact(&mut head)
        .map_err(|_| io::Error::other("too short for a library"))?;
    let machine = u16::from_le_bytes([head[18], head[19]]);
    let own = match std::env::consts::ARCH {
        "aarch64" => 183,
        _ => 62,
    };
    if head[..4] != *b"\x7fELF" {
        Err(io::Error::other("not a library"))
    } else if head[4] != 2 || machine != own {
        Err(io::Error::other(FOREIGN))
    } else {
        Ok(())
    }
}

/// Paths of a name in `/etc/ld.so.cache`, in its order. A truncated cache, or one in another format, yields fewer or
/// none.
fn cached(cache: &[u8], name: &str) -> Vec<PathBuf> {
    entries(cache)
        .filter(|(key, _)| *key == name)
        .map(|(_, value)| PathBuf::from(value))
        .collect()
}

/// All names and paths of the cache.
fn entries(cache: &[u8]) -> impl Iterator<Item = (&str, &str)> {
    const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
    const HEADER: usize = 48;
    const ENTRY: usize = 24;
    // A table in the old format may precede it; offsets count from the start of the new one.
    let start = cache.windows(MAGIC.len()).position(|w| w == MAGIC);
    let table = start.map_or(&[][..], |start| &cache[start..]);
    let word = move |at: usize| {
        let bytes = table.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    let text = move |at: usize| {
        let bytes = table.get(at..)?;
        let end = bytes.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(&bytes[..end]).ok()
    };
    let entry = move |at: usize| {
        let (key, value) = (text(word(at + 4)?)?, text(word(at + 8)?)?);
        Some((key, value))
    };
    let count = word(MAGIC.len()).unwrap_or(0).min(table.len() / ENTRY);
    (0..count).filter_map(move |i| entry(HEADER + i * ENTRY))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const OWN: &[u8] = &{
        let mut head = [0_u8; 20];
        (head[0], head[1], head[2], head[3], head[4]) = (0x7f, b'E', b'L', b'F', 2);
        head[18] = if cfg!(target_arch = "aarch64") {
            183
        } else {
            62
        };
        head
    };

    fn cache_of(entries: &[(&str, &str)]) -> Vec<u8> {
        let mut strings = Vec::new();
        let mut table = Vec::new();
        let base = 48 + 24 * entries.len();
        let mut put = |text: &str| {
            let at = u32::try_from(base + strings.len()).unwrap();
            strings.extend(text.bytes().chain([0]));
            at.to_le_bytes()
        };
        for (key, value) in entries {
            table.extend(3_u32.to_le_bytes());
            table.extend(put(key));
            table.extend(put(value));
            table.extend([0; 12]);
        }
        let mut cache = b"glibc-ld.so.cache1.1".to_vec();
        cache.extend(u32::try_from(entries.len()).unwrap().to_le_bytes());
        cache.resize(48, 0);
        cache.extend(table);
        cache.extend(strings);
        cache
    }

    #[test]
    fn reads_the_loaders_cache() {
        let cache = cache_of(&[
            ("libcuda.so.1", "/a/libcuda.so.1"),
            ("libc.so.6", "/b/libc.so.6"),
            ("libcuda.so.1", "/i386/libcuda.so.1"),
        ]);
        let paths = |cache: &[u8], name: &str| cached(cache, name);
        assert_eq!(
            paths(&cache, "libcuda.so.1"),
            [
                Path::new("/a/libcuda.so.1"),
                Path::new("/i386/libcuda.so.1")
            ]
        );
        assert!(paths(&cache, "libcuda.so").is_empty());
        let mut behind_old = b"ld.so-1.7.0\0\0\0\0\0".to_vec();
        behind_old.extend(&cache);
        assert_eq!(paths(&behind_old, "libc.so.6"), [Path::new("/b/libc.so.6")]);
        for end in 0..cache.len() {
            assert!(paths(&cache[..end], "libcuda.so.1").len() <= 2);
        }
    }

    #[test]
    fn finds_what_is_in_the_cache_of_this_machine() {
        let Ok(cache) = fs::read(CACHE) else {
            println!("skipped: no {CACHE}");
            return;
        };
        let found = cached(&cache, "libc.so.6");
        assert!(
            found.iter().any(|path| check_elf(path).is_ok()),
            "{found:?}"
        );
    }

    #[test]
    fn finds_every_name_and_word_size_once() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let make = |name: &str, bytes: &[u8]| {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, bytes).unwrap();
            path
        };
        let mut other = OWN.to_vec();
        other[4] = 1;
        let real = make("a/libcuda.so.550.54", OWN);
        for link in ["a/libcuda.so.1", "a/libcuda.so"] {
            std::os::unix::fs::symlink("libcuda.so.550.54", root.join(link)).unwrap();
        }
        let small = make("i386/libcuda.so.1", &other);
        let copy = make("b/libcuda.so", OWN);
        make("a/libcudart.so.12", OWN);
        make("b/libcuda.so.1.text", b"/* GNU ld script */ INPUT(x)");
        make("b/libnvidia-ml.so.1", OWN);
        let shim = make("shim/libcuda.so.1", OWN);
        std::os::unix::fs::symlink("nowhere", root.join("b/libcuda.so.9")).unwrap();
        let cache = cache_of(&[
            ("libcuda.so.1", small.to_str().unwrap()),
            (
                "libcuda.so.1",
                root.join("a/libcuda.so.1").to_str().unwrap(),
            ),
        ]);
        let search = Search {
            without: vec![root.join("shim")],
            ..Search::default()
        };
        let usual = [
            root.join("b"),
            root.join("absent"),
            shim.parent().unwrap().to_owned(),
        ];
        let mut found = search.installed_in(Library::Cuda, &real, &cache, &usual);
        found.sort_by(|a, b| a.path.cmp(&b.path));
        let expect = |path: &Path, loads| Installed {
            path: path.into(),
            loads,
        };
        assert_eq!(
            found,
            [
                expect(&real, true),
                expect(&copy, true),
                expect(&small, false)
            ]
        );
    }

    #[test]
    fn takes_the_first_that_fits() {
        let dir = tempfile::tempdir().unwrap();
        let at = |sub: &str| {
            fs::create_dir_all(dir.path().join(sub)).unwrap();
            dir.path().join(sub).join("libcuda.so.1")
        };
        let (path, cache, usual, shim) = (at("path"), at("cache"), at("usual"), at("shim"));
        let entries = [("libcuda.so.1", cache.to_str().unwrap())];
        let cache_bytes = cache_of(&entries);
        let usual_dirs = [usual.parent().unwrap().to_owned()];
        let mut search = Search {
            configured: None,
            library_path: Some(
                std::env::join_paths([
                    Path::new("relative"),
                    shim.parent().unwrap(),
                    path.parent().unwrap(),
                ])
                .unwrap(),
            ),
            without: vec![dir.path().join("path/../shim")],
        };
        let locate = |search: &Search| search.locate_in(Library::Cuda, &cache_bytes, &usual_dirs);

        fs::write(&shim, OWN).unwrap();
        let error = locate(&search).unwrap_err();
        assert_eq!(error.looked.len(), 4);
        let text = error.to_string();
        assert!(
            text.contains("shim/libcuda.so.1 (is gshare's own)"),
            "{text}"
        );
        assert!(text.contains("usual/libcuda.so.1 (not there)"), "{text}");

        fs::write(&usual, OWN).unwrap();
        assert_eq!(locate(&search).unwrap(), usual);
        let mut other = OWN.to_vec();
        other[4] = 1;
        fs::write(&path, other).unwrap();
        fs::write(&cache, OWN).unwrap();
        assert_eq!(locate(&search).unwrap(), cache);
        fs::write(&path, OWN).unwrap();
        assert_eq!(locate(&search).unwrap(), path);

        // A configured place excludes all others.
        search.configured = Some(usual.parent().unwrap().into());
        assert_eq!(locate(&search).unwrap(), usual);
        fs::write(&usual, "/* GNU ld script */ INPUT(x)").unwrap();
        let error = locate(&search).unwrap_err().to_string();
        assert!(
            error.contains("usual/libcuda.so.1 (not a library)"),
            "{error}"
        );
    }
}

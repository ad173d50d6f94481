//! Puts the shared objects where programs find them. Files appear atomically, and a file that a running program has
//! mapped is replaced, never rewritten.

use std::{
    fs,
    io::{self, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{OpenOptionsExt, PermissionsExt, symlink},
    },
    path::Path,
    process,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{
    names::defined,
    parts::Part,
    patch::{is_proxy, leave_out, patched, stamp},
};

/// What happens to a process that loads the proxy and cannot register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It gets the driver unchanged: the environment loaded the proxy, and anybody can set that.
    Preload,
    /// It has no GPU: a launcher put the proxy in the driver's place.
    Strict,
}

impl Mode {
    fn word(self) -> &'static [u8] {
        match self {
            Self::Preload => b"preload",
            Self::Strict => b"strict",
        }
    }
}

/// Fills `directory` (created if absent, mode 0755) with the proxy as `libcuda.so.1` and `libcuda.so`. First on
/// `LD_LIBRARY_PATH` it precedes the driver at `real_libcuda`; processes register at `socket`. Both paths must be
/// absolute. If the driver's `libnvidia-ml.so.1` lies beside its libcuda, its proxy is included.
pub fn stage_shim(
    directory: &Path,
    real_libcuda: &Path,
    socket: &Path,
    mode: Mode,
) -> io::Result<()> {
    stage_shim_for(directory, real_libcuda, real_libcuda, socket, mode)
}

/// The same for members that see the driver at another path than this machine: `file` is the driver's readable path
/// now. The proxies have its names, or all names if it cannot be read.
pub fn stage_shim_for(
    directory: &Path,
    real_libcuda: &Path,
    file: &Path,
    socket: &Path,
    mode: Mode,
) -> io::Result<()> {
    let proxy = Part::Shim.read()?;
    let mut image = patched(
        &proxy,
        real_libcuda.as_os_str().as_bytes(),
        socket.as_os_str().as_bytes(),
    )?;
    stamp(&mut image, mode.word())?;
    refuse_proxy(real_libcuda, proxy.len())?;
    only_names_of(file, &mut image)?;
    make_directory(directory)?;
    place(directory, "libcuda.so.1", &image)?;
    link(directory, "libcuda.so", "libcuda.so.1")?;
    let (real, file) = (real_libcuda.with_file_name(NVML), file.with_file_name(NVML));
    stage_nvml(directory, &real, &file, socket)
}

const NVML: &str = "libnvidia-ml.so.1";

fn only_names_of(driver: &Path, image: &mut [u8]) -> io::Result<()> {
    match defined(driver) {
        Ok(names) => leave_out(image, &names),
        Err(_) => Ok(()),
    }
}

/// For a driver without NVML there is no NVML proxy, and an old one is removed.
fn stage_nvml(directory: &Path, real: &Path, file: &Path, socket: &Path) -> io::Result<()> {
    if !real.exists() {
        for name in [NVML, "libnvidia-ml.so"] {
            match fs::remove_file(directory.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        return Ok(());
    }
    let (real, socket) = (real.as_os_str().as_bytes(), socket.as_os_str().as_bytes());
    let mut image = patched(&Part::NvmlProxy.read()?, real, socket)?;
    only_names_of(file, &mut image)?;
    place(directory, NVML, &image)?;
    link(directory, "libnvidia-ml.so", NVML)
}

/// A service that was itself started in a claim finds the proxy instead of the driver.
fn refuse_proxy(real: &Path, length: usize) -> io::Result<()> {
    let sized = fs::metadata(real).is_ok_and(|found| found.len() == length as u64);
    if sized && is_proxy(&fs::read(real)?) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "`{}` is gshare's own library, not the driver: name the driver's libcuda.so.1",
                real.display()
            ),
        ));
    }
    Ok(())
}

pub(crate) fn make_directory(directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(directory)?;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755))
}

/// A unique name in `directory`.
fn scratch(name: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!(".{name}.{}.{number}", process::id())
}

pub(crate) fn place(directory: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let path = directory.join(name);
    if fs::read(&path).is_ok_and(|present| present == bytes) {
        return Ok(());
    }
    let scratch = directory.join(scratch(name));
    let written = (|| {
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o755)
            .open(&scratch)?;
        file.write_all(bytes)?;
        file.set_permissions(fs::Permissions::from_mode(0o755))?;
        fs::rename(&scratch, &path)
    })();
    if written.is_err() {
        // The first error is reported.
        let _ = fs::remove_file(&scratch);
    }
    written
}

pub(crate) fn link(directory: &Path, name: &str, target: &str) -> io::Result<()> {
    let path = directory.join(name);
    if fs::read_link(&path).is_ok_and(|present| present == Path::new(target)) {
        return Ok(());
    }
    let scratch = directory.join(scratch(name));
    symlink(target, &scratch)?;
    fs::rename(&scratch, &path).inspect_err(|_| {
        let _ = fs::remove_file(&scratch);
    })
}

#[cfg(test)]
#[cfg(feature = "carried")]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use object::{
        Object, ObjectSymbol,
        read::elf::{Dyn, FileHeader},
    };

    use super::*;
    use crate::{carried::SHIM, stage_sim};

    /// The file's own name and the names of its dependencies.
    fn names(path: &Path) -> (String, Vec<String>) {
        let data = fs::read(path).unwrap();
        let endian = object::Endianness::Little;
        let header = object::elf::FileHeader64::parse(&*data).unwrap();
        let sections = header.sections(endian, &*data).unwrap();
        let (dynamic, index) = sections.dynamic(endian, &*data).unwrap().unwrap();
        let strings = sections.strings(endian, &*data, index).unwrap();
        let mut soname = String::new();
        let mut needed = Vec::new();
        for entry in dynamic {
            let tag = entry.d_tag(endian);
            if tag == object::elf::DT_SONAME || tag == object::elf::DT_NEEDED {
                let text = entry.string(endian, strings).unwrap();
                let text = String::from_utf8(text.to_vec()).unwrap();
                if tag == object::elf::DT_SONAME {
                    soname = text;
                } else {
                    needed.push(text);
                }
            }
        }
        (soname, needed)
    }

    #[test]
    fn the_proxy_bears_the_drivers_name_and_depends_on_the_real_one() {
        let directory = tempfile::tempdir().unwrap();
        let lib = directory.path().join("a/lib");
        let real = Path::new("/opt/driver/libcuda.so.1");
        stage_shim(&lib, real, Path::new("/run/x.sock"), Mode::Preload).unwrap();
        let (soname, needed) = names(&lib.join("libcuda.so.1"));
        assert_eq!(soname, "libcuda.so.1");
        assert!(needed.contains(&"/opt/driver/libcuda.so.1".to_owned()));
        assert_eq!(
            fs::read_link(lib.join("libcuda.so")).unwrap(),
            Path::new("libcuda.so.1")
        );
        let mode = fs::metadata(lib.join("libcuda.so.1"))
            .unwrap()
            .permissions();
        assert_eq!(mode.mode() & 0o777, 0o755);
    }

    #[test]
    fn the_proxy_of_nvml_comes_where_the_driver_has_one_and_goes_where_not() {
        let directory = tempfile::tempdir().unwrap();
        let (sim, lib) = (directory.path().join("sim"), directory.path().join("lib"));
        stage_sim(&sim).unwrap();
        let real = sim.join("lib/libcuda.so.1");
        stage_shim(&lib, &real, Path::new("/run/x.sock"), Mode::Preload).unwrap();
        for name in ["libnvidia-ml.so.1", "libnvidia-ml.so"] {
            let (soname, needed) = names(&lib.join(name));
            assert_eq!(soname, "libnvidia-ml.so.1");
            let real = sim.join("lib/libnvidia-ml.so.1");
            assert!(needed.contains(&real.to_str().unwrap().to_owned()));
        }
        stage_shim(
            &lib,
            Path::new("/opt/libcuda.so.1"),
            Path::new("/run/x.sock"),
            Mode::Strict,
        )
        .unwrap();
        assert_eq!(fs::read_dir(&lib).unwrap().count(), 2);
    }

    #[test]
    fn staging_again_replaces_the_file_and_leaves_no_scrap() {
        let directory = tempfile::tempdir().unwrap();
        let lib = directory.path();
        let (one, two) = (
            Path::new("/one/libcuda.so.1"),
            Path::new("/two/libcuda.so.1"),
        );
        let socket = Path::new("/run/x.sock");
        stage_shim(lib, one, socket, Mode::Preload).unwrap();
        let held = fs::File::open(lib.join("libcuda.so.1")).unwrap();
        stage_shim(lib, two, socket, Mode::Preload).unwrap();
        let needed = names(&lib.join("libcuda.so.1")).1;
        assert!(needed.contains(&two.to_str().unwrap().to_owned()));
        assert_eq!(
            held.metadata().unwrap().nlink(),
            0,
            "not rewritten in place"
        );
        assert_eq!(fs::read_dir(lib).unwrap().count(), 2);
    }

    #[test]
    fn the_simulated_driver_comes_under_the_drivers_names() {
        let directory = tempfile::tempdir().unwrap();
        stage_sim(directory.path()).unwrap();
        let lib = directory.path().join("lib");
        for (file, soname) in [
            ("libcuda.so", "libcuda.so.1"),
            ("libnvidia-ml.so", "libnvidia-ml.so.1"),
        ] {
            let (name, needed) = names(&lib.join(file));
            assert_eq!(name, soname);
            for library in needed {
                let system = ["libc.so", "libgcc_s.so", "ld-linux", "libm.so"];
                assert!(
                    system.iter().any(|part| library.starts_with(part)),
                    "{file} needs {library}"
                );
            }
        }
    }

    #[test]
    fn the_proxy_defines_the_entry_that_all_programs_begin_with() {
        let file = object::File::parse(SHIM).unwrap();
        let defined: Vec<&str> = file
            .dynamic_symbols()
            .filter(ObjectSymbol::is_definition)
            .filter_map(|symbol| symbol.name().ok())
            .collect();
        assert!(defined.contains(&"cuInit"), "{defined:?}");
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        let (real, socket) = (Path::new("/r"), Path::new("/s"));
        assert!(stage_shim(&file.join("lib"), real, socket, Mode::Preload).is_err());
    }

    #[test]
    fn a_proxy_is_not_taken_for_the_driver() {
        let directory = tempfile::tempdir().unwrap();
        let (one, two) = (directory.path().join("1"), directory.path().join("2"));
        let socket = Path::new("/run/x.sock");
        stage_shim(&one, Path::new("/opt/libcuda.so.1"), socket, Mode::Preload).unwrap();
        let error = stage_shim(&two, &one.join("libcuda.so"), socket, Mode::Preload).unwrap_err();
        assert!(error.to_string().contains("own library"), "{error}");
        assert!(!two.exists());
    }
}

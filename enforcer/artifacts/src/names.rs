//! Entry points of a driver that the proxy knows, and those of the proxy that the driver has.

use std::{
    collections::{BTreeSet, HashSet},
    fs, io,
    path::Path,
};

use object::{Object, ObjectSymbol, read::ReadCache};

/// Source of the proxy's trampolines.
const ENTRIES: &str = include_str!("../../shim/table/entries.tsv");

fn known() -> HashSet<&'static str> {
    ENTRIES
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split('\t').next())
        .collect()
}

fn is_entry_point(name: &str) -> bool {
    name.strip_prefix("cu")
        .and_then(|rest| rest.chars().next())
        .is_some_and(|first| first.is_ascii_uppercase())
}

/// Functions that a library defines.
pub(crate) fn defined(library: &Path) -> io::Result<BTreeSet<String>> {
    let data = ReadCache::new(fs::File::open(library)?);
    let file = object::File::parse(&data).map_err(|error| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("`{}` is not a library: {error}", library.display()),
        )
    })?;
    let symbols = file.dynamic_symbols();
    let defined = symbols.filter(|symbol| symbol.is_definition() && symbol.is_global());
    Ok(defined
        .filter_map(|symbol| symbol.name().ok().map(str::to_owned))
        .collect())
}

/// Entry points of the driver at `real_libcuda` that are younger than the proxy, sorted: calls of them reach the driver
/// unseen, so memory that they allocate is in no claim's ledger.
pub fn unknown_names(real_libcuda: &Path) -> io::Result<Vec<String>> {
    let known = known();
    let defined = defined(real_libcuda)?.into_iter();
    Ok(defined
        .filter(|name| is_entry_point(name) && !known.contains(name.as_str()))
        .collect())
}

#[cfg(test)]
#[cfg(feature = "carried")]
mod tests {
    use super::*;
    use crate::carried::{SHIM, SIM_CUDA};

    #[test]
    fn the_simulated_driver_has_no_name_that_the_proxy_lacks() {
        let directory = tempfile::tempdir().unwrap();
        let driver = directory.path().join("libcuda.so.1");
        fs::write(&driver, SIM_CUDA).unwrap();
        assert_eq!(unknown_names(&driver).unwrap(), Vec::<String>::new());
        let proxy = directory.path().join("proxy");
        fs::write(&proxy, SHIM).unwrap();
        assert_eq!(unknown_names(&proxy).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn names_from_the_future_are_listed() {
        let directory = tempfile::tempdir().unwrap();
        let driver = directory.path().join("libcuda.so.1");
        // The same length, to keep the file's layout.
        let mut image = SIM_CUDA.to_vec();
        let old = b"\0cuMemcpyDtoDAsync_v2\0";
        let at = image
            .windows(old.len())
            .position(|part| part == old)
            .unwrap();
        image[at..at + old.len()].copy_from_slice(b"\0cuFromTheFuture_v9_x\0");
        fs::write(&driver, image).unwrap();
        assert_eq!(unknown_names(&driver).unwrap(), ["cuFromTheFuture_v9_x"]);
    }

    #[test]
    fn what_is_no_library_is_an_error_that_names_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("text");
        fs::write(&file, "no library").unwrap();
        let error = unknown_names(&file).unwrap_err();
        assert!(error.to_string().contains("text"), "{error}");
        assert!(unknown_names(&directory.path().join("absent")).is_err());
    }
}

//! A tree that somebody else made, into which `gshare setup --root` installs: the input says which files, directories and links
//! are in it. The reader's own file is compiled in.
#![no_main]
#![allow(
    dead_code,
    reason = "the reader's file has parts that this target does not call"
)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use libfuzzer_sys::fuzz_target;

#[path = "../../../src/setup/tree.rs"]
mod tree;

/// Parts of names in the tree.
const PARTS: [&str; 8] = ["usr", "bin", "lib", "gshare", "etc", "..", ".", "x"];
const SECRET: &str = "precious";

/// A path of up to four of these parts.
fn path(from: &mut impl Iterator<Item = u8>) -> Option<PathBuf> {
    let (count, bits) = (from.next()? % 5, from.next()?.rotate_left(3));
    let parts = (0..count).map(|at| usize::from(bits.rotate_right(2 * u32::from(at)) % 8));
    Some(parts.map(|at| PARTS[at]).collect())
}

/// Makes a file where nothing is, not even a link.
fn new() -> fs::OpenOptions {
    let mut options = fs::OpenOptions::new();
    options.create_new(true).write(true);
    options
}

/// What is outside of the tree is as it was.
fn is_untouched(outside: &Path) {
    let names: Vec<_> = fs::read_dir(outside)
        .expect("listed")
        .flatten()
        .map(|e| e.file_name())
        .collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert_eq!(
        fs::read_to_string(outside.join("secret")).expect("there"),
        SECRET
    );
    assert_eq!(fs::read_dir(outside.join("bin")).expect("there").count(), 0);
}

/// A link's target: within, upwards, outside by its whole name, or one of the kernel's.
fn target(kind: u8, within: &Path, outside: &Path) -> PathBuf {
    match kind % 6 {
        0 => within.to_owned(),
        1 => Path::new("/").join(within),
        2 => outside.join("bin"),
        3 => {
            Path::new("../../../../../../../..").join(outside.strip_prefix("/").unwrap_or(outside))
        }
        4 => "/proc/self/cwd".into(),
        _ => outside.join("secret"),
    }
}

fuzz_target!(|data: &[u8]| {
    let shared = Path::new("/dev/shm");
    let shared = if shared.is_dir() {
        shared
    } else {
        Path::new("/tmp")
    };
    let dir = tempfile::tempdir_in(shared).expect("a directory");
    let (root, outside) = (dir.path().join("root"), dir.path().join("outside"));
    fs::create_dir_all(outside.join("bin")).expect("made");
    fs::write(outside.join("secret"), SECRET).expect("written");
    fs::create_dir(&root).expect("made");
    let mut bytes = data.iter().copied().take(256);
    while let (Some(what), Some(name)) = (bytes.next(), path(&mut bytes)) {
        // The input makes nothing by way of its links, so that all that is outside comes of the code.
        let at = root.join(&name);
        let plain = at
            .parent()
            .is_some_and(|dir| dir.canonicalize().is_ok_and(|d| d.starts_with(&root)));
        if what < 192 && !plain {
            continue;
        }
        match what {
            0..64 => drop(fs::create_dir(&at)),
            64..96 => drop(new().open(&at)),
            96..192 => drop(symlink(target(what, &name, &outside), &at)),
            _ => {
                let wanted = Path::new("/").join(&name);
                let mut opened = tree::Tree::open(&root).expect("opened");
                let made = opened.make_dirs(&wanted).unwrap_or_default();
                assert!(made.iter().all(|dir| dir.is_absolute()));
                let Ok(place) = opened.place(&wanted) else {
                    continue;
                };
                if let Ok(read) = tree::read(&place) {
                    assert_ne!(read, SECRET.as_bytes(), "{wanted:?} leads outside");
                }
                let _ = new().open(&*place);
                is_untouched(&outside);
            }
        }
    }
    is_untouched(&outside);
});

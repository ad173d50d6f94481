//! Python environments for independent programs: made by the tests themselves, once, under the target directory. If
//! one cannot be made, the tests that need it print why and skip.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::thread::available_parallelism;

/// The directory of an environment's programs, for one test. As many tests have one at a time as there are processors,
/// since a server, its kernels and what they compile must start within a minute. A test that also is `alone` is that
/// first.
pub struct Programs(PathBuf);

static RUNNING: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

impl Programs {
    fn when_few_run(dir: PathBuf) -> Self {
        let most = available_parallelism().map_or(1, usize::from);
        let running = RUNNING.0.lock().unwrap_or_else(PoisonError::into_inner);
        let running = RUNNING.1.wait_while(running, |running| *running >= most);
        *running.unwrap_or_else(PoisonError::into_inner) += 1;
        Self(dir)
    }
}

impl Deref for Programs {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        *RUNNING.0.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        RUNNING.1.notify_one();
    }
}

/// The directory with `python`, `nvitop`, ...: kernels, monitors, and clients of the driver. Prints `skipped: ...` and
/// gives nothing where it cannot be.
pub fn bin(test: &str) -> Option<Programs> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    found(
        test,
        MADE.get_or_init(|| environment("python", "requirements.txt")),
    )
    .map(Programs::when_few_run)
}

/// The directory with `jupyter`, `papermill`, a browser's driver, ...; as above, but tests with it also have the former.
pub fn lab(test: &str) -> Option<PathBuf> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    found(
        test,
        MADE.get_or_init(|| environment("python-lab", "lab-requirements.txt")),
    )
}

fn found(test: &str, made: &Result<PathBuf, String>) -> Option<PathBuf> {
    match made {
        Ok(path) => Some(path.clone()),
        Err(why) => {
            println!("skipped: {test} needs a Python environment: {why}");
            None
        }
    }
}

/// A script of `tests/python`.
pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/python")
        .join(name)
}

/// The environment, made if it does not exist: a directory beside that of the tests' temporary files, and the file that
/// lists what is installed.
fn environment(dir: &str, requirements: &str) -> Result<PathBuf, String> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name(dir);
    let mut make = Command::new(script("environment"));
    make.arg(&dir).arg(script(requirements));
    let output = make.output().map_err(|e| format!("{make:?}: {e}"))?;
    if output.status.success() {
        return Ok(dir.join("venv/bin"));
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rev().find(|l| !l.trim().is_empty());
    Err(last.unwrap_or("no word").to_owned())
}

//! Python environments for independent programs: made by the tests themselves, once, under the target directory. If
//! one cannot be made, the tests that need it print why and skip.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

/// A failed attempt is not repeated by the other tests of the same run.
const TRY_AGAIN: Duration = Duration::from_secs(300);

/// One environment.
struct Environment {
    /// Its directory, beside that of the tests' temporary files.
    dir: &'static str,
    /// What is installed.
    requirements: &'static str,
    /// The same, as a file.
    file: &'static str,
}

/// Kernels, monitors, and clients of the driver.
const PLAIN: Environment = Environment {
    dir: "python",
    requirements: include_str!("../python/requirements.txt"),
    file: "requirements.txt",
};
/// JupyterLab, a browser's driver, papermill.
const LAB: Environment = Environment {
    dir: "python-lab",
    requirements: include_str!("../python/lab-requirements.txt"),
    file: "lab-requirements.txt",
};

/// The directory with `python`, `nvitop`, ...; prints `skipped: ...` and gives nothing where it cannot be.
pub fn bin(test: &str) -> Option<PathBuf> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    found(test, MADE.get_or_init(|| environment(&PLAIN)))
}

/// The directory with `jupyter`, `papermill`, ...; as above.
pub fn lab(test: &str) -> Option<PathBuf> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    found(test, MADE.get_or_init(|| environment(&LAB)))
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

/// The environment, made if it does not exist. Test binaries that run at the same time wait for one another.
fn environment(of: &Environment) -> Result<PathBuf, String> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name(of.dir);
    let text = |what: &str, e: &dyn std::fmt::Display| format!("{what}: {e}");
    let (venv, stamp, failed) = (dir.join("venv"), dir.join("stamp"), dir.join("failed"));
    let bin = venv.join("bin");
    let made = || {
        let stamped = std::fs::read_to_string(&stamp).is_ok_and(|s| s == of.requirements);
        stamped && bin.join("python").exists()
    };
    if made() {
        return Ok(bin);
    }
    std::fs::create_dir_all(&dir).map_err(|e| text("its directory", &e))?;
    let lock = File::create(dir.join("lock")).map_err(|e| text("its lock", &e))?;
    lock.lock().map_err(|e| text("its lock", &e))?;
    if made() {
        return Ok(bin);
    }
    // An incomplete environment must not pass for a complete one.
    let _ = std::fs::remove_file(&stamp);
    if let Some(why) = recent(&failed) {
        return Err(why);
    }
    let started = std::time::Instant::now();
    let result = make(of, &venv, &bin).and_then(|()| {
        let _ = std::fs::remove_file(&failed);
        std::fs::write(&stamp, of.requirements).map_err(|e| text("its stamp", &e))
    });
    match result {
        Ok(()) => {
            println!(
                "made {} in {:.1} s",
                venv.display(),
                started.elapsed().as_secs_f32()
            );
            Ok(bin)
        }
        Err(why) => {
            let _ = std::fs::write(&failed, &why);
            Err(why)
        }
    }
}

/// Why it failed, if that was a moment ago.
fn recent(failed: &Path) -> Option<String> {
    let at = failed.metadata().and_then(|m| m.modified()).ok()?;
    let age = SystemTime::now().duration_since(at).ok()?;
    (age < TRY_AGAIN)
        .then(|| std::fs::read_to_string(failed).ok())
        .flatten()
}

fn make(of: &Environment, venv: &Path, bin: &Path) -> Result<(), String> {
    let requirements = script(of.file);
    // All users can run the system's Python, but not one in a user's home.
    let whole = |python: &&&str| {
        let probe = Command::new(python)
            .args(["-c", "import ensurepip, venv"])
            .output();
        probe.is_ok_and(|o| o.status.success())
    };
    let python = ["/usr/bin/python3"]
        .iter()
        .find(whole)
        .unwrap_or(&"python3");
    run(Command::new(python)
        .args(["-m", "venv", "--clear"])
        .arg(venv))?;
    run(Command::new(bin.join("python"))
        .args(["-m", "pip", "install", "--quiet", "--no-input", "--no-deps"])
        .args("--disable-pip-version-check --retries 1 --timeout 20".split(' '))
        .args(["--requirement"])
        .arg(requirements))
}

fn run(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .map_err(|e| format!("{name} does not start: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said
        .lines()
        .rev()
        .find(|l| !l.trim().is_empty())
        .unwrap_or("no word");
    Err(format!("{name} ended with {}: {last}", output.status))
}

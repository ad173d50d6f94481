//! One kernelspec: reading it, and wrapping its command in `gshare kernel exec`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::places::on_path;

/// Largest `kernel.json` that is read, in bytes.
const LARGEST: u64 = 1 << 20;
/// Key below `metadata` with the origin of gshare's copy.
const MARK: &str = "gshare";

/// A kernelspec on disk.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Its name: that of its directory, in lower case as in Jupyter.
    pub name: String,
    pub dir: PathBuf,
    /// Contents of its `kernel.json`.
    json: Map<String, Value>,
}

/// A kernelspec that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    #[error("{}: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{}: {why}", path.display())]
    Invalid { path: PathBuf, why: String },
}

/// The size of a kernel's claim, as arguments of `gshare kernel exec`, and in words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Arguments, in the order of the manual.
    pub args: Vec<String>,
    /// For names: `0.25`, `0.25-0.8`, `8g`.
    pub label: String,
}

impl Kernel {
    /// Reads the kernelspec in a directory.
    ///
    /// # Errors
    /// When there is none, or its file is not one.
    pub fn read(dir: &Path) -> Result<Self, SpecError> {
        let path = dir.join("kernel.json");
        let unreadable = |source| SpecError::Unreadable {
            path: path.clone(),
            source,
        };
        let invalid = |why: String| SpecError::Invalid {
            path: path.clone(),
            why,
        };
        if fs::metadata(&path).map_err(unreadable)?.len() > LARGEST {
            return Err(invalid(format!("is larger than {LARGEST} bytes")));
        }
        let text = fs::read_to_string(&path).map_err(unreadable)?;
        let value: Value = serde_json::from_str(&text).map_err(|e| invalid(e.to_string()))?;
        let Value::Object(json) = value else {
            return Err(invalid("is not a JSON object".to_owned()));
        };
        let argv = json.get("argv").and_then(Value::as_array);
        if !argv.is_some_and(|a| !a.is_empty() && a.iter().all(Value::is_string)) {
            return Err(invalid("has no `argv` list of strings".to_owned()));
        }
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        Ok(Self {
            name: name.to_lowercase(),
            dir: dir.to_owned(),
            json,
        })
    }

    #[must_use]
    pub fn argv(&self) -> Vec<String> {
        let words = self.json.get("argv").and_then(Value::as_array);
        let words = words.into_iter().flatten().filter_map(Value::as_str);
        words.map(str::to_owned).collect()
    }

    #[must_use]
    pub fn display_name(&self) -> &str {
        let shown = self.json.get("display_name").and_then(Value::as_str);
        shown.unwrap_or(&self.name)
    }

    /// The original of a kernel that gshare made; `None` for other kernels.
    #[must_use]
    pub fn made_from(&self) -> Option<&str> {
        self.mark()?.get("kernel")?.as_str()
    }

    /// The size with which gshare made it, for display.
    #[must_use]
    pub fn size(&self) -> Option<&str> {
        self.mark()?.get("size")?.as_str()
    }

    fn mark(&self) -> Option<&Value> {
        self.json.get("metadata")?.get(MARK)
    }

    /// The program with an absolute path. Jupyter replaces a bare `python` by the interpreter of its own server, but
    /// not for a word inside a command, so the interpreter is resolved now.
    fn program(&self, name: &str) -> Result<String, String> {
        if name.contains('/') || name.contains('{') {
            return Ok(name.to_owned());
        }
        // P/share/jupyter/kernels/NAME belongs to P/bin.
        let prefix = self.dir.ancestors().nth(4);
        let own = prefix
            .filter(|p| self.dir.starts_with(p.join("share/jupyter/kernels")))
            .map(|p| p.join("bin").join(name))
            .filter(|file| file.is_file());
        own.or_else(|| on_path(name))
            .map(|file| file.display().to_string())
            .ok_or_else(|| {
                format!(
                    "kernel {}: its program `{name}` is neither beside it nor on PATH",
                    self.name
                )
            })
    }

    /// The text of a `kernel.json` that runs the same kernel through `gshare kernel exec`.
    ///
    /// # Errors
    ///
    /// When its program cannot be found, in a sentence.
    pub fn wrapped(
        &self,
        gshare: &Path,
        size: &Size,
        display_name: &str,
    ) -> Result<String, String> {
        let mut argv = vec![gshare.display().to_string(), "kernel".into(), "exec".into()];
        argv.extend(size.args.iter().cloned());
        argv.push("--".into());
        let mut own = self.argv().into_iter();
        if let Some(program) = own.next() {
            argv.push(self.program(&program)?);
        }
        argv.extend(own);
        let mut json = self.json.clone();
        json.insert("argv".into(), argv.into());
        json.insert("display_name".into(), display_name.into());
        let mark = serde_json::json!({ "kernel": self.name, "size": size.label });
        let metadata = json
            .entry("metadata")
            .or_insert_with(|| Value::Object(Map::new()));
        match metadata {
            Value::Object(metadata) => {
                metadata.insert(MARK.into(), mark);
            }
            // Jupyter would refuse the original, too.
            _ => return Err(format!("kernel {}: `metadata` is not an object", self.name)),
        }
        let text = serde_json::to_string_pretty(&json).map_err(|e| e.to_string())?;
        Ok(text + "\n")
    }

    /// `Python 3 (ipykernel)` with a size is `Python 3 (gshare 0.25)`.
    #[must_use]
    pub fn display_name_with(&self, size: &Size) -> String {
        let shown = self.display_name();
        let plain = match shown.rfind(" (") {
            Some(at) if shown.ends_with("(ipykernel)") => &shown[..at],
            _ => shown,
        };
        format!("{plain} (gshare {})", size.label)
    }
}

/// Whether Jupyter accepts a kernel name: ASCII letters, digits, `-`, `.` and `_`.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    !name.is_empty() && !name.starts_with('.') && name.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(json: &str) -> (tempfile::TempDir, Kernel) {
        let prefix = tempfile::tempdir().expect("made");
        let dir = prefix.path().join("share/jupyter/kernels/Python3");
        fs::create_dir_all(&dir).expect("made");
        fs::create_dir_all(prefix.path().join("bin")).expect("made");
        fs::write(prefix.path().join("bin/python"), "").expect("written");
        fs::write(dir.join("kernel.json"), json).expect("written");
        let kernel = Kernel::read(&dir).expect("reads");
        (prefix, kernel)
    }

    const PYTHON: &str = r#"{"argv": ["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Python 3 (ipykernel)", "language": "python", "interrupt_mode": "message",
        "env": {"A": "${B}"}, "kernel_protocol_version": "5.5",
        "metadata": {"debugger": true, "cull_idle_timeout": 60}}"#;

    #[test]
    fn only_the_command_and_the_name_change() {
        let (prefix, kernel) = kernel(PYTHON);
        let size = Size {
            args: vec!["-g".into(), "0.25".into()],
            label: "0.25".into(),
        };
        let shown = kernel.display_name_with(&size);
        assert_eq!(shown, "Python 3 (gshare 0.25)");
        let text = kernel
            .wrapped(Path::new("/usr/bin/gshare"), &size, &shown)
            .expect("wrapped");
        let (old, mut new): (Value, Value) = (
            serde_json::from_str(PYTHON).expect("JSON"),
            serde_json::from_str(&text).expect("JSON"),
        );
        let python = prefix.path().join("bin/python").display().to_string();
        let argv: Vec<&str> = new["argv"]
            .as_array()
            .expect("words")
            .iter()
            .filter_map(Value::as_str)
            .collect();
        assert_eq!(
            argv,
            [
                "/usr/bin/gshare",
                "kernel",
                "exec",
                "-g",
                "0.25",
                "--",
                &python,
                "-m",
                "ipykernel_launcher",
                "-f",
                "{connection_file}"
            ]
        );
        assert_eq!(new["metadata"]["gshare"]["kernel"], "python3");
        new["argv"] = old["argv"].clone();
        new["display_name"] = old["display_name"].clone();
        new["metadata"]
            .as_object_mut()
            .expect("object")
            .remove("gshare");
        assert_eq!(new, old);
    }

    #[test]
    fn what_is_no_kernelspec_is_said() {
        let prefix = tempfile::tempdir().expect("made");
        let write =
            |text: &str| fs::write(prefix.path().join("kernel.json"), text).expect("written");
        assert!(Kernel::read(prefix.path()).is_err());
        for (text, why) in [
            ("[]", "not a JSON object"),
            ("{}", "no `argv`"),
            (r#"{"argv": [1]}"#, "no `argv`"),
            ("{", "EOF"),
        ] {
            write(text);
            let error = Kernel::read(prefix.path())
                .expect_err("no kernelspec")
                .to_string();
            assert!(error.contains(why), "{error}");
        }
        let (_prefix, lost) = kernel(r#"{"argv": ["no-such-program-anywhere"]}"#);
        let error = lost
            .wrapped(Path::new("/g"), &Size::default(), "x")
            .expect_err("not found");
        assert!(error.contains("no-such-program-anywhere"), "{error}");
    }

    #[test]
    fn names_are_those_that_jupyter_takes() {
        for (name, good) in [
            ("python3-gshare-0.25", true),
            ("A_b", true),
            ("", false),
            ("a b", false),
            ("../x", false),
            (".x", false),
        ] {
            assert_eq!(is_name(name), good, "{name}");
        }
    }
}

//! `gshare env`: a claim's environment as shell commands.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::path::Path;

use gshare_proto::{Call, Granted};
use serde::{Deserialize, Serialize};

use super::args::EnvArgs;
use super::claim::granted;
use super::exec::{MPS_PART, MPS_PIPE};
use super::failure::{self, Failure};
use super::{Outcome, connect, out};

/// Variable with the changes of `gshare env` in a shell, as JSON: see [`Changed`].
pub(super) const CHANGED: &str = "GSHARE_ENV";

/// The variables of a shell that `gshare env` has changed, so that `gshare env --unset` can restore them.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Changed {
    /// Values before, by name; `None` if the variable was not set.
    before: BTreeMap<String, Option<String>>,
    /// Directories added in front of search paths, by name of the variable.
    prepended: BTreeMap<String, String>,
}

impl Changed {
    /// The record of an earlier `gshare env` in this shell.
    fn of_this_shell() -> Option<Self> {
        serde_json::from_str(&std::env::var(CHANGED).ok()?).ok()
    }

    /// Records the changes by `granted`. The first recorded value is the shell's own.
    fn record(&mut self, granted: &Granted) {
        let set = granted.env.iter().map(|(name, _)| name);
        for name in set.chain(&granted.env_remove) {
            let before = self.before.entry(name.clone());
            before.or_insert_with(|| std::env::var(name).ok());
        }
        self.prepended.extend(granted.env_prepend.iter().cloned());
    }

    /// Shell commands that restore the variables.
    fn restored(&self) -> Result<String, Failure> {
        let mut text = String::new();
        for (name, before) in &self.before {
            let name = checked(name)?;
            text += &match before {
                Some(value) => format!("export {name}={}\n", quoted(value)),
                None => format!("unset {name}\n"),
            };
        }
        for (name, dir) in &self.prepended {
            let name = checked(name)?;
            let value = std::env::var(name).unwrap_or_default();
            let left: Vec<&str> = value.split(':').filter(|part| part != dir).collect();
            text += &match left.join(":") {
                none if none.is_empty() => format!("unset {name}\n"),
                left => format!("export {name}={}\n", quoted(&left)),
            };
        }
        Ok(text + &format!("unset {CHANGED}\n"))
    }
}

pub(crate) fn run(socket: Option<&Path>, args: &EnvArgs) -> Outcome {
    let Some(id) = args.id.clone() else {
        let Some(changed) = Changed::of_this_shell() else {
            let text = "nothing to restore: `gshare env` has not changed this shell";
            return Err(Failure::new(failure::USAGE, text).with_hint(
                "to leave a shell that `gshare shell` or `gshare claim` started: exit",
            ));
        };
        out::print(&changed.restored()?)?;
        out::note(
            "this shell stays in its claim until it exits; to run programs without a claim, open a new terminal",
        );
        return Ok(0);
    };
    // On a terminal the output is not evaluated, so moving the shell would be a surprise.
    let terminal = io::stdout().is_terminal();
    let call = if args.print_only || args.json || terminal {
        Call::Env {
            id: id.clone().into(),
        }
    } else {
        Call::Join {
            id: id.clone().into(),
            parent: true,
        }
    };
    let granted = granted(connect::connect(socket)?.call(&call)?)?;
    if args.json {
        out::json(&granted)?;
    } else {
        out::print(&exports(&granted)?)?;
        let mut changed = Changed::of_this_shell().unwrap_or_default();
        changed.record(&granted);
        let record = serde_json::to_string(&changed).unwrap_or_default();
        out::print(&format!("export {CHANGED}={}\n", quoted(&record)))?;
        if granted.launcher.is_some() {
            out::print(&format!(
                "# this machine enforces strict limits: start each program with gshare join {} -- CMD\n",
                granted.id
            ))?;
        } else if terminal && !args.print_only {
            out::note(&format!(
                "hint: to put this shell into the claim: eval \"$(gshare env {id})\""
            ));
        }
    }
    Ok(0)
}

/// `export NAME='value'` for every variable, for sh, bash and zsh.
fn exports(granted: &Granted) -> Result<String, Failure> {
    let mut text = String::new();
    for name in &granted.env_remove {
        text.push_str(&format!("unset {}\n", checked(name)?));
    }
    if let Some(dir) = &granted.mps_dir {
        // Values of another claim; daemons of other software stay as they are.
        let is_set = |name: &str| granted.env.iter().any(|(set, _)| set == name);
        let part: Vec<&str> = MPS_PART.into_iter().filter(|name| !is_set(name)).collect();
        if !part.is_empty() {
            let (dir, part) = (quoted(dir), part.join(" "));
            text.push_str(&format!(
                "case \"${{{MPS_PIPE}-}}\" in {dir}/*) unset {part};; esac\n"
            ));
        }
    }
    for (name, value) in &granted.env {
        text.push_str(&format!("export {}={}\n", checked(name)?, quoted(value)));
    }
    for (name, dir) in &granted.env_prepend {
        let (name, dir) = (checked(name)?, quoted(dir));
        text.push_str(&format!("export {name}={dir}\"${{{name}:+:${name}}}\"\n"));
    }
    Ok(text)
}

/// A name for a shell to evaluate: nothing but a name.
fn checked(name: &str) -> Result<&str, Failure> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) || !name.chars().all(plain)
    {
        return Err(Failure::new(
            failure::INTERNAL,
            format!("the gshare service sent `{name}`, which is not a name of a variable"),
        ));
    }
    Ok(name)
}

/// A quoted word for a shell.
pub(in crate::cli) fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_shell_reads_the_exports_back() {
        let granted = Granted {
            id: "c3".into(),
            message: String::new(),
            env: vec![
                ("GSHARE_A".into(), "it's $HOME `x` \"q\"\nline".into()),
                ("GSHARE_B".into(), String::new()),
            ],
            env_prepend: vec![("GSHARE_PATH".into(), "/a b".into())],
            ..Granted::default()
        };
        let script = format!(
            "{}printf '%s|%s|%s' \"$GSHARE_A\" \"$GSHARE_B\" \"$GSHARE_PATH\"",
            exports(&granted).expect("names")
        );
        for (old, want) in [("/old", "/a b:/old"), ("", "/a b")] {
            let output = Command::new("sh")
                .args(["-c", &script])
                .env("GSHARE_PATH", old)
                .output()
                .expect("sh");
            let shown = String::from_utf8_lossy(&output.stdout).into_owned();
            assert_eq!(shown, format!("it's $HOME `x` \"q\"\nline||{want}"));
        }
    }

    #[test]
    fn a_shell_loses_what_another_claim_had_through_mps() {
        let through = |env: &[(&str, &str)]| Granted {
            env: env
                .iter()
                .map(|(n, v)| ((*n).into(), (*v).into()))
                .collect(),
            mps_dir: Some("/a b/mps".into()),
            ..Granted::default()
        };
        let part = "CUDA_MPS_CLIENT_PRIORITY";
        let shown = |pipe: Option<&str>, granted: &Granted| {
            let exports = exports(granted).expect("names");
            let script =
                format!("set -u; {exports}printf '%s|%s' \"${{{MPS_PIPE}-}}\" \"${{{part}-}}\"");
            let mut shell = Command::new("sh");
            shell
                .args(["-c", &script])
                .env(part, "1")
                .env_remove(MPS_PIPE);
            shell.envs(pipe.map(|pipe| (MPS_PIPE, pipe)));
            String::from_utf8_lossy(&shell.output().expect("sh").stdout).into_owned()
        };
        let plain = through(&[]);
        assert_eq!(shown(Some("/a b/mps/0/pipe"), &plain), "|");
        assert_eq!(shown(Some("/own"), &plain), "/own|1");
        assert_eq!(shown(None, &plain), "|1");
        let mps = through(&[(MPS_PIPE, "/a b/mps/1/pipe"), (part, "0")]);
        assert_eq!(shown(Some("/a b/mps/0/pipe"), &mps), "/a b/mps/1/pipe|0");
    }

    #[test]
    fn nothing_but_names_is_exported() {
        let granted = Granted {
            id: "c3".into(),
            message: String::new(),
            env: vec![("A=1; touch /tmp/x; B".into(), "v".into())],
            ..Granted::default()
        };
        assert!(exports(&granted).is_err_and(|f| f.code == failure::INTERNAL));
    }
}

//! `gshare config`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use gshare_config::{
    Config, ConfigError, Mode, PROJECT_FILE, Problem, ProjectDefaults, ProjectFile,
};
use gshare_core::units::{many, show_duration};
use gshare_core::{Party, Quota};
use gshare_proto::{Call, Reply};
use serde_json::json;

use super::args::{ConfigArgs, ConfigCommand};
use super::failure::{self, Failure};
use super::{Outcome, connect, out};
use crate::identity::unknown;

pub(crate) fn run(socket: Option<&Path>, args: &ConfigArgs) -> Outcome {
    match &args.command {
        ConfigCommand::Check { file, gpus, json } => check(socket, file.as_deref(), *gpus, *json),
        ConfigCommand::Show { config, user } => show(config.as_deref(), *user),
        ConfigCommand::Path { user, json } => path(*user, *json),
    }
}

fn show(file: Option<&Path>, user: bool) -> Outcome {
    let mode = Mode::of_process(user);
    let config = match file {
        Some(file) => Config::load_file(file)?,
        None => Config::load(mode)?,
    };
    out::print(&config.show())?;
    Ok(0)
}

fn path(user: bool, json: bool) -> Outcome {
    let mode = Mode::of_process(user);
    let paths = Config::load(mode)?.paths(mode);
    let project = std::env::current_dir()
        .ok()
        .map(|cwd| ProjectFile::find(&cwd))
        .transpose()?
        .and_then(|found| found.path);
    let rows = [
        ("config", mode.file()),
        ("project", project),
        ("socket", Some(paths.socket)),
        ("runtime", Some(paths.runtime_dir)),
        ("state", Some(paths.state_dir)),
    ];
    if json {
        let object: serde_json::Map<String, serde_json::Value> = rows
            .iter()
            .filter_map(|(name, path)| Some(((*name).to_owned(), json!(path.as_ref()?))))
            .collect();
        out::json(&object)?;
        return Ok(0);
    }
    for (name, path) in rows {
        let Some(path) = path else { continue };
        let absent = if path.exists() { "" } else { " (absent)" };
        out::print(&format!("{name:<8} {}{absent}\n", path.display()))?;
    }
    Ok(0)
}

/// Checks one file, or all that apply here: the machine's, the user's, the project's.
fn check(socket: Option<&Path>, file: Option<&Path>, gpus: Option<u8>, json: bool) -> Outcome {
    let gpus = || gpus.map(usize::from).or_else(|| gpus_here(socket));
    let files = match file {
        Some(file) => vec![file.to_owned()],
        None => in_force(),
    };
    let mut problems: Vec<Problem> = Vec::new();
    let mut fine: Vec<PathBuf> = Vec::new();
    for file in files {
        match check_one(&file) {
            Ok(None) => fine.push(file),
            Ok(Some(sure)) => match gpus() {
                Some(gpus) => match sure.unpackable(&file, gpus) {
                    Some(problem) => problems.push(problem),
                    None => fine.push(file),
                },
                None => {
                    out::note(&format!(
                        "{}: could not check that the guarantees fit together: no service reports the number of GPUs; give it with --gpus N",
                        file.display()
                    ));
                    fine.push(file);
                }
            },
            Err(ConfigError::Invalid(found)) => problems.extend(found),
            Err(other) => return Err(other.into()),
        }
    }
    if json {
        let objects: Vec<serde_json::Value> = problems
            .iter()
            .map(|p| {
                json!({
                    "file": p.file, "line": p.line, "column": p.column,
                    "message": p.message, "expected": p.expected,
                })
            })
            .collect();
        out::json(&json!({ "valid": fine, "problems": objects }))?;
    } else {
        for file in &fine {
            out::print(&format!("{}: ok\n", file.display()))?;
        }
        if fine.is_empty() && problems.is_empty() {
            out::print("no configuration file: every key has its default\n")?;
        }
        for problem in &problems {
            out::note(&problem.to_string());
        }
    }
    if problems.is_empty() {
        return Ok(0);
    }
    let count = many(problems.len(), "problem");
    Err(
        Failure::new(failure::CONFIG, format!("{count} in the configuration"))
            .with_hint("every key and its values: docs/config.md, or `gshare config show`"),
    )
}

fn in_force() -> Vec<PathBuf> {
    let project = std::env::current_dir().ok().and_then(|cwd| {
        cwd.ancestors()
            .map(|dir| dir.join(PROJECT_FILE))
            .find(|path| path.exists())
    });
    [Mode::System.file(), Mode::User.file(), project]
        .into_iter()
        .flatten()
        .filter(|path| path.exists())
        .collect()
}

/// GPUs of the machine, by the service.
fn gpus_here(socket: Option<&Path>) -> Option<usize> {
    let mut client = connect::connect(socket).ok()?;
    client.set_read_timeout(Some(Duration::from_secs(3))).ok()?;
    match client.call(&Call::Snapshot).ok()? {
        Reply::Snapshot(snapshot) => Some(snapshot.whole_gpus()),
        _ => None,
    }
}

/// Guarantees in a file.
struct Guarantees {
    text: String,
    quotas: Vec<Quota>,
}

impl Guarantees {
    fn unpackable(&self, file: &Path, gpus: usize) -> Option<Problem> {
        gshare_config::unpackable(&self.text, file, &self.quotas, gpus)
    }
}

/// Valid settings that are probably mistakes: unknown names, and times in the wrong order.
fn slips(config: &Config) -> Vec<String> {
    let in_rules = config.idle.rules.iter().filter_map(|r| r.group.as_ref());
    let groups = config.admin.groups.iter().chain(in_rules);
    let groups = groups.map(|name| Party::Group(name.clone()));
    let parties = config.quotas.iter().map(|q| q.party.clone());
    let mut slips: Vec<String> = parties
        .chain(groups)
        .filter_map(|party| unknown(&party))
        .collect();
    if let (Some(warn), Some(detach)) = (config.idle.warn, config.idle.detach)
        && detach < warn
    {
        let [warn, detach] = [warn, detach].map(show_duration);
        slips.push(format!(
            "note: in [idle], `detach` ({detach}) is shorter than `warn` ({warn}), so idle claims are offloaded before \
             their owners are warned; set `warn` below `detach`"
        ));
    }
    slips
}

/// Reads a file; returns its guarantees, if any.
fn check_one(file: &Path) -> Result<Option<Guarantees>, ConfigError> {
    let read = || {
        std::fs::read_to_string(file).map_err(|source| ConfigError::Unreadable {
            path: file.to_owned(),
            source,
        })
    };
    if file.file_name().is_some_and(|name| name == PROJECT_FILE) {
        return ProjectDefaults::check(&read()?, file)
            .map(|_| None)
            .map_err(ConfigError::Invalid);
    }
    let config = Config::load_file(file)?;
    for slip in slips(&config) {
        out::note(&format!("{}: {slip}", file.display()));
    }
    let quotas = config.quotas;
    let sure = quotas.iter().any(|q| q.gpus.is_some());
    let text = if sure { read()? } else { String::new() };
    Ok(sure.then_some(Guarantees { text, quotas }))
}

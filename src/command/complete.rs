//! Completion scripts and manual pages, from the same definition as the arguments.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::{Generator, Shell};

use super::args::Cli;
use super::failure::{self, Failure};
use super::{Outcome, out};

pub(crate) fn completions(shell: Shell) -> Outcome {
    out::print(&script(shell))?;
    Ok(0)
}

/// The completion script of a shell.
pub(crate) fn script(shell: Shell) -> String {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut shown(&Cli::command()), "gshare", &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// The command without what its help does not show: the scripts would offer that all the same.
fn shown(command: &Command) -> Command {
    let args = command.get_arguments().filter(|a| !a.is_hide_set());
    let subcommands = command.get_subcommands().filter(|c| !c.is_hide_set());
    let mut copy = Command::new(command.get_name().to_owned())
        .visible_aliases(command.get_visible_aliases().map(str::to_owned))
        .args(args.cloned())
        .subcommands(subcommands.map(shown));
    if let Some(version) = command.get_version() {
        copy = copy.version(version.to_owned());
    }
    if let Some(about) = command.get_about() {
        copy = copy.about(about.clone());
    }
    copy
}

/// Writes what packages install beside the program: `gshare.1`, one page per subcommand, and the completion scripts.
pub(crate) fn man(dir: &Path) -> Outcome {
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(dir)?;
        for (name, page) in man_pages()? {
            fs::write(dir.join(name), page)?;
        }
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            fs::write(dir.join(shell.file_name("gshare")), script(shell))?;
        }
        Ok(())
    };
    write().map_err(|e| {
        let why = format!("cannot write manual pages to {}: {e}", dir.display());
        Failure::new(failure::INTERNAL, why)
    })?;
    Ok(0)
}

/// Names and texts of the manual pages. What follows the options has the heading that such pages have elsewhere.
pub(crate) fn man_pages() -> std::io::Result<Vec<(OsString, String)>> {
    let dir = tempfile::tempdir()?;
    clap_mangen::generate_to(Cli::command().disable_help_subcommand(true), dir.path())?;
    let mut pages = Vec::new();
    for entry in fs::read_dir(dir.path())? {
        let entry = entry?;
        let page = fs::read_to_string(entry.path())?
            .replace(".SH EXTRA\nExamples:\n", ".SH EXAMPLES\n")
            .replace(".SH EXTRA\nExample:\n", ".SH EXAMPLE\n")
            .replace(".SH EXTRA\n", ".SH NOTES\n");
        pages.push((entry.file_name(), page));
    }
    pages.sort();
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_offer_what_the_help_shows() {
        for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
            let text = script(shell);
            for word in ["gpu-mem", "version", "kernel", "Claim a part of a GPU"] {
                let told = word.contains(' ') && shell == Shell::Bash;
                assert!(told || text.contains(word), "{shell}: {word}");
            }
            for word in ["--gres", "-l gres", "die-at", "phases", "bench"] {
                assert!(!text.contains(word), "{shell}: {word}");
            }
        }
    }
}

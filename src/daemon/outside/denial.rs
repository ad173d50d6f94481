//! The filter that keeps programs without a claim from GPUs: where it is attached, and its notices to users.
//! `policy/deny.rs` decides where it belongs.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use gshare_enforcer::device::{Guard, GuardRules, Refusals};

use crate::daemon::command::Command;

/// Where the filter belongs now.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    /// The cgroup of claims, which identifies the filter; absent if filters are not possible.
    pub(crate) tree: Option<PathBuf>,
    /// Places and rules; absent if it belongs nowhere.
    pub(crate) places: Option<Places>,
}

/// Places and rules of the filter.
#[derive(Debug)]
pub(crate) struct Places {
    /// Directories of the cgroups that get it.
    pub(crate) dirs: BTreeSet<PathBuf>,
    /// Directories where cgroups and sessions appear.
    pub(crate) watched: BTreeSet<PathBuf>,
    /// Paths of the exempt cgroups, from the top.
    pub(crate) exempt: BTreeSet<PathBuf>,
    /// What it lets through.
    pub(crate) rules: GuardRules,
}

/// A wanted filter that has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoEffect {
    pub(crate) why: String,
    /// What to do about it.
    pub(crate) fix: String,
}

impl NoEffect {
    /// For the log, `gshare status` and the screen.
    pub(crate) fn text(&self) -> String {
        let Self { why, fix } = self;
        format!(
            "stage 4 has no effect here, and programs without a claim can open the GPUs: {why}. To fix it: {fix}"
        )
    }
}

/// The filter in force.
#[derive(Debug, Default)]
pub(crate) struct Denial {
    /// Made when it is first needed.
    guard: Option<Guard>,
    /// Directories of the cgroups that have the filter.
    places: BTreeSet<PathBuf>,
    /// Paths of the exempt cgroups, from the top.
    exempt: BTreeSet<PathBuf>,
    /// Why it could not be attached everywhere.
    trouble: Option<String>,
    /// The remains of an earlier service were looked for.
    settled: bool,
    /// Its refusals are followed, if the kernel reports them.
    heard: bool,
    /// Why programs without a claim can open GPUs anyway, and what to do about it.
    no_effect: Option<NoEffect>,
    watched: BTreeSet<PathBuf>,
}

impl Denial {
    /// Attaches the filter where it belongs, or removes it. `watch` follows directories, `hear` follows refusals.
    pub(crate) fn follow(
        &mut self,
        wanted: Wanted,
        watch: impl FnOnce(&BTreeSet<PathBuf>) -> io::Result<()>,
        hear: impl FnOnce(Refusals) -> io::Result<()>,
    ) -> Option<Command> {
        let tree = wanted.tree?;
        let was_open = self.places.is_empty();
        let mut guard = self.guard.take().unwrap_or_else(|| Guard::of(&tree));
        match wanted.places {
            Some(places) => {
                self.watch(&places.watched, watch);
                self.hear(&mut guard, &places.rules, hear);
                self.set(&mut guard, places);
            }
            None => self.lift(&guard),
        }
        self.guard = Some(guard);
        self.told(was_open)
    }

    /// The notice to users after a change.
    fn told(&self, was_open: bool) -> Option<Command> {
        let text = match self.places.is_empty() {
            true => "programs without a claim can open GPUs again",
            false => "programs without a claim cannot open GPUs from now on",
        };
        let changed = self.places.is_empty() != was_open;
        changed.then(|| Command::Notice(text.to_owned()))
    }

    /// Notes that the filter has no effect, which is an administrator's first concern: a warning in the log, a notice
    /// to everybody once, and a sign on the screen while it lasts.
    pub(crate) fn note(&mut self, found: Option<NoEffect>) -> Option<Command> {
        let new = found
            .as_ref()
            .filter(|found| self.no_effect.as_ref() != Some(found));
        let text = new.map(NoEffect::text);
        self.no_effect = found;
        text.map(|text| {
            tracing::warn!("{text}");
            Command::Notice(text)
        })
    }

    /// Why a wanted filter has no effect.
    pub(crate) fn no_effect(&self) -> Option<&NoEffect> {
        self.no_effect.as_ref()
    }

    /// Why it could not be attached everywhere.
    pub(crate) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Watches where cgroups and sessions appear, once for each set of directories.
    fn watch(
        &mut self,
        dirs: &BTreeSet<PathBuf>,
        watch: impl FnOnce(&BTreeSet<PathBuf>) -> io::Result<()>,
    ) {
        if *dirs == self.watched {
            return;
        }
        match watch(dirs) {
            Ok(()) => self.watched.clone_from(dirs),
            Err(error) => {
                tracing::warn!(%error, "cannot watch for new cgroups: they get their filter at the next poll");
            }
        }
    }

    /// Follows the filter's refusals, once.
    fn hear(
        &mut self,
        guard: &mut Guard,
        rules: &GuardRules,
        hear: impl FnOnce(Refusals) -> io::Result<()>,
    ) {
        if self.heard {
            return;
        }
        let Some(refusals) = guard.refusals(&rules.majors) else {
            return;
        };
        match hear(refusals) {
            Ok(()) => self.heard = true,
            Err(error) => {
                tracing::warn!(%error, "gshare cannot tell users why their programs cannot open a GPU");
            }
        }
    }

    fn set(&mut self, guard: &mut Guard, places: Places) {
        self.trouble = None;
        self.exempt = places.exempt;
        let mut set = BTreeSet::new();
        for dir in places.dirs {
            match guard.set(&dir, &places.rules) {
                Ok(_) => {
                    set.insert(dir);
                }
                // The cgroup was removed meanwhile.
                Err(_) if !dir.exists() => {}
                Err(error) => self.trouble = Some(format!("{}: {error}", dir.display())),
            }
        }
        // Cgroups that are no longer in the list lose the filter.
        if !self.settled || self.places.iter().any(|dir| !set.contains(dir)) {
            match guard.lift_except(&set) {
                Ok(_) => self.settled = true,
                Err(error) => self.trouble = Some(error.to_string()),
            }
        }
        if set.is_empty() && self.trouble.is_none() {
            self.trouble = Some(
                "no cgroup here can have the device filter, for example because all programs run in the root cgroup"
                    .to_owned(),
            );
        }
        self.places = set;
    }

    /// Removes the filter, including that of an earlier service.
    fn lift(&mut self, guard: &Guard) {
        if self.settled && self.places.is_empty() {
            return;
        }
        match guard.lift_except(&BTreeSet::new()) {
            Ok(_) => {
                self.places.clear();
                self.exempt.clear();
                self.trouble = None;
                self.settled = true;
            }
            Err(error) => self.trouble = Some(error.to_string()),
        }
    }

    /// For `gshare doctor`, where it is wanted.
    pub(crate) fn text(&self) -> String {
        if let Some(NoEffect { why, .. }) = &self.no_effect {
            return format!("programs without a claim are not blocked everywhere: {why}");
        }
        format!(
            "programs without a claim cannot open GPUs in {}; exempt: {}",
            names(&self.places),
            names(&self.exempt)
        )
    }
}

fn names(paths: &BTreeSet<PathBuf>) -> String {
    let name = |p: &PathBuf| {
        let name = p.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    };
    let names: Vec<String> = paths.iter().map(name).collect();
    match names.as_slice() {
        [] => "none".to_owned(),
        names => names.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(command: Option<Command>) -> String {
        match command {
            Some(Command::Notice(text)) => text,
            None => String::new(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_changes_is_told_and_once_that_it_holds_nobody() {
        let dir = PathBuf::from("/sys/fs/cgroup/user.slice");
        let mut denial = Denial {
            places: BTreeSet::from([dir]),
            ..Denial::default()
        };
        let closed = "programs without a claim cannot open GPUs from now on";
        assert_eq!(told(denial.told(true)), closed);
        assert_eq!(told(denial.told(false)), "", "as before");
        let old = || {
            Some(NoEffect {
                why: "too old".to_owned(),
                fix: "a new one".to_owned(),
            })
        };
        let open = "stage 4 has no effect here, and programs without a claim can open the GPUs: too old. To fix it: a new one";
        assert_eq!(told(denial.note(old())), open);
        assert_eq!(told(denial.note(old())), "", "it is shown still");
        assert!(denial.text().ends_with("too old"), "{}", denial.text());
        assert_eq!(told(denial.note(None)), "");
        denial.places.clear();
        let again = "programs without a claim can open GPUs again";
        assert_eq!(told(denial.told(false)), again);
    }

    #[test]
    fn a_set_of_directories_is_watched_once_and_again_if_that_failed() {
        let (mut denial, dirs) = (Denial::default(), BTreeSet::from([PathBuf::from("/run")]));
        let mut watched = 0;
        for fails in [true, false, false] {
            denial.watch(&dirs, |_| {
                watched += 1;
                if fails {
                    return Err(io::Error::other("no room"));
                }
                Ok(())
            });
        }
        assert_eq!(watched, 2);
    }
}

//! The filter that keeps programs outside claims from GPUs: where it is, and what users are told of that. Where it belongs
//! is decided in `policy/deny.rs`.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use gshare_enforcer::device::{Guard, GuardRules, Refusals};

use crate::daemon::command::Command;

/// Where the filter belongs now.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    /// Programs outside claims are to be kept from GPUs.
    pub(crate) denies: bool,
    /// The cgroup of claims, by which the filter is known; absent where there can be no filter.
    pub(crate) tree: Option<PathBuf>,
    /// Where and what it is to be; absent where it is to be nowhere.
    pub(crate) places: Option<Places>,
}

/// Where and what the filter is to be.
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

/// What is in force.
#[derive(Debug, Default)]
pub(crate) struct Denial {
    /// Made when it is first needed.
    guard: Option<Guard>,
    /// Directories of the cgroups that have the filter.
    places: BTreeSet<PathBuf>,
    /// Paths of the exempt cgroups, from the top.
    exempt: BTreeSet<PathBuf>,
    /// Why it could not be set everywhere.
    trouble: Option<String>,
    /// What an earlier service may have left was looked for.
    settled: bool,
    /// What it refuses is listened to, where the kernel says it.
    heard: bool,
    /// Users were told that there can be no filter.
    told_open: bool,
    /// The directories that are watched.
    watched: BTreeSet<PathBuf>,
}

impl Denial {
    /// Brings the filter to where it belongs, or takes it off. `watch` follows directories, and `hear` what is refused.
    pub(crate) fn follow(
        &mut self,
        wanted: Wanted,
        watch: impl FnOnce(&BTreeSet<PathBuf>) -> io::Result<()>,
        hear: impl FnOnce(Refusals) -> io::Result<()>,
    ) -> Vec<Command> {
        let Some(tree) = wanted.tree else {
            let told = !wanted.denies || std::mem::replace(&mut self.told_open, true);
            let open = (!told).then(|| open_text("this service has no device filter"));
            return open.into_iter().collect();
        };
        let before = (self.places.is_empty(), self.trouble.clone());
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
        self.told(before)
    }

    /// What users are told after a change.
    fn told(&self, (was_open, trouble): (bool, Option<String>)) -> Vec<Command> {
        let new = self.trouble.as_ref().filter(|_| self.trouble != trouble);
        let open = new.map(|why| open_text(why));
        let text = match self.places.is_empty() {
            true => "programs outside claims can open GPUs again",
            false => "programs outside claims cannot open GPUs from now on",
        };
        let changed = self.places.is_empty() != was_open;
        let changed = changed.then(|| Command::Notice(text.to_owned()));
        open.into_iter().chain(changed).collect()
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

    /// Follows what the filter refuses, once.
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
                tracing::warn!(%error, "users are not told why their programs cannot open a GPU");
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
                // It was removed meanwhile.
                Err(_) if !dir.exists() => {}
                Err(error) => self.trouble = Some(format!("{}: {error}", dir.display())),
            }
        }
        // What is in the list no more keeps no filter.
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

    /// Takes the filter off, also what an earlier service left.
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

    /// Whether programs outside claims are kept from GPUs everywhere.
    pub(crate) fn is_in_force(&self) -> bool {
        !self.places.is_empty() && self.trouble.is_none()
    }

    /// For `gshare doctor`, where it is wanted.
    pub(crate) fn text(&self) -> String {
        if self.guard.is_none() {
            return "deny is configured, but there is no device filter".to_owned();
        }
        if let Some(why) = &self.trouble {
            return format!("deny is not in force everywhere: {why}");
        }
        format!(
            "deny: programs outside claims cannot open GPUs in {}; exempt: {}",
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

/// A setting that does not hold is an administrator's first concern: a warning in the log, and on every screen.
fn open_text(why: &str) -> Command {
    tracing::warn!("`unclaimed = \"deny\"` has no effect: {why}");
    Command::Notice(format!(
        "programs outside claims may still open GPUs: {why}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(commands: &[Command]) -> Vec<&str> {
        let texts = commands.iter().map(|command| match command {
            Command::Notice(text) => text.as_str(),
            other => panic!("{other:?}"),
        });
        texts.collect()
    }

    #[test]
    fn without_a_filter_users_are_told_once_that_gpus_are_open() {
        let mut denial = Denial::default();
        let mut follow = |denies| {
            let wanted = Wanted {
                denies,
                ..Wanted::default()
            };
            denial.follow(wanted, |_| Ok(()), |_| Ok(()))
        };
        assert!(follow(false).is_empty(), "nobody asked for it");
        let commands = follow(true);
        let why = "programs outside claims may still open GPUs: this service has no device filter";
        assert_eq!(told(&commands), [why]);
        assert!(follow(true).is_empty());
        assert!(denial.text().contains("no device filter"));
    }

    #[test]
    fn what_changes_is_told_and_a_new_trouble() {
        let dir = PathBuf::from("/sys/fs/cgroup/user.slice");
        let mut denial = Denial {
            places: BTreeSet::from([dir]),
            ..Denial::default()
        };
        let closed = "programs outside claims cannot open GPUs from now on";
        assert_eq!(told(&denial.told((true, None))), [closed]);
        assert!(denial.told((false, None)).is_empty(), "as before");
        denial.trouble = Some("too old".to_owned());
        let open = "programs outside claims may still open GPUs: too old";
        assert_eq!(told(&denial.told((false, None))), [open]);
        assert!(denial.told((false, Some("too old".to_owned()))).is_empty());
        denial.places.clear();
        let again = "programs outside claims can open GPUs again";
        assert_eq!(told(&denial.told((false, denial.trouble.clone()))), [again]);
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

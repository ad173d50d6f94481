//! Names of users, and of the groups that they are in.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use gshare_enforcer::proc;

use super::fact::Fact;
use super::host::Host;
use super::msg::Msg;

/// A user who had no name is looked up again after this: a directory (LDAP) that did not answer will.
const AGAIN: Duration = Duration::from_secs(60);

/// User names by uid, looked up once; a number that stands for one, until when.
#[derive(Debug)]
pub(crate) struct Names(Mutex<HashMap<u32, (String, Option<Instant>)>>);

impl Default for Names {
    fn default() -> Self {
        Self::new()
    }
}

impl Names {
    /// Names of users that have no account come from `GSHARE_USER_NAMES` (`60001=ada,60002=bob`), which the
    /// demo sets for its service. An account's own name always wins.
    pub(crate) fn new() -> Self {
        let given = std::env::var("GSHARE_USER_NAMES").unwrap_or_default();
        let pairs = given.split(',').filter_map(|pair| {
            let (uid, name) = pair.split_once('=')?;
            let uid = uid.parse().ok()?;
            proc::user_name(uid)
                .is_none()
                .then(|| (uid, (name.to_owned(), None)))
        });
        Self(Mutex::new(pairs.collect()))
    }

    /// The name of a user, or the number where there is none.
    pub(crate) fn user(&self, uid: u32) -> String {
        self.look_up(uid, Instant::now(), proc::user_name)
    }

    fn look_up(&self, uid: u32, now: Instant, name: impl Fn(u32) -> Option<String>) -> String {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match names.get(&uid) {
            Some((known, until)) if until.is_none_or(|until| now < until) => known.clone(),
            _ => {
                let found = name(uid);
                let until = found.is_none().then(|| now + AGAIN);
                let shown = found.unwrap_or_else(|| uid.to_string());
                names.insert(uid, (shown.clone(), until));
                shown
            }
        }
    }

    /// The user of that name or number.
    pub(crate) fn uid(&self, word: &str) -> Option<u32> {
        let number = word.parse().ok();
        let known = || {
            let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let mut named = names.iter().filter(|(_, (n, _))| n == word);
            named.next().map(|(uid, _)| *uid)
        };
        number.or_else(known).or_else(|| proc::uid_of(word))
    }
}

impl Host {
    /// Looks up the groups of a user in a thread: a directory (LDAP) may take long to answer. [`Fact::Groups`] says them.
    pub(crate) fn look_up_groups(&self, uid: u32) {
        let events = self.events.clone();
        let tell = move |names| {
            // A service that ends wants to know nothing.
            let _ = events.send(Msg::Fact(Fact::Groups { uid, names }));
        };
        let told = tell.clone();
        let started = std::thread::Builder::new().name("groups".to_owned());
        let looking = started.spawn(move || {
            let groups = proc::groups_of(uid).unwrap_or_default();
            tell(groups.into_iter().filter_map(proc::group_name).collect());
        });
        if let Err(error) = looking {
            tracing::warn!(%error, uid, "the groups of a user are unknown: the thread that looks them up does not start");
            told(Vec::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_of_a_user_come_back_as_a_fact() {
        let (events, mut told) = tokio::sync::mpsc::unbounded_channel();
        let host = Host {
            events,
            ..Host::none()
        };
        for (uid, has_root) in [(0, true), (4_000_000_001, false)] {
            host.look_up_groups(uid);
            let Some(Msg::Fact(Fact::Groups { uid: of, names })) = told.blocking_recv() else {
                panic!("nothing was told");
            };
            assert_eq!((of, names.contains(&"root".to_owned())), (uid, has_root));
        }
    }

    #[test]
    fn a_directory_that_did_not_answer_is_asked_again_for_a_name() {
        let (names, start) = (Names::new(), Instant::now());
        let at = |s: u64, name: Option<&str>| {
            names.look_up(4_000_000_001, start + Duration::from_secs(s), |_| {
                name.map(str::to_owned)
            })
        };
        assert_eq!(at(0, None), "4000000001");
        assert_eq!(
            at(59, Some("ada@lab.example")),
            "4000000001",
            "not at every look"
        );
        assert_eq!(at(61, Some("ada@lab.example")), "ada@lab.example");
        assert_eq!(
            at(999, None),
            "ada@lab.example",
            "a name that is known is kept"
        );
        assert_eq!(names.uid("ada@lab.example"), Some(4_000_000_001));
    }
}

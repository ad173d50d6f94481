//! Names of users.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use gshare_enforcer::proc;

/// User names by uid, looked up once.
#[derive(Debug)]
pub(crate) struct Names(Mutex<HashMap<u32, String>>);

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
                .then(|| (uid, name.to_owned()))
        });
        Self(Mutex::new(pairs.collect()))
    }

    /// The name of a user, or the number where there is none.
    pub(crate) fn user(&self, uid: u32) -> String {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names
            .entry(uid)
            .or_insert_with(|| proc::user_name(uid).unwrap_or_else(|| uid.to_string()))
            .clone()
    }

    /// The user of that name or number.
    pub(crate) fn uid(&self, word: &str) -> Option<u32> {
        let number = word.parse().ok();
        let known = || {
            let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            names.iter().find(|(_, n)| *n == word).map(|(uid, _)| *uid)
        };
        number.or_else(known).or_else(|| proc::uid_of(word))
    }
}

//! Users and groups from the system's databases. A directory (LDAP) may take long to answer, or never answer, so
//! threads query it, and the state's task reads the results. A caller is looked up before its request is handled.

use std::collections::HashMap;
use std::fmt;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gshare_enforcer::proc;

/// A user is looked up again after this time.
const FRESH: Duration = Duration::from_secs(60);
/// Longest wait of the state's task for an unknown user; none while a directory is slow.
const A_MOMENT: Duration = Duration::from_millis(20);
/// Longest wait of a user's own request for the directory: the first time, and later.
const PATIENCE: [Duration; 2] = [Duration::from_secs(5), Duration::from_millis(100)];

/// A user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Account {
    /// Login name; absent if there is none, or it is unknown.
    pub(crate) name: Option<String>,
    pub(crate) gid: Option<u32>,
    pub(crate) groups: Vec<(u32, Option<String>)>,
}

impl Account {
    /// Queries the system; for threads.
    pub(crate) fn read(uid: u32) -> Self {
        let groups = proc::groups_of(uid).unwrap_or_default();
        let named = |gid| (gid, proc::group_name(gid));
        Self {
            name: proc::user_name(uid),
            gid: proc::primary_gid(uid),
            groups: groups.into_iter().map(named).collect(),
        }
    }

    /// Numbers of the groups.
    pub(crate) fn gids(&self) -> Vec<u32> {
        self.groups.iter().map(|(gid, _)| *gid).collect()
    }

    pub(crate) fn group_names(&self) -> Vec<String> {
        let names = self.groups.iter().filter_map(|(_, name)| name.clone());
        names.collect()
    }

    /// Name of the primary group.
    pub(crate) fn primary(&self) -> Option<&str> {
        let primary = |(gid, _): &&(u32, Option<String>)| Some(*gid) == self.gid;
        self.groups.iter().find(primary)?.1.as_deref()
    }
}

/// What is known of a user, and whether a lookup runs.
#[derive(Debug, Default)]
struct Known {
    account: Arc<Account>,
    at: Option<Instant>,
    asked: Option<Instant>,
}

/// Users by uid. Clones share the data.
#[derive(Clone, Debug)]
pub(crate) struct Names(Arc<Inner>);

/// Called when a slow directory has answered for a user.
type Changed = Box<dyn Fn() + Send + Sync>;

struct Inner {
    known: Mutex<HashMap<u32, Known>>,
    /// Names of groups of callers so far.
    groups: Mutex<HashMap<u32, Option<String>>>,
    /// Names of users without an account.
    given: HashMap<u32, String>,
    read: fn(u32) -> Account,
    changed: Option<Changed>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.known.fmt(f)
    }
}

impl Default for Names {
    fn default() -> Self {
        Self::new(None)
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Names {
    /// Names of users without an account come from `GSHARE_USER_NAMES` (`60001=ada,60002=bob`), which the demo sets
    /// for its service. An account's own name always wins.
    pub(crate) fn new(changed: Option<Changed>) -> Self {
        let given = std::env::var("GSHARE_USER_NAMES").unwrap_or_default();
        let pairs = given.split(',').filter_map(|pair| {
            let (uid, name) = pair.split_once('=')?;
            Some((uid.parse().ok()?, name.to_owned()))
        });
        Self::over(pairs.collect(), Account::read, changed)
    }

    pub(super) fn over(
        given: HashMap<u32, String>,
        read: fn(u32) -> Account,
        changed: Option<Changed>,
    ) -> Self {
        Self(Arc::new(Inner {
            known: Mutex::default(),
            groups: Mutex::default(),
            given,
            read,
            changed,
        }))
    }

    /// What is known of a user. For an unknown user there is a short wait.
    pub(crate) fn account(&self, uid: u32) -> Arc<Account> {
        let mut known = lock(&self.0.known);
        let late = |k: &Known| k.asked.is_some_and(|at| at.elapsed() > A_MOMENT);
        let is_slow = known.values().any(late);
        let of = known.entry(uid).or_default();
        let wait = of.at.is_none() && !is_slow;
        let asks = of.asked.is_none() && of.at.is_none_or(|at| at.elapsed() > FRESH);
        if !asks {
            return Arc::clone(&of.account);
        }
        of.asked = Some(Instant::now());
        drop(known);
        let answered = self.ask(uid);
        if wait {
            let _ = answered.recv_timeout(A_MOMENT);
        }
        let known = lock(&self.0.known);
        known
            .get(&uid)
            .map(|k| Arc::clone(&k.account))
            .unwrap_or_default()
    }

    /// The name of a user, or the uid if there is none.
    pub(crate) fn user(&self, uid: u32) -> String {
        let name = self.account(uid).name.clone();
        let name = name.or_else(|| self.0.given.get(&uid).cloned());
        name.unwrap_or_else(|| uid.to_string())
    }

    /// The name of a group of a caller.
    pub(crate) fn group(&self, gid: u32) -> Option<String> {
        lock(&self.0.groups).get(&gid).cloned().flatten()
    }

    /// The user of that name or uid; for threads.
    pub(crate) fn uid(&self, word: &str) -> Option<u32> {
        let number = word.parse().ok();
        let known = || {
            let given = self.0.given.iter().find(|(_, name)| *name == word);
            given.map(|(uid, _)| *uid)
        };
        number.or_else(|| proc::uid_of(word)).or_else(known)
    }

    /// Looks up a user and the groups of the connection before their request is handled. Only their own requests
    /// wait.
    pub(crate) async fn know(&self, uid: u32, gids: &[u32]) {
        let missing: Vec<u32> = {
            let groups = lock(&self.0.groups);
            gids.iter()
                .copied()
                .filter(|g| !groups.contains_key(g))
                .collect()
        };
        if !missing.is_empty() {
            let names = self.clone();
            let looked = tokio::task::spawn_blocking(move || {
                let named = missing.into_iter().map(|gid| (gid, proc::group_name(gid)));
                let named: Vec<_> = named.collect();
                lock(&names.0.groups).extend(named);
            });
            let _ = tokio::time::timeout(PATIENCE[0], looked).await;
        }
        let begun = Instant::now();
        loop {
            let asks = {
                let mut known = lock(&self.0.known);
                let of = known.entry(uid).or_default();
                let patience = PATIENCE[usize::from(of.at.is_some())];
                if of.at.is_some_and(|at| at.elapsed() < FRESH) || begun.elapsed() > patience {
                    return;
                }
                of.asked.replace(of.asked.unwrap_or(begun)).is_none()
            };
            if asks {
                drop(self.ask(uid));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Starts a thread that looks up a user; the receiver tells when it is done.
    fn ask(&self, uid: u32) -> Receiver<()> {
        let (answered_tx, answered_rx) = channel();
        let (names, begun) = (self.clone(), Instant::now());
        let started = std::thread::Builder::new().name("names".to_owned());
        let looking = started.spawn(move || {
            let found = (names.0.read)(uid);
            let changed = names.note(uid, found);
            let _ = answered_tx.send(());
            if changed
                && begun.elapsed() > A_MOMENT
                && let Some(tell) = &names.0.changed
            {
                tell();
            }
        });
        if let Err(error) = looking {
            tracing::warn!(%error, uid, "the thread that looks up a user does not start");
            lock(&self.0.known).entry(uid).or_default().asked = None;
        }
        answered_rx
    }

    /// Stores a result. If a directory does not answer, the known name is kept. True if it is new.
    fn note(&self, uid: u32, found: Account) -> bool {
        let mut known = lock(&self.0.known);
        let of = known.entry(uid).or_default();
        (of.at, of.asked) = (Some(Instant::now()), None);
        let lost = found.name.is_none() && of.account.name.is_some();
        if lost || *of.account == found {
            return false;
        }
        of.account = Arc::new(found);
        true
    }

    /// Users with this result.
    #[cfg(test)]
    pub(crate) fn of(uid: u32, account: Account) -> Self {
        let names = Self::default();
        names.note(uid, account);
        names
    }
}

#[cfg(test)]
mod tests {
    use gshare_proto::{AdminCall, Call, ClaimFor, PROTOCOL};
    use tokio::io::AsyncWriteExt;
    use tokio::net::UnixStream;

    use super::*;
    use crate::daemon::metrics::Answers;
    use crate::daemon::msg::Msg;
    use crate::daemon::server;

    /// A directory that never answers for one user.
    fn hangs() -> Names {
        let read = |uid| {
            if uid == 7 {
                std::thread::sleep(Duration::from_secs(3600));
            }
            Account {
                name: Some(format!("user{uid}")),
                gid: Some(5),
                groups: vec![(5, Some("lab".to_owned()))],
            }
        };
        Names::over(HashMap::new(), read, None)
    }

    #[test]
    fn nobody_waits_for_what_a_directory_does_not_say_of_another() {
        let (names, begun) = (hangs(), Instant::now());
        for _ in 0..100 {
            assert_eq!(names.user(7), "7", "it is not known");
            assert!(names.account(7).gids().is_empty());
        }
        assert!(
            begun.elapsed() < Duration::from_millis(100),
            "{:?}",
            begun.elapsed()
        );
        let others = names.account(8);
        assert!(
            begun.elapsed() < Duration::from_millis(100),
            "{:?}",
            begun.elapsed()
        );
        drop(others);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_request_waits_for_its_own_user_alone() {
        let names = hangs();
        let slow = names.clone();
        let waits = tokio::spawn(async move { slow.know(7, &[]).await });
        tokio::time::sleep(Duration::from_millis(30)).await;
        let begun = Instant::now();
        names.know(8, &[0]).await;
        assert!(
            begun.elapsed() < Duration::from_millis(100),
            "{:?}",
            begun.elapsed()
        );
        assert!(!waits.is_finished(), "the other waits on");
        waits.abort();
        let account = names.account(8);
        assert_eq!(
            (account.primary(), names.user(8)),
            (Some("lab"), "user8".to_owned())
        );
        assert_eq!(names.group(0).as_deref(), Some("root"));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn another_caller_is_answered_while_a_directory_hangs() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let listener = server::bind(&path, false).expect("bound");
        let (events, mut told) = tokio::sync::mpsc::unbounded_channel();
        let serve = server::serve(
            listener,
            8,
            events,
            Answers::default(),
            None,
            hangs(),
            || {},
        );
        tokio::spawn(serve);
        let ask = async |call: Call| {
            let mut stream = UnixStream::connect(&path).await.expect("connected");
            let call = serde_json::to_string(&call).expect("it is JSON");
            let lines = format!("{{\"gshare\":{PROTOCOL}}}\n{call}\n");
            stream.write_all(lines.as_bytes()).await.expect("sent");
            stream
        };
        let slow = ask(Call::Admin(AdminCall::ClaimFor(Box::new(ClaimFor {
            uid: 7,
            name: "job-1".to_owned().into(),
            cgroup: "/slurm/job_1".to_owned().into(),
            ..ClaimFor::default()
        }))));
        let _slow = slow.await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        let _other = ask(Call::Snapshot).await;
        let first = tokio::time::timeout(Duration::from_millis(100), told.recv()).await;
        assert!(
            matches!(
                first,
                Ok(Some(Msg::Call {
                    call: Call::Snapshot,
                    ..
                }))
            ),
            "{first:?}"
        );
    }

    #[test]
    fn a_name_that_is_known_is_kept() {
        let known = Account {
            name: Some("ada".to_owned()),
            ..Account::default()
        };
        let names = Names::of(8, known);
        assert!(!names.note(8, Account::default()), "the directory is away");
        assert_eq!(names.user(8), "ada");
    }
}

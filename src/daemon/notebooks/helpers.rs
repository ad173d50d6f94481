//! Processes that query users' Jupyter servers and write into their notebooks: one per set of rights, each with a
//! thread that waits for it.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gshare_core::ClaimId;
use gshare_enforcer::proc::{self, Rights};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::mpsc;

use crate::clock::unix_ms;
use crate::daemon::fact::Fact;
use crate::daemon::live::Live;
use crate::daemon::msg::Msg;
use crate::daemon::names::Account;
use crate::kernel::helper::{self, ARGUMENT, Wanted};
use crate::kernel::seen;
use crate::kernel::servers::Sought;

/// Longest wait for an answer of a helper. Its own waits are shorter, so a slower helper has failed.
const PATIENCE: Duration = Duration::from_secs(40);
/// Longest answer, in bytes.
const LONGEST: usize = 1 << 20;
/// Maximum number of lines and file checks that wait for a helper; more are dropped. Of queries only the newest
/// waits.
const AHEAD: usize = 64;
/// A helper that does not read an order within this time is restarted: its user may have stopped it.
const TAKES: Duration = Duration::from_secs(2);
/// Group of users without one.
const NO_GROUP: u32 = 65_534;
/// All helpers, by the rights of their kernels.
#[derive(Debug, Default)]
pub(crate) struct Helpers(BTreeMap<Rights, Desk>);

type Events = mpsc::UnboundedSender<Msg>;

impl Helpers {
    /// Queries the servers of all users with kernels in claims.
    pub(crate) fn look(&mut self, claims: &BTreeMap<ClaimId, Live>, events: &Events) {
        let mut sought: BTreeMap<Rights, Vec<Sought>> = BTreeMap::new();
        for live in claims.values() {
            let (Some(kernel), Some(process)) = (&live.record.origin.kernel, live.record.process)
            else {
                continue;
            };
            let rights = live.command_alive.then(|| rights(live)).flatten();
            let dir = kernel.connection.parent();
            if let (Some(dir), Some(rights)) = (dir, rights) {
                sought.entry(rights).or_default().push(Sought {
                    id: kernel.id.clone(),
                    dir: dir.to_owned(),
                    pid: process.pid,
                });
            }
        }
        // A helper without kernels ends when its sender is dropped.
        self.0.retain(|rights, _| sought.contains_key(rights));
        for (rights, sought) in sought {
            self.ask(rights, Wanted::Look(sought), events);
        }
    }

    /// Checks whether the connection file of an ended kernel still exists: with its user's rights, because the user
    /// chose the path and can see the result.
    pub(crate) fn look_for(
        &mut self,
        id: ClaimId,
        (uid, account): (u32, &Account),
        path: PathBuf,
        events: &Events,
    ) {
        let rights = Rights {
            uid,
            gid: account.gid.unwrap_or(NO_GROUP),
            groups: account.gids(),
        };
        self.ask(rights, Wanted::Gone { claim: id.0, path }, events);
    }

    /// Writes a line into the output of a claim's notebook, if it has one.
    pub(crate) fn say(&mut self, live: &Live, text: &str, events: &Events) {
        let known = live.record.origin.kernel.as_ref().and(live.record.process);
        if let (true, Some(process), Some(rights)) = (live.command_alive, known, rights(live)) {
            let say = Wanted::Say {
                pid: process.pid,
                start_ticks: process.start_ticks,
                text: text.to_owned(),
            };
            self.ask(rights, say, events);
        }
    }

    fn ask(&mut self, rights: Rights, wanted: Wanted, events: &Events) {
        let uid = rights.uid;
        let helper = self.0.entry(rights).or_insert_with_key(|rights| {
            let desk = Desk::default();
            let (rights, events) = (rights.clone(), events.clone());
            let inbox = Arc::clone(&desk.0);
            let started = std::thread::Builder::new().name(format!("notebooks-{uid}"));
            if let Err(error) = started.spawn(move || serve(&rights, &inbox, &events)) {
                tracing::warn!(%error, uid, "cannot start the thread for a user's notebooks");
            }
            desk
        });
        helper.0.put(wanted);
    }
}

/// Orders for a helper. Its thread ends when this is dropped.
#[derive(Debug, Default)]
struct Desk(Arc<Inbox>);

impl Drop for Desk {
    fn drop(&mut self) {
        self.0.change(|inbox| inbox.over = true);
    }
}

#[derive(Debug, Default)]
struct Inbox {
    wants: Mutex<Wants>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Wants {
    look: Option<Wanted>,
    say: VecDeque<Wanted>,
    over: bool,
}

impl Inbox {
    fn change(&self, change: impl FnOnce(&mut Wants)) {
        change(&mut self.wants.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_one();
    }

    fn put(&self, wanted: Wanted) {
        self.change(|wants| match wanted {
            Wanted::Look(_) => wants.look = Some(wanted),
            Wanted::Say { .. } | Wanted::Gone { .. } if wants.say.len() < AHEAD => {
                wants.say.push_back(wanted);
            }
            Wanted::Say { .. } | Wanted::Gone { .. } => {}
        });
    }

    /// Waits for the next order; `None` once this is the last handle.
    fn take(&self) -> Option<Wanted> {
        let mut wants = self.wants.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(wanted) = wants.say.pop_front().or_else(|| wants.look.take()) {
                return Some(wanted);
            }
            if wants.over {
                return None;
            }
            wants = self
                .changed
                .wait(wants)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The rights with which the kernel of a claim was started; only those of the claim's owner, even if the pid was
/// reused.
fn rights(live: &Live) -> Option<Rights> {
    let found = proc::rights(live.record.process?.pid)?;
    (found.uid == live.record.uid).then_some(found)
}

/// A running helper.
struct Helper {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Helper {
    /// Starts a helper with nothing of the service's except a channel; a user's own service starts it with its own
    /// rights.
    fn start(rights: &Rights) -> std::io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg(ARGUMENT)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        if nix::unistd::Uid::effective().is_root() {
            command.args(helper::arguments(rights));
        }
        let mut child = command.spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (input, output) = pipes.ok_or_else(|| std::io::Error::other("it has no pipes"))?;
        Self::of(child, input, output)
    }

    fn of(child: Child, input: ChildStdin, output: ChildStdout) -> std::io::Result<Self> {
        let flags = OFlag::from_bits_retain(fcntl(&input, FcntlArg::F_GETFL)?);
        fcntl(&input, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        Ok(Self {
            child,
            input,
            output: BufReader::new(output),
        })
    }

    /// Writes within [`TAKES`].
    fn write(&mut self, mut bytes: &[u8]) -> std::io::Result<()> {
        let until = Instant::now() + TAKES;
        while !bytes.is_empty() {
            match self.input.write(bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                    let left = until.saturating_duration_since(Instant::now());
                    let mut ready = [PollFd::new(self.input.as_fd(), PollFlags::POLLOUT)];
                    let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
                    if left.is_zero() || poll(&mut ready, timeout)? == 0 {
                        return Err(std::io::Error::other("it accepts no input"));
                    }
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Reads a line within that time; its user may stop it at any point.
    fn read(&mut self, patience: Duration) -> std::io::Result<String> {
        let until = Instant::now() + patience;
        let mut line = Vec::new();
        while !line.ends_with(b"\n") && line.len() < LONGEST {
            if self.output.buffer().is_empty() {
                let left = until.saturating_duration_since(Instant::now());
                let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
                let output = self.output.get_ref().as_fd();
                if poll(&mut [PollFd::new(output, PollFlags::POLLIN)], timeout)? == 0 {
                    return Err(std::io::Error::other("it does not answer"));
                }
            }
            let some = self.output.fill_buf()?;
            if some.is_empty() {
                break;
            }
            let end = some.iter().position(|byte| *byte == b'\n');
            let read = end.map_or(some.len(), |end| end + 1);
            line.extend_from_slice(&some[..read]);
            self.output.consume(read);
        }
        String::from_utf8(line).map_err(std::io::Error::other)
    }

    /// Passes an order on; returns an answer, if the order has one.
    fn ask(&mut self, uid: u32, wanted: &Wanted) -> std::io::Result<Option<Msg>> {
        let line = serde_json::to_string(wanted)? + "\n";
        self.write(line.as_bytes())?;
        if matches!(wanted, Wanted::Say { .. }) {
            return Ok(None);
        }
        let line = self.read(PATIENCE)?;
        Ok(Some(match wanted {
            Wanted::Gone { claim, .. } => Msg::Fact(Fact::KernelSeen {
                claim: ClaimId(*claim),
                shut_down: serde_json::from_str(&line)?,
            }),
            _ => Msg::Fact(Fact::Notebooks {
                uid,
                seen: seen::read(&line)?,
            }),
        }))
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Passes orders to a helper until there is no sender any more.
fn serve(rights: &Rights, inbox: &Inbox, events: &mpsc::UnboundedSender<Msg>) {
    let uid = rights.uid;
    let mut helper = None;
    while let Some(wanted) = inbox.take() {
        let mut running = match helper.take().map_or_else(|| Helper::start(rights), Ok) {
            Ok(running) => running,
            Err(error) => {
                tracing::warn!(uid, %error, "could not start the helper for a user's notebooks");
                continue;
            }
        };
        // Reported before it is done, so that no server's answer precedes it.
        if let Wanted::Say {
            pid, start_ticks, ..
        } = wanted
        {
            let _ = events.send(Msg::Fact(Fact::NotebookLine {
                pid,
                start_ticks,
                at_ms: unix_ms(),
            }));
        }
        match running.ask(uid, &wanted) {
            Ok(answer) => {
                helper = Some(running);
                if let Some(answer) = answer {
                    let _ = events.send(answer);
                }
            }
            Err(error) => tracing::debug!(uid, %error, "the helper for notebooks is restarted"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_look_waits_for_a_helper() {
        let inbox = Inbox::default();
        let look = |n: i32| {
            Wanted::Look(vec![Sought {
                id: n.to_string(),
                dir: "/".into(),
                pid: n,
            }])
        };
        (0..1000).for_each(|n| inbox.put(look(n)));
        for n in 0..1000 {
            inbox.put(Wanted::Say {
                pid: n,
                start_ticks: 0,
                text: "idle".into(),
            });
        }
        let said = (0..AHEAD).filter(|_| matches!(inbox.take(), Some(Wanted::Say { .. })));
        assert_eq!(said.count(), AHEAD);
        assert_eq!(inbox.take(), Some(look(999)));
        inbox.change(|wants| wants.over = true);
        assert_eq!(inbox.take(), None);
    }

    fn helper(script: &str) -> Helper {
        let mut child = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Helper::of(child, input, output).unwrap()
    }

    #[test]
    fn a_helper_that_stops_in_the_middle_of_a_line_is_not_waited_for() {
        let mut helper = helper("printf 'whole\nhalf'; exec sleep 60");
        assert_eq!(helper.read(PATIENCE).unwrap(), "whole\n");
        let error = helper.read(Duration::from_millis(50)).unwrap_err();
        assert!(error.to_string().contains("does not answer"), "{error}");
    }

    /// Its user may stop it: the service waits for a while and starts another.
    #[test]
    fn a_helper_that_takes_nothing_is_not_waited_for() {
        let mut helper = helper("exec sleep 60");
        let text = "x".repeat(1 << 20);
        let begun = Instant::now();
        let error = helper.ask(
            0,
            &Wanted::Say {
                pid: 1,
                start_ticks: 0,
                text,
            },
        );
        assert!(error.unwrap_err().to_string().contains("accepts no input"));
        assert!(begun.elapsed() < TAKES * 3);
    }
}

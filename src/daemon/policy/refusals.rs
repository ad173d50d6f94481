//! Programs that the filter of stage 4 denied a GPU: notifies their users on the terminal of the program.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use gshare_enforcer::device::Refusals;
use gshare_enforcer::proc;
use tokio::sync::mpsc;

use super::super::convert;
use super::super::gpu::Gpu;
use crate::daemon::command::Command;
use crate::daemon::msg::{Msg, Refused};
use crate::daemon::peer;
use crate::daemon::world::World;
use crate::figures;

/// A program tries one GPU after the other: these refusals are read together.
const TOGETHER: Duration = Duration::from_millis(20);
/// Maximum number of a user's programs with a line within this time.
const MOST: (u32, Duration) = (6, Duration::from_secs(60));
/// Longest command line in such a line, in characters.
const LONGEST: usize = 160;

/// Recent notices by user: since when, how many lines, and the last process.
#[derive(Default)]
struct Said(BTreeMap<u32, (Instant, u32, i32)>);

impl Said {
    /// Whether to notify a user that one of their processes was refused now.
    fn is_told(&mut self, owner: u32, pid: i32, now: Instant) -> bool {
        self.0
            .retain(|_, (since, ..)| now.duration_since(*since) < MOST.1);
        let (_, lines, last) = self.0.entry(owner).or_insert((now, 0, 0));
        let told = *last != pid && *lines < MOST.0;
        if told {
            (*last, *lines) = (pid, *lines + 1);
        }
        told
    }
}

/// Reads refusals until the service ends. A refused program usually ends soon, so it is inspected here.
pub(crate) fn follow(
    mut refusals: Refusals,
    events: mpsc::UnboundedSender<Msg>,
) -> std::io::Result<()> {
    let mut said = Said::default();
    let read = move || {
        while let Ok(refused) = refusals.wait() {
            for refusal in refused {
                // The users of a container are many uids of one user.
                let (uid, owner) = (refusal.uid, peer::owner_of(refusal.uid));
                if !said.is_told(owner, refusal.pid, Instant::now()) {
                    continue;
                }
                let key = proc::key(refusal.pid);
                let mut command = convert::command_line(refusal.pid);
                let mut terminal = proc::terminal(refusal.pid, uid);
                // The process may have ended, and its pid been reused.
                let same = proc::uids(refusal.pid).is_some_and(|u| u.real == uid);
                if !same || key.is_none() || proc::key(refusal.pid) != key {
                    command.clear();
                    terminal = None;
                }
                if command.is_empty() {
                    command.push(refusal.name);
                }
                let refused = Refused {
                    pid: refusal.pid,
                    uid: owner,
                    minor: refusal.minor,
                    command,
                    terminal,
                };
                if events.send(Msg::Refused(Box::new(refused))).is_err() {
                    return;
                }
            }
            std::thread::sleep(TOGETHER);
        }
    };
    std::thread::Builder::new()
        .name("refusals".to_owned())
        .spawn(read)
        .map(drop)
}

/// Names the program in the log and on the screen, and its command on its user's terminal.
pub(crate) fn told(refused: Refused, world: &World<'_>) -> Vec<Command> {
    let Refused { pid, uid, .. } = refused;
    let of = |gpu: &Gpu| refused.minor.is_some_and(|m| gpu.minor == Some(m));
    let gpu = world.gpus.iter().position(of);
    let gpu = gpu.map_or_else(|| "a GPU".to_owned(), |g| format!("GPU {g}"));
    let command = figures::program(&refused.command);
    let program = convert::clean(command.first().map_or("a program", |c| c), LONGEST);
    let user = world.host.names.user(uid);
    let what = format!("{program} ({pid}) of {user} opened {gpu} without a claim and was refused");
    let whole = convert::clean(&figures::what(None, &refused.command), LONGEST);
    let line = format!("gshare: {what}. Start it with: gshare claim -- {whole}");
    let command = convert::clean(&command.join(" "), LONGEST);
    let text = format!("{what}: gshare claim -- {command}");
    let say = refused
        .terminal
        .map(|terminal| Command::Say(terminal, line));
    say.into_iter()
        .chain([Command::TellUser(uid, None, text)])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_told_of_each_program_once_and_of_a_few_in_a_minute() {
        let (mut said, now) = (Said::default(), Instant::now());
        let told: Vec<i32> = (1..20).filter(|pid| said.is_told(7, *pid, now)).collect();
        assert_eq!(told, [1, 2, 3, 4, 5, 6]);
        assert!(said.is_told(8, 20, now) && !said.is_told(8, 20, now));
        assert!(said.is_told(7, 21, now + MOST.1), "a minute later");
    }
}

//! `gshare offload`, `restore`, `suspend`, `resume` and `move`.

use std::io::Write;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use gshare_proto::{Call, LeverWish, Queued, Reply};
use serde_json::json;

use super::args::levers::{LeverArgs, MoveArgs};
use super::claim::unexpected;
use super::failure::Failure;
use super::table::plain;
use super::waiting::ordinal;
use super::{Outcome, connect, out};

/// Shorter actions are not reported.
const QUIET: Duration = Duration::from_secs(1);

/// Shows on a terminal's standard error that an action takes time.
struct Progress {
    done: std::sync::mpsc::Sender<()>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Progress {
    fn start(doing: String) -> Self {
        use std::io::IsTerminal;
        let (done, over) = channel();
        let terminal = std::io::stderr().is_terminal();
        let thread = std::thread::spawn(move || {
            let begun = Instant::now();
            let mut drawn = false;
            while matches!(over.recv_timeout(QUIET), Err(RecvTimeoutError::Timeout)) {
                let line = format!("{doing} ... {} s", begun.elapsed().as_secs());
                if terminal {
                    eprint!("\r{line}");
                    let _ = std::io::stderr().flush();
                } else if !drawn {
                    out::note(&format!("{doing} ..."));
                }
                drawn = true;
            }
            if drawn && terminal {
                eprint!("\r\x1b[K");
            }
        });
        Self {
            done,
            thread: Some(thread),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let _ = self.done.send(());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn waits(queued: &Queued) {
    out::note(&format!(
        "{} waits for room (it is {} in the queue): {}. Ctrl-C ends this command; the request stays in the queue",
        queued.id,
        ordinal(queued.position),
        plain(&queued.reason)
    ));
}

fn ask(socket: Option<&Path>, call: &Call, doing: String) -> Result<String, Failure> {
    let mut client = connect::connect(socket)?;
    let mut progress = Some(Progress::start(doing));
    let mut next = client.call(call);
    let mut last = String::new();
    loop {
        match next? {
            Reply::Queued(queued) => {
                drop(progress.take());
                if last != queued.reason {
                    last.clone_from(&queued.reason);
                    waits(&queued);
                }
                next = client.next_reply();
            }
            Reply::Done { message } => return Ok(message),
            other => return Err(unexpected(&other)),
        }
    }
}

fn say(id: &str, json: bool, quiet: bool, message: &str) -> Outcome {
    if json {
        out::json(&json!({ "id": id, "done": message }))?;
    } else if !quiet {
        out::print(&format!("{message}\n"))?;
    }
    Ok(0)
}

pub(crate) fn pull(socket: Option<&Path>, wish: LeverWish, args: &LeverArgs) -> Outcome {
    let call = Call::Lever {
        id: args.id.clone().into(),
        wish,
    };
    let message = ask(
        socket,
        &call,
        format!("{} {}", wish.name(), plain(&args.id)),
    )?;
    say(&args.id, args.json, args.quiet, &message)
}

pub(crate) fn go(socket: Option<&Path>, args: &MoveArgs) -> Outcome {
    let call = Call::Move {
        id: args.id.clone().into(),
        gpus: args.gpu.clone().into(),
    };
    let doing = format!(
        "move {} to GPU {}",
        plain(&args.id),
        plain(&args.gpu.join(","))
    );
    let message = ask(socket, &call, doing)?;
    say(&args.id, args.json, args.quiet, &message)
}

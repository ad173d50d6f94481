//! Feeds the screen from the service: one connection watches, each request has its own. Both are
//! threads that may wait as long as they like; the screen does not.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use gshare_proto::{Call, Client, ClientError, Reply};

use crate::feed::{Failure, Feed, Feeder, Request, Update, UpdateSender, channel};

/// Shortest time between two snapshots, in milliseconds.
const INTERVAL_MS: u64 = 200;

/// Waits between attempts to connect: from the first to the last.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LAST_WAIT: Duration = Duration::from_secs(5);

/// The service may take this long to answer a request.
const PATIENCE: Duration = Duration::from_secs(10);

/// A feed from the service at `socket`, from now until the screen is closed. It connects again when
/// the service goes away and comes back.
#[must_use]
pub fn service_source(socket: &Path) -> Feed {
    let (feeder, feed) = channel();
    let Feeder { updates, requests } = feeder;
    let watcher = (socket.to_owned(), updates.clone());
    let caller = (socket.to_owned(), updates);
    thread::spawn(move || watch(&watcher.0, &watcher.1));
    thread::spawn(move || answer(&caller.0, &caller.1, requests));
    feed
}

fn watch(socket: &Path, updates: &UpdateSender) {
    let mut wait = FIRST_WAIT;
    loop {
        let connected = Instant::now();
        let Err(error) = watch_once(socket, updates) else {
            return;
        };
        if connected.elapsed() > LAST_WAIT {
            wait = FIRST_WAIT;
        }
        let failure = explain(error);
        let hint = failure.hint.map(|h| format!(" ({h})")).unwrap_or_default();
        let words = format!("{}{hint}", failure.message);
        if !updates.send(Update::Disconnected(words)) {
            return;
        }
        thread::sleep(wait);
        wait = (wait * 2).min(LAST_WAIT);
    }
}

/// Watches until the connection breaks; `Ok` when the screen is closed.
fn watch_once(socket: &Path, updates: &UpdateSender) -> Result<(), ClientError> {
    let mut client = Client::connect(socket)?;
    let mut reply = client.call(&Call::Watch {
        min_interval_ms: INTERVAL_MS,
    })?;
    loop {
        if let Reply::Snapshot(snapshot) = reply
            && !updates.send(Update::Snapshot(snapshot))
        {
            return Ok(());
        }
        reply = client.next_reply()?;
    }
}

fn answer(
    socket: &Path,
    updates: &UpdateSender,
    mut requests: tokio::sync::mpsc::UnboundedReceiver<Request>,
) {
    while let Some(request) = requests.blocking_recv() {
        let Request::Call { seq, call } = request else {
            continue;
        };
        // A thread each, so that a call that hangs delays no other.
        let (socket, updates): (PathBuf, _) = (socket.to_owned(), updates.clone());
        thread::spawn(move || {
            let outcome = call_once(&socket, &call).map_err(explain);
            updates.send(Update::CallResult { seq, outcome });
        });
    }
}

fn call_once(socket: &Path, call: &Call) -> Result<Reply, ClientError> {
    let mut client = Client::connect(socket)?;
    client.set_read_timeout(Some(PATIENCE))?;
    client.call(call)
}

fn explain(error: ClientError) -> Failure {
    let hint = match &error {
        ClientError::Refused(wire) => wire.hint.clone(),
        ClientError::NoService { .. } => {
            Some("sudo gshare daemon, or gshare daemon --user".to_owned())
        }
        ClientError::Io(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
            let seconds = PATIENCE.as_secs();
            return Failure {
                message: format!("the gshare service has not answered for {seconds} s"),
                hint: None,
            };
        }
        ClientError::Io(_) | ClientError::Closed | ClientError::Garbled(_) => None,
    };
    Failure {
        message: error.to_string(),
        hint,
    }
}

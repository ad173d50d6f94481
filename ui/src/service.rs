//! Feeds the screen from the service: one connection watches, each request has its own. Both are threads that may
//! wait; the screen does not.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use gshare_proto::{Call, Client, ClientError, Reply, messages};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::feed::{Failure, Feed, Feeder, Request, Update, UpdateSender, channel};

const INTERVAL: Duration = Duration::from_millis(200);

/// Waits between attempts to connect: from the first to the last.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LAST_WAIT: Duration = Duration::from_secs(5);

/// Longest time for the service to answer a request.
const PATIENCE: Duration = Duration::from_secs(10);

/// A feed from the service at `socket` until the screen is closed; on slow lines with at least this time between two
/// snapshots. It reconnects when the service restarts.
#[must_use]
pub fn service_source(socket: &Path, interval: Option<Duration>) -> Feed {
    let (feeder, feed) = channel();
    let Feeder { updates, requests } = feeder;
    let watcher = (socket.to_owned(), updates.clone());
    let caller = (socket.to_owned(), updates);
    let interval = interval.unwrap_or(INTERVAL);
    thread::spawn(move || watch(&watcher.0, &watcher.1, interval));
    thread::spawn(move || answer(&caller.0, &caller.1, requests));
    feed
}

fn watch(socket: &Path, updates: &UpdateSender, interval: Duration) {
    let mut wait = FIRST_WAIT;
    loop {
        let connected = Instant::now();
        let Err(error) = follow(socket, updates, interval) else {
            return;
        };
        if connected.elapsed() > LAST_WAIT {
            wait = FIRST_WAIT;
        }
        let failure = Failure::from(error);
        let hint = failure.hint.map(|h| format!(" ({h})")).unwrap_or_default();
        let why = format!("{}{hint}", failure.message);
        if !updates.send(Update::Disconnected(why)) {
            return;
        }
        thread::sleep(wait);
        wait = (wait * 2).min(LAST_WAIT);
    }
}

/// Watches until the connection breaks; `Ok` when the screen is closed.
fn follow(socket: &Path, updates: &UpdateSender, interval: Duration) -> Result<(), ClientError> {
    let mut client = Client::connect(socket)?;
    let mut reply = client.call(&Call::Watch {
        min_interval_ms: u64::try_from(interval.as_millis()).unwrap_or(u64::MAX),
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

fn answer(socket: &Path, updates: &UpdateSender, mut requests: UnboundedReceiver<Request>) {
    while let Some(request) = requests.blocking_recv() {
        let Request::Call { seq, call } = request else {
            continue;
        };
        // A thread each, so that a hanging call delays no other.
        let (socket, updates): (PathBuf, _) = (socket.to_owned(), updates.clone());
        thread::spawn(move || {
            let asked = Client::connect(&socket).and_then(|mut client| {
                client.set_read_timeout(Some(PATIENCE))?;
                client.call(&call)
            });
            let outcome = asked.map_err(Failure::from);
            updates.send(Update::CallResult { seq, outcome });
        });
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let hint = match &error {
            ClientError::Refused(wire) => wire.hint.clone(),
            ClientError::NoService { .. } => Some(messages::no_service_hint()),
            ClientError::Io(_) | ClientError::Closed | ClientError::Garbled(_) => None,
        };
        let message = match &error {
            ClientError::Io(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                let seconds = PATIENCE.as_secs();
                format!("the gshare service has not answered for {seconds} s")
            }
            _ => error.to_string(),
        };
        Self { message, hint }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::{UnixListener, UnixStream};

    use gshare_proto::{ErrorCode, Snapshot, WireError};

    use super::*;

    /// A service with these replies to each call, one connection each, for each script.
    fn serve(listener: UnixListener, scripts: Vec<Vec<Reply>>) -> thread::JoinHandle<Vec<String>> {
        thread::spawn(move || {
            let mut asked = Vec::new();
            for script in scripts {
                let Ok((stream, _)) = listener.accept() else {
                    break;
                };
                asked.push(talk(stream, &script).unwrap_or_default());
            }
            asked
        })
    }

    /// The call that the client made.
    fn talk(stream: UnixStream, script: &[Reply]) -> std::io::Result<String> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let mut line = || lines.next().unwrap_or_else(|| Ok(String::new()));
        let hello = line()?;
        assert!(hello.contains("\"gshare\":"), "{hello}");
        let call = line()?;
        let mut stream = stream;
        for reply in script {
            let text = serde_json::to_string(reply)?;
            stream.write_all(format!("{text}\n").as_bytes())?;
        }
        Ok(call)
    }

    fn snapshot(at: u64) -> Reply {
        Reply::Snapshot(Box::new(Snapshot {
            taken_ms: at,
            ..Snapshot::default()
        }))
    }

    /// Collects updates until one is `wanted`.
    fn until(feed: &Feed, wanted: impl Fn(&Update) -> bool) -> Update {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(found) = feed.updates.take().into_iter().find(&wanted) {
                return found;
            }
            assert!(Instant::now() < deadline, "the news never came");
            thread::yield_now();
        }
    }

    fn words(update: Update) -> String {
        match update {
            Update::Disconnected(words) => words,
            other => panic!("{other:?}"),
        }
    }

    fn lost(update: &Update) -> bool {
        matches!(update, Update::Disconnected(_))
    }

    #[test]
    fn it_connects_again_when_the_service_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("gshared.sock");
        let feed = service_source(&socket, None);
        let why = words(until(&feed, lost));
        assert!(
            why.contains("no gshare service answers at") && why.contains("gshare daemon"),
            "{why}"
        );
        let listener = UnixListener::bind(&socket).unwrap();
        let script = || vec![snapshot(1), snapshot(2)];
        let served = serve(listener, vec![script(), script()]);
        for _ in 0..2 {
            // The second snapshot, then the end of the connection, twice.
            let is_second = |u: &Update| matches!(u, Update::Snapshot(s) if s.taken_ms == 2);
            until(&feed, |u| is_second(u) || lost(u));
        }
        let asked = served.join().unwrap();
        assert_eq!(asked.len(), 2);
        assert!(asked[0].contains("\"op\":\"watch\""), "{asked:?}");
    }

    #[test]
    fn requests_are_answered_by_number() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("gshared.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let (feeder, feed) = channel();
        let caller = feeder.updates.clone();
        let path = socket.clone();
        thread::spawn(move || answer(&path, &caller, feeder.requests));
        let ask = |seq| {
            let call = Box::new(Call::Release {
                id: "c3".to_owned().into(),
            });
            feed.requests.send(Request::Call { seq, call }).unwrap();
            match until(&feed, |u| matches!(u, Update::CallResult { .. })) {
                Update::CallResult { seq: got, outcome } if got == seq => outcome,
                other => panic!("{other:?}"),
            }
        };
        let done = || Reply::Done {
            message: "c3 released".to_owned(),
        };
        let error =
            WireError::new(ErrorCode::NotPermitted, "c3 belongs to vis").with_hint("ask vis");
        let served = serve(
            listener,
            vec![vec![done()], vec![Reply::Error(error)], Vec::new()],
        );
        assert_eq!(ask(7), Ok(done()));
        let refused = ask(8).unwrap_err();
        assert_eq!(
            (refused.message.as_str(), refused.hint.as_deref()),
            ("c3 belongs to vis", Some("ask vis"))
        );
        assert!(
            ask(9)
                .unwrap_err()
                .message
                .contains("closed the connection")
        );
        served.join().unwrap();
        let gone = ask(10).unwrap_err();
        assert!(
            gone.message.contains("no gshare service answers"),
            "{gone:?}"
        );
    }
}

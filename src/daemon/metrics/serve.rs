//! Minimal HTTP server for scrapers: `GET /metrics`, one answer per connection.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::AbortHandle;

use super::request::{self, Asked, Request};
use crate::daemon::msg::Msg;

/// Maximum number of connections.
const CONNECTIONS: usize = 64;
/// Time for a whole connection, request and answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum age of a page; within it the service is not asked again.
const FRESH: Duration = Duration::from_millis(200);
/// Time for the service to answer.
const ANSWER: Duration = Duration::from_secs(5);

/// The listening socket.
#[derive(Debug)]
pub(super) enum Listener {
    /// A port of the loopback interface.
    Tcp(std::net::TcpListener),
    /// A Unix socket.
    Unix(std::os::unix::net::UnixListener),
}

/// The newest page.
#[derive(Debug)]
struct Source {
    events: mpsc::UnboundedSender<Msg>,
    last: Mutex<Option<(Instant, Arc<str>)>>,
}

impl Source {
    /// `None` when the service does not answer.
    async fn page(&self) -> Option<Arc<str>> {
        // One connection asks, the others wait for its answer.
        let mut last = self.last.lock().await;
        if let Some((at, page)) = &*last
            && at.elapsed() < FRESH
        {
            return Some(Arc::clone(page));
        }
        let (tx, rx) = oneshot::channel();
        self.events.send(Msg::Scrape(tx)).ok()?;
        let page: Arc<str> = tokio::time::timeout(ANSWER, rx).await.ok()?.ok()?.into();
        *last = Some((Instant::now(), Arc::clone(&page)));
        Some(page)
    }
}

/// Serves until the process ends.
pub(super) fn run(listener: Listener, events: mpsc::UnboundedSender<Msg>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let served = match runtime {
        Ok(runtime) => runtime.block_on(accept(listener, events)),
        Err(error) => Err(error),
    };
    if let Err(error) = served {
        tracing::error!(%error, "the metrics are no longer served");
    }
}

async fn accept(listener: Listener, events: mpsc::UnboundedSender<Msg>) -> std::io::Result<()> {
    let source = Arc::new(Source {
        events,
        last: Mutex::new(None),
    });
    let open = Arc::new(Open::default());
    let tcp = |l: std::net::TcpListener| {
        l.set_nonblocking(true)?;
        tokio::net::TcpListener::from_std(l)
    };
    let unix = |l: std::os::unix::net::UnixListener| {
        l.set_nonblocking(true)?;
        tokio::net::UnixListener::from_std(l)
    };
    match listener {
        Listener::Tcp(listener) => {
            let listener = tcp(listener)?;
            loop {
                let accepted = listener.accept().await.map(|(stream, _)| stream);
                take(accepted, &source, &open).await;
            }
        }
        Listener::Unix(listener) => {
            let listener = unix(listener)?;
            loop {
                let accepted = listener.accept().await.map(|(stream, _)| stream);
                take(accepted, &source, &open).await;
            }
        }
    }
}

async fn take<S>(accepted: std::io::Result<S>, source: &Arc<Source>, open: &Arc<Open>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stream = match accepted {
        Ok(stream) => stream,
        Err(error) => {
            tracing::debug!(%error, "a scraper could not be accepted");
            tokio::time::sleep(Duration::from_millis(100)).await;
            return;
        }
    };
    let (source, opened) = (Arc::clone(source), Arc::clone(open));
    open.enter(|number| {
        let task = tokio::spawn(async move {
            let answered = connection(stream, &source, || opened.asked(number));
            let _ = tokio::time::timeout(PATIENCE, answered).await;
            opened.leave(number);
        });
        task.abort_handle()
    });
    // Lets the request of a fast client be read before the next connection.
    tokio::task::yield_now().await;
}

/// The open connections. Any user of the machine can connect, and half-open connections must not keep a scraper out.
#[derive(Debug, Default)]
struct Open(StdMutex<(u64, VecDeque<Opened>)>);

#[derive(Debug)]
struct Opened {
    number: u64,
    /// The complete request has arrived.
    asked: bool,
    task: AbortHandle,
}

impl Open {
    /// Adds one. If there are too many, closes the oldest without a complete request, otherwise the oldest.
    fn enter(&self, start: impl FnOnce(u64) -> AbortHandle) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (next, open) = &mut *state;
        if open.len() >= CONNECTIONS {
            let oldest = open.iter().position(|o| !o.asked).unwrap_or(0);
            if let Some(oldest) = open.remove(oldest) {
                oldest.task.abort();
            }
        }
        let number = *next;
        *next += 1;
        open.push_back(Opened {
            number,
            asked: false,
            task: start(number),
        });
    }

    fn asked(&self, number: u64) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(one) = state.1.iter_mut().find(|o| o.number == number) {
            one.asked = true;
        }
    }

    fn leave(&self, number: u64) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.1.retain(|o| o.number != number);
    }
}

async fn connection(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    source: &Source,
    asked: impl Fn(),
) -> std::io::Result<()> {
    let mut request = Vec::new();
    let answer = loop {
        let mut chunk = [0; 1024];
        let n = stream.read(&mut chunk).await?;
        request.extend_from_slice(&chunk[..n]);
        match request::read(&request) {
            Ok(Some(request)) => {
                asked();
                break answer(request, source).await;
            }
            Ok(None) if n > 0 => {}
            _ => break reply("400 Bad Request", "text/plain", "not a request\n", true),
        }
    };
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}

async fn answer(request: Request, source: &Source) -> String {
    let head = request.head;
    match request.asked {
        Asked::Method => reply("405 Method Not Allowed", "text/plain", "only GET\n", true),
        Asked::Metrics => match source.page().await {
            Some(page) => reply(
                "200 OK",
                "text/plain; version=0.0.4; charset=utf-8",
                &page,
                !head,
            ),
            None => reply(
                "503 Service Unavailable",
                "text/plain",
                "the service does not answer\n",
                !head,
            ),
        },
        Asked::Root => reply(
            "200 OK",
            "text/html",
            "<a href=\"/metrics\">gshare metrics</a>\n",
            !head,
        ),
        Asked::Other => reply("404 Not Found", "text/plain", "see /metrics\n", !head),
    }
}

fn reply(status: &str, kind: &str, body: &str, with_body: bool) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
        body.len(),
        if with_body { body } else { "" }
    )
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};

    use super::*;

    fn served() -> SocketAddr {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
        let address = listener.local_addr().expect("bound");
        let (events, mut inbox) = mpsc::unbounded_channel();
        std::thread::spawn(move || run(Listener::Tcp(listener), events));
        std::thread::spawn(move || {
            while let Some(Msg::Scrape(out)) = inbox.blocking_recv() {
                let _ = out.send("gshare_up 1\n".to_owned());
            }
        });
        address
    }

    fn scrape(address: SocketAddr) -> String {
        let mut stream = TcpStream::connect(address).expect("connects");
        let patience = Some(Duration::from_secs(5));
        stream.set_read_timeout(patience).expect("set");
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\n\r\n")
            .expect("asks");
        let mut text = String::new();
        let _ = stream.read_to_string(&mut text);
        text
    }

    #[test]
    fn half_open_connections_of_others_keep_no_scraper_out() {
        let address = served();
        assert!(scrape(address).ends_with("gshare_up 1\n"));
        let mut half_open = Vec::new();
        for n in 0..400 {
            let mut stream = TcpStream::connect(address).expect("connects");
            // Nothing, a partial request, and one that asks and does not read.
            let _ = match n % 3 {
                0 => Ok(()),
                1 => stream.write_all(b"GET /met"),
                _ => stream.write_all(b"GET / HTTP/1.1\r\n\r\n"),
            };
            half_open.push(stream);
            if n % 100 == 99 {
                let text = scrape(address);
                assert!(text.ends_with("gshare_up 1\n"), "after {n}: {text:?}");
            }
        }
    }
}

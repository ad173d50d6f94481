//! As much of HTTP as a scraper needs: `GET /metrics`, one answer per connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Mutex, Semaphore, mpsc, oneshot};

use crate::daemon::Msg;

/// Connections at a time; more are closed at once.
const CONNECTIONS: usize = 16;
/// Bytes of a request.
const REQUEST: usize = 8 * 1024;
/// Time for a whole connection, request and answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// A page is this old at most; within it the service is not asked again.
const FRESH: Duration = Duration::from_millis(200);
/// Time for the service to answer.
const ANSWER: Duration = Duration::from_secs(5);

/// Where it listens.
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
        // One asks, the others wait for its answer.
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
        tracing::error!(%error, "the metrics are not served any more");
    }
}

async fn accept(listener: Listener, events: mpsc::UnboundedSender<Msg>) -> std::io::Result<()> {
    let source = Arc::new(Source {
        events,
        last: Mutex::new(None),
    });
    let room = Arc::new(Semaphore::new(CONNECTIONS));
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
                take(accepted, &source, &room).await;
            }
        }
        Listener::Unix(listener) => {
            let listener = unix(listener)?;
            loop {
                let accepted = listener.accept().await.map(|(stream, _)| stream);
                take(accepted, &source, &room).await;
            }
        }
    }
}

async fn take<S>(accepted: std::io::Result<S>, source: &Arc<Source>, room: &Arc<Semaphore>)
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
    // Full of slow ones: this one is closed at once.
    let Ok(place) = Arc::clone(room).try_acquire_owned() else {
        return;
    };
    let source = Arc::clone(source);
    tokio::spawn(async move {
        let _ = tokio::time::timeout(PATIENCE, connection(stream, &source)).await;
        drop(place);
    });
}

async fn connection(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    source: &Source,
) -> std::io::Result<()> {
    let mut request = Vec::new();
    let answer = loop {
        let mut chunk = [0; 1024];
        let n = stream.read(&mut chunk).await?;
        request.extend_from_slice(&chunk[..n]);
        if request.windows(4).any(|w| w == b"\r\n\r\n") {
            break answer(&request, source).await;
        }
        if n == 0 || request.len() > REQUEST {
            break reply("400 Bad Request", "text/plain", "not a request\n", true);
        }
    };
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}

async fn answer(request: &[u8], source: &Source) -> String {
    let line = request.split(|b| *b == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let (method, target) = (words.next(), words.next().unwrap_or_default());
    let head = method == Some("HEAD");
    if method != Some("GET") && !head {
        return reply("405 Method Not Allowed", "text/plain", "only GET\n", true);
    }
    let path = target.split('?').next().unwrap_or_default();
    match path {
        "/metrics" => match source.page().await {
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
        "/" => reply(
            "200 OK",
            "text/html",
            "<a href=\"/metrics\">gshare metrics</a>\n",
            !head,
        ),
        _ => reply("404 Not Found", "text/plain", "see /metrics\n", !head),
    }
}

fn reply(status: &str, kind: &str, body: &str, with_body: bool) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
        body.len(),
        if with_body { body } else { "" }
    )
}

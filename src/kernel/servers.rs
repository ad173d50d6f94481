//! What the Jupyter servers of a user say of their kernels: which notebook each belongs to now, and whether it works.
//!
//! A server writes its address and its token into `jpserver-PID.json` in the directory where it keeps the connection
//! files of its kernels (jupyter_server, `serverapp.py`). Only its user can read that file; so whoever asks here must be
//! that user.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Longest wait for one answer of a server.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest answer that is read, in bytes.
const LONGEST: u64 = 4 << 20;
/// Longest file of a server, in bytes.
const FILE: u64 = 64 << 10;
/// Most servers that are asked at a time.
const SERVERS: usize = 16;

/// A kernel of which something is to be known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sought {
    /// Its id, as Jupyter has it.
    pub id: String,
    /// Where its connection file is.
    pub dir: PathBuf,
    /// Its process.
    pub pid: i32,
}

/// What a server says of a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Its id.
    pub id: String,
    /// The notebook's file, or the name of a console; absent for a kernel without either.
    pub path: Option<String>,
    /// `idle`, `busy`, `starting`, ...
    pub state: Option<String>,
    /// Last activity, Unix milliseconds.
    pub active_ms: Option<u64>,
    /// Clients that are connected.
    pub connections: Option<u64>,
    /// Pid of the server.
    pub server: i32,
}

/// A server's own file.
#[derive(Debug, Deserialize)]
struct Server {
    url: String,
    #[serde(default)]
    token: String,
    pid: i32,
    #[serde(default)]
    root_dir: String,
}

/// Reads a server's file, if it is this user's own and its server lives.
fn read(path: &Path) -> Option<Server> {
    let file = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)
        .ok()?;
    let meta = file.metadata().ok()?;
    if !meta.is_file() || meta.uid() != nix::unistd::Uid::effective().as_raw() {
        return None;
    }
    let mut text = String::new();
    file.take(FILE).read_to_string(&mut text).ok()?;
    let server: Server = serde_json::from_str(&text).ok()?;
    let alive = Path::new("/proc").join(server.pid.to_string()).exists();
    (alive && server.pid > 0).then_some(server)
}

/// The servers whose files lie in a directory.
fn servers(dir: &Path) -> Vec<Server> {
    let mine = |name: &str| name.starts_with("jpserver-") && name.ends_with(".json");
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    let files = files.filter(|f| f.file_name().to_str().is_some_and(mine));
    let found = files.filter_map(|f| read(&f.path()));
    found.take(SERVERS).collect()
}

/// A server under JupyterHub has no token of its own in the file: whoever it lets in is the hub's business, and the hub
/// gave it, and through it its kernels, one in the environment.
fn token_in(pid: i32) -> Option<String> {
    let environ = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let lines = environ.split(|b| *b == 0);
    let mut found = lines.filter_map(|l| l.strip_prefix(b"JUPYTERHUB_API_TOKEN="));
    String::from_utf8(found.next()?.to_vec()).ok()
}

impl Server {
    /// `GET /api/...` below the server's address, which has the hub's prefix already. The question is no use of the
    /// server: it must not keep one alive that is to end when nobody uses it.
    fn get(&self, what: &str, token: &str) -> Option<Value> {
        let url = format!(
            "{}/api/{what}?no_track_activity=1",
            self.url.trim_end_matches('/')
        );
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(PATIENCE))
            .max_redirects(0)
            .proxy(None)
            .build();
        let request = ureq::Agent::new_with_config(config).get(&url);
        let request = match token {
            "" => request,
            token => request.header("Authorization", format!("token {token}")),
        };
        let mut answer = request.call().ok()?;
        let text = answer
            .body_mut()
            .with_config()
            .limit(LONGEST)
            .read_to_string();
        serde_json::from_str(&text.ok()?).ok()
    }

    /// The name of a session: where its file is, or what it is called.
    fn path_of(&self, session: &Value) -> Option<String> {
        let text = |key: &str| session.get(key)?.as_str().filter(|t| !t.is_empty());
        match text("type") {
            Some("notebook") => {
                let path = text("path")?;
                let root = self.root_dir.trim_end_matches('/');
                Some(format!("{root}/{}", path.trim_start_matches('/')))
            }
            _ => text("name").or_else(|| text("path")).map(str::to_owned),
        }
    }

    fn seen(&self, kernel: &Value, path: Option<String>) -> Option<Seen> {
        let text = |key: &str| kernel.get(key)?.as_str().map(str::to_owned);
        let active = text("last_activity");
        let active = active.and_then(|t| chrono::DateTime::parse_from_rfc3339(&t).ok());
        Some(Seen {
            id: text("id")?,
            path,
            state: text("execution_state"),
            active_ms: active.and_then(|t| u64::try_from(t.timestamp_millis()).ok()),
            connections: kernel.get("connections").and_then(Value::as_u64),
            server: self.pid,
        })
    }

    /// The kernels of notebooks and consoles.
    fn sessions(&self, token: &str) -> Vec<Seen> {
        let Some(Value::Array(list)) = self.get("sessions", token) else {
            return Vec::new();
        };
        let of = |session: &Value| self.seen(session.get("kernel")?, self.path_of(session));
        list.iter().filter_map(of).collect()
    }

    /// All its kernels, also those that belong to nothing.
    fn others(&self, token: &str) -> Vec<Seen> {
        let Some(Value::Array(list)) = self.get("kernels", token) else {
            return Vec::new();
        };
        list.iter().filter_map(|k| self.seen(k, None)).collect()
    }
}

/// What is known of some kernels. Those of which nothing is known are left out.
#[must_use]
pub fn look(sought: &[Sought]) -> Vec<Seen> {
    let mut found: Vec<Seen> = Vec::new();
    let mut dirs: Vec<&Path> = sought.iter().map(|s| s.dir.as_path()).collect();
    dirs.sort_unstable();
    dirs.dedup();
    for dir in dirs {
        let mut open: Vec<&Sought> = sought.iter().filter(|s| s.dir == dir).collect();
        for server in servers(dir) {
            let token = match server.token.as_str() {
                "" => open
                    .iter()
                    .find_map(|w| token_in(w.pid))
                    .unwrap_or_default(),
                token => token.to_owned(),
            };
            for ask in [Server::sessions, Server::others] {
                if open.is_empty() {
                    break;
                }
                let seen = ask(&server, &token);
                open.retain(|w| match seen.iter().find(|s| s.id == w.id) {
                    Some(one) => {
                        found.push(one.clone());
                        false
                    }
                    None => true,
                });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;

    use super::*;

    /// A server that answers as Jupyter does; gives what it was asked.
    fn serve(answers: usize) -> (u16, std::thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let port = listener.local_addr().expect("named").port();
        let thread = std::thread::spawn(move || {
            let mut asked = Vec::new();
            for _ in 0..answers {
                let (mut stream, _) = listener.accept().expect("asked");
                let mut lines = BufReader::new(stream.try_clone().expect("cloned")).lines();
                let first = lines.next().expect("a line").expect("read");
                let mut token = String::new();
                for line in lines
                    .by_ref()
                    .map_while(Result::ok)
                    .take_while(|l| !l.is_empty())
                {
                    if line.to_lowercase().starts_with("authorization") {
                        token = line;
                    }
                }
                let text = if first.contains("/sessions") {
                    r#"[{"path": "a/b.ipynb", "name": "b.ipynb", "type": "notebook", "kernel": {"id": "k1",
                        "execution_state": "idle", "last_activity": "2026-01-02T03:04:05.678900Z", "connections": 2}},
                        {"path": "c", "name": "Console 1", "type": "console", "kernel": {"id": "k2"}}]"#
                } else {
                    r#"[{"id": "k3", "execution_state": "busy"}]"#
                };
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close",
                    text.len()
                );
                let _ = stream.write_all(format!("{head}\r\n\r\n{text}").as_bytes());
                asked.push(format!("{first} | {token}"));
            }
            asked
        });
        (port, thread)
    }

    #[test]
    fn names_and_states_come_from_the_server_under_its_prefix() {
        let dir = tempfile::tempdir().expect("made");
        let (port, thread) = serve(2);
        let own = std::process::id();
        let text = format!(
            r#"{{"url": "http://127.0.0.1:{port}/user/ada/", "token": "s3", "pid": {own}, "root_dir": "/home/ada"}}"#
        );
        fs::write(dir.path().join("jpserver-1.json"), text).expect("written");
        // Neither a server that has gone nor half a file is in the way.
        fs::write(
            dir.path().join("jpserver-2.json"),
            r#"{"url": "http://127.0.0.1:1/", "pid": 4194304000}"#,
        )
        .expect("written");
        fs::write(dir.path().join("jpserver-3.json"), "{").expect("written");
        let sought: Vec<Sought> = ["k1", "k2", "k3", "k4"]
            .map(|id| Sought {
                id: id.into(),
                dir: dir.path().into(),
                pid: 0,
            })
            .into();
        let found = look(&sought);
        let asked = thread.join().expect("served");
        assert!(
            asked[0].contains("GET /user/ada/api/sessions?no_track_activity=1 "),
            "{asked:?}"
        );
        assert!(asked[0].to_lowercase().ends_with("token s3"), "{asked:?}");
        let known: Vec<_> = found
            .iter()
            .map(|s| (s.id.as_str(), s.path.as_deref(), s.state.as_deref()))
            .collect();
        assert_eq!(
            known,
            [
                ("k1", Some("/home/ada/a/b.ipynb"), Some("idle")),
                ("k2", Some("Console 1"), None),
                ("k3", None, Some("busy")),
            ]
        );
        assert_eq!(found[0].active_ms, Some(1_767_323_045_678));
        assert_eq!(found[0].connections, Some(2));
    }
}

//! Queries the Jupyter servers of a user about their kernels: the present notebook of each, and whether it works.
//!
//! A server writes its address and token into `jpserver-PID.json` in the directory of its kernels' connection files
//! (jupyter_server, `serverapp.py`). Only its user can read that file, so this must run as that user.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::seen::{NAME, Seen};
use super::web::Address;

/// Longest wait for one answer of a server.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest time for all servers of a user together.
const WHOLE: Duration = Duration::from_secs(15);
/// Longest pause before a server without an answer is queried again.
const REST: Duration = Duration::from_secs(60);
/// Longest answer, in bytes, enough for thousands of notebooks.
const LONGEST: usize = 1 << 20;
/// Longest file of a server, in bytes.
const FILE: u64 = 64 << 10;
/// Maximum number of files read, servers queried, and tokens tried per server, at a time.
const FILES: usize = 256;
const SERVERS: usize = 16;
const TOKENS: usize = 4;

/// A kernel whose state is requested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sought {
    /// Its id in Jupyter.
    pub id: String,
    /// Directory of its connection file.
    pub dir: PathBuf,
    pub pid: i32,
}

/// The file of a server.
#[derive(Debug, Deserialize)]
struct Server {
    #[serde(skip)]
    file: PathBuf,
    url: String,
    #[serde(default)]
    token: String,
    pid: i32,
    #[serde(default)]
    root_dir: String,
    /// Path of its socket, if it listens on one.
    #[serde(default)]
    sock: String,
    /// Whether it uses TLS; the address of a server with a socket file does not tell.
    #[serde(default)]
    secure: bool,
}

/// The needed fields of a session and its kernel in a server's list; the rest is skipped, whatever its size.
#[derive(Deserialize)]
struct Session {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    path: String,
    #[serde(default)]
    name: String,
    kernel: Option<Kernel>,
}

#[derive(Deserialize)]
struct Kernel {
    id: String,
    execution_state: Option<String>,
    last_activity: Option<String>,
    connections: Option<u64>,
}

/// Reads a server's file, if it belongs to this user and its server lives.
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
    let mut server: Server = serde_json::from_str(&text).ok()?;
    path.clone_into(&mut server.file);
    let alive = Path::new("/proc").join(server.pid.to_string()).exists();
    (alive && server.pid > 0).then_some(server)
}

/// The servers with files in a directory.
fn servers(dir: &Path) -> Vec<Server> {
    let mine = |name: &str| name.starts_with("jpserver-") && name.ends_with(".json");
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    let files = files
        .filter(|f| f.file_name().to_str().is_some_and(mine))
        .take(FILES);
    let found = files.filter_map(|f| read(&f.path()));
    found.take(SERVERS).collect()
}

/// The token in a process's environment, from JupyterHub.
fn token_in(pid: i32) -> Option<String> {
    let environ = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let lines = environ.split(|b| *b == 0);
    let mut found = lines.filter_map(|l| l.strip_prefix(b"JUPYTERHUB_API_TOKEN="));
    String::from_utf8(found.next()?.to_vec()).ok()
}

impl Server {
    /// `GET /api/...` below the server's address, which includes the hub's prefix. The query must not count as use of
    /// the server, or it would keep an unused server alive.
    fn get<T: DeserializeOwned>(
        &self,
        what: &str,
        token: &str,
        patience: Duration,
    ) -> io::Result<Vec<T>> {
        let address = Address::read(&self.url, &self.sock, self.secure)
            .ok_or_else(|| io::Error::other("its address is not valid"))?;
        let path = format!("/api/{what}?no_track_activity=1");
        let text = address.get(&path, token, patience.min(PATIENCE), LONGEST)?;
        Ok(serde_json::from_slice(&text)?)
    }

    /// The name of a session: the path of its file, or its own name.
    fn path_of(&self, session: &Session) -> Option<String> {
        let path = match session.kind.as_str() {
            "notebook" if !session.path.is_empty() => {
                let root = self.root_dir.trim_end_matches('/');
                format!("{root}/{}", session.path.trim_start_matches('/'))
            }
            "notebook" => return None,
            _ if !session.name.is_empty() => session.name.clone(),
            _ => session.path.clone(),
        };
        (!path.is_empty()).then(|| path.chars().take(NAME).collect())
    }

    fn seen(&self, kernel: Kernel, path: Option<String>) -> Seen {
        let active = kernel.last_activity;
        let active = active.and_then(|t| chrono::DateTime::parse_from_rfc3339(&t).ok());
        Seen {
            id: kernel.id,
            path,
            state: kernel.execution_state,
            active_ms: active.and_then(|t| u64::try_from(t.timestamp_millis()).ok()),
            connections: kernel.connections,
            server: self.pid,
        }
    }

    /// The kernels of notebooks and consoles.
    fn sessions(&self, token: &str, patience: Duration) -> io::Result<Vec<Seen>> {
        let list: Vec<Session> = self.get("sessions", token, patience)?;
        let of = |mut session: Session| {
            let kernel = session.kernel.take()?;
            Some(self.seen(kernel, self.path_of(&session)))
        };
        Ok(list.into_iter().filter_map(of).collect())
    }

    /// All its kernels, including those without a session.
    fn others(&self, token: &str, patience: Duration) -> io::Result<Vec<Seen>> {
        let list: Vec<Kernel> = self.get("kernels", token, patience)?;
        Ok(list.into_iter().map(|k| self.seen(k, None)).collect())
    }
}

/// Queries the servers of a user repeatedly. A server that does not answer is queried less often, so that it does not
/// delay the others.
#[derive(Debug, Default)]
pub struct Asker {
    /// Servers by their file, because a file may name any process: number of failures in a row, and the time of the
    /// next query.
    silent: BTreeMap<PathBuf, (u32, Instant)>,
}

impl Asker {
    /// State of some kernels; unknown ones are left out.
    pub fn look(&mut self, sought: &[Sought]) -> Vec<Seen> {
        let end = Instant::now() + WHOLE;
        let mut found: Vec<Seen> = Vec::new();
        let mut dirs: Vec<&Path> = sought.iter().map(|s| s.dir.as_path()).collect();
        dirs.sort_unstable();
        dirs.dedup();
        for dir in dirs {
            let mut open: Vec<&Sought> = sought.iter().filter(|s| s.dir == dir).collect();
            let mut servers = servers(dir);
            // Servers that answered before come first.
            servers.sort_by_key(|server| self.silent.get(&server.file).map(|(times, _)| *times));
            for server in servers {
                let left = end.saturating_duration_since(Instant::now());
                if open.is_empty() || left.is_zero() {
                    break;
                }
                if self.is_silent(&server.file) {
                    continue;
                }
                let answered = ask(&server, &mut open, &mut found, left);
                self.note(server.file, answered.is_ok());
            }
        }
        found
    }

    fn is_silent(&self, server: &Path) -> bool {
        let silent = self.silent.get(server);
        silent.is_some_and(|(_, until)| Instant::now() < *until)
    }

    fn note(&mut self, server: PathBuf, answered: bool) {
        if answered {
            self.silent.remove(&server);
            return;
        }
        self.silent.retain(|_, (_, until)| until.elapsed() < REST);
        let now = Instant::now();
        let (times, until) = self.silent.entry(server).or_insert((0, now));
        *times += 1;
        // The first failure may be an accident.
        let rest = Duration::from_secs(1 << (*times).min(6)).min(REST);
        *until = if *times == 1 { now } else { now + rest };
    }
}

/// Possible tokens of a server. One of JupyterHub has none in its file; the hub gave it one, which its kernels
/// inherit. A user may have several such servers at a time, each with another token.
fn tokens(server: &Server, open: &[&Sought]) -> Vec<String> {
    if !server.token.is_empty() {
        return vec![server.token.clone()];
    }
    let mut found: Vec<String> = Vec::new();
    for pid in [server.pid].into_iter().chain(open.iter().map(|w| w.pid)) {
        if found.len() == TOKENS {
            break;
        }
        found.extend(token_in(pid).filter(|token| !found.contains(token)));
    }
    if found.is_empty() {
        found.push(String::new());
    }
    found
}

/// Queries one server about the remaining kernels in its directory.
fn ask(
    server: &Server,
    open: &mut Vec<&Sought>,
    found: &mut Vec<Seen>,
    patience: Duration,
) -> io::Result<()> {
    let end = Instant::now() + patience;
    let mut answered = Ok(());
    for token in tokens(server, open) {
        let left = end.saturating_duration_since(Instant::now());
        answered = ask_with(&token, server, open, found, left);
        let refused = |e: &io::Error| e.kind() == io::ErrorKind::PermissionDenied;
        if !answered.as_ref().is_err_and(refused) {
            break;
        }
    }
    answered
}

fn ask_with(
    token: &str,
    server: &Server,
    open: &mut Vec<&Sought>,
    found: &mut Vec<Seen>,
    patience: Duration,
) -> io::Result<()> {
    for ask in [Server::sessions, Server::others] {
        if open.is_empty() {
            break;
        }
        let seen = ask(server, token, patience)?;
        open.retain(|w| match seen.iter().find(|s| s.id == w.id) {
            Some(one) => {
                found.push(one.clone());
                false
            }
            None => true,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;

    use super::*;

    /// A server that answers like Jupyter to requests with its token; returns the requests.
    fn serve(answers: usize, taken: &'static str) -> (u16, std::thread::JoinHandle<Vec<String>>) {
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
                let status = match token.strip_suffix(taken) {
                    Some(_) => "200 OK",
                    None => "403 Forbidden",
                };
                let head = format!(
                    "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close",
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
        let (port, thread) = serve(2, "token s3");
        let own = std::process::id();
        let text = format!(
            r#"{{"url": "http://127.0.0.1:{port}/user/ada/", "token": "s3", "pid": {own}, "root_dir": "/home/ada"}}"#
        );
        fs::write(dir.path().join("jpserver-1.json"), text).expect("written");
        // A server that has ended, and an incomplete file, do no harm.
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
        let found = Asker::default().look(&sought);
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

    #[test]
    fn each_server_of_a_hub_is_asked_with_a_token_that_it_takes() {
        let dir = tempfile::tempdir().expect("made");
        let sleeper = |token: Option<&str>| {
            let mut command = std::process::Command::new("sleep");
            command.arg("60").env_remove("JUPYTERHUB_API_TOKEN");
            command.envs(token.map(|token| ("JUPYTERHUB_API_TOKEN", token)));
            command.spawn().expect("started")
        };
        let mut processes = [None, Some("one"), Some("two")].map(sleeper);
        let [server, kernels @ ..] = processes.each_ref().map(|p| p.id().cast_signed());
        // Both kernels have their connection files in one directory, as a user's servers have by default.
        let hub = [
            ("one", serve(2, "token one")),
            ("two", serve(3, "token two")),
        ];
        for (name, (port, _)) in &hub {
            let text = format!(r#"{{"url": "http://127.0.0.1:{port}/", "pid": {server}}}"#);
            fs::write(dir.path().join(format!("jpserver-{name}.json")), text).expect("written");
        }
        let sought = kernels.map(|pid| Sought {
            id: format!("of {pid}"),
            dir: dir.path().into(),
            pid,
        });
        assert_eq!(Asker::default().look(&sought), []);
        let asked = hub.map(|(_, (_, thread))| {
            let asked = thread.join().expect("served");
            let with = asked.iter().filter_map(|a| a.split(' ').next_back());
            with.map(str::to_owned).collect::<Vec<_>>()
        });
        assert_eq!(asked[0], ["one", "one"], "the sessions and the kernels");
        assert_eq!(asked[1], ["one", "two", "two"]);
        for process in &mut processes {
            process.kill().expect("killed");
            process.wait().expect("ended");
        }
    }

    #[test]
    fn a_server_that_is_silent_keeps_nobody_waiting_for_long() {
        let dir = tempfile::tempdir().expect("made");
        let silent = TcpListener::bind("127.0.0.1:0").expect("bound");
        let port = silent.local_addr().expect("named").port();
        let text = format!(
            r#"{{"url": "http://127.0.0.1:{port}/", "pid": {}}}"#,
            std::process::id()
        );
        fs::write(dir.path().join("jpserver-1.json"), text).expect("written");
        let sought = [Sought {
            id: "k1".into(),
            dir: dir.path().into(),
            pid: 0,
        }];
        let mut asker = Asker::default();
        let mut looks = || {
            let begun = Instant::now();
            assert_eq!(asker.look(&sought), []);
            begun.elapsed()
        };
        for asked in [true, true, false] {
            let took = looks();
            assert_eq!(took > PATIENCE / 2, asked, "{took:?}");
        }
    }

    #[test]
    fn what_is_no_file_of_a_server_of_ones_own_is_left_alone() {
        let dir = tempfile::tempdir().expect("made");
        let at = |name: &str| dir.path().join(name);
        let text = format!(r#"{{"url": "http://a/", "pid": {}}}"#, std::process::id());
        fs::write(at("jpserver-1.json"), &text).expect("written");
        assert_eq!(servers(dir.path()).len(), 1, "this one is");
        fs::rename(at("jpserver-1.json"), at("other")).expect("renamed");
        std::os::unix::fs::symlink(at("other"), at("jpserver-2.json")).expect("linked");
        fs::create_dir(at("jpserver-3.json")).expect("made");
        nix::unistd::mkfifo(&at("jpserver-4.json"), nix::sys::stat::Mode::S_IRWXU).expect("made");
        fs::write(at("jpserver-5.json"), [0xff; 10]).expect("written");
        fs::write(at("jpserver-6.json"), "[".repeat(60_000)).expect("written");
        let long = fs::File::create(at("jpserver-7.json")).expect("made");
        long.set_len(1 << 40).expect("a hole");
        let token = "t".repeat(1 << 20);
        let long = text.replace('}', &format!(r#", "token": "{token}"}}"#));
        fs::write(at("jpserver-8.json"), long).expect("written");
        if nix::unistd::Uid::effective().is_root() {
            fs::write(at("jpserver-9.json"), &text).expect("written");
            std::os::unix::fs::chown(at("jpserver-9.json"), Some(1234), None).expect("given");
        }
        let found: Vec<i32> = servers(dir.path()).iter().map(|s| s.pid).collect();
        assert_eq!(found, [0; 0]);
    }
}

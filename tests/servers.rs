//! Jupyter servers of every kind as they are asked: TLS, a socket file, a prefix, JupyterHub's tokens, users of their own;
//! and servers that wish somebody ill.

use crate::support;

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gshare::station::Station;
use gshare_proto::ClaimView;
use nix::unistd::Uid;
use serde_json::{Value, json};
use support::notebook::{Script, jupyter, may_run};
use support::users::{Users, as_user};
use support::{python, station_with, until};

/// A loaded machine asks late.
const SOON: Duration = Duration::from_secs(60);

/// A user with a home and kernels in it.
struct Person {
    uid: u32,
    home: tempfile::TempDir,
}

impl Person {
    fn new(station: &Station, bin: &Path, uid: u32) -> Self {
        let home = tempfile::tempdir().expect("made");
        std::fs::set_permissions(home.path(), PermissionsExt::from_mode(0o700)).expect("set");
        let person = Self { uid, home };
        person.owns(person.home.path());
        let mut install = jupyter(station.command(), bin, person.home.path());
        install.args(["kernel", "install", "-g", "0.1", "--user", "--name", "part"]);
        let output = person.command(install).output().expect("runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        person
    }

    fn owns(&self, path: &Path) {
        if Uid::effective().is_root() {
            chown(path, Some(self.uid), Some(self.gid())).expect("given");
        }
    }

    /// A group that is not this user's first one, as after `newgrp` or from a spawner of notebooks.
    fn gid(&self) -> u32 {
        self.uid + 100_000
    }

    fn command(&self, mut command: Command) -> Command {
        command.current_dir(self.home.path());
        if Uid::effective().is_root() {
            command = as_user(command, self.uid);
            command.gid(self.gid());
        }
        command
    }
}

/// A server of somebody's.
struct Server {
    script: Script,
    log: PathBuf,
}

impl Server {
    /// Starts one in a directory of the person's.
    fn start(
        station: &Station,
        lab: &Path,
        person: &Person,
        name: &str,
        options: &[String],
        env: &Value,
    ) -> Self {
        let dir = person.home.path().join(name);
        std::fs::create_dir_all(&dir).expect("made");
        person.owns(&dir);
        let command = station.client_environment(Command::new(lab.join("python")));
        let mut command = jupyter(command, lab, person.home.path());
        command.arg(python::script("server.py"));
        let mut server = Self {
            script: Script::start(person.command(command), "stop"),
            log: dir.join("server.log"),
        };
        server.act(&json!({ "do": "start", "dir": dir, "options": options, "env": env }));
        server
    }

    fn act(&mut self, step: &Value) -> Value {
        let said = self.script.act(step);
        if let Some(failed) = said["failed"].as_str() {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            panic!("{step}: {failed}\n{log}");
        }
        said
    }

    /// Starts a notebook with its kernel: the session, and the kernel.
    fn open(&mut self, path: &str) -> (String, String) {
        let said = self.act(&json!({ "do": "open", "path": path, "kernel": "part" }));
        let text = |key: &str| said[key].as_str().expect("told").to_owned();
        (text("session"), text("kernel"))
    }

    fn run(&mut self, kernel: &str, code: &str) -> String {
        let said = self.act(&json!({ "do": "run", "kernel": kernel, "code": code }));
        assert_eq!(said["error"], Value::Null, "{said}");
        support::notebook::without_grant(said["printed"].as_str().expect("text"))
    }
}

/// A workstation whose Jupyter servers are asked twice a second.
fn station() -> Station {
    station_with(|o| {
        o.gpus.truncate(1);
        o.config = "[claims]\nleftover-grace = \"1s\"\n[idle]\nwarn = \"2s\"\n".to_owned();
    })
}

/// The claim that its server names so.
fn named(station: &Station, path: &str) -> ClaimView {
    until(&format!("a claim is listed as {path}"), SOON, || {
        let claims = station.snapshot().ok()?.claims;
        claims.into_iter().find(|claim| {
            let notebook = claim.identity.notebook.as_ref();
            notebook
                .is_some_and(|n| n.source.starts_with("Jupyter server") && n.value.ends_with(path))
        })
    })
}

/// The people of a test: other users where there can be such, else whoever runs it.
fn people(test: &str, count: usize, bin: &Path, lab: &Path) -> Option<(Option<Users>, Vec<u32>)> {
    if !Uid::effective().is_root() {
        return Some((None, vec![Uid::effective().as_raw(); count]));
    }
    let users = Users::some(count);
    let uids: Vec<u32> = (0..count).map(|user| users.uid(user)).collect();
    [bin, lab]
        .iter()
        .all(|bin| may_run(test, bin, uids[0]))
        .then_some((Some(users), uids))
}

/// Lets in who has the token that the hub gave, as `jupyterhub.singleuser` does by asking the hub; the server's file has
/// none of its own then.
const HUB: &str = r#"
import os
from jupyter_server.auth import IdentityProvider, User
class Hub(IdentityProvider):
    token = ""
    auth_enabled = True
    def get_user(self, handler):
        given = handler.request.headers.get("Authorization", "")
        handler._token_authenticated = given == "token " + os.environ["JUPYTERHUB_API_TOKEN"]
        return User("ada") if handler._token_authenticated else None
c.ServerApp.identity_provider_class = Hub
"#;

#[test]
fn servers_of_every_kind_name_their_notebooks_and_say_what_kernels_do() {
    let test = "servers_of_every_kind_name_their_notebooks_and_say_what_kernels_do";
    let (Some(bin), Some(lab)) = (python::bin(test), python::lab(test)) else {
        return;
    };
    let Some((_users, uids)) = people(test, 2, &bin, &lab) else {
        return;
    };
    let station = station();
    let people: Vec<Person> = uids
        .iter()
        .map(|uid| Person::new(&station, &bin, *uid))
        .collect();
    let home = people[0].home.path();
    let certificate = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=elsewhere.example",
        ])
        .args(["-keyout", "key.pem", "-out", "cert.pem"])
        .current_dir(home)
        .stderr(Stdio::null())
        .status();
    let tls = certificate.is_ok_and(|s| s.success());
    for file in ["key.pem", "cert.pem"].iter().filter(|_| tls) {
        people[0].owns(&home.join(file));
    }
    let secure = [
        format!("--ServerApp.certfile={}", home.join("cert.pem").display()),
        format!("--ServerApp.keyfile={}", home.join("key.pem").display()),
    ];
    // A path of a socket is short.
    let sockets = tempfile::Builder::new()
        .prefix("j")
        .tempdir_in("/tmp")
        .expect("made");
    people[0].owns(sockets.path());
    let sock = |name: &str| format!("--sock={}", sockets.path().join(name).display());
    std::fs::write(home.join("hub.py"), HUB).expect("written");
    people[0].owns(&home.join("hub.py"));
    let hub = [
        format!("--config={}", home.join("hub.py").display()),
        "--ServerApp.base_url=/user/ada/".to_owned(),
        "--port=0".to_owned(),
    ];
    let port = ["--port=0".to_owned()];
    let everywhere = ["--port=0".to_owned(), "--ip=0.0.0.0".to_owned()];
    let mut kinds = vec![
        ("port", 0, port.to_vec(), json!({})),
        ("everywhere", 1, everywhere.to_vec(), json!({})),
        ("file", 0, vec![sock("f")], json!({})),
        (
            "hub",
            0,
            hub.to_vec(),
            json!({ "JUPYTERHUB_API_TOKEN": "t0k" }),
        ),
    ];
    if tls {
        let over_port = [
            &port[..],
            &secure[..],
            &["--ServerApp.base_url=/a/b/".to_owned()],
        ]
        .concat();
        let over_file = [&[sock("t")][..], &secure[..]].concat();
        kinds.push(("tls", 0, over_port, json!({})));
        kinds.push(("tls-file", 0, over_file, json!({})));
    } else {
        println!("left out: TLS needs openssl for a certificate");
    }
    for (kind, who, options, env) in kinds {
        let begun = Instant::now();
        let mut server = Server::start(&station, &lab, &people[who], kind, &options, &env);
        let (session, kernel) = server.open("first.ipynb");
        let claim = named(&station, &format!("/{kind}/first.ipynb"));
        assert_eq!(claim.uid, uids[who], "{kind}");
        server.act(&json!({ "do": "rename", "session": session, "to": "second.ipynb" }));
        let again = named(&station, &format!("/{kind}/second.ipynb"));
        assert_eq!(
            (again.id.as_str(), again.what.as_str()),
            (claim.id.as_str(), "second.ipynb"),
            "{kind}"
        );
        // What it does is told by the server too, not guessed.
        assert_eq!(
            server.run(
                &kernel,
                "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"
            ),
            "0\n"
        );
        until("its idleness is known by the server", SOON, || {
            let claims = station.snapshot().ok()?.claims;
            let idle = claims.into_iter().find(|c| c.id == claim.id)?.idle?;
            let by_server = idle.source.as_deref().is_some_and(|s| s.contains("server"));
            (by_server && idle.kernel.as_deref() == Some("idle")).then_some(())
        });
        let words = format!("gshare keep {}", claim.id);
        server.act(&json!({ "do": "hear", "kernel": kernel, "words": words }));
        let pid = again.pid.expect("it runs");
        server.act(&json!({ "do": "close", "session": session }));
        ends_with_it(&station, &claim.id, pid);
        println!("{kind}: {:.1} s", begun.elapsed().as_secs_f32());
    }
}

/// A claim is gone within two seconds after its kernel.
fn ends_with_it(station: &Station, id: &str, pid: u32) {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    until("the kernel has ended", SOON, || {
        (!proc.exists()).then_some(())
    });
    until(
        "the claim ends with its kernel",
        Duration::from_secs(2),
        || {
            let claims = station.snapshot().ok()?.claims;
            claims.iter().all(|c| c.id != id).then_some(())
        },
    );
}

#[test]
fn the_claim_of_a_kernel_that_its_server_culls_ends_with_it() {
    let test = "the_claim_of_a_kernel_that_its_server_culls_ends_with_it";
    let (Some(bin), Some(lab)) = (python::bin(test), python::lab(test)) else {
        return;
    };
    let station = station();
    let person = Person::new(&station, &bin, Uid::effective().as_raw());
    let options = [
        "--port=0",
        "--MappingKernelManager.cull_idle_timeout=3",
        "--MappingKernelManager.cull_interval=1",
    ];
    let mut server = Server::start(
        &station,
        &lab,
        &person,
        "culls",
        &options.map(str::to_owned),
        &json!({}),
    );
    let (_, idle) = server.open("idle.ipynb");
    let (_, busy) = server.open("busy.ipynb");
    let (culled, kept) = (
        named(&station, "/idle.ipynb"),
        named(&station, "/busy.ipynb"),
    );
    assert_ne!(idle, busy);
    let begun = Instant::now();
    let proc = PathBuf::from(format!("/proc/{}", culled.pid.expect("it runs")));
    until("the idle one is culled", SOON, || {
        server.run(&busy, "1 + 1");
        (!proc.exists()).then_some(())
    });
    println!("culled after {:.1} s", begun.elapsed().as_secs_f32());
    ends_with_it(&station, &culled.id, culled.pid.expect("it ran"));
    let left = server.act(&json!({ "do": "list" }));
    assert_eq!(
        left["kernels"][0]["id"].as_str(),
        Some(busy.as_str()),
        "{left}"
    );
    let claims = station.snapshot().expect("served").claims;
    assert_eq!(claims.len(), 1, "the other one has its claim: {claims:?}");
    ends_with_it(&station, &kept.id, kept.pid.expect("it ran"));
    let left = server.act(&json!({ "do": "list" }));
    assert_eq!(
        (&left["sessions"], &left["kernels"]),
        (&json!([]), &json!([])),
        "the server says so too"
    );
    assert!(station.snapshot().expect("served").claims.is_empty());
}

#[test]
fn servers_that_wish_ill_get_no_token_and_hide_nobodys_notebook() {
    let test = "servers_that_wish_ill_get_no_token_and_hide_nobodys_notebook";
    let (Some(bin), Some(lab)) = (python::bin(test), python::lab(test)) else {
        return;
    };
    if !Uid::effective().is_root() {
        println!("skipped: {test} needs root for real accounts");
        return;
    }
    let Some((_users, uids)) = people(test, 1, &bin, &lab) else {
        return;
    };
    let station = station();
    let person = Person::new(&station, &bin, uids[0]);
    let mut server = Server::start(
        &station,
        &lab,
        &person,
        "work",
        &["--port=0".to_owned()],
        &json!({}),
    );
    let runtime = person.home.path().join("work/runtime");
    // Another user, who has the port that a server of the user's says it has.
    let thief = TcpListener::bind("127.0.0.1:0").expect("bound");
    let at = thief.local_addr().expect("named");
    thief.set_nonblocking(true).expect("set");
    let put = |name: &str, text: &[u8]| {
        std::fs::write(runtime.join(name), text).expect("written");
        person.owns(&runtime.join(name));
    };
    let listed = server.act(&json!({ "do": "list" }));
    let alive = listed["server"].as_u64().expect("its process");
    let text = |url: &str| format!(r#"{{"url": "{url}", "token": "secret", "pid": {alive}}}"#);
    put("jpserver-1.json", text(&format!("http://{at}/")).as_bytes());
    put("jpserver-2.json", text("https://[::1]:1/").as_bytes());
    put("jpserver-3.json", &[b'['; 70_000]);
    std::os::unix::fs::symlink("/etc/shadow", runtime.join("jpserver-4.json")).expect("linked");
    nix::unistd::mkfifo(
        &runtime.join("jpserver-5.json"),
        nix::sys::stat::Mode::S_IRWXU,
    )
    .expect("made");
    // One of the user's own that talks without an end, and one that never says a word.
    let talk = "import socket, sys, threading, json, os\n\
        def serve(endless):\n\
        \x20   s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)\n\
        \x20   def run():\n\
        \x20       while True:\n\
        \x20           c, _ = s.accept(); kept.append(c)\n\
        \x20           try:\n\
        \x20               c.sendall(b'HTTP/1.1 200 OK\\r\\n\\r\\n[')\n\
        \x20               while endless: c.sendall(b'[' * 65536)\n\
        \x20           except OSError: pass\n\
        \x20   threading.Thread(target=run, daemon=True).start()\n\
        kept = []\n\
        serve(True); serve(False); sys.stdin.read()\n";
    let mut talker = Command::new(bin.join("python"));
    talker
        .args(["-c", talk])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut talker = person.command(talker).spawn().expect("starts");
    let mut ports = BufReader::new(talker.stdout.take().expect("piped")).lines();
    for name in ["jpserver-6.json", "jpserver-7.json"] {
        let port = ports.next().expect("a line").expect("text");
        put(name, text(&format!("http://127.0.0.1:{port}/")).as_bytes());
    }
    let begun = Instant::now();
    server.open("mine.ipynb");
    let claim = named(&station, "/mine.ipynb");
    println!("named after {:.1} s", begun.elapsed().as_secs_f32());
    let (session, _) = server.open("other.ipynb");
    named(&station, "/other.ipynb");
    server.act(&json!({ "do": "rename", "session": session, "to": "new.ipynb" }));
    named(&station, "/new.ipynb");
    // A kernel that no server names has every file looked into, and every server asked.
    std::thread::sleep(Duration::from_secs(3));
    assert!(
        station
            .snapshot()
            .expect("served")
            .claims
            .iter()
            .any(|c| c.id == claim.id)
    );
    let reached = thief.accept();
    if let Ok((mut stream, _)) = reached {
        let mut text = String::new();
        let _ = stream.set_nonblocking(false);
        let _ = stream.read_to_string(&mut text);
        assert!(!text.contains("secret"), "{text}");
        panic!("somebody else's socket was asked");
    }
    drop(talker.stdin.take());
    talker.wait().expect("ended");
}

//! Several machines: an `ssh` that finds the service of each in a directory.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::fake::{Home, code, complains, stderr, stdout};
use super::lists::snapshot;
use crate::support::users::{Users, account, as_user};
use crate::support::{SOON, has_all, root, station, until};

/// `gshare` with an ssh that starts the gshare of `box`, hangs at `dead` and refuses at `closed`.
fn gshare(home: &Home, args: &[&str]) -> Command {
    let program = env!("CARGO_BIN_EXE_gshare");
    let script = format!(
        r#"#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
host=$1; shift
case $host in
    dead) exec sleep 60 ;;
    closed) echo "ada@closed: Permission denied (publickey)." >&2; exit 255 ;;
    echo) echo "$@"; exit 7 ;;
esac
shift
GSHARE_SOCKET=$HOME/$host exec {program} "$@"
"#
    );
    let ssh = home.path("ssh");
    fs::write(&ssh, script).expect("written");
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).expect("set");
    let mut command = home.gshare(args);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", home.path("").display()));
    command
}

fn watched(times: u64) -> impl FnOnce(super::fake::Conn) -> Value + Send + 'static {
    move |mut conn| {
        let call = conn.call();
        for n in 0..times {
            let mut said = snapshot();
            said["taken_ms"] = json!(1_090_000 + n);
            if !conn.try_send(&said) {
                break;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        call
    }
}

#[test]
fn machines_are_seen_at_a_look_and_a_silent_one_keeps_nobody_waiting() {
    let home = Home::new();
    let service = home.service_at("box", watched(50));
    let begun = Instant::now();
    let asked = ["nodes", "--json", "box", "dead", "closed"];
    let output = gshare(&home, &asked).output().expect("gshare");
    let took = begun.elapsed();
    assert_eq!(code(&output), Some(0), "{}", stderr(&output));
    assert!(took < Duration::from_millis(3_900), "{took:?}");
    let said: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    let row = |n: usize| &said["nodes"][n];
    assert_eq!(row(0)["name"], "box");
    assert_eq!(row(0)["silent"], Value::Null, "{said}");
    assert_eq!(row(0)["node"]["host"], "lab-ws1");
    assert_eq!(row(0)["node"]["claimed"], 0.75);
    assert_eq!(row(1)["silent"], "silent for 3s");
    let why = "ada@closed: Permission denied (publickey).";
    assert_eq!(row(2)["silent"], why);
    // The service is asked for one second.
    assert_eq!(service.join()["min_interval_ms"], 1000);

    let none = gshare(&home, &["nodes"]).output().expect("gshare");
    assert_eq!(code(&none), Some(64), "{}", stderr(&none));
    // The user's list.
    let list = home.path(".config/gshare/nodes");
    fs::create_dir_all(list.parent().expect("a directory")).expect("made");
    fs::write(&list, "closed # ours\n").expect("written");
    let listed = gshare(&home, &["nodes"]).output().expect("gshare");
    let text = stdout(&listed);
    assert!(
        text.lines().count() == 2 && text.contains("Permission denied"),
        "{text}"
    );
    let option = gshare(&home, &["nodes", "--", "-oProxyCommand=x"]);
    let option = { option }.output().expect("gshare");
    assert_eq!(code(&option), Some(64));
    complains(&option, "is not a host");
}

#[test]
fn a_status_file_stands_for_a_machine_until_it_is_old() {
    let home = Home::new();
    let dir = home.path("files/");
    fs::create_dir(&dir).expect("made");
    let dir = dir.to_str().expect("a path");
    let service = home.service(watched(2));
    let output = home.gshare(&["nodes", "--write", dir]).output();
    assert_eq!(
        code(&output.expect("gshare")),
        Some(69),
        "until the service ends"
    );
    service.join();
    let file = home.path("files/lab-ws1.json");
    let mut node: Value = serde_json::from_slice(&fs::read(&file).expect("there")).expect("JSON");
    assert_eq!(node["taken_ms"], 1_090_001);
    let look = || {
        let output = home.output(&["nodes", dir]);
        stdout(&output)
    };
    let text = look();
    has_all(&text, &["lab-ws1", "its status file is old"]);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    node["taken_ms"] = json!(now.expect("after 1970").as_millis() as u64);
    fs::write(&file, node.to_string()).expect("written");
    let text = look();
    assert!(text.contains("0.75") && !text.contains("old"), "{text}");
}

#[test]
fn a_claim_on_another_machine_is_made_there() {
    let home = Home::new();
    let args = [
        "claim", "--on", "echo", "-g", "0.5", "--", "python", "a b.py",
    ];
    let output = gshare(&home, &args).output().expect("gshare");
    assert_eq!(
        code(&output),
        Some(7),
        "its exit status: {}",
        stderr(&output)
    );
    assert_eq!(
        stdout(&output),
        "gshare 'claim' '-g' '0.5' '--' 'python' 'a b.py'\n"
    );
}

#[test]
fn reports_of_several_machines_are_one() {
    let home = Home::new();
    let usage = |claimed: f64| {
        json!({
            "claimed_gpu_s": claimed, "used_gpu_s": claimed / 2.0, "used_known_gpu_s": claimed, "busy_gpu_s": null,
            "mem_claimed_byte_s": 0.0, "mem_used_byte_s": null, "borrowed_gpu_s": 0.0, "throttled_gpu_s": 0.0,
            "waited_gpu_s": 0.0, "idle": {"off_hours": 0.0, "kernel": 0.0, "cpu": 0.0, "io": 0.0, "other": 0.0}
        })
    };
    let write = |host: &str, hours: f64| {
        let usage = usage(hours * 3600.0);
        let report = json!({
            "from_ms": 0, "to_ms": 86_400_000, "step_ms": 3_600_000, "known_s": 86_400.0, "gpu_count": 2,
            "total": usage, "gpus": [{"gpu": 0, "uuid": "GPU-0", "usage": usage}],
            "users": [{"uid": 1000, "user": "ada", "usage": usage, "series": []}],
            "projects": [{"project": "vision", "usage": usage}], "worst": []
        });
        let file = home.path(&format!("{host}.json"));
        fs::write(&file, report.to_string()).expect("written");
        file.display().to_string()
    };
    let (a, b) = (write("boxa", 3.0), write("boxb", 4.0));
    let merged = |more: &[&str]| {
        let words = [&["report", "--merge", &a, &b], more].concat();
        home.output(&words)
    };
    let all: Value = serde_json::from_str(&stdout(&merged(&["--json"]))).expect("JSON");
    assert_eq!(all["gpu_count"], 4);
    assert_eq!(all["users"][0]["usage"]["claimed_gpu_s"], 7.0 * 3600.0);
    assert_eq!(all["gpus"][1]["uuid"], "boxb GPU 0");
    let text = stdout(&merged(&[]));
    for part in ["4 GPUs", "ada", "vision", "boxa GPU 0"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    fs::write(home.path("boxb.json"), "{}").expect("written");
    let refused = merged(&[]);
    assert_eq!(code(&refused), Some(64));
    let said = stderr(&refused);
    has_all(&said, &["boxb.json is not a gshare report"]);
    has_all(&said, &["gshare report --json > HOST.json"]);
}

/// OpenSSH itself, from this machine to this machine, both ends as an ordinary user.
#[test]
fn openssh_carries_figures_words_and_exit_statuses() {
    let test = "gshare by OpenSSH";
    root!(test);
    let programs = ["/usr/sbin/sshd", "/usr/bin/ssh", "/usr/bin/ssh-keygen"];
    if let Some(missing) = programs.iter().find(|path| !Path::new(path).exists()) {
        println!("skipped: {test}: {missing} is not installed");
        return;
    }
    let (station, users) = (station(), Users::some(1));
    let uid = users.uid(0);
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).display().to_string();
    for key in ["host", "own"] {
        let made = Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-f", &path(key)])
            .status();
        assert!(made.expect("it runs").success());
    }
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let port = listener.local_addr().expect("known").port();
    drop(listener);
    let bin = station.program();
    let bin = bin.parent().expect("a directory").display();
    let sshd = format!(
        "ListenAddress 127.0.0.1\nPort {port}\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPidFile none\n\
         SetEnv PATH={bin}:/usr/bin:/bin GSHARE_SOCKET={}\n",
        path("host"),
        path("own.pub"),
        station.socket().display()
    );
    let ssh = format!(
        "Host box\nHostName 127.0.0.1\nPort {port}\nIdentityFile {}\nStrictHostKeyChecking no\n\
         UserKnownHostsFile /dev/null\nLogLevel ERROR\n",
        path("own")
    );
    let wrapper = format!(
        "#!/bin/sh\nexec /usr/bin/ssh -F {} \"$@\"\n",
        path("config")
    );
    for (name, text) in [("sshd_config", sshd), ("config", ssh), ("ssh", wrapper)] {
        fs::write(path(name), text).expect("written");
    }
    account("chmod", &["755", &path(""), &path("ssh")]);
    account("chown", &["-R", users.name(0), &path("")]);
    let mut server = Command::new("/usr/sbin/sshd");
    server.args(["-D", "-e", "-f", &path("sshd_config")]);
    let mut server = as_user(server, uid)
        .stderr(Stdio::null())
        .spawn()
        .expect("starts");
    until("sshd listens", SOON, || {
        TcpStream::connect(("127.0.0.1", port)).ok()
    });

    let gshare = |args: &[&str]| {
        let mut command = Command::new(station.program());
        let own = std::env::var("PATH").expect("set");
        command
            .args(args)
            .env("PATH", format!("{}:{own}", path("")));
        command.env_remove("GSHARE_SOCKET");
        as_user(command, uid).output().expect("gshare")
    };
    let nodes = gshare(&["nodes", "--json", "box"]);
    let words = ["claim", "--on", "box", "-q", "-g", "0.5", "--", "sh", "-c"];
    let script = "printenv GSHARE_CLAIM_ID; echo \"it's  $1\"; exit 7";
    let ran = gshare(&[&words[..], &[script, "sh", "a  $b"]].concat());
    server.kill().expect("killed");
    server.wait().expect("ended");
    let closed = stdout(&gshare(&["nodes", "box"]));
    let said: Value = serde_json::from_slice(&nodes.stdout).expect("JSON");
    let row = &said["nodes"][0];
    assert_eq!(
        (&row["silent"], &row["node"]["free_now"]),
        (&Value::Null, &json!(4.0)),
        "{said}"
    );
    let printed = "1\nit's  a  $b\n".to_owned();
    let what = (code(&ran), stdout(&ran));
    assert_eq!(what, (Some(7), printed), "{}", stderr(&ran));
    has_all(&closed, &["Connection refused"]);
}

//! Display and end of a waiting claim.

use std::io::BufReader;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use portable_pty::{CommandBuilder, PtyPair, PtySize};

use super::fake::{Home, Service, code, grant, line, pid, queued, run, serve_claim, start, stderr};
use crate::support::terminal::Terminal;
use crate::support::{GSHARE, SOON, has_all};

#[test]
fn a_wait_is_told_whenever_it_changes() {
    let home = Home::new();
    let reason = "needs 11.8 GiB; most free is 5.8 on GPU 0";
    let replies = vec![
        queued(2, reason),
        queued(2, reason),
        queued(1, reason),
        grant(),
    ];
    let (output, _) = run(&home, &["claim", "--", "true"], replies);
    assert_eq!(code(&output), Some(0));
    let told: Vec<String> = stderr(&output).lines().map(ToOwned::to_owned).collect();
    assert_eq!(told.len(), 3, "{told:?}");
    assert_eq!(
        told[0],
        format!("c22 waits (2nd): {reason}; with -g 0.2 it would start now")
    );
    assert_eq!(
        told[1],
        format!("c22 waits (1st): {reason}; with -g 0.2 it would start now")
    );

    let (output, _) = run(
        &home,
        &["claim", "-q", "--", "true"],
        vec![queued(1, "x"), grant()],
    );
    assert_eq!((code(&output), stderr(&output)), (Some(0), String::new()));
}

#[test]
fn ctrl_c_withdraws_a_waiting_claim() {
    let home = Home::new();
    let service = home.service(serve_claim(vec![queued(1, "x")]));
    // Background jobs of a script have SIGINT ignored, and so would the tests' children.
    let mut command = Command::new("env");
    home.prepare(&mut command)
        .args(["--default-signal=INT", env!("CARGO_BIN_EXE_gshare")])
        .args(["claim", "--", "true"]);
    let (mut child, mut lines) = start(command);
    assert!(line(&mut lines).starts_with("c22 waits"));
    kill(pid(&child), Signal::SIGINT).expect("kill");
    assert_eq!(line(&mut lines), "c22 withdrawn\n");
    // As the shell sees it: 128 + 2.
    assert_eq!(child.wait().expect("wait").signal(), Some(2));
    service.join();
}

/// A service that grants a waiting claim when it is told.
fn waits(home: &Home) -> (Service, std::sync::mpsc::Sender<()>) {
    let (tx, rx) = std::sync::mpsc::channel();
    let service = home.service(move |mut conn| {
        let claim = conn.call();
        conn.send(&queued(1, "x"));
        rx.recv().expect("told");
        conn.send(&grant());
        conn.wait_closed();
        claim
    });
    (service, tx)
}

#[test]
fn a_wait_under_nohup_survives_the_terminal() {
    let home = Home::new();
    let (service, tx) = waits(&home);
    let mut command = Command::new("sh");
    let script = format!(
        "trap '' HUP; exec {} claim -- true",
        env!("CARGO_BIN_EXE_gshare")
    );
    home.prepare(&mut command)
        .args(["-c", &script])
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("sh");
    let mut lines = BufReader::new(child.stderr.take().expect("stderr"));
    assert!(line(&mut lines).starts_with("c22 waits"));
    kill(pid(&child), Signal::SIGHUP).expect("kill");
    tx.send(()).expect("service");
    assert_eq!(child.wait().expect("wait").code(), Some(0));
    service.join();
}

/// A terminal shows the progress of a wait and no trace of it afterwards; the command has the terminal.
#[test]
fn on_a_terminal_the_progress_line_goes_away() {
    let home = Home::new();
    let (service, tx) = waits(&home);
    let script = "test -t 0 && test -t 1 && test -t 2 && echo has the terminal";
    let command = home.gshare(&["claim", "--", "sh", "-c", script]);
    let mut terminal = Terminal::start(&command, 24, 120);
    terminal.shows(&["waits 0s (Ctrl-C withdraws)"], SOON);
    tx.send(()).expect("service");
    assert_eq!(terminal.ended(SOON), 0);
    let shown = terminal.text();
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines.len(), 3, "{shown}");
    assert_eq!(
        lines[0],
        "c22 waits (1st): x; with -g 0.2 it would start now"
    );
    assert!(lines[1].starts_with("c3: 0.50 of GPU 1"), "{shown}");
    assert_eq!(lines[2], "has the terminal");
    service.join();
}

/// A claim during a restart of the service: its socket exists and refuses connections.
#[test]
fn a_claim_waits_for_a_service_that_restarts() {
    let home = Home::new();
    drop(std::os::unix::net::UnixListener::bind(home.path("sock")).expect("bind"));
    let mut command = home.gshare(&["claim", "--", "true"]);
    command.env("GSHARE_RECONNECT", "20s");
    let (mut child, mut lines) = start(command);
    assert!(line(&mut lines).contains("the gshare service does not answer"));
    let service = home.service(serve_claim(vec![grant()]));
    assert!(line(&mut lines).starts_with("c3: 0.50 of GPU 1"));
    assert_eq!(child.wait().expect("wait").code(), Some(0));
    service.join();

    // A claim that must not wait is refused at once.
    drop(std::fs::remove_file(home.path("sock")));
    drop(std::os::unix::net::UnixListener::bind(home.path("sock")).expect("bind"));
    let mut command = home.gshare(&["claim", "--nonblock", "--", "true"]);
    command.env("GSHARE_RECONNECT", "20s");
    let output = command.output().expect("gshare");
    assert_eq!(code(&output), Some(69), "{}", stderr(&output));
}

#[test]
fn a_command_says_that_the_service_hangs_and_waits_for_it() {
    let home = Home::new();
    let hangs = std::os::unix::net::UnixListener::bind(home.path("sock")).expect("bind");
    let (mut child, mut lines) = start(home.gshare(&["ps"]));
    assert!(line(&mut lines).contains("the service has not answered for 3s and may hang"));
    assert!(child.try_wait().expect("waits").is_none());
    drop(hangs);
    assert!(line(&mut lines).starts_with("gshare: the connection"));
    assert_eq!(child.wait().expect("ends").code(), Some(69));
}

#[test]
fn a_claim_that_may_not_wait_ends_when_the_service_hangs() {
    let home = Home::new();
    let _hangs = std::os::unix::net::UnixListener::bind(home.path("sock")).expect("bind");
    let output = home.gshare(&["claim", "--nonblock", "--", "true"]).output();
    let output = output.expect("gshare");
    let told = stderr(&output);
    assert_eq!(code(&output), Some(69), "{told}");
    has_all(&told, &["did not answer within 5 s"]);
    has_all(&told, &["hint: it hangs or is very busy"]);
}

/// A shell script that controls a terminal of its own.
fn on_a_terminal(home: &Home, script: &str) -> Terminal {
    let mut command = Command::new("bash");
    home.prepare(&mut command)
        .env("GSHARE", GSHARE)
        .args(["-c", script]);
    Terminal::start(&command, 24, 120)
}

#[test]
fn a_job_in_the_background_draws_no_progress() {
    let home = Home::new();
    let service = home.service(move |mut conn| {
        let claim = conn.call();
        conn.send(&queued(1, "x"));
        std::thread::sleep(std::time::Duration::from_millis(1500));
        conn.send(&grant());
        conn.wait_closed();
        claim
    });
    // Job control puts the job into a group of its own, in the background.
    let mut terminal = on_a_terminal(&home, "set -m; $GSHARE claim -- true & wait; echo over");
    assert_eq!(terminal.ended(SOON), 0);
    let seen = terminal.written();
    has_all(&seen, &["c22 waits (1st)", "over"]);
    assert!(!seen.contains("Ctrl-C withdraws"), "{seen}");
    service.join();
}

/// `su -` keeps the SIGHUP of a closed terminal from the programs that were started in it.
#[test]
fn a_wait_ends_with_its_terminal_also_without_a_sighup() {
    let home = Home::new();
    let (told, waits) = std::sync::mpsc::channel::<()>();
    let service = home.service(move |mut conn| {
        let claim = conn.call();
        conn.send(&queued(1, "x"));
        told.send(()).expect("the test");
        conn.wait_closed();
        claim
    });
    // The leader of the session ignores the signal and lives on; its child has the default action for it.
    let script = "trap '' HUP; env --default-signal=HUP $GSHARE claim -- true; sleep 30";
    let pty = portable_pty::native_pty_system().openpty(PtySize::default());
    let PtyPair { master, slave } = pty.expect("pty");
    let mut command = CommandBuilder::new("bash");
    command.env("GSHARE_SOCKET", home.path("sock"));
    command.env("GSHARE", GSHARE);
    command.args(["-c", script]);
    let mut child = slave.spawn_command(command).expect("bash");
    waits.recv().expect("it waits");
    std::thread::sleep(std::time::Duration::from_millis(300));
    drop((slave, master));
    // The connection is closed: the claim is withdrawn.
    service.join();
    child.kill().expect("ended");
    child.wait().expect("wait");
}

/// Many notebook users read `release` as "give the GPU back", and lost their variables.
#[test]
fn the_release_of_a_notebook_asks_first_and_names_what_keeps_the_variables() {
    for (answer, released) in [("n\n", false), ("y\n", true)] {
        let home = Home::new();
        let service = home.service(move |mut conn| {
            assert_eq!(conn.call()["op"], "snapshot");
            let mut snapshot = super::lists::snapshot();
            let source = serde_json::json!({"value": "/home/ada/vit.ipynb", "source": "jupyter"});
            snapshot["claims"][0]["identity"] = serde_json::json!({ "notebook": source });
            conn.send(&snapshot);
            if released {
                let call = conn.call();
                conn.send(&serde_json::json!({"reply": "done", "message": "c3 is released"}));
                return call;
            }
            conn.wait_closed();
            serde_json::Value::Null
        });
        let mut terminal = on_a_terminal(&home, "$GSHARE release c3");
        terminal.shows(&["[y/N]"], SOON);
        terminal.send(answer);
        assert_eq!(terminal.ended(SOON), 0);
        let seen = terminal.written();
        has_all(
            &seen,
            &["gshare offload c3 frees the GPU memory and keeps them"],
        );
        assert_eq!(seen.contains("nothing was released"), !released, "{seen}");
        let call = service.join();
        assert_eq!(
            call["op"],
            if released {
                "release".into()
            } else {
                serde_json::Value::Null
            }
        );
    }
}

//! The screen: on a service, without one, and where there is no terminal.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use portable_pty::{CommandBuilder, PtySize, native_pty_system};
use serde_json::Value;

use super::fake::{Home, code, stderr, stdout};
use super::lists::snapshot;

/// Runs `gshare` on a terminal of 80x24; when all of `ready` is on it, presses q. Returns the exit
/// code. A frame comes in several reads, so one part alone does not mean that the others are there.
fn on_terminal(home: &Home, socket: Option<&str>, ready: &[&str]) -> u32 {
    let size = PtySize {
        rows: 24,
        cols: 80,
        pixel_width: 0,
        pixel_height: 0,
    };
    let pty = native_pty_system().openpty(size).expect("pty");
    let mut command = CommandBuilder::new(env!("CARGO_BIN_EXE_gshare"));
    command.env("HOME", home.path(""));
    command.env("XDG_CONFIG_HOME", home.path(".config"));
    command.env("XDG_RUNTIME_DIR", home.path("run"));
    command.env("TERM", "xterm-256color");
    command.env_remove("GSHARE_SOCKET");
    if let Some(name) = socket {
        command.env("GSHARE_SOCKET", home.path(name));
    }
    command.cwd(home.path(""));
    let mut child = pty.slave.spawn_command(command).expect("gshare");
    drop(pty.slave);
    // A screen without these words would stay for ever.
    let mut killer = child.clone_killer();
    let (over, wait) = std::sync::mpsc::channel::<()>();
    let patience = std::thread::spawn(move || {
        if wait.recv_timeout(Duration::from_secs(30)) == Err(RecvTimeoutError::Timeout) {
            let _ = killer.kill();
        }
    });
    let mut reader = pty.master.try_clone_reader().expect("reader");
    let mut writer = pty.master.take_writer().expect("writer");
    let cells = |n: u16| std::num::NonZero::new(n).expect("not zero");
    let mut screen = vt100::Parser::new(cells(24), cells(80), 0);
    let mut seen = false;
    let mut bytes = [0u8; 4096];
    while let Ok(n @ 1..) = reader.read(&mut bytes) {
        screen.process(&bytes[..n]);
        let shown = screen.screen().contents();
        if !seen && ready.iter().all(|part| shown.contains(part)) {
            seen = true;
            let _ = writer.write_all(b"q");
            let _ = writer.flush();
        }
    }
    let status = child.wait().expect("wait");
    drop(over);
    patience.join().expect("waited");
    assert!(
        seen,
        "{ready:?} did not appear together; {status:?}:\n{}",
        screen.screen().contents()
    );
    status.exit_code()
}

#[test]
fn without_arguments_the_screen_shows_the_service() {
    let home = Home::new();
    let listener = UnixListener::bind(home.path("sock")).expect("bind");
    // Ends with the test: every connection has a thread that ends when its client closes.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.expect("connection"));
            std::thread::spawn(move || {
                let mut line = String::new();
                while matches!(stream.read_line(&mut line), Ok(1..)) {
                    let call: Value = serde_json::from_str(&line).expect("JSON");
                    if call["op"] == "watch" {
                        let _ = writeln!(stream.get_mut(), "{}", snapshot());
                    }
                    line.clear();
                }
            });
        }
    });
    let parts = [" SIM", "ada", "bob", "c3", "c22"];
    assert_eq!(on_terminal(&home, Some("sock"), &parts), 0);
}

#[test]
fn without_a_service_it_looks_at_the_driver_or_says_what_is_missing() {
    let home = Home::new();
    if std::fs::exists("/run/gshare/gshared.sock").unwrap_or(true) {
        println!("skipped: a service of the machine is running");
        return;
    }
    // With a driver this is the monitor's banner, without one the reason why there is no screen.
    let exit = on_terminal(&home, None, &["no gshare service"]);
    assert!([0, 69].contains(&exit), "{exit}");
    // A socket that was named is not replaced by something else.
    let exit = on_terminal(&home, Some("nothing"), &["no gshare service answers"]);
    assert_eq!(exit, 69);
}

#[test]
fn without_a_terminal_it_says_what_scripts_can_use() {
    let home = Home::new();
    let mut command = home.gshare(&[]);
    let output = command.stdin(Stdio::null()).output().expect("gshare");
    assert_eq!(code(&output), Some(64));
    assert!(
        stderr(&output).contains("gshare status"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn called_gshared_it_is_the_service() {
    let home = Home::new();
    let link = home.path("gshared");
    symlink(env!("CARGO_BIN_EXE_gshare"), &link).expect("link");
    let mut command = Command::new(&link);
    let output = home
        .prepare(&mut command)
        .arg("--help")
        .output()
        .expect("gshared");
    assert!(
        stdout(&output).contains("sudo gshare daemon"),
        "{}",
        stdout(&output)
    );
}

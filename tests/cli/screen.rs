//! The screen: on a service, without one, and where there is no terminal.

use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use super::fake::{Home, code, complains, says};
use crate::support::SOON;
use crate::support::terminal::Terminal;

/// A missing named socket, and a live service, are tested in `crate::screen`.
#[test]
fn a_socket_that_was_named_is_not_replaced_by_something_else() {
    let home = Home::new();
    let mut screen = Terminal::start(&home.gshare(&[]), 24, 80);
    screen.shows(&["no gshare service answers"], SOON);
    screen.send("q");
    assert_eq!(screen.ended(SOON), 69);
}

#[test]
fn without_a_terminal_it_says_what_scripts_can_use() {
    let home = Home::new();
    let mut command = home.gshare(&[]);
    let output = command.stdin(Stdio::null()).output().expect("gshare");
    assert_eq!(code(&output), Some(64));
    complains(&output, "gshare status");
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
    says(&output, "sudo gshare daemon");
}

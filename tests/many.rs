//! Twenty notebooks of four users at once: none of their claims is lost or left over, and gshare ends no kernel.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use support::notebook::jupyter;
use support::users::{Users, as_user};
use support::{board, python, station_with, until};

const USERS: usize = 4;
const EACH: usize = 5;
/// How long they work.
const SECONDS: u32 = 18;

#[test]
fn twenty_kernels_of_four_users_lose_nothing() {
    let test = "twenty_kernels_of_four_users_lose_nothing";
    if !nix::unistd::Uid::effective().is_root() {
        println!("skipped: {test} needs root for real accounts");
        return;
    }
    let Some(bin) = python::bin(test) else {
        return;
    };
    let users = Users::some(USERS);
    let mut try_it = Command::new(bin.join("python"));
    try_it.args(["-c", "import ipykernel"]).current_dir("/");
    if !as_user(try_it, users.uid(0))
        .status()
        .is_ok_and(|s| s.success())
    {
        println!("skipped: {test} needs a Python that other users may run");
        return;
    }
    let seed: u32 = std::env::var("GSHARE_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or_else(|| std::process::id() % 100_000);
    println!("seed {seed} (GSHARE_SEED)");
    let station = station_with(|o| {
        o.gpus = vec!["rtx4090".to_owned(); 2];
        o.config = "[claims]\nleftover-grace = \"1s\"\nkernel-grace = \"3s\"\n[detach]\nhost-reserve = \"1 MiB\"\n\
             [class]\ninteractive = { min-run = \"0s\" }\n[reclaim]\nspread = false\ncountdown = \"1s\"\nhost-ram = 90\n\
             [idle]\nwarn = \"2s\"\ndetach = \"3s\"\n"
            .to_owned();
    });
    let rate = board(&station).set_checkpoint_rate(Duration::from_millis(5), 1 << 42);
    rate.expect("the rate is set");
    let mut clients = Vec::new();
    let mut homes = Vec::new();
    for user in 0..USERS {
        let uid = users.uid(user);
        let home = tempfile::tempdir().expect("made");
        std::fs::set_permissions(home.path(), PermissionsExt::from_mode(0o700)).expect("set");
        chown(home.path(), Some(uid), Some(uid)).expect("given");
        let mut install = jupyter(station.command(), &bin, home.path());
        install.args([
            "kernel", "install", "-g", "0.25", "--user", "--name", "part",
        ]);
        let output = as_user(install, uid).output().expect("runs");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let command = station.client_environment(Command::new(bin.join("python")));
        let mut command = jupyter(command, &bin, home.path());
        command.arg(python::script("many.py")).arg("part");
        command.args([
            EACH.to_string(),
            SECONDS.to_string(),
            (seed + user as u32).to_string(),
        ]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.current_dir(home.path());
        let mut child = as_user(command, uid).spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        clients.push((child, lines));
        homes.push(home);
    }
    let mut wrong = Vec::new();
    let mut note = |line: Option<std::io::Result<String>>| {
        let line = line.expect("it answers").expect("text");
        let said: Value = serde_json::from_str(&line).expect("JSON");
        if said["done"].is_object() {
            println!("{}", said["done"]);
        }
        wrong.extend(said["wrong"].as_array().expect("a list").clone());
    };
    for (_, lines) in &mut clients {
        note(lines.next());
    }
    // Nobody does anything now: each kernel has its claim, and there are no others.
    until(
        "there are as many claims as kernels",
        Duration::from_secs(10),
        || {
            let now = station.snapshot().ok()?;
            let waiting = now
                .queue
                .iter()
                .filter(|q| now.claims.iter().all(|c| c.id != q.id));
            (now.claims.len() + waiting.count() == USERS * EACH).then_some(())
        },
    );
    for (child, _) in &mut clients {
        writeln!(child.stdin.as_mut().expect("piped")).expect("it reads");
    }
    for (_, lines) in &mut clients {
        note(lines.next());
    }
    for (child, _) in &mut clients {
        child.wait().expect("it ends");
    }
    assert!(wrong.is_empty(), "{wrong:?}");
    until("no claim is left", Duration::from_secs(10), || {
        let now = station.snapshot().ok()?;
        (now.claims.is_empty() && now.queue.is_empty()).then_some(())
    });
}

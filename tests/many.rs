//! Twenty notebooks of four users at once: none of their claims is lost or left over, and gshare ends no kernel.

use crate::support;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gshare::station::Station;
use serde_json::Value;
use support::notebook::{jupyter, may_run};
use support::users::{Users, as_user};
use support::{board, python, station_with, until};

const USERS: usize = 4;
const EACH: usize = 5;
/// By how much the times after which a notebook is warned (20 min) and offloaded (30 min) are divided, without
/// `GSHARE_SOAK`. A sixtieth of them is twenty and thirty seconds: too few idle spells for a test that is over in a
/// minute. How long the claim of a kernel that died is kept is not divided: Jupyter takes its time to start it again.
const DIVISOR: f64 = 600.0;

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
    if !may_run(test, &bin, users.uid(0)) {
        return;
    }
    let divisor: f64 = std::env::var("GSHARE_SOAK")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(DIVISOR);
    let (warn, offload) = (20.0 * 60.0 / divisor, 30.0 * 60.0 / divisor);
    // Six of the times after which it is offloaded, and pauses that are a third longer.
    let (seconds, pause) = (6.0 * offload, 4.0 * offload / 3.0);
    println!("timers divided by {divisor} (GSHARE_SOAK), {seconds} s of work");
    let seed: u32 = std::env::var("GSHARE_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or_else(|| std::process::id() % 100_000);
    println!("seed {seed} (GSHARE_SEED)");
    let station = station_with(|o| {
        o.gpus = vec!["rtx4090".to_owned(); 2];
        o.config = format!(
            "[claims]\nleftover-grace = \"1s\"\n[detach]\nhost-reserve = \"1 MiB\"\n\
             [class]\ninteractive = {{ min-run = \"0s\" }}\n[reclaim]\nspread = false\ncountdown = \"1s\"\nhost-ram = 90\n\
             [idle]\nwarn = \"{warn}s\"\ndetach = \"{offload}s\"\n"
        );
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
            seconds.to_string(),
            (seed + user as u32).to_string(),
            pause.to_string(),
        ]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.current_dir(home.path());
        let mut child = as_user(command, uid).spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        clients.push((child, lines));
        homes.push(home);
    }
    let mut wrong = Vec::new();
    let mut done: BTreeMap<String, u64> = BTreeMap::new();
    let mut note = |line: Option<std::io::Result<String>>| {
        let line = line.expect("it answers").expect("text");
        let said: Value = serde_json::from_str(&line).expect("JSON");
        for (what, times) in said["done"].as_object().into_iter().flatten() {
            *done.entry(what.clone()).or_default() += times.as_u64().expect("a number");
        }
        wrong.extend(said["wrong"].as_array().expect("a list").clone());
    };
    let working = AtomicBool::new(true);
    let offloaded = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| offloaded(&station, &working));
        for (_, lines) in &mut clients {
            note(lines.next());
        }
        working.store(false, Ordering::Relaxed);
        watcher.join().expect("watched")
    });
    // All is quiet now: each kernel has its claim, and there are no others.
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
    println!("{done:?}; seen offloaded: {offloaded:?}");
    assert!(wrong.is_empty(), "{wrong:?}");
    let times = |what: &str| done.get(what).copied().unwrap_or(0);
    assert!(!offloaded.is_empty(), "somebody idled and was wanted");
    for what in ["same", "computed", "back", "restart", "kill", "cull"] {
        assert!(times(what) > 0, "{what}: {done:?}");
    }
    until("no claim is left", Duration::from_secs(10), || {
        let now = station.snapshot().ok()?;
        (now.claims.is_empty() && now.queue.is_empty()).then_some(())
    });
}

/// The claims that were seen off the GPU while somebody works.
fn offloaded(station: &Station, working: &AtomicBool) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    while working.load(Ordering::Relaxed) {
        let claims = station.snapshot().map(|now| now.claims).unwrap_or_default();
        let off = claims
            .into_iter()
            .filter(|c| c.place.word.as_deref() == Some("offloaded"));
        seen.extend(off.map(|c| c.id));
        std::thread::sleep(Duration::from_millis(200));
    }
    seen
}

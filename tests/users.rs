//! Several Unix users on one machine, as root: devices, ownership, membership.

use crate::support;

use std::process::{Command, Output};
use std::time::Duration;

use gshare::station::Station;
use nix::sys::signal::Signal;
use support::terminal::Terminal;
use support::users::{Users, as_user, group_of, reachable};
use support::{Raw, claim_of, root, station, until};

const SOON: Duration = Duration::from_secs(15);

fn claim_as(station: &Station, uid: u32, flags: &[&str]) -> Raw {
    let mut command = station.command();
    command
        .args(["claim", "-q"])
        .args(flags)
        .arg("--")
        .arg(reachable(station));
    Raw::start(as_user(command, uid))
}

fn run(command: &mut Command) -> Output {
    command.output().expect("runs")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Opens each stand-in node in a claim and prints what the kernel says.
fn open_nodes(station: &Station, uid: u32, gpu: &str) -> Vec<String> {
    let script = "for n in 0 1 2 3 ctl; do (exec 3<$0/nvidia$n) 2>&1 | sed \"s/.*: /$n /\"; done";
    let mut command = station.command();
    command
        .args([
            "claim",
            "-q",
            "-g",
            "0.1",
            "--gpu-ids",
            gpu,
            "--",
            "sh",
            "-c",
            script,
        ])
        .arg(station.sim_dir().join("dev"));
    let output = run(&mut as_user(command, uid));
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(str::to_owned)
        .collect()
}

const NO_DRIVER: &str = "No such device or address";
const DENIED: &str = "Operation not permitted";

#[test]
fn a_member_opens_its_own_gpu_only_also_after_the_service_was_killed() {
    if !root("a_member_opens_its_own_gpu_only_also_after_the_service_was_killed") {
        return;
    }
    let users = Users::make();
    let mut station = station();
    let expect = |gpu: usize| -> Vec<String> {
        let mut lines: Vec<String> = (0..4)
            .map(|n| format!("{n} {}", if n == gpu { NO_DRIVER } else { DENIED }))
            .collect();
        lines.push(format!("ctl {NO_DRIVER}"));
        lines
    };
    assert_eq!(open_nodes(&station, users.uid(0), "1"), expect(1));
    assert_eq!(open_nodes(&station, users.uid(1), "3"), expect(3));

    // A shell that lives through the death of the service tries before and after.
    let mut command = station.command();
    let script = "while read n; do (exec 3<$0/nvidia$n) 2>&1 | sed \"s/.*: //\"; done";
    command
        .args([
            "claim",
            "-q",
            "-g",
            "0.1",
            "--gpu-ids",
            "2",
            "--",
            "sh",
            "-c",
            script,
        ])
        .arg(station.sim_dir().join("dev"));
    let mut shell = Raw::spawn(&mut as_user(command, users.uid(2)));
    for round in ["before", "after", "again"] {
        assert_eq!(shell.ask("0"), DENIED, "{round}");
        assert_eq!(shell.ask("2"), NO_DRIVER, "{round}");
        match round {
            "before" => station.stop_service(Signal::SIGKILL).expect("killed"),
            "after" => station.start_service().expect("starts again"),
            _ => {}
        }
    }
}

#[test]
fn the_simulated_driver_hides_gpus_that_were_not_granted() {
    if !root("the_simulated_driver_hides_gpus_that_were_not_granted") {
        return;
    }
    let station = station();
    let mut raw = Raw::claim(&station, &["-q", "-g", "0.1", "--gpu-ids", "2"]);
    assert_eq!(raw.ask("count"), "ok 1");
    // Even a program that throws the environment away and loads the driver itself gets no other GPU.
    let mut command = station.command();
    command
        .args([
            "claim",
            "-q",
            "-g",
            "0.1",
            "--gpu-ids",
            "2",
            "--",
            "env",
            "-i",
        ])
        .arg(format!(
            "LD_LIBRARY_PATH={}",
            station.sim_dir().join("lib").display()
        ))
        .arg(support::example("raw_client"));
    let mut bare = Raw::start(command);
    assert_eq!(bare.ask("count"), "ok 1");
}

#[test]
fn a_claim_is_its_owners_alone() {
    if !root("a_claim_is_its_owners_alone") {
        return;
    }
    let users = Users::make();
    let station = station();
    let mut owned = claim_as(&station, users.uid(0), &["-g", "0.25", "--name", "mine"]);
    let snapshot = station.snapshot().expect("served");
    let id = claim_of(&snapshot, owned.pid()).expect("listed").id.clone();
    assert_eq!(snapshot.claims[0].uid, users.uid(0));
    assert_eq!(snapshot.claims[0].user, users.name(0));
    for word in [id.as_str(), "mine"] {
        for other in [1, 2] {
            let mut release = station.command();
            release.args(["release", word]);
            let output = run(&mut as_user(release, users.uid(other)));
            assert_eq!(output.status.code(), Some(77), "{}", text(&output));
            assert!(
                text(&output).contains(users.name(0)),
                "it says whose it is: {}",
                text(&output)
            );
            let mut join = station.command();
            join.args(["join", word, "--", "true"]);
            let output = run(&mut as_user(join, users.uid(other)));
            assert_eq!(output.status.code(), Some(77), "{}", text(&output));
        }
    }
    // `release --all` of another user touches nothing, and neither does a lie in the environment.
    let mut all = station.command();
    all.args(["release", "--all"])
        .env("USER", users.name(0))
        .env("GSHARE_CLAIM_ID", &id[1..]);
    let output = run(&mut as_user(all, users.uid(1)));
    assert!(!output.status.success(), "that user holds no claims");
    // A process of another user that names the claim in its environment is no member.
    let mut liar = Command::new(reachable(&station));
    liar.env(
        "LD_LIBRARY_PATH",
        format!(
            "{}:{}",
            station.dir().join("run/lib").display(),
            station.sim_dir().join("lib").display()
        ),
    )
    .env("GSHARE_CLAIM_ID", &id[1..]);
    let mut liar = Raw::start(as_user(liar, users.uid(1)));
    assert!(liar.info().1 > 0);
    let snapshot = until("it is seen outside", Duration::from_secs(5), || {
        let snapshot = station.snapshot().ok()?;
        claim_of(&snapshot, liar.pid())
            .is_some_and(|c| c.adopted && c.uid == users.uid(1))
            .then_some(snapshot)
    });
    assert!(
        !claim_of(&snapshot, owned.pid())
            .expect("listed")
            .members
            .contains(&liar.pid())
    );
    // The owner may; the owner's process that holds the GPU is ended.
    let mut release = station.command();
    release.args(["release", &id]);
    let output = run(&mut as_user(release, users.uid(0)));
    assert!(output.status.success(), "{}", text(&output));
    let status = until("the member ends", Duration::from_secs(5), || {
        owned.child.try_wait().ok().flatten()
    });
    assert!(!status.success());
    until("the claim is gone", Duration::from_secs(5), || {
        let claims = station.snapshot().ok()?.claims;
        (!claims.iter().any(|c| c.id == id)).then_some(())
    });
}

/// As after `su`: the terminal belongs to who logged in, the programs on it to another.
#[test]
fn who_came_by_su_reads_it_on_the_terminal_that_he_came_by_if_his_programs_write_there() {
    let name =
        "who_came_by_su_reads_it_on_the_terminal_that_he_came_by_if_his_programs_write_there";
    if !root(name) {
        return;
    }
    let users = Users::make();
    let station = station();
    let start = |by: &str, gpu: &str, streams: &str| {
        let gshare = station.command();
        let mut command = Command::new("setpriv");
        let uid = users.uid(0).to_string();
        let gid = group_of(users.uid(0)).to_string();
        command.args(["--reuid", &uid, "--regid", &gid, "--clear-groups"]);
        command.args(["sh", "-c"]);
        command.arg(format!("exec {by} \"$0\" \"$@\" {streams}"));
        command.arg(gshare.get_program()).arg("claim");
        command.args(["-q", "-g", "0.25", "--gpu-ids", gpu, "--", "sh", "-c"]);
        command.arg("trap : TERM; while :; do sleep 1; done");
        for (name, value) in gshare.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        Terminal::start(&command, 24, 160)
    };
    let own = start("", "0", "");
    let apart = start("", "1", "< /dev/null > /dev/null 2>&1");
    // As `su -c` does it: a session of its own, without a terminal but for its streams.
    let session = start("setsid --wait", "1", "2> /dev/null");
    until("all run", Duration::from_secs(60), || {
        (station.snapshot().ok()?.claims.len() == 3).then_some(())
    });
    let mut kill = station.command();
    kill.args(["admin", "kill", "--user", users.name(0), "--grace", "1s"]);
    let killed = run(kill.args(["--reason", "the power goes off"]));
    assert!(killed.status.success(), "{}", text(&killed));
    for told in [&own, &session] {
        told.shows(
            &["killed by ", "the power goes off"],
            Duration::from_secs(60),
        );
    }
    until("all have ended", Duration::from_secs(30), || {
        station.snapshot().ok()?.claims.is_empty().then_some(())
    });
    assert!(!apart.text().contains("killed"), "{}", apart.text());
}

/// On a file server that maps root to nobody (NFS with root_squash) root reads nothing in users' homes.
#[test]
fn a_home_that_root_cannot_read_is_no_hindrance() {
    if !root("a_home_that_root_cannot_read_is_no_hindrance") {
        return;
    }
    let users = Users::make();
    let mut station = station();
    let home = tempfile::tempdir().expect("a directory");
    std::fs::write(home.path().join(".gshare.toml"), "gpus = 0.2\n").expect("written");
    std::fs::write(
        home.path().join("job"),
        "#!/bin/sh\necho \"$PWD $GSHARE_CLAIM_ID\"\n",
    )
    .expect("written");
    for (name, mode) in [("", "0700"), ("job", "0700"), (".gshare.toml", "0600")] {
        let path = home.path().join(name);
        let own = format!(
            "chown {} {path:?} && chmod {mode} {path:?}",
            users.uid(0),
            path = path.display().to_string()
        );
        assert!(
            run(Command::new("sh").args(["-c", &own])).status.success(),
            "{own}"
        );
    }
    // Root without the right to pass over permissions.
    let squashed = |program: &std::path::Path| {
        let mut command = Command::new("setpriv");
        command
            .args(["--bounding-set=-dac_override,-dac_read_search", "--"])
            .arg(program);
        command
    };
    let tried = run(squashed("/bin/cat".as_ref()).arg(home.path().join(".gshare.toml")));
    assert!(!tried.status.success(), "root can read it here");
    station.stop_service(Signal::SIGTERM).expect("stopped");
    let mut service = squashed(station.program());
    service
        .arg("daemon")
        .arg("--config")
        .arg(station.dir().join("gshare.toml"));
    let mut service = service
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("starts");
    until("it serves", SOON, || station.snapshot().ok().map(|_| ()));

    let mut claim = station.command();
    claim.args(["claim", "--", "./job"]);
    let mut claim = as_user(claim, users.uid(0));
    let done = run(claim.current_dir(home.path()));
    let stderr = text(&done);
    assert!(done.status.success(), "{stderr}");
    assert!(
        stderr.contains("0.2"),
        "the project's file counts: {stderr}"
    );
    let stdout = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(
        stdout.starts_with(&home.path().display().to_string()),
        "{stdout}"
    );
    service.kill().expect("killed");
    service.wait().expect("reaped");
}

//! Attacks of a hostile user, with real accounts, and the effects of one user's claims, files and messages on others.
//! SECURITY.md has the promises; docs/security.md has the list.

use crate::support;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use gshare::station::Station;
use gshare_abi::wire::{Register, Request};
use gshare_enforcer::cgroup::{Mount, v2_path};
use gshare_proto::Grade;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use support::others::Others;
use support::terminal::Terminal;
use support::users::{Users, account, as_user, group_of, reachable};
use support::{
    DENIED, OPEN, Raw, SOON, all_ended, claim_of, has_all, root, station, station_with, text, until,
};

// Attacks of a hostile user, with real accounts: each test is an attack that worked once. SECURITY.md has the
// promises; docs/security.md has the list.

fn end<const N: usize>(children: [&mut Child; N]) {
    for child in children {
        child.kill().expect("killed");
        child.wait().expect("reaped");
    }
}

/// The command of a claim that `uid` makes.
fn claim_as(station: &Station, uid: u32, flags: &[&str], command: &[&str]) -> Command {
    let mut claim = station.command();
    claim.args(["claim", "-q"]).args(flags).arg("--");
    claim.args(command);
    as_user(claim, uid)
}

fn member_as(station: &Station, uid: u32, flags: &[&str]) -> Raw {
    let program = reachable(station);
    Raw::start(claim_as(station, uid, flags, &[&program.to_string_lossy()]))
}

/// Whether a GPU is out of service.
fn drained(station: &Station, gpu: usize) -> bool {
    station.snapshot().expect("served").gpus[gpu]
        .drain
        .is_some()
}

/// C1: root started its daemon, and wrote, in a directory in which a user had put links.
#[test]
fn root_works_in_no_directory_of_mps_that_a_user_can_write() {
    root!("claims of two users");
    let users = Users::make();
    let station = station_with(|o| {
        o.gpus = vec!["h100".to_owned()];
        o.tick = "0.2s".to_owned();
        o.config = "[gpu.0]\nmode = \"mps\"\n[claims]\nleftover-grace = \"1s\"\n[mps]\n".to_owned();
    });
    let precious = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(&precious, "precious").expect("written");
    let pipe = station.dir().join("run/mps/0/pipe");
    let script = "cd \"$0\"; rm -f nvidia-cuda-mps-control.pid; \
                  ln -s \"$1\" nvidia-cuda-mps-control.pid; touch planted; mv control away; \
                  cd /; exec sleep 1000";
    let pid_file = precious.path().to_string_lossy().into_owned();
    let words = ["sh", "-c", script, &pipe.to_string_lossy(), &pid_file];
    let mut hostile = claim_as(&station, users.uid(0), &["-g", "0.25"], &words);
    let mut hostile = hostile.stderr(Stdio::null()).spawn().expect("starts");
    until("it is held", SOON, || {
        (!station.snapshot().ok()?.claims.is_empty()).then_some(())
    });
    std::thread::sleep(Duration::from_secs(1));
    // The daemon is restarted, where the links are.
    let mut daemon = Command::new("pkill");
    daemon.args(["-KILL", "-f", "-x"]);
    daemon.arg(format!(
        "{}/bin/nvidia-cuda-mps-control -f",
        station.sim_dir().display()
    ));
    daemon.status().expect("runs");
    until("the daemon is up again", SOON, || {
        let doctor = station.command().arg("doctor").output().ok()?;
        let up = text(&doctor).contains("0 servers, 0 clients");
        let written = std::fs::read_to_string(&precious).ok()? != "precious";
        (up || written).then_some(())
    });
    let kept = std::fs::read_to_string(&precious).expect("read");
    assert_eq!(kept, "precious", "root wrote through a link of a user");
    assert!(!pipe.join("planted").exists(), "a user can write there");
    let meta = pipe.metadata().expect("there");
    assert_eq!((meta.uid(), meta.mode() & 0o022), (0, 0));

    // The next user gets another directory, and a daemon that no other user has used.
    std::fs::write(pipe.join("left"), "of the last user's time").expect("written");
    let mut release = station.command();
    release.args(["release", "--all"]);
    let released = as_user(release, users.uid(0)).output().expect("runs");
    assert!(released.status.success(), "{}", text(&released));
    hostile.kill().expect("killed");
    hostile.wait().expect("reaped");
    let mut next = member_as(&station, users.uid(1), &["-g", "0.25"]);
    assert_eq!(
        (next.ask("mps"), next.ask("sms")),
        ("ok 1".into(), "ok 32".into())
    );
    assert!(!pipe.join("left").exists(), "the directory is another");
    let look = |uid: u32| {
        let mut ls = Command::new("ls");
        ls.arg(pipe.join("control"));
        as_user(ls, uid).output().expect("runs").status.success()
    };
    assert!(
        look(users.uid(1)) && !look(users.uid(0)),
        "it is the user's alone"
    );
}

/// H1: the kernel logs a crash with the name of the program, which its user chooses.
#[test]
fn no_gpu_is_sick_for_what_a_user_has_the_kernel_log() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = dir.path().join("kmsg");
    let own = nix::sys::stat::Mode::S_IRUSR | nix::sys::stat::Mode::S_IWUSR;
    nix::unistd::mkfifo(&log, own).expect("a pipe");
    let station = station_with(|o| {
        o.tick = "0.1s".to_owned();
        o.driver_config = format!("kernel-log = {log:?}\n");
    });
    let bus = |gpu: usize| support::board(&station).snapshot().gpus[gpu].pci_bus;
    let xid = |gpu: usize| {
        format!(
            "NVRM: Xid (PCI:0000:{:02x}:00): 79, GPU has fallen off the bus.",
            bus(gpu)
        )
    };
    let mut pipe = std::fs::File::options()
        .write(true)
        .open(&log)
        .expect("opens");
    // The log line of a segfault of a program with that name; one written by a user (facility 1); and a name of 15
    // letters that begins like the driver's line.
    let forged = [
        format!(
            "6,1,2,-;x {}[7314]: segfault at 0 ip 0 sp 0 error 4 in x {}[1132,1000]\n",
            &xid(0)[..13],
            xid(0)
        ),
        format!("14,1,2,-;{}\n", xid(1)),
        format!(
            "6,1,2,-;NVRM: Xid (PCI:[7314]: segfault at 0 in {}[1132]\n",
            xid(2)
        ),
    ];
    for line in &forged {
        pipe.write_all(line.as_bytes()).expect("written");
    }
    // A line of the driver comes through, with NVML's report: nothing is wrong with that GPU.
    pipe.write_all(format!("3,1,2,-;{}\n", xid(3)).as_bytes())
        .expect("written");
    let health = |gpu: usize| station.snapshot().expect("served").gpus[gpu].health.clone();
    until("the driver's own line is seen", SOON, || {
        health(3).filter(|h| !h.xids.is_empty())
    });
    for gpu in 0..3 {
        let seen = health(gpu).expect("known");
        assert_eq!(
            (seen.grade, seen.xids.len()),
            (Grade::Good, 0),
            "GPU {gpu}: {seen:?}"
        );
    }
    until(
        "a GPU that NVML finds well is not sick by the log alone",
        SOON,
        || health(3).filter(|h| h.grade == Grade::Warned),
    );
}

/// H2: opening a file on which a member has a lease waits for 45 seconds.
#[test]
fn a_member_does_not_keep_the_service_from_starting() {
    root!("a claim of a user, and the start of the service");
    let users = Users::make();
    let mut station = station();
    let script = r#"use POSIX; $SIG{IO} = "IGNORE"; $| = 1;
        for (1..3) {
            my $fd = syscall(319, my $name = "gshare-usage:$ENV{GSHARE_CLAIM_ID}:GPU-x", 2);
            open(my $look, "<", "/proc/self/fd/$fd") or die "open: $!";
            POSIX::close($fd);
            fcntl($look, 1024, 0) or die "lease: $!";
            push @kept, $look;
        }
        print "ready\n"; sleep 1000"#;
    let mut command = claim_as(
        &station,
        users.uid(0),
        &["-g", "0.1"],
        &["perl", "-e", script],
    );
    let mut hostile = Raw::spawn(&mut command);
    assert_eq!(hostile.line(), "ready");
    station.stop_service(Signal::SIGKILL).expect("killed");
    let began = Instant::now();
    station
        .start_service()
        .expect("the service starts whatever its members hold");
    assert!(
        began.elapsed() < Duration::from_secs(8),
        "{:?}",
        began.elapsed()
    );
    let snapshot = station.snapshot().expect("served");
    assert!(claim_of(&snapshot, hostile.pid()).is_some());
}

/// M4: root in a container, or below a claim, is not the machine's root.
#[test]
fn root_in_a_container_or_in_a_claim_is_no_administrator() {
    root!("namespaces and another user's claim");
    let users = Users::make();
    let station = station();
    let gshare = station.command();
    let mut container = station.client_environment(Command::new("unshare"));
    container
        .args(["-m", "-p", "-f", "--mount-proc"])
        .arg(gshare.get_program());
    container.args(["admin", "drain", "1"]);
    let refused = container.output().expect("runs");
    assert!(!drained(&station, 1), "{}", text(&refused));
    assert_eq!(refused.status.code(), Some(77), "{}", text(&refused));
    assert!(text(&refused).contains("container"), "{}", text(&refused));

    let mut ada = member_as(&station, users.uid(0), &["-g", "0.25"]);
    let bob = member_as(&station, users.uid(1), &["-g", "0.25", "--name", "bobs"]);
    let cgroup = std::fs::read_to_string(format!("/proc/{}/cgroup", ada.pid())).expect("read");
    let mount = Mount::find().expect("mounted");
    let dir = v2_path(&cgroup)
        .and_then(|path| mount.dir_of(path))
        .expect("shown");
    let inside = |words: &[&str]| {
        let mut sh = station.client_environment(Command::new("sh"));
        sh.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""]);
        sh.arg(&dir).arg(gshare.get_program()).args(words);
        sh.output().expect("runs")
    };
    for words in [["admin", "drain", "1"].as_slice(), &["release", "bobs"]] {
        let refused = inside(words);
        assert_eq!(
            refused.status.code(),
            Some(77),
            "{words:?}: {}",
            text(&refused)
        );
    }
    assert!(!drained(&station, 1));
    let snapshot = station.snapshot().expect("served");
    assert!(claim_of(&snapshot, bob.pid()).is_some());
    // Root in it may do what the claim's owner may: their own claim is theirs.
    let own = inside(&["release", "--all"]);
    assert!(own.status.success(), "{}", text(&own));
    until("the claim ends", SOON, || {
        ada.child.try_wait().ok().flatten()
    });
}

/// A process of a user in a namespace of theirs, under another of their uids in /etc/subuid.
fn as_subordinate(mut command: Command, maker: u32, first: u32, uid: u32) -> Command {
    let mut inside = Command::new("unshare");
    let script =
        "echo ready >&2; read go; exec setpriv --reuid 5 --regid 5 --clear-groups -- \"$@\"";
    inside.args(["-U", "sh", "-c", script, "sh"]);
    inside.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        inside.env(name, value.unwrap_or_default());
    }
    command = if maker == 0 {
        inside
    } else {
        as_user(inside, maker)
    };
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.env("TEST_MAP", format!("0 {uid} 1\n1 {first} 60000\n"));
    command
}

/// Starts it and writes its maps, as newuidmap would.
fn start_mapped(mut command: Command) -> Child {
    let map = command.get_envs().find(|(name, _)| *name == "TEST_MAP");
    let map = map.and_then(|(_, map)| map).expect("set").to_owned();
    let mut child = command.spawn().expect("starts");
    let mut ready = [0; 6];
    Read::read_exact(child.stderr.as_mut().expect("piped"), &mut ready).expect("ready");
    for file in ["uid_map", "gid_map"] {
        std::fs::write(
            format!("/proc/{}/{file}", child.id()),
            map.as_encoded_bytes(),
        )
        .expect("mapped");
    }
    child
        .stdin
        .take()
        .expect("piped")
        .write_all(b"go\n")
        .expect("goes on");
    child
}

/// H6: one person with a range in /etc/subuid was 65,536 users.
#[test]
fn a_user_is_one_user_under_all_their_subordinate_numbers() {
    root!("accounts and their namespaces");
    let users = Users::make();
    let first = 700_000_000 + 100_000 * (std::process::id() % 30_000);
    account(
        "usermod",
        &[
            "--add-subuids",
            &format!("{first}-{}", first + 65_535),
            users.name(0),
        ],
    );
    let station = station();
    let claim = |flags: &[&str]| {
        let mut claim = station.command();
        claim
            .args(["claim", "-q"])
            .args(flags)
            .args(["--", "sleep", "1000"]);
        claim
    };
    let listed = |what: &str, pid: u32| {
        until(what, SOON, || {
            let snapshot = station.snapshot().ok()?;
            claim_of(&snapshot, pid).map(|c| c.uid)
        })
    };
    let (uid, more) = (users.uid(0), ["-g", "0.1"]);
    let mut inside = start_mapped(as_subordinate(claim(&more), uid, first, uid));
    assert_eq!(listed("from the user's namespace", inside.id()), uid);
    // Through a program of theirs with the set-user-ID bit, that uid also appears outside of every namespace.
    let mut bare = as_user(claim(&more), first + 7).spawn().expect("starts");
    assert_eq!(listed("by the number alone", bare.id()), uid);
    // A namespace made by root, as container daemons do: the range determines the owner.
    let mut daemons = start_mapped(as_subordinate(claim(&more), 0, first, 0));
    assert_eq!(listed("from a namespace of root's", daemons.id()), uid);
    let nobodys = start_mapped(as_subordinate(claim(&more), 0, first + 80_000, 0));
    let refused = nobodys.wait_with_output().expect("ends");
    assert_eq!(refused.status.code(), Some(77), "{}", text(&refused));
    end([&mut inside, &mut bare, &mut daemons]);
}

/// M2: whether a kernel counted as shut down revealed the existence of files to anybody.
#[test]
fn files_of_users_are_looked_at_with_their_rights() {
    root!("a user, and a directory that is closed to them");
    let users = Users::make();
    let station = station();
    let hidden = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(&hidden, std::fs::Permissions::from_mode(0o700)).expect("closed");
    std::fs::write(hidden.path().join("exists"), "").expect("written");
    let open = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o755)).expect("open");
    let script = r#"use IO::Socket::UNIX; my ($path, $file, $id) = @ARGV;
        my $s = IO::Socket::UNIX->new($path) or die; $s->autoflush(1);
        print $s qq({"gshare":PROTO}\n); <$s>;
        print $s qq({"op":"claim","lazy":true,"gpus_milli":100,"name":"$id","kernel":{"id":"$id","connection":"$file"}}\n);
        my $answer = <$s>; die $answer unless $answer =~ /granted/;"#;
    let script = script.replace("PROTO", &gshare_proto::PROTOCOL.to_string());
    let kernel = |name: &str, file: &Path| {
        let mut perl = Command::new("perl");
        perl.args(["-e", &script])
            .arg(station.socket())
            .arg(file)
            .arg(name);
        let said = as_user(perl, users.uid(0)).output().expect("runs");
        assert!(said.status.success(), "{}", text(&said));
    };
    kernel("seen", &hidden.path().join("exists"));
    kernel("unseen", &hidden.path().join("absent"));
    kernel("gone", &open.path().join("absent"));
    let names = || -> Vec<String> {
        let claims = station.snapshot().expect("served").claims;
        claims.into_iter().filter_map(|c| c.name).collect()
    };
    // A missing file, if its user can see that, means a kernel that was shut down.
    until("the user's own is seen to be gone", SOON, || {
        !names().contains(&"gone".to_owned())
    });
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(names(), ["seen", "unseen"], "root looked, and told");
}

/// A claim bypassed the limits of a batch job or a container.
#[test]
fn a_claim_is_no_way_out_of_a_job_or_a_container() {
    root!("cgroups of other managers");
    let users = Users::make();
    let station = station();
    let uid = users.uid(0);
    let program = station.command().get_program().to_owned();
    let gshare = program.to_str().expect("a path").to_owned();
    let mut hold = station.command();
    hold.args(["claim", "-g", "0.1", "--hold", "--short"]);
    let held = as_user(hold, uid).output().expect("runs");
    let held = text(&held).trim().to_owned();
    let id = "2fc357eaad8073846b15c56af2de29d80f3718942bfce637d2529d59a1a78bb5";
    let container = format!("libpod-{id}.scope/container");
    for (below, what) in [
        ("slurmstepd.scope/job_7/step_0", "a job of Slurm"),
        (container.as_str(), "a container"),
    ] {
        let others = Others::make(below);
        for words in [
            vec!["claim", "-g", "0.1", "--", "cat", "/proc/self/cgroup"],
            vec![
                "claim",
                "-g",
                "0.1",
                "--lazy",
                "--",
                "cat",
                "/proc/self/cgroup",
            ],
            vec!["claim", "-g", "0.1", "--dry-run", "--", "true"],
            vec!["join", &held, "--", "cat", "/proc/self/cgroup"],
        ] {
            let all = [&[gshare.as_str()], words.as_slice()].concat();
            let refused = others.run(&station, uid, &all).output().expect("runs");
            let said = text(&refused);
            assert_eq!(refused.status.code(), Some(77), "{what} {words:?}: {said}");
            has_all(&said, &[what, "hint: "]);
        }
        // A program there stays there, whoever names it.
        let mut inside = others.run(&station, uid, &["sleep", "1000"]);
        let mut inside = inside.spawn().expect("starts");
        let proc = format!("/proc/{}", inside.id());
        let is_theirs = || std::fs::metadata(&proc).is_ok_and(|m| m.uid() == uid);
        until("it is in, and theirs", SOON, || {
            others.has(inside.id()) && is_theirs()
        });
        let mut adopt = station.command();
        adopt.args(["adopt", &inside.id().to_string(), "-g", "0.1"]);
        for adopt in [as_user(adopt, uid), {
            let mut adopt = station.command();
            adopt.args(["adopt", &inside.id().to_string(), "-g", "0.1"]);
            adopt
        }] {
            let mut adopt = adopt;
            let refused = adopt.output().expect("runs");
            assert_eq!(refused.status.code(), Some(77), "{}", text(&refused));
            assert!(text(&refused).contains(what), "{}", text(&refused));
        }
        // Descendants of an adopted program move with it, but not out of there.
        let mut outside = as_user(
            {
                let mut sh = Command::new("sh");
                sh.args(["-c", "sleep 1000 & echo $!; wait"]);
                sh
            },
            uid,
        );
        let mut outside = outside.stdout(Stdio::piped()).spawn().expect("starts");
        let mut line = String::new();
        let pipe = outside.stdout.take().expect("piped");
        BufRead::read_line(&mut BufReader::new(pipe), &mut line).expect("read");
        let child: u32 = line.trim().parse().expect("a number");
        std::fs::write(others.0.join("cgroup.procs"), child.to_string()).expect("moved");
        let mut adopt = station.command();
        adopt.args(["adopt", &outside.id().to_string(), "-g", "0.1"]);
        let adopted = as_user(adopt, uid).output().expect("runs");
        assert!(adopted.status.success(), "{}", text(&adopted));
        assert!(others.has(child), "{what}: a child was taken out");
        end([&mut inside, &mut outside]);
    }
}

/// Root removes the package: links in the removed directories lead nowhere.
#[test]
fn the_package_removes_its_own_and_follows_no_link() {
    root!("a mount namespace");
    let precious = tempfile::tempdir().expect("a directory");
    let file = precious.path().join("file");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/deb/postrm");
    for state in [
        "ln -s \"$0\" /var/lib/gshare",
        "mkdir /var/lib/gshare && ln -s \"$0\" /var/lib/gshare/link && ln \"$0/file\" /var/lib/gshare/hard || true",
    ] {
        std::fs::write(&file, "precious").expect("written");
        let words = format!(
            "set -e; for dir in /var/lib /etc; do mount -t tmpfs none $dir; done; mkdir /etc/gshare; {state}
             sh \"$1\" purge; ! test -e /etc/gshare; ! test -L /var/lib/gshare; ! test -e /var/lib/gshare"
        );
        let mut purge = Command::new("unshare");
        purge.args(["-m", "sh", "-c", &words]);
        let purged = purge.arg(precious.path()).arg(&script).output();
        let purged = purged.expect("runs");
        assert!(purged.status.success(), "{state}: {}", text(&purged));
        let left = std::fs::read_to_string(&file).expect("it is there");
        assert_eq!(left, "precious", "{state}");
    }
}

/// A restarted kernel is the new command of its claim, but does not leave its job.
#[test]
fn a_kernel_that_starts_again_takes_its_claim_and_leaves_no_job() {
    root!("cgroups of other managers");
    let users = Users::make();
    let station = station();
    let uid = users.uid(0);
    let program = station.command().get_program().to_owned();
    let gshare = program.to_str().expect("a path").to_owned();
    let file = "/tmp/kernel-again.json";
    let words = "kernel exec -g 0.1 -- sh -c".split(' ');
    let words: Vec<&str> = words.chain(["exec sleep 1000", file]).collect();
    let start = || -> Child {
        let mut kernel = station.command();
        kernel.args(&words);
        as_user(kernel, uid).spawn().expect("starts")
    };
    let command = || -> Option<(String, u32)> {
        let claims = station.snapshot().ok()?.claims;
        let [claim] = claims.as_slice() else {
            return None;
        };
        Some((claim.id.clone(), claim.pid?))
    };
    let mut first = start();
    let (id, _) = until("it has its claim", SOON, || {
        command().filter(|(_, pid)| *pid == first.id())
    });
    let others = Others::make("slurmstepd.scope/job_8/step_0");
    let all = [&[gshare.as_str()], words.as_slice()].concat();
    let mut in_job = others.run(&station, uid, &all);
    let mut in_job = in_job.stderr(Stdio::piped()).spawn().expect("starts");
    let mut said = String::new();
    let pipe = in_job.stderr.take().expect("piped");
    BufRead::read_line(&mut BufReader::new(pipe), &mut said).expect("read");
    has_all(&said, &["a job of Slurm"]);
    assert!(others.has(in_job.id()), "it was taken out of its job");
    assert_eq!(command(), Some((id.clone(), first.id())));
    let mut second = start();
    until("the new kernel has the claim", SOON, || {
        (command()? == (id.clone(), second.id())).then_some(())
    });
    end([&mut in_job, &mut first, &mut second]);
}

/// A process with this pid, run by that user; `None` if the kernel's next pid cannot be chosen.
fn with_number(pid: u32, uid: u32) -> Option<Child> {
    for _ in 0..200 {
        std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).ok()?;
        let mut sleep = Command::new("sleep");
        sleep.arg("1000");
        let mut child = as_user(sleep, uid).spawn().ok()?;
        if child.id() == pid {
            return Some(child);
        }
        end([&mut child]);
    }
    None
}

/// A connection outlives the process that made it, and its pid may be reused by the time the service looks, or when a
/// request comes.
#[test]
fn a_process_number_that_is_used_again_gives_nobody_somebody_elses_program() {
    let test = "a_process_number_that_is_used_again_gives_nobody_somebody_elses_program";
    root!(test);
    let users = Users::make();
    let station = station();
    let service = Pid::from_raw(station.service_pid().expect("runs").cast_signed());
    // Connects, leaves the connection to a child, and ends. The child sends its request on command.
    let script = r#"use IO::Socket::UNIX; $| = 1;
        my $s = IO::Socket::UNIX->new($ARGV[0]) or die; $s->autoflush(1);
        if (fork) { exit 0 }
        <STDIN>;
        print $s qq({"gshare":PROTO}\n); <$s>;
        print $s qq({"op":"claim","gpus_milli":100,"wait":"no","command":["x"]}\n);
        print scalar <$s>;"#;
    let script = script.replace("PROTO", &gshare_proto::PROTOCOL.to_string());
    for seen_before in [true, false] {
        if !seen_before {
            kill(service, Signal::SIGSTOP).expect("stopped");
        }
        let mut perl = Command::new("perl");
        perl.args(["-e", &script]).arg(station.socket());
        perl.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut asker = as_user(perl, users.uid(0)).spawn().expect("starts");
        let (pid, mut tell) = (asker.id(), asker.stdin.take().expect("piped"));
        let mut answer = asker.stdout.take().expect("piped");
        assert!(asker.wait().expect("reaped").success());
        if seen_before {
            // A connection older than a round trip has been inspected.
            station.snapshot().expect("served");
        }
        let Some(mut other) = with_number(pid, users.uid(1)) else {
            kill(service, Signal::SIGCONT).expect("goes on");
            println!("skipped: {test}: the number of a process cannot be chosen here");
            return;
        };
        let place = || std::fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("lives");
        let before = place();
        kill(service, Signal::SIGCONT).expect("goes on");
        writeln!(tell, "go").expect("told");
        let mut said = String::new();
        Read::read_to_string(&mut answer, &mut said).expect("read");
        assert_eq!(place(), before, "seen before: {seen_before}: {said}");
        let claims = station.snapshot().expect("served").claims;
        assert!(claims.iter().all(|c| c.pid != Some(pid)), "{claims:?}");
        let own = |uid| claims.iter().any(|c| c.uid == uid);
        assert!(!own(users.uid(1)), "{claims:?}");
        other.kill().expect("killed");
        other.wait().expect("reaped");
    }
}

/// Characters that must not reach a terminal: controls, and those that hide, join or reverse text.
fn steers(c: char) -> bool {
    (c.is_control() && c != '\n')
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
}

/// Names of every kind on the screen, in lists and in figures.
#[test]
fn hostile_texts_of_every_kind_are_shown_plain() {
    let station = station();
    let kinds = [
        "\u{1b}]0;owned\u{7}\u{1b}[2J\u{1b}[31m".to_owned(),
        "\u{9b}31m\u{85}\u{90}x\u{9c}".to_owned(),
        "a\u{202e}gnp.exe\u{202c}\u{2066}b\u{2069}".to_owned(),
        "z\u{200b}e\u{200d}r\u{feff}o\u{ad}".to_owned(),
        "line\r\nc99 ada 1.00 GPU 0\ttab\u{b}".to_owned(),
        "e\u{301}".repeat(2048),
        "x".repeat(4096),
        "\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467}漢字".to_owned(),
    ];
    // A claim with a command is moved into its claim: not this test.
    let relay = r#"use IO::Socket::UNIX; $| = 1; my $s = IO::Socket::UNIX->new($ARGV[0]) or die; $s->autoflush(1);
        while (my $line = <STDIN>) { print $s $line; print scalar <$s>; }"#;
    let mut perl = Command::new("perl");
    perl.args(["-e", relay]).arg(station.socket());
    let mut relay = Raw::spawn(&mut perl);
    let mut ask = |call: &Value| {
        let line = relay.ask(&call.to_string());
        serde_json::from_str::<Value>(&line).expect("JSON")
    };
    ask(&serde_json::json!({ "gshare": gshare_proto::PROTOCOL }));
    let mut held = 0;
    for kind in &kinds {
        for more in [
            serde_json::json!({"name": kind}),
            serde_json::json!({"command": [kind, "-m", kind]}),
            serde_json::json!({"command": ["python", format!("{kind}.py")]}),
            serde_json::json!({"models": [kind]}),
            serde_json::json!({"project": kind}),
            serde_json::json!({"lazy": true, "command": ["k"], "kernel": {"id": kind, "connection": format!("/tmp/{kind}")}}),
        ] {
            let mut claim =
                serde_json::json!({"op": "claim", "gpus_milli": 20, "hold": true, "wait": "no"});
            let (all, fields) = (claim.as_object_mut(), more.as_object());
            all.expect("an object")
                .extend(fields.expect("an object").clone());
            held += usize::from(ask(&claim)["reply"] == "granted");
        }
    }
    assert!(held >= 24, "{held} were granted");
    let first = station.snapshot().expect("served").claims[0].id.clone();
    for words in [
        &["ps"][..],
        &["ps", "--all"],
        &["queue"],
        &["log", &first],
        &["why", &first],
        &["report"],
        &["report", "--by", "claim"],
        &["top", "--once", "--screen", "1", "--size", "200x60"],
        &["top", "--once", "--screen", "2", "--size", "200x60"],
        &["top", "--once", "--screen", "3", "--size", "80x24"],
        &["top", "--once", "--screen", "4", "--size", "80x24"],
        &["doctor"],
    ] {
        let shown = station.command().args(words).output().expect("runs");
        let shown = text(&shown);
        let found: Vec<char> = shown.chars().filter(|c| steers(*c)).collect();
        assert!(found.is_empty(), "{words:?} shows {found:?}: {shown}");
        let longest = shown.lines().map(|l| l.chars().count()).max();
        assert!(
            longest.unwrap_or(0) < 1000,
            "{words:?}: a line of {longest:?}"
        );
    }
}

/// An NVML with hostile names: the simulated one with this function in front of it.
const HOSTILE_NVML: &str = r#"
#include <stdio.h>
static int calls;
int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    if (calls++ % 2) snprintf(name, length, "\xff\xfe not a text");
    else snprintf(name, length, "\x1b]0;owned\a\x1b[2J\xe2\x80\xae../../x\xe2\x80\x8b\n%0200d", 0);
    return 0;
}
int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    snprintf(version, length, "1\x1b[31m\xe2\x80\xae%0200d", 0);
    return 0;
}
"#;

/// Names that NVML gives GPUs, on the screen, in lists and among the figures.
#[test]
fn hostile_names_from_nvml_are_shown_plain() {
    let mut station = station_with(|o| o.config = "[metrics]\nlisten = \"127.0.0.1:0\"\n".into());
    let source = station.dir().join("nvml.c");
    std::fs::write(&source, HOSTILE_NVML).expect("written");
    let lib = station.sim_dir().join("lib");
    let hostile = lib.join("hostile.so");
    let mut gcc = Command::new("gcc");
    gcc.args(["-shared", "-fPIC", "-Wl,--no-as-needed", "-o"]);
    gcc.arg(&hostile).arg(&source);
    gcc.arg(lib.join("libnvidia-ml.so.1"));
    gcc.arg(format!("-Wl,-rpath,{}", lib.display()));
    let Ok(built) = gcc.output() else {
        println!("skipped: hostile_names_from_nvml_are_shown_plain needs gcc");
        return;
    };
    assert!(built.status.success(), "{}", text(&built));
    station.stop_service(Signal::SIGTERM).expect("stopped");
    let config = station.dir().join("gshare.toml");
    let before = std::fs::read_to_string(&config).expect("read");
    let own = format!("{:?}", lib.join("libnvidia-ml.so.1"));
    has_all(&before, &[&own]);
    std::fs::write(&config, before.replace(&own, &format!("{hostile:?}"))).expect("written");
    station.start_service().expect("started");
    let gpus = station.snapshot().expect("served").gpus;
    let names: Vec<_> = gpus.into_iter().map(|gpu| gpu.model).collect();
    let odd = |name: &String| name.starts_with("?]0;owned??[2J???/??/x??000") && name.len() <= 96;
    assert!(names.iter().any(odd), "{names:?}");
    for words in [
        &["ps", "--all"][..],
        &["status"],
        &["status", "--json"],
        &["top", "--once", "--screen", "1", "--size", "200x60"],
        &["top", "--once", "--screen", "5", "--size", "80x24"],
        &["top", "--plain", "--for", "1s"],
        &["doctor"],
    ] {
        let mut command = station.command();
        let shown = command.args(words).stdin(Stdio::null()).output();
        let shown = text(&shown.expect("runs"));
        let found: Vec<char> = shown.chars().filter(|c| steers(*c)).collect();
        assert!(found.is_empty(), "{words:?} shows {found:?}: {shown}");
    }
    let told = station.command().arg("doctor").output().expect("runs");
    let told = text(&told);
    let place = told
        .split("http://")
        .nth(1)
        .and_then(|s| s.split('/').next());
    let mut stream = std::net::TcpStream::connect(place.expect("an address")).expect("connects");
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\n\r\n")
        .expect("asked");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("a text");
    let page = page.replace('\r', "");
    let line = page
        .lines()
        .find(|line| line.contains("owned"))
        .expect("a name");
    assert!(!page.contains(steers), "{line}");
}

/// An upgrade finds directories of another user.
#[test]
fn a_state_directory_of_somebody_else_is_not_used() {
    root!("directories of another user");
    let users = Users::make();
    for name in ["state", "run"] {
        let mut station = station();
        station.stop_service(Signal::SIGTERM).expect("stopped");
        let dir = station.dir().join(name);
        std::os::unix::fs::chown(&dir, Some(users.uid(0)), None).expect("given");
        let error = station.start_service().expect_err("refused");
        let said = format!("{error:#}");
        assert!(said.contains("does not belong to uid 0"), "{name}: {said}");
        // Nor one that everybody can write.
        std::os::unix::fs::chown(&dir, Some(0), None).expect("taken");
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).expect("opened");
        let error = station.start_service().expect_err("refused");
        let said = format!("{error:#}");
        assert!(said.contains("is world-writable"), "{name}: {said}");
    }
}

// Several Unix users on one machine, as root: devices, ownership, membership.

fn run(command: &mut Command) -> Output {
    command.output().expect("runs")
}

/// Opens each stand-in node in a claim and prints what the kernel says.
fn open_nodes(station: &Station, uid: u32, gpu: &str) -> Vec<String> {
    let script = "for n in 0 1 2 3 ctl; do (exec 3<$0/nvidia$n) 2>&1 | sed \"s/.*: /$n /\"; done";
    let mut command = station.command();
    command
        .args("claim -q -g 0.1 --gpu-ids".split(' '))
        .args([gpu, "--", "sh", "-c", script])
        .arg(station.sim_dir().join("dev"));
    let output = run(&mut as_user(command, uid));
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(str::to_owned)
        .collect()
}

#[test]
fn a_member_opens_its_own_gpu_only_also_after_the_service_was_killed() {
    root!("a_member_opens_its_own_gpu_only_also_after_the_service_was_killed");
    let users = Users::make();
    let mut station = station();
    let expect = |gpu: usize| -> Vec<String> {
        let mut lines: Vec<String> = (0..4)
            .map(|n| format!("{n} {}", if n == gpu { OPEN } else { DENIED }))
            .collect();
        lines.push(format!("ctl {OPEN}"));
        lines
    };
    assert_eq!(open_nodes(&station, users.uid(0), "1"), expect(1));
    assert_eq!(open_nodes(&station, users.uid(1), "3"), expect(3));

    // A shell that lives through the death of the service tries before and after.
    let mut command = station.command();
    let script = "while read n; do (exec 3<$0/nvidia$n) 2>&1 | sed \"s/.*: //\"; done";
    command
        .args("claim -q -g 0.1 --gpu-ids 2 -- sh -c".split(' '))
        .arg(script)
        .arg(station.sim_dir().join("dev"));
    let mut shell = Raw::spawn(&mut as_user(command, users.uid(2)));
    for round in ["before", "after", "again"] {
        assert_eq!(shell.ask("0"), DENIED, "{round}");
        assert_eq!(shell.ask("2"), OPEN, "{round}");
        match round {
            "before" => station.stop_service(Signal::SIGKILL).expect("killed"),
            "after" => station.start_service().expect("starts again"),
            _ => {}
        }
    }
}

#[test]
fn a_claim_is_its_owners_alone() {
    root!("a_claim_is_its_owners_alone");
    let users = Users::make();
    let station = station();
    let mut owned = member_as(&station, users.uid(0), &["-g", "0.25", "--name", "mine"]);
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
    // `release --all` of another user changes nothing, and neither does a false environment.
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
    let snapshot = until("it is seen outside", SOON, || {
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
    let status = until("the member ends", SOON, || {
        owned.child.try_wait().ok().flatten()
    });
    assert!(!status.success());
    until("the claim is gone", SOON, || {
        let claims = station.snapshot().ok()?.claims;
        (!claims.iter().any(|c| c.id == id)).then_some(())
    });
}

/// As after `su`: the terminal belongs to the login user, the programs on it to another.
#[test]
fn who_came_by_su_reads_it_on_the_terminal_that_he_came_by_if_his_programs_write_there() {
    let name =
        "who_came_by_su_reads_it_on_the_terminal_that_he_came_by_if_his_programs_write_there";
    root!(name);
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
    // Like `su -c`: a session of its own, with a terminal only as its streams.
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
    all_ended(&station);
    assert!(!apart.text().contains("killed"), "{}", apart.text());
}

/// On a file server that maps root to nobody (NFS with root_squash) root cannot read users' homes.
#[test]
fn a_home_that_root_cannot_read_is_no_hindrance() {
    root!("a_home_that_root_cannot_read_is_no_hindrance");
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
    // Root without the right to bypass permissions.
    let squashed = |program: &Path| {
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
    let mut service = service.stderr(Stdio::null()).spawn().expect("starts");
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

// One user against the others: their input is bounded, and so is what is stored of it.

/// A user without an account, who floods.
const FLOODER: u32 = 60_601;

/// A connection that speaks the wire as text.
struct Wire(BufReader<UnixStream>);

impl Wire {
    fn open(station: &Station) -> Self {
        let mut stream = UnixStream::connect(station.socket()).expect("connects");
        let timeout = Some(Duration::from_secs(60));
        stream.set_read_timeout(timeout).expect("set");
        stream.write_all(b"{\"gshare\":1}\n").expect("greets");
        let mut wire = Self(BufReader::new(stream));
        assert_eq!(wire.hear()["reply"], "hello");
        wire
    }

    fn say(&mut self, call: &Value) {
        let line = format!("{call}\n");
        self.0.get_mut().write_all(line.as_bytes()).expect("says");
    }

    fn hear(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("an answer");
        serde_json::from_str(&line).expect("JSON")
    }

    fn ask(&mut self, call: &Value) -> Value {
        self.say(call);
        self.hear()
    }
}

/// The flood of that name in `gshare bench abuse`, by another user if this is root.
fn flood(station: &Station, kind: &str, seconds: u32) -> Child {
    let mut command = Command::new(station.program());
    command.args(["__bench-abuse", kind]).arg(station.socket());
    command.arg(seconds.to_string()).current_dir("/");
    if nix::unistd::Uid::effective().is_root() {
        command.uid(FLOODER).gid(FLOODER);
    }
    command.spawn().expect("starts")
}

fn flooded(station: &Station, kind: &str, seconds: u32) {
    let status = flood(station, kind, seconds).wait().expect("ends");
    assert!(status.success(), "{kind}: {status}");
}

fn resident_mib(station: &Station) -> u64 {
    let pid = station.service_pid().expect("runs");
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("read");
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let kib = line.expect("a line").trim().trim_end_matches(" kB");
    kib.parse::<u64>().expect("a number") >> 10
}

#[test]
fn what_one_user_claims_and_ends_does_not_fill_the_journal() {
    let station = station();
    flooded(&station, "claims", 4);
    let journal = station.dir().join("state/gshare.db");
    let mib = journal.metadata().expect("is there").len() >> 20;
    assert!(mib < 4, "the journal has {mib} MiB");
}

#[test]
fn texts_of_clients_are_bounded_when_they_come_in() {
    let station = station();
    let mut wire = Wire::open(&station);
    let claim = |more: Value| {
        let mut claim = json!({"op": "claim", "gpus_milli": 100, "hold": true, "wait": "no"});
        let fields = claim.as_object_mut().expect("an object");
        fields.extend(more.as_object().expect("an object").clone());
        claim
    };
    for (more, word) in [
        (
            json!({"kernel": {"id": "k".repeat(65), "connection": "/k"}}),
            "bad_request",
        ),
        (
            json!({"kernel": {"id": "k", "connection": "/k".repeat(3000)}}),
            "bad_request",
        ),
        (json!({"models": vec![""; 10_000]}), "bad_request"),
        (json!({"gpu_ids": ["0".repeat(300)]}), "bad_request"),
        (json!({"class": "x".repeat(10_000)}), "bad_request"),
        (json!({"lease_s": 0}), "usage"),
        (json!({"lease_s": u64::MAX}), "usage"),
        (json!({"mem": 1}), "usage"),
    ] {
        let answer = wire.ask(&claim(more.clone()));
        let text: String = more.to_string().chars().take(60).collect();
        assert_eq!(answer["code"], word, "{text}: {answer}");
        let message = answer["message"].as_str().unwrap_or_default();
        assert!(message.len() < 300, "{message}");
    }
    // Long command lines are cut, not refused: they are for display.
    let granted = wire.ask(&claim(json!({"mem_limit": u64::MAX})));
    assert_eq!(granted["reply"], "granted", "{granted}");
    let whole = wire.ask(&claim(json!({"gpus_milli": 2000})));
    assert_eq!(whole["reply"], "granted", "{whole}");
    let long =
        json!({"gpus_milli": 2000, "wait": "forever", "command": vec!["x".repeat(1000); 200]});
    let queued = wire.ask(&claim(long));
    assert_eq!(queued["reply"], "queued", "{queued}");
    let snapshot = station.snapshot().expect("answers");
    let text = serde_json::to_string(&snapshot.queue).expect("JSON");
    assert!(text.len() < 8192, "{text}");
    let part = &snapshot.claims[0].gpus[0];
    let gpu = &snapshot.gpus[part.gpu as usize];
    assert!(part.mem_limit <= gpu.mem_total.expect("known"), "{part:?}");
}

/// Number of claims that wait at once; a user may have 512.
const WAITING: usize = 480;

/// Bytes that the service has written, to files and connections.
fn written(station: &Station) -> u64 {
    let pid = station.service_pid().expect("runs");
    let text = std::fs::read_to_string(format!("/proc/{pid}/io")).expect("read");
    let line = text.lines().find_map(|l| l.strip_prefix("wchar: "));
    line.expect("a line").parse().expect("a number")
}

#[test]
fn claims_that_wait_go_in_one_step_when_their_connection_does() {
    let station = station();
    let mut wire = Wire::open(&station);
    let held = json!({"op": "claim", "gpus_milli": 2000, "hold": true});
    for _ in 0..2 {
        assert_eq!(wire.ask(&held)["reply"], "granted");
    }
    // A client that does not read is not read either.
    let mut answers = wire.0.get_ref().try_clone().expect("cloned");
    std::thread::spawn(move || std::io::copy(&mut answers, &mut std::io::sink()));
    for n in 0..WAITING {
        wire.say(
            &json!({"op": "claim", "gpus_milli": 2000, "wait": "forever",
            "name": format!("w{n}"), "command": vec!["x".repeat(255); 64]}),
        );
    }
    until("all wait", Duration::from_secs(120), || {
        let queue = station.snapshot().expect("answers").queue.len();
        queue == WAITING
    });
    let mut other = Wire::open(&station);
    let before = written(&station);
    let gone = wire.0.get_ref().shutdown(std::net::Shutdown::Both);
    gone.expect("closed");
    let begun = Instant::now();
    let mut longest = Duration::ZERO;
    while begun.elapsed() < Duration::from_secs(30) {
        let asked = Instant::now();
        let answer = other.ask(&json!({"op": "lease", "pid": 1, "start_ticks": 1}));
        longest = longest.max(asked.elapsed());
        assert_eq!(answer["reply"], "lease", "{answer}");
        if station.snapshot().expect("answers").queue.is_empty() {
            break;
        }
    }
    assert!(longest < Duration::from_millis(500), "stood {longest:?}");
    assert!(station.snapshot().expect("answers").queue.is_empty());
    // Each is 16 KiB in the journal: rewriting all remaining ones for each that ends would be gigabytes.
    let mib = (written(&station) - before) >> 20;
    assert!(mib < 64, "{mib} MiB were written");
}

#[test]
fn half_lines_on_thousands_of_connections_cost_little() {
    let station = station();
    let before = resident_mib(&station);
    let mut child = flood(&station, "half lines", 6);
    let mut most = 0;
    while child.try_wait().expect("looked").is_none() {
        most = most.max(resident_mib(&station));
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(most < before + 48, "{before} -> {most} MiB");
}

#[test]
fn others_see_the_program_and_its_script_but_no_further_arguments() {
    root!("others_see_the_program_and_its_script_but_no_further_arguments");
    // Without `names = "all"` even these are hidden: `others_see_program_and_script_and_owners_all` in
    // src/daemon/viewer.rs.
    let station = station_with(|o| o.config = "[privacy]\nnames = \"all\"\n".to_owned());
    let mut command = station.command();
    command
        .args("claim -q -g 0.1 -- sh -c".split(' '))
        .args(["sleep 60", "t.py"]);
    command.args(["--api-key=SECRET123", "private-rate"]);
    let mut child = command.spawn().expect("starts");
    until("it runs", SOON, || {
        let claims = station.snapshot().expect("answers").claims;
        !claims.is_empty()
    });
    let own = serde_json::to_string(&station.snapshot().expect("answers")).expect("JSON");
    assert!(
        own.contains("private-rate") && !own.contains("SECRET123"),
        "{own}"
    );
    let mut command = station.command();
    command.args(["ps", "--json"]).uid(FLOODER).gid(FLOODER);
    let seen = command.output().expect("runs");
    let seen = String::from_utf8_lossy(&seen.stdout);
    let _ = child.kill();
    let _ = child.wait();
    has_all(&seen, &["\"sh\""]);
    for word in ["SECRET123", "private-rate"] {
        assert!(!seen.contains(word), "{word}: {seen}");
    }
}

/// Files below a path in which one of these words stands.
fn files_with(path: &Path, words: &[&str]) -> Vec<String> {
    let kind = path.symlink_metadata().expect("is there").file_type();
    if kind.is_dir() {
        let entries = path.read_dir().expect("read").flatten();
        return entries.flat_map(|e| files_with(&e.path(), words)).collect();
    }
    let bytes = std::fs::read(path).ok().filter(|_| kind.is_file());
    let text = bytes.map(|b| String::from_utf8_lossy(&b).into_owned());
    let has = |word: &&&str| text.as_ref().is_some_and(|text| text.contains(**word));
    let found = words.iter().find(has);
    found
        .map(|word| format!("{word}: {}", path.display()))
        .into_iter()
        .collect()
}

#[test]
fn no_command_line_and_no_directory_is_on_disk() {
    let mut station = station_with(|o| o.gpus.truncate(1));
    let home = tempfile::Builder::new().prefix("secret-dir").tempdir();
    let home = home.expect("made");
    let connection = home.path().join("kernel-0b1c.json");
    let kernel = format!("cat; : -f {}", connection.display());
    let starts: [(&str, &[&str]); 3] = [
        (
            "claim -q -g 0.5 -- bash -ec",
            &["cat; : /x/y=3 secret-word", "--data=secret-word"],
        ),
        ("kernel exec -g 0.5 -- sh -c", &[&kernel]),
        ("claim -q -g 1 -- ./train.sh secret-word --bs=3", &[]),
    ];
    let script = home.path().join("train.sh");
    std::fs::write(&script, "#!/bin/sh\n").expect("written");
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).expect("set");
    let mut running = Vec::new();
    for (n, (start, words)) in starts.iter().enumerate() {
        let mut command = station.command();
        command.args(start.split(' ')).args(*words);
        command.current_dir(home.path()).stdin(Stdio::piped());
        running.push(command.spawn().expect("starts"));
        until("it runs or waits", SOON, || {
            let seen = station.snapshot().ok()?;
            (seen.claims.len() + seen.queue.len() > n).then_some(())
        });
    }
    let shown = |station: &Station| {
        until("all are shown", SOON, || {
            let seen = station.snapshot().ok()?;
            let all = seen.claims.len() == 2 && seen.queue.len() == 1;
            let lines = seen.claims.iter().map(|c| c.command.join(" "));
            let waits = seen.queue.iter().map(|q| q.what.clone());
            all.then(|| lines.chain(waits).collect::<Vec<String>>())
        })
    };
    let words = ["secret-word", "secret-dir"];
    let hidden = |station: &Station, when: &str| {
        let own = ["state", "run", "gshared.log"].map(|part| station.dir().join(part));
        let found: Vec<String> = own
            .iter()
            .flat_map(|part| files_with(part, &words))
            .collect();
        assert!(found.is_empty(), "{when}: {found:?}");
    };
    let before = shown(&station);
    assert!(
        before.iter().all(|line| line.contains("secret")),
        "{before:?}"
    );
    hidden(&station, "while they run and wait");
    support::restart(&mut station, Signal::SIGKILL);
    assert_eq!(
        shown(&station),
        before,
        "their owner sees the same as before"
    );
    hidden(&station, "after a restart");
    for child in &mut running {
        end([child]);
    }
    all_ended(&station);
    support::restart(&mut station, Signal::SIGTERM);
    hidden(&station, "after their end");
}

#[test]
fn the_log_of_a_claim_is_for_its_owner_and_root() {
    root!("the_log_of_a_claim_is_for_its_owner_and_root");
    let station = station();
    let log = |uid: u32| {
        let mut command = station.command();
        command.args(["log", "c1"]).uid(uid).gid(uid);
        command.output().expect("runs")
    };
    let mut command = station.command();
    command.args(["claim", "-q", "-g", "0.1", "--", "true"]);
    let ended = command.uid(FLOODER).gid(FLOODER).status();
    assert!(ended.expect("runs").success());
    for uid in [0, FLOODER] {
        assert!(log(uid).status.success(), "{:?}", log(uid));
    }
    let other = log(FLOODER + 1);
    let text = String::from_utf8_lossy(&other.stderr);
    assert_eq!(other.status.code(), Some(77), "{text}");
    assert_eq!(
        text.lines().next(),
        Some("gshare: c1 belongs to another user")
    );
    // Without an ID it lists the claims whose logs the caller may read.
    let mut command = station.command();
    command
        .args(["claim", "-q", "-g", "0.1"])
        .uid(FLOODER)
        .gid(FLOODER);
    assert_eq!(command.output().expect("runs").stdout, b"c2\n");
    for (uid, reads) in [(0, true), (FLOODER, true), (FLOODER + 1, false)] {
        let mut command = station.command();
        let list = command.arg("log").uid(uid).gid(uid).output().expect("runs");
        let list = String::from_utf8_lossy(&list.stdout).into_owned();
        let has = |id: &str| list.lines().any(|l| l.contains(id));
        assert_eq!([has("c1: "), has("c2 ")], [reads; 2], "{uid}: {list}");
    }
}

#[test]
fn answers_come_in_the_order_of_the_questions() {
    let station = station();
    let mut wire = Wire::open(&station);
    for _ in 0..20 {
        wire.say(&json!({"op": "report", "from_ms": 0}));
        wire.say(&json!({"op": "lease", "pid": 1, "start_ticks": 1}));
    }
    for n in 0..20 {
        let kinds = [wire.hear(), wire.hear()].map(|a| a["reply"].clone());
        assert_eq!(kinds, ["report", "lease"], "pair {n}");
    }
    // A claim with a size from the history is answered before the next request is read, too.
    for _ in 0..2 {
        wire.say(&json!({"op": "claim", "auto": true, "hold": true, "wait": "no"}));
        wire.say(&json!({"op": "lease", "pid": 1, "start_ticks": 1}));
    }
    for n in 0..2 {
        let kinds = [wire.hear(), wire.hear()].map(|a| a["reply"].clone());
        assert_eq!(kinds, ["granted", "lease"], "pair {n}");
    }
}

#[test]
fn notices_of_one_user_leave_room_for_those_of_others() {
    root!("notices_of_one_user_leave_room_for_those_of_others");
    let station = station();
    let mut wire = Wire::open(&station);
    let granted = wire.ask(&json!({"op": "claim", "gpus_milli": 100, "hold": true}));
    let id = granted["id"].as_str().expect("granted").to_owned();
    wire.ask(&json!({"op": "release", "id": id}));
    flooded(&station, "resizes", 2);
    let notices = station.snapshot().expect("answers").notices;
    let own = notices.iter().any(|n| n.claim.as_deref() == Some(&id));
    assert!(own, "{} notices, none of {id}", notices.len());
}

#[test]
fn a_process_waits_for_its_claim_a_few_times_only() {
    let station = station();
    let mut wire = Wire::open(&station);
    let held = json!({"op": "claim", "gpus_milli": 2000, "hold": true});
    let held = [wire.ask(&held), wire.ask(&held)].map(|granted| granted["id"].clone());
    let script = r#"use IO::Socket::UNIX; use IO::Select; $| = 1; my ($path, $abi) = @ARGV;
        sub line { my $s = IO::Socket::UNIX->new($path) or die; $s->autoflush(1); $s }
        my $own = line(); print $own qq({"gshare":1}\n); <$own>;
        print $own qq({"op":"claim","lazy":true,"gpus_milli":2000,"command":["x"],"wait":"forever"}\n);
        my $answer = <$own>; die $answer unless $answer =~ /granted/;
        my @lines = map { line() } 1..60;
        for (1..100) {
            for my $s (@lines) { print $s qq({"op":"register","abi":$abi,"pid":$$,"hint":null}\n); }
        }
        for my $s (@lines) { print $s qq({"op":"lease","pid":1,"start_ticks":1}\n); }
        for my $s (@lines) { while (<$s>) { last if /"reply":"lease"/ } }
        print "ready\n"; <STDIN>; my ($told, $all) = (0, IO::Select->new(@lines));
        while (my @ready = $all->can_read(3)) {
            for my $s (@ready) {
                my $n = sysread($s, my $text, 65536);
                if (!$n) { $all->remove($s); next }
                $told += () = $text =~ /"gpus"/g;
            }
        }
        print "$told\n"; <STDIN>"#;
    let mut perl = Command::new("perl");
    perl.args(["-e", script]).arg(station.socket());
    perl.arg(gshare_abi::ABI_VERSION.to_string());
    let mut process = Raw::spawn(&mut perl);
    assert_eq!(process.line(), "ready");
    // The GPUs become free, and all waiting claims are answered.
    let mut other = Wire::open(&station);
    let asked = Instant::now();
    for id in held {
        assert_ne!(
            wire.ask(&json!({"op": "release", "id": id}))["reply"],
            "error"
        );
    }
    other.ask(&json!({"op": "lease", "pid": 1, "start_ticks": 1}));
    let stood = asked.elapsed();
    process.tell("go");
    let answers: usize = process.line().parse().expect("a number");
    assert!((1..=16).contains(&answers), "{answers} answers");
    assert!(stood < Duration::from_millis(1000), "stood {stood:?}");
}

// The socket with strange clients: garbage, long lines, half lines, many idle connections, another protocol. Each
// gets an error or a clean close, and others are served meanwhile.

fn connect(station: &Station) -> UnixStream {
    let stream = UnixStream::connect(station.socket()).expect("connects");
    stream
        .set_read_timeout(Some(Duration::from_secs(15)))
        .expect("set");
    stream
}

/// Sends bytes, closes the sending side, and returns all that comes back.
fn say(station: &Station, bytes: &[u8]) -> String {
    let mut stream = connect(station);
    // The service may close before it has read all.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn served(station: &Station) {
    let started = Instant::now();
    assert_eq!(station.snapshot().expect("others are served").gpus.len(), 4);
    assert!(
        started.elapsed() < Duration::from_secs(2),
        "others are served in time"
    );
}

#[test]
fn garbage_gets_an_error_and_others_are_served() {
    let station = station();
    let check = |bytes: &[u8], expect: &str| {
        let answer = say(&station, bytes);
        assert!(
            answer.contains(expect),
            "{:?} -> {answer:?}",
            String::from_utf8_lossy(&bytes[..bytes.len().min(60)])
        );
        served(&station);
    };
    let hello = b"{\"gshare\":1}\n".to_vec();
    let after = |line: &[u8]| [hello.as_slice(), line].concat();
    check(b"\x00\xff\xfe garbage\n", "bad_request");
    check(b"GET / HTTP/1.1\r\n\r\n", "bad_request");
    check(b"{\"gshare\":0}\n", "\"code\":\"protocol\"");
    check(b"{\"gshare\":999}\n", "\"code\":\"protocol\"");
    check(&after(b"{\"op\":\"no such thing\"}\n"), "bad_request");
    check(
        &after(b"{\"op\":\"claim\",\"gpus_milli\":\"half\"}\n"),
        "bad_request",
    );
    check(
        &after(b"{\"op\":\"claim\",\"gpus_milli\":0}\n"),
        "\"code\":\"usage\"",
    );
    check(
        &after(b"{\"op\":\"claim\",\"gpus_milli\":4294967295}\n"),
        "\"code\":\"usage\"",
    );
    check(
        &after(b"{\"op\":\"release\",\"id\":\"c18446744073709551615\"}\n"),
        "no_claim",
    );
    check(&after(b"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\n"), "bad_request");
    // Members, also those of 0.1, which spoke JSON.
    let register = |abi: u32| {
        let asked = Register {
            abi,
            pid: 1,
            hint: Some(1),
            looks: false,
        };
        Request::Register(asked).bytes()
    };
    check(&register(gshare_abi::ABI_VERSION), "no_claim");
    check(&register(1), "versions differ: the service has 3");
    check(&register(3)[..20], "");
    let changed = |at: usize, to: u8| {
        let mut bytes = register(3);
        bytes[at] = to;
        bytes
    };
    check(&changed(3, b'x'), "does not start with a message header");
    check(
        &changed(4, 9),
        "it has version 9, but this program knows only version 2",
    );
    check(&changed(6, 99), "unknown request kind 99");
    check(&changed(9, 5), "longer than");
    check(b"{\"op\":\"register\",\"abi\":2}\n", "bad_request");
    check(
        b"{\"op\":\"register\",\"abi\":1,\"pid\":1,\"hint\":1}\n",
        "\"code\":\"abi\"",
    );
    check(
        b"{\"op\":\"register\",\"abi\":3,\"pid\":1,\"hint\":1}\n",
        "no_claim",
    );
}

#[test]
fn a_long_line_is_refused() {
    let station = station();
    let mut line = vec![b'x'; 1 << 20];
    line.push(b'\n');
    let answer = say(&station, &line);
    assert!(
        answer.is_empty() || answer.contains("longer than"),
        "{answer:?}"
    );
    let padded = format!("{{\"gshare\":1,\"client\":\"{}\"}}\n", "y".repeat(1 << 20));
    let answer = say(&station, padded.as_bytes());
    assert!(
        answer.is_empty() || answer.contains("longer than"),
        "{answer:?}"
    );
    served(&station);
}

#[test]
fn a_client_that_sends_byte_by_byte_is_understood() {
    let station = station();
    let mut stream = connect(&station);
    for byte in b"{\"gshare\":1}\n{\"op\":\"snapshot\"}\n" {
        stream.write_all(&[*byte]).expect("sent");
    }
    stream.shutdown(std::net::Shutdown::Write).expect("shut");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("answered");
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.contains("\"reply\":\"snapshot\""));
}

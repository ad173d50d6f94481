//! What a hostile user of the machine tries, as real accounts: each test is one attack that worked once.
//! SECURITY.md says what is promised; docs/security.md has the list.

use crate::support;

use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use gshare::station::Station;
use gshare_enforcer::cgroup::{Mount, v2_path};
use gshare_proto::Grade;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::others::Others;
use support::users::{Users, account, as_user, reachable};
use support::{Raw, claim_of, root, station, station_with, until};

const SOON: Duration = Duration::from_secs(10);

fn text(output: &Output) -> String {
    let both = [output.stdout.as_slice(), output.stderr.as_slice()];
    both.map(String::from_utf8_lossy).concat()
}

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
    if !root("claims of two users") {
        return;
    }
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
    // The daemon is started anew, where the links are.
    let mut daemon = Command::new("pkill");
    daemon.args(["-KILL", "-f", "-x"]);
    daemon.arg(format!(
        "{}/bin/nvidia-cuda-mps-control -f",
        station.sim_dir().display()
    ));
    daemon.status().expect("runs");
    until("the daemon is up again", Duration::from_secs(20), || {
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

    // The next user gets another directory, and a daemon that no one else has spoken to.
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
    // As a segfault of a program with that name was logged; as a user may write it (facility 1); and a name of 15
    // letters that begins as the driver does.
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
    // One that the driver has logged comes through, with what NVML says: nothing is wrong with that GPU.
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
    if !root("a claim of a user, and the start of the service") {
        return;
    }
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
    if !root("namespaces and another user's claim") {
        return;
    }
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
    // What the claim's owner may, root in it may: their own claim is theirs.
    let own = inside(&["release", "--all"]);
    assert!(own.status.success(), "{}", text(&own));
    until("the claim ends", SOON, || {
        ada.child.try_wait().ok().flatten()
    });
}

/// A process of a user in a namespace of theirs, under another of the numbers that /etc/subuid gives them.
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

/// H6: one person with a range of numbers in /etc/subuid was 65,536 users.
#[test]
fn a_user_is_one_user_under_all_their_subordinate_numbers() {
    if !root("accounts and their namespaces") {
        return;
    }
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
    // By a program of theirs with the set-user-ID bit, that number is met outside of every namespace too.
    let mut bare = as_user(claim(&more), first + 7).spawn().expect("starts");
    assert_eq!(listed("by the number alone", bare.id()), uid);
    // A namespace that root made, as container daemons do: the range says whose it is.
    let mut daemons = start_mapped(as_subordinate(claim(&more), 0, first, 0));
    assert_eq!(listed("from a namespace of root's", daemons.id()), uid);
    let nobodys = start_mapped(as_subordinate(claim(&more), 0, first + 80_000, 0));
    let refused = nobodys.wait_with_output().expect("ends");
    assert_eq!(refused.status.code(), Some(77), "{}", text(&refused));
    end([&mut inside, &mut bare, &mut daemons]);
}

/// M2: whether a kernel is told to have been shut down said which files there are, to anybody.
#[test]
fn files_of_users_are_looked_at_with_their_rights() {
    if !root("a user, and a directory that is closed to them") {
        return;
    }
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
    // A file that is not there, where its user can see that, is one of a kernel that was shut down.
    until("the user's own is seen to be gone", SOON, || {
        (!names().contains(&"gone".to_owned())).then_some(())
    });
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(names(), ["seen", "unseen"], "root looked, and told");
}

/// A claim was the way out of a batch job's or a container's limits.
#[test]
fn a_claim_is_no_way_out_of_a_job_or_a_container() {
    if !root("cgroups of other managers") {
        return;
    }
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
            assert!(said.contains(what) && said.contains("hint: "), "{said}");
        }
        // A program there stays there, whoever names it.
        let mut inside = others.run(&station, uid, &["sleep", "1000"]);
        let mut inside = inside.spawn().expect("starts");
        until("it is in", SOON, || others.has(inside.id()).then_some(()));
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
        // What an adopted program has started goes with it, but not out of there.
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
        std::io::BufRead::read_line(&mut std::io::BufReader::new(pipe), &mut line).expect("read");
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

/// The package is removed by root: links in what it removes lead nowhere.
#[test]
fn the_package_removes_its_own_and_follows_no_link() {
    if !root("a mount namespace") {
        return;
    }
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

/// A kernel that is started again is the new command of its claim, but no way out of a job.
#[test]
fn a_kernel_that_starts_again_takes_its_claim_and_leaves_no_job() {
    if !root("cgroups of other managers") {
        return;
    }
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
    std::io::BufRead::read_line(&mut std::io::BufReader::new(pipe), &mut said).expect("read");
    assert!(said.contains("a job of Slurm"), "{said}");
    assert!(others.has(in_job.id()), "it was taken out of its job");
    assert_eq!(command(), Some((id.clone(), first.id())));
    let mut second = start();
    until("the new kernel has the claim", SOON, || {
        (command()? == (id.clone(), second.id())).then_some(())
    });
    end([&mut in_job, &mut first, &mut second]);
}

/// A process with this number, run by that user; `None` where the kernel's next number cannot be chosen.
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

/// A connection outlives the process that made it, and the number of that process may be another's by the time the service
/// looks, or when something is asked.
#[test]
fn a_process_number_that_is_used_again_gives_nobody_somebody_elses_program() {
    let test = "a_process_number_that_is_used_again_gives_nobody_somebody_elses_program";
    if !root(test) {
        return;
    }
    let users = Users::make();
    let station = station();
    let service = Pid::from_raw(station.service_pid().expect("runs").cast_signed());
    // Connects, leaves the connection to a child, and ends. The child asks when it is told to.
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
            // A request that waits longer than a round trip has been looked at.
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

/// What may not reach a terminal: controls, and characters that hide, join or turn text around.
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
    // What claims with a command is moved into its claim: not this test.
    let relay = r#"use IO::Socket::UNIX; $| = 1; my $s = IO::Socket::UNIX->new($ARGV[0]) or die; $s->autoflush(1);
        while (my $line = <STDIN>) { print $s $line; print scalar <$s>; }"#;
    let mut perl = Command::new("perl");
    perl.args(["-e", relay]).arg(station.socket());
    let mut relay = Raw::spawn(&mut perl);
    let mut ask = |call: &serde_json::Value| {
        let line = relay.ask(&call.to_string());
        serde_json::from_str::<serde_json::Value>(&line).expect("JSON")
    };
    ask(&serde_json::json!({ "gshare": gshare_proto::PROTOCOL }));
    let mut held = 0;
    for kind in &kinds {
        for more in [
            serde_json::json!({"name": kind}),
            serde_json::json!({"command": [kind, "-m", kind]}),
            serde_json::json!({"cwd": format!("/tmp/{kind}"), "command": ["python", format!("{kind}.py")]}),
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

/// An NVML whose names are hostile: the simulated one with this function in front of it.
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
    assert!(before.contains(&own), "{before}");
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

/// An upgrade finds directories that are not the service's own.
#[test]
fn a_state_directory_of_somebody_else_is_not_used() {
    if !root("directories of another user") {
        return;
    }
    let users = Users::make();
    for name in ["state", "run"] {
        let mut station = station();
        station.stop_service(Signal::SIGTERM).expect("stopped");
        let dir = station.dir().join(name);
        std::os::unix::fs::chown(&dir, Some(users.uid(0)), None).expect("given");
        let error = station.start_service().expect_err("refused");
        let said = format!("{error:#}");
        assert!(said.contains("does not belong to uid 0"), "{name}: {said}");
        // Nor one that everybody can write to.
        std::os::unix::fs::chown(&dir, Some(0), None).expect("taken");
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).expect("opened");
        let error = station.start_service().expect_err("refused");
        let said = format!("{error:#}");
        assert!(said.contains("is world-writable"), "{name}: {said}");
    }
}

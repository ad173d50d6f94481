//! One user against the others: what they send is bounded when it comes in, and what is kept of it is bounded too.

use crate::support;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use gshare::station::Station;
use serde_json::{Value, json};
use support::{root, station};

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

/// The flood of that name in `gshare bench abuse`, by another user where this is root.
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
    // Long command lines are cut, not refused: they are for the screen.
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

/// Claims that wait at once; a user may have 512.
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
    support::until("all wait", Duration::from_secs(120), || {
        let queue = station.snapshot().expect("answers").queue.len();
        (queue == WAITING).then_some(())
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
    // Each is 16 KiB in the journal: to write all that still wait for each that goes are gigabytes.
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
    if !root("others_see_the_program_and_its_script_but_no_further_arguments") {
        return;
    }
    // Without `names = "all"` not even these: `others_see_program_and_script_and_owners_all` in src/daemon/viewer.rs.
    let station = support::station_with(|o| o.config = "[privacy]\nnames = \"all\"\n".to_owned());
    let mut command = station.command();
    command.args([
        "claim", "-q", "-g", "0.1", "--", "sh", "-c", "sleep 60", "t.py",
    ]);
    command.args(["--api-key=SECRET123", "private-rate"]);
    let mut child = command.spawn().expect("starts");
    support::until("it runs", Duration::from_secs(20), || {
        let claims = station.snapshot().expect("answers").claims;
        (!claims.is_empty()).then_some(())
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
    assert!(seen.contains("\"sh\""), "{seen}");
    for word in ["SECRET123", "private-rate", "\"cwd\": \"/"] {
        assert!(!seen.contains(word), "{word}: {seen}");
    }
}

#[test]
fn the_log_of_a_claim_is_for_its_owner_and_root() {
    if !root("the_log_of_a_claim_is_for_its_owner_and_root") {
        return;
    }
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
    // A claim whose size the history says is answered before the next one is read, too.
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
    if !root("notices_of_one_user_leave_room_for_those_of_others") {
        return;
    }
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
    let mut process = support::Raw::spawn(&mut perl);
    assert_eq!(process.line(), "ready");
    // The GPUs become free, and all that wait are answered.
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

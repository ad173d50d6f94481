//! Programs that made no claim themselves: shown, counted for their owners, adopted, kept from the GPUs, or covered
//! by a claim on behalf.

use crate::support;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use gshare::daemon::BEHALF_STEPS;
use gshare::station::Station;
use gshare_enforcer::cgroup::Mount;
use gshare_proto::{Caps, ClaimView, ClaimableView, Snapshot};
use nix::sys::signal::Signal;
use serde_json::Value;
use support::others::Others;
use support::terminal::Terminal;
use support::users::{Users, account, as_user, reachable};
use support::{
    DENIED, FULL, MIB, OPEN, Raw, SOON, all_ended, board, board_bytes, claim, claim_of, doctor_row,
    example, has_all, is_root, root, run, station, station_with, text, tried, until, words,
};

// GPU processes without a claim: shown, accounted to their owners, or kept from the GPUs.

fn with_policy(policy: &str) -> Station {
    station_with(|o| {
        o.tick = "0.1s".to_owned();
        o.config = format!("[claims]\nleftover-grace = \"1s\"\n[policy]\n{policy}");
    })
}

fn auto(station: &Station, pid: u32) -> Option<ClaimView> {
    let snapshot = station.snapshot().ok()?;
    claim_of(&snapshot, pid).filter(|c| c.adopted).cloned()
}

#[test]
fn what_runs_outside_claims_is_its_owners_claim_without_a_cap() {
    let station = with_policy("");
    let mut program = Raw::outside(&station);
    assert_eq!(program.ask(&format!("alloc {}", 4096 * MIB)), "ok 0");
    let pid = program.pid();
    let truth = board_bytes(&board(&station).snapshot(), 0, &[pid]);
    let claim = until("it is counted", SOON, || {
        auto(&station, pid).filter(|c| c.gpus[0].mem_used == Some(truth))
    });
    assert_eq!(
        (claim.caps, claim.state_text.as_str()),
        (Caps::None, "no claim")
    );
    assert_eq!(claim.uid, nix::unistd::Uid::effective().as_raw());
    assert_eq!(
        (
            claim.gpus.len(),
            claim.gpus[0].mem_request,
            claim.gpus[0].sm_request
        ),
        (1, truth, 0.0)
    );
    let snapshot = station.snapshot().expect("served");
    assert!(snapshot.unclaimed.is_empty());
    let user = snapshot
        .users
        .iter()
        .find(|u| u.uid == claim.uid)
        .expect("listed");
    assert_eq!((user.claims, user.mem_used), (0, Some(truth)));
    let (code, list) = tried(&station, &["ps"]);
    let row = list
        .lines()
        .find(|l| l.starts_with(&claim.id))
        .expect("listed");
    assert!(
        code == Some(0) && row.contains("no claim") && row.contains("4."),
        "{list}"
    );

    // The waiting user is told which programs hold the room.
    let (code, why) = tried(
        &station,
        &words("claim --nonblock -g 1 --gpu-mem 22G --gpu-ids 0 -- true"),
    );
    assert!(
        code == Some(75)
            && why.contains(&format!("held by {} (", claim.id))
            && why.contains("no claim)"),
        "{why}"
    );

    // It cannot be released by command: it ends with the process, at once.
    let (code, why) = tried(&station, &["release", &claim.id]);
    assert_eq!(code, Some(75), "{why}");
    has_all(&why, &[&format!("process {pid}"), "gshare adopt"]);
    assert_eq!(program.finish(), Some(0));
    all_ended(&station);
}

#[test]
fn an_auto_claim_keeps_its_number_over_a_restart_and_ends_when_its_process_joins() {
    let mut station = with_policy("");
    let program = Raw::outside(&station);
    let pid = program.pid();
    let first = until("it is counted", SOON, || auto(&station, pid));
    support::restart(&mut station, Signal::SIGKILL);
    let again = until("it is counted again", SOON, || auto(&station, pid));
    assert_eq!(
        (again.id, again.since_ms),
        (first.id.clone(), first.since_ms)
    );
    // One that ended without a service is over.
    station.stop_service(Signal::SIGKILL).expect("killed");
    assert_eq!(program.finish(), Some(0));
    station.start_service().expect("starts again");
    assert_eq!(station.snapshot().expect("served").claims, []);
    let next = Raw::outside(&station);
    let claim = until("the next is counted", SOON, || auto(&station, next.pid()));
    assert_ne!(claim.id, first.id, "a number is never given twice");
}

#[test]
fn observe_only_shows() {
    let station = with_policy("unclaimed = \"observe\"\n");
    let program = Raw::outside(&station);
    let snapshot = until("it is shown", SOON, || {
        let snapshot = station.snapshot().ok()?;
        (snapshot.unclaimed.len() == 1).then_some(snapshot)
    });
    assert_eq!(snapshot.unclaimed[0].pid, program.pid());
    assert_eq!(snapshot.claims, []);
}

#[test]
fn a_gpu_that_a_program_without_a_claim_uses_is_no_whole_one_and_goes_last() {
    let station = with_policy("unclaimed = \"observe\"\n");
    let before = station.snapshot().expect("served").claimable_now;
    let mut program = Raw::outside(&station);
    assert!(
        program
            .ask(&format!("alloc {}", 8192 * MIB))
            .starts_with("ok")
    );
    let room = until("it is counted", SOON, || {
        let now = station.snapshot().ok()?.claimable_now;
        (now != before).then_some(now).flatten()
    });
    let whole = |of: &ClaimableView| of.models.iter().map(|m| m.whole).sum::<u32>();
    assert_eq!(whole(&room) + 1, whole(&before.expect("served")));
    let one = run(
        &station,
        &["claim", "-g", "1", "--model", "4090", "--dry-run"],
    );
    assert!(
        text(&one).contains("the compute of GPU 1"),
        "{}",
        text(&one)
    );
}

#[test]
fn the_services_own_measurement_is_nobodys_use() {
    let station = with_policy("");
    until("a context was measured", SOON, || {
        let snapshot = station.snapshot().ok()?;
        assert!(
            snapshot.claims.is_empty() && snapshot.notices.is_empty(),
            "{snapshot:?}"
        );
        let log = std::fs::read_to_string(station.log_path()).ok()?;
        (log.matches("a CUDA context on GPU").count() >= 2).then_some(())
    });
}

#[test]
fn a_running_process_becomes_a_claim_and_is_told_what_that_means() {
    let station = with_policy("");
    let mut program = Raw::outside(&station);
    assert_eq!(program.ask(&format!("alloc {}", 4096 * MIB)), "ok 0");
    let pid = program.pid();
    let truth = board_bytes(&board(&station).snapshot(), 0, &[pid]);
    let auto = until("it is counted", SOON, || {
        auto(&station, pid).filter(|c| c.gpus[0].mem_used == Some(truth))
    });
    // The rest of the GPU is another's: its present memory needs no room.
    let rest = station.snapshot().expect("served").gpus[0]
        .mem_allocatable
        .expect("known");
    let neighbour = Raw::claim(
        &station,
        &[
            "-q",
            "-g",
            "0.5",
            "--gpu-mem",
            &format!("{}M", rest >> 20),
            "--gpu-ids",
            "0",
        ],
    );
    let (code, text) = tried(&station, &["adopt", &pid.to_string(), "--gpu-mem", "1G"]);
    assert!(
        code == Some(64) && text.contains("more than is claimed for it"),
        "{text}"
    );
    let (code, text) = tried(&station, &["adopt", &pid.to_string(), "--name", "mine"]);
    assert_eq!(code, Some(0), "{text}");
    for part in [
        "has a claim now",
        "counted:",
        "limit: none while it runs. To limit it, start it again in a claim",
        "what it starts belongs to",
    ] {
        has_all(&text, &[part]);
    }
    let snapshot = station.snapshot().expect("served");
    let claim = claim_of(&snapshot, pid).expect("listed");
    assert!(!claim.adopted && claim.id != auto.id && claim.name.as_deref() == Some("mine"));
    assert_eq!(claim.state_text, "no limits yet");
    let held = truth.next_multiple_of(2 * MIB);
    assert_eq!(
        (claim.gpus[0].mem_request, claim.gpus[0].mem_charge),
        (held, None)
    );
    assert_eq!(snapshot.claims.len(), 2, "its auto-claim is over");
    assert_eq!(snapshot.gpus[0].mem_unclaimed, Some(0));
    let (code, text) = tried(&station, &["adopt", &pid.to_string()]);
    assert!(code == Some(64) && text.contains("already"), "{text}");
    // It continues with its memory, and more than its claim is over-use.
    assert!(program.ask("launch 3").starts_with("ok"));
    assert_eq!(neighbour.finish(), Some(0));
    assert_eq!(program.ask(&format!("alloc {}", 1024 * MIB)), "ok 1");
    let claim = until("it is accused", SOON, || {
        let snapshot = station.snapshot().ok()?;
        claim_of(&snapshot, pid)
            .filter(|c| c.overuse.is_some())
            .cloned()
    });
    assert!(
        claim.state_text.starts_with("over-use: 51"),
        "half a gibibyte is tolerated: {}",
        claim.state_text
    );
    assert_eq!(program.finish(), Some(0));
    all_ended(&station);
}

#[test]
fn a_process_on_a_gpu_that_others_have_in_full_is_adopted_and_over_its_limit() {
    let station = with_policy("");
    // All of its memory and SMs, and all of its SMs.
    for size in [&["-g", "1"][..], &["-g", "1", "--gpu-mem", "2G"]] {
        let neighbour = Raw::claim(&station, &[&["-q", "--gpu-ids", "0"], size].concat());
        let mut program = Raw::outside(&station);
        assert_eq!(program.ask(&format!("alloc {}", 4096 * MIB)), "ok 0");
        let pid = program.pid();
        until("it is counted", SOON, || auto(&station, pid));
        let (code, text) = tried(&station, &["adopt", &pid.to_string()]);
        assert!(
            code == Some(0) && text.contains("other claims hold all of GPU 0: c"),
            "{text}"
        );
        let view = || {
            let claim = claim(&station, pid);
            (claim.id.clone(), claim.state_text.clone())
        };
        let (id, state) = view();
        assert_eq!(state, "over its limit");
        let (_, list) = tried(&station, &["ps"]);
        let row = list.lines().find(|l| l.starts_with(&format!("{id} ")));
        assert!(
            row.is_some_and(|row| row.contains("over its limit")),
            "{list}"
        );
        let (_, why) = tried(&station, &["why", &id]);
        has_all(
            &why,
            &["keeps what it has there, but nothing there is kept for it"],
        );
        assert!(program.ask("launch 1").starts_with("ok"));
        assert_eq!(neighbour.finish(), Some(0));
        until("there is room for it", SOON, || view().1 == "no limits yet");
        // From then on its part is reserved: 2 GiB are free, but not all SMs.
        let all = [
            &["claim", "-q", "--nonblock", "--gpu-ids", "0"],
            size,
            &["--", "true"],
        ]
        .concat();
        until("its part is its own", SOON, || {
            tried(&station, &all).0 == Some(75)
        });
        assert_eq!(program.finish(), Some(0));
        all_ended(&station);
    }
}

#[test]
fn an_adopted_process_opens_no_other_gpu_and_neither_does_what_it_starts() {
    root!("an_adopted_process_opens_no_other_gpu_and_neither_does_what_it_starts");
    for strict in [false, true] {
        let station = station_with(|o| {
            o.tick = "0.1s".to_owned();
            o.strict = strict;
        });
        adopts_and_restricts(&station);
    }
}

fn adopts_and_restricts(station: &Station) {
    let script = "exec 4<$0/null; sleep 600 & while read n; do (exec 3<$0/nvidia$n) 2>&1 | sed 's/.*: //'; done";
    let dev = station.sim_dir().join("dev");
    std::os::unix::fs::symlink("/dev/null", dev.join("null")).expect("linked");
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(&dev);
    let mut shell = Raw::spawn(&mut command);
    assert_eq!(shell.ask("1"), "No such device or address");
    let pid = shell.pid().to_string();
    let (code, text) = tried(station, &["adopt", &pid]);
    assert!(
        code == Some(64) && text.contains("does not use a GPU yet"),
        "{text}"
    );
    let (code, text) = tried(station, &["adopt", &pid, "-g", "0.25", "--json"]);
    assert_eq!(code, Some(0), "{text}");
    let claim = claim(station, shell.pid());
    let gpu = claim.gpus[0].gpu;
    assert_eq!(claim.members.len(), 2, "its child is moved too");
    for other in 0..4 {
        let wanted = if other == gpu {
            "No such device or address"
        } else {
            "Operation not permitted"
        };
        assert_eq!(shell.ask(&other.to_string()), wanted);
    }
    let (code, text) = tried(station, &["release", &claim.id]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(shell.ask(&gpu.to_string()), "Operation not permitted");
    shell.kill();
}

#[test]
fn only_its_owner_and_root_make_a_process_a_claim() {
    root!("only_its_owner_and_root_make_a_process_a_claim");
    let station = with_policy("");
    let as_user = |uid: u32, words: &[&str]| {
        use std::os::unix::process::CommandExt;
        let mut command = station.command();
        command.args(words).uid(uid).gid(uid);
        let output = command.output().expect("runs");
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stderr));
        (output.status.code(), text)
    };
    let sleeper = |uid: u32| {
        use std::os::unix::process::CommandExt;
        Command::new("sleep")
            .arg("600")
            .uid(uid)
            .gid(uid)
            .spawn()
            .expect("starts")
    };
    let (ada, bob) = (61_301, 61_302);
    let (mut own, mut other) = (sleeper(ada), sleeper(bob));
    let (mine, theirs) = (own.id().to_string(), other.id().to_string());
    let (code, text) = as_user(ada, &["adopt", &theirs, "-g", "0.1"]);
    assert!(
        code == Some(77) && text.contains("belongs to 61302"),
        "{text}"
    );
    let (code, text) = as_user(ada, &["adopt", &mine, "-g", "0.1"]);
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = as_user(0, &["adopt", &theirs, "-g", "0.1"]);
    assert_eq!(code, Some(0), "{text}");
    let snapshot = station.snapshot().expect("served");
    let mut owners: Vec<u32> = snapshot.claims.iter().map(|c| c.uid).collect();
    owners.sort_unstable();
    assert_eq!(owners, [ada, bob], "a claim is its owner's, whoever asked");
    let (code, text) = as_user(ada, &["adopt", "999999999"]);
    assert!(
        code == Some(75) && text.contains("there is no process"),
        "{text}"
    );
    for child in [&mut own, &mut other] {
        child.kill().expect("killed");
        child.wait().expect("reaped");
    }
    all_ended(&station);
}

// `unclaimed = "deny"`: programs without a claim cannot open a GPU, claims and the graphical session can; with real
// users, real cgroups and device nodes without a driver.

/// Any user: no account is needed.
const UID: u32 = 61_234;

/// Top-level cgroups of a test, as on a machine with systemd.
struct Places {
    mount: Mount,
    name: String,
}

impl Places {
    fn make() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if !is_root("deny needs root and cgroups; it") {
            return None;
        }
        let mount = Mount::find().expect("mounted");
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let places = Self {
            mount,
            name: format!("gsdeny-{}-{n}", std::process::id()),
        };
        for below in [
            "user.slice",
            "user.slice/desk.scope",
            "user.slice/cron.service",
        ] {
            std::fs::create_dir_all(places.dir(below)).expect("made");
        }
        Some(places)
    }

    fn path(&self, below: &str) -> String {
        format!("/{}-{below}", self.name)
    }

    fn dir(&self, below: &str) -> PathBuf {
        self.mount.dir_of(&self.path(below)).expect("shown")
    }

    /// A command in one of the cgroups, as an ordinary user.
    fn command(&self, below: &str, station: &Station, words: &[&str]) -> Command {
        let script = "echo $$ > \"$0/cgroup.procs\" && exec setpriv --reuid \"$1\" --regid \"$1\" --clear-groups -- \
                      sh -c 'shift; exec \"$@\"' sh \"$@\"";
        let mut command = station.client_environment(Command::new("sh"));
        command.args(["-c", script]).arg(self.dir(below));
        command.arg(UID.to_string()).args(words).current_dir("/");
        command
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        let top = std::fs::read_dir(&self.mount.point)
            .into_iter()
            .flatten()
            .flatten();
        let own = |e: &std::fs::DirEntry| e.file_name().to_string_lossy().starts_with(&self.name);
        for entry in top.filter(own) {
            let _ = std::fs::write(entry.path().join("cgroup.kill"), "1");
            until("the cgroups are empty", SOON, || {
                let below = std::fs::read_dir(entry.path())
                    .into_iter()
                    .flatten()
                    .flatten();
                for e in below.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())) {
                    let _ = std::fs::remove_dir(e.path());
                }
                std::fs::remove_dir(entry.path()).is_ok() || !entry.path().exists()
            });
        }
    }
}

fn config(places: &Places, unclaimed: &str) -> String {
    format!(
        "[claims]\nleftover-grace = \"1s\"\n[policy]\nunclaimed = {unclaimed:?}\n\
         deny-cgroups = [{:?}, {:?}]\nexempt-cgroups = [{:?}]\n",
        places.path("user.slice"),
        places.path("machine*.slice"),
        places.path("user.slice/desk.scope"),
    )
}

fn denying(places: &Places, unclaimed: &str) -> Option<Station> {
    let station = station_with(|o| {
        o.tick = "0.1s".to_owned();
        o.config = config(places, unclaimed);
    });
    let served = station.snapshot().expect("served").service.expect("told");
    if !served.device_filter {
        println!("skipped: no device filter here");
        return None;
    }
    Some(station)
}

/// Prints the kernel's answer to an open of each node, then continues.
fn opening(station: &Station) -> String {
    let dev = station.sim_dir().join("dev");
    let nodes = ["nvidia0", "nvidia2", "nvidiactl", "nvidia-uvm"]
        .map(|n| dev.join(n).display().to_string());
    format!(
        "for n in {}; do (exec 3<$n) 2>&1 | sed 's/.*: //'; done",
        nodes.join(" ")
    )
}

fn answers(mut command: Command) -> Vec<String> {
    let output = command.output().expect("runs");
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    text.lines().map(str::to_owned).collect()
}

fn opens(places: &Places, below: &str, station: &Station) -> Vec<String> {
    answers(places.command(below, station, &["sh", "-c", &opening(station)]))
}

fn told(station: &Station, what: &str) -> Option<Snapshot> {
    let snapshot = station.snapshot().ok()?;
    let told = snapshot.notices.iter().any(|n| n.text.contains(what));
    told.then_some(snapshot)
}

/// A station where programs without a claim cannot open a GPU.
fn in_force() -> Option<(Places, Station)> {
    let places = Places::make()?;
    let station = denying(&places, "deny")?;
    until("it is in force", SOON, || {
        told(&station, "cannot open GPUs")
    });
    Some((places, station))
}

#[test]
fn programs_outside_claims_cannot_open_a_gpu_and_claims_and_the_desktop_can() {
    let Some((places, station)) = in_force() else {
        return;
    };
    assert_eq!(
        opens(&places, "user.slice", &station),
        [DENIED, DENIED, OPEN, OPEN]
    );
    assert_eq!(
        opens(&places, "user.slice/desk.scope", &station),
        [OPEN; 4],
        "the session"
    );
    // A claim made from there gets its size, and nothing else.
    let program = station.program().display().to_string();
    let script = opening(&station);
    let claim = [
        program.as_str(),
        "claim",
        "-q",
        "-g",
        "0.1",
        "--gpu-ids",
        "2",
        "--",
        "sh",
        "-c",
        &script,
    ];
    let claimed = answers(places.command("user.slice", &station, &claim));
    assert_eq!(claimed, [DENIED, OPEN, OPEN, OPEN]);
    // A CUDA program without a claim finds no device.
    let client = station.dir().join("bin/raw_client");
    support::copy_program(example("raw_client"), &client);
    let client = client.display().to_string();
    let said = answers(places.command("user.slice", &station, &[&client]));
    assert!(
        said[0].starts_with("error ") && !said[0].contains("ready"),
        "{said:?}"
    );
    // Neither a new session, nor namespaces, nor a cgroup namespace change a process's parent.
    let words = [
        "setsid", "-w", "unshare", "-Ur", "unshare", "-Cm", "sh", "-c", &script,
    ];
    let hidden = answers(places.command("user.slice", &station, &words));
    assert_eq!(hidden, [DENIED, DENIED, OPEN, OPEN]);

    let row = doctor_row(station.command(), "unclaimed use");
    assert_eq!(row["state"], "ok", "{row}");
    let detail = row["detail"].as_str().expect("text");
    has_all(detail, &["user.slice", "exempt: desk.scope"]);
}

#[test]
fn a_refusal_that_has_no_effect_here_is_said_with_its_cause() {
    let Some(places) = Places::make() else { return };
    let Some(mut station) = denying(&places, "auto") else {
        return;
    };
    let file = station.dir().join("gshare.toml");
    let text = std::fs::read_to_string(&file).expect("read");
    let nowhere = "deny-cgroups = [\"/absent-here.slice\"]\n#";
    let text = text.replace("unclaimed = \"auto\"", "unclaimed = \"deny\"");
    std::fs::write(&file, text.replace("deny-cgroups", nowhere)).expect("written");
    support::restart(&mut station, Signal::SIGTERM);
    let open = "stage 4 has no effect here, and programs without a claim can open the GPUs: no cgroup here";
    let said = until("it is said", SOON, || told(&station, open));
    let stage = said.service.and_then(|s| s.stage).expect("a stage");
    let stays = stage.no_effect.expect("said as long as it is so");
    assert!(
        stays.ends_with("then sudo systemctl reload gshared"),
        "{stays}"
    );
    let status = run(&station, &["status"]);
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(status.starts_with(&format!("! {stays}\n")), "{status}");
    let log = std::fs::read_to_string(station.log_path()).expect("a log");
    has_all(&log, &[&stays]);
    let row = doctor_row(station.command(), "unclaimed use");
    assert_ne!(row["state"], "ok", "{row}");
    assert_eq!(opens(&places, "user.slice", &station), [OPEN; 4]);
}

#[test]
fn a_refused_program_reads_on_its_terminal_what_to_type() {
    let Some((places, station)) = in_force() else {
        return;
    };
    let node = station.sim_dir().join("dev/nvidia2");
    let script = "for i in $(seq 20); do sh -c 'command exec 3<$1; sleep 0.5; : --lr 1' job \"$1\"; done; sleep 60";
    let node = node.display().to_string();
    let words = ["sh", "-c", script, "jobs", &node];
    let terminal = Terminal::start(&places.command("user.slice", &station, &words), 60, 200);
    let line = "opened GPU 2 without a claim and was refused. Start it with: gshare claim -- sh -c";
    terminal.shows(&["gshare: sh (", &format!(") of {UID} {line}")], SOON);
    let told = until("it is on the screen", SOON, || {
        told(
            &station,
            "without a claim and was refused: gshare claim -- sh",
        )
    });
    // Others see the program, but not its arguments.
    let told = told
        .notices
        .iter()
        .filter(|n| n.text.contains("was refused"));
    assert!(told.clone().all(|n| !n.text.contains("--lr")));
    assert!(told.count() <= 6, "a loop fills nobody's screen");
}

#[test]
fn the_users_of_a_container_are_told_as_the_one_who_has_their_numbers() {
    let Some((places, station)) = in_force() else {
        return;
    };
    let users = Users::make();
    let first = 1_000_000_000 + 100_000 * (std::process::id() % 10_000);
    let range = format!("{first}-{}", first + 65_535);
    account("usermod", &["--add-subuids", &range, users.name(0)]);
    let node = station.sim_dir().join("dev/nvidia2");
    for uid in first..first + 10 {
        let script = "echo $$ > \"$0/cgroup.procs\" && exec setpriv --reuid \"$1\" --regid \"$1\" --clear-groups \
                      sh -c 'command exec 3<\"$0\"; sleep 1' \"$2\"";
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(places.dir("user.slice"));
        let mut refused = command.arg(uid.to_string()).arg(&node).spawn().expect("sh");
        assert!(refused.wait().expect("ends").success());
    }
    let by = format!("of {} opened GPU 2 without a claim", users.name(0));
    let told = until("they are told", SOON, || {
        let notices = station.snapshot().ok()?.notices;
        let of: Vec<_> = notices
            .into_iter()
            .filter(|n| n.text.contains("was refused"))
            .collect();
        (of.len() >= 6).then_some(of)
    });
    assert_eq!(told.len(), 6, "{told:?}");
    assert!(told.iter().all(|n| n.text.contains(&by)), "{told:?}");
}

#[test]
fn stage_4_may_hold_for_single_gpus() {
    let Some(places) = Places::make() else { return };
    let Some(station) = denying(&places, "auto") else {
        return;
    };
    let stage = |words: &[&str]| {
        let output = station
            .command()
            .args(["admin", "stage"])
            .args(words)
            .output();
        assert!(
            output.as_ref().is_ok_and(|o| o.status.success()),
            "{output:?}"
        );
        opens(&places, "user.slice", &station)
    };
    assert_eq!(stage(&["3"]), [OPEN; 4]);
    assert_eq!(stage(&["4", "--gpus", "2"]), [OPEN, DENIED, OPEN, OPEN]);
    assert_eq!(stage(&["4", "--gpus", "0"]), [DENIED, DENIED, OPEN, OPEN]);
    assert_eq!(stage(&["3", "--gpus", "2"]), [DENIED, OPEN, OPEN, OPEN]);
    assert_eq!(stage(&["4"]), [DENIED, DENIED, OPEN, OPEN]);
    assert_eq!(stage(&["3"]), [OPEN; 4]);
}

#[test]
fn jobs_of_cron_are_covered_and_cgroups_that_come_later_too() {
    let Some((places, station)) = in_force() else {
        return;
    };
    // Like cron: root's daemon starts each job in a session of its own as its user.
    let job = format!(
        "echo $$ > {}/cgroup.procs; setsid -w setpriv --reuid {UID} --regid {UID} --clear-groups -- sh -c \"$1\" & wait",
        places.dir("user.slice/cron.service").display()
    );
    let mut cron = Command::new("sh");
    cron.args(["-c", &job, "sh", &opening(&station)])
        .process_group(0);
    assert_eq!(answers(cron), [DENIED, DENIED, OPEN, OPEN]);
    std::fs::create_dir(places.dir("machine7.slice")).expect("made");
    until("the new one is covered", SOON, || {
        opens(&places, "machine7.slice", &station) == [DENIED, DENIED, OPEN, OPEN]
    });
}

#[test]
fn it_outlives_the_service_and_ends_when_the_administrator_takes_it_back() {
    let Some((places, mut station)) = in_force() else {
        return;
    };
    station.stop_service(Signal::SIGKILL).expect("killed");
    assert_eq!(opens(&places, "user.slice", &station)[0], DENIED);
    station.start_service().expect("starts again");
    assert_eq!(opens(&places, "user.slice", &station)[0], DENIED);
    station.stop_service(Signal::SIGTERM).expect("stopped");
    assert_eq!(opens(&places, "user.slice", &station)[0], DENIED);
    let file = station.dir().join("gshare.toml");
    let text = std::fs::read_to_string(&file).expect("read");
    std::fs::write(
        &file,
        text.replace("unclaimed = \"deny\"", "unclaimed = \"adopt\""),
    )
    .expect("written");
    station.start_service().expect("starts again");
    until("it is lifted", SOON, || {
        opens(&places, "user.slice", &station) == [OPEN; 4]
    });
}

#[test]
fn what_runs_already_and_what_draws_lives_on() {
    let Some(places) = Places::make() else { return };
    let Some(mut station) = denying(&places, "adopt") else {
        return;
    };
    let copy = |name: &str| {
        let path = station.dir().join("bin").join(name);
        support::copy_program(example("raw_client"), &path);
        path.display().to_string()
    };
    let (client, server, desktop) = (copy("trainer"), copy("Xorg"), copy("gnome-shell"));
    let start =
        |below: &str, program: &str| Raw::start(places.command(below, &station, &[program]));
    let mut trainer = start("user.slice", &client);
    let mut server = start("user.slice/desk.scope", &server);
    let mut shell = start("user.slice/desk.scope", &desktop);
    let snapshot = until("all are seen", SOON, || {
        let snapshot = station.snapshot().ok()?;
        (snapshot.unclaimed.len() == 2 && snapshot.claims.len() == 1).then_some(snapshot)
    });
    assert!(
        snapshot.unclaimed.iter().all(|u| u.graphics),
        "what draws is exempt"
    );
    // Memory is reserved for the desktop on its GPU: its use of that does not count twice.
    let left = |gpu: usize| snapshot.gpus[gpu].mem_allocatable.expect("known");
    let trainer_used = claim_of(&snapshot, trainer.pid()).and_then(|c| c.gpus[0].mem_used);
    let held_back = left(1) - left(0) - trainer_used.expect("known");
    assert_eq!(held_back, 1 << 30, "1.5 GiB in place of 512 MiB");
    assert!(claim_of(&snapshot, trainer.pid()).is_some_and(|c| c.adopted && c.uid == UID));
    // The programs that it would stop now.
    let row = doctor_row(station.command(), "unclaimed use");
    let detail = row["detail"].as_str().expect("text");
    let trainer_named = format!("trainer of {UID} (pid {})", trainer.pid());
    has_all(
        detail,
        &[&format!("stage 4 would block now: {trainer_named}")],
    );
    assert!(
        !detail.contains("Xorg") && !detail.contains("gnome"),
        "{detail}"
    );
    let row = doctor_row(as_user(station.command(), UID + 1), "unclaimed use");
    let detail = row["detail"].as_str().expect("text");
    assert!(
        detail.contains(&format!("block now: a program of {UID}")) && !detail.contains("trainer"),
        "others' programs have no names: {detail}"
    );

    let file = station.dir().join("gshare.toml");
    let text = std::fs::read_to_string(&file).expect("read");
    let deny = text.replace("unclaimed = \"adopt\"", "unclaimed = \"deny\"");
    std::fs::write(&file, deny).expect("written");
    support::restart(&mut station, Signal::SIGTERM);
    until("it is in force", SOON, || {
        told(&station, "cannot open GPUs")
    });
    for client in [&mut trainer, &mut server, &mut shell] {
        assert_eq!(client.ask("alloc 4194304"), "ok 0");
        assert!(client.ask("launch 1").starts_with("ok"));
    }
    let row = doctor_row(station.command(), "unclaimed use");
    let detail = row["detail"].as_str().expect("text");
    has_all(
        detail,
        &[&format!("may run until they exit: {trainer_named}")],
    );
    // Once it has ended, doctor reports whom deny would have stopped.
    assert_eq!(trainer.finish(), Some(0));
    std::fs::write(&file, text).expect("written");
    support::restart(&mut station, Signal::SIGTERM);
    let row = doctor_row(station.command(), "unclaimed use");
    let detail = row["detail"].as_str().expect("text");
    has_all(
        detail,
        &[&format!("in the last 7 days: trainer of {UID} (1 run)")],
    );
}

#[test]
fn off_opens_the_gpus_to_programs_without_a_claim_with_the_service_and_without() {
    let Some((places, mut station)) = in_force() else {
        return;
    };
    let config = station.dir().join("gshare.toml").display().to_string();
    let admin = |station: &Station, word: &str| {
        let begun = Instant::now();
        let mut command = station.command();
        let output = command.args(["admin", word, "--config", &config]).output();
        let output = output.expect("runs");
        assert!(output.status.success(), "{output:?}");
        assert!(begun.elapsed() < Duration::from_secs(1), "{word}");
    };
    let open = |station: &Station| opens(&places, "user.slice", station) == [OPEN; 4];
    let closed = |station: &Station| {
        let shown = opens(&places, "user.slice", station);
        (shown == [DENIED, DENIED, OPEN, OPEN]).then_some(())
    };
    assert!(closed(&station).is_some());
    admin(&station, "off");
    assert!(open(&station), "the service serves");
    admin(&station, "on");
    until("it is in force again", SOON, || closed(&station));

    let pid = station.service_pid().expect("it runs").cast_signed();
    let pid = nix::unistd::Pid::from_raw(pid);
    nix::sys::signal::kill(pid, Signal::SIGSTOP).expect("stopped");
    assert!(closed(&station).is_some());
    admin(&station, "off");
    assert!(open(&station), "the service hangs");
    nix::sys::signal::kill(pid, Signal::SIGCONT).expect("goes on");
    until("the service follows", SOON, || {
        told(&station, "gshare is off")
    });
    assert!(open(&station));
    admin(&station, "on");
    until("it is in force again", SOON, || closed(&station));

    station.stop_service(Signal::SIGKILL).expect("killed");
    assert!(closed(&station).is_some(), "it outlives the service");
    admin(&station, "off");
    assert!(open(&station), "the service is dead");
    station.start_service().expect("starts again");
    until("it is off", SOON, || station.snapshot().ok()?.service?.off);
    assert!(open(&station));
    admin(&station, "on");
    until("it is in force again", SOON, || closed(&station));
}

// Claims on behalf: root claims for programs below a cgroup that gshare does not own, as a batch system or a hub
// would.

/// Checks its exit code; returns its output.
fn ends(output: &Output, code: i32) -> String {
    let said = text(output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    said
}

/// A job of another manager: the cgroup of a claim on behalf, and one below it with its programs.
struct Job {
    others: Others,
    uid: u32,
}

impl Job {
    fn new(uid: u32, name: &str) -> Self {
        let others = Others::make(&format!("slurmstepd.scope/{name}/step_0"));
        Self { others, uid }
    }

    fn cgroup(&self) -> &Path {
        self.others.0.parent().expect("the job's")
    }

    /// The arguments of the claim on its behalf.
    fn words(&self, name: &str, more: &[&str]) -> Vec<String> {
        let fixed = ["admin", "claim-for", "--user", &self.uid.to_string()].map(str::to_owned);
        let cgroup = self.cgroup().display().to_string();
        let named = ["--name", name, "--cgroup", &cgroup].map(str::to_owned);
        let more = more.iter().map(|w| (*w).to_owned());
        fixed.into_iter().chain(named).chain(more).collect()
    }

    fn claim(&self, station: &Station, name: &str, more: &[&str]) -> Output {
        let words = self.words(name, more);
        station.command().args(words).output().expect("gshare runs")
    }

    /// A command in it: `gshare` with these words, or another program.
    fn command(&self, station: &Station, uid: u32, words: &[&str]) -> Command {
        let program = station.program().display().to_string();
        let all = [&[program.as_str()], words].concat();
        self.others.run(station, uid, &all)
    }
}

fn claims(station: &Station) -> Vec<ClaimView> {
    station.snapshot().expect("served").claims
}

/// The kernel's answers when a program there opens the GPUs' nodes.
fn job_opens(job: &Job, station: &Station, gpus: &[u32]) -> Vec<String> {
    let node = |g: &u32| station.sim_dir().join(format!("dev/nvidia{g}"));
    let nodes: Vec<String> = gpus.iter().map(|g| node(g).display().to_string()).collect();
    let script = format!(
        "for n in {}; do (exec 3<$n) 2>&1 | sed 's/.*: //'; done",
        nodes.join(" ")
    );
    let mut sh = job.others.run(station, job.uid, &["sh", "-c", &script]);
    text(&sh.output().expect("runs"))
        .lines()
        .map(str::to_owned)
        .collect()
}

#[test]
fn a_claim_on_behalf_holds_what_runs_below_a_cgroup_and_leaves_it_where_it_is() {
    root!("claims on behalf");
    let users = Users::make();
    let (ada, bob) = (users.uid(0), users.uid(1));
    let mut station = station();
    let filtered = support::is_filtered(&station);
    let job = Job::new(ada, "job_7");
    let size = ["-g", "0.5", "--gpu-ids", "1", "--json"];

    // Only root; neither an administrator of a group nor the owner.
    let mut own = station.command();
    own.args(job.words("job-7", &size));
    let said = ends(&as_user(own, ada).output().expect("runs"), 77);
    has_all(&said, &["only root can make claims for others"]);
    let top = Mount::find().expect("mounted").point;
    let tree = format!("/{}", station.cgroup_root());
    for (path, why) in [
        ("relative", "absolute path"),
        ("/../x", "absolute path"),
        ("/tmp", "is not a cgroup"),
        (top.to_str().expect("a path"), "gshare's own cgroups"),
        (tree.as_str(), "gshare's own cgroups"),
    ] {
        let words = [
            "admin",
            "claim-for",
            "--user",
            "root",
            "--name",
            "x",
            "--cgroup",
            path,
        ];
        let said = ends(&run(&station, &words), 64);
        assert!(said.contains(why), "{path}: {said}");
    }

    let made = job.claim(&station, "job-7", &size);
    let granted: Value = serde_json::from_slice(&made.stdout).expect("JSON");
    let said = granted["message"].as_str().expect("a sentence");
    has_all(said, &["slurmstepd.scope/job_7"]);
    // The same name is the same claim; another request with that name, or for a part of its cgroup, is refused.
    let again = ends(&job.claim(&station, "job-7", &size), 0);
    assert!(
        again.contains("\"id\": \"c1\"") || again.contains("\"id\":\"c1\""),
        "{again}"
    );
    let other = ends(&job.claim(&station, "job-7", &["-g", "0.25"]), 75);
    has_all(&other, &["`job-7` already exists as c1"]);
    let below = ends(&job.claim(&station, "job-8", &["-g", "0.25"]), 75);
    has_all(&below, &["overlaps"]);
    assert_eq!(claims(&station).len(), 1);

    // A program there that claims joins, whatever it requests; its cgroup stays.
    let client = reachable(&station).display().to_string();
    let words = ["claim", "-g", "2", "--", client.as_str()];
    let mut joined = Raw::start(job.command(&station, ada, &words));
    assert!(job.others.has(joined.pid()), "it was not moved");
    let (_, total) = joined.info();
    let view = claims(&station).remove(0);
    assert_eq!((view.uid, view.name.as_deref()), (ada, Some("job-7")));
    assert_eq!(total, view.gpus[0].mem_limit);
    assert_eq!(view.members, [joined.pid()]);
    assert!(view.cgroup.is_some_and(|c| c.ends_with("job_7")));
    assert_eq!(joined.ask(&format!("alloc {}", total + 1)), FULL);
    // So does one that only has the environment from the answer.
    let mut plain = job.others.run(&station, ada, &[&client]);
    for pair in granted["env"].as_array().expect("a list") {
        plain.env(
            pair[0].as_str().expect("a name"),
            pair[1].as_str().expect("a value"),
        );
    }
    for pair in granted["env_prepend"].as_array().expect("a list") {
        let (name, dir) = (
            pair[0].as_str().expect("a name"),
            pair[1].as_str().expect("a value"),
        );
        let before = plain
            .get_envs()
            .find(|(n, _)| *n == name)
            .and_then(|(_, v)| v);
        let before = before
            .map(|v| v.to_string_lossy().into_owned())
            .unwrap_or_default();
        plain.env(name, format!("{dir}:{before}"));
    }
    let mut plain = Raw::start(plain);
    assert_eq!(plain.info().1, total);
    let dry = ["claim", "-g", "0.1", "--dry-run", "--", "true"];
    let said = ends(&job.command(&station, ada, &dry).output().expect("runs"), 0);
    has_all(&said, &["joins c1"]);
    if filtered {
        assert_eq!(
            job_opens(&job, &station, &[0, 1]),
            ["Operation not permitted", "No such device or address"]
        );
    }

    // Others are not part of it, neither from inside nor from outside; its owner cannot change it.
    let said = ends(
        &job.command(&station, bob, &["claim", "--", "true"])
            .output()
            .expect("runs"),
        77,
    );
    has_all(&said, &["belong to c1"]);
    let as_ada = |words: &[&str]| {
        let mut command = station.command();
        command.args(words);
        as_user(command, ada).output().expect("runs")
    };
    let said = ends(&as_ada(&["join", "job-7", "--", "true"]), 77);
    has_all(&said, &["is for the programs below"]);
    for words in [
        &["release", "job-7"][..],
        &["resize", "c1", "-g", "1"],
        &["suspend", "c1"],
    ] {
        let said = ends(&as_ada(words), 77);
        has_all(&said, &["only root can"]);
    }
    for word in ["suspend", "offload"] {
        let said = ends(&run(&station, &[word, "c1"]), 75);
        has_all(&said, &["which gshare does not move"]);
    }

    // A killed service knows it again, with its members and its cap.
    support::restart(&mut station, Signal::SIGKILL);
    assert_eq!(joined.ask(&format!("alloc {}", total + 1)), FULL);
    ends(&job.claim(&station, "job-7", &size), 0);
    let view = claims(&station).remove(0);
    assert_eq!(view.id, "c1");
    assert_eq!(joined.ask("launch 1"), "ok 1");

    // Killed by an administrator or released: the claim ends at once, and its programs get no signal.
    let said = ends(&run(&station, &["admin", "kill", "c1", "--grace", "0s"]), 0);
    has_all(&said, &["keep running: stop them"]);
    assert!(claims(&station).is_empty());
    assert_eq!(joined.ask("ping"), "ok pong");
    assert!(
        joined.ask("alloc 1048576").starts_with("error"),
        "it has no GPU"
    );
    assert!(job.others.has(joined.pid()) && job.others.has(plain.pid()));
    if filtered {
        assert_eq!(
            job_opens(&job, &station, &[0]),
            ["No such device or address"],
            "the filter is off"
        );
    }
    drop((joined, plain));
    ends(&job.claim(&station, "job-7", &size), 0);
    let said = ends(&run(&station, &["release", "job-7"]), 0);
    has_all(&said, &["released"]);
    assert!(claims(&station).is_empty());
}

#[test]
fn a_claim_on_behalf_waits_for_its_cgroup_outlives_its_programs_and_ends_with_the_cgroup() {
    root!("claims on behalf");
    let users = Users::some(1);
    let ada = users.uid(0);
    let station = station();
    let job = Job::new(ada, "job_8");
    let (step, cgroup) = (job.others.0.clone(), job.cgroup().to_owned());
    std::fs::remove_dir(&step)
        .and_then(|()| std::fs::remove_dir(&cgroup))
        .expect("removed");
    ends(&job.claim(&station, "job-8", &["-g", "0.5"]), 0);
    assert!(
        claims(&station)[0].gpus[0].mem_request > 0,
        "it holds its part"
    );
    std::fs::create_dir_all(&step).expect("made");
    let client = reachable(&station).display().to_string();
    let words = ["claim", "-q", "--", client.as_str()];
    let member = Raw::start(job.command(&station, ada, &words));
    until("it is a member", SOON, || {
        claims(&station)
            .first()
            .is_some_and(|c| c.members == [member.pid()])
    });
    assert_eq!(member.finish(), Some(0));
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(claims(&station).len(), 1, "empty is not gone");
    remove(&cgroup, &step);
    until("it ends with its cgroup", Duration::from_secs(2), || {
        claims(&station).is_empty()
    });
    let said = ends(&run(&station, &["log", "c1"]), 0);
    has_all(&said, &["its cgroup is gone"]);
}

fn remove(cgroup: &Path, step: &PathBuf) {
    until("they are empty", SOON, || std::fs::remove_dir(step).ok());
    std::fs::remove_dir(cgroup).expect("removed");
}

/// A caller that asks again after a death gets the same claim; a second release removes it and its filter.
#[test]
fn a_death_at_any_step_leaves_one_claim_on_behalf_or_none() {
    root!("claims on behalf");
    let users = Users::some(1);
    let ada = users.uid(0);
    let mut station = station();
    let job = Job::new(ada, "job_9");
    let filtered = support::is_filtered(&station);
    let of_grant = [
        "grant-decided",
        "grant-journaled",
        "grant-usage-page",
        "grant-told",
        "grant-heard",
    ];
    for step in BEHALF_STEPS.iter().chain(&of_grant) {
        let dies = |station: &mut Station| {
            station.stop_service(Signal::SIGTERM).expect("stopped");
            station
                .start_service_with(&["--die-at", step])
                .expect("starts");
        };
        let at_end = ["behalf-open", "behalf-ended"].contains(step);
        if !at_end {
            dies(&mut station);
        }
        let mut asks = station.command();
        asks.args(job.words("job-9", &["-g", "0.5", "--gpu-ids", "1"]));
        let asks = asks
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        let asks = asks.spawn().expect("gshare runs");
        if !at_end {
            until(step, SOON, || station.service_ended());
            station.start_service().expect("starts again");
        }
        ends(&asks.wait_with_output().expect("ends"), 0);
        let held = claims(&station);
        assert_eq!(held.len(), 1, "{step}: {held:?}");
        assert_eq!(held[0].name.as_deref(), Some("job-9"), "{step}");
        if filtered {
            assert_eq!(
                job_opens(&job, &station, &[0])[0],
                "Operation not permitted",
                "{step}"
            );
        }
        if at_end {
            dies(&mut station);
            run(&station, &["release", "job-9"]);
            until(step, SOON, || station.service_ended());
            station.start_service().expect("starts again");
        }
        run(&station, &["release", "job-9"]);
        assert!(claims(&station).is_empty(), "{step}");
        if filtered {
            assert_eq!(
                job_opens(&job, &station, &[0])[0],
                "No such device or address",
                "{step}"
            );
        }
    }
}

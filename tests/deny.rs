//! `unclaimed = "deny"`: programs outside claims cannot open a GPU, claims and the graphical session can; with real
//! users, real cgroups and device nodes that no driver stands behind.

use crate::support;

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use gshare::station::Station;
use gshare_enforcer::cgroup::Mount;
use gshare_proto::Snapshot;
use nix::sys::signal::Signal;
use support::terminal::Terminal;
use support::users::{Users, account};
use support::{Raw, claim_of, example, root, station_with, until};

const SOON: Duration = Duration::from_secs(10);
const DENIED: &str = "Operation not permitted";
/// The open reached the device, and no driver is there.
const OPEN: &str = "No such device or address";
/// Any user: accounts are not needed to be one.
const UID: u32 = 61_234;

/// Top-level cgroups of a test, as on a machine with systemd.
struct Places {
    mount: Mount,
    name: String,
}

impl Places {
    fn make() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if !root("deny needs root and cgroups; it") {
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
                let gone = std::fs::remove_dir(entry.path()).is_ok() || !entry.path().exists();
                gone.then_some(())
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

fn station(places: &Places, unclaimed: &str) -> Option<Station> {
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

/// Prints what the kernel says to an open of each node, then what runs on.
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

/// Where programs outside claims cannot open a GPU.
fn in_force() -> Option<(Places, Station)> {
    let places = Places::make()?;
    let station = station(&places, "deny")?;
    until("it is in force", SOON, || {
        told(&station, "cannot open GPUs")
    });
    Some((places, station))
}

fn doctor(station: &Station, row: &str) -> serde_json::Value {
    doctor_of(station, row, 0)
}

fn doctor_of(station: &Station, row: &str, uid: u32) -> serde_json::Value {
    let output = station
        .command()
        .args(["doctor", "--json"])
        .uid(uid)
        .gid(uid)
        .output()
        .expect("runs");
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let rows = value["checks"].as_array().expect("rows");
    rows.iter()
        .find(|r| r["name"] == row)
        .expect("a row")
        .clone()
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
    // A claim made from there gets what was claimed, and nothing else.
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
    // A CUDA program outside claims finds no device.
    let client = station.dir().join("bin/raw_client");
    support::copy_program(example("raw_client"), &client);
    let client = client.display().to_string();
    let said = answers(places.command("user.slice", &station, &[&client]));
    assert!(
        said[0].starts_with("error ") && !said[0].contains("ready"),
        "{said:?}"
    );
    // Neither a new session, nor namespaces of one's own, nor a cgroup namespace change whose child a process is.
    let words = [
        "setsid", "-w", "unshare", "-Ur", "unshare", "-Cm", "sh", "-c", &script,
    ];
    let hidden = answers(places.command("user.slice", &station, &words));
    assert_eq!(hidden, [DENIED, DENIED, OPEN, OPEN]);

    let row = doctor(&station, "unclaimed use");
    assert_eq!(row["state"], "ok", "{row}");
    let detail = row["detail"].as_str().expect("text");
    assert!(
        detail.contains("user.slice") && detail.contains("exempt: desk.scope"),
        "{detail}"
    );
}

#[test]
fn a_refusal_that_has_no_effect_here_is_said_with_its_cause() {
    let Some(places) = Places::make() else { return };
    let Some(mut station) = station(&places, "auto") else {
        return;
    };
    let file = station.dir().join("gshare.toml");
    let text = std::fs::read_to_string(&file).expect("read");
    let nowhere = "deny-cgroups = [\"/absent-here.slice\"]\n#";
    let text = text.replace("unclaimed = \"auto\"", "unclaimed = \"deny\"");
    std::fs::write(&file, text.replace("deny-cgroups", nowhere)).expect("written");
    station.stop_service(Signal::SIGTERM).expect("stopped");
    station.start_service().expect("it starts all the same");
    let open =
        "stage 4 has no effect here, programs without a claim can open the GPUs: no cgroup here";
    let said = until("it is said", SOON, || told(&station, open));
    let stage = said.service.and_then(|s| s.stage).expect("a stage");
    let stays = stage.no_effect.expect("said as long as it is so");
    assert!(
        stays.ends_with("then sudo systemctl reload gshared"),
        "{stays}"
    );
    let status = station.command().arg("status").output().expect("runs");
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(status.starts_with(&format!("! {stays}\n")), "{status}");
    let log = std::fs::read_to_string(station.log_path()).expect("a log");
    assert!(log.contains(&stays), "{log}");
    let row = doctor(&station, "unclaimed use");
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
    // Others see the program, and nothing of what it was started with.
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
    let Some(station) = station(&places, "auto") else {
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
    // As cron does it: root's daemon, which starts each job in a session of its own as its user.
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
        (opens(&places, "machine7.slice", &station) == [DENIED, DENIED, OPEN, OPEN]).then_some(())
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
        (opens(&places, "user.slice", &station) == [OPEN; 4]).then_some(())
    });
}

#[test]
fn what_runs_already_and_what_draws_lives_on() {
    let Some(places) = Places::make() else { return };
    let Some(mut station) = station(&places, "adopt") else {
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
    // The desktop's memory is held back on its GPU: what it uses of that does not count twice.
    let left = |gpu: usize| snapshot.gpus[gpu].mem_allocatable.expect("known");
    let trainer_used = claim_of(&snapshot, trainer.pid()).and_then(|c| c.gpus[0].mem_used);
    let held_back = left(1) - left(0) - trainer_used.expect("known");
    assert_eq!(held_back, 1 << 30, "1.5 GiB in place of 512 MiB");
    assert!(claim_of(&snapshot, trainer.pid()).is_some_and(|c| c.adopted && c.uid == UID));
    // The programs that it would stop now.
    let row = doctor(&station, "unclaimed use");
    let detail = row["detail"].as_str().expect("text");
    let trainer_named = format!("trainer of {UID} (pid {})", trainer.pid());
    assert!(
        detail.contains(&format!("deny would stop now: {trainer_named}")),
        "{detail}"
    );
    assert!(
        !detail.contains("Xorg") && !detail.contains("gnome"),
        "{detail}"
    );
    let row = doctor_of(&station, "unclaimed use", UID + 1);
    let detail = row["detail"].as_str().expect("text");
    assert!(
        detail.contains(&format!("stop now: a program of {UID}")) && !detail.contains("trainer"),
        "others' programs have no names: {detail}"
    );

    let file = station.dir().join("gshare.toml");
    let text = std::fs::read_to_string(&file).expect("read");
    let deny = text.replace("unclaimed = \"adopt\"", "unclaimed = \"deny\"");
    std::fs::write(&file, deny).expect("written");
    station.stop_service(Signal::SIGTERM).expect("stopped");
    station.start_service().expect("starts again");
    until("it is in force", SOON, || {
        told(&station, "cannot open GPUs")
    });
    for client in [&mut trainer, &mut server, &mut shell] {
        assert_eq!(client.ask("alloc 4194304"), "ok 0");
        assert!(client.ask("launch 1").starts_with("ok"));
    }
    let row = doctor(&station, "unclaimed use");
    let detail = row["detail"].as_str().expect("text");
    assert!(
        detail.contains(&format!("may run until they exit: {trainer_named}")),
        "{detail}"
    );
    // Once it has ended, it is known whom deny would have stopped.
    assert_eq!(trainer.finish(), Some(0));
    std::fs::write(&file, text).expect("written");
    station.stop_service(Signal::SIGTERM).expect("stopped");
    station.start_service().expect("starts again");
    let row = doctor(&station, "unclaimed use");
    let detail = row["detail"].as_str().expect("text");
    assert!(
        detail.contains(&format!("in the last 7 days: trainer of {UID} (1 run)")),
        "{detail}"
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

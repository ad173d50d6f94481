//! Claims on behalf: root claims for what runs below a cgroup that gshare does not own, as a batch system or a hub would.

use crate::support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use gshare::daemon::BEHALF_STEPS;
use gshare::station::Station;
use gshare_enforcer::cgroup::Mount;
use gshare_proto::ClaimView;
use nix::sys::signal::Signal;
use serde_json::Value;
use support::others::Others;
use support::users::{Users, as_user, reachable};
use support::{Raw, root, station, until};

const SOON: Duration = Duration::from_secs(10);

fn text(output: &Output) -> String {
    let both = [output.stdout.as_slice(), output.stderr.as_slice()];
    both.map(String::from_utf8_lossy).concat()
}

fn run(station: &Station, words: &[&str]) -> Output {
    station.command().args(words).output().expect("gshare runs")
}

/// What it says, and that it ended so.
fn ends(output: &Output, code: i32) -> String {
    let said = text(output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    said
}

/// A job of another manager, with the cgroup that a claim stands for and one below it, in which its programs are.
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

    /// The words of the claim on its behalf.
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

    /// The words after `gshare`, or another program, run in it.
    fn command(&self, station: &Station, uid: u32, words: &[&str]) -> Command {
        let program = station.program().display().to_string();
        let all = [&[program.as_str()], words].concat();
        self.others.run(station, uid, &all)
    }
}

fn claims(station: &Station) -> Vec<ClaimView> {
    station.snapshot().expect("served").claims
}

/// What the kernel says when a program there opens the GPUs' nodes.
fn opens(job: &Job, station: &Station, gpus: &[u32]) -> Vec<String> {
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
    if !root("claims on behalf") {
        return;
    }
    let users = Users::make();
    let (ada, bob) = (users.uid(0), users.uid(1));
    let mut station = station();
    let filtered = station.snapshot().expect("served").service;
    let filtered = filtered.is_some_and(|s| s.device_filter);
    let job = Job::new(ada, "job_7");
    let size = ["-g", "0.5", "--gpu-ids", "1", "--json"];

    // Root alone, an administrator of a group or the owner do not.
    let mut own = station.command();
    own.args(job.words("job-7", &size));
    let said = ends(&as_user(own, ada).output().expect("runs"), 77);
    assert!(
        said.contains("only root can make claims for others"),
        "{said}"
    );
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
    assert!(said.contains("slurmstepd.scope/job_7"), "{said}");
    // The same name is the same claim; another question of that name, or about a part of its cgroup, is refused.
    let again = ends(&job.claim(&station, "job-7", &size), 0);
    assert!(
        again.contains("\"id\": \"c1\"") || again.contains("\"id\":\"c1\""),
        "{again}"
    );
    let other = ends(&job.claim(&station, "job-7", &["-g", "0.25"]), 75);
    assert!(other.contains("`job-7` already exists as c1"), "{other}");
    let below = ends(&job.claim(&station, "job-8", &["-g", "0.25"]), 75);
    assert!(below.contains("overlaps"), "{below}");
    assert_eq!(claims(&station).len(), 1);

    // A program there that claims joins, whatever it asks for; its cgroup stays.
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
    assert_eq!(
        joined.ask(&format!("alloc {}", total + 1)),
        "error 2 CUDA_ERROR_OUT_OF_MEMORY"
    );
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
    assert!(said.contains("joins c1"), "{said}");
    if filtered {
        assert_eq!(
            opens(&job, &station, &[0, 1]),
            ["Operation not permitted", "No such device or address"]
        );
    }

    // Others are no part of it, neither from inside nor from outside; its owner does not change it.
    let said = ends(
        &job.command(&station, bob, &["claim", "--", "true"])
            .output()
            .expect("runs"),
        77,
    );
    assert!(said.contains("belong to c1"), "{said}");
    let as_ada = |words: &[&str]| {
        let mut command = station.command();
        command.args(words);
        as_user(command, ada).output().expect("runs")
    };
    let said = ends(&as_ada(&["join", "job-7", "--", "true"]), 77);
    assert!(said.contains("is for the programs below"), "{said}");
    for words in [
        &["release", "job-7"][..],
        &["resize", "c1", "-g", "1"],
        &["suspend", "c1"],
    ] {
        let said = ends(&as_ada(words), 77);
        assert!(said.contains("only root can"), "{said}");
    }
    for word in ["suspend", "offload"] {
        let said = ends(&run(&station, &[word, "c1"]), 75);
        assert!(said.contains("which gshare does not move"), "{said}");
    }

    // A service that was killed knows it, its members and its cap.
    station.stop_service(Signal::SIGKILL).expect("killed");
    station.start_service().expect("starts again");
    assert_eq!(
        joined.ask(&format!("alloc {}", total + 1)),
        "error 2 CUDA_ERROR_OUT_OF_MEMORY"
    );
    ends(&job.claim(&station, "job-7", &size), 0);
    let view = claims(&station).remove(0);
    assert_eq!(view.id, "c1");
    assert_eq!(joined.ask("launch 1"), "ok 1");

    // Killed by an administrator or released: the claim ends at once, and its programs get no signal.
    let said = ends(&run(&station, &["admin", "kill", "c1", "--grace", "0s"]), 0);
    assert!(said.contains("keep running: stop them"), "{said}");
    assert!(claims(&station).is_empty());
    assert_eq!(joined.ask("ping"), "ok pong");
    assert!(
        joined.ask("alloc 1048576").starts_with("error"),
        "it has no GPU"
    );
    assert!(job.others.has(joined.pid()) && job.others.has(plain.pid()));
    if filtered {
        assert_eq!(
            opens(&job, &station, &[0]),
            ["No such device or address"],
            "the filter is off"
        );
    }
    drop((joined, plain));
    ends(&job.claim(&station, "job-7", &size), 0);
    let said = ends(&run(&station, &["release", "job-7"]), 0);
    assert!(said.contains("released"), "{said}");
    assert!(claims(&station).is_empty());
}

#[test]
fn a_claim_on_behalf_waits_for_its_cgroup_outlives_its_programs_and_ends_with_the_cgroup() {
    if !root("claims on behalf") {
        return;
    }
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
            .then_some(())
    });
    assert_eq!(member.finish(), Some(0));
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(claims(&station).len(), 1, "empty is not gone");
    remove(&cgroup, &step);
    until("it ends with its cgroup", Duration::from_secs(2), || {
        claims(&station).is_empty().then_some(())
    });
    let said = ends(&run(&station, &["log", "c1"]), 0);
    assert!(said.contains("its cgroup is gone"), "{said}");
}

fn remove(cgroup: &Path, step: &PathBuf) {
    until("they are empty", SOON, || std::fs::remove_dir(step).ok());
    std::fs::remove_dir(cgroup).expect("removed");
}

/// A caller that asks again after a death gets the one claim; one that releases again is rid of it and of its filter.
#[test]
fn a_death_at_any_step_leaves_one_claim_on_behalf_or_none() {
    if !root("claims on behalf") {
        return;
    }
    let users = Users::some(1);
    let ada = users.uid(0);
    let mut station = station();
    let job = Job::new(ada, "job_9");
    let filtered = station.snapshot().expect("served").service;
    let filtered = filtered.is_some_and(|s| s.device_filter);
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
            until(step, SOON, || station.service_ended().then_some(()));
            station.start_service().expect("starts again");
        }
        ends(&asks.wait_with_output().expect("ends"), 0);
        let held = claims(&station);
        assert_eq!(held.len(), 1, "{step}: {held:?}");
        assert_eq!(held[0].name.as_deref(), Some("job-9"), "{step}");
        if filtered {
            assert_eq!(
                opens(&job, &station, &[0])[0],
                "Operation not permitted",
                "{step}"
            );
        }
        if at_end {
            dies(&mut station);
            run(&station, &["release", "job-9"]);
            until(step, SOON, || station.service_ended().then_some(()));
            station.start_service().expect("starts again");
        }
        run(&station, &["release", "job-9"]);
        assert!(claims(&station).is_empty(), "{step}");
        if filtered {
            assert_eq!(
                opens(&job, &station, &[0])[0],
                "No such device or address",
                "{step}"
            );
        }
    }
}

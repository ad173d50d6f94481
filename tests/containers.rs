//! Containers in claims, with a real podman and runc: cap, filter and screen include them.

use crate::support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use gshare::station::Station;
use gshare_proto::{Call, Reply};
use support::machine::remove_below;
use support::users::{Users, as_user};
use support::{FULL, Raw, SOON, all_ended, has_all, is_root, ok, root, run, station, until};

mod later;
mod slices;

/// Options for a container on a machine whose shells may not raise limits, without network.
const PLAIN: [&str; 3] = [
    "--network=none",
    "--ulimit=nofile=1024:1024",
    "--ulimit=nproc=1024:1024",
];

/// An image with the tests' client and `cat`, removed with the value.
pub(crate) struct Image(String);

impl Image {
    /// Prints why it skips if there is no podman.
    pub(crate) fn make(test: &str) -> Option<Self> {
        Self::make_with(test, &[], |_| ())
    }

    /// With additional lines of a Dockerfile, and changed files.
    fn make_with(test: &str, words: &[&str], change: impl FnOnce(&Path)) -> Option<Self> {
        if !is_root(test) {
            return None;
        }
        let version = Command::new("podman").arg("--version").output();
        if !version.is_ok_and(|o| o.status.success()) {
            println!("skipped: {test} needs podman");
            return None;
        }
        let dir = tempfile::tempdir().expect("a directory");
        fill(dir.path());
        change(dir.path());
        let tar = dir.path().with_extension("tar");
        let packed = Command::new("tar")
            .arg("-C")
            .arg(dir.path())
            .arg("-cf")
            .arg(&tar)
            .arg(".")
            .status();
        assert!(packed.expect("tar runs").success());
        let name = format!("localhost/gshare-test-{}-{test}", std::process::id());
        let tarred = tar.to_string_lossy();
        let words = words.iter().flat_map(|word| ["--change", word]);
        let import = ["import", "-q"].into_iter().chain(words);
        let imported = podman(&import.chain([&*tarred, &name]).collect::<Vec<_>>());
        std::fs::remove_file(&tar).expect("removed");
        if !imported.status.success() {
            let why = String::from_utf8_lossy(&imported.stderr).into_owned();
            println!("skipped: {test} needs a podman that works: {why}");
            return None;
        }
        let image = Self(name);
        let tried = podman(
            &[
                &["run", "--rm"],
                &PLAIN[..],
                &[&image.0, "/cat", "/dev/null"],
            ]
            .concat(),
        );
        if !tried.status.success() {
            let why = String::from_utf8_lossy(&tried.stderr).into_owned();
            println!("skipped: {test} needs a podman that can run containers: {why}");
            return None;
        }
        Some(image)
    }
}

impl Image {
    fn save(&self, to: &Path) {
        let saved = podman(&["save", "-q", "-o", &to.to_string_lossy(), &self.0]);
        assert!(saved.status.success(), "{saved:?}");
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        podman(&["rmi", "-f", &self.0]);
    }
}

pub(crate) fn podman(args: &[&str]) -> Output {
    Command::new("podman")
        .args(args)
        .output()
        .expect("podman runs")
}

/// Puts the tests' client and `cat` into the directory of an image, with their libraries.
pub(crate) fn fill(image: &Path) {
    let client = support::example("raw_client");
    let mut files: Vec<PathBuf> = libraries(&client);
    files.extend(libraries(Path::new("/bin/cat")));
    // Other libraries of the C library that a driver needs.
    let libc = files.iter().find(|f| f.ends_with("libc.so.6")).cloned();
    let beside = [
        "libm.so.6",
        "libdl.so.2",
        "librt.so.1",
        "libpthread.so.0",
        "libgcc_s.so.1",
    ];
    let beside = beside.map(|name| libc.as_ref().map(|c| c.with_file_name(name)));
    files.extend(beside.into_iter().flatten().filter(|f| f.exists()));
    for file in &files {
        let to = image.join(file.strip_prefix("/").expect("absolute"));
        std::fs::create_dir_all(to.parent().expect("a parent")).expect("made");
        std::fs::copy(file, to).expect("copied");
    }
    for (from, to) in [
        (client.as_path(), "raw_client"),
        (Path::new("/bin/cat"), "cat"),
    ] {
        support::copy_program(from, image.join(to));
    }
}

/// The shared objects of a program, its loader among them.
pub(crate) fn libraries(program: &Path) -> Vec<PathBuf> {
    let listed = Command::new("ldd").arg(program).output().expect("ldd runs");
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    text.split_whitespace()
        .filter(|w| w.starts_with('/'))
        .map(PathBuf::from)
        .collect()
}

/// Arguments of `podman run` for a container with this name.
pub(crate) fn podman_run<'a>(name: &'a str, image: &'a Image, more: &[&'a str]) -> Vec<&'a str> {
    let mut words = vec!["podman", "run", "--rm", "-i", "--name", name];
    words.extend(PLAIN);
    words.extend(more);
    words.push(&image.0);
    words
}

/// A flag that lets a container open all nodes of this one's kind.
fn may_open(node: &Path) -> String {
    let node = std::fs::metadata(node).expect("a stand-in");
    let major = nix::sys::stat::major(std::os::unix::fs::MetadataExt::rdev(&node));
    format!("--device-cgroup-rule=c {major}:* rwm")
}

/// Flags with the effect of `--gpus all`: the driver and all of its nodes.
pub(crate) fn all_gpus(station: &Station) -> [String; 4] {
    let sim = station.sim_dir().display().to_string();
    [
        "--pid=host".to_owned(),
        format!("--volume={sim}:{sim}:dev"),
        format!("--env=LD_LIBRARY_PATH={sim}/lib"),
        may_open(&station.sim_dir().join("dev/nvidia0")),
    ]
}

/// A quarter of GPU 1 for the command that follows.
fn in_claim(station: &Station) -> Command {
    let mut command = station.command();
    command.args(["claim", "-q", "-g", "0.25", "--gpu-ids", "1", "--"]);
    command
}

/// A station; dropping it also removes directories that podman leaves on the old cgroup hierarchies.
struct Tidied(Station);

impl std::ops::Deref for Tidied {
    type Target = Station;

    fn deref(&self) -> &Station {
        &self.0
    }
}

impl Drop for Tidied {
    fn drop(&mut self) {
        let hierarchies = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten();
        let roots: Vec<PathBuf> = hierarchies
            .flatten()
            .filter(|h| h.file_name() != "unified")
            .map(|h| h.path().join(self.0.cgroup_root()))
            .collect();
        // Podman cleans up some time after a container ends.
        let end = Instant::now() + Duration::from_secs(3);
        while roots.iter().any(|r| r.exists()) && Instant::now() < end {
            roots.iter().for_each(|r| remove_below(r));
            std::thread::sleep(Duration::from_millis(20));
        }
        // A claim that is still held when the service ends keeps its description for the next service.
        for spec in specs(&self.0) {
            let _ = std::fs::remove_file(spec);
        }
    }
}

pub(crate) fn name(test: &str) -> String {
    format!("gshare-{test}-{}", std::process::id())
}

fn specs(station: &Station) -> Vec<PathBuf> {
    let lead = format!("gshare.dev-claim-{}_", station.cgroup_root());
    let found = std::fs::read_dir("/run/cdi")
        .into_iter()
        .flatten()
        .flatten();
    found
        .map(|e| e.path())
        .filter(|p| {
            p.file_name()
                .is_some_and(|n| n.to_string_lossy().starts_with(&lead))
        })
        .collect()
}

/// With cooperative and with strict limits.
#[test]
fn cap_filter_and_screen_see_a_container() {
    let Some(image) = Image::make("cap") else {
        return;
    };
    for strict in [false, true] {
        let station = Tidied(support::station_with(|o| o.strict = strict));
        let name = format!("{}-{strict}", name("cap"));
        // The simulated driver knows processes by their own pids; a real one by this machine's.
        let more = ["--pid=host"];
        let words = podman_run(&name, &image, &more);
        let mut command = in_claim(&station);
        command.args(&words).arg("/raw_client");
        let mut raw = Raw::start(command);
        held(&station, &mut raw, &name);
        let claim = until("the screen shows what the container uses", SOON, || {
            let claim = station.snapshot().ok()?.claims.into_iter().next()?;
            let same = claim.gpus[0].mem_charge == claim.gpus[0].mem_used;
            same.then_some(claim)
        });
        assert!(
            claim.what.starts_with(&format!("[{name}] podman run")),
            "{}",
            claim.what
        );
        let process = claim.processes.first().expect("by the driver's word");
        assert!(claim.members.contains(&process.pid), "{claim:?}");
        assert!(process.what.contains("raw_client"), "{}", process.what);
        assert!(ok(&station, &["ps"]).contains(&format!("[{name}]")));
        assert_eq!(specs(&station).len(), 1);
        assert_eq!(raw.finish(), Some(0));
        all_ended(&station);
        assert!(specs(&station).is_empty(), "its description is gone");

        // Another container joins a held claim.
        let id = ok(&station, &["claim", "-g", "0.25", "--short"]);
        let mut command = station.command();
        command.args(["join", "-q", &id, "--"]);
        command.args(podman_run(&name, &image, &[]));
        command.arg("/raw_client");
        let mut raw = Raw::start(command);
        let claim = station.snapshot().expect("served").claims.remove(0);
        assert_eq!(raw.info().1, claim.gpus[0].mem_limit);
        assert_eq!((claim.id, claim.containers), (id.clone(), vec![name]));
        assert_eq!(raw.finish(), Some(0));
        assert_eq!(specs(&station).len(), 1);
        ok(&station, &["release", &id]);
        until("its description is gone", SOON, || {
            specs(&station).is_empty()
        });
    }
}

/// The view of every container of a claim, whichever program runs it: its cap, its name, its use.
fn held(station: &Station, raw: &mut Raw, name: &str) {
    let claim = until("its name is shown", SOON, || {
        let claim = station.snapshot().ok()?.claims.into_iter().next()?;
        (claim.containers == [name]).then_some(claim)
    });
    limited(station, raw, &claim);
}

fn limited(station: &Station, raw: &mut Raw, claim: &gshare_proto::ClaimView) {
    let (_, total) = raw.info();
    assert_eq!(total, claim.gpus[0].mem_limit);
    let refused = raw.ask(&format!("alloc {total}"));
    assert_eq!(refused, FULL);
    assert_eq!(raw.ask(&format!("alloc {}", 64 << 20)), "ok 0");
    assert_eq!(raw.ask("launch 1"), "ok 1");
    assert_eq!(raw.ask("count"), "ok 1");
    until("its use is the claim's", SOON, || {
        let snapshot = station.snapshot().ok()?;
        let part = &snapshot.claims.first()?.gpus[0];
        assert!(snapshot.unclaimed.is_empty(), "{:?}", snapshot.unclaimed);
        (part.mem_charge? > 64 << 20).then_some(())
    });
}

/// In a claim of an ordinary user, by `sudo`, with strict limits.
#[test]
fn a_user_runs_a_container_by_sudo() {
    let Some(image) = Image::make("sudo") else {
        return;
    };
    if !Path::new("/usr/bin/sudo").exists() {
        println!("skipped: sudo is not installed");
        return;
    }
    let users = Users::some(1);
    let station = Tidied(support::station_with(|o| o.strict = true));
    let rule = Rule::new(&users);
    let name = name("sudo");
    let more = ["--pid=host"];
    let words = podman_run(&name, &image, &more);
    let mut command = in_claim(&station);
    command.args(["sudo", "-n"]);
    command.args(&words).arg("/raw_client").current_dir("/");
    let mut raw = Raw::start(as_user(command, users.uid(0)));
    held(&station, &mut raw, &name);
    let claim = &station.snapshot().expect("served").claims[0];
    assert_eq!(claim.uid, users.uid(0), "the claim is the user's");
    assert_eq!(raw.finish(), Some(0));
    drop(rule);
}

/// Lets a user run podman as root, while the value lives.
struct Rule(PathBuf);

impl Rule {
    fn new(users: &Users) -> Self {
        let path = PathBuf::from(format!("/etc/sudoers.d/{}", users.name(0)));
        let line = format!("{} ALL=(root) NOPASSWD: /usr/bin/podman\n", users.name(0));
        std::fs::write(&path, line).expect("written");
        Self(path)
    }
}

impl Drop for Rule {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Rootless podman, which stays in the cgroup of its start; in a first claim, and in a second one whose mount
/// namespace differs from that of podman's first run.
#[test]
fn a_user_runs_a_container_without_root() {
    let Some(image) = Image::make("rootless") else {
        return;
    };
    if !Path::new("/usr/bin/newuidmap").exists() {
        println!("skipped: rootless podman needs newuidmap (package uidmap)");
        return;
    }
    let users = Users::some(1);
    let station = Tidied(support::station_with(|o| o.strict = true));
    let home = Home::new(&users);
    let saved = home.0.path().join("image.tar");
    image.save(&saved);
    let own = |mut command: Command| {
        command
            .env("HOME", home.0.path())
            .env("XDG_RUNTIME_DIR", home.0.path())
            .env("PODMAN_IGNORE_CGROUPSV1_WARNING", "1")
            .current_dir(home.0.path());
        as_user(command, users.uid(0))
    };
    std::os::unix::fs::chown(&saved, Some(users.uid(0)), None).expect("given");
    let mut load = Command::new("podman");
    load.args(["--cgroup-manager=cgroupfs", "load", "-q", "-i"])
        .arg(&saved);
    let loaded = own(load).output().expect("podman runs");
    if !loaded.status.success() {
        let why = String::from_utf8_lossy(&loaded.stderr).into_owned();
        println!("skipped: rootless podman does not work here: {why}");
        return;
    }
    for n in 0..3 {
        let name = format!("{}-{n}", name("rootless"));
        let more = ["--pid=host"];
        let mut words = podman_run(&name, &image, &more);
        words.push("/raw_client");
        if n == 2 {
            words = made("cgroupfs", &words, own);
        }
        let mut command = in_claim(&station);
        command.args(&words);
        let mut raw = Raw::start(own(command));
        held(&station, &mut raw, &name);
        assert_eq!(raw.finish(), Some(0));
        all_ended(&station);
    }
    let mut migrate = Command::new("podman");
    migrate.args(["system", "migrate"]);
    own(migrate).output().expect("podman runs");
}

/// Makes the container of a `podman run` outside of all claims; returns the words that start it.
pub(crate) fn made<'a>(
    manager: &str,
    run: &[&'a str],
    by: impl FnOnce(Command) -> Command,
) -> Vec<&'a str> {
    let mut create = Command::new("podman");
    create.args(["--cgroup-manager", manager, "create"]);
    let created = by(create).args(&run[2..]).output().expect("podman runs");
    assert!(created.status.success(), "{created:?}");
    let name = run.iter().position(|w| *w == "--name").expect("named") + 1;
    vec!["podman", "start", "--attach", "--interactive", run[name]]
}

/// `podman start` in a claim of root's; a container made for systemd slices is refused.
#[test]
fn a_container_that_was_made_before_is_held_where_a_claim_starts_it() {
    let Some(image) = Image::make("made") else {
        return;
    };
    for strict in [false, true] {
        let station = Tidied(support::station_with(|o| o.strict = strict));
        let name = format!("{}-{strict}", name("made"));
        let mut words = podman_run(&name, &image, &["--pid=host"]);
        words.push("/raw_client");
        let mut command = in_claim(&station);
        command.args(made("cgroupfs", &words, |create| create));
        let mut raw = Raw::start(command);
        held(&station, &mut raw, &name);
        let hooks = specs(&station);
        assert_eq!(hooks.len(), 2, "the description and the hook: {hooks:?}");
        assert_eq!(raw.finish(), Some(0));
        all_ended(&station);
        assert!(specs(&station).is_empty(), "both are gone");
        let slice = format!("{name}-slice");
        let mut words = podman_run(&slice, &image, &[]);
        words.push("/raw_client");
        let mut command = in_claim(&station);
        command.args(made("systemd", &words, |create| create));
        let refused = command.output().expect("runs");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(75), "{said}");
        has_all(&said, &["made this container for a systemd slice"]);
        podman(&["rm", &slice]);
    }
}

/// An image of apptainer, `image` in the directory. Prints why it skips if there is no apptainer.
pub(crate) fn apptainer(test: &str) -> Option<tempfile::TempDir> {
    let version = Command::new("apptainer").arg("--version").output();
    if !is_root(test) {
        return None;
    }
    if !version.is_ok_and(|o| o.status.success()) {
        println!("skipped: {test} needs apptainer");
        return None;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let image = dir.path().join("image");
    for part in ["dev", "proc", "sys", "tmp", "etc", "var/tmp"] {
        std::fs::create_dir_all(image.join(part)).expect("made");
    }
    fill(&image);
    support::users::account("chmod", &["-R", "a+rX", &dir.path().display().to_string()]);
    Some(dir)
}

/// Moves the simulated driver's nodes below `/dev`: apptainer opens no others.
pub(crate) fn below_dev(station: &Station) -> tempfile::TempDir {
    let mut nodes = tempfile::Builder::new();
    let nodes = nodes.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755));
    let nodes = nodes.tempdir_in("/dev").expect("a directory");
    let dev = station.sim_dir().join("dev");
    let moved = Command::new("cp")
        .arg("-a")
        .arg(dev.join("."))
        .arg(nodes.path())
        .status();
    assert!(moved.expect("cp runs").success());
    std::fs::remove_dir_all(&dev).expect("removed");
    std::os::unix::fs::symlink(nodes.path(), &dev).expect("linked");
    nodes
}

/// Apptainer, as a user without rights, with the flag that would bring the machine's driver along.
#[test]
fn apptainer_is_held_in_a_claim() {
    let Some(image) = apptainer("apptainer_is_held_in_a_claim") else {
        return;
    };
    let users = Users::some(1);
    let home = Home::new(&users);
    for strict in [false, true] {
        let station = Tidied(support::station_with(|o| o.strict = strict));
        let nodes = below_dev(&station);
        let node = |name: &str| format!("--bind={0}/{name}:{0}/{name}:rw", nodes.path().display());
        // As gshare does for nodes that have their usual names.
        let contained = [
            "--contain".to_owned(),
            "--cleanenv".to_owned(),
            node("nvidia1"),
            node("nvidiactl"),
            node("nvidia-uvm"),
        ];
        for more in [&[][..], &contained] {
            let mut command = in_claim(&station);
            command.args(["apptainer", "-s", "exec", "--nv"]).args(more);
            command.arg(image.path().join("image")).arg("/raw_client");
            command
                .env("HOME", home.0.path())
                .current_dir(home.0.path());
            let mut raw = Raw::start(as_user(command, users.uid(0)));
            let claim = station.snapshot().expect("served").claims[0].clone();
            limited(&station, &mut raw, &claim);
            assert_eq!(raw.finish(), Some(0));
            all_ended(&station);
        }
    }
}

/// A home for a user, removed with all of podman's files.
struct Home(tempfile::TempDir);

impl Home {
    fn new(users: &Users) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let uid = users.uid(0);
        std::os::unix::fs::chown(dir.path(), Some(uid), Some(uid)).expect("given");
        Self(dir)
    }
}

/// If docker's daemon supports only slices and systemd keeps no claims, it is refused before anything runs.
#[test]
fn docker_is_refused_where_there_can_be_no_slice() {
    root!("docker_is_refused_where_there_can_be_no_slice");
    let station = station();
    let dir = tempfile::tempdir().expect("a directory");
    let docker = dir.path().join("docker");
    let script = "#!/bin/sh\ncase \"$*\" in *info*) echo systemd;; *) echo ran;; esac\n";
    std::fs::write(&docker, script).expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&docker, mode).expect("set");
    let mut command = station.command();
    command
        .args(["claim", "-q", "-g", "0.25", "--"])
        .arg(&docker);
    let output = command.args(["run", "--rm", "img"]).output().expect("runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(75), "{said}");
    has_all(&said, &["native.cgroupdriver=cgroupfs"]);
    assert!(output.stdout.is_empty());
}

#[test]
fn a_container_opens_the_claims_gpu_and_no_other() {
    let Some(image) = Image::make("filter") else {
        return;
    };
    let station = Tidied(station());
    if !support::is_filtered(&station) {
        println!("skipped: this kernel has no device filter");
        return;
    }
    let name = name("filter");
    // Root gives the container the nodes of all GPUs, and runc lets it open them: the claim's filter does not.
    let all = format!(
        "--volume={}:/all:dev",
        station.sim_dir().join("dev").display()
    );
    let rule = may_open(&station.sim_dir().join("dev/nvidia0"));
    let more = [all.as_str(), rule.as_str()];
    let words = podman_run(&name, &image, &more);
    let mut command = in_claim(&station);
    command.args(&words);
    command.args("/cat /all/nvidia0 /all/nvidia1 /dev/nvidia1 /dev/nvidiactl".split(' '));
    let output = command.output().expect("runs");
    let said = String::from_utf8_lossy(&output.stderr);
    // No driver is behind the stand-ins: an open that is allowed reports that.
    for (node, why) in [
        ("/all/nvidia0", "Operation not permitted"),
        ("/all/nvidia1", "No such device or address"),
        ("/dev/nvidia1", "No such device or address"),
        ("/dev/nvidiactl", "No such device or address"),
    ] {
        has_all(&said, &[&format!("{node}: {why}")]);
    }
}

/// An instance (MIG) is opened by its two capabilities: the container has these, and may open no others.
#[test]
fn a_container_of_an_instance_opens_its_capabilities_and_no_others() {
    let Some(image) = Image::make("mig") else {
        return;
    };
    let station = Tidied(support::station_with(|o| {
        o.gpus = vec!["a100-80gb:1g.10gb+2g.20gb+3g.40gb".to_owned()];
    }));
    let caps = station.sim_dir().join("dev/nvidia-caps");
    if !caps.is_dir() || !support::is_filtered(&station) {
        println!("skipped: no device nodes or no device filter here");
        return;
    }
    let nodes: Vec<String> = std::fs::read_dir(&caps)
        .expect("read")
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    assert!(nodes.len() > 2, "{nodes:?}");
    let name = name("mig");
    let all = format!("--volume={}:/all:dev", caps.display());
    let rule = may_open(&caps.join(&nodes[0]));
    let more = [all.as_str(), rule.as_str()];
    let mut command = station.command();
    command.args(["claim", "-q", "-g", "0.25", "--"]);
    command.args(podman_run(&name, &image, &more)).arg("/cat");
    for dir in ["/dev/nvidia-caps", "/all"] {
        command.args(nodes.iter().map(|n| format!("{dir}/{n}")));
    }
    let output = command.output().expect("runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let with = |dir: &str, why: &str| {
        let fits = |n: &&String| said.contains(&format!("{dir}/{n}: {why}"));
        let mut found: Vec<&str> = nodes.iter().filter(fits).map(String::as_str).collect();
        found.sort_unstable();
        found.join(" ")
    };
    // No driver is behind the stand-ins: an open that is allowed reports that.
    let own = with("/dev/nvidia-caps", "No such device or address");
    assert_eq!(own.split(' ').count(), 2, "{said}");
    assert_eq!(with("/all", "No such device or address"), own, "{said}");
    assert_eq!(
        with("/all", "Operation not permitted").split(' ').count(),
        nodes.len() - 2,
        "{said}"
    );
    assert_eq!(
        with("/dev/nvidia-caps", "No such file or directory")
            .split(' ')
            .count(),
        nodes.len() - 2,
        "{said}"
    );
}

#[test]
fn a_users_claim_holds_a_container_that_root_starts() {
    let Some(image) = Image::make("user") else {
        return;
    };
    let station = Tidied(station());
    let mut claim = station.command();
    claim
        .args(["claim", "-q", "-g", "0.25", "--", "sleep", "1000"])
        .stdout(Stdio::null())
        .current_dir("/");
    let mut claim = as_user(claim, 60011).spawn().expect("runs");
    until("the claim is there", SOON, || {
        (station.snapshot().ok()?.claims.len() == 1).then_some(())
    });
    let mut client = station.client().expect("served");
    let Ok(Reply::Container(place)) = client.call(&Call::Container {
        id: "c1".into(),
        slice: false,
        hook: false,
    }) else {
        panic!("no place for containers");
    };
    let (device, parent) = (
        format!("--device={}", place.device),
        format!("--cgroup-parent={}", place.cgroup_parent),
    );
    let inside = name("user-inside");
    let more = [
        "--pids-limit=-1",
        "--cgroup-manager=cgroupfs",
        &device,
        &parent,
    ];
    let start = |name: &str, more: &[&str]| {
        let (global, own): (Vec<&str>, Vec<&str>) =
            more.iter().partition(|w| w.starts_with("--cgroup-manager"));
        let words = podman_run(name, &image, &own);
        let mut command = Command::new("podman");
        command.args(global).args(&words[1..]).arg("/raw_client");
        command
    };
    let mut raw = Raw::start(start(&inside, &more));
    let before = station.snapshot().expect("served").claims[0].clone();
    assert_eq!(before.uid, 60011);
    assert_eq!(before.containers, [inside]);
    assert_eq!(raw.info().1, before.gpus[0].mem_limit);

    // The same description without the claim's cgroup has no effect: it grants no rights.
    let outside = name("user-outside");
    let output = start(&outside, &[&device]).output().expect("podman runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    has_all(&said, &["CUDA_ERROR_NOT_PERMITTED"]);
    has_all(&said, &["this process may not use the GPU"]);

    // Ending the claim ends the container.
    let killed = station
        .command()
        .args(["admin", "kill", "c1", "--grace", "0"])
        .output();
    assert!(killed.expect("runs").status.success());
    claim.wait().expect("reaped");
    assert_eq!(raw.ask("info"), "", "the container has ended");
    all_ended(&station);
}

/// A service started by `podman-compose up` is in the claim in which `podman-compose` ran.
#[test]
fn a_composed_service_is_held_in_a_claim() {
    let Some(image) = Image::make("compose") else {
        return;
    };
    if !Path::new("/usr/bin/podman-compose").exists() {
        println!("skipped: podman-compose is not installed");
        return;
    }
    let station = Tidied(station());
    let dir = tempfile::tempdir().expect("a directory");
    let (name, file) = (name("compose"), dir.path().join("compose.yml"));
    let text = format!(
        "version: \"3\"\nservices:\n  one:\n    image: {}\n    container_name: {name}\n    command: [\"/raw_client\"]\n    \
         stdin_open: true\n    ulimits: {{nofile: 1024, nproc: 1024}}\n",
        image.0
    );
    std::fs::write(&file, text).expect("written");
    let compose = |words: &[&str]| {
        let mut command = Command::new("podman-compose");
        command.arg("-f").arg(&file).args(words);
        command.output().expect("podman-compose runs")
    };
    let mut command = in_claim(&station);
    command.args(["podman-compose", "-f"]).arg(&file).arg("up");
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut up = command.spawn().expect("runs");
    let claim = until("the claim has the service", SOON, || {
        let claim = station.snapshot().ok()?.claims.into_iter().next()?;
        (claim.containers == [name.as_str()]).then_some(claim)
    });
    assert!(claim.members.len() > 1, "{claim:?}");
    compose(&["down", "-t", "0"]);
    up.wait().expect("ends");
    all_ended(&station);
}

/// An image may set variables for libraries, a socket and GPUs of its own, and have links where files of the claim
/// are mounted.
#[test]
fn a_hostile_image_is_held_like_any_other() {
    let words = [
        "ENV LD_LIBRARY_PATH=/evil",
        "ENV GSHARE_SOCKET=/evil/gshared.sock",
        "ENV GSHARE_CLAIM=999",
        "ENV CUDA_VISIBLE_DEVICES=0,1,2,3",
        "ENV NVIDIA_VISIBLE_DEVICES=all",
    ];
    let made = Image::make_with("hostile", &words, |dir| {
        use std::os::unix::fs::symlink;
        std::fs::create_dir_all(dir.join("evil")).expect("made");
        for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
            std::fs::write(dir.join("evil").join(name), "evil").expect("written");
        }
        let usual = dir.join("usr/lib/x86_64-linux-gnu");
        std::fs::create_dir_all(&usual).expect("made");
        symlink("/evil/libcuda.so.1", usual.join("libcuda.so.1")).expect("linked");
        std::fs::create_dir_all(dir.join("run")).expect("made");
        symlink("../../../../../tmp", dir.join("run/gshare")).expect("linked");
        symlink("/tmp", dir.join("usr/lib64")).expect("linked");
    });
    let Some(image) = made else { return };
    for strict in [false, true] {
        let station = Tidied(support::station_with(|o| o.strict = strict));
        let name = format!("{}-{strict}", name("hostile"));
        let mut command = in_claim(&station);
        command.args(podman_run(&name, &image, &["--pid=host"]));
        command.arg("/raw_client");
        let mut raw = Raw::start(command);
        held(&station, &mut raw, &name);
        let claim = station.snapshot().expect("served").claims.remove(0);
        let environment = |pid| std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let all: Vec<u8> = claim.members.iter().flat_map(environment).collect();
        let all = String::from_utf8_lossy(&all).into_owned();
        let all = |value| all.contains(&format!("NVIDIA_VISIBLE_DEVICES={value}\0"));
        assert!(all("void") && !all("all"), "{claim:?}");
        assert_eq!(raw.finish(), Some(0));
    }
}

/// Root's podman may give an image every right and the service's socket: its programs are no administrators and claim
/// nothing. (With all rights they may leave the container, and are the machine's root then.)
#[test]
fn no_container_is_an_administrator_whatever_it_is_given() {
    let Some(image) = Image::make("rights") else {
        return;
    };
    let station = Tidied(station());
    let at = |dir: &str| station.dir().join(dir).display().to_string();
    let volumes = [
        format!("--volume={}:/g:ro", at("bin")),
        format!("--volume={}:/s", at("run")),
    ];
    let own = name("rights");
    for given in [
        &[][..],
        &["--privileged"],
        &["--privileged", "--pid=host"],
        &[
            "--privileged",
            "--pid=host",
            "--cgroupns=host",
            "--userns=host",
        ],
    ] {
        for words in ["admin drain 1", "admin kill --gpu 0", "claim -g 0.1 --hold"] {
            let more = [
                &volumes[0],
                &volumes[1],
                "--env=GSHARE_SOCKET=/s/gshared.sock",
            ];
            let run = podman_run(&own, &image, &[&more[..], given].concat());
            let program = ["/g/gshare"].into_iter().chain(words.split(' '));
            let all: Vec<&str> = run.into_iter().skip(1).chain(program).collect();
            let output = podman(&all);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(77), "{given:?} {words}: {said}");
        }
    }
    let snapshot = station.snapshot().expect("served");
    assert!(snapshot.gpus.iter().all(|gpu| gpu.drain.is_none()));
    assert_eq!(snapshot.claims, []);
}

#[test]
fn without_cgroups_no_container_is_put_into_a_claim() {
    let station = support::station_with(|o| o.cgroups = false);
    let output = run(
        &station,
        &["claim", "-q", "-g", "0.25", "--", "podman", "run", "img"],
    );
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(127) {
        println!("skipped: podman is not installed");
        return;
    }
    assert_eq!(output.status.code(), Some(75), "{said}");
    has_all(&said, &["without cgroups"]);
}

#[test]
fn a_container_without_a_claim_is_counted_and_named() {
    let Some(image) = Image::make("bare") else {
        return;
    };
    let station = Tidied(station());
    let (name, all) = (name("bare"), all_gpus(&station));
    let mut words = podman_run(&name, &image, &all.each_ref().map(String::as_str));
    words.push("/raw_client");
    // Like `podman start` and compose: another process starts the program than the one that makes the container.
    let words = made("cgroupfs", &words, |create| create);
    let mut start = Command::new(words[0]);
    start.args(&words[1..]);
    let mut raw = Raw::start(start);
    assert_eq!(raw.ask(&format!("alloc {}", 512 << 20)), "ok 0");
    let claim = until("it is counted", SOON, || {
        let claims = station.snapshot().ok()?.claims;
        claims.into_iter().find(|c| {
            let all = c.gpus[0].mem_used >= Some(512 << 20);
            c.adopted && !c.containers.is_empty() && all
        })
    });
    assert_eq!(claim.containers, std::slice::from_ref(&name));
    let what = format!("[{name}] raw_client");
    assert!(claim.what.starts_with(&what), "{}", claim.what);
    assert_eq!(
        claim.identity.unit.map(|unit| unit.value),
        Some(name.clone())
    );
    let listed = run(&station, &["ps"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains(&what));
    assert_eq!(raw.finish(), Some(0));
    all_ended(&station);
    // In stage 1 a claim has no limits, and the container runs in it as well.
    ok(&station, &["admin", "stage", "1"]);
    let mut observed = station.command();
    observed.args(["claim", "-q", "-g", "0.25", "--"]);
    observed
        .args(podman_run(&name, &image, &[]))
        .args(["/cat", "/dev/null"]);
    let output = observed.output().expect("runs");
    assert!(output.status.success(), "{output:?}");
    let history = crate::history::history(&station, gshare_proto::HistoryBy::Claim, None);
    let line = history.series.iter().find(|s| s.key == claim.id);
    assert!(
        line.is_some_and(|l| l.label.contains(&what)),
        "{:?}",
        history.series
    );
}

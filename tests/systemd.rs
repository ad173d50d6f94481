//! gshare as installed: on machines with a real systemd, with logind, cron and at, as a user's own service, and from
//! downloads.

use crate::support;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gshare_enforcer::nodes::{Majors, make_stand_ins};
use gshare_proto::{Call, ClaimState, Client, Reply, Snapshot};
use gshare_sim_board::{Board, BoardSpec};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::machine::Machine;
use support::users::{Users, as_user};
use support::{
    DENIED, FULL, GSHARE, MIB, OPEN, Raw, SOON, claim_of, example, has_all, root, until, words,
};

// gshare on machines with a real systemd: set up, restarted, in units, removed.

/// A machine with two simulated GPUs, the program in `/root` and a client in `/opt`.
fn machine(test: &str, hybrid: bool) -> Option<Machine> {
    let machine = Machine::boot(test, hybrid)?;
    machine.simulate(&["rtx4090", "h100"]);
    machine.copy(Path::new(GSHARE), "/root/gshare");
    machine.copy(&example("raw_client"), "/opt/raw_client");
    Some(machine)
}

/// Everything on the machine that survives a reboot: kind, mode, owner, and of files size, time and, where anything
/// is installed, contents. Files that systemd itself writes are left out.
pub(crate) fn tree(machine: &Machine) -> String {
    machine.ok(
        "cd / && skip='-path var/lib/systemd -prune -o -path var/cache/ldconfig -prune -o' && \
         find etc usr root home var/lib var/cache -xdev $skip \
            -type f -printf '%p %m %U %G %s %T@\\n' -o -printf '%p %y %m %U %G %l\\n' | sort && \
         find etc usr/local var/lib -xdev $skip -type f -print0 | xargs -0 sha256sum | sort -k2",
    )
}

/// The lines that are in only one of two trees.
pub(crate) fn difference(before: &str, after: &str) -> Vec<String> {
    let only = |a: &str, b: &str, mark: char| -> Vec<String> {
        let known: std::collections::BTreeSet<&str> = b.lines().collect();
        let new = a.lines().filter(|l| !known.contains(l));
        new.map(|l| format!("{mark} {l}")).collect()
    };
    [only(before, after, '-'), only(after, before, '+')].concat()
}

fn in_claim(machine: &Machine, flags: &str) -> Command {
    machine.command(&format!(
        "exec runuser -u ada -- env GSHARE_SIM_BOARD=/opt/sim/board gshare claim -q {flags} -- /opt/raw_client"
    ))
}

fn show(machine: &Machine, unit: &str, property: &str) -> String {
    machine.ok(&format!("systemctl show {unit} -p {property} --value"))
}

#[test]
fn set_up_restarted_and_taken_away_without_a_trace() {
    let Some(machine) = machine("set_up_restarted_and_taken_away_without_a_trace", false) else {
        return;
    };
    let before = tree(&machine);
    let shown = machine.ok("/root/gshare setup --dry-run");
    has_all(&shown, &["install  /usr/local/bin/gshare"]);
    assert_eq!(difference(&before, &tree(&machine)), [""; 0]);

    refuses_where_it_cannot_work(&machine);
    assert_eq!(difference(&before, &tree(&machine)), [""; 0]);

    let said = machine.ok("/root/gshare setup");
    for line in [
        "install  /etc/systemd/system/gshared.service",
        "install  /usr/local/lib/gshare/gshare-exec",
        "install  /etc/gshare/gshare.toml",
        "stage    1 (observe), /var/lib/gshare/stage",
        "systemctl start gshared.service",
        "claims are cgroups below /sys/fs/cgroup/gshare.slice/gshare-claims.slice",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    assert_eq!(show(&machine, "gshared", "ActiveState"), "active");
    assert_eq!(
        show(&machine, "gshared", "StatusText"),
        "2 GPUs, 0 claims, 0 waiting"
    );
    machine.ok("systemctl is-enabled gshared && gshare admin stage 3");
    let greeting =
        machine.ok("bash -ic '. /etc/profile.d/gshare.sh' 2>&1; cat /etc/profile.d/gshare.sh");
    assert!(greeting.contains("GPUs here are shared: gshare shell"));

    // The administrator's limits of a user apply to that user's claims too.
    machine.ok(
        "systemctl set-property --runtime user-1000.slice MemoryMax=300M TasksMax=77 CPUQuota=50%",
    );
    let mut raw = Raw::start(in_claim(&machine, "-g 0.25"));
    let caps = |machine: &Machine, slice: &str| {
        machine.ok(&format!(
            "systemctl show {slice} -p MemoryMax -p TasksMax -p CPUQuotaPerSecUSec -p MemoryHigh -p CPUWeight"
        ))
    };
    let user = caps(&machine, "user-1000.slice");
    has_all(&user, &["MemoryMax=314572800"]);
    assert_eq!(caps(&machine, "gshare-claims-1000.slice"), user);
    machine.ok("systemctl set-property --runtime user-1000.slice MemoryMax=200M && systemctl reload gshared");
    until("the changed limit is copied", SOON, || {
        let now = caps(&machine, "gshare-claims-1000.slice");
        now.contains("MemoryMax=209715200")
    });

    // The memory controller of this machine may be on cgroup v1; then that limit cannot apply, and doctor says so.
    let bound = machine
        .ok("cat /sys/fs/cgroup/cgroup.controllers")
        .contains("memory");
    let told = machine.ok("gshare doctor --json || true");
    assert_eq!(
        told.contains("MemoryMax and MemoryHigh of users' slices do not apply"),
        !bound,
        "{told}"
    );

    // Nothing that happens to the service affects a member.
    assert_eq!(raw.ask(&format!("alloc {}", 64 * MIB)), "ok 0");
    let member = machine.claims()[0]["pid"].as_u64().expect("a pid");
    let cgroup = machine.ok(&format!("cat /proc/{member}/cgroup"));
    let home = "gshare-claims-1000.slice/gshare-claims-1000.service/claim-1";
    assert!(cgroup.ends_with(home), "{cgroup}");
    assert_eq!(raw.ask("launch 1"), "ok 1");
    let (free, total) = raw.info();
    for (done, event) in [
        "systemctl restart gshared",
        "systemctl kill -s KILL gshared; until [ $(systemctl show gshared -p NRestarts --value) = 1 ]; do sleep 0.05; done; until systemctl is-active -q gshared; do sleep 0.05; done",
        "systemctl daemon-reload && systemctl daemon-reexec && systemctl restart gshared",
        "systemctl stop gshared && systemctl start gshared",
    ]
    .into_iter()
    .enumerate()
    {
        machine.ok(event);
        assert_eq!(raw.ask("launch 1"), format!("ok {}", done + 2), "{event}");
        assert_eq!(raw.info(), (free, total), "{event}");
        let found = machine.claims();
        assert_eq!(found.len(), 1, "{event}");
        assert_eq!(found[0]["pid"].as_u64(), Some(member), "{event}");
    }

    // A changed configuration: keys that can change do, the rest are named.
    let edit = "sed -i 's/^#reserve = .*/reserve = \"1 GiB\"/; s/^#tick = .*/tick = \"2s\"/' /etc/gshare/gshare.toml";
    machine.ok(&format!(
        "cp /etc/gshare/gshare.toml /run/shipped && {edit} && systemctl reload gshared"
    ));
    let log = until("the log says what changed", SOON, || {
        let log = machine.ok("journalctl -u gshared -o cat -n 20 --no-pager");
        log.contains("changed: memory.reserve").then_some(log)
    });
    has_all(&log, &["when the service restarts: service.tick"]);
    machine.ok("echo nonsense >> /etc/gshare/gshare.toml && systemctl reload gshared && systemctl is-active gshared");
    machine.ok("cp /run/shipped /etc/gshare/gshare.toml && systemctl reload gshared");

    // Set-up again: an edited configuration stays, the service is not disturbed.
    machine.ok("echo '# mine' >> /etc/gshare/gshare.toml");
    let pid = show(&machine, "gshared", "MainPID");
    let said = machine.ok("/root/gshare setup");
    has_all(&said, &["keep     /etc/gshare/gshare.toml"]);
    let changes = |l: &str| l.starts_with("install  ") || l.starts_with("replace  ");
    assert!(!said.lines().any(changes), "{said}");
    assert_eq!(show(&machine, "gshared", "MainPID"), pid);
    assert_eq!(raw.finish(), Some(0));

    // A control daemon of MPS outlives the service, but not the installation.
    machine.ok(
        "install -D /root/gshare /opt/sim/bin/nvidia-cuda-mps-control && \
         sed -i 's,^.mps.$,[gpu.0]\\nmode = \"mps\"\\n[mps]\\ncontrol = \"/opt/sim/bin/nvidia-cuda-mps-control\",' /etc/gshare/gshare.toml && \
         systemctl restart gshared",
    );
    let daemons = |machine: &Machine| {
        let found = machine.run("grep -ls nvidia-cuda-mps /proc/[0-9]*/comm | wc -l");
        String::from_utf8_lossy(&found.stdout).trim().to_owned()
    };
    until("MPS is up", SOON, || daemons(&machine) != "0");

    let said = machine.ok("gshare setup --undo");
    assert_eq!(daemons(&machine), "0", "{said}");
    has_all(&said, &["keep     /etc/gshare/gshare.toml (edited)"]);
    machine.ok("rm -r /etc/gshare");
    assert_eq!(difference(&before, &tree(&machine)), [""; 0]);
    assert_eq!(show(&machine, "gshared", "LoadState"), "not-found");
    assert!(!machine.path("/run/gshare").exists());
    assert!(!machine.path("/sys/fs/cgroup/gshare.slice").exists());
}

/// It prints the reason, gives an exit status for scripts, and changes nothing.
fn refuses_where_it_cannot_work(machine: &Machine) {
    let read_only = "mount --bind /usr/local /usr/local && mount -o remount,bind,ro /usr/local";
    for (around, code, why) in [
        (
            "cp /root/gshare /run/gshare-copy; runuser -u ada -- /run/gshare-copy setup".to_owned(),
            77,
            "needs root",
        ),
        (
            format!("unshare -m sh -c '{read_only} && /root/gshare setup'"),
            77,
            "is on a read-only file system; nothing was changed",
        ),
        (
            "unshare -m sh -c 'mount -t tmpfs tmpfs /run && /root/gshare setup'".to_owned(),
            69,
            "systemd is not running here",
        ),
        (
            "/root/gshare setup --undo".to_owned(),
            64,
            "nothing to undo",
        ),
        (
            "/root/gshare setup --prefix there".to_owned(),
            64,
            "not an absolute path",
        ),
    ] {
        let output = machine.run(&around);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{around}: {said}");
        assert!(said.contains(why), "{around}: {said}");
    }
    // Without systemd it still works: the files alone, below any directory.
    machine.ok("mkdir /run/image && /root/gshare setup --root /run/image >/dev/null && /run/image/usr/local/bin/gshare --version");
    machine.ok("/root/gshare setup --undo --root /run/image && [ -z \"$(ls -A /run/image)\" ]");
}

/// A service that is a claim: its command stays in the service's own cgroup, so that its log, its limits and its end
/// are as in any other service.
#[test]
fn a_claim_as_a_service_starts_stops_and_boots_like_any_other() {
    let test = "a_claim_as_a_service_starts_stops_and_boots_like_any_other";
    let Some(mut machine) = machine(test, true) else {
        return;
    };
    let unit = "[Unit]\nDescription=Inference\nAfter=gshared.service\nWants=gshared.service\n\
                [Service]\nUser=ada\nEnvironment=GSHARE_SIM_BOARD=/opt/sim/board\nExecStart=/usr/local/bin/gshare claim -g .6 --limit .9 --class inference -- \
                bash -c '/opt/raw_client < <(echo alloc 67108864; exec sleep 1000)'\n\
                Restart=always\nRestartSec=100ms\n[Install]\nWantedBy=multi-user.target\n";
    std::fs::write(machine.path("/etc/systemd/system/vllm.service"), unit).expect("written");
    machine.ok("/root/gshare setup && gshare admin stage 3");
    let granted = |machine: &Machine| {
        until("the service has its claim", SOON, || {
            let found = machine.claims();
            let main = show(machine, "vllm", "MainPID");
            let held = found.first()?["gpus"][0]["mem_charge"].as_u64()?;
            (found.len() == 1 && found[0]["pid"].as_u64() == main.parse().ok() && held > 64 * MIB)
                .then(|| {
                    (
                        main,
                        found[0]["class"].as_str().unwrap_or_default().to_owned(),
                    )
                })
        })
    };
    let journal = |machine: &Machine| machine.ok("journalctl -u vllm -o cat --no-pager");

    // Started without its service, it waits and says so.
    machine.ok("systemctl stop gshared && systemctl start --job-mode=ignore-dependencies vllm");
    until("it says that it waits", SOON, || {
        journal(&machine).contains("no service yet; waiting up to")
    });
    machine.ok("systemctl start gshared");
    let (main, class) = granted(&machine);
    assert_eq!(class, "inference");
    let cgroup = machine.ok(&format!("cat /proc/{main}/cgroup"));
    assert!(
        cgroup.contains("0::/system.slice/vllm.service\n")
            || cgroup.ends_with("0::/system.slice/vllm.service"),
        "{cgroup}"
    );
    // Its output is in its own log, including output after the grant.
    until("its output is its own", SOON, || {
        journal(&machine).contains("ok 0")
    });

    // A restart of gshared does not affect it; its own restart is a new claim.
    machine.ok("systemctl restart gshared");
    assert_eq!(granted(&machine).0, main);
    machine.ok("systemctl kill -s KILL --kill-who=main vllm");
    let again = until("it was restarted", SOON, || {
        let (again, _) = granted(&machine);
        (again != main).then_some(again)
    });

    // Stopping it ends the command, its children and the claim.
    let children = machine.ok("cat /sys/fs/cgroup/unified/system.slice/vllm.service/cgroup.procs");
    assert!(
        children.lines().count() >= 3 && children.contains(&again),
        "{children}"
    );
    machine.ok("systemctl stop vllm");
    for pid in children.lines() {
        assert!(
            !machine.path(&format!("/proc/{pid}")).exists(),
            "{pid} lives"
        );
    }
    until("its claim has ended", SOON, || machine.claims().is_empty());

    // Off and on: gshared comes first, and the service gets its claim by itself.
    machine.ok("systemctl enable --quiet vllm");
    machine.power_off();
    machine.start().expect("starts again");
    granted(&machine);
    let since =
        |unit: &str, what: &str| -> u64 { show(&machine, unit, what).parse().expect("a time") };
    let ready = since("gshared", "ActiveEnterTimestampMonotonic");
    assert!(ready < since("vllm", "ExecMainStartTimestampMonotonic"));
    assert!(ready < since("systemd-user-sessions", "ActiveEnterTimestampMonotonic"));
    // The machine's boots look like one to the journal: it waited only once.
    let waits = journal(&machine).matches("no service yet").count();
    assert_eq!(waits, 1);
    machine.ok("systemctl disable --quiet --now vllm && gshare setup --undo");
}

/// Users' requests to systemd, on the bus and with polkit's permission, affect no claim; and a bus that does not
/// answer delays only what needs it.
#[test]
fn systemd_is_no_way_around_a_claim_and_its_silence_stalls_nobody() {
    let test = "systemd_is_no_way_around_a_claim_and_its_silence_stalls_nobody";
    let Some(machine) = machine(test, false) else {
        return;
    };
    machine.ok(
        "useradd -m -u 1001 -s /bin/bash bob && loginctl enable-linger ada && /root/gshare setup && gshare admin stage 3",
    );
    let mut raw = Raw::start(in_claim(&machine, "-g 0.25"));
    assert_eq!(raw.ask("launch 1"), "ok 1");
    let member = machine.claims()[0]["pid"].as_u64().expect("a pid");
    let own = machine.ok(&format!("cat /proc/{member}/cgroup"));
    let manager = "busctl --timeout=5 call org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager";
    let (unit, slice) = ("gshare-claims-1000.service", "gshare-claims-1000.slice");
    for line in [
        "systemctl --no-ask-password stop gshared".to_owned(),
        format!("systemctl --no-ask-password kill -s KILL {unit}"),
        format!("systemctl --no-ask-password stop {slice}"),
        format!("systemctl --no-ask-password set-property --runtime {slice} MemoryMax=infinity"),
        format!("systemd-run --no-ask-password --slice={slice} true"),
        format!("{manager} StopUnit ss {unit} fail"),
        format!("{manager} AttachProcessesToUnit ssau {unit} / 1 {member}"),
        "busctl --timeout=5 call org.freedesktop.DBus / org.freedesktop.DBus RequestName su org.freedesktop.systemd1 4".to_owned(),
    ] {
        let output = machine.run(&format!("runuser -u ada -- {line}"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{line}");
        assert!(said.contains("Access denied"), "{line}: {said}");
    }
    assert_eq!(machine.ok(&format!("cat /proc/{member}/cgroup")), own);
    assert_eq!(raw.ask("launch 1"), "ok 2");

    let claim = |user: &str| {
        machine.command(&format!(
            "exec runuser -u {user} -- env GSHARE_SIM_BOARD=/opt/sim/board gshare claim -q -g .25 -- true"
        ))
    };
    let ended = |line: &str| -> Duration {
        let begun = Instant::now();
        machine.ok(line);
        begun.elapsed()
    };
    machine.ok("kill -STOP $(pidof dbus-daemon)");
    let mut waits = claim("bob").spawn().expect("runs");
    std::thread::sleep(Duration::from_millis(500));
    let others = ended("runuser -u ada -- gshare ps") + ended("runuser -u ada -- gshare ps");
    assert!(others < Duration::from_secs(2), "others wait: {others:?}");
    assert_eq!(
        claim("ada").status().expect("runs").code(),
        Some(0),
        "it needs nothing"
    );
    machine.ok("kill -CONT $(pidof dbus-daemon)");
    assert!(waits.wait().expect("ends").code().is_some());
    assert_eq!(claim("bob").status().expect("runs").code(), Some(0));
    // Without a bus the existing units are used, other users' claims get a tree, and the log says so.
    machine.ok("useradd -m -u 1002 eve; systemctl mask --runtime dbus.socket dbus.service; systemctl stop dbus.socket dbus.service; systemctl restart gshared");
    assert_eq!(claim("eve").status().expect("runs").code(), Some(0));
    assert_eq!(raw.ask("launch 1"), "ok 3");
    assert_eq!(machine.claims()[0]["members"], serde_json::json!([member]));
    assert_eq!(claim("ada").status().expect("runs").code(), Some(0));
    let log = machine.ok("journalctl -u gshared -o cat --no-pager");
    has_all(&log, &["go into a cgroup tree outside systemd"]);

    // Users may have systemd move their programs to their own manager's units, out of the claim's cgroup: they stay
    // members, also for a restarted service, and end with the claim.
    machine.ok("systemctl unmask --runtime dbus.socket dbus.service; systemctl start dbus; systemctl start user@1000");
    let (_, total) = raw.info();
    machine.ok(&format!(
        "runuser -u ada -- {manager} AttachProcessesToUnit ssau user@1000.service / 1 {member}"
    ));
    let now = machine.ok(&format!("cat /proc/{member}/cgroup"));
    has_all(&now, &["user@1000.service"]);
    for start in ["", "systemctl restart gshared"] {
        machine.ok(start);
        let (free, cap) = raw.info();
        assert_eq!(cap, total);
        let refused = raw.ask(&format!("alloc {}", free + 1));
        assert_eq!(refused, FULL);
        assert!(raw.ask("alloc 104857600").starts_with("ok"));
        // Longer than the interval at which all processes on the GPUs are looked up again.
        std::thread::sleep(Duration::from_secs(12));
        let seen = machine.claims();
        assert_eq!(seen.len(), 1, "{start}: {seen:?}");
        assert_eq!(seen[0]["members"], serde_json::json!([member]), "{start}");
        let log = machine.ok("journalctl -u gshared -o cat --no-pager");
        assert!(!log.contains("outside claims"), "{start}: {log}");
    }
    machine.ok("runuser -u ada -- gshare release c1");
    until("it ends with its claim", SOON, || {
        let lives = machine.ok(&format!("ls /proc | grep -cx {member} || true"));
        lives.trim() == "0" && machine.claims().is_empty()
    });
    raw.kill();
}

/// The package of this build; prints why if it cannot be made.
fn package(test: &str) -> Option<PathBuf> {
    // The tree that `packaging/build` makes for other profiles.
    let installed = Path::new(GSHARE).with_file_name("installed");
    let program = installed.join("bin/gshare");
    std::fs::create_dir_all(installed.join("bin")).expect("made");
    let _ = std::fs::remove_file(&program);
    std::fs::hard_link(GSHARE, &program).expect("linked");
    gshare_artifacts::lay_out(&installed.join(gshare_artifacts::BESIDE)).expect("laid out");
    std::fs::write(installed.with_file_name("licences.txt"), "").expect("written");
    let manual = installed.with_file_name("manual");
    let wrote = Command::new(GSHARE).arg("man").arg(manual).status();
    assert!(wrote.expect("gshare").success());
    let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join("gshare.deb");
    let made = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/deb"))
        .arg("gshare")
        .args([installed.parent().expect("a folder"), &to])
        .env("COMPRESSION", "none")
        .output()
        .expect("bash");
    let why = String::from_utf8_lossy(&made.stderr);
    if why.contains("dpkg-deb: command not found") {
        println!("skipped: {test} needs dpkg-deb");
        return None;
    }
    assert!(made.status.success(), "packaging/deb: {why}");
    Some(to)
}

#[test]
fn the_package_installs_upgrades_and_goes() {
    let test = "the_package_installs_upgrades_and_goes";
    let Some(deb) = package(test) else { return };
    let Some(mut machine) = machine(test, false) else {
        return;
    };
    machine.copy(&deb, "/root/gshare.deb");
    let before = tree(&machine);
    machine.ok("dpkg -i /root/gshare.deb");
    assert_eq!(show(&machine, "gshared", "ActiveState"), "active");
    machine
        .ok("systemctl is-enabled gshared && test -L /usr/bin/gshared && test -x /usr/bin/gshare && getcap /usr/lib/gshare/gshare-exec | grep cap_sys_admin");
    // Setup installs the same files as the package, in the package's places.
    let setup = machine.ok("/root/gshare setup --dry-run --prefix /usr --root /nowhere");
    let list = machine.ok("dpkg -L gshare");
    for line in setup
        .lines()
        .filter_map(|l| l.strip_prefix("install  /nowhere"))
        // Made by the package's script: packages carry no capabilities.
        .filter(|l| !l.ends_with("/gshare-exec"))
    {
        let path = line.split(" -> ").next().expect("a path");
        let path = path.replace("site-functions", "vendor-completions");
        let there = list.lines().any(|l| {
            l.trim_end_matches(".gz").replace("/usr/lib/", "/lib/")
                == path.replace("/usr/lib/", "/lib/")
        });
        assert!(there, "{path} is not in the package: {list}");
    }
    let said = machine.ok("gshare setup");
    has_all(&said, &["installed from a package"]);
    let refused = machine.run("gshare setup --undo");
    assert_eq!(refused.status.code(), Some(64));

    // It starts with the machine, before anybody can log in; and stays off if it was off.
    machine.ok("gshare admin off");
    machine.power_off();
    machine.start().expect("starts again");
    let status = machine.ok("gshare status");
    assert!(status.starts_with("gshare is OFF"), "{status}");
    machine.ok("gshare admin on");
    let since = |unit: &str| -> u64 {
        show(&machine, unit, "ActiveEnterTimestampMonotonic")
            .parse()
            .expect("a time")
    };
    assert!(since("gshared") < since("systemd-user-sessions"));

    assert_eq!(machine.ok("gshare admin stage").trim(), "stage 1 (observe)");
    machine.ok("gshare admin stage 3");
    let mut raw = Raw::start(in_claim(&machine, "-g 0.25"));
    assert_eq!(raw.ask("launch 1"), "ok 1");
    machine.ok(
        "cd /root && dpkg-deb -R gshare.deb tree && sed -i 's/^Version: .*/Version: 9.0-1/' tree/DEBIAN/control && \
         dpkg-deb -Znone -b tree newer.deb && rm -r tree && echo '# mine' >> /etc/gshare/gshare.toml",
    );
    // To the newer release and back to the older one.
    for (file, version, launches) in [("newer", "9.0-1", 2), ("gshare", "0.2.0-1", 3)] {
        let pid = show(&machine, "gshared", "MainPID");
        machine.ok(&format!("dpkg -i /root/{file}.deb"));
        let installed = machine.ok("dpkg-query -W -f '${Version}' gshare");
        assert_eq!(installed.trim(), version);
        assert_ne!(show(&machine, "gshared", "MainPID"), pid, "it restarts");
        assert_eq!(raw.ask("launch 1"), format!("ok {launches}"));
        assert_eq!(raw.ask("alloc 21474836480"), FULL, "its limit stands");
        assert_eq!(machine.claims().len(), 1);
    }
    machine.ok("rm /root/newer.deb");
    machine.ok("grep -q '# mine' /etc/gshare/gshare.toml && systemctl restart gshared");
    assert_eq!(machine.claims().len(), 1, "a restart kills no member");

    // Links in the state directory do not mislead the upgrade and the service; without them all is as before.
    machine.ok(
        "echo precious > /root/precious && cd /var/lib/gshare && rm -f history.db* && \
         for name in history.db gshare.db-journal; do ln -sf /root/precious $name; done && dpkg -i /root/gshare.deb",
    );
    until("it says what is wrong", SOON, || {
        let log = machine.ok("journalctl -u gshared -o cat -n 12 --no-pager");
        log.contains("cannot open the journal")
    });
    assert_eq!(machine.ok("cat /root/precious"), "precious");
    machine.ok(
        "rm -f /root/precious /var/lib/gshare/history.db* /var/lib/gshare/gshare.db-journal; \
         systemctl reset-failed gshared; systemctl restart gshared",
    );
    assert_eq!(machine.claims().len(), 1, "nothing is lost");

    machine.ok("dpkg --remove gshare");
    assert_eq!(raw.ask("launch 1"), "ok 4", "a member outlives the package");
    assert_eq!(raw.finish(), Some(0));
    machine.ok("dpkg --purge gshare");
    let left: Vec<String> = difference(&before, &tree(&machine))
        .into_iter()
        .filter(|line| !line.contains("var/lib/dpkg") && !line.contains("ld.so.cache"))
        .collect();
    assert_eq!(left, [""; 0]);
}

// A user's own service: `gshare daemon --user` by an ordinary account, without cgroups, without a runtime directory
// from a login, found by its clients at the usual place.

/// An account with a home, a simulated driver and a configuration that names it.
struct Account {
    dir: tempfile::TempDir,
    users: Users,
    service: Option<Child>,
}

fn open_dir(path: &Path) {
    std::fs::create_dir_all(path).expect("made");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("set");
}

impl Account {
    fn make() -> Self {
        let mut dir = tempfile::Builder::new();
        let dir = dir.permissions(std::fs::Permissions::from_mode(0o755));
        let account = Self {
            dir: dir.tempdir().expect("made"),
            users: Users::some(1),
            service: None,
        };
        account.furnish();
        account
    }

    fn uid(&self) -> u32 {
        self.users.uid(0)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn furnish(&self) {
        let sim = self.path("sim");
        open_dir(&sim);
        let board = Board::create(&sim.join("board"), &BoardSpec::new(&["rtx4090", "h100"]));
        drop(board.expect("made"));
        gshare_artifacts::stage_sim(&sim).expect("staged");
        let bin = self.path("bin");
        open_dir(&bin);
        support::copy_program(GSHARE, bin.join("gshare"));
        support::copy_program(example("raw_client"), bin.join("raw_client"));
        let config = self.path("home/.config/gshare");
        open_dir(&config);
        let uid = Some(self.uid());
        std::os::unix::fs::chown(self.path("home"), uid, None).expect("given");
        let text = format!(
            "[service]\ntick = \"1s\"\n[claims]\nleftover-grace = \"1s\"\n[driver]\nlibcuda = {:?}\nlibnvidia-ml = {:?}\n",
            sim.join("lib/libcuda.so.1"),
            sim.join("lib/libnvidia-ml.so.1"),
        );
        std::fs::write(config.join("gshare.toml"), text).expect("written");
    }

    /// The environment after `su`: no XDG_RUNTIME_DIR, a strict umask.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        command
            .args(["-c", "umask 077; exec \"$0\" \"$@\""])
            .arg(program)
            .env_clear()
            .env("HOME", self.path("home"))
            .env("PATH", "/usr/bin:/bin")
            .env("LD_LIBRARY_PATH", self.path("sim/lib"))
            .current_dir(self.path("home"));
        as_user(command, self.uid())
    }

    fn gshare(&self, args: &[&str]) -> Command {
        let mut command = self.command(&self.path("bin/gshare"));
        command.args(args);
        command
    }

    fn socket(&self) -> PathBuf {
        PathBuf::from(format!("/tmp/gshare-{}/gshared.sock", self.uid()))
    }

    fn start(&mut self) {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.path("log"))
            .expect("opened");
        let child = self
            .gshare(&["daemon", "--user"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.service = Some(child.expect("starts"));
        let end = Instant::now() + Duration::from_secs(20);
        while self.snapshot().is_none() {
            let log = std::fs::read_to_string(self.path("log")).unwrap_or_default();
            assert!(Instant::now() < end, "the service does not answer:\n{log}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn stop(&mut self, signal: Signal) {
        if let Some(mut child) = self.service.take() {
            kill(Pid::from_raw(child.id().cast_signed()), signal).expect("signalled");
            child.wait().expect("reaped");
        }
    }

    fn snapshot(&self) -> Option<Snapshot> {
        match Client::connect(&self.socket())
            .ok()?
            .call(&Call::Snapshot)
            .ok()?
        {
            Reply::Snapshot(snapshot) => Some(*snapshot),
            _ => None,
        }
    }

    fn claim(&self, flags: &[&str]) -> Raw {
        let mut command = self.gshare(&["claim", "-q"]);
        command
            .args(flags)
            .arg("--")
            .arg(self.path("bin/raw_client"));
        Raw::start(command)
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let _ = Command::new("pkill")
            .args(["-KILL", "-u", &self.uid().to_string()])
            .status();
        if let Some(mut child) = self.service.take() {
            let _ = child.wait();
        }
        if let Some(dir) = self.socket().parent() {
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

#[test]
fn a_users_own_service_holds_caps_and_finds_claims_again_without_cgroups() {
    root!("a_users_own_service_holds_caps_and_finds_claims_again_without_cgroups");
    let mut account = Account::make();
    account.start();
    let service = account.snapshot().and_then(|s| s.service).expect("served");
    assert_eq!(
        (service.mode.as_str(), service.uid),
        ("user", account.uid())
    );
    assert!(service.shim);

    // The cap holds; `release` at the end works by signals of the owner, without a cgroup.
    let mut raw = account.claim(&["-g", "0.25", "--gpu-ids", "0"]);
    let (room, cap) = raw.info();
    let refused = raw.ask(&format!("alloc {}", room + 1));
    assert_eq!(refused, FULL);
    assert_eq!(raw.ask("alloc 1048576"), "ok 0");

    // A claim made inside a claimed shell is its own: the nearest ancestor counts.
    let mut shell = account.gshare(&words("claim -q -g 0.5 --gpu-ids 0 -- sh -c"));
    shell
        .arg("\"$0\" claim -q -g 0.1 --gpu-ids 1 -- \"$1\"; exit 7")
        .arg(account.path("bin/gshare"))
        .arg(account.path("bin/raw_client"));
    let mut inner = Raw::start(shell);
    let snapshot = account.snapshot().expect("served");
    assert_eq!(snapshot.claims.len(), 3);
    let small = snapshot.claims.iter().find(|c| c.gpus[0].gpu == 1);
    assert_eq!(inner.info().1, small.expect("listed").gpus[0].mem_limit);

    // Found again after SIGKILL, with the same ledger.
    account.stop(Signal::SIGKILL);
    assert_eq!(raw.ask("alloc 1048576"), "ok 1");
    account.start();
    let snapshot = account.snapshot().expect("served");
    assert_eq!(snapshot.claims.len(), 3);
    let part = &claim_of(&snapshot, raw.pid()).expect("found again").gpus[0];
    let (free, total) = raw.info();
    assert_eq!((total, Some(total - free)), (cap, part.mem_charge));
    assert_eq!(inner.finish(), Some(7));
    let pid = raw.pid();
    until("only one claim is left", SOON, || {
        let claims = account.snapshot()?.claims;
        (claims.len() == 1 && claims[0].pid == Some(pid)).then_some(())
    });

    // Other users cannot even connect, and a second service is refused.
    let mut other = Command::new(account.path("bin/gshare"));
    let socket = account.socket();
    let other = other
        .arg("--socket")
        .arg(&socket)
        .arg("ps")
        .uid(65534)
        .gid(65534);
    assert!(!other.output().expect("runs").status.success());
    let second = account
        .gshare(&["daemon", "--user"])
        .output()
        .expect("runs");
    let text = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(
        !second.status.success() && text.contains("another gshare service"),
        "{text}"
    );
    let released = account
        .gshare(&["release", "--all"])
        .output()
        .expect("runs");
    assert!(released.status.success());
    until("the member ends", SOON, || {
        raw.child.try_wait().ok().flatten()
    });

    // A daemonized child has no ancestor in the claim: its registration identifies its claim, which continues until it
    // has freed the GPU.
    let fifo = account.path("home/stop");
    // Keeps the daemon's input open when the command has exited.
    let hold = support::pipe(&fifo);
    std::os::unix::fs::chown(&fifo, Some(account.uid()), None).expect("given");
    let script = "mkfifo out; setsid sh -c '\"$0\" < stop > out & exec true' \"$0\"; read line < out; echo \"$line\"";
    let mut command = account.gshare(&["claim", "-q", "-g", "0.25", "--", "sh", "-c", script]);
    command.arg(account.path("bin/raw_client"));
    let mut raw = Raw::spawn(command.stderr(Stdio::null()));
    assert_eq!(raw.line(), "ok ready");
    assert_eq!(raw.child.wait().expect("reaped").code(), Some(0));
    let ending = || {
        let snapshot = account.snapshot()?;
        let claim = snapshot.claims.first()?;
        let charged = claim.gpus[0].mem_charge? > 0 && claim.gpus[0].mem_used? > 0;
        (claim.state == ClaimState::Ending && charged).then_some(())
    };
    until(
        "the claim waits for the leftover",
        Duration::from_secs(5),
        ending,
    );
    drop(hold);
    until("it ends with the leftover", SOON, || {
        account.snapshot()?.claims.is_empty().then_some(())
    });
}

// `unclaimed = "deny"` on a machine with a real systemd: logind's own sessions, a real cron, a real atd.

/// Sessions as a display manager, a login at the console, and ssh make them: through PAM and logind.
const PAM: &str = "account required pam_permit.so\nauth required pam_permit.so\n\
                   session required pam_permit.so\nsession required pam_systemd.so\n";

/// A session of a user. Its service's environment has the variables that a display manager or sshd passes to logind.
fn session(machine: &Machine, name: &str, user: &str, told: &str, script: &str) {
    let unit = format!(
        "[Service]\nUser={user}\nPAMName=test-session\nEnvironment=GSHARE_SIM_BOARD=/opt/sim/board {told}\n\
         ExecStart=/bin/bash -c '{script}'\n"
    );
    let path = format!("/etc/systemd/system/{name}.service");
    std::fs::write(machine.path(&path), unit).expect("written");
}

/// The kernel's answer to an open of both GPUs, and the cgroup; with an argument, once that is the answer for the
/// first GPU, or after ten seconds. A program that all users can run.
const OPENING: &str = r#"#!/bin/bash
look() { for n in nvidia0 nvidia1; do { true <"/opt/sim/dev/$n"; } 2>&1 | sed 's/.*: //'; done; }
for i in {1..200}; do
    said=$(look)
    [ "${said%%$'\n'*}" = "${1-${said%%$'\n'*}}" ] && break
    sleep 0.05
done
echo "$said"
grep '^0::' /proc/self/cgroup
"#;

fn with_sessions(test: &str) -> Option<Machine> {
    let machine = Machine::boot(test, false)?;
    machine.simulate(&["rtx4090", "h100"]);
    machine.copy(Path::new(GSHARE), "/root/gshare");
    for name in ["raw_client", "Xorg"] {
        machine.copy(&example("raw_client"), &format!("/opt/{name}"));
    }
    let majors = Majors::free_on_this_machine().expect("free ones");
    make_stand_ins(&machine.path("/opt/sim/dev"), &majors, &[0, 1]).expect("made");
    std::fs::write(machine.path("/opt/opening"), OPENING).expect("written");
    std::fs::write(machine.path("/etc/pam.d/test-session"), PAM).expect("written");
    machine.ok("chmod 755 /opt/opening /opt/sim/dev && useradd -m -u 1001 -s /bin/bash bob && mkdir -m 1777 /run/told");
    let uvm = majors
        .uvm
        .map_or_else(String::new, |m| format!("uvm-major = {m}\n"));
    let config = format!(
        "[devices]\ndir = \"/opt/sim/dev\"\nnvidia-major = {}\n{uvm}[service]\ntick = \"0.2s\"\n[policy]\nunclaimed = \"adopt\"\n",
        majors.nvidia
    );
    std::fs::create_dir_all(machine.path("/etc/gshare")).expect("made");
    std::fs::write(machine.path("/etc/gshare/gshare.toml"), config).expect("written");
    machine.ok("/root/gshare setup >/dev/null && gshare admin stage 3");
    Some(machine)
}

/// The contents of a file in `/run/told`, once it has that many lines.
fn told(machine: &Machine, name: &str, lines: usize) -> Vec<String> {
    let path = machine.path(&format!("/run/told/{name}"));
    until(&format!("{name} has told"), Duration::from_secs(30), || {
        let text = std::fs::read_to_string(&path).ok()?;
        let found: Vec<String> = text.lines().map(str::to_owned).collect();
        (found.len() >= lines).then_some(found)
    })
}

fn unclaimed_row(machine: &Machine) -> String {
    // A service that hangs is a failure, not a wait.
    let text = machine.ok("timeout 10 gshare doctor --json || true");
    let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let rows = value["checks"].as_array().expect("rows");
    let row = rows.iter().find(|r| r["name"] == "unclaimed use");
    row.expect("a row")["detail"]
        .as_str()
        .expect("text")
        .to_owned()
}

#[test]
fn the_desktop_survives_deny_and_cron_at_and_ssh_are_stopped() {
    let test = "the_desktop_survives_deny_and_cron_at_and_ssh_are_stopped";
    let Some(machine) = with_sessions(test) else {
        return;
    };
    // A desktop at the screen and a login over ssh, both running a GPU program before deny is switched on.
    machine.ok("mkfifo -m 666 /run/told/desk.in /run/told/ssh.in");
    let run = |name: &str, program: &str| {
        format!("exec {program} <> /run/told/{name}.in > /run/told/{name}")
    };
    session(
        &machine,
        "desk",
        "bob",
        "XDG_SESSION_TYPE=x11 XDG_SESSION_CLASS=user XDG_SEAT=seat0",
        &run("desk", "/opt/Xorg"),
    );
    session(
        &machine,
        "ssh",
        "ada",
        "XDG_SESSION_TYPE=tty XDG_SESSION_CLASS=user",
        &run("ssh", "/opt/raw_client"),
    );
    machine.ok("systemctl daemon-reload && systemctl start desk ssh");
    assert_eq!(told(&machine, "desk", 1), ["ok ready"]);
    assert_eq!(told(&machine, "ssh", 1), ["ok ready"]);
    let cgroup = |unit: &str| {
        let pid = machine.ok(&format!("systemctl show {unit} -p MainPID --value"));
        machine.ok(&format!("grep ^0:: /proc/{pid}/cgroup"))
    };
    // logind and systemd have chosen these cgroups.
    let (desk, ssh) = (cgroup("desk"), cgroup("ssh"));
    assert!(
        desk.starts_with("0::/user.slice/user-1001.slice/session-"),
        "{desk}"
    );
    assert!(
        ssh.starts_with("0::/user.slice/user-1000.slice/session-"),
        "{ssh}"
    );
    let row = until("both are seen", SOON, || {
        let row = unclaimed_row(&machine);
        row.contains("stage 4 would block now").then_some(row)
    });
    assert!(
        row.contains("raw_client of ada") && !row.contains("Xorg"),
        "{row}"
    );

    // From now on it looks at the driver once a minute: changes in between must be noticed in another way.
    machine.ok(
        "sed -i 's/\"adopt\"/\"deny\"/; s/tick = .*/tick = \"60s\"/' /etc/gshare/gshare.toml && systemctl restart gshared",
    );
    let row = until("deny is in force", SOON, || {
        let row = unclaimed_row(&machine);
        row.contains("cannot open GPUs in").then_some(row)
    });
    let scope = desk.rsplit('/').next().expect("a scope");
    for place in ["user.slice", "cron.service", "atd.service"] {
        assert!(row.contains(place), "{place}: {row}");
    }
    has_all(&row, &[&format!("exempt: {scope}, user@1001.service")]);

    // The desktop's program and its session live on, and later programs of the session have the GPUs too.
    let ask = |name: &str, line: &str, lines: usize| {
        machine.ok(&format!("echo {line} > /run/told/{name}.in"));
        told(&machine, name, lines).last().cloned().expect("a line")
    };
    assert_eq!(ask("desk", "alloc 4194304", 2), "ok 0");
    assert_eq!(ask("desk", "launch 1", 3), "ok 1");
    let id = scope
        .trim_start_matches("session-")
        .trim_end_matches(".scope");
    let state = machine.ok(&format!(
        "loginctl show-session {id} -p State -p Type -p Seat"
    ));
    assert!(
        state.contains("Type=x11") && state.contains("Seat=seat0") && !state.contains("closing"),
        "{state}"
    );
    // Desktops start programs as services of the user's manager.
    machine.ok(
        "install -d -o bob ~bob/.config ~bob/.config/systemd ~bob/.config/systemd/user && \
         printf '[Service]\nExecStart=/bin/bash -c \"/opt/opening > /run/told/managed\"\n' > ~bob/.config/systemd/user/opening.service && \
         runuser -u bob -- env XDG_RUNTIME_DIR=/run/user/1001 systemctl --user start opening",
    );
    let managed = told(&machine, "managed", 3);
    assert_eq!(managed[..2], [OPEN; 2], "{managed:?}");
    assert!(managed[2].contains("/user@1001.service/"), "{managed:?}");

    // Services that keep the driver loaded, DCGM, container tools, and driver upgrades by the system can open GPUs.
    // An administrator's upgrade over ssh cannot, but may make nodes, as nvidia-modprobe does.
    for unit in [
        "nvidia-persistenced -p User=daemon",
        "nvidia-dcgm",
        "containerd",
        "docker",
        "nvidia-cdi-refresh",
        "unattended-upgrades",
    ] {
        let name = unit.split(' ').next().expect("a name");
        machine.ok(&format!(
            "systemd-run -q --wait --unit={unit} sh -c '/opt/opening > /run/told/{name}'"
        ));
        let opened = told(&machine, name, 3);
        assert_eq!(opened[..2], [OPEN; 2], "{name}: {opened:?}");
        assert_eq!(opened[2], format!("0::/system.slice/{name}.service"));
    }
    let script = "#!/bin/bash\n/opt/opening > /run/told/upgrade\ncd /opt/sim/dev\nrm nvidia0\n\
         mknod -m 666 nvidia0 c $1 0 && echo made >> /run/told/upgrade\n";
    std::fs::write(machine.path("/opt/upgrade"), script).expect("written");
    let major = machine.ok("printf %d 0x$(stat -c %t /opt/sim/dev/nvidia0)");
    machine.ok(&format!(
        "chmod 755 /opt/upgrade && systemd-run -q --wait --unit=upgrade --slice=user-0.slice /opt/upgrade {major}"
    ));
    let upgrade = told(&machine, "upgrade", 4);
    stopped(&upgrade, "/user.slice/user-0.slice/upgrade.service");
    assert_eq!(upgrade[3], "made");

    // Over ssh, running programs keep what they have open and nothing else.
    assert_eq!(ask("ssh", "launch 1", 2), "ok 1");
    session(
        &machine,
        "ssh2",
        "ada",
        "XDG_SESSION_TYPE=tty XDG_SESSION_CLASS=user",
        "/opt/opening > /run/told/ssh2; /opt/raw_client > /run/told/ssh2-cuda </dev/null 2>&1; exec sleep 1000",
    );
    machine.ok("systemctl daemon-reload && systemctl start ssh2");
    stopped(
        &told(&machine, "ssh2", 3),
        "/user.slice/user-1000.slice/session-",
    );
    let cuda = told(&machine, "ssh2-cuda", 1);
    assert!(cuda[0].starts_with("error "), "{cuda:?}");

    // A new desktop session while deny is in force opens its GPU as it starts.
    machine.ok("useradd -m -u 1002 carl");
    session(
        &machine,
        "desk2",
        "carl",
        "XDG_SESSION_TYPE=wayland XDG_SESSION_CLASS=user XDG_SEAT=seat0",
        &format!("/opt/opening \"{OPEN}\" > /run/told/desk2; exec sleep 1000"),
    );
    machine.ok("systemctl daemon-reload && systemctl start desk2");
    let opened = told(&machine, "desk2", 3);
    assert_eq!(opened[..2], [OPEN; 2], "{opened:?}");
    machine.ok("systemctl stop desk2");

    // Real cron: a user's table, whose jobs for the boot run when it starts, in a new cgroup.
    machine.ok(&format!(
        "echo 'PATH=/usr/local/bin:/usr/bin:/bin
@reboot /opt/opening \"{DENIED}\" > /run/told/cron 2>&1; /opt/raw_client > /run/told/cron-cuda 2>&1
@reboot gshare claim -q -g 0.1 --gpu-ids 1 -- /opt/opening > /run/told/cron-claim 2>&1' | crontab -u ada - && \
         rm -f /run/crond.reboot && systemctl restart cron"
    ));
    stopped(&told(&machine, "cron", 3), "/system.slice/cron.service");
    assert_eq!(told(&machine, "cron-cuda", 1), cuda);
    claimed(&told(&machine, "cron-claim", 3));
    // Real atd; on Debian its jobs are sessions of logind.
    machine.ok("systemctl restart atd");
    for job in [
        format!("/opt/opening '{DENIED}' > /run/told/at 2>&1"),
        "gshare claim -q -g 0.1 --gpu-ids 1 -- /opt/opening > /run/told/at-claim 2>&1".to_owned(),
    ] {
        std::fs::write(machine.path("/run/job"), job).expect("written");
        machine.ok("cd / && runuser -u ada -- at now < /run/job 2>&1");
    }
    stopped(&told(&machine, "at", 3), "");
    claimed(&told(&machine, "at-claim", 3));
}

/// No GPU could be opened, and the cgroup's path begins with `place`.
fn stopped(told: &[String], place: &str) {
    assert_eq!(told[..2], [DENIED; 2], "{told:?}");
    assert!(told[2].starts_with(&format!("0::{place}")), "{told:?}");
}

/// The second GPU could be opened: the command ran in a claim.
fn claimed(told: &[String]) {
    assert_eq!(told[..2], [DENIED, OPEN], "{told:?}");
    assert!(told[2].contains("/claim-"), "{told:?}");
}

// The downloads, on fresh machines without Rust: the tarball, the packages and the wheels of `packaging/build
// --packages`. `.ci/long packages` builds them and runs this.

/// Allocates 1 GiB, then 20 GiB, and prints the driver's answers: 2 is "out of memory".
const TRIES: &str = r#"
import ctypes as c
cuda, device, context, at = c.CDLL("libcuda.so.1"), c.c_int(), c.c_void_p(), c.c_uint64()
said = [cuda.cuInit(0), cuda.cuDeviceGet(c.byref(device), 0), cuda.cuCtxCreate_v2(c.byref(context), 0, device)]
print(said + [cuda.cuMemAlloc_v2(c.byref(at), c.c_size_t(gib << 30)) for gib in (1, 20)])
"#;

const UNLIMITED: &str = "[0, 0, 0, 0, 0]";

const LIMITED: &str = "[0, 0, 0, 0, 2]";

/// A line for the shell, as the user ada.
fn ada(line: &str) -> String {
    format!(
        "cd /home/ada && runuser -u ada -- env HOME=/home/ada GSHARE_SIM_BOARD=/opt/sim/board sh -c '{line}'"
    )
}

/// Records of `apt` and `dpkg` about removed packages are not gshare's.
fn left(before: &str, machine: &Machine) -> Vec<String> {
    let own = [
        "var/lib/dpkg",
        "var/lib/apt",
        "var/cache/apt",
        "var/cache/debconf",
        "ld.so.cache",
    ];
    let lines = difference(before, &tree(machine)).into_iter();
    lines
        .filter(|line| !own.iter().any(|own| line.contains(own)))
        .collect()
}

fn within(what: &str, since: Instant, seconds: u64) -> String {
    let took = since.elapsed();
    assert!(
        took <= Duration::from_secs(seconds),
        "{what}: {took:?}, not {seconds} s"
    );
    format!("{what} {:.1} s", took.as_secs_f64())
}

#[test]
#[ignore = "needs what packaging/build --packages makes: .ci/long packages"]
fn downloads_run_on_each_debian_and_leave_nothing() {
    let packages = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("dist/packages");
    for release in ["trixie", "bookworm", "bullseye"] {
        let machine = Machine::boot_debian(release, "downloads_run_on_each_debian", false);
        let machine = machine.expect("a machine of this release");
        machine.simulate(&["rtx4090"]);
        std::fs::create_dir(machine.path("/opt/get")).expect("made");
        for file in std::fs::read_dir(&packages).expect("packages").flatten() {
            let name = file.file_name().into_string().expect("text");
            machine.copy(&file.path(), &format!("/opt/get/{name}"));
        }
        machine.ok("! command -v cargo rustc gshare && cd /opt/get && chmod 755 . && sha256sum --check SHA256SUMS");
        std::fs::write(machine.path("/opt/tries.py"), TRIES).expect("written");

        let said = [
            the_demo(&machine),
            the_package(&machine),
            the_tarball(&machine),
            the_wheel(&machine),
        ];
        println!("result: {release}: {}", said.join(", "));
    }
}

/// From the file to the screen. The simulated driver of this machine is then the demo's, which runs with its older
/// glibc.
fn the_demo(machine: &Machine) -> String {
    let start = Instant::now();
    let line = "tar xzf /opt/get/gshare-*.tar.gz && stty rows 40 cols 120 && exec gshare-*/bin/gshare-demo";
    let demo = format!("script -qfc \"{line}\" /tmp/screen");
    let mut demo = machine.command(&ada(&demo));
    let mut demo = demo.stdin(Stdio::piped()).spawn().expect("nsenter runs");
    until("the demo's screen", Duration::from_secs(60), || {
        let screen = std::fs::read(machine.path("/tmp/screen")).unwrap_or_default();
        String::from_utf8_lossy(&screen).contains("FREE NOW")
    });
    let said = within("demo", start, 30);
    machine.ok("cp -f /tmp/gshare-*/sim/lib/* /opt/sim/lib/ && ldconfig");
    machine.run(&ada("kill -TERM -1"));
    let _ = demo.wait();
    machine.ok("rm -rf /home/ada/gshare-* /tmp/screen");
    assert_eq!(machine.ok(&ada("python3 /opt/tries.py")), UNLIMITED);
    said
}

/// Results of a program of ada's in a quarter of a GPU.
fn in_a_quarter(machine: &Machine) -> String {
    machine.ok(&ada("gshare claim -q -g 0.25 -- python3 /opt/tries.py"))
}

fn the_package(machine: &Machine) -> String {
    let before = tree(machine);
    let start = Instant::now();
    let stage =
        machine.ok("apt-get install -qq -y /opt/get/gshare_*.deb >&2 && gshare admin stage");
    assert_eq!(stage.lines().last(), Some("stage 1 (observe)"));
    let installed = within("stage 1 after apt install", start, 10);
    assert_eq!(in_a_quarter(machine), UNLIMITED);
    let claimed = within("first claim", start, 60);
    machine.ok("gshare admin stage 3 && apt-get install -qq -y /opt/get/gshare-demo_*.deb && gshare bench --help");
    assert_eq!(in_a_quarter(machine), LIMITED);
    machine.ok("ls /usr/share/doc/gshare/licences.txt /usr/share/doc/gshare/CHANGELOG.md*");
    machine.ok("apt-get purge -qq -y gshare gshare-demo");
    assert_eq!(left(&before, machine), [""; 0]);
    format!("{installed}, {claimed}")
}

fn the_tarball(machine: &Machine) -> String {
    let before = tree(machine);
    machine
        .ok("mkdir /opt/tar && tar -C /opt/tar --strip-components 1 -xzf /opt/get/gshare-*.tar.gz");
    let start = Instant::now();
    machine.ok("/opt/tar/bin/gshare setup && gshare admin stage | grep -x \"stage 1 (observe)\"");
    let said = within("setup of the tarball", start, 30);
    machine.ok("gshare admin stage 3");
    assert_eq!(in_a_quarter(machine), LIMITED);
    machine.ok("gshare setup --undo");
    assert_eq!(left(&before, machine), [""; 0]);
    said
}

/// Cooperative limits for a user without root.
fn the_wheel(machine: &Machine) -> String {
    let start = Instant::now();
    machine.ok(&ada(
        "python3 -m venv venv && venv/bin/pip install -q --no-index --find-links /opt/get \"gshare[demo]\" >&2",
    ));
    let said = within("pip install", start, 60);
    let service = "venv/bin/gshare daemon --user";
    let mut service = machine
        .command(&ada(&format!("exec {service}")))
        .spawn()
        .expect("nsenter runs");
    until("the service answers", SOON, || {
        machine.run(&ada("venv/bin/gshare status")).status.success()
    });
    let claim = "venv/bin/gshare claim -q -g 0.25 -- python3 /opt/tries.py";
    assert_eq!(machine.ok(&ada(claim)), LIMITED);
    assert_eq!(machine.ok(&ada("python3 /opt/tries.py")), UNLIMITED);
    machine.ok(&ada("venv/bin/gshare demo --help"));
    machine.run(&ada("kill -TERM -1"));
    let _ = service.wait();
    said
}

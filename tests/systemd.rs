//! gshare on machines with a real systemd: set up, restarted, in units, taken away again.

use crate::support;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use support::machine::Machine;
use support::{GSHARE, Raw, example, until};

const MIB: u64 = 1 << 20;

/// A machine with two simulated GPUs, the program in `/root` and a client in `/opt`.
fn machine(test: &str, hybrid: bool) -> Option<Machine> {
    let machine = Machine::boot(test, hybrid)?;
    machine.simulate(&["rtx4090", "h100"]);
    machine.copy(Path::new(GSHARE), "/root/gshare");
    machine.copy(&example("raw_client"), "/opt/raw_client");
    Some(machine)
}

/// Everything on the machine that a reboot keeps: kind, mode, owner, and of files size, time and, where
/// anything is installed, contents. What systemd itself writes is left out.
pub(crate) fn tree(machine: &Machine) -> String {
    machine.ok(
        "cd / && skip='-path var/lib/systemd -prune -o -path var/cache/ldconfig -prune -o' && \
         find etc usr root home var/lib var/cache -xdev $skip \
            -type f -printf '%p %m %U %G %s %T@\\n' -o -printf '%p %y %m %U %G %l\\n' | sort && \
         find etc usr/local var/lib -xdev $skip -type f -print0 | xargs -0 sha256sum | sort -k2",
    )
}

/// The lines that two trees do not share.
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

/// The processes of claims, as the service names them.
fn claims(machine: &Machine) -> Vec<serde_json::Value> {
    let output = machine.run("gshare ps --json");
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    value["claims"].as_array().cloned().unwrap_or_default()
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
    assert!(shown.contains("install  /usr/local/bin/gshare"), "{shown}");
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

    // The administrator's limits of a user hold for that user's claims too.
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
    assert!(user.contains("MemoryMax=314572800"), "{user}");
    assert_eq!(caps(&machine, "gshare-claims-1000.slice"), user);
    machine.ok("systemctl set-property --runtime user-1000.slice MemoryMax=200M && systemctl reload gshared");
    until(
        "the changed limit is copied",
        Duration::from_secs(10),
        || {
            let now = caps(&machine, "gshare-claims-1000.slice");
            now.contains("MemoryMax=209715200").then_some(())
        },
    );

    // The memory controller of this machine may be on cgroup v1; then that limit cannot bind, and it is said.
    let bound = machine
        .ok("cat /sys/fs/cgroup/cgroup.controllers")
        .contains("memory");
    let told = machine.ok("gshare doctor --json || true");
    assert_eq!(
        told.contains("MemoryMax and MemoryHigh of users' slices do not apply"),
        !bound,
        "{told}"
    );

    // Nothing that happens to the service touches a member.
    assert_eq!(raw.ask(&format!("alloc {}", 64 * MIB)), "ok 0");
    let member = claims(&machine)[0]["pid"].as_u64().expect("a pid");
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
        let found = claims(&machine);
        assert_eq!(found.len(), 1, "{event}");
        assert_eq!(found[0]["pid"].as_u64(), Some(member), "{event}");
    }

    // A changed configuration: what can change does, the rest is named.
    let edit = "sed -i 's/^#reserve = .*/reserve = \"1 GiB\"/; s/^#tick = .*/tick = \"2s\"/' /etc/gshare/gshare.toml";
    machine.ok(&format!(
        "cp /etc/gshare/gshare.toml /run/shipped && {edit} && systemctl reload gshared"
    ));
    let log = until("the log says what changed", Duration::from_secs(10), || {
        let log = machine.ok("journalctl -u gshared -o cat -n 20 --no-pager");
        log.contains("changed: memory.reserve").then_some(log)
    });
    assert!(
        log.contains("when the service restarts: service.tick"),
        "{log}"
    );
    machine.ok("echo nonsense >> /etc/gshare/gshare.toml && systemctl reload gshared && systemctl is-active gshared");
    machine.ok("cp /run/shipped /etc/gshare/gshare.toml && systemctl reload gshared");

    // Set-up again: an edited configuration stays, the service is not disturbed.
    machine.ok("echo '# mine' >> /etc/gshare/gshare.toml");
    let pid = show(&machine, "gshared", "MainPID");
    let said = machine.ok("/root/gshare setup");
    assert!(said.contains("keep     /etc/gshare/gshare.toml"), "{said}");
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
    until("MPS is up", Duration::from_secs(20), || {
        (daemons(&machine) != "0").then_some(())
    });

    let said = machine.ok("gshare setup --undo");
    assert_eq!(daemons(&machine), "0", "{said}");
    assert!(
        said.contains("keep     /etc/gshare/gshare.toml (edited)"),
        "{said}"
    );
    machine.ok("rm -r /etc/gshare");
    assert_eq!(difference(&before, &tree(&machine)), [""; 0]);
    assert_eq!(show(&machine, "gshared", "LoadState"), "not-found");
    assert!(!machine.path("/run/gshare").exists());
    assert!(!machine.path("/sys/fs/cgroup/gshare.slice").exists());
}

/// Says why, with the exit status that scripts go by, and changes nothing.
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
    // Without systemd there is a way still: the files alone, below any directory.
    machine.ok("mkdir /run/image && /root/gshare setup --root /run/image >/dev/null && /run/image/usr/local/bin/gshare --version");
    machine.ok("/root/gshare setup --undo --root /run/image && [ -z \"$(ls -A /run/image)\" ]");
}

/// A service that is a claim: its command stays in the service's own cgroup, so that its log, its limits and
/// its end are as in any other service.
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
        until("the service has its claim", Duration::from_secs(20), || {
            let found = claims(machine);
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
    until("it says that it waits", Duration::from_secs(10), || {
        journal(&machine)
            .contains("no service yet; waiting up to")
            .then_some(())
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
    // Its output is in its own log, also what it said after the grant.
    until("its output is its own", Duration::from_secs(10), || {
        journal(&machine).contains("ok 0").then_some(())
    });

    // A restart of gshared is nothing to it; its own restart is a new claim.
    machine.ok("systemctl restart gshared");
    assert_eq!(granted(&machine).0, main);
    machine.ok("systemctl kill -s KILL --kill-who=main vllm");
    let again = until("it was restarted", Duration::from_secs(20), || {
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
    until("its claim has ended", Duration::from_secs(10), || {
        claims(&machine).is_empty().then_some(())
    });

    // Off and on: gshared comes first, and the service has its claim without anybody's help.
    machine.ok("systemctl enable --quiet vllm");
    machine.power_off();
    machine.start().expect("starts again");
    granted(&machine);
    let since =
        |unit: &str, what: &str| -> u64 { show(&machine, unit, what).parse().expect("a time") };
    let ready = since("gshared", "ActiveEnterTimestampMonotonic");
    assert!(ready < since("vllm", "ExecMainStartTimestampMonotonic"));
    assert!(ready < since("systemd-user-sessions", "ActiveEnterTimestampMonotonic"));
    // The machine's boots are one to the journal: it waited that once only.
    let waits = journal(&machine).matches("no service yet").count();
    assert_eq!(waits, 1);
    machine.ok("systemctl disable --quiet --now vllm && gshare setup --undo");
}

/// What users may ask of systemd, on the bus and by polkit's leave, touches no claim; and a bus that does not answer keeps
/// nobody waiting but who needs it.
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
    let member = claims(&machine)[0]["pid"].as_u64().expect("a pid");
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
    // Without a bus the units that are there are used, other users' claims get a tree, and the log says so.
    machine.ok("useradd -m -u 1002 eve; systemctl mask --runtime dbus.socket dbus.service; systemctl stop dbus.socket dbus.service; systemctl restart gshared");
    assert_eq!(claim("eve").status().expect("runs").code(), Some(0));
    assert_eq!(raw.ask("launch 1"), "ok 3");
    assert_eq!(claims(&machine)[0]["members"], serde_json::json!([member]));
    assert_eq!(claim("ada").status().expect("runs").code(), Some(0));
    let log = machine.ok("journalctl -u gshared -o cat --no-pager");
    assert!(
        log.contains("go into a cgroup tree outside systemd"),
        "{log}"
    );

    // Users may have systemd move programs of theirs to their own manager's units, so out of the claim's cgroup: members they
    // stay, also for a service that starts afterwards, and end with the claim.
    machine.ok("systemctl unmask --runtime dbus.socket dbus.service; systemctl start dbus; systemctl start user@1000");
    let (_, total) = raw.info();
    machine.ok(&format!(
        "runuser -u ada -- {manager} AttachProcessesToUnit ssau user@1000.service / 1 {member}"
    ));
    let now = machine.ok(&format!("cat /proc/{member}/cgroup"));
    assert!(now.contains("user@1000.service"), "{now}");
    for start in ["", "systemctl restart gshared"] {
        machine.ok(start);
        let (free, cap) = raw.info();
        assert_eq!(cap, total);
        let refused = raw.ask(&format!("alloc {}", free + 1));
        assert_eq!(refused, "error 2 CUDA_ERROR_OUT_OF_MEMORY");
        assert!(raw.ask("alloc 104857600").starts_with("ok"));
        // Longer than all processes on the GPUs are looked up anew.
        std::thread::sleep(Duration::from_secs(12));
        let seen = claims(&machine);
        assert_eq!(seen.len(), 1, "{start}: {seen:?}");
        assert_eq!(seen[0]["members"], serde_json::json!([member]), "{start}");
        let log = machine.ok("journalctl -u gshared -o cat --no-pager");
        assert!(!log.contains("outside claims"), "{start}: {log}");
    }
    machine.ok("runuser -u ada -- gshare release c1");
    until("it ends with its claim", Duration::from_secs(20), || {
        let lives = machine.ok(&format!("ls /proc | grep -cx {member} || true"));
        (lives.trim() == "0" && claims(&machine).is_empty()).then_some(())
    });
    raw.kill();
}

/// The package of this build; says why where it cannot be made.
fn package(test: &str) -> Option<std::path::PathBuf> {
    // The tree that `packaging/build` makes of another profile.
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
    let made = Command::new("cargo")
        .args([
            "deb",
            "--no-build",
            "--no-strip",
            "--fast",
            "--profile",
            "dev",
            "--output",
        ])
        .arg(&to)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output();
    match made {
        Ok(output) if output.status.success() => Some(to),
        Ok(output) => {
            let why = String::from_utf8_lossy(&output.stderr);
            if why.contains("no such command") {
                println!("skipped: {test} needs cargo-deb");
                return None;
            }
            panic!("cargo deb: {why}");
        }
        Err(error) => {
            println!("skipped: {test} needs cargo: {error}");
            None
        }
    }
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
    // What setup installs is what the package installs, in the package's places.
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
    assert!(said.contains("installed from a package"), "{said}");
    let refused = machine.run("gshare setup --undo");
    assert_eq!(refused.status.code(), Some(64));

    // It comes back with the machine, before anybody can log in.
    machine.power_off();
    machine.start().expect("starts again");
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
    let pid = show(&machine, "gshared", "MainPID");
    machine.ok("echo '# mine' >> /etc/gshare/gshare.toml && dpkg -i /root/gshare.deb");
    assert_ne!(
        show(&machine, "gshared", "MainPID"),
        pid,
        "an upgrade restarts"
    );
    assert_eq!(raw.ask("launch 1"), "ok 2");
    assert_eq!(claims(&machine).len(), 1);
    machine.ok("grep -q '# mine' /etc/gshare/gshare.toml && systemctl restart gshared");
    assert_eq!(claims(&machine).len(), 1, "a restart kills no member");

    // Links in the state directory lead the upgrade and the service nowhere; without them all is as it was.
    machine.ok(
        "echo precious > /root/precious && cd /var/lib/gshare && rm -f history.db* && \
         for name in history.db gshare.db-journal; do ln -sf /root/precious $name; done && dpkg -i /root/gshare.deb",
    );
    until("it says what is wrong", Duration::from_secs(10), || {
        let log = machine.ok("journalctl -u gshared -o cat -n 12 --no-pager");
        log.contains("cannot open the journal").then_some(())
    });
    assert_eq!(machine.ok("cat /root/precious"), "precious");
    machine.ok(
        "rm -f /root/precious /var/lib/gshare/history.db* /var/lib/gshare/gshare.db-journal; \
         systemctl reset-failed gshared; systemctl restart gshared",
    );
    assert_eq!(claims(&machine).len(), 1, "nothing is lost");

    machine.ok("dpkg --remove gshare");
    assert_eq!(raw.ask("launch 1"), "ok 3", "a member outlives the package");
    assert_eq!(raw.finish(), Some(0));
    machine.ok("dpkg --purge gshare");
    let left: Vec<String> = difference(&before, &tree(&machine))
        .into_iter()
        .filter(|line| !line.contains("var/lib/dpkg") && !line.contains("ld.so.cache"))
        .collect();
    assert_eq!(left, [""; 0]);
}

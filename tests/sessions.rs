//! `unclaimed = "deny"` on a machine with a real systemd: logind's own sessions, a real cron, a real atd.

use crate::support;

use std::path::Path;
use std::time::Duration;

use gshare_enforcer::nodes::{Majors, make_stand_ins};
use support::machine::Machine;
use support::{GSHARE, example, until};

const SOON: Duration = Duration::from_secs(20);
const DENIED: &str = "Operation not permitted";
/// The open reached the device, and no driver is there.
const OPEN: &str = "No such device or address";

/// Sessions as a display manager, a login at the console, and ssh make them: through PAM and logind.
const PAM: &str = "account required pam_permit.so\nauth required pam_permit.so\n\
                   session required pam_permit.so\nsession required pam_systemd.so\n";

/// A session of a user: its service's environment is what a display manager or sshd tells logind.
fn session(machine: &Machine, name: &str, user: &str, told: &str, script: &str) {
    let unit = format!(
        "[Service]\nUser={user}\nPAMName=test-session\nEnvironment=GSHARE_SIM_BOARD=/opt/sim/board {told}\n\
         ExecStart=/bin/bash -c '{script}'\n"
    );
    let path = format!("/etc/systemd/system/{name}.service");
    std::fs::write(machine.path(&path), unit).expect("written");
}

/// What the kernel says to whoever opens both GPUs, and from which cgroup; with an argument, once it says that
/// of the first GPU, or after ten seconds. A program that all users can run.
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

fn machine(test: &str) -> Option<Machine> {
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

/// What somebody wrote to a file in `/run/told`, once it has that many lines.
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
    let Some(machine) = machine(test) else { return };
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
    // These are logind's words and systemd's cgroups.
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
        row.contains("deny would stop now").then_some(row)
    });
    assert!(
        row.contains("raw_client of ada") && !row.contains("Xorg"),
        "{row}"
    );

    // From now on it looks at the driver once a minute: what comes in between must be noticed by itself.
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
    assert!(
        row.contains(&format!("exempt: {scope}, user@1001.service")),
        "{row}"
    );

    // The desktop's program and its session live on, and what the session starts anew has the GPUs too.
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

    // Over ssh, what runs keeps what it has open and nothing else.
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

    // A desktop that comes while deny is in force opens its GPU as it starts.
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

    // Real cron: a user's table, whose jobs for the boot run when it starts, in a cgroup that is new then.
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

/// No GPU could be opened, from a cgroup that begins so.
fn stopped(told: &[String], place: &str) {
    assert_eq!(told[..2], [DENIED; 2], "{told:?}");
    assert!(told[2].starts_with(&format!("0::{place}")), "{told:?}");
}

/// The second GPU could be opened: the command ran in a claim.
fn claimed(told: &[String]) {
    assert_eq!(told[..2], [DENIED, OPEN], "{told:?}");
    assert!(told[2].contains("/claim-"), "{told:?}");
}

//! Attempts of an ordinary user to bypass the limits.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::support::users::as_user;
use super::support::{Raw, claim_of, until};
use super::{claim, client, desk, held, said};
use crate::support::{FULL, SOON};
use gshare::station::Station;

/// Compiles a C program into the station's directory; `None` without a compiler.
pub(crate) fn compile(
    station: &Station,
    name: &str,
    source: &str,
    flags: &[&str],
) -> Option<PathBuf> {
    let out = station.dir().join("bin").join(name);
    let file = station.dir().join(format!("{name}.c"));
    std::fs::write(&file, source).expect("written");
    let mut gcc = Command::new("gcc");
    gcc.arg("-o").arg(&out).arg(&file).args(flags).arg("-ldl");
    let output = gcc.stderr(Stdio::piped()).output().ok()?;
    assert!(output.status.success(), "{}", said(&output).1);
    std::fs::set_permissions(&out, std::fs::Permissions::from_mode(0o755)).expect("set");
    Some(out)
}

/// Asks the driver for its memory by other ways than `dlopen` of the name.
pub(crate) const DOORS: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
typedef int (*init_t)(unsigned);
typedef int (*get_t)(int *, int);
typedef int (*make_t)(void **, unsigned, int);
typedef int (*info_t)(size_t *, size_t *);
int main(int argc, char **argv) {
    void *from = RTLD_NEXT;
    if (!strcmp(argv[1], "open")) from = dlopen(argv[2], RTLD_NOW);
    if (!strcmp(argv[1], "space")) from = dlmopen(LM_ID_NEWLM, argv[2], RTLD_NOW);
    if (!strcmp(argv[1], "next")) dlopen(argv[2], RTLD_NOW | RTLD_GLOBAL);
    if (!from && strcmp(argv[1], "next")) { puts(dlerror()); return 2; }
    init_t init = (init_t)dlsym(from, "cuInit");
    make_t make = (make_t)dlsym(from, "cuCtxCreate_v2");
    info_t info = (info_t)dlsym(from, "cuMemGetInfo_v2");
    if (!init || !make || !info) { puts(dlerror()); return 3; }
    void *context; size_t free = 0, total = 0;
    int a = init(0), b = a ? 0 : make(&context, 0, 0), c = a || b ? 0 : info(&free, &total);
    printf("%d %d %d %zu\n", a, b, c, total);
    fflush(stdout);
    getchar();
    return 0;
}
"#;

fn driver(station: &Station) -> String {
    let path = station.sim_dir().join("lib/libcuda.so.1");
    path.display().to_string()
}

#[test]
fn the_environment_is_no_way_around() {
    let Some((users, station)) = desk("the_environment_is_no_way_around") else {
        return;
    };
    let client = client(&station);
    let path = format!(
        "LD_LIBRARY_PATH={}",
        station.sim_dir().join("lib").display()
    );
    for around in [
        vec![
            "env",
            "-u",
            "GSHARE_CLAIM_ID",
            "-u",
            "GSHARE_SOCKET",
            &client,
        ],
        vec![
            "env",
            "GSHARE_SOCKET=/nowhere",
            "GSHARE_CLAIM_ID=999",
            &client,
        ],
        vec!["env", "-i", &path, &client],
    ] {
        held(&station, claim(&station, users.uid(0), &around));
    }
    // Without a library path only the full name leads to a driver outside the loader's directories.
    let driver = driver(&station);
    held(
        &station,
        claim(
            &station,
            users.uid(0),
            &["env", "-u", "LD_LIBRARY_PATH", &client, &driver],
        ),
    );
    held(
        &station,
        claim(&station, users.uid(0), &["env", "-i", &client, &driver]),
    );
}

#[test]
fn no_name_of_the_library_is_a_way_around() {
    let Some((users, station)) = desk("no_name_of_the_library_is_a_way_around") else {
        return;
    };
    let client = client(&station);
    let lib = station.sim_dir().join("lib");
    let link = station.dir().join("own-name.so");
    std::os::unix::fs::symlink(lib.join("libcuda.so.1"), &link).expect("linked");
    for name in ["libcuda.so.1", "libcuda.so", "../lib/./libcuda.so.1"] {
        let path = lib.join(name).display().to_string();
        held(&station, claim(&station, users.uid(0), &[&client, &path]));
    }
    for name in ["libcuda.so", &link.display().to_string()] {
        held(&station, claim(&station, users.uid(0), &[&client, name]));
    }
}

#[test]
fn no_door_of_the_loader_is_a_way_around() {
    let Some((users, station)) = desk("no_door_of_the_loader_is_a_way_around") else {
        return;
    };
    let Some(doors) = compile(&station, "doors", DOORS, &[]) else {
        println!("skipped: no C compiler");
        return;
    };
    let fixed = compile(&station, "fixed", DOORS, &["-static"]).expect("compiled");
    let (doors, fixed) = (doors.display().to_string(), fixed.display().to_string());
    let driver = driver(&station);
    let loader = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"]
        .into_iter()
        .find(|path| Path::new(path).exists());
    let mut tries = vec![
        vec![doors.as_str(), "next", &driver],
        vec![&doors, "space", &driver],
        vec![&doors, "open", &driver],
        vec![&fixed, "open", &driver],
    ];
    tries.extend(loader.map(|loader| vec![loader, "--inhibit-cache", &doors, "open", &driver]));
    for words in tries {
        let mut command = claim(&station, users.uid(0), &words);
        let mut raw = Raw::spawn(&mut command);
        let line = raw.line();
        // A loader without threads of its own may not get through the library's start: then nothing runs.
        if line.is_empty() && words[0] == fixed {
            assert!(!raw.child.wait().expect("ends").success());
            continue;
        }
        let cap = super::cap(&station, raw.pid());
        assert_eq!(line, format!("0 0 0 {cap}"), "{words:?}");
    }
}

#[test]
fn no_new_process_is_a_way_around() {
    let Some((users, station)) = desk("no_new_process_is_a_way_around") else {
        return;
    };
    let client = client(&station);
    // A new session, an orphaned child, both at once.
    let twice = format!("(setsid {client} <&3 >&4 &) &");
    let alone = format!("exec 3<&0 4>&1; {twice} sleep 1000 & wait");
    for words in [vec!["setsid", "--wait", &client], vec!["sh", "-c", &alone]] {
        let mut raw = Raw::start(claim(&station, users.uid(0), &words));
        let cap = super::cap(&station, raw.pid());
        assert_eq!(raw.info().1, cap, "{words:?}");
        let snapshot = station.snapshot().expect("served");
        let members = &claim_of(&snapshot, raw.pid()).expect("listed").members;
        assert!(!members.is_empty(), "{words:?}");
    }
}

#[test]
fn other_namespaces_and_other_identities_are_no_way_around() {
    let Some((users, station)) = desk("other_namespaces_and_other_identities_are_no_way_around")
    else {
        return;
    };
    let client = client(&station);
    let driver = driver(&station);
    let outside = std::process::id().to_string();
    for words in [
        vec!["nsenter", "-m", "-t", &outside, &client, &driver],
        vec![
            "unshare", "-Ur", "nsenter", "-m", "-t", &outside, &client, &driver,
        ],
        vec!["umount", &driver],
        vec!["unshare", "-Urm", "umount", &driver],
    ] {
        let output = claim(&station, users.uid(0), &words)
            .output()
            .expect("runs");
        let (told, why) = said(&output);
        assert!(
            !output.status.success() && told.is_empty(),
            "{words:?}: {told} {why}"
        );
    }
    // The effect of `sudo -u self`: a program of root's that becomes the user again.
    let become_self = station.dir().join("bin/become");
    std::fs::copy("/usr/bin/setpriv", &become_self).expect("copied");
    std::fs::set_permissions(&become_self, std::fs::Permissions::from_mode(0o4755)).expect("set");
    let become_self = become_self.display().to_string();
    let uid = users.uid(0).to_string();
    let words = [
        &become_self,
        "--reuid",
        &uid,
        "--regid",
        &uid,
        "--clear-groups",
        "--",
        &client,
        &driver,
    ];
    held(&station, claim(&station, users.uid(0), &words));
}

/// The loader ignores the library path for a set-user-ID program; the driver's own file is the library anyway.
#[test]
fn a_program_with_the_set_user_id_bit_is_no_way_around() {
    let Some((users, station)) = desk("a_program_with_the_set_user_id_bit_is_no_way_around") else {
        return;
    };
    let driver = driver(&station);
    for owner in [0, users.uid(0)] {
        let program = station.dir().join(format!("bin/set-{owner}"));
        std::fs::copy(client(&station), &program).expect("copied");
        std::os::unix::fs::chown(&program, Some(owner), None).expect("given");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).expect("set");
        let program = program.display().to_string();
        held(
            &station,
            claim(&station, users.uid(0), &[&program, &driver]),
        );
        // It finds the driver by its full name only: the environment's path is ignored when the bit changes the user.
        let mut by_path = claim(&station, users.uid(0), &[&program]);
        let output = by_path.stdin(Stdio::null()).output().expect("runs");
        assert_eq!(
            said(&output).0.contains("ok ready"),
            owner != 0,
            "{output:?}"
        );
    }
}

#[test]
fn a_process_that_was_taken_out_of_its_claim_gets_no_gpu() {
    let Some((users, station)) = desk("a_process_that_was_taken_out_of_its_claim_gets_no_gpu")
    else {
        return;
    };
    let client = client(&station);
    let script = format!("echo here; read go; exec {client}");
    let mut raw = Raw::spawn(&mut claim(&station, users.uid(0), &["sh", "-c", &script]));
    assert_eq!(raw.line(), "here");
    // Like pam_systemd for `su -`: root puts the process into a session of its own.
    let own = std::fs::read_to_string("/proc/self/cgroup").expect("read");
    let own = gshare_enforcer::cgroup::v2_path(&own)
        .expect("there is one")
        .to_owned();
    let mount = gshare_enforcer::cgroup::Mount::find().expect("mounted");
    let dir = mount.dir_of(&own).expect("below the mount");
    std::fs::write(dir.join("cgroup.procs"), raw.pid().to_string()).expect("moved");
    assert_eq!(raw.ask("go"), "error 800 CUDA_ERROR_NOT_PERMITTED");
}

/// Tries to trace a process and prints the kernel's answer.
const TRACE: &str = r#"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char **argv) {
    if (!strcmp(argv[1], "attach")) {
        int e = ptrace(PTRACE_ATTACH, atoi(argv[2]), 0, 0) ? errno : 0;
        puts(e ? strerror(e) : "attached");
        return 0;
    }
    pid_t child = fork();
    if (!child) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        execvp(argv[2], argv + 2);
        _exit(99);
    }
    int status;
    while (waitpid(child, &status, 0) == child && !WIFEXITED(status) && !WIFSIGNALED(status)) {
        int signal = WSTOPSIG(status);
        ptrace(PTRACE_CONT, child, 0, signal == 5 ? 0 : signal);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 98;
}
"#;

#[test]
fn tracing_is_no_way_around() {
    let Some((users, station)) = desk("tracing_is_no_way_around") else {
        return;
    };
    let Some(trace) = compile(&station, "trace", TRACE, &[]) else {
        println!("skipped: no C compiler");
        return;
    };
    let client = client(&station);
    let mut victim = held(&station, claim(&station, users.uid(1), &[&client]));
    let mut attach = Command::new(&trace);
    attach.args(["attach", &victim.pid().to_string()]);
    let output = as_user(attach, users.uid(0)).output().expect("runs");
    assert_eq!(said(&output).0.trim(), "Operation not permitted");
    assert!(victim.info().1 > 0);
    // A traced launcher would obey its tracer: the kernel gives it no capability, and it says so.
    let inner = claim(&station, users.uid(0), &[&client]);
    let mut traced = station.client_environment(Command::new(&trace));
    traced
        .arg("exec")
        .arg(inner.get_program())
        .args(inner.get_args());
    let output = as_user(traced, users.uid(0)).output().expect("runs");
    let (told, why) = said(&output);
    assert_eq!(output.status.code(), Some(77), "{why}");
    assert!(told.is_empty() && why.contains("traced"), "{told} {why}");
}

#[test]
fn pages_cannot_be_forged() {
    let Some((users, station)) = desk("pages_cannot_be_forged") else {
        return;
    };
    let client = client(&station);
    let mut raw = held(&station, claim(&station, users.uid(0), &[&client]));
    let cap = raw.info().1;
    // The owner, outside and inside: the limits cannot be written, the usage page not shortened.
    let limits = station.dir().join("run/claims");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(&limits)
        .expect("listed")
        .map(|e| e.expect("read").path())
        .collect();
    let fds = format!("/proc/{}/fd", raw.pid());
    for entry in std::fs::read_dir(fds).expect("listed").flatten() {
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        let target = target.to_string_lossy();
        if target.contains("memfd:gshare") || target.ends_with(".limits") {
            paths.push(entry.path());
        }
    }
    assert!(!paths.is_empty());
    for path in paths {
        let script = "truncate -s 0 \"$0\" 2>/dev/null && echo cut; truncate -s 1M \"$0\" 2>/dev/null && echo grown";
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).arg(&path);
        let output = as_user(shell, users.uid(0)).output().expect("runs");
        assert_eq!(said(&output).0, "", "{}", path.display());
    }
    assert_eq!(raw.info().1, cap);
    let more = format!("alloc {}", cap + 1);
    assert_eq!(raw.ask(&more), FULL);
    // A forged page has no effect: the library asks only the service, at a fixed path.
    until("the claim is listed still", SOON, || {
        station.snapshot().ok()?.claims.len().eq(&1).then_some(())
    });
}

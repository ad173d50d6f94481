//! Notebooks with parts of GPUs: real Jupyter kernels and servers of every kind, JupyterLab in a browser, and twenty kernels of
//! four users at once.

use crate::support;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gshare::station::Station;
use gshare_proto::ClaimView;
use nix::sys::signal::Signal;
use nix::unistd::Uid;
use serde_json::{Value, json};
use support::notebook::{ADD, ADDED, BARE, Driven, Notebook, Script, jupyter, may_run};
use support::users::{Users, as_user};
use support::{Raw, SOON, all_ended, board, has_all, python, run, station_with, until};

// Notebooks: real Jupyter kernels with parts of simulated GPUs.

/// One RTX 4090, so that a claim of it leaves nothing.
fn one_gpu() -> Station {
    station_with(|o| {
        o.gpus.truncate(1);
        o.config = "[claims]\nleftover-grace = \"1s\"\n".to_owned();
    })
}

/// The claim of the notebook's kernel.
fn claim_of_kernel(station: &Station) -> Option<ClaimView> {
    let claims = station.snapshot().ok()?.claims;
    claims.into_iter().find(|c| c.class == "interactive")
}

const COUNT: &str = r#"
import ctypes, os
cuda = ctypes.CDLL("libcuda.so.1")
result, count = cuda.cuInit(0), ctypes.c_int(-1)
cuda.cuDeviceGetCount(ctypes.byref(count))
print(result, count.value)
"#;

#[test]
fn the_first_cuda_call_waits_and_an_interrupt_ends_it() {
    let Some(bin) = python::bin("the_first_cuda_call_waits_and_an_interrupt_ends_it") else {
        return;
    };
    let station = one_gpu();
    let hog = Raw::claim(&station, &["-q", "-g", "1"]);
    let mut notebook = Notebook::start(&station, &bin);
    assert_eq!(
        notebook.run("print(6 * 7)"),
        "42\n",
        "the kernel does not wait"
    );
    let claim = claim_of_kernel(&station).expect("it has a claim");
    assert!(claim.gpus.is_empty(), "that holds nothing: {claim:?}");
    let named = until("it is named", SOON, || {
        claim_of_kernel(&station)?.identity.notebook
    });

    let said = notebook.act(&json!({ "do": "run", "code": COUNT, "until": "in the queue" }));
    let printed = said["printed"].as_str().unwrap_or_default();
    let words = format!(
        "gshare: claim {} waits for its GPU, first in the queue: needs",
        claim.id
    );
    assert!(
        printed.contains(&words) && printed.contains("held by"),
        "{said}"
    );
    let snapshot = station.snapshot().expect("served");
    assert_eq!(snapshot.queue.len(), 1);
    let what = named.value.rsplit('/').next();
    assert_eq!(
        Some(snapshot.queue[0].what.as_str()),
        what,
        "by the same name"
    );
    let twice = snapshot.claims.iter().filter(|c| c.id == claim.id).count();
    assert_eq!(twice, 0, "what waits is listed once");

    let said = notebook.act(&json!({ "do": "interrupt" }));
    assert_eq!(
        (&said["error"], &said["ended"]),
        (&"KeyboardInterrupt".into(), &true.into()),
        "{said}"
    );
    assert!(said["seconds"].as_f64().is_some_and(|s| s < 1.0), "{said}");
    assert!(
        said["printed"]
            .as_str()
            .is_some_and(|p| p.contains("stopped waiting")),
        "{said}"
    );
    assert_eq!(notebook.run("print('alive')"), "alive\n");
    until("it is out of the queue", SOON, || {
        station.snapshot().ok()?.queue.is_empty().then_some(())
    });

    drop(hog);
    assert_eq!(notebook.run(COUNT), "0 1\n", "the next call asks again");
    let claim = claim_of_kernel(&station).expect("listed");
    assert_eq!(claim.gpus.len(), 1, "{claim:?}");
}

#[test]
fn a_notebook_that_gets_its_gpu_at_once_reads_its_size_once_under_the_cell() {
    let test = "a_notebook_that_gets_its_gpu_at_once_reads_its_size_once_under_the_cell";
    let Some(bin) = python::bin(test) else { return };
    let station = one_gpu();
    let mut notebook = Notebook::start(&station, &bin);
    let wait = format!("{COUNT}\nimport time; time.sleep(2)");
    let said = notebook.act(&json!({ "do": "run", "code": wait }));
    let claim = claim_of_kernel(&station).expect("listed");
    let has = &claim.gpus[0];
    let gib = |bytes: u64| gshare_core::Bytes(bytes).to_string();
    let line = format!(
        "gshare: {} has 0.50 of GPU 0 ({}, up to {} while others leave it free, 50 % of its time, up to 100 %)\n",
        claim.id,
        gib(has.mem_request),
        gib(has.mem_limit)
    );
    let printed = said["printed"].as_str().unwrap_or_default();
    assert_eq!(printed.matches(&line).count(), 1, "{line}: {printed}");
    let said = notebook.act(&json!({ "do": "run", "code": wait }));
    assert_eq!(said["printed"], "0 1\n", "once for each grant");
}

#[test]
fn a_claim_outlives_restarts_of_its_kernel_and_ends_with_it() {
    let Some(bin) = python::bin("a_claim_outlives_restarts_of_its_kernel_and_ends_with_it") else {
        return;
    };
    let station = one_gpu();
    let mut notebook = Notebook::start(&station, &bin);
    assert_eq!(notebook.run(COUNT), "0 1\n");
    let claim = claim_of_kernel(&station).expect("listed");
    for kill in [false, true] {
        if kill {
            notebook.act(&json!({ "do": "kill" }));
        }
        notebook.act(&json!({ "do": "restart" }));
        let after = claim_of_kernel(&station).expect("listed");
        assert_eq!(
            (after.id.clone(), after.gpus.len()),
            (claim.id.clone(), 1),
            "{after:?}"
        );
        assert_eq!(notebook.run(COUNT), "0 1\n");
    }
    notebook.act(&json!({ "do": "shutdown" }));
    until(
        "the claim is gone with the kernel",
        Duration::from_secs(2),
        || claim_of_kernel(&station).is_none(),
    );
}

#[test]
fn the_debugger_stops_at_a_breakpoint_in_a_claim() {
    let Some(bin) = python::bin("the_debugger_stops_at_a_breakpoint_in_a_claim") else {
        return;
    };
    let station = one_gpu();
    let mut notebook = Notebook::start(&station, &bin);
    assert_eq!(notebook.run(COUNT), "0 1\n");
    notebook.debugs();
    assert_eq!(notebook.run(COUNT), "0 1\n", "and cells run on");
}

#[test]
fn the_wait_goes_on_when_the_service_was_killed() {
    let Some(bin) = python::bin("the_wait_goes_on_when_the_service_was_killed") else {
        return;
    };
    let mut station = one_gpu();
    let hog = Raw::claim(&station, &["-q", "-g", "1"]);
    let mut notebook = Notebook::start(&station, &bin);
    notebook.act(&json!({ "do": "run", "code": COUNT, "until": "in the queue" }));
    station.stop_service(Signal::SIGKILL).expect("killed");
    let said = notebook.act(&json!({ "do": "rest", "until": "the wait continues" }));
    assert!(
        said["printed"]
            .as_str()
            .is_some_and(|p| p.contains("the service does not answer")),
        "{said}"
    );
    station.start_service().expect("started");
    until("it waits again", SOON, || {
        (station.snapshot().ok()?.queue.len() == 1).then_some(())
    });
    drop(hog);
    let said = notebook.act(&json!({ "do": "rest" }));
    assert!(
        said["printed"]
            .as_str()
            .is_some_and(|p| p.contains("0 1\n")),
        "{said}"
    );
}

#[test]
fn a_kernel_starts_without_a_service_and_says_so() {
    let dir = tempfile::tempdir().expect("made");
    let deaf = dir.path().join("deaf.sock");
    let _deaf = UnixListener::bind(&deaf).expect("bound");
    for (socket, why) in [
        (
            Path::new("/nonexistent/gshared.sock"),
            "no gshare service answers at /nonexistent",
        ),
        (&deaf, "the gshare service did not answer within 5 s"),
    ] {
        let mut command = Command::new(support::GSHARE);
        command
            .arg("--socket")
            .arg(socket)
            .args(["kernel", "exec", "--"]);
        command.args(["sh", "-c", "echo started; exit 3"]);
        let output = command.output().expect("runs");
        assert_eq!(output.status.code(), Some(3));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "started\n");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        has_all(&said, &[why]);
        has_all(&said, &["runs without a claim"]);
    }
}

#[test]
fn a_lazy_claim_that_may_not_wait_or_no_longer_is_told_so() {
    let station = one_gpu();
    let _hog = Raw::claim(&station, &["-q", "-g", "1"]);
    let lazy = |wait: &'static str| ["claim", "-q", "--lazy", wait, "-g", "0.5", "--"];
    let ways: [(&[&str], &str); 3] = [
        (&lazy("--nonblock"), "gets no GPU now: needs"),
        (
            &["kernel", "exec", "--no-wait", "-g", "0.5", "--"],
            "gets no GPU now: needs",
        ),
        (&lazy("--wait=2s"), "not available within "),
    ];
    for (way, how) in ways {
        let mut command = station.command();
        command.args(way).arg(support::example("raw_client"));
        let output = command.output().expect("runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (printed, said) = (text(&output.stdout), text(&output.stderr));
        assert!(printed.starts_with("error 100 "), "{way:?}: {printed}");
        for words in [how, "gets no GPU now", "held by c1", "CUDA_ERROR_NO_DEVICE"] {
            assert!(said.contains(words), "{way:?}: {said}");
        }
        until("its claim ends with it", SOON, || {
            (station.snapshot().ok()?.claims.len() == 1).then_some(())
        });
    }
    // The same for a claim that waits before its command starts.
    let mut command = station.command();
    command.args(["claim", "-q", "--wait=2s", "-g", "0.5", "--", "true"]);
    let output = command.output().expect("runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(75), "{said}");
    let words = ["gshare: not available within ", "s; needs", "held by c1"];
    assert!(words.iter().all(|w| said.contains(w)), "{said}");
}

#[test]
fn a_size_that_no_gpu_has_is_said_at_the_start_or_by_a_kernel_at_its_first_cuda_call() {
    let station = one_gpu();
    let output = |way: &[&str]| {
        let mut command = station.command();
        command.args(way).arg(support::example("raw_client"));
        let output = command.output().expect("runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    let why = "needs 3 GPUs of one model; 1 can be used here";
    let (code, printed, said) = output(&["claim", "-q", "--lazy", "-g", "3", "--"]);
    assert_eq!((code, printed.as_str()), (Some(64), ""), "{said}");
    has_all(&said, &[why]);
    let (_, printed, said) = output(&["kernel", "exec", "-g", "3", "--"]);
    assert!(printed.starts_with("error 100 "), "{printed} {said}");
    has_all(&said, &[why, "CUDA calls fail with CUDA_ERROR_NO_DEVICE"]);
}

const COUNTS: &str = r#"
import ctypes, os
nvml, cuda = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.CDLL("libcuda.so.1")
n = ctypes.c_uint(77)
nvml.nvmlInit_v2()
nvml.nvmlDeviceGetCount_v2(ctypes.byref(n))
print("before", n.value, flush=True)
def use():
    made, count = cuda.cuInit(0), ctypes.c_int(-1)
    cuda.cuDeviceGetCount(ctypes.byref(count))
    return f"{made} {count.value}"
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, use().encode())
    os._exit(0)
print("child", os.read(reader, 100).decode())
os.wait()
print("own", use())
nvml.nvmlDeviceGetCount_v2(ctypes.byref(n))
print("after", n.value)
"#;

/// `PyTorch` counts through NVML first, and data loaders fork after that.
#[test]
fn nvml_tells_the_gpus_asked_for_before_the_grant_and_a_fork_after_the_count_is_right() {
    let Some(bin) = python::bin(
        "nvml_tells_the_gpus_asked_for_before_the_grant_and_a_fork_after_the_count_is_right",
    ) else {
        return;
    };
    let station = one_gpu();
    let hog = Raw::claim(&station, &["-q", "-g", "1"]);
    let mut notebook = Notebook::start(&station, &bin);
    let said = notebook.act(&json!({ "do": "run", "code": COUNTS, "until": "in the queue" }));
    let printed = said["printed"].as_str().unwrap_or_default();
    assert!(printed.contains("before 1\n"), "{said}");
    drop(hog);
    let said = notebook.act(&json!({ "do": "rest" }));
    let printed = said["printed"].as_str().unwrap_or_default();
    for words in ["child 0 1\n", "own 0 1\n", "after 1\n"] {
        assert!(printed.contains(words), "{words}: {said}");
    }
}

#[test]
fn a_notebook_may_use_most_of_the_memory_while_it_is_free() {
    let Some(bin) = python::bin("a_notebook_may_use_most_of_the_memory_while_it_is_free") else {
        return;
    };
    let station = one_gpu();
    let mut notebook = Notebook::start(&station, &bin);
    assert_eq!(notebook.run(COUNT), "0 1\n");
    let claim = claim_of_kernel(&station).expect("listed");
    let all = station.snapshot().expect("served").gpus[0]
        .mem_allocatable
        .expect("known");
    let (asked, most) = (claim.gpus[0].mem_request, claim.gpus[0].mem_limit);
    let part = |bytes: u64| bytes as f64 / all as f64;
    assert!((part(asked) - 0.5).abs() < 0.01, "{asked} of {all}");
    assert!((part(most) - 0.8).abs() < 0.01, "{most} of {all}");
}

/// Programs that start kernels without a notebook, each in its usual way.
#[test]
fn nbclient_papermill_and_a_bare_command_run() {
    let test = "nbclient_papermill_and_a_bare_command_run";
    let (Some(bin), Some(lab)) = (python::bin(test), python::lab(test)) else {
        return;
    };
    let station = one_gpu();
    let home = tempfile::tempdir().expect("made");
    let run = |command: Command| {
        let mut command = jupyter(command, &bin, home.path());
        let output = command.current_dir(home.path()).output().expect("runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let mut install = station.command();
    install.args(["kernel", "install", "-g", "0.5", "--user", "--name", "half"]);
    run(install);
    let code: Vec<String> = ADD.lines().map(|l| format!("{l}\n")).collect();
    let file = json!({
        "nbformat": 4, "nbformat_minor": 5, "metadata": {
            "kernelspec": { "name": "half", "display_name": "half", "language": "python" },
            "language_info": { "name": "python" } },
        "cells": [{ "cell_type": "code", "id": "a", "metadata": {}, "source": code,
            "outputs": [], "execution_count": null }],
    });
    std::fs::write(home.path().join("in.ipynb"), file.to_string()).expect("written");
    let with = |program: &str, args: &[&str]| {
        let mut command = station.client_environment(Command::new(lab.join(program)));
        command.args(args);
        run(command);
        let out = std::fs::read_to_string(home.path().join("out.ipynb")).expect("written");
        assert!(out.contains(ADDED), "{program}: {out}");
        std::fs::remove_file(home.path().join("out.ipynb")).expect("removed");
        all_ended(&station);
    };
    with("papermill", &["in.ipynb", "out.ipynb"]);
    let execute = "import nbformat, nbclient; n = nbformat.read('in.ipynb', 4); nbclient.NotebookClient(n).execute(); nbformat.write(n, 'out.ipynb')";
    with("python", &["-c", execute]);
    // Without a notebook: Jupyter's own program for scripts.
    std::fs::write(home.path().join("cell.py"), ADD).expect("written");
    let mut script = station.client_environment(Command::new(lab.join("jupyter-run")));
    script.args(["--kernel", "half", "cell.py"]);
    let printed = run(script);
    has_all(&printed, &[ADDED]);
    all_ended(&station);

    // Like VS Code with a chosen interpreter: no kernelspec, so no wrapper. It is detected anyway. A client without a
    // manager considers a kernel dead without a heartbeat within a second of its start.
    let folder = home.path().join("study");
    std::fs::create_dir(&folder).expect("made");
    let mut bare = station.client_environment(Command::new(bin.join("python")));
    bare.args(["-c", BARE, ADD]).current_dir(&folder);
    let mut bare = Raw::spawn(&mut bare);
    assert_eq!(bare.line(), ADDED);
    assert_eq!(bare.line(), "ok");
    let seen = until("it is listed by its directory", SOON, || {
        let snapshot = station.snapshot().ok()?;
        let adopted = snapshot.claims.into_iter().map(|c| c.what);
        let unclaimed = snapshot.unclaimed.into_iter().map(|u| u.what);
        let mut all = adopted.chain(unclaimed);
        all.find(|what| what.contains("study"))
    });
    println!("{seen}");
}

#[test]
fn kernels_are_installed_in_several_sizes_at_every_place_and_again_without_a_change() {
    let dir = tempfile::tempdir().expect("made");
    let at = |name: &str| dir.path().join(name);
    let own = at("env/share/jupyter/kernels/python3");
    std::fs::create_dir_all(&own).expect("made");
    std::fs::create_dir_all(at("env/bin")).expect("made");
    std::fs::write(at("env/bin/python"), "").expect("written");
    let spec = json!({
        "argv": ["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Python 3 (ipykernel)", "language": "python", "interrupt_mode": "message",
        "env": { "A": "${B}" }, "metadata": { "debugger": true },
    });
    std::fs::write(own.join("kernel.json"), spec.to_string()).expect("written");
    std::fs::write(own.join("logo-64x64.png"), "png").expect("written");
    let kernel = |args: &[&str]| -> Value {
        let mut command = jupyter(Command::new(support::GSHARE), &at("env/bin"), dir.path());
        command.arg("kernel").args(args).arg("--json");
        let output = command.output().expect("runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{args:?}: {said}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    let prefix = at("other").display().to_string();
    let cases: [(&[&str], &str, &str); 5] = [
        (
            &["install", "--user"],
            ".local/share/jupyter/kernels",
            "0.25",
        ),
        (
            &["install", "--sys-prefix", "-g", "0.5", "--limit", "0.8"],
            "env/share/jupyter/kernels",
            "0.5-0.8",
        ),
        (
            &[
                "install",
                "--prefix",
                &prefix,
                "-g",
                "0.5",
                "--gpu-mem",
                "8G",
                "--gpu-mem-limit",
                "12G",
            ],
            "other/share/jupyter/kernels",
            "0.5-8G-12G",
        ),
        // Unlike with 12 GiB guaranteed.
        (
            &[
                "install",
                "--prefix",
                &prefix,
                "-g",
                "0.5",
                "--gpu-mem-limit",
                "12G",
            ],
            "other/share/jupyter/kernels",
            "0.5-max12G",
        ),
        (
            &["install", "--user", "--all", "-g", "1"],
            ".local/share/jupyter/kernels",
            "1",
        ),
    ];
    for (args, place, size) in cases {
        for outcome in ["installed", "unchanged"] {
            let rows = kernel(args);
            let row = &rows[0];
            assert_eq!(
                (row["outcome"].as_str(), row["size"].as_str()),
                (Some(outcome), Some(size)),
                "{rows}"
            );
            let name = row["name"].as_str().expect("named");
            let made = at(place).join(name);
            let text = std::fs::read_to_string(made.join("kernel.json")).expect("there");
            let made_spec: Value = serde_json::from_str(&text).expect("JSON");
            for key in ["language", "interrupt_mode", "env"] {
                assert_eq!(made_spec[key], spec[key], "{key}");
            }
            assert_eq!(made_spec["metadata"]["debugger"], true);
            assert_eq!(
                made_spec["display_name"],
                format!("Python 3 (gshare {size})")
            );
            let argv = made_spec["argv"].as_array().expect("words");
            assert!(
                argv[0].as_str().is_some_and(|w| w.starts_with('/')),
                "{text}"
            );
            let python = at("env/bin/python").display().to_string();
            assert!(
                argv.contains(&python.into()),
                "an absolute interpreter: {text}"
            );
            assert!(made.join("logo-64x64.png").is_file());
        }
    }
    let sizes = kernel(&["list"])["kernels"].as_array().expect("rows").len();
    assert_eq!(sizes, 4, "the original and three sizes where Jupyter looks");
    // An impossible claim makes no kernel, and kernels of others stay.
    let refused = |args: &[&str], why: &str| {
        let mut command = jupyter(Command::new(support::GSHARE), &at("env/bin"), dir.path());
        let output = command.arg("kernel").args(args).output().expect("runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(64), "{args:?}: {said}");
        assert!(said.contains(why), "{args:?}: {said}");
    };
    for (flags, why) in [
        (
            ["-g", "0.5", "--limit", "0.2"],
            "SM limit 20 % is below the size 50 %",
        ),
        (
            ["--gpu-mem", "8G", "--gpu-mem-limit", "4G"],
            "memory limit 4.0 GiB is below the size 8.0 GiB",
        ),
    ] {
        refused(&[&["install", "--user"], &flags[..]].concat(), why);
    }
    refused(&["remove", "python3"], "jupyter kernelspec remove");
    assert_eq!(
        kernel(&["list"])["kernels"].as_array().expect("rows").len(),
        sizes
    );
    kernel(&["remove", "--all"]);
    assert_eq!(
        kernel(&["list"])["kernels"].as_array().expect("rows").len(),
        1
    );
}

// Jupyter servers of every kind: TLS, a socket file, a prefix, JupyterHub's tokens, different users; and hostile
// servers.

/// A user with a home and kernels in it.
struct Person {
    uid: u32,
    home: tempfile::TempDir,
}

impl Person {
    fn new(station: &Station, bin: &Path, uid: u32) -> Self {
        let home = tempfile::tempdir().expect("made");
        std::fs::set_permissions(home.path(), PermissionsExt::from_mode(0o700)).expect("set");
        let person = Self { uid, home };
        person.owns(person.home.path());
        let mut install = jupyter(station.command(), bin, person.home.path());
        install.args(["kernel", "install", "-g", "0.1", "--user", "--name", "part"]);
        let output = person.command(install).output().expect("runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        person
    }

    fn owns(&self, path: &Path) {
        if Uid::effective().is_root() {
            chown(path, Some(self.uid), Some(self.gid())).expect("given");
        }
    }

    /// A group that is not this user's first one, as after `newgrp` or from a spawner of notebooks.
    fn gid(&self) -> u32 {
        self.uid + 100_000
    }

    fn command(&self, mut command: Command) -> Command {
        command.current_dir(self.home.path());
        if Uid::effective().is_root() {
            command = as_user(command, self.uid);
            command.gid(self.gid());
        }
        command
    }
}

/// A user's server.
struct Server {
    script: Script,
    log: PathBuf,
}

impl Server {
    /// Starts one in a directory of the person's.
    fn start(
        station: &Station,
        lab: &Path,
        person: &Person,
        name: &str,
        options: &[String],
        env: &Value,
    ) -> Self {
        let dir = person.home.path().join(name);
        std::fs::create_dir_all(&dir).expect("made");
        person.owns(&dir);
        let command = station.client_environment(Command::new(lab.join("python")));
        let mut command = jupyter(command, lab, person.home.path());
        command.arg(python::script("server.py"));
        let mut server = Self {
            script: Script::start(person.command(command), "stop"),
            log: dir.join("server.log"),
        };
        server.act(&json!({ "do": "start", "dir": dir, "options": options, "env": env }));
        server
    }

    fn act(&mut self, step: &Value) -> Value {
        let said = self.script.act(step);
        if let Some(failed) = said["failed"].as_str() {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            panic!("{step}: {failed}\n{log}");
        }
        said
    }

    /// Starts a notebook with its kernel: the session, and the kernel.
    fn open(&mut self, path: &str) -> (String, String) {
        let said = self.act(&json!({ "do": "open", "path": path, "kernel": "part" }));
        let text = |key: &str| said[key].as_str().expect("told").to_owned();
        (text("session"), text("kernel"))
    }

    fn run(&mut self, kernel: &str, code: &str) -> String {
        let said = self.act(&json!({ "do": "run", "kernel": kernel, "code": code }));
        assert_eq!(said["error"], Value::Null, "{said}");
        support::notebook::without_grant(said["printed"].as_str().expect("text"))
    }
}

/// A workstation whose Jupyter servers are queried twice per second.
fn served() -> Station {
    station_with(|o| {
        o.gpus.truncate(1);
        o.config = "[claims]\nleftover-grace = \"1s\"\n[idle]\nwarn = \"2s\"\n".to_owned();
    })
}

/// The claim with this name from its server.
fn named(station: &Station, path: &str) -> ClaimView {
    until(&format!("a claim is listed as {path}"), SOON, || {
        let claims = station.snapshot().ok()?.claims;
        claims.into_iter().find(|claim| {
            let notebook = claim.identity.notebook.as_ref();
            notebook
                .is_some_and(|n| n.source.starts_with("Jupyter server") && n.value.ends_with(path))
        })
    })
}

/// The users of a test: other users if possible, otherwise the present one.
fn people(test: &str, count: usize, bin: &Path, lab: &Path) -> Option<(Option<Users>, Vec<u32>)> {
    if !Uid::effective().is_root() {
        return Some((None, vec![Uid::effective().as_raw(); count]));
    }
    let users = Users::some(count);
    let uids: Vec<u32> = (0..count).map(|user| users.uid(user)).collect();
    [bin, lab]
        .iter()
        .all(|bin| may_run(test, bin, uids[0]))
        .then_some((Some(users), uids))
}

/// Admits the holder of the token that the hub gave, as `jupyterhub.singleuser` does by asking the hub; the server's
/// own file has none then.
const HUB: &str = r#"
import os
from jupyter_server.auth import IdentityProvider, User
class Hub(IdentityProvider):
    token = ""
    auth_enabled = True
    def get_user(self, handler):
        given = handler.request.headers.get("Authorization", "")
        handler._token_authenticated = given == "token " + os.environ["JUPYTERHUB_API_TOKEN"]
        return User("ada") if handler._token_authenticated else None
c.ServerApp.identity_provider_class = Hub
"#;

#[test]
fn servers_of_every_kind_name_their_notebooks_and_say_what_kernels_do() {
    let test = "servers_of_every_kind_name_their_notebooks_and_say_what_kernels_do";
    let (Some(bin), Some(lab)) = (python::bin(test), python::lab(test)) else {
        return;
    };
    let Some((_users, uids)) = people(test, 2, &bin, &lab) else {
        return;
    };
    let station = served();
    let people: Vec<Person> = uids
        .iter()
        .map(|uid| Person::new(&station, &bin, *uid))
        .collect();
    let home = people[0].home.path();
    let certificate = Command::new("openssl")
        .args("req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=elsewhere.example".split(' '))
        .args(["-keyout", "key.pem", "-out", "cert.pem"])
        .current_dir(home)
        .stderr(Stdio::null())
        .status();
    let tls = certificate.is_ok_and(|s| s.success());
    for file in ["key.pem", "cert.pem"].iter().filter(|_| tls) {
        people[0].owns(&home.join(file));
    }
    let secure = [
        format!("--ServerApp.certfile={}", home.join("cert.pem").display()),
        format!("--ServerApp.keyfile={}", home.join("key.pem").display()),
    ];
    // A path of a socket is short.
    let sockets = tempfile::Builder::new()
        .prefix("j")
        .tempdir_in("/tmp")
        .expect("made");
    people[0].owns(sockets.path());
    let sock = |name: &str| format!("--sock={}", sockets.path().join(name).display());
    std::fs::write(home.join("hub.py"), HUB).expect("written");
    people[0].owns(&home.join("hub.py"));
    let hub = [
        format!("--config={}", home.join("hub.py").display()),
        "--ServerApp.base_url=/user/ada/".to_owned(),
        "--port=0".to_owned(),
    ];
    let port = ["--port=0".to_owned()];
    let everywhere = ["--port=0".to_owned(), "--ip=0.0.0.0".to_owned()];
    let mut kinds = vec![
        ("port", 0, port.to_vec(), json!({})),
        ("everywhere", 1, everywhere.to_vec(), json!({})),
        ("file", 0, vec![sock("f")], json!({})),
        (
            "hub",
            0,
            hub.to_vec(),
            json!({ "JUPYTERHUB_API_TOKEN": "t0k" }),
        ),
    ];
    if tls {
        let over_port = [
            &port[..],
            &secure[..],
            &["--ServerApp.base_url=/a/b/".to_owned()],
        ]
        .concat();
        let over_file = [&[sock("t")][..], &secure[..]].concat();
        kinds.push(("tls", 0, over_port, json!({})));
        kinds.push(("tls-file", 0, over_file, json!({})));
    } else {
        println!("left out: TLS needs openssl for a certificate");
    }
    for (kind, who, options, env) in kinds {
        let begun = Instant::now();
        let mut server = Server::start(&station, &lab, &people[who], kind, &options, &env);
        let (session, kernel) = server.open("first.ipynb");
        let claim = named(&station, &format!("/{kind}/first.ipynb"));
        assert_eq!(claim.uid, uids[who], "{kind}");
        server.act(&json!({ "do": "rename", "session": session, "to": "second.ipynb" }));
        let again = named(&station, &format!("/{kind}/second.ipynb"));
        assert_eq!(
            (again.id.as_str(), again.what.as_str()),
            (claim.id.as_str(), "second.ipynb"),
            "{kind}"
        );
        // Its activity is reported by the server too, not guessed.
        assert_eq!(
            server.run(
                &kernel,
                "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"
            ),
            "0\n"
        );
        until("its idleness is known by the server", SOON, || {
            let claims = station.snapshot().ok()?.claims;
            let idle = claims.into_iter().find(|c| c.id == claim.id)?.idle?;
            let by_server = idle.source.as_deref().is_some_and(|s| s.contains("server"));
            (by_server && idle.kernel.as_deref() == Some("idle")).then_some(())
        });
        let words = format!("gshare keep {}", claim.id);
        server.act(&json!({ "do": "hear", "kernel": kernel, "words": words }));
        let pid = again.pid.expect("it runs");
        server.act(&json!({ "do": "close", "session": session }));
        ends_with_it(&station, &claim.id, pid);
        println!("{kind}: {:.1} s", begun.elapsed().as_secs_f32());
    }
}

/// A claim is gone within two seconds after its kernel.
fn ends_with_it(station: &Station, id: &str, pid: u32) {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    until("the kernel has ended", SOON, || !proc.exists());
    until(
        "the claim ends with its kernel",
        Duration::from_secs(2),
        || {
            let claims = station.snapshot().ok()?.claims;
            claims.iter().all(|c| c.id != id).then_some(())
        },
    );
}

#[test]
fn the_claim_of_a_kernel_that_its_server_culls_ends_with_it() {
    let test = "the_claim_of_a_kernel_that_its_server_culls_ends_with_it";
    let (Some(bin), Some(lab)) = (python::bin(test), python::lab(test)) else {
        return;
    };
    let station = served();
    let person = Person::new(&station, &bin, Uid::effective().as_raw());
    let options = [
        "--port=0",
        "--MappingKernelManager.cull_idle_timeout=8",
        "--MappingKernelManager.cull_interval=1",
    ];
    let mut server = Server::start(
        &station,
        &lab,
        &person,
        "culls",
        &options.map(str::to_owned),
        &json!({}),
    );
    let (_, idle) = server.open("idle.ipynb");
    let (_, busy) = server.open("busy.ipynb");
    let (culled, kept) = (
        named(&station, "/idle.ipynb"),
        named(&station, "/busy.ipynb"),
    );
    assert_ne!(idle, busy);
    let begun = Instant::now();
    let proc = PathBuf::from(format!("/proc/{}", culled.pid.expect("it runs")));
    until("the idle one is culled", SOON, || {
        server.run(&busy, "1 + 1");
        !proc.exists()
    });
    println!("culled after {:.1} s", begun.elapsed().as_secs_f32());
    ends_with_it(&station, &culled.id, culled.pid.expect("it ran"));
    let left = server.act(&json!({ "do": "list" }));
    assert_eq!(
        left["kernels"][0]["id"].as_str(),
        Some(busy.as_str()),
        "{left}"
    );
    let claims = station.snapshot().expect("served").claims;
    assert_eq!(claims.len(), 1, "the other one has its claim: {claims:?}");
    ends_with_it(&station, &kept.id, kept.pid.expect("it ran"));
    let left = server.act(&json!({ "do": "list" }));
    assert_eq!(
        (&left["sessions"], &left["kernels"]),
        (&json!([]), &json!([])),
        "the server says so too"
    );
    assert!(station.snapshot().expect("served").claims.is_empty());
}

#[test]
fn servers_that_wish_ill_get_no_token_and_hide_nobodys_notebook() {
    let test = "servers_that_wish_ill_get_no_token_and_hide_nobodys_notebook";
    let (Some(bin), Some(lab)) = (python::bin(test), python::lab(test)) else {
        return;
    };
    if !Uid::effective().is_root() {
        println!("skipped: {test} needs root for real accounts");
        return;
    }
    let Some((_users, uids)) = people(test, 1, &bin, &lab) else {
        return;
    };
    let station = served();
    let person = Person::new(&station, &bin, uids[0]);
    let mut server = Server::start(
        &station,
        &lab,
        &person,
        "work",
        &["--port=0".to_owned()],
        &json!({}),
    );
    let runtime = person.home.path().join("work/runtime");
    // Another user, who has taken the port in the file of a user's server.
    let thief = TcpListener::bind("127.0.0.1:0").expect("bound");
    let at = thief.local_addr().expect("named");
    thief.set_nonblocking(true).expect("set");
    let put = |name: &str, text: &[u8]| {
        std::fs::write(runtime.join(name), text).expect("written");
        person.owns(&runtime.join(name));
    };
    let listed = server.act(&json!({ "do": "list" }));
    let alive = listed["server"].as_u64().expect("its process");
    let text = |url: &str| format!(r#"{{"url": "{url}", "token": "secret", "pid": {alive}}}"#);
    put("jpserver-1.json", text(&format!("http://{at}/")).as_bytes());
    put("jpserver-2.json", text("https://[::1]:1/").as_bytes());
    put("jpserver-3.json", &[b'['; 70_000]);
    std::os::unix::fs::symlink("/etc/shadow", runtime.join("jpserver-4.json")).expect("linked");
    nix::unistd::mkfifo(
        &runtime.join("jpserver-5.json"),
        nix::sys::stat::Mode::S_IRWXU,
    )
    .expect("made");
    // Servers of the user's own: one that talks without an end, and one that never answers.
    let talk = "import socket, sys, threading, json, os\n\
        def serve(endless):\n\
        \x20   s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)\n\
        \x20   def run():\n\
        \x20       while True:\n\
        \x20           c, _ = s.accept(); kept.append(c)\n\
        \x20           try:\n\
        \x20               c.sendall(b'HTTP/1.1 200 OK\\r\\n\\r\\n[')\n\
        \x20               while endless: c.sendall(b'[' * 65536)\n\
        \x20           except OSError: pass\n\
        \x20   threading.Thread(target=run, daemon=True).start()\n\
        kept = []\n\
        serve(True); serve(False); sys.stdin.read()\n";
    let mut talker = Command::new(bin.join("python"));
    talker
        .args(["-c", talk])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut talker = person.command(talker).spawn().expect("starts");
    let mut ports = BufReader::new(talker.stdout.take().expect("piped")).lines();
    for name in ["jpserver-6.json", "jpserver-7.json"] {
        let port = ports.next().expect("a line").expect("text");
        put(name, text(&format!("http://127.0.0.1:{port}/")).as_bytes());
    }
    let begun = Instant::now();
    server.open("mine.ipynb");
    let claim = named(&station, "/mine.ipynb");
    println!("named after {:.1} s", begun.elapsed().as_secs_f32());
    let (session, _) = server.open("other.ipynb");
    named(&station, "/other.ipynb");
    server.act(&json!({ "do": "rename", "session": session, "to": "new.ipynb" }));
    named(&station, "/new.ipynb");
    // A kernel that no server lists: every file is read, and every server queried.
    std::thread::sleep(Duration::from_secs(3));
    assert!(
        station
            .snapshot()
            .expect("served")
            .claims
            .iter()
            .any(|c| c.id == claim.id)
    );
    let reached = thief.accept();
    if let Ok((mut stream, _)) = reached {
        let mut text = String::new();
        let _ = stream.set_nonblocking(false);
        let _ = stream.read_to_string(&mut text);
        assert!(!text.contains("secret"), "{text}");
        panic!("somebody else's socket was asked");
    }
    drop(talker.stdin.take());
    talker.wait().expect("ended");
}

// A notebook in practice: a real Jupyter server, JupyterLab, a browser, and a part of a simulated GPU.

/// The browser with its server.
struct Lab(Driven);

impl Lab {
    fn start(station: &Station, bin: &Path, lab: &Path, chromium: &Path) -> Self {
        let install = ["-g", "0.25", "--user"];
        let browser = |command: &mut Command| {
            // Numba's warning about small grids does not belong in the pictures.
            command
                .env("CHROMIUM", chromium)
                .env("PYTHONWARNINGS", "ignore");
        };
        let script = ["lab.py", "stop"];
        let mut lab = Self(Driven::start(
            station,
            [bin, lab],
            &install,
            script,
            browser,
        ));
        let dir = lab.0.home.path().to_owned();
        lab.act(&json!({ "do": "start", "dir": dir }));
        lab
    }

    /// Does one step; the text of all outputs.
    fn act(&mut self, step: &Value) -> String {
        let said = self.0.act(step);
        if let Some(failed) = said["failed"].as_str() {
            let log = std::fs::read_to_string(self.0.home.path().join("server.log"));
            panic!("{step}: {failed}\n{}", log.unwrap_or_default());
        }
        said["output"].as_str().unwrap_or_default().to_owned()
    }

    fn run(&mut self, code: &str, until: &str) -> String {
        self.act(&json!({ "do": "run", "code": code, "until": until }))
    }

    /// A picture for the documentation, when those are made.
    fn picture(&mut self, name: &str) {
        let file = self.0.home.path().join(name);
        self.act(&json!({ "do": "picture", "file": file }));
        if std::env::var_os("GSHARE_PICTURES").is_some() {
            let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
            std::fs::copy(&file, docs.join(name)).expect("copied");
        }
    }
}

fn chromium(test: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut dirs = std::env::split_paths(&path);
    let found = dirs.find_map(|dir| {
        let names = ["chromium", "chromium-browser", "google-chrome"];
        names.iter().map(|n| dir.join(n)).find(|f| f.is_file())
    });
    if found.is_none() {
        println!("skipped: {test} needs Chromium");
    }
    found
}

fn listed_as(station: &Station, path: &str) -> ClaimView {
    until(&format!("it is listed as {path}"), SOON, || {
        let claim = claim_of_kernel(station)?;
        let notebook = claim.identity.notebook.clone()?;
        let by_server = notebook.source.starts_with("Jupyter server");
        (by_server && notebook.value.ends_with(path)).then_some(claim)
    })
}

#[test]
fn a_notebook_of_jupyterlab_with_a_quarter_of_a_gpu() {
    let test = "a_notebook_of_jupyterlab_with_a_quarter_of_a_gpu";
    let (Some(bin), Some(lab), Some(chromium)) =
        (python::bin(test), python::lab(test), chromium(test))
    else {
        return;
    };
    let station = station_with(|o| {
        o.gpus.truncate(1);
        o.config = "[claims]\nleftover-grace = \"1s\"\n".to_owned();
    });
    let mut lab = Lab::start(&station, &bin, &lab, &chromium);
    lab.picture("notebook-launcher.png");
    let hog = Raw::claim(&station, &["-q", "-g", "1"]);
    lab.act(&json!({ "do": "launch", "shown": "Python 3 (gshare 0.25)" }));
    let first = listed_as(&station, "/papers/Untitled.ipynb");
    assert!(
        first.gpus.is_empty(),
        "the kernel holds nothing yet: {first:?}"
    );

    lab.run(ADD, "in the queue");
    lab.picture("notebook-waits.png");
    lab.act(&json!({ "do": "interrupt" }));
    let said = lab.act(&json!({ "do": "wait", "until": "KeyboardInterrupt" }));
    has_all(&said, &["stopped waiting"]);
    drop(hog);
    let said = lab.run(ADD, ADDED);
    println!("{said}");
    let claim = listed_as(&station, "/papers/Untitled.ipynb");
    assert_eq!(
        claim.id, first.id,
        "Numba was not the worse for the interrupt"
    );
    assert_eq!(claim.gpus.len(), 1, "{claim:?}");
    assert!((claim.gpus[0].sm_request - 0.25).abs() < 1e-9, "{claim:?}");
    let listed = run(&station, &["ps"]);
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    has_all(&listed, &["Untitled.ipynb", "0.25"]);

    lab.act(&json!({ "do": "restart" }));
    let again = claim_of_kernel(&station).expect("the claim outlives the restart");
    assert_eq!(again.id, first.id);
    assert_ne!(again.pid, claim.pid, "another process");
    lab.run(ADD, ADDED);
    lab.picture("notebook-result.png");

    lab.act(&json!({ "do": "rename", "to": "study.ipynb" }));
    let renamed = listed_as(&station, "/papers/study.ipynb");
    assert_eq!(
        (renamed.id.as_str(), renamed.what.as_str()),
        (first.id.as_str(), "study.ipynb")
    );

    let kernel = renamed.pid.expect("it runs");
    lab.act(&json!({ "do": "shutdown" }));
    let proc = PathBuf::from(format!("/proc/{kernel}"));
    until("the kernel has ended", SOON, || !proc.exists());
    let begun = Instant::now();
    until(
        "the claim is gone with the kernel",
        Duration::from_secs(2),
        || claim_of_kernel(&station).is_none(),
    );
    println!(
        "the claim was gone {:.2?} after the kernel",
        begun.elapsed()
    );
}

// Twenty notebooks of four users at once: no claim is lost or left over, and gshare ends no kernel.

const USERS: usize = 4;

const EACH: usize = 5;

/// Divisor of the times after which a notebook is warned (20 min) and offloaded (30 min), without `GSHARE_SOAK`. With
/// 60 they would be twenty and thirty seconds: too few idle periods within a minute. The time for which a dead
/// kernel's claim is kept is not divided, because Jupyter needs time to restart it.
const DIVISOR: f64 = 600.0;

#[test]
fn twenty_kernels_of_four_users_lose_nothing() {
    let test = "twenty_kernels_of_four_users_lose_nothing";
    if !Uid::effective().is_root() {
        println!("skipped: {test} needs root for real accounts");
        return;
    }
    let Some(bin) = python::bin(test) else {
        return;
    };
    let users = Users::some(USERS);
    if !may_run(test, &bin, users.uid(0)) {
        return;
    }
    let divisor: f64 = std::env::var("GSHARE_SOAK")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(DIVISOR);
    let (warn, offload) = (20.0 * 60.0 / divisor, 30.0 * 60.0 / divisor);
    // Six offload times in total, and pauses a third longer than one.
    let (seconds, pause) = (6.0 * offload, 4.0 * offload / 3.0);
    println!("timers divided by {divisor} (GSHARE_SOAK), at least {seconds} s of work");
    let seed: u32 = std::env::var("GSHARE_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or_else(|| std::process::id() % 100_000);
    println!("seed {seed} (GSHARE_SEED)");
    let station = station_with(|o| {
        o.gpus = vec!["rtx4090".to_owned(); 2];
        o.config = format!(
            "[claims]\nleftover-grace = \"1s\"\n[detach]\nhost-reserve = \"1 MiB\"\n\
             [class]\ninteractive = {{ min-run = \"0s\" }}\n[reclaim]\nspread = false\ncountdown = \"1s\"\nhost-ram = 90\n\
             [idle]\nwarn = \"{warn}s\"\ndetach = \"{offload}s\"\n"
        );
    });
    let rate = board(&station).set_checkpoint_rate(Duration::from_millis(5), 1 << 42);
    rate.expect("the rate is set");
    let mut clients = Vec::new();
    let mut homes = Vec::new();
    for user in 0..USERS {
        let uid = users.uid(user);
        let home = tempfile::tempdir().expect("made");
        std::fs::set_permissions(home.path(), PermissionsExt::from_mode(0o700)).expect("set");
        chown(home.path(), Some(uid), Some(uid)).expect("given");
        let mut install = jupyter(station.command(), &bin, home.path());
        install.args("kernel install -g 0.25 --user --name part".split(' '));
        let output = as_user(install, uid).output().expect("runs");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let command = station.client_environment(Command::new(bin.join("python")));
        let mut command = jupyter(command, &bin, home.path());
        command.arg(python::script("many.py")).arg("part");
        command.args([
            EACH.to_string(),
            (seed + user as u32).to_string(),
            pause.to_string(),
        ]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.current_dir(home.path());
        let mut child = as_user(command, uid).spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        clients.push((child, lines));
        homes.push(home);
    }
    let mut ask = |word: &str| {
        for (child, _) in &mut clients {
            writeln!(child.stdin.as_mut().expect("piped"), "{word}").expect("it reads");
        }
        let (mut done, mut wrong) = (BTreeMap::new(), Vec::new());
        for (_, lines) in &mut clients {
            let line = lines.next().expect("it answers").expect("text");
            let said: Value = serde_json::from_str(&line).expect("JSON");
            for (what, times) in said["done"].as_object().into_iter().flatten() {
                *done.entry(what.clone()).or_insert(0) += times.as_u64().expect("a number");
            }
            wrong.extend(said["wrong"].as_array().expect("a list").clone());
        }
        println!("{word}: {done:?}");
        assert!(wrong.is_empty(), "{wrong:?}");
        done
    };
    let (begun, mut offloaded) = (Instant::now(), BTreeSet::new());
    // On a busy machine a kernel that was offloaded comes back later.
    let most = Duration::from_secs_f64(4.0 * seconds);
    until("everything has happened", most, || {
        std::thread::sleep(Duration::from_millis(200));
        let claims = station.snapshot().map(|now| now.claims).unwrap_or_default();
        let off = claims
            .into_iter()
            .filter(|c| c.place.word.as_deref() == Some("offloaded"));
        offloaded.extend(off.map(|c| c.id));
        if begun.elapsed().as_secs_f64() < seconds {
            return None;
        }
        let done: BTreeMap<String, u64> = ask("so far");
        let all = ["same", "computed", "back", "restart", "kill", "cull"];
        let happened = all.iter().all(|what| done.contains_key(*what));
        (happened && !offloaded.is_empty()).then_some(())
    });
    ask("quiet");
    println!("seen offloaded: {offloaded:?}");
    // Quiet now: each kernel has its claim, and there are no others.
    until("there are as many claims as kernels", SOON, || {
        let now = station.snapshot().ok()?;
        let waiting = now
            .queue
            .iter()
            .filter(|q| now.claims.iter().all(|c| c.id != q.id));
        (now.claims.len() + waiting.count() == USERS * EACH).then_some(())
    });
    ask("leave");
    for (child, _) in &mut clients {
        drop(child.stdin.take());
        child.wait().expect("it ends");
    }
    until("no claim is left", SOON, || {
        let now = station.snapshot().ok()?;
        (now.claims.is_empty() && now.queue.is_empty()).then_some(())
    });
}

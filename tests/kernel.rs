//! Notebooks: real Jupyter kernels with parts of simulated GPUs.

use crate::support;

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use gshare::station::Station;
use gshare_proto::ClaimView;
use nix::sys::signal::Signal;
use serde_json::json;
use support::notebook::{ADD, ADDED, BARE, Notebook, jupyter};
use support::{Raw, python, station_with, until};

/// One RTX 4090, so that a claim of it leaves nothing.
fn one_gpu() -> Station {
    station_with(|o| {
        o.gpus.truncate(1);
        o.config = "[claims]\nleftover-grace = \"1s\"\n".to_owned();
    })
}

fn bin(test: &str) -> Option<PathBuf> {
    python::bin(test)
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
    let Some(bin) = bin("the_first_cuda_call_waits_and_an_interrupt_ends_it") else {
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
    let named = until("it is named", Duration::from_secs(20), || {
        claim_of_kernel(&station)?.identity.notebook
    });

    let said = notebook.act(&json!({ "do": "run", "code": COUNT, "until": "in the queue" }));
    let printed = said["printed"].as_str().unwrap_or_default();
    let words = format!(
        "gshare: claim {} waits for its GPU, first in the queue: wants",
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
    until("it is out of the queue", Duration::from_secs(5), || {
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
    let Some(bin) = bin(test) else { return };
    let station = one_gpu();
    let mut notebook = Notebook::start(&station, &bin);
    let wait = format!("{COUNT}\nimport time; time.sleep(2)");
    let said = notebook.act(&json!({ "do": "run", "code": wait }));
    let claim = claim_of_kernel(&station).expect("listed");
    let has = &claim.gpus[0];
    let gib = |bytes: u64| gshare_core::Bytes(bytes).to_string();
    let line = format!(
        "gshare: {} has 0.50 of GPU 0 ({}, up to {} while free, SMs >= 50 %, up to 100 %)\n",
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
    let Some(bin) = bin("a_claim_outlives_restarts_of_its_kernel_and_ends_with_it") else {
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
        || claim_of_kernel(&station).is_none().then_some(()),
    );
}

#[test]
fn the_debugger_stops_at_a_breakpoint_in_a_claim() {
    let Some(bin) = bin("the_debugger_stops_at_a_breakpoint_in_a_claim") else {
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
    let Some(bin) = bin("the_wait_goes_on_when_the_service_was_killed") else {
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
    until("it waits again", Duration::from_secs(10), || {
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
        assert!(said.contains(why), "{said}");
        assert!(said.contains("runs without a claim"), "{said}");
    }
}

#[test]
fn a_lazy_claim_that_may_not_wait_or_no_longer_is_told_so() {
    let station = one_gpu();
    let _hog = Raw::claim(&station, &["-q", "-g", "1"]);
    let lazy = |wait: &'static str| ["claim", "-q", "--lazy", wait, "-g", "0.5", "--"];
    let ways: [(&[&str], &str); 3] = [
        (&lazy("--nonblock"), "gets no GPU now: wants"),
        (
            &["kernel", "exec", "--no-wait", "-g", "0.5", "--"],
            "gets no GPU now: wants",
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
        until("its claim ends with it", Duration::from_secs(20), || {
            (station.snapshot().ok()?.claims.len() == 1).then_some(())
        });
    }
    // The same for a claim that waits before its command starts.
    let mut command = station.command();
    command.args(["claim", "-q", "--wait=2s", "-g", "0.5", "--", "true"]);
    let output = command.output().expect("runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(75), "{said}");
    let words = ["gshare: not available within ", "s; wants", "held by c1"];
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
    let why = "wants 3 GPUs of one model; 1 can be used here";
    let (code, printed, said) = output(&["claim", "-q", "--lazy", "-g", "3", "--"]);
    assert_eq!((code, printed.as_str()), (Some(64), ""), "{said}");
    assert!(said.contains(why), "{said}");
    let (_, printed, said) = output(&["kernel", "exec", "-g", "3", "--"]);
    assert!(printed.starts_with("error 100 "), "{printed} {said}");
    assert!(
        said.contains(why) && said.contains("CUDA calls fail with CUDA_ERROR_NO_DEVICE"),
        "{said}"
    );
}

#[test]
fn a_cell_of_numba_works_after_one_that_was_interrupted_while_it_waited() {
    let Some(bin) = bin("a_cell_of_numba_works_after_one_that_was_interrupted_while_it_waited")
    else {
        return;
    };
    let station = one_gpu();
    let hog = Raw::claim(&station, &["-q", "-g", "1"]);
    let mut notebook = Notebook::start(&station, &bin);
    for _ in 0..2 {
        let said = notebook.act(&json!({ "do": "run", "code": ADD, "until": "in the queue" }));
        assert_eq!(said["ended"], false, "{said}");
        let said = notebook.act(&json!({ "do": "interrupt" }));
        assert_eq!(said["error"], "KeyboardInterrupt", "{said}");
    }
    drop(hog);
    assert!(notebook.run(ADD).contains(ADDED));
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
    let Some(bin) =
        bin("nvml_tells_the_gpus_asked_for_before_the_grant_and_a_fork_after_the_count_is_right")
    else {
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
    let Some(bin) = bin("a_notebook_may_use_most_of_the_memory_while_it_is_free") else {
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

/// What starts kernels without a notebook: each program as its people start it.
#[test]
fn nbclient_papermill_and_a_bare_command_run() {
    let test = "nbclient_papermill_and_a_bare_command_run";
    let (Some(bin), Some(lab)) = (bin(test), python::lab(test)) else {
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
        until("its claim is gone", Duration::from_secs(5), || {
            station.snapshot().ok()?.claims.is_empty().then_some(())
        });
    };
    with("papermill", &["in.ipynb", "out.ipynb"]);
    let execute = "import nbformat, nbclient; n = nbformat.read('in.ipynb', 4); nbclient.NotebookClient(n).execute(); nbformat.write(n, 'out.ipynb')";
    with("python", &["-c", execute]);
    // Without a notebook: Jupyter's own program for scripts.
    std::fs::write(home.path().join("cell.py"), ADD).expect("written");
    let mut script = station.client_environment(Command::new(lab.join("jupyter-run")));
    script.args(["--kernel", "half", "cell.py"]);
    let printed = run(script);
    assert!(printed.contains(ADDED), "{printed}");
    until("its claim is gone", Duration::from_secs(5), || {
        station.snapshot().ok()?.claims.is_empty().then_some(())
    });

    // As VS Code does with an interpreter that was chosen: no kernelspec, so no wrapper. It is seen all the same.
    // A client without a manager takes a kernel for dead whose heart does not beat within a second of its start.
    let folder = home.path().join("study");
    std::fs::create_dir(&folder).expect("made");
    let mut bare = station.client_environment(Command::new(bin.join("python")));
    bare.args(["-c", BARE, ADD]).current_dir(&folder);
    let mut bare = Raw::spawn(&mut bare);
    assert_eq!(bare.line(), ADDED);
    assert_eq!(bare.line(), "ok");
    let seen = until(
        "it is listed by its directory",
        Duration::from_secs(10),
        || {
            let snapshot = station.snapshot().ok()?;
            let adopted = snapshot.claims.into_iter().map(|c| c.what);
            let unclaimed = snapshot.unclaimed.into_iter().map(|u| u.what);
            let mut all = adopted.chain(unclaimed);
            all.find(|what| what.contains("study"))
        },
    );
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
    let kernel = |args: &[&str]| -> serde_json::Value {
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
        // Other than with 12 GiB that are guaranteed.
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
            let made_spec: serde_json::Value = serde_json::from_str(&text).expect("JSON");
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
    // What no claim can be made with is no kernel; and what gshare has not made stays.
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
            "SM limit 20 % is below the request 50 %",
        ),
        (
            ["--gpu-mem", "8G", "--gpu-mem-limit", "4G"],
            "memory limit 4.0 GiB is below the request 8.0 GiB",
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

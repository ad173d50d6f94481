//! Clients of NVIDIA's own libcuda get the same codes bare, before the proxy, and as members of a claim. Nothing here has
//! a GPU, so what they are told is that there is none; the claim is on a simulated one, which only NVML shows.
//! `.ci/drivers` fetches the libraries and the clients.

use crate::support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use gshare::station::Station;
use gshare_sim_board::{Board, BoardSpec};
use support::detach::ok;
use support::{GSHARE, station, station_with, until};

fn target() -> PathBuf {
    let found = Path::new(GSHARE).ancestors().nth(2);
    found.expect("a target directory").to_owned()
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/real")
        .join(name)
}

/// A program, with what is before it on the library path.
struct Client {
    name: String,
    command: Vec<PathBuf>,
    libraries: Option<PathBuf>,
}

fn compiled(dir: &Path, release: &str, library: &Path, is_static: bool) -> Client {
    let kind = if is_static { "static" } else { "shared" };
    let program = dir.join(format!("runtime-{release}-{kind}"));
    let mut compile = Command::new("cc");
    compile.arg("-o").arg(&program).arg(source("runtime.c"));
    if is_static {
        compile.arg(library.join("libcudart_static.a"));
    } else {
        compile.arg(library.join(format!("libcudart.so.{release}")));
    }
    let made = compile.args(["-ldl", "-lpthread", "-lrt"]).status();
    assert!(made.expect("cc runs").success(), "{}", program.display());
    Client {
        name: format!("{kind} runtime {release}"),
        command: vec![program],
        libraries: (!is_static).then(|| library.to_owned()),
    }
}

/// The clients that CI could fetch.
fn clients(dir: &Path) -> Vec<Client> {
    let home = target().join("nvidia-python");
    let mut found = Vec::new();
    for (release, library) in [
        ("12", home.join("cuda-12/nvidia/cuda_runtime/lib")),
        ("13", home.join("cuda-13/nvidia/cu13/lib")),
    ] {
        if library.exists() {
            found.push(compiled(dir, release, &library, false));
            found.push(compiled(dir, release, &library, true));
        } else {
            println!("skipped: the CUDA runtime {release} is not there (.ci/drivers fetches it)");
        }
    }
    let python = home.join("bin/python");
    for (module, script) in [("cuda.bindings", "bindings.py"), ("cupy", "with_cupy.py")] {
        let imports = Command::new(&python)
            .args(["-c", &format!("import {module}")])
            .output();
        if imports.is_ok_and(|output| output.status.success()) {
            found.push(Client {
                name: module.to_owned(),
                command: vec![python.clone(), source(script)],
                libraries: Some(home.join("cuda-13/nvidia/cu13/lib")),
            });
        } else {
            println!("skipped: Python's {module} is not there (.ci/drivers fetches it)");
        }
    }
    found
}

/// What a client prints with a directory of libcuda before all others, perhaps started by another program.
fn said(client: &Client, mut command: Command, libcuda: &Path) -> String {
    let dirs = [Some(libcuda), client.libraries.as_deref()];
    let path = std::env::join_paths(dirs.into_iter().flatten()).expect("a path");
    let output = command
        .args(&client.command)
        .env("LD_LIBRARY_PATH", path)
        .output()
        .expect("runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text}{errors}", client.name);
    text
}

/// Where a station's service puts the proxy: not where libraries cannot be mapped from.
fn proxy(station: &Station) -> PathBuf {
    let places = ["run/lib", "state/lib"].map(|place| station.dir().join(place));
    let found = places
        .into_iter()
        .find(|dir| dir.join("libcuda.so.1").exists());
    found.expect("the proxy is staged")
}

#[test]
fn clients_are_told_the_same_bare_and_before_the_proxy_and_in_a_claim() {
    let dir = tempfile::tempdir().expect("a directory");
    let clients = clients(dir.path());
    for release in ["535", "550"] {
        let home = target().join(format!(
            "nvidia-{release}/usr/lib/x86_64-linux-gnu/nvidia/current"
        ));
        if !home.join("libcuda.so.1").exists() {
            println!("skipped: clients of NVIDIA's libcuda {release} (.ci/drivers fetches it)");
            continue;
        }
        let sim = dir.path().join(release);
        gshare_artifacts::stage_sim(&sim).expect("staged");
        let _board =
            Board::create(&sim.join("board"), &BoardSpec::new(&["h100"])).expect("a board");
        let libraries = (home.join("libcuda.so.1"), sim.join("lib/libnvidia-ml.so.1"));
        let station = station_with(|o| {
            o.libraries = Some(libraries);
            o.config = "[devices]\nfilter = \"off\"\n[mps]\n".to_owned();
        });
        let proxy = proxy(&station);
        let claim = &["claim", "-q", "-g", "0.5", "--"];
        let path = ok(
            &station,
            &[&claim[..], &["printenv", "LD_LIBRARY_PATH"]].concat(),
        );
        assert!(path.starts_with(proxy.to_str().expect("UTF-8")), "{path}");
        for client in &clients {
            let env = || Command::new("env");
            let bare = said(client, env(), &home);
            assert_eq!(said(client, env(), &proxy), bare, "{}", client.name);
            let mut command = station.command();
            command.args(claim);
            assert_eq!(said(client, command, &home), bare, "{}", client.name);
            println!(
                "{release}, {}: {}",
                client.name,
                bare.trim().replace('\n', "; ")
            );
        }
    }
}

/// Whether a library defines a function.
fn has(library: &Path, name: &str) -> bool {
    let listed = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(library)
        .output();
    let text = String::from_utf8(listed.expect("nm runs").stdout).expect("UTF-8");
    text.lines().any(|line| line.ends_with(&format!(" {name}")))
}

#[test]
fn the_proxy_has_the_names_of_the_driver_that_is_there_now() {
    let station = station();
    let proxy = proxy(&station).join("libcuda.so.1");
    let driver = station.sim_dir().join("lib/libcuda.so.1");
    let (old, new) = ("cuMemcpyDtoDAsync_v2", "cuMemcpyDtoDAsync_w2");
    assert!(has(&proxy, old) && has(&proxy, "cuInit"));
    assert!(
        !has(&proxy, "cuCoredumpGetAttribute"),
        "the simulated driver lacks it"
    );
    // The next release lacks one function, and has another.
    let mut image = std::fs::read(&driver).expect("there");
    let places: Vec<usize> = image
        .windows(old.len() + 1)
        .enumerate()
        .filter(|(_, part)| part[..old.len()] == *old.as_bytes() && part[old.len()] == 0)
        .map(|(at, _)| at)
        .collect();
    for at in places {
        image[at..at + new.len()].copy_from_slice(new.as_bytes());
    }
    let beside = driver.with_file_name("libcuda.so.new");
    std::fs::write(&beside, image).expect("written");
    std::fs::rename(&beside, &driver).expect("renamed");
    until("the proxy is staged anew", Duration::from_secs(10), || {
        (!has(&proxy, old) && has(&proxy, "cuInit")).then_some(())
    });
}

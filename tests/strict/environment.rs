//! A command in a claim has the caller's environment byte for byte, besides gshare's own variables.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::process::Command;

use super::support::{is_root, station_with};
use super::{said, station};
use gshare::station::Station;

/// Variables that gshare sets; `LD_LIBRARY_PATH` only if limits depend on it.
const OWN: [&str; 6] = [
    "CUDA_DEVICE_ORDER=",
    "CUDA_VISIBLE_DEVICES=",
    "GSHARE_CLAIM_ID=",
    "GSHARE_GPU_MEM=",
    "GSHARE_SM=",
    "GSHARE_SOCKET=",
];

/// A realistic odd environment: set twice, without a value, not UTF-8, large, and names that the loader removes for
/// programs with capabilities.
fn odd(station: &Station, mut command: Command) -> Command {
    let large = "x".repeat(100_000);
    let bytes = OsString::from_vec(vec![0xff, 0xfe, b'\n', b'=', 1]);
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("GSHARE_SOCKET", station.socket())
        .env("LARGE", large)
        .env("BYTES", bytes)
        .env("EMPTY", "")
        .env("LD_LIBRARY_PATH", station.sim_dir().join("lib"))
        .env("LD_DEBUG_OUTPUT", "/nowhere/x")
        .env("GLIBC_TUNABLES", "glibc.malloc.arena_max=3")
        .env("MALLOC_CHECK_", "0")
        .env("TMPDIR", "/nowhere")
        .env("LOCPATH", "/nowhere")
        .env("HOSTALIASES", "/nowhere")
        .env("LD_PRELOAD_X", "y");
    command
}

fn entries(block: &[u8]) -> Vec<Vec<u8>> {
    block.split(|b| *b == 0).map(<[u8]>::to_vec).collect()
}

/// A program that runs another one with entries that `Command` cannot make: the same name twice, no `=`.
fn with_strange_entries(station: &Station) -> Option<std::path::PathBuf> {
    let source = r#"
        #define _GNU_SOURCE
        #include <stdlib.h>
        #include <string.h>
        #include <unistd.h>
        extern char **environ;
        int main(int argc, char **argv) {
            int n = 0; while (environ[n]) n++;
            char **odd = calloc(n + 6, sizeof *odd);
            odd[0] = "TWICE=1"; odd[1] = "no equals sign"; odd[2] = "=strange";
            memcpy(odd + 3, environ, n * sizeof *odd);
            odd[n + 3] = "TWICE=2"; odd[n + 4] = "";
            execvpe(argv[1], argv + 1, odd);
            return 1;
        }"#;
    super::bypass::compile(station, "strange", source, &[])
}

fn same_environment(station: &Station, prefix: &str) {
    let Some(strange) = with_strange_entries(station) else {
        println!("skipped: no C compiler");
        return;
    };
    let run = |words: &[&str]| {
        let mut command = Command::new(&strange);
        command.args(words);
        let output = odd(station, command).output().expect("runs");
        assert!(output.status.success(), "{}", said(&output).1);
        entries(&output.stdout)
    };
    let program = station.program().display().to_string();
    let bare = run(&["env", "-0"]);
    let claimed = run(&[&program, "claim", "-q", "-g", "0.1", "--", "env", "-0"]);
    let is_own = |entry: &Vec<u8>| OWN.iter().any(|own| entry.starts_with(own.as_bytes()));
    let without = |entries: Vec<Vec<u8>>| -> Vec<Vec<u8>> {
        let strip = |entry: Vec<u8>| {
            let path = entry.strip_prefix(b"LD_LIBRARY_PATH=");
            let rest = path.and_then(|p| p.strip_prefix(prefix.as_bytes()));
            match rest {
                Some(rest) if !prefix.is_empty() => [b"LD_LIBRARY_PATH=", rest].concat(),
                _ => entry,
            }
        };
        entries
            .into_iter()
            .filter(|e| !is_own(e))
            .map(strip)
            .collect()
    };
    assert!(claimed.iter().filter(|e| is_own(e)).count() >= 5);
    assert_eq!(without(claimed), without(bare));
}

#[test]
fn a_strict_launch_leaves_the_environment_as_it_was() {
    if is_root("a_strict_launch_leaves_the_environment_as_it_was") {
        same_environment(&station(), "");
    }
}

#[test]
fn a_preloaded_launch_leaves_the_environment_as_it_was() {
    let station = station_with(|_| {});
    let dir = station.dir().join("run/lib");
    same_environment(&station, &format!("{}:", dir.display()));
}

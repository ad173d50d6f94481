//! The commands of docs/recipes.md on a simulated workstation: claims, sizes, GPUs and environment are the real ones. The
//! simulated driver cannot run the frameworks, so that in place of each program stands one that says which GPUs it sees
//! and how much memory the driver tells it.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use gshare_core::Share;

use crate::support::{example, program, station};

/// Programs that recipes start, and that are not on every machine.
const PROGRAMS: [&str; 5] = ["python3", "torchrun", "vllm", "ollama", "ray"];

/// The blocks of commands, each with the lines before it that belong to it.
fn blocks(page: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    for line in page.lines() {
        match line.strip_prefix("    ") {
            Some(command) => *found.last_mut().expect("one") += &format!("{command}\n"),
            None => found.push(String::new()),
        }
    }
    found.retain(|block| block.contains("gshare "));
    found
}

/// Writes a program that stands in for `name`.
fn stand_in(dir: &Path, name: &str) {
    let path = dir.join(name);
    let client = example("raw_client");
    let text = format!(
        "#!/bin/sh\nset -e\nseen=$(printf 'count\\ninfo\\nquit\\n' | {client:?} | tr '\\n' ' ')\necho \"$seen from {name}\"\n"
    );
    std::fs::write(&path, text).expect("written");
    std::fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("set");
}

#[test]
fn the_recipes_start_programs_that_see_their_claims_gpus_and_memory() {
    let blocks = blocks(include_str!("../docs/recipes.md"));
    assert!(blocks.len() > 7, "{blocks:?}");
    let station = station();
    let bin = station.dir().join("recipes");
    std::fs::create_dir(&bin).expect("made");
    PROGRAMS.iter().for_each(|name| stand_in(&bin, name));
    std::os::unix::fs::symlink(program(), bin.join("gshare")).expect("linked");
    let path = std::env::var("PATH").unwrap_or_default();
    let largest = station.snapshot().expect("a snapshot").gpus;
    let largest = largest.iter().filter_map(|g| g.mem_total).max();
    let largest = largest.expect("a GPU") as f64;
    let mut started = 0;
    for block in blocks {
        let mut shell = station.client_environment(Command::new("sh"));
        shell.args(["-euc", &block]).current_dir(station.dir());
        shell.env("PATH", format!("{}:{path}", bin.display()));
        let output = shell.output().expect("runs");
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{block}{out}{err}");
        let size = block.split_once("-g ").and_then(|(_, rest)| {
            let size = rest.split_whitespace().next()?;
            size.parse::<Share>().ok()
        });
        let part = size.expect("a size").as_f64();
        for line in out.lines().filter(|l| l.contains("from ")) {
            started += 1;
            let words: Vec<&str> = line.split_whitespace().collect();
            // `ok ready`, `ok COUNT`, `ok FREE TOTAL`.
            let [_, _, _, count, _, free, total, ..] = words.as_slice() else {
                panic!("{block}{line}");
            };
            assert_eq!(count.parse(), Ok(part.ceil() as u32), "{block}{line}");
            let [free, total] = [free, total].map(|n| n.parse::<f64>().expect("bytes"));
            assert!(free > 0.0 && free <= total, "{block}{line}");
            assert!(total <= largest * part.min(1.0), "{block}{line}");
        }
    }
    assert!(started >= 10, "{started} programs were started");
    assert!(station.snapshot().expect("a snapshot").claims.is_empty());
}

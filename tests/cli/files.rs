//! Configuration, manual pages and completions.

use crate::support::has_all;
use std::fs;

use serde_json::{Value, json};

use super::fake::{Home, code, complains, says, stderr, stdout};

#[test]
fn config_check_reports_every_mistake_and_exits_78() {
    let home = Home::new();
    let file = home.path("gshare.toml");
    fs::write(&file, "[service]\ntik = \"1s\"\ntick = 1\n").expect("write");
    let name = file.to_string_lossy();
    let output = home.output(&["config", "check", &name]);
    assert_eq!(code(&output), Some(78));
    let text = stderr(&output);
    for part in [
        "gshare.toml:2:1: unknown key `tik`",
        "did you mean `tick`?",
        "gshare.toml:3:8: `tick`",
    ] {
        assert!(text.contains(part), "{part:?} in\n{text}");
    }
    has_all(&text, &["gshare: 2 problems in the configuration"]);
    let output = home.output(&["config", "check", "--json", &name]);
    let printed: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!(printed["problems"][1]["line"], 3);
    assert_eq!(code(&output), Some(78));

    let output = home.output(&["config", "show", "--config", &name]);
    assert_eq!(code(&output), Some(78));
    fs::write(&file, "[service]\ntick = \"2s\"\n").expect("write");
    let output = home.output(&["config", "show", "--config", &name]);
    says(&output, "tick = \"2s\"\n");
    let output = home.output(&["config", "path", "--user", "--json"]);
    let printed: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!(
        printed["socket"],
        json!(home.path("run/gshare/gshared.sock"))
    );
}

/// Files that packages install beside the program.
#[test]
fn manual_pages_and_completions_are_written_into_a_directory() {
    let home = Home::new();
    let dir = home.path("manual");
    let args = ["man", &dir.to_string_lossy()];
    let output = home.output(&args);
    assert_eq!(code(&output), Some(0), "{}", stderr(&output));
    for name in ["gshare.1", "gshare-claim.1", "gshare-admin-drain.1"] {
        let page = fs::read_to_string(dir.join(name)).expect(name);
        assert!(page.contains(".SH DESCRIPTION"), "{name}");
    }
    for (shell, name) in [
        ("bash", "gshare.bash"),
        ("zsh", "_gshare"),
        ("fish", "gshare.fish"),
    ] {
        let args = ["completions", shell];
        let output = home.output(&args);
        let written = fs::read_to_string(dir.join(name)).expect(name);
        assert_eq!(written, stdout(&output), "{name}");
        assert!(written.contains("gpu-mem"), "{shell}");
    }
}

#[test]
fn config_check_names_who_is_not_here_and_times_in_the_wrong_order() {
    let home = Home::new();
    let file = home.path("gshare.toml");
    let text = "[quotas]\n\"group:studnets\" = { max = 1 }\n\"user:root\" = { max = 1 }\n[admin]\ngroups = [\"wheeel\"]\n\
                [idle]\nwarn = \"30m\"\ndetach = \"5m\"\n";
    fs::write(&file, text).expect("written");
    let path = file.to_string_lossy().into_owned();
    let output = home.output(&["config", "check", &path]);
    assert_eq!(code(&output), Some(0), "they may still come");
    for words in [
        "note: this machine has no group:studnets (yet)",
        "note: this machine has no group:wheeel (yet)",
        "note: in [idle], `detach` (5m) is shorter than `warn` (30m)",
    ] {
        assert!(
            stderr(&output).contains(words),
            "{words}: {}",
            stderr(&output)
        );
    }
    assert!(
        !stderr(&output).contains("user:root"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn quotas_that_cannot_be_packed_are_reported_with_which_and_why() {
    let home = Home::new();
    let file = home.path("gshare.toml");
    let text = "[quotas]\n\"project:vision\" = { gpus = 0.7 }\n\"project:speech\" = { gpus = 0.7 }\n\"user:ada\" = { gpus = 0.6 }\n";
    fs::write(&file, text).expect("written");
    let path = file.to_string_lossy().into_owned();
    let check = |args: &[&str]| {
        let all = [&["config", "check", path.as_str()], args].concat();
        home.output(&all)
    };
    let bad = check(&["--gpus", "2"]);
    assert_eq!(code(&bad), Some(78));
    for words in [
        "gshare.toml:4:2: user:ada cannot be guaranteed 0.6 in addition to the other guarantees",
        "a fraction cannot be split between GPUs",
        "at most 0.3",
    ] {
        assert!(stderr(&bad).contains(words), "{words}: {}", stderr(&bad));
    }
    assert_eq!(code(&check(&["--gpus", "3"])), Some(0));
    let over = check(&["--gpus", "1", "--json"]);
    assert_eq!(code(&over), Some(78));
    let json: Value = serde_json::from_str(&stdout(&over)).expect("JSON");
    let message = json["problems"][0]["message"].as_str().expect("a message");
    has_all(message, &["together are 2 of 1 GPU"]);
    // Without a service their number is unknown, and the output says so.
    let unknown = check(&[]);
    assert_eq!(code(&unknown), Some(0));
    complains(&unknown, "--gpus N");
}

#[test]
fn setup_shows_its_changes_also_without_systemd_and_what_users_should_know() {
    let home = Home::new();
    let shown = |words: &[&str]| {
        let output = home.output(words);
        assert_eq!(code(&output), Some(0), "{}", stderr(&output));
        stdout(&output)
    };
    let here = shown(&["setup", "--dry-run"]);
    assert!(
        here.ends_with("nothing was changed (--dry-run)\n"),
        "{here}"
    );
    let run = here.lines().find(|line| line.starts_with("run "));
    assert!(run.is_some(), "{here}");
    let root = home.path("image").to_string_lossy().into_owned();
    let fresh = shown(&["setup", "--dry-run", "--root", &root]);
    for part in [
        "It deletes the names\n           after 90 days",
        "not your programs and notebooks",
        "gshare report --mine --raw",
    ] {
        assert!(fresh.contains(part), "{part} is not in\n{fresh}");
    }
    // An upgrade reports the stage that stays: after a version without stages, the one with the same behaviour.
    let file = |path: &str, text: &str| {
        let path = home.path("image").join(path);
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        fs::write(path, text).expect("written");
    };
    let stage = |says: &str| {
        let shown = shown(&["setup", "--dry-run", "--root", &root]);
        let line = format!("stage    {says}, as before; to see or change it: gshare admin stage\n");
        has_all(&shown, &[&line]);
    };
    file("var/lib/gshare/gshare.db", "");
    stage("3 (reclaim)");
    file("etc/gshare/gshare.toml", "[policy]\nunclaimed = \"deny\"\n");
    stage("4 (require)");
    file("etc/gshare/gshare.toml", "[stage]\nmachine = \"opt-in\"\n");
    stage("2 (opt-in)");
}

#[test]
fn doctor_says_what_would_work_with_another_driver_and_gpu() {
    let home = Home::new();
    let first = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        let output = home.output(&words);
        assert_eq!(code(&output), Some(0), "{}", stderr(&output));
        let shown = stdout(&output);
        (shown.lines().next().unwrap_or_default().to_owned(), shown)
    };
    let (verdict, rows) = first("doctor --driver 550 --gpu rtx4090");
    assert_eq!(
        verdict,
        "gshare with driver 550 and NVIDIA GeForce RTX 4090: would not work, or only in part: offload and restore, moving \
         between GPUs"
    );
    assert!(
        rows.contains("fix: install driver release 580 or later") && rows.contains("has no MIG")
    );
    assert_eq!(rows.matches("\ndriver and GPUs\n").count(), 1, "{rows}");
    assert!(
        !rows.contains("is not installed"),
        "of another machine: {rows}"
    );
    let (verdict, _) = first("doctor --driver 580.95.05 --gpu h100");
    assert!(verdict.ends_with("all of this would work"), "{verdict}");
    let (verdict, _) = first("doctor --driver 570.133.20");
    has_all(&verdict, &["offload and restore"]);
    let (_, json) = first("doctor --driver 565.57.01 --json");
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let checks = json["checks"].as_array().expect("a list");
    let of = |name: &str| checks.iter().find(|c| c["name"] == name).expect(name);
    assert_eq!(of("compute limit")["state"], "ok");
    assert_eq!(of("offload and restore")["state"], "missing");
    for (words, known) in [
        (["doctor", "--gpu", "gtx970"], "gshare knows rtx2080ti,"),
        (["doctor", "--driver", "new"], "such as 550 or 580.95.05"),
    ] {
        let output = home.output(&words);
        assert_eq!(code(&output), Some(64));
        complains(&output, known);
    }
}

//! Configuration, manual pages and completions.

use std::fs;

use serde_json::{Value, json};

use super::fake::{Home, code, stderr, stdout};

#[test]
fn config_check_reports_every_mistake_and_exits_78() {
    let home = Home::new();
    let file = home.path("gshare.toml");
    fs::write(&file, "[service]\ntik = \"1s\"\ntick = 1\n").expect("write");
    let name = file.to_string_lossy();
    let output = home
        .gshare(&["config", "check", &name])
        .output()
        .expect("gshare");
    assert_eq!(code(&output), Some(78));
    let text = stderr(&output);
    for part in [
        "gshare.toml:2:1: unknown key `tik`",
        "did you mean `tick`?",
        "gshare.toml:3:8: `tick`",
    ] {
        assert!(text.contains(part), "{part:?} in\n{text}");
    }
    assert!(
        text.contains("gshare: 2 problems in the configuration"),
        "{text}"
    );
    let output = home
        .gshare(&["config", "check", "--json", &name])
        .output()
        .expect("gshare");
    let printed: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!(printed["problems"][1]["line"], 3);
    assert_eq!(code(&output), Some(78));

    let output = home
        .gshare(&["config", "show", "--config", &name])
        .output()
        .expect("gshare");
    assert_eq!(code(&output), Some(78));
    fs::write(&file, "[service]\ntick = \"2s\"\n").expect("write");
    let output = home
        .gshare(&["config", "show", "--config", &name])
        .output()
        .expect("gshare");
    assert!(
        stdout(&output).contains("tick = \"2s\"\n"),
        "{}",
        stdout(&output)
    );
    let output = home
        .gshare(&["config", "path", "--user", "--json"])
        .output()
        .expect("gshare");
    let printed: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!(
        printed["socket"],
        json!(home.path("run/gshare/gshared.sock"))
    );
}

/// Packages install these files; `GSHARE_BLESS=1` writes them.
#[test]
fn manual_pages_and_completions_are_those_of_this_program() {
    let home = Home::new();
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let bless = std::env::var_os("GSHARE_BLESS").is_some();
    for (shell, name) in [
        ("bash", "gshare.bash"),
        ("zsh", "_gshare"),
        ("fish", "gshare.fish"),
    ] {
        let output = home
            .gshare(&["completions", shell])
            .output()
            .expect("gshare");
        let file = root.join("config/completions").join(name);
        if bless {
            fs::create_dir_all(file.parent().expect("dir")).expect("dir");
            fs::write(&file, stdout(&output)).expect("write");
        }
        let committed = fs::read_to_string(&file).unwrap_or_default();
        assert!(
            committed == stdout(&output),
            "{} is not up to date: run this test with GSHARE_BLESS=1",
            file.display()
        );
        assert!(committed.contains("gpu-mem"), "{shell}");
    }
    let committed = root.join("config/man");
    let made = if bless {
        committed.clone()
    } else {
        home.path("man")
    };
    let output = home
        .gshare(&["man", &made.to_string_lossy()])
        .output()
        .expect("gshare");
    assert_eq!(code(&output), Some(0), "{}", stderr(&output));
    let pages = |dir: &std::path::Path| -> Vec<(std::ffi::OsString, String)> {
        let entries = fs::read_dir(dir)
            .expect("man pages")
            .map(|e| e.expect("entry"));
        let mut pages: Vec<_> = entries
            .map(|e| (e.file_name(), fs::read_to_string(e.path()).expect("page")))
            .collect();
        pages.sort();
        pages
    };
    let (made, committed) = (pages(&made), pages(&committed));
    assert!(made.iter().any(|(name, _)| name == "gshare-claim.1"));
    let names = |pages: &[(std::ffi::OsString, String)]| -> Vec<std::ffi::OsString> {
        pages.iter().map(|(name, _)| name.clone()).collect()
    };
    assert_eq!(names(&made), names(&committed));
    for ((name, made), (_, committed)) in made.iter().zip(&committed) {
        assert!(
            made == committed,
            "{name:?} is not up to date: run this test with GSHARE_BLESS=1"
        );
    }
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
        home.gshare(&all).output().expect("gshare")
    };
    let bad = check(&["--gpus", "2"]);
    assert_eq!(code(&bad), Some(78));
    for words in [
        "gshare.toml:4:2: user:ada cannot be guaranteed 0.6 beside the others",
        "must be on one GPU",
        "at most 0.3",
    ] {
        assert!(stderr(&bad).contains(words), "{words}: {}", stderr(&bad));
    }
    assert_eq!(code(&check(&["--gpus", "3"])), Some(0));
    let over = check(&["--gpus", "1", "--json"]);
    assert_eq!(code(&over), Some(78));
    let json: Value = serde_json::from_str(&stdout(&over)).expect("JSON");
    let message = json["problems"][0]["message"].as_str().expect("a message");
    assert!(message.contains("together are 2 of 1 GPU"), "{message}");
    // Without a service nobody knows how many there are, and that is said.
    let unknown = check(&[]);
    assert_eq!(code(&unknown), Some(0));
    assert!(
        stderr(&unknown).contains("--gpus N"),
        "{}",
        stderr(&unknown)
    );
}

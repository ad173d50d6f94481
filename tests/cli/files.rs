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

//! The shipped file, the reference and a directory of right and wrong files.

use std::fs;
use std::path::{Path, PathBuf};

use gshare_config::{Config, ConfigError, Mode, Problem, ProjectDefaults, SHIPPED};

fn cases(kind: &str) -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/cases")
        .join(kind);
    let mut files: Vec<PathBuf> = fs::read_dir(dir)
        .expect("case directory")
        .map(|e| e.expect("entry").path())
        .filter(|p| p.extension().is_some_and(|e| e == "toml"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no cases of kind {kind}");
    files
}

/// The shipped file with its defaults made active.
fn uncommented() -> String {
    SHIPPED
        .lines()
        .map(|l| match l.strip_prefix('#') {
            Some(rest) if !rest.starts_with(' ') => rest,
            _ => l,
        })
        .collect::<Vec<_>>()
        .join("\n")
}

fn parse(text: &str) -> Config {
    Config::check(text, Path::new("gshare.toml"))
        .unwrap_or_else(|p| panic!("{}", ConfigError::Invalid(p)))
}

#[test]
fn the_shipped_file_holds_the_defaults() {
    assert_eq!(parse(SHIPPED), Config::default());
    let mut active = parse(&uncommented());
    assert!(
        active.projects.remove("vision").is_some(),
        "the example project"
    );
    assert!(active.gpus.remove("0").is_some(), "the example GPU");
    assert_eq!(active.quotas.len(), 1, "the example quota");
    active.quotas.clear();
    assert_eq!(active, Config::default());
}

#[test]
fn every_key_stands_in_the_shipped_file_in_show_and_in_the_reference() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let reference = fs::read_to_string(root.join("../docs/config.md")).expect("docs/config.md");
    let shown = Config::default().show();
    let keys = Config::keys();
    assert!(keys.len() > 20, "{keys:?}");
    for (section, key) in &keys {
        let row = section_of(&reference, &format!("## [{}]", top(section)), "\n## ");
        assert!(
            row.contains(&format!("\n| `{key}` |")),
            "[{section}] {key} is not in docs/config.md"
        );
        let named = ["projects.", "gpu.", "quotas.", "class."];
        if named.iter().any(|n| section.starts_with(n)) {
            continue;
        }
        let line = section_of(SHIPPED, &format!("\n[{section}]\n"), "\n[");
        assert!(
            line.contains(&format!("\n#{key} = ")),
            "[{section}] {key} is not in gshare.toml"
        );
        let line = section_of(&shown, &format!("[{section}]\n"), "\n[");
        assert!(
            line.contains(&format!("{key} = ")),
            "[{section}] {key} is not shown"
        );
    }
    // The other way round: the reference names no key that nothing reads.
    for section in [
        "service",
        "driver",
        "devices",
        "memory",
        "defaults",
        "claims",
        "cgroup",
        "admin",
        "metrics",
        "containers",
        "mps",
        "stage",
        "slurm",
        "policy",
        "launch",
    ] {
        let part = section_of(&reference, &format!("## [{section}]"), "\n## ");
        for row in part.lines().filter(|l| l.starts_with("| `")) {
            let name = row.split('`').nth(1).expect("a key between backticks");
            assert!(
                keys.iter().any(|(s, k)| s == section && k == name),
                "docs/config.md names [{section}] {name}, which does not exist"
            );
        }
    }
}

#[test]
fn the_reference_lists_the_keys_of_a_project_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let reference = fs::read_to_string(root.join("../docs/config.md")).expect("docs/config.md");
    let part = section_of(&reference, "## Defaults of a directory", "\n## ");
    let wrong = ProjectDefaults::check("zzzzzzzz = 1", Path::new("x")).expect_err("unknown key");
    let expected = wrong[0].expected.clone().expect("names");
    let names = expected.strip_prefix("expected one of: ").expect("a list");
    for name in names.split(", ") {
        assert!(part.contains(&format!("\n| `{name}` |")), "{name}");
    }
    assert_eq!(
        part.matches("\n| `").count(),
        names.split(", ").count(),
        "{names}"
    );
}

fn top(section: &str) -> &str {
    section.split('.').next().unwrap_or(section)
}

fn section_of<'t>(text: &'t str, from: &str, to: &str) -> &'t str {
    let start = text
        .find(from)
        .unwrap_or_else(|| panic!("no {from:?} in the text"))
        + from.len();
    let end = text[start..].find(to).map_or(text.len(), |i| start + i);
    &text[start - 1..end]
}

#[test]
fn valid_files_are_read_and_shown_again_without_loss() {
    for path in cases("valid") {
        let text = fs::read_to_string(&path).expect("case");
        if path.to_string_lossy().contains("project") {
            ProjectDefaults::check(&text, &path)
                .unwrap_or_else(|p| panic!("{}", ConfigError::Invalid(p)));
            continue;
        }
        let config =
            Config::check(&text, &path).unwrap_or_else(|p| panic!("{}", ConfigError::Invalid(p)));
        assert_ne!(
            config,
            Config::default(),
            "{} changes nothing",
            path.display()
        );
        let shown = config.show();
        assert_eq!(parse(&shown), config, "{}:\n{shown}", path.display());
    }
}

/// Each `x.toml` has its messages in `x.txt`; `GSHARE_BLESS=1` writes them.
#[test]
fn invalid_files_get_all_their_messages_at_once() {
    for path in cases("invalid") {
        let text = fs::read_to_string(&path).expect("case");
        let name = Path::new(path.file_name().expect("name"));
        let problems: Vec<Problem> = if path.to_string_lossy().contains("project") {
            ProjectDefaults::check(&text, name).expect_err("a wrong file")
        } else {
            Config::check(&text, name).expect_err("a wrong file")
        };
        let shown = format!("{}\n", ConfigError::Invalid(problems));
        let want = path.with_extension("txt");
        if std::env::var_os("GSHARE_BLESS").is_some() {
            fs::write(&want, &shown).expect("write");
        }
        let wanted = fs::read_to_string(&want).unwrap_or_default();
        assert_eq!(shown, wanted, "{}", path.display());
    }
}

#[test]
fn a_missing_file_is_an_error_only_if_it_was_named() {
    let tmp = tempfile::tempdir().expect("tempdir");
    let path = tmp.path().join("gshare.toml");
    assert!(matches!(
        Config::load_file(&path),
        Err(ConfigError::Unreadable { .. })
    ));
    fs::write(&path, "[service]\ntick = \"2s\"\n").expect("write");
    let config = Config::load_file(&path).expect("valid");
    assert_eq!(config.service.tick.as_secs(), 2);
    fs::write(&path, "[service]\ntick = 2\n").expect("write");
    assert!(matches!(
        Config::load_file(&path),
        Err(ConfigError::Invalid(p)) if p.len() == 1 && p[0].line == 2 && p[0].column == 8
    ));
}

#[test]
fn places_follow_the_mode_and_the_file() {
    let system = Config::default().paths(Mode::System);
    assert_eq!(system.socket, Path::new("/run/gshare/gshared.sock"));
    assert_eq!(system.state_dir, Path::new("/var/lib/gshare"));
    let moved = parse("[service]\nruntime-dir = \"/srv/g\"\n").paths(Mode::System);
    assert_eq!(moved.socket, Path::new("/srv/g/gshared.sock"));
    let apart = parse("[service]\nruntime-dir = \"/srv/g\"\nsocket = \"/srv/s\"\n");
    assert_eq!(apart.paths(Mode::User).socket, Path::new("/srv/s"));
}

/// The unit leaves the service and what it starts (MPS, the engine of checkpoints) what they need.
#[test]
fn the_unit_takes_nothing_away_that_the_service_needs() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd/gshared.service");
    let unit = fs::read_to_string(path).expect("the unit");
    let lines = unit.lines().filter(|line| !line.starts_with('#'));
    let set: Vec<(&str, &str)> = lines.filter_map(|line| line.split_once('=')).collect();
    for (key, why) in [
        // systemd.exec(5) and, for the clock, systemd #18142: until version 252 it closed all devices but the clock's.
        ("PrivateDevices", "the nodes of GPUs and /dev/kmsg"),
        ("ProtectClock", "the nodes of GPUs and /dev/kmsg"),
        ("DevicePolicy", "the nodes of GPUs and /dev/kmsg"),
        ("DeviceAllow", "the nodes of GPUs and /dev/kmsg"),
        ("ProtectKernelLogs", "/dev/kmsg has errors of GPUs"),
        ("MemoryMax", "servers of MPS are in the unit too"),
        ("MemoryHigh", "servers of MPS are in the unit too"),
        // Without a bound to what is in the unit it would make the kernel end the programs of users instead.
        ("OOMScoreAdjust", "servers of MPS inherit it"),
    ] {
        assert!(!set.iter().any(|(k, _)| *k == key), "{key}: {why}");
    }
    assert!(set.contains(&("OOMPolicy", "continue")), "MPS lives on");
    let bound = set.iter().find(|(k, _)| *k == "CapabilityBoundingSet");
    let (_, kept) = bound.expect("a bounding set");
    for (capability, why) in [
        ("CAP_SYSLOG", "kernel.dmesg_restrict=1"),
        (
            "CAP_SYS_ADMIN",
            "setns(2) into the mount namespaces of strict claims",
        ),
        (
            "CAP_SYS_CHROOT",
            "setns(2) into the mount namespaces of strict claims",
        ),
    ] {
        assert!(
            kept.split(' ').any(|k| k == capability),
            "{capability}: {why}"
        );
    }
}

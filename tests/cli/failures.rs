//! Exit codes, reasons and hints.

use crate::support::has_all;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use super::fake::{Home, code, complains, error, grant, queued, run, serve_claim, stderr, stdout};

#[test]
fn refusals_have_their_exit_code_their_reason_and_a_hint() {
    let home = Home::new();
    for (code, exit) in [
        ("usage", 64),
        ("no_claim", 64),
        ("protocol", 69),
        ("internal", 70),
        ("not_available", 75),
        ("not_permitted", 77),
        ("ended", 124),
    ] {
        let reply = error(
            code,
            "needs 11.8 GiB; most free is 5.8 on GPU 0",
            Some("-g 0.2 starts now"),
        );
        let (output, _) = run(&home, &["claim", "--", "true"], vec![reply]);
        assert_eq!(output.status.code(), Some(exit), "{code}");
        assert_eq!(
            stderr(&output),
            "gshare: needs 11.8 GiB; most free is 5.8 on GPU 0\nhint: -g 0.2 starts now\n"
        );
    }
}

#[test]
fn a_service_that_is_not_there_or_goes_away_is_told_apart() {
    let home = Home::new();
    let mut command = home.gshare(&["claim", "--", "true"]);
    let output = command
        .env("GSHARE_SOCKET", home.path("nothing"))
        .output()
        .expect("gshare");
    assert_eq!(code(&output), Some(69));
    let text = stderr(&output);
    has_all(&text, &["no gshare service answers at", "hint: "]);
    has_all(&text, &["gshare daemon --user"]);

    let mut command = home.gshare(&["ps"]);
    let output = command
        .env_remove("GSHARE_SOCKET")
        .output()
        .expect("gshare");
    if fs::exists("/run/gshare/gshared.sock").unwrap_or(true) {
        println!("skipped: a service of the machine is running");
    } else {
        assert_eq!(code(&output), Some(69));
        let text = stderr(&output);
        has_all(&text, &["/run/gshare/gshared.sock"]);
        has_all(
            &text,
            &[&*home.path("run/gshare/gshared.sock").to_string_lossy()],
        );
    }

    // Gone before the answer, and gone while the claim waits.
    for replies in [vec![], vec![queued(1, "x")]] {
        let service = home.service(move |mut conn| {
            let claim = conn.call();
            for reply in &replies {
                conn.send(reply);
            }
            claim
        });
        let output = home.output(&["claim", "--", "true"]);
        service.join();
        assert_eq!(code(&output), Some(69), "{}", stderr(&output));
        complains(&output, "closed the connection");
    }

    for garbage in [
        json!({"reply": "dance"}),
        json!([1, 2]),
        json!({"reply": "done", "message": "c3 released"}),
    ] {
        let (output, _) = run(&home, &["claim", "--", "true"], vec![garbage]);
        assert_eq!(code(&output), Some(70), "{}", stderr(&output));
    }
}

#[test]
fn the_users_own_service_is_found() {
    let home = Home::new();
    if fs::exists("/run/gshare/gshared.sock").unwrap_or(true) {
        println!("skipped: a service of the machine is running");
        return;
    }
    fs::create_dir_all(home.path("run/gshare")).expect("dir");
    let service = home.service_at("run/gshare/gshared.sock", serve_claim(vec![grant()]));
    let claims = || {
        let mut command = home.gshare(&["claim", "--", "true"]);
        let output = command.env_remove("GSHARE_SOCKET").output();
        let output = output.expect("gshare");
        assert_eq!(code(&output), Some(0), "{}", stderr(&output));
    };
    claims();
    service.join();

    // And a socket that the user's configuration puts elsewhere.
    fs::create_dir_all(home.path(".config/gshare")).expect("dir");
    let text = format!(
        "[service]\nsocket = \"{}\"\n",
        home.path("elsewhere").display()
    );
    fs::write(home.path(".config/gshare/gshare.toml"), text).expect("config");
    fs::remove_file(home.path("run/gshare/gshared.sock")).expect("remove");
    let service = home.service_at("elsewhere", serve_claim(vec![grant()]));
    claims();
    service.join();
}

#[test]
fn a_command_that_cannot_run_is_told_apart() {
    let home = Home::new();
    // Not found: reported before anything is claimed.
    let output = home.output(&["claim", "--", "no-such-command-4711"]);
    assert_eq!(code(&output), Some(127));
    assert_eq!(
        stderr(&output),
        "gshare: no-such-command-4711: command not found\n"
    );
    let output = home.output(&["run", "0.5"]);
    assert_eq!(code(&output), Some(127));
    complains(&output, "hint: did you mean `-g 0.5`?");

    let script = home.path("script");
    let name = script.to_string_lossy().into_owned();
    // Not executable, and without its interpreter: the grant ends with the connection.
    for (text, mode) in [("#!/bin/sh\n", 0o644), ("#!/no/such/interpreter\n", 0o755)] {
        fs::write(&script, text).expect("write");
        fs::set_permissions(&script, fs::Permissions::from_mode(mode)).expect("mode");
        let (output, _) = run(&home, &["claim", "--", &name], vec![grant()]);
        assert_eq!(code(&output), Some(126), "{}", stderr(&output));
        complains(&output, ": cannot run: ");
    }

    // Removed while the claim waited.
    let gone = script.clone();
    let service = home.service(move |mut conn| {
        let claim = conn.call();
        fs::remove_file(&gone).expect("remove");
        conn.send(&grant());
        conn.wait_closed();
        claim
    });
    let output = home.output(&["claim", "--", &name]);
    assert_eq!(code(&output), Some(127), "{}", stderr(&output));
    service.join();
}

#[test]
fn one_claim_that_cannot_be_released_does_not_keep_the_others() {
    let home = Home::new();
    let service = home.service(|mut conn| {
        let mut ids = Vec::new();
        for n in 0..3 {
            ids.push(conn.call()["id"].clone());
            conn.send(&match n {
                1 => error("not_permitted", "c4 belongs to bob", None),
                _ => json!({"reply": "done", "message": format!("{} released", ids[n].as_str().expect("id"))}),
            });
        }
        conn.wait_closed();
        json!(ids)
    });
    let output = home.output(&["release", "c3", "c4", "sweep"]);
    assert_eq!(code(&output), Some(77));
    assert_eq!(stdout(&output), "c3 released\nsweep released\n");
    assert_eq!(stderr(&output), "gshare: c4 belongs to bob\n");
    assert_eq!(service.join(), json!(["c3", "c4", "sweep"]));

    let done = json!({"reply": "done", "message": "2 claims released"});
    let (output, call) = run(&home, &["release", "--all", "--json"], vec![done]);
    assert_eq!(call, json!({"op": "release_all"}));
    assert_eq!(stdout(&output), "{\"done\":[\"2 claims released\"]}\n");
}

#[test]
fn wrong_use_exits_64_and_help_exits_0() {
    let home = Home::new();
    for args in [
        &["clam"][..],
        &["claim", "-g", "1.5", "--", "true"],
        &["claim", "-g", "0", "--", "true"],
        &["claim", "-g", "150%", "--", "true"],
        &["claim", "--gpu-mem", "8x", "--", "true"],
        &["claim", "--sm", "0.3", "--", "true"],
        &["claim", "--class", "train", "--", "true"],
        &["claim", "--nonblock", "--wait", "3m", "--", "true"],
        &["claim", "--gres", "gpu:2", "--", "true"],
        &["claim", "--mem", "8G", "--", "true"],
        &["claim", "--short", "--", "true"],
        &["claim", "--unknown", "--", "true"],
        &["release"],
        &["ps", "-w", "0"],
        &["--socket", "/x", "daemon"],
        &["demo", "--json"],
    ] {
        let output = home.output(args);
        assert_eq!(code(&output), Some(64), "{args:?}: {}", stderr(&output));
        assert!(
            stderr(&output).starts_with("gshare: "),
            "{args:?}: {}",
            stderr(&output)
        );
        assert_eq!(stdout(&output), "", "{args:?}");
    }
    let output = home.output(&["claim", "--gres", "shard:2", "--", "true"]);
    complains(&output, "hint: to claim a part of a GPU: -g 0.25");
    for args in [
        &["--help"][..],
        &["help", "claim"],
        &["--version"],
        &["claim", "-h"],
    ] {
        let output = home.output(args);
        assert_eq!(
            (code(&output), stderr(&output)),
            (Some(0), String::new()),
            "{args:?}"
        );
    }
    let shown = stdout(&home.output(&["--help"]));
    assert!(
        shown.contains("75 not available now") && !shown.contains("bench"),
        "{shown}"
    );
}

/// The names detach and attach from before 0.2 still work, and services of 0.1 understand both.
#[test]
fn the_names_of_commands_before_0_2_do_the_same() {
    let home = Home::new();
    for (names, wish) in [
        (["offload", "detach"], "detach"),
        (["restore", "attach"], "attach"),
    ] {
        for name in names {
            let done = json!({"reply": "done", "message": "it is done"});
            let (output, call) = run(&home, &[name, "c3"], vec![done]);
            assert_eq!(code(&output), Some(0), "{}", stderr(&output));
            assert_eq!((&call["id"], &call["wish"]), (&json!("c3"), &json!(wish)));
        }
    }
}

//! Claims with a command, without one, and joins.

use crate::support::has_all;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};

use super::fake::{
    Home, code, complains, grant, line, pid, queued, run, serve_claim, spawn, stderr, stdout,
};

#[test]
fn the_command_takes_the_place_of_gshare() {
    let home = Home::new();
    let service = home.service(serve_claim(vec![
        json!({"reply": "hello", "gshare": 1, "server": "x"}),
        grant(),
    ]));
    let script = "echo $$ $GSHARE_CLAIM_ID $CUDA_VISIBLE_DEVICES $LD_LIBRARY_PATH; exit 7";
    let mut command = home.gshare(&["claim", "-g", "0.5", "--", "sh", "-c", script]);
    command
        .env("LD_LIBRARY_PATH", "/mine")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().expect("gshare");
    let id = child.id();
    let output = child.wait_with_output().expect("output");
    assert_eq!(stdout(&output), format!("{id} c3 GPU-1 /shim/c3:/mine\n"));
    assert_eq!(code(&output), Some(7));
    assert_eq!(
        stderr(&output),
        format!("{}\n", grant()["message"].as_str().expect("text"))
    );
    let claim = service.join();
    assert_eq!(claim["op"], "claim");
    assert_eq!(claim["gpus_milli"], 500);
    assert_eq!(claim["command"], json!(["sh", "-c", script]));
    assert_eq!(claim["hold"], false);
    assert_eq!(claim["wait"], "default");
}

#[test]
fn a_signal_ends_the_command_itself() {
    let home = Home::new();
    let service = home.service(serve_claim(vec![grant()]));
    let (mut child, mut lines) = spawn(
        &home,
        &[
            "claim",
            "--",
            "sh",
            "-c",
            "echo started >&2; exec sleep 600",
        ],
    );
    assert!(line(&mut lines).starts_with("c3: "));
    assert_eq!(line(&mut lines), "started\n");
    kill(pid(&child), Signal::SIGTERM).expect("kill");
    assert_eq!(child.wait().expect("wait").signal(), Some(15));
    service.join();
}

/// Signal dispositions and masks of a program must not depend on gshare, also after a wait.
#[test]
fn signals_are_left_as_they_were() {
    // Signals 32 and 33 are the C library's own; it resets them when a thread starts.
    fn seen(text: &str) -> Vec<(String, u64)> {
        let lines = text.lines().filter_map(|line| line.split_once(":\t"));
        lines
            .map(|(name, hex)| {
                let set = u64::from_str_radix(hex, 16).expect("a set of signals");
                (name.to_owned(), set & !(0b11 << 31))
            })
            .collect()
    }
    let home = Home::new();
    let look = [
        "sh",
        "-c",
        "trap '' USR1; grep -E '^Sig(Blk|Ign|Cgt)' /proc/self/status",
    ];
    let direct = std::process::Command::new(look[0])
        .args(&look[1..])
        .output()
        .expect("sh");
    let direct = seen(&stdout(&direct));
    assert_eq!(direct.len(), 3, "{direct:?}");
    for replies in [
        vec![grant()],
        vec![queued(1, "needs 2"), queued(1, "needs 1"), grant()],
    ] {
        let args: Vec<&str> = ["claim", "--"].into_iter().chain(look).collect();
        let (output, _) = run(&home, &args, replies);
        assert_eq!(seen(&stdout(&output)), direct);
    }
}

#[test]
fn flags_go_before_the_projects_file() {
    let home = Home::new();
    fs::create_dir_all(home.path("p/q")).expect("dirs");
    let text = "gpus = 0.25\ngpu-mem = \"8G\"\nsm = \"30%\"\nlimit = 0.8\nclass = \"inference\"\n\
                project = \"vision\"\nname = \"sweep\"\ntime = \"2h\"\n";
    fs::write(home.path("p/.gshare.toml"), text).expect("write");
    let claim = |args: &[&str]| {
        let service = home.service(serve_claim(vec![grant()]));
        let mut command = home.gshare(args);
        let output = command
            .current_dir(home.path("p/q"))
            .output()
            .expect("gshare");
        assert_eq!(code(&output), Some(0), "{}", stderr(&output));
        service.join()
    };
    let plain = claim(&["claim", "--", "true"]);
    for (key, value) in [
        ("gpus_milli", json!(250)),
        ("mem", json!(8u64 << 30)),
        ("sm_milli", json!(300)),
        ("sm_limit_milli", json!(800)),
        ("class", json!("inference")),
        ("project", json!("vision")),
        ("name", json!("sweep")),
        ("lease_s", json!(7200)),
    ] {
        assert_eq!(plain[key], value, "{key}");
    }
    let flags = [
        "claim",
        "-g",
        "2",
        "--gpu-memory",
        "1.5 GiB",
        "--gpu-mem-limit",
        "2G",
        "--sm",
        "40",
        "--limit",
        "90%",
        "--class",
        "batch",
        "-A",
        "nlp",
        "-J",
        "n",
        "-t",
        "45",
        "--wait",
        "1m",
        "--gpu-ids",
        "0,GPU-7",
        "--hold",
        "--",
        "true",
    ];
    let flagged = claim(&flags);
    for (key, value) in [
        ("gpus_milli", json!(2000)),
        ("mem", json!(3u64 << 29)),
        ("mem_limit", json!(2u64 << 30)),
        ("sm_milli", json!(400)),
        ("sm_limit_milli", json!(900)),
        ("class", json!("batch")),
        ("project", json!("nlp")),
        ("name", json!("n")),
        ("lease_s", json!(2700)),
        ("wait", json!({"seconds": 60})),
        ("gpu_ids", json!(["0", "GPU-7"])),
        ("hold", json!(true)),
    ] {
        assert_eq!(flagged[key], value, "{key}");
    }
    // A shell takes the file's size, but is interactive; --nonblock does not wait.
    let mut shell = home.gshare(&["shell", "--nonblock"]);
    let service = home.service(serve_claim(vec![grant()]));
    let output = shell
        .current_dir(home.path("p/q"))
        .env("SHELL", "/bin/true")
        .output()
        .expect("gshare");
    assert_eq!(code(&output), Some(0), "{}", stderr(&output));
    let spec = service.join();
    assert_eq!(
        (&spec["class"], &spec["gpus_milli"]),
        (&json!("interactive"), &json!(250))
    );
    assert_eq!(
        (&spec["wait"], &spec["command"]),
        (&json!("no"), &json!(["/bin/true"]))
    );

    fs::write(home.path("p/.gshare.toml"), "gpus = 1.5\ngpu = 2\n").expect("write");
    let mut command = home.gshare(&["claim", "--", "true"]);
    let output = command
        .current_dir(home.path("p/q"))
        .output()
        .expect("gshare");
    assert_eq!(code(&output), Some(78));
    let text = stderr(&output);
    has_all(&text, &[".gshare.toml:1:8: `gpus`"]);
    has_all(&text, &["did you mean `gpus`?"]);
}

#[test]
fn a_claim_without_a_command_is_held_and_printed() {
    let home = Home::new();
    let (output, claim) = run(&home, &["claim", "-g", "0.25", "--short"], vec![grant()]);
    assert_eq!(stdout(&output), "c3\n");
    assert_eq!(stderr(&output), "");
    assert_eq!(
        (&claim["hold"], &claim["command"]),
        (&json!(true), &json!([]))
    );

    let (output, _) = run(&home, &["claim", "-g", "0.25"], vec![grant()]);
    assert!(stdout(&output).starts_with("c3: 0.50 of GPU 1"));
    complains(&output, "gshare release c3");

    let (output, _) = run(&home, &["claim", "--json"], vec![grant()]);
    let printed: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!(
        (&printed["id"], &printed["env"][0][0]),
        (&json!("c3"), &json!("GSHARE_CLAIM_ID"))
    );

    // With a command stdout is the command's.
    let (output, _) = run(
        &home,
        &["claim", "--json", "--", "echo", "out"],
        vec![grant()],
    );
    assert_eq!(stdout(&output), "out\n");
    let printed: Value = serde_json::from_str(&stderr(&output)).expect("JSON");
    assert_eq!(printed["id"], "c3");
}

#[test]
fn join_and_env_use_a_claim_that_exists() {
    let home = Home::new();
    let (output, call) = run(
        &home,
        &["join", "c3", "--", "sh", "-c", "echo $GSHARE_CLAIM_ID"],
        vec![grant()],
    );
    assert_eq!(stdout(&output), "c3\n");
    assert_eq!(call, json!({"op": "join", "id": "c3", "parent": false}));

    let (output, call) = run(&home, &["env", "sweep"], vec![grant()]);
    assert_eq!(call, json!({"op": "join", "id": "sweep", "parent": true}));
    let exports = stdout(&output);
    assert!(
        exports.starts_with(
            "export GSHARE_CLAIM_ID='c3'\nexport CUDA_VISIBLE_DEVICES='GPU-1'\n\
             export LD_LIBRARY_PATH='/shim/c3'\"${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}\"\n"
        ),
        "{exports}"
    );
    let (_, call) = run(&home, &["env", "sweep", "--print-only"], vec![grant()]);
    assert_eq!(call, json!({"op": "env", "id": "sweep"}));
}

/// A shell that evaluated `gshare env` can run CUDA programs outside the claim again.
#[test]
fn a_shell_gets_its_own_environment_back() {
    let home = Home::new();
    let gshare = env!("CARGO_BIN_EXE_gshare");
    let own = [
        ("LD_LIBRARY_PATH", "/own:/other"),
        ("CUDA_VISIBLE_DEVICES", "it's 1"),
    ];
    let shell = |script: &str| {
        let mut command = std::process::Command::new("sh");
        home.prepare(&mut command).args(["-c", script]).envs(own);
        command.output().expect("sh")
    };
    let service = home.service(serve_claim(vec![grant()]));
    let before = stdout(&shell("env | sort"));
    let after = shell(&format!(
        "eval \"$({gshare} env c3)\"; test $GSHARE_CLAIM_ID = c3 || exit 1; \
         eval \"$({gshare} env --unset)\"; env | sort"
    ));
    assert_eq!(code(&after), Some(0), "{}", stderr(&after));
    assert_eq!(stdout(&after), before);
    complains(
        &after,
        "to run programs without a claim, open a new terminal",
    );
    service.join();

    let nothing = home.output(&["env", "--unset"]);
    assert_eq!(code(&nothing), Some(64));
    complains(&nothing, "has not changed this shell");
}

#[test]
fn sizes_are_typed_in_percent_and_in_gib() {
    let home = Home::new();
    let args = ["claim", "-g", "50%", "--gpu-mem", "8", "--", "true"];
    let (output, call) = run(&home, &args, vec![grant()]);
    assert_eq!(code(&output), Some(0), "{}", stderr(&output));
    assert_eq!(
        (&call["gpus_milli"], &call["mem"]),
        (&json!(500), &json!(8u64 << 30))
    );
}

#[test]
fn phases_are_written_in_order() {
    let home = Home::new();
    let file = home.path("phases");
    let (output, _) = run(
        &home,
        &["claim", "--phases", &file.to_string_lossy(), "--", "true"],
        vec![grant()],
    );
    assert_eq!(code(&output), Some(0), "{}", stderr(&output));
    let text = fs::read_to_string(&file).expect("phases");
    let phases: Value = serde_json::from_str(text.trim()).expect("JSON");
    let names = [
        "main_ns",
        "parsed_ns",
        "connected_ns",
        "granted_ns",
        "exec_ns",
    ];
    let times = names.map(|n| phases[n].as_u64().expect("time"));
    assert!(times[0] > 0 && times.is_sorted(), "{times:?}");
    assert_eq!(phases["service_us"], json!([["journal", 120]]));
}

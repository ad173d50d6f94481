//! Listings for people and for programs.

use crate::support::has_all;
use std::io::Read;
use std::process::Stdio;

use serde_json::{Value, json};

use super::fake::{Home, code, run, stderr, stdout};

pub(crate) fn snapshot() -> Value {
    let claim = |id: &str, uid: u32, user: &str, gpu: Value| {
        json!({
            "id": id, "name": null, "uid": uid, "user": user, "project": "lab", "class": "batch",
            "what": "python, train.py", "command": ["python", "train.py"], "pid": 77, "caps": "cooperative",
            "state": "running", "state_text": "run", "since_ms": 1_000_000, "ends_ms": null, "gpus": [gpu],
            "members": [77], "launches": 5, "idle_s": null, "refusals": 0
        })
    };
    let known = json!({
        "gpu": 0, "uuid": "GPU-0", "sm_request": 0.5, "sm_limit": 1.0, "mem_request": 6u64 << 30,
        "mem_limit": 12u64 << 30, "mem_charge": 3u64 << 29, "mem_used": 3u64 << 29,
        "time_busy": {"value": 98.2, "source": "nvml"},
        "sm_active": {"value": 61.0, "source": "shim", "estimate": true}, "sm_occupancy": null
    });
    let unknown = json!({
        "gpu": 1, "uuid": "GPU-1", "sm_request": 0.25, "sm_limit": 0.8, "mem_request": 1u64 << 30,
        "mem_limit": 1u64 << 30, "mem_charge": null, "mem_used": null,
        "time_busy": null, "sm_active": null, "sm_occupancy": null
    });
    json!({"reply": "snapshot",
        "taken_ms": 1_090_000, "host": "lab-ws1", "driver": "580.95.05", "simulated": true, "caps": "cooperative",
        "service": {"version": "0.1.0", "mode": "user", "started_ms": 0, "cgroups": false, "device_filter": false,
                    "shim": true, "uid": 1000},
        "gpus": [{"index": 0, "uuid": "GPU-0", "model": "NVIDIA GeForce RTX 4090", "short": "RTX 4090",
                  "mode": "timeslice", "state": "ok", "sms": 128, "mem_total": 24u64 << 30,
                  "mem_allocatable": 23u64 << 30, "mem_used": null, "mem_claimed": 6u64 << 30,
                  "mem_charged": null, "mem_unclaimed": null, "sm_claimed": 0.5, "claimable": 0.5,
                  "sm_active": null, "sm_occupancy": null, "time_busy": {"value": 99.0, "source": "time_busy"},
                  "history": [], "temperature_c": null, "power_w": null, "power_limit_w": null}],
        "claims": [claim("c3", 1000, "ada", known), claim("c4", 1001, "bob", unknown)],
        "queue": [{"id": "c22", "name": "ft", "uid": 1001, "user": "bob", "project": "lab", "class": "batch",
                   "what": "finetune.py", "gpus": 2, "share": 1.0, "sm_limit": 1.0, "mem_request": null,
                   "since_ms": 1_000_000, "position": 1, "reason": "needs 2 GPUs; 1 is free",
                   "would_start": "-g 1"}],
        "users": [{"uid": 1000, "user": "ada", "claimed": 0.5, "sm_used": null, "mem_claimed": 6u64 << 30,
                   "mem_used": null, "waiting": 0.0, "claims": 1}],
        "unclaimed": [{"pid": 99, "uid": null, "user": null, "what": "Xorg", "gpu": 0, "mem_used": 1u64 << 29,
                       "graphics": true}],
        "notices": [], "advice": [{"text": "GPU 0 is busy", "command": "gshare ps"}]
    })
}

#[test]
fn listings_are_tables_for_people_and_json_for_programs() {
    let home = Home::new();
    let (output, call) = run(&home, &["ps", "-a"], vec![snapshot()]);
    assert_eq!(call, json!({"op": "snapshot"}));
    let want = "\
ID   USER  NAME  CLASS     GPU    SIZE  LIMIT  GiB/LIMIT  USE/SIZE  SM %  OCC %     AGE  STATE        WHAT
c3   ada         batch     0      0.50  1.00  1.5/12.0     98/50  ~61    —  1m 30s  run          python, train.py
c4   bob         batch     1      0.25  0.80     —/1.0      —/25    —    —  1m 30s  run          python, train.py
c22  bob   ft    batch     -    2x1.00  1.00         —         -    -    -  1m 30s  waits (1st)  finetune.py
u1   —           graphics  0         -     -       0.5         —    —    —       —  no claim     Xorg (pid 99)
";
    let squeezed = |text: &str| -> Vec<String> {
        text.lines()
            .map(|l| l.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect()
    };
    assert_eq!(squeezed(&stdout(&output)), squeezed(want));
    let lines: Vec<String> = stdout(&output).lines().map(ToOwned::to_owned).collect();
    let column = |line: &str, word: &str| {
        let at = line
            .find(word)
            .unwrap_or_else(|| panic!("{word} in {line}"));
        line[..at].chars().count()
    };
    assert_eq!(column(&lines[0], "WHAT"), column(&lines[1], "python"));
    assert_eq!(column(&lines[0], "WHAT"), column(&lines[4], "Xorg"));

    let (output, _) = run(&home, &["ps", "--json", "-u", "bob"], vec![snapshot()]);
    let printed: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!(printed["claims"].as_array().map(Vec::len), Some(1));
    assert_eq!(printed["claims"][0]["gpus"][0]["mem_charge"], Value::Null);
    assert_eq!(printed.get("queue"), None);
    let (output, _) = run(&home, &["ps", "-a", "-u", "1001"], vec![snapshot()]);
    assert!(
        stdout(&output).contains("c22") && !stdout(&output).contains("c3 "),
        "{}",
        stdout(&output)
    );

    let mut slurm = snapshot();
    slurm["claims"][1]["slurm_job"] = json!(4711);
    let (output, _) = run(&home, &["ps", "--job", "4711"], vec![slurm.clone()]);
    let text = stdout(&output);
    assert!(text.contains("c4 ") && !text.contains("c3 "), "{text}");
    let (output, _) = run(&home, &["ps", "--job", "4712"], vec![slurm]);
    assert_eq!(code(&output), Some(64));
    assert!(stderr(&output).contains("squeue --jobs 4712"));

    let (output, _) = run(&home, &["ps", "--csv"], vec![snapshot()]);
    let second = stdout(&output)
        .lines()
        .nth(1)
        .map(ToOwned::to_owned)
        .unwrap_or_default();
    assert!(second.starts_with("c3,ada,lab,batch,0,0.5,1,"), "{second}");
    assert!(
        second.ends_with(",98.2,61.0,1000000,run,,\"python, train.py\",,"),
        "{second}"
    );

    let (output, _) = run(&home, &["queue"], vec![snapshot()]);
    assert!(
        stdout(&output).ends_with("c22: needs 2 GPUs; 1 is free; with -g 1 it would start now\n"),
        "{}",
        stdout(&output)
    );
    let (output, _) = run(&home, &["queue", "--json"], vec![snapshot()]);
    let printed: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!(printed["queue"][0]["id"], "c22");

    let (output, _) = run(&home, &["status"], vec![snapshot()]);
    let text = stdout(&output);
    for part in [
        "SIMULATED DRIVER",
        "no device filter",
        "—/6.0/23.0",
        // Its GPU has no counters: at least what its claims use is known.
        "99/50   ~61  ",
        "! GPU 0 is busy: gshare ps",
        // Used in the unit of the claim, here time; not SMs.
        "0.50       0.98",
    ] {
        assert!(text.contains(part), "{part:?} in\n{text}");
    }
    let (output, _) = run(&home, &["status", "--json"], vec![snapshot()]);
    let printed: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!(printed["host"], "lab-ws1");
    // Both words: those of version 0.1, and those of users.
    for key in ["claimable", "free"] {
        assert_eq!(printed["gpus"][0][key], 0.5);
    }
    assert_eq!(printed["claims"][0]["gpus"][0]["sm_size"], 0.5);
}

#[test]
fn a_watch_ends_with_the_service_or_with_its_reader() {
    let home = Home::new();
    let service = home.service(|mut conn| {
        let call = conn.call();
        conn.send(&snapshot());
        conn.send(&snapshot());
        call
    });
    let output = home.output(&["ps", "--json", "-w", "0.5"]);
    assert_eq!(
        service.join(),
        json!({"op": "watch", "min_interval_ms": 500})
    );
    assert_eq!(stdout(&output).lines().count(), 2);
    assert_eq!(code(&output), Some(69));

    let service = home.service(|mut conn| {
        let call = conn.call();
        while conn.try_send(&snapshot()) {}
        call
    });
    let mut command = home.gshare(&["ps", "--json", "-w"]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("gshare");
    let mut first = [0u8; 10];
    child
        .stdout
        .take()
        .expect("stdout")
        .read_exact(&mut first)
        .expect("read");
    let output = child.wait_with_output().expect("output");
    assert_eq!((code(&output), stderr(&output)), (Some(141), String::new()));
    service.join();
}

#[test]
fn doctor_speaks_also_without_a_service() {
    let home = Home::new();
    let mut command = home.gshare(&["doctor", "--json"]);
    let output = command
        .env("GSHARE_SOCKET", home.path("nothing"))
        .output()
        .expect("gshare");
    assert_eq!(code(&output), Some(69));
    let printed: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!(printed["checks"][0]["state"], "missing");

    let reply = json!({"reply": "doctor", "checks": [
        {"name": "device filter", "state": "limited", "detail": "not root", "status": "simulation only",
         "fix": "sudo gshare daemon"},
    ]});
    let (output, _) = run(&home, &["doctor"], vec![reply]);
    let text = stdout(&output);
    has_all(
        &text,
        &["  limited  device filter: simulation only\n           not root\n"],
    );
    has_all(&text, &["           fix: sudo gshare daemon\n"]);
}

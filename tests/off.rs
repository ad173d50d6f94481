//! `gshare admin off`: gshare stops acting at once, with its service or without, and `on` ends nothing.

use crate::support;

use std::process::Output;
use std::time::{Duration, Instant};

use gshare::station::Station;
use gshare_abi::host::LimitsFile;
use gshare_gate::{Mode, Word};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use support::{Random, Raw, detach, root, station_with, until};

use crate::turns::Flood;

const SOON: Duration = Duration::from_secs(10);
const MORE: &str = "alloc 9663676416";
const FULL: &str = "error 2 CUDA_ERROR_OUT_OF_MEMORY";

fn run(station: &Station, words: &[&str]) -> Output {
    station.command().args(words).output().expect("gshare runs")
}

fn said(station: &Station, words: &[&str]) -> String {
    let output = run(station, words);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned() + &stderr
}

/// Half of GPU 0 for a program that has taken nothing yet, and one that opens GPUs when it is told.
fn half(station: &Station) -> Raw {
    Raw::claim(station, &["-q", "-g", "0.25", "--gpu-ids", "0"])
}

fn quick() -> Station {
    station_with(|o| {
        o.tick = "0.1s".to_owned();
        o.config = "[claims]\nleftover-grace = \"1s\"\n".to_owned();
    })
}

/// What the kernel says when a program of a claim opens a GPU that it does not have.
fn opens_other(station: &Station, id: &str) -> String {
    let node = station.sim_dir().join("dev/nvidia1").display().to_string();
    let script = format!("(exec 3<{node}) 2>&1 | sed 's/.*: //'");
    said(station, &["join", "-q", id, "--", "sh", "-c", &script])
        .trim()
        .to_owned()
}

fn is_filtered(station: &Station) -> bool {
    let served = station.snapshot().expect("served").service;
    served.is_some_and(|s| s.device_filter)
}

const DENIED: &str = "Operation not permitted";
const OPEN: &str = "No such device or address";

#[test]
fn off_lifts_limits_and_filters_says_so_everywhere_and_on_ends_nothing() {
    let mut station = quick();
    let filtered = is_filtered(&station);
    let mut raw = half(&station);
    assert_eq!(raw.ask(MORE), FULL);
    if filtered {
        assert_eq!(opens_other(&station, "c1"), DENIED);
    }
    let text = said(&station, &["admin", "off"]);
    assert!(
        text.contains("gshare is off until gshare admin on"),
        "{text}"
    );
    assert!(text.ends_with("undo: gshare admin on\n"), "{text}");
    let (_, total) = raw.info();
    assert!(
        raw.ask(MORE).starts_with("ok"),
        "its limit is off; it is shown {total}"
    );
    if filtered {
        assert_eq!(opens_other(&station, "c1"), OPEN);
    }
    // Everybody is told, whoever looks and whoever claims.
    let text = said(&station, &["status"]);
    assert!(text.starts_with("gshare is OFF"), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&said(&station, &["status", "--json"])).expect("JSON");
    assert!(
        json["service"]["off"]["since_ms"].is_u64(),
        "{}",
        json["service"]
    );
    let text = said(
        &station,
        &["claim", "-g", "0.1", "--gpu-ids", "1", "--", "true"],
    );
    assert!(text.contains("gshare is off"), "{text}");
    // It lasts over a death of the service, and so does what it lets through.
    station.stop_service(Signal::SIGKILL).expect("killed");
    station.start_service().expect("starts again");
    assert!(said(&station, &["status"]).starts_with("gshare is OFF"));
    assert!(raw.ask("alloc 1073741824").starts_with("ok"));
    if filtered {
        assert_eq!(opens_other(&station, "c1"), OPEN);
    }

    assert_eq!(raw.ask("launch 1"), "ok 1");
    let text = said(&station, &["admin", "on"]);
    assert!(
        text.contains("c1 has more than its limit and may not grow"),
        "{text}"
    );
    assert_eq!(raw.ask("alloc 67108864"), FULL, "it may not grow");
    assert_eq!(raw.ask("launch 1"), "ok 2", "and goes on");
    if filtered {
        assert_eq!(opens_other(&station, "c1"), DENIED);
    }
    assert!(!said(&station, &["status"]).contains("OFF"));
    let log = said(&station, &["admin", "log"]);
    assert!(log.contains("off") && log.contains("on"), "{log}");
    assert_eq!(raw.finish(), Some(0));
}

#[test]
fn off_works_within_a_second_with_a_service_that_hangs_or_is_dead() {
    if !root("off without the service") {
        return;
    }
    let mut station = quick();
    let filtered = is_filtered(&station);
    let config = station.dir().join("gshare.toml").display().to_string();
    let off = |station: &Station| {
        let begun = Instant::now();
        let text = said(station, &["admin", "off", "--config", &config]);
        let took = begun.elapsed();
        assert!(text.contains("No service answers"), "{text}");
        assert!(took < Duration::from_secs(1), "{took:?}");
    };
    let mut raw = half(&station);
    assert_eq!(raw.ask(MORE), FULL);
    let pid = station.service_pid().expect("it runs");
    let pid = Pid::from_raw(pid.cast_signed());
    nix::sys::signal::kill(pid, Signal::SIGSTOP).expect("stopped");
    off(&station);
    assert!(raw.ask(MORE).starts_with("ok"));
    nix::sys::signal::kill(pid, Signal::SIGCONT).expect("goes on");
    until("the service follows", SOON, || {
        said(&station, &["status"])
            .starts_with("gshare is OFF")
            .then_some(())
    });
    if filtered {
        assert_eq!(opens_other(&station, "c1"), OPEN);
    }
    said(&station, &["admin", "on"]);
    assert_eq!(raw.ask("alloc 67108864"), FULL);
    assert_eq!(raw.ask("free 0"), "ok");

    station.stop_service(Signal::SIGKILL).expect("killed");
    assert_eq!(raw.ask(MORE), FULL, "limits outlive the service");
    off(&station);
    assert!(raw.ask(MORE).starts_with("ok"));
    station.start_service().expect("starts again");
    assert!(said(&station, &["status"]).starts_with("gshare is OFF"));
    assert!(raw.ask("alloc 1073741824").starts_with("ok"));
    assert_eq!(raw.ask("launch 1"), "ok 1");
    // Without a service `on` holds from its next start.
    station.stop_service(Signal::SIGKILL).expect("killed");
    said(&station, &["admin", "on", "--config", &config]);
    station.start_service().expect("starts again");
    assert!(!said(&station, &["status"]).contains("OFF"));
    assert_eq!(raw.ask("alloc 67108864"), FULL);
    assert_eq!(raw.ask("launch 1"), "ok 2");
}

#[test]
fn off_for_a_time_ends_by_itself_and_a_time_limit_that_is_over_meanwhile_ends_nothing() {
    let station = quick();
    let mut raw = Raw::claim(
        &station,
        &["-q", "-g", "0.25", "--gpu-ids", "0", "-t", "5s"],
    );
    let text = said(&station, &["admin", "off", "--for", "8s"]);
    assert!(text.contains("gshare is off for 8s"), "{text}");
    until("it is told that it will be on", SOON, || {
        let notices = station.snapshot().ok()?.notices;
        notices
            .iter()
            .any(|n| n.text.contains("will be on again in"))
            .then_some(())
    });
    until("it is on", SOON, || {
        (!said(&station, &["status"]).contains("OFF")).then_some(())
    });
    assert_eq!(raw.ask("launch 1"), "ok 1");
    assert_eq!(raw.ask(MORE), FULL);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(
        raw.ask("launch 1"),
        "ok 2",
        "its time limit was over while gshare was off"
    );
    assert_eq!(raw.finish(), Some(0));
}

#[test]
fn what_was_taken_comes_back_where_it_fits() {
    let station = detach::station_that("", |_| ());
    let (mut first, sum) = detach::holder(&station, &["-q", "-g", "0.25", "--gpu-ids", "0"]);
    let (mut second, other) = detach::holder(&station, &["-q", "-g", "0.25", "--gpu-ids", "1"]);
    let held = [&first, &second].map(|raw| detach::on_gpus(&station, raw.pid()));
    for (raw, how) in [(&first, "offload"), (&second, "suspend")] {
        let id = detach::claim(&station, raw.pid()).id;
        detach::ok(&station, &[how, &id]);
        assert_eq!(detach::on_gpus(&station, raw.pid()), 0, "{how}");
    }
    // The second has no room now.
    let mut full = Raw::claim(&station, &["-q", "-g", "1", "--gpu-ids", "1"]);
    let (free, _) = full.info();
    assert!(
        full.ask(&format!("alloc {}", free - (1 << 28)))
            .starts_with("ok")
    );
    let text = said(&station, &["admin", "off"]);
    assert!(text.contains("c2 is not on its GPU yet"), "{text}");
    until("the first is back without a call", SOON, || {
        (detach::on_gpus(&station, first.pid()) == held[0]).then_some(())
    });
    assert_eq!(first.ask("sum 0"), sum);
    assert_eq!(detach::on_gpus(&station, second.pid()), 0, "it has no room");
    assert_eq!(full.finish(), Some(0));
    until("the second is back", SOON, || {
        (detach::on_gpus(&station, second.pid()) == held[1]).then_some(())
    });
    assert_eq!(second.ask("sum 0"), other);
    said(&station, &["admin", "on"]);
    assert_eq!([first.finish(), second.finish()], [Some(0); 2]);
}

#[test]
fn waiting_claims_start_one_by_one_where_memory_is_free_and_stay_uncounted() {
    let station = quick();
    // It has claimed all of the GPU, and uses a third.
    let mut holder = Raw::claim(&station, &["-q", "-g", "1", "--gpu-ids", "0"]);
    assert!(holder.ask("alloc 8589934592").starts_with("ok"));
    let waits = || {
        let words = ["claim", "-q", "--gpu-mem", "10G", "--gpu-ids", "0", "--"];
        let mut command = station.command();
        Raw::spawn(command.args(words).arg(support::example("raw_client")))
    };
    let queue = |of: usize| {
        until("so many wait", SOON, || {
            let queue = station.snapshot().ok()?.queue;
            (queue.len() == of).then_some(queue)
        })
    };
    let mut first = waits();
    queue(1);
    let mut second = waits();
    queue(2);
    let text = said(&station, &["admin", "off"]);
    assert!(
        text.contains("c3 waits; it starts when its memory is free"),
        "{text}"
    );
    assert_eq!(first.line(), "ok ready", "10 of 15 GiB");
    let left = queue(1);
    assert!(
        left[0].reason.starts_with("gshare is off: it starts when"),
        "{left:?}"
    );
    // The first has not taken anything yet, and the second waits all the same.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(queue(1)[0].id, "c3");
    assert_eq!(holder.finish(), Some(0));
    assert_eq!(second.line(), "ok ready");
    assert!(first.ask("alloc 11811160064").starts_with("ok"), "11 GiB");

    said(&station, &["admin", "on"]);
    let uncounted = || {
        let gpus = station.snapshot().expect("served").gpus;
        assert_eq!(gpus[0].mem_claimed, 0);
        let text = said(&station, &["env", "c2", "--json"]);
        assert!(text.contains("made while gshare was off"), "{text}");
    };
    uncounted();
    assert!(
        first.ask("alloc 134217728").starts_with("ok"),
        "until it ends"
    );
    // What they use is offered to nobody.
    until("it is seen", SOON, || {
        let gpus = station.snapshot().ok()?.gpus;
        (gpus[0].mem_allocatable? < 13 << 30).then_some(())
    });
    let refused = run(
        &station,
        &[
            "claim",
            "--nonblock",
            "--gpu-mem",
            "14G",
            "--gpu-ids",
            "0",
            "--",
            "true",
        ],
    );
    assert_eq!(refused.status.code(), Some(75), "{refused:?}");
    assert_eq!([first.finish(), second.finish()], [Some(0); 2]);
    let granted = || {
        run(
            &station,
            &[
                "claim",
                "-q",
                "--nonblock",
                "-g",
                "1",
                "--gpu-ids",
                "0",
                "--",
                "true",
            ],
        )
    };
    until("all is free again", SOON, || {
        granted().status.success().then_some(())
    });
}

#[test]
fn that_gshare_will_be_on_again_is_told_ten_minutes_before() {
    let station = quick();
    let line = station.dir().join("state/off");
    let told = || {
        let notices = station.snapshot().expect("served").notices;
        let texts = notices.into_iter().map(|n| n.text);
        texts
            .filter(|t| t.contains("will be on again in"))
            .collect::<Vec<_>>()
    };
    said(&station, &["admin", "off", "--for", "20m"]);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(told(), [""; 0]);
    // Time passes.
    let text = std::fs::read_to_string(&line).expect("there");
    let mut value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let until_ms = value["until_ms"].as_u64().expect("a time");
    value["until_ms"] = (until_ms - 10 * 60_000).into();
    std::fs::write(&line, value.to_string()).expect("written");
    let texts = until("it is told", SOON, || {
        Some(told()).filter(|t| !t.is_empty())
    });
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(told(), texts, "once");
    let [text] = texts.as_slice() else {
        panic!("{texts:?}")
    };
    assert!(
        text.contains("in 9m") && text.ends_with("to keep it off: sudo gshare admin off"),
        "{text}"
    );
    assert!(
        said(&station, &["status"]).starts_with("gshare is OFF"),
        "and not before"
    );
}

/// How the service is when an administrator switches gshare off.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Service {
    Serves,
    Hangs,
    Dead,
    CannotStart,
}

/// Whether the pages of all claims let everybody launch.
fn no_turns(station: &Station) -> bool {
    let pages = std::fs::read_dir(station.dir().join("run/claims")).expect("pages");
    let pages = pages
        .flatten()
        .filter(|e| e.path().extension().is_some_and(|e| e == "limits"));
    let pages: Vec<LimitsFile> = pages
        .filter_map(|e| LimitsFile::open(&e.path()).ok())
        .collect();
    assert!(!pages.is_empty());
    pages
        .iter()
        .all(|page| Word(page.turn_word()).mode() == Mode::Free)
}

#[test]
fn off_at_twenty_random_moments_opens_all_within_a_second_and_on_puts_it_back() {
    if !root("off at twenty random moments") {
        return;
    }
    let mut random = Random::new("off at twenty random moments");
    let mut station = station_with(|o| {
        o.tick = "0.1s".to_owned();
        o.costs = "spin_1ms 1000000ns\n".to_owned();
        o.config = "[claims]\nleftover-grace = \"1s\"\n".to_owned();
    });
    let filtered = is_filtered(&station);
    let config = station.dir().join("gshare.toml").display().to_string();
    let journal = station.dir().join("state/gshare.db");
    let mut raw = half(&station);
    let floods = [(); 2].map(|()| Flood::claim(&station, "0.25 --gpu-ids 0"));
    let node = station.sim_dir().join("dev/nvidia1").display().to_string();
    let opens = format!("(exec 3<{node}) 2>&1 | sed 's/.*: //'");
    let mut shell = station.command();
    shell.args(["claim", "-q", "-g", "0.1", "--gpu-ids", "0", "--", "sh"]);
    let mut shell = Raw::spawn(&mut shell);
    let held = |raw: &mut Raw, shell: &mut Raw, station: &Station| {
        until("turns are taken", SOON, || {
            (!no_turns(station)).then_some(())
        });
        assert_eq!(raw.ask(MORE), FULL);
        assert!(!filtered || shell.ask(&opens) == DENIED);
    };
    held(&mut raw, &mut shell, &station);

    let kinds = [
        Service::Serves,
        Service::Hangs,
        Service::Dead,
        Service::CannotStart,
    ];
    for moment in 0..20 {
        let kind = kinds[random.below(4) as usize];
        // Claims come and go meanwhile, so that a moment may be in the middle of anything.
        let mut others = [(); 3].map(|()| {
            let mut command = station.command();
            command.args([
                "claim",
                "-q",
                "-g",
                "0.1",
                "--gpu-ids",
                "1",
                "--nonblock",
                "--",
                "true",
            ]);
            command.env("GSHARE_RECONNECT", "0s");
            command
                .stderr(std::process::Stdio::null())
                .spawn()
                .expect("gshare runs")
        });
        std::thread::sleep(Duration::from_millis(random.below(60)));
        let pid = Pid::from_raw(station.service_pid().expect("it runs").cast_signed());
        let kept = journal.with_extension("kept");
        match kind {
            Service::Serves => {}
            Service::Hangs => nix::sys::signal::kill(pid, Signal::SIGSTOP).expect("stopped"),
            Service::Dead | Service::CannotStart => {
                station.stop_service(Signal::SIGKILL).expect("killed");
            }
        }
        if kind == Service::CannotStart {
            std::fs::rename(&journal, &kept).expect("moved");
            std::fs::create_dir(&journal).expect("made");
            assert!(station.start_service().is_err());
        }
        let busy = floods.each_ref().map(|f| f.busy(&station));
        let begun = Instant::now();
        said(&station, &["admin", "off", "--config", &config]);
        let answer = raw.ask(MORE);
        assert!(answer.starts_with("ok"), "{moment}, {kind:?}: {answer}");
        assert!(!filtered || shell.ask(&opens) == OPEN, "{moment}, {kind:?}");
        assert!(no_turns(&station), "{moment}, {kind:?}");
        let took = begun.elapsed();
        println!("{moment}: {kind:?} {took:?}");
        assert!(
            took < Duration::from_secs(1),
            "{moment}, {kind:?}: {took:?}"
        );
        until("both go on", SOON, || {
            let now = floods.each_ref().map(|f| f.busy(&station));
            (now[0] > busy[0] && now[1] > busy[1]).then_some(())
        });

        match kind {
            Service::Serves => {}
            Service::Hangs => nix::sys::signal::kill(pid, Signal::SIGCONT).expect("goes on"),
            Service::Dead => station.start_service().expect("starts again"),
            Service::CannotStart => {
                std::fs::remove_dir(&journal).expect("removed");
                std::fs::rename(&kept, &journal).expect("moved back");
                station.start_service().expect("starts again");
            }
        }
        until("the service follows", SOON, || {
            said(&station, &["status"])
                .starts_with("gshare is OFF")
                .then_some(())
        });
        said(&station, &["admin", "on"]);
        assert_eq!(raw.ask(&answer.replace("ok", "free")), "ok");
        held(&mut raw, &mut shell, &station);
        for other in &mut others {
            other.wait().expect("ends");
        }
    }
    for mut flood in floods {
        assert!(
            flood.0.try_wait().expect("known").is_none(),
            "nothing is ended"
        );
    }
    assert_eq!(raw.finish(), Some(0));
}

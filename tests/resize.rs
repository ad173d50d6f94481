//! A claim changes its size while its programs run.

use crate::support;

use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gshare::station::Station;
use gshare_proto::{Call, ClaimView, Reply, ResizeSpec, Wait};
use nix::sys::signal::Signal;
use support::{Raw, board, board_bytes, claim_of, station, until};

const MIB: u64 = 1 << 20;

fn resize(station: &Station, args: &[&str]) -> Output {
    let mut command = station.command();
    command.arg("resize").args(args);
    command.output().expect("runs")
}

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

fn view(station: &Station, raw: &Raw) -> ClaimView {
    let snapshot = station.snapshot().expect("served");
    claim_of(&snapshot, raw.pid()).expect("listed").clone()
}

/// The SM words that the gate reads, and the cap that every reservation is checked against.
fn page(station: &Station, id: &str) -> (u32, u32, u64) {
    let pages = until("the limits page is there", Duration::from_secs(5), || {
        let mut dirs = vec![station.dir().to_owned()];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(dir).ok()?.flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if entry.path().is_dir() {
                    dirs.push(entry.path());
                } else if name.starts_with(&format!("{id}-")) && name.ends_with(".limits") {
                    return gshare_abi::host::LimitsFile::open(&entry.path()).ok();
                }
            }
        }
        None
    });
    let page = pages.page();
    (
        page.sm_request_permille.load(Ordering::Relaxed),
        page.sm_limit_permille.load(Ordering::Relaxed),
        pages.memory_cap(),
    )
}

#[test]
fn a_claim_under_load_has_its_new_size_within_200_ms_and_is_never_over_it() {
    let station = station();
    let board = board(&station);
    let mut first = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "0"]);
    let id = view(&station, &first).id;
    let mut join = station.command();
    join.args(["join", "-q", &id, "--"])
        .arg(support::example("raw_client"));
    let mut second = Raw::start(join);
    let pids = [first.pid(), second.pid()];
    let (_, start) = first.info();
    // What the watcher holds the claim to: raised before a larger size is asked, lowered once a smaller one
    // is answered.
    let held_to = AtomicU64::new(start);
    let done = AtomicBool::new(false);
    let asked = AtomicU64::new(0);
    let (mut slowest, mut sizes) = (Duration::ZERO, Vec::new());
    std::thread::scope(|scope| {
        // Both allocate and free without a pause, together more than the smallest size, and give back all when
        // refused.
        for raw in [&mut first, &mut second] {
            let (done, asked) = (&done, &asked);
            scope.spawn(move || {
                let mut held = Vec::new();
                while !done.load(Ordering::Relaxed) {
                    asked.fetch_add(1, Ordering::Relaxed);
                    let answer = raw.ask(&format!("alloc {}", 256 * MIB));
                    match answer.strip_prefix("ok ") {
                        Some(index) => held.push(index.to_owned()),
                        None => assert_eq!(answer, "error 2 CUDA_ERROR_OUT_OF_MEMORY"),
                    }
                    if held.len() >= 12 || answer.starts_with("error") {
                        for index in held.drain(..) {
                            assert_eq!(raw.ask(&format!("free {index}")), "ok");
                        }
                    }
                }
            });
        }
        let watch = scope.spawn(|| {
            let (mut looks, mut over) = (0u64, Vec::new());
            while !done.load(Ordering::Relaxed) {
                // It may be lowered or raised at any moment of the look.
                let before = held_to.load(Ordering::SeqCst);
                let used = board_bytes(&board.snapshot(), 0, &pids);
                let most = before.max(held_to.load(Ordering::SeqCst));
                if used > most {
                    over.push((used, most));
                }
                looks += 1;
            }
            (looks, over)
        });
        let mut client = station.client().expect("connects");
        for _ in 0..3 {
            for milli in [200u32, 800, 500] {
                if milli > 200 {
                    held_to.store(u64::MAX, Ordering::SeqCst);
                }
                // A limit below the charge of the moment is refused: asked again until it is not.
                let resized = until("it is small enough", Duration::from_secs(10), || {
                    let started = Instant::now();
                    let call = Call::Resize(Box::new(ResizeSpec {
                        id: id.clone().into(),
                        gpus_milli: Some(milli),
                        wait: Wait::No,
                        ..ResizeSpec::default()
                    }));
                    let Ok(Reply::Resized(resized)) = client.call(&call) else {
                        return None;
                    };
                    let (request, _, cap) = page(&station, &id);
                    assert_eq!(request, milli, "the SMs' word is written");
                    assert_eq!(cap, resized.gpus[0].mem_limit, "and so is the cap");
                    slowest = slowest.max(started.elapsed());
                    Some(resized)
                });
                held_to.store(resized.gpus[0].mem_limit, Ordering::SeqCst);
                sizes.push(resized.gpus[0].mem_limit);
                let before = asked.load(Ordering::Relaxed);
                until("the load goes on", Duration::from_secs(10), || {
                    (asked.load(Ordering::Relaxed) > before + 60).then_some(())
                });
            }
        }
        done.store(true, Ordering::Relaxed);
        let (looks, over) = watch.join().expect("no panic");
        assert!(looks > 50, "the board was looked at {looks} times");
        assert_eq!(over, [], "bytes in use and what was allowed");
    });
    println!("slowest {slowest:?}");
    assert!(slowest < Duration::from_millis(200), "took {slowest:?}");
    assert!(sizes[0] < start && sizes[1] > start && sizes[2] == start);
    assert_eq!(first.info().1, start, "and the program sees it");
}

#[test]
fn what_does_not_fit_is_refused_with_what_would_and_a_patient_one_waits() {
    let station = station();
    let mut raw = Raw::claim(&station, &["-q", "-g", "0.25", "--gpu-ids", "1"]);
    let id = view(&station, &raw).id;
    let other = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "1"]);
    let refused = resize(&station, &[&id, "-g", "0.75"]);
    assert_eq!(refused.status.code(), Some(75), "{}", text(&refused));
    let other_id = view(&station, &other).id;
    assert!(
        text(&refused).contains("is possible") && text(&refused).contains(&other_id),
        "{}",
        text(&refused)
    );
    assert!(
        text(&refused).contains(&format!("gshare resize {id} -g 0.5")),
        "{}",
        text(&refused)
    );
    let fits = resize(&station, &[&id, "-g", "0.5", "--limit", "0.8", "--json"]);
    assert!(fits.status.success(), "{}", text(&fits));
    let json: serde_json::Value = serde_json::from_slice(&fits.stdout).expect("JSON");
    assert_eq!(json["gpus"][0]["sm_request"], 0.5);
    assert_eq!(json["gpus"][0]["sm_limit"], 0.8);
    assert_eq!(page(&station, &id).0, 500);
    assert_eq!(page(&station, &id).1, 800);

    let (free, _) = raw.info();
    assert_eq!(raw.ask(&format!("alloc {}", free / 2)), "ok 0");
    let small = resize(&station, &[&id, "-g", "0.1"]);
    assert_eq!(small.status.code(), Some(75), "{}", text(&small));
    assert!(
        text(&small).contains("more than the new limit"),
        "{}",
        text(&small)
    );
    let only = resize(
        &station,
        &[&id, "--gpu-mem", "1G", "--gpu-mem-limit", "12G"],
    );
    assert!(only.status.success(), "{}", text(&only));
    assert!(
        text(&only).contains("more than its new size"),
        "{}",
        text(&only)
    );
    until("its state says so", Duration::from_secs(5), || {
        let state = view(&station, &raw).state_text;
        state.contains("over its request").then_some(())
    });

    let mut patient = station.command();
    patient.args(["resize", &id, "-g", "1", "--wait", "30s"]);
    let patient = patient.spawn().expect("runs");
    until("the wish waits", Duration::from_secs(5), || {
        let snapshot = station.snapshot().ok()?;
        let gpu = snapshot.gpus.iter().find(|g| g.index == 1)?;
        (gpu.claimable == 0.0).then_some(())
    });
    assert_eq!(other.finish(), Some(0));
    let mut patient = patient;
    assert_eq!(patient.wait().expect("reaped").code(), Some(0));
    assert_eq!(view(&station, &raw).gpus[0].sm_request, 1.0);
}

#[test]
fn wrong_use_is_told_apart() {
    let station = station();
    let raw = Raw::claim(&station, &["-q", "-g", "0.25", "--gpu-ids", "1"]);
    let id = view(&station, &raw).id;
    for (args, code, words) in [
        (vec!["c77", "-g", "0.5"], 64, "no claim"),
        (vec![id.as_str()], 64, "nothing to change"),
        (vec![id.as_str(), "-g", "2"], 64, "their number"),
        (
            vec![id.as_str(), "-g", "0.5", "--limit", "0.3"],
            64,
            "below the request",
        ),
        (
            vec![id.as_str(), "--gpu-mem", "900G", "--wait"],
            64,
            "claims can use at most",
        ),
    ] {
        let refused = resize(&station, &args);
        assert_eq!(
            refused.status.code(),
            Some(code),
            "{args:?}: {}",
            text(&refused)
        );
        assert!(
            text(&refused).contains(words),
            "{args:?}: {}",
            text(&refused)
        );
    }
    if support::root("the refusal of a stranger") {
        use std::os::unix::process::CommandExt;
        let mut command: Command = station.command();
        command
            .args(["resize", &id, "-g", "0.5"])
            .uid(65_533)
            .gid(65_533);
        let refused = command.output().expect("runs");
        assert_eq!(refused.status.code(), Some(77), "{}", text(&refused));
    }
}

#[test]
fn a_new_size_survives_the_service() {
    let mut station = station();
    let mut raw = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "0"]);
    let id = view(&station, &raw).id;
    let done = resize(
        &station,
        &[&id, "-g", "0.25", "--gpu-mem-limit", "9G", "--limit", "0.6"],
    );
    assert!(done.status.success(), "{}", text(&done));
    let before = view(&station, &raw);
    station.stop_service(Signal::SIGKILL).expect("killed");
    assert_eq!(raw.info().1, 9 << 30, "the page stays");
    station.start_service().expect("starts again");
    let after = view(&station, &raw);
    assert_eq!(after.gpus[0].mem_request, before.gpus[0].mem_request);
    assert_eq!(after.gpus[0].mem_limit, 9 << 30);
    assert_eq!(
        (after.gpus[0].sm_request, after.gpus[0].sm_limit),
        (0.25, 0.6)
    );
    assert_eq!(page(&station, &id).0, 250);
    assert_eq!(page(&station, &id).1, 600);
    let again = resize(&station, &[&id, "-g", "1"]);
    assert!(again.status.success(), "{}", text(&again));
}

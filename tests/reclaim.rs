//! Room for waiting claims: limits shrink, idle claims are warned and offloaded, others move, are restarted or end.
//! Everything is announced, and comes back.

use crate::support;

use std::time::{Duration, Instant};

use gshare::station::Station;
use gshare_proto::ClaimView;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use serde_json::json;
use support::detach::{
    ANYBODY, SOON_OVER, fast, holder, on_gpus, settles, station_of, station_of_sharers,
    station_that,
};
use support::notebook::Notebook;
use support::terminal::Terminal;
use support::{
    GIB, Raw, SOON, alone, board, claim, claim_of, example, has_all, ok, python, refused, root,
    run, station_with, until, words,
};

// Each lever is a tested action with its reverse, on real processes: it is announced on the owner's terminal, and
// reversed.

/// Two projects of root's with these guarantees, and rules with short times.
fn keys([p1, p2]: [f64; 2], reclaim: &str) -> String {
    format!(
        "{ANYBODY}[projects]\np1 = {{ users = [\"root\"] }}\np2 = {{ users = [\"root\"] }}\n\
         [quotas]\n\"project:p1\" = {{ gpus = {p1:.1} }}\n\"project:p2\" = {{ gpus = {p2:.1} }}\n\
         [reclaim]\n{SOON_OVER}{reclaim}"
    )
}

fn starts(station: &Station, pid: u32) {
    until("it starts", SOON, || {
        let snapshot = station.snapshot().ok()?;
        let claim = claim_of(&snapshot, pid)?;
        claim.place.word.is_none().then_some(())
    });
}

fn waits(station: &Station) -> String {
    until("it waits", SOON, || {
        let snapshot = station.snapshot().ok()?;
        Some(snapshot.queue.first()?.id.clone())
    })
}

#[test]
fn burst_limits_shrink_for_who_waits_and_grow_again() {
    let station = station_of(1, "[reclaim]\nenabled = false\n");
    let mut raw = Raw::claim(
        &station,
        &words("-q -g 0.25 --limit 0.8 --gpu-mem-limit 18G"),
    );
    assert_eq!(raw.ask(&format!("alloc {}", 12 * GIB)), "ok 0", "lent");
    let other = Raw::asks(&station, &["-q", "-g", "0.75"]);
    waits(&station);
    // Its burst stays until it is freed; it gets no more.
    assert!(raw.ask(&format!("alloc {GIB}")).starts_with("error 2"));
    assert_eq!(raw.ask("free 0"), "ok");
    starts(&station, other.pid());
    assert!(
        raw.ask(&format!("alloc {}", 12 * GIB))
            .starts_with("error 2")
    );
    assert_eq!(
        raw.ask(&format!("alloc {}", 4 * GIB)),
        "ok 1",
        "its own is its own"
    );
    drop(other);
    until("the limit is what it was", SOON, || {
        raw.ask(&format!("alloc {}", 12 * GIB)) == "ok 2"
    });
}

#[test]
fn a_share_that_was_lowered_is_given_back() {
    let station = station_of(1, &keys([0.5, 0.5], "countdown = \"1s\"\n"));
    let sm = |pid: u32| claim(&station, pid).gpus[0].sm_request;
    let raw = Raw::claim(
        &station,
        &["-q", "--gpu-mem", "4G", "--sm", "80%", "--project", "p1"],
    );
    assert!((sm(raw.pid()) - 0.8).abs() < 1e-9);
    let other = Raw::asks(
        &station,
        &["-q", "--gpu-mem", "4G", "--sm", "50%", "--project", "p2"],
    );
    starts(&station, other.pid());
    assert!((sm(raw.pid()) - 0.5).abs() < 1e-9, "{}", sm(raw.pid()));
    assert_eq!(claim(&station, raw.pid()).place.word, None, "it runs on");
    drop(other);
    until("it has its share back", SOON, || {
        (sm(raw.pid()) - 0.8).abs() < 1e-9
    });
    let log = ok(&station, &["log", &claim(&station, raw.pid()).id]);
    for said in [
        "gets a smaller share of compute in 1s",
        "gets them back when nobody needs them",
        "now has 50 % of the compute; it asked for 80 %",
        "now has 80 % of the compute; it asked for 80 %",
    ] {
        assert!(log.contains(said), "{said}: {log}");
    }
}

#[test]
fn an_idle_claim_is_detached_for_who_waits_and_its_next_call_brings_it_back() {
    let station = station_of(
        1,
        &keys([0.5, 0.5], "countdown = \"1s\"\n[idle]\ndetach = \"1s\"\n"),
    );
    let (mut raw, sum) = holder(
        &station,
        &["-q", "-g", "1", "--class", "interactive", "--project", "p1"],
    );
    assert_eq!(raw.ask("launch 1"), "ok 1");
    let pid = raw.pid();
    let id = claim(&station, pid).id;
    let held = on_gpus(&station, pid);
    // Idleness alone costs it nothing: another claim has to wait.
    let other = Raw::asks(&station, &["-q", "-g", "1", "--project", "p1"]);
    starts(&station, other.pid());
    assert_eq!(on_gpus(&station, pid), 0);
    let view = claim(&station, pid);
    assert_eq!(view.place.word.as_deref(), Some("offloaded"));
    assert_eq!(raw.ask("ping"), "ok pong", "its processes run");
    let why = ok(&station, &["why", &id]);
    has_all(&why, &["is not on a GPU: offloaded, "]);
    raw.tell("sum 0");
    until("its call waits for room", SOON, || {
        let place = claim(&station, pid).place;
        place.waits.filter(|w| !w.is_empty())
    });
    let why = ok(&station, &["why", &id]);
    has_all(&why, &["it comes back when there is room: "]);
    drop(other);
    assert_eq!(raw.line(), sum);
    assert_eq!(on_gpus(&station, pid), held);
    let log = ok(&station, &["log", &id]);
    for said in ["is offloaded in 1s", "offloaded, ", "restored"] {
        assert!(log.contains(said), "{said}: {log}");
    }
}

#[test]
fn a_watchdog_thread_brings_nothing_back_before_the_stated_delay_and_a_real_call_does_at_once() {
    let station = station_of(1, "");
    let (mut raw, sum) = holder(&station, &["-q", "-g", "0.5"]);
    let (pid, id) = (raw.pid(), claim(&station, raw.pid()).id);
    assert_eq!(raw.ask("watch 20"), "ok");
    until("it watches", SOON, || raw.ask("watched") != "ok 0");
    // Its wait begins somewhere in the command.
    let begun = Instant::now();
    ok(&station, &["offload", &id]);
    until(
        "the watchdog has it back in the end",
        Duration::from_secs(30),
        || claim(&station, pid).place.word.is_none(),
    );
    assert!(
        begun.elapsed() >= Duration::from_secs(10),
        "{:?}",
        begun.elapsed()
    );
    ok(&station, &["offload", &id]);
    let begun = Instant::now();
    assert_eq!(raw.ask("sum 0"), sum);
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "{:?}",
        begun.elapsed()
    );
    let log = ok(&station, &["log", &id]);
    assert_eq!(
        log.matches("restored").count(),
        2,
        "it does not flap: {log}"
    );
}

/// A claim on loan whose memory cannot be offloaded: the command writes down that it starts, and what it saves at its
/// end.
fn job(station: &Station, flags: &[&str], notes: &std::path::Path) -> Raw {
    const SCRIPT: &str = "echo start >> \"$1\"; exec 3<&0; \
        trap 'sleep 0.3; echo saved >> \"$1\"; kill $child; exit 7' TERM; \
        \"$0\" <&3 & child=$!; wait $child";
    let mut command = station.command();
    command.args(["claim", "-q", "-g", "1", "--project", "p1"]);
    command.args(flags).args(["--", "bash", "-c", SCRIPT]);
    command.arg(example("raw_client")).arg(notes);
    let mut raw = Raw::start(command);
    assert_eq!(raw.ask("managed 4096"), "ok");
    assert_eq!(raw.ask("launch 1"), "ok 1");
    raw
}

fn notes(path: &std::path::Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn a_requeued_command_is_asked_to_end_and_starts_anew_when_there_is_room() {
    let station = station_of(1, &keys([0.1, 0.9], "countdown = \"1s\"\n"));
    let path = station.dir().join("notes");
    let mut raw = job(&station, &["--requeue"], &path);
    let id = station.snapshot().expect("served").claims[0].id.clone();
    until("it is known that it stays", SOON, || {
        let levers = station
            .snapshot()
            .ok()?
            .claims
            .first()?
            .place
            .levers
            .clone();
        levers.not_detachable.filter(|w| w.contains("managed"))
    });
    let other = Raw::asks(&station, &["-q", "-g", "0.9", "--project", "p2"]);
    starts(&station, other.pid());
    assert_eq!(notes(&path), ["start", "saved"], "it had its time to save");
    let log = ok(&station, &["log", &id]);
    for said in [
        "is ended and queued again in 1s",
        "is ended and queued again: c2 of root came first",
        "to save their work",
    ] {
        assert!(log.contains(said), "{said}: {log}");
    }
    let queued = waits(&station);
    assert_ne!(queued, id, "it waits again");
    drop(other);
    // The same program, on the same terminal, from its beginning.
    assert_eq!(raw.line(), "ok ready");
    assert_eq!(notes(&path), ["start", "saved", "start"]);
    assert_eq!(raw.ask("launch 1"), "ok 1");
    assert_eq!(raw.finish(), Some(0));
}

#[test]
fn a_command_that_saves_at_its_signal_and_ends_is_started_anew() {
    let station = station_of(1, &keys([0.1, 0.9], "countdown = \"60s\"\n"));
    let path = station.dir().join("notes");
    let script = "echo start >> \"$1\"; exec 3<&0; \
        trap 'echo saved >> \"$1\"; kill $child; exit 0' USR1; \
        \"$0\" <&3 & child=$!; wait $child";
    let mut command = station.command();
    let flags = [
        "claim",
        "-q",
        "-g",
        "1",
        "--project",
        "p1",
        "--requeue",
        "--signal",
        "B:USR1@58",
    ];
    command.args(flags).args(["--", "bash", "-c", script]);
    command.arg(example("raw_client")).arg(&path);
    let mut raw = Raw::start(command);
    assert_eq!(raw.ask("managed 4096"), "ok");
    assert_eq!(raw.ask("launch 1"), "ok 1");
    let other = Raw::asks(&station, &["-q", "-g", "0.9", "--project", "p2"]);
    // Two seconds after the announcement, and not a minute.
    starts(&station, other.pid());
    assert_eq!(notes(&path), ["start", "saved"]);
    let log = ok(&station, &["log", "c1"]);
    has_all(&log, &["its programs got SIGUSR1 (--signal)"]);
    drop(other);
    assert_eq!(raw.line(), "ok ready");
    assert_eq!(notes(&path), ["start", "saved", "start"]);
    assert_eq!(raw.finish(), Some(0));
}

#[test]
fn what_was_not_claimed_with_requeue_is_ended_last_and_only_where_that_is_allowed() {
    for kill in [false, true] {
        let reclaim = format!("countdown = \"1s\"\nkill = {kill}\n");
        let station = station_of(1, &keys([0.1, 0.9], &reclaim));
        let path = station.dir().join("notes");
        let mut raw = job(&station, &[], &path);
        let id = claim(&station, raw.pid()).id;
        until("it is known that it stays", SOON, || {
            let levers = claim(&station, raw.pid()).place.levers;
            levers.not_detachable.filter(|w| w.contains("managed"))
        });
        let other = Raw::asks(&station, &["-q", "-g", "0.9", "--project", "p2"]);
        let waiting = waits(&station);
        if kill {
            starts(&station, other.pid());
            assert_eq!(notes(&path), ["start", "saved"]);
            let log = ok(&station, &["log", &id]);
            has_all(&log, &["is ended in 1s"]);
            let code = raw.child.wait().expect("ends").code();
            assert_eq!(code, Some(7), "and nobody starts it again");
            drop(other);
            until("all is over", SOON, || {
                let snapshot = station.snapshot().ok()?;
                (snapshot.claims.is_empty() && snapshot.queue.is_empty()).then_some(())
            });
            assert_eq!(notes(&path), ["start", "saved"]);
        } else {
            // Nothing is announced, now or later, and the message names what the other waits for.
            for _ in 0..3 {
                support::next_look(&station);
                let snapshot = station.snapshot().expect("served");
                assert_eq!(snapshot.queue[0].plan, None);
                assert_eq!(snapshot.claims[0].announced, None);
            }
            let why = ok(&station, &["why", &waiting]);
            has_all(&why, &["start time unknown"]);
            assert_eq!(raw.ask("launch 1"), "ok 2", "it runs on");
            drop(other);
            assert_eq!(notes(&path), ["start"]);
        }
    }
}

#[test]
fn people_are_told_on_their_terminal_before_anything_is_taken() {
    root!("people_are_told_on_their_terminal");
    let station = station_of(1, &keys([0.1, 0.9], "countdown = \"7s\"\n"));
    let mut command = station.command();
    command.args(["claim", "-q", "-g", "1", "--project", "p1", "--"]);
    command.arg(example("raw_client"));
    let mut terminal = Terminal::start(&command, 24, 160);
    terminal.shows(&["ok ready"], SOON);
    terminal.send(&format!("alloc {GIB}\nfill 0 5\nsum 0\n"));
    terminal.shows(&["ok 0"], SOON);
    let pid = terminal.pid();
    support::detach::ready(&station, pid);
    let sum = terminal.wait("a checksum", SOON, |text| {
        let mut lines = text.lines().filter_map(|l| l.trim().strip_prefix("ok "));
        lines.find(|n| n.len() > 10).map(str::to_owned)
    });
    let id = claim(&station, pid).id;
    let held = on_gpus(&station, pid);
    let other = Raw::asks(&station, &["-q", "-g", "0.9", "--project", "p2"]);
    let whom = waits(&station);
    // The user who needs it, what, when, which action, the fate of the contents, and how to keep it.
    let announced = format!(
        "gshare: {id} is suspended in 7s: {whom} of root waits for room, within the guarantee of project p2; \
         the memory of {id} is kept. To postpone: gshare keep {id}"
    );
    let on_screen = |text: &str, wanted: &str| {
        let flat: String = text.split_whitespace().collect();
        let wanted: String = wanted.split_whitespace().collect();
        flat.contains(&wanted).then_some(())
    };
    terminal.wait("the announcement", SOON, |text| on_screen(text, &announced));
    assert_eq!(on_gpus(&station, pid), held, "nothing has been taken yet");
    let view = claim(&station, pid);
    assert!(
        view.announced
            .expect("shown")
            .contains(&format!("for {whom}"))
    );
    let why = ok(&station, &["why", &id]);
    has_all(&why, &[&format!("announced: {id} is suspended in")]);
    // The time approaches.
    let reminder = format!("for {whom}; to postpone: gshare keep {id}");
    terminal.wait("a reminder", SOON, |text| on_screen(text, &reminder));
    assert_eq!(on_gpus(&station, pid), held, "still nothing has been taken");
    starts(&station, other.pid());
    assert_eq!(on_gpus(&station, pid), 0);
    terminal.wait("what was done", SOON, |text| {
        on_screen(text, &format!("gshare: {id} suspended, "))
    });
    let why = ok(&station, &["why", &id]);
    has_all(&why, &["is not on a GPU: suspended, "]);
    drop(other);
    terminal.wait("it is back", SOON, |text| {
        on_screen(text, &format!("gshare: {id} resumed"))
    });
    terminal.send("sum 0\n");
    until("contents are equal", SOON, || {
        terminal.text().matches(&sum).count() == 2
    });
    // The log has the same.
    let log = ok(&station, &["log", &id]);
    for said in [&announced[8..], &reminder, "suspended, ", "resumed"] {
        assert!(log.contains(said), "{said}: {log}");
    }
}

#[test]
fn keep_puts_off_what_was_announced_once() {
    let station = station_of(1, &keys([0.1, 0.9], "countdown = \"3s\"\nkeep = \"2s\"\n"));
    let (mut raw, sum) = holder(&station, &["-q", "-g", "1", "--project", "p1"]);
    let (pid, id) = (raw.pid(), claim(&station, raw.pid()).id);
    let said = refused(&station, &["keep", &id]);
    has_all(&said, &["nothing is announced"]);
    let other = Raw::asks(&station, &["-q", "-g", "0.9", "--project", "p2"]);
    let announced = || until("it is announced", SOON, || claim(&station, pid).announced);
    announced();
    let kept = ok(&station, &["keep", &id]);
    has_all(&kept, &[&format!("{id} keeps what it has for 2s")]);
    until("it is taken back", SOON, || {
        claim(&station, pid).announced.is_none()
    });
    assert!(ok(&station, &["log", &id]).contains("keeps what it has after all"));
    // Once for each waiting claim.
    announced();
    let said = refused(&station, &["keep", &id]);
    has_all(&said, &["was already postponed once"]);
    starts(&station, other.pid());
    settles(&station, pid, Some("suspended"));
    drop(other);
    settles(&station, pid, None);
    assert_eq!(raw.ask("sum 0"), sum);
}

// Making room, from beginning to end: real processes, the simulated driver, announcements and all.

/// Observation time of both bursting notebooks, and launches of 20 ms that last longer than that.
const BURST: Duration = Duration::from_secs(2);

const LAUNCHES: u32 = 150;

/// GPUs of one model, and rules with short times.
fn seeded(gpus: usize, more: &str) -> Station {
    station_of_sharers(gpus, &format!("countdown = \"2s\"\n{more}"))
}

fn seen(station: &Station, pid: u32) -> Option<ClaimView> {
    claim_of(&station.snapshot().ok()?, pid).cloned()
}

fn gpu_of(station: &Station, pid: u32) -> Option<u32> {
    let claim = seen(station, pid)?;
    let here = claim.place.word.is_none();
    claim.gpus.first().filter(|_| here).map(|g| g.gpu)
}

/// A member with something in every byte of its memory, and the checksum of all; it can be moved.
fn bursting(station: &Station, flags: &[&str], mib: u64) -> (Raw, String) {
    let mut raw = Raw::claim(station, flags);
    assert_eq!(raw.ask(&format!("alloc {}", mib << 20)), "ok 0");
    assert_eq!(raw.ask(&format!("fill-all {}", raw.pid())), "ok");
    let sum = raw.ask("sum-all");
    assert!(sum.ends_with(&format!("of {} bytes", mib << 20)), "{sum}");
    until("the claim can be moved", SOON, || {
        let levers = seen(station, raw.pid())?.place.levers;
        (levers.not_detachable.is_none() && levers.not_movable.is_none()).then_some(())
    });
    (raw, sum)
}

#[test]
fn two_notebooks_burst_and_one_moves_beside_the_other_when_a_gpu_is_claimed() {
    let station = seeded(2, "");
    std::fs::write(station.sim_dir().join("costs"), "add_one 20ms\n").expect("written");
    let notebook = ["-q", "-g", "0.5", "--limit", "1", "--class", "interactive"];
    let (mut first, first_sum) = bursting(&station, &notebook, 64);
    let (mut second, second_sum) = bursting(&station, &notebook, 32);
    let (a, b) = (first.pid(), second.pid());
    assert_eq!(
        (gpu_of(&station, a), gpu_of(&station, b)),
        (Some(0), Some(1))
    );
    for pid in [a, b] {
        let part = seen(&station, pid).expect("listed").gpus[0].clone();
        assert!((part.sm_limit - 1.0).abs() < 1e-9, "up to all of its GPU");
    }
    both_burst_and_a_full_gpu_is_claimable(&station, &mut first, &mut second);
    for size in ["1", "0.6"] {
        let waits = Raw::asks(&station, &["-q", "-g", size]);
        let plan = until("it is said how room is made", SOON, || {
            station.snapshot().ok()?.queue.first()?.plan.clone()
        });
        has_all(&plan, &["moves from GPU"]);
        let id = station.snapshot().expect("served").queue[0].id.clone();
        let why = ok(&station, &["why", &id]);
        has_all(&why, &["room is made for it", "it starts "]);
        until("the claim starts", SOON, || gpu_of(&station, waits.pid()));
        let beside = (gpu_of(&station, a), gpu_of(&station, b));
        assert_eq!(beside.0, beside.1, "the notebooks share a GPU");
        assert_ne!(gpu_of(&station, waits.pid()), beside.0);
        assert_eq!(
            (first.ask("sum-all"), second.ask("sum-all")),
            (first_sum.clone(), second_sum.clone())
        );
        let told = [a, b].iter().any(|pid| {
            let id = seen(&station, *pid).expect("listed").id;
            ok(&station, &["log", &id]).contains("gshare keep")
        });
        assert!(told, "it was announced");
        drop(waits);
        until("its claim is over", SOON, || {
            (station.snapshot().ok()?.claims.len() == 2).then_some(())
        });
        if size == "1" {
            // Apart again, by hand: for the second size.
            let id = seen(&station, b).expect("listed").id;
            let free = if gpu_of(&station, b) == Some(0) {
                "1"
            } else {
                "0"
            };
            let output = station
                .command()
                .args(["move", &id, "--gpu", free])
                .output();
            assert!(output.expect("runs").status.success());
            until("they are apart", SOON, || {
                (gpu_of(&station, a)? != gpu_of(&station, b)?).then_some(())
            });
        }
    }
}

/// Both compute at the same time for seconds, each with nearly all of its GPU, by the board; and a whole GPU could be
/// claimed.
fn both_burst_and_a_full_gpu_is_claimable(station: &Station, a: &mut Raw, b: &mut Raw) {
    let pids = [a.pid(), b.pid()];
    let computed = || -> [u64; 2] {
        let gpus = board(station).snapshot().gpus;
        let all = gpus.into_iter().flat_map(|gpu| gpu.processes);
        let all: Vec<(u32, u64)> = all.map(|p| (p.pid, p.busy_ns)).collect();
        pids.map(|pid| all.iter().filter(|p| p.0 == pid).map(|p| p.1).sum())
    };
    for raw in [&mut *a, &mut *b] {
        raw.tell(&format!("launch {LAUNCHES}"));
    }
    let early = computed();
    until("both compute", SOON, || {
        let now = computed();
        now[0] > early[0] && now[1] > early[1]
    });
    let (before, started) = (computed(), Instant::now());
    std::thread::sleep(BURST);
    let (after, took) = (computed(), started.elapsed());
    let parts = [0, 1].map(|i| (after[i] - before[i]) as f64 / took.as_nanos() as f64);
    println!("of their GPUs they had {parts:.3?} for {took:.2?}");
    assert!(parts.iter().all(|part| *part > 0.9), "{parts:?}");
    for raw in [&mut *a, &mut *b] {
        assert_eq!(raw.line(), format!("ok {LAUNCHES}"));
    }
    until("a full GPU can be had by a move", SOON, || {
        let asked = ["claim", "-g", "1", "--dry-run", "--json"];
        let tried = station.command().args(asked).output().ok()?;
        let tried: serde_json::Value = serde_json::from_slice(&tried.stdout).ok()?;
        let takings = tried["takings"].as_array()?;
        (takings.len() == 1 && !takings[0]["to"].as_array()?.is_empty()).then_some(())
    });
}

#[test]
fn a_service_that_dies_in_the_countdown_goes_on_where_it_was() {
    let mut station = seeded(2, "");
    let notebook = ["-q", "-g", "0.5", "--limit", "1", "--class", "interactive"];
    let (mut first, first_sum) = bursting(&station, &notebook, 64);
    let (mut second, second_sum) = bursting(&station, &notebook, 32);
    let (a, b) = (first.pid(), second.pid());
    let waits = Raw::asks(&station, &["-q", "-g", "1"]);
    until("the first waits", SOON, || {
        (station.snapshot().ok()?.queue.len() == 1).then_some(())
    });
    let later = Raw::asks(&station, &["-q", "-g", "0.9"]);
    let queue = |station: &Station| -> Option<Vec<String>> {
        let queue = station.snapshot().ok()?.queue;
        let plan = queue.first()?.plan.is_some();
        let waits = queue.into_iter().map(|q| q.id);
        Some(waits.collect::<Vec<_>>()).filter(|q| q.len() == 2 && plan)
    };
    let before = until("both wait, the first with a plan", SOON, || queue(&station));
    station
        .stop_service(nix::sys::signal::Signal::SIGKILL)
        .expect("killed");
    station.start_service().expect("starts again");
    // The countdown may be over by now: then the first runs, with the same number.
    let number = until("the first has its place, or its GPU", SOON, || {
        let held = seen(&station, waits.pid()).map(|c| c.id);
        let queued = || queue(&station).filter(|q| *q == before);
        held.or_else(|| Some(queued()?[0].clone()))
    });
    assert_eq!(number, before[0]);
    until("the first claim starts", SOON, || {
        gpu_of(&station, waits.pid())
    });
    assert_eq!(gpu_of(&station, a), gpu_of(&station, b));
    assert_eq!(
        (first.ask("sum-all"), second.ask("sum-all")),
        (first_sum, second_sum)
    );
    let told = |pid| {
        let id = seen(&station, pid).expect("listed").id;
        ok(&station, &["log", &id])
    };
    let told = told(a) + &told(b);
    let times = told.matches("gshare keep").count();
    assert_eq!(times, 1, "told once: {told}");
    drop(waits);
    until("the second claim starts", SOON, || {
        gpu_of(&station, later.pid())
    });
    assert_eq!(seen(&station, later.pid()).expect("listed").id, before[1]);
    drop(later);
}

#[test]
fn borrowed_gpus_go_back_to_the_project_that_is_guaranteed_them_and_its_jobs_resume() {
    let quotas = "[projects]\np1 = { users = [\"root\"] }\np2 = { users = [\"root\"] }\n\
                  [quotas]\n\"project:p1\" = { gpus = 2.0 }\n\"project:p2\" = { gpus = 2.0 }\n";
    root!("borrowed_gpus_go_back");
    let station = seeded(4, quotas);
    let job = |project: &'static str| ["-q", "-g", "1", "--project", project];
    let mut jobs: Vec<(Raw, String)> = (0..4).map(|_| bursting(&station, &job("p1"), 32)).collect();
    let pids: Vec<u32> = jobs.iter().map(|(raw, _)| raw.pid()).collect();
    let others = [(), ()].map(|()| Raw::asks(&station, &["-q", "-g", "1", "--project", "p2"]));
    until("the other project runs on its two GPUs", SOON, || {
        let on = |raw: &Raw| gpu_of(&station, raw.pid());
        Some((on(&others[0])?, on(&others[1])?))
    });
    let parked = || -> Vec<u32> {
        let here = |pid: &&u32| gpu_of(&station, **pid).is_none();
        pids.iter().filter(here).copied().collect()
    };
    assert_eq!(parked().len(), 2, "as many as it needs");
    for pid in parked() {
        let place = seen(&station, pid).expect("listed").place;
        assert_eq!(place.word.as_deref(), Some("suspended"));
    }
    drop(others);
    until("all of the first run again", SOON, || parked().is_empty());
    for (raw, sum) in &mut jobs {
        assert_eq!(raw.ask("sum-all"), *sum, "it goes on where it was");
    }
}

// Idle claims: warned, offloaded for waiting claims, restored by the next call; and exceptions. One test at a time:
// they count seconds of idleness, and Python kernels start slowly.

/// GPUs and rules with short times.
fn idling(gpus: usize, idle: &str) -> Station {
    let more = format!("spread = false\ncountdown = \"1s\"\n[idle]\n{idle}");
    station_of_sharers(gpus, &more)
}

fn claim_of_notebook(station: &Station, notebook: &Notebook) -> Option<ClaimView> {
    claim_of(&station.snapshot().ok()?, notebook.pid).cloned()
}

/// Arrays on the GPU, changed by a kernel, and their checksum.
const ARRAYS: &str = r"
import hashlib, numpy as np
from numba import cuda
@cuda.jit
def add(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = x[i] + 1
data = np.random.default_rng(11).integers(0, 1 << 30, 1 << 18, dtype=np.int64)
x, y = cuda.to_device(data), cuda.device_array(data.shape, np.int64)
add[(data.size + 255) // 256, 256](x, y)
kept = y.copy_to_host()
print('right' if (kept == data + 1).all() else 'wrong')
";

const AGAIN: &str = r"
back = y.copy_to_host()
print('same' if back.tobytes() == kept.tobytes() else 'other')
add[(data.size + 255) // 256, 256](y, x)
print('on' if (x.copy_to_host() == data + 2).all() else 'off')
";

/// Works without a pause until it is interrupted.
const WORK: &str = r"
print('works', flush=True)
while True:
    add[(data.size + 255) // 256, 256](x, y)
    cuda.synchronize()
";

/// A waiting user is told again once it is known, and nothing is promised that the holder's class excludes.
#[test]
fn who_waits_is_told_when_an_idle_claim_makes_room_once_that_is_known() {
    let _alone = alone();
    let station = station_with(|o| {
        o.gpus.truncate(1);
        o.tick = "0.2s".to_owned();
        o.config =
            "[idle]\nwarn = \"never\"\ndetach = \"4s\"\n[class.interactive]\nmin-run = \"1h\"\n"
                .to_owned();
    });
    let mut idle = Raw::claim(&station, &["-q", "-g", "1", "--class", "interactive"]);
    assert_eq!(idle.ask("launch 1"), "ok 1");
    let told = station.dir().join("told");
    let mut later = station.command();
    later
        .args(["claim", "-q", "--lazy", "-g", "0.5", "--"])
        .arg(example("raw_client"))
        .stderr(std::fs::File::create(&told).expect("made"));
    let _later = Raw::spawn(&mut later);
    let line = until("it is told when it starts", SOON, || {
        let text = std::fs::read_to_string(&told).ok()?;
        let mut lines = text.lines().map(str::to_owned);
        lines.find(|l| l.contains("which is idle, is offloaded"))
    });
    has_all(&line, &["; starts in 59m at the earliest, when c1"]);

    // A claim on loan makes room once its minimum run time is over; before, all say so.
    let young = keys([0.1, 0.9], "countdown = \"2s\"\n").replace(
        "batch = { min-run = \"0s\" }",
        "batch = { min-run = \"20s\" }",
    );
    let station = station_of(1, &young);
    let (loan, begun) = (
        holder(&station, &["-q", "-g", "1", "--project", "p1"]),
        Instant::now(),
    );
    let until_then = "(minimum run time of c1)";
    let dry = refused(&station, &words("claim -g 0.9 --project p2 --dry-run"));
    let protected =
        "c1 (root) does not have to make room yet: its minimum run time (min-run) protects it for ";
    has_all(&dry, &[protected, until_then]);
    let told = station.dir().join("told");
    let mut waits = station.command();
    waits
        .args(words("claim -g 0.9 --project p2 --"))
        .arg(example("raw_client"))
        .stderr(std::fs::File::create(&told).expect("made"));
    let waits = Raw::spawn(&mut waits);
    until("its own line says when it starts", SOON, || {
        let text = std::fs::read_to_string(&told).ok()?;
        let mut lines = text.lines();
        lines
            .find(|l| l.starts_with("c2 waits (1st): ") && l.ends_with(until_then))
            .map(|_| ())
    });
    let why = ok(&station, &["why", "c2"]);
    has_all(&why, &[protected, until_then]);
    let queue = ok(&station, &["queue"]);
    let row = queue
        .lines()
        .find(|l| l.contains("  c2  "))
        .expect("listed");
    assert!(row.contains("s  in ") && !row.contains('—'), "{queue}");
    starts(&station, waits.pid());
    let after = begun.elapsed();
    assert!(after > Duration::from_secs(15), "{after:?}");
    assert_eq!(
        claim(&station, loan.0.pid()).place.word.as_deref(),
        Some("suspended")
    );
}

#[test]
fn an_idle_notebook_makes_room_for_a_third_and_its_next_cell_has_everything_back() {
    let _alone = alone();
    let Some(bin) = python::bin(
        "an_idle_notebook_makes_room_for_a_third_and_its_next_cell_has_everything_back",
    ) else {
        return;
    };
    let station = idling(1, "warn = \"1s\"\ndetach = \"2s\"\n");
    let mut idle = Notebook::start(&station, &bin);
    let mut busy = Notebook::start(&station, &bin);
    let mut third = Notebook::start(&station, &bin);
    third.run("from numba import cuda");
    assert!(busy.run(ARRAYS).contains("right"));
    busy.act(&json!({ "do": "run", "code": WORK, "until": "works" }));
    assert!(idle.run(ARRAYS).contains("right"));
    let id = claim_of_notebook(&station, &idle).expect("listed").id;

    let begun = Instant::now();
    let said = third.act(&json!({ "do": "run", "code": ARRAYS, "until": "in the queue" }));
    let printed = said["printed"].as_str().unwrap_or_default();
    assert!(
        ["first in the queue", "held by", "start"]
            .iter()
            .all(|w| printed.contains(w)),
        "{said}"
    );
    assert!(said["seconds"].as_f64().is_some_and(|s| s < 1.0), "{said}");
    // The warning appears below the cell that ran last, although no cell runs.
    let warned = idle.act(&json!({ "do": "rest", "until": "To postpone: " }));
    let text = warned["printed"].as_str().unwrap_or_default();
    assert!(
        text.contains(&format!("gshare: {id} had no GPU work for")),
        "{warned}"
    );
    assert!(text.contains(&format!("gshare keep {id}")), "{warned}");
    let told = station.snapshot().expect("served");
    let announced = told.claims.iter().find(|c| c.id == id).expect("listed");
    assert!(
        announced.announced.is_some() || announced.place.word.is_some(),
        "{announced:?}"
    );
    let said = third.act(&json!({ "do": "rest" }));
    assert!(
        said["printed"]
            .as_str()
            .is_some_and(|p| p.contains("got its GPU after") && p.contains("right")),
        "{said}"
    );
    let view = claim_of_notebook(&station, &idle).expect("it lives");
    assert_eq!(view.place.word.as_deref(), Some("offloaded"), "{view:?}");
    assert_eq!(idle.run("print(2 + 2)"), "4\n", "cells without CUDA run");

    // The third is idle by now, so it is next to make room.
    let there = begun.elapsed();
    let printed = idle.run(AGAIN);
    // On a slow machine it counts as idle once more in between, and is told so.
    let own = printed.split_inclusive('\n');
    let own: String = own.filter(|line| !line.starts_with("gshare: ")).collect();
    has_all(&own, &["same\non\n"]);
    assert!(
        printed.contains("has its GPU memory back; this call waited")
            && !printed.contains("no GPU work"),
        "a cell that waits for the GPU is not idle: {printed}"
    );
    let took = begun.elapsed();
    println!("the third ran after {there:.1?}, the idle one again after {took:.1?}");
    assert!(took < Duration::from_secs(15), "{took:?}");
    let view = claim_of_notebook(&station, &idle).expect("it lives");
    assert_eq!(
        (view.id, view.pid),
        (id, Some(idle.pid)),
        "the same claim and kernel"
    );
    let said = busy.act(&json!({ "do": "interrupt" }));
    assert_eq!(
        said["error"], "KeyboardInterrupt",
        "who works is left alone: {said}"
    );
    until("the third was offloaded in its turn", SOON, || {
        claim_of_notebook(&station, &third)?
            .place
            .word
            .filter(|w| w == "offloaded")
    });
}

#[test]
fn an_interrupt_ends_the_wait_of_a_detached_notebook_and_loses_nothing() {
    let test = "an_interrupt_ends_the_wait_of_a_detached_notebook_and_loses_nothing";
    let _alone = alone();
    let Some(bin) = python::bin(test) else {
        return;
    };
    // No claim is suspended for lack of host memory, however slow this machine is.
    let config = "[detach]\nhost-reserve = \"1 MiB\"\n[class]\ninteractive = { min-run = \"0s\" }\n\
        batch = { min-run = \"1h\" }\n[reclaim]\nspread = false\nhost-ram = 90\ncountdown = \"1s\"\n\
        [idle]\nwarn = \"1s\"\nalways = \"2s\"\n";
    let station = fast(config.to_owned(), |o| o.gpus = vec!["rtx4090".to_owned()]);
    let mut idle = Notebook::start(&station, &bin);
    assert!(idle.run(ARRAYS).contains("right"));
    let word = || claim_of_notebook(&station, &idle)?.place.word;
    until("it is offloaded", SOON, || {
        word().filter(|w| w == "offloaded")
    });
    // Batch is not offloaded for idleness, and these are within their guarantees.
    let mut hogs: Vec<Raw> = (0..2)
        .map(|_| Raw::claim(&station, &["-q", "-g", "0.5", "--limit", "0.5", "-t", "3h"]))
        .collect();
    for round in 0..3 {
        let said =
            idle.act(&json!({ "do": "run", "code": AGAIN, "until": "GPU memory is in host RAM" }));
        assert_eq!(said["ended"], false, "{round}: {said}");
        // In the same line as for a claim that waits for the first time.
        let printed = said["printed"].as_str().unwrap_or_default();
        let words = [
            "This call waits until it is restored: needs",
            "; starts in ",
            ", when the time limit of c",
        ];
        assert!(words.iter().all(|w| printed.contains(w)), "{round}: {said}");
        let waits = claim_of_notebook(&station, &idle).and_then(|c| c.place.waits);
        assert!(waits.is_some(), "{round}");
        let said = idle.act(&json!({ "do": "interrupt" }));
        assert_eq!(said["error"], "KeyboardInterrupt", "{round}: {said}");
        println!("interrupted within {} s", said["seconds"]);
        let word = claim_of_notebook(&station, &idle).and_then(|c| c.place.word);
        assert_eq!(
            word.as_deref(),
            Some("offloaded"),
            "it was no end of the wait"
        );
        assert_eq!(idle.run("print(2 + 2)"), "4\n", "cells without CUDA run");
    }
    let waits = || claim_of_notebook(&station, &idle).map(|c| c.place.waits.is_some());
    until(
        "nobody makes room for calls that wait no longer",
        SOON,
        || waits().filter(|w| !w),
    );
    hogs.clear();
    let printed = idle.run(AGAIN);
    has_all(&printed, &["same\non\n"]);
}

// Idle claims that cannot be offloaded: their owners learn it at the start, and are then warned, or the claims shrunk
// or ended, by the rule. One at a time: they count seconds of idleness.

const QUICK: &str = "warn = \"1s\"\ndetach = \"2s\"\n";

/// One RTX 4090, and rules with short times.
fn kept_on_gpu(no_detach: &str) -> Station {
    let more = format!(
        "spread = false\ncountdown = \"1s\"\nkeep = \"4s\"\n[idle]\n{QUICK}no-detach = \"{no_detach}\"\n"
    );
    station_of_sharers(1, &more)
}

/// Half of the GPU for a program with managed memory, which no checkpoint saves.
fn managed(station: &Station) -> Raw {
    let mut raw = Raw::claim(station, &["-q", "-g", "0.5", "--class", "interactive"]);
    assert_eq!(raw.ask(&format!("managed {GIB}")), "ok");
    assert_eq!(raw.ask("launch 1"), "ok 1");
    raw
}

/// The other half, at work: batch is not offloaded for idleness, and this is within its guarantee.
fn hog(station: &Station) -> Raw {
    Raw::claim(station, &["-q", "-g", "0.5", "--limit", "0.5"])
}

/// Notices to the owner of a claim, oldest first.
fn told(station: &Station, id: &str) -> Vec<String> {
    let notices = station.snapshot().expect("served").notices;
    let of_it = notices.into_iter().map(|n| n.text);
    of_it.filter(|text| text.starts_with(id)).collect()
}

fn says(station: &Station, id: &str, words: &str) -> String {
    until(&format!("{id} is told {words:?}"), SOON, || {
        told(station, id).into_iter().find(|t| t.contains(words))
    })
}

fn lives(pid: u32) -> bool {
    kill(Pid::from_raw(pid.cast_signed()), None).is_ok()
}

/// During this time nothing of the claim is taken.
fn stays(station: &Station, pid: u32, time: Duration) {
    let end = Instant::now() + time;
    let before = claim(station, pid);
    while Instant::now() < end {
        let now = claim(station, pid);
        assert_eq!(
            (now.gpus[0].mem_request, now.place.word.as_deref()),
            (before.gpus[0].mem_request, None)
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn who_is_only_warned_keeps_everything_while_others_wait() {
    let _alone = alone();
    let station = kept_on_gpu("warn");
    let mut idle = managed(&station);
    let id = claim(&station, idle.pid()).id;
    let first = says(&station, &id, "cannot be offloaded: it uses managed memory");
    has_all(&first, &["gshare only warns you"]);
    let _hog = hog(&station);
    let waits = Raw::asks(&station, &["-q", "-g", "0.5"]);
    says(&station, &id, "please release what you do not need");
    stays(&station, idle.pid(), Duration::from_secs(4));
    assert_eq!(idle.ask("launch 1"), "ok 2");
    drop(waits);
}

#[test]
fn a_claim_is_made_as_small_as_what_it_uses_and_others_start() {
    let _alone = alone();
    let station = kept_on_gpu("shrink");
    let mut idle = managed(&station);
    let view = claim(&station, idle.pid());
    let (id, before) = (view.id, view.gpus[0].mem_request);
    let first = says(&station, &id, "cannot be offloaded");
    has_all(&first, &["its size shrinks to what it uses"]);
    stays(&station, idle.pid(), Duration::from_secs(4));
    let _hog = hog(&station);
    let mut third = Raw::claim(&station, &["-q", "-g", "0.4"]);
    let now = claim(&station, idle.pid());
    let (mem, sm) = (now.gpus[0].mem_request, now.gpus[0].sm_request);
    assert!((GIB..3 * GIB).contains(&mem), "{mem} of {before}");
    assert!(sm > 0.0 && sm <= 0.1, "{sm}");
    let words = says(&station, &id, "its size is now what it uses");
    has_all(&words, &[&format!("gshare resize {id} --gpu-mem")]);
    // It lost nothing, and may still use what is free.
    assert_eq!(idle.ask("launch 1"), "ok 2");
    assert_eq!(third.ask("launch 1"), "ok 1");
    drop(third);
    // The suggested command requests its earlier size.
    let command = words.rsplit_once(": gshare ").expect("a command").1;
    let command: Vec<&str> = command.split(' ').collect();
    until("it has its size back", SOON, || {
        let resized = run(&station, &command);
        resized.status.success()
    });
    assert_eq!(claim(&station, idle.pid()).gpus[0].mem_request, before);
}

#[test]
fn a_claim_is_ended_only_where_that_lets_somebody_start_and_after_a_countdown() {
    let _alone = alone();
    let station = kept_on_gpu("release");
    let mut idle = managed(&station);
    let id = claim(&station, idle.pid()).id;
    let first = says(&station, &id, "cannot be offloaded");
    has_all(&first, &["its programs on the GPU are ended"]);
    let hog = hog(&station);
    says(&station, &id, "had no GPU work for");
    // Half a GPU does not help a claim of a whole one.
    let useless = Raw::asks(&station, &["-q", "-g", "1"]);
    stays(&station, idle.pid(), Duration::from_secs(4));
    assert!(
        told(&station, &id)
            .iter()
            .all(|t| !t.contains("is released"))
    );
    assert_eq!(
        idle.ask("launch 1"),
        "ok 2",
        "it works again, and idles again"
    );
    drop(useless);

    let mut third = Raw::asks(&station, &["-q", "-g", "0.5"]);
    let announced = says(&station, &id, &format!("{id} will be released in 1s"));
    has_all(&announced, &[&format!("gshare keep {id}")]);
    assert!(lives(idle.pid()));
    let shown = claim(&station, idle.pid()).idle.expect("shown");
    assert_eq!(
        (shown.instead.as_deref(), shown.ends_in_s.map(|s| s <= 1)),
        (Some("release"), Some(true)),
        "{shown:?}"
    );
    assert_eq!(third.line(), "ok ready");
    assert_eq!(third.ask("launch 1"), "ok 1");
    until("its program on the GPU has ended", SOON, || {
        idle.child.try_wait().ok().flatten()
    });
    let snapshot = station.snapshot().expect("served");
    assert!(snapshot.claims.iter().all(|c| c.id != id));
    assert!(
        claim_of(&snapshot, hog.pid()).is_some(),
        "who works is left alone"
    );
}

#[test]
fn memory_that_processes_share_is_told_too_and_an_instance_keeps_its_size() {
    let _alone = alone();
    let station = kept_on_gpu("shrink");
    let mut idle = Raw::claim(&station, &["-q", "-g", "0.5", "--class", "interactive"]);
    assert_eq!(idle.ask(&format!("alloc {GIB}")), "ok 0");
    assert_eq!(idle.ask("share 0"), "ok");
    let id = claim(&station, idle.pid()).id;
    says(&station, &id, "that processes share (IPC)");
    drop((idle, station));

    let station = station_that(&format!("[idle]\n{QUICK}no-detach = \"shrink\"\n"), |o| {
        o.gpus = vec!["a100-80gb:2g.20gb+3g.40gb".to_owned()];
    });
    let instance = Raw::claim(&station, &["-q", "-g", "0.25", "--class", "interactive"]);
    let id = claim(&station, instance.pid()).id;
    let words = says(&station, &id, "cannot be offloaded: it has a MIG instance");
    has_all(&words, &["gshare only warns you"]);
}

/// A kernel started by Jupyter, with memory that cannot be saved.
#[test]
fn a_kernel_that_is_ended_is_started_anew_by_jupyter_and_may_claim_again() {
    let test = "a_kernel_that_is_ended_is_started_anew_by_jupyter_and_may_claim_again";
    root!(test);
    let _alone = alone();
    let Some(bin) = python::bin(test) else { return };
    let station = kept_on_gpu("release");
    let mut notebook = Notebook::start(&station, &bin);
    let code = "import numpy as np\nfrom numba import cuda\nx = cuda.managed_array(1 << 20, np.int64)\nx[:] = 1\nprint('on')";
    let printed = notebook.run(code);
    has_all(&printed, &["on"]);
    let view = claim(&station, notebook.pid);
    says(
        &station,
        &view.id,
        "cannot be offloaded: it uses managed memory",
    );
    let _hog = hog(&station);
    let mut third = Raw::asks(&station, &["-q", "-g", "0.5"]);
    assert_eq!(third.line(), "ok ready");
    let words = told(&station, &view.id);
    assert!(
        words.iter().any(|t| t.contains("will be released in 1s")),
        "{words:?}"
    );
    drop(third);
    // Jupyter's restart of a dead kernel.
    notebook.act(&serde_json::json!({ "do": "restart" }));
    let printed = notebook.run(code);
    has_all(&printed, &["on"]);
}

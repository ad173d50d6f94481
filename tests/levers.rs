//! Each lever is a tested action with its reverse, on real processes: what is taken was announced on the owner's
//! terminal, and is given back.

use crate::support;

use std::time::Duration;

use gshare::station::Station;
use support::detach::{
    ANYBODY, GIB, SOON, SOON_OVER, claim, end, holder, ok, on_gpus, refused, settles, station_of,
    waiter,
};
use support::terminal::Terminal;
use support::{Raw, claim_of, example, until};

/// Two projects of root's, guaranteed so many GPUs, and rules that are over quickly.
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
        &[
            "-q",
            "-g",
            "0.25",
            "--limit",
            "0.8",
            "--gpu-mem-limit",
            "18G",
        ],
    );
    assert_eq!(raw.ask(&format!("alloc {}", 12 * GIB)), "ok 0", "lent");
    let other = waiter(&station, &["-g", "0.75"]);
    waits(&station);
    // What it borrows stays its own until it frees it; it gets no more.
    assert!(raw.ask(&format!("alloc {GIB}")).starts_with("error 2"));
    assert_eq!(raw.ask("free 0"), "ok");
    starts(&station, other.id());
    assert!(
        raw.ask(&format!("alloc {}", 12 * GIB))
            .starts_with("error 2")
    );
    assert_eq!(
        raw.ask(&format!("alloc {}", 4 * GIB)),
        "ok 1",
        "its own is its own"
    );
    end(other);
    until("the limit is what it was", SOON, || {
        (raw.ask(&format!("alloc {}", 12 * GIB)) == "ok 2").then_some(())
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
    let other = waiter(
        &station,
        &["--gpu-mem", "4G", "--sm", "50%", "--project", "p2"],
    );
    starts(&station, other.id());
    assert!((sm(raw.pid()) - 0.5).abs() < 1e-9, "{}", sm(raw.pid()));
    assert_eq!(claim(&station, raw.pid()).place.word, None, "it runs on");
    end(other);
    until("it has its share back", SOON, || {
        ((sm(raw.pid()) - 0.8).abs() < 1e-9).then_some(())
    });
    let log = ok(&station, &["log", &claim(&station, raw.pid()).id]);
    for said in [
        "gets a smaller share of the SMs in 1s",
        "gets them back when nobody needs them",
        "is now guaranteed 50 % of the SMs; it asked for 80 %",
        "is now guaranteed 80 % of the SMs; it asked for 80 %",
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
    // Idle alone takes nothing from it: somebody has to wait.
    let other = waiter(&station, &["-g", "1", "--project", "p1"]);
    starts(&station, other.id());
    assert_eq!(on_gpus(&station, pid), 0);
    let view = claim(&station, pid);
    assert_eq!(view.place.word.as_deref(), Some("offloaded"));
    assert_eq!(raw.ask("ping"), "ok pong", "its processes run");
    let why = ok(&station, &["why", &id]);
    assert!(why.contains("is not on a GPU: offloaded, "), "{why}");
    raw.tell("sum 0");
    until("its call waits for room", SOON, || {
        let place = claim(&station, pid).place;
        place.waits.filter(|w| !w.is_empty())
    });
    let why = ok(&station, &["why", &id]);
    assert!(why.contains("it comes back when there is room: "), "{why}");
    end(other);
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
    until("it watches", SOON, || {
        (raw.ask("watched") != "ok 0").then_some(())
    });
    // Its wait begins somewhere in the command.
    let begun = std::time::Instant::now();
    ok(&station, &["offload", &id]);
    until(
        "the watchdog has it back in the end",
        Duration::from_secs(30),
        || claim(&station, pid).place.word.is_none().then_some(()),
    );
    assert!(
        begun.elapsed() >= Duration::from_secs(10),
        "{:?}",
        begun.elapsed()
    );
    ok(&station, &["offload", &id]);
    let begun = std::time::Instant::now();
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

/// A borrower whose memory cannot be offloaded: the command writes down that it starts, and what it saves when it is
/// asked to end.
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
    let other = waiter(&station, &["-g", "0.9", "--project", "p2"]);
    starts(&station, other.id());
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
    end(other);
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
    let other = waiter(&station, &["-g", "0.9", "--project", "p2"]);
    // Two seconds after the announcement, and not a minute.
    starts(&station, other.id());
    assert_eq!(notes(&path), ["start", "saved"]);
    let log = ok(&station, &["log", "c1"]);
    assert!(log.contains("its programs got SIGUSR1 (--signal)"), "{log}");
    end(other);
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
        let other = waiter(&station, &["-g", "0.9", "--project", "p2"]);
        let waiting = waits(&station);
        if kill {
            starts(&station, other.id());
            assert_eq!(notes(&path), ["start", "saved"]);
            let log = ok(&station, &["log", &id]);
            assert!(log.contains("is ended in 1s"), "{log}");
            let code = raw.child.wait().expect("ends").code();
            assert_eq!(code, Some(7), "and nobody starts it again");
            end(other);
            until("all is over", SOON, || {
                let snapshot = station.snapshot().ok()?;
                (snapshot.claims.is_empty() && snapshot.queue.is_empty()).then_some(())
            });
            assert_eq!(notes(&path), ["start", "saved"]);
        } else {
            // Nothing is announced, now or later, and it is said for what the other waits.
            for _ in 0..3 {
                support::next_look(&station);
                let snapshot = station.snapshot().expect("served");
                assert_eq!(snapshot.queue[0].plan, None);
                assert_eq!(snapshot.claims[0].announced, None);
            }
            let why = ok(&station, &["why", &waiting]);
            assert!(why.contains("start time unknown"), "{why}");
            assert_eq!(raw.ask("launch 1"), "ok 2", "it runs on");
            end(other);
            assert_eq!(notes(&path), ["start"]);
        }
    }
}

#[test]
fn people_are_told_on_their_terminal_before_anything_is_taken() {
    if !support::root("people_are_told_on_their_terminal") {
        return;
    }
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
    let other = waiter(&station, &["-g", "0.9", "--project", "p2"]);
    let whom = waits(&station);
    // The user who wants it, what, when, what is done, what becomes of the contents, and how to keep it.
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
    assert!(
        why.contains(&format!("announced: {id} is suspended in")),
        "{why}"
    );
    // It comes nearer.
    let reminder = format!("for {whom}; to postpone: gshare keep {id}");
    terminal.wait("a reminder", SOON, |text| on_screen(text, &reminder));
    assert_eq!(on_gpus(&station, pid), held, "still nothing has been taken");
    starts(&station, other.id());
    assert_eq!(on_gpus(&station, pid), 0);
    terminal.wait("what was done", SOON, |text| {
        on_screen(text, &format!("gshare: {id} suspended, "))
    });
    let why = ok(&station, &["why", &id]);
    assert!(why.contains("is not on a GPU: suspended, "), "{why}");
    end(other);
    terminal.wait("it is back", SOON, |text| {
        on_screen(text, &format!("gshare: {id} resumed"))
    });
    terminal.send("sum 0\n");
    until("contents are equal", SOON, || {
        (terminal.text().matches(&sum).count() == 2).then_some(())
    });
    // The same is told afterwards.
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
    assert!(said.contains("nothing is announced"), "{said}");
    let other = waiter(&station, &["-g", "0.9", "--project", "p2"]);
    let announced = || until("it is announced", SOON, || claim(&station, pid).announced);
    announced();
    let kept = ok(&station, &["keep", &id]);
    assert!(
        kept.contains(&format!("{id} keeps what it has for 2s")),
        "{kept}"
    );
    until("it is taken back", SOON, || {
        claim(&station, pid).announced.is_none().then_some(())
    });
    assert!(ok(&station, &["log", &id]).contains("keeps what it has after all"));
    // Once for each that waits.
    announced();
    let said = refused(&station, &["keep", &id]);
    assert!(said.contains("was already postponed once"), "{said}");
    starts(&station, other.id());
    settles(&station, pid, Some("suspended"));
    end(other);
    settles(&station, pid, None);
    assert_eq!(raw.ask("sum 0"), sum);
}

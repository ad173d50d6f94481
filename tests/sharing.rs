//! Which claims start, wait and make room, on real processes: what the core's tests say in virtual time.

use crate::support;

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gshare::station::Station;
use gshare_proto::{ClaimView, QueueView};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::detach::{
    ANYBODY, GIB, SOON, SOON_OVER, claim, end, fast, holder, ok, on_gpus, run, settles, station_of,
    station_of_sharers, waiter,
};
use support::users::{Users, as_user, reachable};
use support::{Random, Raw, claim_of, until};

/// Projects of root's: the first is guaranteed next to nothing, the second nearly a GPU.
const PROJECTS: &str = "[projects]\np1 = { users = [\"root\"] }\np2 = { users = [\"root\"] }\n\
                        [quotas]\n\"project:p1\" = { gpus = 0.1 }\n\"project:p2\" = { gpus = 0.9 }\n";

fn queue(station: &Station) -> Vec<QueueView> {
    station.snapshot().expect("served").queue
}

/// The claim of a process that waits, once it is listed.
fn waits(station: &Station, nth: usize) -> QueueView {
    until("it waits", SOON, || {
        station.snapshot().ok()?.queue.into_iter().nth(nth)
    })
}

fn starts(station: &Station, pid: u32) -> ClaimView {
    until("it starts", SOON, || {
        let snapshot = station.snapshot().ok()?;
        let claim = claim_of(&snapshot, pid)?;
        claim.place.word.is_none().then(|| claim.clone())
    })
}

fn gpu_of(station: &Station, pid: u32) -> u32 {
    claim(station, pid).gpus[0].gpu
}

fn log(station: &Station, id: &str) -> String {
    ok(station, &["log", id])
}

/// So long nothing is announced to anybody, and nobody who waits has a plan.
fn nothing_is_planned(station: &Station, looks: u32) {
    for _ in 0..looks {
        support::next_look(station);
        let snapshot = station.snapshot().expect("served");
        assert!(snapshot.queue.iter().all(|q| q.plan.is_none()));
        assert!(snapshot.claims.iter().all(|c| c.announced.is_none()));
    }
}

/// Notebooks of half a GPU that may use all of one, each with so many GiB; they are spread.
fn notebooks<const N: usize>(station: &Station, gib: [u64; N]) -> [(Raw, String); N] {
    gib.map(|gib| {
        let flags = ["-q", "-g", "0.5", "--limit", "1", "--class", "interactive"];
        let (mut raw, sum) = holder(station, &flags);
        if gib > 1 {
            assert_eq!(raw.ask(&format!("alloc {}", (gib - 1) * GIB)), "ok 1");
        }
        until("its bytes are known", SOON, || {
            let charge = claim(station, raw.pid()).gpus[0].mem_charge;
            (charge? >= gib * GIB).then_some(())
        });
        (raw, sum)
    })
}

#[test]
fn one_move_is_made_where_one_is_enough_and_it_is_the_one_with_the_fewest_bytes() {
    let station = station_of_sharers(3, "countdown = \"1s\"\n");
    let mut all = notebooks(&station, [5, 2, 4]);
    let before: Vec<u32> = all
        .iter()
        .map(|(raw, _)| gpu_of(&station, raw.pid()))
        .collect();
    let mut apart = before.clone();
    apart.sort_unstable();
    assert_eq!(apart, [0, 1, 2], "one on each GPU");
    let small = claim(&station, all[1].0.pid()).id;
    // Tried first, it is said what would be done; and nothing is.
    // Whether a claim can be moved is known a moment after its CUDA has started.
    let tried = until("a move is proposed", SOON, || {
        let tried = run(&station, &["claim", "-g", "1", "--dry-run"]);
        let tried = String::from_utf8_lossy(&tried.stderr).into_owned();
        tried.contains(" moves").then_some(tried)
    });
    assert!(tried.contains(&format!("{small} of root moves")), "{tried}");
    assert!(tried.contains("1st in the queue"), "{tried}");
    nothing_is_planned(&station, 2);
    assert!(queue(&station).is_empty());

    let other = waiter(&station, &["-g", "1"]);
    let plan = until("it is said how room is made", SOON, || {
        station.snapshot().ok()?.queue.first()?.plan.clone()
    });
    assert!(plan.starts_with(&small), "{plan}");
    assert_eq!(plan.matches("moves from GPU").count(), 1, "{plan}");
    let got = starts(&station, other.id());
    assert_eq!(got.gpus[0].gpu, before[1], "where the smallest was");
    for (i, (raw, sum)) in all.iter_mut().enumerate() {
        let now = gpu_of(&station, raw.pid());
        assert_eq!(now == before[i], i != 1, "{i} is on GPU {now}");
        assert_eq!(raw.ask("sum 0"), *sum);
    }
    end(other);
    // What was done, and for whom, is told afterwards as well.
    let told = log(&station, &small);
    assert!(
        told.contains(&format!("moves from GPU {}", before[1])),
        "{told}"
    );
    assert!(
        told.contains(&format!("{} of root waits for room", got.id)),
        "{told}"
    );
}

#[test]
fn a_notebook_that_was_moved_for_others_has_a_gpu_of_its_own_again_when_they_have_gone() {
    let config = format!(
        "[detach]\nhost-reserve = \"1 MiB\"\n{ANYBODY}[reclaim]\ncountdown = \"1s\"\nquiet = \"1s\"\nhost-ram = 90\n"
    );
    let station = fast(config, |o| o.gpus = vec!["rtx4090".to_owned(); 2]);
    let mut both = notebooks(&station, [1, 1]);
    let pids = [both[0].0.pid(), both[1].0.pid()];
    let gpus = || pids.map(|pid| gpu_of(&station, pid));
    let other = waiter(&station, &["-g", "1"]);
    starts(&station, other.id());
    assert_eq!(gpus()[0], gpus()[1], "side by side");
    end(other);
    until("they are apart again", SOON, || {
        (gpus()[0] != gpus()[1]).then_some(())
    });
    let told = pids
        .map(|pid| log(&station, &claim(&station, pid).id))
        .concat();
    assert!(told.contains("another GPU is idle"), "{told}");
    for (raw, sum) in &mut both {
        settles(&station, raw.pid(), None);
        assert_eq!(raw.ask("sum 0"), *sum);
    }
}

#[test]
fn who_may_not_be_moved_is_not_though_it_would_be_cheaper() {
    let station = station_of_sharers(3, "countdown = \"1s\"\n");
    let flags = |more: &[&'static str]| -> Vec<&'static str> {
        let common = ["-q", "-g", "0.5", "--limit", "1", "--class", "interactive"];
        [&common, more].concat()
    };
    let mut stays = Raw::claim(&station, &flags(&["--no-movable"]));
    assert_eq!(stays.ask(&format!("alloc {GIB}")), "ok 0");
    let mut bound = Raw::claim(&station, &flags(&["--gpu-ids", "1"]));
    assert_eq!(bound.ask(&format!("alloc {GIB}")), "ok 0");
    let [(mut free, sum)] = notebooks(&station, [6]);
    let at = || [&stays, &bound, &free].map(|raw| gpu_of(&station, raw.pid()));
    let before = at();
    assert_eq!(before[1], 1);
    let id = claim(&station, stays.pid()).id;
    let ps = ok(&station, &["ps"]);
    assert!(
        ps.contains(&format!(
            "{id} cannot be moved: it was claimed with --no-movable"
        )),
        "{ps}"
    );
    let other = waiter(&station, &["-g", "1"]);
    assert_eq!(starts(&station, other.id()).gpus[0].gpu, before[2]);
    assert_eq!(at()[..2], before[..2], "where they may be");
    assert_eq!(free.ask("sum 0"), sum);
    // Another has nobody left who could make room.
    let late = waiter(&station, &["-g", "1"]);
    waits(&station, 0);
    nothing_is_planned(&station, 3);
    end(late);
    end(other);
}

#[test]
fn models_bind_a_claim_that_waits_and_one_that_makes_room() {
    let config = format!(
        "[detach]\nhost-reserve = \"1 MiB\"\n{ANYBODY}[reclaim]\ncountdown = \"1s\"\n{SOON_OVER}"
    );
    let station = fast(config, |o| {
        o.gpus = ["rtx4090", "rtx4090", "h100"].map(str::to_owned).to_vec();
    });
    let both = notebooks(&station, [1, 1]);
    let model = |raw: &Raw| {
        let gpu = gpu_of(&station, raw.pid());
        station.snapshot().expect("served").gpus[gpu as usize]
            .model
            .clone()
    };
    let hog = Raw::claim(
        &station,
        &["-q", "-g", "1", "--model", "h100", "--nonblock"],
    );
    assert!(model(&hog).contains("H100"));
    // Half of each RTX 4090 is free; the H100 is of no use to whoever moves.
    let other = waiter(&station, &["-g", "1", "--model", "rtx4090"]);
    starts(&station, other.id());
    for (raw, _) in &both {
        assert!(model(raw).contains("4090"), "{}", model(raw));
    }
    let late = waiter(&station, &["-g", "0.5", "--model", "h100"]);
    let waiting = waits(&station, 0);
    assert!(
        waiting.reason.contains(&claim(&station, hog.pid()).id),
        "{}",
        waiting.reason
    );
    let third = waiter(&station, &["-g", "1", "--model", "rtx4090"]);
    let small = station.snapshot().expect("served").gpus[0].mem_allocatable;
    assert!(small.is_some());
    let asked = waits(&station, 1).mem_request;
    assert_eq!(asked, small, "of a GPU that it may use");
    end(third);
    drop(hog);
    let got = starts(&station, late.id());
    assert_eq!(got.gpus[0].gpu, 2);
    end(late);
    end(other);
}

#[test]
fn the_hosts_memory_bounds_what_is_suspended() {
    let station = station_of(
        1,
        &format!(
            "{ANYBODY}{PROJECTS}[reclaim]\ncountdown = \"1s\"\nquiet = \"1d\"\nhost-ram = 0\n"
        ),
    );
    let (mut raw, sum) = holder(&station, &["-q", "-g", "1", "--project", "p1"]);
    let held = on_gpus(&station, raw.pid());
    let other = waiter(&station, &["-g", "0.9", "--project", "p2"]);
    let whom = waits(&station, 0);
    assert!(whom.entitled);
    nothing_is_planned(&station, 4);
    assert_eq!(on_gpus(&station, raw.pid()), held, "it runs on");
    let why = ok(&station, &["why", &whom.id]);
    assert!(why.contains("start time unknown"), "{why}");
    let id = claim(&station, raw.pid()).id;
    let stands = format!("{id} (root) cannot make room: not enough host memory for its ");
    assert!(why.contains(&stands), "{why}");
    // With more of it the same claims are served at once.
    let file = station.dir().join("gshare.toml");
    let old = std::fs::read_to_string(&file).expect("read");
    std::fs::write(&file, old.replace("host-ram = 0", "host-ram = 90")).expect("written");
    let service = station.service_pid().expect("it runs");
    kill(Pid::from_raw(service.cast_signed()), Signal::SIGHUP).expect("sent");
    starts(&station, other.id());
    settles(&station, raw.pid(), Some("suspended"));
    assert_eq!(on_gpus(&station, raw.pid()), 0);
    end(other);
    settles(&station, raw.pid(), None);
    assert_eq!(raw.ask("sum 0"), sum);
}

#[test]
fn nothing_is_taken_from_a_claim_before_it_has_run_for_what_its_class_says_at_this_hour() {
    // Whatever the hour is, one of the two rules counts, and not what is always.
    let rules = "rules = [{ hours = \"0-12\", min-run = \"10s\" }, { hours = \"12-24\", min-run = \"10s\" }]";
    let least = Duration::from_secs(10);
    let mut station = station_of(
        1,
        &format!(
            "[class]\nbatch = {{ min-run = \"0s\", {rules} }}\n{PROJECTS}[reclaim]\ncountdown = \"1s\"\n{SOON_OVER}"
        ),
    );
    // Its time runs from the decision, which comes after it was asked for.
    let asked = Instant::now();
    let (mut raw, sum) = holder(&station, &["-q", "-g", "1", "--project", "p1"]);
    let victim = claim(&station, raw.pid());
    let other = waiter(&station, &["-g", "0.9", "--project", "p2"]);
    let whom = waits(&station, 0);
    let stands = format!("{} (root) can be asked to make room in ", victim.id);
    until("it is told from when on", least, || {
        let alone = waits(&station, 0).alone;
        alone
            .iter()
            .any(|said| said.starts_with(&stands))
            .then_some(())
    });
    let mut announced = None;
    let gone = until("it is suspended", SOON, || {
        let snapshot = station.snapshot().ok()?;
        let claim = claim_of(&snapshot, raw.pid())?;
        if claim.announced.is_some() {
            announced.get_or_insert(asked.elapsed());
        }
        claim.place.word.is_some().then(|| asked.elapsed())
    });
    println!("announced after {announced:?}, taken after {gone:?}");
    // The countdown of a second ends with its time at the earliest.
    let told = least - Duration::from_secs(1);
    assert!(announced.is_some_and(|took| took >= told), "{announced:?}");
    assert!(gone >= least, "{gone:?}");
    starts(&station, other.id());
    // A service that is started anew tells the same of what was.
    settles(&station, raw.pid(), Some("suspended"));
    let of_both = |station: &Station| [log(station, &victim.id), log(station, &whom.id)];
    let before = of_both(&station);
    station.stop_service(Signal::SIGKILL).expect("killed");
    station.start_service().expect("starts again");
    let after = of_both(&station);
    for (before, after) in before.iter().zip(&after) {
        assert!(
            after.starts_with(before.as_str()),
            "{before} and then {after}"
        );
    }
    let why = format!(
        "{} of root waits for room, within the guarantee of project p2",
        whom.id
    );
    assert!(after[0].contains(&why), "{}", after[0]);
    for said in [
        "waits: wants",
        &format!("held by {}", victim.id),
        "granted: ",
    ] {
        assert!(after[1].contains(said), "{said}: {}", after[1]);
    }
    let why = ok(&station, &["why", &victim.id]);
    assert!(why.contains("is not on a GPU: suspended, "), "{why}");
    end(other);
    settles(&station, raw.pid(), None);
    assert_eq!(raw.ask("sum 0"), sum);
    assert_eq!(raw.finish(), Some(0));
    // Of what has ended there is the log, and `why` says where.
    until("it has ended", SOON, || {
        station.snapshot().ok()?.claims.is_empty().then_some(())
    });
    let gone = run(&station, &["why", &victim.id]);
    assert_eq!(gone.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&gone.stderr).contains("gshare log"));
    let told = log(&station, &victim.id);
    let order: Vec<Option<usize>> = [
        "granted: ",
        "is suspended in 1s",
        "suspended, ",
        "resumed",
        "ended: ",
    ]
    .iter()
    .map(|said| told.find(said))
    .collect();
    assert!(
        order.iter().all(Option::is_some) && order.is_sorted(),
        "{told}"
    );
}

#[test]
fn a_class_that_is_not_preemptible_at_this_hour_starts_only_within_its_owners_guarantee() {
    let rules = "rules = [{ hours = \"0-12\", preemptible = false }, { hours = \"12-24\", preemptible = false }]";
    let station = station_of(
        1,
        &format!("[class]\ninference = {{ {rules} }}\n{PROJECTS}"),
    );
    let firm = waiter(
        &station,
        &["-g", "0.5", "--class", "inference", "--project", "p1"],
    );
    let waiting = waits(&station, 0);
    assert!(
        waiting.reason.contains("not preemptible"),
        "{}",
        waiting.reason
    );
    // It keeps nothing from others, and within the guarantee it starts.
    let batch = Raw::claim(
        &station,
        &["-q", "-g", "0.2", "--project", "p1", "--nonblock"],
    );
    let within = [
        "-q",
        "-g",
        "0.5",
        "--class",
        "inference",
        "--project",
        "p2",
        "--nonblock",
    ];
    let within = Raw::claim(&station, &within);
    assert_eq!(waits(&station, 0).id, waiting.id, "it waits on");
    drop((batch, within));
    end(firm);
}

#[test]
fn whoever_is_let_past_has_gone_when_the_entitled_claim_can_start() {
    let keys = "[claims]\nleftover-grace = \"1s\"\nlease-warning = \"0s\"\nlease-grace = \"0s\"\n";
    let config = format!("{keys}{PROJECTS}[reclaim]\nenabled = false\n");
    let station = fast(config, |o| o.gpus = vec!["rtx4090".to_owned()]);
    let holds = Raw::claim(
        &station,
        &["-q", "-g", "0.75", "-t", "12s", "--project", "p1"],
    );
    let over = claim_of(&station.snapshot().expect("served"), holds.pid()).and_then(|c| c.ends_ms);
    let over = over.or_else(|| station.snapshot().ok()?.claims.first()?.ends_ms);
    let over = over.expect("it has a lease");
    let entitled = waiter(&station, &["-g", "0.9", "--project", "p2"]);
    let first = waits(&station, 0);
    assert!(first.entitled);
    let expected = first.expected_ms.expect("a lease ends");
    assert!(expected.abs_diff(over) < 1500, "{expected} and {over}");
    // A quarter is free. Without an end nobody gets it, who ends in time does.
    let endless = waiter(&station, &["-g", "0.25", "--project", "p1"]);
    assert_eq!(waits(&station, 1).position, 2);
    let short = [
        "claim",
        "-q",
        "-g",
        "0.25",
        "-t",
        "3s",
        "--project",
        "p1",
        "--",
        "sleep",
        "1",
    ];
    let let_past = run(&station, &short);
    assert!(let_past.status.success(), "{let_past:?}");
    let now = station.snapshot().expect("served");
    assert!(now.taken_ms < over, "before the entitled one");
    let order: Vec<&str> = now.queue.iter().map(|q| q.id.as_str()).collect();
    assert_eq!((order.len(), order[0]), (2, first.id.as_str()));
    let got = starts(&station, entitled.id());
    let late = got.since_ms.saturating_sub(over);
    println!("it started {late} ms after the lease");
    assert!(late < 3000, "{late} ms after the lease");
    assert_eq!(queue(&station).len(), 1, "the endless one waits on");
    end(entitled);
    end(endless);
    drop(holds);
}

#[test]
fn whoever_is_first_in_the_queue_fits_nowhere() {
    let config = "[claims]\nleftover-grace = \"0s\"\n[reclaim]\nenabled = false\n".to_owned();
    let station = fast(config, |o| o.gpus = vec!["rtx4090".to_owned(); 2]);
    let mut random = Random::new("whoever_is_first_in_the_queue_fits_nowhere");
    let mut all: Vec<Child> = Vec::new();
    let mut waited = 0;
    for _ in 0..40 {
        if all.len() > 7 || (!all.is_empty() && random.below(3) == 0) {
            let which = random.below(all.len() as u64) as usize;
            end(all.swap_remove(which));
        } else {
            let size = format!("0.{}", 1 + random.below(9));
            let mut command = station.command();
            command.args(["claim", "-q", "-g", &size, "--", "sleep", "600"]);
            all.push(command.stdin(Stdio::null()).spawn().expect("it starts"));
        }
        let pids: Vec<u32> = all.iter().map(Child::id).collect();
        let settled = until("every claim has its place or waits", SOON, || {
            let snapshot = station.snapshot().ok()?;
            let known = snapshot.claims.len() + snapshot.queue.len() == pids.len();
            let mine = |c: &ClaimView| c.pid.is_some_and(|pid| pids.contains(&pid));
            (known && snapshot.claims.iter().all(mine)).then_some(snapshot)
        });
        waited += settled.queue.len();
        let Some(first) = settled.queue.first() else {
            continue;
        };
        let size = first.share;
        for gpu in 0..2 {
            let parts = settled.claims.iter().flat_map(|c| &c.gpus);
            let taken: f64 = parts.filter(|p| p.gpu == gpu).map(|p| p.sm_request).sum();
            assert!(
                taken + size > 1.0 + 1e-6,
                "{} of {size} beside {taken} on GPU {gpu}",
                first.id
            );
        }
    }
    assert!(waited > 10, "{waited} waits are no trial");
    all.into_iter().for_each(end);
}

#[test]
fn a_borrowers_lease_is_not_put_off_while_somebody_entitled_waits() {
    if !support::root("a_borrowers_lease_is_not_put_off_while_somebody_entitled_waits") {
        return;
    }
    let users = Users::some(2);
    let station = station_of(1, "[reclaim]\nenabled = false\n");
    let client = reachable(&station);
    let claim_as = |user: usize, flags: &[&str]| {
        let mut command = as_user(station.command(), users.uid(user));
        command
            .args(["claim", "-q"])
            .args(flags)
            .arg("--")
            .arg(&client);
        command
    };
    let holds = Raw::start(claim_as(0, &["-g", "1", "-t", "1h"]));
    let id = station.snapshot().expect("served").claims[0].id.clone();
    let extend = |uid: u32| {
        let mut command: Command = station.command();
        command.args(["extend", &id, "-t", "1h"]).uid(uid);
        command.output().expect("runs")
    };
    assert!(extend(users.uid(0)).status.success(), "nobody waits");
    let foreign = extend(users.uid(1));
    assert!(!foreign.status.success(), "it is another user's");
    let mut other = claim_as(1, &["-g", "0.5"]);
    let other = other
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("starts");
    let waiting = waits(&station, 0);
    assert!(waiting.entitled);
    let said = extend(users.uid(0));
    assert_eq!(said.status.code(), Some(75));
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(
        said.contains("is not extended") && said.contains(&waiting.id),
        "{said}"
    );
    end(other);
    until("nobody waits", SOON, || {
        queue(&station).is_empty().then_some(())
    });
    assert!(extend(users.uid(0)).status.success(), "it is put off again");
    drop(holds);
    let never = refused_lease(&station);
    assert!(never.contains("lease"), "{never}");
}

/// A claim without a lease has none to put off.
fn refused_lease(station: &Station) -> String {
    let raw = Raw::claim(station, &["-q", "-g", "0.1"]);
    let id = claim(station, raw.pid()).id;
    let output = run(station, &["extend", &id, "-t", "1h"]);
    assert_eq!(output.status.code(), Some(64));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

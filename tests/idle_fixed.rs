//! Idle claims that cannot be offloaded: told so at the start, and then warned, made smaller or ended, as the rule says.
//! One at a time: they count seconds of idleness.

use crate::support;

use std::time::{Duration, Instant};

use gshare::station::Station;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use support::detach::{GIB, SOON, claim, end, ok, run, station_of_sharers, station_that, waiter};
use support::{Raw, alone, claim_of, python, root, until};

const QUICK: &str = "warn = \"1s\"\ndetach = \"2s\"\n";

/// One RTX 4090, and rules that are over quickly.
fn station(no_detach: &str) -> Station {
    let more = format!(
        "spread = false\ncountdown = \"1s\"\nkeep = \"4s\"\n[idle]\n{QUICK}no-detach = \"{no_detach}\"\n"
    );
    station_of_sharers(1, &more)
}

/// Half of the GPU for somebody who has managed memory, which no checkpoint saves.
fn managed(station: &Station) -> Raw {
    let mut raw = Raw::claim(station, &["-q", "-g", "0.5", "--class", "interactive"]);
    assert_eq!(raw.ask(&format!("managed {GIB}")), "ok");
    assert_eq!(raw.ask("launch 1"), "ok 1");
    raw
}

/// Another half that is at work: batch is not offloaded for idleness, and this is no borrower.
fn hog(station: &Station) -> Raw {
    Raw::claim(station, &["-q", "-g", "0.5", "--limit", "0.5"])
}

/// What the owner of a claim was told, oldest first.
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

/// While this goes on nothing of the claim is taken.
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
    let station = station("warn");
    let mut idle = managed(&station);
    let id = claim(&station, idle.pid()).id;
    let first = says(&station, &id, "cannot be offloaded: it uses managed memory");
    assert!(first.contains("gshare only warns you"), "{first}");
    let _hog = hog(&station);
    let waits = waiter(&station, &["-g", "0.5"]);
    says(&station, &id, "please release what you do not need");
    stays(&station, idle.pid(), Duration::from_secs(4));
    assert_eq!(idle.ask("launch 1"), "ok 2");
    end(waits);
}

#[test]
fn a_claim_is_made_as_small_as_what_it_uses_and_others_start() {
    let _alone = alone();
    let station = station("shrink");
    let mut idle = managed(&station);
    let view = claim(&station, idle.pid());
    let (id, before) = (view.id, view.gpus[0].mem_request);
    let first = says(&station, &id, "cannot be offloaded");
    assert!(
        first.contains("its size shrinks to what it uses"),
        "{first}"
    );
    stays(&station, idle.pid(), Duration::from_secs(4));
    let _hog = hog(&station);
    let mut third = station.command();
    third
        .args(["claim", "-q", "-g", "0.4", "--"])
        .arg(support::example("raw_client"));
    let mut third = Raw::start(third);
    let now = claim(&station, idle.pid());
    let (mem, sm) = (now.gpus[0].mem_request, now.gpus[0].sm_request);
    assert!((GIB..3 * GIB).contains(&mem), "{mem} of {before}");
    assert!(sm > 0.0 && sm <= 0.1, "{sm}");
    let words = says(&station, &id, "its size is now what it uses");
    assert!(
        words.contains(&format!("gshare resize {id} --gpu-mem")),
        "{words}"
    );
    // Nothing of it was lost, and what is free is still its own to use.
    assert_eq!(idle.ask("launch 1"), "ok 2");
    assert_eq!(third.ask("launch 1"), "ok 1");
    drop(third);
    // The command that it was given asks for the size that it had.
    let command = words.rsplit_once(": gshare ").expect("a command").1;
    let command: Vec<&str> = command.split(' ').collect();
    until("it has its size back", SOON, || {
        let resized = run(&station, &command);
        resized.status.success().then_some(())
    });
    assert_eq!(claim(&station, idle.pid()).gpus[0].mem_request, before);
}

#[test]
fn a_claim_is_ended_only_where_that_lets_somebody_start_and_after_a_countdown() {
    let _alone = alone();
    let station = station("release");
    let mut idle = managed(&station);
    let id = claim(&station, idle.pid()).id;
    let first = says(&station, &id, "cannot be offloaded");
    assert!(
        first.contains("its programs on the GPU are ended"),
        "{first}"
    );
    let hog = hog(&station);
    says(&station, &id, "launched nothing for");
    // Half a GPU is of no use to who wants a whole one.
    let useless = waiter(&station, &["-g", "1"]);
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
    end(useless);

    let mut third = station.command();
    third
        .args(["claim", "-q", "-g", "0.5", "--"])
        .arg(support::example("raw_client"));
    let mut third = Raw::spawn(&mut third);
    let announced = says(&station, &id, &format!("{id} is released in 1s"));
    assert!(
        announced.contains(&format!("gshare keep {id}")),
        "{announced}"
    );
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
fn who_keeps_it_is_left_alone_once() {
    let _alone = alone();
    let station = station("release");
    let mut idle = managed(&station);
    let id = claim(&station, idle.pid()).id;
    let _hog = hog(&station);
    let mut third = station.command();
    third
        .args(["claim", "-q", "-g", "0.5", "--"])
        .arg(support::example("raw_client"));
    let mut third = Raw::spawn(&mut third);
    says(&station, &id, &format!("{id} is released in 1s"));
    ok(&station, &["keep", &id]);
    let kept = Instant::now();
    stays(&station, idle.pid(), Duration::from_secs(3));
    assert!(claim(&station, idle.pid()).idle.is_some_and(|i| i.kept));
    // Once: after that it is announced anew, and done.
    assert_eq!(third.line(), "ok ready");
    assert!(
        kept.elapsed() >= Duration::from_secs(5),
        "{:?}",
        kept.elapsed()
    );
    until("its program has ended", SOON, || {
        idle.child.try_wait().ok().flatten()
    });
    let many = told(&station, &id);
    let times = many.iter().filter(|t| t.contains("is released in 1s"));
    assert_eq!(times.count(), 2, "{many:?}");
}

#[test]
fn memory_that_processes_share_is_told_too_and_an_instance_keeps_its_size() {
    let _alone = alone();
    let station = station("shrink");
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
    assert!(words.contains("gshare only warns you"), "{words}");
}

/// A kernel that Jupyter starts, on memory that cannot be saved.
#[test]
fn a_kernel_that_is_ended_is_started_anew_by_jupyter_and_may_claim_again() {
    let test = "a_kernel_that_is_ended_is_started_anew_by_jupyter_and_may_claim_again";
    let Some(bin) = python::bin(test) else { return };
    if !root(test) {
        return;
    }
    let _alone = alone();
    let station = station("release");
    let mut notebook = support::notebook::Notebook::start(&station, &bin);
    let code = "import numpy as np\nfrom numba import cuda\nx = cuda.managed_array(1 << 20, np.int64)\nx[:] = 1\nprint('on')";
    let printed = notebook.run(code);
    assert!(printed.contains("on"), "{printed}");
    let view = claim(&station, notebook.pid);
    says(
        &station,
        &view.id,
        "cannot be offloaded: it uses managed memory",
    );
    let _hog = hog(&station);
    let mut third = station.command();
    third
        .args(["claim", "-q", "-g", "0.5", "--"])
        .arg(support::example("raw_client"));
    let mut third = Raw::spawn(&mut third);
    assert_eq!(third.line(), "ok ready");
    let words = told(&station, &view.id);
    assert!(
        words.iter().any(|t| t.contains("is released in 1s")),
        "{words:?}"
    );
    drop(third);
    // What Jupyter does with a kernel that has died.
    notebook.act(&serde_json::json!({ "do": "restart" }));
    let printed = notebook.run(code);
    assert!(printed.contains("on"), "{printed}");
}

//! Claims of several processes and of several GPUs leave, come back and move as one: all of it or nothing, with what
//! was in the memory of each process on each GPU.

use crate::support;

use gshare_sim_board::{CheckpointHow, CheckpointStep};
use support::detach::{
    by_gpu, claim, fault, fill, join, ok, on_gpus, ready, refused, run, settles, station_of, word,
};
use support::{Raw, board, until};

/// A claim with three processes on GPU 0, each with something in its memory.
struct Three {
    raws: Vec<Raw>,
    sums: Vec<String>,
    held: Vec<u64>,
    id: String,
}

impl Three {
    fn new(station: &gshare::station::Station) -> Self {
        let first = Raw::claim(station, &["-q", "-g", "0.5", "--gpu-ids", "0"]);
        let pid = first.pid();
        let id = claim(station, pid).id;
        let mut raws = vec![first, join(station, &id), join(station, &id)];
        let sums = raws.iter_mut().map(|raw| fill(raw, 0)).collect();
        for raw in &mut raws {
            assert_eq!(raw.ask("launch 2"), "ok 2");
        }
        ready(station, pid);
        let held = raws.iter().map(|r| on_gpus(station, r.pid())).collect();
        Self {
            raws,
            sums,
            held,
            id,
        }
    }

    fn pid(&self) -> u32 {
        self.raws[0].pid()
    }

    /// Bytes of each process on the GPUs.
    fn on(&self, station: &gshare::station::Station) -> Vec<u64> {
        let each = |raw: &Raw| on_gpus(station, raw.pid());
        self.raws.iter().map(each).collect()
    }

    /// All of them are on the GPU with what they had, and go on.
    fn whole(&mut self, station: &gshare::station::Station, what: &str) {
        assert_eq!(self.on(station), self.held, "{what}");
        for (raw, sum) in self.raws.iter_mut().zip(&self.sums) {
            assert_eq!(raw.ask("sum 0"), *sum, "{what}");
        }
        assert_eq!(word(station, self.pid()), None, "{what}");
    }
}

#[test]
fn all_processes_of_a_claim_leave_come_back_stop_and_move_as_one() {
    let station = station_of(2, "");
    let mut three = Three::new(&station);
    let id = three.id.clone();
    let nothing = vec![0; 3];
    for round in 0..2 {
        ok(&station, &["offload", &id]);
        assert_eq!(three.on(&station), nothing, "nobody is left on the GPU");
        for raw in &mut three.raws {
            assert_eq!(raw.ask("ping"), "ok pong", "all live");
        }
        let host = claim(&station, three.pid()).place.host_bytes;
        assert!(host >= Some(three.held.iter().sum()), "{host:?}");
        if round == 0 {
            ok(&station, &["restore", &id]);
        } else {
            // The call of any of them brings all back.
            assert_eq!(three.raws[2].ask("sum 0"), three.sums[2]);
        }
        three.whole(&station, "after offload");
    }
    ok(&station, &["move", &id, "--gpu", "1"]);
    for (raw, held) in three.raws.iter().zip(&three.held) {
        assert_eq!(by_gpu(&station, raw.pid()), [0, *held]);
    }
    three.whole(&station, "after move");
    if support::root("suspend") {
        ok(&station, &["suspend", &id]);
        assert_eq!(three.on(&station), nothing);
        for raw in &mut three.raws {
            raw.tell("ping");
        }
        ok(&station, &["resume", &id]);
        for raw in &mut three.raws {
            assert_eq!(raw.line(), "ok pong");
        }
        three.whole(&station, "after suspend");
    }
    for raw in &mut three.raws {
        assert_eq!(raw.ask("launch 1"), "ok 3", "kernels go on");
    }
}

#[test]
fn what_fails_for_one_process_of_a_claim_is_undone_for_all() {
    use CheckpointHow::{Fails, Refused};
    use CheckpointStep::{Checkpoint, Lock, Restore, Unlock};
    let station = station_of(2, "");
    let mut three = Three::new(&station);
    let id = three.id.clone();
    let pids: Vec<u32> = three.raws.iter().map(Raw::pid).collect();
    for pid in pids.clone() {
        for step in [Lock, Checkpoint] {
            fault(&station, Some((step, Refused)), Some(pid));
            for words in [&["offload", &id][..], &["move", &id, "--gpu", "1"]] {
                let why = refused(&station, words);
                assert!(why.contains(&format!("process {pid}")), "{why}");
                assert!(
                    why.contains(&format!("cuCheckpointProcess{step:?}")),
                    "{why}"
                );
                fault(&station, None, None);
                three.whole(&station, &format!("{words:?}, {step:?} of {pid}"));
                fault(&station, Some((step, Refused)), Some(pid));
            }
            fault(&station, None, None);
        }
        // The way back: all of them stay in the host.
        ok(&station, &["offload", &id]);
        fault(&station, Some((Restore, Refused)), Some(pid));
        let why = refused(&station, &["restore", &id]);
        assert!(why.contains("cuCheckpointProcessRestore"), "{why}");
        assert_eq!(three.on(&station), vec![0; 3], "restore of {pid}");
        assert_eq!(word(&station, three.pid()).as_deref(), Some("offloaded"));
        fault(&station, None, None);
        ok(&station, &["restore", &id]);
        three.whole(&station, &format!("restore of {pid}"));
        // Once all are back they run, however often that has to be tried.
        ok(&station, &["offload", &id]);
        fault(&station, Some((Unlock, Refused)), Some(pid));
        let mut restore = station.command();
        restore.args(["restore", "-q", &id]);
        let mut restore = restore.spawn().expect("it starts");
        until("it is tried again", support::detach::SOON, || {
            let log = std::fs::read_to_string(station.log_path()).ok()?;
            let tried = format!("cuCheckpointProcessUnlock on process {pid}");
            log.contains(&tried).then_some(())
        });
        assert_eq!(three.on(&station), three.held);
        fault(&station, None, None);
        assert_eq!(restore.wait().expect("ends").code(), Some(0));
        three.whole(&station, &format!("unlock of {pid}"));
    }
    // A process that dies in the middle, or that the driver loses, takes nobody with it.
    let lost = three.raws.pop().expect("three");
    three.sums.truncate(2);
    three.held.truncate(2);
    let pid = lost.pid();
    fault(&station, Some((Checkpoint, Fails)), Some(pid));
    let why = refused(&station, &["offload", &id]);
    assert!(why.contains(&format!("lost process {pid}")), "{why}");
    fault(&station, None, None);
    three.whole(&station, "one is lost");
}

#[test]
fn a_process_that_dies_in_the_middle_leaves_the_others_whole() {
    use CheckpointHow::Dies;
    use CheckpointStep::{Checkpoint, Lock, Restore, Unlock};
    let station = station_of(2, "");
    for step in [Lock, Checkpoint, Restore, Unlock] {
        let mut three = Three::new(&station);
        let (id, dead) = (three.id.clone(), three.raws[1].pid());
        let leaves = matches!(step, Lock | Checkpoint);
        if !leaves {
            ok(&station, &["offload", &id]);
        }
        fault(&station, Some((step, Dies)), Some(dead));
        let words = if leaves { "offload" } else { "restore" };
        let output = run(&station, &[words, &id]);
        fault(&station, None, None);
        assert!(output.status.success(), "{step:?}: {output:?}");
        three.raws.remove(1);
        three.sums.remove(1);
        three.held.remove(1);
        assert_eq!(on_gpus(&station, dead), 0);
        if leaves {
            settles(&station, three.pid(), Some("offloaded"));
            assert_eq!(three.on(&station), [0, 0], "{step:?}");
            ok(&station, &["restore", &id]);
        }
        three.whole(&station, &format!("{step:?}"));
        while let Some(raw) = three.raws.pop() {
            assert_eq!(raw.finish(), Some(0));
        }
        until("the claim ends", support::detach::SOON, || {
            station.snapshot().ok()?.claims.is_empty().then_some(())
        });
    }
}

#[test]
fn a_process_that_joins_a_detached_claim_brings_all_of_it_back() {
    let station = station_of(2, "");
    let mut three = Three::new(&station);
    let id = three.id.clone();
    ok(&station, &["offload", &id]);
    assert_eq!(three.on(&station), [0, 0, 0]);
    let mut fourth = join(&station, &id);
    let sum = fill(&mut fourth, 0);
    settles(&station, three.pid(), None);
    three.whole(&station, "somebody joined");
    ready(&station, three.pid());
    ok(&station, &["move", &id, "--gpu", "1"]);
    assert_eq!(by_gpu(&station, fourth.pid())[0], 0, "it goes along");
    assert_eq!(fourth.ask("sum 0"), sum);
    three.whole(&station, "moved with the new one");
}

#[test]
fn a_claim_of_several_gpus_is_the_same_on_each_wherever_it_goes() {
    let station = station_of(4, "");
    let mut first = Raw::claim(&station, &["-q", "-g", "2x0.5"]);
    let pid = first.pid();
    let id = claim(&station, pid).id;
    let mut second = join(&station, &id);
    // What each process has on each of the two GPUs.
    let mut sums = Vec::new();
    for raw in [&mut first, &mut second] {
        let mut own = Vec::new();
        for device in 0..2 {
            assert_eq!(raw.ask(&format!("device {device}")), "ok");
            own.push(fill(raw, device));
            if device == 1 {
                assert_eq!(raw.ask(&format!("alloc {}", 1 << 29)), "ok 2");
            }
        }
        sums.push(own);
    }
    assert_ne!(sums[0][0], sums[0][1]);
    let view = ready(&station, pid);
    assert_eq!(view.place.levers.not_movable, None);
    let held: Vec<Vec<u64>> = [&first, &second]
        .map(|raw| by_gpu(&station, raw.pid()))
        .to_vec();
    assert!(held.iter().all(|h| h[1] > h[0] && h[2] == 0), "{held:?}");
    // Where the parts for the first and the second device are now.
    let mut whole = |station: &gshare::station::Station, at: [usize; 2], what: &str| {
        for (raw, (held, sums)) in [&mut first, &mut second]
            .into_iter()
            .zip(held.iter().zip(&sums))
        {
            let mut wanted = [0; 4];
            (wanted[at[0]], wanted[at[1]]) = (held[0], held[1]);
            assert_eq!(by_gpu(station, raw.pid()), wanted, "{what}");
            for (device, before) in sums.iter().enumerate() {
                assert_eq!(raw.ask(&format!("device {device}")), "ok");
                let sum = raw.ask(&format!("sum {device}"));
                assert_eq!(sum, *before, "{what}: device {device}");
            }
        }
        let gpus = claim(station, pid).gpus;
        let gpus: Vec<usize> = gpus.iter().map(|g| g.gpu as usize).collect();
        assert_eq!(gpus, at, "{what}");
    };
    let out = |station: &gshare::station::Station| {
        let seen = board(station).snapshot();
        let bytes = seen.gpus.iter().flat_map(|g| &g.processes).map(|p| p.bytes);
        assert_eq!(bytes.sum::<u64>(), 0, "all is in the host");
    };
    ok(&station, &["offload", &id]);
    out(&station);
    ok(&station, &["restore", &id]);
    whole(&station, [0, 1], "back where it was");
    for to in [[2, 3], [1, 0], [3, 2]] {
        let gpus = format!("{},{}", to[0], to[1]);
        let done = ok(&station, &["move", &id, "--gpu", &gpus]);
        assert!(done.contains(&format!("moved to GPUs {gpus}")), "{done}");
        whole(&station, to, &format!("moved to {gpus}"));
    }
    // Others take its GPUs while it is offloaded: it comes back on the free ones.
    ok(&station, &["offload", &id]);
    out(&station);
    let other = Raw::claim(&station, &["-q", "-g", "2", "--gpu-ids", "2,3"]);
    let done = ok(&station, &["restore", &id]);
    assert!(done.contains("restored"), "{done}");
    whole(&station, [0, 1], "restored elsewhere");
    assert_eq!(other.finish(), Some(0));
    // A GPU too few, one twice, one that it has: said, nothing done.
    for gpus in ["2", "2,2", "2,0"] {
        let output = run(&station, &["move", &id, "--gpu", gpus]);
        assert!(matches!(output.status.code(), Some(64 | 75)), "{output:?}");
    }
    whole(&station, [0, 1], "after wrong wishes");
}

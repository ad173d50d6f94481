//! Whose SMs are busy: what the screen says of claims against the simulation's own record of each process.

use crate::support;

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use gshare::demo::Job;
use gshare::station::Station;
use gshare_proto::{ClaimView, Figure, GpuState, Snapshot, Source};
use gshare_sim_board::{Board, Fault, GpuSnapshot};
use support::{GSHARE, board, station_with, until};

const SOON: Duration = Duration::from_secs(30);

/// A job in a claim; it ends with this value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// Starts a steady kernel of so many blocks of 256 threads in a claim.
    fn steady(station: &Station, flags: &[&str], kernel: &str, grid: u32) -> Self {
        let mut command = station.command();
        command.arg("claim").args(flags).arg("--");
        Self::start(command, kernel, grid)
    }

    fn start(mut command: Command, kernel: &str, grid: u32) -> Self {
        let job = Job::Steady {
            kernel: kernel.to_owned(),
            grid,
            block: 256,
            mib: 8,
            pause_ms: 0,
        };
        let words = job.arguments();
        // Behind `gshare claim ... --` the program is named, else it is the command itself.
        if command.get_args().next().is_some() {
            command.arg(GSHARE);
        }
        let child = command
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        Self(child.expect("the job starts"))
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn claim<'a>(&self, snapshot: &'a Snapshot) -> Option<&'a ClaimView> {
        support::claim_of(snapshot, self.pid())
    }
}

/// What the board says of a process on GPU 0: SM time and warp time so far, and when.
fn truth(board: &Board, pid: u32) -> (u64, [f64; 2]) {
    let snapshot = board.snapshot();
    let mine = snapshot.gpus[0].processes.iter().find(|p| p.pid == pid);
    let sums = mine.map_or([0.0; 2], |p| [p.sm_ns as f64, p.warp_ns as f64]);
    (snapshot.now_ns, sums)
}

/// SM activity and occupancy in percent between two looks at the board.
fn percent(gpu: &GpuSnapshot, then: (u64, [f64; 2]), now: (u64, [f64; 2])) -> [f64; 2] {
    let ns = (now.0 - then.0) as f64;
    let sms = f64::from(gpu.model.sms);
    let whole = [sms, sms * f64::from(gpu.model.warps_per_sm())];
    [0, 1].map(|i| 100.0 * (now.1[i] - then.1[i]) / (ns * whole[i]))
}

fn value(figure: Option<Figure>) -> f64 {
    figure.map_or(f64::NAN, |f| f.value)
}

/// Means of SM activity and occupancy that are told of jobs over so many intervals, and what the board says of them
/// over the same time, in percent.
fn compare(station: &Station, jobs: &[&Running], intervals: usize) -> Vec<[[f64; 2]; 2]> {
    let board = board(station);
    let look = || -> Option<Vec<[f64; 2]>> {
        let snapshot = station.snapshot().ok()?;
        let figures = jobs.iter().map(|job| {
            let part = job.claim(&snapshot)?.gpus.first()?;
            let active = part.sm_active.filter(|f| f.value > 1.0)?;
            Some([active.value, value(part.sm_occupancy)])
        });
        figures.collect()
    };
    let mut last = until("all claims have a figure", SOON, look);
    // A figure of the last interval that began before.
    let changed = |last: &mut Vec<[f64; 2]>| {
        let now = look()?;
        let same = now.iter().flatten().zip(last.iter().flatten());
        let same = same.into_iter().all(|(a, b)| (a - b).abs() < f64::EPSILON);
        *last = now;
        (!same).then_some(())
    };
    until("an interval ends", SOON, || changed(&mut last));
    let began: Vec<_> = jobs.iter().map(|job| truth(&board, job.pid())).collect();
    let mut sums = vec![[0.0; 2]; jobs.len()];
    for _ in 0..intervals {
        until("an interval ends", SOON, || changed(&mut last));
        for (sum, figures) in sums.iter_mut().zip(&last) {
            *sum = [sum[0] + figures[0], sum[1] + figures[1]];
        }
    }
    let gpu = &board.snapshot().gpus[0];
    let rows = jobs.iter().zip(began).zip(sums).map(|((job, began), sum)| {
        let told = sum.map(|sum| sum / intervals as f64);
        let truth = percent(gpu, began, truth(&board, job.pid()));
        println!("told {told:.1?} of {truth:.1?}");
        [told, truth]
    });
    rows.collect()
}

fn one_gpu(model: &str, costs: &str) -> Station {
    station_with(|o| {
        o.gpus = vec![model.to_owned()];
        o.costs = costs.to_owned();
    })
}

fn text_of(station: &Station, arguments: &[&str]) -> String {
    let output = station.command().args(arguments).output().expect("runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_small_grid_keeps_the_gpu_busy_and_most_sms_idle() {
    // 38 of 128 SMs, one kernel after the other.
    let station = one_gpu("rtx4090", "steady 50ms\n");
    let job = Running::steady(&station, &["-q", "-g", "0.5"], "steady", 38);
    let [[active, occupancy], [true_active, true_occupancy]] = compare(&station, &[&job], 3)[0];
    assert!((active - true_active).abs() < 3.0 && (occupancy - true_occupancy).abs() < 3.0);
    let (gpu, part) = until("time busy is there too", SOON, || {
        let snapshot = station.snapshot().ok()?;
        let part = job.claim(&snapshot)?.gpus.first()?.clone();
        let gpu = snapshot.gpus.first()?.clone();
        let advised = snapshot
            .advice
            .iter()
            .any(|a| a.text.contains("SMs are idle"));
        (advised && value(gpu.time_busy) >= 97.0).then_some((gpu, part))
    });
    // What the GPU as a whole does is known from its claims, and both are said.
    for figure in [gpu.sm_active, part.sm_active] {
        assert!((26.0..33.0).contains(&value(figure)), "{figure:?}");
        let figure = figure.expect("known");
        assert_eq!((figure.source, figure.estimate), (Source::Shim, true));
    }
    assert!(value(part.time_got) > 90.0, "{part:?}");
    assert!(value(part.launch_rate) > 10.0, "{part:?}");
    assert!(part.mem_peak.is_some_and(|peak| peak >= 8 << 20));
    for listing in [["status"], ["ps"]] {
        let text = text_of(&station, &listing);
        let percent = |wanted: std::ops::Range<f64>| {
            let words = text.split(|c: char| !c.is_ascii_digit() && c != '.');
            words
                .filter_map(|w| w.parse::<f64>().ok())
                .any(|n| wanted.contains(&n))
        };
        assert!(percent(26.0..33.0) && percent(95.0..101.0), "{text}");
        assert!(text.contains('~'), "an estimate is marked: {text}");
    }
    let json = text_of(&station, &["status", "--json"]);
    for name in [
        "sm_active",
        "sm_occupancy",
        "time_got",
        "sm_request",
        "throttled",
        "copied",
        "source",
        "sm_unattributed",
        "sm_used",
    ] {
        assert!(json.contains(&format!("\"{name}\"")), "{name} in {json}");
    }
}

#[test]
fn claims_in_turns_have_their_own_figures() {
    let station = one_gpu("rtx4090", "wide 3ms\nsteady 5ms\n");
    let wide = Running::steady(&station, &["-q", "-g", "0.5"], "wide", 768);
    let small = Running::steady(&station, &["-q", "-g", "0.5"], "steady", 20);
    for [told, truth] in compare(&station, &[&wide, &small], 4) {
        assert!((told[0] - truth[0]).abs() < 3.0, "{told:?} of {truth:?}");
        assert!((told[1] - truth[1]).abs() < 5.0, "{told:?} of {truth:?}");
    }
    let snapshot = station.snapshot().expect("served");
    let part = &wide.claim(&snapshot).expect("there").gpus[0];
    assert!(value(part.throttled) > 10.0, "{part:?}");
    let user = &snapshot.users[0];
    let both = [&wide, &small].map(|job| {
        let claim = job.claim(&snapshot).expect("there");
        value(claim.gpus[0].sm_active) / 100.0
    });
    assert!(
        (value(user.sm_used) - both[0] - both[1]).abs() < 1e-6,
        "{user:?}"
    );
}

#[test]
fn beside_a_stranger_the_gpus_own_figure_is_unknown_without_counters() {
    let station = one_gpu("rtx4090", "steady 10ms\n");
    let job = Running::steady(&station, &["-q", "-g", "0.5"], "steady", 38);
    let mut outside = Command::new(GSHARE);
    outside.env("LD_LIBRARY_PATH", station.sim_dir().join("lib"));
    let _stranger = Running::start(outside, "steady", 64);
    let snapshot = until("no figure but the claim's own is there", SOON, || {
        let snapshot = station.snapshot().ok()?;
        let known = job.claim(&snapshot)?.gpus.first()?.sm_active.is_some();
        let told = !snapshot.unclaimed.is_empty() || snapshot.claims.iter().any(|c| c.adopted);
        let sum = snapshot.gpus[0].sm_active;
        (known && told && sum.is_none()).then_some(snapshot)
    });
    assert!(
        snapshot.gpus[0].sm_occupancy.is_none(),
        "not what the claims come to"
    );
    assert!(
        snapshot.gpus[0].sm_unattributed.is_none(),
        "nothing measured it"
    );
    assert!(snapshot.unclaimed.iter().all(|u| u.sm_active.is_none()));
    for adopted in snapshot.claims.iter().filter(|c| c.adopted) {
        assert!(
            adopted
                .gpus
                .iter()
                .all(|p| p.sm_active.is_none() && p.time_got.is_none())
        );
    }
}

#[test]
fn beside_a_stranger_the_rest_is_unattributed_with_counters() {
    let station = one_gpu("h100", "steady 10ms\n");
    let job = Running::steady(&station, &["-q", "-g", "0.5"], "steady", 30);
    let mut outside = Command::new(GSHARE);
    outside.env("LD_LIBRARY_PATH", station.sim_dir().join("lib"));
    let _stranger = Running::start(outside, "steady", 100);
    let (claim, rest, whole) = until("both are told apart", SOON, || {
        let snapshot = station.snapshot().ok()?;
        let part = job.claim(&snapshot)?.gpus.first()?.sm_active?;
        let gpu = &snapshot.gpus[0];
        let (rest, whole) = (gpu.sm_unattributed?, gpu.sm_active?);
        (rest.value > 5.0 && part.value > 1.0).then_some((part, rest, whole))
    });
    assert_eq!((whole.source, whole.estimate), (Source::Gpm, false));
    assert_eq!((claim.source, claim.estimate), (Source::Shim, true));
    assert!(rest.estimate);
    let sum = claim.value + rest.value;
    assert!(
        (sum - whole.value).abs() < 2.0,
        "{claim:?} {rest:?} {whole:?}"
    );
}

#[test]
fn a_lost_gpu_takes_its_claims_figures_with_it() {
    let station = one_gpu("rtx4090", "steady 10ms\n");
    let job = Running::steady(&station, &["-q", "-g", "0.5"], "steady", 38);
    let _ = compare(&station, &[&job], 1);
    board(&station).set_lost(0, true).expect("set");
    until("no figure of it is left", SOON, || {
        let snapshot = station.snapshot().ok()?;
        let gpu = &snapshot.gpus[0];
        let gone = gpu.state == GpuState::Lost
            && gpu.sm_active.is_none()
            && gpu.sm_occupancy.is_none()
            && gpu.time_busy.is_none();
        let claims = snapshot.claims.iter().flat_map(|c| &c.gpus);
        let mut claims = claims.map(|p| (p.sm_active, p.sm_occupancy, p.time_got, p.copied));
        (gone && claims.all(|figures| figures == (None, None, None, None))).then_some(())
    });
}

#[test]
fn while_nvml_hangs_only_what_the_claims_count_is_known() {
    let station = one_gpu("h100", "steady 10ms\n");
    let job = Running::steady(&station, &["-q", "-g", "0.5"], "steady", 38);
    let _ = compare(&station, &[&job], 1);
    board(&station)
        .set_fault(Fault::NvmlHangs, true)
        .expect("set");
    let part = until(
        "the GPU's figures are gone and the claim's stay",
        SOON,
        || {
            let snapshot = station.snapshot().ok()?;
            let gpu = &snapshot.gpus[0];
            let gone = gpu.sm_active.is_none()
                && gpu.sm_occupancy.is_none()
                && gpu.time_busy.is_none()
                && gpu.sm_unattributed.is_none();
            let part = job.claim(&snapshot)?.gpus.first()?.clone();
            (gone && part.sm_active?.source == Source::Shim).then_some(part)
        },
    );
    assert!(part.sm_active.is_some_and(|f| f.estimate));
    board(&station)
        .set_fault(Fault::NvmlHangs, false)
        .expect("set");
}

#[test]
fn an_instance_of_a_divided_gpu_has_its_own_counters() {
    let station = one_gpu("h100:3g.40gb+1g.10gb", "steady 10ms\n");
    let job = Running::steady(&station, &["-q", "-g", "0.1"], "steady", 8);
    let part = until("the instance's counters are there", SOON, || {
        let snapshot = station.snapshot().ok()?;
        let part = job.claim(&snapshot)?.gpus.first()?.clone();
        let gpu = snapshot.gpus.iter().find(|g| g.index == part.gpu)?;
        let both = gpu.sm_active.zip(part.sm_active)?;
        (both.0.source == Source::Gpm && both.1.value > 5.0).then_some(part)
    });
    let figure = part.sm_active.expect("known");
    assert_eq!(
        (figure.source, figure.estimate),
        (Source::Gpm, false),
        "{part:?}"
    );
}

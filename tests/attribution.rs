//! Whose SMs are busy: what the screen says of claims against the simulation's own record of each process.

mod support;

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use gshare::demo::Job;
use gshare::station::Station;
use gshare_proto::{ClaimView, Figure, Snapshot, Source};
use gshare_sim_board::{Board, GpuSnapshot};
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

#[test]
fn one_claims_sm_time_is_the_boards() {
    let station = station_with(|o| {
        o.gpus = vec!["rtx4090".to_owned()];
        o.costs = "steady 10ms\n".to_owned();
    });
    let board = board(&station);
    let job = Running::steady(&station, &["-q", "-g", "0.5"], "steady", 38);
    let busy = |snapshot: &Snapshot| {
        let part = job.claim(snapshot)?.gpus.first()?.clone();
        (part.sm_active?.value > 10.0).then_some(part)
    };
    until("the claim has a figure", SOON, || {
        busy(&station.snapshot().ok()?)
    });
    let began = truth(&board, job.pid());
    // Three intervals of a second; each figure is that of the last one.
    let (mut said, mut last) = (Vec::new(), 0.0);
    until("three intervals", SOON, || {
        let part = busy(&station.snapshot().ok()?)?;
        if (value(part.sm_active) - last).abs() > f64::EPSILON {
            last = value(part.sm_active);
            said.push(part);
        }
        (said.len() >= 4).then_some(())
    });
    let gpu = &board.snapshot().gpus[0];
    let [active, occupancy] = percent(gpu, began, truth(&board, job.pid()));
    let mean = |of: fn(&gshare_proto::ClaimGpu) -> Option<Figure>| {
        let values = said[1..].iter().map(|part| value(of(part)));
        values.sum::<f64>() / (said.len() - 1) as f64
    };
    let (told, full) = (mean(|p| p.sm_active), mean(|p| p.sm_occupancy));
    println!("SM activity {told:.1} of {active:.1}, occupancy {full:.1} of {occupancy:.1}");
    assert!((told - active).abs() < 3.0, "{told} instead of {active}");
    assert!(
        (full - occupancy).abs() < 3.0,
        "{full} instead of {occupancy}"
    );
    let part = &said[said.len() - 1];
    let figure = part.sm_active.expect("known");
    assert_eq!((figure.source, figure.estimate), (Source::Shim, true));
    assert!(value(part.time_got) > 80.0, "{part:?}");
}

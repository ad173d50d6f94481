//! Figures of claims and GPUs where they are shown: attribution of SM activity, advice, the page for Prometheus, and
//! the overview of many machines.

use crate::support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use gshare::demo::Job;
use gshare::station::Station;
use gshare_proto::{Advice, ClaimView, Figure, Snapshot, Source};
use gshare_sim_board::{Board, Fault, GpuSnapshot};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use support::terminal::Terminal;
use support::{
    GSHARE, MIB, Raw, SOON, board, claim, claim_of, doctor_row, has_all, looks, ok, patience,
    python, run, station_with, until,
};

// Attribution of SM activity, compared with the simulation's own record of each process.

/// A program that ends with this value, most often a job in a claim.
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
        claim_of(snapshot, self.pid())
    }
}

/// The board's record of a process on GPU 0: SM time and warp time so far, and when.
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

/// Means of the displayed SM activity and occupancy of jobs over this many intervals, and the board's over the same
/// time, in percent.
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
    // The figure of an interval that began before is not used.
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
    // The activity of the whole GPU is known from its claims, and both are shown.
    for figure in [gpu.sm_active, part.sm_active] {
        assert!((26.0..33.0).contains(&value(figure)), "{figure:?}");
        let figure = figure.expect("known");
        assert_eq!((figure.source, figure.estimate), (Source::Shim, true));
    }
    assert!(value(part.time_got) > 90.0, "{part:?}");
    assert!(value(part.launch_rate) > 10.0, "{part:?}");
    assert!(part.mem_peak.is_some_and(|peak| peak >= 8 << 20));
    for listing in [["status"], ["ps"]] {
        let text = ok(&station, &listing);
        let percent = |wanted: std::ops::Range<f64>| {
            let words = text.split(|c: char| !c.is_ascii_digit() && c != '.');
            words
                .filter_map(|w| w.parse::<f64>().ok())
                .any(|n| wanted.contains(&n))
        };
        assert!(percent(26.0..33.0) && percent(95.0..101.0), "{text}");
        assert!(text.contains('~'), "an estimate is marked: {text}");
    }
    let json = ok(&station, &["status", "--json"]);
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
    // Where the processors are busy, both together do not always need the whole GPU.
    let snapshot = until("a claim is throttled", SOON, || {
        let snapshot = station.snapshot().ok()?;
        let part = wide.claim(&snapshot)?.gpus.first()?;
        (value(part.throttled) > 10.0).then_some(snapshot)
    });
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

// The five rules of advice on a simulated workstation: each sentence appears when it is true, its printed command
// works, and the sentence disappears.

fn advised() -> Station {
    station_with(|o| {
        o.costs = "small_grid 12ms\n".to_owned();
        o.config = "[claims]\nleftover-grace = \"1s\"\n[advice]\nidle-after = \"2s\"\nover-asked-after = \"2s\"\n"
            .to_owned();
    })
}

/// The advice of a rule, found by its own words.
fn advice(station: &Station, words: &str) -> Option<Advice> {
    let all = station.snapshot().ok()?.advice;
    all.into_iter().find(|a| a.text.contains(words))
}

/// The printed command, on this station.
fn command(station: &Station, advice: &Advice) -> Command {
    let text = advice.command.as_deref().expect("each rule has a command");
    let words: Vec<&str> = text.trim_start_matches("sudo ").split(' ').collect();
    assert_eq!(words[0], "gshare", "{text}");
    let mut command = station.command();
    command.args(&words[1..]);
    command
}

fn follow(station: &Station, advice: &Advice) {
    let output = command(station, advice).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{advice:?}: {said}");
}

fn goes(station: &Station, words: &str) {
    until(&format!("`{words}` goes"), SOON, || {
        advice(station, words).is_none()
    });
}

fn launch(raw: &mut Raw) {
    let said = raw.ask("launch 1");
    assert!(said.starts_with("ok"), "{said}");
}

#[test]
fn idle_sms_could_run_side_by_side() {
    let station = advised();
    let job = Job::Steady {
        kernel: "small_grid".into(),
        grid: 40,
        block: 256,
        mib: 100,
        pause_ms: 0,
    };
    let mut start = station.command();
    start.args(["claim", "-q", "-g", "0.3", "--gpu-ids", "2", "--"]);
    start.arg(station.laboratory()).args(job.arguments());
    let _job = Running(start.stdout(Stdio::null()).spawn().expect("it starts"));
    let words = "could run side by side";
    let found = until("it is said", SOON, || advice(&station, words));
    assert!(
        found.text.contains("GPU 2") && found.text.contains("SMs are idle"),
        "{found:?}"
    );
    // It waits until the GPU is empty; the advice is applied from then on.
    let mut waits = command(&station, &found);
    let _waits = Running(waits.stderr(Stdio::null()).spawn().expect("it starts"));
    goes(&station, words);
    let gpu = &station.snapshot().expect("served").gpus[2];
    assert_eq!(gpu.mode_wanted.as_deref(), Some("mps"));
}

#[test]
fn an_idle_claim_with_memory_leaves_its_gpu_and_its_programs_live_on() {
    let station = advised();
    let mut raw = Raw::claim(&station, &["-q", "-g", "0.25"]);
    assert_eq!(raw.ask(&format!("alloc {}", 1u64 << 30)), "ok 0");
    launch(&mut raw);
    let words = "had no GPU work for";
    let found = until("offloading is said", SOON, || {
        let said = advice(&station, words)?;
        let command = said.command.clone()?;
        command.starts_with("gshare offload ").then_some(said)
    });
    follow(&station, &found);
    goes(&station, words);
    let claim = claim(&station, raw.pid());
    assert!(
        matches!(
            claim.place.word.as_deref(),
            Some("offloading" | "offloaded")
        ),
        "{claim:?}"
    );
}

#[test]
fn use_outside_claims_becomes_a_claim() {
    let station = advised();
    let mut raw = Raw::outside(&station);
    assert_eq!(raw.ask(&format!("alloc {}", 1u64 << 30)), "ok 0");
    let words = "without a claim: nothing limits it";
    let found = until("it is said", SOON, || advice(&station, words));
    assert!(found.text.contains(&raw.pid().to_string()), "{found:?}");
    follow(&station, &found);
    goes(&station, words);
    let snapshot = station.snapshot().expect("served");
    assert!(
        claim_of(&snapshot, raw.pid()).is_some(),
        "{:?}",
        snapshot.claims
    );
}

// The metrics for Prometheus: read by an independent parser, and served to hostile scrapers without harm.

fn exporting(listen: &str, more: &str) -> Station {
    station_with(|o| {
        o.gpus = vec!["rtx4090".into(), "h100".into()];
        o.config = format!("[metrics]\nlisten = {listen:?}\n{more}");
    })
}

/// Address of the station's exporter, from doctor.
fn address(station: &Station) -> String {
    let row = doctor_row(station.command(), "metrics");
    let detail = row["detail"].as_str().expect("a text");
    let place = detail.split("http://").nth(1).expect(detail);
    place.split('/').next().expect("an address").to_owned()
}

/// The families of a page, by the independent parser.
fn scrape(bin: &Path, address: &str) -> Value {
    let output = Command::new(bin.join("python"))
        .arg(python::script("scrape.py"))
        .arg(address)
        .output()
        .expect("python runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The value of a family's only sample with these labels.
fn sample(page: &Value, family: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let samples = page[family]["samples"].as_array().expect(family);
    let fits = |s: &&Value| labels.iter().all(|(n, v)| s["labels"][n] == *v);
    let found: Vec<f64> = samples
        .iter()
        .filter(fits)
        .filter_map(|s| s["value"].as_f64())
        .collect();
    assert!(found.len() <= 1, "{family} {labels:?}: {found:?}");
    found.first().copied()
}

/// A request as raw bytes, and all of the answer.
fn raw(address: &str, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).expect("listens");
    stream.set_read_timeout(Some(SOON)).expect("set");
    stream.write_all(request).expect("sent");
    let mut answer = Vec::new();
    // A connection that is closed with unread bytes is reset.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn an_independent_parser_reads_what_the_snapshot_says() {
    let Some(bin) = python::bin("an_independent_parser_reads_what_the_snapshot_says") else {
        return;
    };
    let station = exporting("127.0.0.1:0", "[privacy]\nnames = \"all\"\n");
    let address = address(&station);
    let mut one = Raw::claim(
        &station,
        &["-q", "-g", "0.25", "--name", "a\"b\\c", "--gpu-ids", "0"],
    );
    assert_eq!(one.ask(&format!("alloc {}", 512 * MIB)), "ok 0");
    let (room, _) = one.info();
    let over = one.ask(&format!("alloc {}", room + 1));
    assert!(over.starts_with("error 2"), "{over}");
    let other = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "1"]);
    let drained = station.command().args(["admin", "drain", "1"]).output();
    assert!(drained.expect("runs").status.success());

    let (page, snapshot) = until("the page has what was refused", SOON, || {
        let page = scrape(&bin, &address);
        let refused = sample(
            &page,
            "gshare_claim_allocation_refusals_total",
            &[("claim", "c1")],
        );
        let snapshot = station.snapshot().ok()?;
        let used = snapshot.claims[0].gpus[0].mem_used.filter(|b| *b > 0)? as f64;
        let told = sample(&page, "gshare_claim_memory_used_bytes", &[("claim", "c1")]);
        (refused == Some(1.0) && told == Some(used)).then_some((page, snapshot))
    });
    let part = &snapshot.claims[0].gpus[0];
    for (family, labels, wanted) in [
        ("gshare_claims", vec![], 2.0),
        ("gshare_queue_length", vec![], 0.0),
        ("gshare_granted_total", vec![], 2.0),
        ("gshare_allocation_refusals_total", vec![], 1.0),
        ("gshare_gpu_up", vec![("gpu", "0")], 1.0),
        ("gshare_gpu_drained", vec![("gpu", "0")], 0.0),
        ("gshare_gpu_drained", vec![("gpu", "1")], 1.0),
        ("gshare_gpu_sm_requested_ratio", vec![("gpu", "1")], 0.5),
        (
            "gshare_claim_sm_requested_ratio",
            vec![("claim", "c1")],
            0.25,
        ),
        (
            "gshare_claim_memory_limit_bytes",
            vec![("claim", "c1")],
            part.mem_limit as f64,
        ),
        (
            "gshare_claim_memory_charged_bytes",
            vec![("claim", "c1")],
            part.mem_charge.expect("known") as f64,
        ),
        (
            "gshare_claim_info",
            vec![("claim", "c1"), ("name", "a\"b\\c")],
            1.0,
        ),
        (
            "DCGM_FI_DEV_FB_TOTAL",
            vec![("gpu", "0")],
            (snapshot.gpus[0].mem_total.expect("known") / MIB) as f64,
        ),
    ] {
        assert_eq!(sample(&page, family, &labels), Some(wanted), "{family}");
    }
    // Unknown values are absent: the RTX 4090 counts no SM activity, the H100 does.
    for family in ["DCGM_FI_PROF_SM_ACTIVE", "gshare_gpu_sm_active_ratio"] {
        assert_eq!(sample(&page, family, &[("gpu", "0")]), None, "{family}");
        assert!(sample(&page, family, &[("gpu", "1")]).is_some(), "{family}");
    }
    let dcgm = &page["DCGM_FI_DEV_FB_USED"]["samples"][0]["labels"];
    assert_eq!(dcgm["device"], "nvidia0");
    assert_eq!(dcgm["UUID"], snapshot.gpus[0].uuid);
    assert_eq!(page["gshare_queue_wait_seconds"]["type"], "histogram");
    assert_eq!(page["gshare_granted_total"]["type"], "counter");
    drop((one, other));
}

#[test]
fn a_unix_socket_serves_the_same() {
    let Some(bin) = python::bin("a_unix_socket_serves_the_same") else {
        return;
    };
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("metrics.sock");
    let mut station = exporting(&socket.to_string_lossy(), "");
    let page = scrape(&bin, &socket.to_string_lossy());
    assert_eq!(sample(&page, "gshare_claims", &[]), Some(0.0));
    // The socket of a killed service is taken over.
    support::restart(&mut station, Signal::SIGKILL);
    let page = scrape(&bin, &socket.to_string_lossy());
    assert_eq!(sample(&page, "gshare_starts_total", &[]), Some(2.0));
}

#[test]
fn slow_and_hostile_scrapers_harm_nobody() {
    let station = exporting("127.0.0.1:0", "");
    let address = address(&station);
    assert!(raw(&address, b"GET /metrics HTTP/1.1\r\n\r\n").contains("gshare_claims 0\n"));
    for (request, wanted) in [
        (&b"GET /etc/passwd HTTP/1.1\r\n\r\n"[..], "HTTP/1.1 404 "),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 405 "),
        (b"\r\n\r\n", "HTTP/1.1 405 "),
        (b"HEAD /metrics HTTP/1.0\r\n\r\n", "HTTP/1.1 200 OK"),
        (b"GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 200 OK"),
    ] {
        let answer = raw(&address, request);
        assert!(answer.starts_with(wanted), "{answer}");
    }
    let endless = raw(&address, &vec![b'a'; 64 * 1024]);
    assert!(
        endless.is_empty() || endless.starts_with("HTTP/1.1 400 "),
        "{endless}"
    );
    // Many connections without a request displace only each other.
    let silent: Vec<TcpStream> = (0..200)
        .map(|_| TcpStream::connect(&address).expect("listens"))
        .collect();
    let started = Instant::now();
    let mut claim = Raw::claim(&station, &["-q", "-g", "0.25", "--name", "unseen"]);
    assert!(claim.ask("info").starts_with("ok"));
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "a claim waits for scrapers"
    );
    drop(silent);
    let answer = until("scrapes are served again", SOON, || {
        let answer = raw(&address, b"GET /metrics HTTP/1.1\r\n\r\n");
        answer.contains("gshare_claims 1\n").then_some(answer)
    });
    assert!(!answer.contains("unseen"), "names are their owner's alone");
}

#[test]
fn a_place_that_is_taken_does_not_stop_the_service() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let place = taken.local_addr().expect("an address").to_string();
    let station = exporting(&place, "");
    let output = run(&station, &["doctor"]);
    let text = String::from_utf8_lossy(&output.stdout);
    has_all(&text, &[&format!("cannot listen at {place}")]);
}

// `gshare nodes` on eight machines, each with its own service: speed, cost, and the display of a dead one.

const MACHINES: usize = 8;

/// Time over which its own processor time is measured.
const MEASURED: Duration = Duration::from_secs(10);

/// `gshare nodes`, with an ssh that knows these machines.
fn nodes(stations: &[Station], dir: &Path) -> Command {
    let mut script = "#!/bin/sh\nwhile [ \"$1\" = -o ]; do shift 2; done\n[ \"$1\" != -t ] || shift\ncase $1 in\n".to_owned();
    for (n, station) in stations.iter().enumerate() {
        let socket = station.socket();
        script += &format!("m{n}) export GSHARE_SOCKET={} ;;\n", socket.display());
    }
    let program = stations[0].program().display();
    script += &format!("esac\nshift 2\nexec {program} \"$@\"\n");
    let ssh = dir.join("ssh");
    fs::write(&ssh, script).expect("written");
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).expect("set");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(stations[0].program());
    command.arg("nodes");
    command.args((0..stations.len()).map(|n| format!("m{n}")));
    command.env("PATH", format!("{}:{path}", dir.display()));
    command.env_remove("GSHARE_SOCKET");
    command
}

struct Watching {
    child: Child,
    pictures: Receiver<(Instant, Value)>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = kill(
            Pid::from_raw(self.child.id().cast_signed()),
            Signal::SIGTERM,
        );
        let _ = self.child.wait();
    }
}

impl Watching {
    fn start(stations: &[Station], dir: &Path) -> Self {
        let mut command = nodes(stations, dir);
        command
            .args(["--json", "--watch", "2"])
            .stdout(Stdio::piped());
        let mut child = command.spawn().expect("gshare starts");
        let stdout = child.stdout.take().expect("piped");
        let (tell, pictures) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let picture = serde_json::from_str(&line).expect("JSON in a line");
                if tell.send((Instant::now(), picture)).is_err() {
                    break;
                }
            }
        });
        Self { child, pictures }
    }

    fn next(&self) -> (Instant, Value) {
        let next = self
            .pictures
            .recv_timeout(patience(Duration::from_secs(10)));
        next.expect("another picture")
    }

    /// Processor time of `gshare nodes` itself; its ssh runs beside it.
    fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("runs");
        let fields: Vec<&str> = stat
            .rsplit(") ")
            .next()
            .expect("fields")
            .split(' ')
            .collect();
        let ticks: u64 = fields[11..13]
            .iter()
            .map(|f| f.parse::<u64>().expect("ticks"))
            .sum();
        Duration::from_millis(ticks * 10)
    }
}

/// The reason why this machine is called silent.
fn silent(picture: &Value, n: usize) -> Option<String> {
    let why = picture["nodes"][n]["silent"].as_str();
    why.map(str::to_owned)
}

#[test]
fn eight_machines_are_seen_in_a_second_and_a_dead_one_is_told_in_three() {
    let mut stations: Vec<Station> = (0..MACHINES)
        .map(|_| station_with(|o| o.gpus = vec!["h100".into(), "h100".into()]))
        .collect();
    for station in &stations {
        until("its figures are known", SOON, || looks(station) > 1);
    }
    let dir = tempfile::tempdir().expect("a directory");
    let begun = Instant::now();
    let watching = Watching::start(&stations, dir.path());
    let (at, first) = watching.next();
    let first_s = at.duration_since(begun);
    for n in 0..MACHINES {
        assert_eq!(silent(&first, n), None, "{first}");
        assert_eq!(first["nodes"][n]["node"]["free_now"], 2.0);
    }

    let (begun, cpu) = (Instant::now(), watching.cpu());
    let mut refreshed = 0;
    while begun.elapsed() < MEASURED {
        watching.next();
        refreshed += 1;
    }
    let cpu = (watching.cpu() - cpu).as_secs_f64() / begun.elapsed().as_secs_f64();

    // One whose service dies, and one whose service hangs after an answer.
    let mut told = Vec::new();
    for (n, signal) in [(3, Signal::SIGKILL), (5, Signal::SIGSTOP)] {
        let begun = Instant::now();
        match signal {
            Signal::SIGKILL => stations[n].stop_service(signal).expect("killed"),
            _ => kill(
                Pid::from_raw(stations[n].service_pid().expect("runs").cast_signed()),
                signal,
            )
            .expect("stopped"),
        }
        let at = loop {
            let (at, picture) = watching.next();
            assert_eq!(silent(&picture, 0), None, "{picture}");
            if silent(&picture, n).is_some() {
                break at;
            }
        };
        told.push(at.duration_since(begun));
    }
    let hangs = stations[5].service_pid().expect("runs").cast_signed();
    kill(Pid::from_raw(hangs), Signal::SIGCONT).expect("goes on");
    println!(
        "result: {MACHINES} machines: first picture after {first_s:.2?}, {:.2} % of a core at {refreshed} pictures in \
         {MEASURED:?}, a dead service told after {:.2?}, one that hangs after {:.2?}",
        cpu * 100.0,
        told[0],
        told[1]
    );
    assert!(first_s <= patience(Duration::from_secs(1)), "{first_s:?}");
    assert!(cpu <= 0.01, "{cpu}");
    // A picture is drawn and read meanwhile.
    let most = patience(Duration::from_millis(3_200));
    assert!(told.iter().all(|t| *t <= most), "{told:?}");
}

#[test]
fn the_screen_of_several_machines_opens_the_screen_of_one() {
    let mut stations: Vec<Station> = (0..2)
        .map(|_| station_with(|o| o.gpus = vec!["h100".into(), "h100".into()]))
        .collect();
    for station in &stations {
        until("its figures are known", SOON, || looks(station) > 1);
    }
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = nodes(&stations, dir.path());
    command.arg("--watch");
    let mut screen = Terminal::start(&command, 24, 80);
    let first = screen.shows(
        &[
            "2 machines: 4.00 GPUs free for you now, 0 silent",
            "\u{25b8} m0",
            "  m1",
            "Enter its screen",
        ],
        SOON,
    );
    println!("{first}");
    // Its screen, and the list again with the same row.
    screen.send("\x1b[B");
    screen.shows(&["  m0", "\u{25b8} m1"], SOON);
    screen.send("\r");
    screen.shows(&["[1 Overview]", "n claim"], SOON);
    screen.send("q");
    screen.shows(&["2 machines: ", "\u{25b8} m1"], SOON);

    // One whose service dies, and whose screen cannot be opened.
    stations[0].stop_service(Signal::SIGKILL).expect("killed");
    let begun = Instant::now();
    screen.shows(
        &["2.00 GPUs free for you now, 1 silent or with a problem"],
        SOON,
    );
    let told = begun.elapsed();
    println!("a dead service told after {told:.2?}");
    assert!(told <= patience(Duration::from_millis(3_200)), "{told:?}");
    screen.send("kk");
    screen.shows(&["\u{25b8} m0", "state"], SOON);
    screen.send("q");
    assert_eq!(screen.ended(SOON), 0);
    assert!(screen.restored());
}

//! The observer over an NVML that misbehaves on demand (tests/fake_nvml.c).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use gshare_enforcer::gpu::{
    CudaVersion, GpuError, GpuSample, GpuState, Health, Observer, ObserverConfig,
};
use support::{LONG, until};

struct Fake(tempfile::TempDir);

impl Fake {
    fn new() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_nvml.c");
        let cc = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(dir.path().join("libnvidia-ml.so.1"))
            .arg(source)
            .output();
        match cc {
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{text}");
                Some(Self(dir))
            }
            Err(e) => {
                println!("skipped: cannot run cc: {e}");
                None
            }
        }
    }

    fn set(&self, name: &str, text: &str) {
        // In one step, so that the library never reads half a number.
        let temporary = self.0.path().join("temporary");
        std::fs::write(&temporary, text).unwrap();
        std::fs::rename(temporary, self.0.path().join(name)).unwrap();
    }

    fn unset(&self, name: &str) {
        std::fs::remove_file(self.0.path().join(name)).unwrap();
    }

    fn config(&self) -> ObserverConfig {
        ObserverConfig {
            interval: Duration::from_millis(120),
            patience: Duration::from_millis(1000),
            hung_after: Duration::from_millis(1200),
            retry: Duration::from_millis(10),
            ..ObserverConfig::new(self.0.path().join("libnvidia-ml.so.1"))
        }
    }

    fn observe(&self) -> (Observer, mpsc::Receiver<GpuSample>) {
        let (sample_tx, sample_rx) = mpsc::channel();
        let observer = Observer::spawn(self.config(), move |sample| {
            let _ = sample_tx.send(sample);
        });
        (observer, sample_rx)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        for index in 0..2 {
            let _ = std::fs::remove_file(self.0.path().join(format!("hang-{index}")));
        }
    }
}

/// The first sample that passes.
fn wait_for(samples: &mpsc::Receiver<GpuSample>, wanted: impl Fn(&GpuSample) -> bool) -> GpuSample {
    let start = Instant::now();
    loop {
        let sample = samples.recv_timeout(LONG).unwrap();
        if wanted(&sample) {
            return sample;
        }
        assert!(start.elapsed() < LONG, "last: {sample:#?}");
    }
}

#[test]
fn reads_what_the_gpus_offer_and_leaves_out_the_rest() {
    let Some(fake) = Fake::new() else { return };
    let (observer, samples) = fake.observe();
    let sample = wait_for(&samples, |s| s.gpus.iter().any(|g| g.gpm.is_some()));
    assert_eq!(observer.health(), Health::Running);
    assert_eq!(sample.driver_version.as_deref(), Some("580.65.06"));
    assert_eq!(
        sample.cuda_version,
        Some(CudaVersion {
            major: 13,
            minor: 5
        })
    );
    let [h100, rtx] = &sample.gpus[..] else {
        panic!("{sample:#?}")
    };
    assert_eq!(
        h100.uuid.as_deref(),
        Some("GPU-00000000-0000-0000-0000-000000000000")
    );
    assert_eq!((h100.index, h100.minor, rtx.minor), (0, Some(5), Some(4)));
    assert_eq!(h100.pci_bus_id.as_deref(), Some("00000000:3B:00.0"));
    assert_eq!(rtx.name.as_deref(), Some("NVIDIA GeForce RTX 4090"));
    assert_eq!((h100.sm_count, rtx.sm_count), (Some(132), Some(128)));
    assert_eq!(
        (h100.compute_capability, rtx.compute_capability),
        (Some((9, 0)), Some((8, 9)))
    );
    assert_eq!(
        (h100.mem_total, h100.mem_reserved),
        (Some(1_000_000), Some(1000))
    );
    assert_eq!(
        (h100.mem_used, rtx.mem_used),
        (Some(300_000), Some(300_001))
    );
    assert_eq!((h100.time_busy, h100.temperature), (Some(95.0), Some(61)));
    assert_eq!(
        (h100.power_w, h100.power_limit_w),
        (Some(312.5), Some(700.0))
    );
    assert_eq!(rtx.power_w, None, "not supported is not 0");
    assert_eq!(
        (h100.mig_enabled, rtx.mig_enabled),
        (Some(false), Some(false))
    );
    assert_eq!(
        (h100.display_active, rtx.display_active),
        (Some(false), Some(true))
    );
    let gpm = h100.gpm.unwrap();
    assert_eq!((gpm.sm_active, gpm.sm_occupancy), (Some(41.5), Some(12.25)));
    assert_eq!((rtx.gpm_supported, rtx.gpm), (Some(false), None));

    let processes = h100.processes.as_ref().unwrap();
    let seen: Vec<_> = processes
        .iter()
        .map(|p| (p.pid, p.bytes, p.compute, p.graphics, p.time_busy))
        .collect();
    assert_eq!(
        seen,
        [
            (11, Some(500), true, true, Some(50.0)),
            (12, Some(40), true, false, None),
            (13, Some(70), false, true, None),
        ]
    );
    assert_eq!(
        rtx.processes.as_deref(),
        Some(&[][..]),
        "an empty list is known"
    );
}

#[test]
fn a_request_reads_memory_afresh() {
    let Some(fake) = Fake::new() else { return };
    let mut config = fake.config();
    config.interval = Duration::from_secs(3600);
    let observer = Observer::spawn(config, |_| {});
    let first = observer.sample_now(LONG).unwrap();
    assert_eq!(first.gpus[1].mem_used, Some(300_001));
    for used in [1, 777, 12] {
        fake.set("used-1", &used.to_string());
        let asked = Instant::now();
        let sample = observer.sample_now(LONG).unwrap();
        assert_eq!(sample.gpus[1].mem_used, Some(used));
        assert!(sample.gpus.iter().all(|gpu| gpu.taken.unwrap() >= asked));
        assert_eq!(
            sample.gpus[0].time_busy,
            Some(95.0),
            "kept from the interval"
        );
    }
    assert!(observer.age().unwrap() < LONG);
}

#[test]
fn a_lost_gpu_is_a_state_and_the_other_goes_on() {
    let Some(fake) = Fake::new() else { return };
    let (_observer, samples) = fake.observe();
    for trouble in ["lost-0", "odd-0"] {
        wait_for(&samples, |s| s.gpus.iter().all(|g| g.state == GpuState::Ok));
        // "Unknown" appears at the look-up of a GPU, which happens after it was lost once.
        fake.set("lost-0", "");
        wait_for(&samples, |s| s.gpus[0].state == GpuState::Lost);
        fake.set(trouble, "");
        if trouble != "lost-0" {
            fake.unset("lost-0");
        }
        let sample = wait_for(&samples, |s| s.gpus[0].state == GpuState::Lost);
        let lost = &sample.gpus[0];
        assert_eq!(
            (lost.mem_used, lost.time_busy, lost.gpm),
            (None, None, None)
        );
        assert_eq!((&lost.processes, lost.power_w), (&None, None));
        assert!(lost.uuid.is_some(), "what it is stays known");
        assert_eq!(lost.mem_total, Some(1_000_000));
        assert_eq!(sample.gpus[1].state, GpuState::Ok);
        assert_eq!(sample.gpus[1].mem_used, Some(300_001));
        fake.unset(trouble);
    }
    wait_for(&samples, |s| {
        s.gpus[0].state == GpuState::Ok && s.gpus[0].mem_used.is_some()
    });
}

#[test]
fn a_hanging_gpu_turns_stale_then_hung_and_holds_nobody_up() {
    let Some(fake) = Fake::new() else { return };
    let (observer, samples) = fake.observe();
    wait_for(&samples, |s| s.gpus[0].time_busy.is_some());
    fake.set("hang-0", "");
    let sample = wait_for(&samples, |s| s.gpus[0].state == GpuState::Hung);
    assert_eq!(
        (sample.gpus[0].mem_used, sample.gpus[0].time_busy),
        (None, None)
    );
    let old = sample.gpus[0].taken.unwrap();
    assert!(
        sample.gpus[1].taken.unwrap() > old,
        "the figures of the hung one are older"
    );
    for used in [5, 6] {
        fake.set("used-1", &used.to_string());
        let now = observer.sample_now(LONG).unwrap();
        assert_eq!(now.gpus[1].mem_used, Some(used));
        assert_eq!(now.gpus[0].state, GpuState::Hung);
    }
    fake.unset("hang-0");
    let back = wait_for(&samples, |s| s.gpus[0].state == GpuState::Ok);
    assert!(back.gpus[0].taken.unwrap() > old);
    assert_eq!(back.gpus[0].mem_used, Some(300_000));
}

#[test]
fn without_nvml_it_says_why_and_tries_again() {
    let missing = Observer::spawn(ObserverConfig::new("/nowhere/libnvidia-ml.so.1"), |_| {});
    let error = missing.sample_now(LONG).unwrap_err();
    assert!(matches!(error, GpuError::Unavailable { .. }), "{error}");
    assert!(
        error.to_string().contains("/nowhere/libnvidia-ml.so.1"),
        "{error}"
    );
    assert!(matches!(missing.health(), Health::Unavailable(_)));
    assert_eq!(missing.latest(), None);

    let Some(fake) = Fake::new() else { return };
    fake.set("gone", "");
    let (observer, samples) = fake.observe();
    until("it is unavailable", || {
        matches!(observer.health(), Health::Unavailable(_))
    });
    let error = observer.sample_now(LONG).unwrap_err().to_string();
    assert!(error.contains("hint: load the driver"), "{error}");
    fake.unset("gone");
    wait_for(&samples, |s| s.gpus[0].mem_used.is_some());

    // The driver is unloaded meanwhile, and comes back with one GPU less.
    fake.set("count", "1");
    fake.set("gone", "");
    until("it is unavailable again", || {
        matches!(observer.health(), Health::Unavailable(_))
    });
    fake.unset("gone");
    let sample = wait_for(&samples, |s| s.gpus.len() == 1);
    assert_eq!(sample.gpus[0].state, GpuState::Ok);
}

#[test]
fn dropping_it_ends_the_samples() {
    let Some(fake) = Fake::new() else { return };
    let (observer, samples) = fake.observe();
    wait_for(&samples, |_| true);
    drop(observer);
    let start = Instant::now();
    while samples.recv_timeout(LONG) != Err(mpsc::RecvTimeoutError::Disconnected) {
        assert!(start.elapsed() < LONG, "it goes on");
    }
}

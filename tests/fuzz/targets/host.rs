//! What the machine says in words that users choose or that other programs bring: lines of the kernel's log, names of cgroups, of
//! processes and of containers, command lines, `/etc/subuid`, what `gshare claim` hands to the launcher, names and processes of
//! NVML, answers of MPS and of systemd. The service's own files are compiled in where their readers are not public.
#![no_main]
#![allow(
    dead_code,
    reason = "the readers' files have parts that this target does not call"
)]

use std::path::{Path, PathBuf};

use gshare_abi::Handover;
use libfuzzer_sys::fuzz_target;

// The files name their packages, of which only they are needed.
extern crate self as gshare_enforcer;
extern crate self as zbus;
pub use ::zvariant;

#[path = "../../../enforcer/src/cgroup/bound.rs"]
mod bound;
#[path = "../../../src/daemon/container_names.rs"]
mod container_names;
#[path = "../../../src/identity.rs"]
mod identity;
#[path = "../../../src/daemon/health/kmsg.rs"]
mod kmsg;
#[path = "../../../enforcer/src/gpu/listed.rs"]
mod listed;
#[path = "../../../enforcer/src/mps/answer.rs"]
mod mps_answer;
#[path = "../../../enforcer/src/cgroup/name.rs"]
mod name;
#[path = "../../../enforcer/src/proc/namespace.rs"]
mod namespace;
#[path = "../../../enforcer/src/plain.rs"]
mod plain;
#[path = "../../../enforcer/src/proc/read.rs"]
mod read;
#[path = "../../../enforcer/src/proc/sys.rs"]
mod sys;
#[path = "../../../enforcer/src/systemd/answer.rs"]
mod systemd_answer;
#[path = "../../../src/daemon/fact/xid.rs"]
mod xid;

pub mod daemon {
    pub mod fact {
        pub(crate) use crate::xid::{KernelXid, Pci};
    }
}

pub(crate) use read::*;

pub mod proc {
    pub use crate::namespace::*;
    pub use crate::read::*;
}

pub mod cgroup {
    pub use crate::bound::container_id;
    pub(crate) use crate::name;

    /// A claim's cgroup; here there is none.
    pub(crate) struct ClaimCgroup;

    impl ClaimCgroup {
        pub(crate) fn dir(&self) -> &std::path::Path {
            std::path::Path::new("/nowhere")
        }
    }
}

mod figures {
    pub(crate) use gshare_proto::printable;
}

/// Where cgroups are; here there are none, so only names bind.
#[derive(Debug, Clone)]
pub(crate) struct Mount;

impl Mount {
    pub(crate) fn dir_of(&self, _: &str) -> Option<PathBuf> {
        None
    }
}

/// Longest name of a process or notebook that is kept, in characters.
const NAME: usize = 200;

fn handed_over(data: &[u8]) {
    let Ok(handover) = Handover::from_bytes(data) else {
        return;
    };
    let again = Handover::from_bytes(&handover.to_bytes()).expect("what was written can be read");
    assert_eq!(again, handover);
    let entries: usize = handover.entries().map(|entry| entry.len() + 1).sum();
    assert_eq!(entries, handover.environment.len(), "no byte is lost");
    assert!(handover.entries().all(|entry| !entry.contains(&0)));
}

fn named(text: &str) {
    let words: Vec<String> = text.split('\0').map(str::to_owned).collect();
    let identity = identity::of_command(&words);
    let names = [identity.script, identity.model, identity.notebook];
    for name in names.into_iter().flatten() {
        assert!(name.value.chars().count() <= NAME, "{name:?}");
        assert!(!name.value.chars().any(char::is_control), "{name:?}");
    }
}

/// Plain letters only, and not more than so many.
fn is_plain(text: &str, most: usize) {
    assert!(text.len() <= most, "{text:?}");
    assert!(
        text.bytes().all(|b| b.is_ascii_graphic() || b == b' '),
        "{text:?}"
    );
}

fn names(text: &str) {
    let gpu = listed::named(text);
    is_plain(&gpu, 96);
    assert!(!gpu.contains(".."), "{gpu:?}");
    if let Some(cgroup) = name::plain(text) {
        assert!(cgroup.is_absolute() && !cgroup.components().any(|c| c.as_os_str() == ".."));
    }
    let words: Vec<String> = text.split('\0').map(str::to_owned).collect();
    let container = container_names::name_in(text.as_bytes());
    for name in container
        .into_iter()
        .chain(container_names::watched_by(&words))
    {
        assert!(
            name.chars().count() <= 64 && !name.contains(char::is_control),
            "{name:?}"
        );
    }
}

fn mps(answer: &str) {
    is_plain(&mps_answer::text(answer), 200);
    is_plain(&mps_answer::last_words(answer), 200);
    if let Some(share) = mps_answer::percentage(answer) {
        assert!(share > 0.0 && share <= 100.0);
    }
    let pids = mps_answer::pids(answer);
    assert!(pids.len() <= 1024 && pids.iter().all(|pid| *pid > 0));
    if let Some(mps_answer::ServerState::Other(word)) = mps_answer::state(answer) {
        is_plain(&word, 200);
    }
}

/// Processes and samples as NVML lists them, sixteen bytes each.
fn nvml(data: &[u8]) {
    let (all, _) = data.as_chunks::<16>();
    let word = |one: &[u8; 16], at: usize| {
        let bytes = one[at..at + 4].try_into().expect("four bytes");
        u32::from_le_bytes(bytes)
    };
    let listed = all.iter().map(|one| {
        let kinds = [
            listed::Kind::Compute,
            listed::Kind::Mps,
            listed::Kind::Graphics,
        ];
        let bytes = u64::from(word(one, 4)) << (one[8] % 33);
        (
            word(one, 0),
            (one[9] > 0).then_some(bytes),
            kinds[usize::from(one[10] % 3)],
        )
    });
    let found = listed::processes(listed);
    assert!(found.len() <= all.len() && found.iter().all(|p| p.pid > 0));
    assert!(found.is_sorted_by(|a, b| a.pid < b.pid), "each once");
    let seen_us = data.first().map_or(0, |b| u64::from(*b));
    let samples = all
        .iter()
        .map(|one| (word(one, 0), u64::from(word(one, 8)), word(one, 12)));
    let mut stamps = listed::Stamps::new(seen_us);
    let shares = stamps.shares(seen_us + 1, samples);
    assert!(stamps.since() <= seen_us + 1);
    assert!(
        shares
            .iter()
            .all(|(pid, share)| *pid > 0 && (0.0..=100.0).contains(share))
    );
}

/// A property of a unit as the bus brings it: a variant.
fn systemd(data: &[u8]) {
    use zvariant::serialized::{Context, Data};
    use zvariant::{LE, OwnedValue, Value};
    let value = |again: &OwnedValue| again.try_clone().expect("no descriptors");
    let told = Data::new(data, Context::new_dbus(LE, 0));
    let told = told
        .deserialize::<OwnedValue>()
        .map(|(value, _)| value)
        .ok();
    let text = String::from_utf8_lossy(data);
    let told = told.or_else(|| OwnedValue::try_from(Value::from(text.as_ref())).ok());
    let Some(told) = told.filter(|told| told.try_clone().is_ok()) else {
        return;
    };
    if let Some(unit) = systemd_answer::unit(value(&told)) {
        is_plain(&unit, 255);
        assert!(!unit.contains(['/', ' ']) && !unit.is_empty());
    }
    if let Some(state) = systemd_answer::state(value(&told)) {
        assert!(state.len() <= 32 && state.bytes().all(|b| b.is_ascii_lowercase()));
    }
    if let Some(pid) = systemd_answer::process(value(&told)) {
        assert!(pid > 0 && i32::try_from(pid).is_ok());
    }
    if let Some(cgroup) = systemd_answer::cgroup(told) {
        assert!(cgroup.is_absolute() && !cgroup.components().any(|c| c.as_os_str() == ".."));
    }
}

fuzz_target!(|data: &[u8]| {
    handed_over(data);
    nvml(data);
    systemd(data);
    let text = String::from_utf8_lossy(data);
    names(&text);
    mps(&text);
    for xid in text.lines().filter_map(kmsg::parse) {
        // Whatever is taken begins as the kernel's own record of the driver does.
        assert!(text.contains(";NVRM: Xid (PCI:"), "{xid:?}");
    }
    let ground = bound::Ground {
        mount: Mount,
        tree: "/gshare".into(),
        has_slices_limits: true,
    };
    let from = Path::new("/").join(text.trim_start_matches('/'));
    if let Some(bound) = ground.bound(&from, Path::new("/gshare/claim-1"), 1000) {
        assert!(!bound.to_string().is_empty());
    }
    if let Some(id) = bound::container_id(&text) {
        assert_eq!(id.len(), 64);
    }
    named(&text);
    if let Some(stat) = proc::Stat::parse(&text) {
        assert_eq!(stat.key().pid, stat.pid);
    }
    for uid in [0, 100_000, u32::MAX] {
        if let Some(owner) = proc::range_owner(&text, uid) {
            assert!(!owner.contains(':') && text.contains(owner));
        }
    }
});

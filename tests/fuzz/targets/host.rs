//! What the machine says in words that users choose: lines of the kernel's log, names of cgroups and of processes, command
//! lines, `/etc/subuid`, and what `gshare claim` hands to the launcher. The service's own files are compiled in where their
//! readers are not public.
#![no_main]
#![allow(
    dead_code,
    reason = "the readers' files have parts that this target does not call"
)]

use std::path::{Path, PathBuf};

use gshare_abi::Handover;
use libfuzzer_sys::fuzz_target;

// The files name their package, of which only they are needed.
extern crate self as gshare_enforcer;

#[path = "../../../enforcer/src/cgroup/bound.rs"]
mod bound;
#[path = "../../../src/identity.rs"]
mod identity;
#[path = "../../../src/daemon/health/kmsg.rs"]
mod kmsg;
#[path = "../../../enforcer/src/proc/namespace.rs"]
mod namespace;
#[path = "../../../enforcer/src/proc/read.rs"]
mod read;
#[path = "../../../enforcer/src/proc/sys.rs"]
mod sys;
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

fuzz_target!(|data: &[u8]| {
    handed_over(data);
    let text = String::from_utf8_lossy(data);
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

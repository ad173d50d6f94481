//! The shared pages with arbitrary words in them: what a member that scribbles can do to the service and
//! to its neighbours, and what a damaged file does to a service that starts again.
//!
//! The input is a list of actions of ten bytes: what, where, and a word.
#![no_main]

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::OnceLock;

use gshare_abi::host::{LimitsFile, LimitsInit, UsageMemfd};
use gshare_abi::{GpuUuid, LIMITS_BYTES, LimitsMap, Outcome, SLOTS, USAGE_BYTES, UsageMap};
use libfuzzer_sys::fuzz_target;

const UUID: GpuUuid = GpuUuid([7; 16]);
const CLAIM: u64 = 3;
const TOKEN: u64 = 42;
const GPU_BYTES: u64 = 24 << 30;

/// Words of the header, where a wild offset seldom falls.
const HEADER_WORDS: u64 = 8;

/// Where the slots begin, in words.
const SLOT_WORDS: u64 = 512;

/// Between two places anywhere in a page: no multiple of a structure's length.
const STRIDE: u64 = 37;

fn directory() -> PathBuf {
    static MADE: OnceLock<tempfile::TempDir> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        let shared = std::path::Path::new("/dev/shm");
        if shared.is_dir() {
            tempfile::tempdir_in(shared).expect("a directory")
        } else {
            tempfile::tempdir().expect("a directory")
        }
    });
    made.path().to_owned()
}

fn scribble(file: &File, at: u16, word: u64, bytes: usize) {
    let words = (bytes / 8) as u64;
    let place = u64::from(at >> 2);
    // Half of the writes go to the header, a quarter to the first slots, a quarter anywhere.
    let word_at = match at & 3 {
        0 | 2 => place % HEADER_WORDS,
        1 => (SLOT_WORDS + place) % words,
        _ => place * STRIDE % words,
    };
    file.write_all_at(&word.to_le_bytes(), word_at * 8)
        .expect("pages are writable and of fixed length");
}

fn look(usage: &UsageMemfd) {
    let slots = usage.read_slots(GPU_BYTES);
    let mut sum: u64 = 0;
    for slot in &slots {
        assert!(slot.slot < SLOTS && slot.pid != 0);
        assert!(slot.charge_bytes <= GPU_BYTES);
        assert!(slot.requested_bytes <= GPU_BYTES);
        assert!(slot.context_bytes <= GPU_BYTES);
        sum = sum.saturating_add(slot.charge_bytes);
    }
    assert_eq!(usage.charged_bytes(GPU_BYTES), sum);
    assert_eq!(usage.owners().count(), slots.len());
    assert_eq!(usage.gates().count(), slots.len());
    for slot in &slots {
        assert_eq!(slot.launches, usage.page().launches(slot.slot));
    }
    let mark = usage.page().high_water();
    assert!(mark <= SLOTS);
    assert!(
        slots.iter().all(|slot| slot.slot < mark),
        "an owner below the mark"
    );
}

fn usage(actions: &[[u8; 10]]) {
    let mut held = UsageMemfd::create(CLAIM, UUID, TOKEN).expect("a page");
    let file = File::from(held.fd().try_clone_to_owned().expect("a descriptor"));
    for action in actions {
        let at = u16::from_le_bytes([action[0] >> 4 | action[1] << 4, action[1] >> 4]);
        let word = u64::from_le_bytes(action[2..].try_into().expect("eight bytes"));
        match action[0] & 15 {
            0..=8 => scribble(&file, at, word, USAGE_BYTES),
            9 => {
                // The service starts anew.
                let fd = held.fd().try_clone_to_owned().expect("a descriptor");
                if let Ok(adopted) = UsageMemfd::adopt(fd, CLAIM, UUID, TOKEN) {
                    held = adopted;
                }
            }
            10 => {
                let before = held.owners().count();
                let pid = (word as u32).max(1);
                match held.assign_slot(pid, word >> 32) {
                    Ok(seat) => assert!(seat.slot < SLOTS && seat.generation > 0 || before > 0),
                    Err(_) => assert_eq!(before, SLOTS, "refused with a slot free"),
                }
            }
            11 => {
                let owner = held.owners().next();
                if let Some((seat, ..)) = owner {
                    assert!(held.reclaim(seat.slot, seat.generation));
                    assert!(
                        !held.reclaim(seat.slot, seat.generation),
                        "given back twice"
                    );
                }
                held.reclaim(word as usize, word);
            }
            12 => {
                let me = usize::from(at) % SLOTS;
                let (own, bytes) = (word >> 32, word & 0xffff_ffff);
                match held.page().reserve(me, own, bytes, || GPU_BYTES) {
                    Outcome::Granted { charged } => {
                        assert!(own + bytes <= GPU_BYTES && charged <= GPU_BYTES);
                    }
                    Outcome::Refused { charged } => assert!(charged >= own),
                }
            }
            13 => {
                let fd = held.fd().try_clone_to_owned().expect("a descriptor");
                if let Ok(map) = UsageMap::new(fd) {
                    map.page().charged_bytes();
                    assert!(map.page().slot(SLOTS).is_none());
                }
            }
            _ => look(&held),
        }
    }
    look(&held);
}

fn limits(actions: &[[u8; 10]]) {
    let path = directory().join("limits");
    let _ = std::fs::remove_file(&path);
    let init = LimitsInit {
        claim: CLAIM,
        uuid: UUID,
        token: TOKEN,
        memory_cap_bytes: GPU_BYTES,
        ..LimitsInit::default()
    };
    let page = LimitsFile::create(&path, &init).expect("a page");
    let file = File::options().write(true).open(&path).expect("opens");
    for action in actions {
        let at = u16::from_le_bytes([action[0] >> 4 | action[1] << 4, action[1] >> 4]);
        let word = u64::from_le_bytes(action[2..].try_into().expect("eight bytes"));
        match action[0] & 15 {
            0..=7 => scribble(&file, at, word, LIMITS_BYTES),
            8 => {
                // A short file is an error, never a mapping behind its end; and it grows again, as
                // the first mapping is still there.
                file.set_len(word % LIMITS_BYTES as u64).expect("shortened");
                let short = File::open(&path).expect("opens");
                assert!(LimitsFile::open(&path).is_err());
                assert!(LimitsMap::new(short.as_fd()).is_err());
                file.set_len(LIMITS_BYTES as u64).expect("grown");
            }
            9 => drop(LimitsFile::open(&path)),
            10 => page.set_memory_cap(word),
            _ => {
                let member = page.member_fd().expect("a descriptor");
                if let Ok(map) = LimitsMap::new(member.as_fd()) {
                    let page = map.page();
                    let _ = (
                        page.state(),
                        page.claim(),
                        page.token(),
                        page.uuid().to_string(),
                    );
                }
            }
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((which, rest)) = data.split_first() else {
        return;
    };
    let (actions, _) = rest.as_chunks::<10>();
    if which & 1 == 0 {
        usage(actions);
    } else {
        limits(actions);
    }
});

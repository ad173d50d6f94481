//! The few environment variables that the driver reads at initialisation and that are known only then: the claim had no
//! GPU when the program started, or was resized since.
//!
//! `setenv` would move the list while other threads read it. So nothing is added: placeholders of the launcher (see
//! `gshare_abi::place`) are overwritten in place, and for an existing variable one pointer is exchanged.

use std::{
    ffi::{CStr, CString, c_char},
    ops::Range,
    slice,
    sync::atomic::{AtomicPtr, AtomicU8, Ordering},
};

use gshare_abi::{GpuUuid, LATER, filled};

use crate::{join::Joined, say};

/// The visible devices are the program's own choice if it has made one.
const CHOSEN: &str = "CUDA_VISIBLE_DEVICES";

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

/// Writes the variables for the claim's GPUs into their placeholders.
pub(crate) fn fill(joined: &Joined) {
    let block = if joined.env.is_empty() {
        None
    } else {
        own_block()
    };
    let mut without = Vec::new();
    for (name, value) in &joined.env {
        let there = entries().any(|entry| starts(entry, "", name));
        let done = match there {
            true if name == CHOSEN => true,
            true => {
                replace(name, value);
                true
            }
            false => fill_place(name, value, block.as_ref()),
        };
        if !done {
            without.push(name.as_str());
        }
    }
    if !without.is_empty() {
        say::line(&format!(
            "claim {}: {} cannot be set, because the program was started without the claim's environment; start it with gshare join c{} -- COMMAND",
            joined.name,
            without.join(", "),
            joined.claim
        ));
    }
}

/// Translates a list of the machine's GPU numbers, if they are the claim's, to UUIDs: a claim counts its own GPUs from
/// 0.
pub(crate) fn translate(joined: &Joined) {
    let Ok(list) = std::env::var(CHOSEN) else {
        return;
    };
    let gpus = joined.seats.iter();
    let gpus: Vec<_> = gpus
        .map(|(uuid, seat)| (*uuid, seat.limits.gpu_index()))
        .collect();
    if let Some(list) = by_uuid(&list, &gpus) {
        replace(CHOSEN, &list);
    }
}

/// The GPUs of a list of the machine's numbers; `None` if it reads as a list of the claim's numbers, or is neither.
fn by_uuid(list: &str, gpus: &[(GpuUuid, Option<u32>)]) -> Option<String> {
    let mut numbers = list.split(',').map(|entry| entry.trim().parse::<u32>());
    let first = numbers.clone().next()?.ok()?;
    if usize::try_from(first).is_ok_and(|n| n < gpus.len()) {
        return None;
    }
    let uuid = |n: u32| gpus.iter().find(|(_, index)| *index == Some(n));
    let uuids = numbers.try_fold(Vec::new(), |mut all, n| {
        all.push(uuid(n.ok()?)?.0.to_string());
        Some(all)
    });
    uuids.map(|all| all.join(","))
}

/// Reports why a program that chose its GPUs finds none.
pub(crate) fn chose_in_vain(claim: &str) {
    if let Ok(list) = std::env::var(CHOSEN)
        && !list.is_empty()
        && !list.starts_with('-')
    {
        say::line(&format!(
            "claim {claim}: CUDA_VISIBLE_DEVICES={list} names a GPU that this claim does not have. Inside a claim, \
             GPUs are numbered from 0. Remove CUDA_VISIBLE_DEVICES"
        ));
    }
}

/// Changes an existing variable. Only the list's entry changes: pointers that the program has read before stay valid.
pub(crate) fn replace(name: &str, value: &str) {
    let Ok(text) = CString::new(format!("{name}={value}")) else {
        return;
    };
    for entry in entries().filter(|entry| starts(entry, "", name)) {
        if !same(entry, &text) {
            exchange(entry, &text);
        }
    }
}

/// Turns the placeholder of a variable into the variable; false if there is none.
fn fill_place(name: &str, value: &str, block: Option<&Range<usize>>) -> bool {
    let mut found = false;
    for entry in entries().filter(|entry| starts(entry, LATER, name)) {
        found |= write_over(entry, name, value, block);
    }
    found
}

/// Overwrites an entry of the block that the kernel made for this program, which is writable and is shown in
/// `/proc/PID/environ`. If the program has moved its entries elsewhere, the entry is exchanged instead.
fn write_over(entry: Entry, name: &str, value: &str, block: Option<&Range<usize>>) -> bool {
    let text = entry.load(Ordering::Acquire);
    // SAFETY: an entry of the list is a string that ends in NUL; they are never taken away, only exchanged here.
    let room = unsafe { CStr::from_ptr(text) }.count_bytes();
    let within = |block: &&Range<usize>| {
        block.contains(&(text as usize)) && block.contains(&(text as usize + room))
    };
    let bytes = filled(name, value, room).filter(|_| block.filter(within).is_some());
    let Some(bytes) = bytes else {
        let Ok(text) = CString::new(format!("{name}={value}")) else {
            return false;
        };
        exchange(entry, &text);
        return true;
    };
    // SAFETY: `room` bytes of the block, which is the process's own to write and stays mapped; an atomic byte has the
    // layout of a byte. A reader of the list meanwhile finds a string that ends in the same NUL at the latest.
    let place = unsafe { slice::from_raw_parts(text.cast::<AtomicU8>(), room) };
    // The first byte last: until then the variable has a name that nobody looks up.
    for (at, byte) in place.iter().zip(&bytes).rev() {
        at.store(*byte, Ordering::Release);
    }
    true
}

type Entry = &'static AtomicPtr<c_char>;

/// The C library's own list, up to its final null pointer.
fn entries() -> impl Iterator<Item = Entry> {
    // SAFETY: reads the C library's pointer to the list. A program that changes its environment in another thread
    // while it initialises the driver races with the driver as well.
    let mut next = unsafe { environ };
    std::iter::from_fn(move || {
        if next.is_null() {
            return None;
        }
        // SAFETY: within the list, whose end has not been met; a pointer has the layout of an atomic one.
        let entry = unsafe { AtomicPtr::from_ptr(next) };
        if entry.load(Ordering::Acquire).is_null() {
            return None;
        }
        // SAFETY: the list goes on up to a null pointer, and this was none.
        next = unsafe { next.add(1) };
        Some(entry)
    })
}

/// Whether an entry is the variable `start` and `name` together.
fn starts(entry: Entry, start: &str, name: &str) -> bool {
    // SAFETY: as in `write_over`.
    let text = unsafe { CStr::from_ptr(entry.load(Ordering::Acquire)) }.to_bytes();
    let rest = text
        .strip_prefix(start.as_bytes())
        .and_then(|text| text.strip_prefix(name.as_bytes()));
    rest.is_some_and(|rest| rest.starts_with(b"="))
}

fn same(entry: Entry, text: &CStr) -> bool {
    // SAFETY: as in `write_over`.
    unsafe { CStr::from_ptr(entry.load(Ordering::Acquire)) == text }
}

fn exchange(entry: Entry, text: &CStr) {
    // Kept for the rest of the process, like the old one.
    entry.store(text.to_owned().into_raw(), Ordering::Release);
}

/// Address range of this program's environment: fields 50 and 51 of its `stat`.
fn own_block() -> Option<Range<usize>> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // Field 3 follows the name, which may contain anything.
    let fields = stat.rsplit_once(')')?.1;
    let mut fields = fields.split_ascii_whitespace().skip(47);
    let mut address = || fields.next()?.parse::<usize>().ok().filter(|n| *n > 0);
    Some(address()?..address()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_numbers_mean_the_claims_gpus_and_the_claims_own_stay() {
        let (a, b) = (GpuUuid([1; 16]), GpuUuid([2; 16]));
        let gpus = [(a, Some(3)), (b, Some(1))];
        let both = format!("{b},{a}");
        for (list, meant) in [
            ("0", None),
            ("1", None),
            ("1,3", None),
            ("3", Some(a.to_string())),
            ("3, 1", Some(format!("{a},{b}"))),
            ("3,2", None),
            ("2", None),
            ("", None),
            ("-1", None),
            (both.as_str(), None),
        ] {
            assert_eq!(by_uuid(list, &gpus), meant, "{list:?}");
        }
        assert_eq!(by_uuid("3", &[(a, None)]), None);
    }
}

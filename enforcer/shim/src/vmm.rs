//! Memory that the program maps itself: physical memory lives, and is charged, as long as a handle or a mapping refers
//! to it.
//!
//! Imported memory is charged to its exporter. The driver does not tell which import belongs to which export, so
//! exported memory whose own references are gone stays charged while this process holds any import, which might be that
//! memory.

use std::collections::{BTreeMap, HashMap};

#[derive(Debug)]
struct Physical {
    /// `None`: imported.
    gpu: Option<usize>,
    bytes: u64,
    exported: bool,
    handles: u64,
    mappings: u64,
    /// References that the driver is about to take back: until it confirms, this memory is not gone.
    releasing: u64,
}

/// Physical memory of this process and the references to it.
#[derive(Debug, Default)]
pub(crate) struct Virtual {
    memory: HashMap<u64, Physical>,
    /// Physical memory behind each handle; the driver may reuse a released handle.
    handles: HashMap<u64, u64>,
    /// Start of each mapping: its length, and its physical memory.
    mappings: BTreeMap<u64, (u64, u64)>,
    next: u64,
    /// References to imported memory.
    imports: u64,
    /// Exported memory without references of its own, charged until the last import goes.
    lingering: Vec<Gone>,
}

/// Bytes on a GPU without references.
pub(crate) type Gone = (usize, u64);

impl Virtual {
    pub(crate) fn created(&mut self, handle: u64, gpu: usize, bytes: u64) {
        self.add(handle, Some(gpu), bytes);
    }

    /// The driver gave a handle for imported memory.
    pub(crate) fn imported(&mut self, handle: u64) {
        let known = self.handles.get(&handle);
        match known.and_then(|id| self.memory.get_mut(id)) {
            Some(physical) => physical.handles += 1,
            None => {
                self.imports += 1;
                self.add(handle, None, 0);
            }
        }
    }

    /// The memory behind a handle may be imported elsewhere from now on.
    pub(crate) fn exported(&mut self, handle: u64) {
        let known = self.handles.get(&handle);
        if let Some(physical) = known.and_then(|id| self.memory.get_mut(id)) {
            physical.exported = true;
        }
    }

    fn add(&mut self, handle: u64, gpu: Option<usize>, bytes: u64) {
        self.next += 1;
        let physical = Physical {
            gpu,
            bytes,
            exported: false,
            handles: 1,
            mappings: 0,
            releasing: 0,
        };
        self.memory.insert(self.next, physical);
        self.handles.insert(handle, self.next);
    }

    /// The program is about to release a reference of a handle; returns the physical memory behind it. Another thread
    /// may still map it: the handle is known until the driver has it back.
    pub(crate) fn take(&mut self, handle: u64) -> Option<u64> {
        let id = *self.handles.get(&handle)?;
        let physical = self.memory.get_mut(&id).filter(|p| p.handles > 0)?;
        physical.handles -= 1;
        physical.releasing += 1;
        Some(id)
    }

    /// The driver has taken the reference back, or has refused. It may have reused the handle for other memory since.
    pub(crate) fn taken(&mut self, handle: u64, id: u64, back: bool) -> Vec<Gone> {
        if let Some(physical) = self.memory.get_mut(&id) {
            physical.releasing = physical.releasing.saturating_sub(1);
            physical.handles += u64::from(!back);
            if physical.handles == 0
                && physical.releasing == 0
                && self.handles.get(&handle) == Some(&id)
            {
                self.handles.remove(&handle);
            }
        }
        self.gone(id)
    }

    pub(crate) fn mapped(&mut self, pointer: u64, bytes: u64, handle: u64) {
        let Some(id) = self.handles.get(&handle).copied() else {
            return;
        };
        if let Some(physical) = self.memory.get_mut(&id) {
            physical.mappings += 1;
            self.mappings.insert(pointer, (bytes, id));
        }
    }

    /// All mappings that begin in the range are gone.
    pub(crate) fn unmapped(&mut self, pointer: u64, bytes: u64) -> Vec<Gone> {
        let range = pointer..pointer.saturating_add(bytes);
        let inside: Vec<u64> = self.mappings.range(range).map(|(at, _)| *at).collect();
        let mut gone = Vec::new();
        for at in inside {
            if let Some((_, id)) = self.mappings.remove(&at) {
                if let Some(physical) = self.memory.get_mut(&id) {
                    physical.mappings = physical.mappings.saturating_sub(1);
                }
                gone.extend(self.gone(id));
            }
        }
        gone
    }

    /// The driver gave a handle for the memory mapped at an address.
    pub(crate) fn retained(&mut self, address: u64, handle: u64) {
        let Some((start, (bytes, id))) = self.mappings.range(..=address).next_back() else {
            return;
        };
        if address - start >= *bytes {
            return;
        }
        if let Some(physical) = self.memory.get_mut(id) {
            physical.handles += 1;
            self.handles.insert(handle, *id);
        }
    }

    /// The memory that is gone after a reference to this physical memory has gone.
    pub(crate) fn gone(&mut self, id: u64) -> Vec<Gone> {
        let Some(physical) = self.memory.get(&id) else {
            return Vec::new();
        };
        if physical.handles > 0 || physical.mappings > 0 || physical.releasing > 0 {
            return Vec::new();
        }
        let lost = physical.gpu.map(|gpu| (gpu, physical.bytes));
        let exported = physical.exported;
        self.memory.remove(&id);
        match lost {
            Some(lost) if exported && self.imports > 0 => {
                self.lingering.push(lost);
                Vec::new()
            }
            Some(lost) => vec![lost],
            None => {
                self.imports = self.imports.saturating_sub(1);
                if self.imports > 0 {
                    return Vec::new();
                }
                std::mem::take(&mut self.lingering)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Virtual {
        fn released(&mut self, handle: u64) -> Vec<Gone> {
            let taken = self.take(handle);
            taken
                .map(|id| self.taken(handle, id, true))
                .unwrap_or_default()
        }
    }

    #[test]
    fn a_number_may_be_given_again_before_its_release_is_back() {
        let mut memory = Virtual::default();
        memory.created(7, 0, 100);
        let first = memory.take(7).expect("known");
        // Another thread, while the driver is still in the first one's call.
        memory.created(7, 1, 200);
        assert_eq!(memory.taken(7, first, true), [(0, 100)]);
        // If the driver refuses the release, the memory is there as before.
        let second = memory.take(7).expect("known");
        assert_eq!(memory.taken(7, second, false), []);
        // Another thread maps it before the driver has it back, and unmaps it: it stays charged that long.
        let third = memory.take(7).expect("known");
        memory.mapped(0x1000, 200, 7);
        assert_eq!(memory.taken(7, third, true), []);
        assert_eq!(memory.unmapped(0x1000, 200), [(1, 200)]);
    }

    #[test]
    fn memory_goes_with_its_last_reference() {
        let mut memory = Virtual::default();
        memory.created(7, 1, 100);
        memory.mapped(0x1000, 100, 7);
        memory.mapped(0x2000, 100, 7);
        assert_eq!(memory.released(7), [], "mapped twice");
        assert_eq!(memory.released(7), [], "unknown by now");
        assert_eq!(memory.unmapped(0x1000, 100), []);
        memory.retained(0x2050, 9);
        memory.retained(0x2064, 10);
        assert_eq!(memory.unmapped(0x2000, 100), []);
        assert_eq!(memory.released(10), [], "100 bytes in: not the mapping");
        assert_eq!(memory.released(9), [(1, 100)]);
        assert_eq!(memory.released(9), []);
    }

    #[test]
    fn a_number_used_again_means_the_new_memory() {
        let mut memory = Virtual::default();
        memory.created(7, 0, 100);
        memory.mapped(0x1000, 100, 7);
        assert_eq!(memory.released(7), []);
        memory.created(7, 0, 300);
        assert_eq!(memory.unmapped(0x1000, 4096), [(0, 100)]);
        assert_eq!(memory.released(7), [(0, 300)]);
    }

    #[test]
    fn exported_memory_stays_while_an_import_may_hold_it() {
        let mut memory = Virtual::default();
        memory.created(1, 0, 10);
        memory.created(2, 0, 20);
        memory.exported(1);
        memory.imported(9);
        memory.mapped(0x1000, 0x1000, 9);
        assert_eq!(memory.released(2), [(0, 20)], "never exported");
        assert_eq!(memory.released(1), [], "the import may be this");
        assert_eq!(memory.released(9), [], "mapped");
        assert_eq!(memory.unmapped(0x1000, 0x1000), [(0, 10)]);
        // A known handle is a further reference to the same memory.
        memory.created(3, 1, 30);
        memory.imported(3);
        assert_eq!(memory.released(3), []);
        assert_eq!(memory.released(3), [(1, 30)]);
    }

    #[test]
    fn one_call_may_unmap_several() {
        let mut memory = Virtual::default();
        memory.created(1, 0, 10);
        memory.created(2, 1, 20);
        memory.mapped(0x1000, 0x1000, 1);
        memory.mapped(0x2000, 0x1000, 2);
        memory.released(1);
        memory.released(2);
        assert_eq!(memory.unmapped(0x1000, 0x2000), [(0, 10), (1, 20)]);
    }
}

//! The GPU of each context, for a look-up at every allocation: a few words without a lock.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
};

use crate::cuda::{Device, Handle};

const MOST: usize = 64;

#[derive(Debug)]
struct Entry {
    context: AtomicUsize,
    gpu: AtomicUsize,
    overhead: AtomicU64,
    /// Unreleased retains of a primary context, at least 1; 0 for any other.
    retains: AtomicU32,
    needs: Mutex<Needs>,
}

/// Memory that the driver holds for a context, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Stack of each resident thread, by the program's limit.
    pub(crate) stack: u64,
    /// The same for the kernel that needs the most local memory: the driver grows it by itself.
    pub(crate) local: u64,
    /// Heap of `malloc` in kernels.
    pub(crate) heap: u64,
}

impl Needs {
    /// A new context's, part of its overhead (CUDA C++ guide, limits of `cudaDeviceSetLimit`).
    pub(crate) const LEAST: Self = Self {
        stack: 1 << 10,
        local: 0,
        heap: 8 << 20,
    };

    /// Bytes beyond those of a new context, with this many resident threads.
    pub(crate) fn beyond(&self, threads: u64) -> u64 {
        let stack = self.stack.max(self.local);
        let stack = stack.saturating_sub(Self::LEAST.stack);
        let heap = self.heap.saturating_sub(Self::LEAST.heap);
        stack.saturating_mul(threads).saturating_add(heap)
    }
}

/// Contexts that this process made on its claim's GPUs.
#[derive(Debug)]
pub(crate) struct Contexts {
    entries: [Entry; MOST],
    high_water: AtomicUsize,
    change: Mutex<()>,
    /// The device of each green context, which retains the device's primary one.
    greens: Mutex<HashMap<Handle, Device>>,
    /// Whether there ever was one. Few programs make any.
    has_greens: AtomicBool,
}

impl Contexts {
    pub(crate) fn new() -> Self {
        Self {
            entries: [const {
                Entry {
                    context: AtomicUsize::new(0),
                    gpu: AtomicUsize::new(0),
                    overhead: AtomicU64::new(0),
                    retains: AtomicU32::new(0),
                    needs: Mutex::new(Needs::LEAST),
                }
            }; MOST],
            high_water: AtomicUsize::new(0),
            change: Mutex::new(()),
            greens: Mutex::default(),
            has_greens: AtomicBool::new(false),
        }
    }

    fn find(&self, context: Handle) -> Option<&Entry> {
        let used = self.high_water.load(Ordering::Acquire);
        self.entries[..used]
            .iter()
            .find(|entry| entry.context.load(Ordering::Acquire) == context)
    }

    /// Index of the context's GPU in the claim.
    #[inline]
    pub(crate) fn gpu(&self, context: Handle) -> Option<usize> {
        let entry = self.find(context)?;
        Some(entry.gpu.load(Ordering::Relaxed))
    }

    /// Adds a context and its charged overhead; `false` if it is known already or the table is full: then the overhead
    /// is not noted.
    pub(crate) fn insert(&self, context: Handle, gpu: usize, overhead: u64, primary: bool) -> bool {
        let _held = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        if context == 0 || self.find(context).is_some() {
            return false;
        }
        let free = self
            .entries
            .iter()
            .enumerate()
            .find(|(_, entry)| entry.context.load(Ordering::Relaxed) == 0);
        let Some((index, entry)) = free else {
            return false;
        };
        entry.gpu.store(gpu, Ordering::Relaxed);
        entry.overhead.store(overhead, Ordering::Relaxed);
        entry.retains.store(u32::from(primary), Ordering::Relaxed);
        *entry.needs.lock().unwrap_or_else(PoisonError::into_inner) = Needs::LEAST;
        entry.context.store(context, Ordering::Release);
        self.high_water.fetch_max(index + 1, Ordering::Release);
        true
    }

    /// Memory that the driver holds for a known context.
    pub(crate) fn needs(&self, context: Handle) -> Option<MutexGuard<'_, Needs>> {
        let entry = self.find(context).filter(|_| context != 0)?;
        Some(entry.needs.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes a context's overhead.
    pub(crate) fn set_overhead(&self, context: Handle, change: impl FnOnce(u64) -> u64) {
        let _held = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = self.find(context) {
            let now = change(entry.overhead.load(Ordering::Relaxed));
            entry.overhead.store(now, Ordering::Relaxed);
        }
    }

    /// The known primary context of a GPU.
    pub(crate) fn primary(&self, gpu: usize) -> Option<Handle> {
        self.entries.iter().find_map(|entry| {
            let context = entry.context.load(Ordering::Acquire);
            let meant = context != 0
                && entry.retains.load(Ordering::Relaxed) > 0
                && entry.gpu.load(Ordering::Relaxed) == gpu;
            meant.then_some(context)
        })
    }

    /// Counts a retain of a primary context.
    pub(crate) fn retained(&self, context: Handle) {
        if let Some(entry) = self.find(context).filter(|_| context != 0) {
            entry.retains.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a release of a primary context; returns whether it may be the last. Never counts more than the driver.
    pub(crate) fn released(&self, context: Handle) -> bool {
        let one_less = |n: u32| n.checked_sub(1).filter(|left| *left > 0);
        self.find(context).is_none_or(|entry| {
            let (store, load) = (Ordering::Relaxed, Ordering::Relaxed);
            entry.retains.fetch_update(store, load, one_less).is_err()
        })
    }

    fn greens(&self) -> MutexGuard<'_, HashMap<Handle, Device>> {
        self.greens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add_green(&self, green: Handle, device: Device) {
        self.greens().insert(green, device);
        self.has_greens.store(true, Ordering::Release);
    }

    pub(crate) fn remove_green(&self, green: Handle) -> Option<Device> {
        self.greens().remove(&green)
    }

    /// Whether a device has a green context.
    pub(crate) fn has_green(&self, device: Device) -> bool {
        self.has_greens.load(Ordering::Acquire) && self.greens().values().any(|of| *of == device)
    }

    /// Removes a context; returns the GPU's index and the charged overhead.
    pub(crate) fn remove(&self, context: Handle) -> Option<(usize, u64)> {
        let _held = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = self.find(context).filter(|_| context != 0)?;
        let gpu = entry.gpu.load(Ordering::Relaxed);
        let overhead = entry.overhead.load(Ordering::Relaxed);
        entry.context.store(0, Ordering::Release);
        Some((gpu, overhead))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_are_found_until_they_are_removed() {
        let contexts = Contexts::new();
        assert!(contexts.insert(10, 1, 300, true) && contexts.insert(20, 0, 200, false));
        assert!(!contexts.insert(10, 0, 5, false), "known already");
        assert!(!contexts.insert(0, 0, 5, false), "no context");
        assert_eq!((contexts.gpu(10), contexts.gpu(20)), (Some(1), Some(0)));
        assert_eq!((contexts.primary(1), contexts.primary(0)), (Some(10), None));
        contexts.retained(10);
        assert!(!contexts.released(10) && contexts.released(10));
        assert_eq!(contexts.primary(1), Some(10), "until the driver says so");
        assert_eq!(contexts.remove(10), Some((1, 300)));
        assert_eq!(contexts.primary(1), None);
        assert_eq!((contexts.gpu(10), contexts.remove(10)), (None, None));
        assert!(contexts.insert(30, 1, 7, false));
        assert_eq!(contexts.remove(0), None);
        for context in 100..162 {
            assert!(contexts.insert(context, 0, 0, false), "{context}");
        }
        assert!(!contexts.insert(500, 0, 0, false), "full");
        assert_eq!(contexts.gpu(30), Some(1));
    }
}

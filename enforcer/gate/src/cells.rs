//! GPU time granted in advance to single streams, so that most launches need not ask.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Word, durations::spread};

const CELLS: usize = 128;

#[derive(Debug)]
#[repr(align(64))]
struct Cell {
    /// Decision, stream and thread of the grant.
    tag: AtomicU64,
    left_ns: AtomicU64,
}

/// Grants by stream and thread; each thread writes its own, so plain loads and stores suffice.
#[derive(Debug)]
pub struct Cells {
    cells: [Cell; CELLS],
}

impl Default for Cells {
    fn default() -> Self {
        Self {
            cells: [const {
                Cell {
                    tag: AtomicU64::new(0),
                    left_ns: AtomicU64::new(0),
                }
            }; CELLS],
        }
    }
}

impl Cells {
    #[inline]
    fn find(&self, word: Word, stream: usize, thread: usize) -> (&Cell, u64) {
        let place = spread((stream as u64).wrapping_add((thread as u64).rotate_left(32)));
        let tag = place.wrapping_add(u64::from(word.0) << 32) | 1;
        (&self.cells[place as usize % CELLS], tag)
    }

    /// Takes a launch's time from its stream's grant under this decision. `false`: ask the gate.
    #[inline]
    pub fn spend(&self, word: Word, stream: usize, thread: usize, ns: u64) -> bool {
        let (cell, tag) = self.find(word, stream, thread);
        if cell.tag.load(Ordering::Relaxed) != tag {
            return false;
        }
        let left = cell.left_ns.load(Ordering::Relaxed);
        if left < ns {
            return false;
        }
        cell.left_ns.store(left - ns, Ordering::Relaxed);
        true
    }

    /// Takes back the rest of a grant, in nanoseconds, and that of another stream in the same cell.
    pub fn take(&self, word: Word, stream: usize, thread: usize) -> u64 {
        let (cell, _) = self.find(word, stream, thread);
        cell.tag.store(0, Ordering::Relaxed);
        cell.left_ns.swap(0, Ordering::Relaxed)
    }

    /// Grants time to a stream.
    pub fn grant(&self, word: Word, stream: usize, thread: usize, ns: u64) {
        let (cell, tag) = self.find(word, stream, thread);
        cell.left_ns.store(ns, Ordering::Relaxed);
        cell.tag.store(tag, Ordering::Relaxed);
    }

    /// Takes back all grants when a new decision ends them; returns the unused nanoseconds.
    pub fn clear(&self) -> u64 {
        let taken = self.cells.iter().map(|cell| {
            cell.tag.store(0, Ordering::Relaxed);
            cell.left_ns.swap(0, Ordering::Relaxed)
        });
        taken.sum()
    }

    /// Sum of unused grants, in nanoseconds.
    pub fn unused_ns(&self) -> u64 {
        self.cells
            .iter()
            .map(|cell| cell.left_ns.load(Ordering::Relaxed))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mode;

    #[test]
    fn a_grant_is_for_one_decision_stream_and_thread() {
        let cells = Cells::default();
        let turn = Word::default().next(Mode::Turn);
        cells.grant(turn, 7, 1, 100);
        assert!(!cells.spend(turn, 8, 1, 10) && !cells.spend(turn, 7, 2, 10));
        assert!(
            !cells.spend(turn.next(Mode::Turn), 7, 1, 10),
            "another turn"
        );
        assert!(cells.spend(turn, 7, 1, 60));
        assert!(!cells.spend(turn, 7, 1, 60), "not enough left");
        assert_eq!(cells.unused_ns(), 40);
        assert_eq!(cells.take(turn, 7, 1), 40);
        assert!(!cells.spend(turn, 7, 1, 10));
        assert_eq!(cells.unused_ns(), 0);
    }
}

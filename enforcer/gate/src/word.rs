//! The arbiter's words to the processes of a claim on a GPU.

use std::fmt;

/// Which claims may launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Mode {
    /// The GPU is not shared: nothing is measured or held back.
    Free = 0,
    /// Others share it and are idle: launches go through, a bounded way ahead of the GPU.
    Open = 1,
    /// Others want it; it is this claim's turn, or will be at a time that is known.
    Turn = 2,
    /// Another claim's turn: ask.
    Closed = 3,
}

/// Bits of a [`Word`] that change within an era.
const ERA: u32 = 0x3ff;

/// A mode and a number that changes with every decision; fits a futex. Zero is [`Mode::Free`].
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Word(pub u32);

impl Word {
    /// The mode.
    #[inline]
    pub fn mode(self) -> Mode {
        match self.0 & 3 {
            0 => Mode::Free,
            1 => Mode::Open,
            2 => Mode::Turn,
            _ => Mode::Closed,
        }
    }

    /// The next decision. [`Mode::Free`] begins a new era.
    #[must_use]
    pub fn next(self, mode: Mode) -> Word {
        let last = match mode {
            Mode::Free => self.0 | ERA,
            _ => self.0,
        };
        Word((last & !3).wrapping_add(4) | mode as u32)
    }

    /// Whether the GPU was shared from an earlier decision to this one; `false` if unsure.
    #[must_use]
    pub fn is_shared_since(self, earlier: Word) -> bool {
        earlier.mode() != Mode::Free && self.mode() != Mode::Free && (self.0 ^ earlier.0) <= ERA
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}#{}", self.mode(), self.0 >> 2)
    }
}

/// Further conditions of a mode; bits of one word of the claim's page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(pub u32);

impl Flags {
    /// No condition.
    pub const NONE: Flags = Flags(0);
    /// Others may have work on the GPU at the same time, so durations measured there are not those of a launch alone.
    pub const CROWD: Flags = Flags(1);
    /// The arbiter wants to be told when work begins and ends.
    pub const RINGS: Flags = Flags(2);
    /// A light claim is due when the turn ends.
    pub const DUE: Flags = Flags(4);
    /// With [`Flags::RINGS`]: only for work that lasts longer than others may have queued.
    pub const LONG: Flags = Flags(8);
    /// With [`Flags::RINGS`]: at once for work that will last longer than reported, because the arbiter does not look at
    /// its end.
    pub const LATER: Flags = Flags(16);
    /// With [`Flags::RINGS`]: also when work ends as it was reported, because the arbiter does not look then.
    pub const ENDS: Flags = Flags(32);
    /// In a turn: what may be queued goes together once all work before it is seen to be over, so that others' work gets
    /// between. With [`Flags::RINGS`]: its own does, and the arbiter's beat shows that it lives, not an answer to a ring.
    pub const SPACED: Flags = Flags(64);

    /// Both conditions.
    #[must_use]
    pub const fn and(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// Whether all of `other` is set.
    #[must_use]
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A claim's fixed window in every [`Frame::LENGTH_NS`] of the clock. It counts while the arbiter is silent: the
/// windows of a GPU's claims do not overlap, so each has its request without asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Frame {
    /// Start of the window.
    pub offset_ns: u64,
    /// Length of the window; 0 for none.
    pub window_ns: u64,
}

impl Frame {
    /// Length of the frame that repeats.
    pub const LENGTH_NS: u64 = 20_000_000;

    /// End of the window that contains `now`.
    pub(crate) fn end_if_inside(self, now: u64) -> Option<u64> {
        let at = now % Self::LENGTH_NS;
        let end = self.offset_ns.saturating_add(self.window_ns);
        (self.offset_ns <= at && at < end).then(|| now - at + end)
    }

    /// Start of the first window after `now`.
    pub(crate) fn next_start(self, now: u64) -> u64 {
        let start = now - now % Self::LENGTH_NS + self.offset_ns;
        if start > now {
            start
        } else {
            start + Self::LENGTH_NS
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_change_with_every_decision() {
        let free = Word::default();
        assert_eq!(free.mode(), Mode::Free);
        let mut word = free;
        for mode in [Mode::Turn, Mode::Turn, Mode::Closed, Mode::Open, Mode::Free] {
            let next = word.next(mode);
            assert_ne!(next, word);
            assert_eq!(next.mode(), mode);
            let is_shared = word != free && mode != Mode::Free;
            assert_eq!(next.is_shared_since(word), is_shared);
            word = next;
        }
        let turn = Word::default().next(Mode::Turn);
        let again = turn.next(Mode::Free).next(Mode::Turn);
        assert!(!again.is_shared_since(turn));
        assert_eq!(Word(u32::MAX).next(Mode::Turn), Word(2), "it wraps");
    }

    #[test]
    fn places_in_the_frame() {
        let frame = Frame {
            offset_ns: 6_000_000,
            window_ns: 4_000_000,
        };
        let base = 7 * Frame::LENGTH_NS;
        for (at, inside, next) in [
            (0, None, 6),
            (6, Some(10), 26),
            (9, Some(10), 26),
            (10, None, 26),
        ] {
            let (now, ms) = (base + at * 1_000_000, |n: u64| base + n * 1_000_000);
            assert_eq!(frame.end_if_inside(now), inside.map(ms), "{at}");
            assert_eq!(frame.next_start(now), ms(next), "{at}");
        }
        assert_eq!(Frame::default().end_if_inside(base), None);
    }
}

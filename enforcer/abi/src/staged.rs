//! Values that staging writes into a finished shared object, behind marks that it searches for.

/// Room behind each mark in bytes.
const ROOM: usize = 256;

/// A static of a proxy (`#[used]`) that staging fills.
#[repr(C)]
pub struct Staged<const MARK: usize> {
    mark: [u8; MARK],
    text: [u8; ROOM],
}

impl<const MARK: usize> Staged<MARK> {
    /// Empty, behind `mark`.
    #[must_use]
    pub const fn new(mark: [u8; MARK]) -> Self {
        Self {
            mark,
            text: [0; ROOM],
        }
    }

    /// What staging wrote; empty if the file was not staged.
    pub fn read(&'static self) -> &'static str {
        // Otherwise the compiler may conclude from the initial value that the text is empty.
        let place = std::hint::black_box(self);
        // SAFETY: the reference is valid for the whole structure.
        let text = unsafe { std::ptr::read_volatile(&raw const place.text) };
        let end = text.iter().position(|&byte| byte == 0).unwrap_or(ROOM);
        str::from_utf8(&place.text[..end]).unwrap_or_default()
    }
}

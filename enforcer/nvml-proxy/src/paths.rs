//! The two paths that staging writes into the finished file.

/// Room behind each mark in bytes.
const ROOM: usize = 256;

#[repr(C)]
struct Place<const MARK: usize> {
    mark: [u8; MARK],
    text: [u8; ROOM],
}

#[used]
static REAL: Place<27> = Place {
    mark: *b"\x01gshare:real-libcuda-path:\x01",
    text: [0; ROOM],
};

#[used]
static SOCKET: Place<29> = Place {
    mark: *b"\x01gshare:service-socket-path:\x01",
    text: [0; ROOM],
};

impl<const MARK: usize> Place<MARK> {
    fn read(&'static self) -> &'static str {
        // Otherwise the compiler may conclude from the initial value that the text is empty.
        let place = std::hint::black_box(self);
        // SAFETY: the reference is valid for the whole structure.
        let text = unsafe { std::ptr::read_volatile(&raw const place.text) };
        let end = text.iter().position(|&byte| byte == 0).unwrap_or(ROOM);
        str::from_utf8(&place.text[..end]).unwrap_or_default()
    }
}

/// Absolute path of the driver's own libnvidia-ml; empty if the file was not staged.
pub(crate) fn real() -> &'static str {
    REAL.read()
}

/// Path of the service's socket; empty if the file was not staged.
pub(crate) fn socket() -> &'static str {
    SOCKET.read()
}

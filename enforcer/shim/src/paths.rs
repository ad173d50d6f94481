//! The values that staging writes into the finished file: two paths, and the mode.

use gshare_abi::Staged;

#[used]
static REAL: Staged<27> = Staged::new(*b"\x01gshare:real-libcuda-path:\x01");

#[used]
static SOCKET: Staged<29> = Staged::new(*b"\x01gshare:service-socket-path:\x01");

#[used]
static MODE: Staged<19> = Staged::new(*b"\x01gshare:shim-mode:\x01");

/// Absolute path of the driver's own libcuda; empty if the file was not staged.
pub(crate) fn real() -> &'static str {
    REAL.read()
}

/// Path of the service's socket; empty if the file was not staged.
pub(crate) fn socket() -> &'static str {
    SOCKET.read()
}

/// Whether a process that cannot register is refused the driver: a launcher that admits only members put the library
/// before it.
pub(crate) fn strict() -> bool {
    MODE.read() == "strict"
}

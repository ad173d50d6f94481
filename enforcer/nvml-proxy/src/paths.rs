//! The two paths that staging writes into the finished file.

use gshare_abi::Staged;

#[used]
static REAL: Staged<27> = Staged::new(*b"\x01gshare:real-libcuda-path:\x01");

#[used]
static SOCKET: Staged<29> = Staged::new(*b"\x01gshare:service-socket-path:\x01");

/// Absolute path of the driver's own libnvidia-ml; empty if the file was not staged.
pub(crate) fn real() -> &'static str {
    REAL.read()
}

/// Path of the service's socket; empty if the file was not staged.
pub(crate) fn socket() -> &'static str {
    SOCKET.read()
}

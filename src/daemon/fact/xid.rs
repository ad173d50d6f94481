//! What the kernel's log says of a GPU.

/// A PCI device: domain, bus, device.
pub(crate) type Pci = (u32, u8, u8);

/// An Xid as the kernel's log has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KernelXid {
    /// The GPU.
    pub(crate) pci: Pci,
    /// Number.
    pub(crate) code: u64,
    /// The process that it names.
    pub(crate) pid: Option<u32>,
}

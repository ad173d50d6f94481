//! Errors of GPUs in the kernel's log.

/// A PCI device: domain, bus, device.
pub(crate) type Pci = (u32, u8, u8);

/// An Xid from the kernel's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KernelXid {
    pub(crate) pci: Pci,
    pub(crate) code: u64,
    /// The process that it names.
    pub(crate) pid: Option<u32>,
}

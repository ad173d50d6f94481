//! Device memory as the interpreter sees it: bytes at 64-bit addresses, kept by the caller.

use crate::error::MemFault;

/// The memory behind the global addresses of a launch.
///
/// Addresses below 2^56 belong to this trait; the interpreter keeps shared and local memory itself
/// and maps them into the generic address space above that. All values are little-endian.
pub trait DeviceMemory {
    /// Fills `buf` from the bytes at `addr`.
    ///
    /// # Errors
    /// A fault if any byte of the range is not mapped.
    fn load(&mut self, addr: u64, buf: &mut [u8]) -> Result<(), MemFault>;

    /// Writes `data` to the bytes at `addr`.
    ///
    /// # Errors
    /// A fault if any byte of the range is not mapped or may not be written.
    fn store(&mut self, addr: u64, data: &[u8]) -> Result<(), MemFault>;

    /// Loads 4 bytes; implementors with a faster way override it.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    fn load32(&mut self, addr: u64) -> Result<u32, MemFault> {
        let mut buf = [0; 4];
        self.load(addr, &mut buf)?;
        Ok(u32::from_le_bytes(buf))
    }

    /// Loads 8 bytes; implementors with a faster way override it.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    fn load64(&mut self, addr: u64) -> Result<u64, MemFault> {
        let mut buf = [0; 8];
        self.load(addr, &mut buf)?;
        Ok(u64::from_le_bytes(buf))
    }

    /// Stores 4 bytes; implementors with a faster way override it.
    ///
    /// # Errors
    /// As [`store`](Self::store).
    fn store32(&mut self, addr: u64, value: u32) -> Result<(), MemFault> {
        self.store(addr, &value.to_le_bytes())
    }

    /// Stores 8 bytes; implementors with a faster way override it.
    ///
    /// # Errors
    /// As [`store`](Self::store).
    fn store64(&mut self, addr: u64, value: u64) -> Result<(), MemFault> {
        self.store(addr, &value.to_le_bytes())
    }

    /// Reads `size` (1, 2, 4 or 8) bytes, replaces them by what `update` makes of them, and returns
    /// the old value. Memory shared between processes overrides it with a real atomic update.
    ///
    /// # Errors
    /// As [`store`](Self::store).
    fn update(
        &mut self,
        addr: u64,
        size: u32,
        update: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, MemFault> {
        let size = size as usize;
        let mut buf = [0; 8];
        self.load(addr, &mut buf[..size])?;
        let old = u64::from_le_bytes(buf);
        self.store(addr, &update(old).to_le_bytes()[..size])?;
        Ok(old)
    }
}

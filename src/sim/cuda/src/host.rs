//! Host memory that the device can reach: allocated by the driver, or registered by the program.

use crate::code::{
    HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED, INVALID_VALUE, OUT_OF_MEMORY, R,
};
use crate::driver::{Driver, Tables};
use crate::ffi::{Out, export};
use crate::memory::{Kind, PAGE, map_anonymous};

impl Driver {
    fn host_alloc(&self, size: usize, flags: u32) -> R<u64> {
        self.unsafe_call()?;
        let mut t = self.tables();
        let context = self.current(&t)?;
        // Portable, device map, write-combined.
        if size == 0 || flags & !7 != 0 {
            return Err(INVALID_VALUE);
        }
        let device = t.context(context)?.device;
        let len = (size as u64)
            .checked_next_multiple_of(PAGE)
            .ok_or(OUT_OF_MEMORY)?;
        let addr = map_anonymous(len, libc::PROT_READ | libc::PROT_WRITE)?;
        t.memory.map(addr, len);
        let kind = Kind::Host(flags);
        t.memory.add(addr, size as u64, device, context, kind);
        Ok(addr)
    }

    pub(crate) fn host_free(&self, t: &mut Tables, addr: u64) -> R {
        match t.memory.allocs.get(&addr).map(|a| (a.kind, a.size)) {
            Some((Kind::Host(_), size)) => {
                t.memory.allocs.remove(&addr);
                t.memory.unmap(addr);
                self.unmap_gated(addr, size.next_multiple_of(PAGE));
                Ok(())
            }
            _ => Err(INVALID_VALUE),
        }
    }
}

export! {
    cuMemAllocHost_v2(out: Out<u64>, size: usize) |d| {
        out.check()?;
        out.set(d.host_alloc(size, 0)?)
    };
    cuMemHostAlloc(out: Out<u64>, size: usize, flags: u32) |d| {
        out.check()?;
        out.set(d.host_alloc(size, flags)?)
    };
    cuMemFreeHost(addr: u64) |d| {
        d.unsafe_call()?;
        let tickets = {
            let t = d.tables();
            d.current(&t)?;
            let a = t.memory.allocs.get(&addr).ok_or(INVALID_VALUE)?;
            t.live_of(a.context)
        };
        d.wait_all(&tickets);
        d.host_free(&mut d.tables(), addr)
    };
    cuMemHostRegister_v2(addr: u64, size: usize, flags: u32) |d| {
        d.unsafe_call()?;
        let mut t = d.tables();
        let context = d.current(&t)?;
        if addr == 0 || size == 0 || flags & !15 != 0 {
            return Err(INVALID_VALUE);
        }
        if t.memory.find(addr).is_some() {
            return Err(HOST_MEMORY_ALREADY_REGISTERED);
        }
        let device = t.context(context)?.device;
        t.memory.map(addr, size as u64);
        t.memory.add(addr, size as u64, device, context, Kind::Registered(flags));
        Ok(())
    };
    cuMemHostUnregister(addr: u64) |d| {
        d.unsafe_call()?;
        let mut t = d.tables();
        d.current(&t)?;
        match t.memory.allocs.get(&addr).map(|a| a.kind) {
            Some(Kind::Registered(_)) => {
                t.memory.allocs.remove(&addr);
                t.memory.unmap(addr);
                Ok(())
            }
            _ => Err(HOST_MEMORY_NOT_REGISTERED),
        }
    };
    cuMemHostGetDevicePointer_v2(out: Out<u64>, addr: u64, flags: u32) |d| {
        out.check()?;
        let t = d.tables();
        d.current(&t)?;
        match t.memory.find(addr) {
            Some((_, a)) if flags == 0
                && matches!(a.kind, Kind::Host(_) | Kind::Registered(_)) => out.set(addr),
            _ => Err(INVALID_VALUE),
        }
    };
    cuMemHostGetFlags(out: Out<u32>, addr: u64) |d| {
        out.check()?;
        let t = d.tables();
        d.current(&t)?;
        match t.memory.find(addr).map(|(_, a)| a.kind) {
            Some(Kind::Host(flags) | Kind::Registered(flags)) => out.set(flags),
            _ => Err(INVALID_VALUE),
        }
    };
}

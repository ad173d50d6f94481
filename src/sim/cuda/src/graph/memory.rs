//! Memory of graph nodes. The address is fixed when the node is made, the memory is taken at launch, and freed memory
//! stays with the device until the program trims it.

use std::collections::HashMap;
use std::sync::Arc;

use gshare_sim_board::{GRANULARITY, MemoryKind};

use crate::code::{INVALID_VALUE, OUT_OF_MEMORY, R};
use crate::driver::{self, Driver, Tables, code_of};
use crate::ffi::{Out, export};
use crate::memory::{Kind, map_anonymous, unmap};
use crate::op::Op;

/// The addresses of one allocation node.
#[derive(Debug)]
pub(crate) struct GraphVa {
    pub addr: u64,
    len: u64,
    pub size: u64,
    pub device: usize,
}

impl GraphVa {
    pub(crate) fn new(device: usize, size: u64) -> R<GraphVa> {
        let len = size
            .checked_next_multiple_of(GRANULARITY)
            .ok_or(OUT_OF_MEMORY)?;
        let addr = map_anonymous(len, libc::PROT_READ | libc::PROT_WRITE)?;
        Ok(GraphVa {
            addr,
            len,
            size,
            device,
        })
    }
}

impl Drop for GraphVa {
    fn drop(&mut self) {
        match driver::get() {
            Ok(d) => d.unmap_gated(self.addr, self.len),
            Err(_) => unmap(self.addr, self.len),
        }
    }
}

/// Graph memory on one device.
#[derive(Debug, Default)]
pub(crate) struct GraphMemory {
    used: u64,
    used_high: u64,
    reserved: u64,
    reserved_high: u64,
    live: HashMap<u64, Arc<GraphVa>>,
}

impl GraphVa {
    fn covers(&self, addr: u64, len: u64) -> bool {
        addr >= self.addr && len <= self.len && addr - self.addr <= self.len - len
    }
}

impl Tables {
    /// Whether a range is in memory that the device can access, or, for graph nodes, can access when the graph runs.
    pub(crate) fn reaches(&self, addr: u64, len: u64, in_graph: bool) -> bool {
        self.memory.covers(addr, len)
            || in_graph
                && self.graphs.nodes.values().any(|n| match &n.op {
                    Op::Alloc(va) => va.covers(addr, len),
                    _ => false,
                })
    }

    /// Addresses and lengths of live graph memory.
    pub(crate) fn graph_memory(&self) -> Vec<(u64, u64)> {
        let all = self.graphs.memory.values();
        let live = all.flat_map(|m| m.live.values());
        live.map(|va| (va.addr, va.len)).collect()
    }

    /// Whether an allocation node made this address.
    pub(crate) fn is_graph_memory(&self, addr: u64) -> bool {
        let live = |m: &GraphMemory| m.live.contains_key(&addr);
        self.graphs.memory.values().any(live)
            || self.graphs.nodes.values().any(|n| match &n.op {
                Op::Alloc(va) => va.addr == addr,
                _ => false,
            })
    }
}

impl Driver {
    pub(super) fn graph_alloc(&self, t: &mut Tables, va: &Arc<GraphVa>, context: u64) -> R {
        if t.memory.allocs.contains_key(&va.addr) {
            return Err(INVALID_VALUE);
        }
        let gpu = self.devices[va.device].gpu;
        let m = t.graphs.memory.entry(va.device).or_default();
        let used = m.used + va.len;
        if used > m.reserved {
            self.board
                .alloc(self.slot, gpu, MemoryKind::Pool, used - m.reserved)
                .map_err(|e| code_of(&e))?;
            m.reserved = used;
            m.reserved_high = m.reserved_high.max(used);
        }
        m.used = used;
        m.used_high = m.used_high.max(used);
        m.live.insert(va.addr, Arc::clone(va));
        t.memory.map(va.addr, va.len);
        t.memory
            .add(va.addr, va.size, va.device, context, Kind::Graph);
        Ok(())
    }

    /// Frees the memory of [`Driver::graph_alloc`].
    pub(crate) fn graph_free(&self, t: &mut Tables, addr: u64, device: usize) {
        t.memory.allocs.remove(&addr);
        t.memory.unmap(addr);
        let m = t.graphs.memory.entry(device).or_default();
        if let Some(va) = m.live.remove(&addr) {
            m.used = m.used.saturating_sub(va.len);
        }
    }

    fn trim_graph_memory(&self, t: &mut Tables, device: usize) {
        let gpu = self.devices[device].gpu;
        let m = t.graphs.memory.entry(device).or_default();
        let spare = m.reserved.saturating_sub(m.used);
        m.reserved -= spare;
        if spare > 0 {
            let _ = self.board.free(self.slot, gpu, MemoryKind::Pool, spare);
        }
    }
}

export! {
    cuDeviceGraphMemTrim(device: i32) |d| {
        d.device(device)?;
        d.trim_graph_memory(&mut d.tables(), device as usize);
        Ok(())
    };
    cuDeviceGetGraphMemAttribute(device: i32, which: u32, out: Out<u64>) |d| {
        d.device(device)?;
        out.check()?;
        let mut t = d.tables();
        let m = t.graphs.memory.entry(device as usize).or_default();
        out.set(match which {
            0 => m.used,
            1 => m.used_high,
            2 => m.reserved,
            3 => m.reserved_high,
            _ => return Err(INVALID_VALUE),
        })
    };
}

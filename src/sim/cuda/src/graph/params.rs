//! The parameters of nodes as C programs pass them.

use std::sync::Arc;

use super::memory::GraphVa;
use crate::callback::{Host, HostFn};
use crate::code::{INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, R};
use crate::copy::{Copy3D, Fill};
use crate::driver::Driver;
use crate::ffi::{In, Out};
use crate::launch::{Kernel, Launch};
use crate::op::Op;
use crate::pool::{Location, ON_DEVICE};

/// `CUDA_KERNEL_NODE_PARAMS`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct KernelParams {
    pub func: u64,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub params: In<u64>,
    pub extra: In<u64>,
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct KernelParams2 {
    pub first: KernelParams,
    pub kern: u64,
    pub ctx: u64,
}

/// `CUDA_HOST_NODE_PARAMS`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct HostParams {
    pub f: Option<HostFn>,
    pub data: u64,
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct AllocParams {
    alloc_type: u32,
    handle_types: u32,
    location: Location,
    win32: u64,
    max_size: usize,
    usage: u16,
    reserved: [u8; 54],
    access: u64,
    access_count: usize,
    size: usize,
    addr: u64,
}

/// `CUgraphNodeParams`; the part after the head depends on the type.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct NodeParams {
    pub kind: u32,
    reserved: [u32; 3],
    union: [u64; 29],
    tail: u64,
}

/// Offset of the union in [`NodeParams`].
const UNION: u64 = 16;

impl AllocParams {
    /// The same parameters with the node's address.
    pub(super) fn at(self, addr: u64) -> AllocParams {
        AllocParams { addr, ..self }
    }
}

const _: () = assert!(size_of::<KernelParams>() == 56);
const _: () = assert!(size_of::<KernelParams2>() == 72);
const _: () = assert!(size_of::<AllocParams>() == 120);
const _: () = assert!(size_of::<NodeParams>() == 256);

impl Driver {
    pub(super) fn kernel_op(&self, p: &KernelParams2) -> R<Op> {
        let given = match (p.first.func, p.kern) {
            (0, 0) => return Err(INVALID_VALUE),
            (0, kern) => kern,
            (func, _) => func,
        };
        let context = {
            let mut t = self.tables();
            let handle = self.function_handle(&mut t, given)?;
            t.functions.get(&handle).ok_or(INVALID_HANDLE)?.context
        };
        let kernel = self.prepare(
            &Launch {
                function: given,
                grid: p.first.grid,
                block: p.first.block,
                shared: p.first.shared,
                stream: 0,
                cooperative: false,
                params: p.first.params,
                extra: p.first.extra,
            },
            context,
        )?;
        Ok(Op::Kernel(kernel))
    }

    pub(super) fn copy_op(&self, c: Copy3D) -> R<Op> {
        self.check_copy(&c, true)?;
        Ok(Op::Copy(c, None))
    }

    pub(super) fn fill_op(&self, f: Fill) -> R<Op> {
        if f.width == 0 || f.height == 0 {
            return Err(INVALID_VALUE);
        }
        self.check_fill(&f, true)?;
        Ok(Op::Fill(f))
    }

    pub(super) fn event_op(&self, event: u64, record: bool) -> R<Op> {
        if !self.tables().events.contains_key(&event) {
            return Err(INVALID_HANDLE);
        }
        Ok(if record {
            Op::Record(event)
        } else {
            Op::Wait(event)
        })
    }

    pub(super) fn free_op(&self, addr: u64) -> R<Op> {
        if !self.tables().is_graph_memory(addr) {
            return Err(INVALID_VALUE);
        }
        Ok(Op::Free(addr))
    }

    pub(super) fn alloc_op(&self, p: &AllocParams) -> R<Op> {
        if p.alloc_type != 1 || p.size == 0 {
            return Err(INVALID_VALUE);
        }
        if p.location.kind != ON_DEVICE || p.handle_types != 0 {
            return Err(NOT_SUPPORTED);
        }
        self.device(p.location.id)?;
        let va = GraphVa::new(p.location.id as usize, p.size as u64)?;
        Ok(Op::Alloc(Arc::new(va)))
    }

    /// The operation of a node's parameters of any type.
    pub(super) fn any_op(&self, params: Out<NodeParams>) -> R<Op> {
        let kind = In::<u32>::from_addr(params.addr()).get()?;
        let at = params.addr() + UNION;
        match kind {
            0 => self.kernel_op(&In::from_addr(at).get()?),
            // Flags and context precede the copy.
            1 => self.copy_op(In::from_addr(at + 16).get()?),
            2 => self.fill_op(In::from_addr(at).get()?),
            3 => host_op(&In::from_addr(at).get()?),
            4 => {
                let graph = In::<u64>::from_addr(at).get()?;
                self.child_op(graph)
            }
            5 => Ok(Op::Empty),
            6 => self.event_op(In::from_addr(at).get()?, false),
            7 => self.event_op(In::from_addr(at).get()?, true),
            10 => {
                let op = self.alloc_op(&In::from_addr(at).get()?)?;
                if let Op::Alloc(va) = &op {
                    let place = at + std::mem::offset_of!(AllocParams, addr) as u64;
                    Out::<u64>::from_addr(place).set(va.addr)?;
                }
                Ok(op)
            }
            11 => self.free_op(In::from_addr(at).get()?),
            8 | 9 | 12 | 13 => Err(NOT_SUPPORTED),
            _ => Err(INVALID_VALUE),
        }
    }

    /// A copy of a graph for use inside a node.
    pub(super) fn child_op(&self, graph: u64) -> R<Op> {
        let mut t = self.tables();
        t.graph(graph)?;
        if t.has_memory(graph) {
            return Err(NOT_SUPPORTED);
        }
        let inner = t.clone_graph(graph)?;
        if let Some(g) = t.graphs.graphs.get_mut(&inner) {
            g.is_child = true;
        }
        Ok(Op::Child(inner))
    }
}

pub(super) fn host_op(p: &HostParams) -> R<Op> {
    let f = p.f.ok_or(INVALID_VALUE)?;
    Ok(Op::Host(Host::Function { f, data: p.data }))
}

impl Kernel {
    /// The parameters as the driver returns them; the pointers are to the node's own values.
    pub(super) fn node_params(&self) -> KernelParams2 {
        KernelParams2 {
            first: KernelParams {
                func: self.function,
                grid: self.grid,
                block: self.block,
                shared: self.shared,
                params: In::from_addr(self.params.pointers.as_ptr() as u64),
                extra: In::NULL,
            },
            kern: if self.given == self.function {
                0
            } else {
                self.given
            },
            ctx: self.context,
        }
    }
}

impl GraphVa {
    pub(super) fn node_params(&self) -> AllocParams {
        AllocParams {
            alloc_type: 1,
            handle_types: 0,
            location: Location {
                kind: ON_DEVICE,
                id: self.device as i32,
            },
            win32: 0,
            max_size: 0,
            usage: 0,
            reserved: [0; 54],
            access: 0,
            access_count: 0,
            size: self.size as usize,
            addr: self.addr,
        }
    }
}

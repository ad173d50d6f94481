//! Arrays and mipmapped arrays: device memory with a layout of its own, accessible by copies only.

use crate::code::{INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, R};
use crate::driver::{Driver, Tables};
use crate::ffi::{In, Out, export};
use crate::memory::Kind;

/// Alignment of an array's rows in bytes.
const PITCH: usize = 32;

/// `CUDA_ARRAY_DESCRIPTOR`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Descriptor {
    width: usize,
    height: usize,
    format: u32,
    channels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Descriptor3D {
    width: usize,
    height: usize,
    depth: usize,
    format: u32,
    channels: u32,
    flags: u32,
}

const _: () = assert!(size_of::<Descriptor>() == 24);
const _: () = assert!(size_of::<Descriptor3D>() == 40);

const LAYERED: u32 = 1;
const CUBEMAP: u32 = 4;
/// Layered, surface load and store, cube map, texture gather, depth texture, colour attachment.
const FLAGS: u32 = 0x3f;

#[derive(Debug)]
pub(crate) struct Array {
    context: u64,
    shape: Descriptor3D,
    pub addr: u64,
    /// It is a level of a mipmapped array, which owns the memory.
    is_level: bool,
}

#[derive(Debug)]
pub(crate) struct Mipmap {
    context: u64,
    addr: u64,
    levels: Vec<u64>,
}

impl Descriptor3D {
    /// Bytes per element.
    fn element(&self) -> R<usize> {
        let channel = match self.format {
            0x01 | 0x08 => 1,
            0x02 | 0x09 | 0x10 => 2,
            0x03 | 0x0a | 0x20 => 4,
            // Formats of video and compressed textures.
            0x50..=0x5e | 0x91..=0xb6 | 0xc0..=0xcb => return Err(NOT_SUPPORTED),
            _ => return Err(INVALID_VALUE),
        };
        match self.channels {
            1 | 2 | 4 => Ok(channel * self.channels as usize),
            _ => Err(INVALID_VALUE),
        }
    }

    fn check(&self) -> R {
        self.element()?;
        let layered = self.flags & LAYERED != 0;
        let cube = self.flags & CUBEMAP != 0;
        let most = if layered { 2048 } else { 16_384 };
        let ok = self.width > 0
            && self.width <= 131_072
            && self.height <= 131_072
            && self.depth <= most
            && self.flags & !FLAGS == 0
            // A slice needs rows, unless it is a layer; an array of layers needs a layer count.
            && (self.depth == 0 || self.height > 0 || layered)
            && (!layered || self.depth > 0)
            && (!cube || (self.width == self.height && self.depth.is_multiple_of(6)));
        if ok { Ok(()) } else { Err(INVALID_VALUE) }
    }

    fn pitch(&self) -> usize {
        (self.width * self.element().unwrap_or(0)).next_multiple_of(PITCH)
    }

    fn bytes(&self) -> R<usize> {
        let rows = self.height.max(1).checked_mul(self.depth.max(1));
        let size = rows.and_then(|r| r.checked_mul(self.pitch()));
        size.ok_or(OUT_OF_MEMORY)
    }

    fn level(&self, n: u32) -> Descriptor3D {
        let shrink = |v: usize| if v == 0 { 0 } else { (v >> n).max(1) };
        let layered = self.flags & (LAYERED | CUBEMAP) != 0;
        Descriptor3D {
            width: shrink(self.width),
            height: shrink(self.height),
            depth: if layered {
                self.depth
            } else {
                shrink(self.depth)
            },
            ..*self
        }
    }
}

impl Array {
    pub(crate) fn row_bytes(&self) -> usize {
        self.shape.width * self.shape.element().unwrap_or(0)
    }

    pub(crate) fn rows(&self) -> usize {
        self.shape.height.max(1)
    }

    pub(crate) fn slices(&self) -> usize {
        self.shape.depth.max(1)
    }

    pub(crate) fn pitch(&self) -> usize {
        self.shape.pitch()
    }
}

impl Tables {
    /// Forgets the arrays of a context. Their memory is freed with the context's.
    pub(crate) fn forget_arrays(&mut self, context: u64) {
        self.arrays.retain(|_, a| a.context != context);
        self.mipmaps.retain(|_, m| m.context != context);
    }
}

impl Driver {
    fn create_array(&self, out: Out<u64>, shape: Descriptor3D) -> R {
        out.check()?;
        self.unsafe_call()?;
        let mut t = self.tables();
        let context = self.current(&t)?;
        shape.check()?;
        let addr = self.owned_alloc(&mut t, context, shape.bytes()? as u64, Kind::Array)?;
        let handle = t.handle();
        let array = Array {
            context,
            shape,
            addr,
            is_level: false,
        };
        t.arrays.insert(handle, array);
        out.set(handle)
    }
}

export! {
    cuArrayCreate_v2(out: Out<u64>, descriptor: In<Descriptor>) |d| {
        let a = descriptor.get()?;
        d.create_array(out, Descriptor3D {
            width: a.width,
            height: a.height,
            depth: 0,
            format: a.format,
            channels: a.channels,
            flags: 0,
        })
    };
    cuArray3DCreate_v2(out: Out<u64>, descriptor: In<Descriptor3D>) |d| {
        d.create_array(out, descriptor.get()?)
    };
    cuArrayGetDescriptor_v2(out: Out<Descriptor>, array: u64) |d| {
        let t = d.tables();
        let s = t.arrays.get(&array).ok_or(INVALID_HANDLE)?.shape;
        out.set(Descriptor {
            width: s.width,
            height: s.height,
            format: s.format,
            channels: s.channels,
        })
    };
    cuArray3DGetDescriptor_v2(out: Out<Descriptor3D>, array: u64) |d| {
        out.set(d.tables().arrays.get(&array).ok_or(INVALID_HANDLE)?.shape)
    };
    cuArrayDestroy(array: u64) |d| {
        d.unsafe_call()?;
        let tickets = {
            let t = d.tables();
            let a = t.arrays.get(&array).ok_or(INVALID_HANDLE)?;
            if a.is_level {
                return Err(INVALID_HANDLE);
            }
            t.live_of(a.context)
        };
        d.wait_all(&tickets);
        let mut t = d.tables();
        let a = t.arrays.remove(&array).ok_or(INVALID_HANDLE)?;
        d.owned_free(&mut t, a.addr)
    };
    cuMipmappedArrayCreate(out: Out<u64>, descriptor: In<Descriptor3D>, levels: u32) |d| {
        out.check()?;
        d.unsafe_call()?;
        let shape = descriptor.get()?;
        let mut t = d.tables();
        let context = d.current(&t)?;
        shape.check()?;
        let longest = shape.width.max(shape.height).max(shape.depth);
        // Limits the levels to the number of halvings.
        let count = levels.min(longest.ilog2() + 1);
        if count == 0 {
            return Err(INVALID_VALUE);
        }
        let shapes: Vec<Descriptor3D> = (0..count).map(|n| shape.level(n)).collect();
        let mut size = 0usize;
        for s in &shapes {
            size = size.checked_add(s.bytes()?.next_multiple_of(512)).ok_or(OUT_OF_MEMORY)?;
        }
        let addr = d.owned_alloc(&mut t, context, size as u64, Kind::Array)?;
        let mut at = addr;
        let mut list = Vec::new();
        for shape in shapes {
            let handle = t.handle();
            let bytes = shape.bytes()?.next_multiple_of(512);
            t.arrays.insert(handle, Array { context, shape, addr: at, is_level: true });
            at += bytes as u64;
            list.push(handle);
        }
        let handle = t.handle();
        t.mipmaps.insert(handle, Mipmap { context, addr, levels: list });
        out.set(handle)
    };
    cuMipmappedArrayGetLevel(out: Out<u64>, mipmap: u64, level: u32) |d| {
        out.check()?;
        let t = d.tables();
        let m = t.mipmaps.get(&mipmap).ok_or(INVALID_HANDLE)?;
        out.set(*m.levels.get(level as usize).ok_or(INVALID_VALUE)?)
    };
    cuMipmappedArrayDestroy(mipmap: u64) |d| {
        d.unsafe_call()?;
        let tickets = {
            let t = d.tables();
            t.live_of(t.mipmaps.get(&mipmap).ok_or(INVALID_HANDLE)?.context)
        };
        d.wait_all(&tickets);
        let mut t = d.tables();
        let m = t.mipmaps.remove(&mipmap).ok_or(INVALID_HANDLE)?;
        for level in &m.levels {
            t.arrays.remove(level);
        }
        d.owned_free(&mut t, m.addr)
    };
}

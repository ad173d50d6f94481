//! Copies and fills: real bytes, moved when the call is made.
//!
//! A copy of more than 64 KiB takes time on the board, in its stream: see [`gshare_sim_board::Route`]. Shorter copies
//! take none, as the real driver passes the bytes with the command. Synchronous calls first wait for earlier work on
//! their stream, and then for the copy.

mod time;

use std::ptr;
use std::sync::Arc;

use crate::code::{INVALID_VALUE, R};
use crate::driver::{Driver, Tables};
use crate::ffi::{In, export_stream, export_sync};
use crate::memory::Kind;
use crate::op::{Op, Place};

/// `CUmemorytype`.
pub(crate) const HOST: u32 = 1;
pub(crate) const DEVICE: u32 = 2;
pub(crate) const ARRAY: u32 = 3;
const UNIFIED: u32 = 4;

/// `CUDA_MEMCPY3D`, to which every copy is converted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Copy3D {
    pub src_x: usize,
    pub src_y: usize,
    pub src_z: usize,
    src_lod: usize,
    pub src_type: u32,
    pub src_host: u64,
    pub src_device: u64,
    pub src_array: u64,
    src_context: u64,
    pub src_pitch: usize,
    pub src_height: usize,
    pub dst_x: usize,
    pub dst_y: usize,
    pub dst_z: usize,
    dst_lod: usize,
    pub dst_type: u32,
    pub dst_host: u64,
    pub dst_device: u64,
    pub dst_array: u64,
    dst_context: u64,
    pub dst_pitch: usize,
    pub dst_height: usize,
    pub width: usize,
    pub height: usize,
    pub depth: usize,
}

const _: () = assert!(size_of::<Copy3D>() == 200);

/// One side of a copy, with its position in the memory.
#[derive(Clone, Copy)]
struct Side {
    kind: u32,
    host: u64,
    device: u64,
    array: u64,
    pitch: usize,
    height: usize,
    x: usize,
    y: usize,
    z: usize,
}

/// One side of a copy as addresses: the first byte, and the strides of rows and slices.
#[derive(Clone, Copy)]
struct Span {
    start: u64,
    row: usize,
    slice: usize,
}

/// `CUDA_MEMSET_NODE_PARAMS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Fill {
    pub addr: u64,
    pub pitch: usize,
    pub value: u32,
    /// Bytes of an element: 1, 2 or 4.
    pub element: u32,
    pub width: usize,
    pub height: usize,
}

impl Copy3D {
    /// A copy of contiguous bytes; the kinds are those of the two sides.
    pub(crate) fn run(to: (u32, u64), from: (u32, u64), len: usize) -> Copy3D {
        let mut c = Copy3D {
            src_type: from.0,
            dst_type: to.0,
            width: len,
            height: 1,
            depth: 1,
            ..Copy3D::default()
        };
        *(if from.0 == HOST {
            &mut c.src_host
        } else {
            &mut c.src_device
        }) = from.1;
        *(if to.0 == HOST {
            &mut c.dst_host
        } else {
            &mut c.dst_device
        }) = to.1;
        c
    }

    fn is_empty(&self) -> bool {
        self.width == 0 || self.height == 0 || self.depth == 0
    }

    fn source(&self) -> Side {
        Side {
            kind: self.src_type,
            host: self.src_host,
            device: self.src_device,
            array: self.src_array,
            pitch: self.src_pitch,
            height: self.src_height,
            x: self.src_x,
            y: self.src_y,
            z: self.src_z,
        }
    }

    fn target(&self) -> Side {
        Side {
            kind: self.dst_type,
            host: self.dst_host,
            device: self.dst_device,
            array: self.dst_array,
            pitch: self.dst_pitch,
            height: self.dst_height,
            x: self.dst_x,
            y: self.dst_y,
            z: self.dst_z,
        }
    }
}

impl Side {
    /// Pageable memory of the program, which the driver cannot copy from later.
    fn is_pageable(&self, t: &Tables) -> bool {
        let addr = match self.kind {
            HOST => self.host,
            UNIFIED => self.device,
            _ => return false,
        };
        t.memory.find(addr).is_none()
    }

    fn span(&self, t: &Tables, c: &Copy3D, in_graph: bool) -> R<Span> {
        let lines = |start: u64, row: usize, slice: usize| {
            let skip = self.z.checked_mul(slice);
            let skip = skip.and_then(|s| s.checked_add(self.y.checked_mul(row)?));
            let skip = skip.and_then(|s| s.checked_add(self.x));
            let start = skip.and_then(|s| start.checked_add(s as u64));
            start
                .map(|start| Span { start, row, slice })
                .ok_or(INVALID_VALUE)
        };
        if self.kind == ARRAY {
            let a = t
                .arrays
                .get(&self.array)
                .ok_or(crate::code::INVALID_HANDLE)?;
            let fits = |from: usize, n: usize, all: usize| {
                from.checked_add(n).is_some_and(|end| end <= all)
            };
            if !fits(self.x, c.width, a.row_bytes())
                || !fits(self.y, c.height, a.rows())
                || !fits(self.z, c.depth, a.slices())
            {
                return Err(INVALID_VALUE);
            }
            return lines(a.addr, a.pitch(), a.pitch() * a.rows());
        }
        let base = match self.kind {
            HOST => self.host,
            DEVICE | UNIFIED => self.device,
            _ => return Err(INVALID_VALUE),
        };
        // A pitch of 0 means contiguous rows.
        let row = if self.pitch == 0 { c.width } else { self.pitch };
        let height = if self.height == 0 {
            c.height
        } else {
            self.height
        };
        if row < c.width || (c.depth > 1 && height < c.height) {
            return Err(INVALID_VALUE);
        }
        let slice = row.checked_mul(height).ok_or(INVALID_VALUE)?;
        let span = lines(base, row, slice)?;
        let len = (c.depth - 1).checked_mul(slice);
        let len = len.and_then(|l| l.checked_add((c.height - 1).checked_mul(row)?));
        let len = len
            .and_then(|l| l.checked_add(c.width))
            .ok_or(INVALID_VALUE)? as u64;
        let ok = match self.kind {
            HOST => base != 0,
            DEVICE => t.reaches(span.start, len, in_graph),
            _ => base != 0 && (t.memory.find(base).is_none() || t.memory.covers(span.start, len)),
        };
        if ok { Ok(span) } else { Err(INVALID_VALUE) }
    }
}

impl Driver {
    /// Both sides of a copy as addresses; an error if a side is not inside its memory.
    fn spans(&self, c: &Copy3D, in_graph: bool) -> R<(Span, Span)> {
        let t = self.tables();
        let to = c.target().span(&t, c, in_graph)?;
        Ok((to, c.source().span(&t, c, in_graph)?))
    }

    pub(crate) fn check_copy(&self, c: &Copy3D, in_graph: bool) -> R {
        if c.is_empty() {
            return Ok(());
        }
        self.spans(c, in_graph).map(drop)
    }

    /// Moves the bytes.
    pub(crate) fn copy_now(&self, c: &Copy3D) -> R {
        if c.is_empty() {
            return Ok(());
        }
        let (to, from) = self.spans(c, false)?;
        for z in 0..c.depth {
            for y in 0..c.height {
                let line = |s: Span| s.start + (z * s.slice + y * s.row) as u64;
                // SAFETY: device ranges were found to be mapped; host ranges are valid by the
                // contract of the C function. `copy` allows them to overlap.
                unsafe { ptr::copy(line(from) as *const u8, line(to) as *mut u8, c.width) };
            }
        }
        Ok(())
    }

    /// One copy. `wait`: the caller may touch the memory when the call returns.
    pub(crate) fn copy(&self, stream: u64, wait: bool, c: Copy3D) -> R {
        let s = self.op_stream(stream)?;
        if wait {
            self.forbid_capture(s)?;
        }
        if c.is_empty() {
            return Ok(());
        }
        let in_graph = self.tables().stream(s)?.capture.is_some();
        self.check_copy(&c, in_graph)?;
        if wait {
            self.settle(s)?;
            let context = self.tables().stream(s)?.context;
            if self.copy_time(context, &c)?.is_none() {
                return self.copy_now(&c);
            }
            self.push(&Place::Stream(s), Op::Copy(c, None))?;
            return self.settle(s);
        }
        let op = Op::Copy(c, None);
        if self.captured(s, &op)?.is_some() {
            return Ok(());
        }
        // A copy to pageable memory is over when the call returns.
        let (late, pageable) = {
            let t = self.tables();
            let before = t.before(s)?;
            let pageable = c.target().is_pageable(&t);
            (
                pageable && before.iter().any(|id| t.is_put_off(*id)),
                pageable,
            )
        };
        if late {
            self.settle(s)?;
        }
        let id = self.push(&Place::Stream(s), op)?;
        if pageable && id != 0 {
            self.settle(s)?;
        }
        Ok(())
    }

    /// Prepares a postponed copy: takes the bytes of a pageable source now.
    pub(crate) fn keep_bytes(&self, t: &Tables, op: Op) -> Op {
        let Op::Copy(c, None) = op else { return op };
        let source = c.source();
        if c.is_empty() || !source.is_pageable(t) {
            return op;
        }
        let Ok(span) = source.span(t, &c, false) else {
            return op;
        };
        let mut bytes = Vec::with_capacity(c.width * c.height * c.depth);
        for z in 0..c.depth {
            for y in 0..c.height {
                let line = In::<u8>::from_addr(span.start + (z * span.slice + y * span.row) as u64);
                bytes.extend_from_slice(line.bytes(c.width).unwrap_or_default());
            }
        }
        let bytes = Arc::new(bytes);
        let kept = Copy3D {
            src_type: HOST,
            src_host: bytes.as_ptr() as u64,
            src_x: 0,
            src_y: 0,
            src_z: 0,
            src_pitch: c.width,
            src_height: c.height,
            ..c
        };
        Op::Copy(kept, Some(bytes))
    }

    pub(crate) fn check_fill(&self, f: &Fill, in_graph: bool) -> R {
        let n = f.element as usize;
        if !matches!(n, 1 | 2 | 4) || !f.addr.is_multiple_of(n as u64) {
            return Err(INVALID_VALUE);
        }
        let row = f.width.checked_mul(n).ok_or(INVALID_VALUE)?;
        if row == 0 || f.height == 0 {
            return Ok(());
        }
        if f.height > 1 && f.pitch < row {
            return Err(INVALID_VALUE);
        }
        let last = (f.height - 1).checked_mul(f.pitch).ok_or(INVALID_VALUE)?;
        let whole = last.checked_add(row).ok_or(INVALID_VALUE)?;
        let t = self.tables();
        let on_device = t
            .memory
            .find(f.addr)
            .is_none_or(|(_, a)| a.kind != Kind::Array);
        if on_device && t.reaches(f.addr, whole as u64, in_graph) {
            Ok(())
        } else {
            Err(INVALID_VALUE)
        }
    }

    pub(crate) fn fill_now(&self, f: &Fill) -> R {
        self.check_fill(f, false)?;
        let n = f.element as usize;
        for y in 0..f.height {
            let start = f.addr + (y * f.pitch) as u64;
            fill_row(start, &f.value.to_le_bytes()[..n], f.width * n);
        }
        Ok(())
    }

    /// A fill; `sync`: from a function that cannot be captured.
    fn fill(&self, stream: u64, sync: bool, f: Fill) -> R {
        let s = self.op_stream(stream)?;
        if sync {
            self.forbid_capture(s)?;
        }
        let in_graph = self.tables().stream(s)?.capture.is_some();
        self.check_fill(&f, in_graph)?;
        if f.width == 0 || f.height == 0 {
            return Ok(());
        }
        let op = Op::Fill(f);
        if self.captured(s, &op)?.is_some() {
            return Ok(());
        }
        self.push(&Place::Stream(s), op).map(drop)
    }
}

/// A fill of `height` rows of `width` elements of `N` bytes each.
fn fill<const N: usize>(
    addr: u64,
    pitch: usize,
    value: [u8; N],
    width: usize,
    height: usize,
) -> Fill {
    let mut bytes = [0; 4];
    bytes[..N].copy_from_slice(&value);
    Fill {
        addr,
        pitch,
        value: u32::from_le_bytes(bytes),
        element: N as u32,
        width,
        height,
    }
}

fn fill_row(addr: u64, value: &[u8], len: usize) {
    let first = value[0];
    if value.iter().all(|b| *b == first) {
        // SAFETY: the caller checked that the range is mapped.
        unsafe { ptr::write_bytes(addr as *mut u8, first, len) };
        return;
    }
    for at in (0..len).step_by(value.len()) {
        // SAFETY: as above; `len` is a multiple of the element.
        unsafe {
            ptr::copy_nonoverlapping(value.as_ptr(), (addr as *mut u8).add(at), value.len());
        };
    }
}

/// `CUDA_MEMCPY2D`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Copy2D {
    src_x: usize,
    src_y: usize,
    src_type: u32,
    src_host: u64,
    src_device: u64,
    src_array: u64,
    src_pitch: usize,
    dst_x: usize,
    dst_y: usize,
    dst_type: u32,
    dst_host: u64,
    dst_device: u64,
    dst_array: u64,
    dst_pitch: usize,
    width: usize,
    height: usize,
}

const _: () = assert!(size_of::<Copy2D>() == 128);

impl Copy2D {
    fn wide(&self) -> Copy3D {
        Copy3D {
            src_x: self.src_x,
            src_y: self.src_y,
            src_type: self.src_type,
            src_host: self.src_host,
            src_device: self.src_device,
            src_array: self.src_array,
            src_pitch: self.src_pitch,
            dst_x: self.dst_x,
            dst_y: self.dst_y,
            dst_type: self.dst_type,
            dst_host: self.dst_host,
            dst_device: self.dst_device,
            dst_array: self.dst_array,
            dst_pitch: self.dst_pitch,
            width: self.width,
            height: self.height,
            depth: 1,
            ..Copy3D::default()
        }
    }
}

/// A copy of contiguous bytes to a one-dimensional array.
fn to_array(array: u64, offset: usize, from: (u32, u64), len: usize) -> Copy3D {
    Copy3D {
        dst_x: offset,
        dst_array: array,
        ..Copy3D::run((ARRAY, 0), from, len)
    }
}

fn from_array(to: (u32, u64), array: u64, offset: usize, len: usize) -> Copy3D {
    Copy3D {
        src_x: offset,
        src_array: array,
        ..Copy3D::run(to, (ARRAY, 0), len)
    }
}

/// The four functions of a copy or a fill: at once and later, each with its twin. `now` tells which.
macro_rules! both {
    ($($name:ident, $twin:ident, $later:ident, $later_twin:ident($($arg:ident: $ty:ty),*)
        |$d:ident, $s:ident, $now:ident| $body:expr;)*) => {
        export_sync! {$(
            $name, $twin($($arg: $ty),*) |$d, $s| { let $now = true; $body };
        )*}
        export_stream! {$(
            $later, $later_twin($($arg: $ty),*; $s) |$d| { let $now = false; $body };
        )*}
    };
}

both! {
    cuMemcpy, cuMemcpy_ptds, cuMemcpyAsync, cuMemcpyAsync_ptsz(to: u64, from: u64, len: usize)
        |d, s, now| d.copy(s, now, Copy3D::run((UNIFIED, to), (UNIFIED, from), len));
    cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds, cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz(
        to: u64, from: u64, len: usize
    ) |d, s, now| d.copy(s, now, Copy3D::run((DEVICE, to), (HOST, from), len));
    cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds, cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz(
        to: u64, from: u64, len: usize
    ) |d, s, now| d.copy(s, now, Copy3D::run((HOST, to), (DEVICE, from), len));
    cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds, cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz(
        to: u64, from: u64, len: usize
    ) |d, s, _now| d.copy(s, false, Copy3D::run((DEVICE, to), (DEVICE, from), len));
    cuMemcpyPeer, cuMemcpyPeer_ptds, cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz(
        to: u64, _tc: u64, from: u64, _fc: u64, len: usize
    ) |d, s, _now| d.copy(s, false, Copy3D::run((DEVICE, to), (DEVICE, from), len));
    cuMemcpyHtoA_v2, cuMemcpyHtoA_v2_ptds, cuMemcpyHtoAAsync_v2, cuMemcpyHtoAAsync_v2_ptsz(
        to: u64, at: usize, from: u64, len: usize
    ) |d, s, now| d.copy(s, now, to_array(to, at, (HOST, from), len));
    cuMemcpyAtoH_v2, cuMemcpyAtoH_v2_ptds, cuMemcpyAtoHAsync_v2, cuMemcpyAtoHAsync_v2_ptsz(
        to: u64, from: u64, at: usize, len: usize
    ) |d, s, now| d.copy(s, now, from_array((HOST, to), from, at, len));
    cuMemcpy2D_v2, cuMemcpy2D_v2_ptds, cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz(c: In<Copy2D>)
        |d, s, now| d.copy(s, now, c.get()?.wide());
    cuMemcpy3D_v2, cuMemcpy3D_v2_ptds, cuMemcpy3DAsync_v2, cuMemcpy3DAsync_v2_ptsz(c: In<Copy3D>)
        |d, s, now| d.copy(s, now, c.get()?);
    cuMemcpy3DPeer, cuMemcpy3DPeer_ptds, cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync_ptsz(
        c: In<Copy3D>
    ) |d, s, now| d.copy(s, now, c.get()?);
    cuMemsetD8_v2, cuMemsetD8_v2_ptds, cuMemsetD8Async, cuMemsetD8Async_ptsz(
        to: u64, v: u8, n: usize
    ) |d, s, now| d.fill(s, now, fill(to, 0, [v], n, 1));
    cuMemsetD16_v2, cuMemsetD16_v2_ptds, cuMemsetD16Async, cuMemsetD16Async_ptsz(
        to: u64, v: u16, n: usize
    ) |d, s, now| d.fill(s, now, fill(to, 0, v.to_le_bytes(), n, 1));
    cuMemsetD32_v2, cuMemsetD32_v2_ptds, cuMemsetD32Async, cuMemsetD32Async_ptsz(
        to: u64, v: u32, n: usize
    ) |d, s, now| d.fill(s, now, fill(to, 0, v.to_le_bytes(), n, 1));
    cuMemsetD2D8_v2, cuMemsetD2D8_v2_ptds, cuMemsetD2D8Async, cuMemsetD2D8Async_ptsz(
        to: u64, pitch: usize, v: u8, w: usize, h: usize
    ) |d, s, now| d.fill(s, now, fill(to, pitch, [v], w, h));
    cuMemsetD2D16_v2, cuMemsetD2D16_v2_ptds, cuMemsetD2D16Async, cuMemsetD2D16Async_ptsz(
        to: u64, pitch: usize, v: u16, w: usize, h: usize
    ) |d, s, now| d.fill(s, now, fill(to, pitch, v.to_le_bytes(), w, h));
    cuMemsetD2D32_v2, cuMemsetD2D32_v2_ptds, cuMemsetD2D32Async, cuMemsetD2D32Async_ptsz(
        to: u64, pitch: usize, v: u32, w: usize, h: usize
    ) |d, s, now| d.fill(s, now, fill(to, pitch, v.to_le_bytes(), w, h));
}

export_sync! {
    cuMemcpyDtoA_v2, cuMemcpyDtoA_v2_ptds(to: u64, at: usize, from: u64, len: usize) |d, s| {
        d.copy(s, true, to_array(to, at, (DEVICE, from), len))
    };
    cuMemcpyAtoD_v2, cuMemcpyAtoD_v2_ptds(to: u64, from: u64, at: usize, len: usize) |d, s| {
        d.copy(s, true, from_array((DEVICE, to), from, at, len))
    };
    cuMemcpyAtoA_v2, cuMemcpyAtoA_v2_ptds(
        to: u64, to_at: usize, from: u64, from_at: usize, len: usize
    ) |d, s| d.copy(s, true, Copy3D {
        src_x: from_at,
        src_array: from,
        ..to_array(to, to_at, (ARRAY, 0), len)
    });
    cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds(c: In<Copy2D>) |d, s| {
        d.copy(s, true, c.get()?.wide())
    };
}

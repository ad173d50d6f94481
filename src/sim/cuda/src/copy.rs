//! Copies and fills: real bytes, moved when the call is made.
//!
//! A copy takes the time that moving the bytes takes on the host; the board's time is not charged.
//! Calls that C programs know as synchronous first wait for the work before them on their stream.

use std::ptr;
use std::sync::Arc;

use crate::code::{INVALID_VALUE, NOT_SUPPORTED, R};
use crate::driver::Driver;
use crate::ffi::{In, export_stream, export_sync};

use Side::{Any, Device, Host};

/// Where one side of a copy lies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Host,
    Device,
    /// Unified: either.
    Any,
}

impl Driver {
    fn check_side(&self, side: Side, addr: u64, len: u64) -> R {
        let ok = match side {
            Host => addr != 0,
            Device => self.tables().memory.covers(addr, len),
            Any => {
                let t = self.tables();
                addr != 0 && (t.memory.find(addr).is_none() || t.memory.covers(addr, len))
            }
        };
        if ok { Ok(()) } else { Err(INVALID_VALUE) }
    }

    /// One copy. `wait`: the caller may touch the memory when the call returns.
    fn copy(&self, stream: u64, wait: bool, to: (Side, u64), from: (Side, u64), len: usize) -> R {
        let s = self.stream(stream)?;
        if len == 0 {
            return Ok(());
        }
        self.check_side(to.0, to.1, len as u64)?;
        self.check_side(from.0, from.1, len as u64)?;
        self.before_bytes_move(s, wait)?;
        // SAFETY: device ranges were found to be mapped; host ranges are valid by the contract of
        // the C function. `copy` allows them to overlap.
        unsafe { ptr::copy(from.1 as *const u8, to.1 as *mut u8, len) };
        Ok(())
    }

    /// Waits for what must be over before bytes move.
    fn before_bytes_move(&self, stream: u64, wait: bool) -> R {
        if wait {
            return self.settle(stream);
        }
        let callbacks = Arc::clone(&self.tables().stream(stream)?.callbacks);
        callbacks.wait();
        Ok(())
    }

    /// Fills `height` rows of `width` elements of `N` bytes each.
    fn fill<const N: usize>(
        &self,
        stream: u64,
        addr: u64,
        pitch: usize,
        value: [u8; N],
        width: usize,
        height: usize,
    ) -> R {
        let s = self.stream(stream)?;
        let row = width.checked_mul(N).ok_or(INVALID_VALUE)?;
        if row == 0 || height == 0 {
            return Ok(());
        }
        if !addr.is_multiple_of(N as u64) || (height > 1 && pitch < row) {
            return Err(INVALID_VALUE);
        }
        let last = (height - 1).checked_mul(pitch).ok_or(INVALID_VALUE)?;
        let whole = last.checked_add(row).ok_or(INVALID_VALUE)?;
        self.check_side(Device, addr, whole as u64)?;
        self.before_bytes_move(s, false)?;
        for y in 0..height {
            let start = addr + (y * pitch) as u64;
            fill_row(start, &value, row);
        }
        Ok(())
    }

    fn copy_2d(&self, stream: u64, wait: bool, c: &Copy2D) -> R {
        let side = |kind: u32, host: u64, device: u64| match kind {
            1 => Ok((Host, host)),
            2 => Ok((Device, device)),
            4 => Ok((Any, device)),
            // Arrays come later.
            3 => Err(NOT_SUPPORTED),
            _ => Err(INVALID_VALUE),
        };
        let from = side(c.src_type, c.src_host, c.src_device)?;
        let to = side(c.dst_type, c.dst_host, c.dst_device)?;
        let s = self.stream(stream)?;
        let (width, height) = (c.width, c.height);
        if width == 0 || height == 0 {
            return Ok(());
        }
        // A pitch of 0 means that the rows lie next to each other.
        let from_pitch = if c.src_pitch == 0 { width } else { c.src_pitch };
        let to_pitch = if c.dst_pitch == 0 { width } else { c.dst_pitch };
        if from_pitch < width || to_pitch < width {
            return Err(INVALID_VALUE);
        }
        let span = |pitch: usize| {
            let last = (height - 1).checked_mul(pitch).ok_or(INVALID_VALUE)?;
            last.checked_add(width).ok_or(INVALID_VALUE)
        };
        let start = |base: u64, y: usize, pitch: usize, x: usize| {
            let skip = y.checked_mul(pitch).and_then(|s| s.checked_add(x));
            skip.and_then(|s| base.checked_add(s as u64))
                .ok_or(INVALID_VALUE)
        };
        let source = start(from.1, c.src_y, from_pitch, c.src_x)?;
        let target = start(to.1, c.dst_y, to_pitch, c.dst_x)?;
        self.check_side(from.0, source, span(from_pitch)? as u64)?;
        self.check_side(to.0, target, span(to_pitch)? as u64)?;
        self.before_bytes_move(s, wait)?;
        for y in 0..height {
            let from = source + (y * from_pitch) as u64;
            let to = target + (y * to_pitch) as u64;
            // SAFETY: both rows lie in the spans that were checked above.
            unsafe { ptr::copy(from as *const u8, to as *mut u8, width) };
        }
        Ok(())
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

export_sync! {
    cuMemcpy, cuMemcpy_ptds(to: u64, from: u64, len: usize) |d, s| {
        d.copy(s, true, (Any, to), (Any, from), len)
    };
    cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds(to: u64, from: u64, len: usize) |d, s| {
        d.copy(s, true, (Device, to), (Host, from), len)
    };
    cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds(to: u64, from: u64, len: usize) |d, s| {
        d.copy(s, true, (Host, to), (Device, from), len)
    };
    cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds(to: u64, from: u64, len: usize) |d, s| {
        d.copy(s, false, (Device, to), (Device, from), len)
    };
    cuMemcpyPeer, cuMemcpyPeer_ptds(to: u64, _tc: u64, from: u64, _fc: u64, len: usize) |d, s| {
        d.copy(s, false, (Device, to), (Device, from), len)
    };
    cuMemcpy2D_v2, cuMemcpy2D_v2_ptds(c: In<Copy2D>) |d, s| d.copy_2d(s, true, &c.get()?);
    cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds(c: In<Copy2D>) |d, s| {
        d.copy_2d(s, true, &c.get()?)
    };
    cuMemsetD8_v2, cuMemsetD8_v2_ptds(to: u64, v: u8, n: usize) |d, s| {
        d.fill(s, to, 0, [v], n, 1)
    };
    cuMemsetD16_v2, cuMemsetD16_v2_ptds(to: u64, v: u16, n: usize) |d, s| {
        d.fill(s, to, 0, v.to_le_bytes(), n, 1)
    };
    cuMemsetD32_v2, cuMemsetD32_v2_ptds(to: u64, v: u32, n: usize) |d, s| {
        d.fill(s, to, 0, v.to_le_bytes(), n, 1)
    };
    cuMemsetD2D8_v2, cuMemsetD2D8_v2_ptds(to: u64, pitch: usize, v: u8, w: usize, h: usize) |d, s| {
        d.fill(s, to, pitch, [v], w, h)
    };
    cuMemsetD2D16_v2, cuMemsetD2D16_v2_ptds(
        to: u64, pitch: usize, v: u16, w: usize, h: usize
    ) |d, s| d.fill(s, to, pitch, v.to_le_bytes(), w, h);
    cuMemsetD2D32_v2, cuMemsetD2D32_v2_ptds(
        to: u64, pitch: usize, v: u32, w: usize, h: usize
    ) |d, s| d.fill(s, to, pitch, v.to_le_bytes(), w, h);
}

export_stream! {
    cuMemcpyAsync, cuMemcpyAsync_ptsz(to: u64, from: u64, len: usize; stream) |d| {
        d.copy(stream, false, (Any, to), (Any, from), len)
    };
    cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz(to: u64, from: u64, len: usize; stream) |d| {
        d.copy(stream, false, (Device, to), (Host, from), len)
    };
    cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz(to: u64, from: u64, len: usize; stream) |d| {
        d.copy(stream, false, (Host, to), (Device, from), len)
    };
    cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz(to: u64, from: u64, len: usize; stream) |d| {
        d.copy(stream, false, (Device, to), (Device, from), len)
    };
    cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz(
        to: u64, _tc: u64, from: u64, _fc: u64, len: usize; stream
    ) |d| d.copy(stream, false, (Device, to), (Device, from), len);
    cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz(c: In<Copy2D>; stream) |d| {
        d.copy_2d(stream, false, &c.get()?)
    };
    cuMemsetD8Async, cuMemsetD8Async_ptsz(to: u64, v: u8, n: usize; stream) |d| {
        d.fill(stream, to, 0, [v], n, 1)
    };
    cuMemsetD16Async, cuMemsetD16Async_ptsz(to: u64, v: u16, n: usize; stream) |d| {
        d.fill(stream, to, 0, v.to_le_bytes(), n, 1)
    };
    cuMemsetD32Async, cuMemsetD32Async_ptsz(to: u64, v: u32, n: usize; stream) |d| {
        d.fill(stream, to, 0, v.to_le_bytes(), n, 1)
    };
    cuMemsetD2D8Async, cuMemsetD2D8Async_ptsz(
        to: u64, pitch: usize, v: u8, w: usize, h: usize; stream
    ) |d| d.fill(stream, to, pitch, [v], w, h);
    cuMemsetD2D16Async, cuMemsetD2D16Async_ptsz(
        to: u64, pitch: usize, v: u16, w: usize, h: usize; stream
    ) |d| d.fill(stream, to, pitch, v.to_le_bytes(), w, h);
    cuMemsetD2D32Async, cuMemsetD2D32Async_ptsz(
        to: u64, pitch: usize, v: u32, w: usize, h: usize; stream
    ) |d| d.fill(stream, to, pitch, v.to_le_bytes(), w, h);
}

//! Arrays for textures and surfaces: memory without an address, in the driver's own layout.

use super::memory::{free_by, judged, take_unaddressed};
use crate::{
    cuda::{CuResult, Handle, SUCCESS},
    driver,
};

/// Distinguishes an array's handle from the addresses in the ledger.
const ARRAY: u64 = 1 << 63;

/// Descriptor flags of arrays without memory of their own: sparse ones, and those with deferred mapping.
const WITHOUT_MEMORY: u32 = 0x40 | 0x80;

/// An array as the ledger sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    width: u64,
    height: u64,
    depth: u64,
    element_bytes: u64,
    flags: u32,
    /// The number of channels is invalid.
    odd: bool,
}

/// Valid numbers of channels.
const CHANNELS: [u32; 3] = [1, 2, 4];

/// Bytes of a channel; packed and compressed formats take less.
fn channel_bytes(format: u32) -> u64 {
    match format {
        0x01 | 0x08 | 0xc0..=0xc2 | 0xc6..=0xc8 => 1,
        0x02 | 0x09 | 0x10 | 0xc3..=0xc5 | 0xc9..=0xcb => 2,
        _ => 4,
    }
}

/// `CUDA_ARRAY_DESCRIPTOR`: two sizes, format, channels.
#[repr(C)]
pub struct Flat<T> {
    width: T,
    height: T,
    format: u32,
    channels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`: three sizes, format, channels, flags.
#[repr(C)]
pub struct Deep<T> {
    width: T,
    height: T,
    depth: T,
    format: u32,
    channels: u32,
    flags: u32,
}

/// A descriptor of any kind and width.
pub(crate) trait Described {
    fn shape(&self) -> Shape;
}

macro_rules! described {
    ($($size:ty),+) => {$(
        impl Described for Flat<$size> {
            fn shape(&self) -> Shape {
                Shape {
                    width: self.width as u64,
                    height: self.height as u64,
                    depth: 1,
                    element_bytes: channel_bytes(self.format) * u64::from(self.channels),
                    flags: 0,
                    odd: !CHANNELS.contains(&self.channels),
                }
            }
        }

        impl Described for Deep<$size> {
            fn shape(&self) -> Shape {
                Shape {
                    width: self.width as u64,
                    height: self.height as u64,
                    depth: self.depth as u64,
                    element_bytes: channel_bytes(self.format) * u64::from(self.channels),
                    flags: self.flags,
                    odd: !CHANNELS.contains(&self.channels),
                }
            }
        }
    )+};
}

described!(u32, usize);

/// The driver pads rows of an array's blocks to this many bytes.
const ROW_BYTES: u64 = 512;

impl Shape {
    /// Bytes of the array with this many levels, each half as large as the previous one.
    fn bytes(self, levels: u32) -> u64 {
        if self.flags & WITHOUT_MEMORY != 0 {
            return 0;
        }
        (0..levels.clamp(1, 32))
            .map(|level| {
                let extent = |whole: u64| (whole >> level).max(1);
                extent(self.width)
                    .saturating_mul(self.element_bytes)
                    .checked_next_multiple_of(ROW_BYTES)
                    .unwrap_or(u64::MAX)
                    .saturating_mul(extent(self.height))
                    .saturating_mul(extent(self.depth))
            })
            .fold(0, u64::saturating_add)
    }
}

unsafe fn charged(
    handle: *mut Handle,
    shape: Option<Shape>,
    levels: u32,
    undo: Option<unsafe extern "C" fn(u64) -> CuResult>,
    call: impl Fn() -> CuResult,
) -> CuResult {
    let bytes = shape.map_or(0, |shape| shape.bytes(levels));
    if handle.is_null() || bytes == 0 {
        return call();
    }
    // SAFETY: read only after the driver has written there.
    let made = || unsafe { *handle } as u64;
    if shape.is_some_and(|shape| shape.odd)
        && let Some(code) = judged(&call, made, undo)
    {
        return code;
    }
    take_unaddressed(bytes, || {
        let result = call();
        if result != SUCCESS {
            return (result, None);
        }
        // SAFETY: the driver has just written there.
        (result, Some((unsafe { *handle } as u64 | ARRAY, bytes)))
    })
}

pub(crate) unsafe fn create<D: Described>(
    original: unsafe extern "C" fn(*mut Handle, *const D) -> CuResult,
    handle: *mut Handle,
    descriptor: *const D,
) -> CuResult {
    // SAFETY: NULL, or the caller's descriptor.
    let shape = unsafe { descriptor.as_ref() }.map(Described::shape);
    // SAFETY: the caller's own arguments.
    unsafe {
        charged(handle, shape, 1, driver::helpers().array_destroy, || {
            original(handle, descriptor)
        })
    }
}

pub(crate) unsafe fn create_levels<D: Described>(
    original: unsafe extern "C" fn(*mut Handle, *const D, u32) -> CuResult,
    handle: *mut Handle,
    descriptor: *const D,
    levels: u32,
) -> CuResult {
    // SAFETY: NULL, or the caller's descriptor.
    let shape = unsafe { descriptor.as_ref() }.map(Described::shape);
    // SAFETY: the caller's own arguments.
    unsafe {
        charged(
            handle,
            shape,
            levels,
            driver::helpers().levels_destroy,
            || original(handle, descriptor, levels),
        )
    }
}

pub(crate) unsafe fn destroy(
    original: unsafe extern "C" fn(Handle) -> CuResult,
    handle: Handle,
) -> CuResult {
    // SAFETY: the caller's own argument.
    free_by(handle as u64 | ARRAY, || unsafe { original(handle) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_takes_its_padded_rows_on_every_level() {
        let deep = |width: usize, height: usize, depth: usize, flags: u32| Deep {
            width,
            height,
            depth,
            format: 0x20,
            channels: 4,
            flags,
        };
        assert_eq!(deep(1024, 1024, 0, 0).shape().bytes(1), 16 << 20);
        assert_eq!(deep(1024, 1024, 4, 0).shape().bytes(1), 64 << 20);
        assert_eq!(deep(1000, 0, 0, 0).shape().bytes(1), 16384);
        assert_eq!(
            deep(64, 64, 0, 0).shape().bytes(3),
            1024 * 64 + 512 * 32 + 512 * 16
        );
        assert_eq!(deep(1024, 1024, 0, 0x40).shape().bytes(1), 0, "sparse");
        assert_eq!(deep(usize::MAX, 9, 9, 0).shape().bytes(1), u64::MAX);
        let flat = Flat::<u32> {
            width: 512,
            height: 2,
            format: 0x01,
            channels: 1,
        };
        assert_eq!(flat.shape().bytes(1), 1024);
    }
}

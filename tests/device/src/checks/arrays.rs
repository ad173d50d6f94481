//! Arrays and mipmapped arrays.

use super::support::{INVALID_VALUE, context};
use crate::{cu, need};

/// `CUDA_ARRAY_DESCRIPTOR`.
#[repr(C)]
#[derive(Default, Debug, PartialEq, Clone, Copy)]
struct Shape {
    width: usize,
    height: usize,
    format: u32,
    channels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
#[derive(Default, Debug, PartialEq, Clone, Copy)]
struct Shape3D {
    width: usize,
    height: usize,
    depth: usize,
    format: u32,
    channels: u32,
    flags: u32,
}

/// One side of a `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Default, Clone, Copy)]
struct Side {
    at: [usize; 3],
    lod: usize,
    kind: u32,
    host: u64,
    device: u64,
    array: u64,
    reserved: u64,
    pitch: usize,
    height: usize,
}

/// `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Default)]
struct Copy3D {
    src: Side,
    dst: Side,
    size: [usize; 3],
}

const FLOAT: u32 = 0x20;

fn host<T>(memory: *const T, pitch: usize, height: usize) -> Side {
    Side {
        kind: 1,
        host: memory as u64,
        pitch,
        height,
        ..Side::default()
    }
}

fn array(array: u64, at: [usize; 3]) -> Side {
    Side {
        kind: 3,
        array,
        at,
        ..Side::default()
    }
}

super::list! {
    "array.shape", "Memory Management, cuArrayCreate, cuArrayGetDescriptor", |t| {
        context();
        let shape = Shape { width: 33, height: 7, format: FLOAT, channels: 2 };
        let (mut a, mut seen) = (0u64, Shape::default());
        t.ok("create", cu!(cuArrayCreate_v2(&raw mut a, &raw const shape)));
        t.ok("descriptor", cu!(cuArrayGetDescriptor_v2(&raw mut seen, a)));
        t.same("shape", shape, seen);
        let mut wide = Shape3D::default();
        t.ok("descriptor of 3D", cu!(cuArray3DGetDescriptor_v2(&raw mut wide, a)));
        t.same("depth", 0, wide.depth);
        t.ok("destroy", cu!(cuArrayDestroy(a)));
        for bad in [
            Shape { width: 0, ..shape },
            Shape { channels: 3, ..shape },
            Shape { format: 0x77, ..shape },
        ] {
            let code = cu!(cuArrayCreate_v2(&raw mut a, &raw const bad));
            t.code(&format!("{bad:?}"), &[INVALID_VALUE], code);
        }
    }
    "array.copy", "Memory Management, cuMemcpyHtoA and cuMemcpyAtoH", |t| {
        context();
        let shape = Shape { width: 100, height: 0, format: FLOAT, channels: 1 };
        let mut a = 0u64;
        need!(cuArrayCreate_v2(&raw mut a, &raw const shape));
        let values: Vec<f32> = (0..100u8).map(f32::from).collect();
        let mut back = vec![0f32; 100];
        t.ok("in", cu!(cuMemcpyHtoA_v2(a, 0usize, values.as_ptr(), 400usize)));
        t.ok("out", cu!(cuMemcpyAtoH_v2(back.as_mut_ptr(), a, 40usize, 80usize)));
        t.same("values", values[10..30].to_vec(), back[..20].to_vec());
        let code = cu!(cuMemcpyHtoA_v2(a, 8usize, values.as_ptr(), 400usize));
        t.code("past the end", &[INVALID_VALUE], code);
    }
    "array.boxes", "Memory Management, cuArray3DCreate and cuMemcpy3D", |t| {
        context();
        let shape = Shape3D { width: 16, height: 8, depth: 4, format: 1, channels: 1, flags: 0 };
        let mut a = 0u64;
        t.ok("create", cu!(cuArray3DCreate_v2(&raw mut a, &raw const shape)));
        let values: Vec<u8> = (0..512u16).map(|i| (i * 7) as u8).collect();
        let mut c = Copy3D {
            src: host(values.as_ptr(), 16, 8),
            dst: array(a, [0; 3]),
            size: [16, 8, 4],
        };
        t.ok("in", cu!(cuMemcpy3D_v2(&raw const c)));
        let mut back = vec![0u8; 4 * 2 * 2];
        c = Copy3D {
            src: array(a, [3, 2, 1]),
            dst: host(back.as_mut_ptr(), 4, 2),
            size: [4, 2, 2],
        };
        t.ok("a box out", cu!(cuMemcpy3D_v2(&raw const c)));
        let mut want = Vec::new();
        for z in 1..3 {
            for y in 2..4 {
                let row = (z * 8 + y) * 16 + 3;
                want.extend_from_slice(&values[row..row + 4]);
            }
        }
        t.same("bytes", want, back);
        c.src.at = [14, 0, 0];
        t.code("past the edge", &[INVALID_VALUE], cu!(cuMemcpy3D_v2(&raw const c)));
    }
    "array.mipmaps", "Memory Management, cuMipmappedArrayCreate: each level halves", |t| {
        context();
        let shape = Shape3D { width: 64, height: 16, depth: 0, format: FLOAT, channels: 1, flags: 0 };
        let (mut m, mut level) = (0u64, 0u64);
        t.ok("create", cu!(cuMipmappedArrayCreate(&raw mut m, &raw const shape, 4u32)));
        t.ok("level", cu!(cuMipmappedArrayGetLevel(&raw mut level, m, 2u32)));
        let mut seen = Shape3D::default();
        t.ok("its shape", cu!(cuArray3DGetDescriptor_v2(&raw mut seen, level)));
        t.same("width and height", (16, 4), (seen.width, seen.height));
        let code = cu!(cuMipmappedArrayGetLevel(&raw mut level, m, 9u32));
        t.code("level 9", &[INVALID_VALUE], code);
        t.ok("destroy", cu!(cuMipmappedArrayDestroy(m)));
    }
}

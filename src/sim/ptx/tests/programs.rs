//! Whole kernels as NVRTC 13.4 and Numba 0.30 emitted them, against the same computation in Rust.
//!
//! The sources of `data/*.ptx` are the CUDA C++ and Python functions of the same names in
//! `data/generate.py`; running that script (cuda-bindings and numba-cuda, no GPU) makes them anew.

mod common;

use common::{BASE, Flat, bind, launch};
use gshare_sim_ptx::{LaunchConfig, Module, Trap};

fn module(text: &str, memory: &mut Flat) -> Module {
    let mut module = Module::parse(text).unwrap_or_else(|e| panic!("{e}"));
    bind(&mut module, memory);
    module
}

/// A parameter buffer: each value at a multiple of its size.
#[derive(Default)]
struct Params(Vec<u8>);

impl Params {
    fn add<const N: usize>(mut self, bytes: [u8; N]) -> Self {
        self.0.resize(self.0.len().next_multiple_of(N), 0);
        self.0.extend(bytes);
        self
    }

    fn u64(self, value: u64) -> Self {
        self.add(value.to_le_bytes())
    }

    fn i32(self, value: i32) -> Self {
        self.add(value.to_le_bytes())
    }

    fn f32(self, value: f32) -> Self {
        self.add(value.to_le_bytes())
    }

    /// A Numba array: meminfo, parent, items, item size, data, shape, strides.
    fn array(self, data: u64, item: u64, shape: &[u64]) -> Self {
        let items = shape.iter().product();
        let mut params = self.u64(0).u64(0).u64(items).u64(item).u64(data);
        for n in shape {
            params = params.u64(*n);
        }
        let mut stride = item * shape.iter().product::<u64>();
        for n in shape {
            stride /= n;
            params = params.u64(stride);
        }
        params
    }
}

fn floats32(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * 0.37 - 20.0) * 1.1).collect()
}

fn floats64(n: usize) -> Vec<f64> {
    (0..n).map(|i| (i as f64 * 0.37 - 20.0) * 1.1).collect()
}

fn read_f32(memory: &Flat, at: u64, n: usize) -> Vec<f32> {
    memory
        .get::<4>(at, n)
        .into_iter()
        .map(f32::from_le_bytes)
        .collect()
}

fn read_f64(memory: &Flat, at: u64, n: usize) -> Vec<f64> {
    memory
        .get::<8>(at, n)
        .into_iter()
        .map(f64::from_le_bytes)
        .collect()
}

fn read_i32(memory: &Flat, at: u64, n: usize) -> Vec<i32> {
    memory
        .get::<4>(at, n)
        .into_iter()
        .map(i32::from_le_bytes)
        .collect()
}

fn read_i64(memory: &Flat, at: u64, n: usize) -> Vec<i64> {
    memory
        .get::<8>(at, n)
        .into_iter()
        .map(i64::from_le_bytes)
        .collect()
}

/// The one kernel of a Numba module.
fn only(module: &Module) -> String {
    assert_eq!(module.kernels().len(), 1);
    module.kernels()[0].name.clone()
}

const ELEMENTWISE: &str = include_str!("data/nvrtc_elementwise.ptx");
const FEATURES: &str = include_str!("data/nvrtc_features.ptx");

#[test]
fn kernels_describe_themselves() {
    let module = Module::parse(FEATURES).unwrap();
    let names: Vec<_> = module.kernels().iter().map(|k| k.name.as_str()).collect();
    assert!(
        names.contains(&"structs") && names.contains(&"barrier"),
        "{names:?}"
    );
    let structs = module.kernel("structs").unwrap();
    let layout: Vec<_> = structs
        .params
        .iter()
        .map(|p| (p.offset, p.size, p.align))
        .collect();
    assert_eq!(layout, [(0, 8, 8), (8, 16, 8), (24, 4, 4)]);
    assert_eq!(structs.param_bytes, 28);
    assert_eq!(module.kernel("barrier").unwrap().static_shared_bytes, 256);
    assert_eq!(module.kernel("consts").unwrap().static_shared_bytes, 0);
    assert_eq!(module.kernel("localarr").unwrap().local_bytes, 64);
    assert!(module.kernel("spin").unwrap().regs_estimate >= 16);
    assert!(
        module.kernel("mathd").unwrap().regs_estimate > module.kernel("vec").unwrap().regs_estimate
    );
    assert!(module.kernel("vec").unwrap().static_instructions > 10);
    assert!(module.kernel("nothing").is_none());
    let table = module.globals().iter().find(|g| g.name == "table").unwrap();
    assert_eq!(
        (table.size, table.align, &table.init[..4]),
        (16, 4, &1.0f32.to_le_bytes()[..])
    );
}

#[test]
fn saxpy() {
    let n = 1000;
    let (x, y) = (floats32(n), floats32(2 * n).split_off(n));
    let expect: Vec<f32> = x
        .iter()
        .zip(&y)
        .map(|(x, y)| 2.5f32.mul_add(*x, *y))
        .collect();
    let mut memory = Flat(Vec::new());
    let nvrtc = module(ELEMENTWISE, &mut memory);
    let numba = module(include_str!("data/numba_saxpy.ptx"), &mut memory);
    let px = memory.put(x.iter().map(|v| v.to_le_bytes()));
    for (module, params) in [(&nvrtc, None), (&numba, Some(()))] {
        let py = memory.put(y.iter().map(|v| v.to_le_bytes()));
        let (kernel, params) = if params.is_some() {
            let arrays =
                Params::default()
                    .f32(2.5)
                    .array(px, 4, &[n as u64])
                    .array(py, 4, &[n as u64]);
            (only(module), arrays)
        } else {
            (
                "saxpy".to_owned(),
                Params::default().f32(2.5).u64(px).u64(py).i32(n as i32),
            )
        };
        let stats = launch(
            module,
            &kernel,
            [8, 1, 1],
            [128, 1, 1],
            &params.0,
            &mut memory,
        )
        .unwrap();
        assert_eq!(read_f32(&memory, py, n), expect);
        assert!(
            stats.instructions > 10 * n as u64 && stats.warp_instructions < stats.instructions / 20,
            "{stats:?}"
        );
    }
}

#[test]
fn vector_add_with_a_grid_stride() {
    let n = 3001;
    let (a, b) = (floats64(n), floats64(2 * n).split_off(n));
    let expect: Vec<f64> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
    for (text, numba) in [
        (ELEMENTWISE, false),
        (include_str!("data/numba_vadd.ptx"), true),
        (include_str!("data/numba_vadd_debug.ptx"), true),
    ] {
        let mut memory = Flat(Vec::new());
        let module = module(text, &mut memory);
        let pa = memory.put(a.iter().map(|v| v.to_le_bytes()));
        let pb = memory.put(b.iter().map(|v| v.to_le_bytes()));
        let pc = memory.put(vec![[0; 8]; n]);
        let (kernel, params) = if numba {
            let p = Params::default()
                .array(pa, 8, &[n as u64])
                .array(pb, 8, &[n as u64])
                .array(pc, 8, &[n as u64]);
            (module.kernels()[0].name.clone(), p)
        } else {
            (
                "vadd".to_owned(),
                Params::default().u64(pa).u64(pb).u64(pc).u64(n as u64),
            )
        };
        launch(
            &module,
            &kernel,
            [3, 1, 1],
            [96, 1, 1],
            &params.0,
            &mut memory,
        )
        .unwrap();
        assert_eq!(read_f64(&memory, pc, n), expect);
    }
}

#[test]
fn loop_sums_diverge_and_join() {
    let (n, threads) = (50usize, 200usize);
    let input: Vec<i32> = (0..n as i32).map(|i| i * 37 % 101 - 50).collect();
    let sum = |t: usize, k_max: usize| -> i64 {
        let _ = t;
        (0..=k_max)
            .map(|k| i64::from(input[k % n]) * if k & 1 == 1 { 1 } else { -1 })
            .sum()
    };
    let mut memory = Flat(Vec::new());
    let nvrtc = module(ELEMENTWISE, &mut memory);
    let numba = module(include_str!("data/numba_loopsum.ptx"), &mut memory);
    let pin = memory.put(input.iter().map(|v| v.to_le_bytes()));
    let pout = memory.put(vec![[0; 8]; threads]);
    let params = Params::default().u64(pin).u64(pout).i32(n as i32);
    launch(
        &nvrtc,
        "loop_sum",
        [2, 1, 1],
        [100, 1, 1],
        &params.0,
        &mut memory,
    )
    .unwrap();
    let expect: Vec<i64> = (0..threads).map(|t| sum(t, t % n)).collect();
    assert_eq!(read_i64(&memory, pout, threads), expect);
    let params = Params::default()
        .array(pin, 4, &[n as u64])
        .array(pout, 8, &[threads as u64]);
    launch(
        &numba,
        &only(&numba),
        [2, 1, 1],
        [128, 1, 1],
        &params.0,
        &mut memory,
    )
    .unwrap();
    let expect: Vec<i64> = (0..threads).map(|t| sum(t, t)).collect();
    assert_eq!(read_i64(&memory, pout, threads), expect);
}

#[test]
fn mandelbrot() {
    let (w, h, iters) = (67usize, 41usize, 60);
    let mut memory = Flat(Vec::new());
    let nvrtc = module(ELEMENTWISE, &mut memory);
    let numba = module(include_str!("data/numba_mandel.ptx"), &mut memory);
    let out = memory.put(vec![[0; 4]; w * h]);
    let params = Params::default()
        .u64(out)
        .i32(w as i32)
        .i32(h as i32)
        .i32(iters);
    launch(
        &nvrtc,
        "mandel",
        [5, 6, 1],
        [16, 8, 1],
        &params.0,
        &mut memory,
    )
    .unwrap();
    // As the compiler contracted it: products feed fused additions.
    let single = |x: usize, y: usize| {
        let cr = 3.0f32 * x as f32 / w as f32 - 2.0;
        let ci = 3.0f32 * y as f32 / h as f32 - 1.5;
        let (mut zr, mut zi, mut k) = (0f32, 0f32, 0);
        while k < iters && zr.mul_add(zr, zi * zi) < 4.0 {
            let t = zr.mul_add(zr, -(zi * zi)) + cr;
            zi = (zr + zr).mul_add(zi, ci);
            zr = t;
            k += 1;
        }
        k
    };
    let got = read_i32(&memory, out, w * h);
    let expect: Vec<i32> = (0..w * h).map(|i| single(i % w, i / w)).collect();
    let differing = got.iter().zip(&expect).filter(|(a, b)| a != b).count();
    assert_eq!(differing, 0, "of {}", w * h);
    let params = Params::default()
        .array(out, 4, &[h as u64, w as u64])
        .i32(iters);
    launch(
        &numba,
        &only(&numba),
        [5, 6, 1],
        [16, 8, 1],
        &params.0,
        &mut memory,
    )
    .unwrap();
    let got = read_i32(&memory, out, w * h);
    assert!(got.contains(&iters) && got.iter().any(|k| *k < 5));
    // In double precision all but the chaotic rim agree with the single precision picture.
    let differing = got.iter().zip(&expect).filter(|(a, b)| a != b).count();
    assert!(differing < w * h / 50, "{differing}");
}

#[test]
fn integer_hash() {
    let n = 777;
    let input: Vec<u32> = (0..n as u32)
        .map(|i| i.wrapping_mul(2_654_435_761) ^ i)
        .collect();
    let hash = |mut h: u32| {
        h ^= h >> 16;
        h = h.wrapping_mul(0x85eb_ca6b);
        h ^= h >> 13;
        h = h.wrapping_mul(0xc2b2_ae35);
        h ^= h >> 16;
        h = h.rotate_left(7);
        let high = ((u64::from(h) * 0x9e37_79b9) >> 32) as u32;
        let parts = [
            h.count_ones(),
            h.leading_zeros(),
            h.reverse_bits(),
            high,
            h % 7,
            (h as i32 / 13) as u32,
        ];
        parts.iter().fold(h, |sum, part| sum.wrapping_add(*part))
    };
    let mut memory = Flat(Vec::new());
    let module = module(ELEMENTWISE, &mut memory);
    let pin = memory.put(input.iter().map(|v| v.to_le_bytes()));
    let pout = memory.put(vec![[0; 4]; n]);
    let params = Params::default().u64(pin).u64(pout).i32(n as i32);
    launch(
        &module,
        "hash",
        [13, 1, 1],
        [64, 1, 1],
        &params.0,
        &mut memory,
    )
    .unwrap();
    let got: Vec<u32> = read_i32(&memory, pout, n)
        .into_iter()
        .map(|v| v as u32)
        .collect();
    assert_eq!(got, input.iter().map(|h| hash(*h)).collect::<Vec<_>>());
}

#[test]
fn double_polynomial() {
    let n = 500;
    let x = floats64(n);
    let expect: Vec<f64> = x
        .iter()
        .map(|v| {
            let p = 1.5f64.mul_add(*v, -2.25).mul_add(*v, 0.125);
            let v2 = v.mul_add(*v, 1.0).sqrt() / v.mul_add(*v, 3.0);
            p.mul_add(*v, v2)
        })
        .collect();
    for (text, numba) in [
        (ELEMENTWISE, false),
        (include_str!("data/numba_poly.ptx"), true),
    ] {
        let mut memory = Flat(Vec::new());
        let module = module(text, &mut memory);
        let px = memory.put(x.iter().map(|v| v.to_le_bytes()));
        let py = memory.put(vec![[0; 8]; n]);
        let (kernel, params) = if numba {
            (
                only(&module),
                Params::default()
                    .array(px, 8, &[n as u64])
                    .array(py, 8, &[n as u64]),
            )
        } else {
            (
                "poly".to_owned(),
                Params::default().u64(px).u64(py).i32(n as i32),
            )
        };
        launch(
            &module,
            &kernel,
            [8, 1, 1],
            [64, 1, 1],
            &params.0,
            &mut memory,
        )
        .unwrap();
        assert_eq!(read_f64(&memory, py, n), expect);
    }
}

#[test]
fn device_functions_recursion_and_structs() {
    let n = 100;
    let mut memory = Flat(Vec::new());
    let module = module(FEATURES, &mut memory);
    let out = memory.put(vec![[0; 24]; n]);
    let params = Params::default().u64(out).i32(n as i32);
    launch(
        &module,
        "calls",
        [1, 1, 1],
        [128, 1, 1],
        &params.0,
        &mut memory,
    )
    .unwrap();
    let fib = [0i64, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55];
    let expect: Vec<_> = (0..n).map(|i| fib[i % 11]).collect();
    assert_eq!(read_i64(&memory, out, n), expect);

    let params = Params::default()
        .u64(out)
        .f32(1.5)
        .i32(40)
        .u64(2.25f64.to_bits())
        .i32(n as i32);
    launch(
        &module,
        "structs",
        [1, 1, 1],
        [128, 1, 1],
        &params.0,
        &mut memory,
    )
    .unwrap();
    for (i, pair) in memory.get::<16>(out, n).into_iter().enumerate() {
        let a = f32::from_le_bytes(pair[..4].try_into().unwrap());
        let b = i32::from_le_bytes(pair[4..8].try_into().unwrap());
        let c = f64::from_le_bytes(pair[8..].try_into().unwrap());
        let (x, y) = (1.5 + i as f32, 40 - i as i32);
        assert_eq!(
            (a, b, c),
            (x * 2.0, y + 7, f64::from(x) + f64::from(y) + 2.25)
        );
    }
}

#[test]
fn local_arrays_switches_constants_and_vectors() {
    let n = 90usize;
    let input: Vec<i32> = (0..n as i32).map(|i| i * 7919 % 1000 - 300).collect();
    let mut memory = Flat(Vec::new());
    let module = module(FEATURES, &mut memory);
    let pin = memory.put(input.iter().map(|v| v.to_le_bytes()));
    let pout = memory.put(vec![[0; 16]; n]);
    let params = Params::default().u64(pin).u64(pout).i32(n as i32);
    launch(
        &module,
        "localarr",
        [3, 1, 1],
        [32, 1, 1],
        &params.0,
        &mut memory,
    )
    .unwrap();
    let expect: Vec<i32> = (0..n)
        .map(|i| {
            let mut a: Vec<i32> = (0..16).map(|k| input[(i + k) % n]).collect();
            a.sort_unstable();
            a[(input[i] & 15) as usize]
        })
        .collect();
    assert_eq!(read_i32(&memory, pout, n), expect);

    launch(&module, "sw", [3, 1, 1], [32, 1, 1], &params.0, &mut memory).unwrap();
    let expect: Vec<i32> = input
        .iter()
        .map(|v| match v & 15 {
            0 => v * 3,
            1 => v ^ 0x55,
            2 => v - 9,
            3 => !v,
            4 => v << 3,
            5 => v / 7,
            6 => v % 11,
            7 => v * v,
            8 => -v,
            9 => v + 7,
            _ => 1,
        })
        .collect();
    assert_eq!(read_i32(&memory, pout, n), expect);

    let x = floats32(4 * n);
    let px = memory.put(x.iter().map(|v| v.to_le_bytes()));
    let params = Params::default().u64(px).u64(pout).i32(n as i32);
    launch(
        &module,
        "consts",
        [3, 1, 1],
        [32, 1, 1],
        &params.0,
        &mut memory,
    )
    .unwrap();
    let table = [1.0, 2.5, -3.0, 0.25];
    let expect: Vec<f32> = (0..n).map(|i| x[i] * table[i & 3]).collect();
    assert_eq!(read_f32(&memory, pout, n), expect);

    launch(
        &module,
        "vec",
        [3, 1, 1],
        [32, 1, 1],
        &params.0,
        &mut memory,
    )
    .unwrap();
    let expect: Vec<f32> = x
        .chunks(4)
        .flat_map(|v| [v[3], v[2], v[1] + v[0], v[0] * 2.0])
        .collect();
    assert_eq!(read_f32(&memory, pout, 4 * n), expect);
}

#[test]
fn bytes_and_conversions() {
    let n = 256usize;
    let mut memory = Flat(Vec::new());
    let module = module(FEATURES, &mut memory);
    let pin = memory.put((0..=255u8).map(|v| [v]));
    let out8 = memory.put(vec![[0; 1]; n]);
    let out16 = memory.put(vec![[0; 2]; n]);
    let params = Params::default()
        .u64(pin)
        .u64(out8)
        .u64(out16)
        .i32(n as i32);
    launch(
        &module,
        "bytes",
        [1, 1, 1],
        [256, 1, 1],
        &params.0,
        &mut memory,
    )
    .unwrap();
    for i in 0..n {
        assert_eq!(memory.get::<1>(out8, n)[i][0], (i + 100) as u8);
        assert_eq!(
            i16::from_le_bytes(memory.get::<2>(out16, n)[i]),
            (i * 300) as i16
        );
    }

    let x = [
        0.0,
        -0.5,
        1.5,
        2.5,
        -2.5,
        1e10,
        -1e10,
        1e20,
        3.999_999_999,
        f64::MIN_POSITIVE,
        -7.5,
        4e9,
    ];
    let px = memory.put(x.iter().map(|v: &f64| v.to_le_bytes()));
    let pf = memory.put(vec![[0; 4]; x.len()]);
    let pa = memory.put(vec![[0; 4]; x.len()]);
    let pb = memory.put(vec![[0; 4]; x.len()]);
    let pc = memory.put(vec![[0; 8]; x.len()]);
    let params = Params::default()
        .u64(px)
        .u64(pf)
        .u64(pa)
        .u64(pb)
        .u64(pc)
        .i32(x.len() as i32);
    launch(
        &module,
        "conv",
        [1, 1, 1],
        [32, 1, 1],
        &params.0,
        &mut memory,
    )
    .unwrap();
    assert_eq!(read_f32(&memory, pf, x.len()), x.map(|v| v as f32));
    assert_eq!(read_i32(&memory, pa, x.len()), x.map(|v| v as i32));
    assert_eq!(
        read_i32(&memory, pb, x.len()),
        x.map(|v| (v as f32) as u32 as i32)
    );
    assert_eq!(
        read_i64(&memory, pc, x.len()),
        x.map(|v| v.round_ties_even() as i64)
    );
}

#[test]
fn library_functions_are_close() {
    let x: Vec<f64> = (1..300)
        .map(|i| f64::from(i) * 0.731 - 110.0)
        .chain([1e6, 3.3e7, -1e-9])
        .collect();
    let n = x.len();
    let mut memory = Flat(Vec::new());
    let module = module(FEATURES, &mut memory);
    let px = memory.put(x.iter().map(|v| v.to_le_bytes()));
    let py = memory.put(vec![[0; 8]; 4 * n]);
    let params = Params::default().u64(px).u64(py).i32(n as i32);
    launch(
        &module,
        "mathd",
        [10, 1, 1],
        [32, 1, 1],
        &params.0,
        &mut memory,
    )
    .unwrap();
    let close =
        |got: f64, want: f64, bound: f64| got == want || ((got - want) / want).abs() < bound;
    for (i, row) in read_f64(&memory, py, 4 * n).chunks(4).enumerate() {
        let v = x[i];
        let want = [
            v.sin(),
            v.exp(),
            (v.abs() + 1.0).ln(),
            v.abs().powf(1.7) + v.tanh() + 1.0 / v,
        ];
        for (got, want) in row.iter().zip(want) {
            assert!(close(*got, want, 1e-14), "{v}: {row:?} {want:e}");
        }
    }
    let single: Vec<f32> = x.iter().map(|v| *v as f32).collect();
    let px = memory.put(single.iter().map(|v| v.to_le_bytes()));
    let params = Params::default().u64(px).u64(py).i32(n as i32);
    launch(
        &module,
        "math",
        [10, 1, 1],
        [32, 1, 1],
        &params.0,
        &mut memory,
    )
    .unwrap();
    for (i, row) in read_f32(&memory, py, 4 * n).chunks(4).enumerate() {
        let v = f64::from(single[i]);
        let last = v.abs().powf(1.7) + v.tanh() + 1.0 / v + 1.0 / v.abs().sqrt();
        let plus_one = f64::from(single[i].abs() + 1.0);
        let want = [v.sin(), v.exp(), plus_one.ln(), last];
        for (got, want) in row.iter().zip(want) {
            assert!(
                close(f64::from(*got), f64::from(want as f32), 1e-5),
                "{v}: {row:?} {want:e}"
            );
        }
    }
    let numba = self::module(include_str!("data/numba_math.ptx"), &mut memory);
    let x: Vec<f64> = (0..100).map(|i| 0.1 + f64::from(i) * 0.13).collect();
    let px = memory.put(x.iter().map(|v| v.to_le_bytes()));
    let params = Params::default().array(px, 8, &[100]).array(py, 8, &[100]);
    launch(
        &numba,
        &only(&numba),
        [1, 1, 1],
        [128, 1, 1],
        &params.0,
        &mut memory,
    )
    .unwrap();
    for (v, got) in x.iter().zip(read_f64(&memory, py, 100)) {
        let want = v.sin() * v.exp() + (v.abs() + 1.0).ln() + v.powf(2.5);
        assert!(close(got, want, 1e-13), "{v} {got} {want}");
    }
}

#[test]
fn half_precision_round_trip() {
    let mut memory = Flat(Vec::new());
    let module = module(include_str!("data/nvrtc_half.ptx"), &mut memory);
    let input = [0x3c00u16, 0x4000, 0xc500, 0x0001, 0x7bff];
    let pin = memory.put(input.iter().map(|v| v.to_le_bytes()));
    let pout = memory.put(vec![[0; 2]; 5]);
    let pf = memory.put(vec![[0; 4]; 5]);
    let params = Params::default().u64(pin).u64(pout).u64(pf).i32(5);
    launch(
        &module,
        "half_ops",
        [1, 1, 1],
        [32, 1, 1],
        &params.0,
        &mut memory,
    )
    .unwrap();
    assert_eq!(
        read_f32(&memory, pf, 5),
        [1.0, 2.0, -5.0, 2f32.powi(-24), 65504.0]
    );
    let got: Vec<_> = memory
        .get::<2>(pout, 5)
        .into_iter()
        .map(u16::from_le_bytes)
        .collect();
    // 1.5 h rounded to half, plus h: 2.5, 5, -12.5, then subnormals (2 + 1), then infinity.
    assert_eq!(got, [0x4100, 0x4500, 0xca40, 0x0003, 0x7c00]);
}

#[test]
fn atomics_on_global_memory() {
    let n = 500;
    let mut memory = Flat(Vec::new());
    let module = module(FEATURES, &mut memory);
    let sum = memory.put([[0; 4]; 2]);
    let max = memory.put([[0; 8]]);
    let fs = memory.put([[0; 4]]);
    let params = Params::default().u64(sum).u64(max).u64(fs).i32(n);
    launch(
        &module,
        "atom",
        [4, 1, 1],
        [128, 1, 1],
        &params.0,
        &mut memory,
    )
    .unwrap();
    assert_eq!(read_i32(&memory, sum, 2), [n * (n - 1) / 2, 5]);
    assert_eq!(read_i64(&memory, max, 1), [i64::from(n - 1) * 3]);
    assert_eq!(read_f32(&memory, fs, 1), [n as f32]);
}

#[test]
fn barriers_hold_the_warps_of_a_block_together() {
    let mut memory = Flat(Vec::new());
    let module = module(FEATURES, &mut memory);
    let out = memory.put([[0; 4]; 64]);
    let params = Params::default().u64(out);
    launch(
        &module,
        "barrier",
        [2, 1, 1],
        [64, 1, 1],
        &params.0,
        &mut memory,
    )
    .unwrap();
    assert_eq!(
        read_i32(&memory, out, 64),
        (0..64).rev().collect::<Vec<_>>()
    );
}

#[test]
fn runaway_kernels_end_with_their_budget() {
    let mut memory = Flat(Vec::new());
    let module = module(FEATURES, &mut memory);
    let flag = memory.put([[0; 4]]);
    let params = flag.to_le_bytes();
    let config = LaunchConfig {
        params: &params,
        budget: 10_000,
        ..LaunchConfig::default()
    };
    assert_eq!(
        module.launch("spin", &config, &mut memory),
        Err(Trap::Budget)
    );
}

#[test]
fn launches_that_cannot_be_run() {
    let mut memory = Flat(Vec::new());
    let mut module = Module::parse(FEATURES).unwrap();
    let params = [0; 64];
    let run = |module: &Module, kernel: &str, grid, block, memory: &mut Flat| {
        launch(module, kernel, grid, block, &params, memory).unwrap_err()
    };
    let unknown = run(&module, "nothing", [1; 3], [1; 3], &mut memory);
    assert_eq!(unknown, Trap::UnknownKernel("nothing".into()));
    for (grid, block) in [
        ([0, 1, 1], [1; 3]),
        ([1; 3], [0, 1, 1]),
        ([1; 3], [1025, 1, 1]),
        ([1, 70_000, 1], [1; 3]),
    ] {
        assert!(matches!(
            run(&module, "spin", grid, block, &mut memory),
            Trap::InvalidLaunch(_)
        ));
    }
    let short = module
        .launch("spin", &LaunchConfig::default(), &mut memory)
        .unwrap_err();
    assert!(
        short
            .to_string()
            .contains("0 bytes of parameters, 8 are needed"),
        "{short}"
    );
    let mut params = params;
    params[..8].copy_from_slice(&(BASE + 64).to_le_bytes());
    params[16] = 1;
    memory.put([[0; 1]; 256]);
    params[8..16].copy_from_slice(&BASE.to_le_bytes());
    params[..8].copy_from_slice(&BASE.to_le_bytes());
    let unbound = launch(&module, "consts", [1; 3], [1; 3], &params, &mut memory).unwrap_err();
    assert_eq!(unbound, Trap::UnboundGlobal("table".into()));
    assert!(module.bind_global("table", BASE) && !module.bind_global("tables", BASE));
    assert!(launch(&module, "consts", [1; 3], [1; 3], &params, &mut memory).is_ok());
}

#[test]
fn texts_are_linked() {
    let head = ".version 8.0\n.target sm_80\n.address_size 64\n";
    let callee = format!(
        "{head}.visible .global .align 4 .u32 base = 40;\n.func (.param .b32 r) twice(.param .b32 a) {{\n\
         .reg .b32 %r<3>; ld.param.b32 %r1, [a]; add.u32 %r2, %r1, %r1; st.param.b32 [r], %r2; ret; }}\n\
         .visible .func (.reg .u32 r) plus(.reg .u32 a) {{\n\
         .reg .b32 %r<3>; {{ .param .b32 p; .param .b32 q; st.param.b32 [p], a; call (q), twice, (p);\n\
         ld.param.b32 r, [q]; }} ld.global.u32 %r1, [base]; add.u32 r, r, %r1; ret; }}"
    );
    let caller = format!(
        "{head}.extern .global .align 4 .u32 base;\n.extern .func (.reg .u32 r) plus(.reg .u32 a);\n\
         .visible .entry k(.param .u64 out) {{ .reg .b64 %rd<4>; .reg .b32 %r<4>;\n\
         ld.param.u64 %rd1, [out]; call (%r1), plus, (3); mov.u64 %rd2, plus;\n\
         proto: .callprototype (.reg .u32 _) _ (.reg .u32 _);\n\
         call (%r2), %rd2, (%r1), proto; st.global.v2.u32 [%rd1], {{%r1, %r2}}; ret; }}"
    );
    for texts in [[&caller, &callee], [&callee, &caller]] {
        let mut module = Module::link(&texts.map(String::as_str)).unwrap();
        let mut memory = Flat(Vec::new());
        bind(&mut module, &mut memory);
        let out = memory.put([[0; 8]]);
        launch(
            &module,
            "k",
            [1; 3],
            [1; 3],
            &out.to_le_bytes(),
            &mut memory,
        )
        .unwrap();
        assert_eq!(read_i32(&memory, out, 2), [46, 132]);
    }
    let alone = Module::parse(&caller).unwrap_err();
    assert_eq!((alone.line, alone.message.contains("base")), (4, true));
}

#[test]
fn warps_talk_by_shuffles_and_votes() {
    let text = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 out) {\n\
         .reg .b64 %rd<4>; .reg .b32 %r<8>; .reg .pred %p<4>;\n\
         ld.param.u64 %rd1, [out]; mov.u32 %r1, %laneid; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd1, %rd1, %rd2;\n\
         shfl.sync.down.b32 %r2|%p1, %r1, 4, 31, -1; shfl.sync.bfly.b32 %r3, %r1, 1, 31, -1;\n\
         shfl.sync.up.b32 %r4, %r1, 1, 0, -1; shfl.sync.idx.b32 %r5, %r1, 7, 31, -1;\n\
         setp.lt.u32 %p2, %r1, 3; vote.sync.ballot.b32 %r6, %p2, -1;\n\
         mad.lo.u32 %r2, %r2, 100, %r3; mad.lo.u32 %r2, %r2, 100, %r4; mad.lo.u32 %r2, %r2, 10, %r5;\n\
         mad.lo.u32 %r2, %r2, 10, %r6; @!%p1 mov.u32 %r2, 0; st.global.u32 [%rd1], %r2; ret; }";
    let module = Module::parse(text).unwrap();
    let mut memory = Flat(Vec::new());
    let out = memory.put([[0; 4]; 32]);
    launch(
        &module,
        "k",
        [1; 3],
        [32, 1, 1],
        &out.to_le_bytes(),
        &mut memory,
    )
    .unwrap();
    let expect = (0..32).map(|l: i32| {
        let up = (l - 1).max(0);
        if l + 4 > 31 {
            0
        } else {
            ((((l + 4) * 100 + (l ^ 1)) * 100 + up) * 10 + 7) * 10 + 7
        }
    });
    assert_eq!(read_i32(&memory, out, 32), expect.collect::<Vec<_>>());
}

#[test]
fn variables_hold_addresses_of_others() {
    let text = ".version 8.0\n.target sm_80\n.address_size 64\n.global .align 4 .u32 value[3] = {1, 2, 3};\n\
         .global .align 8 .u64 pointers[2] = {generic(value), value+8};\n.global .align 8 .f64 half = 0.5;\n\
         .visible .entry k(.param .u64 out) { .reg .b64 %rd<4>; .reg .b32 %r<4>; .reg .f64 %d1;\n\
         ld.param.u64 %rd1, [out]; ld.global.u64 %rd2, [pointers+8]; ld.u32 %r1, [%rd2];\n\
         st.global.u32 [%rd1], %r1; ld.global.f64 %d1, [half]; st.global.f64 [%rd1+8], %d1; }";
    let mut memory = Flat(Vec::new());
    let module = module(text, &mut memory);
    let out = memory.put([[0; 16]]);
    launch(
        &module,
        "k",
        [1; 3],
        [1; 3],
        &out.to_le_bytes(),
        &mut memory,
    )
    .unwrap();
    assert_eq!(read_i32(&memory, out, 1), [3]);
    assert_eq!(read_f64(&memory, out + 8, 1), [0.5]);
}

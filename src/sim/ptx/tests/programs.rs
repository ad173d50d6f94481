//! Whole kernels as NVRTC 13.4 and Numba 0.30 emitted them, against the same computation in Rust.
//!
//! The sources of `data/*.ptx` are the CUDA C++ and Python functions of the same names in `data/generate.py`; that
//! script (cuda-bindings and numba-cuda, no GPU) regenerates them.

mod common;

use common::{Flat, Params, launch, module, read_f32, read_f64, read_i32, read_i64, run};
use gshare_sim_ptx::{Module, Trap};

fn floats32(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * 0.37 - 20.0) * 1.1).collect()
}

fn floats64(n: usize) -> Vec<f64> {
    (0..n).map(|i| (i as f64 * 0.37 - 20.0) * 1.1).collect()
}

/// The only kernel of a Numba module.
fn only(module: &Module) -> String {
    let mut kernels = module.kernels().map(|kernel| kernel.name.clone());
    kernels.next().expect("a kernel")
}

const ELEMENTWISE: &str = include_str!("data/nvrtc_elementwise.ptx");
const FEATURES: &str = include_str!("data/nvrtc_features.ptx");

#[test]
fn kernels_describe_themselves() {
    let module = Module::link(&[FEATURES]).unwrap();
    let of = |name: &str| module.kernels().find(|k| k.name == name).unwrap();
    assert_eq!(of("structs").params, [(0, 8), (8, 16), (24, 4)]);
    assert_eq!(of("structs").param_bytes, 28);
    assert_eq!(of("barrier").shared_bytes, 256);
    assert_eq!(of("consts").shared_bytes, 0);
    assert_eq!(of("localarr").local_bytes, 64);
    let table = module.globals().iter().find(|g| g.name == "table").unwrap();
    assert_eq!(
        (table.size, &table.init[..4]),
        (16, &1.0f32.to_le_bytes()[..])
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
        run(module, &kernel, 8, 128, &params.0, &mut memory);
        assert_eq!(read_f32(&memory, py, n), expect);
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
            (only(&module), p)
        } else {
            (
                "vadd".to_owned(),
                Params::default().u64(pa).u64(pb).u64(pc).u64(n as u64),
            )
        };
        run(&module, &kernel, 3, 96, &params.0, &mut memory);
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
    run(&nvrtc, "loop_sum", 2, 100, &params.0, &mut memory);
    let expect: Vec<i64> = (0..threads).map(|t| sum(t, t % n)).collect();
    assert_eq!(read_i64(&memory, pout, threads), expect);
    let params = Params::default()
        .array(pin, 4, &[n as u64])
        .array(pout, 8, &[threads as u64]);
    run(&numba, &only(&numba), 2, 128, &params.0, &mut memory);
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
    // In double precision all but the chaotic rim agrees with the single precision picture.
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
    run(&module, "hash", 13, 64, &params.0, &mut memory);
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
        run(&module, &kernel, 8, 64, &params.0, &mut memory);
        assert_eq!(read_f64(&memory, py, n), expect);
    }
}

#[test]
fn device_functions_and_structs() {
    let n = 100;
    let mut memory = Flat(Vec::new());
    let module = module(FEATURES, &mut memory);
    let out = memory.put(vec![[0; 24]; n]);
    // Recursion is not supported.
    let params = Params::default().u64(out).i32(n as i32);
    let trap = launch(&module, "calls", [1; 3], [32, 1, 1], &params.0, &mut memory);
    assert!(matches!(trap, Err(Trap::Unsupported { .. })), "{trap:?}");

    let params = Params::default()
        .u64(out)
        .f32(1.5)
        .i32(40)
        .u64(2.25f64.to_bits())
        .i32(n as i32);
    run(&module, "structs", 1, 128, &params.0, &mut memory);
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
    run(&module, "localarr", 3, 32, &params.0, &mut memory);
    let expect: Vec<i32> = (0..n)
        .map(|i| {
            let mut a: Vec<i32> = (0..16).map(|k| input[(i + k) % n]).collect();
            a.sort_unstable();
            a[(input[i] & 15) as usize]
        })
        .collect();
    assert_eq!(read_i32(&memory, pout, n), expect);

    run(&module, "sw", 3, 32, &params.0, &mut memory);
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
    run(&module, "consts", 3, 32, &params.0, &mut memory);
    let table = [1.0, 2.5, -3.0, 0.25];
    let expect: Vec<f32> = (0..n).map(|i| x[i] * table[i & 3]).collect();
    assert_eq!(read_f32(&memory, pout, n), expect);

    run(&module, "vec", 3, 32, &params.0, &mut memory);
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
    run(&module, "bytes", 1, 256, &params.0, &mut memory);
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
    run(&module, "conv", 1, 32, &params.0, &mut memory);
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
        .chain([1e5, -1e-9])
        .collect();
    let n = x.len();
    let mut memory = Flat(Vec::new());
    let module = module(FEATURES, &mut memory);
    let px = memory.put(x.iter().map(|v| v.to_le_bytes()));
    let py = memory.put(vec![[0; 8]; 4 * n]);
    let params = Params::default().u64(px).u64(py).i32(n as i32);
    run(&module, "mathd", 10, 32, &params.0, &mut memory);
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
    run(&module, "math", 10, 32, &params.0, &mut memory);
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
    run(&numba, &only(&numba), 1, 128, &params.0, &mut memory);
    for (v, got) in x.iter().zip(read_f64(&memory, py, 100)) {
        let want = v.sin() * v.exp() + (v.abs() + 1.0).ln() + v.powf(2.5);
        assert!(close(got, want, 1e-13), "{v} {got} {want}");
    }
}

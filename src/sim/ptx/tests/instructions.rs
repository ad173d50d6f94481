//! One instruction at a time: tables of PTX, and the expected bits in a register.

mod common;

use common::{Flat, launch_one};
use gshare_sim_ptx::{Module, Trap};

fn text(code: &str, result: &str) -> String {
    let store = if result.starts_with("%rd") || result.starts_with("%d") {
        "st.global.b64"
    } else {
        "st.global.b32"
    };
    let (widen, result) = match result {
        "%p1" => ("selp.b32 %r15, 1, 0, %p1;", "%r15"),
        "%h1" => ("cvt.u32.u16 %r15, %h1;", "%r15"),
        other => ("", other),
    };
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 out)\n{{\n\
         .reg .pred %p<8>; .reg .b16 %h<8>; .reg .b32 %r<16>; .reg .b64 %rd<16>; .reg .f32 %f<8>; .reg .f64 %d<8>;\n\
         ld.param.u64 %rd15, [out];\n{code}\n{widen}\n{store} [%rd15], {result};\nret;\n}}"
    )
}

fn run(code: &str, result: &str) -> Result<u64, Trap> {
    let module = Module::link(&[&text(code, result)]).unwrap_or_else(|e| panic!("{e}\n{code}"));
    let mut memory = Flat(Vec::new());
    let out = memory.put([[0; 8]]);
    launch_one(&module, "k", &out.to_le_bytes(), &mut memory)?;
    let bits = u64::from_le_bytes(memory.get(out, 1)[0]);
    let wide = result.starts_with("%rd") || result.starts_with("%d");
    Ok(if wide { bits } else { bits & 0xffff_ffff })
}

/// Rows of (code, result register, expected bits).
fn check(rows: &[(&str, &str, u64)]) {
    for (code, result, expect) in rows {
        let got = run(code, result).unwrap_or_else(|e| panic!("{e}\n{code}"));
        assert_eq!(got, *expect, "{code}: got {got:#x}, want {expect:#x}");
    }
}

fn f(x: f32) -> u64 {
    x.to_bits().into()
}

#[test]
fn integer_arithmetic() {
    check(&[
        ("add.u32 %r1, 4294967295, 2;", "%r1", 1),
        ("add.s64 %rd1, -1, 3;", "%rd1", 2),
        ("add.u16 %h1, 65535, 3;", "%h1", 2),
        ("sub.s32 %r1, 3, 5;", "%r1", 0xffff_fffe),
        ("mul.lo.s32 %r1, -3, 5;", "%r1", 0xffff_fff1),
        ("mul.hi.u32 %r1, 0x80000000, 6;", "%r1", 3),
        ("mul.hi.s32 %r1, -2, 3;", "%r1", 0xffff_ffff),
        ("mul.hi.u64 %rd1, 0x8000000000000000, 6;", "%rd1", 3),
        ("mul.hi.s64 %rd1, -2, 3;", "%rd1", u64::MAX),
        ("mul.wide.s32 %rd1, -2, 3;", "%rd1", -6i64 as u64),
        (
            "mul.wide.u32 %rd1, 0xffffffff, 0xffffffff;",
            "%rd1",
            0xffff_fffe_0000_0001,
        ),
        ("mul.wide.s16 %r1, -2, 300;", "%r1", (-600i32) as u32 as u64),
        ("mul.wide.u16 %r1, 65535, 65535;", "%r1", 0xfffe_0001),
        ("mad.lo.s32 %r1, 3, 4, -20;", "%r1", 0xffff_fff8),
        ("mad.hi.u32 %r1, 0x80000000, 6, 10;", "%r1", 13),
        (
            "mad.wide.u32 %rd1, 0x10000, 0x10000, 7;",
            "%rd1",
            0x1_0000_0007,
        ),
        ("mad.wide.s32 %rd1, -1, 2, -7;", "%rd1", -9i64 as u64),
        ("div.s32 %r1, -7, 2;", "%r1", 0xffff_fffd),
        ("div.u32 %r1, 0xffffffff, 16;", "%r1", 0x0fff_ffff),
        ("div.s32 %r1, 0x80000000, -1;", "%r1", 0x8000_0000),
        ("div.u64 %rd1, 100, 7;", "%rd1", 14),
        ("rem.s32 %r1, -7, 2;", "%r1", 0xffff_ffff),
        ("rem.u64 %rd1, 100, 7;", "%rd1", 2),
        ("abs.s32 %r1, -7;", "%r1", 7),
        ("neg.s64 %rd1, 7;", "%rd1", -7i64 as u64),
        ("min.s32 %r1, -7, 2;", "%r1", 0xffff_fff9),
        ("min.u32 %r1, -7, 2;", "%r1", 2),
        ("max.s64 %rd1, -7, 2;", "%rd1", 2),
    ]);
}

#[test]
fn bits_and_shifts() {
    check(&[
        ("and.b32 %r1, 12, 10;", "%r1", 8),
        ("or.b64 %rd1, 12, 3;", "%rd1", 15),
        ("xor.b32 %r1, 12, 10;", "%r1", 6),
        ("not.b32 %r1, 0;", "%r1", 0xffff_ffff),
        ("shl.b32 %r1, 1, 31;", "%r1", 0x8000_0000),
        ("shl.b32 %r1, 1, 32;", "%r1", 0),
        ("shr.u32 %r1, 0x80000000, 31;", "%r1", 1),
        ("shr.u32 %r1, 0x80000000, 32;", "%r1", 0),
        ("shr.s32 %r1, 0x80000000, 40;", "%r1", 0xffff_ffff),
        ("shr.s64 %rd1, -8, 2;", "%rd1", -2i64 as u64),
        ("popc.b32 %r1, 0xf0f0;", "%r1", 8),
        ("popc.b64 %r1, -1;", "%r1", 64),
        ("clz.b32 %r1, 1;", "%r1", 31),
        ("clz.b64 %r1, 0;", "%r1", 64),
        ("brev.b32 %r1, 1;", "%r1", 0x8000_0000),
        ("mov.b64 %rd1, {1, 2};", "%rd1", 0x2_0000_0001),
        (
            "mov.u64 %rd2, 0x700000005; mov.b64 {%r2, %r1}, %rd2;",
            "%r1",
            7,
        ),
        ("mov.u32 %r2, 0x70005; mov.b32 {%h2, %h1}, %r2;", "%h1", 7),
        ("mov.b32 %r1, {3, 4};", "%r1", 0x4_0003),
        ("mov.b64 %rd1, {1, 2, 3, 4};", "%rd1", 0x0004_0003_0002_0001),
    ]);
}

#[test]
fn comparisons_and_selection() {
    check(&[
        ("setp.lt.s32 %p1, -1, 1;", "%p1", 1),
        ("setp.lt.u32 %p1, -1, 1;", "%p1", 0),
        ("setp.lo.u32 %p1, 1, 2;", "%p1", 1),
        ("setp.hs.u64 %p1, 2, 2;", "%p1", 1),
        ("setp.ne.b16 %p1, 2, 3;", "%p1", 1),
        ("setp.ge.s16 %p1, -1, 0;", "%p1", 0),
        ("setp.eq.f32 %p1, 0f00000000, 0f80000000;", "%p1", 1),
        ("setp.ne.f32 %p1, 0f7FC00000, 0f00000000;", "%p1", 0),
        ("setp.neu.f32 %p1, 0f7FC00000, 0f00000000;", "%p1", 1),
        (
            "setp.ltu.f64 %p1, 0d7FF8000000000000, 0d0000000000000000;",
            "%p1",
            1,
        ),
        (
            "setp.lt.f64 %p1, 0d7FF8000000000000, 0d0000000000000000;",
            "%p1",
            0,
        ),
        ("setp.equ.f32 %p1, 0f7FC00000, 0f00000000;", "%p1", 1),
        ("setp.geu.f32 %p1, 0f3F800000, 0f40000000;", "%p1", 0),
        ("setp.num.f32 %p1, 0f3F800000, 0f7FC00000;", "%p1", 0),
        (
            "setp.nan.f64 %p1, 0d7FF8000000000000, 0d0000000000000000;",
            "%p1",
            1,
        ),
        ("setp.lt.s32 %p2|%p1, 3, 2;", "%p1", 1),
        ("setp.ne.u32 %p2, 1, 1; selp.b32 %r1, 5, 6, %p2;", "%r1", 6),
        ("setp.ne.u32 %p2, 1, 1; not.pred %p1, %p2;", "%p1", 1),
        (
            "mov.pred %p2, 1; mov.pred %p3, 0; xor.pred %p1, %p2, %p3;",
            "%p1",
            1,
        ),
    ]);
}

#[test]
fn float_arithmetic() {
    let third = 1.0f32 / 3.0;
    check(&[
        ("add.f32 %f1, 0f3F800000, 0f33800000;", "%f1", f(1.0)),
        (
            "mul.rn.f32 %f1, 0f40400000, 0f3EAAAAAB;",
            "%f1",
            f(3.0 * third),
        ),
        ("mul.f32 %f1, 0f00800000, 0f3F000000;", "%f1", 0x0040_0000),
        (
            "fma.rn.f32 %f1, 0f3F800001, 0f3F800001, 0fBF800002;",
            "%f1",
            f(2f32.powi(-46)),
        ),
        (
            "mad.rn.f32 %f1, 0f40000000, 0f40000000, 0f3F800000;",
            "%f1",
            f(5.0),
        ),
        ("div.rn.f32 %f1, 0f3F800000, 0f40400000;", "%f1", f(third)),
        ("div.full.f32 %f1, 0f3F800000, 0f40400000;", "%f1", f(third)),
        ("rcp.rn.f32 %f1, 0f40400000;", "%f1", f(third)),
        ("rcp.approx.ftz.f32 %f1, 0f40000000;", "%f1", f(0.5)),
        ("sqrt.rn.f32 %f1, 0f40000000;", "%f1", f(2f32.sqrt())),
        ("sqrt.approx.f32 %f1, 0f40800000;", "%f1", f(2.0)),
        ("rsqrt.approx.f32 %f1, 0f40800000;", "%f1", f(0.5)),
        (
            "sin.approx.f32 %f1, 0f3F800000;",
            "%f1",
            f(1f64.sin() as f32),
        ),
        ("cos.approx.f32 %f1, 0f00000000;", "%f1", f(1.0)),
        ("ex2.approx.f32 %f1, 0f40400000;", "%f1", f(8.0)),
        ("lg2.approx.f32 %f1, 0f41000000;", "%f1", f(3.0)),
        (
            "lg2.approx.f32 %f1, 0f00000000;",
            "%f1",
            f(f32::NEG_INFINITY),
        ),
        ("tanh.approx.f32 %f1, 0f00000000;", "%f1", 0),
        ("min.f32 %f1, 0f7FC00000, 0f3F800000;", "%f1", f(1.0)),
        ("neg.f32 %f1, 0f3F800000;", "%f1", f(-1.0)),
        ("abs.f32 %f1, 0fBF800000;", "%f1", f(1.0)),
        ("copysign.f32 %f1, 0fBF800000, 0f40000000;", "%f1", f(-2.0)),
        (
            "add.f64 %d1, 0d3FF0000000000000, 0d3CA0000000000000;",
            "%d1",
            1f64.to_bits(),
        ),
        (
            "fma.rn.f64 %d1, 0d4000000000000000, 0d4008000000000000, 0dBFF0000000000000;",
            "%d1",
            5f64.to_bits(),
        ),
        (
            "div.rn.f64 %d1, 0d3FF0000000000000, 0d4008000000000000;",
            "%d1",
            (1.0f64 / 3.0).to_bits(),
        ),
        (
            "sqrt.rn.f64 %d1, 0d4000000000000000;",
            "%d1",
            2f64.sqrt().to_bits(),
        ),
        (
            "min.f64 %d1, 0d4000000000000000, 0d3FF0000000000000;",
            "%d1",
            1f64.to_bits(),
        ),
    ]);
}

#[test]
fn conversions() {
    check(&[
        ("mov.u32 %r2, -1; cvt.s64.s32 %rd1, %r2;", "%rd1", u64::MAX),
        (
            "mov.u32 %r2, -1; cvt.u64.u32 %rd1, %r2;",
            "%rd1",
            0xffff_ffff,
        ),
        (
            "mov.u64 %rd2, 0x1ffffffff; cvt.u32.u64 %r1, %rd2;",
            "%r1",
            0xffff_ffff,
        ),
        (
            "mov.u32 %r2, 0x1ff; cvt.s32.s8 %r1, %r2;",
            "%r1",
            0xffff_ffff,
        ),
        ("mov.u32 %r2, 0x1ff; cvt.u32.u8 %r1, %r2;", "%r1", 0xff),
        (
            "mov.u32 %r2, -5; cvt.s64.s32 %rd2, %r2; cvt.u16.u64 %h1, %rd2;",
            "%h1",
            0xfffb,
        ),
        ("cvt.rn.f32.s32 %f1, -7;", "%f1", f(-7.0)),
        ("cvt.rn.f32.u32 %f1, 0x1000001;", "%f1", f(16_777_216.0)),
        (
            "cvt.rn.f64.u64 %d1, 0xffffffffffffffff;",
            "%d1",
            (u64::MAX as f64).to_bits(),
        ),
        ("cvt.rzi.s32.f32 %r1, 0fC0200000;", "%r1", 0xffff_fffe),
        ("cvt.rni.s32.f32 %r1, 0f40200000;", "%r1", 2),
        ("cvt.rni.s32.f32 %r1, 0f40600000;", "%r1", 4),
        ("cvt.rmi.s32.f32 %r1, 0fC0200000;", "%r1", 0xffff_fffd),
        ("cvt.rpi.s32.f64 %r1, 0d4002000000000000;", "%r1", 3),
        ("cvt.rzi.u32.f32 %r1, 0fBF800000;", "%r1", 0),
        ("cvt.rzi.s32.f32 %r1, 0f7F800000;", "%r1", 0x7fff_ffff),
        ("cvt.rzi.s32.f32 %r1, 0f7FC00000;", "%r1", 0),
        ("cvt.rzi.u8.f32 %r1, 0f43960000;", "%r1", 255),
        (
            "cvt.f64.f32 %d1, 0f3EAAAAAB;",
            "%d1",
            f64::from(1.0f32 / 3.0).to_bits(),
        ),
        (
            "cvt.rn.f32.f64 %f1, 0d3FD5555555555555;",
            "%f1",
            f(1.0 / 3.0),
        ),
        ("cvt.rni.f32.f32 %f1, 0f40200000;", "%f1", f(2.0)),
        (
            "cvt.rmi.f64.f64 %d1, 0dBFF8000000000000;",
            "%d1",
            (-2f64).to_bits(),
        ),
        ("cvt.sat.f32.f32 %f1, 0f40200000;", "%f1", f(1.0)),
    ]);
}

#[test]
fn memory_and_addresses() {
    check(&[
        (
            "st.global.u32 [%rd15], 0xfffe; ld.global.s8 %r1, [%rd15];",
            "%r1",
            0xffff_fffe,
        ),
        (
            "st.global.u32 [%rd15], 0xfffe; ld.global.u8 %r1, [%rd15+1];",
            "%r1",
            0xff,
        ),
        (
            "st.global.u64 [%rd15], -3; ld.s16 %rd1, [%rd15];",
            "%rd1",
            -3i64 as u64,
        ),
        (
            "st.global.v2.u32 [%rd15], {5, 6}; ld.global.v2.u32 {_, %r1}, [%rd15];",
            "%r1",
            6,
        ),
        (
            ".local .align 8 .b8 stack[32]; st.local.u64 [stack+8], 77; ld.local.u32 %r1, [stack+8];",
            "%r1",
            77,
        ),
        (
            ".local .align 8 .b8 stack[32]; mov.u64 %rd2, stack; cvta.local.u64 %rd3, %rd2; \
             st.u64 [%rd3+16], 78; cvta.to.local.u64 %rd4, %rd3; ld.local.u32 %r1, [%rd4+16];",
            "%r1",
            78,
        ),
        (
            ".shared .align 4 .b32 tile[8]; mov.u64 %rd2, tile; add.s64 %rd3, %rd2, 4; st.shared.u32 [%rd3], 9; \
             ld.shared.u32 %r1, [tile+4];",
            "%r1",
            9,
        ),
        (
            "mov.b64 %rd2, out; ld.param.u64 %rd3, [%rd2]; sub.s64 %rd1, %rd3, %rd15;",
            "%rd1",
            0,
        ),
        (
            "st.global.u32 [%rd15], 5; atom.global.add.u32 %r1, [%rd15], 2;",
            "%r1",
            5,
        ),
        (
            "st.global.u32 [%rd15], 5; red.global.max.s32 [%rd15], 9; ld.global.u32 %r1, [%rd15];",
            "%r1",
            9,
        ),
        (
            "st.global.u32 [%rd15], 5; atom.cas.b32 %r2, [%rd15], 5, 8; ld.global.u32 %r1, [%rd15];",
            "%r1",
            8,
        ),
        (
            "st.global.u32 [%rd15], 5; atom.cas.b32 %r2, [%rd15], 6, 8; ld.global.u32 %r1, [%rd15];",
            "%r1",
            5,
        ),
        (
            "st.global.f32 [%rd15], 0f3F800000; atom.global.add.f32 %f2, [%rd15], 0f40000000; ld.f32 %f1, [%rd15];",
            "%f1",
            f(3.0),
        ),
        (
            ".shared .b32 n; st.shared.u32 [n], 3; atom.shared.exch.b32 %r2, [n], 4; ld.shared.u32 %r1, [n];",
            "%r1",
            4,
        ),
        ("mov.u32 %r1, %ntid.x;", "%r1", 1),
        ("mov.u32 %r1, %nctaid.z;", "%r1", 1),
        (
            "mov.u32 %r2, %laneid; add.u32 %r1, %r2, WARP_SZ;",
            "%r1",
            32,
        ),
    ]);
}

#[test]
fn control_flow() {
    check(&[
        (
            "mov.u32 %r1, 1; bra.uni DONE; mov.u32 %r1, 2; DONE:",
            "%r1",
            1,
        ),
        (
            "mov.u32 %r1, 1; setp.eq.u32 %p1, 1, 1; @!%p1 mov.u32 %r1, 2;",
            "%r1",
            1,
        ),
        (
            "mov.u32 %r1, 0; L: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 10; @%p1 bra L;",
            "%r1",
            10,
        ),
        (
            "{ .reg .b32 %r1; mov.u32 %r1, 5; } mov.u32 %r1, 4; { .reg .b32 t; mov.u32 t, 3; add.u32 %r1, %r1, t; }",
            "%r1",
            7,
        ),
        (
            "membar.gl; fence.acq_rel.gpu; nanosleep.u32 20; mov.u32 %r1, 3;",
            "%r1",
            3,
        ),
        (
            ".pragma \"nounroll\"; .loc 1 2 3\n mov.u32 %r1, 3; /* a ; b */ // c",
            "%r1",
            3,
        ),
    ]);
}

#[test]
fn what_is_not_carried_traps_when_reached() {
    let code = "mov.u32 %r1, 1; setp.eq.u32 %p1, 1, 2; @%p1 tex.2d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [%rd1, {%r1, %r2}];";
    assert_eq!(run(code, "%r1"), Ok(1));
    let reached = run("bar.red.popc.u32 %r1, 0, %p1;", "%r1");
    assert_eq!(
        reached,
        Err(Trap::Unsupported {
            line: 8,
            text: "bar.red.popc.u32 %r1, 0, %p1".into()
        })
    );
    assert_eq!(run("trap;", "%r1"), Err(Trap::Instruction { line: 8 }));
    assert!(matches!(
        run("fma.rz.f64 %d1, %d1, %d1, %d1;", "%d1"),
        Err(Trap::Unsupported { .. })
    ));
}

#[test]
fn faults_name_address_and_line() {
    let at = run("mov.u64 %rd2, 64; ld.global.u32 %r1, [%rd2+4];", "%r1");
    assert_eq!(at, Err(Trap::IllegalAddress { addr: 68, line: 8 }));
    let at = run("\nld.global.u32 %r1, [%rd15+2];", "%r1");
    assert!(
        matches!(at, Err(Trap::MisalignedAddress { line: 9, .. })),
        "{at:?}"
    );
    let at = run("ld.shared.u32 %r1, [1024];", "%r1");
    assert_eq!(
        at,
        Err(Trap::IllegalAddress {
            addr: 1024,
            line: 8
        })
    );
    let at = run("st.param.u32 [%rd15], 1;", "%r1");
    assert!(matches!(at, Err(Trap::IllegalAddress { .. })), "{at:?}");
}

#[test]
fn text_errors_name_the_line() {
    let rows = [
        ("add.u32 %r1, %r99, 1;", "register %r99 is not declared"),
        (
            "frobnicate %r1, 1;",
            "`frobnicate` is no instruction of PTX",
        ),
        ("bra NOWHERE;", "label NOWHERE is not in the function"),
        ("add.u32 %r1, 1;", "wrong number of operands"),
        ("add.u32 %r1 1, 2;", "`;` is expected here"),
        ("call nothing, ();", "function nothing is not declared"),
        ("@%q bra X;", "predicate %q is not declared"),
    ];
    for (code, message) in rows {
        let error = Module::link(&[&text(&format!("\n{code}"), "%r1")]).expect_err(code);
        assert_eq!(error.line, 9, "{error}");
        assert!(error.message.contains(message), "{error}");
    }
    assert_eq!(Module::link(&["hello world"]).unwrap_err().line, 1);
    assert!(Module::link(&[""]).is_err());
    assert!(
        Module::link(&[".version 8.0\n.target sm_80\n.address_size 64\n.entry k() { ret; "])
            .is_err()
    );
}

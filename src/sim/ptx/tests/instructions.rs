//! One instruction at a time: tables of PTX, and the expected bits in a register.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Flat, launch_one};
use gshare_sim_ptx::{Module, Trap};

fn is_wide(result: &str) -> bool {
    result.starts_with("%rd") || result.starts_with("%d")
}

fn text(code: &str, result: &str) -> String {
    let store = if is_wide(result) {
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
    Ok(u64::from_le_bytes(memory.get(out, 1)[0]))
}

/// Rows of a register, what it must hold (a float with `f` or `d`), and the code, which may go on in further lines.
fn check(table: &str) {
    let mut rows: Vec<String> = Vec::new();
    for line in table.lines().map(str::trim) {
        match rows.last_mut() {
            Some(row) if !line.starts_with('%') => *row += &format!("\n{line}"),
            _ if line.is_empty() => {}
            _ => rows.push(line.to_owned()),
        }
    }
    for row in rows {
        let (result, rest) = row.split_once(' ').unwrap();
        let (expect, code) = rest.trim().split_once(' ').unwrap();
        let got = run(code, result).unwrap_or_else(|e| panic!("{e}\n{code}"));
        let (got, expect) = match is_wide(result) {
            true => (got, bits(expect)),
            false => (got & 0xffff_ffff, bits(expect) & 0xffff_ffff),
        };
        assert_eq!(got, expect, "{code}: got {got:#x}, want {expect:#x}");
    }
}

fn bits(text: &str) -> u64 {
    if let Some(hex) = text.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).unwrap();
    }
    match (text.strip_suffix('f'), text.strip_suffix('d')) {
        (Some(float), _) => float.parse::<f32>().unwrap().to_bits().into(),
        (_, Some(double)) => double.parse::<f64>().unwrap().to_bits(),
        _ => text.parse::<i64>().unwrap().cast_unsigned(),
    }
}

#[test]
fn integer_arithmetic() {
    check(
        "
        %r1   1                    add.u32 %r1, 4294967295, 2;
        %rd1  2                    add.s64 %rd1, -1, 3;
        %h1   2                    add.u16 %h1, 65535, 3;
        %r1   0xfffffffe           sub.s32 %r1, 3, 5;
        %r1   0xfffffff1           mul.lo.s32 %r1, -3, 5;
        %r1   3                    mul.hi.u32 %r1, 0x80000000, 6;
        %r1   0xffffffff           mul.hi.s32 %r1, -2, 3;
        %rd1  3                    mul.hi.u64 %rd1, 0x8000000000000000, 6;
        %rd1  -1                   mul.hi.s64 %rd1, -2, 3;
        %rd1  -6                   mul.wide.s32 %rd1, -2, 3;
        %rd1  0xfffffffe00000001   mul.wide.u32 %rd1, 0xffffffff, 0xffffffff;
        %r1   -600                 mul.wide.s16 %r1, -2, 300;
        %r1   0xfffe0001           mul.wide.u16 %r1, 65535, 65535;
        %r1   0xfffffff8           mad.lo.s32 %r1, 3, 4, -20;
        %r1   13                   mad.hi.u32 %r1, 0x80000000, 6, 10;
        %rd1  0x100000007          mad.wide.u32 %rd1, 0x10000, 0x10000, 7;
        %rd1  -9                   mad.wide.s32 %rd1, -1, 2, -7;
        %r1   0xfffffffd           div.s32 %r1, -7, 2;
        %r1   0x0fffffff           div.u32 %r1, 0xffffffff, 16;
        %r1   0x80000000           div.s32 %r1, 0x80000000, -1;
        %rd1  14                   div.u64 %rd1, 100, 7;
        %r1   0xffffffff           rem.s32 %r1, -7, 2;
        %rd1  2                    rem.u64 %rd1, 100, 7;
        %r1   7                    abs.s32 %r1, -7;
        %rd1  -7                   neg.s64 %rd1, 7;
        %r1   0xfffffff9           min.s32 %r1, -7, 2;
        %r1   2                    min.u32 %r1, -7, 2;
        %rd1  2                    max.s64 %rd1, -7, 2;
        ",
    );
}

#[test]
fn bits_and_shifts() {
    check(
        "
        %r1   8                    and.b32 %r1, 12, 10;
        %rd1  15                   or.b64 %rd1, 12, 3;
        %r1   6                    xor.b32 %r1, 12, 10;
        %r1   0xffffffff           not.b32 %r1, 0;
        %r1   0x80000000           shl.b32 %r1, 1, 31;
        %r1   0                    shl.b32 %r1, 1, 32;
        %r1   1                    shr.u32 %r1, 0x80000000, 31;
        %r1   0                    shr.u32 %r1, 0x80000000, 32;
        %r1   0xffffffff           shr.s32 %r1, 0x80000000, 40;
        %rd1  -2                   shr.s64 %rd1, -8, 2;
        %r1   8                    popc.b32 %r1, 0xf0f0;
        %r1   64                   popc.b64 %r1, -1;
        %r1   31                   clz.b32 %r1, 1;
        %r1   64                   clz.b64 %r1, 0;
        %r1   0x80000000           brev.b32 %r1, 1;
        %rd1  0x200000001          mov.b64 %rd1, {1, 2};
        %r1   7                    mov.u64 %rd2, 0x700000005; mov.b64 {%r2, %r1}, %rd2;
        %h1   7                    mov.u32 %r2, 0x70005; mov.b32 {%h2, %h1}, %r2;
        %r1   0x40003              mov.b32 %r1, {3, 4};
        %rd1  0x0004000300020001   mov.b64 %rd1, {1, 2, 3, 4};
        ",
    );
}

#[test]
fn comparisons_and_selection() {
    check(
        "
        %p1   1                    setp.lt.s32 %p1, -1, 1;
        %p1   0                    setp.lt.u32 %p1, -1, 1;
        %p1   1                    setp.lo.u32 %p1, 1, 2;
        %p1   1                    setp.hs.u64 %p1, 2, 2;
        %p1   1                    setp.ne.b16 %p1, 2, 3;
        %p1   0                    setp.ge.s16 %p1, -1, 0;
        %p1   1                    setp.eq.f32 %p1, 0f00000000, 0f80000000;
        %p1   0                    setp.ne.f32 %p1, 0f7FC00000, 0f00000000;
        %p1   1                    setp.neu.f32 %p1, 0f7FC00000, 0f00000000;
        %p1   1                    setp.ltu.f64 %p1, 0d7FF8000000000000, 0d0000000000000000;
        %p1   0                    setp.lt.f64 %p1, 0d7FF8000000000000, 0d0000000000000000;
        %p1   1                    setp.equ.f32 %p1, 0f7FC00000, 0f00000000;
        %p1   0                    setp.geu.f32 %p1, 0f3F800000, 0f40000000;
        %p1   0                    setp.num.f32 %p1, 0f3F800000, 0f7FC00000;
        %p1   1                    setp.nan.f64 %p1, 0d7FF8000000000000, 0d0000000000000000;
        %p1   1                    setp.lt.s32 %p2|%p1, 3, 2;
        %r1   6                    setp.ne.u32 %p2, 1, 1; selp.b32 %r1, 5, 6, %p2;
        %p1   1                    setp.ne.u32 %p2, 1, 1; not.pred %p1, %p2;
        %p1   1                    mov.pred %p2, 1; mov.pred %p3, 0; xor.pred %p1, %p2, %p3;
        ",
    );
}

#[test]
fn float_arithmetic() {
    check(
        "
        %f1   1f                   add.f32 %f1, 0f3F800000, 0f33800000;
        %f1   1f                   mul.rn.f32 %f1, 0f40400000, 0f3EAAAAAB;
        %f1   0x00400000           mul.f32 %f1, 0f00800000, 0f3F000000;
        %f1   1.4210855e-14f       fma.rn.f32 %f1, 0f3F800001, 0f3F800001, 0fBF800002;
        %f1   5f                   mad.rn.f32 %f1, 0f40000000, 0f40000000, 0f3F800000;
        %f1   0.33333334f          div.rn.f32 %f1, 0f3F800000, 0f40400000;
        %f1   0.33333334f          div.full.f32 %f1, 0f3F800000, 0f40400000;
        %f1   0.33333334f          rcp.rn.f32 %f1, 0f40400000;
        %f1   0.5f                 rcp.approx.ftz.f32 %f1, 0f40000000;
        %f1   1.4142135f           sqrt.rn.f32 %f1, 0f40000000;
        %f1   2f                   sqrt.approx.f32 %f1, 0f40800000;
        %f1   0.5f                 rsqrt.approx.f32 %f1, 0f40800000;
        %f1   0.84147096f          sin.approx.f32 %f1, 0f3F800000;
        %f1   1f                   cos.approx.f32 %f1, 0f00000000;
        %f1   8f                   ex2.approx.f32 %f1, 0f40400000;
        %f1   3f                   lg2.approx.f32 %f1, 0f41000000;
        %f1   -inff                lg2.approx.f32 %f1, 0f00000000;
        %f1   0                    tanh.approx.f32 %f1, 0f00000000;
        %f1   1f                   min.f32 %f1, 0f7FC00000, 0f3F800000;
        %f1   -1f                  neg.f32 %f1, 0f3F800000;
        %f1   1f                   abs.f32 %f1, 0fBF800000;
        %f1   -2f                  copysign.f32 %f1, 0fBF800000, 0f40000000;
        %d1   1d                   add.f64 %d1, 0d3FF0000000000000, 0d3CA0000000000000;
        %d1   5d                   fma.rn.f64 %d1, 0d4000000000000000, 0d4008000000000000, 0dBFF0000000000000;
        %d1   0.3333333333333333d  div.rn.f64 %d1, 0d3FF0000000000000, 0d4008000000000000;
        %d1   1.4142135623730951d  sqrt.rn.f64 %d1, 0d4000000000000000;
        %d1   1d                   min.f64 %d1, 0d4000000000000000, 0d3FF0000000000000;
        ",
    );
}

#[test]
fn conversions() {
    check(
        "
        %rd1  -1                   mov.u32 %r2, -1; cvt.s64.s32 %rd1, %r2;
        %rd1  0xffffffff           mov.u32 %r2, -1; cvt.u64.u32 %rd1, %r2;
        %r1   0xffffffff           mov.u64 %rd2, 0x1ffffffff; cvt.u32.u64 %r1, %rd2;
        %r1   0xffffffff           mov.u32 %r2, 0x1ff; cvt.s32.s8 %r1, %r2;
        %r1   0xff                 mov.u32 %r2, 0x1ff; cvt.u32.u8 %r1, %r2;
        %h1   0xfffb               mov.u32 %r2, -5; cvt.s64.s32 %rd2, %r2; cvt.u16.u64 %h1, %rd2;
        %f1   -7f                  cvt.rn.f32.s32 %f1, -7;
        %f1   16777216f            cvt.rn.f32.u32 %f1, 0x1000001;
        %d1   18446744073709551615d cvt.rn.f64.u64 %d1, 0xffffffffffffffff;
        %r1   0xfffffffe           cvt.rzi.s32.f32 %r1, 0fC0200000;
        %r1   2                    cvt.rni.s32.f32 %r1, 0f40200000;
        %r1   4                    cvt.rni.s32.f32 %r1, 0f40600000;
        %r1   0xfffffffd           cvt.rmi.s32.f32 %r1, 0fC0200000;
        %r1   3                    cvt.rpi.s32.f64 %r1, 0d4002000000000000;
        %r1   0                    cvt.rzi.u32.f32 %r1, 0fBF800000;
        %r1   0x7fffffff           cvt.rzi.s32.f32 %r1, 0f7F800000;
        %r1   0                    cvt.rzi.s32.f32 %r1, 0f7FC00000;
        %r1   255                  cvt.rzi.u8.f32 %r1, 0f43960000;
        %d1   0.3333333432674408d  cvt.f64.f32 %d1, 0f3EAAAAAB;
        %f1   0.33333334f          cvt.rn.f32.f64 %f1, 0d3FD5555555555555;
        %f1   2f                   cvt.rni.f32.f32 %f1, 0f40200000;
        %d1   -2d                  cvt.rmi.f64.f64 %d1, 0dBFF8000000000000;
        %f1   1f                   cvt.sat.f32.f32 %f1, 0f40200000;
        ",
    );
}

#[test]
fn memory_and_addresses() {
    check(
        "
        %r1   0xfffffffe           st.global.u32 [%rd15], 0xfffe; ld.global.s8 %r1, [%rd15];
        %r1   0xff                 st.global.u32 [%rd15], 0xfffe; ld.global.u8 %r1, [%rd15+1];
        %rd1  -3                   st.global.u64 [%rd15], -3; ld.s16 %rd1, [%rd15];
        %r1   6                    st.global.v2.u32 [%rd15], {5, 6}; ld.global.v2.u32 {_, %r1}, [%rd15];
        %r1   77                   .local .align 8 .b8 stack[32]; st.local.u64 [stack+8], 77;
                                   ld.local.u32 %r1, [stack+8];
        %r1   78                   .local .align 8 .b8 stack[32]; mov.u64 %rd2, stack;
                                   cvta.local.u64 %rd3, %rd2; st.u64 [%rd3+16], 78;
                                   cvta.to.local.u64 %rd4, %rd3; ld.local.u32 %r1, [%rd4+16];
        %r1   9                    .shared .align 4 .b32 tile[8]; mov.u64 %rd2, tile; add.s64 %rd3, %rd2, 4;
                                   st.shared.u32 [%rd3], 9; ld.shared.u32 %r1, [tile+4];
        %rd1  0                    mov.b64 %rd2, out; ld.param.u64 %rd3, [%rd2]; sub.s64 %rd1, %rd3, %rd15;
        %r1   5                    st.global.u32 [%rd15], 5; atom.global.add.u32 %r1, [%rd15], 2;
        %r1   9                    st.global.u32 [%rd15], 5; red.global.max.s32 [%rd15], 9;
                                   ld.global.u32 %r1, [%rd15];
        %r1   8                    st.global.u32 [%rd15], 5; atom.cas.b32 %r2, [%rd15], 5, 8;
                                   ld.global.u32 %r1, [%rd15];
        %r1   5                    st.global.u32 [%rd15], 5; atom.cas.b32 %r2, [%rd15], 6, 8;
                                   ld.global.u32 %r1, [%rd15];
        %f1   3f                   st.global.f32 [%rd15], 0f3F800000;
                                   atom.global.add.f32 %f2, [%rd15], 0f40000000; ld.f32 %f1, [%rd15];
        %r1   4                    .shared .b32 n; st.shared.u32 [n], 3; atom.shared.exch.b32 %r2, [n], 4;
                                   ld.shared.u32 %r1, [n];
        %r1   1                    mov.u32 %r1, %ntid.x;
        %r1   1                    mov.u32 %r1, %nctaid.z;
        %r1   32                   mov.u32 %r2, %laneid; add.u32 %r1, %r2, WARP_SZ;
        ",
    );
}

#[test]
fn control_flow() {
    check(
        "
        %r1   1                    mov.u32 %r1, 1; bra.uni DONE; mov.u32 %r1, 2; DONE:
        %r1   1                    mov.u32 %r1, 1; setp.eq.u32 %p1, 1, 1; @!%p1 mov.u32 %r1, 2;
        %r1   10                   mov.u32 %r1, 0; L: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 10; @%p1 bra L;
        %r1   7                    { .reg .b32 %r1; mov.u32 %r1, 5; } mov.u32 %r1, 4; { .reg .b32 t;
                                   mov.u32 t, 3; add.u32 %r1, %r1, t; }
        %r1   3                    membar.gl; fence.acq_rel.gpu; nanosleep.u32 20; mov.u32 %r1, 3;
        %r1   3                    .pragma \"nounroll\"; .loc 1 2 3
                                   mov.u32 %r1, 3; /* a ; b */ // c
        ",
    );
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

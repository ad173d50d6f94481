//! Beyond single instructions: atomics, barriers, warps, budgets, traps, linking, variables.

mod common;

use common::{Flat, Params, bind, launch_one, module, read_f32, read_f64, read_i32, read_i64, run};
use gshare_sim_ptx::{LaunchConfig, Module, Trap};

const FEATURES: &str = include_str!("data/nvrtc_features.ptx");

#[test]
fn atomics_on_global_memory() {
    let n = 500;
    let mut memory = Flat(Vec::new());
    let module = module(FEATURES, &mut memory);
    let sum = memory.put([[0; 4]; 2]);
    let max = memory.put([[0; 8]]);
    let fs = memory.put([[0; 4]]);
    let params = Params::default().u64(sum).u64(max).u64(fs).i32(n);
    run(&module, "atom", 4, 128, &params.0, &mut memory);
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
    run(&module, "barrier", 2, 64, &params.0, &mut memory);
    assert_eq!(
        read_i32(&memory, out, 64),
        (0..64).rev().collect::<Vec<_>>()
    );
}

#[test]
fn reductions_in_shared_memory_and_across_a_warp() {
    let mut memory = Flat(Vec::new());
    let module = module(include_str!("data/nvrtc_reduce.ptx"), &mut memory);
    let n = 3000;
    // Whole numbers, so that the order of additions does not matter.
    let input: Vec<f32> = (0..n).map(|i| (i % 17) as f32 - 5.0).collect();
    let pin = memory.put(input.iter().map(|v| v.to_le_bytes()));
    let out = memory.put([[0; 4]]);
    let params = Params::default().u64(pin).u64(out).i32(n);
    let config = LaunchConfig {
        grid: [5, 1, 1],
        block: [128, 1, 1],
        params: &params.0,
        dynamic_shared: 512,
        budget: u64::MAX,
    };
    module.launch("reduce", &config, &mut memory).unwrap();
    assert_eq!(read_f32(&memory, out, 1), [input.iter().sum::<f32>()]);
    let short = LaunchConfig {
        dynamic_shared: 500,
        ..config
    };
    assert!(matches!(
        module.launch("reduce", &short, &mut memory),
        Err(Trap::IllegalAddress { .. })
    ));

    let input: Vec<i32> = (0..64).map(|i| i * 5 % 11).collect();
    let pin = memory.put(input.iter().map(|v| v.to_le_bytes()));
    let out = memory.put([[0; 4]]);
    let params = Params::default().u64(pin).u64(out);
    run(&module, "warp_sum", 1, 64, &params.0, &mut memory);
    let sum: i32 = input.iter().sum();
    let above = input.iter().filter(|v| **v > 3).count() as i32;
    // Each of the first two lanes sees a sum above 2: any and all hold.
    assert_eq!(read_i32(&memory, out, 1), [sum + above + 4]);
}

#[test]
fn runaway_kernels_end_with_their_budget() {
    let mut memory = Flat(Vec::new());
    let module = module(FEATURES, &mut memory);
    let flag = memory.put([[0; 4]]);
    let params = flag.to_le_bytes();
    let config = LaunchConfig {
        grid: [1; 3],
        block: [1; 3],
        params: &params,
        dynamic_shared: 0,
        budget: 10_000,
    };
    assert_eq!(
        module.launch("spin", &config, &mut memory),
        Err(Trap::Budget)
    );
}

#[test]
fn a_variable_has_an_address_before_it_is_used() {
    let mut memory = Flat(Vec::new());
    let mut module = Module::link(&[FEATURES]).unwrap();
    let place = memory.put([[0; 1]; 256]);
    let params = Params::default().u64(place).u64(place).i32(1);
    let unbound = launch_one(&module, "consts", &params.0, &mut memory).unwrap_err();
    assert_eq!(unbound, Trap::UnboundGlobal("table".into()));
    module.bind_global("table", place);
    assert!(launch_one(&module, "consts", &params.0, &mut memory).is_ok());
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
         ld.param.u64 %rd1, [out]; mov.u32 %r3, 3; call (%r1), plus, (%r3);\n\
         call (%r2), plus, (%r1); st.global.v2.u32 [%rd1], {{%r1, %r2}}; ret; }}"
    );
    for texts in [[&caller, &callee], [&callee, &caller]] {
        let mut module = Module::link(&texts.map(String::as_str)).unwrap();
        let mut memory = Flat(Vec::new());
        bind(&mut module, &mut memory);
        let out = memory.put([[0; 8]]);
        run(&module, "k", 1, 1, &out.to_le_bytes(), &mut memory);
        assert_eq!(read_i32(&memory, out, 2), [46, 132]);
    }
    // Unlinked it can be loaded, and traps at the call.
    let mut memory = Flat(Vec::new());
    let module = module(&caller, &mut memory);
    let out = memory.put([[0; 8]]);
    let trap = launch_one(&module, "k", &out.to_le_bytes(), &mut memory);
    assert!(
        matches!(trap, Err(Trap::Unsupported { line: 7, .. })),
        "{trap:?}"
    );
}

#[test]
fn warps_talk_by_shuffles_and_votes() {
    let text = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 out) {\n\
         .reg .b64 %rd<4>; .reg .b32 %r<8>; .reg .pred %p<4>;\n\
         ld.param.u64 %rd1, [out]; mov.u32 %r1, %laneid; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd1, %rd1, %rd2;\n\
         bar.warp.sync -1; shfl.sync.down.b32 %r2|%p1, %r1, 4, 31, -1; shfl.sync.bfly.b32 %r3, %r1, 1, 31, -1;\n\
         shfl.sync.up.b32 %r4, %r1, 1, 0, -1; shfl.sync.idx.b32 %r5, %r1, 7, 31, -1;\n\
         setp.lt.u32 %p2, %r1, 3; vote.sync.ballot.b32 %r6, %p2, -1;\n\
         mad.lo.u32 %r2, %r2, 100, %r3; mad.lo.u32 %r2, %r2, 100, %r4; mad.lo.u32 %r2, %r2, 10, %r5;\n\
         mad.lo.u32 %r2, %r2, 10, %r6; @!%p1 mov.u32 %r2, 0; st.global.u32 [%rd1], %r2; ret; }";
    let module = Module::link(&[text]).unwrap();
    let mut memory = Flat(Vec::new());
    let out = memory.put([[0; 4]; 32]);
    run(&module, "k", 1, 32, &out.to_le_bytes(), &mut memory);
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
fn lanes_that_come_later_are_waited_for() {
    // The upper half reaches the shuffle by a longer way, which is later in the text.
    let text = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 out) {\n\
         .reg .b64 %rd<4>; .reg .b32 %r<8>; .reg .pred %p<4>;\n\
         ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd1, %rd1, %rd2;\n\
         setp.ge.u32 %p1, %r1, 16; mov.u32 %r2, %r1; @%p1 bra FAR;\n\
         MEET: shfl.sync.bfly.b32 %r3, %r2, 16, 31, -1; st.global.u32 [%rd1], %r3; ret;\n\
         FAR: add.u32 %r2, %r2, 100; add.u32 %r2, %r2, 100; bra MEET; }";
    let module = Module::link(&[text]).unwrap();
    let mut memory = Flat(Vec::new());
    let out = memory.put([[0; 4]; 32]);
    run(&module, "k", 1, 32, &out.to_le_bytes(), &mut memory);
    let expect: Vec<i32> = (0..32)
        .map(|l| if l < 16 { l + 216 } else { l - 16 })
        .collect();
    assert_eq!(read_i32(&memory, out, 32), expect);
}

#[test]
fn a_copy_of_a_special_register_leaves_the_first_in_place() {
    let text = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 out) {\n\
         .reg .b64 %rd<4>; .reg .b32 %r<8>;\n\
         ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; mov.u32 %r2, %r1; mul.wide.u32 %rd2, %r1, 4;\n\
         add.s64 %rd1, %rd1, %rd2; mad.lo.u32 %r3, %r1, 100, %r2; st.global.u32 [%rd1], %r3; ret; }";
    let module = Module::link(&[text]).unwrap();
    let mut memory = Flat(Vec::new());
    let out = memory.put([[0; 4]; 4]);
    run(&module, "k", 1, 4, &out.to_le_bytes(), &mut memory);
    assert_eq!(read_i32(&memory, out, 4), [0, 101, 202, 303]);
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
    run(&module, "k", 1, 1, &out.to_le_bytes(), &mut memory);
    assert_eq!(read_i32(&memory, out, 1), [3]);
    assert_eq!(read_f64(&memory, out + 8, 1), [0.5]);
}

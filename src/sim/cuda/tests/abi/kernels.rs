//! Programs: loading, linking, launching, failing.

use std::ffi::{CStr, CString, c_void};

use crate::support::{Context, PTX, alloc, download, kernel, launch, upload};
use crate::{cu, ok};

fn run_triple(f: u64, n: u32) {
    let source: Vec<u32> = (0..n).map(|i| i.wrapping_mul(40_503)).collect();
    let (mut src, mut out, mut count) = (upload(&source), alloc(4 * n as usize), n);
    let mut params = [
        (&raw mut out).cast::<c_void>(),
        (&raw mut src).cast(),
        (&raw mut count).cast(),
    ];
    assert_eq!(launch(f, n.div_ceil(128), 128, 0, &mut params), 0);
    let expect: Vec<u32> = (0..n)
        .map(|i| source[i as usize].wrapping_mul(3).wrapping_add(i))
        .collect();
    assert_eq!(download::<u32>(out, n as usize), expect);
}

/// The same holds for all memory.
#[test]
fn variables_cost_the_host_what_is_touched_of_them() {
    let _c = Context::on(1);
    // Memory that was used before.
    let bytes = 1usize << 30;
    let before = alloc(bytes);
    ok!(cuMemsetD32_v2(before + bytes as u64 - 8, 1u32, 2usize));
    ok!(cuMemFree_v2(before));
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
        let kib = |l: &str| {
            l.strip_prefix("RssShmem:")?
                .trim()
                .strip_suffix(" kB")?
                .parse()
                .ok()
        };
        status.lines().find_map(kib).unwrap_or(0usize)
    };
    let (had, large) = (
        resident(),
        format!(".global .align 8 .b32 large[{}] = {{5, 6}};", bytes / 4),
    );
    let text = CString::new(PTX.replacen(".global", &format!("{large}\n.global"), 1));
    let (mut module, mut addr, mut size) = (0u64, 0u64, 0usize);
    ok!(cuModuleLoadData(
        &raw mut module,
        text.expect("ptx").as_ptr()
    ));
    ok!(cuModuleGetGlobal_v2(
        &raw mut addr,
        &raw mut size,
        module,
        c"large".as_ptr()
    ));
    assert!(resident() < had + (bytes >> 12), "{} KiB", resident() - had);
    assert_eq!(size, bytes);
    assert_eq!(download::<u32>(addr, 3), [5, 6, 0]);
    assert_eq!(download::<u32>(addr + bytes as u64 - 8, 2), [0, 0]);
    ok!(cuModuleUnload(module));
}

#[test]
fn libraries_give_kernels_to_every_context() {
    let a = Context::on(1);
    let text = CString::new(PTX).expect("ptx");
    let (mut library, mut k) = (0u64, 0u64);
    let none = std::ptr::null_mut::<c_void>();
    ok!(cuLibraryLoadData(
        &raw mut library,
        text.as_ptr(),
        none,
        none,
        0u32,
        none,
        none,
        0u32
    ));
    ok!(cuLibraryGetKernel(&raw mut k, library, c"triple".as_ptr()));
    run_triple(k, 100);
    let b = Context::on(2);
    run_triple(k, 100);
    let mut f = 0u64;
    ok!(cuKernelGetFunction(&raw mut f, k));
    run_triple(f, 50);
    drop(b);
    ok!(cuCtxSetCurrent(a.handle));
    run_triple(k, 10);
    ok!(cuLibraryUnload(library));
    assert_eq!(cu!(cuKernelGetFunction(&raw mut f, k)), 400);
}

#[test]
fn the_linker_joins_texts() {
    let _c = Context::on(1);
    let caller = c"
.version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b32 r) plus_one(.param .b32 x);
.visible .entry call(.param .u64 out)
{
    .reg .b32 %r<3>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [out];
    cvta.to.global.u64 %rd1, %rd1;
    mov.u32 %r1, 41;
    {
        .param .b32 p;
        .param .b32 q;
        st.param.b32 [p], %r1;
        call.uni (q), plus_one, (p);
        ld.param.b32 %r2, [q];
    }
    st.global.u32 [%rd1], %r2;
    ret;
}
";
    let callee = c"
.version 8.0
.target sm_80
.address_size 64
.visible .func (.param .b32 r) plus_one(.param .b32 x)
{
    .reg .b32 %r<3>;
    ld.param.b32 %r1, [x];
    add.s32 %r2, %r1, 1;
    st.param.b32 [r], %r2;
    ret;
}
";
    let none = std::ptr::null_mut::<c_void>();
    let mut state = 0u64;
    ok!(cuLinkCreate_v2(0u32, none, none, &raw mut state));
    for text in [caller, callee] {
        let bytes = text.to_bytes_with_nul();
        ok!(cuLinkAddData_v2(
            state,
            1u32,
            bytes.as_ptr(),
            bytes.len(),
            c"t".as_ptr(),
            0u32,
            none,
            none
        ));
    }
    let (mut image, mut size, mut module, mut f) = (0u64, 0usize, 0u64, 0u64);
    ok!(cuLinkComplete(state, &raw mut image, &raw mut size));
    assert!(size > 100);
    ok!(cuModuleLoadData(&raw mut module, image));
    ok!(cuLinkDestroy(state));
    ok!(cuModuleGetFunction(&raw mut f, module, c"call".as_ptr()));
    let mut out = alloc(4);
    let mut params = [(&raw mut out).cast::<c_void>()];
    assert_eq!(launch(f, 1, 1, 0, &mut params), 0);
    assert_eq!(download::<u32>(out, 1), [42]);
}

#[test]
fn bad_programs_are_refused_with_words() {
    let _c = Context::on(1);
    let mut module = 0u64;
    let bad = c".version 8.0\n.target sm_80\n.visible .entry f( { what\n";
    let mut log = [0u8; 200];
    let names = [5u32, 6];
    let mut values = [log.as_mut_ptr() as u64, 200];
    let code = cu!(cuModuleLoadDataEx(
        &raw mut module,
        bad.as_ptr(),
        2u32,
        names.as_ptr(),
        values.as_mut_ptr()
    ));
    assert_eq!(code, 218);
    let text = CStr::from_bytes_until_nul(&log)
        .expect("text")
        .to_str()
        .expect("utf-8");
    assert!(text.contains("line"), "{text:?}");
    assert_eq!(values[1] as usize, text.len());
}

#[test]
fn a_bad_address_ends_the_context_and_no_other() {
    let good = Context::on(1);
    let bad = Context::on(1);
    let f = kernel(PTX, "biased");
    let mut out = 0x1234_5000u64;
    let mut params = [(&raw mut out).cast::<c_void>()];
    assert_eq!(
        launch(f, 1, 1, 0, &mut params),
        0,
        "the launch itself succeeds"
    );
    assert_eq!(cu!(cuCtxSynchronize()), 700);
    let mut p = 0u64;
    assert_eq!(cu!(cuMemAlloc_v2(&raw mut p, 100usize)), 700);
    assert_eq!(launch(f, 1, 1, 0, &mut params), 700);
    assert_eq!(cu!(cuStreamSynchronize(0u64)), 700);
    drop(bad);
    ok!(cuCtxSetCurrent(good.handle));
    run_triple(kernel(PTX, "triple"), 1000);
}

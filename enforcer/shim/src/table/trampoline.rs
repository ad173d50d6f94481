//! Paths through the proxy for entry points without a hook: mark the thread, check that the claim has its GPU, call,
//! clear the mark. Every argument reaches the driver unchanged; only `rax` and `r11` are used, which hold no argument
//! of a function with a fixed number of them.

use std::{
    ffi::c_void,
    sync::atomic::{AtomicU32, Ordering},
};

use gshare_abi::State;

use crate::{
    cuda::{CuResult, NOT_FOUND, NOT_READY},
    detach, held, mark, process,
    table::{self, passed},
};

/// Bits of a number passed to [`resolve`]: the entry needs the GPU; the trampoline does not come back, so nothing is
/// marked; it never waits.
pub(crate) const NEEDS_GPU: u32 = 1 << 31;
pub(crate) const UNMARKED: u32 = 1 << 30;
pub(crate) const FREE: u32 = 1 << 29;

/// The function that a trampoline calls when its quick look did not suffice, and the place of the thread's mark.
#[repr(C)]
struct Resolved {
    call: *mut c_void,
    place: *const AtomicU32,
}

extern "C" fn resolve(number: u32) -> Resolved {
    let entry = number & !(NEEDS_GPU | UNMARKED | FREE);
    let place = mark::own_place();
    if number & UNMARKED == 0 {
        place.store(entry + 1 + table::COUNT as u32, Ordering::SeqCst);
    }
    let pick = std::panic::catch_unwind(|| {
        if number & FREE == 0 && detach::is_due() {
            let name = passed::NAMES.get(entry as usize).copied().unwrap_or("");
            let goes_on = if number & UNMARKED == 0 {
                detach::wait(name, mark::step_out())
            } else {
                detach::wait(name, || {})
            };
            if !goes_on {
                return interrupted as *mut c_void;
            }
        }
        let place = passed::ORIGINALS.get(entry as usize);
        let mut original =
            place.map_or(std::ptr::null_mut(), |place| place.load(Ordering::Acquire));
        if original.is_null() {
            table::find_all();
            original = place.map_or(original, |place| place.load(Ordering::Acquire));
        }
        let refuse = number & NEEDS_GPU != 0 && held::state() == State::NotGranted;
        if refuse && process::current().is_some() {
            refused as *mut c_void
        } else if original.is_null() {
            missing as *mut c_void
        } else {
            original
        }
    });
    Resolved {
        call: pick.unwrap_or(missing as *mut c_void),
        place,
    }
}

extern "C" fn missing() -> CuResult {
    NOT_FOUND
}

extern "C" fn interrupted() -> CuResult {
    NOT_READY
}

extern "C" fn refused() -> CuResult {
    process::with(process::Process::not_granted).unwrap_or(NOT_FOUND)
}

/// Called with the entry's number in `eax` and all else unchanged; returns the function in `rax` and the place of the
/// mark in `r11`.
#[unsafe(naked)]
pub(crate) extern "C" fn slow() {
    std::arch::naked_asm!(
        ".cfi_startproc",
        "pushq %rdi",
        "pushq %rsi",
        "pushq %rdx",
        "pushq %rcx",
        "pushq %r8",
        "pushq %r9",
        ".cfi_adjust_cfa_offset 48",
        // Eight vector registers.
        "subq $128, %rsp",
        ".cfi_adjust_cfa_offset 128",
        "movups %xmm0, (%rsp)",
        "movups %xmm1, 16(%rsp)",
        "movups %xmm2, 32(%rsp)",
        "movups %xmm3, 48(%rsp)",
        "movups %xmm4, 64(%rsp)",
        "movups %xmm5, 80(%rsp)",
        "movups %xmm6, 96(%rsp)",
        "movups %xmm7, 112(%rsp)",
        "movl %eax, %edi",
        "callq {resolve}",
        "movq %rdx, %r11",
        "movups (%rsp), %xmm0",
        "movups 16(%rsp), %xmm1",
        "movups 32(%rsp), %xmm2",
        "movups 48(%rsp), %xmm3",
        "movups 64(%rsp), %xmm4",
        "movups 80(%rsp), %xmm5",
        "movups 96(%rsp), %xmm6",
        "movups 112(%rsp), %xmm7",
        "addq $128, %rsp",
        ".cfi_adjust_cfa_offset -128",
        "popq %r9",
        "popq %r8",
        "popq %rcx",
        "popq %rdx",
        "popq %rsi",
        "popq %rdi",
        ".cfi_adjust_cfa_offset -48",
        "retq",
        ".cfi_endproc",
        resolve = sym resolve,
        options(att_syntax),
    );
}

/// One trampoline: `ask` marks the thread and calls, `work` also checks that the claim has its GPU, `free` jumps,
/// `plain` checks the gate and jumps (an old loader's descriptor call may touch vector registers). All but `free` wait
/// while the claim is detached. The wide ones copy sixteen words of the caller's stack: no entry has more arguments
/// there, and every caller has that much stack above.
macro_rules! trampoline {
    (ask $name:ident) => {
        trampoline!(@call $name, 0, ["cmpl $3, (%rax)", "jae 2f",], [], []);
    };
    (work $name:ident) => {
        trampoline!(@call $name, crate::table::trampoline::NEEDS_GPU, ["cmpl $1, (%rax)", "jne 2f",], [], []);
    };
    (ask_wide $name:ident) => {
        trampoline!(@wide $name, 0, ["cmpl $3, (%rax)", "jae 2f",]);
    };
    (work_wide $name:ident) => {
        trampoline!(@wide $name, crate::table::trampoline::NEEDS_GPU, ["cmpl $1, (%rax)", "jne 2f",]);
    };
    (@wide $name:ident, $needs:expr, [$($look:literal,)*]) => {
        trampoline!(@call $name, $needs, [$($look,)*], [
            ".rept 16",
            "pushq 136(%rsp)",
            ".endr",
            ".cfi_adjust_cfa_offset 128",
        ], [
            "addq $128, %rsp",
            ".cfi_adjust_cfa_offset -128",
        ]);
    };
    (free $name:ident) => {
        trampoline!(@jump $name, crate::table::trampoline::FREE, ["/* {gate} */",]);
    };
    (plain $name:ident) => {
        trampoline!(@jump $name, crate::table::trampoline::NEEDS_GPU, [
            "movq {gate}(%rip), %rax",
            "cmpl $1, (%rax)",
            "jne 2f",
        ]);
    };
    (@jump $name:ident, $flags:expr, [$($first:literal,)*]) => {
        /// Passes on to the driver's function of this name.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub extern "C" fn $name() {
            std::arch::naked_asm!(
                $($first,)*
                "movq {originals}+{offset}(%rip), %rax",
                "testq %rax, %rax",
                "je 2f",
                "jmpq *%rax",
                "2:",
                "movl ${number}, %eax",
                "callq {slow}",
                "jmpq *%rax",
                gate = sym crate::held::WORD,
                originals = sym ORIGINALS,
                offset = const Passed::$name as usize * 8,
                number = const (Passed::$name as u32 | $flags | crate::table::trampoline::UNMARKED) as i32,
                slow = sym crate::table::trampoline::slow,
                options(att_syntax),
            );
        }
    };
    (@call $name:ident, $flags:expr, [$($look:literal,)*], [$($before:literal,)*], [$($after:literal,)*]) => {
        /// Passes on to the driver's function of this name.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub extern "C" fn $name() {
            std::arch::naked_asm!(
                ".cfi_startproc",
                "movq {words}(%rip), %rax",
                "testq %rax, %rax",
                "je 4f",
                "5:",
                "movl %fs:8(%rax), %r11d",
                "testl %r11d, %r11d",
                "je 2f",
                "addq {places}(%rip), %r11",
                "movl ${mark}, (%r11)",
                "movq {gate}(%rip), %rax",
                $($look,)*
                "movq {originals}+{offset}(%rip), %rax",
                "testq %rax, %rax",
                "je 2f",
                "3:",
                "pushq %r11",
                ".cfi_adjust_cfa_offset 8",
                $($before,)*
                "callq *%rax",
                $($after,)*
                "popq %r11",
                ".cfi_adjust_cfa_offset -8",
                "movl $0, (%r11)",
                "retq",
                "2:",
                "movl ${number}, %eax",
                "callq {slow}",
                "jmp 3b",
                "4:",
                "subq $8, %rsp",
                ".cfi_adjust_cfa_offset 8",
                "leaq gshare_mark@tlsdesc(%rip), %rax",
                "callq *gshare_mark@tlscall(%rax)",
                "addq $8, %rsp",
                ".cfi_adjust_cfa_offset -8",
                "jmp 5b",
                ".cfi_endproc",
                mark = const Passed::$name as u32 + 1 + crate::table::COUNT as u32,
                words = sym crate::mark::WORDS,
                places = sym crate::mark::PLACES,
                gate = sym crate::held::WORD,
                originals = sym ORIGINALS,
                offset = const Passed::$name as usize * 8,
                number = const (Passed::$name as u32 | $flags) as i32,
                slow = sym crate::table::trampoline::slow,
                options(att_syntax),
            );
        }
    };
}

macro_rules! passed {
    ($($way:ident $name:ident)*) => {
        use std::{
            ffi::{CStr, c_void},
            ptr,
            sync::atomic::AtomicPtr,
        };

        #[allow(non_camel_case_types, reason = "the driver's names")]
        #[derive(Clone, Copy)]
        enum Passed {
            $($name),*
        }

        /// All names with a trampoline.
        pub const NAMES: &[&str] = &[$(stringify!($name)),*];

        /// The driver's functions of these names; null before the look-up and if this driver has none.
        pub(crate) static ORIGINALS: [AtomicPtr<c_void>; NAMES.len()] =
            [const { AtomicPtr::new(ptr::null_mut()) }; NAMES.len()];

        /// Name and entry of each row, in the order of [`NAMES`].
        pub(crate) fn rows() -> [(&'static CStr, *mut c_void); NAMES.len()] {
            [$((
                const {
                    match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => c"",
                    }
                },
                $name as *mut c_void,
            )),*]
        }

        $(trampoline!($way $name);)*
    };
}

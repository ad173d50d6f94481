//! Ways through the proxy for entry points that it does not hook: mark the thread, look whether the
//! claim holds its GPU, jump. Every register and the stack reach the driver as the program set them;
//! only `rax` is used, which holds no argument of a function with a fixed number of them.

use std::{
    ffi::c_void,
    sync::atomic::{AtomicPtr, AtomicU32, Ordering},
};

use gshare_abi::{LimitsPage, State};

use crate::{
    cuda::{CuResult, NOT_FOUND},
    driver, process,
    table::passed,
};

/// The state word of a process that is in no claim.
static OPEN: AtomicU32 = AtomicU32::new(State::Granted as u32);

/// The state word that the trampolines look at. The GPUs of a claim are granted and taken together,
/// so that of the first one speaks for all.
pub(crate) static GATE: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const OPEN).cast_mut());

/// From now on the trampolines look at this page.
pub(crate) fn watch(limits: &'static LimitsPage) {
    let word = std::ptr::from_ref(limits.state_word()).cast_mut();
    GATE.store(word, Ordering::Release);
}

/// Bit of a number handed to [`resolve`]: the entry needs the GPU.
pub(crate) const NEEDS_GPU: u32 = 1 << 31;

/// Gives what a trampoline jumps to when its quick look did not suffice.
extern "C" fn resolve(entry: u32) -> *mut c_void {
    let pick = std::panic::catch_unwind(|| {
        let place = passed::ORIGINALS.get((entry & !NEEDS_GPU) as usize);
        let mut original =
            place.map_or(std::ptr::null_mut(), |place| place.load(Ordering::Acquire));
        if original.is_null() {
            driver::find_all();
            original = place.map_or(original, |place| place.load(Ordering::Acquire));
        }
        // SAFETY: points to a static or to a page that stays mapped for the rest of the process.
        let word = unsafe { &*GATE.load(Ordering::Acquire) };
        let granted = State::from_word(word.load(Ordering::Relaxed)) == State::Granted;
        if entry & NEEDS_GPU != 0 && !granted && process::current().is_some() {
            refused as *mut c_void
        } else if original.is_null() {
            missing as *mut c_void
        } else {
            original
        }
    });
    pick.unwrap_or(missing as *mut c_void)
}

extern "C" fn missing() -> CuResult {
    NOT_FOUND
}

extern "C" fn refused() -> CuResult {
    process::with(process::Process::not_granted).unwrap_or(NOT_FOUND)
}

/// Reached by a jump with the entry's number in `eax` and everything else as the program set it.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub(crate) extern "C" fn slow() {
    std::arch::naked_asm!(
        "pushq %rdi",
        "pushq %rsi",
        "pushq %rdx",
        "pushq %rcx",
        "pushq %r8",
        "pushq %r9",
        // Eight vector registers, and eight bytes that align the stack for the call.
        "subq $136, %rsp",
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
        "movups (%rsp), %xmm0",
        "movups 16(%rsp), %xmm1",
        "movups 32(%rsp), %xmm2",
        "movups 48(%rsp), %xmm3",
        "movups 64(%rsp), %xmm4",
        "movups 80(%rsp), %xmm5",
        "movups 96(%rsp), %xmm6",
        "movups 112(%rsp), %xmm7",
        "addq $136, %rsp",
        "popq %r9",
        "popq %r8",
        "popq %rcx",
        "popq %rdx",
        "popq %rsi",
        "popq %rdi",
        "jmpq *%rax",
        resolve = sym resolve,
        options(att_syntax),
    );
}

/// One trampoline: `ask` marks and jumps, `work` also looks at the gate, `plain` looks at the gate and
/// does not mark (an old loader's descriptor call may touch vector registers).
#[cfg(target_arch = "x86_64")]
macro_rules! trampoline {
    (ask $name:ident) => {
        trampoline!(@ $name, 0, [
            "subq $8, %rsp",
            "leaq gshare_mark@tlsdesc(%rip), %rax",
            "callq *gshare_mark@tlscall(%rax)",
            "addq $8, %rsp",
            "movl ${mark}, %fs:(%rax)",
            "/* {gate} */",
        ]);
    };
    (work $name:ident) => {
        trampoline!(@ $name, crate::trampoline::NEEDS_GPU, [
            "subq $8, %rsp",
            "leaq gshare_mark@tlsdesc(%rip), %rax",
            "callq *gshare_mark@tlscall(%rax)",
            "addq $8, %rsp",
            "movl ${mark}, %fs:(%rax)",
            "movq {gate}(%rip), %rax",
            "cmpl $1, (%rax)",
            "jne 2f",
        ]);
    };
    (plain $name:ident) => {
        trampoline!(@ $name, crate::trampoline::NEEDS_GPU, [
            "movq {gate}(%rip), %rax",
            "cmpl $1, (%rax)",
            "jne 2f",
            "/* {mark} */",
        ]);
    };
    (@ $name:ident, $needs:expr, [$($first:literal,)*]) => {
        /// Passes the driver's function of this name on.
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
                "jmp {slow}",
                mark = const Passed::$name as u32 + 1 + crate::table::COUNT as u32,
                gate = sym crate::trampoline::GATE,
                originals = sym ORIGINALS,
                offset = const Passed::$name as usize * 8,
                number = const (Passed::$name as u32 | $needs) as i32,
                slow = sym crate::trampoline::slow,
                options(att_syntax),
            );
        }
    };
}

#[cfg(target_arch = "x86_64")]
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

        /// Every name that has a trampoline.
        pub const NAMES: &[&str] = &[$(stringify!($name)),*];

        /// The driver's functions of these names; null before they were looked for and where this
        /// driver has none.
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

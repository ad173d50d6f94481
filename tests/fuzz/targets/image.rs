//! Program images as the simulated driver reads them: containers (fatbin), machine code (cubin) and linked
//! PTX texts. The driver's own files are compiled in, with stand-ins for what they do not need here, so
//! that the readers need not be public.
#![no_main]
#![allow(
    dead_code,
    reason = "the readers' files have parts that this target does not call"
)]

use libfuzzer_sys::fuzz_target;

#[path = "../../../src/sim/cuda/src/code.rs"]
mod code;
#[path = "../../../src/sim/cuda/src/elf.rs"]
mod elf;
#[path = "../../../src/sim/cuda/src/fatbin.rs"]
mod fatbin;
#[path = "../../../src/sim/cuda/src/image.rs"]
mod image;

mod driver {
    pub(crate) fn note_once(_: &str) {}
}

/// Images behind bare pointers are not for a fuzzer: their caller says that they are whole.
mod ffi {
    use crate::code::{INVALID_IMAGE, R};

    pub(crate) struct In<T>(std::marker::PhantomData<T>);

    impl<T: 'static> In<T> {
        pub(crate) fn at(&self, _: usize) -> R<T> {
            Err(INVALID_IMAGE)
        }
        pub(crate) fn get(self) -> R<T> {
            Err(INVALID_IMAGE)
        }
        pub(crate) fn addr(&self) -> u64 {
            0
        }
        pub(crate) fn from_addr(_: u64) -> Self {
            Self(std::marker::PhantomData)
        }
        pub(crate) fn bytes(&self, _: usize) -> R<&'static [T]> {
            Err(INVALID_IMAGE)
        }
        pub(crate) fn text(&self) -> R<&'static std::ffi::CStr> {
            Err(INVALID_IMAGE)
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let _ = (fatbin::length(data), elf::length(data));
    match image::of_bytes(data) {
        Ok(image::Image::Ptx(texts)) => {
            // What the driver's linker hands out is read back as it was.
            let linked = image::linked(&texts);
            if texts.len() > 1 {
                match image::of_bytes(linked.as_bytes()) {
                    Ok(image::Image::Ptx(again)) => assert_eq!(again, texts),
                    other => panic!("linked texts are not read back: {other:?}"),
                }
            }
        }
        Ok(image::Image::Code(kernels)) => {
            for kernel in kernels {
                assert!(kernel.max_threads <= 1024);
            }
        }
        Err(_) => {}
    }
});

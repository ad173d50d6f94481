//! The linker: takes PTX (bare or in containers) and returns it as the linked image.

use std::ffi::c_char;

use crate::code::{INVALID_HANDLE, INVALID_IMAGE, INVALID_VALUE, R};
use crate::driver::{Driver, note_once};
use crate::elf;
use crate::ffi::{In, Out, export};
use crate::image::{self, Image};
use crate::module::JitOptions;

#[derive(Debug)]
pub(crate) struct Linker {
    texts: Vec<String>,
    /// Machine code input, if it was the only input.
    code: Option<Vec<u8>>,
    /// The finished image, which the program reads until it destroys the linker.
    done: Vec<u8>,
    /// Where the program wants messages.
    log: (u32, u64, u64),
}

impl Linker {
    fn options(&self) -> JitOptions {
        JitOptions {
            count: self.log.0,
            names: In::from_addr(self.log.1),
            values: In::from_addr(self.log.2),
        }
    }

    fn add(&mut self, image: Image, bytes: &[u8]) -> R {
        match image {
            Image::Ptx(texts) => self.texts.extend(texts),
            Image::Code(_) => {
                self.code = Some(bytes.to_vec());
            }
        }
        Ok(())
    }
}

impl Driver {
    fn add_input(&self, state: u64, bytes: &[u8]) -> R {
        let mut t = self.tables();
        let l = t.linkers.get_mut(&state).ok_or(INVALID_HANDLE)?;
        match image::of_bytes(bytes) {
            Ok(image) => l.add(image, bytes),
            Err(code) => {
                l.options()
                    .log("the input is neither PTX nor a container with PTX");
                Err(code)
            }
        }
    }
}

export! {
    cuLinkCreate_v2(count: u32, names: In<u32>, values: In<u64>, out: Out<u64>) |d| {
        out.check()?;
        let mut t = d.tables();
        d.current(&t)?;
        let handle = t.handle();
        // The program keeps the option arrays valid until the linker is destroyed.
        let log = (count, names.addr(), values.addr());
        let linker = Linker { texts: Vec::new(), code: None, done: Vec::new(), log };
        linker.options().log("");
        t.linkers.insert(handle, linker);
        out.set(handle)
    };
    cuLinkAddData_v2(
        state: u64, kind: u32, data: In<u8>, size: usize, _name: In<c_char>, _count: u32,
        _names: In<u32>, _values: In<u64>,
    ) |d| {
        if kind > 5 {
            return Err(INVALID_VALUE);
        }
        let bytes = data.bytes(size)?;
        d.add_input(state, bytes)
    };
    cuLinkAddFile_v2(
        state: u64, kind: u32, path: In<c_char>, _count: u32, _names: In<u32>, _values: In<u64>,
    ) |d| {
        if kind > 5 {
            return Err(INVALID_VALUE);
        }
        let bytes = std::fs::read(path.string()?).map_err(|_| crate::code::FILE_NOT_FOUND)?;
        d.add_input(state, &bytes)
    };
    cuLinkComplete(state: u64, image: Out<u64>, size: Out<usize>) |d| {
        image.check()?;
        let mut t = d.tables();
        let l = t.linkers.get_mut(&state).ok_or(INVALID_HANDLE)?;
        l.done = match &l.code {
            Some(code) if l.texts.is_empty() => code.clone(),
            Some(_) => {
                note_once("machine code is left out of a link with PTX");
                image::linked(&l.texts).into_bytes()
            }
            None if l.texts.is_empty() => return Err(INVALID_IMAGE),
            None => image::linked(&l.texts).into_bytes(),
        };
        let is_code = l.done.first_chunk() == Some(&elf::MAGIC.to_le_bytes());
        if !is_code {
            l.done.push(0);
            let text = image::of_bytes(&l.done)?;
            if let Err((code, message)) = text.load() {
                l.options().log(&message);
                return Err(code);
            }
        }
        size.set_if(l.done.len());
        image.set(l.done.as_ptr() as u64)
    };
    cuLinkDestroy(state: u64) |d| {
        d.tables().linkers.remove(&state).map(drop).ok_or(INVALID_HANDLE)
    };
}

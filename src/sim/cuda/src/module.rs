//! Modules: a program loaded into a context, its functions and variables.

use std::collections::HashMap;
use std::ffi::c_char;
use std::ptr;
use std::sync::Arc;

use gshare_sim_board::Costs;

use crate::code::{INVALID_HANDLE, NOT_FOUND, R};
use crate::driver::{Driver, Tables};
use crate::ffi::{In, Out, export};
use crate::function::Function;
use crate::image::{self, Image, Program};
use crate::memory::{Kind, zero};

#[derive(Debug)]
pub(crate) struct Module {
    pub context: u64,
    /// In the order of the image.
    pub functions: Vec<(String, u64)>,
    /// Address and size of each variable.
    globals: HashMap<String, (u64, u64)>,
}

/// The options of a compile call: numbers and their values.
#[derive(Clone, Copy)]
pub(crate) struct JitOptions {
    pub count: u32,
    pub names: In<u32>,
    pub values: In<u64>,
}

const INFO_LOG: u32 = 3;
const INFO_LOG_SIZE: u32 = 4;
const ERROR_LOG: u32 = 5;
const ERROR_LOG_SIZE: u32 = 6;

impl JitOptions {
    fn find(&self, name: u32) -> Option<u64> {
        (0..self.count as usize)
            .find(|i| self.names.at(*i) == Ok(name))
            .and_then(|i| self.values.at(i).ok())
    }

    /// Puts a message into the error log, and sets the lengths of both logs.
    pub(crate) fn log(&self, message: &str) {
        for i in 0..self.count as usize {
            let place = self.values.addr() + 8 * i as u64;
            match self.names.at(i) {
                Ok(INFO_LOG_SIZE) => Out::<u64>::from_addr(place).set_if(0),
                Ok(ERROR_LOG_SIZE) => {
                    let room = self.values.at(i).unwrap_or(0) as usize;
                    let mut written = 0;
                    if let Some(buffer) = self.find(ERROR_LOG).filter(|b| *b != 0 && room > 0) {
                        let cut = &message.as_bytes()[..message.len().min(room - 1)];
                        let text = cut.iter().copied().chain([0]);
                        let _ = Out::<u8>::from_addr(buffer).set_all(text, room);
                        written = cut.len();
                    }
                    Out::<u64>::from_addr(place).set_if(written as u64);
                }
                _ => {}
            }
        }
        let room = self.find(INFO_LOG_SIZE);
        if let (Some(buffer), Some(_)) = (self.find(INFO_LOG).filter(|b| *b != 0), room) {
            let _ = Out::<u8>::from_addr(buffer).set_all([0], 1);
        }
    }
}

pub(crate) const NO_OPTIONS: JitOptions = JitOptions {
    count: 0,
    names: In::NULL,
    values: In::NULL,
};

/// Parses an image; errors go to the program's log.
pub(crate) fn compile(image: &Image, options: JitOptions) -> R<Program> {
    match image.load() {
        Ok(program) => {
            options.log("");
            Ok(program)
        }
        Err((code, message)) => {
            options.log(&message);
            Err(code)
        }
    }
}

impl Driver {
    /// Loads a program into a context; returns the module's handle.
    pub(crate) fn load_module(&self, t: &mut Tables, context: u64, program: Program) -> R<u64> {
        let handle = t.handle();
        self.hide(t, context, |hidden| hidden.modules += 1)?;
        let Program { kernels, ptx } = program;
        let mut globals = HashMap::new();
        let ptx = match ptx {
            None => None,
            Some(mut ptx) => {
                let infos = ptx.globals().to_vec();
                for g in &infos {
                    let size = (g.size as u64).max(1);
                    let addr = match g.managed {
                        true => self.managed_alloc(t, context, size)?,
                        false => self.owned_alloc(t, context, size, Kind::Variable)?,
                    };
                    globals.insert(g.name.clone(), (addr, g.size as u64));
                    ptx.bind_global(&g.name, addr);
                }
                for g in &infos {
                    let (addr, size) = globals[&g.name];
                    let end = g.addresses.iter().map(|(at, _)| at + 8);
                    let mut bytes = g.init.clone();
                    bytes.resize(end.fold(bytes.len(), usize::max), 0);
                    bytes.truncate(size as usize);
                    for (offset, name) in &g.addresses {
                        let target = globals.get(name).map_or(0, |t| t.0);
                        if let Some(word) = bytes.get_mut(*offset..*offset + 8) {
                            let mut v = [0; 8];
                            v.copy_from_slice(word);
                            let v = u64::from_le_bytes(v).wrapping_add(target);
                            word.copy_from_slice(&v.to_le_bytes());
                        }
                    }
                    if !g.managed {
                        zero(addr, size);
                    }
                    // SAFETY: `addr` has `size` newly allocated bytes, and `bytes` is not longer.
                    unsafe {
                        ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, bytes.len());
                    }
                }
                Some(Arc::new(ptx))
            }
        };
        let costs = Costs::beside(self.board.path());
        let mut functions = Vec::new();
        for facts in kernels {
            let f = t.handle();
            functions.push((facts.name.clone(), f));
            let takes = costs.of(&facts.name);
            let function = Function::new(facts, handle, context, ptx.clone(), takes);
            t.functions.insert(f, function);
        }
        let module = Module {
            context,
            functions,
            globals,
        };
        t.modules.insert(handle, module);
        Ok(handle)
    }

    pub(crate) fn unload_module(&self, t: &mut Tables, handle: u64) -> R {
        let m = t.modules.remove(&handle).ok_or(INVALID_HANDLE)?;
        t.functions.retain(|_, f| f.module != handle);
        let _ = self.hide(t, m.context, |hidden| {
            hidden.modules = hidden.modules.saturating_sub(1);
        });
        for (addr, _) in m.globals.into_values() {
            self.owned_free(t, addr)?;
        }
        Ok(())
    }

    fn load_into_current(&self, out: Out<u64>, image: R<Image>, options: JitOptions) -> R {
        out.check()?;
        self.current(&self.tables())?;
        let program = compile(&image?, options)?;
        let mut t = self.tables();
        let context = self.current(&t)?;
        out.set(self.load_module(&mut t, context, program)?)
    }
}

impl Module {
    pub(crate) fn function(&self, name: &str) -> R<u64> {
        let found = self.functions.iter().find(|f| f.0 == name);
        found.map(|f| f.1).ok_or(NOT_FOUND)
    }

    pub(crate) fn global(&self, name: &str) -> R<(u64, u64)> {
        self.globals.get(name).copied().ok_or(NOT_FOUND)
    }
}

export! {
    cuModuleLoadData(out: Out<u64>, image: In<u8>) |d| {
        d.load_into_current(out, image::at(image), NO_OPTIONS)
    };
    cuModuleLoadDataEx(
        out: Out<u64>, image: In<u8>, count: u32, names: In<u32>, values: In<u64>,
    ) |d| d.load_into_current(out, image::at(image), JitOptions { count, names, values });
    cuModuleLoadFatBinary(out: Out<u64>, image: In<u8>) |d| {
        d.load_into_current(out, image::at(image), NO_OPTIONS)
    };
    cuModuleLoad(out: Out<u64>, path: In<c_char>) |d| {
        let path = path.string()?;
        d.load_into_current(out, image::of_file(&path), NO_OPTIONS)
    };
    cuModuleUnload(handle: u64) |d| {
        let tickets = {
            let t = d.tables();
            let m = t.modules.get(&handle).ok_or(INVALID_HANDLE)?;
            t.live_of(m.context)
        };
        d.wait_all(&tickets);
        d.unload_module(&mut d.tables(), handle)
    };
    cuModuleGetLoadingMode(out: Out<u32>) |_d| {
        // Eager, as in this driver; lazy is 2.
        out.set(1)
    };
    cuModuleGetFunction(out: Out<u64>, module: u64, name: In<c_char>) |d| {
        out.check()?;
        let name = name.string()?;
        let t = d.tables();
        d.current(&t)?;
        out.set(t.modules.get(&module).ok_or(INVALID_HANDLE)?.function(&name)?)
    };
    cuModuleGetFunctionCount(out: Out<u32>, module: u64) |d| {
        let t = d.tables();
        out.set(t.modules.get(&module).ok_or(INVALID_HANDLE)?.functions.len() as u32)
    };
    cuModuleGetGlobal_v2(addr: Out<u64>, size: Out<usize>, module: u64, name: In<c_char>) |d| {
        let name = name.string()?;
        let t = d.tables();
        d.current(&t)?;
        let (a, n) = t.modules.get(&module).ok_or(INVALID_HANDLE)?.global(&name)?;
        addr.set_if(a);
        size.set_if(n as usize);
        Ok(())
    };
}

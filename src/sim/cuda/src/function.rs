//! Functions: kernels of a module, or of a library in the current context.

use std::ffi::{CString, c_char};
use std::sync::Arc;

use gshare_sim_board::Takes;
use gshare_sim_ptx::Module as Ptx;

use crate::code::{INVALID_HANDLE, INVALID_VALUE, R};
use crate::driver::{Driver, Tables};
use crate::ffi::{Out, export};
use crate::image::KernelFacts;

#[derive(Debug, Clone)]
pub(crate) struct Function {
    pub facts: Arc<KernelFacts>,
    pub name: Arc<CString>,
    pub module: u64,
    pub context: u64,
    pub ptx: Option<Arc<Ptx>>,
    /// From the file of kernel durations.
    pub takes: Option<Takes>,
    /// Dynamic shared memory that the program has set, in bytes.
    pub dynamic_shared: u32,
    carveout: i32,
}

/// Maximum shared memory of a block without opt-in, in bytes.
pub(crate) const SHARED_DEFAULT: u32 = 49_152;

impl Function {
    pub(crate) fn new(
        facts: KernelFacts,
        module: u64,
        context: u64,
        ptx: Option<Arc<Ptx>>,
        takes: Option<Takes>,
    ) -> Function {
        let name = CString::new(facts.name.clone()).unwrap_or_default();
        let dynamic_shared = SHARED_DEFAULT.saturating_sub(facts.shared);
        Function {
            facts: Arc::new(facts),
            name: Arc::new(name),
            module,
            context,
            ptx,
            takes,
            dynamic_shared,
            carveout: -1,
        }
    }

    pub(crate) fn attribute(&self, which: u32, capability: (u32, u32)) -> R<i32> {
        let f = &self.facts;
        let version = (capability.0 * 10 + capability.1).cast_signed();
        Ok(match which {
            0 => f.max_threads.cast_signed(),
            1 => f.shared.cast_signed(),
            2 => 0,
            3 => f.local.cast_signed(),
            4 => f.regs.cast_signed(),
            5 | 6 => version,
            7 => 0,
            8 => self.dynamic_shared.cast_signed(),
            9 => self.carveout,
            10..=16 => 0,
            _ => return Err(INVALID_VALUE),
        })
    }

    pub(crate) fn set_attribute(&mut self, which: u32, value: i32, shared_optin: u32) -> R {
        match which {
            8 => {
                let bytes = u32::try_from(value).map_err(|_| INVALID_VALUE)?;
                if bytes > shared_optin.saturating_sub(self.facts.shared) {
                    return Err(INVALID_VALUE);
                }
                self.dynamic_shared = bytes;
            }
            9 if (-1..=100).contains(&value) => self.carveout = value,
            11..=15 => {}
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    }
}

impl Driver {
    /// The function of a handle that may also be a library's kernel, for launches and occupancy (cuda.h allows no other
    /// call).
    pub(crate) fn function_handle(&self, t: &mut Tables, handle: u64) -> R<u64> {
        if t.functions.contains_key(&handle) {
            return Ok(handle);
        }
        self.kernel_function(t, handle)
    }

    pub(crate) fn function<T>(&self, handle: u64, f: impl FnOnce(&Function) -> R<T>) -> R<T> {
        let t = self.tables();
        f(t.functions.get(&handle).ok_or(INVALID_HANDLE)?)
    }

    /// The model of the GPU of a function's context.
    pub(crate) fn model_of(&self, t: &Tables, f: &Function) -> R<&'static gshare_sim_board::Model> {
        let device = t.context(f.context)?.device;
        Ok(self.devices[device].model)
    }
}

export! {
    cuFuncGetAttribute(out: Out<i32>, which: u32, function: u64) |d| {
        out.check()?;
        let t = d.tables();
        let f = t.functions.get(&function).ok_or(INVALID_HANDLE)?;
        out.set(f.attribute(which, d.model_of(&t, f)?.compute_capability)?)
    };
    cuFuncSetAttribute(function: u64, which: u32, value: i32) |d| {
        let mut t = d.tables();
        let f = t.functions.get(&function).ok_or(INVALID_HANDLE)?;
        let optin = d.model_of(&t, f)?.shared_optin;
        let f = t.functions.get_mut(&function).ok_or(INVALID_HANDLE)?;
        f.set_attribute(which, value, optin)
    };
    cuFuncSetCacheConfig(function: u64, config: u32) |d| {
        d.function(function, |_| if config > 3 { Err(INVALID_VALUE) } else { Ok(()) })
    };
    cuFuncGetModule(out: Out<u64>, function: u64) |d| {
        d.function(function, |f| out.set(f.module))
    };
    cuFuncGetName(out: Out<*const c_char>, function: u64) |d| {
        d.function(function, |f| out.set(f.name.as_ptr()))
    };
    cuFuncGetParamInfo(function: u64, index: usize, offset: Out<usize>, size: Out<usize>) |d| {
        d.function(function, |f| {
            let (o, s) = *f.facts.params.get(index).ok_or(INVALID_VALUE)?;
            size.set_if(s);
            offset.set(o)
        })
    };
    cuFuncGetParamCount(function: u64, count: Out<usize>) |d| {
        d.function(function, |f| count.set(f.facts.params.len()))
    };
    cuFuncIsLoaded(out: Out<u32>, function: u64) |d| d.function(function, |_| out.set(1));
    cuFuncLoad(function: u64) |d| d.function(function, |_| Ok(()));
}

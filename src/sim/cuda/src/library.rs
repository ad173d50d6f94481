//! Libraries: programs loaded without a context. A context gets its module on first use.

use std::collections::HashMap;
use std::ffi::{CString, c_char};
use std::sync::Arc;

use crate::code::{INVALID_HANDLE, INVALID_VALUE, NOT_FOUND, R};
use crate::driver::{Driver, Tables};
use crate::ffi::{In, Out, export};
use crate::function::Function;
use crate::image::{self, Image};
use crate::memory::Kind;
use crate::module::{JitOptions, NO_OPTIONS, compile};

#[derive(Debug)]
pub(crate) struct Library {
    image: Image,
    /// Handle of the kernel, and its name.
    kernels: Vec<(u64, Arc<CString>)>,
    /// The module in each context.
    pub modules: HashMap<u64, u64>,
}

impl Driver {
    fn load_library(&self, out: Out<u64>, image: R<Image>, options: JitOptions) -> R {
        out.check()?;
        let image = image?;
        let program = compile(&image, options)?;
        let mut t = self.tables();
        let mut kernels = Vec::new();
        for k in &program.kernels {
            let name = CString::new(k.name.clone()).map_err(|_| INVALID_VALUE)?;
            kernels.push((t.handle(), Arc::new(name)));
        }
        let handle = t.handle();
        let library = Library {
            image,
            kernels,
            modules: HashMap::new(),
        };
        t.libraries.insert(handle, library);
        out.set(handle)
    }

    /// The library's module in the current context.
    fn library_module(&self, t: &mut Tables, library: u64) -> R<u64> {
        let context = self.current(t)?;
        let l = t.libraries.get(&library).ok_or(INVALID_HANDLE)?;
        if let Some(&m) = l.modules.get(&context) {
            return Ok(m);
        }
        let image = l.image.clone();
        let program = compile(&image, NO_OPTIONS)?;
        let module = self.load_module(t, context, program)?;
        if let Some(l) = t.libraries.get_mut(&library) {
            l.modules.insert(context, module);
        }
        Ok(module)
    }

    /// The function of a library's kernel in the current context.
    pub(crate) fn kernel_function(&self, t: &mut Tables, kernel: u64) -> R<u64> {
        let (library, name) = t.kernel(kernel)?;
        let module = self.library_module(t, library)?;
        let name = name.to_string_lossy();
        t.modules
            .get(&module)
            .ok_or(INVALID_HANDLE)?
            .function(&name)
    }

    fn on_kernel<T>(&self, kernel: u64, f: impl FnOnce(&mut Function) -> R<T>) -> R<T> {
        let mut t = self.tables();
        let handle = self.kernel_function(&mut t, kernel)?;
        f(t.functions.get_mut(&handle).ok_or(INVALID_HANDLE)?)
    }
}

impl Tables {
    /// A kernel's library and name.
    fn kernel(&self, kernel: u64) -> R<(u64, Arc<CString>)> {
        for (handle, l) in &self.libraries {
            if let Some(k) = l.kernels.iter().find(|k| k.0 == kernel) {
                return Ok((*handle, Arc::clone(&k.1)));
            }
        }
        Err(INVALID_HANDLE)
    }
}

export! {
    cuLibraryLoadData(
        out: Out<u64>, code: In<u8>, names: In<u32>, values: In<u64>, count: u32,
        _library_names: In<u32>, _library_values: In<u64>, _library_count: u32,
    ) |d| d.load_library(out, image::at(code), JitOptions { count, names, values });
    cuLibraryLoadFromFile(
        out: Out<u64>, path: In<c_char>, names: In<u32>, values: In<u64>, count: u32,
        _library_names: In<u32>, _library_values: In<u64>, _library_count: u32,
    ) |d| {
        let path = path.string()?;
        d.load_library(out, image::of_file(&path), JitOptions { count, names, values })
    };
    cuLibraryUnload(library: u64) |d| {
        let tickets: Vec<u64> = d.tables().live.keys().copied().collect();
        d.wait_all(&tickets);
        let mut t = d.tables();
        let l = t.libraries.remove(&library).ok_or(INVALID_HANDLE)?;
        for module in l.modules.into_values() {
            d.unload_module(&mut t, module)?;
        }
        Ok(())
    };
    cuLibraryGetKernel(out: Out<u64>, library: u64, name: In<c_char>) |d| {
        out.check()?;
        let name = name.text()?;
        let t = d.tables();
        let l = t.libraries.get(&library).ok_or(INVALID_HANDLE)?;
        let found = l.kernels.iter().find(|k| k.1.as_c_str() == name);
        out.set(found.ok_or(NOT_FOUND)?.0)
    };
    cuLibraryGetKernelCount(out: Out<u32>, library: u64) |d| {
        let t = d.tables();
        out.set(t.libraries.get(&library).ok_or(INVALID_HANDLE)?.kernels.len() as u32)
    };
    cuLibraryEnumerateKernels(out: Out<u64>, room: u32, library: u64) |d| {
        let t = d.tables();
        let l = t.libraries.get(&library).ok_or(INVALID_HANDLE)?;
        out.set_all(l.kernels.iter().map(|k| k.0), room as usize)
    };
    cuLibraryGetModule(out: Out<u64>, library: u64) |d| {
        out.check()?;
        let mut t = d.tables();
        out.set(d.library_module(&mut t, library)?)
    };
    cuLibraryGetGlobal(addr: Out<u64>, size: Out<usize>, library: u64, name: In<c_char>) |d| {
        let name = name.string()?;
        let mut t = d.tables();
        let module = d.library_module(&mut t, library)?;
        let (a, n) = t.modules.get(&module).ok_or(INVALID_HANDLE)?.global(&name)?;
        addr.set_if(a);
        size.set_if(n as usize);
        Ok(())
    };
    cuLibraryGetManaged(addr: Out<u64>, size: Out<usize>, library: u64, name: In<c_char>) |d| {
        let name = name.string()?;
        let mut t = d.tables();
        let module = d.library_module(&mut t, library)?;
        let (a, n) = t.modules.get(&module).ok_or(INVALID_HANDLE)?.global(&name)?;
        if !t.memory.find(a).is_some_and(|(_, alloc)| alloc.kind == Kind::Managed) {
            return Err(NOT_FOUND);
        }
        addr.set_if(a);
        size.set_if(n as usize);
        Ok(())
    };
    cuKernelGetFunction(out: Out<u64>, kernel: u64) |d| {
        out.check()?;
        let mut t = d.tables();
        out.set(d.kernel_function(&mut t, kernel)?)
    };
    cuKernelGetLibrary(out: Out<u64>, kernel: u64) |d| out.set(d.tables().kernel(kernel)?.0);
    cuKernelGetName(out: Out<*const c_char>, kernel: u64) |d| {
        out.set(d.tables().kernel(kernel)?.1.as_ptr())
    };
    cuKernelGetAttribute(out: Out<i32>, which: u32, kernel: u64, device: i32) |d| {
        out.check()?;
        let capability = d.device(device)?.model.compute_capability;
        d.on_kernel(kernel, |f| out.set(f.attribute(which, capability)?))
    };
    cuKernelSetAttribute(which: u32, value: i32, kernel: u64, device: i32) |d| {
        let optin = d.device(device)?.model.shared_optin;
        d.on_kernel(kernel, |f| f.set_attribute(which, value, optin))
    };
    cuKernelSetCacheConfig(kernel: u64, _config: u32, device: i32) |d| {
        d.device(device)?;
        d.tables().kernel(kernel).map(drop)
    };
    cuKernelGetParamInfo(kernel: u64, index: usize, offset: Out<usize>, size: Out<usize>) |d| {
        d.on_kernel(kernel, |f| {
            let (o, s) = *f.facts.params.get(index).ok_or(INVALID_VALUE)?;
            size.set_if(s);
            offset.set(o)
        })
    };
    cuKernelGetParamCount(kernel: u64, count: Out<usize>) |d| {
        d.on_kernel(kernel, |f| count.set(f.facts.params.len()))
    };
}

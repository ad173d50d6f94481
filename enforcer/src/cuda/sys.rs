//! The driver's functions, by `dlopen` and `dlsym`. For programs of one thread: contexts are current where they are
//! made.

#![allow(
    unsafe_code,
    reason = "calls into libcuda; every block states why it is sound"
)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::CudaError;

pub(super) type Handle = *mut c_void;

macro_rules! functions {
    ($($field:ident: $name:literal, fn($($arg:ty),*);)*) => {
        #[derive(Clone, Copy, Debug)]
        struct Functions {
            $($field: unsafe extern "C" fn($($arg),*) -> c_int,)*
        }

        impl Functions {
            fn find(library: Handle) -> Result<Self, CudaError> {
                Ok(Self {
                    $($field: {
                        let found = symbol(library, $name)?;
                        // SAFETY: the driver exports this name with this signature (cuda.h), for all
                        // versions of the suffix that it carries.
                        unsafe { std::mem::transmute::<Handle, unsafe extern "C" fn($($arg),*) -> c_int>(found) }
                    },)*
                })
            }
        }
    };
}

functions! {
    init: "cuInit", fn(c_uint);
    count: "cuDeviceGetCount", fn(*mut c_int);
    device: "cuDeviceGet", fn(*mut c_int, c_int);
    uuid: "cuDeviceGetUuid", fn(*mut [u8; 16], c_int);
    attribute: "cuDeviceGetAttribute", fn(*mut c_int, c_int, c_int);
    retain: "cuDevicePrimaryCtxRetain", fn(*mut Handle, c_int);
    release: "cuDevicePrimaryCtxRelease_v2", fn(c_int);
    set_current: "cuCtxSetCurrent", fn(Handle);
    set_limit: "cuCtxSetLimit", fn(c_int, usize);
    synchronize: "cuCtxSynchronize", fn();
    mem_info: "cuMemGetInfo_v2", fn(*mut usize, *mut usize);
    alloc: "cuMemAlloc_v2", fn(*mut u64, usize);
    free: "cuMemFree_v2", fn(u64);
    alloc_managed: "cuMemAllocManaged", fn(*mut u64, usize, c_uint);
    to_device: "cuMemcpyHtoD_v2", fn(u64, *const c_void, usize);
    to_host: "cuMemcpyDtoH_v2", fn(*mut c_void, u64, usize);
    module_load: "cuModuleLoadData", fn(*mut Handle, *const c_void);
    function: "cuModuleGetFunction", fn(*mut Handle, Handle, *const c_char);
    launch: "cuLaunchKernel", fn(Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void);
    error_name: "cuGetErrorName", fn(c_int, *mut *const c_char);
}

pub(super) use functions;

pub(super) fn symbol(library: Handle, name: &'static str) -> Result<Handle, CudaError> {
    let c_name = CString::new(name).map_err(|_| CudaError::Missing(name))?;
    // SAFETY: `library` is a handle from dlopen that is never closed; the name ends in NUL.
    let found = unsafe { libc::dlsym(library, c_name.as_ptr()) };
    if found.is_null() {
        Err(CudaError::Missing(name))
    } else {
        Ok(found)
    }
}

/// The loaded and initialised driver.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    functions: Functions,
    library: Handle,
}

impl Driver {
    /// Loads a library, by path or by name as any program would (`libcuda.so.1`), and calls `cuInit`.
    ///
    /// # Errors
    /// If the library or one of its functions is missing, or initialisation fails.
    pub fn load(library: &Path) -> Result<Self, CudaError> {
        let failed = |why: String| CudaError::Load {
            library: library.to_owned(),
            why,
        };
        let name =
            CString::new(library.as_os_str().as_bytes()).map_err(|e| failed(e.to_string()))?;
        // SAFETY: the name ends in NUL. The driver's constructors are trusted as those of any program that
        // uses CUDA.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: dlerror returns NULL or a string that stays valid until the next dl call of this thread.
            let text = unsafe { libc::dlerror() };
            let why = if text.is_null() {
                "unknown reason".to_owned()
            } else {
                // SAFETY: not NULL, ends in NUL, see above.
                unsafe { CStr::from_ptr(text) }
                    .to_string_lossy()
                    .into_owned()
            };
            return Err(failed(why));
        }
        let driver = Self {
            functions: Functions::find(handle)?,
            library: handle,
        };
        // SAFETY: cuInit takes flags, which must be 0.
        driver.check("cuInit", unsafe { (driver.functions.init)(0) })?;
        Ok(driver)
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        let mut text = std::ptr::null();
        // SAFETY: the out pointer is valid; the string belongs to the driver for good.
        let known =
            unsafe { (self.functions.error_name)(code, &raw mut text) } == 0 && !text.is_null();
        let name = if known {
            // SAFETY: the driver returned success, so the text is a static string.
            unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned()
        } else {
            "unknown error".to_owned()
        };
        Err(CudaError::Call { call, code, name })
    }

    /// Number of visible GPUs.
    pub fn device_count(&self) -> Result<i32, CudaError> {
        let mut count = 0;
        // SAFETY: the out pointer is valid.
        self.check("cuDeviceGetCount", unsafe {
            (self.functions.count)(&raw mut count)
        })?;
        Ok(count)
    }

    fn device(&self, index: i32) -> Result<c_int, CudaError> {
        let mut device = 0;
        // SAFETY: the out pointer is valid.
        self.check("cuDeviceGet", unsafe {
            (self.functions.device)(&raw mut device, index)
        })?;
        Ok(device)
    }

    /// An attribute of a GPU, by its number in `CUdevice_attribute`.
    pub fn attribute(&self, index: i32, attribute: c_int) -> Result<c_int, CudaError> {
        let device = self.device(index)?;
        let mut value = 0;
        // SAFETY: the out pointer is valid.
        self.check("cuDeviceGetAttribute", unsafe {
            (self.functions.attribute)(&raw mut value, attribute, device)
        })?;
        Ok(value)
    }

    /// UUID of a GPU in NVML's form, `GPU-...`.
    pub fn uuid(&self, index: i32) -> Result<String, CudaError> {
        let device = self.device(index)?;
        let mut bytes = [0; 16];
        // SAFETY: CUuuid is 16 bytes; the out pointer is valid.
        self.check("cuDeviceGetUuid", unsafe {
            (self.functions.uuid)(&raw mut bytes, device)
        })?;
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        Ok(format!(
            "GPU-{}-{}-{}-{}-{}",
            &hex[..8],
            &hex[8..12],
            &hex[12..16],
            &hex[16..20],
            &hex[20..]
        ))
    }

    /// Retains the primary context of a GPU and makes it current on this thread.
    ///
    /// # Errors
    /// If the driver fails, or the claim's cap leaves no room for a context.
    pub fn context(&self, index: i32) -> Result<Context, CudaError> {
        let device = self.device(index)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: the out pointer is valid.
        let code = unsafe { (self.functions.retain)(&raw mut context, device) };
        self.check("cuDevicePrimaryCtxRetain", code)?;
        // SAFETY: `context` was just retained.
        self.check("cuCtxSetCurrent", unsafe {
            (self.functions.set_current)(context)
        })?;
        Ok(Context {
            driver: *self,
            device,
        })
    }
}

/// A primary context, current on the thread that made it.
#[derive(Debug)]
pub struct Context {
    driver: Driver,
    device: c_int,
}

/// Device memory of a context, in bytes. Freed explicitly or with the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Device address.
    pub address: u64,
    pub bytes: usize,
}

/// A kernel of a loaded module.
#[derive(Clone, Copy, Debug)]
pub struct Function(pub(super) Handle);

impl Context {
    pub(super) fn library(&self) -> Handle {
        self.driver.library
    }

    pub(super) fn check(&self, call: &'static str, code: c_int) -> Result<(), CudaError> {
        self.driver.check(call, code)
    }

    /// Free and total bytes according to the driver.
    pub fn memory(&self) -> Result<(usize, usize), CudaError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both out pointers are valid.
        let code = unsafe { (self.driver.functions.mem_info)(&raw mut free, &raw mut total) };
        self.driver.check("cuMemGetInfo", code)?;
        Ok((free, total))
    }

    /// Sets the stack size of each thread of a kernel, in bytes.
    ///
    /// # Errors
    /// Out of memory ([`CudaError::is_out_of_memory`]) and all others.
    pub fn set_stack(&self, bytes: usize) -> Result<(), CudaError> {
        /// `CU_LIMIT_STACK_SIZE`.
        const STACK: c_int = 0;
        // SAFETY: numbers.
        self.driver.check("cuCtxSetLimit", unsafe {
            (self.driver.functions.set_limit)(STACK, bytes)
        })
    }

    /// Allocates device memory.
    ///
    /// # Errors
    /// Out of memory ([`CudaError::is_out_of_memory`]) and all others.
    pub fn alloc(&self, bytes: usize) -> Result<Buffer, CudaError> {
        let mut address = 0;
        // SAFETY: the out pointer is valid.
        self.driver.check("cuMemAlloc", unsafe {
            (self.driver.functions.alloc)(&raw mut address, bytes)
        })?;
        Ok(Buffer { address, bytes })
    }

    /// Allocates memory that the driver moves between GPU and host by itself; it is freed with the context.
    ///
    /// # Errors
    /// Out of memory and all others.
    pub fn alloc_managed(&self, bytes: usize) -> Result<(), CudaError> {
        /// `CU_MEM_ATTACH_GLOBAL`.
        const GLOBAL: c_uint = 1;
        let mut address = 0;
        // SAFETY: the out pointer is valid.
        self.driver.check("cuMemAllocManaged", unsafe {
            (self.driver.functions.alloc_managed)(&raw mut address, bytes, GLOBAL)
        })
    }

    /// Frees device memory.
    ///
    /// # Errors
    /// If the driver does not know the address.
    pub fn free(&self, buffer: Buffer) -> Result<(), CudaError> {
        // SAFETY: an address; the driver checks it.
        self.driver.check("cuMemFree", unsafe {
            (self.driver.functions.free)(buffer.address)
        })
    }

    /// Copies to the start of a buffer.
    ///
    /// # Errors
    /// If the driver fails, also for data longer than the buffer.
    pub fn write(&self, buffer: Buffer, data: &[u8]) -> Result<(), CudaError> {
        // SAFETY: the source is valid for its length; the driver checks the destination.
        let code = unsafe {
            (self.driver.functions.to_device)(buffer.address, data.as_ptr().cast(), data.len())
        };
        self.driver.check("cuMemcpyHtoD", code)
    }

    /// Copies from the start of a buffer.
    pub fn read(&self, buffer: Buffer, data: &mut [u8]) -> Result<(), CudaError> {
        // SAFETY: the destination is valid for its length; the driver checks the source.
        let code = unsafe {
            (self.driver.functions.to_host)(data.as_mut_ptr().cast(), buffer.address, data.len())
        };
        self.driver.check("cuMemcpyDtoH", code)
    }

    /// Loads PTX and returns one of its kernels.
    ///
    /// # Errors
    /// If the text is not accepted or has no such kernel.
    pub fn kernel(&self, ptx: &CStr, name: &CStr) -> Result<Function, CudaError> {
        let mut module = std::ptr::null_mut();
        // SAFETY: the image is PTX text that ends in NUL.
        let code =
            unsafe { (self.driver.functions.module_load)(&raw mut module, ptx.as_ptr().cast()) };
        self.driver.check("cuModuleLoadData", code)?;
        let mut function = std::ptr::null_mut();
        // SAFETY: the module was just loaded; the name ends in NUL.
        let code =
            unsafe { (self.driver.functions.function)(&raw mut function, module, name.as_ptr()) };
        self.driver.check("cuModuleGetFunction", code)?;
        Ok(Function(function))
    }

    /// Launches a kernel on the default stream. Every parameter is one 64-bit word.
    pub fn launch(
        &self,
        kernel: Function,
        grid: u32,
        block: u32,
        params: &mut [u64],
    ) -> Result<(), CudaError> {
        let mut pointers: Vec<*mut c_void> = params
            .iter_mut()
            .map(|p| std::ptr::from_mut(p).cast())
            .collect();
        // SAFETY: `pointers` has one valid pointer per parameter of the kernel, as its caller vouches for the
        // kernel it names; the driver copies them before it returns.
        let code = unsafe {
            (self.driver.functions.launch)(
                kernel.0,
                grid,
                1,
                1,
                block,
                1,
                1,
                0,
                std::ptr::null_mut(),
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        self.driver.check("cuLaunchKernel", code)
    }

    /// Waits until all launched work has ended.
    ///
    /// # Errors
    /// What a kernel failed with.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: takes nothing.
        self.driver.check("cuCtxSynchronize", unsafe {
            (self.driver.functions.synchronize)()
        })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once by `Driver::context`. A failure at this point helps nobody.
        let _ = unsafe { (self.driver.functions.release)(self.device) };
    }
}

//! The program: reads orders from stdin, calls the driver, answers on stdout. It does not know of the shim; it opens
//! libcuda.so.1 like every program.

use std::{
    collections::BTreeMap,
    ffi::{CStr, CString, c_void},
    io::{BufRead, Write},
    os::unix::process::CommandExt,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use super::burst;

pub(super) type Raw = *mut c_void;

/// The driver's library as the program sees it.
pub(crate) struct Library(pub(super) Raw);

impl Library {
    pub(crate) fn open(name: &str) -> Self {
        let name = CString::new(name).unwrap();
        // SAFETY: a NUL-terminated name.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        if handle.is_null() {
            // SAFETY: dlerror gives a NUL-terminated text after a failure.
            let error = unsafe { CStr::from_ptr(libc::dlerror()) };
            panic!("{}", error.to_string_lossy());
        }
        Self(handle)
    }

    pub(crate) fn find(&self, name: &str) -> Raw {
        let name = CString::new(name).unwrap();
        // SAFETY: a valid handle and a NUL-terminated name.
        unsafe { libc::dlsym(self.0, name.as_ptr()) }
    }
}

/// Calls a function by name with C types.
macro_rules! call {
    ($library:expr, $name:expr, ($($value:expr => $kind:ty),*)) => {{
        let found = $library.find($name);
        assert!(!found.is_null(), "{} is missing", $name);
        // SAFETY: the signature is that of cuda.h.
        let function: unsafe extern "C" fn($($kind),*) -> i32 = unsafe { std::mem::transmute(found) };
        // SAFETY: all pointers given are valid for the call.
        unsafe { function($($value),*) }
    }};
}

pub(super) use call;

/// If the environment makes this process the client, runs until stdin ends.
#[test]
fn client() {
    if std::env::var_os("SHIM_TEST_CLIENT").is_none() {
        println!("skipped: runs as a child of another test only");
        return;
    }
    let library = Library::open("libcuda.so.1");
    let mut context = 0_usize;
    println!();
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let (code, value) = order(&library, &mut context, &words);
        let mut output = std::io::stdout().lock();
        writeln!(output, "> {code} {value}").unwrap();
        output.flush().unwrap();
    }
}

/// Loads this many further copies of the driver's library, each in a linker namespace of its own, and allocates through
/// each until it refuses; returns the last refusal and the total bytes.
fn copies(count: u64, bytes: u64) -> (i32, u64) {
    let (mut taken, mut last) = (0, 0);
    for _ in 0..count {
        // SAFETY: a NUL-terminated name.
        let handle =
            unsafe { libc::dlmopen(libc::LM_ID_NEWLM, c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "no further copy");
        let copy = Library(handle);
        let mut out = 0_u64;
        let to = &raw mut out;
        last = call!(copy, "cuInit", (0 => u32));
        if last == 0 {
            last = call!(copy, "cuDevicePrimaryCtxRetain", (to => *mut u64, 0 => i32));
        }
        if last == 0 {
            last = call!(copy, "cuCtxSetCurrent", (out => u64));
        }
        while last == 0 {
            last = call!(copy, "cuMemAlloc_v2", (to => *mut u64, bytes => u64));
            taken += if last == 0 { bytes } else { 0 };
        }
    }
    (last, taken)
}

fn order(cuda: &Library, context: &mut usize, words: &[&str]) -> (i32, u64) {
    let number = |at: usize| words[at].parse::<u64>().unwrap();
    let mut out = 0_u64;
    let to = &raw mut out;
    let code = match words[0] {
        "init" => call!(cuda, "cuInit", (0 => u32)),
        "retain" => {
            let device = number(1) as i32;
            let code = call!(cuda, "cuDevicePrimaryCtxRetain", (to => *mut u64, device => i32));
            if code == 0 {
                *context = out as usize;
                call!(cuda, "cuCtxSetCurrent", (*context => usize))
            } else {
                code
            }
        }
        "release" => {
            let device = number(1) as i32;
            call!(cuda, "cuDevicePrimaryCtxRelease_v2", (device => i32))
        }
        "reset" => call!(cuda, "cuDevicePrimaryCtxReset_v2", (number(1) as i32 => i32)),
        "context" => {
            call!(cuda, "cuCtxCreate_v2", (to => *mut u64, 0 => u32, number(1) as i32 => i32))
        }
        "destroy" => call!(cuda, "cuCtxDestroy_v2", (number(1) => u64)),
        "alloc" => call!(cuda, "cuMemAlloc_v2", (to => *mut u64, number(1) => u64)),
        "pitch" => {
            let mut pitch = 0_u64;
            call!(cuda, "cuMemAllocPitch_v2", (
                to => *mut u64, &raw mut pitch => *mut u64, number(1) => u64, number(2) => u64,
                4 => u32
            ))
        }
        "foreign" => {
            let (name, of) = (words[1], number(2));
            match name {
                "cuGraphicsGLRegisterImage" => call!(cuda, name, (
                    to => *mut u64, of as u32 => u32, 0 => u32, 0 => u32
                )),
                "cuGraphicsGLRegisterBuffer" => {
                    call!(cuda, name, (to => *mut u64, of as u32 => u32, 0 => u32))
                }
                "cuGraphicsEGLRegisterImage" => {
                    call!(cuda, name, (to => *mut u64, of => u64, 0 => u32))
                }
                _ => call!(cuda, name, (to => *mut u64, of => u64)),
            }
        }
        "managed" => {
            call!(cuda, "cuMemAllocManaged", (to => *mut u64, number(1) => u64, 1 => u32))
        }
        "async" => {
            call!(cuda, "cuMemAllocAsync", (to => *mut u64, number(1) => u64, 0 => u64))
        }
        "async_ptsz" => {
            call!(cuda, "cuMemAllocAsync_ptsz", (to => *mut u64, number(1) => u64, 0 => u64))
        }
        "pool" => {
            // Location: device; all other properties are zero.
            let props: [i32; 22] = std::array::from_fn(|at| match at {
                0 | 2 => 1,
                3 => number(1) as i32,
                _ => 0,
            });
            call!(cuda, "cuMemPoolCreate", (to => *mut u64, props.as_ptr() => *const i32))
        }
        "from_pool" => {
            call!(cuda, "cuMemAllocFromPoolAsync", (
                to => *mut u64, number(1) => u64, number(2) => u64, 0 => u64
            ))
        }
        "pool_destroy" => call!(cuda, "cuMemPoolDestroy", (number(1) => u64)),
        // While another thread synchronises.
        "pool_destroy_meanwhile" => {
            let (library, context) = (cuda.0 as usize, *context);
            let other = std::thread::spawn(move || {
                let cuda = Library(library as Raw);
                call!(cuda, "cuCtxSetCurrent", (context => usize));
                call!(cuda, "cuStreamSynchronize", (0 => u64))
            });
            std::thread::sleep(std::time::Duration::from_millis(50));
            let code = call!(cuda, "cuMemPoolDestroy", (number(1) => u64));
            code + other.join().unwrap()
        }
        "trim" => call!(cuda, "cuMemPoolTrimTo", (number(1) => u64, 0 => u64)),
        "free" => call!(cuda, "cuMemFree_v2", (number(1) => u64)),
        "free_async" => call!(cuda, "cuMemFreeAsync", (number(1) => u64, 0 => u64)),
        "sync" => call!(cuda, "cuCtxSynchronize", ()),
        "create" => {
            let props: [i32; 8] = [1, 0, number(2) as i32, number(3) as i32, 0, 0, 0, 0];
            call!(cuda, "cuMemCreate", (
                to => *mut u64, number(1) => u64, props.as_ptr() => *const i32, 0 => u64
            ))
        }
        "create_shared" => {
            // May be exported as a file descriptor.
            let props: [i32; 8] = [1, 1, 1, number(2) as i32, 0, 0, 0, 0];
            call!(cuda, "cuMemCreate", (
                to => *mut u64, number(1) => u64, props.as_ptr() => *const i32, 0 => u64
            ))
        }
        "unhandle" => call!(cuda, "cuMemRelease", (number(1) => u64)),
        "map" => call!(cuda, "cuMemMap", (
            number(1) => u64, number(2) => u64, 0 => u64, number(3) => u64, 0 => u64
        )),
        "unmap" => call!(cuda, "cuMemUnmap", (number(1) => u64, number(2) => u64)),
        "rehandle" => {
            let address = number(1);
            call!(cuda, "cuMemRetainAllocationHandle", (to => *mut u64, address => u64))
        }
        "free_bytes" | "total_bytes" => {
            let (mut free, mut total) = (0_u64, 0_u64);
            let code = call!(cuda, "cuMemGetInfo_v2", (
                &raw mut free => *mut u64, &raw mut total => *mut u64
            ));
            out = if words[0] == "free_bytes" {
                free
            } else {
                total
            };
            code
        }
        "device_bytes" => {
            call!(cuda, "cuDeviceTotalMem_v2", (to => *mut u64, number(1) as i32 => i32))
        }
        "launch" | "launch_ptsz" => {
            let name = match words[0] {
                "launch" => "cuLaunchKernel",
                _ => "cuLaunchKernel_ptsz",
            };
            for _ in 0..number(1) {
                let code = launch(cuda, name);
                if code != 0 {
                    return (code, 0);
                }
            }
            0
        }
        "future" => call!(cuda, "cuFromTheFuture", (number(1) as i32 => i32)),
        "own_calls" => {
            out = call!(cuda, "fake_own_calls", ()) as u64;
            0
        }
        "grid" => {
            let grid = [1, 2, 3].map(|at| number(at) as u32);
            let code = call!(cuda, "cuLaunchKernel", (
                1 => u64, grid[0] => u32, grid[1] => u32, grid[2] => u32, 1 => u32, 1 => u32,
                1 => u32, 0 => u32, 0 => u64, 0 => u64, 0 => u64
            ));
            // SAFETY: the fake driver's function takes nothing and gives 64 bits.
            let blocks: extern "C" fn() -> u64 =
                unsafe { std::mem::transmute(cuda.find("fake_blocks")) };
            out = blocks();
            code
        }
        "launch_ex" => {
            let config = [0_u64; 8];
            call!(cuda, "cuLaunchKernelEx", (
                config.as_ptr() => *const u64, 1 => u64, 0 => u64, 0 => u64
            ))
        }
        "launch_cooperative" => call!(cuda, "cuLaunchCooperativeKernel", (
            1 => u64, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 0 => u32,
            0 => u64, 0 => u64
        )),
        "current" => call!(cuda, "cuCtxSetCurrent", (number(1) => u64)),
        // Whether the look-up of a name returns the library's own symbol of another.
        "route" => {
            let name = CString::new(words[1]).unwrap();
            let code = call!(cuda, "cuGetProcAddress_v2", (
                name.as_ptr() => *const libc::c_char, to => *mut u64, number(2) as i32 => i32,
                number(3) => u64, 0 => u64
            ));
            out = u64::from(code == 0 && out == cuda.find(words[4]) as u64);
            code
        }
        "next" => {
            // SAFETY: NUL-terminated names; the library stays open.
            out = unsafe {
                libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL);
                let next = libc::dlsym(libc::RTLD_NEXT, c"cuMemAlloc_v2".as_ptr());
                u64::from(next == cuda.find("cuMemAlloc_v2"))
            };
            0
        }
        "globals" => globals(),
        "tamper" => tamper(),
        // Closes the library for good, as far as a program can, and opens it again.
        "reload" => {
            // SAFETY: the only handle of this program; the next line opens it anew.
            let closed = unsafe { libc::dlclose(cuda.0) };
            let again = Library::open("libcuda.so.1");
            out = u64::from(again.0 == cuda.0);
            closed
        }
        "copies" => {
            let (code, taken) = copies(number(1), number(2));
            out = taken;
            code
        }
        "scribble" => scribble(),
        "stream" => call!(cuda, "cuStreamCreate", (to => *mut u64, 1 => u32)),
        "green" | "green_stream" => {
            let mut part = [0_u8; 144];
            let (mut desc, mut green) = (0_u64, 0_u64);
            let part = part.as_mut_ptr();
            let codes = [
                call!(cuda, "cuDeviceGetDevResource", (0 => i32, part => *mut u8, 1 => u32)),
                call!(cuda, "cuDevResourceGenerateDesc", (
                    &raw mut desc => *mut u64, part => *mut u8, 1 => u32
                )),
                call!(cuda, "cuGreenCtxCreate", (
                    &raw mut green => *mut u64, desc => u64, 0 => i32, 1 => u32
                )),
            ];
            out = green;
            match codes.into_iter().find(|code| *code != 0) {
                None if words[0] == "green_stream" => call!(cuda, "cuGreenCtxStreamCreate", (
                    to => *mut u64, green => u64, 1 => u32, 0 => i32
                )),
                code => code.unwrap_or(0),
            }
        }
        "from_green" => call!(cuda, "cuCtxFromGreenCtx", (to => *mut u64, number(1) => u64)),
        "green_of" => call!(cuda, "cuStreamGetGreenCtx", (number(1) => u64, to => *mut u64)),
        "green_destroy" => call!(cuda, "cuGreenCtxDestroy", (number(1) => u64)),
        "kernel" => kernel(cuda, &code(0), to),
        "slow_kernel" => kernel(cuda, &slow(number(1)), to),
        "device_runtime" => {
            RUNTIME.store(true, Ordering::Relaxed);
            0
        }
        "local_kernel" => kernel(cuda, &code(number(1)), to),
        "library_kernel" => library_kernel(cuda, number(1), to),
        "variable" => variable(cuda, words[1], words[2], to),
        "limit" => call!(cuda, "cuCtxSetLimit", (number(1) as i32 => i32, number(2) => u64)),
        "launch_on" => call!(cuda, "cuLaunchKernel", (
            number(1) => u64, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 1 => u32,
            0 => u32, number(2) => u64, 0 => u64, 0 => u64
        )),
        "copy" => call!(cuda, "cuMemcpyDtoDAsync_v2", (
            number(1) => u64, number(2) => u64, number(3) => u64, number(4) => u64
        )),
        "zero" => call!(cuda, "cuMemsetD8_v2", (
            number(1) => u64, 0 => u8, number(2) => u64
        )),
        "sync_stream" => call!(cuda, "cuStreamSynchronize", (number(1) => u64)),
        // A stream waits for the present end of another, or for a value in memory, or writes one.
        "wait_stream" => {
            let codes = [
                call!(cuda, "cuEventCreate", (to => *mut u64, 2 => u32)),
                call!(cuda, "cuEventRecord", (out => u64, number(2) => u64)),
                call!(cuda, "cuStreamWaitEvent", (number(1) => u64, out => u64, 0 => u32)),
            ];
            codes.into_iter().max().unwrap()
        }
        "wait_value" => call!(cuda, "cuStreamWaitValue32_v2", (
            number(1) => u64, number(2) => u64, number(3) as u32 => u32, 0 => u32
        )),
        "write_value" => call!(cuda, "cuStreamWriteValue32_v2", (
            number(1) => u64, number(2) => u64, number(3) as u32 => u32, 0 => u32
        )),
        "async_on" => call!(cuda, "cuMemAllocAsync", (
            to => *mut u64, number(1) => u64, number(2) => u64
        )),
        "free_on" => call!(cuda, "cuMemFreeAsync", (number(1) => u64, number(2) => u64)),
        "capture" => call!(cuda, "cuStreamBeginCapture_v2", (number(1) => u64, 0 => i32)),
        "captured" => call!(cuda, "cuStreamEndCapture", (number(1) => u64, to => *mut u64)),
        "instantiate" => call!(cuda, "cuGraphInstantiateWithFlags", (
            to => *mut u64, number(1) => u64, 0 => u64
        )),
        // An executable graph of one kernel: to another graph, or to another kernel.
        "change" => {
            let (exec, graph) = (number(2), number(3));
            let (other, kernel) = (number(4), number(5));
            let (mut node, mut count, mut told) = (0_u64, 1_usize, [0_u64; 3]);
            call!(cuda, "cuGraphGetNodes", (
                graph => u64, &raw mut node => *mut u64, &raw mut count => *mut usize
            ));
            // A function, grid and block of 1, no shared memory, no arguments.
            let one = 1 | 1 << 32;
            let mut params = [kernel, one, one, one, 0, 0, 0, 0, 0, 0, 0];
            match words[1] {
                "graph" => call!(cuda, "cuGraphExecUpdate", (
                    exec => u64, other => u64, &raw mut node => *mut u64, told.as_mut_ptr() => *mut u64
                )),
                "graph_2" => call!(cuda, "cuGraphExecUpdate_v2", (
                    exec => u64, other => u64, told.as_mut_ptr() => *mut u64
                )),
                "kernel" => call!(cuda, "cuGraphExecKernelNodeSetParams", (
                    exec => u64, node => u64, params.as_ptr() => *const u64
                )),
                "kernel_2" => {
                    params.swap(0, 7);
                    call!(cuda, "cuGraphExecKernelNodeSetParams_v2", (
                        exec => u64, node => u64, params.as_ptr() => *const u64
                    ))
                }
                _ => {
                    let mut any = [0_u64; 32];
                    any[2..13].copy_from_slice(&params);
                    call!(cuda, "cuGraphExecNodeSetParams", (
                        exec => u64, node => u64, any.as_mut_ptr() => *mut u64
                    ))
                }
            }
        }
        "graph_launch" => call!(cuda, "cuGraphLaunch", (number(1) => u64, number(2) => u64)),
        "exec_destroy" => call!(cuda, "cuGraphExecDestroy", (number(1) => u64)),
        "graph_trim" => call!(cuda, "cuDeviceGraphMemTrim", (number(1) as i32 => i32)),
        "array" => {
            // 32-bit floats, one channel.
            let descriptor = [number(1), number(2), 0x1_0000_0020];
            call!(cuda, "cuArrayCreate_v2", (to => *mut u64, descriptor.as_ptr() => *const u64))
        }
        // Arguments that the driver refuses, whatever their size.
        "odd" => {
            let (bytes, mut pitch) = (number(2), 0_u64);
            let props: [i32; 8] = [1, 0, 1, 0, 0, 0, 0, 0];
            match words[1] {
                "managed" => {
                    call!(cuda, "cuMemAllocManaged", (to => *mut u64, bytes => u64, 8 => u32))
                }
                "pitch" => call!(cuda, "cuMemAllocPitch_v2", (
                    to => *mut u64, &raw mut pitch => *mut u64, bytes / 4096 => u64, 4096 => u64,
                    3 => u32
                )),
                "create" => call!(cuda, "cuMemCreate", (
                    to => *mut u64, bytes => u64, props.as_ptr() => *const i32, 9 => u64
                )),
                _ => {
                    let descriptor = [bytes / (4096 * 12), 4096, 0x3_0000_0020];
                    call!(cuda, "cuArrayCreate_v2", (
                        to => *mut u64, descriptor.as_ptr() => *const u64
                    ))
                }
            }
        }
        "array_destroy" => call!(cuda, "cuArrayDestroy", (number(1) => u64)),
        // Physical memory that only a mapping holds: created, mapped, its handle released.
        "mapped" => mapped(cuda, number(1), number(2) as i32, to),
        "unmapped" => {
            let at = number(1);
            let bytes = MAPPED.lock().unwrap().remove(&at).unwrap();
            let code = call!(cuda, "cuMemUnmap", (at => u64, bytes => u64));
            assert_eq!(
                call!(cuda, "cuMemAddressFree", (at => u64, bytes => u64)),
                0
            );
            code
        }
        "export" => {
            let mut fd = -1_i32;
            let code = call!(cuda, "cuMemExportToShareableHandle", (
                &raw mut fd => *mut i32, number(1) => u64, 1 => i32, 0 => u64
            ));
            out = fd as u64;
            code
        }
        "import" => call!(cuda, "cuMemImportFromShareableHandle", (
            to => *mut u64, number(1) => u64, 1 => i32
        )),
        // Leaves while other threads allocate.
        "leave" => leave(cuda, *context),
        "null" => null(cuda),
        "fork" => fork(cuda),
        "fds" => {
            let entries = std::fs::read_dir("/proc/self/fd").unwrap();
            out = entries
                .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<u64>().ok())
                .filter(|fd| (3..100).contains(fd))
                .count() as u64;
            0
        }
        // Executes the same program again, as a launcher does.
        "exec" => {
            let own = std::env::current_exe().unwrap();
            // The answer comes first: the next order must not be read before the exec.
            println!("> 0 0");
            std::io::stdout().flush().unwrap();
            let mut again = std::process::Command::new(own);
            panic!("{}", again.args(std::env::args_os().skip(1)).exec());
        }
        // Closes every low descriptor but the three standard ones, as daemons do.
        "close_low" => {
            for fd in 3..100 {
                // SAFETY: closing a number that is not open only fails; this program has no
                // files of its own open.
                unsafe { libc::close(fd) };
            }
            0
        }
        "nvml_init" => call!(nvml(), "nvmlInit_v2", ()),
        "nvml_count" => {
            let mut count = 0_u32;
            let code = call!(nvml(), "nvmlDeviceGetCount_v2", (&raw mut count => *mut u32));
            out = u64::from(count);
            code
        }
        // By the first version, or with `_v2` by the second.
        "nvml_total" | "nvml_free" | "nvml_used" | "nvml_total_v2" | "nvml_free_v2" => {
            let mut figures = [0_u64; 5];
            let device = nvml_device(number(1) as u32);
            let (what, second) = (words[0].trim_end_matches("_v2"), words[0].ends_with("_v2"));
            let (name, at) = if second {
                figures[0] = 40 | 2 << 24;
                ("nvmlDeviceGetMemoryInfo_v2", [1, 3, 4])
            } else {
                ("nvmlDeviceGetMemoryInfo", [0, 1, 2])
            };
            let code = call!(nvml(), name, (
                device => u64, figures.as_mut_ptr() => *mut u64
            ));
            let kinds = ["nvml_total", "nvml_free", "nvml_used"];
            out = figures[at[kinds.iter().position(|kind| *kind == what).unwrap()]];
            code
        }
        // Index of the device found by the UUID of the device with this index.
        "nvml_index" => {
            let mut index = u32::MAX;
            let device = nvml_device(number(1) as u32);
            let code = call!(nvml(), "nvmlDeviceGetIndex", (
                device => u64, &raw mut index => *mut u32
            ));
            out = u64::from(index);
            code
        }
        "nvml_uuid" => {
            let uuid = CString::new(words[1]).unwrap();
            call!(nvml(), "nvmlDeviceGetHandleByUUID", (
                uuid.as_ptr() => *const libc::c_char, to => *mut u64
            ))
        }
        // The number of processes; the argument is the room for them.
        "nvml_processes" => {
            let mut count = number(2) as u32;
            let mut found = vec![[0_u64; 3]; count as usize];
            let device = nvml_device(number(1) as u32);
            let code = call!(nvml(), "nvmlDeviceGetComputeRunningProcesses_v3", (
                device => u64, &raw mut count => *mut u32, found.as_mut_ptr() => *mut [u64; 3]
            ));
            out = u64::from(count);
            code
        }
        // Bytes of a process.
        "nvml_process" => {
            let mut count = 64_u32;
            let mut found = vec![[0_u64; 3]; count as usize];
            let device = nvml_device(number(1) as u32);
            let code = call!(nvml(), "nvmlDeviceGetComputeRunningProcesses_v3", (
                device => u64, &raw mut count => *mut u32, found.as_mut_ptr() => *mut [u64; 3]
            ));
            let mut listed = found[..count as usize].iter();
            let wanted = listed.find(|entry| entry[0] & 0xffff_ffff == number(2));
            out = wanted.map_or(0, |entry| entry[1]);
            code
        }
        "nvml_driver_version" => {
            let mut text = [0_u8; 80];
            let code = call!(nvml(), "nvmlSystemGetDriverVersion", (
                text.as_mut_ptr() => *mut u8, text.len() as u32 => u32
            ));
            out = u64::from(text[0].is_ascii_digit());
            code
        }
        "devices" => {
            let mut count = 0_i32;
            let code = call!(cuda, "cuDeviceGetCount", (&raw mut count => *mut i32));
            out = count as u64;
            code
        }
        "device" => {
            let mut device = -1_i32;
            let code =
                call!(cuda, "cuDeviceGet", (&raw mut device => *mut i32, number(1) as i32 => i32));
            out = device as u64;
            code
        }
        "hold" => burst::hold(cuda, number(1), number(2)),
        "exit_by" => burst::exit_by(cuda, *context, words[1], number(2), number(3)),
        "burst" => burst::burst(cuda, number(1), number(2), number(3), to),
        "flood" => burst::flood(cuda, number(1), number(2), (number(3), number(4)), to),
        "burst_threads" => burst::threads(cuda, *context, number(1), number(2), number(3), to),
        "heed" => burst::heed(),
        "heard" => {
            out = burst::heard();
            0
        }
        "fill" => fill(cuda, number(1), number(2)),
        "threads" => threads(cuda, *context, number(1), number(2), to),
        other => panic!("unknown order {other}"),
    };
    (code, out)
}

/// 0 if the library has not touched process-wide state.
fn globals() -> i32 {
    // SAFETY: sets and resets the mask; reads dispositions.
    unsafe {
        let mask = libc::umask(0o22);
        libc::umask(mask);
        let mut wrong = i32::from(mask != 0o27);
        for signal in 1..32 {
            let mut action: libc::sigaction = std::mem::zeroed();
            let asked = libc::sigaction(signal, std::ptr::null(), &raw mut action);
            // Rust's own: SIGSEGV and SIGBUS for stack overflows. Ignored signals were inherited (nohup, a shell's
            // background) or are Rust's SIGPIPE.
            let own = [libc::SIGSEGV, libc::SIGBUS].contains(&signal);
            let untouched = [libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
            if asked == 0 && !own && !untouched {
                wrong += 1000 + signal;
            }
        }
        wrong
    }
}

/// 0 if the claim's pages can neither be resized nor, for the service's own, be written.
fn tamper() -> i32 {
    let mut found = 0;
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let usage = std::fs::read_link(entry.path())
            .is_ok_and(|link| link.to_string_lossy().contains("memfd:gshare-usage"));
        if usage {
            let name = entry.file_name();
            let fd: i32 = name.to_str().unwrap().parse().unwrap();
            // SAFETY: a descriptor of this process.
            let cut = unsafe { (libc::ftruncate(fd, 0), libc::ftruncate(fd, 1 << 20)) };
            if cut != (-1, -1) {
                return 1;
            }
            found += 1;
        }
    }
    // A mapping of the limits must not become writable.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    for line in maps.lines().filter(|line| line.contains("/GPU-")) {
        let start = usize::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
        let both = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the whole page of a mapping; the call must fail.
        if unsafe { libc::mprotect(start as Raw, 4096, both) } == 0 {
            return 2;
        }
        found += 10;
    }
    i32::from(found != 11) * 3
}

/// Fills the claim's usage pages with ones.
fn scribble() -> i32 {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut pages = 0;
    for line in maps
        .lines()
        .filter(|line| line.contains("memfd:gshare-usage"))
    {
        let (start, rest) = line.split_once('-').unwrap();
        let end = rest.split_whitespace().next().unwrap();
        let at = |text: &str| usize::from_str_radix(text, 16).unwrap();
        // SAFETY: a writable mapping of this process; its words are atomics that may hold anything.
        unsafe { std::ptr::write_bytes(at(start) as *mut u8, 0xff, at(end) - at(start)) };
        pages += 1;
    }
    i32::from(pages == 0)
}

/// Loads a module or library with a variable, which is `managed` or not, and returns its address.
fn variable(cuda: &Library, of: &str, kind: &str, to: *mut u64) -> i32 {
    let space = match kind {
        "managed" => ".global .attribute(.managed)",
        _ => ".global",
    };
    let head = ".version 7.0\n.target sm_50\n.address_size 64\n";
    let code = format!("{head}.visible {space} .align 8 .b8 both[64];");
    let code = CString::new(code).unwrap();
    let (mut loaded, mut bytes) = (0_u64, 0_usize);
    let image = code.as_ptr();
    let (none, no) = (std::ptr::null_mut::<u32>(), 0_u32);
    let code = match of {
        "module" => call!(cuda, "cuModuleLoadData", (
            &raw mut loaded => *mut u64, image => *const libc::c_char
        )),
        _ => call!(cuda, "cuLibraryLoadData", (
            &raw mut loaded => *mut u64, image => *const libc::c_char, none => *mut u32,
            none => *mut u32, no => u32, none => *mut u32, none => *mut u32, no => u32
        )),
    };
    if code != 0 {
        return code;
    }
    let name = match (of, kind) {
        ("module", _) => "cuModuleGetGlobal_v2",
        (_, "managed") => "cuLibraryGetManaged",
        _ => "cuLibraryGetGlobal",
    };
    call!(cuda, name, (
        to => *mut u64, &raw mut bytes => *mut usize, loaded => u64,
        c"both".as_ptr() => *const libc::c_char
    ))
}

/// The kernel `idle` of this code.
fn kernel(cuda: &Library, code: &CStr, to: *mut u64) -> i32 {
    let mut module = 0_u64;
    let loaded = call!(cuda, "cuModuleLoadData", (
        &raw mut module => *mut u64, code.as_ptr() => *const libc::c_char
    ));
    if loaded != 0 {
        return loaded;
    }
    call!(cuda, "cuModuleGetFunction", (
        to => *mut u64, module => u64, c"idle".as_ptr() => *const libc::c_char
    ))
}

/// The same as a kernel of a library, which is not a function of any context; found by name or, every other time, among
/// all.
fn library_kernel(cuda: &Library, local: u64, to: *mut u64) -> i32 {
    static AMONG_ALL: AtomicU64 = AtomicU64::new(0);
    let code = code(local);
    let mut library = 0_u64;
    let loaded = call!(cuda, "cuLibraryLoadData", (
        &raw mut library => *mut u64, code.as_ptr() => *const libc::c_char, 0 => u64, 0 => u64,
        0 => u32, 0 => u64, 0 => u64, 0 => u32
    ));
    if loaded != 0 {
        return loaded;
    }
    if AMONG_ALL.fetch_xor(1, Ordering::Relaxed) == 1 {
        return call!(cuda, "cuLibraryEnumerateKernels", (to => *mut u64, 1 => u32, library => u64));
    }
    call!(cuda, "cuLibraryGetKernel", (
        to => *mut u64, library => u64, c"idle".as_ptr() => *const libc::c_char
    ))
}

/// Kernels contain the runtime for starting others from now on.
static RUNTIME: AtomicBool = AtomicBool::new(false);

/// A kernel whose launch call keeps the simulated driver busy: this many turns of a loop.
fn slow(turns: u64) -> CString {
    let code = format!(
        ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry idle() {{ .reg .b32 %r<2>; .reg .pred %p<2>;\n\
         mov.u32 %r1, {turns};\nAGAIN: sub.u32 %r1, %r1, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra AGAIN; ret; }}"
    );
    CString::new(code).unwrap()
}

/// The kernel `idle`, which does nothing, with this many bytes of local memory for each thread.
fn code(local: u64) -> CString {
    let local = match local {
        0 => String::new(),
        bytes => format!(".local .align 4 .b8 deep[{bytes}];"),
    };
    let head = ".version 7.0\n.target sm_50\n.address_size 64\n";
    let runtime = match RUNTIME.load(Ordering::Relaxed) {
        true => ".visible .global .align 4 .b32 __CNPRT_VERSION_NUMBER__;\n",
        false => "",
    };
    let code = format!("{head}{runtime}.visible .entry idle() {{ {local} ret; }}");
    CString::new(code).unwrap()
}

/// Exits regularly while its threads are in the driver.
fn leave(cuda: &Library, context: usize) -> i32 {
    let library = cuda.0 as usize;
    for _ in 0..4 {
        std::thread::spawn(move || {
            let cuda = Library(library as Raw);
            call!(cuda, "cuCtxSetCurrent", (context => usize));
            loop {
                fill(&cuda, 1 << 16, 1);
            }
        });
    }
    std::thread::yield_now();
    println!("> 0 0");
    std::io::stdout().flush().unwrap();
    std::process::exit(0);
}

/// Length of each mapping made by `mapped`.
static MAPPED: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());

fn mapped(cuda: &Library, bytes: u64, device: i32, to: *mut u64) -> i32 {
    let (mut at, mut handle) = (0_u64, 0_u64);
    let reserved = call!(cuda, "cuMemAddressReserve", (
        &raw mut at => *mut u64, bytes => u64, 0 => u64, 0 => u64, 0 => u64
    ));
    assert_eq!(reserved, 0);
    let props: [i32; 8] = [1, 0, 1, device, 0, 0, 0, 0];
    let code = call!(cuda, "cuMemCreate", (
        &raw mut handle => *mut u64, bytes => u64, props.as_ptr() => *const i32, 0 => u64
    ));
    if code != 0 {
        assert_eq!(
            call!(cuda, "cuMemAddressFree", (at => u64, bytes => u64)),
            0
        );
        return code;
    }
    let codes = [
        call!(cuda, "cuMemMap", (at => u64, bytes => u64, 0 => u64, handle => u64, 0 => u64)),
        call!(cuda, "cuMemRelease", (handle => u64)),
        call!(cuda, "cuMemRetainAllocationHandle", (&raw mut handle => *mut u64, at => u64)),
        call!(cuda, "cuMemRelease", (handle => u64)),
    ];
    assert_eq!(codes, [0; 4]);
    MAPPED.lock().unwrap().insert(at, bytes);
    // SAFETY: the caller's own number.
    unsafe { *to = at };
    0
}

fn nvml() -> Library {
    Library::open("libnvidia-ml.so.1")
}

fn nvml_device(index: u32) -> u64 {
    let mut device = 0_u64;
    let code = call!(nvml(), "nvmlDeviceGetHandleByIndex_v2", (
        index => u32, &raw mut device => *mut u64
    ));
    if code == 0 { device } else { 0 }
}

fn launch(cuda: &Library, name: &str) -> i32 {
    call!(cuda, name, (
        1 => u64, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 0 => u32,
        0 => u64, 0 => u64, 0 => u64
    ))
}

/// Arguments that the driver must check; all must return its own error.
fn null(cuda: &Library) -> i32 {
    let mut value = 0_u64;
    let at = &raw mut value;
    let codes = [
        call!(cuda, "cuMemAlloc_v2", (0 => u64, 4096 => u64)),
        call!(cuda, "cuMemAlloc_v2", (at => *mut u64, 0 => u64)),
        call!(cuda, "cuMemAllocAsync", (0 => u64, 4096 => u64, 0 => u64)),
        call!(cuda, "cuMemGetInfo_v2", (0 => u64, at => *mut u64)),
        call!(cuda, "cuMemCreate", (at => *mut u64, 4096 => u64, 0 => u64, 0 => u64)),
        call!(cuda, "cuMemAllocPitch_v2", (at => *mut u64, 0 => u64, 1 => u64, 1 => u64, 4 => u32)),
        call!(cuda, "cuMemFree_v2", (12345 => u64)),
        call!(cuda, "cuMemFreeAsync", (12345 => u64, 0 => u64)),
        call!(cuda, "cuDeviceTotalMem_v2", (0 => u64, 0 => i32)),
        call!(cuda, "cuGetProcAddress_v2", (0 => u64, 0 => u64, 12000 => i32, 0 => u64, 0 => u64)),
    ];
    assert!(codes.iter().all(|&code| code == 1), "{codes:?}");
    call!(cuda, "cuMemFree_v2", (0 => u64))
}

/// A child without exec: its allocations are not the parent's. Returns the child's exit code.
fn fork(cuda: &Library) -> i32 {
    // SAFETY: the child calls only the driver and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut at = 0_u64;
        // Before it initialises the driver itself, the child is a stranger.
        let early = launch(cuda, "cuLaunchKernel");
        let code = call!(cuda, "cuInit", (0 => u32));
        let own = call!(cuda, "cuMemAlloc_v2", (&raw mut at => *mut u64, 4 << 20 => u64));
        // SAFETY: ends the child without running the test harness.
        unsafe {
            libc::_exit(if (early, code, own) == (0, 0, 0) {
                0
            } else {
                1
            })
        };
    }
    let mut status = 0;
    // SAFETY: waits for the child just made.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    libc::WEXITSTATUS(status)
}

/// Allocates pieces until a refusal, frees all, and repeats. 0 if every refusal was "out of memory".
fn fill(cuda: &Library, piece: u64, rounds: u64) -> i32 {
    for _ in 0..rounds {
        let mut held = Vec::new();
        loop {
            let mut at = 0_u64;
            match call!(cuda, "cuMemAlloc_v2", (&raw mut at => *mut u64, piece => u64)) {
                0 => held.push(at),
                2 => break,
                other => return other,
            }
        }
        for at in held {
            let code = call!(cuda, "cuMemFree_v2", (at => u64));
            if code != 0 {
                return code;
            }
        }
    }
    0
}

/// Several threads allocate and free all families at once; the number counts the allocations.
fn threads(cuda: &Library, context: usize, count: u64, rounds: u64, out: *mut u64) -> i32 {
    let made = AtomicU64::new(0);
    let failed = AtomicU64::new(0);
    let library = cuda.0 as usize;
    std::thread::scope(|scope| {
        for thread in 0..count {
            let (made, failed) = (&made, &failed);
            scope.spawn(move || {
                let cuda = Library(library as Raw);
                call!(cuda, "cuCtxSetCurrent", (context => usize));
                let mut dice = 0x9e37_79b9 ^ (thread + 1);
                for _ in 0..rounds {
                    dice ^= dice << 13;
                    dice ^= dice >> 7;
                    dice ^= dice << 17;
                    let bytes = 1 + dice % (6 << 20) / (1 + (dice >> 30) % 64);
                    let mut at = 0_u64;
                    let to = &raw mut at;
                    let code = if dice >> 62 == 0 {
                        call!(cuda, "cuMemAllocAsync", (to => *mut u64, bytes => u64, 0 => u64))
                    } else {
                        call!(cuda, "cuMemAlloc_v2", (to => *mut u64, bytes => u64))
                    };
                    if code == 2 {
                        continue;
                    }
                    made.fetch_add(1, Ordering::Relaxed);
                    let back = if dice >> 61 & 1 == 0 {
                        call!(cuda, "cuMemFree_v2", (at => u64))
                    } else {
                        call!(cuda, "cuMemFreeAsync", (at => u64, 0 => u64))
                    };
                    if code != 0 || back != 0 {
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    // SAFETY: the caller's own number.
    unsafe { *out = made.load(Ordering::Relaxed) };
    i32::from(failed.load(Ordering::Relaxed) > 0) * 999
}

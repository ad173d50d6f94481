//! The program: reads orders from stdin, calls the driver, answers on stdout. It knows nothing of
//! the shim; it opens libcuda.so.1 as every program does.

use std::{
    ffi::{CString, c_void},
    io::{BufRead, Write},
    os::unix::process::CommandExt,
    sync::atomic::{AtomicU64, Ordering},
};

type Raw = *mut c_void;

/// The driver's library, as the program sees it.
pub(crate) struct Library(Raw);

impl Library {
    pub(crate) fn open(name: &str) -> Self {
        let name = CString::new(name).unwrap();
        // SAFETY: a NUL-terminated name.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        if handle.is_null() {
            // SAFETY: dlerror gives a NUL-terminated text after a failure.
            let error = unsafe { std::ffi::CStr::from_ptr(libc::dlerror()) };
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

/// Runs until stdin ends, if the environment says that this process is the client.
pub(crate) fn run() {
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
            // Location: device; the rest of the properties is zero.
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
        // Becomes the same program anew, as a launcher becomes what it launches.
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
        "nvml_total" | "nvml_used" => {
            let mut figures = [0_u64; 3];
            let device = nvml_device(number(1) as u32);
            let code = call!(nvml(), "nvmlDeviceGetMemoryInfo", (
                device => u64, figures.as_mut_ptr() => *mut u64
            ));
            assert_eq!(figures[0], figures[1] + figures[2]);
            out = figures[if words[0] == "nvml_total" { 0 } else { 2 }];
            code
        }
        // Index of the device that is found by the UUID of the device with an index.
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
        // With room for so many processes: their number, or how many there are.
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
        "fill" => fill(cuda, number(1), number(2)),
        "threads" => threads(cuda, *context, number(1), number(2), to),
        other => panic!("unknown order {other}"),
    };
    (code, out)
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

/// Arguments that the driver must judge; all must come back with its own error.
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

/// A child that goes on without exec: what it allocates is not the parent's. Gives the child's exit
/// code.
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

/// Allocates pieces until one is refused, gives all back, and that many times over. 0 if every
/// refusal was "out of memory".
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

/// Several threads allocate and free all families at once; the number is how many allocations were
/// made.
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

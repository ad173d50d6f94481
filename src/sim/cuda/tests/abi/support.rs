//! A simulated workstation in a temporary directory, and calls into its driver.

use std::ffi::{CStr, CString, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use gshare_sim_board::{Board, BoardSpec};

/// Calls a driver function: `cu!(cuInit(0u32))` returns its result code. The types of the arguments must be those of
/// the C function.
#[macro_export]
macro_rules! cu {
    ($name:ident($($arg:expr),* $(,)?)) => {{
        let f = $crate::support::symbol(stringify!($name));
        $crate::support::Call::call(($($arg,)*), f)
    }};
}

/// The same for a call that must succeed.
#[macro_export]
macro_rules! ok {
    ($name:ident($($arg:expr),* $(,)?)) => {
        assert_eq!($crate::cu!($name($($arg),*)), 0, stringify!($name))
    };
}

/// A tuple of arguments that a C function can be called with.
pub(crate) trait Call {
    fn call(self, f: *mut c_void) -> u32;
}

macro_rules! calls {
    ($($($t:ident)*;)*) => {$(
        impl<$($t),*> Call for ($($t,)*) {
            #[allow(non_snake_case, reason = "type names double as variables")]
            fn call(self, f: *mut c_void) -> u32 {
                // SAFETY: `f` is the driver's function, and the test passes what it takes.
                let f: extern "C" fn($($t),*) -> u32 = unsafe { std::mem::transmute(f) };
                let ($($t,)*) = self;
                f($($t),*)
            }
        }
    )*};
}

calls! {
    ;
    A;
    A B;
    A B C;
    A B C D;
    A B C D E;
    A B C D E F;
    A B C D E F G;
    A B C D E F G H;
    A B C D E F G H I;
    A B C D E F G H I J;
    A B C D E F G H I J K;
}

pub(crate) struct Workstation {
    pub board: Board,
    handle: usize,
}

/// The driver's shared object that cargo built for this test.
pub(crate) fn built() -> PathBuf {
    let exe = std::env::current_exe().expect("own path");
    let path = exe.with_file_name("libgshare_sim_cuda.so");
    assert!(path.exists(), "{} is not built", path.display());
    path
}

/// Sets up a workstation with one RTX 4090 and two H100.
pub(crate) fn lay_out(dir: &Path) -> Board {
    std::fs::create_dir_all(dir.join("lib")).expect("directory");
    std::fs::copy(built(), dir.join("lib/libcuda.so.1")).expect("copy");
    let costs = "slow 5ms\npcie 2GB/s\n";
    std::fs::write(dir.join("costs"), costs).expect("costs");
    let mut spec = BoardSpec::new(&["rtx4090", "h100", "h100"]);
    spec.cuda_version = 13_050;
    Board::create(&dir.join("board"), &spec).expect("board")
}

fn load(dir: &Path) -> usize {
    let path = dir.join("lib/libcuda.so.1");
    let path = CString::new(path.to_str().expect("path")).expect("path");
    // SAFETY: the path is a C string; the library's initialisers are those of Rust's runtime.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!handle.is_null(), "{}", dlerror());
    handle as usize
}

fn dlerror() -> String {
    // SAFETY: dlerror gives NULL or a C string.
    let p = unsafe { libc::dlerror() };
    if p.is_null() {
        return "no error".to_owned();
    }
    // SAFETY: not NULL, see above.
    unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned()
}

/// The directory to remove after the tests.
static TEMPORARY: OnceLock<PathBuf> = OnceLock::new();

extern "C" fn remove_temporary() {
    if let Some(dir) = TEMPORARY.get() {
        let _ = std::fs::remove_dir_all(dir);
    }
}

/// In a child, the directory that a parent test has set up; else a new directory of this process.
pub(crate) fn workstation() -> &'static Workstation {
    static ONE: OnceLock<Workstation> = OnceLock::new();
    ONE.get_or_init(|| {
        let (dir, board) = match std::env::var_os("SIM_TEST_DIR") {
            Some(dir) => {
                let dir = PathBuf::from(dir);
                let board = Board::open(&dir.join("board")).expect("board");
                (dir, board)
            }
            None => {
                let name = format!("sim-cuda-{}", std::process::id());
                let dir = std::env::temp_dir().join(name);
                let board = lay_out(&dir);
                let _ = TEMPORARY.set(dir.clone());
                // SAFETY: registers a function of this program.
                unsafe { libc::atexit(remove_temporary) };
                (dir, board)
            }
        };
        let handle = load(&dir);
        Workstation { board, handle }
    })
}

pub(crate) fn symbol(name: &str) -> *mut c_void {
    let c = CString::new(name).expect("name");
    // SAFETY: the handle is open for the process's life.
    let p = unsafe { libc::dlsym(workstation().handle as *mut c_void, c.as_ptr()) };
    assert!(!p.is_null(), "{name} is not exported");
    p
}

/// A context for one test, current on the calling thread.
pub(crate) struct Context {
    pub handle: u64,
}

impl Context {
    pub(crate) fn on(device: i32) -> Context {
        ok!(cuInit(0u32));
        let mut handle = 0u64;
        ok!(cuCtxCreate_v2(&raw mut handle, 0u32, device));
        Context { handle }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        cu!(cuCtxDestroy_v2(self.handle));
    }
}

pub(crate) fn alloc(bytes: usize) -> u64 {
    let mut p = 0u64;
    ok!(cuMemAlloc_v2(&raw mut p, bytes));
    p
}

pub(crate) fn upload<T>(values: &[T]) -> u64 {
    let p = alloc(size_of_val(values));
    ok!(cuMemcpyHtoD_v2(p, values.as_ptr(), size_of_val(values)));
    p
}

pub(crate) fn download<T: Default + Clone>(from: u64, count: usize) -> Vec<T> {
    let mut values = vec![T::default(); count];
    let bytes = size_of_val(&values[..]);
    ok!(cuMemcpyDtoH_v2(values.as_mut_ptr(), from, bytes));
    values
}

pub(crate) fn kernel(ptx: &str, name: &str) -> u64 {
    let text = CString::new(ptx).expect("ptx");
    let name = CString::new(name).expect("name");
    let (mut module, mut function) = (0u64, 0u64);
    ok!(cuModuleLoadData(&raw mut module, text.as_ptr()));
    ok!(cuModuleGetFunction(
        &raw mut function,
        module,
        name.as_ptr()
    ));
    function
}

/// Launches a kernel on a stream with these parameters; returns the result code.
pub(crate) fn launch(
    f: u64,
    grid: u32,
    block: u32,
    stream: u64,
    params: &mut [*mut c_void],
) -> u32 {
    let extra = std::ptr::null_mut::<c_void>();
    let params = params.as_mut_ptr();
    cu!(cuLaunchKernel(
        f, grid, 1u32, 1u32, block, 1u32, 1u32, 0u32, stream, params, extra
    ))
}

/// `out[i] = 3 * in[i] + i` over 32-bit integers, and kernels whose duration comes from the board's file.
pub(crate) const PTX: &str = r"
.version 8.0
.target sm_80
.address_size 64
.global .align 4 .u32 bias[2] = {7, 9};

.visible .entry triple(.param .u64 out, .param .u64 src, .param .u32 n)
{
    .reg .pred %p;
    .reg .b32 %r<8>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [out];
    ld.param.u64 %rd2, [src];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p, %r5, %r1;
    @%p bra DONE;
    cvta.to.global.u64 %rd1, %rd1;
    cvta.to.global.u64 %rd2, %rd2;
    mul.wide.u32 %rd3, %r5, 4;
    add.s64 %rd4, %rd2, %rd3;
    ld.global.u32 %r6, [%rd4];
    mad.lo.s32 %r7, %r6, 3, %r5;
    add.s64 %rd5, %rd1, %rd3;
    st.global.u32 [%rd5], %r7;
DONE:
    ret;
}
.visible .entry biased(.param .u64 out)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out];
    cvta.to.global.u64 %rd1, %rd1;
    ld.global.u32 %r1, [bias];
    ld.global.u32 %r2, [bias+4];
    add.u32 %r3, %r1, %r2;
    st.global.u32 [%rd1], %r3;
    ret;
}
.visible .entry slow()
{
    ret;
}
";

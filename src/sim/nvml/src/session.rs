//! State between calls: the number of initialisations, the board, and the devices that the process may open.

use std::ffi::{CStr, OsStr, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gshare_sim_board::{Board, BoardSnapshot, Fault, GpuSnapshot, MAX_GPUS, Opener};

use crate::abi::Handle;
use crate::code::Code;

/// How often a call checks whether NVML still hangs.
const HANG_POLL: Duration = Duration::from_millis(20);

struct Session {
    board: Arc<Board>,
    inits: u32,
    /// Devices whose node could be opened, with the number of resets at the last look-up. Like a descriptor, this lasts
    /// until the next reset.
    opened: [Option<u64>; MAX_GPUS],
}

static SESSION: Mutex<Option<Session>> = Mutex::new(None);

/// Device handles are addresses in this array.
static HANDLES: [u8; MAX_GPUS] = [0; MAX_GPUS];

fn session() -> MutexGuard<'static, Option<Session>> {
    SESSION.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The file of this library.
fn own_path() -> Option<PathBuf> {
    // SAFETY: all zeroes is a valid Dl_info.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    let here: *const c_void = (&raw const HANDLES).cast();
    // SAFETY: the address lies in this library, and info is writable.
    let found = unsafe { libc::dladdr(here, &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr returned the terminated path of a loaded object.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

fn board_path() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("GSHARE_SIM_BOARD").filter(|path| !path.is_empty()) {
        return Some(PathBuf::from(path));
    }
    let library = own_path()?;
    let beside = |library: &Path| Some(library.parent()?.join("../board"));
    // A link to the library may be outside the workstation.
    let candidates = [
        beside(&library),
        library.canonicalize().ok().and_then(|path| beside(&path)),
    ];
    candidates.into_iter().flatten().find(|path| path.exists())
}

/// Whether this process can open a node of the workstation; true if the node does not exist.
fn may_open(board: &Path, node: &str) -> bool {
    let Some(dir) = board.parent() else {
        return true;
    };
    match std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(dir.join("dev").join(node))
    {
        Ok(_) => true,
        // Stand-in nodes have no driver: ENXIO means that the kernel would allow the open.
        Err(error) => error.kind() != std::io::ErrorKind::PermissionDenied,
    }
}

pub(crate) fn init() -> Result<(), Code> {
    let mut session = session();
    if let Some(session) = session.as_mut() {
        session.inits += 1;
        return Ok(());
    }
    let path = board_path().ok_or(Code::DRIVER_NOT_LOADED)?;
    if !may_open(&path, "nvidiactl") {
        return Err(Code::NO_PERMISSION);
    }
    let board = Board::open(&path).map_err(|_| Code::DRIVER_NOT_LOADED)?;
    *session = Some(Session {
        board: Arc::new(board),
        inits: 1,
        opened: [None; MAX_GPUS],
    });
    Ok(())
}

pub(crate) fn shutdown() -> Result<(), Code> {
    let mut session = session();
    let Some(open) = session.as_mut() else {
        return Err(Code::UNINITIALIZED);
    };
    open.inits -= 1;
    if open.inits == 0 {
        for gpu in 0..MAX_GPUS {
            open.board.close_gpu(Opener::Nvml, gpu);
        }
        *session = None;
    }
    Ok(())
}

pub(crate) fn board() -> Result<Arc<Board>, Code> {
    session()
        .as_ref()
        .map(|session| Arc::clone(&session.board))
        .ok_or(Code::UNINITIALIZED)
}

/// The board now; waits while the fault that hangs NVML is set.
pub(crate) fn snapshot() -> Result<Arc<BoardSnapshot>, Code> {
    let board = board()?;
    loop {
        let snapshot = board.snapshot_lately();
        if !snapshot.preset.has(Fault::NvmlHangs) {
            return Ok(snapshot);
        }
        std::thread::sleep(HANG_POLL);
    }
}

/// The handle of a device that this process may use.
pub(crate) fn open(snapshot: &BoardSnapshot, index: usize) -> Result<Handle, Code> {
    let gpu = snapshot.gpus.get(index).ok_or(Code::INVALID_ARGUMENT)?;
    let mut session = session();
    let session = session.as_mut().ok_or(Code::UNINITIALIZED)?;
    let opened = &mut session.opened[index % MAX_GPUS];
    let node = || format!("nvidia{}", gpu.minor);
    if opened.is_none() && !may_open(session.board.path(), &node()) {
        return Err(Code::NO_PERMISSION);
    }
    if gpu.lost {
        return Err(Code::GPU_IS_LOST);
    }
    *opened = Some(gpu.resets);
    session.board.open_gpu(Opener::Nvml, gpu.minor as usize);
    Ok(handle(index))
}

pub(crate) fn handle(index: usize) -> Handle {
    Handle((&raw const HANDLES[index % MAX_GPUS]).cast_mut().cast())
}

pub(crate) fn index(handle: Handle) -> Result<usize, Code> {
    let offset = (handle.0 as usize).wrapping_sub(HANDLES.as_ptr() as usize);
    if offset < MAX_GPUS {
        Ok(offset)
    } else {
        Err(Code::INVALID_ARGUMENT)
    }
}

/// The device of a handle, now.
pub(crate) struct Device {
    pub(crate) index: usize,
    pub(crate) snapshot: Arc<BoardSnapshot>,
}

impl Device {
    pub(crate) fn gpu(&self) -> &GpuSnapshot {
        &self.snapshot.gpus[self.index]
    }
}

pub(crate) fn device(handle: Handle) -> Result<Device, Code> {
    let snapshot = snapshot()?;
    let index = index(handle)?;
    let gpu = snapshot.gpus.get(index).ok_or(Code::INVALID_ARGUMENT)?;
    let known = session().as_ref().and_then(|s| s.opened[index]);
    // A removed instance.
    if gpu.instance.is_some_and(|i| !i.made) {
        return Err(Code::INVALID_ARGUMENT);
    }
    if gpu.lost || known.is_some_and(|resets| resets != gpu.resets) {
        return Err(Code::GPU_IS_LOST);
    }
    Ok(Device { index, snapshot })
}

//! NVML as the claim's programs see it.

use std::{
    ffi::{c_char, c_void},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::AtomicPtr,
};

use crate::{
    device, driver,
    layout::{
        Code, Detail, DetailList, Entry, FUNCTION_NOT_FOUND, Handle, INSUFFICIENT_SIZE,
        INVALID_ARGUMENT, Memory, MemoryV2, NO_PERMISSION, NOT_FOUND, NOT_SUPPORTED, Process,
        ProcessV1, SUCCESS, Sample, Utilization, UtilizationList,
    },
    share::{self, Share},
};

/// Runs the proxy's own part; after a panic the program goes on as without the proxy.
fn with<R>(part: impl FnOnce(&Share) -> R) -> Option<R> {
    let part = AssertUnwindSafe(|| Some(part(&*share::current()?)));
    catch_unwind(part).ok().flatten()
}

unsafe fn only_own(code: Code, place: *mut Handle) -> Code {
    if code != SUCCESS || place.is_null() {
        return code;
    }
    // SAFETY: the driver has just written there.
    let found = unsafe { *place };
    match with(|share| device::is_foreign(share, found)) {
        Some(true) => {
            // SAFETY: as above.
            unsafe { *place = std::ptr::null_mut() };
            NOT_FOUND
        }
        _ => code,
    }
}

unsafe fn count(code: Code, count: *mut u32) -> Code {
    if code == SUCCESS
        && !count.is_null()
        && let Some(own) = with(|share| share.later.unwrap_or_else(|| device::count(share)))
    {
        // SAFETY: the driver has just written there. A claim that has no GPU yet cannot get more than there are.
        unsafe { *count = own.min(*count) };
    }
    code
}

/// The claim's GPU with this number; outside claims the driver's answer.
unsafe fn by_index(index: u32, place: *mut Handle, original: impl FnOnce() -> Code) -> Code {
    if place.is_null() {
        return original();
    }
    let found = with(|share| match device::nth(share, index) {
        Some(own) => Some(own),
        // Any will do before the GPU is known.
        None if share.later.is_some_and(|gpus| index < gpus) => None,
        None => Some(Err(INVALID_ARGUMENT)),
    });
    match found.flatten() {
        // SAFETY: the caller's own place, which is not null.
        Some(Ok(found)) => unsafe {
            *place = found;
            SUCCESS
        },
        Some(Err(code)) => code,
        None => original(),
    }
}

/// The claim's instance with this number on a GPU; for an undivided GPU the driver's answer.
unsafe fn instance(
    gpu: Handle,
    index: u32,
    place: *mut Handle,
    original: impl FnOnce() -> Code,
) -> Code {
    let own = with(|share| {
        let own = device::instances(share, gpu)?;
        Some(own.get(index as usize).copied())
    });
    match own.flatten() {
        None => {
            let code = original();
            // SAFETY: as the caller promises.
            unsafe { only_own(code, place) }
        }
        Some(_) if place.is_null() => INVALID_ARGUMENT,
        Some(None) => NOT_FOUND,
        Some(Some(found)) => {
            // SAFETY: the caller's own place, which is not null.
            unsafe { *place = found };
            SUCCESS
        }
    }
}

/// Whether the claim may look into this instance of a GPU; true outside claims.
fn may_see(gpu: Handle, number: u32) -> bool {
    with(|share| device::may_see(share, gpu, number)).unwrap_or(true)
}

/// A device's memory as a member sees it, in bytes.
struct Seen {
    total: u64,
    free: u64,
    used: u64,
}

/// The claim's memory instead of the driver's figures; `None` to keep the driver's. The driver reports the GPU of an
/// instance to administrators only.
fn memory_of(code: Code, device: Handle, driver: impl FnOnce() -> (u64, u64)) -> Option<Seen> {
    if ![SUCCESS, NO_PERMISSION, NOT_SUPPORTED].contains(&code) {
        return None;
    }
    with(|share| {
        let part = device::part(share, device)?;
        let (most, left) = if code == SUCCESS {
            driver()
        } else {
            (u64::MAX, u64::MAX)
        };
        let total = part.cap().min(most);
        let used = part.charged().min(total);
        // Others may have taken memory that the claim does not use yet.
        let free = (total - used).min(left);
        Some(Seen { total, free, used })
    })
    .flatten()
}

/// Lists the claim's processes out of those that `original` lists, with their charges.
unsafe fn list<E: Entry>(
    device: Handle,
    count: *mut u32,
    array: *mut E,
    original: impl Fn(*mut u32, *mut E) -> Code,
) -> Code {
    let own = with(|share| {
        let part = device::part(share, device)?;
        let mut all: Vec<E> = Vec::new();
        // Processes may start during the listing.
        for _ in 0..8 {
            let mut room = all.len() as u32;
            let code = original(
                &raw mut room,
                if all.is_empty() {
                    std::ptr::null_mut()
                } else {
                    all.as_mut_ptr()
                },
            );
            match code {
                SUCCESS => {
                    all.truncate(room as usize);
                    break;
                }
                INSUFFICIENT_SIZE => all.resize(room as usize + 8, E::EMPTY),
                other => return Some(Err(other)),
            }
        }
        let mut own = Vec::new();
        for mut entry in all {
            if let Some(bytes) = part.of_process(entry.pid()) {
                entry.set_bytes(bytes);
                own.push(entry);
            }
        }
        Some(Ok(own))
    });
    let own = match own.flatten() {
        None => return original(count, array),
        Some(Err(code)) => return code,
        Some(Ok(_)) if count.is_null() => return INVALID_ARGUMENT,
        Some(Ok(own)) => own,
    };
    // SAFETY: not null; the caller's own.
    let room = unsafe { count.replace(own.len() as u32) } as usize;
    if own.is_empty() {
        return SUCCESS;
    }
    if room < own.len() {
        return INSUFFICIENT_SIZE;
    }
    if array.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller's own count says that the array has room for these.
    unsafe { std::ptr::copy_nonoverlapping(own.as_ptr(), array, own.len()) };
    SUCCESS
}

/// Removes other claims' processes from the driver's list.
unsafe fn keep_own<E: Entry>(device: Handle, count: *mut u32, array: *mut E) {
    if count.is_null() || array.is_null() {
        return;
    }
    with(|share| {
        let part = device::part(share, device)?;
        // SAFETY: the driver has just written so many entries there.
        let entries = unsafe { std::slice::from_raw_parts_mut(array, *count as usize) };
        let mut kept = 0;
        for at in 0..entries.len() {
            let mut entry = entries[at];
            if let Some(bytes) = part.of_process(entry.pid()) {
                entry.set_bytes(bytes);
                entries[kept] = entry;
                kept += 1;
            }
        }
        // SAFETY: not null; the caller's own.
        unsafe { *count = kept as u32 };
        Some(())
    });
}

macro_rules! hooks {
    ($(fn $name:ident($($arg:ident: $kind:ty),*) |$original:ident| $body:block)*) => {
        /// All names that the library defines.
        pub const NAMES: &[&str] = &[$(stringify!($name)),*];

        $(
            /// The proxy's entry under the driver's name.
            ///
            /// # Safety
            /// As the driver's function of this name demands.
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "the driver's names")]
            pub(crate) unsafe extern "C" fn $name($($arg: $kind),*) -> Code {
                static PLACE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
                const NAME: &std::ffi::CStr = match std::ffi::CStr::from_bytes_with_nul(
                    concat!(stringify!($name), "\0").as_bytes(),
                ) {
                    Ok(name) => name,
                    Err(_) => c"",
                };
                let found = driver::find(&PLACE, NAME);
                if found.is_null() {
                    return FUNCTION_NOT_FOUND;
                }
                // SAFETY: the driver's function of this name has this signature (nvml.h).
                let $original = unsafe {
                    std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) -> Code>(
                        found,
                    )
                };
                // SAFETY: the caller keeps to the driver's rules for these arguments.
                unsafe { $body }
            }
        )*
    };
}

macro_rules! listings {
    ($($name:ident: $kind:ty),* $(,)?) => {
        hooks! {
            fn nvmlInit() |original| { began(original()) }
            fn nvmlInit_v2() |original| { began(original()) }
            fn nvmlInitWithFlags(flags: u32) |original| { began(original(flags)) }
            fn nvmlDeviceGetCount(number: *mut u32) |original| { count(original(number), number) }
            fn nvmlDeviceGetCount_v2(number: *mut u32) |original| { count(original(number), number) }
            fn nvmlDeviceGetHandleByIndex(index: u32, device: *mut Handle) |original| {
                by_index(index, device, || original(index, device))
            }
            fn nvmlDeviceGetHandleByIndex_v2(index: u32, device: *mut Handle) |original| {
                by_index(index, device, || original(index, device))
            }
            fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut Handle) |original| {
                only_own(original(uuid, device), device)
            }
            fn nvmlDeviceGetHandleByUUIDV(uuid: *const c_void, device: *mut Handle) |original| {
                only_own(original(uuid, device), device)
            }
            fn nvmlDeviceGetHandleBySerial(serial: *const c_char, device: *mut Handle) |original| {
                only_own(original(serial, device), device)
            }
            fn nvmlDeviceGetHandleByPciBusId(bus: *const c_char, device: *mut Handle) |original| {
                only_own(original(bus, device), device)
            }
            fn nvmlDeviceGetHandleByPciBusId_v2(bus: *const c_char, device: *mut Handle) |original| {
                only_own(original(bus, device), device)
            }
            fn nvmlDeviceGetIndex(device: Handle, index: *mut u32) |original| {
                let code = original(device, index);
                if code == SUCCESS && !index.is_null() {
                    let own = with(|share| device::index(share, device));
                    if let Some(Some(own)) = own {
                        *index = own;
                    }
                }
                code
            }
            fn nvmlDeviceGetMaxMigDeviceCount(device: Handle, number: *mut u32) |original| {
                let code = original(device, number);
                if code == SUCCESS && !number.is_null() {
                    if let Some(Some(own)) = with(|share| device::instances(share, device)) {
                        *number = own.len() as u32;
                    }
                }
                code
            }
            fn nvmlDeviceGetMigDeviceHandleByIndex(device: Handle, index: u32, place: *mut Handle)
            |original| {
                instance(device, index, place, || original(device, index, place))
            }
            fn nvmlDeviceGetGpuInstances(
                device: Handle, profile: u32, list: *mut Handle, number: *mut u32
            ) |original| {
                // The answer for an ordinary user.
                match with(|share| device::instances(share, device)) {
                    Some(Some(_)) => NO_PERMISSION,
                    _ => original(device, profile, list, number),
                }
            }
            fn nvmlDeviceGetGpuInstanceById(device: Handle, number: u32, place: *mut Handle)
            |original| {
                if may_see(device, number) {
                    original(device, number, place)
                } else {
                    NOT_FOUND
                }
            }
            fn nvmlGpmMigSampleGet(device: Handle, number: u32, sample: Handle) |original| {
                if may_see(device, number) {
                    original(device, number, sample)
                } else {
                    NO_PERMISSION
                }
            }
            fn nvmlDeviceGetMemoryInfo(device: Handle, memory: *mut Memory) |original| {
                let code = original(device, memory);
                if memory.is_null() {
                    return code;
                }
                match memory_of(code, device, || ((*memory).total, (*memory).free)) {
                    Some(Seen { total, free, used }) => {
                        *memory = Memory { total, free, used };
                        SUCCESS
                    }
                    None => code,
                }
            }
            fn nvmlDeviceGetMemoryInfo_v2(device: Handle, memory: *mut MemoryV2) |original| {
                let code = original(device, memory);
                if memory.is_null() {
                    return code;
                }
                match memory_of(code, device, || ((*memory).total, (*memory).free)) {
                    Some(Seen { total, free, used }) => {
                        let version = (*memory).version;
                        *memory = MemoryV2 { version, total, reserved: 0, free, used };
                        SUCCESS
                    }
                    None => code,
                }
            }
            $(
                fn $name(device: Handle, number: *mut u32, array: *mut $kind) |original| {
                    list(device, number, array, |number, array| original(device, number, array))
                }
            )*
            fn nvmlDeviceGetRunningProcessDetailList(device: Handle, found: *mut DetailList)
            |original| {
                let code = original(device, found);
                if code == SUCCESS && !found.is_null() {
                    keep_own::<Detail>(device, &raw mut (*found).count, (*found).array);
                }
                code
            }
            fn nvmlDeviceGetProcessUtilization(
                device: Handle, array: *mut Sample, number: *mut u32, since: u64
            ) |original| {
                let code = original(device, array, number, since);
                if code == SUCCESS {
                    keep_own(device, number, array);
                }
                code
            }
            fn nvmlDeviceGetProcessesUtilizationInfo(device: Handle, found: *mut UtilizationList)
            |original| {
                let code = original(device, found);
                if code == SUCCESS && !found.is_null() {
                    keep_own::<Utilization>(device, &raw mut (*found).count, (*found).array);
                }
                code
            }
        }
    };
}

fn began(code: Code) -> Code {
    if code == SUCCESS {
        // A panic must not reach the program, which then sees the driver's own figures.
        let _ = catch_unwind(share::join);
    }
    code
}

listings! {
    nvmlDeviceGetComputeRunningProcesses: ProcessV1,
    nvmlDeviceGetComputeRunningProcesses_v2: Process,
    nvmlDeviceGetComputeRunningProcesses_v3: Process,
    nvmlDeviceGetGraphicsRunningProcesses: ProcessV1,
    nvmlDeviceGetGraphicsRunningProcesses_v2: Process,
    nvmlDeviceGetGraphicsRunningProcesses_v3: Process,
    nvmlDeviceGetMPSComputeRunningProcesses: ProcessV1,
    nvmlDeviceGetMPSComputeRunningProcesses_v2: Process,
    nvmlDeviceGetMPSComputeRunningProcesses_v3: Process,
}

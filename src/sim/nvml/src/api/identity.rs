//! Finding devices, and their fixed properties.

use std::ffi::c_char;

use gshare_sim_board::{BoardSnapshot, GpuSnapshot, Instance, profiles};

use crate::abi::{CText, Handle, Out, Text, export};
use crate::code::Code;
use crate::figures::{serial, traits};
use crate::layout::{Attributes, PciInfo, PciInfoExt, PciInfoV2, version};
use crate::session::{self, device};

fn find(test: impl Fn(&GpuSnapshot) -> bool) -> Result<Handle, Code> {
    let snapshot = session::snapshot()?;
    let index = snapshot.gpus.iter().position(test).ok_or(Code::NOT_FOUND)?;
    session::open(&snapshot, index)
}

fn by_index(index: u32, out: Out<Handle>) -> Result<(), Code> {
    let snapshot = session::snapshot()?;
    if index >= whole(&snapshot) {
        return Err(Code::INVALID_ARGUMENT);
    }
    out.set(session::open(&snapshot, index as usize)?)
}

/// Number of GPUs, without the instances that follow them on the board.
fn whole(snapshot: &BoardSnapshot) -> u32 {
    let whole = snapshot.gpus.iter().filter(|g| g.instance.is_none());
    whole.count() as u32
}

fn instance(handle: Handle) -> Result<Instance, Code> {
    device(handle)?.gpu().instance.ok_or(Code::NOT_SUPPORTED)
}

/// Compute slices of an instance, and of its GPU.
fn slices(gpu: &GpuSnapshot) -> (u32, u32) {
    let of = gpu.model.slug.split(':').next().unwrap_or("");
    let own = profiles(of).find(|p| gpu.model.slug.rsplit(':').next() == Some(p.name));
    let all = profiles(of).map(|p| p.compute_slices).max();
    (own.map_or(0, |p| p.compute_slices), all.unwrap_or(0))
}

/// The numbers of `[domain:]bus:device[.function]`.
fn parse_bus_id(text: &str) -> Option<(u32, u32, u32)> {
    let hex = |part: &str| u32::from_str_radix(part, 16).ok();
    let (rest, device) = text.rsplit_once(':')?;
    let device = hex(device.split_once('.').map_or(device, |(device, _)| device))?;
    let (domain, bus) = rest
        .rsplit_once(':')
        .map_or((Some(0), rest), |(domain, bus)| (hex(domain), bus));
    Some((domain?, hex(bus)?, device))
}

fn by_bus_id(text: CText, out: Out<Handle>) -> Result<(), Code> {
    let wanted = parse_bus_id(&text.get()?).ok_or(Code::INVALID_ARGUMENT)?;
    out.set(find(|gpu| (0, gpu.pci_bus, 0) == wanted)?)
}

fn chars<const N: usize>(text: &str) -> [c_char; N] {
    let mut out = [0; N];
    for (out, byte) in out.iter_mut().take(N - 1).zip(text.bytes()) {
        *out = byte.cast_signed();
    }
    out
}

fn pci_v2(handle: Handle, out: Out<PciInfoV2>) -> Result<(), Code> {
    let device = device(handle)?;
    let gpu = device.gpu();
    out.set(PciInfoV2 {
        bus_id: chars(&format!("0000:{:02X}:00.0", gpu.pci_bus)),
        domain: 0,
        bus: gpu.pci_bus,
        device: 0,
        pci_device_id: gpu.model.pci_device_id,
        pci_subsystem_id: gpu.model.pci_subsystem_id,
        reserved: [0; 4],
    })
}

/// Returns a value of the device to the caller.
fn give<T: Copy>(
    handle: Handle,
    out: Out<T>,
    get: impl FnOnce(&GpuSnapshot) -> Result<T, Code>,
) -> Result<(), Code> {
    let device = device(handle)?;
    out.set(get(device.gpu())?)
}

export! {
    fn nvmlDeviceGetCount(count: Out<u32>) { count.set(whole(session::snapshot()?.as_ref())) }
    fn nvmlDeviceGetCount_v2(count: Out<u32>) { count.set(whole(session::snapshot()?.as_ref())) }
    fn nvmlDeviceGetHandleByIndex(index: u32, out: Out<Handle>) { by_index(index, out) }
    fn nvmlDeviceGetHandleByIndex_v2(index: u32, out: Out<Handle>) { by_index(index, out) }
    fn nvmlDeviceGetHandleByUUID(uuid: CText, out: Out<Handle>) {
        let wanted = uuid.get()?;
        out.set(find(|gpu| gpu.uuid == wanted)?)
    }
    fn nvmlDeviceGetHandleBySerial(number: CText, out: Out<Handle>) {
        let wanted = number.get()?;
        out.set(find(|gpu| traits(gpu.model).serial && serial(gpu) == wanted)?)
    }
    fn nvmlDeviceGetHandleByPciBusId(bus_id: CText, out: Out<Handle>) { by_bus_id(bus_id, out) }
    fn nvmlDeviceGetHandleByPciBusId_v2(bus_id: CText, out: Out<Handle>) { by_bus_id(bus_id, out) }
    fn nvmlDeviceGetIndex(handle: Handle, out: Out<u32>) {
        let device = device(handle)?;
        out.set(device.index as u32)
    }
    fn nvmlDeviceGetMinorNumber(handle: Handle, out: Out<u32>) { give(handle, out, |gpu| Ok(gpu.minor)) }
    fn nvmlDeviceGetName(handle: Handle, name: Text, length: u32) {
        name.set(length, device(handle)?.gpu().model.name)
    }
    fn nvmlDeviceGetUUID(handle: Handle, uuid: Text, length: u32) {
        uuid.set(length, &device(handle)?.gpu().uuid)
    }
    fn nvmlDeviceGetSerial(handle: Handle, number: Text, length: u32) {
        let device = device(handle)?;
        if !traits(device.gpu().model).serial {
            return Err(Code::NOT_SUPPORTED);
        }
        number.set(length, &serial(device.gpu()))
    }
    fn nvmlDeviceGetVbiosVersion(handle: Handle, text: Text, length: u32) {
        device(handle)?;
        text.set(length, "simulated")
    }
    fn nvmlDeviceGetBoardId(handle: Handle, out: Out<u32>) { give(handle, out, |gpu| Ok(gpu.pci_bus << 8)) }
    fn nvmlDeviceGetMultiGpuBoard(handle: Handle, out: Out<u32>) { give(handle, out, |_| Ok(0)) }
    fn nvmlDeviceGetBrand(handle: Handle, out: Out<u32>) {
        give(handle, out, |gpu| Ok(traits(gpu.model).brand))
    }
    fn nvmlDeviceGetArchitecture(handle: Handle, out: Out<u32>) {
        give(handle, out, |gpu| Ok(traits(gpu.model).architecture))
    }
    fn nvmlDeviceGetNumGpuCores(handle: Handle, out: Out<u32>) {
        give(handle, out, |gpu| Ok(gpu.model.sms * gpu.model.cores_per_sm))
    }
    fn nvmlDeviceGetMemoryBusWidth(handle: Handle, out: Out<u32>) {
        give(handle, out, |gpu| Ok(gpu.model.bus_bits))
    }
    fn nvmlDeviceGetCudaComputeCapability(handle: Handle, major: Out<i32>, minor: Out<i32>) {
        let (high, low) = device(handle)?.gpu().model.compute_capability;
        major.set(high.cast_signed())?;
        minor.set(low.cast_signed())
    }
    fn nvmlDeviceGetPciInfo(handle: Handle, out: Out<PciInfoV2>) { pci_v2(handle, out) }
    fn nvmlDeviceGetPciInfo_v2(handle: Handle, out: Out<PciInfoV2>) { pci_v2(handle, out) }
    fn nvmlDeviceGetPciInfo_v3(handle: Handle, out: Out<PciInfo>) {
        give(handle, out, |gpu| Ok(PciInfo {
            bus_id_legacy: chars(&format!("0000:{:02X}:00.0", gpu.pci_bus)),
            domain: 0,
            bus: gpu.pci_bus,
            device: 0,
            pci_device_id: gpu.model.pci_device_id,
            pci_subsystem_id: gpu.model.pci_subsystem_id,
            bus_id: chars(&format!("00000000:{:02X}:00.0", gpu.pci_bus)),
        }))
    }
    fn nvmlDeviceGetPciInfoExt(handle: Handle, out: Out<PciInfoExt>) {
        if out.get()?.version != version::<PciInfoExt>(1) {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        give(handle, out, |gpu| Ok(PciInfoExt {
            version: version::<PciInfoExt>(1),
            domain: 0,
            bus: gpu.pci_bus,
            device: 0,
            pci_device_id: gpu.model.pci_device_id,
            pci_subsystem_id: gpu.model.pci_subsystem_id,
            base_class: 3,
            sub_class: if traits(gpu.model).fans > 0 { 0 } else { 2 },
            bus_id: chars(&format!("00000000:{:02X}:00.0", gpu.pci_bus)),
        }))
    }
    fn nvmlDeviceIsMigDeviceHandle(handle: Handle, out: Out<u32>) {
        give(handle, out, |gpu| Ok(u32::from(gpu.instance.is_some())))
    }
    fn nvmlDeviceGetMaxMigDeviceCount(handle: Handle, out: Out<u32>) {
        give(handle, out, |gpu| Ok(slices(gpu).1))
    }
    fn nvmlDeviceGetGpuInstanceId(handle: Handle, out: Out<u32>) { out.set(instance(handle)?.gi) }
    fn nvmlDeviceGetComputeInstanceId(handle: Handle, out: Out<u32>) { out.set(instance(handle)?.ci) }
    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle: Handle, out: Out<Handle>) {
        out.set(session::handle(instance(handle)?.parent))
    }
    fn nvmlDeviceGetAttributes_v2(handle: Handle, out: Out<Attributes>) {
        instance(handle)?;
        give(handle, out, |gpu| Ok(Attributes {
            sms: gpu.model.sms,
            copy_engines: 1,
            decoders: 0,
            encoders: 0,
            jpeg: 0,
            ofa: 0,
            gpu_slices: slices(gpu).0,
            compute_slices: slices(gpu).0,
            memory_mib: gpu.model.total >> 20,
        }))
    }
    fn nvmlDeviceGetMigDeviceHandleByIndex(handle: Handle, index: u32, out: Out<Handle>) {
        let device = device(handle)?;
        if !device.gpu().model.mig {
            return Err(Code::NOT_SUPPORTED);
        }
        let of = |g: &GpuSnapshot| g.instance.is_some_and(|i| i.made && i.parent == device.index);
        let gpus = device.snapshot.gpus.iter().enumerate();
        let mut own = gpus.filter(|(_, g)| of(g)).map(|(i, _)| i);
        let found = own.nth(index as usize).ok_or(Code::NOT_FOUND)?;
        out.set(session::handle(found))
    }
    fn nvmlDeviceOnSameBoard(first: Handle, second: Handle, out: Out<i32>) {
        let (first, second) = (device(first)?, device(second)?);
        out.set(i32::from(first.index == second.index))
    }
    /// All GPUs of the simulated workstation are on one host bridge.
    fn nvmlDeviceGetTopologyCommonAncestor(first: Handle, second: Handle, out: Out<u32>) {
        let (first, second) = (device(first)?, device(second)?);
        out.set(if first.index == second.index { 0 } else { 30 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_ids() {
        for text in ["00000000:41:00.0", "0000:41:00.0", "41:00.0", "41:00"] {
            assert_eq!(parse_bus_id(text), Some((0, 0x41, 0)), "{text}");
        }
        for text in ["", "41", "x:y", "1:2:3:4:z"] {
            assert_eq!(parse_bus_id(text), None, "{text}");
        }
    }
}

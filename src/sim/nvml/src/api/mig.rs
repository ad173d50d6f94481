//! Dividing GPUs (MIG): the mode, GPU instances, and one compute instance per GPU instance.

use gshare_sim_board::{BoardError, GpuSnapshot, MAX_GPUS, MigProfile, profiles};

use crate::abi::{Handle, Out, export};
use crate::code::Code;
use crate::layout::{ComputeInfo, ComputeProfile, GpuInstanceInfo, GpuInstanceProfile, Placement};
use crate::session::{self, Device, device};

/// Handles of instances are addresses in these arrays, indexed by the board's row.
static GPU_INSTANCES: [u8; MAX_GPUS] = [0; MAX_GPUS];
static COMPUTE_INSTANCES: [u8; MAX_GPUS] = [0; MAX_GPUS];

fn handle(of: &'static [u8; MAX_GPUS], row: usize) -> Handle {
    Handle((&raw const of[row % MAX_GPUS]).cast_mut().cast())
}

/// The board's row of a handle, if the instance still exists.
fn row(of: &'static [u8; MAX_GPUS], handle: Handle) -> Result<(Device, usize), Code> {
    let row = (handle.0 as usize).wrapping_sub(of.as_ptr() as usize);
    let snapshot = session::snapshot()?;
    let instance = snapshot.gpus.get(row).and_then(|g| g.instance);
    let parent = instance.map(|i| i.parent);
    let parent = parent.filter(|p| *p < snapshot.gpus.len());
    let index = parent.ok_or(Code::INVALID_ARGUMENT)?;
    Ok((Device { index, snapshot }, row))
}

fn privileged() -> Result<(), Code> {
    // SAFETY: geteuid has no preconditions.
    match unsafe { libc::geteuid() } {
        0 => Ok(()),
        _ => Err(Code::NO_PERMISSION),
    }
}

fn code(error: &BoardError) -> Code {
    match error {
        BoardError::OtherModel { .. } => Code::NOT_SUPPORTED,
        BoardError::InUse { .. } => Code::IN_USE,
        BoardError::TooLarge | BoardError::Full { .. } => Code::INSUFFICIENT_RESOURCES,
        BoardError::NoSuchGpu { .. } => Code::NOT_FOUND,
        BoardError::Lost { .. } => Code::GPU_IS_LOST,
        _ => Code::UNKNOWN,
    }
}

/// A device that supports MIG, for a caller who may divide it.
fn divisible(handle: Handle) -> Result<Device, Code> {
    let device = device(handle)?;
    if !device.gpu().model.mig {
        return Err(Code::NOT_SUPPORTED);
    }
    privileged()?;
    Ok(device)
}

/// The profile of a constant of the header (`NVML_GPU_INSTANCE_PROFILE_*_SLICE`).
fn profile_at(gpu: &GpuSnapshot, constant: u32) -> Option<&'static MigProfile> {
    let (compute, twice, with) = match constant {
        0 => (1, false, ""),
        1 => (2, false, ""),
        2 => (3, false, ""),
        3 => (4, false, ""),
        4 => (7, false, ""),
        7 => (1, false, "+me"),
        // The one-slice profile with twice the memory.
        9 => (1, true, ""),
        10 => (1, false, "+gfx"),
        11 => (2, false, "+gfx"),
        12 => (4, false, "+gfx"),
        13 => (1, false, "-me"),
        14 => (2, false, "-me"),
        15 => (1, false, "+me.all"),
        16 => (2, false, "+me.all"),
        _ => return None,
    };
    let is_size = |p: &&MigProfile| compute != 1 || (p.memory_slices > 1) == twice;
    profiles(gpu.model.slug)
        .filter(is_size)
        .find(|p| p.compute_slices == compute && p.with() == with)
}

fn profile_of(gpu: &GpuSnapshot, id: u32) -> Result<&'static MigProfile, Code> {
    let mut all = profiles(gpu.model.slug);
    all.find(|p| p.id == id).ok_or(Code::INVALID_ARGUMENT)
}

/// The profile of an instance.
fn own_profile(gpu: &GpuSnapshot) -> Result<&'static MigProfile, Code> {
    let (of, name) = gpu.model.slug.split_once(':').ok_or(Code::NOT_FOUND)?;
    profiles(of).find(|p| p.name == name).ok_or(Code::NOT_FOUND)
}

/// The constant of a compute instance that fills its GPU instance.
fn whole_compute(slices: u32) -> u32 {
    match slices {
        7 => 4,
        n => n - 1,
    }
}

/// Writes a list and its length.
fn give<T: Copy>(list: &[T], out: Out<T>, count: Out<u32>) -> Result<(), Code> {
    count.set(list.len() as u32)?;
    match list.is_empty() || out.is_null() {
        true => Ok(()),
        false => out.fill(list),
    }
}

fn rows_of(device: &Device) -> impl Iterator<Item = (usize, &GpuSnapshot)> {
    let own = |(_, g): &(usize, &GpuSnapshot)| g.instance.is_some_and(|i| i.parent == device.index);
    device.snapshot.gpus.iter().enumerate().filter(own)
}

fn create(from: Handle, profile: u32, start: Option<u32>, out: Out<Handle>) -> Result<(), Code> {
    let device = divisible(from)?;
    profile_of(device.gpu(), profile)?;
    let made = session::board()?.make_gpu_instance(device.index, profile, start);
    out.set(handle(&GPU_INSTANCES, made.map_err(|e| code(&e))?))
}

fn compute_info(of: &Device, row: usize) -> Result<ComputeInfo, Code> {
    let gpu = &of.snapshot.gpus[row];
    let instance = gpu.instance.filter(|i| i.made).ok_or(Code::NOT_FOUND)?;
    let slices = own_profile(gpu)?.compute_slices;
    Ok(ComputeInfo {
        device: session::handle(of.index).0,
        gpu_instance: handle(&GPU_INSTANCES, row).0,
        id: instance.ci,
        profile: whole_compute(slices),
        placement: Placement {
            start: 0,
            size: slices,
        },
    })
}

export! {
    fn nvmlDeviceSetMigMode(of: Handle, mode: u32, activation: Out<u32>) {
        let device = divisible(of)?;
        if mode > 1 {
            return Err(Code::INVALID_ARGUMENT);
        }
        let set = session::board()?.set_mig_mode(device.index, mode == 1);
        let active = set.map_err(|e| code(&e))?;
        activation.set(if active { Code::SUCCESS.0 } else { Code::IN_USE.0 })
    }
    fn nvmlDeviceGetMigMode(of: Handle, current: Out<u32>, pending: Out<u32>) {
        let device = device(of)?;
        if !device.gpu().model.mig {
            return Err(Code::NOT_SUPPORTED);
        }
        let [now, next] = device.gpu().mig;
        current.set(u32::from(now))?;
        pending.set(u32::from(next))
    }
    fn nvmlDeviceGetGpuInstanceProfileInfo(of: Handle, constant: u32, out: Out<GpuInstanceProfile>) {
        let device = device(of)?;
        let profile = profile_at(device.gpu(), constant).ok_or(Code::NOT_SUPPORTED)?;
        out.set(GpuInstanceProfile {
            id: profile.id,
            p2p: 0,
            slices: profile.compute_slices,
            instances: profile.most,
            sms: profile.sms,
            copy_engines: 1,
            decoders: profile.decoders,
            encoders: 0,
            jpeg: 0,
            ofa: 0,
            memory_mib: profile.mib,
        })
    }
    /// The answer does not depend on MIG mode.
    fn nvmlDeviceGetGpuInstancePossiblePlacements_v2(
        of: Handle, profile: u32, out: Out<Placement>, count: Out<u32>,
    ) {
        let device = divisible(of)?;
        let profile = profile_of(device.gpu(), profile)?;
        let size = profile.memory_slices;
        let places: Vec<Placement> = profile.starts().map(|start| Placement { start, size }).collect();
        give(&places, out, count)
    }
    fn nvmlDeviceCreateGpuInstance(of: Handle, profile: u32, out: Out<Handle>) {
        create(of, profile, None, out)
    }
    fn nvmlDeviceCreateGpuInstanceWithPlacement(
        of: Handle, profile: u32, at: Out<Placement>, out: Out<Handle>,
    ) {
        create(of, profile, Some(at.get()?.start), out)
    }
    fn nvmlDeviceGetGpuInstances(of: Handle, profile: u32, out: Out<Handle>, count: Out<u32>) {
        let device = divisible(of)?;
        profile_of(device.gpu(), profile)?;
        let own = rows_of(&device).filter(|(_, g)| own_profile(g).is_ok_and(|p| p.id == profile));
        let found: Vec<Handle> = own.map(|(row, _)| handle(&GPU_INSTANCES, row)).collect();
        give(&found, out, count)
    }
    fn nvmlDeviceGetGpuInstanceById(of: Handle, id: u32, out: Out<Handle>) {
        let device = divisible(of)?;
        let found = rows_of(&device).find(|(_, g)| g.instance.is_some_and(|i| i.gi == id));
        out.set(handle(&GPU_INSTANCES, found.ok_or(Code::NOT_FOUND)?.0))
    }
    fn nvmlGpuInstanceGetInfo(of: Handle, out: Out<GpuInstanceInfo>) {
        privileged()?;
        let (device, row) = row(&GPU_INSTANCES, of)?;
        let gpu = &device.snapshot.gpus[row];
        let (profile, instance) = (own_profile(gpu)?, gpu.instance.ok_or(Code::NOT_FOUND)?);
        out.set(GpuInstanceInfo {
            device: session::handle(device.index).0,
            id: instance.gi,
            profile: profile.id,
            placement: Placement { start: instance.start, size: profile.memory_slices },
        })
    }
    fn nvmlGpuInstanceDestroy(of: Handle) {
        privileged()?;
        let (_, row) = row(&GPU_INSTANCES, of)?;
        session::board()?.remove_gpu_instance(row).map_err(|e| code(&e))
    }
    fn nvmlGpuInstanceGetComputeInstanceProfileInfo(
        of: Handle, constant: u32, engines: u32, out: Out<ComputeProfile>,
    ) {
        privileged()?;
        let (device, row) = row(&GPU_INSTANCES, of)?;
        let profile = own_profile(&device.snapshot.gpus[row])?;
        if engines != 0 || constant != whole_compute(profile.compute_slices) {
            return Err(Code::NOT_SUPPORTED);
        }
        out.set(ComputeProfile {
            id: constant,
            slices: profile.compute_slices,
            instances: 1,
            sms: profile.sms,
            copy_engines: 1,
            decoders: 0,
            encoders: 0,
            jpeg: 0,
            ofa: 0,
        })
    }
    fn nvmlGpuInstanceCreateComputeInstance(of: Handle, profile: u32, out: Out<Handle>) {
        privileged()?;
        let (device, row) = row(&GPU_INSTANCES, of)?;
        if profile != whole_compute(own_profile(&device.snapshot.gpus[row])?.compute_slices) {
            return Err(Code::INVALID_ARGUMENT);
        }
        session::board()?.make_compute_instance(row).map_err(|e| code(&e))?;
        out.set(handle(&COMPUTE_INSTANCES, row))
    }
    fn nvmlGpuInstanceGetComputeInstances(of: Handle, profile: u32, out: Out<Handle>, count: Out<u32>) {
        privileged()?;
        let (device, row) = row(&GPU_INSTANCES, of)?;
        let own = compute_info(&device, row).is_ok_and(|i| i.profile == profile);
        let found: &[Handle] = if own { &[handle(&COMPUTE_INSTANCES, row)] } else { &[] };
        give(found, out, count)
    }
    fn nvmlGpuInstanceGetComputeInstanceById(of: Handle, id: u32, out: Out<Handle>) {
        privileged()?;
        let (device, row) = row(&GPU_INSTANCES, of)?;
        let info = compute_info(&device, row)?;
        match info.id == id {
            true => out.set(handle(&COMPUTE_INSTANCES, row)),
            false => Err(Code::NOT_FOUND),
        }
    }
    fn nvmlComputeInstanceGetInfo_v2(of: Handle, out: Out<ComputeInfo>) {
        privileged()?;
        let (device, row) = row(&COMPUTE_INSTANCES, of)?;
        out.set(compute_info(&device, row)?)
    }
    fn nvmlComputeInstanceDestroy(of: Handle) {
        privileged()?;
        let (_, row) = row(&COMPUTE_INSTANCES, of)?;
        session::board()?.remove_compute_instance(row).map_err(|e| code(&e))
    }
}

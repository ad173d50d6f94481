//! Dividing a GPU (MIG) through NVML, a step at a time: the mode, GPU instances at chosen places, and in each a compute
//! instance of the whole. Every step needs root, and the driver refuses to change instances in use.

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::sys;

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MigOrder {
    /// Only report the present state.
    Look,
    /// Switch the mode on or off; while another program has the GPU open the driver notes the switch and does not do
    /// it.
    Mode(bool),
    /// Create a GPU instance of this profile at this memory slice.
    Make {
        /// The profile's number.
        profile: u32,
        /// The first memory slice.
        start: u32,
    },
    /// Create the compute instance of a GPU instance.
    Open {
        /// Number of the GPU instance.
        gi: u32,
    },
    /// Remove the compute instances of a GPU instance.
    Close {
        /// Number of the GPU instance.
        gi: u32,
    },
    /// Remove a GPU instance.
    Remove {
        /// Number of the GPU instance.
        gi: u32,
    },
}

/// A possible size of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigSize {
    /// The profile's number.
    pub id: u32,
    /// Suffix of its name after slices and memory: `+me` with media engines, `+gfx` with graphics, otherwise empty.
    pub with: &'static str,
    /// Maximum number of such instances on the GPU.
    pub most: u32,
    /// Compute slices.
    pub slices: u32,
    /// Bytes.
    pub bytes: u64,
    /// Video decoders.
    pub decoders: u32,
    /// Memory slices of an instance.
    pub size: u32,
    /// The first memory slice of each possible place.
    pub starts: Vec<u32>,
}

/// A GPU instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigInstance {
    /// Its number.
    pub gi: u32,
    /// The profile's number.
    pub profile: u32,
    /// The first memory slice.
    pub start: u32,
    /// It has a compute instance, so that programs can use it.
    pub open: bool,
}

/// How a GPU is divided.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MigState {
    /// The mode is on.
    pub on: bool,
    /// The requested mode; it waits for a reset if it differs from `on`.
    pub asked: bool,
    /// Bytes of the whole GPU.
    pub bytes: u64,
    /// The possible sizes.
    pub sizes: Vec<MigSize>,
    pub instances: Vec<MigInstance>,
}

/// Why a step was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MigError {
    #[error("the driver cannot divide this GPU")]
    NotSupported,
    #[error("the driver lets only root divide GPUs")]
    NoPermission,
    #[error("the driver says that a program still uses it")]
    InUse,
    #[error("the driver says that there is no room for the instance")]
    NoRoom,
    #[error("the driver has lost the GPU")]
    Lost,
    #[error("the mode changes only when the GPU is reset: {0}")]
    Pending(String),
    #[error("the driver refused ({call}): {reason}")]
    Refused { call: &'static str, reason: String },
    /// The step may still be done later.
    #[error("GPU {gpu} does not answer")]
    NoAnswer { gpu: u32 },
}

pub(super) fn error(call: &'static str, error: &NvmlError) -> MigError {
    match error {
        NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_) => MigError::NotSupported,
        NvmlError::NoPermission => MigError::NoPermission,
        NvmlError::InUse => MigError::InUse,
        NvmlError::GpuLost => MigError::Lost,
        // `NVML_ERROR_INSUFFICIENT_RESOURCES`, which the wrapper does not know.
        NvmlError::UnexpectedVariant(23) => MigError::NoRoom,
        other => MigError::Refused {
            call,
            reason: other.to_string(),
        },
    }
}

/// Carries out a step and returns the GPU's new state.
pub(super) fn obey(device: &Device<'_>, order: MigOrder) -> Result<MigState, MigError> {
    match order {
        MigOrder::Look => {}
        MigOrder::Mode(on) => {
            let set = device.set_mig_mode(on);
            let activated = set.map_err(|e| error("nvmlDeviceSetMigMode", &e))?;
            if let Err(why) = nvml_wrapper::error::nvml_try(activated) {
                return Err(MigError::Pending(why.to_string()));
            }
        }
        MigOrder::Make { profile, start } => {
            let state = look(device)?;
            let size = state.sizes.iter().find(|s| s.id == profile);
            let size = size.ok_or(MigError::NotSupported)?.size;
            sys::make_gpu_instance(device, profile, start, size)?;
        }
        MigOrder::Open { gi } => {
            let state = look(device)?;
            let own = state.instances.iter().find(|i| i.gi == gi);
            let size = own.and_then(|i| state.sizes.iter().find(|s| s.id == i.profile));
            let slices = size.ok_or(MigError::NotSupported)?.slices;
            sys::make_compute_instance(device, gi, slices)?;
        }
        MigOrder::Close { gi } => sys::remove_compute_instances(device, gi)?,
        MigOrder::Remove { gi } => sys::remove_gpu_instance(device, gi)?,
    }
    look(device)
}

/// Profile constants of nvml.h (`NVML_GPU_INSTANCE_PROFILE_*`), and the suffixes of their names: 1, 2, 3, 4, 7, 8 and 6
/// slices, one with twice the memory, then those with and without media engines and graphics.
const SIZES: [(u32, &str); 17] = [
    (0, ""),
    (1, ""),
    (2, ""),
    (3, ""),
    (4, ""),
    (5, ""),
    (6, ""),
    (9, ""),
    (7, "+me"),
    (8, "+me"),
    (10, "+gfx"),
    (11, "+gfx"),
    (12, "+gfx"),
    (13, "-me"),
    (14, "-me"),
    (15, "+me.all"),
    (16, "+me.all"),
];

fn look(device: &Device<'_>) -> Result<MigState, MigError> {
    let mode = device.mig_mode();
    let mode = mode.map_err(|e| error("nvmlDeviceGetMigMode", &e))?;
    let memory = device.memory_info();
    let memory = memory.map_err(|e| error("nvmlDeviceGetMemoryInfo", &e))?;
    let mut state = MigState {
        on: mode.current != 0,
        asked: mode.pending != 0,
        bytes: memory.total,
        ..MigState::default()
    };
    for (constant, with) in SIZES {
        let Some(profile) = sys::profile(device, constant) else {
            continue;
        };
        let id = profile.id;
        if state.sizes.iter().any(|known| known.id == id) {
            continue;
        }
        let places = sys::places(device, id)?;
        state.sizes.push(MigSize {
            id,
            with,
            most: profile.instanceCount,
            slices: profile.sliceCount,
            bytes: profile.memorySizeMB << 20,
            decoders: profile.decoderCount,
            size: places.iter().map(|p| p.1).max().unwrap_or(0),
            starts: places.iter().map(|p| p.0).collect(),
        });
        if state.on {
            state.instances.extend(sys::gpu_instances(device, id)?);
        }
    }
    Ok(state)
}

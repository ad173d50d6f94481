//! What commands are carried out on: rules in force, journal, core, GPUs, claims, and what the kernel and the driver keep
//! them by. The module that owns a command carries it out here, and says which commands follow from it.

use gshare_enforcer::gpu::Observer;

use super::claims::Claims;
use super::core::Core;
use super::engine::LeverState;
use super::gpu::Gpus;
use super::host::Host;
use super::journal::Journal;
use super::outside::Policy;
use super::settings::Settings;
use super::world::{World, world_of};

/// All of it.
#[derive(Debug)]
pub(crate) struct Effects {
    pub(crate) config: Settings,
    pub(crate) host: Host,
    pub(crate) core: Core,
    pub(crate) journal: Journal,
    pub(crate) observer: Observer,
    pub(crate) gpus: Gpus,
    pub(crate) claims: Claims,
    pub(crate) policy: Policy,
    /// Offloading, restoring, moving.
    pub(crate) levers: LeverState,
}

impl Effects {
    /// What features may look at.
    pub(crate) fn world(&self) -> World<'_> {
        world_of!(self)
    }
}

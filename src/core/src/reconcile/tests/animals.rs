//! Programs of the honest zoo, and cheats: of its decisions here, and as whole programs in `tests/overuse.rs`.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Animal {
    /// Graphs of 500 kernels x 40 after its own memory is filled to nine tenths.
    Graphs,
    /// `cudaDeviceSetLimit` to 16 KiB: charged by the shim before it is taken.
    Stack,
    /// All modules are loaded at the start.
    EagerModules,
    /// Buffers of communicators.
    Communicators,
    /// Launches that nobody counts, beside a library by which that is known.
    OptiX,
    /// Memory that the driver counts for nobody.
    Managed,
    /// Children with contexts of their own.
    Workers,
    /// Allocates and frees all the time, so that the driver's look and ours differ.
    Churn,
}

pub(super) const ANIMALS: [Animal; 8] = [
    Animal::Graphs,
    Animal::Stack,
    Animal::EagerModules,
    Animal::Communicators,
    Animal::OptiX,
    Animal::Managed,
    Animal::Workers,
    Animal::Churn,
];

#[derive(Clone, Copy, Debug)]
pub(super) enum Cheat {
    /// A process that never registered.
    Stranger,
    /// A member that allocates past its shim.
    Member,
    /// Time of a process that never registered.
    Time,
}

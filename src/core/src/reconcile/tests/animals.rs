//! Programs of the honest zoo, and cheats. Here they test decisions; `tests/overuse.rs` runs them as whole programs.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Animal {
    /// Graphs of 500 kernels x 40, after filling nine tenths of its memory.
    Graphs,
    /// `cudaDeviceSetLimit` to 16 KiB: the shim charges it in advance.
    Stack,
    /// Loads all modules at the start.
    EagerModules,
    /// Buffers of communicators.
    Communicators,
    /// Uncounted launches, and a library that marks the program as one that has them.
    OptiX,
    /// Managed memory, which the driver attributes to no process.
    Managed,
    /// Children with contexts of their own.
    Workers,
    /// Allocates and frees all the time, so that the driver's figure and the ledger's differ.
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
    /// GPU time of a process that never registered.
    Time,
}

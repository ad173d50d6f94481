//! The mechanisms that hold members to their claims, and that observe the machine.
//!
//! Everything here acts on this machine only: cgroups ([`cgroup`]), the device filter ([`device`]), device numbers and
//! stand-in nodes ([`nodes`]), processes ([`proc`]), the GPUs through NVML ([`gpu`]), a small CUDA client ([`cuda`]),
//! the driver's own libraries ([`driver`]) and systemd ([`systemd`]). The pure core decides and the service calls in.
//!
//! Invariants: a process is identified by the kernel only (cgroup membership, pidfd), never by its environment; no
//! state in memory is needed after a restart, because the cgroup tree and the attached filters can be read back;
//! `unsafe` occurs in the `sys` modules only.

pub mod cgroup;
pub mod checkpoint;
pub mod cuda;
pub mod device;
pub mod driver;
pub mod gpu;
pub mod mps;
pub mod nodes;
mod plain;
pub mod proc;
pub mod session;
pub mod systemd;

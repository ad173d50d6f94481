//! The simulated `libnvidia-ml.so.1`: NVML over the shared board.
//!
//! Every answer comes from a snapshot of the board at the call. Utilisation is the growth of the board's integrals over
//! about the last second; memory and processes are what the simulated driver has allocated. Temperature, power and
//! clocks are simple functions of the load (see `figures`). Functions that a real GPU of the model does not support, or
//! that the simulation lacks, return `NVML_ERROR_NOT_SUPPORTED`.
//!
//! `GSHARE_SIM_BOARD` names the board; the default is `../board` from the directory of this library. If
//! `dev/nvidia<minor>` exists beside the board, a device whose node cannot be opened has no handle.

#![allow(unsafe_code, reason = "exports a C interface")]

mod abi;
mod api;
mod code;
mod figures;
mod layout;
mod session;

//! The simulated `libnvidia-ml.so.1`: NVML over the shared board.
//!
//! Every answer comes from a snapshot of the board at the moment of the call. Utilisation is the growth
//! of the board's integrals over the last second or so; memory and processes are what the simulated
//! driver gave out. Figures that a board does not hold are simple functions of the load (temperature,
//! power, clocks: see `figures`). What a real GPU of the model does not support answers
//! `NVML_ERROR_NOT_SUPPORTED`, and what the simulation does not know answers that too.
//!
//! The board is found by `GSHARE_SIM_BOARD`, else as `../board` from the directory of this library. Where
//! `dev/nvidia<minor>` lies beside the board, a device whose node cannot be opened gives no handle.

#![allow(unsafe_code, reason = "exports a C interface")]

mod abi;
mod api;
mod code;
mod figures;
mod layout;
mod session;

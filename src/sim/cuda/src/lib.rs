//! gshare-sim-cuda

//! gshare-sim-nvml

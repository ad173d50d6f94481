//! gshare-sim-ptx

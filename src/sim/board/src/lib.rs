//! gshare-sim-board

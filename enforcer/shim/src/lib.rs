//! gshare-shim

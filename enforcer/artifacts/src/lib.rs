//! gshare-artifacts

//! gshare-config

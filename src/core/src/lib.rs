//! gshare-core

//! gshare

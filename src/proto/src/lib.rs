//! gshare-proto

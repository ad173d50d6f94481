//! gshare-enforcer

//! gshare-abi

//! gshare-ui

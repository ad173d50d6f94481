//! gshare
fn main() {}

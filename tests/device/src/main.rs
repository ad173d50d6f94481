//! The list as a separate program, for machines without gshare.

fn main() -> std::process::ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    gshare_device::run(&[], &args)
}

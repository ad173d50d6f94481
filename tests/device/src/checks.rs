//! The list of checks.

mod arrays;
mod capture;
mod checkpoint;
mod context;
mod graphs;
mod ipc;
mod kernels;
mod lookup;
mod memory;
mod monitor;
mod nodes;
mod pools;
mod process;
mod start;
mod streams;
mod support;
mod vmm;

use std::process::ExitCode;

use crate::trial::Check;

/// Defines a list of checks: name, source, body.
macro_rules! list {
    ($($name:literal, $source:literal, |$t:ident| $body:block)*) => {
        pub(super) fn list() -> Vec<$crate::trial::Check> {
            vec![$($crate::trial::Check {
                name: $name,
                source: $source,
                body: |$t: &mut $crate::trial::Trial| $body,
            }),*]
        }
    };
}
pub(crate) use list;

/// All checks, in the order in which they run.
pub(crate) fn all() -> Vec<Check> {
    let lists = [
        start::list(),
        lookup::list(),
        context::list(),
        memory::list(),
        arrays::list(),
        pools::list(),
        vmm::list(),
        streams::list(),
        kernels::list(),
        graphs::list(),
        nodes::list(),
        capture::list(),
        ipc::list(),
        process::list(),
        checkpoint::list(),
        monitor::list(),
    ];
    lists.into_iter().flatten().collect()
}

/// Runs a check's helper process.
pub(crate) fn role(args: &[String]) -> ExitCode {
    match args.first().map(String::as_str) {
        Some("ipc-memory") => ipc::read_and_write(&args[1..]),
        Some("ipc-event") => ipc::wait_for_event(&args[1..]),
        Some("import-fd") => ipc::import(&args[1..]),
        Some("target") => checkpoint::target(),
        Some("other-user") => checkpoint::other_user(&args[1..]),
        Some("hold") => process::hold(&args[1..]),
        _ => return ExitCode::from(2),
    }
    ExitCode::SUCCESS
}

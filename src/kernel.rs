//! Jupyter kernels in claims: kernelspecs that start a kernel through `gshare kernel exec`.
//!
//! A kernelspec is a directory with a `kernel.json` (<https://jupyter-client.readthedocs.io/en/stable/kernels.html>).
//! gshare makes a copy with the same files, whose command is gshare's followed by the kernel's own. Everything else
//! in the file (language, interrupts, debugger, environment) is unchanged.

pub mod helper;
pub mod install;
pub mod places;
pub mod seen;
pub mod servers;
pub mod spec;
mod web;

/// The connection file in the arguments of a kernel: the last word that ends in `.json`, or its value.
pub(crate) fn connection_file<W: AsRef<std::ffi::OsStr>>(words: &[W]) -> Option<&str> {
    let words = words.iter().rev().filter_map(|word| word.as_ref().to_str());
    words
        .map(|word| word.rsplit_once('=').map_or(word, |(_, value)| value))
        .find(|word| word.ends_with(".json"))
}

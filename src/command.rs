//! What every command of the program is made of, below all of them: arguments, how a command ends, what it prints, and
//! what is made of the arguments' definition. Command line, demo, benches and setup use it and not each other.

pub mod args;
pub(crate) mod complete;
pub mod failure;
pub(crate) mod out;

/// What a command ends with: an exit code, or why it failed.
pub type Outcome = Result<u8, failure::Failure>;

//! The program against a thread that plays the service with literal JSON.

mod claim;
mod failures;
mod fake;
mod files;
mod lists;
mod nodes;
mod screen;
mod waiting;

//! The terminal UI of gshare: allocation beside use, per GPU, user and claim.
//!
//! Shape: messages ([`Update`]s from a feeder, keys, the clock) go into a pure update of the model;
//! the view draws the model; only the run loop touches the terminal. The same screen runs on the
//! service ([`service_source`]), on a read-only monitor or in the demo (anything that holds a
//! [`Feeder`]). It never waits for its feeder.
//!
//! `run_blocking(Options::default(), service_source(socket, None))` is the whole screen on a service.
#![forbid(unsafe_code)]

mod canvas;
mod feed;
mod form;
mod input;
mod keymap;
mod list;
mod model;
mod msg;
mod picture;
mod plain;
mod run;
mod service;
mod term;
mod text;
mod theme;
mod update;
mod view;
mod widgets;

#[cfg(test)]
mod testing;

pub use feed::{Failure, Feed, Feeder, Request, Seek, Update, UpdateSender, Updates, channel};
pub use keymap::key_table;
pub use list::{Item, List, choose_blocking};
pub use model::{Page, Viewer};
pub use picture::{Frame, frame_cells, frame_text, last_day};
pub use plain::Plain;
pub use run::{Exit, Options, run, run_blocking};
pub use service::service_source;
pub use theme::{Background, Depth, Glyphs, Look, Theme};

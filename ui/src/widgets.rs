//! Widgets that several parts of the screen share.

pub(crate) mod bullet;
pub(crate) mod gantt;
pub(crate) mod heat;
pub(crate) mod over_time;
pub(crate) mod slice_map;
pub(crate) mod spark;

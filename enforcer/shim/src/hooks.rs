//! What each hook does, by family. A hook first gives NULL and whatever else the driver must judge
//! to the driver, and leaves the program alone where it is no member of a claim.

pub(crate) mod array;
pub(crate) mod context;
pub(crate) mod graph;
pub(crate) mod info;
pub(crate) mod launch;
pub(crate) mod library;
pub(crate) mod lookup;
pub(crate) mod memory;
pub(crate) mod moves;
pub(crate) mod pool;
pub(crate) mod share;
pub(crate) mod virtual_memory;

//! The hooks by family. A hook first passes NULL and other arguments that the driver must check to the driver, and
//! leaves programs outside claims alone.

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

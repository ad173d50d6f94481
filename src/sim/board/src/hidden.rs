//! Memory that a driver takes for a context beyond the context's overhead and the program's allocations. NVML shows it,
//! but no call reports it.
//!
//! Stack: one per thread that can be resident, of the size of the stack limit or of the kernel that needs most local
//! memory (cms-sw pull request 51395, cuda-oxide pull request 699). Graphs and modules also take memory (vLLM pull
//! request 51590: 1.37 GiB in a process). The amount for each is an assumption that no GPU has confirmed.

use crate::models::{GRANULARITY, Model};

/// Bytes per kernel in an executable graph.
const GRAPH_KERNEL: u64 = 64 << 10;
/// Bytes for the code of a module. Its variables are counted separately.
const MODULE: u64 = 128 << 10;

/// What determines the hidden memory of a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hidden {
    /// Bytes of stack and local memory per thread.
    pub stack: u64,
    /// Bytes of the heap for `malloc` in kernels.
    pub heap: u64,
    /// Kernels in executable graphs.
    pub graph_kernels: u64,
    pub modules: u64,
}

impl Hidden {
    /// Values of a new context. The context's overhead covers these and the first graphs and modules.
    pub const LEAST: Hidden = Hidden {
        stack: 1 << 10,
        heap: 8 << 20,
        graph_kernels: 0,
        modules: 0,
    };

    /// Bytes on the GPU.
    #[must_use]
    pub fn bytes(&self, model: &Model) -> u64 {
        let threads = u64::from(model.sms) * u64::from(model.warps_per_sm()) * 32;
        let stack = self.stack.saturating_sub(Hidden::LEAST.stack);
        let heap = self.heap.saturating_sub(Hidden::LEAST.heap);
        let asked = stack.saturating_mul(threads).saturating_add(heap);
        let code = self.graph_kernels * GRAPH_KERNEL + self.modules * MODULE;
        asked
            .checked_next_multiple_of(GRANULARITY)
            .unwrap_or(u64::MAX)
            .saturating_add(code / GRANULARITY * GRANULARITY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_kibibytes_of_stack_are_gibibytes() {
        let of = |slug, hidden: Hidden| hidden.bytes(Model::by_slug(slug).expect("known")) >> 20;
        let stack = Hidden {
            stack: 16 << 10,
            ..Hidden::LEAST
        };
        // 15 KiB beyond the first one, for 132 x 2048 and 128 x 1536 threads.
        assert_eq!((of("h100", stack), of("rtx4090", stack)), (3960, 2880));
        let graphs = Hidden {
            graph_kernels: 40 * 500,
            modules: 3,
            ..Hidden::LEAST
        };
        assert_eq!((of("h100", graphs), of("h100", Hidden::LEAST)), (1250, 0));
    }
}

//! Totals of the slices on each GPU, cached: they are read far more often than they change.

use super::Slice;
use crate::units::{Bytes, Share};

/// By GPU. Wide enough that no sum overflows.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums(Vec<Sum>);

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    slices: u32,
    mem: u128,
    borrowed: u128,
    sm: u64,
}

fn bytes(sum: u128) -> Bytes {
    Bytes(u64::try_from(sum).unwrap_or(u64::MAX))
}

impl Sums {
    pub(super) fn add(&mut self, slices: &[Slice]) {
        for slice in slices {
            if self.0.len() <= slice.gpu {
                self.0.resize(slice.gpu + 1, Sum::default());
            }
            let sum = &mut self.0[slice.gpu];
            sum.slices += 1;
            sum.mem += u128::from(slice.mem.0);
            sum.borrowed += u128::from(slice.borrowed().0);
            sum.sm += u64::from(slice.sm.milli());
        }
    }

    /// Removes slices, with the values with which they were added.
    pub(super) fn take(&mut self, slices: Option<&[Slice]>) {
        for slice in slices.unwrap_or_default() {
            let sum = &mut self.0[slice.gpu];
            sum.slices -= 1;
            sum.mem -= u128::from(slice.mem.0);
            sum.borrowed -= u128::from(slice.borrowed().0);
            sum.sm -= u64::from(slice.sm.milli());
        }
    }

    /// Updates what one slice borrows.
    pub(super) fn lend(&mut self, gpu: usize, before: Bytes, now: Bytes) {
        let sum = &mut self.0[gpu];
        sum.borrowed = sum.borrowed - u128::from(before.0) + u128::from(now.0);
    }

    fn of(&self, gpu: usize) -> Sum {
        self.0.get(gpu).copied().unwrap_or_default()
    }

    pub(super) fn slices(&self, gpu: usize) -> u32 {
        self.of(gpu).slices
    }

    /// Bytes requested.
    pub(super) fn mem(&self, gpu: usize) -> Bytes {
        bytes(self.of(gpu).mem)
    }

    /// Bytes requested, and used above that.
    pub(super) fn taken(&self, gpu: usize) -> Bytes {
        let sum = self.of(gpu);
        bytes(sum.mem + sum.borrowed)
    }

    /// SMs requested.
    pub(super) fn sm(&self, gpu: usize) -> Share {
        Share::from_milli(u32::try_from(self.of(gpu).sm).unwrap_or(u32::MAX))
    }
}

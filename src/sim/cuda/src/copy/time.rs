//! Durations of copies and fills on the board.

use gshare_sim_board::{Route, Transfer};

use super::{ARRAY, Copy3D, Fill, HOST, Side};
use crate::code::R;
use crate::driver::{Driver, Tables};
use crate::memory::Kind;

/// Largest number of bytes that take no time.
const INSTANT: u64 = 64 << 10;

impl Side {
    /// The device whose memory it is; `None` for host memory.
    fn device(&self, t: &Tables) -> Option<usize> {
        let addr = match self.kind {
            HOST => return None,
            ARRAY => t.arrays.get(&self.array)?.addr,
            _ => self.device,
        };
        let (_, alloc) = t.memory.find(addr)?;
        let on_host = matches!(alloc.kind, Kind::Host(_) | Kind::Registered(_));
        (!on_host).then_some(alloc.device)
    }
}

impl Driver {
    fn transfer(&self, t: &Tables, context: u64, route: Route, bytes: u64) -> R<Option<Transfer>> {
        if bytes <= INSTANT {
            return Ok(None);
        }
        let model = self.devices[t.context(context)?.device].model;
        let registry = match route {
            Route::OnDevice => None,
            _ => self.pcie,
        };
        let rate = registry.unwrap_or_else(|| route.bytes_per_second(model));
        let ns = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
        Ok(Some(Transfer {
            route,
            bytes,
            ns: ns as u64,
        }))
    }

    pub(crate) fn copy_time(&self, context: u64, c: &Copy3D) -> R<Option<Transfer>> {
        let bytes = (c.width as u64)
            .saturating_mul(c.height as u64)
            .saturating_mul(c.depth as u64);
        let t = self.tables();
        let route = match (c.source().device(&t), c.target().device(&t)) {
            (None, None) => return Ok(None),
            (None, Some(_)) => Route::HostToDevice,
            (Some(_), None) => Route::DeviceToHost,
            (Some(from), Some(to)) if from != to => Route::DeviceToHost,
            (Some(_), Some(_)) => Route::OnDevice,
        };
        self.transfer(&t, context, route, bytes)
    }

    pub(crate) fn fill_time(&self, context: u64, f: &Fill) -> R<Option<Transfer>> {
        let row = (f.width as u64).saturating_mul(u64::from(f.element));
        let bytes = row.saturating_mul(f.height as u64);
        self.transfer(&self.tables(), context, Route::OnDevice, bytes)
    }
}

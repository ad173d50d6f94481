//! `[detach]`: taking the GPU memory of claims that run to the host.

use std::time::Duration;

use gshare_core::Bytes;
use toml::de::DeTable;

use crate::read::{self, Reader};

/// `[detach]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detach {
    /// `drain`: how long calls that are in the driver may take to come back before a claim is left alone.
    pub drain: Duration,
    /// `timeout`: longest time for one step of the driver, beside what moving the memory takes.
    pub timeout: Duration,
    /// `host-reserve`: host memory that stays free.
    pub host_reserve: Bytes,
}

impl Default for Detach {
    fn default() -> Self {
        Self {
            drain: Duration::from_secs(5),
            timeout: Duration::from_secs(30),
            host_reserve: Bytes::mib(2048),
        }
    }
}

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);

impl Detach {
    pub(crate) fn walk<'t>(reader: &mut Reader<'t>, root: &DeTable<'t>) -> Self {
        let d = Self::default();
        let mut s = reader.section(root, "detach");
        let value = Self {
            drain: s.get("drain", d.drain, read::time(MS..=HOUR)),
            timeout: s.get("timeout", d.timeout, read::time(100 * MS..=HOUR)),
            host_reserve: s.get("host-reserve", d.host_reserve, read::size),
        };
        s.finish();
        value
    }
}

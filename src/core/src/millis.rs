//! Serializes durations as whole milliseconds.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::claim::ClaimId;
use crate::machine::lever::Lever;

/// A type that contains durations, and how it is written.
pub(crate) trait Timed {
    type Written: Serialize + DeserializeOwned;
    fn written(&self) -> Self::Written;
    fn read(written: Self::Written) -> Self;
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Timed for Duration {
    type Written = u64;

    fn written(&self) -> u64 {
        ms(*self)
    }

    fn read(written: u64) -> Self {
        Self::from_millis(written)
    }
}

impl Timed for Option<Duration> {
    type Written = Option<u64>;

    fn written(&self) -> Option<u64> {
        self.map(ms)
    }

    fn read(written: Option<u64>) -> Self {
        written.map(Duration::from_millis)
    }
}

impl Timed for BTreeMap<ClaimId, Duration> {
    type Written = BTreeMap<ClaimId, u64>;

    fn written(&self) -> Self::Written {
        self.iter().map(|(id, at)| (*id, ms(*at))).collect()
    }

    fn read(written: Self::Written) -> Self {
        let read = |(id, at)| (id, Duration::from_millis(at));
        written.into_iter().map(read).collect()
    }
}

impl Timed for BTreeMap<Lever, Duration> {
    type Written = Vec<(Lever, u64)>;

    fn written(&self) -> Self::Written {
        self.iter().map(|(lever, at)| (*lever, ms(*at))).collect()
    }

    fn read(written: Self::Written) -> Self {
        let read = |(lever, at)| (lever, Duration::from_millis(at));
        written.into_iter().map(read).collect()
    }
}

pub(crate) fn serialize<T: Timed, S: Serializer>(times: &T, to: S) -> Result<S::Ok, S::Error> {
    times.written().serialize(to)
}

pub(crate) fn deserialize<'de, T: Timed, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    T::Written::deserialize(from).map(T::read)
}

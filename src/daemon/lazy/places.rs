//! What the driver must find in the environment of a claim that had no GPU when its program was started: places are
//! left in it, and the program's own library fills them when the GPU is there.

use gshare_core::{ClaimId, Held};
use gshare_proto::ClaimSpec;

use super::super::journal::SliceRecord;
use super::super::service::{Live, Service};

/// Length of a UUID with `GPU-` or `MIG-` before it, and of the older names of instances.
const UUID: usize = 40;
const OLD_INSTANCE: usize = 56;
/// `0=16777216M`.
const PINNED: usize = 11;

/// How many GPUs a claim will have.
pub(super) fn count(spec: Option<&ClaimSpec>) -> u32 {
    let of = |spec: &ClaimSpec| match (spec.gpu_count, spec.gpus_milli) {
        (Some(count), _) => count,
        (None, milli) => milli.unwrap_or(0).div_ceil(1000),
    };
    spec.map_or(1, of).max(1)
}

impl Service {
    /// The places: for everything that any GPU could ask for, since which it will be is not known.
    pub(crate) fn places_for_later(&self, live: &Live) -> Vec<(String, String)> {
        let count = count(live.record.lazy.as_deref()) as usize;
        let last = self.gpus.len().saturating_sub(1);
        let daemon = self.mps_dir().join(format!("{last}/pipe"));
        let dir = daemon.as_os_str().len();
        let places = [
            (
                "CUDA_VISIBLE_DEVICES",
                (count * (UUID + 1) - 1).max(OLD_INSTANCE),
            ),
            ("CUDA_MPS_PIPE_DIRECTORY", dir),
            ("CUDA_MPS_LOG_DIRECTORY", dir),
            ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100.00000".len()),
            ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", PINNED),
            ("CUDA_MPS_CLIENT_PRIORITY", 1),
        ];
        places
            .into_iter()
            .map(|(name, longest)| gshare_abi::place(name, longest))
            .collect()
    }

    /// What stands in them now; nothing for claims that had their GPUs at their start.
    pub(crate) fn in_places(&self, id: ClaimId) -> Vec<(String, String)> {
        let Some(live) = self.claims.get(&id).filter(|l| l.record.lazy.is_some()) else {
            return Vec::new();
        };
        let record = &live.record;
        let plain = |s: &SliceRecord| s.uuid.starts_with("GPU-") && s.held == Held::Timeslice;
        let mut env = Vec::new();
        // A process that fills the place has the library, which shows the claim's GPUs and no others: the variable would only
        // keep the claim from being moved. An instance is not found without it; the others cannot be moved.
        if record.no_move || !record.slices.iter().all(plain) {
            let uuids: Vec<&str> = record.slices.iter().map(|s| s.uuid.as_str()).collect();
            env.push(("CUDA_VISIBLE_DEVICES".to_owned(), uuids.join(",")));
        }
        env.extend(self.mps_env(record));
        env
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_gpus_are_counted_as_were_asked_for() {
        let spec = |gpus_milli, gpu_count| ClaimSpec {
            gpus_milli,
            gpu_count,
            ..ClaimSpec::default()
        };
        for (milli, parts, gpus) in [
            (None, None, 1),
            (Some(250), None, 1),
            (Some(2000), None, 2),
            (Some(500), Some(2), 2),
        ] {
            assert_eq!(count(Some(&spec(milli, parts))), gpus);
        }
        assert_eq!(count(None), 1);
    }
}

//! Environment of a claim without GPUs at the start of its program: placeholders for what the driver must find there,
//! which the program's own library fills when the GPU is granted.

use gshare_core::ClaimId;
use gshare_proto::ClaimSpec;

use super::super::levers::facts::hides_without_variable;
use super::super::live::Live;
use crate::daemon::mps;
use crate::daemon::world::World;

/// Length of a UUID with `GPU-` or `MIG-`, and of the older names of instances.
const UUID: usize = 40;
const OLD_INSTANCE: usize = 56;
/// `0=16777216M`.
const PINNED: usize = 11;

/// Number of GPUs that a claim will have.
pub(super) fn count(spec: Option<&ClaimSpec>) -> u32 {
    let of = |spec: &ClaimSpec| match (spec.gpu_count, spec.gpus_milli) {
        (Some(count), _) => count,
        (None, milli) => milli.unwrap_or(0).div_ceil(1000),
    };
    spec.map_or(1, of).max(1)
}

/// Present values of the placeholders; empty for claims that had their GPUs at the start.
pub(crate) fn in_places(world: &World<'_>, id: ClaimId) -> Vec<(String, String)> {
    let Some(live) = world
        .claims
        .get(&id)
        .filter(|l| l.record.terms.lazy.is_some())
    else {
        return Vec::new();
    };
    let record = &live.record;
    let mut env = Vec::new();
    // If only the library hides the other GPUs, a GPU's place differs from its number in the driver, and programs
    // confuse the two. An instance is not found at all without the variable.
    if !record.slices.is_empty() && !hides_without_variable(world, live) {
        let uuids: Vec<&str> = record.slices.iter().map(|s| s.uuid.as_str()).collect();
        env.push(("CUDA_VISIBLE_DEVICES".to_owned(), uuids.join(",")));
    }
    env.extend(mps::mps_env(world, record));
    env
}

/// The placeholders for everything that any GPU might need, since it is not known which it will be.
pub(crate) fn places_for_later(world: &World<'_>, live: &Live) -> Vec<(String, String)> {
    let count = count(live.record.terms.lazy.as_deref()) as usize;
    let last = world.gpus.len().saturating_sub(1);
    let daemon = world.host.mps_dir().join(format!("{last}/pipe"));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_filter_the_variable_hides_the_other_gpus_unless_the_administrator_chose_the_library()
     {
        let mut scene = crate::daemon::world::scene::Scene::of(2);
        scene.host.driver.libcuda = Ok("/usr/lib/libcuda.so.1".into());
        scene.claim(1, 1).record.terms.lazy = Some(Box::default());
        let env =
            |scene: &crate::daemon::world::scene::Scene| in_places(&scene.world(), ClaimId(1));
        let variable = ("CUDA_VISIBLE_DEVICES".to_owned(), "GPU-1".to_owned());
        assert!(env(&scene).contains(&variable), "{:?}", env(&scene));
        scene.config.claims.hide_by_library = true;
        assert!(!env(&scene).contains(&variable), "{:?}", env(&scene));
        // Before the grant there is nothing to fill in.
        scene.config.claims.hide_by_library = false;
        scene.claim(1, 1).record.slices.clear();
        assert!(!env(&scene).iter().any(|(name, _)| *name == variable.0));
    }

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

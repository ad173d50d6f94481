//! MIG profiles of the models that support it.
//!
//! `docs/hardware.md` names each table's source, and what no GPU or public log has confirmed.

use super::{A100, H200, HOPPER, MIB, MODELS, Model, RTX_PRO};

/// A size of MIG instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MigProfile {
    /// Slug of the GPU's model.
    pub of: &'static str,
    /// Its name, `2g.20gb`.
    pub name: &'static str,
    /// Number for `nvidia-smi mig -cgi`, which differs between models. Programs get it from the driver.
    pub id: u32,
    pub sms: u32,
    /// Memory in MiB.
    pub mib: u64,
    pub compute_slices: u32,
    pub memory_slices: u32,
    /// Maximum number per GPU.
    pub most: u32,
    /// Decoders. The GPU has as many as its largest profile.
    pub decoders: u32,
}

impl MigProfile {
    /// The suffix of its name after slices and memory, such as `+me`.
    #[must_use]
    pub fn with(&self) -> &'static str {
        self.name.find(['+', '-']).map_or("", |at| &self.name[at..])
    }
}

macro_rules! table {
    ($($base:ident $of:literal $product:literal: $($name:literal $id:literal $sms:literal $mib:literal $compute:literal $memory:literal $most:literal $decoders:literal),+;)+) => {
        static PROFILES: &[MigProfile] = &[$($(MigProfile {
            of: $of, name: $name, id: $id, sms: $sms, mib: $mib, compute_slices: $compute,
            memory_slices: $memory, most: $most, decoders: $decoders,
        }),+),+];
        static INSTANCES: &[Model] = &[$($(Model {
            slug: concat!($of, ":", $name),
            name: concat!($product, " MIG ", $name),
            total: $mib * MIB,
            reserved: 2 * MIB,
            sms: $sms,
            mig: false,
            ..$base
        }),+),+];
    };
}

// Name, id, SMs, MiB, compute slices, memory slices, maximum per GPU, decoders.
table! {
    A100 "a100-80gb" "NVIDIA A100-SXM4-80GB":
        "1g.10gb" 19 14 9728 1 1 7 0,
        "1g.10gb+me" 20 14 9728 1 1 1 1,
        "1g.20gb" 15 14 19968 1 2 4 1,
        "2g.20gb" 14 28 19968 2 2 3 1,
        "3g.40gb" 9 42 40192 3 4 2 2,
        "4g.40gb" 5 56 40192 4 4 1 2,
        "7g.80gb" 0 98 80640 7 8 1 5;
    HOPPER "h100" "NVIDIA H100 80GB HBM3":
        "1g.10gb" 19 16 9984 1 1 7 1,
        "1g.10gb+me" 20 16 9984 1 1 1 1,
        "1g.20gb" 15 26 20096 1 2 4 1,
        "2g.20gb" 14 32 20096 2 2 3 2,
        "3g.40gb" 9 60 40448 3 4 2 3,
        "4g.40gb" 5 64 40448 4 4 1 4,
        "7g.80gb" 0 132 81152 7 8 1 7;
    H200 "h200" "NVIDIA H200":
        "1g.18gb" 19 16 16384 1 1 7 1,
        "1g.18gb+me" 20 16 16384 1 1 1 1,
        "1g.35gb" 15 26 32768 1 2 4 1,
        "2g.35gb" 14 32 33280 2 2 3 2,
        "3g.71gb" 9 60 71476 3 4 2 3,
        "4g.71gb" 5 64 71476 4 4 1 4,
        "7g.141gb" 0 132 143360 7 8 1 7;
    RTX_PRO "rtxpro6000" "NVIDIA RTX PRO 6000 Blackwell Workstation Edition":
        "1g.24gb" 14 46 24166 1 1 4 1,
        "1g.24gb+me" 21 46 24166 1 1 1 1,
        "1g.24gb+gfx" 47 46 24166 1 1 4 1,
        "1g.24gb+me.all" 65 46 24166 1 1 1 4,
        "1g.24gb-me" 67 46 24166 1 1 4 0,
        "2g.48gb" 5 94 48538 2 2 2 2,
        "2g.48gb+gfx" 35 94 48538 2 2 2 2,
        "2g.48gb+me.all" 64 94 48538 2 2 1 4,
        "2g.48gb-me" 66 94 48538 2 2 2 0,
        "4g.96gb+gfx" 32 188 97280 4 4 1 4,
        "4g.96gb" 0 188 97280 4 4 1 4;
}

/// The profiles of a model, smallest first; empty if it does not support MIG.
pub fn profiles(model: &str) -> impl Iterator<Item = &'static MigProfile> {
    PROFILES.iter().filter(move |p| p.of == model)
}

/// The instances as models of their own, indexed after [`MODELS`].
#[must_use]
pub fn instances() -> &'static [Model] {
    INSTANCES
}

/// The model with this index: GPUs first, then instances.
pub(crate) fn by_index(index: usize) -> &'static Model {
    MODELS
        .get(index)
        .or_else(|| INSTANCES.get(index.checked_sub(MODELS.len())?))
        .unwrap_or(&MODELS[0])
}

/// The index of a model by its slug; an instance is `MODEL:PROFILE`.
pub(crate) fn index_of(slug: &str) -> Option<usize> {
    let mut all = MODELS.iter().chain(INSTANCES);
    all.position(|m| m.slug == slug)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_a_smaller_gpu_of_the_same_kind() {
        let index = index_of("a100-80gb:2g.20gb").expect("known");
        let part = by_index(index);
        assert_eq!((part.sms, part.total), (28, 19_968 * MIB));
        assert_eq!(part.name, "NVIDIA A100-SXM4-80GB MIG 2g.20gb");
        assert_eq!(part.compute_capability, A100.compute_capability);
        for (model, sms) in [
            ("a100-80gb", 98),
            ("h100", 132),
            ("h200", 132),
            ("rtxpro6000", 188),
        ] {
            let all: Vec<_> = profiles(model).collect();
            assert_eq!(all.last().expect("profiles").sms, sms, "{model}");
            let slices = all.last().expect("profiles").memory_slices;
            for p in all {
                assert!(p.memory_slices * p.most <= slices, "{p:?}");
            }
        }
        assert_eq!(profiles("rtx4090").count(), 0);
    }
}

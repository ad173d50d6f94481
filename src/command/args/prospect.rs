//! Arguments of `gshare doctor`, and the GPUs that it knows without having them.

use clap::Args;

use crate::release::Release;

/// What is asked about another machine.
#[derive(Args, Clone, Debug, Default)]
pub struct ProspectArgs {
    /// Say what would work with this driver instead: 550, 580.95.05
    #[arg(long, value_name = "VERSION")]
    pub driver: Option<Release>,
    /// Say what would work on this GPU instead: rtx4090, a100, h100, ...
    #[arg(long, value_name = "MODEL", value_parser = model)]
    pub gpu: Option<&'static Model>,
}

/// A model of GPU.
#[derive(Debug, PartialEq, Eq)]
pub struct Model {
    word: &'static str,
    /// As the driver calls it, about.
    pub name: &'static str,
    /// Compute capability.
    pub capability: (i32, i32),
    /// Whether it can be divided.
    pub mig: bool,
    /// Whether it counts the activity of its SMs for NVML, where that is known.
    pub gpm: Option<bool>,
}

const fn plain(word: &'static str, name: &'static str, capability: (i32, i32)) -> Model {
    Model {
        word,
        name,
        capability,
        mig: false,
        gpm: Some(false),
    }
}

const fn divisible(word: &'static str, name: &'static str, capability: (i32, i32)) -> Model {
    Model {
        mig: true,
        gpm: Some(capability.0 >= 9),
        ..plain(word, name, capability)
    }
}

const MODELS: [Model; 16] = [
    plain("rtx2080ti", "NVIDIA GeForce RTX 2080 Ti", (7, 5)),
    plain("rtx3090", "NVIDIA GeForce RTX 3090", (8, 6)),
    plain("rtx4090", "NVIDIA GeForce RTX 4090", (8, 9)),
    Model {
        gpm: None,
        ..plain("rtx5090", "NVIDIA GeForce RTX 5090", (12, 0))
    },
    plain("rtxa6000", "NVIDIA RTX A6000", (8, 6)),
    plain("rtx6000ada", "NVIDIA RTX 6000 Ada Generation", (8, 9)),
    divisible("rtxpro6000", "NVIDIA RTX PRO 6000 Blackwell", (12, 0)),
    plain("t4", "Tesla T4", (7, 5)),
    plain("v100", "Tesla V100", (7, 0)),
    divisible("a30", "NVIDIA A30", (8, 0)),
    plain("a40", "NVIDIA A40", (8, 6)),
    divisible("a100", "NVIDIA A100", (8, 0)),
    plain("l4", "NVIDIA L4", (8, 9)),
    plain("l40s", "NVIDIA L40S", (8, 9)),
    divisible("h100", "NVIDIA H100", (9, 0)),
    divisible("h200", "NVIDIA H200", (9, 0)),
];

/// Finds a model by its word, or by a name as the driver has it: `NVIDIA A100-SXM4-80GB`. Of that, whole words count: a T400 is
/// no T4.
fn model(text: &str) -> Result<&'static Model, String> {
    let lower = text.to_lowercase();
    let words = lower.split(|c: char| !c.is_ascii_alphanumeric());
    let words = words.filter(|w| !["", "nvidia", "geforce", "tesla"].contains(w));
    let names = words.scan(String::new(), |name, word| {
        name.push_str(word);
        Some(name.clone())
    });
    // The longest name, so that an RTX 6000 Ada is found and not what the name begins with.
    let found = names
        .filter_map(|name| MODELS.iter().find(|m| m.word == name))
        .last();
    found.ok_or_else(|| {
        let known: Vec<&str> = MODELS.iter().map(|m| m.word).collect();
        format!("gshare knows {}", known.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_found_by_its_word_and_by_the_drivers_name() {
        for (text, word) in [
            ("rtx4090", "rtx4090"),
            ("RTX 4090", "rtx4090"),
            ("NVIDIA A100-SXM4-80GB", "a100"),
            ("l40s", "l40s"),
            ("L4", "l4"),
            ("NVIDIA RTX 6000 Ada Generation", "rtx6000ada"),
            ("A100 80GB PCIe", "a100"),
            ("Tesla V100-SXM2-32GB", "v100"),
        ] {
            assert_eq!(model(text).map(|m| m.word), Ok(word), "{text}");
        }
        for unknown in ["gtx970", "T400", "A4000", "L40", "RTX 6000", ""] {
            let error = model(unknown).expect_err(unknown);
            assert!(error.contains("rtx4090"), "{error}");
        }
    }
}

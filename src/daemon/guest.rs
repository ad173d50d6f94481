//! Machines with only a part of a GPU's driver: what is missing there, and why.

use std::path::Path;

/// The device through which WSL reaches the GPUs of Windows.
const WSL: &str = "/dev/dxg";

/// Whether a GPU's name is that of a vGPU: it ends in a profile, such as `GRID V100D-8Q` or `NVIDIA A40-24C`.
fn is_vgpu(model: &str) -> bool {
    let Some((_, profile)) = model.rsplit_once('-') else {
        return false;
    };
    let size = profile.trim_end_matches(['A', 'B', 'C', 'Q']);
    size.len() + 1 == profile.len() && !size.is_empty() && size.bytes().all(|b| b.is_ascii_digit())
}

/// Name and text of a row for each such kind that applies to this machine.
pub(super) fn rows<'a>(models: impl Iterator<Item = &'a str>) -> Vec<(&'static str, String)> {
    rows_of(Path::new(WSL).exists(), models)
}

fn rows_of<'a>(is_wsl: bool, models: impl Iterator<Item = &'a str>) -> Vec<(&'static str, String)> {
    let wsl = is_wsl.then(|| {
        let detail = "WSL: Windows manages the GPUs, so there is no device filter, memory per process, offload, MPS or \
                      MIG; limits of memory and GPU time are cooperative only";
        ("driver on WSL", detail.to_owned())
    });
    let parts: Vec<&str> = models.filter(|model| is_vgpu(model)).collect();
    let vgpu = (!parts.is_empty()).then(|| {
        let detail = format!(
            "{}: a vGPU, so the host controls SM activity counters, resets, MIG and offload; compute shares apply only \
             within this guest",
            parts.join(", ")
        );
        ("driver in a vGPU guest", detail)
    });
    wsl.into_iter().chain(vgpu).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wsl_and_guests_are_told_what_is_missing() {
        let whole = [
            "NVIDIA H100 80GB HBM3",
            "NVIDIA A100-SXM4-80GB",
            "Tesla T4",
            "NVIDIA A100-PCIE-40GB",
        ];
        assert!(rows_of(false, whole.into_iter()).is_empty());
        for model in [
            "GRID V100D-8Q",
            "NVIDIA A40-24C",
            "GRID T4-2B",
            "NVIDIA L40S-48A",
        ] {
            let rows = rows_of(false, [whole[0], model].into_iter());
            assert_eq!(rows.len(), 1, "{model}");
            assert!(rows[0].1.starts_with(model), "{}", rows[0].1);
        }
        let rows = rows_of(true, whole.into_iter());
        assert!(rows[0].1.contains("no device filter"), "{}", rows[0].1);
    }
}

//! Which GPUs of the board this process sees: device nodes first, then `CUDA_VISIBLE_DEVICES`.

use std::path::Path;

use gshare_sim_board::BoardSnapshot;

/// Whether this process may open a device node. The real driver also depends on this.
fn may_open(node: &Path) -> bool {
    let opened = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(node);
    match opened {
        Ok(_) => true,
        // The permission check passed, but the node has no driver.
        Err(e) => matches!(e.raw_os_error(), Some(libc::ENXIO | libc::ENODEV)),
    }
}

/// The board's indices of the GPUs that this process may open, in PCI order.
pub(crate) fn accessible(board: &BoardSnapshot, dev: &Path) -> Vec<usize> {
    let all = usable(board);
    if !dev.is_dir() {
        return all;
    }
    let control = dev.join("nvidiactl");
    if control.exists() && !may_open(&control) {
        return Vec::new();
    }
    let opens = |i: usize| {
        let gpu = &board.gpus[i];
        let caps = gpu
            .instance
            .iter()
            .flat_map(gshare_sim_board::Instance::caps);
        may_open(&dev.join(format!("nvidia{}", gpu.minor)))
            && caps
                .map(|minor| dev.join(format!("nvidia-caps/nvidia-cap{minor}")))
                .all(|node| !node.exists() || may_open(&node))
    };
    all.into_iter().filter(|&i| opens(i)).collect()
}

/// GPUs and instances, without divided GPUs, which programs cannot use.
fn usable(board: &BoardSnapshot) -> Vec<usize> {
    let usable = |i: &usize| board.gpus[*i].is_usable();
    (0..board.gpus.len()).filter(usable).collect()
}

/// The devices without `CUDA_VISIBLE_DEVICES`: all GPUs, or else a single instance.
fn unchosen(accessible: &[usize], uuids: &[String]) -> Vec<usize> {
    let whole = |g: &&usize| !uuids[**g].starts_with("MIG-");
    let gpus: Vec<usize> = accessible.iter().filter(whole).copied().collect();
    if gpus.is_empty() {
        accessible.first().copied().into_iter().collect()
    } else {
        gpus
    }
}

/// Applies `CUDA_VISIBLE_DEVICES`: ordinals or (prefixes of) UUIDs. The first entry that names no GPU, or a GPU for the
/// second time, hides itself and all later entries.
pub(crate) fn chosen(accessible: &[usize], uuids: &[String], variable: Option<&str>) -> Vec<usize> {
    let Some(list) = variable else {
        return unchosen(accessible, uuids);
    };
    let mut result = Vec::new();
    for entry in list.split(',').map(str::trim) {
        let gpu = if entry.starts_with("GPU-") || entry.starts_with("MIG-") {
            let wanted = entry.to_ascii_lowercase();
            let mut fits = accessible
                .iter()
                .copied()
                .filter(|&g| uuids[g].to_ascii_lowercase().starts_with(&wanted));
            fits.next().filter(|_| fits.next().is_none())
        } else {
            let ordinal: Option<usize> = entry.parse().ok();
            ordinal.and_then(|n| unchosen(accessible, uuids).get(n).copied())
        };
        match gpu {
            Some(g) if !result.contains(&g) => result.push(g),
            _ => break,
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_devices() {
        let uuids: Vec<String> = ["GPU-aa00", "GPU-ab00", "GPU-b000", "GPU-c000"]
            .map(str::to_owned)
            .to_vec();
        for (accessible, variable, expect) in [
            (&[0, 1, 2, 3][..], None, vec![0, 1, 2, 3]),
            (&[0, 1, 2, 3], Some(""), vec![]),
            (&[0, 1, 2, 3], Some("-1"), vec![]),
            (&[0, 1, 2, 3], Some("2,0"), vec![2, 0]),
            (&[0, 1, 2, 3], Some("1,9,0"), vec![1]),
            (&[0, 1, 2, 3], Some("1,x,0"), vec![1]),
            (&[0, 1, 2, 3], Some("1,1"), vec![1]),
            (&[0, 1, 2, 3], Some("GPU-b"), vec![2]),
            (&[0, 1, 2, 3], Some("GPU-a,GPU-b"), vec![]),
            (&[0, 1, 2, 3], Some(" GPU-AB00 , GPU-c000"), vec![1, 3]),
            (&[0, 1, 2, 3], Some("MIG-1,0"), vec![]),
            (&[1, 3], None, vec![1, 3]),
            (&[1, 3], Some("1,0"), vec![3, 1]),
            (&[1, 3], Some("GPU-a"), vec![1]),
            (&[1, 3], Some("GPU-aa"), vec![]),
        ] {
            assert_eq!(chosen(accessible, &uuids, variable), expect, "{variable:?}");
        }
    }
}

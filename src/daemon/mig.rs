//! Instances of divided GPUs (MIG): found, never made.

/// The commands that divide a GPU; profiles by name, since their numbers differ between drivers.
pub(crate) fn commands(gpu: usize, model: &str) -> String {
    let cut = if model.contains("A100") {
        "3g.40gb,2g.20gb,1g.10gb"
    } else if model.contains("H200") {
        "3g.71gb,2g.35gb,1g.18gb"
    } else if model.contains("H100") {
        "3g.40gb,2g.20gb,1g.10gb"
    } else if model.contains("RTX PRO 6000") {
        "2g.48gb,1g.24gb,1g.24gb"
    } else {
        return format!("{model} cannot be divided: gshare admin mode {gpu} timeslice");
    };
    format!("sudo nvidia-smi -i {gpu} -mig 1 && sudo nvidia-smi mig -i {gpu} -cgi {cut} -C")
}

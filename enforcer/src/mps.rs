//! NVIDIA's MPS: several programs side by side on one GPU.
//!
//! One control daemon per GPU, with a directory for its sockets and one for its logs, is driven through NVIDIA's own
//! program: a command on its standard input, the reply on its standard output (protocol 2). A daemon outlives the
//! service, whose successor finds it by its directory. [`Watch`] decides, purely, when a daemon is restarted and what
//! its silence or its faults mean. Version 3 of the protocol (named servers and namespaces, r615) could replace
//! [`Control`].

mod access;
mod answer;
mod control;
mod watch;

pub use access::Access;
pub use answer::ServerState;
pub use control::{Control, MpsError};
pub use watch::{Look, MpsEvent, Server, Watch};

use std::path::{Path, PathBuf};

/// Name of NVIDIA's program.
pub const PROGRAM: &str = "nvidia-cuda-mps-control";

/// Finds the control program: as configured, on `PATH`, or where distributions put it.
#[must_use]
pub fn find_program(configured: Option<&Path>) -> Option<PathBuf> {
    if let Some(path) = configured {
        return path.is_file().then(|| path.to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(["/usr/bin".into(), "/usr/sbin".into()]);
    dirs.map(|dir| dir.join(PROGRAM)).find(|p| p.is_file())
}

/// SMs of a client with this thread percentage: whole pairs (TPCs), rounded down. Measured on 188 SMs (25, 50, 75 %
/// gave 46, 94, 140) and on 40 (10 % gave 4); NVIDIA documents only the rounding down.
#[must_use]
pub fn sms_of(all: u32, percentage: f64) -> u32 {
    let pairs = (f64::from(all) * percentage / 200.0 + 1e-9).floor();
    (pairs as u32).saturating_mul(2).min(all)
}

/// The thread percentage for a share of the SMs in thousandths, at least one pair of SMs.
#[must_use]
pub fn percentage_for(share_milli: u32, sms: Option<u32>) -> f64 {
    let wanted = f64::from(share_milli) / 10.0;
    let pair = sms
        .filter(|n| *n >= 2)
        .map_or(0.0, |n| 200.0 / f64::from(n));
    // Up to a hundredth of a percent more, so that rounding does not remove the pair again.
    let least = (pair * 100.0).ceil() / 100.0;
    wanted.max(least).min(100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_never_less_than_a_pair_of_sms() {
        for (milli, sms, percentage, got) in [
            (250, 132, 25.0, 32),
            (500, 132, 50.0, 66),
            (1000, 132, 100.0, 132),
            (1, 132, 1.52, 2),
            (10, 128, 1.57, 2),
            (100, 40, 10.0, 4),
        ] {
            let found = percentage_for(milli, Some(sms));
            assert!((found - percentage).abs() < 1e-9, "{found}");
            assert_eq!(sms_of(sms, found), got, "{milli} of {sms}");
        }
        assert!((percentage_for(1, None) - 0.1).abs() < 1e-9);
    }
}

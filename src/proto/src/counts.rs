//! Numbers of things, in words.

use crate::health::Grade;
use crate::snapshot::{GpuState, GpuView, Snapshot};

pub use gshare_core::units::many;

impl GpuView {
    /// Whether it is an instance of a divided GPU (MIG).
    #[must_use]
    pub fn is_instance(&self) -> bool {
        self.uuid.starts_with("MIG-")
    }
}

impl Snapshot {
    /// Number of GPUs; a divided one counts once.
    #[must_use]
    pub fn whole_gpus(&self) -> usize {
        self.gpus.iter().filter(|g| !g.is_instance()).count()
    }

    /// `2 GPUs`, `1 GPU, 3 MIG instances`.
    #[must_use]
    pub fn gpus_text(&self) -> String {
        let whole = self.whole_gpus();
        match self.gpus.len() - whole {
            0 => many(whole, "GPU"),
            parts => format!("{}, {}", many(whole, "GPU"), many(parts, "MIG instance")),
        }
    }
}

impl GpuView {
    /// Its state in a word.
    #[must_use]
    pub fn condition(&self) -> &'static str {
        let grade = self.health.as_ref().map(|h| h.grade);
        match self.state {
            GpuState::Ok if grade == Some(Grade::Sick) => "sick",
            GpuState::Ok if self.drain.is_some() => "drained",
            GpuState::Ok if grade == Some(Grade::Warned) => "warned",
            GpuState::Ok => "ok",
            GpuState::Lost => "lost",
            GpuState::Hung => "hangs",
            GpuState::Released => "released",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_are_no_gpus() {
        let gpus = |uuids: &[&str]| {
            let gpu = |uuid: &&str| GpuView {
                uuid: (*uuid).to_owned(),
                ..GpuView::default()
            };
            let gpus = uuids.iter().map(gpu).collect();
            Snapshot {
                gpus,
                ..Snapshot::default()
            }
            .gpus_text()
        };
        assert_eq!(gpus(&[]), "0 GPUs");
        assert_eq!(gpus(&["GPU-1"]), "1 GPU");
        assert_eq!(gpus(&["GPU-1", "GPU-2", "MIG-3"]), "2 GPUs, 1 MIG instance");
        assert_eq!(gpus(&["GPU-1", "MIG-2", "MIG-3"]), "1 GPU, 2 MIG instances");
    }
}

//! Dividing GPUs (MIG) as a driver does: the mode, GPU instances at their placements, compute instances in them.

use super::{Board, uuid};
use crate::error::BoardError;
use crate::models::{MigProfile, index_of, profiles};
use crate::state::{Gpu, MAX_GPUS, State};

/// Marks the row of a removed instance, which a new instance may reuse.
const GONE: u64 = u64::MAX;

impl Gpu {
    /// The profile of an instance.
    pub(crate) fn profile(&self) -> Option<&'static MigProfile> {
        let (of, name) = self.model().slug.split_once(':')?;
        profiles(of).find(|p| p.name == name)
    }
}

/// Memory slices taken by the instances of a GPU, as bits.
fn taken(state: &State, gpu: usize) -> u64 {
    let own = state.gpus().iter().filter(|g| g.parent == gpu as u64 + 1);
    own.fold(0, |sum, g| {
        sum | g.profile().map_or(0, |p| p.slices_at(g.start))
    })
}

impl MigProfile {
    /// Possible placements of an instance, as first memory slices of the GPU.
    pub fn starts(&self) -> impl Iterator<Item = u32> {
        // A profile with media engines or graphics has the placements of the same profile without them.
        let size = self.memory_slices;
        let alike = profiles(self.of).filter(move |p| p.memory_slices == size);
        let alike = alike.filter(|p| p.compute_slices == self.compute_slices);
        let places = alike.map(|p| p.most).max().unwrap_or(self.most);
        (0..places).map(move |n| n * size)
    }

    fn slices_at(&self, start: u64) -> u64 {
        ((1 << self.memory_slices) - 1) << start.min(32)
    }

    fn free_start(&self, taken: u64) -> Option<u32> {
        let mut starts = self.starts();
        starts.find(|s| self.slices_at(u64::from(*s)) & taken == 0)
    }
}

/// Places an instance at the first free placement of its profile. Without one it goes behind the existing slices: a
/// board may be made with more instances than fit on a real GPU.
pub(super) fn place(state: &mut State, row: usize) {
    let Some(parent) = state.gpus[row].parent.checked_sub(1) else {
        return;
    };
    state.gpus[row].start = 32;
    let taken = taken(state, parent as usize);
    let start = state.gpus[row].profile().and_then(|p| p.free_start(taken));
    if let Some(start) = start {
        state.gpus[row].start = u64::from(start);
    }
}

impl Board {
    /// Requests MIG mode on or off. The change is pending until no other process has the GPU open. Returns whether it
    /// is in force now.
    ///
    /// # Errors
    /// If the GPU is absent, cannot be divided ([`BoardError::OtherModel`]) or still has instances
    /// ([`BoardError::InUse`]).
    pub fn set_mig_mode(&self, gpu: usize, on: bool) -> Result<bool, BoardError> {
        let other = self.locks.opener(gpu, true);
        self.change(true, |s| {
            s.check_gpu(gpu)?;
            if !s.gpus[gpu].model().mig {
                return Err(BoardError::OtherModel { gpu });
            }
            if !on && taken(s, gpu) != 0 {
                return Err(BoardError::InUse { gpu, pid: 0 });
            }
            let g = &mut s.gpus[gpu];
            let changes = g.mig[0] != u64::from(on);
            g.mig[1] = u64::from(on);
            if changes && other.is_some() {
                return Ok(false);
            }
            g.mig[0] = g.mig[1];
            // Ampere resets the GPU for a mode change.
            if changes && g.model().compute_capability.0 == 8 {
                g.resets += 1;
            }
            Ok(true)
        })
    }

    /// Makes a GPU instance, at the given or the first free placement; returns its row on the board.
    ///
    /// # Errors
    /// [`BoardError::OtherModel`] if the GPU is not divided or lacks the profile, [`BoardError::TooLarge`] if the
    /// placement is taken, [`BoardError::Full`].
    pub fn make_gpu_instance(
        &self,
        gpu: usize,
        profile: u32,
        start: Option<u32>,
    ) -> Result<usize, BoardError> {
        self.change(true, |s| {
            s.check_gpu(gpu)?;
            let slug = s.gpus[gpu].model().slug;
            let profile = profiles(slug).find(|p| p.id == profile);
            let profile = profile.filter(|_| s.gpus[gpu].mig[0] != 0);
            let profile = profile.ok_or(BoardError::OtherModel { gpu })?;
            let taken = taken(s, gpu);
            let own = s.gpus().iter().filter(|g| g.parent == gpu as u64 + 1);
            let same = own.filter(|g| g.profile() == Some(profile)).count();
            let there = s.gpus().iter().filter(|g| g.parent == gpu as u64 + 1);
            let decoders = there.filter_map(Gpu::profile).map(|p| p.decoders);
            let all = profiles(slug).map(|p| p.decoders).max().unwrap_or(0);
            let short = decoders.sum::<u32>() + profile.decoders > all;
            if same >= profile.most as usize || short {
                return Err(BoardError::TooLarge);
            }
            let fits = |at: &u32| {
                profile.starts().any(|s| s == *at) && profile.slices_at(u64::from(*at)) & taken == 0
            };
            let at = match start {
                Some(at) => Some(at).filter(fits),
                None => profile.free_start(taken),
            };
            let at = at.ok_or(BoardError::TooLarge)?;
            let row = (0..s.gpus().len()).find(|r| s.gpus[*r].parent == GONE);
            let row = row.unwrap_or(s.gpus().len());
            if row >= MAX_GPUS {
                return Err(BoardError::Full {
                    what: "rows for GPUs",
                    rows: MAX_GPUS,
                });
            }
            let used = |gi: &u64| {
                let mut own = s.gpus().iter().filter(|g| g.parent == gpu as u64 + 1);
                own.any(|g| g.instance[0] == *gi)
            };
            let gi = (1..).find(|gi| !used(gi)).unwrap_or(1);
            let model = index_of(&format!("{slug}:{}", profile.name));
            let model = model.ok_or(BoardError::OtherModel { gpu })?;
            let mut g = s.gpus[gpu];
            (g.parent, g.instance, g.start) = (gpu as u64 + 1, [gi, 0], u64::from(at));
            (g.model, g.made, g.uuid, g.mig) = (model as u64, 0, [0; 16], [0; 2]);
            (g.busy_ns, g.sm_ns, g.warp_ns) = (0.0, 0.0, 0.0);
            s.head.gpu_count = s.head.gpu_count.max(row as u64 + 1);
            s.gpus[row] = g;
            Ok(row)
        })
    }

    /// Makes the compute instance of a GPU instance. Programs can then use it, under a new UUID.
    ///
    /// # Errors
    /// If the GPU instance does not exist or already has a compute instance.
    pub fn make_compute_instance(&self, row: usize) -> Result<(), BoardError> {
        self.change(true, |s| {
            is_instance(s, row)?;
            if s.gpus[row].made != 0 {
                return Err(BoardError::TooLarge);
            }
            let fresh = s.fresh_id();
            let model = s.gpus[row].model;
            s.gpus[row].uuid = uuid(fresh ^ s.head.now_ns, row as u64, model);
            s.gpus[row].made = 1;
            Ok(())
        })
    }

    /// Removes the compute instance of a GPU instance.
    ///
    /// # Errors
    /// [`BoardError::InUse`] while a program uses it; an error if there is none.
    pub fn remove_compute_instance(&self, row: usize) -> Result<(), BoardError> {
        let user = self.locks.opener(row, false);
        self.change(true, |s| {
            is_instance(s, row)?;
            if s.gpus[row].made == 0 {
                return Err(BoardError::NoSuchGpu { gpu: row });
            }
            let used =
                |u: &&crate::state::Use| u.owner != 0 && u.gpu == row as u64 && u.contexts > 0;
            if let Some(pid) = user.or(s.uses().iter().find(used).map(|_| 0)) {
                return Err(BoardError::InUse { gpu: row, pid });
            }
            (s.gpus[row].made, s.gpus[row].uuid) = (0, [0; 16]);
            Ok(())
        })
    }

    /// Removes a GPU instance.
    ///
    /// # Errors
    /// [`BoardError::InUse`] while it has a compute instance; an error if there is none.
    pub fn remove_gpu_instance(&self, row: usize) -> Result<(), BoardError> {
        self.change(true, |s| {
            is_instance(s, row)?;
            if s.gpus[row].made != 0 {
                return Err(BoardError::InUse { gpu: row, pid: 0 });
            }
            remove(s, row);
            Ok(())
        })
    }

    /// Simulates a restart of the machine: all work, all instances and, except on Ampere, MIG mode are lost. Processes
    /// run on without their GPU.
    pub fn reboot(&self) -> Result<(), BoardError> {
        self.change(true, |s| {
            for row in 0..s.gpus().len() {
                s.cancel(|k| k.gpu == row as u64);
                s.reset_gpu(row);
                if s.gpus[row].parent != 0 {
                    remove(s, row);
                } else {
                    let g = &mut s.gpus[row];
                    g.resets += 1;
                    if g.model().compute_capability.0 != 8 {
                        g.mig = [0; 2];
                    }
                    g.mig[0] = g.mig[1];
                }
            }
            Ok(())
        })?;
        self.store.wake();
        Ok(())
    }
}

fn is_instance(s: &State, row: usize) -> Result<(), BoardError> {
    let g = s.gpus().get(row);
    match g.is_some_and(|g| g.parent != 0 && g.parent != GONE) {
        true => Ok(()),
        false => Err(BoardError::NoSuchGpu { gpu: row }),
    }
}

fn remove(s: &mut State, row: usize) {
    let g = &mut s.gpus[row];
    (g.parent, g.made, g.uuid, g.start) = (GONE, 0, [0; 16], 32);
}

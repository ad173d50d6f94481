//! Costs of the driver, and faults that tests and demonstrations inject.

use super::{Board, Slot};
use crate::error::BoardError;
use crate::presets::{Fault, Preset};
use crate::slots::Opener;
use crate::snapshot::Health;
use crate::state::{Kernel, State, XIDS};

impl Board {
    /// Costs of the driver beyond the work itself.
    #[must_use]
    pub fn preset(&self) -> Preset {
        let mut scratch = self.scratch();
        self.store.load(&mut scratch.state);
        scratch.state.head.preset
    }

    /// Sets costs and faults. Running programs keep the costs that they started with.
    pub fn set_preset(&self, preset: Preset) -> Result<(), BoardError> {
        self.change(false, |s| {
            s.head.preset = preset;
            Ok(())
        })
    }

    /// Takes a GPU off the bus (its kernels fail, Xid 79 is raised), or puts it back.
    ///
    /// # Errors
    /// If the GPU is absent.
    pub fn set_lost(&self, gpu: usize, lost: bool) -> Result<(), BoardError> {
        self.on_gpu(gpu, |s| {
            if lost && s.gpus[gpu].lost == 0 {
                s.cancel(|k: &Kernel| k.gpu == gpu as u64);
                raise(s, gpu, 79);
            }
            s.gpus[gpu].lost = u64::from(lost);
        })?;
        self.store.wake();
        Ok(())
    }

    /// Records that a library of this process has a GPU open, by its device node's number. Lasts until the library
    /// closes the GPU or the process ends.
    pub fn open_gpu(&self, by: Opener, gpu: usize) {
        self.locks.open_gpu(by, gpu);
    }

    /// Undoes [`Board::open_gpu`].
    pub fn close_gpu(&self, by: Opener, gpu: usize) {
        self.locks.close_gpu(by, gpu);
    }

    /// Resets a GPU, as `nvidia-smi --gpu-reset` does: its memory is lost, earlier NVML handles become invalid, and
    /// pending row remappings are done.
    ///
    /// # Errors
    /// If the GPU is absent, or [`BoardError::InUse`] while any process has it open, even if only to read figures.
    pub fn reset(&self, gpu: usize) -> Result<(), BoardError> {
        if let Some(pid) = self.locks.opener(gpu, false) {
            return Err(BoardError::InUse { gpu, pid });
        }
        self.reset_by_force(gpu)
    }

    /// Resets a GPU even if it is in use, as a reset of the bus does: its contexts are lost, too.
    ///
    /// # Errors
    /// If the GPU is absent.
    pub fn reset_by_force(&self, gpu: usize) -> Result<(), BoardError> {
        self.on_gpu(gpu, |s| {
            s.cancel(|k: &Kernel| k.gpu == gpu as u64);
            s.reset_gpu(gpu);
            let g = &mut s.gpus[gpu];
            (g.lost, g.resets) = (0, g.resets + 1);
            let before = Health::of_words(g.health);
            let after = Health {
                remapped_corrected: before.remapped_corrected,
                remapped_uncorrected: before.remapped_uncorrected,
                remap_failed: before.remap_failed,
                ..Health::default()
            };
            g.health = after.to_words();
        })?;
        self.store.wake();
        Ok(())
    }

    /// Raises an Xid event on a GPU.
    ///
    /// # Errors
    /// If the GPU is absent.
    pub fn raise_xid(&self, gpu: usize, code: u64) -> Result<(), BoardError> {
        let gpu = self.gpu_at(gpu);
        self.on_gpu(gpu, |s| raise(s, gpu, code))
    }

    /// Sets what a GPU reports about its memory and clocks.
    ///
    /// # Errors
    /// If the GPU is absent.
    pub fn set_health(&self, gpu: usize, health: Health) -> Result<(), BoardError> {
        self.on_gpu(gpu, |s| s.gpus[gpu].health = health.to_words())
    }

    /// Turns a driver fault on or off.
    pub fn set_fault(&self, fault: Fault, on: bool) -> Result<(), BoardError> {
        self.change(false, |s| {
            let faults = &mut s.head.preset.faults;
            *faults = *faults & !(fault as u64) | if on { fault as u64 } else { 0 };
            Ok(())
        })
    }

    /// Makes this process the MPS server of a GPU.
    ///
    /// # Errors
    /// If the process is not on the board, or the GPU is lost or absent.
    pub fn serve_mps(&self, slot: Slot, gpu: usize) -> Result<(), BoardError> {
        self.change(false, |s| s.serve_mps(slot.id, gpu))
    }

    /// Makes this process a client of the MPS server with this board id, with limits on SMs and bytes (0: no limit).
    ///
    /// # Errors
    /// [`BoardError::Fault`] with the code of `cuInit` if the server accepts no clients now.
    pub fn join_mps(
        &self,
        slot: Slot,
        gpu: usize,
        server: u64,
        sms: u32,
        pinned: u64,
    ) -> Result<(), BoardError> {
        let gpu = self.gpu_at(gpu);
        self.change(true, |s| s.join_mps(slot.id, gpu, server, sms, pinned))
    }

    /// Gives the code of a fault of this process on a GPU to all clients of its MPS server.
    pub fn spread_fault(&self, slot: Slot, gpu: usize, code: u32) -> Result<(), BoardError> {
        let gpu = self.gpu_at(gpu);
        self.change(false, |s| {
            s.spread_fault(slot.id, gpu, code);
            Ok(())
        })?;
        self.store.wake();
        Ok(())
    }

    /// The code of this process's fault on a GPU, if it had one.
    #[must_use]
    pub fn fault_of(&self, slot: Slot, gpu: usize) -> Option<u32> {
        let gpu = self.gpu_at(gpu);
        let found = self.change(true, |s| Ok(s.fault_of(slot.id, gpu)));
        found.ok().flatten()
    }

    /// Ends the work of one client of an MPS server.
    ///
    /// # Errors
    /// [`BoardError::NotRegistered`] if the process is not a client.
    pub fn terminate_mps_client(&self, server: u64, pid: u32) -> Result<(), BoardError> {
        self.change(true, |s| {
            if s.terminate_client(server, u64::from(pid)) {
                Ok(())
            } else {
                Err(BoardError::NotRegistered)
            }
        })?;
        self.store.wake();
        Ok(())
    }

    fn on_gpu(&self, gpu: usize, mut f: impl FnMut(&mut State)) -> Result<(), BoardError> {
        self.change(false, |s| {
            if gpu >= s.gpus().len() {
                return Err(BoardError::NoSuchGpu { gpu });
            }
            f(s);
            Ok(())
        })
    }
}

fn raise(s: &mut State, gpu: usize, code: u64) {
    let at = s.head.now_ns;
    let g = &mut s.gpus[gpu];
    g.xids[(g.xid_count % XIDS as u64) as usize] = [code, at];
    g.xid_count += 1;
}

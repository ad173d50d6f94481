//! Faults that tests and demonstrations inject.

use super::Board;
use crate::error::BoardError;
use crate::state::{Kernel, State, XIDS};

impl Board {
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

    /// Raises an Xid event on a GPU.
    ///
    /// # Errors
    /// If the GPU is absent.
    pub fn raise_xid(&self, gpu: usize, code: u64) -> Result<(), BoardError> {
        self.on_gpu(gpu, |s| raise(s, gpu, code))
    }

    /// Makes NVML calls hang, or lets them go on.
    ///
    /// # Errors
    /// None at present.
    pub fn set_nvml_hang(&self, hang: bool) -> Result<(), BoardError> {
        self.change(false, |s| {
            s.head.nvml_hang = u64::from(hang);
            Ok(())
        })
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

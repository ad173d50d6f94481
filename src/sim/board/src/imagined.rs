//! A board without file, clock or processes: its owner advances the time. For benchmarks of GPU monitoring that
//! simulate more time than they take.

use crate::board::Finished;
use crate::error::BoardError;
use crate::models::{Model, index_of};
use crate::presets::Preset;
use crate::state::{MAX_PROCS, State, Work};
use crate::store::zeroed;

/// A workstation in virtual time.
pub struct ImaginedBoard {
    state: Box<State>,
}

impl std::fmt::Debug for ImaginedBoard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ImaginedBoard")
    }
}

/// Totals of a GPU or one of its processes, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Integrals {
    /// GPU: time with any kernel resident. Process: its share of that time.
    pub busy_ns: f64,
    /// SMs with at least one block, times nanoseconds.
    pub sm_ns: f64,
    /// Resident warps times nanoseconds.
    pub warp_ns: f64,
}

impl ImaginedBoard {
    /// A board with one GPU. `nature` is the seed of effects that the plain model omits (0: none), `preset` the
    /// driver's costs.
    pub fn new(slug: &str, nature: u64, preset: Preset) -> Result<Self, BoardError> {
        let model = index_of(slug).ok_or_else(|| BoardError::UnknownModel {
            slug: slug.to_owned(),
        })?;
        let mut state = zeroed();
        state.gpus[0].model = model as u64;
        state.head.gpu_count = 1;
        state.head.nature = nature;
        state.head.preset = preset;
        Ok(Self { state })
    }

    /// The model of the GPU.
    #[must_use]
    pub fn model(&self) -> &'static Model {
        self.state.gpus[0].model()
    }

    /// Adds a process with a context; returns the ids of both.
    pub fn add_process(&mut self) -> Result<(u64, u64), BoardError> {
        let slot = (0..MAX_PROCS).find(|slot| {
            let row = self.state.procs().get(*slot);
            row.is_none_or(|p| p.id == 0)
        });
        let slot = slot.ok_or(BoardError::Full {
            what: "rows for processes",
            rows: MAX_PROCS,
        })?;
        let id = self.state.add_process(slot, slot as u64, 0, 0, "imagined");
        let context = self.state.add_context(id, 0)?;
        Ok((id, context))
    }

    /// Makes a process the MPS server of the GPU.
    pub fn serve_mps(&mut self, process: u64) -> Result<(), BoardError> {
        self.state.serve_mps(process, 0)
    }

    /// Makes a process a client of a server, with this many SMs.
    ///
    /// # Errors
    /// If it is not on the board, or the server does not exist.
    pub fn join_mps(&mut self, process: u64, server: u64, sms: u32) -> Result<(), BoardError> {
        self.state.join_mps(process, 0, server, sms, 0)
    }

    /// Queues work; returns its ticket.
    ///
    /// # Errors
    /// If there is no room, or the kernel does not fit.
    pub fn submit(&mut self, process: u64, work: &Work) -> Result<u64, BoardError> {
        self.state.submit(process, work)
    }

    /// Advances the board to this time in nanoseconds.
    pub fn advance(&mut self, to_ns: u64) {
        self.state.advance(to_ns);
    }

    /// The work of a process that has finished since the last call.
    pub fn collect(&mut self, process: u64) -> Vec<Finished> {
        let over = self.state.collect(process).into_iter();
        over.map(|(ticket, start_ns, end_ns)| Finished {
            ticket,
            start_ns,
            end_ns,
        })
        .collect()
    }

    #[must_use]
    pub fn gpu(&self) -> Integrals {
        let g = &self.state.gpus[0];
        Integrals {
            busy_ns: g.busy_ns,
            sm_ns: g.sm_ns,
            warp_ns: g.warp_ns,
        }
    }

    #[must_use]
    pub fn process(&self, process: u64) -> Integrals {
        let row = self.state.uses().iter().find(|u| u.owner == process);
        row.map_or_else(Integrals::default, |u| Integrals {
            busy_ns: u.busy_ns,
            sm_ns: u.sm_ns,
            warp_ns: u.warp_ns,
        })
    }
}

//! Which program used the GPU. On a simulated GPU the board counts, independent of the gate and the programs. On a real
//! one the kernels count that each program has seen finish, each with its duration alone.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use gshare_sim_board::Board;

use crate::station::Station;

/// A reading of all claims' use.
#[derive(Clone, Debug, Default)]
pub(in crate::bench) struct Look {
    pub(in crate::bench) now_ns: u64,
    /// GPU time of each claim in nanoseconds.
    pub(in crate::bench) used: Vec<u64>,
    /// Work done: nanoseconds of kernels and copies, each with its duration alone.
    pub(in crate::bench) done: u64,
}

impl Look {
    /// The reading at a time between this one and a later one: the GPU's time divided as between these.
    pub(super) fn until(&self, now_ns: u64, later: &Look) -> Look {
        let all_ns = later.now_ns.saturating_sub(self.now_ns).max(1) as f64;
        let part = now_ns.saturating_sub(self.now_ns) as f64 / all_ns;
        let until =
            |from: u64, to: u64| from + (to.saturating_sub(from) as f64 * part).round() as u64;
        let used = self.used.iter().zip(&later.used);
        Look {
            now_ns,
            used: used.map(|(from, to)| until(*from, *to)).collect(),
            done: until(self.done, later.done),
        }
    }
}

/// Source of the readings.
#[derive(Debug)]
pub(in crate::bench) enum Account {
    Board {
        board: Board,
        copies_ns_per_mib: u64,
    },
    Counts {
        began: Instant,
        kernel_ns: u64,
        files: Vec<File>,
    },
}

/// The file in which a claim's program counts its kernels on a real GPU.
pub(in crate::bench) fn count_file(station: &Station, claim: usize) -> PathBuf {
    station.dir().join(format!("count-{claim}"))
}

impl Account {
    /// Opens the account of a mix. `kernel_ns` is the duration of one of its kernels alone, `rate` the copy rate of the
    /// simulated GPU in bytes per second.
    pub(in crate::bench) fn open(
        station: &Station,
        is_real: bool,
        claims: usize,
        kernel_ns: u64,
        rate: u64,
    ) -> anyhow::Result<Self> {
        if !is_real {
            return Ok(Self::Board {
                board: Board::open(&station.sim_dir().join("board"))?,
                copies_ns_per_mib: (1 << 20) * 1_000_000_000 / rate.max(1),
            });
        }
        let open = |claim: usize| {
            let path = count_file(station, claim);
            File::open(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        Ok(Self::Counts {
            began: Instant::now(),
            kernel_ns,
            files: (0..claims).map(open).collect::<anyhow::Result<_>>()?,
        })
    }

    /// One reading; `children` are the processes with their claims.
    pub(in crate::bench) fn look(&self, children: &[(usize, u32)], claims: usize) -> Look {
        match self {
            Self::Board {
                board,
                copies_ns_per_mib,
            } => {
                let snapshot = board.snapshot();
                let mut look = Look {
                    now_ns: snapshot.now_ns,
                    used: vec![0; claims],
                    done: 0,
                };
                for process in snapshot.gpus.iter().flat_map(|g| &g.processes) {
                    if let Some((claim, _)) = children.iter().find(|(_, pid)| *pid == process.pid) {
                        look.used[*claim] += process.work_ns;
                        look.done +=
                            process.busy_ns + (process.copied_bytes >> 20) * copies_ns_per_mib;
                    }
                }
                look
            }
            Self::Counts {
                began,
                kernel_ns,
                files,
            } => {
                let count = |file: &File| {
                    let mut bytes = [0; 8];
                    file.read_exact_at(&mut bytes, 0)
                        .map_or(0, |()| u64::from_le_bytes(bytes))
                };
                let used: Vec<u64> = files
                    .iter()
                    .map(|f| count(f).saturating_mul(*kernel_ns))
                    .collect();
                Look {
                    now_ns: began.elapsed().as_nanos() as u64,
                    done: used.iter().sum(),
                    used,
                }
            }
        }
    }

    /// Whether each of these processes has started working.
    pub(in crate::bench) fn all_run(&self, children: &[(usize, u32)], claims: usize) -> bool {
        match self {
            Self::Board { board, .. } => {
                let snapshot = board.snapshot();
                let launched = |pid: u32| {
                    let mut all = snapshot.gpus.iter().flat_map(|g| &g.processes);
                    all.any(|p| p.pid == pid && p.launched > 0)
                };
                children.iter().all(|(_, pid)| launched(*pid))
            }
            Self::Counts { .. } => self.look(children, claims).used.iter().all(|n| *n > 0),
        }
    }
}

/// Creates an empty counter file for a program.
pub(in crate::bench) fn new_count(path: &Path) -> anyhow::Result<()> {
    std::fs::write(path, 0u64.to_le_bytes())
        .with_context(|| format!("cannot write {}", path.display()))
}

//! Finding claims again after the service died or was restarted: from the journal, the cgroup tree, the
//! limits files and the pages that live on in the members.

use std::sync::Arc;
use std::time::Duration;

use gshare_abi::GpuUuid;
use gshare_abi::host::{LimitsFile, UsageMemfd};
use gshare_core::machine::Event;
use gshare_core::{Bytes, ClaimId, Share, Slice};
use gshare_enforcer::cgroup::ClaimTree;
use gshare_enforcer::proc::{self, PidFd, ProcessKey};

use super::journal::ClaimRecord;
use super::service::{Ending, Live, Seat, Service};
use super::{convert, unix_ms};

/// Identifies the run of the kernel: after a reboot no process of an old claim lives.
fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .unwrap_or_default()
        .trim()
        .to_owned()
}

impl Service {
    /// Restores every journaled claim.
    pub(crate) fn find_claims_again(&mut self) -> anyhow::Result<()> {
        let (records, damaged) = self.journal.claims()?;
        if damaged > 0 {
            tracing::error!("{damaged} claims in the journal are damaged and were left out");
        }
        let boot = boot_id();
        let rebooted = self.journal.meta("boot")?.is_some_and(|b| b != boot);
        self.journal.set_meta("boot", &boot)?;
        for record in records {
            if rebooted {
                self.journal
                    .end(&record, unix_ms(), "the machine was restarted", None, None)?;
            } else {
                self.restore(record)?;
            }
        }
        self.keep_orphans();
        Ok(())
    }

    fn restore(&mut self, record: ClaimRecord) -> anyhow::Result<()> {
        let id = ClaimId(record.id);
        let slices = self.restored_slices(&record);
        let mut live = Live::new(record);
        live.cgroup = self
            .tree
            .as_ref()
            .map(|t| {
                t.create(gshare_enforcer::cgroup::ClaimPlace {
                    uid: live.record.uid,
                    claim: id.0,
                })
            })
            .transpose()?;
        let members = members_of(&live);
        for slice in &slices {
            live.seats
                .push(self.restored_seat(id, &live.record, slice, &members)?);
        }
        if let (Some(filters), Some(cgroup)) = (&mut self.filters, &live.cgroup) {
            let minors: Vec<u32> = slices
                .iter()
                .filter_map(|s| self.gpus[s.gpu].minor)
                .collect();
            filters.set(
                cgroup,
                &gshare_enforcer::device::DeviceRules::gpus(self.majors.clone(), minors),
            )?;
        }
        let command = live.record.process.map(convert::key);
        let mut watched = Vec::new();
        for process in members.into_iter().chain(command) {
            let fd = PidFd::open(process.pid)
                .ok()
                .flatten()
                .filter(|_| proc::key(process.pid) == Some(process));
            let Some(fd) = fd.filter(|fd| !fd.has_exited()) else {
                continue;
            };
            live.command_alive |= Some(process) == command;
            let seated = live.seats.iter().any(|s| {
                s.usage.owners().any(|(_, pid, start)| {
                    pid.cast_signed() == process.pid && start == process.start_ticks
                })
            });
            let fd = Arc::new(fd);
            if seated {
                live.members.insert(process, Arc::clone(&fd));
            }
            if !watched.iter().any(|(p, _)| *p == process) {
                watched.push((process, fd));
            }
        }
        reclaim_dead(&mut live);
        if !live.command_alive && !live.record.hold {
            live.ending = Some(Ending {
                cause: "command exited".to_owned(),
                kill_at: None,
            });
        }
        let ends = live
            .record
            .ends_ms
            .map(|ms| self.now() + Duration::from_millis(ms.saturating_sub(unix_ms())));
        self.claims.insert(id, live);
        for (process, fd) in watched {
            self.watch_exit(id, process, fd);
        }
        self.drive(Event::Restore { id, slices, ends });
        Ok(())
    }

    fn restored_slices(&self, record: &ClaimRecord) -> Vec<Slice> {
        let slice = |s: &super::journal::SliceRecord| {
            let Some(gpu) = self.gpu_index(&s.uuid) else {
                tracing::error!(
                    "claim c{} holds a part of {}, which is not here any more",
                    record.id,
                    s.uuid
                );
                return None;
            };
            Some(Slice {
                gpu,
                mem: Bytes(s.mem),
                mem_limit: Bytes(s.mem_limit),
                mem_cap: Bytes(s.mem),
                charge: Bytes::ZERO,
                sm: Share::from_milli(s.sm_milli),
                sm_limit: Share::from_milli(s.sm_limit_milli),
            })
        };
        record.slices.iter().filter_map(slice).collect()
    }

    /// The limits file is found by its path, the usage page in a member. What is missing is made anew:
    /// the changed epoch makes members register again.
    fn restored_seat(
        &self,
        id: ClaimId,
        record: &ClaimRecord,
        slice: &Slice,
        members: &[ProcessKey],
    ) -> anyhow::Result<Seat> {
        let uuid = &self.gpus[slice.gpu].uuid;
        let token = record
            .slices
            .iter()
            .find(|s| &s.uuid == uuid)
            .map_or(0, |s| s.token);
        let gpu_uuid: GpuUuid = uuid.parse().map_err(|e| anyhow::anyhow!("{e:?}"))?;
        let path = self.limits_path(id, slice.gpu);
        let limits = LimitsFile::open(&path).ok().filter(|l| {
            l.page().claim() == id.0 && l.page().token() == token && l.page().uuid() == gpu_uuid
        });
        let limits = match limits {
            Some(limits) => limits,
            None => {
                let _ = std::fs::remove_file(&path);
                LimitsFile::create(&path, &self.limits_init(id, slice, token)?)?
            }
        };
        let found = members
            .iter()
            .filter_map(|m| {
                UsageMemfd::find(m.pid.cast_unsigned(), id.0, gpu_uuid, token)
                    .ok()
                    .flatten()
            })
            .next();
        let usage = match found {
            Some(usage) => usage,
            None => UsageMemfd::create(id.0, gpu_uuid, token)?,
        };
        limits.set_epoch(self.epoch);
        Ok(Seat {
            gpu: slice.gpu,
            limits,
            usage,
        })
    }

    /// Cgroups without a journaled claim: their processes live on, without a GPU.
    fn keep_orphans(&mut self) {
        let Some(tree) = &self.tree else { return };
        let found = match tree.claims() {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%error, "the tree of claims cannot be listed");
                return;
            }
        };
        let orphans: Vec<_> = found
            .into_iter()
            .filter(|c| !self.claims.contains_key(&ClaimId(c.place().claim)))
            .collect();
        for cgroup in orphans {
            if self
                .tree
                .as_ref()
                .is_some_and(|t| t.remove(&cgroup).is_ok())
            {
                continue;
            }
            let rules = self.rules([]);
            if let Some(filters) = &mut self.filters
                && let Err(error) = filters.set(&cgroup, &rules)
            {
                tracing::error!(%error, "the filter of a cgroup without a claim could not be closed");
            }
            self.lingering.push(cgroup);
        }
    }
}

/// Processes that may have the claim's pages: those in its cgroup; without cgroups, the command, those
/// that joined, and their descendants.
fn members_of(live: &Live) -> Vec<ProcessKey> {
    if let Some(cgroup) = &live.cgroup {
        return cgroup
            .procs()
            .unwrap_or_default()
            .into_iter()
            .filter_map(proc::key)
            .collect();
    }
    let roots: Vec<ProcessKey> = live
        .record
        .process
        .iter()
        .chain(&live.record.joined)
        .map(|r| convert::key(*r))
        .collect();
    let marker = format!("GSHARE_CLAIM_ID={}", live.record.id);
    let pids = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| proc::uids(*pid).is_some_and(|u| u.effective == live.record.uid))
        .filter(|pid| {
            proc::ancestors(*pid)
                .iter()
                .any(|s| roots.contains(&s.key()))
                || proc::environ(*pid)
                    .unwrap_or_default()
                    .iter()
                    .any(|v| *v == *marker)
        })
        .filter_map(proc::key)
        .collect()
}

/// Whether a process still runs: a zombie does not, and its memory is gone.
fn alive(pid: i32, start_ticks: u64) -> bool {
    proc::stat(pid).is_some_and(|s| s.start_ticks == start_ticks && !matches!(s.state, 'Z' | 'X'))
}

/// Gives back the bytes of members that died while no service looked.
fn reclaim_dead(live: &mut Live) {
    for seat in &mut live.seats {
        let dead: Vec<_> = seat
            .usage
            .owners()
            .filter(|(_, pid, start)| !alive(pid.cast_signed(), *start))
            .map(|(assigned, ..)| assigned)
            .collect();
        for assigned in dead {
            seat.usage.reclaim(assigned.slot, assigned.generation);
        }
    }
}

//! Clients of an MPS server: they run side by side on partitions of SMs and share their faults.

use super::State;
use crate::error::BoardError;
use crate::models::MIB;

/// Device memory of a server in bytes (30 to 60 MiB were observed).
const SERVER_BYTES: u64 = 30 * MIB;
/// `CUDA_ERROR_MPS_RPC_FAILURE`: the code for clients of a dead server.
const RPC_FAILURE: u32 = 806;
/// `CUDA_ERROR_MPS_CLIENT_TERMINATED`.
const TERMINATED: u32 = 810;
/// Code for a process whose context was lost to a reset. The real driver's code was not observed.
const CONTEXT_DESTROYED: u32 = 709;
/// `CUDA_ERROR_MPS_SERVER_NOT_READY`.
const NOT_READY: u32 = 807;

impl State {
    /// Makes a process the MPS server of a GPU.
    pub(crate) fn serve_mps(&mut self, owner: u64, gpu: usize) -> Result<(), BoardError> {
        let row = self.use_row(owner, gpu)?;
        row.mps = owner;
        row.contexts = 1;
        row.context_bytes = SERVER_BYTES;
        Ok(())
    }

    /// Makes a process a client of a server, with limits on SMs and bytes (0: no limit).
    pub(crate) fn join_mps(
        &mut self,
        owner: u64,
        gpu: usize,
        server: u64,
        sms: u32,
        pinned: u64,
    ) -> Result<(), BoardError> {
        let on = |u: &&super::Use| u.owner == server && u.mps == server && u.gpu == gpu as u64;
        match self.uses().iter().find(on) {
            None => return Err(BoardError::Fault { code: RPC_FAILURE }),
            Some(u) if u.fault != 0 => return Err(BoardError::Fault { code: NOT_READY }),
            Some(_) => {}
        }
        let row = self.use_row(owner, gpu)?;
        row.mps = server;
        row.sms = u64::from(sms);
        row.pinned = pinned;
        Ok(())
    }

    /// The code of a process's fault on a GPU.
    pub(crate) fn fault_of(&self, owner: u64, gpu: usize) -> Option<u32> {
        let row = self
            .uses()
            .iter()
            .find(|u| u.owner == owner && u.gpu == gpu as u64)?;
        (row.fault != 0).then_some(row.fault as u32)
    }

    /// A client's fault hits all clients of its server. The server accepts no new clients until these are gone.
    pub(crate) fn spread_fault(&mut self, owner: u64, gpu: usize, code: u32) {
        let own = |u: &&super::Use| u.owner == owner && u.gpu == gpu as u64;
        let Some(server) = self.uses().iter().find(own).map(|u| u.mps) else {
            return;
        };
        if server != 0 {
            self.fault_where(code, |u| u.mps == server && u.gpu == gpu as u64);
        }
    }

    /// Ends the work of one client; false if the process is not a client.
    pub(crate) fn terminate_client(&mut self, server: u64, pid: u64) -> bool {
        let Some(id) = self.procs().iter().find(|p| p.id != 0 && p.pid == pid) else {
            return false;
        };
        let id = id.id;
        let known = self
            .uses()
            .iter()
            .any(|u| u.owner == id && u.mps == server && u.is_mps_client());
        if known {
            self.fault_where(TERMINATED, |u| u.owner == id && u.mps == server);
        }
        known
    }

    /// Effects of a process's end: the clients of a dead server fail; after its last faulted client a server is healthy
    /// again.
    pub(crate) fn end_mps(&mut self, id: u64) {
        self.fault_where(RPC_FAILURE, |u| u.mps == id && u.owner != id);
        for i in 0..self.uses().len() {
            let u = &self.uses()[i];
            if u.owner == 0 || u.fault == 0 || u.mps != u.owner {
                continue;
            }
            let (server, gpu) = (u.owner, u.gpu);
            let ill = |u: &super::Use| {
                u.owner != 0
                    && u.owner != id
                    && u.is_mps_client()
                    && u.mps == server
                    && u.gpu == gpu
                    && u.fault != 0
            };
            if !self.uses().iter().any(ill) {
                self.uses_mut()[i].fault = 0;
            }
        }
    }

    /// Removes everything that processes have on a GPU: memory, contexts, work. Every later call of an affected process
    /// returns the code.
    pub(crate) fn reset_gpu(&mut self, gpu: usize) {
        self.fault_where(CONTEXT_DESTROYED, |u| u.gpu == gpu as u64);
        for u in self.uses_mut().iter_mut().filter(|u| u.gpu == gpu as u64) {
            u.bytes = [0; 5];
            (u.contexts, u.context_bytes) = (0, 0);
        }
    }

    fn fault_where(&mut self, code: u32, which: impl Fn(&super::Use) -> bool) {
        let mut hit = Vec::new();
        for u in self.uses_mut() {
            if u.owner != 0 && u.fault == 0 && which(u) {
                u.fault = u64::from(code);
                hit.push((u.owner, u.gpu));
            }
        }
        self.cancel(|k| hit.contains(&(k.owner, k.gpu)));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::state;
    use super::*;
    use crate::state::MemoryKind;

    /// A server and two clients of 32 and 66 SMs on an H100.
    fn served() -> (Box<State>, u64, u64, u64) {
        let (mut s, server) = state(&["h100"]);
        let a = s.add_process(1, 101, 1, 1, "a");
        let b = s.add_process(2, 102, 2, 1, "b");
        s.serve_mps(server, 0).expect("server");
        s.join_mps(a, 0, server, 32, 64 * MIB).expect("a");
        s.join_mps(b, 0, server, 66, 0).expect("b");
        (s, server, a, b)
    }

    #[test]
    fn a_fault_hits_all_clients_and_the_server_is_well_when_they_are_gone() {
        let (mut s, server, a, b) = served();
        s.spread_fault(a, 0, 700);
        assert_eq!((s.fault_of(a, 0), s.fault_of(b, 0)), (Some(700), Some(700)));
        assert!(matches!(
            s.reserve(b, 0, MemoryKind::Device, 1),
            Err(BoardError::Fault { code: 700 })
        ));
        let c = s.add_process(3, 103, 1, 1, "c");
        let refused = s.join_mps(c, 0, server, 2, 0);
        assert!(matches!(
            refused,
            Err(BoardError::Fault { code: NOT_READY })
        ));
        s.remove_process(1);
        assert_eq!(s.fault_of(server, 0), Some(700), "one is left");
        s.remove_process(2);
        assert_eq!(s.fault_of(server, 0), None);
        s.join_mps(c, 0, server, 2, 0).expect("it is well again");
    }

    #[test]
    fn clients_are_lost_with_their_server_and_one_can_be_ended_alone() {
        let (mut s, server, a, b) = served();
        assert!(s.terminate_client(server, 101));
        assert!(!s.terminate_client(server, 100), "the server is no client");
        assert_eq!(
            (s.fault_of(a, 0), s.fault_of(b, 0)),
            (Some(TERMINATED), None)
        );
        s.remove_process(0);
        assert_eq!(s.fault_of(b, 0), Some(RPC_FAILURE));
        let late = s.add_process(3, 103, 1, 1, "c");
        assert!(s.join_mps(late, 0, server, 2, 0).is_err());
    }

    #[test]
    fn the_pinned_limit_holds_one_client() {
        let (mut s, _, a, b) = served();
        s.reserve(a, 0, MemoryKind::Device, 60 * MIB)
            .expect("below");
        let over = s.reserve(a, 0, MemoryKind::Pool, 6 * MIB);
        assert!(
            matches!(over, Err(BoardError::OutOfMemory { .. })),
            "{over:?}"
        );
        s.reserve(b, 0, MemoryKind::Device, 200 * MIB)
            .expect("another's");
    }
}

//! A program without a claim that takes memory which claims are guaranteed: from stage 3 on both owners are told of each other.

use gshare_config::Stage;
use gshare_core::{Bytes, ClaimId, GpuFacts};
use gshare_enforcer::proc;

use super::super::live::Live;
use super::super::outside::AutoClaim;
use super::super::service::Service;
use crate::figures;

/// A claim, its owner, and what it is guaranteed on the GPU.
type Short = (ClaimId, u32, Bytes);

impl Service {
    /// Names the largest of such programs, once.
    pub(super) fn name_takers(&mut self) {
        for gpu in 0..self.gpus.len() {
            let short = self.short_of_memory(gpu);
            let taken = |(id, auto): (&ClaimId, &AutoClaim)| {
                let bytes = auto.uses.get(&gpu)?.bytes.filter(|b| *b > 0)?;
                Some((Bytes(bytes), *id, auto.named))
            };
            let most = self.policy.auto.iter().filter_map(taken).max();
            if let (Some((bytes, taker, false)), false) = (most, short.is_empty()) {
                self.name_taker(taker, gpu, bytes, &short);
            }
        }
    }

    /// The claims on a GPU, where what they are guaranteed together is not there any more.
    fn short_of_memory(&self, gpu: usize) -> Vec<Short> {
        let ledger = self.core.ledger();
        // What claims have above their limits is not for these programs to answer.
        let unclaimed = Bytes(self.gpus[gpu].unclaimed);
        let there = ledger.gpus().get(gpu).and_then(|facts| {
            let facts = GpuFacts {
                unclaimed,
                ..facts.clone()
            };
            facts.allocatable()
        });
        if there.is_none_or(|there| ledger.mem_requested(gpu) <= there) {
            return Vec::new();
        }
        let short = |(id, live): (&ClaimId, &Live)| {
            let slices = ledger
                .slices(*id)
                .filter(|_| live.record.stage >= Stage::Reclaim)?;
            let slice = slices.iter().find(|s| s.gpu == gpu && s.charge < s.mem)?;
            Some((*id, live.record.uid, slice.mem))
        };
        self.claims.iter().filter_map(short).collect()
    }

    fn name_taker(&mut self, taker: ClaimId, gpu: usize, bytes: Bytes, short: &[Short]) {
        let Some(auto) = self.policy.auto.get_mut(&taker) else {
            return;
        };
        auto.named = true;
        let (pid, uid) = (auto.pid(), auto.uid());
        let command = figures::program(&auto.record().command);
        let program = command.first().map_or("a program", |c| c.as_str());
        let user = self.host.names.user(uid);
        let what =
            format!("{program} ({pid}) of {user} has no claim and uses {bytes} of GPU {gpu}");
        let mut others = Vec::new();
        for (id, owner, mem) in short {
            let text = format!(
                "{what}: {id} may not get all of its {mem}. Ask {user} to use gshare adopt {pid}"
            );
            self.tell_owner(*id, &text);
            others.push(format!("{id} of {}", self.host.names.user(*owner)));
        }
        let line = format!(
            "gshare: {what}, which {} may need: they are guaranteed it. To make it a claim: gshare adopt {pid}",
            others.join(", ")
        );
        let terminal = proc::terminal(pid, uid);
        if let Some(Err(error)) = terminal.map(|terminal| terminal.say(&line)) {
            tracing::debug!(pid, %error, "cannot write to the terminal of a program without a claim");
        }
    }
}

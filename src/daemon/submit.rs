//! A request for a claim, up to where the core decides.

use super::connection::Sender;
use super::convert;
use super::peer::Peer;
use super::service::{Asked, Service};

impl Service {
    /// Takes a request; the answer comes when it is decided.
    pub(crate) fn submit(&mut self, peer: Peer, spec: gshare_proto::ClaimSpec, out: Sender) {
        if let Some(answer) = self.joins_behalf(&peer) {
            match answer {
                Ok(reply) => out.reply(&reply),
                Err(error) => out.error(error),
            }
            return;
        }
        if self.ask_size(&peer, &spec, &out) {
            return;
        }
        // A client that lost its connection while the service restarted asks again: same process, same claim.
        // One that asks for something else (a claim within a claim) is a new claim.
        let asked = convert::request(&self.world(), &self.names, &peer, &spec);
        let (request, patience, mut record) = match asked {
            Ok(asked) => asked,
            Err(error) => {
                out.error(error);
                return;
            }
        };
        // Root of a container has no claims here, not even one that moves nothing.
        let contained = peer
            .process
            .filter(|_| peer.uid == 0 && !peer.on_machine)
            .map(convert::record);
        // No program of theirs is moved or started by gshare.
        let observed = self.observes(peer.uid);
        if let Some(process) = record.process.or(contained).filter(|_| !observed)
            && let Err(error) = self.may_leave(process.pid, peer.uid)
        {
            out.error(error);
            return;
        }
        let known = self.claims.iter().find(|(_, live)| {
            live.command_alive && live.ending.is_none() && live.record.asks_as(&record)
        });
        if let Some((id, _)) = known {
            let id = *id;
            // The service may have died between the journal and the move.
            match self.adopt_again(id, &peer) {
                Ok(()) => out.reply(&self.granted(id, Vec::new())),
                Err(error) => out.error(error),
            }
            return;
        }
        if self.kernel_again(&peer, &spec, &out) {
            return;
        }
        let may = match (observed, spec.no_library) {
            (true, _) => Ok(()),
            (false, true) => self.may_go_without_library(&request),
            (false, false) => self.may_launch(&peer),
        };
        if let Err(error) = may.and_then(|()| self.room_for(&peer)) {
            out.error(error);
            return;
        }
        let (id, since_ms) = self.number_of(&record);
        record.id = id.0;
        if spec.lazy && !observed {
            self.lay_by(id, &peer, spec, record, &out);
            return;
        }
        let asked = Asked {
            peer,
            out,
            record,
            since_ms,
            request,
            told: false,
        };
        self.put_before_core(id, asked, patience);
    }
}

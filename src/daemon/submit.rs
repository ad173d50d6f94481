//! A request for a claim, up to where the core decides.

use gshare_proto::{ClaimSpec, ErrorCode, WireError};

use super::command::Command;
use super::connection::{Sender, Turn};
use super::history::worker::Told;
use super::msg::Msg;
use super::peer::Peer;
use super::service::{Asked, Service};
use super::{claim_for, convert, grant, stage};

impl Service {
    /// Takes a request; the answer comes when it is decided.
    pub(crate) fn submit(&mut self, peer: Peer, spec: ClaimSpec, out: Sender, turn: Turn) {
        if let Some(answer) = claim_for::joins_behalf(&self.world(), &peer) {
            match answer {
                Ok(reply) => out.reply(&reply),
                Err(error) => out.error(error),
            }
            return;
        }
        if spec.auto && spec.mem.is_none() {
            let sized = (self.sizes).ask(&self.config, &self.history, peer, spec, out, turn);
            let sized = sized.map(|sized| Msg::History(Told::Sized(sized)));
            return sized.into_iter().for_each(|msg| self.handle(msg));
        }
        // A client that lost its connection while the service restarted asks again: same process, same claim.
        // One that asks for something else (a claim within a claim) is a new claim.
        let asked = convert::request(&self.world(), &peer, &spec);
        let (mut request, patience, mut record) = match asked {
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
        let observed = stage::observes(&self.world(), peer.uid);
        if let Some(process) = record.process.or(contained).filter(|_| !observed)
            && let Err(error) = self.host.fences.may_leave(process.pid, peer.uid)
        {
            out.error(error);
            return;
        }
        // Nobody's command ends it.
        if spec.hold && spec.command.is_empty() && !spec.lazy && !observed {
            request.lease = request.lease.or(self.config.claims.held_limit);
        }
        let known = self.claims.iter().find(|(_, live)| {
            live.command_alive && live.ending.is_none() && live.record.asks_as(&record)
        });
        if let Some((id, _)) = known {
            let id = *id;
            // The service may have died between the journal and the move.
            match self.claims.adopt_again(id, &peer) {
                Ok(()) => out.reply(&grant::granted(&self.world(), id)),
                Err(error) => out.error(error),
            }
            return;
        }
        if self.kernel_again(&peer, &spec, &out) {
            return;
        }
        let may = match (observed, spec.no_library) {
            (true, _) => Ok(()),
            (false, true) if !self.config.claims.no_library => Err(WireError::new(
                ErrorCode::NotPermitted,
                "--no-library is forbidden here (no-library in [claims])",
            )),
            (false, true) => self.host.driver.strict.may_go_without_library(&request),
            (false, false) => self.host.driver.strict.may_launch(&peer),
        };
        if let Err(error) = may.and_then(|()| self.claims.room_for(&peer)) {
            out.error(error);
            return;
        }
        let (id, since_ms) = (self.claims).number_of(&self.core, &mut self.journal, &record);
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
        self.execute(vec![Command::Ask(id, Box::new(asked), patience)]);
    }
}

//! For the report: what sharing would have meant for runs without limits. A replay takes seconds if many would have
//! waited, so it has its own thread.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::thread;

use gshare_proto::history::ReportView;
use gshare_proto::{ErrorCode, Reply, WireError};
use rusqlite::Connection;

use super::answer::Place;
use super::store::{Store, kind};
use super::sum::Sum;
use crate::daemon::connection::{Sender, Turn};
use crate::daemon::journal::{self, ClaimRecord};
use crate::daemon::names::Names;
use crate::daemon::played::{self, Machine, Run};

/// Shorter times are not replayed.
const DAY_S: f64 = 86_400.0;

/// Mean fraction of its GPUs that a claim used: SM activity or GPU time, whichever is larger.
fn used(sum: &Sum) -> Option<f64> {
    let part = |used: Option<f64>, seconds: f64| used.map(|u| u / seconds);
    let sms = part(sum.used, sum.used_s).filter(|_| sum.used_s > 0.0);
    let busy = part(sum.busy, sum.looked).filter(|_| sum.looked > 0.0);
    sms.into_iter().chain(busy).max_by(f64::total_cmp)
}

/// Replays runs for a report and answers it. One at a time, so that queries use one processor at most.
pub(crate) fn answer(
    mut view: ReportView,
    (mut runs, machine): (Vec<Run>, Machine),
    shown: impl Fn(&Run) -> bool + Send + 'static,
    names: Names,
    out: &Sender,
    turn: Turn,
) {
    static ONE: Mutex<()> = Mutex::new(());
    let reply = out.clone();
    let play = move || {
        gshare_abi::host::Priority::Background.take();
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let name = |uid| names.user(uid);
        view.sharing = Some(played::sharing(&mut runs, machine, shown, name));
        drop(one);
        reply.reply(&Reply::Report(Box::new(view)));
        drop(turn);
    };
    if let Err(error) = thread::Builder::new().name("played".to_owned()).spawn(play) {
        let text = format!("the runs of the report cannot be simulated: {error}");
        out.error(WireError::new(ErrorCode::Internal, text));
    }
}

impl Store {
    /// The runs to replay for a report, if any program or claim ran without limits. Otherwise the report says why
    /// there is no replay.
    pub(crate) fn to_be_played(
        &self,
        journal: &Connection,
        place: &Place,
        view: &mut ReportView,
    ) -> rusqlite::Result<Option<(Vec<Run>, Machine)>> {
        let (from_ms, to_ms) = (view.from_ms, view.to_ms);
        let running = journal::running(journal)?.into_iter().map(|record| {
            let peaks = place.played.as_ref().map(|played| &played.1);
            let peak = peaks.and_then(|peaks| peaks.get(&record.id)).copied();
            let peak = peak.unwrap_or(0);
            (record, to_ms, peak)
        });
        let ended = journal::ended_since(journal, from_ms)?;
        let mut records: Vec<(ClaimRecord, u64, u64)> = ended.into_iter().chain(running).collect();
        // A run without GPU memory needs none.
        records.retain(|(record, _, peak)| *peak > 0 && record.granted_ms < to_ms);
        if !records
            .iter()
            .any(|(r, ..)| r.origin.uncapped || r.is_observed())
        {
            return Ok(None);
        }
        if view.known_s < DAY_S {
            view.not_played = Some("there is less than a day of records".to_owned());
            return Ok(None);
        }
        let Some(machine) = place.played.as_ref().map(|played| played.0) else {
            view.not_played = Some(
                "the machine has MIG instances, which differ in size, so the runs cannot be \
                simulated"
                    .to_owned(),
            );
            return Ok(None);
        };
        let (mut uses, mut gpus) = (self.of_claims(from_ms, to_ms)?, self.gpus_of_claims()?);
        let run = |(record, ended_ms, peak): (ClaimRecord, u64, u64)| {
            let run = Run::new(&record, (from_ms, ended_ms.min(to_ms)), peak, machine);
            let gpus = gpus.remove(&record.id).unwrap_or_default();
            run.with(gpus, uses.remove(&record.id).as_ref().and_then(used))
        };
        Ok(Some((records.into_iter().map(run).collect(), machine)))
    }

    /// UUIDs of the GPUs of each claim.
    fn gpus_of_claims(&self) -> rusqlite::Result<BTreeMap<u64, BTreeSet<String>>> {
        let sql = format!(
            "SELECT claim, gpu FROM series WHERE kind = {} AND claim <> 0",
            kind::CLAIM
        );
        let mut rows = self.db.prepare_cached(&sql)?;
        let mut rows = rows.query([])?;
        let mut found: BTreeMap<u64, BTreeSet<String>> = BTreeMap::new();
        while let Some(row) = rows.next()? {
            let claim: i64 = row.get(0)?;
            found
                .entry(claim.unsigned_abs())
                .or_default()
                .insert(row.get(1)?);
        }
        Ok(found)
    }
}

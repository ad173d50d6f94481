//! Changes as lines, for screen readers, braille displays and logs. Figures that change constantly are left out; a
//! state is reported when it begins and ends.

use std::collections::BTreeMap;

use gshare_proto::Snapshot;

use crate::feed::Update;
use crate::model::{Model, Viewer, told, words};
use crate::text::{Clock, gib, share};
use crate::theme::{Depth, Look};
use crate::view;

/// What has been reported.
#[derive(Debug)]
pub struct Plain {
    model: Model,
    look: Look,
    /// Sentences by subject.
    told: BTreeMap<String, String>,
    /// Time of the newest reported event, Unix milliseconds.
    news_ms: u64,
}

/// A sentence without its figures, to compare it with the last report.
fn stable(text: &str) -> String {
    text.chars().filter(|c| !c.is_ascii_digit()).collect()
}

impl Plain {
    /// Nothing reported yet; for this user, in this time zone (seconds east of UTC).
    #[must_use]
    pub fn new(viewer: Viewer, offset_s: i32) -> Self {
        let clock = Clock {
            now_ms: 0,
            offset_s,
        };
        Self {
            model: Model::new(viewer, (120, 40), clock),
            look: Look::new(Depth::Mono, false),
            told: BTreeMap::new(),
            news_ms: 0,
        }
    }

    /// The lines for what is new in an update.
    pub fn see(&mut self, update: Update) -> Vec<String> {
        match update {
            Update::Snapshot(snapshot) => self.snapshot(*snapshot),
            Update::Disconnected(why) => self.changes([("service".to_owned(), why)].into()),
            Update::Caption(_) | Update::Close | Update::CallResult { .. } => Vec::new(),
        }
    }

    fn snapshot(&mut self, snapshot: Snapshot) -> Vec<String> {
        self.model.clock.now_ms = snapshot.taken_ms;
        self.model.received_ms = snapshot.taken_ms;
        let facts = self.facts(&snapshot);
        let gone: Vec<String> = self.told.keys().cloned().collect();
        let mut out = self.changes(facts.clone());
        let now = self.model.clock.time(snapshot.taken_ms);
        for key in gone.into_iter().filter(|key| !facts.contains_key(key)) {
            self.told.remove(&key);
            // A claim that waited and has started is reported with its present state.
            let started = key
                .strip_prefix("queue ")
                .is_some_and(|id| facts.contains_key(&format!("claim {id}")));
            match key.split_once(' ') {
                Some(("claim", id)) => out.push(format!("{now} {id} has ended")),
                Some(("queue", id)) if !started => out.push(format!("{now} {id} no longer waits")),
                _ => {}
            }
        }
        let first = self.news_ms == 0;
        let news = snapshot.notices.iter().rev();
        for notice in news.filter(|n| n.at_ms > self.news_ms && !first) {
            let at = self.model.clock.time(notice.at_ms);
            out.push(format!("{at} {}", told(notice)));
        }
        let newest = snapshot.notices.iter().map(|n| n.at_ms).max();
        self.news_ms = newest.unwrap_or(0).max(self.news_ms).max(1);
        out
    }

    /// The sentences that differ from the last report.
    fn changes(&mut self, facts: BTreeMap<String, String>) -> Vec<String> {
        let mut out = Vec::new();
        let now = self.model.clock.time(self.model.clock.now_ms);
        for (key, text) in facts {
            let same = match key.as_str() {
                // Changes of FREE NOW are reported to the last digit.
                "free" => self.told.get(&key) == Some(&text),
                _ => self.told.get(&key).map(|t| stable(t)) == Some(stable(&text)),
            };
            if !same && !text.is_empty() {
                out.push(format!("{now} {text}"));
            }
            self.told.insert(key, text);
        }
        out
    }

    /// The present state, a sentence for each subject.
    fn facts(&mut self, snapshot: &Snapshot) -> BTreeMap<String, String> {
        self.model.snapshot = Some(Box::new(snapshot.clone()));
        let clock = self.model.clock;
        let mut out = BTreeMap::new();
        let before = |key: &str| self.told.get(key).map_or("", String::as_str);
        let said = match (&snapshot.service, self.model.off()) {
            (None, _) => "no gshare service: these are the driver's figures".to_owned(),
            (_, Some(off)) => off,
            _ if before("service").starts_with("OFF") => "gshare is on again".to_owned(),
            _ => String::new(),
        };
        out.insert("service".to_owned(), said);
        out.insert("free".to_owned(), view::free_now(&self.model, &self.look));
        for gpu in &snapshot.gpus {
            let key = format!("gpu {}", gpu.index);
            let text = match gpu.condition() {
                "ok" if !before(&key).is_empty() => format!("GPU {} is ok again", gpu.index),
                "ok" => String::new(),
                word => format!("GPU {} ({}): {word}", gpu.index, gpu.short),
            };
            out.insert(key, text);
        }
        for claim in &snapshot.claims {
            let state = words(claim, snapshot, clock, "moves to").text;
            let state = if state.is_empty() { "runs" } else { &state };
            let parts = claim.gpus.iter().map(|p| {
                let memory = gib(p.mem_request);
                format!("{} of GPU {} ({memory} GiB)", share(p.sm_request), p.gpu)
            });
            let parts: Vec<String> = parts.collect();
            let (id, user, what) = (&claim.id, &claim.user, view::what(claim));
            let text = format!("{id} of {user}, {what}: {state}; {}", parts.join(", "));
            out.insert(format!("claim {}", claim.id), text);
        }
        for waiting in &snapshot.queue {
            let why = waiting.plan.as_ref().unwrap_or(&waiting.reason);
            let (id, user, place) = (&waiting.id, &waiting.user, waiting.position);
            let text = format!("{id} of {user} waits at place {place}: {why}");
            out.insert(format!("queue {id}"), text);
        }
        for program in snapshot.unclaimed.iter().filter(|u| !u.graphics) {
            let (pid, gpu, what) = (program.pid, program.gpu, &program.what);
            let user = program.user.as_deref().unwrap_or("an unknown user");
            let text = format!("pid {pid} of {user} uses GPU {gpu} without a claim: {what}");
            out.insert(format!("program {pid} {gpu}"), text);
        }
        for (text, command) in view::warnings(&self.model) {
            let key = format!("warning {}", stable(&text));
            let command = Some(command).filter(|c| !c.is_empty());
            let command = command.map_or_else(String::new, |c| format!(" ({c})"));
            out.insert(key, text + &command);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{NLP, canned};

    fn see(plain: &mut Plain, snapshot: Snapshot) -> String {
        plain.see(Update::Snapshot(Box::new(snapshot))).join("\n")
    }

    #[test]
    fn the_first_look_tells_everything_and_the_next_what_changed() {
        let mut plain = Plain::new(NLP, 0);
        let base = canned::workstation();
        let first = see(&mut plain, base.clone());
        for text in [
            "14:32:07 FREE NOW for nlp: ",
            "14:32:07 c12 of nlp, vit.ipynb: idle 41m; 0.25 of GPU 0 (5.9 GiB)",
            "14:32:07 c22 of bio waits at place 1: needs 23.5 GiB",
            "uses GPU 3 without a claim",
        ] {
            assert!(first.contains(text), "{text}: {first}");
        }
        assert!(first.is_ascii(), "{first}");
        // A change of figures alone is not reported.
        let mut next = base.clone();
        next.taken_ms += 60_000;
        next.claims[0].state_text = "idle 42m".to_owned();
        next.claims[1].gpus[0].time_busy = None;
        assert_eq!(see(&mut plain, next.clone()), "");
        // One ends, one starts, something happens, a GPU is lost and comes back.
        next.claims.remove(1);
        let mut started = next.claims[0].clone();
        started.id = next.queue.remove(0).id;
        next.claims.push(started);
        next.notices.insert(
            0,
            gshare_proto::Notice {
                at_ms: next.taken_ms,
                claim: Some("c12".to_owned()),
                text: "refused 1.2 GiB".to_owned(),
            },
        );
        next.gpus[2].state = gshare_proto::GpuState::Lost;
        let text = see(&mut plain, next.clone());
        for line in [
            "14:33:07 c14 has ended",
            "14:33:07 c22 of nlp, vit.ipynb: idle 42m",
            "14:33:07 c12: refused 1.2 GiB",
            "14:33:07 GPU 2 (RTX 4090): lost",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(!text.contains("no longer waits"), "{text}");
        next.gpus[2].state = gshare_proto::GpuState::Ok;
        assert_eq!(see(&mut plain, next.clone()), "14:33:07 GPU 2 is ok again");
        assert_eq!(see(&mut plain, next), "");
        let gone = plain.see(Update::Disconnected("the service closed".to_owned()));
        assert_eq!(gone, ["14:33:07 the service closed"]);
    }
}

//! Order and timing of the demo's scenes: by what the screen shows and for how long each caption was shown, so that a
//! slow machine plays the same demo more slowly.

use std::time::Duration;

use gshare_proto::Snapshot;

use super::captions::{
    Say, Story, both_burst, bursts_return, busy_but_idle, hog_at_cap, it_has_ended, it_starts,
    one_moves, somebody_waits, your_turn,
};

/// Scenes before the claim of a whole GPU, in this order.
const OPENING: &[Say] = &[busy_but_idle, hog_at_cap, both_burst];

/// Scenes around the claim of a whole GPU: the newest true one is shown.
const STORY: &[Say] = &[
    both_burst,
    somebody_waits,
    one_moves,
    it_starts,
    it_has_ended,
    bursts_return,
];

/// Shortest time for a scene, enough to read two lines.
const LEAST: Duration = Duration::from_millis(3_500);
/// How long the claim of a whole GPU runs after its caption, and how long the last scene lasts.
const LAST: Duration = Duration::from_secs(5);
/// A scene that does not appear within this time is skipped if a later one can be shown.
const PATIENCE: Duration = Duration::from_secs(20);
/// A scene that does not appear within this time is skipped: on GPUs other than the demo's own some never do.
const LONGEST: Duration = Duration::from_secs(30);

/// State of the direction.
#[derive(Debug, Default)]
pub(super) struct Direction {
    scene: usize,
    /// When the scene's turn came, and when its caption was first shown.
    turn: Option<Duration>,
    told: Option<Duration>,
    /// When the caption of the claim of a whole GPU first appeared, and that of both bursts after it.
    runs: Option<Duration>,
    back: Option<Duration>,
    /// When a caption last appeared.
    last: Duration,
}

impl Direction {
    /// The caption at a time from the start.
    pub(super) fn say(&mut self, at: Duration, now: &Snapshot, story: &Story) -> Option<String> {
        let words = if self.opened() {
            self.story(at, now, story)
        } else {
            self.opening(at, now, story)
        };
        if words.is_some() {
            self.last = at;
        }
        words
    }

    /// Whether all scenes before the claim of a whole GPU have been shown.
    pub(super) fn opened(&self) -> bool {
        self.scene >= OPENING.len()
    }

    /// Whether the claim of a whole GPU has been shown for long enough.
    pub(super) fn seen(&self, at: Duration) -> bool {
        self.runs.is_some_and(|from| at >= from + LAST)
    }

    fn opening(&mut self, at: Duration, now: &Snapshot, story: &Story) -> Option<String> {
        let is_true = |scene: &usize| OPENING[*scene](now, story).is_some();
        let turn = *self.turn.get_or_insert(at);
        let read = self.told.is_some_and(|from| at >= from + LEAST);
        let late = at >= turn + LONGEST;
        let next = self.scene + 1;
        if read && next == OPENING.len() {
            self.scene = next;
            return self.story(at, now, story);
        }
        if read || late {
            let waited = self.told.is_some_and(|from| at >= from + LEAST + PATIENCE);
            let last = if waited || late {
                OPENING.len()
            } else {
                next + 1
            };
            let later = (next..last).find(is_true);
            if let Some(scene) = later.or(late.then_some(next)) {
                (self.scene, self.turn, self.told) = (scene, Some(at), None);
            }
        }
        if self.opened() {
            return None;
        }
        if is_true(&self.scene) {
            self.told.get_or_insert(at);
        }
        (0..=self.scene).rev().find_map(|i| OPENING[i](now, story))
    }

    fn story(&mut self, at: Duration, now: &Snapshot, story: &Story) -> Option<String> {
        let over = self.back.is_some_and(|from| at >= from + LAST);
        let silent = at >= self.last + LONGEST / 3;
        if over || silent {
            return your_turn(now, story);
        }
        if it_starts(now, story).is_some() {
            self.runs.get_or_insert(at);
        }
        if bursts_return(now, story).is_some() {
            self.back.get_or_insert(at);
        }
        STORY.iter().rev().find_map(|say| say(now, story))
    }
}

#[cfg(test)]
mod tests {
    use gshare_proto::{ClaimGpu, ClaimView, Figure, GpuView, QueueView, Source};

    use super::*;
    use crate::demo::actors::{EVAL, FINETUNE, LLAMA, at};

    fn figure(value: f64) -> Option<Figure> {
        Some(Figure {
            value,
            source: Source::Gpm,
            estimate: false,
        })
    }

    /// GPU 1 is busy and mostly idle; the notebooks have these parts of an H100 each.
    fn snapshot(busy: f64, got: [f64; 2], names: [&str; 2]) -> Snapshot {
        let gpu = GpuView {
            index: 1,
            sms: Some(128),
            time_busy: figure(busy),
            sm_active: figure(30.0),
            ..Default::default()
        };
        let claim = |(index, name): (u32, &str)| ClaimView {
            id: format!("c{index}"),
            name: Some(name.to_owned()),
            gpus: vec![ClaimGpu {
                gpu: index + 2,
                sm_request: 0.5,
                time_got: figure(got[index as usize]),
                ..Default::default()
            }],
            ..Default::default()
        };
        Snapshot {
            gpus: vec![gpu],
            claims: (0u32..).zip(names).map(claim).collect(),
            ..Snapshot::default()
        }
    }

    fn bursting(busy: f64) -> Snapshot {
        snapshot(busy, [80.0, 70.0], [LLAMA, EVAL])
    }

    /// The captions at each tenth of a second, from `from` to `to` milliseconds.
    fn play(
        direction: &mut Direction,
        from: u64,
        to: u64,
        now: &Snapshot,
    ) -> Vec<(u64, Option<String>)> {
        let story = Story::default();
        let times = (from..to).step_by(100);
        times
            .map(|ms| (ms, direction.say(at(ms), now, &story)))
            .collect()
    }

    #[test]
    fn each_scene_is_told_for_a_while_however_slow_the_machine_is() {
        for slow in [1, 3, 10] {
            let mut direction = Direction::default();
            let (seen, burst) = (1_500 * slow, 3_000 * slow);
            let nothing = play(&mut direction, 0, seen, &Snapshot::default());
            assert!(nothing.iter().all(|(_, words)| words.is_none()));
            let first = play(
                &mut direction,
                seen,
                burst,
                &snapshot(99.0, [0.0, 0.0], [LLAMA, EVAL]),
            );
            assert!(
                first
                    .iter()
                    .all(|(_, w)| w.as_ref().is_some_and(|w| w.contains("SMs are idle")))
            );
            let told = play(&mut direction, burst, burst + 60_000, &bursting(99.0));
            let until = told
                .iter()
                .find(|(_, w)| !w.as_ref().is_some_and(|w| w.contains("idle")));
            // The bursts are visible already, but the first scene keeps its time, and the hog may still come.
            let until = until.expect("the next scene").0;
            let late = (seen + 23_500).min(30_000);
            assert_eq!(until, burst.max(late), "{slow}");
            let opened = told
                .iter()
                .find(|(_, w)| w.as_ref().is_some_and(|w| w.contains("your turn")));
            assert!(opened.is_none(), "the bursts are still told: {opened:?}");
            assert!(direction.opened());
        }
    }

    #[test]
    fn the_third_claim_comes_when_the_bursts_were_told_and_goes_when_it_was() {
        let mut direction = Direction::default();
        // The hog never appears here: its scene is skipped after a while, because the next one can be shown.
        play(&mut direction, 0, 24_000, &bursting(99.0));
        assert!(!direction.opened());
        play(&mut direction, 24_000, 26_900, &bursting(99.0));
        assert!(!direction.opened(), "told for 3.4 s");
        play(&mut direction, 26_900, 27_100, &bursting(99.0));
        assert!(direction.opened());
        let mut queued = bursting(99.0);
        queued.queue.push(QueueView {
            id: "c7".to_owned(),
            name: Some(FINETUNE.to_owned()),
            reason: "needs a whole GPU".to_owned(),
            ..Default::default()
        });
        let told = play(&mut direction, 27_100, 27_300, &queued);
        let words = told[0].1.as_deref().unwrap_or_default();
        assert!(words.contains("needs a whole GPU"), "{words}");
        assert!(!direction.seen(at(60_000)), "it was never told to run");
    }

    #[test]
    fn a_scene_that_never_comes_is_left_out() {
        let mut direction = Direction::default();
        let never = play(&mut direction, 0, 95_000, &Snapshot::default());
        assert!(direction.opened());
        let turn = never
            .iter()
            .find_map(|(ms, words)| words.as_ref().map(|w| (*ms, w)));
        let (ms, words) = turn.expect("something is said");
        assert!(
            words.starts_with("your turn") && ms >= 90_000,
            "{ms} {words}"
        );
    }
}

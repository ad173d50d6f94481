//! Plays a recording on the screen.

use std::path::Path;
use std::time::{Duration, Instant};

use gshare_proto::{Call, Reply};
use gshare_ui::{Failure as Answer, Feed, Feeder, Frame, Request, Seek, Update, channel};

use super::recording::{Moment, Recording};
use crate::command::failure::{self, Failure};

/// Length of a seek, in milliseconds.
const STEP_MS: u64 = 10_000;
/// Longest time between two looks for requests.
const BEAT: Duration = Duration::from_millis(100);

/// The last moment of a recording, with the replies before it.
pub(super) fn last(path: &Path) -> Result<Frame, Failure> {
    let mut recording = Recording::open(path)?;
    let mut frame = Frame::default();
    let (mut snapshot, mut index) = (None, recording.len());
    while index > 0 && (snapshot.is_none() || frame.history.is_none() || frame.checks.is_none()) {
        index -= 1;
        let Some(moment) = recording.read(index) else {
            continue;
        };
        snapshot = snapshot.or(moment.snapshot);
        match moment.reply {
            Some(Reply::Doctor { checks }) => {
                frame.checks.get_or_insert(checks);
            }
            Some(Reply::History(view)) => {
                frame.history.get_or_insert(*view);
            }
            _ => {}
        }
    }
    frame.snapshot = *snapshot.ok_or_else(|| {
        let text = format!("{} contains no frames", path.display());
        Failure::new(failure::USAGE, text)
    })?;
    Ok(frame)
}

/// A feed that plays a recording from its start.
pub(super) fn feed(path: &Path, speed: f64) -> Result<Feed, Failure> {
    let recording = Recording::open(path)?;
    let (feeder, feed) = channel();
    std::thread::Builder::new()
        .name("replay".to_owned())
        .spawn(move || Player::new(recording, speed).play(feeder))
        .map_err(|e| Failure::new(failure::INTERNAL, format!("cannot start a thread: {e}")))?;
    Ok(feed)
}

struct Player {
    recording: Recording,
    speed: f64,
    paused: bool,
    /// The next moment.
    next: usize,
    /// Present time in the recording, Unix milliseconds, and when it was set.
    now_ms: f64,
    looked: Instant,
    doctor: Option<Reply>,
    history: Option<Reply>,
}

impl Player {
    fn new(recording: Recording, speed: f64) -> Self {
        let now_ms = recording.at_ms(0).unwrap_or(0) as f64;
        Self {
            recording,
            speed,
            paused: false,
            next: 0,
            now_ms,
            looked: Instant::now(),
            doctor: None,
            history: None,
        }
    }

    fn play(mut self, mut feeder: Feeder) {
        let mut caption = String::new();
        loop {
            while let Ok(request) = feeder.requests.try_recv() {
                if let Some(update) = self.asked(request) {
                    feeder.updates.send(update);
                }
            }
            if let Some(moment) = self.advance()
                && let Some(snapshot) = moment.snapshot
            {
                feeder.updates.send(Update::Snapshot(snapshot));
            }
            let text = self.caption();
            if text != caption {
                caption.clone_from(&text);
                feeder.updates.send(Update::Caption(Some(text)));
            }
            if feeder.updates.is_closed() {
                return;
            }
            std::thread::sleep(self.pause());
        }
    }

    /// Time until the next moment, or the next look.
    fn pause(&self) -> Duration {
        let at = self.recording.at_ms(self.next);
        let Some(at) = at.filter(|_| !self.paused) else {
            return BEAT;
        };
        let ms = (at as f64 - self.now_ms) / self.speed;
        Duration::from_secs_f64(ms.clamp(5.0, 1000.0) / 1000.0).min(BEAT)
    }

    /// The newest moment whose time has come.
    fn advance(&mut self) -> Option<Moment> {
        let passed = self.looked.elapsed();
        self.looked = Instant::now();
        if !self.paused {
            self.now_ms += passed.as_secs_f64() * 1000.0 * self.speed;
        }
        let mut shown: Option<Moment> = None;
        while let Some(at) = self.recording.at_ms(self.next)
            && at as f64 <= self.now_ms
        {
            let moment = self.recording.read(self.next).unwrap_or_default();
            self.next += 1;
            match moment.reply {
                Some(reply @ Reply::Doctor { .. }) => self.doctor = Some(reply),
                Some(reply @ Reply::History(_)) => self.history = Some(reply),
                _ if moment.snapshot.is_some() => shown = Some(moment),
                _ => {}
            }
        }
        if self.next >= self.recording.len() {
            // It stops at the end.
            let end = self.recording.at_ms(self.recording.len() - 1);
            self.now_ms = self.now_ms.min(end.unwrap_or(0) as f64);
        }
        shown
    }

    fn caption(&self) -> String {
        let first = self.recording.at_ms(0).unwrap_or(0) as f64;
        let last = self.recording.at_ms(self.recording.len() - 1);
        let length = (last.unwrap_or(0) as f64 - first).max(1.0);
        let seconds = |ms: f64| {
            let s = (ms / 1000.0).max(0.0) as u64;
            format!("{}:{:02}", s / 60, s % 60)
        };
        let state = if self.paused {
            "stopped".to_owned()
        } else if self.next >= self.recording.len() {
            "at its end".to_owned()
        } else {
            format!("speed {}", self.speed)
        };
        format!(
            "RECORDING  {} of {}  {state}",
            seconds(self.now_ms - first),
            seconds(length)
        )
    }

    fn asked(&mut self, request: Request) -> Option<Update> {
        match request {
            Request::Captions { paused } => self.paused = paused,
            Request::Replay(Seek::Faster) => self.speed = (self.speed * 2.0).min(1024.0),
            Request::Replay(Seek::Slower) => self.speed = (self.speed / 2.0).max(1.0 / 64.0),
            Request::Replay(Seek::Forward) => self.go_to(self.now_ms + STEP_MS as f64),
            Request::Replay(Seek::Back) => self.go_to(self.now_ms - STEP_MS as f64),
            Request::Call { seq, call } => {
                let answer = match *call {
                    Call::Doctor => self.doctor.clone(),
                    Call::History(_) => self.history.clone(),
                    _ => None,
                };
                let outcome = answer.ok_or_else(|| Answer {
                    message: "a recording cannot answer that".to_owned(),
                    hint: None,
                });
                return Some(Update::CallResult { seq, outcome });
            }
        }
        None
    }

    fn go_to(&mut self, at_ms: f64) {
        let first = self.recording.at_ms(0).unwrap_or(0) as f64;
        let last = self.recording.at_ms(self.recording.len() - 1);
        self.now_ms = at_ms.clamp(first, (last.unwrap_or(0) as f64).max(first));
        // That moment is shown next, even while paused.
        self.next = self.recording.find(self.now_ms as u64);
        if let Some(at) = self.recording.at_ms(self.next) {
            self.now_ms = self.now_ms.max(at as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::top::recording::Recorder;
    use gshare_proto::Snapshot;

    #[test]
    fn it_goes_about_in_time_and_answers_that_it_is_a_recording() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("r");
        drop(Recorder::create(&path).expect("made"));
        let mut text = std::fs::read_to_string(&path).expect("read");
        for i in 0..60u64 {
            let moment = Moment {
                at_ms: 1_000_000 + i * 1000,
                snapshot: Some(Box::new(Snapshot {
                    taken_ms: i,
                    ..Snapshot::default()
                })),
                reply: None,
            };
            text.push_str(&serde_json::to_string(&moment).expect("JSON"));
            text.push('\n');
        }
        std::fs::write(&path, text).expect("written");
        assert_eq!(last(&path).expect("a frame").snapshot.taken_ms, 59);
        let mut player = Player::new(Recording::open(&path).expect("a recording"), 1.0);
        player.paused = true;
        let at = |player: &mut Player| {
            player
                .advance()
                .and_then(|m| m.snapshot)
                .map(|s| s.taken_ms)
        };
        assert_eq!(at(&mut player), Some(0));
        assert_eq!(at(&mut player), None, "it stands still");
        for (to, want) in [
            (Seek::Forward, 10),
            (Seek::Forward, 20),
            (Seek::Back, 10),
            (Seek::Back, 0),
        ] {
            assert!(player.asked(Request::Replay(to)).is_none());
            assert_eq!(at(&mut player), Some(want));
        }
        player.asked(Request::Replay(Seek::Back));
        assert_eq!(at(&mut player), Some(0), "not before its start");
        assert!(
            player.caption().contains("0:00 of 0:59  stopped"),
            "{}",
            player.caption()
        );
        let call = Box::new(Call::Release {
            id: "c1".to_owned().into(),
        });
        let answer = player.asked(Request::Call { seq: 4, call });
        assert!(matches!(
            answer,
            Some(Update::CallResult {
                seq: 4,
                outcome: Err(_)
            })
        ));
    }
}

//! The demo on the screen.

use std::time::{Duration, Instant};

use gshare_proto::{Call, Client};
use gshare_ui::{Failure, Feeder, Request, Update, UpdateSender};

use super::actors::{ACTORS, Actor};
use super::captions::Narrator;
use super::{Cast, direct};
use crate::command::args::DemoArgs;
use crate::station::Station;

/// Plays with the screen until it is closed or the demo's time ends.
pub(super) fn on_screen(
    args: &DemoArgs,
    station: &Station,
    cast: &mut Cast,
    started: Instant,
) -> anyhow::Result<i32> {
    let (feeder, feed) = gshare_ui::channel();
    let screen = std::thread::Builder::new()
        .name("screen".to_owned())
        .spawn(move || gshare_ui::run_blocking(gshare_ui::Options::default(), feed))?;
    let updates = feeder.updates.clone();
    let played = play(args, station, cast, started, feeder);
    updates.send(Update::Close);
    match screen.join() {
        Ok(result) => {
            result?;
        }
        Err(_) => anyhow::bail!("the screen ended unexpectedly"),
    }
    played.map(|()| 0)
}

/// Interval at which the demo looks at the service and at requests.
pub(super) const BEAT: Duration = Duration::from_millis(200);

fn play(
    args: &DemoArgs,
    station: &Station,
    cast: &mut Cast,
    started: Instant,
    mut feeder: Feeder,
) -> anyhow::Result<()> {
    let mut waiting: Vec<&Actor> = ACTORS.iter().collect();
    let mut narrator = Narrator::default();
    let mut paused = false;
    // Elapsed time of the play; a pause stops it.
    let (mut at, mut looked) = (Duration::ZERO, Instant::now());
    while !feeder.updates.is_closed() && args.duration.is_none_or(|d| started.elapsed() < d) {
        let passed = looked.elapsed();
        looked += passed;
        at += if paused { Duration::ZERO } else { passed };
        direct(station, cast, &mut waiting, at, &narrator)?;
        while let Ok(request) = feeder.requests.try_recv() {
            match request {
                Request::Captions { paused: still } => paused = still,
                Request::Replay(_) => {}
                Request::Call { seq, call } => answer(station, feeder.updates.clone(), seq, *call),
            }
        }
        match station.snapshot() {
            Ok(snapshot) => {
                if !paused {
                    let words = narrator.say(station, &snapshot, at);
                    feeder.updates.send(Update::Caption(words));
                }
                feeder.updates.send(Update::Snapshot(Box::new(snapshot)));
            }
            Err(error) => {
                feeder.updates.send(Update::Disconnected(error.to_string()));
            }
        }
        std::thread::sleep(BEAT);
    }
    Ok(())
}

fn answer(station: &Station, updates: UpdateSender, seq: u64, call: Call) {
    let socket = station.socket();
    std::thread::spawn(move || {
        let outcome = Client::connect(&socket)
            .and_then(|mut client| client.call(&call))
            .map_err(Failure::from);
        updates.send(Update::CallResult { seq, outcome });
    });
}

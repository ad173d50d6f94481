//! `gshare` without arguments and `gshare top`: the screen, from the service or, without one, from the driver; also
//! printed once, recorded or replayed.

mod recording;
mod replay;

use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gshare_proto::{Call, Client, messages};
use gshare_ui::{
    Background, Depth, Exit, Feed, Frame, Look, Options, Page, Plain, Request, Update, Viewer,
    frame_text, last_day, run_blocking, service_source,
};

use super::args::top::{Colours, Theme, TopArgs};
use super::failure::{self, Failure};
use super::{Outcome, connect, out};
use crate::clock::unix_ms;
use recording::Recorder;

/// Size of a printed screen.
const SIZE: (u16, u16) = (120, 40);
/// Interval at which a recording without a screen requests the history and the doctor's rows.
const ASKED_AGAIN: Duration = Duration::from_secs(300);
/// Longest wait for the driver's first answer.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn run(socket: Option<&Path>, args: &TopArgs) -> Outcome {
    let terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    if args.once {
        return once(socket, args);
    }
    if args.plain {
        return plain(socket, args);
    }
    if let (Some(file), false) = (&args.record, terminal) {
        return record_only(socket, args, file);
    }
    if !terminal {
        return Err(
            Failure::new(failure::USAGE, "the screen needs a terminal").with_hint(
                "without one there are `gshare top --plain`, `gshare top --once`, and `gshare status`, `gshare ps` and `gshare queue`, each with --json",
            ),
        );
    }
    let mut options = options(args);
    let feed = if let Some(file) = &args.replay {
        options.recorded = true;
        replay::feed(file, args.speed)?
    } else {
        feed(socket, args.interval)?
    };
    let Some(file) = &args.record else {
        return shown(options, feed);
    };
    let recorder = Arc::new(Mutex::new(Recorder::create(file)?));
    let seen = Arc::clone(&recorder);
    let feed = feed.tapped(move |update| locked(&seen).see(update));
    if let Some(time) = args.duration {
        let screen = feed.sender();
        std::thread::spawn(move || {
            std::thread::sleep(time);
            screen.send(Update::Close);
        });
    }
    let code = shown(options, feed)?;
    // A recording that failed on the way is reported here.
    let failed = locked(&recorder).failed();
    failed.map_or(Ok(code), Err)
}

fn shown(options: Options, feed: Feed) -> Outcome {
    Ok(code(run_blocking(options, feed)?))
}

/// The exit status after a screen.
pub(super) fn code(exit: Exit) -> u8 {
    match exit {
        Exit::Quit => 0,
        Exit::Signal(number) => u8::try_from(128 + number).unwrap_or(failure::INTERNAL),
    }
}

fn locked(recorder: &Mutex<Recorder>) -> MutexGuard<'_, Recorder> {
    recorder.lock().unwrap_or_else(PoisonError::into_inner)
}

fn options(args: &TopArgs) -> Options {
    let base = Options::default();
    let detected = base.look.clone();
    let utf8 = detected.is_utf8() && !args.ascii;
    let depth = match args.colours {
        Colours::Auto => None,
        Colours::Mono => Some(Depth::Mono),
        Colours::Ansi => Some(Depth::Ansi),
        Colours::Indexed => Some(Depth::Indexed),
        Colours::Rgb => Some(Depth::Rgb),
    };
    let background = match args.theme {
        Theme::Auto => None,
        Theme::Dark => Some(Background::Dark),
        Theme::Light => Some(Background::Light),
    };
    let look = detected.with(depth, background, utf8);
    Options {
        look,
        ask_background: base.ask_background && args.theme == Theme::Auto,
        page: args.screen.unwrap_or_default(),
        ..base
    }
}

/// Prints the screen as text; for a recording, its last moment.
fn once(socket: Option<&Path>, args: &TopArgs) -> Outcome {
    let page = args.screen.unwrap_or_default();
    let frame = match &args.replay {
        Some(file) => replay::last(file)?,
        None => now(socket, page)?,
    };
    let options = Options {
        // The output does not depend on the user who prints it.
        viewer: Viewer {
            uid: u32::MAX,
            admin: false,
        },
        look: Look::new(Depth::Mono, !args.ascii),
        ask_background: false,
        page,
        recorded: true,
    };
    let offset = chrono::Local::now().offset().local_minus_utc();
    let size = args.size.unwrap_or(SIZE);
    out::print(&frame_text(&frame, &options, size, offset))?;
    Ok(0)
}

/// What a screen shows now, from the service, otherwise from the driver.
fn now(socket: Option<&Path>, page: Page) -> Result<Frame, Failure> {
    let named = socket.is_some() || std::env::var_os("GSHARE_SOCKET").is_some();
    let mut client = match connect::connect(socket) {
        Ok(client) => client,
        Err(failure) if named || failure.code == failure::NOT_PERMITTED => return Err(failure),
        Err(_) => return looked(feed(socket, None)?),
    };
    Ok(Frame::ask(&mut client, page)?)
}

/// The first snapshot of a feed.
fn looked(feed: Feed) -> Result<Frame, Failure> {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        for update in feed.updates.take() {
            if let Update::Snapshot(snapshot) = update {
                return Ok(Frame {
                    snapshot: *snapshot,
                    ..Frame::default()
                });
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let text = "the driver has not answered for ten seconds";
    Err(Failure::new(failure::NOT_AVAILABLE, text))
}

/// Prints changes, one line each, until the time is over or the reader is gone.
fn plain(socket: Option<&Path>, args: &TopArgs) -> Outcome {
    let feed = feed(socket, args.interval)?;
    let offset = chrono::Local::now().offset().local_minus_utc();
    let mut plain = Plain::new(Options::default().viewer, offset);
    let end = args.duration.map(|d| Instant::now() + d);
    while end.is_none_or(|end| Instant::now() < end) {
        for update in feed.updates.take() {
            for line in plain.see(update) {
                out::print(&(super::table::plain(&line) + "\n"))?;
            }
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(0)
}

/// Records without a screen, until the time is over or the file cannot be written.
fn record_only(socket: Option<&Path>, args: &TopArgs, file: &Path) -> Outcome {
    let feed = feed(socket, args.interval)?;
    let mut recorder = Recorder::create(file)?;
    let end = args.duration.map(|d| Instant::now() + d);
    // Data that only some screens request, so that the replay has all of them.
    let (mut asked, mut seq): (Option<Instant>, u64) = (None, 0);
    while end.is_none_or(|end| Instant::now() < end) {
        if asked.is_none_or(|at| at.elapsed() >= ASKED_AGAIN) {
            asked = Some(Instant::now());
            for call in [last_day(unix_ms()), Call::Doctor] {
                seq += 1;
                let call = Box::new(call);
                // Without a service there is no answer.
                let _ = feed.requests.send(Request::Call { seq, call });
            }
        }
        for update in feed.updates.take() {
            recorder.see(&update);
        }
        if let Some(error) = recorder.failed() {
            return Err(error);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(0)
}

fn feed(socket: Option<&Path>, interval: Option<Duration>) -> Result<Feed, Failure> {
    let named = socket.is_some() || std::env::var_os("GSHARE_SOCKET").is_some();
    let found = connect::socket(socket).and_then(|path| {
        // Check that the service answers before the terminal is taken.
        Client::connect(&path)?;
        Ok(path)
    });
    match found {
        Ok(path) => Ok(service_source(&path, interval)),
        Err(failure) if named || failure.code == failure::NOT_PERMITTED => Err(failure),
        Err(_) => crate::monitor::source().map_err(|e| {
            let text = Failure::from(e).message;
            // The list of searched places is for `gshare daemon`.
            let why = text.split("; looked at").next().unwrap_or_default();
            Failure::new(
                failure::NO_SERVICE,
                format!(
                    "{}, and gshare cannot read the GPUs directly either: {why}",
                    messages::no_service()
                ),
            )
            .with_hint(messages::try_demo())
        }),
    }
}

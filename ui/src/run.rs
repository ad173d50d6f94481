//! The loop: waits for keys, updates, signals and the clock; draws at most every 33 ms, and only after a change.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use chrono::Local;
use crossterm::clipboard::CopyToClipboard;
use crossterm::event::{Event, EventStream, MouseEventKind};
use crossterm::execute;
use futures_core::Stream;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getuid};
use terminal_colorsaurus::{QueryOptions, background_color};
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::feed::Feed;
use crate::model::{Model, Page, Viewer};
use crate::msg::{Cmd, Msg};
use crate::term::Screen;
use crate::text::Clock;
use crate::theme::{Background, Look};
use crate::update::update;
use crate::view;

/// Shortest time between two frames for updates.
const FRAME: Duration = Duration::from_millis(33);

/// Time between two ticks of the clock.
const TICK: Duration = Duration::from_secs(1);

/// With updates at longer intervals than this, the clock ticks by itself.
const LATE: Duration = Duration::from_millis(1300);

/// Shortest time between a frame and the answer to a key, so that a key that is held down moves visibly.
const ANSWER: Duration = Duration::from_millis(8);

/// The screen's options.
#[derive(Clone, Debug)]
pub struct Options {
    /// The user at the screen.
    pub viewer: Viewer,
    /// Colours and characters.
    pub look: Look,
    /// Ask the terminal for its background, which decides the colours.
    pub ask_background: bool,
    /// The first screen.
    pub page: Page,
    /// A recording is shown: its own clock counts.
    pub recorded: bool,
}

impl Default for Options {
    /// For the user who runs the program, on the terminal of the environment.
    fn default() -> Self {
        let uid = getuid();
        let env = |name: &str| std::env::var(name).ok();
        let look = Look::detect(env);
        Self {
            viewer: Viewer {
                uid: uid.as_raw(),
                admin: uid.is_root(),
            },
            ask_background: look.has_colours() && env("COLORFGBG").is_none(),
            look,
            page: Page::default(),
            recorded: false,
        }
    }
}

impl Options {
    /// Asks the terminal for its background, once, if that is wanted.
    pub(crate) fn find_background(&mut self) {
        if std::mem::take(&mut self.ask_background)
            && let Some(found) = background()
        {
            self.look = self.look.clone().on(found);
        }
    }
}

/// Why the screen was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The user quit, or the feeder closed the screen.
    Quit,
    /// A signal with this number ended it (SIGTERM, SIGINT, SIGHUP).
    Signal(i32),
}

fn clock() -> Clock {
    let now = Local::now();
    Clock {
        now_ms: u64::try_from(now.timestamp_millis()).unwrap_or(0),
        offset_s: now.offset().local_minus_utc(),
    }
}

/// Signals that end the screen, and the one that stops it.
pub(crate) struct Signals(Vec<(Signal, SignalStream)>);

impl Signals {
    pub(crate) fn new() -> io::Result<Self> {
        use Signal::{SIGHUP, SIGINT, SIGTERM, SIGTSTP};
        let on = |number| Ok((number, signal(SignalKind::from_raw(number as i32))?));
        let all = [SIGTERM, SIGINT, SIGHUP, SIGTSTP].into_iter().map(on);
        Ok(Self(all.collect::<io::Result<_>>()?))
    }

    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|cx| {
            let mut all = self.0.iter_mut();
            let caught = all.find_map(|(n, stream)| stream.poll_recv(cx).is_ready().then_some(*n));
            caught.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// The terminal's background, by asking the terminal; none if it does not answer. A local terminal answers at once;
/// over a network, a late answer would be read as keys. Keys typed meanwhile are lost.
fn background() -> Option<Background> {
    let mut query = QueryOptions::default();
    if std::env::var_os("SSH_CONNECTION").is_none() {
        query.timeout = Duration::from_millis(100);
    }
    let found = background_color(query).ok()?;
    Some(match found.perceived_lightness() > 0.5 {
        true => Background::Light,
        false => Background::Dark,
    })
}

/// Shows the screen until the user quits, the feeder closes it or a signal ends it.
///
/// # Errors
/// When input or output is not a terminal, or the terminal fails.
pub async fn run(mut options: Options, feed: Feed) -> io::Result<Exit> {
    // Signals first: from here on none can leave the terminal in raw mode.
    let mut signals = Signals::new()?;
    let mut screen = Screen::take()?;
    options.find_background();
    let mut keys = Keys::read();
    // From here on a change of size is reported; an earlier one was not.
    screen.fit()?;
    let mut model = Model::new(options.viewer, screen.size(), clock());
    model.page = options.page;
    model.recorded = options.recorded;
    let mut drawn = Instant::now();
    let mut next_frame = drawn;
    let mut dirty = true;
    // While updates arrive every second, the clock is drawn with them, without wake-ups of its own.
    let mut tick = drawn;
    loop {
        let mut messages = Vec::new();
        tokio::select! {
            biased;
            caught = signals.next() => match caught {
                Signal::SIGTSTP => {
                    screen.stop()?;
                    let (width, height) = screen.size();
                    messages.push(Msg::Resize(width, height));
                    messages.push(Msg::Tick(clock()));
                }
                number => return Ok(Exit::Signal(number as i32)),
            },
            event = keys.next() => match event {
                Some(Ok(event)) => messages.extend(message(event)),
                // The terminal is gone.
                Some(Err(_)) | None => return Ok(Exit::Signal(Signal::SIGHUP as i32)),
            },
            news = feed.updates.next() => {
                tick = Instant::now() + LATE;
                messages.push(Msg::Tick(clock()));
                messages.extend(news.into_iter().map(Msg::Update));
            }
            () = sleep_until(tick) => {
                tick = (tick + TICK).max(Instant::now());
                messages.push(Msg::Tick(clock()));
            }
            () = sleep_until(next_frame), if dirty => {
                screen.show(|area, buf| view::draw(&model, &options.look, area, buf))?;
                dirty = false;
                drawn = Instant::now();
                next_frame = drawn + FRAME;
            }
        }
        for msg in messages {
            if matches!(msg, Msg::Key(_) | Msg::Mouse(_) | Msg::Paste(_)) {
                next_frame = drawn + ANSWER;
            }
            if let Msg::Resize(width, height) = msg {
                screen.renew(width, height)?;
            }
            let quiet =
                matches!(msg, Msg::Tick(now) if now.now_ms / 1000 == model.clock.now_ms / 1000);
            for cmd in update(&mut model, msg) {
                match cmd {
                    Cmd::Quit => return Ok(Exit::Quit),
                    Cmd::Copy(text) => {
                        execute!(io::stdout(), CopyToClipboard::to_clipboard_from(text))?;
                    }
                    Cmd::Redraw => {
                        let (width, height) = screen.size();
                        screen.renew(width, height)?;
                    }
                    // To the whole job, as the terminal does; it comes back as a signal.
                    Cmd::Suspend => kill(Pid::from_raw(0), Signal::SIGTSTP)?,
                    Cmd::Ask(request) => {
                        // A feeder that has ended closes the screen, too.
                        let _ = feed.requests.send(request);
                    }
                }
            }
            dirty |= !quiet;
        }
    }
}

/// The terminal's events, read in a separate task, because the loop would poll at every event. The task ends with this.
pub(crate) struct Keys {
    reader: JoinSet<()>,
    events: UnboundedReceiver<io::Result<Event>>,
}

impl Keys {
    pub(crate) fn read() -> Self {
        let (to, events) = unbounded_channel();
        let mut reader = JoinSet::new();
        reader.spawn(read(EventStream::new(), to));
        Self { reader, events }
    }

    pub(crate) async fn next(&mut self) -> Option<io::Result<Event>> {
        self.events.recv().await
    }

    /// Leaves the terminal's input to another program.
    pub(crate) async fn end(mut self) {
        self.reader.shutdown().await;
    }
}

/// Passes on the terminal's events.
async fn read(mut events: EventStream, to: UnboundedSender<io::Result<Event>>) {
    while let Some(event) = poll_fn(|cx| Pin::new(&mut events).poll_next(cx)).await
        && to.send(event).is_ok()
    {}
}

fn message(event: Event) -> Option<Msg> {
    match event {
        Event::Key(key) => Some(Msg::Key(key)),
        Event::Paste(text) => Some(Msg::Paste(text)),
        Event::Resize(width, height) => Some(Msg::Resize(width, height)),
        // Only events with a meaning: a terminal may report every movement.
        Event::Mouse(mouse) => matches!(
            mouse.kind,
            MouseEventKind::Down(_) | MouseEventKind::ScrollDown | MouseEventKind::ScrollUp
        )
        .then_some(Msg::Mouse(mouse)),
        Event::FocusGained | Event::FocusLost => None,
    }
}

/// [`run`] for callers without a runtime.
///
/// # Errors
/// As for [`run`], or when the runtime cannot be made.
pub fn run_blocking(options: Options, feed: Feed) -> io::Result<Exit> {
    blocking(run(options, feed))
}

pub(crate) fn blocking<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(work)
}

//! `gshare demo`: a simulated workstation with a private service, four users' jobs, and the screen on top.
//!
//! The jobs are ordinary programs started through the public command line. Every figure comes from the
//! service, that is from NVML, the claims' pages and the ledger; nothing here reads the simulation's board.

mod actors;
mod captions;
mod direction;
mod job;
mod scenes;
mod shell;
mod svg;

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::unistd::Uid;

use crate::command::args::DemoArgs;
use crate::command::out::{note, print};
use crate::station::{Options, Station};

use actors::{ACTORS, Actor, COSTS, Enters, RULES, USERS};
use captions::Narrator;
pub(crate) use job::TOY;
pub use job::{JOB_ARGUMENT, Job};

/// Default duration of the demo without the screen.
const HEADLESS: Duration = Duration::from_secs(30);

/// The started jobs; dropping them ends the remaining ones.
#[derive(Debug, Default)]
struct Cast {
    children: Vec<Child>,
    /// Input of the job that ends on request.
    input: Option<ChildStdin>,
}

impl Drop for Cast {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs the demo.
pub fn run(args: DemoArgs) -> anyhow::Result<i32> {
    let stop = Arc::new(AtomicBool::new(false));
    let program = std::env::current_exe().context("cannot find gshare's own executable")?;
    let options = Options {
        costs: COSTS.to_owned(),
        config: format!("{RULES}{}", projects()),
        names: USERS.iter().map(|u| (u.uid, u.name.to_owned())).collect(),
        driver: args.driver.map(|of| format!("{}.{:02}", of.0, of.1)),
        ..Options::new(program)
    };
    let options = Options {
        gpus: if args.gpus.is_empty() {
            options.gpus
        } else {
            args.gpus.clone()
        },
        ..options
    };
    let station = Station::start(&options)?;
    if args.shell {
        return shell::run(&station);
    }
    let mut cast = Cast::default();
    let started = Instant::now();
    let result = if args.headless {
        headless(&args, &station, &mut cast, started, &stop)
    } else {
        scenes::on_screen(&args, &station, &mut cast, started)
    };
    drop(cast);
    drop(station);
    result
}

/// Without root all jobs run as one user, so projects distinguish them.
fn projects() -> String {
    let me = gshare_enforcer::proc::user_name(Uid::effective().as_raw())
        .unwrap_or_else(|| Uid::effective().to_string());
    let mut text = String::new();
    for user in USERS {
        text.push_str(&format!(
            "[projects.{}]\nusers = [{:?}, {me:?}]\n\n",
            user.name, user.name
        ));
    }
    text
}

fn headless(
    args: &DemoArgs,
    station: &Station,
    cast: &mut Cast,
    started: Instant,
    stop: &Arc<AtomicBool>,
) -> anyhow::Result<i32> {
    stop_on_signals(stop)?;
    let until = args.duration.unwrap_or(HEADLESS);
    let mut waiting: Vec<&Actor> = ACTORS.iter().collect();
    let mut narrator = Narrator::default();
    let mut said: Option<String> = None;
    while started.elapsed() < until && !stop.load(Ordering::Relaxed) {
        let at = started.elapsed();
        direct(station, cast, &mut waiting, at, &narrator)?;
        let words = station.snapshot().ok();
        let words = words.and_then(|s| narrator.say(station, &s, at));
        // Print it if it is new; its figures change constantly.
        let new = |words: &&String| said.as_ref().is_none_or(|old| !alike(old, words));
        if let Some(words) = words.as_ref().filter(new) {
            note(&format!("{:5.1}s  {words}", at.as_secs_f64()));
            said = Some(words.clone());
        }
        std::thread::sleep(scenes::BEAT.min(until.saturating_sub(at)));
    }
    // A demo that is stopped early still prints the last caption.
    let code = if stop.load(Ordering::Relaxed) { 130 } else { 0 };
    if args.screens {
        return pictures(station).map(|_| code);
    }
    let snapshot = station.snapshot()?;
    if args.json {
        print(&format!("{}\n", serde_json::to_string(&snapshot)?))?;
    } else {
        let size = args.size.unwrap_or((120, 40));
        let options = gshare_ui::Options::default();
        let frame = gshare_ui::Frame {
            snapshot,
            ..gshare_ui::Frame::default()
        };
        print(&format!(
            "{}\n",
            gshare_ui::frame_text(&frame, &options, size, 0)
        ))?;
    }
    Ok(code)
}

/// Whether two sentences differ only in figures.
fn alike(a: &str, b: &str) -> bool {
    let words = |text: &str| text.replace(|c: char| c.is_ascii_digit() || c == '.', "");
    words(a) == words(b)
}

/// All screens, each after a line with its name and size.
fn pictures(station: &Station) -> anyhow::Result<i32> {
    for page in gshare_ui::Page::ALL {
        let frame = gshare_ui::Frame::ask(&mut station.client()?, page)?;
        for size in [(120, 40), (80, 24)] {
            let options = gshare_ui::Options {
                page,
                recorded: true,
                ..gshare_ui::Options::default()
            };
            let name = page.name().to_lowercase();
            let text = gshare_ui::frame_text(&frame, &options, size, 0);
            print(&format!("screen {name} {}x{}\n{text}\n", size.0, size.1))?;
            let options = gshare_ui::Options {
                look: gshare_ui::Look::new(gshare_ui::Depth::Rgb, true),
                ..options
            };
            let cells = gshare_ui::frame_cells(&frame, &options, size, 0);
            let svg = svg::svg(&cells);
            print(&format!("svg {name} {}x{}\n{svg}\n", size.0, size.1))?;
        }
    }
    Ok(0)
}

/// Ctrl-C and SIGTERM end the demo in order.
fn stop_on_signals(stop: &Arc<AtomicBool>) -> anyhow::Result<()> {
    let stop = Arc::clone(stop);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            runtime.block_on(async {
                use tokio::signal::unix::{SignalKind, signal};
                let (Ok(mut int), Ok(mut term), Ok(mut hup)) = (
                    signal(SignalKind::interrupt()),
                    signal(SignalKind::terminate()),
                    signal(SignalKind::hangup()),
                ) else {
                    return;
                };
                tokio::select! {
                    _ = int.recv() => {}
                    _ = term.recv() => {}
                    _ = hup.recv() => {}
                }
                stop.store(true, Ordering::Relaxed);
            });
        })?;
    Ok(())
}

/// Starts the actors whose time has come, and ends the one whose time is over.
fn direct(
    station: &Station,
    cast: &mut Cast,
    waiting: &mut Vec<&Actor>,
    at: Duration,
    narrator: &Narrator,
) -> anyhow::Result<()> {
    let direction = &narrator.direction;
    let enters = |actor: &&&Actor| match actor.enters {
        Enters::At(time) => time <= at,
        Enters::Opened => direction.opened(),
    };
    let (now, later): (Vec<&Actor>, Vec<&Actor>) = waiting.iter().partition(enters);
    *waiting = later;
    for actor in now {
        let mut child = start(station, actor)?;
        cast.input = child.stdin.take().or(cast.input.take());
        cast.children.push(child);
    }
    if direction.seen(at) {
        cast.input = None;
    }
    Ok(())
}

fn start(station: &Station, actor: &Actor) -> anyhow::Result<Child> {
    let log = File::create(station.dir().join(format!("{}.log", actor.name)))?;
    let mut command = station.command();
    command
        .arg("claim")
        .args(["--name", actor.name, "--project", actor.user.name])
        .args(actor.claim);
    command
        .arg("--")
        .arg(station.laboratory())
        .args(actor.job().arguments());
    if Uid::effective().is_root() {
        command.uid(actor.user.uid).gid(actor.user.uid);
    }
    command
        .stdin(match actor.enters {
            Enters::At(_) => Stdio::null(),
            Enters::Opened => Stdio::piped(),
        })
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {}", actor.name))
}

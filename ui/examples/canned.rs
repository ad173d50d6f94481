//! The screen on a canned snapshot, for looking at it and for the terminal tests:
//! `cargo run -p gshare-ui --example canned -- [demo|workstation|monitor|crowd|eventful|lab|first-day|full|mig] [--caption TEXT]
//! [--panic] [--panic-elsewhere] [--root] [--recorded]`. Claims and releases are answered as the service would.

#[path = "../tests/support/canned.rs"]
mod canned;

use std::error::Error;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use gshare_proto::{Call, ErrorCode, Granted, Reply, Snapshot};
use gshare_ui::{Exit, Failure, Options, Request, Update, Viewer};

/// Number of requests for the doctor's rows.
static LOOKS: AtomicU32 = AtomicU32::new(0);

/// Answers requests on a canned snapshot; c12 and c23 belong to the viewer.
fn answer(snapshot: &mut Snapshot, call: Call) -> Result<Reply, Failure> {
    match call {
        Call::Release { id } => {
            let before = snapshot.claims.len();
            snapshot.claims.retain(|c| c.id != id);
            if snapshot.claims.len() == before {
                return Err(Failure {
                    message: format!("no claim {id}"),
                    hint: None,
                });
            }
            let message = format!("{id} released");
            Ok(Reply::Done { message })
        }
        Call::Try(_) => Ok(Reply::Tried(gshare_proto::Tried {
            starts: true,
            entitled: true,
            message: "would start now".to_owned(),
            ..gshare_proto::Tried::default()
        })),
        Call::Resize(spec) => Ok(Reply::Resized(gshare_proto::Resized {
            message: format!("{} has another size", spec.id),
            id: spec.id.to_string(),
            gpus: Vec::new(),
        })),
        Call::Doctor => {
            let mut checks = canned::checks();
            checks[0].detail = format!("looked {} times", 1 + LOOKS.fetch_add(1, Relaxed));
            Ok(Reply::Doctor { checks })
        }
        Call::History(_) => Ok(Reply::History(Box::new(canned::recorded()))),
        Call::Lever { id, wish } => done(&format!("{id}: {}", wish.name())),
        Call::Keep { id } => done(&format!("{id} keeps what it has")),
        Call::Extend { id, by_s } => done(&format!("{id} ends {by_s} s later")),
        Call::Admin(_) => Ok(Reply::Admin(gshare_proto::AdminDone {
            message: "it is done".to_owned(),
            undo: None,
        })),
        Call::Claim(spec) if spec.gpus_milli <= Some(500) => {
            let mut claim = snapshot.claims[0].clone();
            claim.id = "c23".to_owned();
            claim.what = spec.name.unwrap_or_default().to_string();
            claim.state_text = "held".to_owned();
            snapshot.claims.push(claim);
            Ok(Reply::Granted(Granted {
                id: "c23".to_owned(),
                message: "c23: 0.25 of GPU 3 (3.6 GiB, 25 % of its time, up to 100 %), cooperative"
                    .to_owned(),
                ..Granted::default()
            }))
        }
        _ => Err(Failure {
            message: format!(
                "{:?}: needs 23.5 GiB; most free is 5.8 on GPU 0",
                ErrorCode::NotAvailable
            ),
            hint: Some("-g .2 starts now".to_owned()),
        }),
    }
}

fn done(message: &str) -> Result<Reply, Failure> {
    let message = message.to_owned();
    Ok(Reply::Done { message })
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| args.iter().any(|a| a == flag);
    let value = |flag: &str| args.iter().skip_while(|a| *a != flag).nth(1).cloned();
    let snapshot = match args.first().map(String::as_str) {
        Some("demo") => canned::demo(),
        Some("monitor") => canned::monitor(),
        Some("crowd") => canned::crowd(),
        Some("eventful") => canned::eventful(),
        Some("lab") => canned::lab(),
        Some("first-day") => canned::first_day(),
        Some("full") => canned::nothing_free(),
        Some("mig") => canned::mig(),
        _ => canned::workstation(),
    };
    let options = Options {
        viewer: Viewer {
            uid: if has("--root") { 0 } else { 1001 },
            admin: has("--root"),
        },
        recorded: has("--recorded"),
        ..Options::default()
    };
    let (mut feeder, feed) = gshare_ui::channel();
    feeder.updates.send(Update::Caption(value("--caption")));
    let state = Arc::new(Mutex::new(snapshot));
    let lock = |state: &Mutex<Snapshot>| state.lock().map(|s| s.clone()).unwrap_or_default();
    let (ticking, updates) = (Arc::clone(&state), feeder.updates.clone());
    // Like the service: a snapshot every second, changed or not.
    thread::spawn(move || {
        while updates.send(Update::Snapshot(Box::new(lock(&ticking)))) {
            thread::sleep(Duration::from_secs(1));
        }
    });
    thread::spawn(move || {
        while let Some(request) = feeder.requests.blocking_recv() {
            let (seq, call) = match request {
                Request::Call { seq, call } => (seq, call),
                other => {
                    // Shown, so that a test can see it.
                    let told = Update::Caption(Some(format!("asked: {other:?}")));
                    feeder.updates.send(told);
                    continue;
                }
            };
            let Ok(mut snapshot) = state.lock() else {
                continue;
            };
            let outcome = answer(&mut snapshot, *call);
            let changed = Update::Snapshot(Box::new(snapshot.clone()));
            feeder.updates.send(Update::CallResult { seq, outcome });
            feeder.updates.send(changed);
        }
    });
    if has("--panic-elsewhere") {
        thread::spawn(|| {
            thread::sleep(Duration::from_millis(300));
            panic!("on purpose");
        });
    }
    let exit = if has("--panic") {
        panic_after_first_frame(options, feed)
    } else {
        gshare_ui::run_blocking(options, feed)
    };
    match exit? {
        Exit::Quit => println!("left: quit"),
        Exit::Signal(number) => println!("left: signal {number}"),
    }
    Ok(())
}

/// Panics in the thread that draws, while the screen is on the terminal.
fn panic_after_first_frame(options: Options, feed: gshare_ui::Feed) -> std::io::Result<Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        tokio::select! {
            exit = gshare_ui::run(options, feed) => exit,
            () = tokio::time::sleep(Duration::from_millis(300)) => panic!("on purpose"),
        }
    })
}

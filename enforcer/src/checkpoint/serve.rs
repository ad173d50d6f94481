//! The process that talks to the driver: one line in, one line out, each step on a thread of its own.

use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::sys::Driver;
use super::{Answer, Outcome, Request};

static OUT: Mutex<()> = Mutex::new(());

fn tell(seq: u64, outcome: Outcome) -> bool {
    let Ok(mut line) = serde_json::to_string(&Answer { seq, outcome }) else {
        return false;
    };
    line.push('\n');
    let _one = OUT.lock().unwrap_or_else(PoisonError::into_inner);
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes())
        .and_then(|()| out.flush())
        .is_ok()
}

/// Serves the other end of standard input and output, until it is closed.
pub fn serve(libcuda: &Path) {
    let driver = match Driver::load(libcuda) {
        Ok(driver) => driver,
        Err(why) => {
            tell(0, why);
            return;
        }
    };
    if !tell(0, Outcome::Done) {
        return;
    }
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let Ok(request) = serde_json::from_str::<Request>(&line) else {
            continue;
        };
        let seq = request.seq;
        let thread = std::thread::Builder::new().name("step".to_owned());
        let started = thread.spawn(move || {
            tell(request.seq, driver.run(request.pid, &request.step));
        });
        if let Err(error) = started {
            tell(seq, Outcome::Unusable(error.to_string()));
        }
    }
}

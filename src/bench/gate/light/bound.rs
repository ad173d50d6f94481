//! Lower bound for the cost of an arbiter that is woken at the start of each burst of work, and decides then what follows
//! it: processor time for a doorbell on this machine.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::time::{ClockId, clock_gettime};

/// Number of repetitions.
const TIMES: u16 = 300;
/// Sleep of the thread between two of them.
const APART: Duration = Duration::from_millis(1);

/// Processor time in microseconds of a doorbell that wakes one thread, which wakes another.
pub(super) fn doorbell_us() -> io::Result<f64> {
    let (bell, rung) = UnixDatagram::pair()?;
    let (told, tells) = std::sync::mpsc::channel::<()>();
    let woken = std::thread::spawn(move || while tells.recv().is_ok() {});
    let ringing = std::thread::spawn(move || {
        for _ in 0..TIMES {
            std::thread::sleep(APART);
            // The receiver exists until this thread ends.
            let _ = bell.send(&[0]);
        }
    });
    let from = cpu_us()?;
    for _ in 0..TIMES {
        poll(
            &mut [PollFd::new(
                std::os::fd::AsFd::as_fd(&rung),
                PollFlags::POLLIN,
            )],
            PollTimeout::NONE,
        )?;
        rung.recv(&mut [0])?;
        let _ = told.send(());
    }
    let rang = cpu_us()? - from;
    drop(told);
    let _ = (ringing.join(), woken.join());
    Ok(rang / f64::from(TIMES))
}

/// Processor time of this thread.
fn cpu_us() -> io::Result<f64> {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
    Ok(Duration::from(time).as_secs_f64() * 1e6)
}

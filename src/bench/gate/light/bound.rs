//! The least that telling of work by doorbell and by the clock costs a thread of this machine, in processor time: what an
//! arbiter that hears when each burst of work begins, and looks when it is over, can do it for.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::time::{ClockId, clock_gettime};

/// How often each is done.
const TIMES: u16 = 300;
/// Between two of them the thread sleeps.
const APART: Duration = Duration::from_millis(1);

/// Microseconds of processor time that a doorbell with the waking of one thread, and a wait that ends by the clock, take
/// together.
pub(super) fn hand_over_us() -> io::Result<f64> {
    let (bell, rung) = UnixDatagram::pair()?;
    let (told, tells) = std::sync::mpsc::channel::<()>();
    let woken = std::thread::spawn(move || while tells.recv().is_ok() {});
    let ringing = std::thread::spawn(move || {
        for _ in 0..TIMES {
            std::thread::sleep(APART);
            // The other end is there until this thread is through.
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
    let from = cpu_us()?;
    for _ in 0..TIMES {
        poll(&mut [], APART.as_millis() as u16)?;
    }
    Ok((rang + cpu_us()? - from) / f64::from(TIMES))
}

/// Processor time of this thread.
fn cpu_us() -> io::Result<f64> {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
    Ok(Duration::from(time).as_secs_f64() * 1e6)
}

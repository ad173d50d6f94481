//! Many consecutive launches, by one or several threads.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use super::client::{Library, Raw, call};

fn launch(cuda: &Library, function: u64, stream: u64) -> i32 {
    call!(cuda, "cuLaunchKernel", (
        function => u64, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 1 => u32,
        0 => u32, stream => u64, 0 => u64, 0 => u64
    ))
}

/// Launches `count` times and waits for the stream; returns the time in microseconds.
pub(super) fn burst(cuda: &Library, function: u64, stream: u64, count: u64, to: *mut u64) -> i32 {
    let begun = Instant::now();
    for _ in 0..count {
        let code = launch(cuda, function, stream);
        if code != 0 {
            return code;
        }
    }
    let code = call!(cuda, "cuStreamSynchronize", (stream => u64));
    // SAFETY: the caller's own number.
    unsafe { *to = begun.elapsed().as_micros() as u64 };
    code
}

/// Launches `count` times, with at most two batches in flight, like a program that reads results; returns the time in
/// microseconds.
pub(super) fn flood(
    cuda: &Library,
    function: u64,
    stream: u64,
    (count, batch): (u64, u64),
    to: *mut u64,
) -> i32 {
    let begun = Instant::now();
    let mut events = [0_u64; 2];
    for event in &mut events {
        call!(cuda, "cuEventCreate", (&raw mut *event => *mut u64, 1 => u32));
    }
    let mut code = 0;
    for turn in 0..(count / batch) as usize {
        let event = events[turn % 2];
        if turn >= 2 {
            code = code.max(call!(cuda, "cuEventSynchronize", (event => u64)));
        }
        for _ in 0..batch {
            code = code.max(launch(cuda, function, stream));
        }
        code = code.max(call!(cuda, "cuEventRecord", (event => u64, stream => u64)));
    }
    code = code.max(call!(cuda, "cuStreamSynchronize", (stream => u64)));
    // SAFETY: the caller's own number.
    unsafe { *to = begun.elapsed().as_micros() as u64 };
    code
}

/// The same by several threads, each on a stream of its own; returns the total time in microseconds.
pub(super) fn threads(
    cuda: &Library,
    context: usize,
    function: u64,
    count: u64,
    threads: u64,
    to: *mut u64,
) -> i32 {
    let library = cuda.0 as usize;
    let begun = Instant::now();
    let code = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(move || {
                    let cuda = Library(library as Raw);
                    let (mut stream, mut took) = (0_u64, 0_u64);
                    call!(cuda, "cuCtxSetCurrent", (context => usize));
                    let made = call!(cuda, "cuStreamCreate", (
                        &raw mut stream => *mut u64, 1 => u32
                    ));
                    made.max(burst(&cuda, function, stream, count, &raw mut took))
                })
            })
            .collect();
        workers.into_iter().map(|w| w.join().unwrap()).max()
    });
    // SAFETY: the caller's own number.
    unsafe { *to = begun.elapsed().as_micros() as u64 };
    code.unwrap_or(0)
}

static HEARD: AtomicU64 = AtomicU64::new(0);

extern "C" fn note(_signal: i32) {
    HEARD.fetch_add(1, Ordering::SeqCst);
}

/// Counts SIGUSR1 from now on.
pub(super) fn heed() -> i32 {
    // SAFETY: the handler only counts.
    let old = unsafe { libc::signal(libc::SIGUSR1, note as *const () as libc::sighandler_t) };
    i32::from(old == libc::SIG_ERR)
}

/// Number of SIGUSR1 so far.
pub(super) fn heard() -> u64 {
    HEARD.load(Ordering::SeqCst)
}

extern "C" fn sleep(ms: *mut std::ffi::c_void) {
    std::thread::sleep(std::time::Duration::from_millis(ms as u64));
}

/// A host function that holds up a stream for this many milliseconds.
pub(super) fn hold(cuda: &Library, stream: u64, ms: u64) -> i32 {
    call!(cuda, "cuLaunchHostFunc", (
        stream => u64, sleep => extern "C" fn(*mut std::ffi::c_void), ms => u64
    ))
}

/// Exits in one of several ways while launches are on the GPU; with code 7 if the way has one.
pub(super) fn exit_by(
    cuda: &Library,
    context: usize,
    way: &str,
    function: u64,
    stream: u64,
) -> i32 {
    if way == "thread" {
        // A thread that is nearly always in a call.
        let library = cuda.0 as usize;
        std::thread::spawn(move || {
            let cuda = Library(library as Raw);
            call!(cuda, "cuCtxSetCurrent", (context => usize));
            while launch(&cuda, function, stream) == 0 {}
        });
        std::thread::sleep(std::time::Duration::from_millis(3));
    }
    for _ in 0..3 {
        launch(cuda, function, stream);
    }
    if way == "fork" {
        // SAFETY: the child exits at once, and runs the handlers that it inherited.
        match unsafe { libc::fork() } {
            // SAFETY: ends the process.
            0 => unsafe { libc::exit(7) },
            child => {
                let mut status = 0;
                // SAFETY: the process's own child.
                unsafe { libc::waitpid(child, &raw mut status, 0) };
                assert_eq!(libc::WEXITSTATUS(status), 7);
            }
        }
    }
    match way {
        // SAFETY: ends the process.
        "_exit" => unsafe { libc::_exit(7) },
        "term" => {
            // SAFETY: to this process itself, which has no handler.
            unsafe { libc::raise(libc::SIGTERM) };
            0
        }
        "return" => 0,
        // SAFETY: ends the process.
        _ => unsafe { libc::exit(7) },
    }
}

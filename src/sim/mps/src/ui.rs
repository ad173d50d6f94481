//! Passes commands from standard input to the daemon and prints the replies.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use crate::Place;

/// Ends a reply.
pub(crate) const END: u8 = 0;

pub(crate) fn run(place: &Place) -> ExitCode {
    let Ok(stream) = UnixStream::connect(place.pipe.join("control")) else {
        eprintln!("Cannot find MPS control daemon process");
        return ExitCode::FAILURE;
    };
    match talk(&stream) {
        Ok(code) => code,
        Err(_) => {
            eprintln!("Cannot send command to MPS control daemon process");
            ExitCode::FAILURE
        }
    }
}

fn talk(stream: &UnixStream) -> std::io::Result<ExitCode> {
    let mut to = stream;
    let mut from = BufReader::new(stream);
    to.write_all(b"ui\n")?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        writeln!(to, "{line}")?;
        let mut reply = Vec::new();
        from.read_until(END, &mut reply)?;
        if reply.pop_if(|last| *last == END).is_none() {
            // Only `quit` ends the daemon; its last reply is the exit status of its last server.
            return Ok(match reply.first() {
                Some(b'0') => ExitCode::SUCCESS,
                _ => ExitCode::FAILURE,
            });
        }
        std::io::stdout().write_all(&reply)?;
    }
    Ok(ExitCode::SUCCESS)
}

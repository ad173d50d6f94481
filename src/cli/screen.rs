//! `gshare` without arguments: the screen, on the service or, without one, on what the driver says.

use std::io::{self, IsTerminal};
use std::path::Path;

use gshare_proto::Client;
use gshare_ui::{Exit, Feed, Options, run_blocking, service_source};

use super::Outcome;
use super::connect;
use super::failure::{self, Failure};

pub(crate) fn run(socket: Option<&Path>) -> Outcome {
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return Err(
            Failure::new(failure::USAGE, "the screen needs a terminal").with_hint(
                "for scripts there are `gshare status`, `gshare ps` and `gshare queue`, each with --json",
            ),
        );
    }
    let named = socket.is_some() || std::env::var_os("GSHARE_SOCKET").is_some();
    match run_blocking(Options::default(), feed(socket, named)?)? {
        Exit::Quit => Ok(0),
        Exit::Signal(number) => Ok(u8::try_from(128 + number).unwrap_or(failure::INTERNAL)),
    }
}

fn feed(socket: Option<&Path>, named: bool) -> Result<Feed, Failure> {
    let found = connect::socket(socket).and_then(|path| {
        // Whether something answers is known before the terminal is taken.
        Client::connect(&path)?;
        Ok(path)
    });
    match found {
        Ok(path) => Ok(service_source(&path)),
        Err(failure) if named || failure.code == failure::NOT_PERMITTED => Err(failure),
        Err(_) => crate::monitor::source().map_err(|e| {
            let text = Failure::from(e).message;
            // The list of places that were searched is for `gshare daemon`.
            let why = text.split("; looked at").next().unwrap_or_default();
            Failure::new(
                failure::NO_SERVICE,
                format!(
                    "no gshare service on this machine, and nothing to look at without one: {why}"
                ),
            )
            .with_hint("to see gshare without a GPU: gshare demo")
        }),
    }
}

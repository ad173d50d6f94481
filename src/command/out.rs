//! What reaches the terminal: messages, JSON, colour.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;
use serde_json::Value;

use super::failure::Failure;

/// A line for people on stderr. Nobody is left to tell when stderr is closed.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Prints a failure: `gshare: what: why` and `hint: what next`.
pub(crate) fn failure(failure: &Failure) {
    if !failure.message.is_empty() {
        note(&format!("gshare: {}", failure.message));
    }
    if let Some(hint) = &failure.hint {
        note(&format!("hint: {hint}"));
    }
}

/// Text on stdout.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()?;
    Ok(())
}

/// An empty screen for what is printed next, where stdout is a terminal.
pub(crate) fn clear() -> Result<(), Failure> {
    match io::stdout().is_terminal() {
        true => print("\x1b[H\x1b[2J"),
        false => Ok(()),
    }
}

/// One JSON value on stdout: indented on a terminal, one line elsewhere.
pub(crate) fn json(value: &impl Serialize) -> Result<(), Failure> {
    print(&json_text(value, io::stdout().is_terminal())?)
}

/// The JSON text of a value, with a line end.
pub(crate) fn json_text(value: &impl Serialize, indented: bool) -> Result<String, Failure> {
    let text = serde_json::to_value(value).and_then(|mut value| {
        add_words(&mut value);
        match indented {
            true => serde_json::to_string_pretty(&value),
            false => serde_json::to_string(&value),
        }
    });
    let text = text.map_err(|e| Failure::new(super::failure::INTERNAL, e.to_string()))?;
    Ok(text + "\n")
}

/// Keys of the wire with another word than users meet, and that word. Version 0.3 drops the former from the output.
const WORDS: [(&str, &str); 6] = [
    ("claimable", "free"),
    ("claimable_now", "free_now"),
    ("sm_request", "sm_size"),
    ("mem_request", "mem_size"),
    ("borrowed_gpu_s", "burst_gpu_s"),
    ("entitled", "within_guarantee"),
];

/// Adds the values of these keys under the words of users.
fn add_words(value: &mut Value) {
    match value {
        Value::Array(all) => all.iter_mut().for_each(add_words),
        Value::Object(map) => {
            map.values_mut().for_each(add_words);
            for (key, word) in WORDS {
                if let Some(value) = map.get(key).cloned() {
                    map.insert(word.to_owned(), value);
                }
            }
        }
        _ => {}
    }
}

/// Columns of the terminal on stdout; `None` where stdout is not one, so that nothing is cut.
pub(crate) fn columns() -> Option<usize> {
    let stdout = io::stdout();
    if !stdout.is_terminal() {
        return None;
    }
    let (width, _) = terminal_size::terminal_size_of(&stdout)?;
    Some(usize::from(width.0))
}

/// Whether stdout should have colour: a terminal, and NO_COLOR not set.
pub(crate) fn colour() -> bool {
    io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
        && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
}

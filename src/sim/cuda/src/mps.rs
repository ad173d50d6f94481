//! The process as a client of MPS, if `CUDA_MPS_PIPE_DIRECTORY` names the directory of a (simulated) control daemon.
//! Without an answer there the process runs without MPS, as with the real driver.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use gshare_sim_board::{BoardSnapshot, Model};

use crate::code::{MPS_CONNECTION_FAILED, R};

/// Timeout for the daemon's answer, which may wait for another user's clients.
const PATIENCE: Duration = Duration::from_secs(30);

/// The daemon's answer.
#[derive(Debug)]
pub(crate) struct Client {
    /// Board id of the server.
    pub server: u64,
    parts: Vec<Part>,
    /// Open for the life of the process.
    _stream: UnixStream,
}

/// The client's part of one device.
#[derive(Debug)]
struct Part {
    uuid: String,
    sms: u32,
    /// Bytes; 0 for no limit.
    pinned: u64,
}

/// Connects to the daemon, if there is one.
pub(crate) fn connect() -> R<Option<Client>> {
    let Some(dir) = std::env::var_os("CUDA_MPS_PIPE_DIRECTORY").filter(|d| !d.is_empty()) else {
        return Ok(None);
    };
    let Ok(stream) = UnixStream::connect(PathBuf::from(dir).join("control")) else {
        return Ok(None);
    };
    let failed = |_| MPS_CONNECTION_FAILED;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    let variable = |name: &str| {
        let value = std::env::var(name).unwrap_or_default();
        if value.is_empty() {
            "-".to_owned()
        } else {
            value
        }
    };
    let hello = format!(
        "client {} {}\n",
        variable("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"),
        variable("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
    );
    (&stream).write_all(hello.as_bytes()).map_err(failed)?;
    let mut line = String::new();
    BufReader::new(&stream)
        .read_line(&mut line)
        .map_err(failed)?;
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.as_slice() {
        ["ok", server, uuids, sms, pinned] => Ok(Some(Client {
            server: server.parse().map_err(|_| MPS_CONNECTION_FAILED)?,
            parts: parts(uuids, sms, pinned),
            _stream: stream,
        })),
        ["error", code] => Err(code.parse().unwrap_or(MPS_CONNECTION_FAILED)),
        _ => Err(MPS_CONNECTION_FAILED),
    }
}

fn parts(uuids: &str, sms: &str, pinned: &str) -> Vec<Part> {
    let numbers = sms.split(',').zip(pinned.split(','));
    let part = |(uuid, (sms, mib)): (&str, (&str, &str))| Part {
        uuid: uuid.to_owned(),
        sms: sms.parse().unwrap_or(0),
        pinned: mib.parse::<u64>().unwrap_or(0) << 20,
    };
    uuids.split(',').zip(numbers).map(part).collect()
}

impl Client {
    /// SMs and bytes of a GPU of the board; `None` if the server does not have it.
    pub(crate) fn part(&self, board: &BoardSnapshot, gpu: usize) -> Option<(u32, u64)> {
        let uuid = &board.gpus[gpu].uuid;
        let part = self.parts.iter().find(|p| p.uuid == *uuid)?;
        Some((part.sms, part.pinned))
    }
}

/// A copy of the model with fewer SMs, as a client sees the GPU. Leaks once per device of a process.
pub(crate) fn with_sms(model: &'static Model, sms: u32) -> &'static Model {
    if sms == 0 || sms >= model.sms {
        return model;
    }
    Box::leak(Box::new(Model { sms, ..*model }))
}

//! The server: a process on the board, whose clients run side by side. It only has to exist: the board ends its
//! clients' work when it dies.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use gshare_sim_board::{Board, Opener, ProcessInfo};

use crate::{Place, SERVER};

pub(crate) fn run(place: &Place) -> ExitCode {
    match serve(place) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}

fn serve(place: &Place) -> Result<(), String> {
    let board = Board::open(&place.board).map_err(|e| e.to_string())?;
    let mut info = ProcessInfo::current();
    SERVER.clone_into(&mut info.name);
    let slot = board.register(&info).map_err(|e| e.to_string())?;
    for gpu in devices(&board) {
        board.serve_mps(slot, gpu).map_err(|e| e.to_string())?;
        board.open_gpu(Opener::Cuda, gpu);
    }
    let path = place.pipe.join("control");
    let mut control = UnixStream::connect(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let ready = format!("server {} {}\n", std::process::id(), slot.id());
    control
        .write_all(ready.as_bytes())
        .map_err(|e| e.to_string())?;
    // The daemon keeps the other end open while it wants a server.
    let mut rest = Vec::new();
    let _ = control.read_to_end(&mut rest);
    Ok(())
}

/// Board indices of the GPUs in `CUDA_VISIBLE_DEVICES`, in its order; all GPUs without it.
pub(crate) fn devices(board: &Board) -> Vec<usize> {
    let seen = board.snapshot();
    let all = || (0..seen.gpus.len()).filter(|g| seen.gpus[*g].is_usable());
    let Ok(list) = std::env::var("CUDA_VISIBLE_DEVICES") else {
        return all().collect();
    };
    let find = |entry: &str| match entry.parse::<usize>() {
        Ok(index) => all().nth(index),
        Err(_) => all().find(|g| seen.gpus[*g].uuid.starts_with(entry)),
    };
    list.split(',').map(str::trim).map_while(find).collect()
}

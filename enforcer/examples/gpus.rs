//! Prints what NVML says of the GPUs, as the service reads it.
//!
//! `cargo run -p gshare-enforcer --example gpus [LIBRARY]`

use std::time::Duration;

use gshare_enforcer::driver::{Library, Search};
use gshare_enforcer::gpu::{Observer, ObserverConfig};

fn main() {
    let search = Search {
        configured: std::env::args_os().nth(1).map(Into::into),
        ..Search::of_this_process()
    };
    let library = match search.locate(Library::Nvml) {
        Ok(library) => library,
        Err(e) => return println!("{e}"),
    };
    let (sample_tx, sample_rx) = std::sync::mpsc::channel();
    let observer = Observer::spawn(ObserverConfig::new(library), move |sample| {
        // The receiver is gone at the end of main only.
        let _ = sample_tx.send(sample);
    });
    if let Err(e) = observer.sample_now(Duration::from_secs(20)) {
        return println!("{e}");
    }
    // The counters need a second sample.
    match sample_rx.iter().nth(1) {
        Some(sample) => println!("{sample:#?}"),
        None => println!("no sample came"),
    }
}

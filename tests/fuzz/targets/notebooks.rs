//! A notebook server that wishes ill: the helper asks it as it asks every other, over a socket file, and the input is what
//! the server answers. The helper's own files are compiled in.
#![no_main]
#![allow(
    dead_code,
    reason = "the helper's files have parts that this target does not call"
)]

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use libfuzzer_sys::fuzz_target;

#[path = "../../../src/kernel/seen.rs"]
mod seen;
#[path = "../../../src/kernel/servers.rs"]
mod servers;
#[path = "../../../src/kernel/web.rs"]
mod web;

/// The server's next answer.
static ANSWER: Mutex<Vec<u8>> = Mutex::new(Vec::new());
/// Longest name that is passed on, in characters.
const NAME: usize = 1024;

fn answer(mut stream: UnixStream) -> std::io::Result<()> {
    let mut question = [0; 4096];
    let n = stream.read(&mut question)?;
    if n == 0 {
        // Its time was over before it asked.
        return Ok(());
    }
    let question = String::from_utf8_lossy(&question[..n]).into_owned();
    assert!(question.starts_with("GET /x/api/"), "{question}");
    assert_eq!(question.matches("\r\n\r\n").count(), 1, "{question}");
    let answer = ANSWER.lock().unwrap_or_else(PoisonError::into_inner).clone();
    stream.write_all(&answer)
}

/// Where the server's file is, with the server behind it.
fn directory() -> &'static Path {
    static MADE: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = MADE.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("s");
        let listener = UnixListener::bind(&socket).expect("bound");
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // One that hangs up early misses the rest.
                let _ = answer(stream);
            }
        });
        let text = format!(
            r#"{{"url": "http+unix://s/x/", "sock": {socket:?}, "token": "t", "pid": {}, "root_dir": "/r"}}"#,
            std::process::id()
        );
        std::fs::write(dir.path().join("jpserver-1.json"), text).expect("written");
        let path = dir.path().to_owned();
        (dir, path)
    });
    path
}

fuzz_target!(|data: &[u8]| {
    // Most inputs are the body alone: the head is soon known.
    let whole = match data.split_first() {
        Some((0, head)) => head.to_vec(),
        _ => [b"HTTP/1.0 200 OK\r\n\r\n".as_slice(), data].concat(),
    };
    *ANSWER.lock().unwrap_or_else(PoisonError::into_inner) = whole;
    let sought = ["k1", "k2"].map(|id| servers::Sought {
        id: id.to_owned(),
        dir: directory().to_owned(),
        pid: 0,
    });
    let seen = servers::Asker::default().look(&sought);
    assert!(seen.len() <= sought.len());
    for one in seen {
        assert!(sought.iter().any(|s| s.id == one.id), "nobody asked for {one:?}");
        assert!(one.path.is_none_or(|p| p.chars().count() <= NAME));
    }
});

//! The socket under strange clients: garbage, long lines, half lines, many idle connections, another
//! protocol. Each gets an error or a clean close, and others are served meanwhile.

use crate::support;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use gshare::station::Station;
use gshare_abi::wire::{Register, Request};
use support::station;

fn connect(station: &Station) -> UnixStream {
    let stream = UnixStream::connect(station.socket()).expect("connects");
    stream
        .set_read_timeout(Some(Duration::from_secs(15)))
        .expect("set");
    stream
}

/// Sends bytes, closes the sending side, and returns all that comes back.
fn say(station: &Station, bytes: &[u8]) -> String {
    let mut stream = connect(station);
    // The service may close before it has read all.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn served(station: &Station) {
    let started = Instant::now();
    assert_eq!(station.snapshot().expect("others are served").gpus.len(), 4);
    assert!(
        started.elapsed() < Duration::from_secs(2),
        "others are served in time"
    );
}

#[test]
fn garbage_gets_an_error_and_others_are_served() {
    let station = station();
    let check = |bytes: &[u8], expect: &str| {
        let answer = say(&station, bytes);
        assert!(
            answer.contains(expect),
            "{:?} -> {answer:?}",
            String::from_utf8_lossy(&bytes[..bytes.len().min(60)])
        );
        served(&station);
    };
    let hello = b"{\"gshare\":1}\n".to_vec();
    let after = |line: &[u8]| [hello.as_slice(), line].concat();
    check(b"\x00\xff\xfe garbage\n", "bad_request");
    check(b"GET / HTTP/1.1\r\n\r\n", "bad_request");
    check(b"{\"gshare\":0}\n", "\"code\":\"protocol\"");
    check(b"{\"gshare\":999}\n", "\"code\":\"protocol\"");
    check(&after(b"{\"op\":\"no such thing\"}\n"), "bad_request");
    check(
        &after(b"{\"op\":\"claim\",\"gpus_milli\":\"half\"}\n"),
        "bad_request",
    );
    check(
        &after(b"{\"op\":\"claim\",\"gpus_milli\":0}\n"),
        "\"code\":\"usage\"",
    );
    check(
        &after(b"{\"op\":\"claim\",\"gpus_milli\":4294967295}\n"),
        "\"code\":\"usage\"",
    );
    check(
        &after(b"{\"op\":\"release\",\"id\":\"c18446744073709551615\"}\n"),
        "no_claim",
    );
    check(&after(b"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\n"), "bad_request");
    // Members, also those of 0.1, which spoke JSON.
    let register = |abi: u32| {
        let asked = Register {
            abi,
            pid: 1,
            hint: Some(1),
            looks: false,
        };
        Request::Register(asked).bytes()
    };
    check(&register(gshare_abi::ABI_VERSION), "no_claim");
    check(&register(1), "versions differ: the service has 3");
    check(&register(3)[..20], "");
    let changed = |at: usize, to: u8| {
        let mut bytes = register(3);
        bytes[at] = to;
        bytes
    };
    check(&changed(3, b'x'), "does not start with a message header");
    check(
        &changed(4, 9),
        "it has version 9, but this program knows only version 2",
    );
    check(&changed(6, 99), "unknown request kind 99");
    check(&changed(9, 5), "longer than");
    check(b"{\"op\":\"register\",\"abi\":2}\n", "bad_request");
    check(
        b"{\"op\":\"register\",\"abi\":1,\"pid\":1,\"hint\":1}\n",
        "\"code\":\"abi\"",
    );
    check(
        b"{\"op\":\"register\",\"abi\":3,\"pid\":1,\"hint\":1}\n",
        "no_claim",
    );
}

#[test]
fn a_long_line_is_refused() {
    let station = station();
    let mut line = vec![b'x'; 1 << 20];
    line.push(b'\n');
    let answer = say(&station, &line);
    assert!(
        answer.is_empty() || answer.contains("longer than"),
        "{answer:?}"
    );
    let padded = format!("{{\"gshare\":1,\"client\":\"{}\"}}\n", "y".repeat(1 << 20));
    let answer = say(&station, padded.as_bytes());
    assert!(
        answer.is_empty() || answer.contains("longer than"),
        "{answer:?}"
    );
    served(&station);
}

#[test]
fn half_lines_and_a_thousand_idle_connections_disturb_nobody() {
    let station = station();
    assert_eq!(say(&station, b"{\"gsha"), "");
    let mut idle = Vec::new();
    for i in 0..1000 {
        match UnixStream::connect(station.socket()) {
            Ok(mut stream) => {
                if i % 3 == 0 {
                    let _ = stream.write_all(b"{\"gshare\":1");
                }
                idle.push(stream);
            }
            // A full backlog is an answer too; the next try comes after the service has looked.
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    assert!(idle.len() > 500, "{} connections were made", idle.len());
    served(&station);
    // The oldest were let go: one user keeps only so many.
    let mut first = idle.swap_remove(0);
    first
        .set_read_timeout(Some(Duration::from_secs(5)))
        .expect("set");
    assert_eq!(first.read(&mut [0; 16]).expect("closed cleanly"), 0);
}

#[test]
fn a_client_that_sends_byte_by_byte_is_understood() {
    let station = station();
    let mut stream = connect(&station);
    for byte in b"{\"gshare\":1}\n{\"op\":\"snapshot\"}\n" {
        stream.write_all(&[*byte]).expect("sent");
    }
    stream.shutdown(std::net::Shutdown::Write).expect("shut");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("answered");
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.contains("\"reply\":\"snapshot\""));
}

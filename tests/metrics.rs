//! The figures for Prometheus: read by a parser that nobody here wrote, and served to hostile scrapers without
//! harm to anybody.

use crate::support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use gshare::station::Station;
use serde_json::Value;
use support::{Raw, python, station_with, until};

const SOON: Duration = Duration::from_secs(15);
const MIB: u64 = 1 << 20;

fn exporting(listen: &str, more: &str) -> Station {
    station_with(|o| {
        o.gpus = vec!["rtx4090".into(), "h100".into()];
        o.config = format!("[metrics]\nlisten = {listen:?}\n{more}");
    })
}

/// Where the station's exporter listens, as doctor tells it.
fn address(station: &Station) -> String {
    let output = station.command().args(["doctor", "--json"]).output();
    let value: Value = serde_json::from_slice(&output.expect("runs").stdout).expect("JSON");
    let checks = value["checks"].as_array().expect("checks").clone();
    let row = checks.iter().find(|c| c["name"] == "metrics");
    let detail = row.expect("a row")["detail"].as_str().expect("a text");
    let place = detail.split("http://").nth(1).expect(detail);
    place.split('/').next().expect("an address").to_owned()
}

/// The families of a page, by the independent parser.
fn scrape(bin: &Path, address: &str) -> Value {
    let output = Command::new(bin.join("python"))
        .arg(python::script("scrape.py"))
        .arg(address)
        .output()
        .expect("python runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The value of a family's only sample with these labels.
fn value(page: &Value, family: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let samples = page[family]["samples"].as_array().expect(family);
    let fits = |s: &&Value| labels.iter().all(|(n, v)| s["labels"][n] == *v);
    let found: Vec<f64> = samples
        .iter()
        .filter(fits)
        .filter_map(|s| s["value"].as_f64())
        .collect();
    assert!(found.len() <= 1, "{family} {labels:?}: {found:?}");
    found.first().copied()
}

/// A request as raw bytes, and all of the answer.
fn raw(address: &str, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).expect("listens");
    stream.set_read_timeout(Some(SOON)).expect("set");
    stream.write_all(request).expect("sent");
    let mut answer = Vec::new();
    // A connection that is closed with unread bytes is reset.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn an_independent_parser_reads_what_the_snapshot_says() {
    let Some(bin) = python::bin("an_independent_parser_reads_what_the_snapshot_says") else {
        return;
    };
    let station = exporting("127.0.0.1:0", "[privacy]\nnames = \"all\"\n");
    let address = address(&station);
    let mut one = Raw::claim(
        &station,
        &["-q", "-g", "0.25", "--name", "a\"b\\c", "--gpu-ids", "0"],
    );
    assert_eq!(one.ask(&format!("alloc {}", 512 * MIB)), "ok 0");
    let (room, _) = one.info();
    let over = one.ask(&format!("alloc {}", room + 1));
    assert!(over.starts_with("error 2"), "{over}");
    let other = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "1"]);
    let drained = station.command().args(["admin", "drain", "1"]).output();
    assert!(drained.expect("runs").status.success());

    let (page, snapshot) = until("the page has what was refused", SOON, || {
        let page = scrape(&bin, &address);
        let refused = value(
            &page,
            "gshare_claim_allocation_refusals_total",
            &[("claim", "c1")],
        );
        let snapshot = station.snapshot().ok()?;
        let used = snapshot.claims[0].gpus[0].mem_used.filter(|b| *b > 0)? as f64;
        let told = value(&page, "gshare_claim_memory_used_bytes", &[("claim", "c1")]);
        (refused == Some(1.0) && told == Some(used)).then_some((page, snapshot))
    });
    let part = &snapshot.claims[0].gpus[0];
    for (family, labels, wanted) in [
        ("gshare_claims", vec![], 2.0),
        ("gshare_queue_length", vec![], 0.0),
        ("gshare_granted_total", vec![], 2.0),
        ("gshare_allocation_refusals_total", vec![], 1.0),
        ("gshare_gpu_up", vec![("gpu", "0")], 1.0),
        ("gshare_gpu_drained", vec![("gpu", "0")], 0.0),
        ("gshare_gpu_drained", vec![("gpu", "1")], 1.0),
        ("gshare_gpu_sm_requested_ratio", vec![("gpu", "1")], 0.5),
        (
            "gshare_claim_sm_requested_ratio",
            vec![("claim", "c1")],
            0.25,
        ),
        (
            "gshare_claim_memory_limit_bytes",
            vec![("claim", "c1")],
            part.mem_limit as f64,
        ),
        (
            "gshare_claim_memory_charged_bytes",
            vec![("claim", "c1")],
            part.mem_charge.expect("known") as f64,
        ),
        (
            "gshare_claim_info",
            vec![("claim", "c1"), ("name", "a\"b\\c")],
            1.0,
        ),
        (
            "DCGM_FI_DEV_FB_TOTAL",
            vec![("gpu", "0")],
            (snapshot.gpus[0].mem_total.expect("known") / MIB) as f64,
        ),
    ] {
        assert_eq!(value(&page, family, &labels), Some(wanted), "{family}");
    }
    // What is not known is absent: the RTX 4090 counts no SM activity, the H100 does.
    for family in ["DCGM_FI_PROF_SM_ACTIVE", "gshare_gpu_sm_active_ratio"] {
        assert_eq!(value(&page, family, &[("gpu", "0")]), None, "{family}");
        assert!(value(&page, family, &[("gpu", "1")]).is_some(), "{family}");
    }
    let dcgm = &page["DCGM_FI_DEV_FB_USED"]["samples"][0]["labels"];
    assert_eq!(dcgm["device"], "nvidia0");
    assert_eq!(dcgm["UUID"], snapshot.gpus[0].uuid);
    assert_eq!(page["gshare_queue_wait_seconds"]["type"], "histogram");
    assert_eq!(page["gshare_granted_total"]["type"], "counter");
    drop((one, other));
}

#[test]
fn a_unix_socket_serves_the_same() {
    let Some(bin) = python::bin("a_unix_socket_serves_the_same") else {
        return;
    };
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("metrics.sock");
    let mut station = exporting(&socket.to_string_lossy(), "");
    let page = scrape(&bin, &socket.to_string_lossy());
    assert_eq!(value(&page, "gshare_claims", &[]), Some(0.0));
    // The socket of a service that was killed is taken over.
    station
        .stop_service(nix::sys::signal::Signal::SIGKILL)
        .expect("killed");
    station.start_service().expect("starts again");
    let page = scrape(&bin, &socket.to_string_lossy());
    assert_eq!(value(&page, "gshare_starts_total", &[]), Some(2.0));
}

#[test]
fn slow_and_hostile_scrapers_harm_nobody() {
    let station = exporting("127.0.0.1:0", "");
    let address = address(&station);
    assert!(raw(&address, b"GET /metrics HTTP/1.1\r\n\r\n").contains("gshare_claims 0\n"));
    for (request, wanted) in [
        (&b"GET /etc/passwd HTTP/1.1\r\n\r\n"[..], "HTTP/1.1 404 "),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 405 "),
        (b"\r\n\r\n", "HTTP/1.1 405 "),
        (b"HEAD /metrics HTTP/1.0\r\n\r\n", "HTTP/1.1 200 OK"),
        (b"GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 200 OK"),
    ] {
        let answer = raw(&address, request);
        assert!(answer.starts_with(wanted), "{answer}");
    }
    let endless = raw(&address, &vec![b'a'; 64 * 1024]);
    assert!(
        endless.is_empty() || endless.starts_with("HTTP/1.1 400 "),
        "{endless}"
    );
    // Many that connect and say nothing take each other's places only.
    let silent: Vec<TcpStream> = (0..200)
        .map(|_| TcpStream::connect(&address).expect("listens"))
        .collect();
    let started = Instant::now();
    let mut claim = Raw::claim(&station, &["-q", "-g", "0.25", "--name", "unseen"]);
    assert!(claim.ask("info").starts_with("ok"));
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "a claim waits for scrapers"
    );
    drop(silent);
    let answer = until("scrapes are served again", SOON, || {
        let answer = raw(&address, b"GET /metrics HTTP/1.1\r\n\r\n");
        answer.contains("gshare_claims 1\n").then_some(answer)
    });
    assert!(!answer.contains("unseen"), "names are their owner's alone");
}

#[test]
fn a_place_that_is_taken_does_not_stop_the_service() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let place = taken.local_addr().expect("an address").to_string();
    let station = exporting(&place, "");
    let output = station.command().arg("doctor").output().expect("runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains(&format!("cannot listen at {place}")),
        "{text}"
    );
}

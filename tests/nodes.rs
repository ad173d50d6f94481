//! `gshare nodes` on eight machines, each with its own service: how soon, at what cost, and what a dead one looks like.

use crate::support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use gshare::station::Station;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use support::{looks, patience, station_with, until};

const MACHINES: usize = 8;
/// How long its own processor time is measured.
const MEASURED: Duration = Duration::from_secs(10);

struct Watching {
    child: Child,
    pictures: Receiver<(Instant, Value)>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = kill(
            Pid::from_raw(self.child.id().cast_signed()),
            Signal::SIGTERM,
        );
        let _ = self.child.wait();
    }
}

impl Watching {
    /// `gshare nodes`, with an ssh that knows these machines.
    fn start(stations: &[Station], dir: &Path) -> Self {
        let mut script =
            "#!/bin/sh\nwhile [ \"$1\" = -o ]; do shift 2; done\ncase $1 in\n".to_owned();
        for (n, station) in stations.iter().enumerate() {
            let socket = station.socket();
            script += &format!("m{n}) export GSHARE_SOCKET={} ;;\n", socket.display());
        }
        let program = stations[0].program().display();
        script += &format!("esac\nshift 2\nexec {program} \"$@\"\n");
        let ssh = dir.join("ssh");
        fs::write(&ssh, script).expect("written");
        fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).expect("set");
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(stations[0].program());
        command.args(["nodes", "--json", "--watch", "2"]);
        command.args((0..stations.len()).map(|n| format!("m{n}")));
        command.env("PATH", format!("{}:{path}", dir.display()));
        command.env_remove("GSHARE_SOCKET").stdout(Stdio::piped());
        let mut child = command.spawn().expect("gshare starts");
        let stdout = child.stdout.take().expect("piped");
        let (tell, pictures) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let picture = serde_json::from_str(&line).expect("JSON in a line");
                if tell.send((Instant::now(), picture)).is_err() {
                    break;
                }
            }
        });
        Self { child, pictures }
    }

    fn next(&self) -> (Instant, Value) {
        let next = self
            .pictures
            .recv_timeout(patience(Duration::from_secs(10)));
        next.expect("another picture")
    }

    /// Processor time of `gshare nodes` itself; its ssh runs beside it.
    fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("runs");
        let fields: Vec<&str> = stat
            .rsplit(") ")
            .next()
            .expect("fields")
            .split(' ')
            .collect();
        let ticks: u64 = fields[11..13]
            .iter()
            .map(|f| f.parse::<u64>().expect("ticks"))
            .sum();
        Duration::from_millis(ticks * 10)
    }
}

/// Why this machine is said to be silent.
fn silent(picture: &Value, n: usize) -> Option<String> {
    let why = picture["nodes"][n]["silent"].as_str();
    why.map(str::to_owned)
}

#[test]
fn eight_machines_are_seen_in_a_second_and_a_dead_one_is_told_in_three() {
    let mut stations: Vec<Station> = (0..MACHINES)
        .map(|_| station_with(|o| o.gpus = vec!["h100".into(), "h100".into()]))
        .collect();
    for station in &stations {
        until("its figures are known", Duration::from_secs(20), || {
            (looks(station) > 1).then_some(())
        });
    }
    let dir = tempfile::tempdir().expect("a directory");
    let begun = Instant::now();
    let watching = Watching::start(&stations, dir.path());
    let (at, first) = watching.next();
    let first_s = at.duration_since(begun);
    for n in 0..MACHINES {
        assert_eq!(silent(&first, n), None, "{first}");
        assert_eq!(first["nodes"][n]["node"]["free_now"], 2.0);
    }

    let (begun, cpu) = (Instant::now(), watching.cpu());
    let mut refreshed = 0;
    while begun.elapsed() < MEASURED {
        watching.next();
        refreshed += 1;
    }
    let cpu = (watching.cpu() - cpu).as_secs_f64() / begun.elapsed().as_secs_f64();

    // One whose service dies, and one whose service hangs after it had answered.
    let mut told = Vec::new();
    for (n, signal) in [(3, Signal::SIGKILL), (5, Signal::SIGSTOP)] {
        let begun = Instant::now();
        match signal {
            Signal::SIGKILL => stations[n].stop_service(signal).expect("killed"),
            _ => kill(
                Pid::from_raw(stations[n].service_pid().expect("runs").cast_signed()),
                signal,
            )
            .expect("stopped"),
        }
        let at = loop {
            let (at, picture) = watching.next();
            assert_eq!(silent(&picture, 0), None, "{picture}");
            if silent(&picture, n).is_some() {
                break at;
            }
        };
        told.push(at.duration_since(begun));
    }
    let hangs = stations[5].service_pid().expect("runs").cast_signed();
    kill(Pid::from_raw(hangs), Signal::SIGCONT).expect("goes on");
    println!(
        "result: {MACHINES} machines: first picture after {first_s:.2?}, {:.2} % of a core at {refreshed} pictures in \
         {MEASURED:?}, a dead service told after {:.2?}, one that hangs after {:.2?}",
        cpu * 100.0,
        told[0],
        told[1]
    );
    assert!(first_s <= patience(Duration::from_secs(1)), "{first_s:?}");
    assert!(cpu <= 0.01, "{cpu}");
    // A picture is drawn and read meanwhile.
    let most = patience(Duration::from_millis(3_200));
    assert!(told.iter().all(|t| *t <= most), "{told:?}");
}

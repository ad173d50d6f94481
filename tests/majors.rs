//! A driver whose modules are loaded anew has other device numbers; filters go by numbers.

use crate::support;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use gshare_enforcer::nodes::{Majors, make_cap_stand_ins, make_stand_ins};
use support::{Raw, claim_of, root, station_with, until};

/// Names the nodes of a directory that the device filter lets through.
const OPENED: &str =
    "cd $0; for n in *; do (exec 3<$n) 2>&1 | grep -q \"No such device\" && echo $n; done";

fn opened(command: &mut Command, dir: &Path) -> Vec<String> {
    let output = command
        .args(["--", "sh", "-c", OPENED])
        .arg(dir)
        .output()
        .expect("runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn filters_follow_a_reload_of_the_drivers_modules() {
    if !root("device nodes of MIG capabilities") {
        return;
    }
    let station = station_with(|o| {
        o.tick = "0.1s".to_owned();
        o.gpus = vec!["a100-80gb:1g.10gb+2g.20gb".to_owned()];
    });
    let dev = station.sim_dir().join("dev");
    let caps = dev.join("nvidia-caps");
    let snapshot = station.snapshot().expect("served");
    let filtered = snapshot.service.is_some_and(|s| s.device_filter);
    if !caps.is_dir() || !filtered {
        println!("skipped: no device nodes or no device filter here");
        return;
    }
    let held = Raw::claim(&station, &["-q", "-g", "0.25"]);
    let snapshot = station.snapshot().expect("served");
    let id = claim_of(&snapshot, held.pid())
        .expect("its claim")
        .id
        .clone();
    let own = ["nvidia-cap21", "nvidia-cap22"];
    let joined = || {
        let mut command = station.command();
        command.args(["join", &id]);
        opened(&mut command, &caps)
    };
    assert_eq!(joined(), own);

    // The modules are loaded anew: nodes with the same names and other numbers.
    let before = Majors::free_on_this_machine().expect("free numbers");
    let next = before.caps.expect("a number") + 1;
    let names = std::fs::read_dir(&caps).expect("readable");
    let minor = |name: &str| name.strip_prefix("nvidia-cap")?.parse().ok();
    let minors: Vec<u32> = names
        .filter_map(|e| minor(e.ok()?.file_name().to_str()?))
        .collect();
    assert!(minors.len() > 2);
    make_cap_stand_ins(&dev, next, &minors).expect("made");
    let majors = Majors {
        uvm: Some(next + 1),
        ..before
    };
    make_stand_ins(&dev, &majors, &[0]).expect("made");

    // A claim that starts now opens its own instance and no other.
    let mut command = station.command();
    command.args(["claim", "-q", "-g", "0.1"]);
    assert_eq!(
        opened(&mut command, &caps),
        ["nvidia-cap12", "nvidia-cap13"]
    );
    // So does who was there before.
    until("the filter follows", Duration::from_secs(5), || {
        (joined() == own).then_some(())
    });
}

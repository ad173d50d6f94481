//! MIG: existing instances are found, placed and closed to others; `gshare admin mig` and `[gpu] mig` make, keep and
//! remove them, also after a boot and when the service dies at any step.

use crate::support;

use gshare::station::Station;
use gshare_proto::ReportView;
use nix::sys::signal::Signal;
use support::{
    FULL, GIB, Raw, SOON, board, claim, claim_of, has_all, looks, next_look, ok, python, root, run,
    station_with, until, words,
};

// MIG on the simulated driver: existing instances are found, placed and closed to others.

/// Names the nodes of a directory that the device filter lets through: no driver answers behind them.
const OPENED: &str =
    "cd $0; for n in *; do (exec 3<$n) 2>&1 | grep -q \"No such device\" && echo $n; done";

/// A divided A100, and an H100 to divide.
fn divided() -> Station {
    station_with(|o| {
        o.gpus = vec![
            "a100-80gb:1g.10gb+1g.20gb+2g.20gb+3g.40gb".to_owned(),
            "h100".to_owned(),
        ];
        o.config = "[gpu.1]\nmode = \"mig\"\n".to_owned();
    })
}

#[test]
fn a_quarter_gets_the_smallest_instance_that_is_large_enough() {
    let station = divided();
    let snapshot = station.snapshot().expect("served");
    let shown: Vec<(u32, &str, f64)> = snapshot
        .gpus
        .iter()
        .map(|g| (g.index, g.mode.as_str(), g.claimable))
        .collect();
    assert_eq!(
        shown,
        [
            (0, "mig", 0.0),
            (1, "mig", 0.0),
            (2, "mig", 0.125),
            (3, "mig", 0.142),
            (4, "mig", 0.25),
            (5, "mig", 0.428)
        ]
    );
    // With memory alone, any instance with enough memory fits, whatever its SMs.
    let mut alone = station.command();
    alone.args(["claim", "--gpu-mem", "38G", "--dry-run", "--json"]);
    let alone = alone.output().expect("runs");
    let tried: serde_json::Value = serde_json::from_slice(&alone.stdout).expect("JSON");
    assert_eq!(tried["gpus"][0]["gpu"], 5, "{tried}");
    let mut quarter = Raw::claim(&station, &["-q", "-g", "0.25"]);
    let part = &claim(&station, quarter.pid()).gpus[0];
    assert_eq!((part.gpu, part.sm_request), (4, 1.0));
    // The cap is all of the instance, less the reserve, and holds.
    let (_, total) = quarter.info();
    assert!(total > 18 << 30 && total < 20 << 30, "{total}");
    assert_eq!(quarter.ask(&format!("alloc {}", 20 * GIB)), FULL);
    assert_eq!(quarter.ask(&format!("alloc {}", 10 * GIB)), "ok 0");
    // Another quarter gets the next larger one; then none is left, and the message says who is first.
    let second = Raw::claim(&station, &["-q", "-g", "0.25"]);
    let snapshot = station.snapshot().expect("served");
    assert_eq!(
        claim_of(&snapshot, second.pid()).expect("its claim").gpus[0].gpu,
        5
    );
    let mut third = station.command();
    third.args(["claim", "-g", "0.25", "--nonblock", "--", "true"]);
    let refused = third.output().expect("runs");
    assert_eq!(refused.status.code(), Some(75));
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    has_all(&text, &["every MIG instance that is large enough is taken"]);
    // What NVML lists on the instance belongs to the claim.
    until("the driver's figures", SOON, || {
        let snapshot = station.snapshot().ok()?;
        let claim = claim_of(&snapshot, quarter.pid())?;
        (claim.gpus[0].mem_used? >= 10 << 30 && snapshot.unclaimed.is_empty()).then_some(())
    });
    // A program that has most of the instance is adopted as the quarter that the instance is.
    let (gpu, pid) = (snapshot.gpus[4].uuid.clone(), quarter.pid());
    assert_eq!(quarter.finish(), Some(0));
    let mut program =
        station.client_environment(std::process::Command::new(support::example("raw_client")));
    program.env("CUDA_VISIBLE_DEVICES", gpu);
    let mut program = Raw::start(program);
    assert_eq!(program.ask(&format!("alloc {}", 10 * GIB)), "ok 0");
    until("it is counted", SOON, || {
        let snapshot = station.snapshot().ok()?;
        let ended = claim_of(&snapshot, pid).is_none();
        let part = &claim_of(&snapshot, program.pid())?.gpus[0];
        (ended && part.mem_used? >= 10 * GIB).then_some(())
    });
    let adopted = program.pid().to_string();
    ok(&station, &["adopt", &adopted, "-g", "0.25"]);
    let part = &claim(&station, program.pid()).gpus[0];
    assert_eq!((part.gpu, part.sm_request), (4, 1.0));
}

#[test]
fn a_program_that_asks_nvml_sees_its_own_instance_and_no_neighbour() {
    let Some(bin) = python::bin("a_program_that_asks_nvml") else {
        return;
    };
    let station = divided();
    let snapshot = station.snapshot().expect("served");
    let uuid = |g: usize| snapshot.gpus[g].uuid.clone();
    // Another user's work on the next instance, and memory of this claim.
    let mut other = Raw::claim(&station, &["-q", "-g", "0.4"]);
    assert_eq!(other.ask(&format!("alloc {}", 6_u64 << 30)), "ok 0");
    let mut own = Raw::claim(&station, &["-q", "-g", "0.25", "--name", "mine"]);
    assert_eq!(own.ask(&format!("alloc {}", 3_u64 << 30)), "ok 0");
    let snapshot = station.snapshot().expect("served");
    let claim = claim_of(&snapshot, own.pid()).expect("its claim");
    let part = &claim.gpus[0];
    assert_eq!(part.gpu, 4);
    assert_eq!(
        claim_of(&snapshot, other.pid()).expect("its claim").gpus[0].gpu,
        5
    );

    let mut command = station.command();
    command.args(["join", claim.id.as_str(), "--"]);
    command
        .arg(bin.join("python"))
        .arg(python::script("mig_client.py"))
        .args([uuid(2), uuid(3), uuid(5), uuid(1)]);
    let output = command.output().expect("runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}");
    let facts = |name: &str| -> Vec<&str> {
        let lines = text.lines().filter_map(|l| l.split_once(' '));
        lines.filter(|(n, _)| *n == name).map(|(_, v)| v).collect()
    };
    let gpu = uuid(0);
    for (name, value) in [
        ("gpus", "1"),
        ("gpu", gpu.as_str()),
        ("index", "0"),
        ("second", "NVMLError_InvalidArgument"),
        ("mode", "1 1"),
        ("gpu_is_instance", "0"),
        ("instances", "1"),
        ("uuids", part.uuid.as_str()),
        ("is_instance", "1"),
        ("name", "NVIDIA A100-SXM4-80GB MIG 2g.20gb"),
        ("parent", gpu.as_str()),
        ("ids", "3 0"),
        ("attributes", "28"),
        ("by_uuid", part.uuid.as_str()),
    ] {
        assert_eq!(facts(name), [value], "{name}:\n{text}");
    }
    // The claim's instance memory, through the instance and through the GPU.
    let charge = part.mem_charge.expect("known");
    let cap = part.mem_limit;
    let memory = format!("{cap} {charge} {}", cap - charge);
    assert!(charge >= 3 << 30, "{charge}");
    assert_eq!(facts("memory"), [memory.as_str()], "{text}");
    assert_eq!(facts("gpu_memory"), [memory.as_str()], "{text}");
    let pid = own.pid().to_string();
    assert_eq!(facts("processes"), [pid.as_str()], "{text}");
    // All processes of a divided GPU are visible only to administrators, others' never.
    assert!(
        facts("gpu_processes")
            .iter()
            .all(|l| l.is_empty() || *l == pid),
        "{text}"
    );
    // Nothing about neighbours, by number, by name or by their counters.
    assert_eq!(facts("beyond").len(), 7);
    assert!(
        facts("beyond")
            .iter()
            .all(|l| l.ends_with("NVMLError_NotFound"))
    );
    assert_eq!(facts("neighbour").len(), 4);
    let hidden = |l: &&str| {
        l.ends_with("NVMLError_NotFound")
            || (l.starts_with("GPU-") && l.ends_with("NVMLError_NoPermission"))
    };
    assert!(facts("neighbour").iter().all(hidden), "{text}");
    assert_eq!(facts("counters").len(), 7);
    let closed = |l: &&str| l.ends_with("NVMLError_NoPermission");
    assert!(facts("counters").iter().all(closed), "{text}");
    // Instances as administrators list them: not to be listed, and only its own is there.
    assert_eq!(facts("list"), ["NVMLError_NoPermission"], "{text}");
    let by_id = |whose: &str| -> Vec<&str> {
        let all = facts("by_id").into_iter();
        all.filter_map(|l| l.strip_prefix(whose)).collect()
    };
    let own_one = by_id("own ");
    assert!(
        own_one.len() == 1 && own_one[0].starts_with("3 ") && !own_one[0].contains("NotFound"),
        "{text}"
    );
    let others = by_id("others ");
    let absent = |l: &&str| l.ends_with("NVMLError_NotFound");
    assert!(others.len() == 7 && others.iter().all(absent), "{text}");

    // A monitor that lists instances shows the one.
    let mut command = station.command();
    command.args(["join", claim.id.as_str(), "--"]);
    command
        .arg(bin.join("python"))
        .args(["-m", "nvitop", "-1", "--no-unicode"]);
    let output = command.output().expect("runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}");
    let rows: Vec<&str> = text.lines().filter(|l| l.contains("GI/CI")).collect();
    let used = format!("{}MiB / {}MiB", charge >> 20, cap >> 20);
    assert!(
        rows.len() == 1 && rows[0].contains("2g.20gb @ GI/CI: 3/0") && rows[0].contains(&used),
        "{text}"
    );
    let shows = |raw: &Raw| text.split_whitespace().any(|w| w == raw.pid().to_string());
    assert!(shows(&own) && !shows(&other), "{text}");
}

/// A request, and the instance of the division that is the smallest for it, with its profile and SMs.
type Case = (&'static str, usize, &'static str, u32);

/// Every model with its own profiles: the smallest instance that fits, its name for CUDA, only its capabilities, and
/// nothing of the neighbours.
#[test]
fn every_model_gives_the_smallest_instance_and_nothing_of_its_neighbours() {
    let table: [(&str, &str, &[Case]); 3] = [
        (
            "h100:1g.10gb+1g.20gb+2g.20gb+3g.40gb",
            "NVIDIA H100 80GB HBM3",
            &[
                ("0.25", 2, "2g.20gb", 32),
                ("0.1", 0, "1g.10gb", 16),
                ("0.4", 3, "3g.40gb", 60),
            ],
        ),
        (
            "h200:2g.35gb+1g.18gb+1g.35gb+3g.71gb",
            "NVIDIA H200",
            &[
                ("0.25", 0, "2g.35gb", 32),
                ("0.1", 1, "1g.18gb", 16),
                ("0.4", 3, "3g.71gb", 60),
            ],
        ),
        (
            "rtxpro6000:2g.48gb+1g.24gb+1g.24gb",
            "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
            &[("0.25", 1, "1g.24gb", 46), ("0.5", 0, "2g.48gb", 94)],
        ),
    ];
    for (slug, product, cases) in table {
        let station = station_with(|o| o.gpus = vec![slug.to_owned()]);
        let mut held: Vec<(Raw, String)> = Vec::new();
        for &(request, instance, profile, sms) in cases {
            let mut raw = Raw::claim(&station, &["-q", "-g", request]);
            let snapshot = station.snapshot().expect("served");
            let claim = claim_of(&snapshot, raw.pid()).expect("its claim");
            let part = &claim.gpus[0];
            // The whole GPU comes first.
            assert_eq!(part.gpu as usize, 1 + instance, "{slug}: {request}");
            let shown = &snapshot.gpus[1 + instance];
            assert_eq!(shown.model, format!("{product} MIG {profile}"));
            assert_eq!(raw.ask("count"), "ok 1", "{slug}: {request}");
            assert_eq!(raw.ask("sms"), format!("ok {sms}"), "{slug}: {request}");
            let own = raw.ask("uuid").replace("GPU-", "MIG-");
            assert_eq!(own, format!("ok {}", part.uuid));
            let (_, total) = raw.info();
            assert_eq!(total, part.mem_limit, "{slug}: {request}");
            held.push((raw, claim.id.clone()));
        }
        let snapshot = station.snapshot().expect("served");
        for ((_, id), &(request, instance, _, _)) in held.iter().zip(cases) {
            let uuid = snapshot.gpus[1 + instance].uuid.clone();
            let others = (1..snapshot.gpus.len()).filter(|g| *g != 1 + instance);
            let others: Vec<&str> = others.map(|g| snapshot.gpus[g].uuid.as_str()).collect();
            let inside = |command: &[&str]| {
                let mut join = station.command();
                join.args(["join", id.as_str(), "--"]).args(command);
                let output = join.output().expect("runs");
                String::from_utf8_lossy(&output.stdout).into_owned()
            };
            let shown = inside(&["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]);
            assert_eq!(shown.trim(), uuid, "{slug}: {request}");
            // Instance k of the first GPU is number k + 1 there, and each has nine minors after the first three.
            let caps = station.sim_dir().join("dev/nvidia-caps");
            let filter = snapshot.service.as_ref().is_some_and(|s| s.device_filter);
            if filter && caps.is_dir() {
                let path = caps.to_string_lossy().into_owned();
                let opened = inside(&["sh", "-c", OPENED, &path]);
                let mut opened: Vec<&str> = opened.lines().collect();
                opened.sort_unstable();
                let first = 3 + 9 * (instance + 1);
                let mut own = [first, first + 1].map(|n| format!("nvidia-cap{n}"));
                own.sort_unstable();
                assert_eq!(opened, own, "{slug}: {request}");
            } else {
                println!("without the device filter: {slug}, {request}");
            }
            // A neighbour's name does not help.
            let mut join = station.command();
            join.args(["join", id.as_str(), "--", "env"])
                .arg(format!("CUDA_VISIBLE_DEVICES={}", others[0]))
                .arg(support::example("raw_client"));
            let answer = Raw::spawn(&mut join).line();
            assert!(answer.starts_with("error 100 "), "{slug}: {answer}");
        }
    }
}

#[test]
fn the_doctor_prints_what_would_divide_a_gpu_and_nothing_is_divided_by_itself() {
    let station = divided();
    let output = run(&station, &["doctor"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    has_all(&text, &["mig: claims get its instances"]);
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        flat.contains("sudo gshare admin mig 1 3g.40gb+2g.20gb+1g.10gb"),
        "{text}"
    );
    let refused = run(&station, &["admin", "mode", "0", "timeslice"]);
    assert_eq!(refused.status.code(), Some(75), "{refused:?}");
}

// `gshare admin mig` and `[gpu] mig`: instances are made, used, kept, removed, and restored after a boot and after
// the service's death at any step.

const CUT: &str = "3g.40gb+2g.20gb+1g.10gb";

fn workstation(gpus: &[&str], config: &str) -> Station {
    station_with(|o| {
        o.gpus = gpus.iter().map(|g| (*g).to_owned()).collect();
        o.tick = "0.1s".to_owned();
        o.config = format!("[claims]\nleftover-grace = \"1s\"\n{config}");
    })
}

/// A refusal on one line.
fn refused(station: &Station, words: &[&str]) -> String {
    let text = support::refused(station, words);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The driver's own list of usable instances of a GPU.
fn cut(station: &Station, gpu: usize) -> Vec<&'static str> {
    let seen = board(station).snapshot();
    let mut own: Vec<(u32, &str)> = seen
        .gpus
        .iter()
        .filter_map(|g| Some((g.instance?, g.model.slug)))
        .filter(|(i, _)| i.parent == gpu && i.made)
        .map(|(i, slug)| (i.start, slug.split_once(':').map_or(slug, |(_, name)| name)))
        .collect();
    own.sort_unstable();
    own.into_iter().map(|(_, name)| name).collect()
}

fn gpu_of(station: &Station, raw: &Raw) -> u32 {
    let snapshot = station.snapshot().expect("served");
    claim_of(&snapshot, raw.pid()).expect("its claim").gpus[0].gpu
}

#[test]
fn a_layout_is_made_used_by_two_claims_refused_while_in_use_and_removed() {
    root!("dividing a GPU");
    let mut station = workstation(&["h100", "h100"], "");
    let said = ok(&station, &["admin", "mig", "1", CUT, "--dry-run"]);
    has_all(&said, &["would switch GPU 1 to MIG"]);
    has_all(&said, &["would make 3g.40gb at slice"]);
    assert!(cut(&station, 1).is_empty());
    // Work on another GPU neither hinders nor is disturbed.
    let mut beside = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "0"]);
    let said = ok(&station, &["admin", "mig", "1", CUT]);
    has_all(&said, &[&format!("GPU 1 is divided into {CUT}")]);
    has_all(&said, &["undo: gshare admin mig 1 off"]);
    assert_eq!(cut(&station, 1), ["3g.40gb", "2g.20gb", "1g.10gb"]);
    assert_eq!(beside.ask("alloc 1073741824"), "ok 0");

    let on_parts = |size: &str| Raw::claim(&station, &["-q", "-g", size, "--gpu-ids", "2,3,4"]);
    let half = on_parts("0.4");
    let mut quarter = on_parts("0.25");
    let at = [gpu_of(&station, &half), gpu_of(&station, &quarter)];
    let models = |station: &Station| -> Vec<String> {
        let gpus = station.snapshot().expect("served").gpus;
        at.map(|g| gpus[g as usize].model.clone()).to_vec()
    };
    let named = models(&station);
    assert!(
        named[0].ends_with("3g.40gb") && named[1].ends_with("2g.20gb"),
        "{named:?}"
    );
    assert_eq!(quarter.ask("sms"), "ok 32");
    assert_eq!(quarter.ask("alloc 1073741824"), "ok 0");

    let text = refused(&station, &["admin", "mig", "1", "off"]);
    has_all(&text, &["GPU 1 is held by"]);
    let text = refused(&station, &["admin", "mig", "1", "4g.40gb+4g.40gb"]);
    has_all(&text, &["do not fit together; 4g.40gb would"]);
    has_all(&text, &["1 x 4g.40gb", "7 x 1g.10gb"]);
    has_all(&text, &["admin mig 1 4g.40gb --dry-run"]);
    let text = refused(&station, &["admin", "mig", "1", "5g.50gb"]);
    has_all(&text, &["no profile 5g.50gb"]);
    assert_eq!(cut(&station, 1).len(), 3);

    // A restarted service finds claims and instances unchanged.
    support::restart(&mut station, Signal::SIGKILL);
    assert_eq!([gpu_of(&station, &half), gpu_of(&station, &quarter)], at);
    assert_eq!(models(&station), named);
    assert_eq!(quarter.ask("alloc 1048576"), "ok 1");

    drop((half, quarter));
    until("nobody holds it", SOON, || {
        let snapshot = station.snapshot().ok()?;
        (snapshot.claims.len() == 1).then_some(())
    });
    // Instances that stay are not made again: their UUID is the same.
    let uuid = |station: &Station, name: &str| {
        let gpus = station.snapshot().expect("served").gpus;
        let found = gpus
            .iter()
            .find(|g| g.model.ends_with(name) && !g.uuid.is_empty());
        found.map(|g| (g.index, g.uuid.clone()))
    };
    let before = uuid(&station, "3g.40gb").expect("there");
    ok(&station, &["admin", "mig", "1", "3g.40gb+3g.40gb"]);
    assert_eq!(cut(&station, 1), ["3g.40gb", "3g.40gb"]);
    assert_eq!(uuid(&station, "3g.40gb"), Some(before));
    // Media engines are there once, wherever the instance is.
    let text = refused(&station, &["admin", "mig", "1", "1g.10gb+me,1g.10gb+me"]);
    has_all(&text, &["1g.10gb+me would", "1 x 1g.10gb+me"]);
    ok(&station, &["admin", "mig", "1", "1g.10gb+me,3g.40gb"]);
    let mut there = cut(&station, 1);
    there.sort_unstable();
    assert_eq!(there, ["1g.10gb+me", "3g.40gb"]);
    ok(&station, &["admin", "mig", "1", "3g.40gb+3g.40gb"]);
    let said = ok(&station, &["admin", "mig", "1", "off"]);
    has_all(&said, &["undo: gshare admin mig 1 3g.40gb+3g.40gb"]);
    let said = ok(&station, &["admin", "mig", "1", "off"]);
    assert_eq!(said.trim(), "GPU 1 is already whole");
    let words = words("claim -q -g 1 --gpu-ids 1 --nonblock -- true");
    ok(&station, &words);
    let log = ok(&station, &["admin", "log"]);
    has_all(&log, &["mig", CUT]);

    // Removed instances are not mentioned, and a released GPU once.
    ok(&station, &["admin", "release", "1"]);
    let doctor = ok(&station, &["doctor"]);
    assert!(!doctor.contains("GPU 2"), "{doctor}");
    has_all(&doctor, &["GPU 1 is released by root"]);
    let text = refused(&station, &["claim", "-g", "1", "--nonblock", "--", "true"]);
    assert_eq!(text.matches("GPU 1 is released").count(), 1, "{text}");
}

/// The RTX PRO 6000 has profiles with graphics, with all media engines and with none; each of its decoders is there once.
#[test]
fn profiles_with_graphics_and_media_engines_are_named_made_and_refused() {
    root!("dividing a GPU");
    let station = workstation(&["rtxpro6000"], "");
    let divided = |layout: &str| {
        ok(&station, &["admin", "mig", "0", layout]);
        let gpus = station.snapshot().expect("served").gpus;
        let names = gpus.iter().filter(|g| !g.uuid.is_empty());
        let mut named: Vec<String> = names
            .filter_map(|g| Some(g.model.rsplit_once("MIG ")?.1.to_owned()))
            .collect();
        named.sort_unstable();
        (cut(&station, 0), named)
    };
    let (made, named) = divided("2g.48gb+gfx+1g.24gb-me+1g.24gb+me");
    assert_eq!(made, ["2g.48gb+gfx", "1g.24gb-me", "1g.24gb+me"]);
    assert_eq!(named, ["1g.24gb+me", "1g.24gb-me", "2g.48gb+gfx"]);
    let said = ok(&station, &["admin", "mig", "0", "off"]);
    has_all(&said, &["2g.48gb+gfx", "1g.24gb-me"]);
    // Beside one that has all decoders there is room for those that need none.
    let (made, _) = divided("1g.24gb+me.all,2g.48gb-me,1g.24gb-me");
    assert_eq!(made.len(), 3, "{made:?}");
    let text = refused(&station, &["admin", "mig", "0", "1g.24gb+me.all+1g.24gb"]);
    has_all(&text, &["do not fit together; 1g.24gb+me.all would"]);
    for one in [
        "4 x 1g.24gb+gfx",
        "1 x 1g.24gb+me.all",
        "2 x 2g.48gb-me",
        "1 x 4g.96gb+gfx",
    ] {
        assert!(text.contains(one), "{one}: {text}");
    }
}

#[test]
fn a_boot_takes_the_instances_and_the_configuration_makes_them_anew_with_all_that_was_theirs() {
    root!("dividing a GPU");
    let config = format!("[gpu.0]\nmig = \"{CUT}\"\n");
    // In order, and not.
    for (model, end) in [("h100", Signal::SIGTERM), ("a100-80gb", Signal::SIGKILL)] {
        let mut station = workstation(&[model, "h100"], &config);
        assert_eq!(
            cut(&station, 0),
            ["3g.40gb", "2g.20gb", "1g.10gb"],
            "{model}"
        );
        let shown = |station: &Station| -> Vec<(u32, String)> {
            let gpus = station.snapshot().expect("served").gpus;
            gpus.iter().map(|g| (g.index, g.model.clone())).collect()
        };
        let uuids = |station: &Station| -> Vec<String> {
            let gpus = station.snapshot().expect("served").gpus;
            gpus.iter().map(|g| g.uuid.clone()).collect()
        };
        let (before, names) = (uuids(&station), shown(&station));
        assert_eq!(before.len(), 5);
        ok(
            &station,
            &["admin", "quota", "set", "user:root", "--gpus", "1"],
        );
        let quotas = ok(&station, &["admin", "quota", "list"]);
        has_all(&quotas, &["user:root"]);
        let on_it = Raw::claim(&station, &["-q", "-g", "0.25", "--gpu-ids", "3"]);
        let first = next_look(&station);
        until("it is recorded", SOON, || looks(&station) > first + 5);
        drop(on_it);
        ok(&station, &["admin", "drain", "3", "--reason", "noisy"]);
        station.stop_service(end).expect("stopped");
        board(&station).reboot().expect("off and on");
        assert!(cut(&station, 0).is_empty());
        station.start_service().expect("starts");
        assert_eq!(
            cut(&station, 0),
            ["3g.40gb", "2g.20gb", "1g.10gb"],
            "{model}"
        );
        let after = uuids(&station);
        assert_eq!(after[..2], before[..2]);
        assert!((2..5).all(|g| after[g] != before[g]), "{after:?}");
        assert_eq!(shown(&station), names);
        assert_eq!(ok(&station, &["admin", "quota", "list"]), quotas);
        let report = ok(&station, &["report", "--json"]);
        let report: ReportView = serde_json::from_str(&report).expect("a report");
        let of_it = report.gpus.iter().find(|g| g.gpu == Some(3));
        let claimed = of_it.map_or(0.0, |g| g.usage.claimed_gpu_s);
        assert!(claimed > 0.0 || end == Signal::SIGKILL, "{:?}", report.gpus);
        let drained = |g: &str| {
            let line = format!("claim -q -g 0.1 --gpu-ids {g} --nonblock -- true");
            run(&station, &words(&line))
        };
        assert!(drained("2").status.success() && drained("4").status.success());
        let none = drained("3");
        let text = String::from_utf8_lossy(&none.stderr).into_owned();
        assert_eq!(none.status.code(), Some(75), "{text}");
        has_all(&text, &["GPU 3 is drained (noisy)"]);
    }
}

#[test]
fn a_service_that_dies_at_any_step_ends_with_what_was_asked_for_also_with_a_boot_between() {
    root!("dividing a GPU");
    let mut station = workstation(&["h100"], "");
    let (one, other) = ("3g.40gb+2g.20gb", "7g.80gb");
    for (step, from, to) in [
        ("mig-mode", "off", one),
        ("mig-made", "off", one),
        ("mig-opened", "off", one),
        ("mig-journaled", one, other),
        ("mig-closed", one, other),
        ("mig-removed", one, other),
        ("mig-made", one, other),
        ("mig-opened", one, other),
        ("mig-closed", one, "off"),
        ("mig-removed", one, "off"),
        ("mig-whole", one, "off"),
    ] {
        for boot in [false, true] {
            ok(&station, &["admin", "mig", "0", from]);
            station.stop_service(Signal::SIGTERM).expect("stops");
            station
                .start_service_with(&["--die-at", step])
                .expect("starts");
            let output = run(&station, &["admin", "mig", "0", to]);
            assert!(!output.status.success(), "{step}: it has not died");
            until("it has died", SOON, || station.service_ended());
            if boot {
                board(&station).reboot().expect("off and on");
            }
            station.start_service().expect("starts");
            let wanted: Vec<&str> = to.split('+').filter(|n| *n != "off").collect();
            assert_eq!(
                cut(&station, 0),
                wanted,
                "{step}, {from} to {to}, boot: {boot}"
            );
            let gpu = board(&station).snapshot().gpus[0].clone();
            assert_eq!(
                gpu.mig,
                [to != "off"; 2],
                "{step}, {from} to {to}, boot: {boot}"
            );
            let words = ["claim", "-q", "-g", "0.2", "--nonblock", "--", "true"];
            ok(&station, &words);
        }
    }
}

#[test]
fn a_gpu_that_cannot_be_divided_says_so() {
    root!("dividing a GPU");
    let station = workstation(&["rtx4090"], "");
    let text = refused(&station, &["admin", "mig", "0", "1g.10gb"]);
    has_all(&text, &["the driver cannot divide this GPU"]);
}

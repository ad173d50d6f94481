//! What can be downloaded, on fresh machines without Rust: the tarball, the packages and the wheels of `packaging/build
//! --packages`. `.ci/long packages` builds them and runs this.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::machine::Machine;
use crate::support::until;
use crate::systemd::{difference, tree};

/// Allocates 1 GiB, then 20 GiB, and prints what the driver said: 2 is "out of memory".
const TRIES: &str = r#"
import ctypes as c
cuda, device, context, at = c.CDLL("libcuda.so.1"), c.c_int(), c.c_void_p(), c.c_uint64()
said = [cuda.cuInit(0), cuda.cuDeviceGet(c.byref(device), 0), cuda.cuCtxCreate_v2(c.byref(context), 0, device)]
print(said + [cuda.cuMemAlloc_v2(c.byref(at), c.c_size_t(gib << 30)) for gib in (1, 20)])
"#;
const UNLIMITED: &str = "[0, 0, 0, 0, 0]";
const LIMITED: &str = "[0, 0, 0, 0, 2]";

/// A line for the shell, as the user ada.
fn ada(line: &str) -> String {
    format!(
        "cd /home/ada && runuser -u ada -- env HOME=/home/ada GSHARE_SIM_BOARD=/opt/sim/board sh -c '{line}'"
    )
}

/// What `apt` and `dpkg` remember of packages that are gone is not gshare's.
fn left(before: &str, machine: &Machine) -> Vec<String> {
    let own = [
        "var/lib/dpkg",
        "var/lib/apt",
        "var/cache/apt",
        "var/cache/debconf",
        "ld.so.cache",
    ];
    let lines = difference(before, &tree(machine)).into_iter();
    lines
        .filter(|line| !own.iter().any(|own| line.contains(own)))
        .collect()
}

fn within(what: &str, since: Instant, seconds: u64) -> String {
    let took = since.elapsed();
    assert!(
        took <= Duration::from_secs(seconds),
        "{what}: {took:?}, not {seconds} s"
    );
    format!("{what} {:.1} s", took.as_secs_f64())
}

#[test]
#[ignore = "needs what packaging/build --packages makes: .ci/long packages"]
fn downloads_run_on_each_debian_and_leave_nothing() {
    let packages = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("dist/packages");
    for release in ["trixie", "bookworm", "bullseye"] {
        let machine = Machine::boot_debian(release, "downloads_run_on_each_debian", false);
        let machine = machine.expect("a machine of this release");
        machine.simulate(&["rtx4090"]);
        std::fs::create_dir(machine.path("/opt/get")).expect("made");
        for file in std::fs::read_dir(&packages).expect("packages").flatten() {
            let name = file.file_name().into_string().expect("text");
            machine.copy(&file.path(), &format!("/opt/get/{name}"));
        }
        machine.ok("! command -v cargo rustc gshare && cd /opt/get && chmod 755 . && sha256sum --check SHA256SUMS");
        std::fs::write(machine.path("/opt/tries.py"), TRIES).expect("written");

        let said = [
            the_demo(&machine),
            the_package(&machine),
            the_tarball(&machine),
            the_wheel(&machine),
        ];
        println!("result: {release}: {}", said.join(", "));
    }
}

/// From the file to the screen. The simulated driver of this machine then is the demo's, which runs with its older glibc.
fn the_demo(machine: &Machine) -> String {
    let start = Instant::now();
    let line = "tar xzf /opt/get/gshare-*.tar.gz && stty rows 40 cols 120 && exec gshare-*/bin/gshare-demo";
    let demo = format!("script -qfc \"{line}\" /tmp/screen");
    let mut demo = machine.command(&ada(&demo));
    let mut demo = demo.stdin(Stdio::piped()).spawn().expect("nsenter runs");
    until("the demo's screen", Duration::from_secs(60), || {
        let screen = std::fs::read(machine.path("/tmp/screen")).unwrap_or_default();
        String::from_utf8_lossy(&screen)
            .contains("FREE NOW")
            .then_some(())
    });
    let said = within("demo", start, 30);
    machine.ok("cp -f /tmp/gshare-*/sim/lib/* /opt/sim/lib/ && ldconfig");
    machine.run(&ada("kill -TERM -1"));
    let _ = demo.wait();
    machine.ok("rm -rf /home/ada/gshare-* /tmp/screen");
    assert_eq!(machine.ok(&ada("python3 /opt/tries.py")), UNLIMITED);
    said
}

/// What a program of ada's meets in a quarter of a GPU.
fn in_a_quarter(machine: &Machine) -> String {
    machine.ok(&ada("gshare claim -q -g 0.25 -- python3 /opt/tries.py"))
}

fn the_package(machine: &Machine) -> String {
    let before = tree(machine);
    let start = Instant::now();
    let stage =
        machine.ok("apt-get install -qq -y /opt/get/gshare_*.deb >&2 && gshare admin stage");
    assert_eq!(stage.lines().last(), Some("stage 1 (observe)"));
    let installed = within("stage 1 after apt install", start, 10);
    assert_eq!(in_a_quarter(machine), UNLIMITED);
    let claimed = within("first claim", start, 60);
    machine.ok("gshare admin stage 3 && apt-get install -qq -y /opt/get/gshare-demo_*.deb && gshare bench --help");
    assert_eq!(in_a_quarter(machine), LIMITED);
    machine.ok("ls /usr/share/doc/gshare/licences.txt /usr/share/doc/gshare/CHANGELOG.md*");
    machine.ok("apt-get purge -qq -y gshare gshare-demo");
    assert_eq!(left(&before, machine), [""; 0]);
    format!("{installed}, {claimed}")
}

fn the_tarball(machine: &Machine) -> String {
    let before = tree(machine);
    machine
        .ok("mkdir /opt/tar && tar -C /opt/tar --strip-components 1 -xzf /opt/get/gshare-*.tar.gz");
    let start = Instant::now();
    machine.ok("/opt/tar/bin/gshare setup && gshare admin stage | grep -x \"stage 1 (observe)\"");
    let said = within("setup of the tarball", start, 30);
    machine.ok("gshare admin stage 3");
    assert_eq!(in_a_quarter(machine), LIMITED);
    machine.ok("gshare setup --undo");
    assert_eq!(left(&before, machine), [""; 0]);
    said
}

/// Cooperative limits for a user without root.
fn the_wheel(machine: &Machine) -> String {
    let start = Instant::now();
    machine.ok(&ada(
        "python3 -m venv venv && venv/bin/pip install -q --no-index --find-links /opt/get \"gshare[demo]\" >&2",
    ));
    let said = within("pip install", start, 60);
    let service = "venv/bin/gshare daemon --user";
    let mut service = machine
        .command(&ada(&format!("exec {service}")))
        .spawn()
        .expect("nsenter runs");
    until("the service answers", Duration::from_secs(20), || {
        machine
            .run(&ada("venv/bin/gshare status"))
            .status
            .success()
            .then_some(())
    });
    let claim = "venv/bin/gshare claim -q -g 0.25 -- python3 /opt/tries.py";
    assert_eq!(machine.ok(&ada(claim)), LIMITED);
    assert_eq!(machine.ok(&ada("python3 /opt/tries.py")), UNLIMITED);
    machine.ok(&ada("venv/bin/gshare demo --help"));
    machine.run(&ada("kill -TERM -1"));
    let _ = service.wait();
    said
}

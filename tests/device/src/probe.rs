//! Facts about a machine: the user, cgroups, services of the driver.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::call::{Call, find_cuda, find_nvml};
use crate::cu;

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// One line about the machine: kernel, driver, first device.
pub(crate) fn machine() -> String {
    let kernel = read("/proc/sys/kernel/osrelease");
    let driver = read("/proc/driver/nvidia/version");
    let driver = driver.lines().next().unwrap_or("no /proc/driver/nvidia");
    let mut line = format!("kernel {}, {driver}", kernel.trim());
    if find_cuda("cuInit").is_none() {
        return line + ", no libcuda.so.1";
    }
    let (mut v, mut name) = (0i32, [0u8; 96]);
    if cu!(cuDriverGetVersion(&raw mut v)) == 0 {
        line += &format!(", CUDA {}.{}", v / 1000, v % 1000 / 10);
    }
    let code = cu!(cuInit(0u32));
    if code != 0 {
        return line + &format!(", cuInit gave {code}");
    }
    if cu!(cuDeviceGetName(name.as_mut_ptr(), 96i32, 0i32)) == 0 {
        let end = name.iter().position(|b| *b == 0).unwrap_or(0);
        line += &format!(", {}", String::from_utf8_lossy(&name[..end]));
    }
    line
}

/// Which of the capabilities that gshare needs this process has.
fn capabilities() -> String {
    const NEEDED: [(u32, &str); 6] = [
        (1, "dac_override"),
        (5, "kill"),
        (19, "sys_ptrace"),
        (21, "sys_admin"),
        (27, "mknod"),
        (39, "bpf"),
    ];
    let status = read("/proc/self/status");
    let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    let bits = line.and_then(|l| u64::from_str_radix(l.trim(), 16).ok());
    let bits = bits.unwrap_or(0);
    let have: Vec<&str> = NEEDED
        .iter()
        .filter(|(bit, _)| bits >> bit & 1 == 1)
        .map(|(_, name)| *name)
        .collect();
    if have.is_empty() {
        "none".into()
    } else {
        have.join(" ")
    }
}

/// Tries to make and remove a version 2 cgroup below this process's own.
fn cgroup() -> String {
    let mounts = read("/proc/self/mounts");
    let mount = mounts.lines().find_map(|l| {
        let mut parts = l.split(' ');
        let place = parts.nth(1)?;
        (parts.next() == Some("cgroup2")).then_some(place)
    });
    let Some(mount) = mount else {
        return "no cgroup2 mounted".into();
    };
    let own = read("/proc/self/cgroup");
    let own = own
        .lines()
        .find_map(|l| l.strip_prefix("0::"))
        .unwrap_or("/");
    let place = Path::new(mount).join(own.trim_start_matches('/'));
    let fresh = place.join(format!("gshare-probe-{}", std::process::id()));
    match std::fs::create_dir(&fresh) {
        Ok(()) => {
            let _ = std::fs::remove_dir(&fresh);
            format!("writable ({})", place.display())
        }
        Err(e) => format!("{}: {e}", place.display()),
    }
}

/// Tries to become another user in a child process.
fn second_user() -> String {
    // SAFETY: fork in a process without other threads that hold locks; the child only changes its
    // user and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: changes the child's user and ends it.
        unsafe { libc::_exit(if libc::setuid(65_534) == 0 { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    if status == 0 {
        "yes".into()
    } else {
        "no".into()
    }
}

/// Whether the MPS control program is installed and starts.
fn mps() -> String {
    let dir = std::env::temp_dir().join(format!("gshare-probe-mps-{}", std::process::id()));
    if std::fs::create_dir_all(&dir).is_err() {
        return "no directory for it".into();
    }
    let control = |args: &[&str]| {
        let mut c = Command::new("nvidia-cuda-mps-control");
        c.args(args)
            .env("CUDA_MPS_PIPE_DIRECTORY", &dir)
            .env("CUDA_MPS_LOG_DIRECTORY", &dir)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        c
    };
    let said = match control(&["-d"]).stdin(Stdio::null()).status() {
        Err(e) => format!("nvidia-cuda-mps-control: {e}"),
        Ok(s) if !s.success() => format!("nvidia-cuda-mps-control -d: {s}"),
        Ok(_) => {
            if let Ok(mut quit) = control(&[]).stdin(Stdio::piped()).spawn() {
                use std::io::Write;
                if let Some(mut input) = quit.stdin.take() {
                    let _ = input.write_all(b"quit\n");
                }
                let _ = quit.wait();
            }
            "starts".into()
        }
    };
    let _ = std::fs::remove_dir_all(&dir);
    said
}

/// Whether the GPU supports GPM counters (Hopper and later).
fn counters() -> String {
    let (Some(init), Some(get), Some(ask)) = (
        find_nvml("nvmlInit_v2"),
        find_nvml("nvmlDeviceGetHandleByIndex_v2"),
        find_nvml("nvmlGpmQueryDeviceSupport"),
    ) else {
        return "not in libnvidia-ml.so.1".into();
    };
    let mut d = 0u64;
    // `nvmlGpmSupport_t`: version, answer.
    let mut support = [1u32, 0];
    let code = match ().call(init) {
        0 => match (0u32, &raw mut d).call(get) {
            0 => (d, support.as_mut_ptr()).call(ask),
            code => code,
        },
        code => code,
    };
    match (code, support[1]) {
        (0, 0) => "not on this GPU".into(),
        (0, _) => "yes".into(),
        (code, _) => format!("NVML gave {code}"),
    }
}

/// Prints the probe.
pub(crate) fn print() {
    // SAFETY: geteuid has no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    let present = |name: &str| {
        if find_cuda(name).is_some() {
            "present"
        } else {
            "absent"
        }
    };
    println!("probe");
    for (what, seen) in [
        (
            "root",
            if root {
                "yes".to_owned()
            } else {
                "no".to_owned()
            },
        ),
        ("capabilities", capabilities()),
        ("cgroup2", cgroup()),
        ("second user", second_user()),
        ("MPS", mps()),
        ("GPM counters", counters()),
        (
            "checkpoint API",
            present("cuCheckpointProcessLock").to_owned(),
        ),
        ("green contexts", present("cuGreenCtxCreate").to_owned()),
    ] {
        println!("  {what:<16} {seen}");
    }
}

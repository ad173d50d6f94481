//! Builds the shared objects and the launcher that the program contains, with a cargo of its own: users of this package
//! need them as finished files, in a profile that does not depend on the outer one.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

/// Package, its file, and the variable with the file's path for the crate.
const PRODUCTS: [(&str, &str, &str); 6] = [
    ("gshare-shim", "libgshare_shim.so", "GSHARE_SHIM_SO"),
    (
        "gshare-nvml-proxy",
        "libgshare_nvml_proxy.so",
        "GSHARE_NVML_PROXY_SO",
    ),
    (
        "gshare-sim-cuda",
        "libgshare_sim_cuda.so",
        "GSHARE_SIM_CUDA_SO",
    ),
    (
        "gshare-sim-nvml",
        "libgshare_sim_nvml.so",
        "GSHARE_SIM_NVML_SO",
    ),
    (
        "gshare-sim-noop",
        "libgshare_sim_noop.so",
        "GSHARE_SIM_NOOP_SO",
    ),
    ("gshare-exec", "gshare-exec", "GSHARE_EXEC"),
];

/// Sources of the files, relative to the workspace.
const SOURCES: [&str; 10] = [
    "enforcer/abi",
    "enforcer/exec",
    "enforcer/gate",
    "enforcer/shim",
    "enforcer/nvml-proxy",
    "src/sim/board",
    "src/sim/ptx",
    "src/sim/cuda",
    "src/sim/nvml",
    "src/sim/noop",
];

/// Variables of the outer build that the inner one must not inherit. The jobserver's stay.
const FOREIGN: [&str; 9] = [
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTC_WRAPPER",
    "RUSTC",
    "RUSTFLAGS",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_TARGET_DIR",
    "CARGO_BUILD_TARGET_DIR",
    "CARGO_BUILD_BUILD_DIR",
    "CARGO_BUILD_TARGET",
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The files of an installed program are built separately: `packaging/build`.
    if env::var_os("CARGO_FEATURE_CARRIED").is_none() {
        return;
    }
    let variable = |name: &str| env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let here = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let workspace = here
        .ancestors()
        .nth(2)
        .expect("the package lies two levels below the workspace");
    let target = variable("TARGET");
    let nested = Path::new(&variable("OUT_DIR")).join("nested");

    for file in ["Cargo.lock", "Cargo.toml"] {
        watch(&workspace.join(file));
    }
    for source in SOURCES {
        for part in ["src", "table", "Cargo.toml", "build.rs", "link.rs"] {
            watch(&workspace.join(source).join(part));
        }
    }

    let mut cargo = Command::new(variable("CARGO"));
    for name in FOREIGN {
        cargo.env_remove(name);
    }
    cargo
        .current_dir(workspace)
        .args([
            "build",
            "--locked",
            "--profile",
            "preload",
            "--lib",
            "--bins",
        ])
        .args(["--target", &target])
        .arg("--target-dir")
        .arg(&nested);
    for (package, ..) in PRODUCTS {
        cargo.args(["-p", package]);
    }
    let status = cargo
        .status()
        .unwrap_or_else(|error| panic!("cannot run {cargo:?}: {error}"));
    assert!(status.success(), "{cargo:?} failed; see its output above");

    for (_, file, name) in PRODUCTS {
        let path = nested.join(&target).join("preload").join(file);
        assert!(path.is_file(), "{cargo:?} made no {}", path.display());
        println!("cargo::rustc-env={name}={}", path.display());
    }
}

fn watch(path: &Path) {
    if path.exists() {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}

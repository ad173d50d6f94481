//! The parts of the list that need no device, with NVIDIA's own libcuda. `.ci/drivers` fetches it.

use std::path::Path;
use std::process::Command;

#[test]
fn the_real_library_is_as_the_list_says() {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
    for release in ["535", "550"] {
        let home = target.map(|t| t.join(format!("nvidia-{release}")));
        let home = home.unwrap_or_default();
        let home = home.join("usr/lib/x86_64-linux-gnu/nvidia/current");
        if !home.join("libcuda.so.1").exists() {
            println!(
                "skipped: the_real_library needs NVIDIA's libcuda {release} (.ci/drivers fetches it)"
            );
            continue;
        }
        let out = Command::new(env!("CARGO_BIN_EXE_gshare-device"))
            .args(["lookup.", "init.", "error."])
            .env("LD_LIBRARY_PATH", &home)
            .output()
            .expect("the list runs");
        let text = String::from_utf8_lossy(&out.stdout);
        println!("{release}:\n{text}");
        let lines: Vec<&str> = text.lines().collect();
        let at = lines.iter().enumerate();
        let differs = at.filter(|(_, line)| line.starts_with("DIFFERENT"));
        // Without a device, an error from `cuInit` is not a difference.
        let wrong: Vec<&str> = differs
            .filter(|(at, _)| !lines[at + 1].ends_with("seen CUDA_ERROR_NO_DEVICE (100)"))
            .map(|(_, line)| *line)
            .collect();
        assert!(wrong.is_empty(), "{release}: {wrong:#?}");
        assert!(text.contains("13 checks with "), "{release}: nothing ran");
    }
}

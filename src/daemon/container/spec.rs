//! The text of a CDI spec (Container Device Interface 0.3): what a container program adds to a container.

use std::path::{Path, PathBuf};

use serde_json::json;

/// One device of a claim.
#[derive(Debug)]
pub(super) struct Spec {
    /// `gshare.dev/claim`.
    pub(super) kind: String,
    /// `c3`.
    pub(super) name: String,
    /// Environment inside.
    pub(super) env: Vec<(String, String)>,
    /// Device nodes inside.
    pub(super) nodes: Vec<Node>,
    /// Files inside, in order.
    pub(super) mounts: Vec<Mount>,
}

/// A character device in `/dev`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Node {
    path: String,
    /// Its path here.
    here: PathBuf,
    major: u32,
    minor: u32,
}

/// A file or directory of this machine inside the container.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mount {
    from: PathBuf,
    to: PathBuf,
    writable: bool,
    devices: bool,
}

impl Node {
    /// `/dev/<name>` with these numbers; `dir` is its directory here.
    pub(super) fn new(dir: &Path, name: &str, major: u32, minor: u32) -> Self {
        Self {
            path: format!("/dev/{name}"),
            here: dir.join(name),
            major,
            minor,
        }
    }
}

impl Mount {
    /// Read-only inside.
    pub(super) fn read_only(from: &Path, to: &Path) -> Self {
        Self {
            from: from.to_owned(),
            to: to.to_owned(),
            writable: false,
            devices: false,
        }
    }

    /// Writable inside.
    pub(super) fn writable(from: &Path, to: &Path) -> Self {
        Self {
            writable: true,
            ..Self::read_only(from, to)
        }
    }

    /// Device nodes in it work inside, as far as the filter allows them.
    pub(super) fn with_devices(self) -> Self {
        Self {
            devices: true,
            ..self
        }
    }
}

impl Spec {
    /// The equivalent flags of `podman run` and `docker run`. `elsewhere` maps paths that differ for the program that
    /// makes the mounts.
    pub(super) fn flags(&self, elsewhere: impl Fn(&Path) -> Option<PathBuf>) -> Vec<String> {
        let mut flags = Vec::new();
        for node in self.nodes.iter().filter(|n| n.here.exists()) {
            flags.push(format!("--device={}:{}:rw", node.here.display(), node.path));
        }
        for mount in &self.mounts {
            let from = elsewhere(&mount.from).unwrap_or_else(|| mount.from.clone());
            let access = if mount.writable { "" } else { ",readonly" };
            flags.push(format!(
                "--mount=type=bind,source={},destination={}{access}",
                from.display(),
                mount.to.display()
            ));
        }
        flags.extend(self.env.iter().map(|(n, v)| format!("--env={n}={v}")));
        flags
    }

    pub(super) fn text(&self) -> serde_json::Result<String> {
        let mount = |m: &Mount| {
            let access = if m.writable { "rw" } else { "ro" };
            let devices = if m.devices { "dev" } else { "nodev" };
            json!({
                "hostPath": m.from,
                "containerPath": m.to,
                "options": [access, "rbind", "nosuid", devices],
            })
        };
        let node = |n: &Node| {
            json!({
                "path": n.path,
                "type": "c",
                "major": n.major,
                "minor": n.minor,
                "permissions": "rw",
            })
        };
        let env: Vec<String> = self.env.iter().map(|(n, v)| format!("{n}={v}")).collect();
        serde_json::to_string_pretty(&json!({
            "cdiVersion": "0.3.0",
            "kind": self.kind,
            "devices": [{
                "name": self.name,
                "containerEdits": {
                    "env": env,
                    "deviceNodes": self.nodes.iter().map(node).collect::<Vec<_>>(),
                    "mounts": self.mounts.iter().map(mount).collect::<Vec<_>>(),
                },
            }],
        }))
    }
}

/// The driver's other libraries (compilers, encoders) under their sonames: links in the driver's directory to a file
/// of this version. libcuda and libnvidia-ml are left out, because the proxies replace them.
pub(super) fn companions(dir: &Path, version: &str) -> Vec<Mount> {
    let ending = format!(".so.{version}");
    let mut found: Vec<Mount> = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().to_str()?.to_owned();
            let soname = name.strip_suffix(".so.1").or(name.strip_suffix(".so.4"))?;
            if ["libcuda", "libnvidia-ml"].contains(&soname) {
                return None;
            }
            let real = entry.path().canonicalize().ok()?;
            let versioned = real.file_name()?.to_str()?.ends_with(&ending);
            versioned.then(|| Mount::read_only(&real, &entry.path()))
        })
        .collect();
    found.sort_by(|a, b| a.to.cmp(&b.to));
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_drivers_other_libraries_come_along_under_their_names() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in [
            "libcuda.so.580.95.05",
            "libnvidia-ml.so.580.95.05",
            "libnvidia-ptxjitcompiler.so.580.95.05",
            "libnvidia-nvvm.so.580.95.05",
            "libz.so.1.3",
        ] {
            std::fs::write(at(name), "").unwrap();
        }
        for (link, to) in [
            ("libcuda.so.1", "libcuda.so.580.95.05"),
            ("libnvidia-ml.so.1", "libnvidia-ml.so.580.95.05"),
            (
                "libnvidia-ptxjitcompiler.so.1",
                "libnvidia-ptxjitcompiler.so.580.95.05",
            ),
            ("libnvidia-nvvm.so.4", "libnvidia-nvvm.so.580.95.05"),
            ("libz.so.1", "libz.so.1.3"),
        ] {
            symlink(to, at(link)).unwrap();
        }
        let real = |name: &str| at(name).canonicalize().unwrap();
        assert_eq!(
            companions(dir.path(), "580.95.05"),
            [
                Mount::read_only(&real("libnvidia-nvvm.so.4"), &at("libnvidia-nvvm.so.4")),
                Mount::read_only(
                    &real("libnvidia-ptxjitcompiler.so.1"),
                    &at("libnvidia-ptxjitcompiler.so.1")
                ),
            ]
        );
    }
}

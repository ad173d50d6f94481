//! Adds a claim to containers whose programs do not take the flags of `podman run`.

use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;

use serde_json::{Value, json};

use super::super::out;

/// A file, a directory or a device node of this machine inside the container.
#[derive(Debug)]
struct Bind<'a> {
    from: &'a str,
    to: &'a str,
    writable: bool,
    device: bool,
}

/// The claim's flags (`--device`, `--mount`, `--env`), parsed.
#[derive(Debug, Default)]
pub(super) struct Inside<'a> {
    binds: Vec<Bind<'a>>,
    env: Vec<&'a str>,
}

impl<'a> Inside<'a> {
    pub(super) fn of(flags: &'a [String]) -> Self {
        let mut all = Self::default();
        for (name, value) in flags.iter().filter_map(|flag| flag.split_once('=')) {
            let part = |key: &str| {
                let mut parts = value.split(',');
                parts.find_map(|p| p.strip_prefix(key)?.strip_prefix('='))
            };
            let device = name == "--device";
            let ends = match name {
                "--env" => {
                    all.env.push(value);
                    None
                }
                "--device" => {
                    let mut parts = value.split(':');
                    parts.next().zip(parts.next())
                }
                _ => part("source").zip(part("destination")),
            };
            all.binds.extend(ends.map(|(from, to)| Bind {
                from,
                to,
                writable: !value.ends_with(",readonly"),
                device,
            }));
        }
        all
    }

    /// Flags of `apptainer exec`. In a value, a comma separates variables. apptainer shows all of `/dev` unless it is
    /// `contained`.
    pub(super) fn for_apptainer(&self, contained: bool) -> Vec<String> {
        let bind = |b: &Bind<'_>| {
            let access = if b.writable { "rw" } else { "ro" };
            format!("--bind={}:{}:{access}", b.from, b.to)
        };
        let env = self.env.iter().map(|e| format!("--env=\"{e}\""));
        let missing = |b: &&Bind<'_>| !b.device || contained && b.from == b.to;
        let binds = self.binds.iter().filter(missing);
        binds.map(bind).chain(env).collect()
    }

    /// Adds the claim to every service of a project (the output of `docker compose config`), in place of the GPUs that
    /// it requests.
    pub(super) fn add_to_services(&self, project: &mut Value, parent: &str) {
        let services = project["services"].as_object_mut();
        for service in services.into_iter().flat_map(serde_json::Map::values_mut) {
            service["cgroup_parent"] = parent.into();
            if let Some(service) = service.as_object_mut() {
                service.remove("gpus");
            }
            let reserved = service.pointer_mut("/deploy/resources/reservations");
            if let Some(reserved) = reserved.and_then(Value::as_object_mut) {
                reserved.remove("devices");
            }
            for bind in &self.binds {
                let (list, entry) = match bind.device {
                    true => (
                        "devices",
                        json!({ "source": bind.from, "target": bind.to, "permissions": "rw" }),
                    ),
                    false => (
                        "volumes",
                        json!({ "type": "bind", "source": bind.from, "target": bind.to, "read_only": !bind.writable }),
                    ),
                };
                push(&mut service[list], entry);
            }
            for (name, value) in self.env.iter().filter_map(|e| e.split_once('=')) {
                service["environment"][name] = value.replace('$', "$$").into();
            }
        }
    }

    /// Adds the claim to a container's description (`config.json` of OCI), and moves the container below the claim.
    fn add_to_spec(&self, spec: &mut Value, parent: &str) {
        for bind in &self.binds {
            let access = if bind.writable { "rw" } else { "ro" };
            push(
                &mut spec["mounts"],
                json!({ "destination": bind.to, "type": "bind", "source": bind.from, "options": ["rbind", access, "nosuid"] }),
            );
            if let Some(meta) = std::fs::metadata(bind.from).ok().filter(|_| bind.device) {
                let (major, minor) = (
                    nix::sys::stat::major(meta.rdev()),
                    nix::sys::stat::minor(meta.rdev()),
                );
                push(
                    &mut spec["linux"]["resources"]["devices"],
                    json!({ "allow": true, "type": "c", "major": major, "minor": minor, "access": "rw" }),
                );
            }
        }
        for entry in &self.env {
            push(&mut spec["process"]["env"], (*entry).into());
        }
        // Limits of its own would need controllers below a cgroup with processes.
        if let Some(resources) = spec["linux"]["resources"].as_object_mut() {
            resources.remove("pids");
        }
        // Without the right to make cgroups the container has no path here, and stays in podman's own cgroup: in the
        // claim.
        let own = spec["linux"]["cgroupsPath"].as_str().unwrap_or_default();
        if let Some((_, name)) = own.rsplit_once('/') {
            spec["linux"]["cgroupsPath"] = format!("{parent}/{name}").into();
        }
    }
}

fn push(list: &mut Value, entry: Value) {
    match list {
        Value::Array(all) => all.push(entry),
        other => *other = json!([entry]),
    }
}

/// Hook of `podman start`: reads the description of a container, and prints it with the claim added.
pub(crate) fn hook(args: &[String]) -> Result<(), String> {
    let [parent, flags @ ..] = args else {
        return Err("the claim's control group is needed".to_owned());
    };
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .map_err(|e| e.to_string())?;
    let mut spec: Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
    Inside::of(flags).add_to_spec(&mut spec, parent);
    out::print(&spec.to_string()).map_err(|e| e.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags() -> Vec<String> {
        [
            "--device=/dev/null:/dev/nvidia0:rw",
            "--mount=type=bind,source=/a,destination=/b,readonly",
            "--mount=type=bind,source=/s,destination=/s",
            "--env=X=1,$2",
        ]
        .map(str::to_owned)
        .into()
    }

    #[test]
    fn apptainer_gets_binds_and_variables() {
        assert_eq!(
            Inside::of(&flags()).for_apptainer(false),
            ["--bind=/a:/b:ro", "--bind=/s:/s:rw", "--env=\"X=1,$2\""]
        );
    }

    #[test]
    fn a_composed_service_has_the_claims_gpus_in_place_of_those_that_it_names() {
        let reserved =
            json!({ "resources": { "reservations": { "devices": [{ "count": "all" }] } } });
        let mut project = json!({ "name": "p", "services": { "one": { "image": "i", "gpus": "all", "deploy": reserved } } });
        Inside::of(&flags()).add_to_services(&mut project, "/gshare/claim-3");
        let service = &project["services"]["one"];
        assert_eq!(
            service["deploy"]["resources"]["reservations"],
            json!({}),
            "{service}"
        );
        assert!(service.get("gpus").is_none());
        assert_eq!(
            service["environment"],
            json!({ "X": "1,$$2" }),
            "compose reads $"
        );
        assert_eq!(service["devices"][0]["target"], "/dev/nvidia0");
        assert_eq!(service["volumes"][0]["read_only"], true);
        assert_eq!(service["cgroup_parent"], "/gshare/claim-3");
    }

    #[test]
    fn a_container_that_was_made_before_is_moved_below_the_claim() {
        let mut spec = json!({ "mounts": [], "process": { "env": ["A=1"] }, "linux": {
            "cgroupsPath": "/libpod_parent/libpod-1", "resources": { "pids": { "limit": 2048 }, "devices": [] } } });
        Inside::of(&flags()).add_to_spec(&mut spec, "/gshare/claim-3");
        assert_eq!(spec["linux"]["cgroupsPath"], "/gshare/claim-3/libpod-1");
        let mut rootless = json!({ "linux": {} });
        Inside::of(&flags()).add_to_spec(&mut rootless, "/gshare/claim-3");
        assert!(rootless["linux"]["cgroupsPath"].is_null());
        assert!(spec["linux"]["resources"].get("pids").is_none(), "{spec}");
        assert_eq!(spec["linux"]["resources"]["devices"][0]["minor"], 3);
        assert_eq!(spec["process"]["env"], json!(["A=1", "X=1,$2"]));
        assert_eq!(
            spec["mounts"][1]["options"],
            json!(["rbind", "ro", "nosuid"])
        );
    }
}

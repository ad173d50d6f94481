//! Kernel mechanisms that contain claims: the tree of cgroups, the device filters and the devices' numbers.

use std::path::Path;

use gshare_config::{Config, Mode};
use gshare_core::ClaimId;
use gshare_enforcer::cgroup::{ClaimCgroup, OwnTree, Parent, Tree, UnitTree};
use gshare_enforcer::device::{DeviceError, DeviceRules, Filters};
use gshare_enforcer::nodes::Majors;
use gshare_enforcer::systemd;

use super::claims::Claims;

/// The mechanisms that are available, and why others are not.
#[derive(Debug)]
pub(crate) struct Fences {
    pub(crate) tree: Option<Tree>,
    /// Why there is no tree, or why it lies outside systemd's units.
    pub(crate) no_tree: Option<String>,
    pub(crate) filters: Option<Filters>,
    pub(crate) no_filter: Option<String>,
    pub(crate) majors: Majors,
}

impl Fences {
    /// Finds out which mechanisms are available.
    pub(crate) fn find(config: &Config, mode: Mode) -> Self {
        let (tree, no_tree) = open_tree(config, mode);
        let majors = majors(config);
        let (filters, no_filter) = probe_filters(config, tree.as_ref(), &majors);
        Self {
            tree,
            no_tree,
            filters,
            no_filter,
            majors,
        }
    }

    /// Reads the numbers of the driver's devices again: all but the GPUs' own change when its modules are reloaded,
    /// and a filter for the old numbers lets all new devices through. True if they have changed. With `load`, the
    /// module of unified memory is loaded if it is missing, because a program is about to need it.
    pub(crate) fn read_majors(&mut self, config: &Config, load: bool) -> bool {
        let mut now = match load {
            true => majors(config),
            false => majors_now(config),
        };
        // Without its module no device can be opened, so the known number stays.
        now.uvm = now.uvm.or(self.majors.uvm);
        now.caps = now.caps.or(self.majors.caps);
        if now == self.majors {
            return false;
        }
        tracing::info!(?now, before = ?self.majors, "the driver's device numbers have changed");
        self.majors = now;
        true
    }

    /// Their numbers, for the launcher.
    pub(crate) fn driver_majors(&self) -> Vec<u64> {
        let majors = &self.majors;
        [Some(majors.nvidia), majors.uvm, majors.caps]
            .into_iter()
            .flatten()
            .map(u64::from)
            .collect()
    }

    /// Sets the filter of a cgroup, if filters are available.
    pub(crate) fn set(
        &mut self,
        cgroup: Option<&ClaimCgroup>,
        rules: &DeviceRules,
    ) -> Result<(), DeviceError> {
        match (&mut self.filters, cgroup) {
            (Some(filters), Some(cgroup)) => filters.set(cgroup, rules),
            _ => Ok(()),
        }
    }
}

/// Device rules of everything that has a filter of its own.
#[derive(Debug)]
pub(crate) struct Rules {
    /// Those of claims.
    pub(crate) claims: Vec<(ClaimId, DeviceRules)>,
    /// Those of the remains of ended claims, in their order.
    pub(crate) ended: Vec<DeviceRules>,
}

impl Fences {
    /// Sets the filters of all claims, and of the remains of ended ones.
    pub(crate) fn set_all(&mut self, claims: &Claims, rules: Rules) {
        for (id, rules) in rules.claims {
            let cgroup = claims.get(&id).and_then(|live| live.cgroup.as_ref());
            if let Err(error) = self.set(cgroup, &rules) {
                tracing::error!(%id, %error, "cannot update its device filter");
            }
        }
        for (cgroup, rules) in claims.lingering.iter().zip(&rules.ended) {
            if let Err(error) = self.set(Some(cgroup), rules) {
                tracing::error!(%error, "cannot update the device filter of an ended claim");
            }
        }
    }
}

fn open_tree(config: &Config, mode: Mode) -> (Option<Tree>, Option<String>) {
    if !config.cgroup.enabled {
        return (
            None,
            Some("switched off in the config ([cgroup] enabled)".to_owned()),
        );
    }
    if mode == Mode::System && config.cgroup.systemd && systemd::booted() {
        match UnitTree::open(&config.cgroup.root) {
            Ok((tree, silent)) => {
                let why = silent.map(|error| format!("{:#}", anyhow::Error::from(error)));
                if let Some(why) = &why {
                    tracing::warn!(
                        "claims of users who have no systemd unit yet go into a cgroup tree outside systemd: {why}"
                    );
                }
                return (Some(tree.into()), why);
            }
            Err(error) => {
                let why = format!("{:#}", anyhow::Error::from(error));
                tracing::warn!("claims get a cgroup tree outside systemd's units: {why}");
                let (tree, none) = own_tree(config, mode);
                return (tree, none.or(Some(why)));
            }
        }
    }
    own_tree(config, mode)
}

fn own_tree(config: &Config, mode: Mode) -> (Option<Tree>, Option<String>) {
    let parent = match mode {
        Mode::System => Parent::Top,
        Mode::User => Parent::Own,
    };
    match OwnTree::open(&parent, &config.cgroup.root) {
        Ok(tree) => (Some(tree.into()), None),
        Err(error) => {
            tracing::warn!(
                "no cgroups, so gshare finds a claim's processes by their parent: {error}"
            );
            (None, Some(error.to_string()))
        }
    }
}

/// Device numbers: as configured, otherwise from the kernel's list, otherwise from the existing nodes.
///
/// Some are assigned when the module of unified memory is loaded, which may not have happened since the boot.
fn majors(config: &Config) -> Majors {
    majors_with(config, "nvidia-modprobe")
}

fn majors_with(config: &Config, modprobe: &str) -> Majors {
    let majors = majors_now(config);
    let control = config.devices.dir.join("nvidiactl");
    if majors.uvm.is_some() || !control.exists() {
        return majors;
    }
    let mut load = std::process::Command::new(modprobe);
    load.args(["-u", "-c", "0"])
        .stdin(std::process::Stdio::null());
    match load.status() {
        Ok(status) if status.success() => majors_now(config),
        Ok(status) => {
            tracing::warn!(%status, "nvidia-uvm is not loaded: its device number is unknown until a program loads it");
            majors
        }
        // Some driver packages lack the program.
        Err(_) => majors,
    }
}

fn majors_now(config: &Config) -> Majors {
    let mut majors = Majors::of_this_machine().unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot read the driver's device numbers, so gshare uses the usual ones");
        Majors::parse("")
    });
    let devices = &config.devices;
    let of_node = |name: &str| node_major(&devices.dir.join(name));
    if let Some(major) = devices.nvidia_major.or_else(|| of_node("nvidiactl")) {
        majors.nvidia = major;
    }
    // A node may be older than the last load of the module; without a driver there are only nodes.
    let uvm = devices.uvm_major.or(majors.uvm);
    majors.uvm = uvm.or_else(|| of_node("nvidia-uvm"));
    let caps = devices.caps_major.or(majors.caps);
    majors.caps = caps.or_else(|| {
        let mut nodes = std::fs::read_dir(devices.dir.join("nvidia-caps")).ok()?;
        node_major(&nodes.next()?.ok()?.path())
    });
    majors
}

fn node_major(path: &Path) -> Option<u32> {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let node = std::fs::metadata(path)
        .ok()
        .filter(|m| m.file_type().is_char_device())?;
    u32::try_from(nix::sys::stat::major(node.rdev())).ok()
}

fn probe_filters(
    config: &Config,
    tree: Option<&Tree>,
    majors: &Majors,
) -> (Option<Filters>, Option<String>) {
    if !config.devices.filter {
        return (
            None,
            Some("switched off in the config ([devices] filter)".to_owned()),
        );
    }
    if tree.is_none() {
        return (None, Some("needs cgroups".to_owned()));
    }
    let mut filters = Filters::default();
    match filters.preload(&DeviceRules::gpus(majors.clone(), [])) {
        Ok(()) => (Some(filters), None),
        Err(error) => {
            tracing::warn!("no device filter: {error}");
            (None, Some(error.to_string()))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_module_of_unified_memory_is_loaded_before_its_number_is_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut config = Config::default();
        config.devices.dir = dir.path().to_owned();
        let modprobe = dir.path().join("nvidia-modprobe");
        // The script reports the number of the node; `null` has the major 1.
        let script = format!(
            "#!/bin/sh\necho \"$@\" >>{0}/calls\nln -s /dev/null {0}/nvidia-uvm\n",
            dir.path().display()
        );
        std::fs::write(&modprobe, script).expect("written");
        let runs = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&modprobe, runs).expect("set");
        let modprobe = modprobe.to_str().expect("UTF-8");
        let calls = || std::fs::read_to_string(dir.path().join("calls")).unwrap_or_default();
        // Without a driver there is nothing to load.
        assert_eq!(majors_with(&config, modprobe).uvm, None);
        assert_eq!(calls(), "");
        std::fs::write(dir.path().join("nvidiactl"), "").expect("written");
        assert_eq!(majors_with(&config, modprobe).uvm, Some(1));
        assert_eq!(majors_with(&config, modprobe).uvm, Some(1));
        assert_eq!(calls(), "-u -c 0\n", "loaded once");
    }
}

//! Device numbers of the NVIDIA driver, and stand-in nodes for machines without one.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::sys::stat::{Mode, SFlag, makedev, mknod};

/// The fixed major of NVIDIA's GPUs and `nvidiactl`.
const NVIDIA_MAJOR: u32 = 195;
/// Majors for local use in the kernel, among which stand-ins take a free one.
const LOCAL_MAJORS: std::ops::RangeInclusive<u32> = 240..=254;

/// Majors of the driver's character devices on this machine. All but the first may change whenever the module is
/// loaded.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Majors {
    /// Of `nvidia<N>` and `nvidiactl`.
    pub nvidia: u32,
    /// Of `nvidia-uvm`; `None` while its module is not loaded.
    pub uvm: Option<u32>,
    /// Of `nvidia-caps/nvidia-cap<N>`; `None` on drivers without MIG.
    pub caps: Option<u32>,
}

/// Errors of device nodes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    #[error("cannot {verb} {path}")]
    Io {
        verb: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("no character device major is free between 240 and 254")]
    NoFreeMajor,
}

impl Majors {
    /// Reads `/proc/devices`.
    ///
    /// # Errors
    /// [`NodeError::Io`] if it is unreadable.
    pub fn of_this_machine() -> Result<Self, NodeError> {
        proc_devices().map(|text| Self::parse(&text))
    }

    /// Parses a `/proc/devices` file. Without a driver the major is the usual one, so that a filter made before the
    /// module is loaded still works.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let major = |wanted: &str| characters(text).find(|(_, name)| *name == wanted);
        let number = |wanted: &str| major(wanted).map(|(number, _)| number);
        Self {
            nvidia: number("nvidia-frontend")
                .or_else(|| number("nvidia"))
                .or_else(|| number("nvidiactl"))
                .unwrap_or(NVIDIA_MAJOR),
            uvm: number("nvidia-uvm"),
            caps: number("nvidia-caps"),
        }
    }

    /// Unused majors for [`make_stand_ins`].
    ///
    /// # Errors
    /// [`NodeError::NoFreeMajor`] or [`NodeError::Io`].
    pub fn free_on_this_machine() -> Result<Self, NodeError> {
        Self::parse_free(&proc_devices()?)
    }

    fn parse_free(text: &str) -> Result<Self, NodeError> {
        let mut free =
            LOCAL_MAJORS.filter(|major| !characters(text).any(|(number, _)| number == *major));
        let nvidia = free.next().ok_or(NodeError::NoFreeMajor)?;
        Ok(Self {
            nvidia,
            uvm: Some(free.next().ok_or(NodeError::NoFreeMajor)?),
            caps: free.next(),
        })
    }
}

fn proc_devices() -> Result<String, NodeError> {
    let path = Path::new("/proc/devices");
    fs::read_to_string(path).map_err(|source| NodeError::Io {
        verb: "read",
        path: path.into(),
        source,
    })
}

fn characters(text: &str) -> impl Iterator<Item = (u32, &str)> {
    text.lines()
        .skip_while(|line| !line.starts_with("Character devices"))
        .skip(1)
        .take_while(|line| !line.starts_with("Block devices"))
        .filter_map(|line| line.trim().split_once(char::is_whitespace))
        .filter_map(|(number, name)| Some((number.parse().ok()?, name.trim())))
}

/// The driver's list of the minors of MIG instances, `/proc/driver/nvidia-caps/mig-minors`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MigMinors(std::collections::BTreeMap<String, u32>);

impl MigMinors {
    /// Reads the file; none if it does not exist.
    #[must_use]
    pub fn read(path: &Path) -> Self {
        fs::read_to_string(path).map_or_else(|_| Self::default(), |text| Self::parse(&text))
    }

    /// Parses lines such as `gpu0/gi3/ci0/access 31`.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let entry = |line: &str| {
            let (name, minor) = line.trim().rsplit_once(char::is_whitespace)?;
            Some((name.trim().to_owned(), minor.parse().ok()?))
        };
        Self(text.lines().filter_map(entry).collect())
    }

    /// N of the two `/dev/nvidia-caps/nvidia-cap<N>` that a process needs for an instance of the GPU with this minor:
    /// the GPU instance's and its compute instance's.
    #[must_use]
    pub fn of_instance(&self, gpu: u32, gi: u32, ci: u32) -> Option<[u32; 2]> {
        let whole = self.0.get(&format!("gpu{gpu}/gi{gi}/access"))?;
        let part = self.0.get(&format!("gpu{gpu}/gi{gi}/ci{ci}/access"))?;
        Some([*whole, *part])
    }
}

/// Makes the nodes of MIG capabilities in `dir/nvidia-caps`, like [`make_stand_ins`] for GPUs.
///
/// # Errors
/// [`NodeError::Io`] naming the node.
pub fn make_cap_stand_ins(dir: &Path, major: u32, minors: &[u32]) -> Result<(), NodeError> {
    let dir = dir.join("nvidia-caps");
    let io = |verb: &'static str, path: &Path| {
        let path = path.to_owned();
        move |source| NodeError::Io { verb, path, source }
    };
    fs::create_dir_all(&dir).map_err(io("create", &dir))?;
    for minor in minors {
        let path = dir.join(format!("nvidia-cap{minor}"));
        make_node(&path, major, *minor).map_err(io("make the device node", &path))?;
    }
    Ok(())
}

/// Makes character devices in `dir` that stand in for the driver's: `nvidia<N>` for each of `minors`, `nvidiactl`,
/// `nvidia-uvm`. No driver is behind them: opening one fails with ENXIO if the device filter allows it and with EPERM
/// if not. Existing nodes are replaced. Needs root and a file system that is not mounted `nodev`.
///
/// # Errors
/// [`NodeError::Io`] naming the node.
pub fn make_stand_ins(dir: &Path, majors: &Majors, minors: &[u32]) -> Result<(), NodeError> {
    fs::create_dir_all(dir).map_err(|source| NodeError::Io {
        verb: "create",
        path: dir.into(),
        source,
    })?;
    let gpus = minors
        .iter()
        .map(|minor| (format!("nvidia{minor}"), majors.nvidia, *minor));
    let control = ("nvidiactl".to_owned(), majors.nvidia, 255);
    let uvm = majors.uvm.map(|major| ("nvidia-uvm".to_owned(), major, 0));
    for (name, major, minor) in gpus.chain([control]).chain(uvm) {
        let path = dir.join(name);
        make_node(&path, major, minor).map_err(|source| NodeError::Io {
            verb: "make the device node",
            path,
            source,
        })?;
    }
    Ok(())
}

fn make_node(path: &Path, major: u32, minor: u32) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let device = makedev(major.into(), minor.into());
    mknod(
        path,
        SFlag::S_IFCHR,
        Mode::from_bits_truncate(0o666),
        device,
    )?;
    // The umask may have removed bits.
    fs::set_permissions(path, fs::Permissions::from_mode(0o666))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_majors() {
        let check = |text: &str, nvidia, uvm, caps| {
            assert_eq!(Majors::parse(text), Majors { nvidia, uvm, caps }, "{text}");
        };
        check(
            "Character devices:\n  1 mem\n195 nvidia-frontend\n234 nvidia-caps\n508 nvidia-uvm\n\n\
             Block devices:\n  7 loop\n",
            195,
            Some(508),
            Some(234),
        );
        check(
            "Character devices:\n195 nvidia\n195 nvidiactl\n235 nvidia-caps-imex-channels\n",
            195,
            None,
            None,
        );
        check("Character devices:\n200 nvidiactl\n", 200, None, None);
        check(
            "Character devices:\n 1 mem\nBlock devices:\n200 nvidia\n",
            195,
            None,
            None,
        );
        check("", 195, None, None);
    }

    #[test]
    fn reads_the_minors_of_instances() {
        let text =
            "config 1\nmonitor 2\ngpu0/gi0/access 3\ngpu0/gi0/ci0/access 4\ngpu1/gi3/access 165\n";
        let minors = MigMinors::parse(text);
        assert_eq!(minors.of_instance(0, 0, 0), Some([3, 4]));
        assert_eq!(minors.of_instance(1, 3, 0), None, "no compute instance");
        assert_eq!(minors.of_instance(2, 0, 0), None);
    }

    #[test]
    fn finds_free_majors() {
        let free = Majors::parse_free("Character devices:\n240 x\n242 y\nBlock devices:\n241 z\n");
        let free = free.unwrap();
        assert_eq!(
            (free.nvidia, free.uvm, free.caps),
            (241, Some(243), Some(244))
        );
        let all: String = LOCAL_MAJORS.map(|m| format!("{m} taken\n")).collect();
        assert!(Majors::parse_free(&format!("Character devices:\n{all}")).is_err());
    }
}

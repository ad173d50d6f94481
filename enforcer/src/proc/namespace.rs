//! The owners of a process's namespaces.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use super::sys;

/// Maximum nesting of namespaces (user_namespaces(7)).
const DEEPEST: usize = 33;

/// A process's user namespace relative to this process's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserNamespace {
    Same,
    /// Below this process's, made by this user; of nested ones the outermost counts.
    Of(u32),
    /// Not below this process's.
    Elsewhere,
}

fn id(file: impl AsFd) -> io::Result<(u64, u64)> {
    let meta = File::from(file.as_fd().try_clone_to_owned()?).metadata()?;
    Ok((meta.dev(), meta.ino()))
}

/// The user namespace of the present process with this pid.
///
/// # Errors
/// The kernel's: the process has ended, or is inaccessible.
pub fn user_namespace(pid: i32) -> io::Result<UserNamespace> {
    let own = id(File::open("/proc/self/ns/user")?)?;
    let mut inner: OwnedFd = File::open(format!("/proc/{pid}/ns/user"))?.into();
    if id(&inner)? == own {
        return Ok(UserNamespace::Same);
    }
    for _ in 0..DEEPEST {
        let outer = match sys::parent_namespace(inner.as_fd()) {
            Ok(outer) => outer,
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => {
                return Ok(UserNamespace::Elsewhere);
            }
            Err(e) => return Err(e),
        };
        if id(&outer)? == own {
            return sys::namespace_owner(inner.as_fd()).map(UserNamespace::Of);
        }
        inner = outer;
    }
    Ok(UserNamespace::Elsewhere)
}

/// Whether a process lives in the machine's own namespaces of processes, users and mounts, and not in a container's. A
/// service that may not look at the machine's first process takes its own for the machine's.
#[must_use]
pub fn lives_on_the_machine(pid: i32) -> bool {
    let link = |pid: &str, kind: &str| fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok();
    ["pid", "user", "mnt"].into_iter().all(|kind| {
        let machine = link("1", kind).or_else(|| link("self", kind));
        machine.is_some() && machine == link(&pid.to_string(), kind)
    })
}

/// The owner of the range of subordinate user ids (subuid(5)) that contains a uid.
#[must_use]
pub fn subordinate_owner(uid: u32) -> Option<u32> {
    let text = fs::read_to_string("/etc/subuid").ok()?;
    range_owner(&text, uid).and_then(|name| match name.parse() {
        Ok(number) => Some(number),
        Err(_) => super::uid_of(name),
    })
}

/// The same from the file's text: the owner's name or number as written there.
#[must_use]
pub fn range_owner(text: &str, uid: u32) -> Option<&str> {
    text.lines().find_map(|line| {
        let mut fields = line.trim().split(':');
        let (name, first, count) = (fields.next()?, fields.next()?, fields.next()?);
        let (first, count): (u32, u32) = (first.parse().ok()?, count.parse().ok()?);
        (uid >= first && uid - first < count).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_maker_of_the_outermost_namespace_is_told() {
        let own = std::process::id().cast_signed();
        assert_eq!(user_namespace(own).unwrap(), UserNamespace::Same);
        let mut child = Command::new("unshare")
            .args(["-Ur", "unshare", "-Ur", "sh", "-c", "echo ready; read x"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 6];
        let said = io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready);
        if said.is_err() {
            println!("skipped: this user may not make user namespaces");
            child.wait().unwrap();
            return;
        }
        let pid = child.id().cast_signed();
        let me = nix::unistd::geteuid().as_raw();
        assert_eq!(user_namespace(pid).unwrap(), UserNamespace::Of(me));
        assert!(!lives_on_the_machine(pid));
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn ranges_are_read_and_what_is_no_range_is_not() {
        let text = "# ada:1:9\nada:100000:65536\n1001:200000:10\nbob:4294967290:99\nx:y:z\n:\n";
        for (uid, owner) in [
            (99_999, None),
            (100_000, Some("ada")),
            (165_535, Some("ada")),
            (165_536, None),
            (200_009, Some("1001")),
            (u32::MAX, Some("bob")),
        ] {
            assert_eq!(range_owner(text, uid), owner, "{uid}");
        }
    }
}

//! Users with access to a directory of the service's user: by an access list (acl(5)), so that the directory never
//! belongs to another user.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use nix::unistd::geteuid;

/// Users who may enter the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only the service's own user.
    Owner,
    /// One other user.
    One(u32),
    Everybody,
}

impl Access {
    /// Access for a user, who may be the owner.
    #[must_use]
    pub fn of_user(uid: u32) -> Self {
        match geteuid().as_raw() == uid {
            true => Self::Owner,
            false => Self::One(uid),
        }
    }
}

/// Extended attribute with a file's access list.
const NAME: &str = "system.posix_acl_access";
/// The kernel's format of an access list: version, then entries of tag, permissions and id (linux/posix_acl_xattr.h).
const VERSION: u32 = 2;
const ENTRY: usize = 8;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
const NO_ID: u32 = u32::MAX;
/// Permission to read and enter.
const PASS: u16 = 5;

fn list_for(uid: u32) -> Vec<u8> {
    let entries = [
        (USER_OBJ, 7, NO_ID),
        (USER, PASS, uid),
        (GROUP_OBJ, 0, NO_ID),
        (MASK, PASS, NO_ID),
        (OTHER, 0, NO_ID),
    ];
    let mut list = VERSION.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        list.extend(tag.to_le_bytes());
        list.extend(u16::to_le_bytes(permissions));
        list.extend(u32::to_le_bytes(id));
    }
    list
}

/// The user in a list made by [`list_for`].
fn user_of(list: &[u8]) -> Option<u32> {
    let entry = list.get(size_of::<u32>() + ENTRY..)?.get(..ENTRY)?;
    let uid = u32::from_le_bytes(entry[4..].try_into().ok()?);
    (list_for(uid) == list).then_some(uid)
}

/// Reads the access list of the directory.
pub(super) fn of(dir: &Path) -> io::Result<Access> {
    let list = match xattr::get(dir, NAME) {
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => None,
        list => list?,
    };
    match list {
        Some(list) => user_of(&list).map(Access::One).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "it is not one that gshare made")
        }),
        None if dir.metadata()?.mode() & 0o005 == 0o005 => Ok(Access::Everybody),
        None => Ok(Access::Owner),
    }
}

pub(super) fn set(dir: &Path, access: Access) -> io::Result<()> {
    let mode = |bits| std::fs::set_permissions(dir, Permissions::from_mode(bits));
    match access {
        Access::Owner => mode(0o700),
        Access::Everybody => mode(0o755),
        Access::One(uid) => {
            mode(0o700)?;
            xattr::set(dir, NAME, &list_for(uid))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_pass_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        for access in [
            Access::Owner,
            Access::Everybody,
            Access::Owner,
            Access::One(4711),
        ] {
            match set(dir.path(), access) {
                Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                    println!("skipped: no access lists in {}", dir.path().display());
                }
                done => {
                    done.unwrap();
                    assert_eq!(of(dir.path()).unwrap(), access);
                    assert_eq!(dir.path().metadata().unwrap().mode() & 0o022, 0);
                }
            }
        }
        assert_eq!(user_of(&list_for(7)), Some(7));
        assert_eq!(user_of(&list_for(7)[..20]), None);
    }
}

//! Access lists of files, which the standard library does not know.
#![allow(unsafe_code, reason = "these system calls have no safe wrapper")]

use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const NAME: &CStr = c"system.posix_acl_access";
/// Longest list that is read, in bytes: of sixty entries.
const LONGEST: usize = 512;

/// The list of a file; nothing where it has none beside its mode.
pub(super) fn access_list(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut list = vec![0; LONGEST];
    // SAFETY: two strings that end in NUL, and a live buffer of the stated length.
    let bytes = unsafe {
        libc::lgetxattr(
            path.as_ptr(),
            NAME.as_ptr(),
            list.as_mut_ptr().cast(),
            list.len(),
        )
    };
    match usize::try_from(bytes) {
        Ok(bytes) => {
            list.truncate(bytes);
            Ok(Some(list))
        }
        Err(_) => match io::Error::last_os_error() {
            e if matches!(e.raw_os_error(), Some(libc::ENODATA | libc::EOPNOTSUPP)) => Ok(None),
            e => Err(e),
        },
    }
}

/// Gives a file a list.
pub(super) fn set_access_list(path: &Path, list: &[u8]) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: two strings that end in NUL, and a live buffer of the stated length.
    let result = unsafe {
        libc::lsetxattr(
            path.as_ptr(),
            NAME.as_ptr(),
            list.as_ptr().cast(),
            list.len(),
            0,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

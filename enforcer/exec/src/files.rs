//! The launcher's own file, and its inherited descriptors.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use gshare_abi::{HANDOVER_LIMIT, Handover, trusted};

use crate::refusal::{INTERNAL, NOT_PERMITTED, Refusal, USAGE};
use crate::sys;

/// Path of this program, if only root can have put it there: with a link in a user's directory that user would choose
/// the files beside it.
pub(crate) fn own_file() -> Result<PathBuf, Refusal> {
    let refuse = |why: String| {
        if std::fs::metadata("/").is_ok_and(|root| root.uid() != 0) {
            return Refusal::new(
                NOT_PERMITTED,
                "this machine enforces strict limits, and gshare-exec cannot set them in your own user namespace",
            )
            .hint("run gshare claim outside the namespace, and create the namespace inside the claim: gshare claim -- unshare ...");
        }
        Refusal::new(
            NOT_PERMITTED,
            format!("gshare-exec, which starts commands in claims, cannot be trusted: {why}"),
        )
        .hint("to install gshare-exec again: sudo gshare setup")
    };
    let path = std::fs::read_link("/proc/self/exe").map_err(|error| refuse(error.to_string()))?;
    trusted(&path).map_err(refuse)?;
    let (own, there) = (
        std::fs::metadata("/proc/self/exe").map_err(|error| refuse(error.to_string()))?,
        std::fs::metadata(&path).map_err(|error| refuse(error.to_string()))?,
    );
    if (own.dev(), own.ino()) != (there.dev(), there.ino()) {
        return Err(refuse(format!("{} was replaced meanwhile", path.display())));
    }
    Ok(path)
}

/// Reads the handover. It must be sealed, so that the checked content cannot change.
pub(crate) fn handover(fd: RawFd) -> Result<Handover, Refusal> {
    let damaged = |why: &str| {
        Refusal::new(
            USAGE,
            format!("the environment passed to gshare-exec {why}"),
        )
    };
    let file = sys::inherited(fd).ok_or_else(|| damaged("is not there"))?;
    let wanted = libc::F_SEAL_WRITE | libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
    if !sys::seals(file.as_raw_fd()).is_ok_and(|seals| seals & wanted == wanted) {
        return Err(damaged("is not sealed"));
    }
    let mut file = File::from(file);
    let mut bytes = Vec::new();
    std::io::Seek::rewind(&mut file)
        .and_then(|()| (&file).take(HANDOVER_LIMIT + 1).read_to_end(&mut bytes))
        .map_err(|error| damaged(&format!("cannot be read: {error}")))?;
    if bytes.len() as u64 > HANDOVER_LIMIT {
        return Err(damaged("is longer than the kernel allows"));
    }
    Handover::from_bytes(&bytes).map_err(|error| Refusal::new(USAGE, error.to_string()))
}

/// Closes open descriptors of the driver's devices: opened before the claim, they bypass its filter.
pub(crate) fn close_devices(majors: &[u64]) -> Result<(), Refusal> {
    let unreadable = |error: std::io::Error| {
        let what = format!("the open descriptors cannot be listed: {error}");
        Refusal::new(INTERNAL, what)
    };
    let entries = std::fs::read_dir("/proc/self/fd").map_err(unreadable)?;
    let mut found = Vec::new();
    for entry in entries {
        let name = entry.map_err(unreadable)?.file_name();
        let number = name.to_str().and_then(|name| name.parse::<RawFd>().ok());
        let device =
            number.filter(|fd| sys::character_major(*fd).is_some_and(|m| majors.contains(&m)));
        found.extend(device);
    }
    for fd in found {
        nix::unistd::close(fd).map_err(|error| {
            Refusal::new(
                INTERNAL,
                format!("descriptor {fd} cannot be closed: {error}"),
            )
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::io::Write;
    use std::os::fd::{AsFd, IntoRawFd};

    use nix::fcntl::{FcntlArg, SealFlag, fcntl};
    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::*;

    fn memfd(bytes: &[u8], seals: SealFlag) -> RawFd {
        let name = CString::new("handover").unwrap();
        let fd = memfd_create(name.as_c_str(), MFdFlags::MFD_ALLOW_SEALING).unwrap();
        File::from(fd.try_clone().unwrap())
            .write_all(bytes)
            .unwrap();
        fcntl(fd.as_fd(), FcntlArg::F_ADD_SEALS(seals)).unwrap();
        fd.into_raw_fd()
    }

    #[test]
    fn only_a_whole_and_sealed_environment_is_taken() {
        let given = Handover {
            environment: b"A=1\0".to_vec(),
            ..Handover::default()
        };
        let bytes = given.to_bytes();
        assert_eq!(handover(memfd(&bytes, SealFlag::all())).unwrap(), given);
        let refused = |fd: RawFd, why: &str| {
            let refusal = handover(fd).unwrap_err();
            assert!(refusal.message.contains(why), "{}", refusal.message);
            assert_eq!(refusal.code, USAGE);
        };
        refused(memfd(&bytes, SealFlag::F_SEAL_WRITE), "not sealed");
        refused(memfd(b"", SealFlag::all()), "lacks");
        refused(memfd(&bytes[..bytes.len() - 1], SealFlag::all()), "cut off");
        refused(File::open("/dev/null").unwrap().into_raw_fd(), "not sealed");
        refused(1_000_000, "not there");
        let long = vec![0; usize::try_from(HANDOVER_LIMIT).unwrap() + 1];
        refused(memfd(&long, SealFlag::all()), "longer");
    }
}

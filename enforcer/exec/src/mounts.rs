//! The mount namespace of the command, and its bind mounts.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use gshare_abi::trusted;
use gshare_abi::wire::Bind;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::refusal::{INTERNAL, NOT_PERMITTED, Refusal};
use crate::rights;

/// Whether only root can change the files.
pub(crate) fn trust(bind: &Bind) -> Result<(), Refusal> {
    for path in [&bind.from, &bind.on] {
        trusted(Path::new(path)).map_err(|why| {
            Refusal::new(NOT_PERMITTED, format!("a library cannot be trusted: {why}")).hint(
                "ask your administrator to make the driver's and gshare's libraries writable for root only",
            )
        })?;
    }
    Ok(())
}

/// Checks that these are the files that the service has seen.
pub(crate) fn check(bind: &Bind) -> Result<(), Refusal> {
    if is(bind, &bind.on)? || is(bind, &bind.from)? {
        return Ok(());
    }
    Err(Refusal::new(
        NOT_PERMITTED,
        format!("{}: this shell sees another file at this path than the gshare service does", bind.from),
    )
    .hint("the driver was changed, or this shell has a mount namespace of its own: try again from a new login"))
}

/// Makes the namespace and the mounts. Later mounts of the machine (a home, a stick) still appear; these mounts do not
/// leave the namespace.
pub(crate) fn make(binds: &[Bind]) -> Result<(), Refusal> {
    rights::raise()?;
    let kernel = |what: &str, error: nix::errno::Errno| {
        let error = io::Error::from(error);
        Refusal::new(NOT_PERMITTED, format!("{what}: {error}"))
            .hint("a sandbox or a limit (sysctl user.max_mnt_namespaces, fs.mount-max) may prevent this: see gshare doctor")
    };
    unshare(CloneFlags::CLONE_NEWNS).map_err(|e| kernel("cannot make a mount namespace", e))?;
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none)
        .map_err(|e| kernel("cannot set mount propagation to slave", e))?;
    for bind in binds {
        // In the shell of another claim it is mounted already.
        if is(bind, &bind.on)? {
            continue;
        }
        mount(
            Some(bind.from.as_str()),
            bind.on.as_str(),
            none,
            MsFlags::MS_BIND,
            none,
        )
        .map_err(|e| kernel(&format!("cannot mount {} over {}", bind.from, bind.on), e))?;
        if !is(bind, &bind.on)? {
            return Err(Refusal::new(
                INTERNAL,
                format!("{} is not mounted over {}", bind.from, bind.on),
            ));
        }
    }
    Ok(())
}

/// Whether a path is already the file to be mounted over it.
fn is(bind: &Bind, path: &str) -> Result<bool, Refusal> {
    let found: Metadata = std::fs::symlink_metadata(path)
        .map_err(|error| Refusal::new(NOT_PERMITTED, format!("cannot stat {path}: {error}")))?;
    Ok((found.dev(), found.ino()) == (bind.device, bind.inode))
}

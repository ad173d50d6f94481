//! Graphical sessions at the machine's own screens, according to logind: a desktop must keep its GPU.

use std::fs;
use std::path::{Path, PathBuf};

/// logind's files about sessions (read by libsystemd's `sd_session_get_*`).
pub const SESSIONS: &str = "/run/systemd/sessions";

/// The cgroups of graphical sessions at seats, as paths from the top: the session's scope, and the user's manager,
/// below which today's desktops start the display server and all programs. Remote sessions (ssh, VNC) have no seat.
/// Empty without logind.
#[must_use]
pub fn graphical_cgroups(sessions: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(sessions).into_iter().flatten().flatten();
    // Beside each lies a pipe (`c1.ref`) whose other end the session holds: reading it would block until the session
    // ends.
    let plain = files.filter(|entry| entry.file_type().is_ok_and(|t| t.is_file()));
    let texts = plain.filter_map(|entry| fs::read_to_string(entry.path()).ok());
    let mut found: Vec<PathBuf> = texts
        .filter_map(|text| graphical(&text))
        .flatten()
        .collect();
    found.sort();
    found.dedup();
    found
}

fn graphical(text: &str) -> Option<[PathBuf; 2]> {
    let field = |name: &str| {
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
        Some(value).filter(|v| !v.is_empty())
    };
    field("SEAT")?;
    if !matches!(field("TYPE")?, "x11" | "wayland" | "mir") {
        return None;
    }
    let uid: u32 = field("UID")?.parse().ok()?;
    let scope = field("SCOPE").filter(|s| !s.contains('/') && s.ends_with(".scope"))?;
    let slice = PathBuf::from(format!("/user.slice/user-{uid}.slice"));
    Some([slice.join(scope), slice.join(format!("user@{uid}.service"))])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_graphical_sessions_at_a_seat_count() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        let desk = "# This is private data. Do not parse.\nUID=1000\nUSER=ada\nACTIVE=1\nSTATE=active\n\
                    TYPE=wayland\nCLASS=user\nSCOPE=session-2.scope\nSEAT=seat0\nTTY=tty2\n";
        write("2", desk);
        write(
            "c1",
            "UID=42\nTYPE=x11\nCLASS=greeter\nSCOPE=session-c1.scope\nSEAT=seat0\n",
        );
        write(
            "5",
            "UID=1001\nTYPE=tty\nCLASS=user\nSCOPE=session-5.scope\nREMOTE=1\n",
        );
        write(
            "6",
            "UID=1001\nTYPE=x11\nCLASS=user\nSCOPE=session-6.scope\nSEAT=\n",
        );
        write(
            "7",
            "UID=1001\nTYPE=tty\nSCOPE=session-7.scope\nSEAT=seat0\n",
        );
        write("8", "UID=1002\nTYPE=x11\nSCOPE=../../x.scope\nSEAT=seat0\n");
        write("9", "");
        // Held open for writing like logind's; reading it blocks.
        let pipe = dir.path().join("2.ref");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let _held = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&pipe)
            .unwrap();
        let found = graphical_cgroups(dir.path());
        let wanted = [
            "/user.slice/user-1000.slice/session-2.scope",
            "/user.slice/user-1000.slice/user@1000.service",
            "/user.slice/user-42.slice/session-c1.scope",
            "/user.slice/user-42.slice/user@42.service",
        ];
        assert_eq!(found, wanted.map(PathBuf::from));
        assert!(graphical_cgroups(Path::new("/nonexistent")).is_empty());
    }
}

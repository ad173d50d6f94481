//! Xids in the kernel's log: some are reported only there, and with the process that caused them.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;

use crate::daemon::fact::{KernelXid, Pci};

/// `0000:2b:00`, also with a function: `00000000:2B:00.0`.
pub(crate) fn pci(text: &str) -> Option<Pci> {
    let mut parts = text.split(':');
    let mut hex = || u32::from_str_radix(parts.next()?.split('.').next()?.trim(), 16).ok();
    let (domain, bus, device) = (hex()?, hex()?, hex()?);
    Some((domain, u8::try_from(bus).ok()?, u8::try_from(device).ok()?))
}

/// Parses a record of `/dev/kmsg` (Documentation/ABI/testing/dev-kmsg): `3,1234,5678,-;NVRM: Xid (PCI:0000:2b:00):
/// 79, pid=1234, name=python, ...`; with MIG, ` GPU-I:01` follows the device.
///
/// Users can make the kernel log texts of their choice, such as the name of a crashed program, and root's programs
/// write records of their own. So the record must be the kernel's, and begin exactly as the driver's line does: a
/// program name that the kernel puts first has at most 15 letters, which end before the device.
pub(crate) fn parse(record: &str) -> Option<KernelXid> {
    let (head, message) = record.split_once(';')?;
    let mut fields = head.split(',');
    let priority: u32 = fields.next()?.parse().ok()?;
    let number = |field: Option<&str>| field?.parse::<u64>().ok();
    number(fields.next())?;
    number(fields.next())?;
    // Facility 0, the kernel's; the lowest three bits are the level.
    if priority >> 3 != 0 {
        return None;
    }
    let rest = message.strip_prefix("NVRM: Xid (PCI:")?;
    let (place, rest) = rest.split_once("): ")?;
    let mut place = place.split(' ');
    let device = place.next().filter(|d| is_device(d))?;
    if !place.all(|part| part.starts_with("GPU-I:") || part.starts_with("GPU-CI:")) {
        return None;
    }
    let mut fields = rest.split(", ");
    let code = fields.next()?.trim_end_matches([',', '.']);
    let pid = fields
        .next()
        .and_then(|f| f.strip_prefix("pid=")?.parse().ok());
    Some(KernelXid {
        pci: pci(device)?,
        code: code.parse().ok()?,
        pid,
    })
}

/// `0000:2b:00` or `00000000:2b:00.0`, and nothing else.
fn is_device(text: &str) -> bool {
    let (place, function) = text.split_once('.').unwrap_or((text, "0"));
    let parts: Vec<&str> = place.split(':').collect();
    let hex = |part: &str, most: usize| {
        (1..=most).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_hexdigit())
    };
    matches!(parts.as_slice(), [domain, bus, device] if hex(domain, 8) && hex(bus, 2) && hex(device, 2))
        && hex(function, 1)
}

/// Reads the log in a thread, from now on, until `tell` returns false.
pub(crate) fn watch(path: &Path, tell: impl Fn(KernelXid) -> bool + Send + 'static) {
    let opened = open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) => {
            tracing::warn!(%error, path = %path.display(), "cannot read the kernel log for GPU errors");
            return;
        }
    };
    let spawned = std::thread::Builder::new()
        .name("kernel-log".to_owned())
        .spawn(move || read(file, tell));
    if let Err(error) = spawned {
        tracing::warn!(%error, "cannot start the thread that reads the kernel log");
    }
}

fn open(path: &Path) -> std::io::Result<File> {
    let pipe = path.metadata()?.file_type().is_fifo();
    // A pipe that is also open for writing never ends.
    let mut file = File::options().read(true).write(pipe).open(path)?;
    if !pipe {
        file.seek(SeekFrom::End(0))?;
    }
    Ok(file)
}

fn read(mut file: File, tell: impl Fn(KernelXid) -> bool) {
    // A read of the kernel's log returns one record, at most this long.
    let mut record = vec![0; 8192];
    loop {
        let n = match file.read(&mut record) {
            Ok(0) => {
                // The end of a file that is still being written.
                std::thread::sleep(Duration::from_secs(1));
                continue;
            }
            Ok(n) => n,
            // Records were overwritten before they were read: continue with the oldest that is left.
            Err(e) if e.raw_os_error() == Some(nix::errno::Errno::EPIPE as i32) => continue,
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(error) => {
                tracing::warn!(%error, "can no longer read the kernel log");
                return;
            }
        };
        // After the first line of a record come the names of devices.
        let text = String::from_utf8_lossy(&record[..n]);
        for xid in text.lines().filter_map(parse) {
            if !tell(xid) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernels_log_are_read() {
        let xid = |code, pid| {
            Some(KernelXid {
                pci: (0, 0x2b, 0),
                code,
                pid,
            })
        };
        let gone = "3,1234,5678,-;NVRM: Xid (PCI:0000:2b:00): 79, GPU has fallen off the bus.";
        assert_eq!(parse(gone), xid(79, None));
        let own =
            "4,1,2,-,caller=T9;NVRM: Xid (PCI:0000:2b:00): 31, pid=4242, name=python3, Ch 00000008";
        assert_eq!(parse(own), xid(31, Some(4242)));
        let mig =
            "3,1,2,-;NVRM: Xid (PCI:0000:2b:00 GPU-I:01): 13, pid='<unknown>', name=<unknown>";
        assert_eq!(parse(mig), xid(13, None));
        let named = "3,1,2,-;NVRM: Xid (PCI:0000:2b:00): 43, name=x, pid=7";
        assert_eq!(
            parse(named),
            xid(43, None),
            "a program's name is no field of the driver's"
        );
        for other in [
            "",
            "3,1,2,-;NVRM: loading",
            "3,1,2,-;NVRM: Xid (PCI:x): 79",
            "3,1,2,-;NVRM: Xid (PCI:0000:2b:00): x",
            // No record, another facility, a continuation, not at the beginning, a program's name.
            "NVRM: Xid (PCI:0000:2b:00): 79",
            "14,1,2,-;NVRM: Xid (PCI:0000:2b:00): 79",
            " DEVICE=x;NVRM: Xid (PCI:0000:2b:00): 79",
            "6,1,2,-;x NVRM: Xid (PC[7]: segfault at 0 in x NVRM: Xid (PCI:0000:2b:00): 79, GPU[1]",
            "6,1,2,-;NVRM: Xid (PCI:[7]: segfault at 0 in NVRM: Xid (PCI:0000:2b:00): 79, a[1]",
            "6,1,2,-;NVRM: Xid (PCI:0[7]: segfault in (PCI:0000:2b:00): 79, a[1]",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn names_of_devices_are_compared_whatever_their_spelling() {
        assert_eq!(pci("0000:3b:00"), pci("00000000:3B:00.0"));
        assert_eq!(pci("0000:3b:00"), Some((0, 0x3b, 0)));
        assert_eq!(pci("3b"), None);
    }
}

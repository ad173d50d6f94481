//! `gshare kernel exec`: executes a kernel at once, in a claim that holds nothing until its first CUDA call.
//!
//! A missing, full or slow service leaves the kernel without a claim, but never Jupyter without a kernel.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use gshare_core::Class;
use gshare_proto::{Call, ClaimSpec, Granted, KernelSpec, Wait};

use super::super::args::kernel::ExecArgs;
use super::super::claim::{granted, shown_command, sized};
use super::super::failure::Failure;
use super::super::{Outcome, connect, exec, out};
use crate::kernel::connection_file;

pub(crate) fn run(socket: Option<&Path>, args: &ExecArgs) -> Outcome {
    let granted = claim(socket, args).unwrap_or_else(|failure| {
        out::failure(&failure);
        out::note("gshare: this kernel runs without a claim; fix the cause above, then restart the kernel");
        Granted::default()
    });
    Err(exec::exec(&args.command, &granted))
}

fn claim(socket: Option<&Path>, args: &ExecArgs) -> Result<Granted, Failure> {
    let size = &args.size;
    let spec = ClaimSpec {
        project: size.project.clone().map(Into::into),
        class: Some(Class::Interactive.name().to_owned().into()),
        wait: if args.no_wait {
            Wait::No
        } else {
            Wait::Forever
        },
        command: shown_command(&args.command).into(),
        lazy: true,
        kernel: kernel_of(&args.command),
        ..sized(size.gpus, &size.part)
    };
    let mut client = connect::connect(socket)?;
    client.set_read_timeout(Some(connect::PROMPT))?;
    let reply = client.call(&Call::Claim(Box::new(spec)));
    granted(reply.map_err(connect::silent)?)
}

/// The kernel by its connection file, the word of the command that ends in `.json`: `kernel-<id>.json`.
fn kernel_of(command: &[OsString]) -> Option<KernelSpec> {
    let connection: PathBuf = std::path::absolute(connection_file(command)?).ok()?;
    let stem = connection.file_stem()?.to_str()?;
    let id = stem.strip_prefix("kernel-").unwrap_or(stem).to_owned();
    let connection = connection.to_str()?.into();
    Some(KernelSpec {
        id: id.into(),
        connection,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_known_by_its_connection_file() {
        let of = |words: &[&str]| {
            let command: Vec<OsString> = words.iter().map(Into::into).collect();
            kernel_of(&command).map(|k| (k.id.to_string(), PathBuf::from(k.connection.as_str())))
        };
        let file = "/run/user/7/jupyter/kernel-0b1c.json";
        let known = Some(("0b1c".to_owned(), PathBuf::from(file)));
        assert_eq!(
            of(&["python", "-m", "ipykernel_launcher", "-f", file]),
            known
        );
        assert_eq!(of(&["R", "--args", &format!("--connection={file}")]), known);
        assert_eq!(of(&["python", "x.py"]), None);
        assert_eq!(
            of(&["x", "/a/other.json"]).map(|k| k.0),
            Some("other".to_owned())
        );
    }
}

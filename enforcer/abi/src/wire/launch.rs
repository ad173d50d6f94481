//! The launcher's request for its plan, and the answer. The launcher holds a capability while it reads the answer, so
//! the message contains only what it needs.

use super::kind;
use super::message::{Malformed, Writer, open};

/// The refusal for a process with no_new_privs, and what to do, as both the launcher and the service say it.
pub const NO_NEW_PRIVS: [&str; 2] = [
    "this machine enforces strict limits, and gshare-exec cannot set them: no_new_privs is set for this process",
    "a sandbox, a container or a systemd unit with NoNewPrivileges= sets no_new_privs: run gshare claim outside it, and \
     start the sandbox or container inside the claim",
];

/// The launcher asks to become the command of a claim, or another process in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// Number of the claim. Its owner and the caller are known from the kernel.
    pub claim: u64,
}

/// A file that is mounted over another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bind {
    /// Absolute path of the file to be mounted.
    pub from: String,
    /// Device number of its file system: the path may mean another file by now.
    pub device: u64,
    pub inode: u64,
    /// Absolute path of the file that it hides.
    pub on: String,
}

/// Steps of the launcher before it becomes the command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    pub claim: u64,
    /// Majors of the driver's character devices: open ones are closed.
    pub majors: Vec<u64>,
    /// Mounts, in order.
    pub binds: Vec<Bind>,
}

/// The service's answer to [`Launch`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LaunchAnswer {
    /// The process is in the claim's cgroup now.
    Go(Plan),
    /// It was not moved.
    Refused {
        /// Code: `not_permitted`, `ended`, `unavailable` or `internal`.
        code: String,
        message: String,
    },
}

impl LaunchAnswer {
    /// Decodes a message.
    ///
    /// # Errors
    /// [`Malformed`], which names the missing part.
    pub fn read(message: &[u8]) -> Result<Self, Malformed> {
        let (kind, mut body) = open(message)?;
        match kind {
            kind::PLAN => Ok(Self::Go(Plan {
                claim: body.u64("claim")?,
                majors: body.list("majors", |body| body.u64("majors"))?,
                binds: body.list("binds", |body| {
                    Ok(Bind {
                        from: body.text("from")?,
                        device: body.u64("device")?,
                        inode: body.u64("inode")?,
                        on: body.text("on")?,
                    })
                })?,
            })),
            kind::REFUSED => Ok(Self::Refused {
                code: body.text("code")?,
                message: body.text("message")?,
            }),
            other => Err(Malformed(format!("unknown reply kind {other} to a launch"))),
        }
    }

    /// The message.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Go(plan) => Writer::new(kind::PLAN)
                .u64(plan.claim)
                .list(&plan.majors, |writer, major| writer.u64(*major))
                .list(&plan.binds, |writer, bind| {
                    let writer = writer.text(&bind.from).u64(bind.device);
                    writer.u64(bind.inode).text(&bind.on)
                }),
            Self::Refused { code, message } => Writer::new(kind::REFUSED).text(code).text(message),
        }
        .done()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_survives_and_half_of_one_is_an_error() {
        let bind = |n: u64| Bind {
            from: format!("/run/a \"b\"/{n}"),
            device: n,
            inode: u64::MAX - n,
            on: "/usr/lib/ü".to_owned(),
        };
        for answer in [
            LaunchAnswer::Go(Plan::default()),
            LaunchAnswer::Go(Plan {
                claim: 7,
                majors: vec![195, 510],
                binds: vec![bind(1), bind(2)],
            }),
            LaunchAnswer::Refused {
                code: "ended".to_owned(),
                message: "c3 is ending".to_owned(),
            },
        ] {
            let bytes = answer.bytes();
            for cut in 0..bytes.len() {
                assert!(
                    LaunchAnswer::read(&bytes[..cut]).is_err(),
                    "{answer:?} {cut}"
                );
            }
            assert_eq!(LaunchAnswer::read(&bytes), Ok(answer));
        }
    }
}

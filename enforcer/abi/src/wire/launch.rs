//! The message by which the launcher gets its plan: `{"op":"launch","claim":3}` and the answer. The launcher
//! holds a capability while it reads it, so there is nothing in it that it does not need.

use super::json::{Value, quote};
use super::{Malformed, missing, refusal};

/// The launcher asks to become the command of a claim, or one more process in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// Number of the claim. Whose it is and who asks, the service knows from the kernel.
    pub claim: u64,
}

/// A file that is laid over another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bind {
    /// Absolute path of what is laid over.
    pub from: String,
    /// Device number of that file's file system: the path may by now mean another file.
    pub device: u64,
    /// Its inode.
    pub inode: u64,
    /// Absolute path of the file that is hidden by it.
    pub on: String,
}

/// What the launcher does before it becomes the command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Number of the claim.
    pub claim: u64,
    /// Majors of the driver's character devices: open ones are closed.
    pub majors: Vec<u64>,
    /// In this order.
    pub binds: Vec<Bind>,
}

/// The service's answer to [`Launch`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LaunchAnswer {
    /// The process is in the claim's cgroup now.
    Go(Plan),
    /// It is not.
    Refused {
        /// `not_permitted`, `ended`, `unavailable` or `internal`.
        code: String,
        /// A sentence for people.
        message: String,
    },
}

impl Launch {
    /// Reads the line; `None` if it is another request.
    ///
    /// # Errors
    /// [`Malformed`] if it is a launch without its fields.
    pub fn parse(line: &str) -> Option<Result<Self, Malformed>> {
        // Most lines are something else: those need not be read twice.
        if !line.contains("launch") {
            return None;
        }
        let value = Value::parse(line).ok()?;
        (value.text("op") == Some("launch")).then(|| {
            let claim = value.number("claim").ok_or_else(|| missing("claim"))?;
            Ok(Self { claim })
        })
    }

    /// The line, with its newline.
    #[must_use]
    pub fn line(&self) -> String {
        format!("{{\"op\":\"launch\",\"claim\":{}}}\n", self.claim)
    }
}

impl LaunchAnswer {
    /// Reads the line.
    ///
    /// # Errors
    /// [`Malformed`] naming the field.
    pub fn parse(line: &str) -> Result<Self, Malformed> {
        let value = Value::parse(line)?;
        if let Some((code, message)) = refusal(&value)? {
            return Ok(Self::Refused { code, message });
        }
        let Some(Value::Array(majors)) = value.get("majors") else {
            return Err(missing("majors"));
        };
        let Some(Value::Array(binds)) = value.get("binds") else {
            return Err(missing("binds"));
        };
        let major = |major: &Value| match major {
            Value::Number(number) => Ok(*number),
            _ => Err(missing("majors")),
        };
        let bind = |entry: &Value| -> Result<Bind, Malformed> {
            let text = |name: &str| {
                let found = entry.text(name).map(str::to_owned);
                found.ok_or_else(|| missing(name))
            };
            let number = |name: &str| entry.number(name).ok_or_else(|| missing(name));
            Ok(Bind {
                from: text("from")?,
                device: number("device")?,
                inode: number("inode")?,
                on: text("on")?,
            })
        };
        Ok(Self::Go(Plan {
            claim: value.number("claim").ok_or_else(|| missing("claim"))?,
            majors: majors.iter().map(major).collect::<Result<_, _>>()?,
            binds: binds.iter().map(bind).collect::<Result<_, _>>()?,
        }))
    }

    /// The line, with its newline.
    #[must_use]
    pub fn line(&self) -> String {
        match self {
            Self::Go(plan) => {
                let majors: Vec<String> = plan.majors.iter().map(u64::to_string).collect();
                let bind = |b: &Bind| {
                    format!(
                        "{{\"from\":{},\"device\":{},\"inode\":{},\"on\":{}}}",
                        quote(&b.from),
                        b.device,
                        b.inode,
                        quote(&b.on)
                    )
                };
                let binds: Vec<String> = plan.binds.iter().map(bind).collect();
                format!(
                    "{{\"ok\":true,\"claim\":{},\"majors\":[{}],\"binds\":[{}]}}\n",
                    plan.claim,
                    majors.join(","),
                    binds.join(",")
                )
            }
            Self::Refused { code, message } => format!(
                "{{\"ok\":false,\"code\":{},\"message\":{}}}\n",
                quote(code),
                quote(message)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_survives_the_line() {
        for claim in [0, 3, u64::MAX] {
            let launch = Launch { claim };
            assert_eq!(Launch::parse(launch.line().trim_end()), Some(Ok(launch)));
        }
        assert!(Launch::parse(r#"{"op":"register"}"#).is_none());
        assert!(Launch::parse(r#"{"op":"env","id":"launch"}"#).is_none());
        assert!(Launch::parse("launch").is_none());
        assert!(Launch::parse(r#"{"op":"launch"}"#).is_some_and(|l| l.is_err()));
    }

    #[test]
    fn a_plan_survives_the_line() {
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
            assert_eq!(LaunchAnswer::parse(answer.line().trim_end()), Ok(answer));
        }
    }

    #[test]
    fn half_a_plan_is_an_error() {
        for line in [
            "",
            "{}",
            r#"{"ok":true}"#,
            r#"{"ok":true,"claim":1,"majors":[],"binds":[{"from":"/x"}]}"#,
            r#"{"ok":true,"claim":1,"majors":["x"],"binds":[]}"#,
            r#"{"ok":true,"majors":[],"binds":[]}"#,
        ] {
            assert!(LaunchAnswer::parse(line).is_err(), "{line}");
        }
    }
}

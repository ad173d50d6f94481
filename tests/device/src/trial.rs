//! One check: expected points, and what the driver did.

use std::fmt::{Debug, Display};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// A check of the list.
#[derive(Debug)]
pub(crate) struct Check {
    pub name: &'static str,
    /// Where the behaviour is documented.
    pub source: &'static str,
    pub body: fn(&mut Trial),
}

/// A message from a check's process to the process that runs the list.
#[derive(Debug)]
pub(crate) enum Line {
    Point,
    Skipped(String),
    Different {
        what: String,
        want: String,
        seen: String,
    },
}

impl Line {
    pub(crate) fn parse(line: &str) -> Option<Line> {
        let mut parts = line.split('\t');
        let kind = parts.next()?;
        let mut next = || parts.next().unwrap_or_default().to_owned();
        match kind {
            "point" => Some(Line::Point),
            "skipped" => Some(Line::Skipped(next())),
            "different" => Some(Line::Different {
                what: next(),
                want: next(),
                seen: next(),
            }),
            _ => None,
        }
    }
}

/// Ends a check: the driver lacks a function, or the check does not apply to the machine.
pub(crate) struct Skip(pub String);

/// Ends the check because it does not apply here.
pub(crate) fn skip(why: impl Into<String>) -> ! {
    std::panic::panic_any(Skip(why.into()))
}

/// The state of a running check.
#[derive(Debug, Default)]
pub(crate) struct Trial {
    different: u32,
}

fn tell(parts: &[&str]) {
    let clean: Vec<String> = parts.iter().map(|p| p.replace(['\t', '\n'], " ")).collect();
    println!("{}", clean.join("\t"));
}

impl Trial {
    fn point(&mut self, ok: bool, what: &str, want: &str, seen: &str) {
        if ok {
            tell(&["point"]);
        } else {
            self.different += 1;
            tell(&["different", what, want, seen]);
        }
    }

    /// Expects one of the result codes that the documentation allows.
    pub(crate) fn code(&mut self, what: &str, want: &[u32], seen: u32) {
        let names: Vec<String> = want.iter().map(|c| name_of(*c)).collect();
        self.point(
            want.contains(&seen),
            what,
            &names.join(" or "),
            &name_of(seen),
        );
    }

    /// Expects success.
    pub(crate) fn ok(&mut self, what: &str, seen: u32) {
        self.code(what, &[0], seen);
    }

    pub(crate) fn same<T: PartialEq + Debug>(&mut self, what: &str, want: T, seen: T) {
        let ok = want == seen;
        self.point(ok, what, &format!("{want:?}"), &format!("{seen:?}"));
    }

    pub(crate) fn differ<T: PartialEq + Debug>(&mut self, what: &str, a: T, b: T) {
        self.point(a != b, what, "two values", &format!("{a:?} twice"));
    }

    /// Expects a condition; `seen` is what it was derived from.
    pub(crate) fn holds(&mut self, what: &str, ok: bool, seen: impl Display) {
        self.point(ok, what, "it to hold", &seen.to_string());
    }

    /// Expects a condition to become true within a time.
    pub(crate) fn comes(&mut self, what: &str, within: Duration, mut ask: impl FnMut() -> bool) {
        let end = Instant::now() + within;
        let mut ok = ask();
        while !ok && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
            ok = ask();
        }
        self.point(ok, what, "it to come", &format!("not within {within:?}"));
    }
}

fn name_of(code: u32) -> String {
    match crate::call::error_name(code) {
        Some(name) => format!("{name} ({code})"),
        None => format!("code {code}"),
    }
}

/// Calls something that must succeed before the check can conclude anything.
#[macro_export]
macro_rules! need {
    ($name:ident($($arg:expr),* $(,)?)) => {{
        let code = $crate::cu!($name($($arg),*));
        if code != 0 {
            $crate::trial::broken(stringify!($name), code);
        }
    }};
}

/// Ends the check: a prerequisite has failed.
pub(crate) fn broken(name: &str, code: u32) -> ! {
    panic!("{name} gave {}", name_of(code))
}

/// Runs a check in this process.
pub(crate) fn run_here(check: &Check) -> ExitCode {
    std::panic::set_hook(Box::new(|_| {}));
    let mut trial = Trial::default();
    let result = catch_unwind(AssertUnwindSafe(|| (check.body)(&mut trial)));
    if let Err(payload) = result {
        if let Some(Skip(why)) = payload.downcast_ref::<Skip>() {
            tell(&["skipped", why]);
        } else {
            let text = payload
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| payload.downcast_ref::<&str>().map(|s| (*s).to_owned()))
                .unwrap_or_default();
            tell(&["different", "a step that the check needs", "success", &text]);
        }
    }
    // Threads of the check may still hold streams, so nothing is torn down.
    // SAFETY: ends the process; standard output is unbuffered by lines.
    unsafe { libc::_exit(0) }
}

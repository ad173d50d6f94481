//! systemd's answers in bounded types. Users and programs choose the names of units.

use std::path::PathBuf;

use zbus::zvariant::OwnedValue;

use crate::cgroup::name;

/// Maximum length of a unit's name (`UNIT_NAME_MAX` of systemd), in bytes.
const UNIT: usize = 255;

/// A text property.
fn text(value: OwnedValue) -> Option<String> {
    String::try_from(value).ok()
}

/// The name of a unit, in the characters allowed for it (systemd.unit(5)).
pub(super) fn unit(value: OwnedValue) -> Option<String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c);
    text(value).filter(|name| !name.is_empty() && name.len() <= UNIT && name.chars().all(fits))
}

/// systemd's active state of a unit.
pub(super) fn state(value: OwnedValue) -> Option<String> {
    let fits = |word: &String| word.len() <= 32 && word.bytes().all(|b| b.is_ascii_lowercase());
    text(value).filter(fits)
}

/// A valid pid, or `None`.
pub(super) fn process(value: OwnedValue) -> Option<u32> {
    let pid = u32::try_from(value).ok()?;
    i32::try_from(pid).is_ok_and(|pid| pid > 0).then_some(pid)
}

/// The kernel's name of a unit's cgroup; `None` if it has none.
pub(super) fn cgroup(value: OwnedValue) -> Option<PathBuf> {
    text(value).as_deref().and_then(name::plain)
}

#[cfg(test)]
mod tests {
    use zbus::zvariant::Value;

    use super::*;

    fn value(text: &str) -> OwnedValue {
        Value::from(text).try_into().expect("a text")
    }

    #[test]
    fn what_systemd_answers_is_bounded() {
        assert_eq!(
            unit(value("vllm@a\\x2d1.service")).as_deref(),
            Some("vllm@a\\x2d1.service")
        );
        let long = "x".repeat(256);
        for odd in ["", "a b.service", "../x.service", "\u{202e}.service", &long] {
            assert_eq!(unit(value(odd)), None, "{odd}");
        }
        assert_eq!(state(value("active")).as_deref(), Some("active"));
        assert_eq!(state(value("active\u{1b}[2J")), None);
        let slice = cgroup(value("/system.slice//vllm.service"));
        assert_eq!(slice, Some("/system.slice/vllm.service".into()));
        let deep = format!("/{}", "x".repeat(4096));
        for odd in ["", "system.slice", "/a/../../etc", "/a\n", &deep] {
            assert_eq!(cgroup(value(odd)), None, "{odd}");
        }
        let number = |n: u32| Value::from(n).try_into().expect("a number");
        assert_eq!(process(number(7)), Some(7));
        assert_eq!(process(number(0)), None);
        assert_eq!(process(number(u32::MAX)), None);
        assert_eq!(unit(number(7)), None, "another type");
    }
}

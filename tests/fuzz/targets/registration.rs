//! The messages of members and of the launcher, as both sides read them.
#![no_main]

use gshare_abi::wire::{Answer, Launch, LaunchAnswer, Register, Want};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(register) = Register::parse(text) {
        assert!(Register::is_register(text), "read, yet no registration");
        let line = register.line();
        assert_eq!(line.matches('\n').count(), 1, "not one line: {line:?}");
        assert_eq!(Register::parse(line.trim_end()), Ok(register));
    }
    if let Ok(answer) = Answer::parse(text) {
        let line = answer.line();
        assert_eq!(line.matches('\n').count(), 1, "not one line: {line:?}");
        assert_eq!(Answer::parse(line.trim_end()), Ok(answer));
    }
    if let Some(want) = Want::parse(text) {
        assert_eq!(Want::parse(want.line().trim_end()), Some(want));
    }
    if let Some(Ok(launch)) = Launch::parse(text) {
        assert_eq!(Launch::parse(launch.line().trim_end()), Some(Ok(launch)));
    }
    if let Ok(answer) = LaunchAnswer::parse(text) {
        let line = answer.line();
        assert_eq!(line.matches('\n').count(), 1, "not one line: {line:?}");
        assert_eq!(LaunchAnswer::parse(line.trim_end()), Ok(answer));
    }
});

//! The messages by which a member obtains its pages, as both sides read them.
#![no_main]

use gshare_abi::wire::{Answer, Register};
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
});

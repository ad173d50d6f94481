//! The messages of members and of the launcher, as both sides read them.
#![no_main]

use gshare_abi::wire::{Answer, LaunchAnswer, Request, length};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|message: &[u8]| {
    let whole = |bytes: &[u8]| assert_eq!(length(bytes), Ok(Some(bytes.len())));
    if let Ok(request) = Request::read(message) {
        whole(&request.bytes());
        assert_eq!(Request::read(&request.bytes()), Ok(request));
    }
    if let Ok(answer) = Answer::read(message) {
        whole(&answer.bytes());
        assert_eq!(Answer::read(&answer.bytes()), Ok(answer));
    }
    if let Ok(answer) = LaunchAnswer::read(message) {
        whole(&answer.bytes());
        assert_eq!(LaunchAnswer::read(&answer.bytes()), Ok(answer));
    }
});

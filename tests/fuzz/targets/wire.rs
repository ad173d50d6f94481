//! The lines between the service and its clients, as both sides read them.
#![no_main]

use gshare_proto::{Call, Hello, Reply};
use libfuzzer_sys::fuzz_target;
use serde::{Serialize, de::DeserializeOwned};

/// Reads a line; what is read is written and read back as the same.
fn there_and_back<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(text: &str) {
    let Ok(read) = serde_json::from_str::<T>(text) else {
        return;
    };
    let line = serde_json::to_string(&read).expect("what was read can be written");
    assert!(!line.contains('\n'), "not one line: {line:?}");
    let again = serde_json::from_str::<T>(&line).expect("what was written can be read");
    assert_eq!(again, read);
}

fuzz_target!(|text: &str| {
    there_and_back::<Hello>(text);
    there_and_back::<Call>(text);
    // Figures with a fraction may change their last digit on the way: only that they can be read.
    if let Ok(reply) = serde_json::from_str::<Reply>(text) {
        let line = serde_json::to_string(&reply).expect("what was read can be written");
        serde_json::from_str::<Reply>(&line).expect("what was written can be read");
    }
    if let Ok(duration) = gshare_proto::units::parse_duration(text) {
        let _ = gshare_proto::units::show_duration(duration);
    }
});

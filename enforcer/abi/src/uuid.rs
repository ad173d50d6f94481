//! The identity of a GPU. Indices differ between CUDA, NVML and the environment of a process; UUIDs do not.

use std::{fmt, str::FromStr};

/// The 16 bytes of a GPU's UUID; prints and parses as `GPU-8-4-4-4-12`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GpuUuid(pub [u8; 16]);

/// The text is not a GPU UUID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidUuid(pub String);

impl fmt::Display for InvalidUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is not a GPU UUID (expected GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx)",
            self.0
        )
    }
}

impl std::error::Error for InvalidUuid {}

impl fmt::Display for GpuUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU-")?;
        for (index, byte) in self.0.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for GpuUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for GpuUuid {
    type Err = InvalidUuid;

    fn from_str(text: &str) -> Result<Self, InvalidUuid> {
        let invalid = || InvalidUuid(text.to_owned());
        // An instance of a divided GPU has a UUID of its own.
        let body = text
            .strip_prefix("GPU-")
            .or_else(|| text.strip_prefix("MIG-"));
        let body = body.ok_or_else(invalid)?;
        if body.len() != 36 || !body.is_ascii() {
            return Err(invalid());
        }
        let mut bytes = [0; 16];
        let mut digits = 0;
        for (index, character) in body.chars().enumerate() {
            if matches!(index, 8 | 13 | 18 | 23) {
                if character != '-' {
                    return Err(invalid());
                }
                continue;
            }
            let value = character.to_digit(16).ok_or_else(invalid)?;
            bytes[digits / 2] = bytes[digits / 2] << 4 | value as u8;
            digits += 1;
        }
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips() {
        let text = "GPU-0123abcd-4567-89ef-0011-aabbccddeeff";
        let uuid: GpuUuid = text.parse().unwrap();
        assert_eq!(uuid.to_string(), text);
        assert_eq!(uuid.0[..4], [0x01, 0x23, 0xab, 0xcd]);
        assert_eq!(uuid.0[15], 0xff);
    }

    #[test]
    fn other_text_is_refused_with_the_text_in_the_message() {
        for text in [
            "",
            "GPU-",
            "0123abcd-4567-89ef-0011-aabbccddeeff",
            "GPU-0123abcd-4567-89ef-0011-aabbccddeef",
            "GPU-0123abcd-4567-89ef-0011-aabbccddeefg",
            "GPU-0123abcd04567-89ef-0011-aabbccddeeff",
            "MIG-0123abcd-4567-89ef-0011-aabbccddeef",
            "XPU-0123abcd-4567-89ef-0011-aabbccddeeff",
        ] {
            let error = text.parse::<GpuUuid>().unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}

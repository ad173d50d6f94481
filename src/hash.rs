//! Hashes of texts and files.

use sha2::Digest;

/// SHA-256 in hexadecimal digits.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    let sum = sha2::Sha256::digest(bytes);
    sum.iter().map(|byte| format!("{byte:02x}")).collect()
}

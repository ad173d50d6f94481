//! Links the proxy of libnvidia-ml.

#[path = "../shim/link.rs"]
mod link;

fn main() {
    link::as_proxy("libnvidia-ml.so.1");
}

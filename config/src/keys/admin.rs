//! Keys for administrators: who may, and where figures are to be had.

use std::net::SocketAddr;
use std::path::PathBuf;

use toml::de::{DeTable, DeValue};

use crate::read::{self, Reader};

/// The groups that may use `gshare admin`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admin {
    /// `groups`: Unix groups whose members may, besides root.
    pub groups: Vec<String>,
}

/// Figures for Prometheus.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// `listen`: where `/metrics` is served.
    pub listen: Listen,
}

/// Where `/metrics` is served: never beyond this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Listen {
    /// Nowhere.
    #[default]
    Off,
    /// A port of the loopback interface.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// Containers in claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Containers {
    /// `cdi-dir`: where container programs look for descriptions of devices; `None` switches containers off.
    pub cdi_dir: Option<PathBuf>,
}

impl Default for Containers {
    fn default() -> Self {
        Self {
            cdi_dir: Some(PathBuf::from("/run/cdi")),
        }
    }
}

impl Containers {
    pub(super) fn walk<'t>(reader: &mut Reader<'t>, root: &DeTable<'t>) -> Self {
        let mut s = reader.section(root, "containers");
        let value = Self {
            cdi_dir: s.get("cdi-dir", Self::default().cdi_dir, off_or_path),
        };
        s.finish();
        value
    }
}

fn off_or_path(value: &DeValue<'_>) -> Result<Option<PathBuf>, String> {
    match read::text(value)?.as_str() {
        "off" => Ok(None),
        _ => read::path(value)
            .map(Some)
            .map_err(|e| format!("{e} or \"off\"")),
    }
}

impl Admin {
    pub(super) fn walk<'t>(reader: &mut Reader<'t>, root: &DeTable<'t>) -> Self {
        let mut s = reader.section(root, "admin");
        let value = Self {
            groups: s.get("groups", Vec::new(), read::texts),
        };
        s.finish();
        value
    }
}

impl Metrics {
    pub(super) fn walk<'t>(reader: &mut Reader<'t>, root: &DeTable<'t>) -> Self {
        let mut s = reader.section(root, "metrics");
        let value = Self {
            listen: s.get("listen", Listen::Off, listen),
        };
        s.finish();
        value
    }
}

fn listen(value: &DeValue<'_>) -> Result<Listen, String> {
    const HOW: &str = "expected \"off\", a loopback address with its port such as \"127.0.0.1:9853\", or the path of a socket";
    let text = read::text(value)?;
    if text == "off" {
        return Ok(Listen::Off);
    }
    if text.starts_with('/') {
        return Ok(Listen::Unix(text.into()));
    }
    let address: SocketAddr = text.parse().map_err(|_| format!("`{text}`: {HOW}"))?;
    if !address.ip().is_loopback() {
        return Err(format!(
            "`{text}` can be reached from other machines, and the figures name users; {HOW}"
        ));
    }
    Ok(Listen::Tcp(address))
}

impl Listen {
    /// The word in the file.
    #[must_use]
    pub fn word(&self) -> String {
        match self {
            Self::Off => "off".to_owned(),
            Self::Tcp(address) => address.to_string(),
            Self::Unix(path) => path.to_string_lossy().into_owned(),
        }
    }
}

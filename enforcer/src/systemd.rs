//! systemd as the owner of the cgroup tree, over D-Bus: units for each user's claims, with the caps of the user's own
//! slice, and the unit of a main process.
//!
//! The calls run in a thread of their own: the bus may be slow, and its client must not run inside another runtime.
//! Claims need it only for a user's first claim since boot.

mod answer;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use zbus::blocking::{Connection, connection::Builder};
use zbus::zvariant::{OwnedObjectPath, OwnedValue, Value};

/// Exists if systemd runs this machine (`sd_booted(3)`).
const BOOTED: &str = "/run/systemd/system";
const NAME: &str = "org.freedesktop.systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const MANAGER_PATH: &str = "/org/freedesktop/systemd1";
const UNIT: &str = "org.freedesktop.systemd1.Unit";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
/// Longest duration of a call.
const CALL: Duration = Duration::from_secs(5);
/// Longest start of a unit.
const START: Duration = Duration::from_secs(10);
/// Longest wait for an answer in callers that must not block others.
const SHORT: Duration = Duration::from_millis(200);

/// Limits of `user-<uid>.slice`, copied so that a claim cannot bypass them.
const CAPS: [&str; 14] = [
    "MemoryHigh",
    "MemoryMax",
    "MemorySwapMax",
    "CPUQuotaPerSecUSec",
    "CPUWeight",
    "AllowedCPUs",
    "AllowedMemoryNodes",
    "IOWeight",
    "IOReadBandwidthMax",
    "IOWriteBandwidthMax",
    "IOReadIOPSMax",
    "IOWriteIOPSMax",
    "TasksMax",
    "DevicePolicy",
];

/// Why systemd could not be used.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SystemdError {
    #[error("systemd is not running here ({BOOTED} is missing)")]
    NotBooted,
    #[error("systemd cannot be reached: {0}")]
    NoBus(String),
    #[error("systemd cannot {verb} {unit}: {why}")]
    Refused {
        verb: &'static str,
        unit: String,
        why: String,
    },
    #[error("systemd does not answer within {0:?}")]
    Silent(Duration),
}

/// A unit with its main process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MainOf {
    /// Name, `vllm.service`.
    pub unit: String,
    /// The kernel's name of its cgroup.
    pub cgroup: PathBuf,
}

type Job = Box<dyn FnOnce(&mut Bus) + Send>;

/// How long a caller waits for systemd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// As long as the start of a unit may take.
    Long,
    /// 200 ms, and not at all while an abandoned request has no answer yet.
    Short,
}

/// A handle on the thread that talks to systemd. Copies share the thread.
#[derive(Clone)]
pub struct Systemd {
    jobs: mpsc::Sender<Job>,
    /// Abandoned requests without an answer.
    owed: Arc<AtomicUsize>,
    /// Slices whose caps are about to be copied: once each, however often it is requested.
    refreshed: Arc<Mutex<BTreeSet<String>>>,
}

impl std::fmt::Debug for Systemd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Systemd").finish_non_exhaustive()
    }
}

/// Whether systemd runs this machine.
#[must_use]
pub fn booted() -> bool {
    Path::new(BOOTED).is_dir()
}

impl Systemd {
    /// Starts the thread and checks that systemd answers.
    ///
    /// # Errors
    /// [`SystemdError::NotBooted`] or [`SystemdError::NoBus`].
    pub fn connect() -> Result<Self, SystemdError> {
        if !booted() {
            return Err(SystemdError::NotBooted);
        }
        let (jobs, work) = mpsc::channel::<Job>();
        std::thread::Builder::new()
            .name("systemd".to_owned())
            .spawn(move || {
                let mut bus = Bus::default();
                while let Ok(job) = work.recv() {
                    job(&mut bus);
                }
            })
            .map_err(|e| SystemdError::NoBus(e.to_string()))?;
        let systemd = Self {
            jobs,
            owed: Arc::default(),
            refreshed: Arc::default(),
        };
        systemd.ask(Patience::Long, |bus| bus.connection().map(drop))?;
        Ok(systemd)
    }

    /// Makes sure that a slice is active; returns the kernel's name of its cgroup. It gets the caps of the slice
    /// `like`, if given.
    pub fn slice(
        &self,
        name: String,
        description: String,
        like: Option<String>,
        patience: Patience,
    ) -> Result<PathBuf, SystemdError> {
        self.ask(patience, move |bus| {
            bus.slice(&name, &description, like.as_deref())
        })
    }

    /// Makes sure that a unit is active whose cgroup gshare may divide; returns the kernel's name of the cgroup. An
    /// idle process keeps it: systemd removes empty cgroups.
    pub fn home(
        &self,
        name: String,
        slice: String,
        description: String,
        patience: Patience,
    ) -> Result<PathBuf, SystemdError> {
        self.ask(patience, move |bus| bus.home(&name, &slice, &description))
    }

    /// Copies the caps of slice `like` to slice `name` again, in the background; with this weight if `like` has none.
    pub fn refresh_caps(
        &self,
        name: String,
        like: String,
        weight: impl FnOnce() -> Option<u32> + Send + 'static,
    ) {
        if !asked_for(&self.refreshed).insert(name.clone()) {
            return;
        }
        let slices = Arc::clone(&self.refreshed);
        let job = move |bus: &mut Bus| {
            asked_for(&slices).remove(&name);
            // The earlier copy stays in force; the next refresh may succeed.
            let _ = bus.copy_caps(&name, &like, weight());
        };
        let _ = self.jobs.send(Box::new(job));
    }

    /// Stops a unit, in the background.
    pub fn stop(&self, name: String) {
        let job = move |bus: &mut Bus| {
            // A slice that cannot be stopped is empty and harmless.
            let _ = bus.call(MANAGER_PATH, MANAGER, "StopUnit", &(name, "fail"));
        };
        let _ = self.jobs.send(Box::new(job));
    }

    /// The service whose main process is `pid`.
    ///
    /// # Errors
    /// [`SystemdError`] if systemd does not answer; `None` for a process that is not a main process.
    pub fn main_of(&self, pid: u32) -> Result<Option<MainOf>, SystemdError> {
        self.ask(Patience::Short, move |bus| bus.main_of(pid))
    }

    fn ask<T: Send + 'static>(
        &self,
        patience: Patience,
        job: impl FnOnce(&mut Bus) -> Result<T, SystemdError> + Send + 'static,
    ) -> Result<T, SystemdError> {
        let most = match patience {
            Patience::Long => START + CALL,
            Patience::Short if self.owed.load(Ordering::Relaxed) > 0 => Duration::ZERO,
            Patience::Short => SHORT,
        };
        let silent = Err(SystemdError::Silent(most));
        if most.is_zero() {
            return silent;
        }
        // Either handed over or abandoned.
        let (tell, told) = mpsc::sync_channel(0);
        let owed = Arc::clone(&self.owed);
        let job = move |bus: &mut Bus| {
            if tell.send(job(bus)).is_err() {
                owed.fetch_sub(1, Ordering::Relaxed);
            }
        };
        let gone = || SystemdError::NoBus("its thread has ended".to_owned());
        self.jobs.send(Box::new(job)).map_err(|_| gone())?;
        match told.recv_timeout(most) {
            Ok(answer) => answer,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                // Counted before the other side can find that the caller has gone.
                self.owed.fetch_add(1, Ordering::Relaxed);
                silent
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(gone()),
        }
    }
}

fn asked_for(slices: &Mutex<BTreeSet<String>>) -> MutexGuard<'_, BTreeSet<String>> {
    slices.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The connection, made on first use and again after it has broken.
#[derive(Default)]
struct Bus {
    connection: Option<Connection>,
}

/// A property to set.
type Property<'a> = (&'a str, Value<'a>);

impl Bus {
    fn connection(&mut self) -> Result<&Connection, SystemdError> {
        if self.connection.is_none() {
            // Not systemd's own socket, `/run/systemd/private`: it sends its name as the sender, which zbus cannot
            // parse.
            let made = Builder::system().and_then(|b| b.method_timeout(CALL).build());
            self.connection = Some(made.map_err(|e| SystemdError::NoBus(e.to_string()))?);
        }
        self.connection
            .as_ref()
            .ok_or_else(|| SystemdError::NoBus("no connection".to_owned()))
    }

    /// One call; a connection that broke since the last one is replaced.
    fn call<B>(
        &mut self,
        path: &str,
        interface: &str,
        method: &str,
        body: &B,
    ) -> Result<zbus::Message, zbus::Error>
    where
        B: serde::Serialize + zbus::zvariant::DynamicType,
    {
        let mut again = true;
        loop {
            let connection = self
                .connection()
                .map_err(|e| zbus::Error::Failure(e.to_string()))?;
            let answer = connection.call_method(Some(NAME), path, Some(interface), method, body);
            match answer {
                Err(zbus::Error::InputOutput(_)) if std::mem::take(&mut again) => {
                    self.connection = None;
                }
                other => return other,
            }
        }
    }

    /// The object of a unit, loaded if necessary.
    fn unit(&mut self, name: &str) -> Result<OwnedObjectPath, SystemdError> {
        let answer = self.call(MANAGER_PATH, MANAGER, "LoadUnit", &(name,));
        path_in(answer).map_err(|e| refused("load", name, &e))
    }

    fn get(&mut self, path: &str, interface: &str, name: &str) -> Result<OwnedValue, zbus::Error> {
        let answer = self.call(path, PROPERTIES, "Get", &(interface, name))?;
        answer.body().deserialize::<OwnedValue>()
    }

    fn start_transient(
        &mut self,
        name: &str,
        properties: &[Property<'_>],
    ) -> Result<(), SystemdError> {
        let none: [(&str, Vec<Property<'_>>); 0] = [];
        let body = (name, "fail", properties, &none[..]);
        let mut answer = self.call(MANAGER_PATH, MANAGER, "StartTransientUnit", &body);
        if is_there(&answer) {
            answer = self.call(MANAGER_PATH, MANAGER, "StartUnit", &(name, "fail"));
        }
        answer
            .map(drop)
            .map_err(|e| refused("start", name, &e.to_string()))
    }

    /// Waits until a unit is active; returns its cgroup.
    fn started(&mut self, name: &str, kind: &str) -> Result<PathBuf, SystemdError> {
        let unit = self.unit(name)?;
        let end = Instant::now() + START;
        loop {
            let mut get = |interface: &str, property: &str| {
                let value = self.get(&unit, interface, property);
                value.map_err(|e| refused("query", name, &e.to_string()))
            };
            let state = answer::state(get(UNIT, "ActiveState")?).unwrap_or_default();
            let cgroup = answer::cgroup(get(kind, "ControlGroup")?);
            if let ("active", Some(cgroup)) = (state.as_str(), cgroup) {
                return Ok(cgroup);
            }
            if Instant::now() > end || state == "failed" {
                return Err(refused("start", name, &format!("it is {state}")));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn slice(
        &mut self,
        name: &str,
        description: &str,
        like: Option<&str>,
    ) -> Result<PathBuf, SystemdError> {
        let properties = [("Description", Value::from(description))];
        self.start_transient(name, &properties)?;
        if let Some(like) = like {
            self.copy_caps(name, like, None)?;
        }
        self.started(name, "org.freedesktop.systemd1.Slice")
    }

    fn home(
        &mut self,
        name: &str,
        slice: &str,
        description: &str,
    ) -> Result<PathBuf, SystemdError> {
        let holder = [("/bin/sleep", vec!["sleep", "infinity"], false)];
        let properties = [
            ("Description", Value::from(description)),
            ("Slice", Value::from(slice)),
            ("Delegate", Value::from(true)),
            ("ExecStart", Value::from(holder.to_vec())),
            // Members must not suffer from each other, nor from the holder.
            ("Restart", Value::from("always")),
            ("OOMPolicy", Value::from("continue")),
            ("OOMScoreAdjust", Value::from(-900_i32)),
            ("TasksMax", Value::from(u64::MAX)),
        ];
        self.start_transient(name, &properties)?;
        self.started(name, "org.freedesktop.systemd1.Service")
    }

    /// Sets those caps of slice `like` on slice `name` that differ, with this weight if `like` has none.
    fn copy_caps(
        &mut self,
        name: &str,
        like: &str,
        weight: Option<u32>,
    ) -> Result<(), SystemdError> {
        let interface = "org.freedesktop.systemd1.Slice";
        let (from, to) = (self.unit(like)?, self.unit(name)?);
        let mut changed = Vec::new();
        for cap in CAPS {
            // A property that this systemd does not know cannot be set either.
            let both = (
                self.get(&from, interface, cap),
                self.get(&to, interface, cap),
            );
            let (Ok(mut wanted), Ok(now)) = both else {
                continue;
            };
            if let ("CPUWeight", Some(weight)) = (cap, weight)
                && wanted == OwnedValue::from(u64::MAX)
            {
                wanted = OwnedValue::from(u64::from(weight));
            }
            if wanted != now {
                changed.push((cap, Value::from(wanted)));
            }
        }
        if changed.is_empty() {
            return Ok(());
        }
        let body = (name, true, changed);
        self.call(MANAGER_PATH, MANAGER, "SetUnitProperties", &body)
            .map(drop)
            .map_err(|e| refused("set the limits of", name, &e.to_string()))
    }

    fn main_of(&mut self, pid: u32) -> Result<Option<MainOf>, SystemdError> {
        let answer = self.call(MANAGER_PATH, MANAGER, "GetUnitByPID", &(pid,));
        let Ok(unit) = path_in(answer) else {
            return Ok(None);
        };
        let service = "org.freedesktop.systemd1.Service";
        let mut get = |interface: &str, property: &str| {
            let value = self.get(&unit, interface, property);
            value.map_err(|e| refused("query", "a unit", &e.to_string()))
        };
        // It may not be a service.
        let main = get(service, "MainPID").ok().and_then(answer::process);
        if main != Some(pid) {
            return Ok(None);
        }
        let odd = || refused("query", "a unit", "its name or cgroup is not valid");
        Ok(Some(MainOf {
            unit: answer::unit(get(UNIT, "Id")?).ok_or_else(odd)?,
            cgroup: answer::cgroup(get(service, "ControlGroup")?).ok_or_else(odd)?,
        }))
    }
}

fn path_in(answer: Result<zbus::Message, zbus::Error>) -> Result<OwnedObjectPath, String> {
    let answer = answer.map_err(|e| e.to_string())?;
    answer.body().deserialize().map_err(|e| e.to_string())
}

/// Whether a unit of this name exists already.
fn is_there(answer: &Result<zbus::Message, zbus::Error>) -> bool {
    matches!(answer, Err(zbus::Error::MethodError(name, ..))
        if name.as_str() == "org.freedesktop.systemd1.UnitExists")
}

fn refused(verb: &'static str, unit: &str, why: &str) -> SystemdError {
    SystemdError::Refused {
        verb,
        unit: unit.to_owned(),
        why: why.to_owned(),
    }
}

//! Prints a configuration as a file that reads back as the same configuration.

use std::fmt::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use gshare_core::{Bytes, Share};

use crate::keys::{Config, Wait};
use crate::sharing::{ON_FAULT, SHARES};

impl Config {
    /// Every key with the value in force, as a valid file.
    #[must_use]
    pub fn show(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = self.write(&mut out);
        out
    }

    /// The keys whose values differ in `other`, with their sections: `memory.reserve`, `projects.vision`.
    #[must_use]
    pub fn changed(&self, other: &Self) -> Vec<String> {
        let (old, new) = (values(&self.show()), values(&other.show()));
        let both = new.iter().chain(&old);
        let mut keys: Vec<String> = Vec::new();
        for (key, _) in both {
            let of = |values: &[(String, String)]| {
                let found = values.iter().find(|(k, _)| k == key);
                found.map(|(_, value)| value.clone())
            };
            if of(&old) != of(&new) && !keys.contains(key) {
                keys.push(key.clone());
            }
        }
        keys
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        let auto =
            |p: &Option<std::path::PathBuf>| p.as_deref().map_or_else(|| quote("auto"), path);
        let number = |n: Option<u32>| n.map_or_else(|| quote("auto"), |n| n.to_string());
        let on = |b: bool| quote(if b { "auto" } else { "off" });
        let s = &self.service;
        writeln!(out, "[service]")?;
        writeln!(out, "socket = {}", auto(&s.socket))?;
        writeln!(out, "runtime-dir = {}", auto(&s.runtime_dir))?;
        writeln!(out, "state-dir = {}", auto(&s.state_dir))?;
        writeln!(out, "tick = {}", quote(&duration(s.tick)))?;
        writeln!(out, "log = {}", quote(s.log.name()))?;
        writeln!(out, "idle-connections = {}", s.idle_connections)?;
        writeln!(out, "\n[driver]")?;
        writeln!(out, "libcuda = {}", auto(&self.driver.libcuda))?;
        writeln!(out, "libnvidia-ml = {}", auto(&self.driver.libnvidia_ml))?;
        let log = self.driver.kernel_log.word();
        writeln!(out, "kernel-log = {}", quote(&log))?;
        let d = &self.devices;
        writeln!(out, "\n[devices]")?;
        writeln!(out, "dir = {}", path(&d.dir))?;
        writeln!(out, "nvidia-major = {}", number(d.nvidia_major))?;
        writeln!(out, "uvm-major = {}", number(d.uvm_major))?;
        writeln!(out, "caps-major = {}", number(d.caps_major))?;
        writeln!(out, "mig-minors = {}", path(&d.mig_minors))?;
        writeln!(out, "filter = {}", on(d.filter))?;
        writeln!(out, "\n[memory]")?;
        writeln!(out, "reserve = {}", quote(&bytes(self.memory.reserve)))?;
        let display = bytes(self.memory.display_reserve);
        writeln!(out, "display-reserve = {}", quote(&display))?;
        let d = &self.defaults;
        writeln!(out, "\n[defaults]")?;
        writeln!(out, "size-command = {}", share(d.size_command))?;
        writeln!(out, "size-interactive = {}", share(d.size_interactive))?;
        writeln!(out, "sm-limit = {}", share(d.sm_limit))?;
        writeln!(out, "mem-limit-notebook = {}", share(d.mem_limit_notebook))?;
        writeln!(out, "class = {}", quote(d.class.name()))?;
        let wait = match d.wait {
            Wait::Forever => "forever".to_owned(),
            Wait::No => "no".to_owned(),
            Wait::For(time) => duration(time),
        };
        writeln!(out, "wait = {}", quote(&wait))?;
        self.claims.show(out)?;
        writeln!(out, "\n[advice]")?;
        let after = duration(self.advice.idle_after);
        writeln!(out, "idle-after = {}", quote(&after))?;
        let after = duration(self.advice.over_asked_after);
        writeln!(out, "over-asked-after = {}", quote(&after))?;
        crate::classes::show(&self.classes, out)?;
        self.idle.show(out)?;
        self.reclaim.show(out)?;
        self.sizes.show(out)?;
        writeln!(out, "\n[cgroup]")?;
        writeln!(out, "enabled = {}", on(self.cgroup.enabled))?;
        writeln!(out, "systemd = {}", on(self.cgroup.systemd))?;
        writeln!(out, "root = {}", quote(&self.cgroup.root))?;
        writeln!(out, "\n[admin]")?;
        let groups: Vec<String> = self.admin.groups.iter().map(|n| quote(n)).collect();
        writeln!(out, "groups = [{}]", groups.join(", "))?;
        writeln!(out, "\n[history]")?;
        let hours = self.history.work_hours.to_string();
        writeln!(out, "work-hours = {}", quote(&hours))?;
        writeln!(out, "max-size = {}", quote(&bytes(self.history.max_size)))?;
        writeln!(out, "\n[metrics]")?;
        writeln!(out, "listen = {}", quote(&self.metrics.listen.word()))?;
        let cdi = self.containers.cdi_dir.as_deref();
        writeln!(out, "\n[containers]")?;
        writeln!(out, "cdi-dir = {}", cdi.map_or_else(|| quote("off"), path))?;
        self.write_sharing(out)?;
        self.write_policy(out)?;
        let d = &self.detach;
        writeln!(out, "\n[detach]")?;
        writeln!(out, "drain = {}", quote(&duration(d.drain)))?;
        writeln!(out, "timeout = {}", quote(&duration(d.timeout)))?;
        writeln!(out, "host-reserve = {}", quote(&bytes(d.host_reserve)))?;
        writeln!(out, "\n[launch]")?;
        writeln!(out, "caps = {}", quote(self.launch.caps.name()))?;
        writeln!(out, "launcher = {}", auto(&self.launch.launcher))?;
        writeln!(out, "\n[quotas]")?;
        for quota in &self.quotas {
            let number = |name: &str, milli: Option<u32>| {
                milli.map(|m| format!("{name} = {}", share(Share::from_milli(m))))
            };
            let parts = [
                number("gpus", quota.gpus.map(Share::milli)),
                number("weight", quota.weight_milli),
                number("max", quota.max.map(Share::milli)),
            ];
            let parts: Vec<String> = parts.into_iter().flatten().collect();
            let party = quote(&quota.party.to_string());
            writeln!(out, "{party} = {{ {} }}", parts.join(", "))?;
        }
        writeln!(out, "\n[projects]")?;
        for (name, project) in &self.projects {
            writeln!(
                out,
                "{} = {{ users = {}, groups = {} }}",
                quote(name),
                list(&project.users),
                list(&project.groups)
            )?;
        }
        Ok(())
    }

    fn write_policy(&self, out: &mut String) -> fmt::Result {
        let p = &self.policy;
        let places = p.deny_cgroups.as_deref();
        let places = places.map_or_else(|| quote("auto"), list);
        writeln!(out, "\n[policy]")?;
        writeln!(out, "unclaimed = {}", quote(p.unclaimed.name()))?;
        writeln!(out, "deny-cgroups = {places}")?;
        writeln!(out, "exempt-cgroups = {}", list(&p.exempt_cgroups))?;
        writeln!(out, "overuse = {}", quote(p.overuse.name()))?;
        writeln!(out, "overuse-grace = {}", quote(&duration(p.overuse_grace)))?;
        let tolerance = bytes(p.overuse_tolerance);
        writeln!(out, "overuse-tolerance = {}", quote(&tolerance))?;
        writeln!(out, "excess-time = {}", quote(p.excess_time.name()))
    }
}

fn list(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|n| quote(n)).collect();
    format!("[{}]", quoted.join(", "))
}

impl Config {
    fn write_sharing(&self, out: &mut String) -> fmt::Result {
        let m = &self.mps;
        writeln!(out, "\n[mps]")?;
        let control = m.control.as_deref();
        let control = control.map_or_else(|| quote("auto"), path);
        writeln!(out, "control = {control}")?;
        let multi = if m.multi_user { "accept" } else { "off" };
        writeln!(out, "multi-user = {}", quote(multi))?;
        writeln!(out, "share = {}", quote(word_of(SHARES, m.share)))?;
        writeln!(out, "on-fault = {}", quote(word_of(ON_FAULT, m.on_fault)))?;
        writeln!(out, "\n[gpu]")?;
        for (name, gpu) in &self.gpus {
            let mode = quote(gpu.mode.name());
            let mig = gpu.mig.as_ref().map(|m| quote(&m.to_string()));
            let mig = mig.map_or_else(String::new, |m| format!(", mig = {m}"));
            writeln!(out, "{} = {{ mode = {mode}{mig} }}", quote(name))?;
        }
        Ok(())
    }
}

fn word_of<T: PartialEq + Copy>(words: &[(&'static str, T)], value: T) -> &'static str {
    let found = words.iter().find(|(_, v)| *v == value);
    found.map_or("", |(word, _)| *word)
}

/// The lines of a shown configuration, each key with its section.
fn values(shown: &str) -> Vec<(String, String)> {
    let mut section = "";
    let mut found = Vec::new();
    for line in shown.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            section = name;
        } else if let Some((key, value)) = line.split_once(" = ") {
            let key = key.trim_matches('"');
            found.push((format!("{section}.{key}"), value.to_owned()));
        }
    }
    found
}

pub(crate) fn quote(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

fn path(path: &Path) -> String {
    quote(&path.to_string_lossy())
}

fn share(share: Share) -> String {
    format!("{:?}", share.as_f64())
}

/// Exact, unlike the text for people: `90s` is not rounded to a minute.
pub(crate) fn duration(d: Duration) -> String {
    match d.as_secs() {
        _ if d.subsec_nanos() != 0 => format!("{}s", d.as_secs_f64()),
        s if s != 0 && s.is_multiple_of(86_400) => format!("{}d", s / 86_400),
        s if s != 0 && s.is_multiple_of(3600) => format!("{}h", s / 3600),
        s if s != 0 && s.is_multiple_of(60) => format!("{}m", s / 60),
        s => format!("{s}s"),
    }
}

/// As people write it where that is exact, else in bytes.
fn bytes(b: Bytes) -> String {
    let text = b.to_string();
    if text.parse() == Ok(b) {
        text
    } else {
        format!("{} B", b.0)
    }
}

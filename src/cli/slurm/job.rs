//! What is known of a job on this node: files below the service's runtime directory, and the job's cgroup.
//!
//! `plugin` exists if slurmd has loaded the plugin, `N.job` is the prolog's record, `N` what is done to each task.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gshare_config::Config;
use gshare_core::{Bytes, Share};
use gshare_enforcer::cgroup::{Mount, path_of_pid};
use gshare_proto::Granted;

use super::conf::Conf;
use super::files::built_for;
use super::gres;
use crate::command::failure::{self, Failure};

/// Exists if a job with GPUs started here without the plugin: `gshare slurm health` reports it.
pub(super) const NO_PLUGIN: &str = "no-plugin";

/// Before the options of a job in its record; the plugin reads them too.
const MEMORY: &str = "mem=";
const LIMIT: &str = "limit=";
/// A line of the record: slurm.conf keeps jobs private.
const PRIVATE: &str = "private";

/// What slurmd tells the prolog of a job.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) uid: u32,
    pub(super) node: String,
    /// slurmd hides the GPUs of others, so Slurm counts a job's own from 0.
    pub(super) constrained: bool,
    /// Its GPUs as Slurm counts them: from 0 in the order of gres.conf.
    pub(super) gpus: Vec<u32>,
    /// `--gshare-mem`: bytes on each GPU.
    pub(super) memory: Option<Bytes>,
    /// `--gshare-limit`: most compute.
    pub(super) limit: Option<Share>,
    /// Other users may not see it.
    pub(super) private: bool,
}

impl Job {
    pub(super) fn read(jobs: &Path, number: u32) -> Result<Self, Failure> {
        let text = fs::read_to_string(jobs.join(format!("{number}.job")))?;
        let lines: Vec<&str> = text.lines().collect();
        let parsed = match lines[..] {
            [uid, node, constrained, gpus, ref options @ ..] => (|| {
                let option = |key: &str| options.iter().find_map(|line| line.strip_prefix(key));
                Some(Self {
                    uid: uid.parse().ok()?,
                    node: node.to_owned(),
                    constrained: constrained.parse().ok()?,
                    gpus: gres::numbers(gpus)?,
                    memory: option(MEMORY).map(str::parse).transpose().ok()?,
                    limit: option(LIMIT).map(str::parse).transpose().ok()?,
                    private: options.contains(&PRIVATE),
                })
            })(),
            _ => None,
        };
        parsed.ok_or_else(|| {
            let text = format!("the prolog's record of job {number} cannot be read: {text:?}");
            Failure::new(failure::INTERNAL, text)
        })
    }
}

/// Records what slurmd says of a job, for its tasks; false if Slurm has not loaded the plugin.
pub(super) fn record(
    jobs: &Path,
    number: u32,
    variable: impl Fn(&str) -> String,
) -> std::io::Result<bool> {
    let mut dir = fs::DirBuilder::new();
    dir.recursive(true).mode(0o700).create(jobs)?;
    // That of an earlier run of the same job.
    let _ = fs::remove_file(jobs.join(number.to_string()));
    let dir = slurm_dir(&variable("SLURM_CONF"));
    let cgroups = Conf::read(&dir.join("cgroup.conf"));
    let mut text = format!(
        "{}\n{}\n{}\n{}\n",
        variable("SLURM_JOB_UID"),
        variable("SLURMD_NODENAME"),
        cgroups.is_on("constraindevices"),
        variable("SLURM_JOB_GPUS")
    );
    for (key, option) in [(MEMORY, "SPANK_GSHARE_MEM"), (LIMIT, "SPANK_GSHARE_LIMIT")] {
        let given = variable(option);
        if !given.is_empty() && !given.contains('\n') {
            let _ = writeln!(text, "{key}{given}");
        }
    }
    if Conf::read(&dir.join("slurm.conf")).lists("privatedata", "jobs") {
        let _ = writeln!(text, "{PRIVATE}");
    }
    put(jobs, &format!("{number}.job"), &text)?;
    let loaded = is_loaded(jobs);
    if !loaded {
        fs::write(jobs.join(NO_PLUGIN), "")?;
    }
    Ok(loaded)
}

/// Whether slurmd has loaded the plugin, and steps, which load it anew, still can.
fn is_loaded(jobs: &Path) -> bool {
    let mark = fs::read_to_string(jobs.join("plugin")).unwrap_or_default();
    let Some((release, plugin)) = mark.split_once(' ') else {
        return false;
    };
    let now = fs::read(plugin).ok().and_then(|bytes| built_for(&bytes));
    now.as_deref() == Some(release)
}

/// The directory of Slurm's configuration.
fn slurm_dir(conf: &str) -> PathBuf {
    let dir = Path::new(conf).parent().filter(|d| d.is_absolute());
    dir.unwrap_or(Path::new("/etc/slurm")).to_owned()
}

/// Writes a file as a whole or not at all.
fn put(dir: &Path, name: &str, text: &str) -> std::io::Result<()> {
    let new = dir.join(format!(".{name}.{}", std::process::id()));
    fs::write(&new, text)?;
    fs::rename(&new, dir.join(name))
}

/// Keeps what is done to each task, for those that follow.
pub(super) fn keep(jobs: &Path, number: u32, text: &str) -> std::io::Result<()> {
    put(jobs, &number.to_string(), text)
}

/// The claim of a job.
pub(super) fn claim_of(jobs: &Path, number: u32) -> Option<String> {
    let text = fs::read_to_string(jobs.join(number.to_string())).ok()?;
    let id = text.lines().find_map(|line| line.strip_prefix("claim "));
    id.map(str::to_owned)
}

/// Removes all files of a job.
pub(super) fn forget(jobs: &Path, number: u32) {
    for name in [format!("{number}"), format!("{number}.job")] {
        // It may never have been there.
        let _ = fs::remove_file(jobs.join(name));
    }
}

/// The cgroup of a job.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Cgroup {
    /// Slurm's, of version 2: this process, a child of the task, is below it.
    Slurms(String),
    /// slurmd uses none of version 2: gshare makes this one, and the plugin puts each task into it.
    Own(PathBuf),
}

impl Cgroup {
    pub(super) fn of(config: &Config, number: u32) -> Result<Self, Failure> {
        let here = path_of_pid(std::process::id().cast_signed()).unwrap_or_default();
        if let Some(name) = slurms(&here, number) {
            return Ok(Self::Slurms(name));
        }
        let point = Mount::find()
            .map_err(|e| Failure::new(failure::INTERNAL, e.to_string()))?
            .point;
        let dir = own_below(&point, config, number);
        fs::create_dir_all(&dir)?;
        Ok(Self::Own(dir))
    }

    pub(super) fn name(&self) -> String {
        match self {
            Self::Slurms(name) => name.clone(),
            Self::Own(dir) => dir.display().to_string(),
        }
    }
}

/// The job's part of the path of one of its processes: `.../slurmstepd.scope/job_7` of `.../job_7/step_0/slurm`. A
/// machine with several slurmd has scopes with the names of their nodes.
fn slurms(path: &str, number: u32) -> Option<String> {
    let job = format!("slurmstepd.scope/job_{number}");
    let end = path.find(&format!("{job}/"))? + job.len();
    Some(path[..end].to_owned())
}

fn own_below(point: &Path, config: &Config, number: u32) -> PathBuf {
    let top = format!("{}-slurm", config.cgroup.root);
    point.join(top).join(format!("job_{number}"))
}

/// The cgroup that gshare made for a job.
pub(super) fn own_cgroup(config: &Config, number: u32) -> Option<PathBuf> {
    let dir = own_below(&Mount::find().ok()?.point, config, number);
    dir.is_dir().then_some(dir)
}

/// Ends what is left in the cgroup of a job that is over, and removes it; false if it stays.
pub(super) fn end(dir: &Path) -> bool {
    for _ in 0..50 {
        if fs::remove_dir(dir).is_ok() || !dir.is_dir() {
            return true;
        }
        // Slurm has ended the job; this is for processes that Slurm has lost track of.
        let _ = fs::write(dir.join("cgroup.kill"), "1");
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

/// What the plugin does to each task. Slurm decides which of the job's GPUs a task sees: the plugin only replaces the
/// numbers that Slurm puts into `CUDA_VISIBLE_DEVICES` by UUIDs, since gshare's device filter changes how CUDA counts.
pub(super) fn lines(granted: &Granted, cgroup: &Cgroup, job: &Job) -> String {
    let mut text = format!("claim {}\n", granted.id);
    if let Cgroup::Own(dir) = cgroup {
        let _ = writeln!(text, "join {}", dir.display());
    }
    let plain = |text: &str| !text.contains('\n');
    for (name, value) in granted.env.iter().filter(|(n, v)| plain(n) && plain(v)) {
        if name != "CUDA_VISIBLE_DEVICES" {
            let _ = writeln!(text, "set {name}={value}");
        } else if !job.constrained {
            // In whichever order: all of them are the job's.
            for (number, uuid) in job.gpus.iter().zip(value.split(',')) {
                let _ = writeln!(text, "gpu {number}={uuid}");
            }
        } else if let [_] = job.gpus[..] {
            let _ = writeln!(text, "gpu 0={value}");
        }
    }
    for (name, value) in &granted.env_prepend {
        let _ = writeln!(text, "prepend {name}={value}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_of_a_prolog_is_read_by_the_tasks() {
        let dir = tempfile::tempdir().unwrap();
        let jobs = dir.path().join("slurm");
        fs::write(
            dir.path().join("cgroup.conf"),
            "# x\nconstraindevices = Yes # y\n",
        )
        .unwrap();
        let conf = dir.path().join("slurm.conf");
        fs::write(&conf, "PrivateData=jobs,usage\n").unwrap();
        let conf = conf.display().to_string();
        let variable = |name: &str| match name {
            "SLURM_CONF" => conf.clone(),
            "SLURM_JOB_UID" => "1000".to_owned(),
            "SLURMD_NODENAME" => "n1".to_owned(),
            "SLURM_JOB_GPUS" => "0,3".to_owned(),
            "SPANK_GSHARE_MEM" => "12G".to_owned(),
            _ => String::new(),
        };
        assert!(!record(&jobs, 7, variable).unwrap(), "no plugin");
        assert!(jobs.join(NO_PLUGIN).exists());
        let job = Job {
            uid: 1000,
            node: "n1".to_owned(),
            constrained: true,
            gpus: vec![0, 3],
            memory: Some(Bytes::gib(12)),
            limit: None,
            private: true,
        };
        assert_eq!(Job::read(&jobs, 7).unwrap(), job);
        let plugin = dir.path().join("gshare_spank.so");
        let mark = format!("22.05 {}", plugin.display());
        fs::write(jobs.join("plugin"), mark).unwrap();
        for (minor, loaded) in [(5, true), (11, false)] {
            let bytes = [&b"gshare-built-for"[..], &[8, minor, 22, 0]].concat();
            fs::write(&plugin, bytes).unwrap();
            assert_eq!(record(&jobs, 7, variable).unwrap(), loaded);
        }
        keep(&jobs, 7, "claim c5\nset A=b\n").unwrap();
        assert_eq!(claim_of(&jobs, 7).as_deref(), Some("c5"));
        forget(&jobs, 7);
        assert_eq!(fs::read_dir(&jobs).unwrap().count(), 2, "the marks stay");
        assert!(Job::read(&jobs, 7).is_err());
        record(&jobs, 8, |_| "NoDevFiles".to_owned()).unwrap();
        assert!(Job::read(&jobs, 8).is_err(), "its tasks are refused");
    }

    #[test]
    fn a_job_is_found_in_the_path_of_its_task() {
        let job = |path: &str| slurms(path, 7);
        let usual = "/system.slice/slurmstepd.scope/job_7";
        assert_eq!(
            job(&format!("{usual}/step_0/slurm")).as_deref(),
            Some(usual)
        );
        let named = "/system.slice/n1_slurmstepd.scope/job_7";
        assert_eq!(
            job(&format!("{named}/step_0/user/task_0")).as_deref(),
            Some(named)
        );
        for other in [
            "/",
            "/system.slice/slurmd.service",
            "/slurmstepd.scope/job_77/step_0",
        ] {
            assert_eq!(job(other), None, "{other}");
        }
    }

    #[test]
    fn tasks_keep_the_gpus_that_slurm_shows_them() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let granted = Granted {
            id: "c1".to_owned(),
            env: vec![
                pair("A", "b c"),
                pair("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b"),
                pair("B", "x\ny"),
            ],
            env_prepend: vec![pair("LD_LIBRARY_PATH", "/lib")],
            ..Granted::default()
        };
        let mut job = Job {
            uid: 1,
            node: String::new(),
            constrained: false,
            gpus: vec![2, 5],
            memory: None,
            limit: None,
            private: false,
        };
        let own = Cgroup::Own("/sys/fs/cgroup/x/job_1".into());
        assert_eq!(
            lines(&granted, &own, &job),
            "claim c1\njoin /sys/fs/cgroup/x/job_1\nset A=b c\ngpu 2=GPU-a\ngpu 5=GPU-b\nprepend LD_LIBRARY_PATH=/lib\n"
        );
        job.constrained = true;
        let slurms = Cgroup::Slurms("/s/job_1".to_owned());
        assert_eq!(
            lines(&granted, &slurms, &job),
            "claim c1\nset A=b c\nprepend LD_LIBRARY_PATH=/lib\n"
        );
        // There is no doubt which one it is.
        job.gpus = vec![2];
        let one = Granted {
            env: vec![pair("CUDA_VISIBLE_DEVICES", "GPU-a")],
            ..Granted::default()
        };
        assert_eq!(lines(&one, &slurms, &job), "claim \ngpu 0=GPU-a\n");
    }
}

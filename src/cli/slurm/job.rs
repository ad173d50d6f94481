//! State of a job on this node: files below the service's runtime directory, and the job's cgroup.
//!
//! `plugin` exists if slurmd has loaded the plugin; `N` has the instructions for each task of a job.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gshare_config::Config;
use gshare_enforcer::cgroup::{Mount, path_of_pid};
use gshare_enforcer::proc::key;
use gshare_proto::Granted;

use super::super::args::slurm::TaskArgs;
use super::conf::Conf;
use super::files::built_for;
use crate::command::failure::{self, Failure};

/// Rules for all jobs in Slurm's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rules {
    /// slurmd hides others' GPUs, so Slurm numbers a job's own from 0.
    pub(super) constrained: bool,
    /// Other users may not see a job.
    pub(super) private: bool,
}

impl Rules {
    /// `conf` is the path of slurm.conf, if known.
    pub(super) fn read(conf: &str) -> Self {
        let dir = slurm_dir(conf);
        let conf = Conf::read(&dir.join("slurm.conf"));
        Self {
            constrained: Conf::read(&dir.join("cgroup.conf")).is_on("constraindevices")
                && conf.last("taskplugin").contains("cgroup"),
            private: conf.lists("privatedata", "jobs"),
        }
    }
}

/// The pid of slurmd, if it has loaded the plugin, and steps, which load it again, still can.
pub(super) fn slurmd(jobs: &Path) -> Option<i32> {
    let mark = fs::read_to_string(jobs.join("plugin")).ok()?;
    let [release, pid, start, plugin] = mark.splitn(4, ' ').collect::<Vec<_>>()[..] else {
        return None;
    };
    // One that was killed has left its mark.
    let slurmd = key(pid.parse().ok()?).filter(|slurmd| slurmd.start_ticks.to_string() == start)?;
    let now = fs::read(plugin).ok().and_then(|bytes| built_for(&bytes));
    (now.as_deref() == Some(release)).then_some(slurmd.pid)
}

fn slurm_dir(conf: &str) -> PathBuf {
    let dir = Path::new(conf).parent().filter(|d| d.is_absolute());
    dir.unwrap_or(Path::new("/etc/slurm")).to_owned()
}

/// Stores the instructions for each task, for later ones.
pub(super) fn keep(jobs: &Path, number: u32, text: &str) -> std::io::Result<()> {
    let mut dir = fs::DirBuilder::new();
    dir.recursive(true).mode(0o700).create(jobs)?;
    let new = jobs.join(format!(".{number}.{}", std::process::id()));
    fs::write(&new, text)?;
    fs::rename(&new, jobs.join(number.to_string()))
}

pub(super) fn claim_of(jobs: &Path, number: u32) -> Option<String> {
    kept(jobs, number, "claim ")
}

/// What the file of a job has after a word.
fn kept(jobs: &Path, number: u32, word: &str) -> Option<String> {
    let text = fs::read_to_string(jobs.join(number.to_string())).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(word));
    value.map(str::to_owned)
}

/// Removes the file of a job.
pub(super) fn forget(jobs: &Path, number: u32) {
    // It may never have existed.
    let _ = fs::remove_file(jobs.join(number.to_string()));
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Cgroup {
    /// Slurm's, of version 2, with this process, a child of the task, below it.
    Slurms(String),
    /// slurmd uses none of version 2: gshare makes this one, and the plugin moves each task into it.
    Own(PathBuf),
}

impl Cgroup {
    pub(super) fn of(config: &Config, number: u32) -> Result<Self, Failure> {
        let here = path_of_pid(std::process::id().cast_signed()).unwrap_or_default();
        if let Some(name) = slurms(&here)? {
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

/// The end of the name of the cgroup that has all jobs of a slurmd with cgroup v2. If a machine runs several, their
/// nodes' names are in front.
const SCOPE: &str = "slurmstepd.scope/";

/// The job's part of the cgroup path of one of its processes: `.../slurmstepd.scope/job_7` of
/// `.../job_7/step_0/slurm`. From 26.05 on, Slurm does not name it by the job's number: `.../s5M1M8FA48Y700/step_0`.
fn slurms(path: &str) -> Result<Option<String>, Failure> {
    let Some((before, rest)) = path.split_once(SCOPE) else {
        return Ok(None);
    };
    let Some((job, _)) = rest.split_once("/step_") else {
        // Slurm would move the tasks out of a cgroup of gshare's own, and nothing would limit them.
        let text = format!("no job's cgroup is known in {path}; the job was not started");
        return Err(Failure::new(failure::INTERNAL, text));
    };
    Ok(Some(format!("{before}{SCOPE}{job}")))
}

fn own_below(point: &Path, config: &Config, number: u32) -> PathBuf {
    let top = format!("{}-slurm", config.cgroup.root);
    point.join(top).join(format!("job_{number}"))
}

/// The cgroups of an ended job: that which gshare made for it, and those of its steps in Slurm's, where programs remain
/// if a slurmstepd was killed.
pub(super) struct Ended {
    own: Option<PathBuf>,
    steps: Vec<PathBuf>,
}

impl Ended {
    pub(super) fn of(config: &Config, jobs: &Path, number: u32) -> Self {
        let Ok(Mount { point, .. }) = Mount::find() else {
            return Self {
                own: None,
                steps: Vec::new(),
            };
        };
        let own = own_below(&point, config, number);
        let slurms = kept(jobs, number, "cgroup ");
        let slurms = slurms.map(|name| point.join(name.trim_start_matches('/')));
        // With `RunInJob` in `PrologFlags`, this process is in one.
        let here = path_of_pid(std::process::id().cast_signed()).unwrap_or_default();
        let here = point.join(here.trim_start_matches('/'));
        let dirs = slurms.and_then(|dir| fs::read_dir(dir).ok());
        let dirs = dirs.into_iter().flatten().flatten().map(|dir| dir.path());
        Self {
            own: own.is_dir().then_some(own),
            steps: dirs
                .filter(|step| !here.starts_with(step))
                .map(|step| step.join("user"))
                .filter(|user| is_populated(user))
                .collect(),
        }
    }

    /// Ends the remaining processes, and removes gshare's cgroup; one that stays.
    pub(super) fn clear(self) -> Option<PathBuf> {
        let mut stays = None;
        for dir in self.own.iter().chain(&self.steps) {
            if !end(dir) {
                stays = Some(dir.clone());
            }
        }
        if let Some(own) = &self.own {
            // A process that stays keeps it.
            let _ = fs::remove_dir(own);
        }
        stays
    }
}

/// Whether there are processes in a cgroup or below.
fn is_populated(dir: &Path) -> bool {
    let events = fs::read_to_string(dir.join("cgroup.events")).unwrap_or_default();
    events.lines().any(|line| line == "populated 1")
}

/// Ends all processes in a cgroup of an ended job, which Slurm has lost; false if some stay.
fn end(dir: &Path) -> bool {
    for _ in 0..50 {
        if !is_populated(dir) {
            return true;
        }
        // It may just have become empty.
        let _ = fs::write(dir.join("cgroup.kill"), "1");
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

/// Instructions for each task. Slurm decides which of the job's GPUs a task sees: the plugin only replaces Slurm's
/// numbers in `CUDA_VISIBLE_DEVICES` by UUIDs, since CUDA counts other GPUs than Slurm. If Slurm constrains devices, it
/// counts those of the job's that the task can open.
pub(super) fn lines(
    granted: &Granted,
    cgroup: &Cgroup,
    constrained: bool,
    args: &TaskArgs,
    gpus: &[u32],
) -> String {
    let mut text = format!("claim {}\n", granted.id);
    for (key, given) in [("mem", &args.mem), ("limit", &args.limit)] {
        if let Some(given) = given {
            let _ = writeln!(text, "{key} {given}");
        }
    }
    let _ = match cgroup {
        Cgroup::Own(dir) => writeln!(text, "join {}", dir.display()),
        // For the epilog.
        Cgroup::Slurms(name) => writeln!(text, "cgroup {name}"),
    };
    let plain = |text: &str| !text.contains('\n');
    for (name, value) in granted.env.iter().filter(|(n, v)| plain(n) && plain(v)) {
        if name != "CUDA_VISIBLE_DEVICES" {
            let _ = writeln!(text, "set {name}={value}");
        } else if !constrained {
            // In any order: all of them are the job's.
            for (number, uuid) in gpus.iter().zip(value.split(',')) {
                let _ = writeln!(text, "gpu {number}={uuid}");
            }
        } else {
            for (uuid, node) in value.split(',').zip(&granted.nodes) {
                let _ = writeln!(text, "gpu {node}={uuid}");
            }
        }
    }
    for (from, on) in &granted.binds {
        let _ = writeln!(text, "bind {from}={on}");
    }
    for (name, value) in &granted.env_prepend {
        let _ = writeln!(text, "prepend {name}={value}");
    }
    if args.is_extern {
        text.push_str("extern\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::files::MARK;
    use super::*;

    #[test]
    fn what_slurm_says_of_all_jobs_is_read_beside_its_configuration() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        put("cgroup.conf", "# x\nconstraindevices = Yes # y\n");
        let tasks = "TaskPlugin=task/affinity,task/cgroup\n";
        put("slurm.conf", &format!("PrivateData=jobs,usage\n{tasks}"));
        let conf = dir.path().join("slurm.conf").display().to_string();
        let rules = || (Rules::read(&conf).constrained, Rules::read(&conf).private);
        assert_eq!(rules(), (true, true));
        // Only task/cgroup constrains devices.
        put("slurm.conf", "");
        assert_eq!(rules(), (false, false));
    }

    #[test]
    fn a_plugin_that_slurmd_cannot_load_again_is_not_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let jobs = dir.path().join("slurm");
        assert_eq!(slurmd(&jobs), None);
        keep(&jobs, 7, "claim c5\nset A=b\n").unwrap();
        let plugin = dir.path().join("gshare_spank.so");
        let own = key(std::process::id().cast_signed()).unwrap();
        let (pid, start) = (own.pid, own.start_ticks);
        for (minor, pid, start, loaded) in [
            (5, pid, start, true),
            (11, pid, start, false),
            (5, i32::MAX, start, false),
            // Another process has its number now.
            (5, pid, start - 1, false),
        ] {
            let mark = format!("22.05 {pid} {start} {}", plugin.display());
            fs::write(jobs.join("plugin"), mark).unwrap();
            let bytes = [MARK, &[8, minor, 22, 0]].concat();
            fs::write(&plugin, bytes).unwrap();
            assert_eq!(slurmd(&jobs), loaded.then_some(pid));
        }
        assert_eq!(claim_of(&jobs, 7).as_deref(), Some("c5"));
        forget(&jobs, 7);
        assert_eq!(fs::read_dir(&jobs).unwrap().count(), 1, "the mark stays");
    }

    #[test]
    fn a_job_is_found_in_the_path_of_its_task() {
        for job in [
            "/system.slice/slurmstepd.scope/job_7",
            "/system.slice/n1_slurmstepd.scope/job_7",
            "/system.slice/slurmstepd.scope/s5M1M8FA48Y700",
        ] {
            let task = format!("{job}/step_0/user/task_0");
            assert_eq!(slurms(&task).unwrap().as_deref(), Some(job));
        }
        for other in ["/", "/system.slice/slurmd.service"] {
            assert_eq!(slurms(other).unwrap(), None, "{other}");
        }
        slurms("/slurmstepd.scope/system").unwrap_err();
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
            nodes: ["/dev/nvidia4", "/dev/nvidia7"].map(str::to_owned).into(),
            ..Granted::default()
        };
        let args = TaskArgs {
            mem: Some("1G".to_owned()),
            ..TaskArgs::default()
        };
        let of = |cgroup: &Cgroup, constrained, gpus: &[u32]| {
            lines(&granted, cgroup, constrained, &args, gpus)
        };
        let own = Cgroup::Own("/sys/fs/cgroup/x/job_1".into());
        let first = TaskArgs {
            is_extern: true,
            ..TaskArgs::default()
        };
        let first = lines(&granted, &own, false, &first, &[]);
        assert!(first.ends_with("\nextern\n"), "{first}");
        assert_eq!(
            of(&own, false, &[2, 5]),
            "claim c1\nmem 1G\njoin /sys/fs/cgroup/x/job_1\nset A=b c\ngpu 2=GPU-a\ngpu 5=GPU-b\nprepend LD_LIBRARY_PATH=/lib\n"
        );
        let slurms = Cgroup::Slurms("/s/job_1".to_owned());
        assert_eq!(
            of(&slurms, true, &[2, 5]),
            "claim c1\nmem 1G\ncgroup /s/job_1\nset A=b c\ngpu /dev/nvidia4=GPU-a\ngpu /dev/nvidia7=GPU-b\n\
             prepend LD_LIBRARY_PATH=/lib\n"
        );
    }
}

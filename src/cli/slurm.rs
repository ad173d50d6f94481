//! `gshare slurm`: programs for slurmd and the SPANK plugin, and Slurm's configuration.
//!
//! In the job's first step on this node the plugin asks slurmctld for the job's allocation, and `task` claims it on
//! behalf of the job's cgroup. The epilog ends the claim. There is no prolog: slurmd passes it nothing about shards,
//! and sleeps for 10 ms after each.

mod comment;
mod conf;
mod files;
mod gres;
mod health;
mod install;
mod job;
mod queue;

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use gshare_config::{Config, Mode, Silent, Slurm, SlurmGpus};
use gshare_core::{Bytes, Share};
use gshare_proto::{
    AdminCall, Call, ClaimFor, ClaimSpec, Client, ClientError, Reply, ResizeSpec, SLURM_JOB, Wait,
};

use super::args::slurm::{SlurmArgs, SlurmCommand, TaskArgs};
use super::claim::unexpected;
use super::failure::{self, Failure};
use super::{Outcome, out};
use crate::plugin::{jobs, program};
use gres::Given;
use job::{Cgroup, Rules};
pub(crate) use queue::SlurmJob;

/// Longest wait for the service and for Slurm; slurmd or a user waits meanwhile.
const PATIENCE: Duration = Duration::from_secs(2);

pub(crate) fn run(args: &SlurmArgs) -> Outcome {
    let site = || Site::of(args.config.as_deref());
    match &args.command {
        SlurmCommand::Config(of) => files::print(args.config.as_deref(), of),
        SlurmCommand::Install(of) => install::install(&site()?, args.config.as_deref(), of),
        SlurmCommand::Uninstall(of) => install::uninstall(of),
        SlurmCommand::Check => files::check(&site()?),
        SlurmCommand::Epilog => {
            // Always succeeds: Slurm drains a node whose epilog fails, and remains here harm no other job.
            if let Err(failure) = site().and_then(|site| epilog(&site)) {
                out::failure(&failure);
            }
            Ok(0)
        }
        SlurmCommand::Health => health::run(&site()?),
        SlurmCommand::Comment(of) => comment::run(&site()?, args.config.as_deref(), of),
        SlurmCommand::Used => comment::used(&site()?),
        SlurmCommand::Task(args) => {
            let text = match site().and_then(|site| task(&site, args)) {
                Ok(text) => text,
                Err(failure) => format!("refuse gshare: {}\n", failure.message),
            };
            out::print(&text)?;
            Ok(0)
        }
    }
}

/// A variable that slurmd sets.
fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

/// Configuration of this node.
struct Site {
    config: Config,
    socket: PathBuf,
    /// Directory of the plugin's files and the jobs'.
    jobs: PathBuf,
}

/// Why the service did not carry out a request.
enum Not {
    Refused(String),
    /// No answer in time.
    Silent,
}

impl Site {
    fn of(file: Option<&Path>) -> Result<Self, Failure> {
        let config = match file {
            Some(file) => Config::load_file(file)?,
            None => Config::load(Mode::System)?,
        };
        let paths = config.paths(Mode::System);
        Ok(Self {
            jobs: jobs(&paths),
            config,
            socket: paths.socket,
        })
    }

    /// Whether Slurm allocates GPUs of this machine.
    fn is_on(&self) -> bool {
        self.config.slurm.gpus != SlurmGpus::None
    }

    /// The output of scontrol.
    fn scontrol(&self, words: &[&str]) -> Result<String, Failure> {
        slurm(&program(&self.jobs, "scontrol"), words)
    }

    /// Asks the service, and waits for at most two seconds.
    fn ask(&self, call: Call) -> Result<Reply, Not> {
        let socket = self.socket.clone();
        // A hanging service may not even accept the connection.
        let asked =
            soon(move || Client::connect(&socket).and_then(|mut client| client.call(&call)));
        match asked {
            Some(Ok(reply)) => Ok(reply),
            Some(Err(ClientError::Refused(error))) => Err(Not::Refused(error.message)),
            Some(Err(_)) | None => Err(Not::Silent),
        }
    }
}

/// The result of a thread, if it comes within [`PATIENCE`].
fn soon<T: Send + 'static>(find: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (tell, hear) = mpsc::channel();
    std::thread::spawn(move || {
        // The receiver may have given up.
        let _ = tell.send(find());
    });
    hear.recv_timeout(PATIENCE).ok()
}

/// The output of a Slurm command, if it succeeds within [`PATIENCE`]: while slurmctld is down, the command itself
/// would retry for longer.
fn slurm(program: &Path, words: &[&str]) -> Result<String, Failure> {
    let mut command = Command::new(program);
    let program = program.display();
    command
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let failed = |e: std::io::Error| Failure::new(failure::NOT_FOUND, format!("{program}: {e}"));
    let not = |text: String| Failure::new(failure::NOT_AVAILABLE, text);
    let mut child = command.spawn().map_err(failed)?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let said = soon(move || {
        let mut said = [Vec::new(), Vec::new()];
        out.expect("piped").read_to_end(&mut said[0])?;
        err.expect("piped").read_to_end(&mut said[1])?;
        Ok(said.map(|text| String::from_utf8_lossy(&text).into_owned()))
    });
    if said.is_none() {
        // It may have just ended.
        let _ = child.kill();
    }
    let status = child.wait().map_err(failed)?;
    let said = said.ok_or_else(|| not("Slurm does not answer within 2 s".to_owned()))?;
    let [text, error] = said.map_err(failed)?;
    // `scontrol show` says on stdout that there is no such node.
    let why = [error.trim(), text.trim()].join(" ");
    match status.success() {
        true => Ok(text),
        false => Err(not(format!("{program}: {}", why.trim()))),
    }
}

/// The job of an epilog.
fn number() -> Result<u32, Failure> {
    variable("SLURM_JOB_ID").parse().map_err(|_| {
        Failure::new(
            failure::USAGE,
            "SLURM_JOB_ID is not set: only slurmd runs this command",
        )
        .with_hint("gshare slurm config slurm.conf prints the lines for Slurm")
    })
}

fn epilog(site: &Site) -> Result<(), Failure> {
    let number = number()?;
    let left = job::Ended::of(&site.config, &site.jobs, number).clear();
    if let Some(id) = job::claim_of(&site.jobs, number) {
        // It may have ended with its cgroup; a silent service ends it when it is back.
        let _ = site.ask(Call::Release { id: id.into() });
    }
    job::forget(&site.jobs, number);
    if let Some(dir) = left {
        let text = format!(
            "gshare could not end all processes of job {number}: {}/cgroup.procs lists them",
            dir.display()
        );
        return Err(Failure::new(failure::INTERNAL, text));
    }
    Ok(())
}

/// Instructions for the plugin about each task of a job, one per line.
fn task(site: &Site, args: &TaskArgs) -> Result<String, Failure> {
    if !site.is_on() {
        return Ok(String::new());
    }
    let given = gres::given(&args.gres).ok_or_else(|| {
        let text = format!(
            "what Slurm gave job {} cannot be read: {}",
            args.job, args.gres
        );
        Failure::new(failure::INTERNAL, text)
    })?;
    let whole = given.shards.is_none();
    let conf = variable("SLURM_CONF");
    let rules = Rules::read(&conf);
    let change = spec(&site.config.slurm, &given, args)?;
    let without = TaskArgs {
        mem: None,
        limit: None,
        ..args.clone()
    };
    let part = spec(&site.config.slurm, &given, &without)?;
    let cgroup = Cgroup::of(&site.config, args.job)?;
    let call = ClaimFor {
        uid: args.uid,
        name: format!("{SLURM_JOB}{}", args.job).into(),
        spec: Box::new(part),
        cgroup: cgroup.name().into(),
        private: rules.private,
        filtered: rules.constrained,
    };
    let ask = || site.ask(Call::Admin(AdminCall::ClaimFor(Box::new(call.clone()))));
    let mut answer = ask();
    // Another step may have made the claim, such as `extern`, which does not know the job's options.
    if let (Ok(Reply::Granted(granted)), true) =
        (&answer, args.mem.is_some() || args.limit.is_some())
    {
        let options = ResizeSpec {
            id: granted.id.clone().into(),
            mem: change.mem,
            sm_limit_milli: change.sm_limit_milli.filter(|_| args.limit.is_some()),
            wait: Wait::No,
            ..ResizeSpec::default()
        };
        // Its new sizes are in what the tasks are told.
        answer = site
            .ask(Call::Resize(Box::new(options)))
            .and_then(|_| ask());
    }
    let why = match answer {
        Ok(Reply::Granted(granted)) => {
            let mut text = job::lines(&granted, &cgroup, rules.constrained, args, &given.gpus);
            if !conf.is_empty() {
                // For the service, which asks slurmctld about jobs that stand still.
                text.push_str(&format!("conf {conf}\n"));
            }
            // One of a step that knows the options stays.
            if !args.is_extern || job::claim_of(&site.jobs, args.job).is_none() {
                job::keep(&site.jobs, args.job, &text)?;
            }
            return Ok(text);
        }
        Ok(other) => unexpected(&other).message,
        // Without gshare, Slurm itself still restricts a job to its whole GPUs.
        Err(_) if whole => return Ok(String::new()),
        Err(Not::Silent) if site.config.slurm.silent == Silent::Open => return Ok(String::new()),
        Err(Not::Silent) => format!("the service on {} does not answer", args.host),
        Err(Not::Refused(why)) => {
            let text = format!("{why}. The job was not started");
            return Err(Failure::new(failure::NOT_AVAILABLE, text));
        }
    };
    let text =
        format!("{why}. Nothing would limit this job to its part of a GPU, so it was not started");
    Err(Failure::new(failure::NOT_AVAILABLE, text))
}

/// The request for a job.
fn spec(slurm: &Slurm, given: &Given, args: &TaskArgs) -> Result<ClaimSpec, Failure> {
    let usage = |text: &str| Failure::new(failure::USAGE, text);
    let gpus = given.gpus.len();
    let each = match &given.shards {
        None => None,
        Some(each) if each.len() == gpus && each.windows(2).all(|w| w[0] == w[1]) => {
            each.first().copied()
        }
        Some(_) => {
            return Err(usage(
                "the job has different numbers of shards on several GPUs, which gshare cannot limit",
            ));
        }
    };
    let node = &args.node;
    let per_gpu = gres::total(node, "shard").checked_div(gres::total(node, "gpu"));
    let milli = match (each, per_gpu) {
        (None, _) => 1000,
        (Some(shards), Some(per_gpu)) if per_gpu > 0 => gres::milli(shards, per_gpu),
        _ => {
            return Err(usage(
                "slurmctld does not report how many shards a GPU of this node has",
            ));
        }
    };
    let there = gres::total(node, "gpu");
    let listed = match &slurm.gpus {
        SlurmGpus::These(names) => there == 0 || names.len() as u64 == there,
        SlurmGpus::All | SlurmGpus::None => true,
    };
    let names = given.gpus.iter().map(|g| slurm.gpus.name(*g));
    let names: Option<Vec<String>> = names.collect();
    let names = names.filter(|_| listed).ok_or_else(|| {
        usage("[slurm] gpus in gshare.toml must list as many GPUs as gres.conf, in the same order")
    })?;
    Ok(ClaimSpec {
        gpus_milli: Some(milli),
        gpu_count: u32::try_from(gpus).ok(),
        mem: args
            .mem
            .as_deref()
            .map(read::<Bytes>)
            .transpose()?
            .map(|m| m.0),
        sm_milli: Some(milli),
        sm_limit_milli: sm_limit(
            slurm,
            args.limit.as_deref().map(read).transpose()?,
            milli,
            &args.queue,
        )?,
        gpu_ids: names.into(),
        project: args
            .account
            .clone()
            .filter(|a| !a.is_empty())
            .map(Into::into),
        class: Some("batch".into()),
        wait: Wait::No,
        ..ClaimSpec::default()
    })
}

/// An option of a job.
fn read<T: std::str::FromStr<Err: ToString>>(text: &str) -> Result<T, Failure> {
    let wrong = |e: T::Err| Failure::new(failure::USAGE, e.to_string());
    text.parse().map_err(wrong)
}

/// Limit of a job's compute: its part, or more if the site allows it; `None` is the service's default.
fn sm_limit(
    slurm: &Slurm,
    limit: Option<Share>,
    part: u32,
    queue: &[String],
) -> Result<Option<u32>, Failure> {
    let may = queue.iter().any(|name| slurm.burst.contains(name));
    let own = Share::from_milli(part).short();
    match limit {
        None if may => Ok(None),
        None => Ok(Some(part)),
        Some(limit) if limit.milli() < part => {
            let limit = limit.short();
            let text =
                format!("--gshare-limit {limit} is less than the job's part of a GPU ({own})");
            Err(Failure::new(failure::USAGE, text))
        }
        Some(limit) if limit.milli() > part && !may => {
            // A job may have no QOS.
            let names = queue.iter().map(String::as_str);
            let names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
            let text = format!(
                "--gshare-limit {} is more than the job's part of a GPU ({own}); on this node, jobs in {} may not use \
                 more than their part",
                limit.short(),
                names.join("/")
            );
            Err(Failure::new(failure::USAGE, text))
        }
        Some(limit) => Ok(Some(limit.milli())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_compute_than_its_part_is_for_the_queues_that_may_burst() {
        let slurm = Slurm {
            burst: vec!["night".to_owned()],
            ..Config::default().slurm
        };
        let limit = |milli: Option<u32>, queue: &[&str]| {
            let queue: Vec<String> = queue.iter().map(|q| (*q).to_owned()).collect();
            sm_limit(&slurm, milli.map(Share::from_milli), 500, &queue).map_err(|f| f.message)
        };
        assert_eq!(limit(None, &["main", "normal"]), Ok(Some(500)));
        assert_eq!(limit(None, &["main", "night"]), Ok(None));
        assert_eq!(limit(Some(500), &["main"]), Ok(Some(500)));
        assert_eq!(limit(Some(800), &["night", "normal"]), Ok(Some(800)));
        let more = limit(Some(800), &["main", "normal"]).unwrap_err();
        assert!(
            more.contains("more than the job's part") && more.contains("main/normal"),
            "{more}"
        );
        let less = limit(Some(300), &["night"]).unwrap_err();
        assert!(less.contains("less than the job's part"), "{less}");
    }

    #[test]
    fn a_job_claims_what_its_shards_stand_for() {
        let node = "gpu:4(S:0-1),shard:32(S:0-1)";
        let on = |node: &str, gpus: &[u32], shards| {
            let given = Given {
                gpus: gpus.to_vec(),
                shards,
            };
            let names = ["4", "5", "6", "7"].map(str::to_owned).to_vec();
            let slurm = Slurm {
                gpus: SlurmGpus::These(names),
                ..Config::default().slurm
            };
            let args = TaskArgs {
                node: node.to_owned(),
                account: Some("vision".to_owned()),
                ..TaskArgs::default()
            };
            let spec = spec(&slurm, &given, &args).ok()?;
            assert_eq!(spec.gpus_milli, spec.sm_limit_milli);
            assert_eq!(spec.project.as_deref(), Some("vision"));
            assert_eq!(*spec.gpu_ids[0], (gpus[0] + 4).to_string());
            Some((spec.gpus_milli?, spec.gpu_count?))
        };
        let of = |gpus: &[u32], shards| on(node, gpus, shards);
        assert_eq!(of(&[3], Some(vec![2])), Some((250, 1)));
        assert_eq!(of(&[0, 3], None), Some((1000, 2)));
        assert_eq!(of(&[0, 3], Some(vec![4, 4])), Some((500, 2)));
        assert_eq!(of(&[0, 3], Some(vec![4, 2])), None);
        assert_eq!(of(&[0, 3], Some(vec![4])), None);
        assert_eq!(of(&[4], Some(vec![4])), None, "not listed");
        // It may name other GPUs than Slurm means.
        assert_eq!(on("gpu:3,shard:24", &[0], None), None, "a longer list");
    }
}

//! A node that loses power, and containers in jobs.

use gshare_proto::Snapshot;

use super::*;
use crate::containers::{apptainer, below_dev};

impl Slurm {
    /// The first node loses power and starts again: its processes, its cgroups and its files below `/run` are gone.
    /// slurmctld is on another host.
    fn lose_power(&mut self, jobs_begun: Instant) {
        self.station.stop_service(Signal::SIGKILL).expect("killed");
        let mut slurmd = self.daemons.remove(2);
        slurmd.kill().expect("killed");
        slurmd.wait().expect("ended");
        remove(&slice().join(format!("{}_slurmstepd.scope", self.node)));
        let point = Mount::find().expect("mounted").point;
        let root = self.station.cgroup_root();
        remove(&point.join(root));
        remove(&point.join(format!("{root}-slurm")));
        let socket = self.station.socket();
        let run = socket.parent().expect("a directory");
        std::fs::remove_dir_all(run).expect("removed");
        let journal = self.station.dir().join("state/gshare.db");
        let journal = rusqlite::Connection::open(journal).expect("opened");
        let boot = "UPDATE meta SET value = 'the one before' WHERE key = 'boot'";
        assert_eq!(journal.execute(boot, []).expect("written"), 1);
        self.station.start_service().expect("starts again");
        // From this age on, slurmctld takes a batch job for lost that a node does not have when it registers.
        std::thread::sleep(Duration::from_secs(13).saturating_sub(jobs_begun.elapsed()));
        self.start_daemon(2);
    }
}

#[test]
fn after_a_loss_of_power_a_requeued_job_has_its_claim_and_no_other_is_left() {
    let Some(mut slurm) = Slurm::make("a loss of power", How::Cgroups) else {
        return;
    };
    let (prolog, hang) = (slurm.dir.join("prolog"), slurm.dir.join("hang"));
    let hangs = format!("#!/bin/sh\n[ ! -e {} ] || sleep 60\n", hang.display());
    write(&prolog, hangs);
    set_mode("755", &prolog);
    let prolog = prolog.display();
    slurm.requeue_soon(&format!(
        "BatchStartTimeout=1\nPrologEpilogTimeout=3\nProlog={prolog}\n"
    ));
    slurm.run();
    let (ada, bob) = slurm.uids();
    let batch = words("sbatch --parsable --requeue --gres=gshare:0.5 --output=/dev/null");
    let batch = [&batch[..], &["--wrap=sleep 1000"]].concat();
    let number: u32 = slurm.says(ada, &batch).parse().expect("a number");
    let mut lost = Raw::start(slurm.command(bob, &["srun", "--gres=gpu:1", &slurm.client()]));
    assert!(lost.ask("alloc 1048576").starts_with("ok"));
    let of = |number: u32, snapshot: Snapshot| {
        let mut claims = snapshot.claims.into_iter();
        claims.find(|c| c.slurm_job == Some(number))
    };
    let now = |slurm: &Slurm| slurm.station.snapshot().expect("served");
    let before = until("both jobs run", SOON, || {
        (slurm.claims().len() == 2).then_some(())?;
        of(number, now(&slurm))
    });
    let jobs_begun = Instant::now();
    slurm.lose_power(jobs_begun);
    assert!(slurm.claims().is_empty(), "{:?}", slurm.claims());
    let used = board(&slurm.station).snapshot();
    assert!(used.gpus.iter().all(|gpu| gpu.processes.is_empty()));
    let begun = Instant::now();
    let after = until("the job runs again", Duration::from_secs(60), || {
        of(number, now(&slurm))
    });
    println!("the job ran again after {:.0?}", begun.elapsed());
    assert_ne!(after.id, before.id);
    assert_eq!(after.gpus[0].mem_limit, before.gpus[0].mem_limit);
    // Slurm itself misses a job without a script later.
    assert_eq!(slurm.claims().len(), 1);
    lost.kill();
    let log = slurm.tells(ada, &["log", &before.id]);
    assert!(log.contains("the machine was restarted"), "{log}");
    slurm.says(0, &["scancel", "--state=running", "--partition=main"]);
    slurm.is_over();
    assert!(!slurm.node().contains("DRAIN"), "{}", slurm.node());

    // A prolog of the site that times out: Slurm drains the node, and no claim is left.
    write(&hang, "");
    let number = slurm.says(ada, &batch);
    until("its prolog times out", SOON, || {
        slurm.node().contains("Reason=Prolog error").then_some(())
    });
    slurm.says(0, &["scancel", &number]);
    std::fs::remove_file(&hang).expect("removed");
    let resume = format!("NodeName={}", slurm.node);
    slurm.says(0, &["scontrol", "update", &resume, "State=RESUME"]);
    slurm.is_over();
    let words = ["srun", "--gres=gshare:0.5", "printenv", "GSHARE_GPU_MEM"];
    assert!(!slurm.says(bob, &words).is_empty());
    slurm.is_over();
}

/// By a claim in the job, which joins the job's; and where limits are strict also without gshare in the command.
#[test]
fn apptainer_in_a_job_is_held_to_the_jobs_part() {
    let Some(image) = apptainer("apptainer in a job") else {
        return;
    };
    let image = image.path().join("image").display().to_string();
    for how in [How::Cgroups, How::Strict] {
        let Some(slurm) = Slurm::start("apptainer in a job", how) else {
            return;
        };
        let _nodes = below_dev(&slurm.station);
        let (ada, _) = slurm.uids();
        let (gshare, own) = (slurm.station.program(), slurm.station.dir());
        let (gshare, own) = (gshare.display().to_string(), own.display().to_string());
        let driver = format!("LD_LIBRARY_PATH={own}/sim/lib");
        let exec = ["apptainer", "-s", "exec", "--no-home"];
        let inside = [&image[..], "/raw_client"];
        let joined = [&[&gshare, "claim", "-q", "--"], &exec[..], &["--nv"]].concat();
        let plain = [&exec[..], &["--bind", &own, "--env", &driver]].concat();
        let ways = match how {
            How::Strict => vec![joined, plain],
            _ => vec![joined],
        };
        for way in ways {
            let words = [&["srun", "--gres=gshare:0.25"], &way[..], &inside].concat();
            let mut job = Raw::start(slurm.command(ada, &words));
            let claims = slurm.claims();
            let limit = claims[0].gpus[0].mem_limit;
            assert_eq!((claims.len(), job.info().1), (1, limit), "{words:?}");
            assert_eq!(job.ask(&format!("alloc {}", limit + 1)), FULL);
            assert_eq!(job.ask("alloc 67108864"), "ok 0");
            assert_eq!(job.finish(), Some(0));
            slurm.is_over();
        }
    }
}

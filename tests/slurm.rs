//! Jobs of a real Slurm on a simulated workstation: slurmctld, slurmd, munge, gshare's files as they are printed, and the
//! plugin compiled against Slurm's headers.

use crate::support;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use gshare::station::Station;
use gshare_enforcer::cgroup::{Mount, path_of_pid};
use gshare_proto::ClaimView;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::users::{Users, as_user, reachable};
use support::{Raw, board, root, station_with, until};

const SOON: Duration = Duration::from_secs(20);
const HEADER: &str = "/usr/include/slurm/spank.h";

/// A Slurm of one node with GPUs 2 and 3 of a workstation of four.
struct Slurm {
    dir: PathBuf,
    node: String,
    /// slurmd uses cgroups of version 2, so a job has one of Slurm's own.
    cgroups: bool,
    daemons: Vec<Child>,
    users: Users,
    station: Station,
}

fn write(path: &Path, text: impl AsRef<[u8]>) {
    std::fs::write(path, text).expect("written");
}

fn text(output: &Output) -> String {
    let both = [output.stdout.as_slice(), output.stderr.as_slice()];
    both.map(String::from_utf8_lossy).concat()
}

fn found(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).exists())
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("bound").port()
}

impl Slurm {
    /// None, and why on stdout, where there is no Slurm.
    fn start(test: &str, cgroups: bool) -> Option<Self> {
        if !root(test) {
            return None;
        }
        let programs = ["slurmctld", "slurmd", "srun", "munged", "cc"];
        let missing = programs.into_iter().find(|program| !found(program));
        let missing = missing.or((!Path::new(HEADER).exists()).then_some(HEADER));
        if let Some(missing) = missing {
            println!("skipped: {test} needs Slurm: {missing} is not installed");
            return None;
        }
        let station = station_with(|o| {
            o.config = "[claims]\nleftover-grace = \"1s\"\n\n[slurm]\ngpus = [2, 3]\n".to_owned();
            o.costs = "spin_1ms 1000000ns\n".to_owned();
        });
        let dir = station.dir().join("slurm");
        for part in ["", "state", "spool", "munge"] {
            std::fs::create_dir(dir.join(part)).expect("made");
        }
        let system = Mount::find().expect("mounted").point.join("system.slice");
        std::fs::create_dir_all(system).expect("made");
        let mut slurm = Self {
            dir,
            node: format!("n{}{}", std::process::id(), u8::from(cgroups)),
            cgroups,
            daemons: Vec::new(),
            users: Users::some(2),
            station,
        };
        slurm.configure();
        slurm.run();
        Some(slurm)
    }

    /// A file as `gshare slurm config` prints it.
    fn printed(&self, file: &str) -> Vec<u8> {
        let mut command = self.station.command();
        command
            .args(["slurm", "config", file, "--dir"])
            .arg(&self.dir);
        command
            .arg("--config")
            .arg(self.station.dir().join("gshare.toml"));
        command
            .arg("--plugin")
            .arg(self.dir.join("gshare_spank.so"));
        if !self.cgroups {
            // A cluster that has larger GPUs than this node.
            command.args(["--gpu-mem", "1T"]);
        }
        let output = command.output().expect("gshare runs");
        assert!(output.status.success(), "{}", text(&output));
        output.stdout
    }

    fn configure(&self) {
        let dir = self.dir.display();
        for file in ["plugstack.conf", "job_submit.lua", "cli_filter.lua"] {
            write(&self.dir.join(file), self.printed(file));
        }
        let nodes = self.station.sim_dir().join("dev/nvidia[2-3]");
        let gres = format!("Name=gpu File={}\nName=shard Count=200\n", nodes.display());
        write(&self.dir.join("gres.conf"), gres);
        if self.cgroups {
            let point = Mount::find().expect("mounted").point;
            let own = format!(
                "CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\nCgroupMountpoint={}\n",
                point.display()
            );
            write(&self.dir.join("cgroup.conf"), own);
        }
        let host = nix::unistd::gethostname().expect("named");
        let host = host
            .to_string_lossy()
            .split('.')
            .next()
            .unwrap_or_default()
            .to_owned();
        let (track, node) = (
            if self.cgroups { "cgroup" } else { "linuxproc" },
            &self.node,
        );
        let printed = String::from_utf8(self.printed("slurm.conf")).expect("UTF-8");
        let conf = format!(
            "ClusterName=gs\nSlurmctldHost={host}(127.0.0.1)\nAuthType=auth/munge\nCredType=cred/munge\n\
             AuthInfo=socket={dir}/munge/socket\nSlurmUser=root\nSlurmctldPort={}\nSlurmdPort={}\n\
             StateSaveLocation={dir}/state\nSlurmdSpoolDir={dir}/spool\nSlurmctldPidFile={dir}/ctld.pid\n\
             SlurmdPidFile={dir}/slurmd.pid\nSlurmctldLogFile={dir}/ctld.log\nSlurmdLogFile={dir}/slurmd.log\n\
             ProctrackType=proctrack/{track}\nTaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/none\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nSwitchType=switch/none\nMpiDefault=none\n\
             ReturnToService=2\nSlurmdParameters=config_overrides\nPlugStackConfig={dir}/plugstack.conf\n\
             SchedulerParameters=sched_interval=1,bf_interval=1\n{printed}\
             NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 CPUs=16 RealMemory=1000 Gres=gpu:2,shard:200 State=UNKNOWN\n\
             PartitionName=main Nodes=ALL Default=YES State=UP\n",
            free_port(),
            free_port()
        );
        write(&self.dir.join("slurm.conf"), &conf);
        // A submit host without gshare's files.
        std::fs::create_dir(self.dir.join("plain")).expect("made");
        let plain = conf.replace("CliFilterPlugins=lua\n", "");
        write(&self.dir.join("plain/slurm.conf"), plain);
        for file in [
            "gshare-prolog",
            "gshare-epilog",
            "gshare-health",
            "gshare_spank.c",
        ] {
            let program = self.dir.join(file);
            write(&program, self.printed(file));
            support::users::account("chmod", &["755", &program.display().to_string()]);
        }
        let hybrid = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/hybrid.c");
        for (source, object) in [
            (self.dir.join("gshare_spank.c"), "gshare_spank.so"),
            (hybrid, "hybrid.so"),
        ] {
            let mut cc = Command::new("cc");
            cc.args([
                "-shared",
                "-fPIC",
                "-O2",
                "-Wall",
                "-Wextra",
                "-Wno-unused-parameter",
                "-Werror",
            ]);
            let built = cc
                .arg("-o")
                .arg(self.dir.join(object))
                .arg(source)
                .output()
                .expect("cc runs");
            assert!(built.status.success(), "{}", text(&built));
        }
        write(&self.dir.join("munge/key"), [7; 128]);
        support::users::account(
            "chmod",
            &["400", &self.dir.join("munge/key").display().to_string()],
        );
    }

    fn run(&mut self) {
        let munge = |file: &str| self.dir.join("munge").join(file);
        let mut munged = Command::new("munged");
        munged.args(["--foreground", "--force", "--num-threads=2"]);
        for (flag, file) in [
            ("--socket", "socket"),
            ("--key-file", "key"),
            ("--pid-file", "pid"),
            ("--log-file", "log"),
            ("--seed-file", "seed"),
        ] {
            munged.arg(flag).arg(munge(file));
        }
        let socket = munge("socket");
        self.daemon(munged);
        until("munged listens", SOON, || socket.exists().then_some(()));
        for program in ["slurmctld", "slurmd"] {
            self.start_daemon(program);
        }
        until("the node is idle", SOON, || {
            self.node().contains("State=IDLE ").then_some(())
        });
    }

    /// Starts slurmctld or slurmd.
    fn start_daemon(&mut self, program: &str) {
        let mut command = Command::new(program);
        command.arg("-D").arg("-f").arg(self.dir.join("slurm.conf"));
        command.env("SLURM_CONF", self.dir.join("slurm.conf"));
        if program == "slurmd" {
            command.args(["-N", &self.node]);
        }
        if self.cgroups {
            command.env("LD_PRELOAD", self.dir.join("hybrid.so"));
        }
        self.daemon(command);
    }

    fn daemon(&mut self, mut command: Command) {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.daemons.push(command.spawn().expect("starts"));
    }

    /// One of Slurm's commands, by a user of a machine with this driver.
    fn command(&self, uid: u32, words: &[&str]) -> Command {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).current_dir("/tmp");
        command.env("LD_LIBRARY_PATH", self.station.libraries());
        command.env("SLURM_CONF", self.dir.join("slurm.conf"));
        command
            .env_remove("GSHARE_SOCKET")
            .env_remove("CUDA_VISIBLE_DEVICES");
        as_user(command, uid)
    }

    fn output(&self, uid: u32, words: &[&str]) -> Output {
        self.command(uid, words).output().expect("runs")
    }

    /// What a job prints that succeeds.
    fn says(&self, uid: u32, words: &[&str]) -> String {
        let output = self.output(uid, words);
        assert!(
            output.status.success(),
            "{words:?}: {}\n{}",
            text(&output),
            self.log()
        );
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn node(&self) -> String {
        text(&self.output(0, &["scontrol", "show", "node", "--oneliner"]))
    }

    /// `gshare slurm WORD` as root on the node, and its exit status.
    fn gshare(&self, word: &str) -> (String, Option<i32>) {
        let mut command = self.station.command();
        command.args(["slurm", word, "--config"]);
        command.arg(self.station.dir().join("gshare.toml"));
        command.env("SLURM_CONF", self.dir.join("slurm.conf"));
        command.env("SLURMD_NODENAME", &self.node);
        let output = command.output().expect("gshare runs");
        (text(&output), output.status.code())
    }

    /// What slurmd does every minute, with the environment that it gives.
    fn health(&self) {
        let mut health = Command::new(self.dir.join("gshare-health"));
        let output = health
            .env_clear()
            .env("SLURMD_NODENAME", &self.node)
            .output();
        let output = output.expect("it runs");
        assert!(
            output.status.success() && text(&output).is_empty(),
            "{}",
            text(&output)
        );
    }

    fn claims(&self) -> Vec<ClaimView> {
        self.station.snapshot().expect("served").claims
    }

    fn claim(&self, name: &str) -> ClaimView {
        let all = self.claims();
        let found = all.iter().find(|c| c.name.as_deref() == Some(name));
        found
            .unwrap_or_else(|| panic!("no {name}: {all:?}"))
            .clone()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("slurmd.log")).unwrap_or_default()
    }

    fn client(&self) -> String {
        reachable(&self.station).display().to_string()
    }

    fn uids(&self) -> (u32, u32) {
        (self.users.uid(0), self.users.uid(1))
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        let _ = self.output(
            0,
            &[
                "scancel",
                "--state=running",
                "--signal=KILL",
                "--partition=main",
            ],
        );
        for daemon in self.daemons.iter_mut().rev() {
            let _ = kill(Pid::from_raw(daemon.id().cast_signed()), Signal::SIGTERM);
            let _ = daemon.wait();
        }
        let point = Mount::find().expect("mounted").point;
        let system = point.join("system.slice");
        remove(&point.join(format!("{}-slurm", self.station.cgroup_root())));
        remove(&system.join(format!("{}_slurmstepd.scope", self.node)));
        // Only where no systemd has it.
        let _ = std::fs::remove_dir(system);
    }
}

/// Ends what is in a cgroup and removes it with those below.
fn remove(cgroup: &Path) {
    let _ = std::fs::write(cgroup.join("cgroup.kill"), "1");
    for entry in std::fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove(&entry.path());
        }
    }
    let mut tries = 0..50;
    while std::fs::remove_dir(cgroup).is_err() && cgroup.is_dir() && tries.next().is_some() {
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_part_of_a_gpu_that_slurm_gave_out_binds() {
    let Some(slurm) = Slurm::start("jobs of Slurm", true) else {
        return;
    };
    let (ada, bob) = slurm.uids();
    let (said, code) = slurm.gshare("check");
    assert_eq!((said.trim(), code), ("nothing is missing", Some(0)));

    // Memory, in the job's own cgroup, with no gshare in the command.
    let client = slurm.client();
    let mut half = Raw::start(slurm.command(ada, &["srun", "--gres=gshare:0.5", &client]));
    let view = slurm.claim("slurm-1");
    let part = &view.gpus[0];
    assert_eq!(
        (view.uid, part.gpu, part.sm_limit),
        (ada, 2, 0.5),
        "{view:?}"
    );
    let cgroup = format!("{}_slurmstepd.scope/job_1", slurm.node);
    assert!(
        view.cgroup.as_deref().is_some_and(|c| c.ends_with(&cgroup)),
        "{view:?}"
    );
    let (_, total) = half.info();
    assert_eq!((total, part.mem_request), (part.mem_limit, part.mem_limit));
    let asked = format!("alloc {}", total + 1);
    assert_eq!(half.ask(&asked), "error 2 CUDA_ERROR_OUT_OF_MEMORY");
    assert!(half.ask("alloc 1048576").starts_with("ok"));
    let stays = format!("{cgroup}/step_0/user/");
    let of = |pid: &u32| path_of_pid(pid.cast_signed()).is_some_and(|path| path.contains(&stays));
    let members = slurm.claim("slurm-1").members;
    assert!(
        members.iter().any(of),
        "its task is where Slurm has put it: {members:?}"
    );

    // Compute, by another user on the same GPU, in shards. More than its part is not had from one that is idle.
    let flood = slurm.station.laboratory().display().to_string();
    let words = [
        "srun",
        "--gres=shard:30",
        &flood,
        "__bench-gate",
        "flood",
        "spin_1ms",
    ];
    let mut flood = slurm.command(bob, &words);
    let mut flood = flood
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("starts");
    let busy = || {
        let claims = slurm.claims();
        let claim = claims
            .iter()
            .find(|c| c.name.as_deref() == Some("slurm-2"))?;
        let seen = board(&slurm.station).snapshot();
        let mut all = seen.gpus[2].processes.iter();
        let mine = all.find(|p| claim.members.contains(&p.pid))?;
        Some(mine.busy_ns).filter(|ns| *ns > 0)
    };
    let first = until("it launches", SOON, busy);
    let start = Instant::now();
    std::thread::sleep(Duration::from_secs(2));
    let had = (busy().expect("at work") - first) as f64 / start.elapsed().as_nanos() as f64;
    println!("a job with 30 of 100 shards had {had:.3} of the GPU's time");
    assert!(had > 0.05 && had < 0.4, "{had}");
    let uuid = |gpu: usize| {
        slurm.station.snapshot().expect("served").gpus[gpu]
            .uuid
            .clone()
    };
    let show = ["printenv", "CUDA_VISIBLE_DEVICES"];
    let free = slurm.says(ada, &[&["srun", "--gres=shard:40"], &show[..]].concat());
    assert_eq!(
        free,
        uuid(3),
        "by Slurm's books 80 of 100 are given out on the first"
    );
    slurm.says(0, &["scancel", "--signal=KILL", "2"]);
    let _ = flood.wait();

    // What gshare's queue does there: nothing, and it says what to type. In a job it joins the job's claim.
    let mut outside = slurm.station.command();
    outside.args(["claim", "-g", "0.5", "--gpu-ids", "2", "--", "true"]);
    let said = text(&outside.output().expect("runs"));
    assert!(said.contains("srun --gres=gshare:0.5"), "{said}");
    let gshare = slurm.station.program().display().to_string();
    let inside = [
        "srun",
        "--gres=gpu:1",
        &gshare,
        "claim",
        "-g",
        "0.1",
        "--dry-run",
        "--",
        "true",
    ];
    let said = text(&slurm.output(ada, &inside));
    assert!(said.contains("joins c"), "{said}\n{}", slurm.log());

    // The GPU is the one that Slurm chose, also behind the device filter; and one claim for all steps of a batch job.
    assert_eq!(half.finish(), Some(0));
    until("the job's claim ends", Duration::from_secs(5), || {
        slurm.claims().is_empty().then_some(())
    });
    let two = slurm.says(ada, &[&["srun", "--gres=gpu:2"], &show[..]].concat());
    assert_eq!(two, format!("{},{}", uuid(2), uuid(3)));
    let script = slurm.dir.join("batch.sh");
    let out = slurm.dir.join("spool/out");
    write(
        &script,
        "#!/bin/sh\n#SBATCH --gres=gshare:0.25\nprintenv GSHARE_CLAIM_ID CUDA_VISIBLE_DEVICES\n\
         srun printenv GSHARE_CLAIM_ID\nsrun --gres=none printenv GSHARE_CLAIM_ID\n",
    );
    let (script, out) = (script.display().to_string(), out.display().to_string());
    slurm.says(0, &["sbatch", "--wait", "--output", &out, &script]);
    let said = std::fs::read_to_string(&out).expect("its output");
    let lines: Vec<&str> = said.lines().collect();
    assert!(
        lines.len() == 4 && lines[0] == lines[2] && lines[2] == lines[3],
        "{said}"
    );
    assert_eq!(lines[1], uuid(2));

    // Sizes that cannot be. srun refuses them, and without the filter slurmctld.
    let plain = |gres: &str, words: &[&str]| {
        let gres = format!("--gres={gres}");
        let mut salloc = slurm.command(ada, &[&["salloc", &gres], words].concat());
        salloc.env("SLURM_CONF", slurm.dir.join("plain/slurm.conf"));
        salloc.output().expect("runs")
    };
    for (size, why) in [
        ("gshare:x", "is not a part of a GPU"),
        ("gshare:0", "is not a part of a GPU"),
        ("gshare:1.5", "Write gpu:2"),
        ("gshare:2x0.5", "Write gshare:0.5 or gpu:2"),
        ("shard:101", "is more than one GPU"),
    ] {
        let mut refused = vec![slurm.output(ada, &["srun", &format!("--gres={size}"), "true"])];
        if size.starts_with("shard") {
            refused.push(plain(size, &["true"]));
        }
        for refused in refused {
            let said = text(&refused);
            assert!(!refused.status.success() && said.contains(why), "{said}");
        }
    }
    let one = slurm.says(
        ada,
        &[
            "srun",
            "--gres=gshare:0.004",
            "printenv",
            "SLURM_SHARDS_ON_NODE",
        ],
    );
    assert_eq!(one, "1");
    options(&slurm);
    until("nothing is left", SOON, || {
        (slurm.claims().is_empty() && slurm.node().contains("State=IDLE ")).then_some(())
    });
}

/// `--gshare-mem` and `--gshare-limit`; and whose account it is.
fn options(slurm: &Slurm) {
    let (ada, _) = slurm.uids();
    let client = slurm.client();
    let half = ["srun", "--gres=gshare:0.5", "--account=vision"];
    let less = [&half[..], &["--gshare-mem=1G", &client]].concat();
    let mut less = Raw::start(slurm.command(ada, &less));
    let (_, total) = less.info();
    let claims = slurm.claims();
    let part = &claims[0].gpus[0];
    assert_eq!((total, part.mem_request), (1 << 30, 1 << 30), "{claims:?}");
    assert_eq!((part.sm_request, part.sm_limit), (0.5, 0.5));
    assert_eq!(claims[0].project, "vision");
    assert_eq!(less.finish(), Some(0));
    let refused = |words: &[&str], why: &str| {
        let output = slurm.output(ada, &[&half[..], words, &["true"]].concat());
        let said = text(&output);
        assert!(!output.status.success() && said.contains(why), "{said}");
        said
    };
    refused(&["--gshare-mem=12"], "a size with a unit");
    refused(&["--gshare-limit=2"], "a part of a GPU");
    refused(&["--gshare-mem=1T"], "more than 50 of 100 shards stand for");
    refused(
        &["--gshare-limit=0.4"],
        "less than the job's part of a GPU, 0.5",
    );
    refused(
        &["--gshare-limit=0.8"],
        "more than the job's part of a GPU, 0.5, and main",
    );
    // The queue may burst.
    let file = slurm.station.dir().join("gshare.toml");
    let before = std::fs::read_to_string(&file).expect("there");
    write(
        &file,
        before.replace("[slurm]\n", "[slurm]\nburst = [\"main\"]\n"),
    );
    for (option, limit) in [("--gshare-limit=0.8", 0.8), ("--gshare-mem=1G", 1.0)] {
        let mut more = Raw::start(slurm.command(ada, &[&half[..], &[option, &client]].concat()));
        more.info();
        let part = &slurm.claims()[0].gpus[0];
        assert_eq!((part.sm_request, part.sm_limit), (0.5, limit));
        assert_eq!(more.finish(), Some(0));
    }
    write(&file, before);
    // Of a job, not of a step.
    let out = slurm.dir.join("spool/options").display().to_string();
    let script = slurm.dir.join("options.sh").display().to_string();
    write(
        Path::new(&script),
        "#!/bin/sh\n#SBATCH --gres=gshare:0.5 --gshare-mem=1G\nprintenv GSHARE_GPU_MEM\n\
         srun --gshare-mem=2G printenv GSHARE_GPU_MEM\nsrun printenv GSHARE_GPU_MEM\n",
    );
    slurm.output(0, &["sbatch", "--wait", "--output", &out, &script]);
    let said = std::fs::read_to_string(&out).expect("its output");
    assert!(said.contains("for the whole job"), "{said}");
    let sizes = said
        .lines()
        .filter(|line| *line == (1u64 << 30).to_string());
    assert_eq!(sizes.count(), 2, "{said}");
}

#[test]
fn while_the_service_is_silent_whole_gpus_start_and_parts_do_not() {
    let Some(mut slurm) = Slurm::start("jobs of Slurm without cgroups", false) else {
        return;
    };
    let (ada, _) = slurm.uids();
    let client = slurm.client();
    let mut runs = Raw::start(slurm.command(ada, &["srun", "--gres=gshare:0.5", &client]));
    let (_, total) = runs.info();
    let view = slurm.claim("slurm-1");
    assert_eq!(total, view.gpus[0].mem_limit);
    let own = format!("{}-slurm/job_1", slurm.station.cgroup_root());
    assert!(
        view.cgroup.as_deref().is_some_and(|c| c.ends_with(&own)),
        "{view:?}"
    );
    let service = Pid::from_raw(slurm.station.service_pid().expect("runs").cast_signed());
    kill(service, Signal::SIGSTOP).expect("stopped");
    let refused = slurm.output(ada, &["srun", "--gres=gshare:0.3", "true"]);
    let said = text(&refused);
    assert!(
        !refused.status.success() && said.contains("does not answer. Nothing would limit"),
        "{said}"
    );
    assert_eq!(
        slurm.says(ada, &["srun", "--gres=gpu:1", "echo", "ran"]),
        "ran"
    );
    assert_eq!(slurm.says(ada, &["srun", "echo", "ran"]), "ran", "no GPU");

    // A site that would rather have no limit than no job.
    let file = slurm.station.dir().join("gshare.toml");
    let before = std::fs::read_to_string(&file).expect("there");
    write(
        &file,
        before.replace("[slurm]\n", "[slurm]\nsilent = \"open\"\n"),
    );
    let open = ["srun", "--gres=gshare:0.3", "echo", "ran"];
    assert_eq!(slurm.says(ada, &open), "ran");
    write(&file, before);

    // Health drains the node, and later resumes it, unless another reason was given meanwhile.
    slurm.health();
    let node = slurm.node();
    assert!(
        node.contains("DRAIN") && node.contains("Reason=gshare: service not answering"),
        "{node}"
    );
    let (said, code) = slurm.gshare("check");
    assert!(
        said.contains("service does not answer") && code == Some(1),
        "{said}"
    );
    let limit = format!("alloc {}", total + 1);
    assert_eq!(
        runs.ask(&limit),
        "error 2 CUDA_ERROR_OUT_OF_MEMORY",
        "the limit stays"
    );
    slurm.station.stop_service(Signal::SIGKILL).expect("killed");
    slurm.station.start_service().expect("starts again");
    slurm.health();
    assert!(!slurm.node().contains("DRAIN"), "{}", slurm.node());
    assert_eq!(runs.ask(&limit), "error 2 CUDA_ERROR_OUT_OF_MEMORY");
    assert_eq!(slurm.claim("slurm-1").members.len(), 1);

    // A slurmd that starts anew under the job.
    let slurmd = slurm.daemons.last_mut().expect("runs");
    kill(Pid::from_raw(slurmd.id().cast_signed()), Signal::SIGTERM).expect("ended");
    slurmd.wait().expect("ended");
    slurm.start_daemon("slurmd");
    let id = slurm.claim("slurm-1").id;
    until("slurmd answers", SOON, || {
        let node = slurm.node();
        (!node.contains("NOT_RESPONDING") && node.contains("State=MIXED")).then_some(())
    });
    assert_eq!(runs.ask(&limit), "error 2 CUDA_ERROR_OUT_OF_MEMORY");
    assert_eq!(slurm.claim("slurm-1").id, id);

    // scancel ends the claim.
    let begun = Instant::now();
    slurm.says(0, &["scancel", "1"]);
    until("its claim is gone", Duration::from_secs(2), || {
        slurm.claims().is_empty().then_some(())
    });
    println!("a claim was gone {:?} after scancel", begun.elapsed());
    runs.finish();
    assert_eq!(
        slurm.says(ada, &["srun", "--gres=gshare:0.3", "echo", "ran"]),
        "ran"
    );

    // More memory than slurmctld could see to be too much.
    let words = ["srun", "--gres=gshare:0.3", "--gshare-mem", "40G", "true"];
    let refused = slurm.output(ada, &words);
    let said = text(&refused);
    assert!(
        !refused.status.success() && said.contains("40.0 GiB is more than 0.3 of GPU 2"),
        "{said}"
    );

    // A plugin of another release, which Slurm does not load.
    let plugin = slurm.dir.join("gshare_spank.so");
    std::fs::rename(&plugin, slurm.dir.join("away")).expect("moved");
    let source = std::fs::read_to_string(slurm.dir.join("gshare_spank.c")).expect("there");
    let other = "#include <slurm/slurm.h>\n#undef SLURM_VERSION_NUMBER\n#define SLURM_VERSION_NUMBER 0x150b08\n";
    write(&slurm.dir.join("other.c"), format!("{other}{source}"));
    let mut cc = Command::new("cc");
    cc.args(["-D_GNU_SOURCE", "-shared", "-fPIC", "-o"])
        .arg(&plugin);
    let built = cc.arg(slurm.dir.join("other.c")).output().expect("cc runs");
    assert!(built.status.success(), "{}", text(&built));
    slurm.says(ada, &["srun", "--gres=gpu:1", "true"]);
    slurm.health();
    let node = slurm.node();
    assert!(node.contains("Reason=gshare: plugin not loaded"), "{node}");
    let (said, code) = slurm.gshare("check");
    assert!(
        said.contains("compiled for Slurm 21.11, and this is 22.05")
            && said.contains("this node is drained (gshare: plugin not loaded)")
            && code == Some(1),
        "{said}"
    );
    std::fs::rename(slurm.dir.join("away"), &plugin).expect("moved");
    slurm.health();
    assert!(
        slurm.node().contains("DRAIN"),
        "an administrator resumes it"
    );
}

//! Accounts, limits and billing in slurmdbd beside what gshare says of the same jobs.

use gshare::demo::Job;

use super::*;

/// What accounts need beside Slurm.
pub(super) const PROGRAMS: &str = "slurmdbd mariadbd mariadb-install-db sacctmgr perl";

/// Whether Slurm limits memory here by cgroups of version 1.
pub(super) fn is_version_1() -> bool {
    Path::new("/sys/fs/cgroup/memory/cgroup.procs").exists()
}

impl Slurm {
    /// Adds the lines for accounts: Slurm's own, and those that gshare prints as comments.
    pub(super) fn add_accounts(&self) {
        let printed = String::from_utf8(self.printed("slurm.conf")).expect("UTF-8");
        let line = |key: &str| {
            let mut lines = printed.lines().filter_map(|line| line.strip_prefix("# "));
            let line = lines.find(|line| line.starts_with(key));
            line.expect("printed").to_owned()
        };
        let part = line("PartitionName=").replace("...", "main Nodes=ALL Default=YES State=UP");
        write(&self.dir.join("parts.conf"), format!("{part}\n"));
        let (port, dir) = (free_port(), self.dir.display());
        let file = self.dir.join("slurm.conf");
        let conf = std::fs::read_to_string(&file).expect("UTF-8");
        let conf = conf.replace("jobacct_gather/none", "jobacct_gather/cgroup");
        let conf = format!(
            "{conf}\n{}\nAccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=127.0.0.1\n\
             AccountingStoragePort={port}\nAccountingStoragePass={dir}/munge/socket\n\
             AccountingStorageEnforce=associations,limits,qos\nJobAcctGatherFrequency=task=1\nDefMemPerNode=200\n",
            line("AccountingStorageTRES=")
        );
        write(&file, conf);
        let conf = format!(
            "AuthType=auth/munge\nAuthInfo=socket={dir}/munge/socket\nDbdHost=localhost\nDbdAddr=127.0.0.1\n\
             DbdPort={port}\nSlurmUser=root\nStorageType=accounting_storage/mysql\nStorageHost=127.0.0.1\n\
             StoragePort={}\nStorageUser=root\nStorageLoc=accounts\nPidFile={dir}/dbd.pid\nLogFile={dir}/dbd.log\n",
            free_port()
        );
        let file = self.dir.join("slurmdbd.conf");
        write(&file, conf);
        set_mode("600", &file);
    }

    /// Starts the database and slurmdbd, and adds the cluster.
    pub(super) fn start_accounts(&mut self) {
        let data = self.dir.join("data");
        let data = format!("--datadir={}", data.display());
        // Some kernels have less than 8 TiB of addresses for a process.
        let most = "--loose-innodb-buffer-pool-size-max=1G";
        let mut make = Command::new("mariadb-install-db");
        make.args(["--no-defaults", "--user=root", &data, most]);
        make.args(["--skip-test-db", "--skip-name-resolve"]);
        make.arg("--auth-root-authentication-method=normal");
        let made = make.output().expect("it runs");
        assert!(made.status.success(), "{}", text(&made));
        let conf = std::fs::read_to_string(self.dir.join("slurmdbd.conf")).expect("UTF-8");
        let port = conf.lines().find_map(|l| l.strip_prefix("StoragePort="));
        let port = port.expect("its line");
        let socket = format!("--socket={}/data/socket", self.dir.display());
        let mut database = Command::new("mariadbd");
        database.args(["--no-defaults", "--user=root", &data, most, &socket]);
        // By TLS, the client of MariaDB 11.8.9 refuses an answer that slurmdbd needs.
        database.args([
            "--skip-grant-tables",
            "--skip-ssl",
            "--bind-address=127.0.0.1",
        ]);
        self.daemon(database.arg(format!("--port={port}")));
        let port = port.parse().expect("a port");
        until("the database listens", SOON, || {
            std::net::TcpStream::connect(("127.0.0.1", port)).ok()
        });
        // After munged, which stays the first.
        self.behind.extend(self.daemons.pop());
        self.start_slurmdbd();
        self.manage("add cluster gs");
    }

    fn start_slurmdbd(&mut self) {
        let mut slurmdbd = Command::new("slurmdbd");
        slurmdbd
            .arg("-D")
            .env("SLURM_CONF", self.dir.join("slurm.conf"));
        self.daemon(&mut slurmdbd);
        self.behind.extend(self.daemons.pop());
        until("slurmdbd answers", SOON, || {
            let output = self.output(0, &["sacctmgr", "--noheader", "list", "cluster"]);
            output.status.success().then_some(())
        });
    }

    /// Waits until a job has no claim any more.
    fn has_no(&self, job: u32) {
        until("the job's claim ends", SOON, || {
            let claims = self.claims();
            claims
                .iter()
                .all(|c| c.slurm_job != Some(job))
                .then_some(())
        });
    }

    fn manage(&self, line: &str) {
        self.says(0, &words(&format!("sacctmgr --immediate {line}")));
    }

    /// The jobs so far: account, state, seconds, and what they had.
    fn accounted(&self) -> BTreeMap<u32, (String, String, f64, String)> {
        let all = "sacct --noheader --parsable2 --allocations --allusers --starttime=now-1hours \
                   --format=JobIDRaw,Account,State,ElapsedRaw,AllocTRES";
        let said = self.says(0, &words(all));
        let job = |line: &str| {
            let mut fields = line.split('|').map(str::to_owned);
            let mut next = || fields.next().expect("a field");
            let number = next().parse().expect("a number");
            let (account, state, seconds) = (next(), next(), next());
            Some((
                number,
                (account, state, seconds.parse().expect("seconds"), next()),
            ))
        };
        said.lines().filter_map(job).collect()
    }
}

/// What Slurm bills, limits and measures is what gshare limits: by shards, account and QOS.
#[test]
fn accounts_bill_and_limit_the_parts_of_gpus() {
    let Some(mut slurm) = Slurm::start("accounts of Slurm", How::Accounts) else {
        return;
    };
    let (ada, bob) = slurm.uids();
    let client = slurm.client();
    slurm.replace(TOML, "[slurm]\n", "[slurm]\nburst = [\"night\"]\n");
    slurm.manage("add account vision,speech");
    slurm.manage("add qos night");
    for (n, account) in [(0, "vision"), (1, "speech")] {
        slurm.manage(&format!(
            "add user {} account={account} qos=normal,night",
            slurm.users.name(n)
        ));
    }
    slurm.manage("modify account vision set GrpTRES=gres/shard=50");

    // Time of which gshare's history says that it knows something.
    let known = |slurm: &Slurm| {
        let known = slurm.json(&["report", "--json"])["known_s"].as_f64();
        known.expect("seconds")
    };
    let (watched, before) = (Instant::now(), known(&slurm));

    // Slurm measures the job, which is in its cgroups, and gshare has the user's account without being told. It keeps
    // half of the GPU's SMs busy while its limit lets it.
    let work = Job::Steady {
        kernel: "train_step".to_owned(),
        grid: 66,
        block: 1024,
        mib: 64,
        pause_ms: 0,
    };
    let (work, program) = (work.arguments().join(" "), slurm.station.laboratory());
    let work = format!("{} {work}", program.display());
    let script = format!("perl -e '$x = \"a\" x (60 << 20); sleep 1000' & {work} & exec {client}");
    let half = ["srun", "--gres=gshare:0.5", "--mem=1G", "sh", "-c", &script];
    let begun = Instant::now();
    let mut half = Raw::start(slurm.command(ada, &half));
    let view = slurm.claim("slurm-1");
    assert_eq!(
        (&*view.project, view.gpus[0].sm_limit),
        ("vision", 0.5),
        "{view:?}"
    );
    let limit = half.info().1;
    let starts = begun.elapsed();
    assert_eq!(limit, view.gpus[0].mem_limit);
    assert_eq!(half.ask(&format!("alloc {}", limit / 5 * 4)), "ok 0");
    let stat = words("sstat --noheader --parsable2 --format=MaxRSS --jobs=1");
    let most = until("sstat has its memory", SOON, || {
        let kib = slurm.says(ada, &stat);
        let kib: u64 = kib.strip_suffix('K')?.parse().ok()?;
        Some(kib << 10).filter(|bytes| *bytes > 60 << 20)
    });
    println!("MaxRSS of 60 MiB and a client: {} MiB", most >> 20);
    // With cgroups of version 2, slurmstepd is in the job's cgroup, too.
    let cgroups: Vec<String> = (slurm.claim("slurm-1").members.iter())
        .map(|pid| std::fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("it runs"))
        .filter(|cgroups| !cgroups.trim_end().ends_with("/slurm"))
        .collect();
    let of_task = |cgroups: &&String| cgroups.contains("/job_1/step_0/");
    let tasks = cgroups.iter().filter(of_task).count();
    assert!(tasks >= 3, "{cgroups:?}");
    let others = cgroups.iter().filter(|c| !c.contains("/job_1/step_"));
    assert_eq!(others.count(), 0, "{cgroups:?}");

    // The account's limit, with Slurm's word for it.
    let batch = words("sbatch --parsable --gres=gshare:0.25 --output=/dev/null");
    let batch = slurm.says(ada, &[&batch[..], &["--wrap=sleep 1"]].concat());
    let why = format!("Slurm job {batch} (wrap) waits: AssocGrpGRES. ");
    until("slurmctld has tried it", SOON, || {
        slurm.tells(ada, &["why"]).starts_with(&why).then_some(())
    });

    // Too much memory of the host: Slurm ends the job, and its claim ends with it.
    // After a while: a claim that is over before it was sampled is not in the report. (perl computes constants at once.)
    let much = "sleep 4; $x = \"a\" x ($$ ? 200 << 20 : 0); print \"not stopped\"";
    let much = ["srun", "--mem=60", "--gres=gpu:1", "perl", "-e", much];
    let begun = Instant::now();
    let much = slurm.output(bob, &much);
    assert!(
        !much.status.success() && much.stdout.is_empty(),
        "{}",
        text(&much)
    );
    slurm.has_no(3);
    let much = begun.elapsed() - Duration::from_secs(4);

    let memory = |usage: &serde_json::Value| {
        let of = |key: &str| usage[key].as_f64();
        of("mem_used_byte_s").zip(of("mem_claimed_byte_s"))
    };
    // More than the differences below.
    until(
        "it has had half a GPU for 12 s, and its memory",
        SOON,
        || {
            let shown = slurm.json(&["ps", "--job", "1", "--json"]);
            let usage = &shown["claims"][0]["usage"];
            let (used, all) = memory(usage)?;
            (used > 0.5 * all && usage["claimed_gpu_s"].as_f64()? > 6.0).then_some(())
        },
    );
    let begun = Instant::now();
    assert_eq!(half.finish(), Some(0));
    slurm.has_no(1);
    let half = starts + begun.elapsed();
    // slurmctld may not have started the one that waits for the account's limit.
    until("the jobs are over", SOON, || {
        let jobs = slurm.says(0, &["squeue", "--noheader"]);
        jobs.is_empty().then_some(())
    });
    slurm.is_over();
    let batch = begun.elapsed();

    // A QOS that may use more compute than its part.
    let night = ["srun", "--gres=gshare:0.25", "--qos=night", &client];
    let begun = Instant::now();
    let night = Raw::start(slurm.command(ada, &night));
    let part = &slurm.claims()[0].gpus[0];
    assert_eq!((part.sm_request, part.sm_limit), (0.25, 1.0));
    assert_eq!(night.finish(), Some(0));
    slurm.has_no(4);
    let night = begun.elapsed();

    // Without slurmdbd jobs start as before; it has them when it is back.
    let mut slurmdbd = slurm.behind.pop().expect("runs");
    slurmdbd.kill().expect("killed");
    slurmdbd.wait().expect("ended");
    let begun = Instant::now();
    slurm.says(ada, &["srun", "--gres=gshare:0.25", "true"]);
    slurm.is_over();
    // On a busy machine the service looks late: what lies between two looks that are far apart counts for nobody, and
    // the report says so.
    let unknown = watched.elapsed().as_secs_f64() - (known(&slurm) - before);
    // For each job, the longest time in which one of Slurm and gshare may have counted it and the other not. Those of
    // which that is not the whole time begin and end between two looks, which are one second apart.
    let ends = Duration::from_secs(2);
    let between = [half + ends, batch, much + ends, night, begun.elapsed()];
    slurm.start_slurmdbd();
    let jobs = until("slurmdbd has all jobs", SOON, || {
        let jobs = slurm.accounted();
        let goes_on = |state: &str| ["PENDING", "RUNNING"].contains(&state);
        let is_over = jobs.values().all(|(_, state, ..)| !goes_on(state));
        (jobs.len() == 5 && is_over).then_some(jobs)
    });
    let mut claimed = BTreeMap::new();
    let mut apart = BTreeMap::new();
    for (number, (account, state, seconds, had)) in &jobs {
        let (shards, expected) = match number {
            1 => (50, "COMPLETED"),
            3 => (100, "OUT_OF_MEMORY"),
            _ => (25, "COMPLETED"),
        };
        assert_eq!(state, expected, "{jobs:?}");
        let gres = if shards == 100 {
            "gres/gpu=1".to_owned()
        } else {
            format!("gres/shard={shards}")
        };
        let has = |word: &str| had.split(',').any(|w| w == word);
        assert!(
            has(&gres) && has(&format!("billing={shards}")),
            "{number}: {had}"
        );
        let part = f64::from(shards) / 100.0;
        *claimed.entry(account.as_str()).or_insert(0.0) += seconds * part;
        // Slurm counts whole seconds.
        let own = 1.0 + between[*number as usize - 1].as_secs_f64();
        // An account's jobs run one after the other, the largest first.
        *apart.entry(account.as_str()).or_insert(unknown * part) += own * part;
    }

    println!(
        "GPU seconds by sacct: {claimed:?}, by gshare at most {apart:.1?} more or less, of which it knows nothing for \
         {unknown:.1} s"
    );
    let mut last = String::new();
    until("the report agrees", SOON, || {
        let report = slurm.json(&["report", "--json"]);
        let projects = report["projects"].as_array().expect("a list");
        let of = |account: &str| {
            let own = projects.iter().find(|p| p["project"] == account)?;
            own["usage"]["claimed_gpu_s"].as_f64()
        };
        let all: BTreeMap<&str, _> = claimed
            .keys()
            .map(|account| (*account, of(account)))
            .collect();
        let now = format!("GPU seconds by gshare: {all:?}");
        if last != now {
            last = now;
            println!("{last}");
        }
        let agrees = |account: &str, sum: f64| {
            of(account).is_some_and(|own| (own - sum).abs() <= apart[account])
        };
        let all = claimed.iter().all(|(account, sum)| agrees(account, *sum));
        all.then_some(())
    });
    // The truth about compute, as a part of what the job had: no other job computed.
    let gpu = &board(&slurm.station).snapshot().gpus[2];
    let worked = gpu.sm_ns as f64 / 1e9 / f64::from(gpu.model.sms);
    comments(&slurm, 100.0 * worked / (0.5 * jobs[&1].2));
    late_question(&slurm);
}

/// The memory of a suspended job moves into the job's own cgroup, or stays on the GPU if there is no room.
#[test]
fn the_memory_of_a_suspended_job_needs_room_in_the_jobs_own_cgroup() {
    let test = "room in a job's cgroup";
    if is_version_1() {
        println!("skipped: {test} needs a memory controller on cgroup v2: tests/slurm/in-vm");
        return;
    }
    let Some(slurm) = &Slurm::start(test, How::Memory) else {
        return;
    };
    for (mem, gib, fits) in [("--mem=16G", 40, false), ("--mem=2G", 1, true)] {
        let mut holder = Holder::start(slurm, &["--gres=gpu:1", mem], gib * GIB);
        holder.order(slurm, "suspend");
        if fits {
            holder.is_away(slurm);
        } else {
            let why = "its memory stays on the GPU: its cgroup has ";
            println!("{}", holder.why(slurm, true, why));
            assert!(holder.on_gpu(slurm) == holder.has.1 && holder.is_frozen());
        }
        holder.order(slurm, "resume");
        holder.is_back(slurm);
        assert_eq!(holder.program.finish(), Some(0));
        slurm.is_over();
    }
}

/// Comments from the nodes that answer, by ssh or on this machine; those of others stay. `worked` is the compute of job
/// 1, in percent.
fn comments(slurm: &Slurm, worked: f64) {
    slurm.manage("modify job where jobid=2 set AdminComment=theirs");
    let config = slurm.station.dir().join("gshare.toml");
    let config = config.display();
    let script = format!(
        "#!/bin/sh\nwhile [ $1 = -o ]; do shift 2; done\n[ $1 = n1 ] || {{ echo no route >&2; exit 255; }}\n\
         shift 2\nexec {} \"$@\" --config {config}\n",
        slurm.station.program().display()
    );
    let ssh = slurm.dir.join("ssh");
    write(&ssh, script);
    set_mode("755", &ssh);
    // Slurm's commands, as the plugin shows them; each sacctmgr is counted.
    let (bin, calls) = (slurm.jobs().join("bin"), slurm.dir.join("calls"));
    let programs = std::fs::canonicalize(&bin).expect("the plugin's link");
    let counted = slurm.dir.join("counted");
    std::fs::create_dir(&counted).expect("made");
    std::os::unix::fs::symlink(programs.join("sacct"), counted.join("sacct")).expect("made");
    let script = format!(
        "#!/bin/sh\necho >>{}\nexec {}/sacctmgr \"$@\"\n",
        calls.display(),
        programs.display()
    );
    write(&counted.join("sacctmgr"), script);
    set_mode("755", &counted.join("sacctmgr"));
    std::fs::remove_file(&bin).expect("removed");
    std::os::unix::fs::symlink(&counted, &bin).expect("made");
    let comment = |hosts: &[&str]| {
        let mut command = slurm.station.command();
        command.args(["slurm", "comment", "--config", &config.to_string()]);
        command.env("PATH", format!("{}:{PATH}", slurm.dir.display()));
        command.env("SLURM_CONF", slurm.dir.join("slurm.conf"));
        command.args(hosts).output().expect("gshare runs")
    };
    let of = |job: &str| {
        let words = ["sacct", "--noheader", "--parsable2", "--allocations"];
        let job = ["--allusers", "--format=AdminComment", "--jobs", job];
        slurm.says(0, &[words, job].concat())
    };
    let said = comment(&["gone", "n1"]);
    let (code, said) = (said.status.code(), text(&said));
    assert!(
        code == Some(75) && said.contains("gone: ssh: no route"),
        "{said}"
    );
    let written = said
        .lines()
        .find_map(|l| l.strip_prefix("comments written: "));
    let written: usize = written.and_then(|n| n.parse().ok()).expect("a number");
    let calls = std::fs::metadata(&calls).expect("called").len();
    assert!(written >= 2 && calls == 1, "{said}: {calls}");
    let first = of("1");
    let percent = |after: &str| {
        let word = first.split_once(after)?.1.split(' ').next()?;
        word.trim_start_matches('~').parse::<f64>().ok()
    };
    println!("{first}; compute by the board: {worked:.1} %");
    let (compute, memory) = (percent("gshare: compute "), percent(" and memory "));
    assert!(
        compute.is_some_and(|percent| percent > 10.0 && (percent - worked).abs() < 10.0)
            && memory.is_some_and(|percent| (50.0..85.0).contains(&percent)),
        "{first} {worked}"
    );
    assert_eq!(of("2"), "theirs");
    // Later it writes into empty comments only, such as of a job of which the history has only now heard.
    let writes = || {
        let all =
            "sacct --noheader --parsable2 --allocations --allusers --format=JobIDRaw,AdminComment";
        let before = slurm.says(0, &words(all));
        let said = comment(&[]);
        let after = slurm.says(0, &words(all));
        let changed = before.lines().zip(after.lines()).filter(|(b, a)| b != a);
        let changed: Vec<&str> = changed.map(|(before, _)| before).collect();
        assert_eq!(
            text(&said),
            format!("comments written: {}\n", changed.len())
        );
        assert!(
            changed.iter().all(|line| line.ends_with('|')),
            "{before}\n{after}"
        );
    };
    writes();
    assert_eq!(of("1"), first);
    slurm.manage("modify job where jobid=1 set AdminComment=");
    assert_eq!(of("1"), "");
    writes();
    assert_eq!((of("1"), of("2")), (first, "theirs".to_owned()));
}

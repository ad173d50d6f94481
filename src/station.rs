//! A simulated workstation with a private service, for the demo, the benchmarks and the tests. Everything is in one
//! temporary directory, which is removed at the end; only `bench gate --device real` uses a real GPU.

mod remains;

use std::fs::{File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use gshare_enforcer::nodes::{Majors, make_cap_stand_ins, make_stand_ins};
use gshare_proto::{Call, Client, Reply, Snapshot};
use gshare_sim_board::{Board, BoardSpec, Instance};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};
use remains::Remains;

pub use remains::end_on_signals;

/// Options of a station.
#[derive(Clone, Debug)]
pub struct Options {
    /// Models by the short names of the simulation's catalogue: `rtx4090`, `h100`, ...
    pub gpus: Vec<String>,
    /// The `gshare` binary of the service, this one or an installed one.
    pub program: PathBuf,
    /// The same with the simulated MPS and the demo's jobs, which an installed one lacks.
    pub laboratory: PathBuf,
    /// Lines appended to the service's configuration.
    pub config: String,
    /// Lines for its `[driver]` section.
    pub driver_config: String,
    /// Rows of the simulation's registry of kernel durations.
    pub costs: String,
    /// Names for uids without an account, shown instead of the number.
    pub names: Vec<(u32, String)>,
    /// Cgroups and device filter, if this user may have them.
    pub cgroups: bool,
    /// Time between two looks at the GPUs, in the form of the configuration.
    pub tick: String,
    /// Driver version of the simulation, if it matters: `615.71.09`.
    pub driver: Option<String>,
    /// With the launcher installed, so that limits are strict; needs root.
    pub strict: bool,
    /// Another runtime directory than the one in the station's own.
    pub runtime: Option<PathBuf>,
    /// The machine's own libcuda and libnvidia-ml instead of the simulated ones.
    pub libraries: Option<(PathBuf, PathBuf)>,
    /// The service's `PATH`, if not this process's.
    pub path: Option<String>,
}

impl Options {
    /// Four GPUs: two RTX 4090 and two H100.
    #[must_use]
    pub fn new(program: PathBuf) -> Self {
        Self {
            gpus: ["rtx4090", "rtx4090", "h100", "h100"]
                .map(str::to_owned)
                .to_vec(),
            laboratory: program.clone(),
            program,
            config: String::new(),
            driver_config: String::new(),
            costs: String::new(),
            names: Vec::new(),
            cgroups: true,
            tick: "1s".to_owned(),
            driver: None,
            strict: false,
            runtime: None,
            libraries: None,
            path: None,
        }
    }
}

/// A running simulated workstation. Dropping it ends its service and all programs of its claims.
#[derive(Debug)]
pub struct Station {
    dir: tempfile::TempDir,
    run: PathBuf,
    program: PathBuf,
    laboratory: PathBuf,
    config: PathBuf,
    cgroup_root: String,
    names: String,
    /// Directory of the libcuda that programs find.
    libraries: PathBuf,
    path: Option<String>,
    service: Option<Child>,
}

/// Longest wait for the service's first answer.
const START: Duration = Duration::from_secs(20);

impl Station {
    /// Makes the workstation and starts its service.
    ///
    /// # Errors
    /// When a file cannot be made or the service does not answer; the service's log is in the text.
    pub fn start(options: &Options) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("gshare-")
            .permissions(Permissions::from_mode(0o711))
            .tempdir()
            .context("cannot make a temporary directory")?;
        let sim = dir.path().join("sim");
        std::fs::create_dir(&sim)?;
        std::fs::set_permissions(&sim, Permissions::from_mode(0o755))?;
        if options.libraries.is_none() {
            simulate(options, &sim)?;
        }

        let bin = dir.path().join("bin");
        std::fs::create_dir(&bin)?;
        std::fs::set_permissions(&bin, Permissions::from_mode(0o755))?;
        let program = bin.join("gshare");
        reachable(&options.program, &program)?;
        let _ = symlink("gshare", bin.join("gshared"));
        let laboratory = if options.laboratory == options.program {
            program.clone()
        } else {
            let laboratory = bin.join("gshare-demo");
            reachable(&options.laboratory, &laboratory)?;
            laboratory
        };
        install_parts(&options.program, dir.path())?;

        let cgroup_root = format!(
            "gshare-{}",
            dir.path()
                .file_name()
                .map_or_else(String::new, |n| n.to_string_lossy().replace('.', ""))
        );
        let run = options.runtime.clone();
        let run = run.unwrap_or_else(|| dir.path().join("run"));
        if options.strict {
            furnish_strict(dir.path(), &run)?;
        }
        let devices = match options.libraries {
            None => stand_ins(&sim, options.gpus.len())?,
            Some(_) => String::new(),
        };
        let own = || {
            (
                sim.join("lib/libcuda.so.1"),
                sim.join("lib/libnvidia-ml.so.1"),
            )
        };
        let (cuda, nvml) = options.libraries.clone().unwrap_or_else(own);
        let cgroups = if options.cgroups { "auto" } else { "off" };
        let config = dir.path().join("gshare.toml");
        // Claims are packed by default, so that their GPUs are predictable.
        let packed = if options.config.contains("[reclaim]") {
            ""
        } else {
            "[reclaim]\nspread = false\n\n"
        };
        let text = format!(
            "[service]\nruntime-dir = {run:?}\nstate-dir = {state:?}\ntick = {tick:?}\n\n\
             [driver]\nlibcuda = {cuda:?}\nlibnvidia-ml = {nvml:?}\n{driver}\n\
             {devices}\n{packed}{mps}[cgroup]\nsystemd = \"off\"\nroot = {cgroup_root:?}\nenabled = {cgroups:?}\n\n{extra}",
            state = dir.path().join("state"),
            tick = options.tick,
            driver = options.driver_config,
            mps = if options.libraries.is_some() || options.config.contains("[mps]") {
                String::new()
            } else {
                format!("[mps]\ncontrol = {:?}\n\n", mps_program(&sim))
            },
            extra = options.config.replace(
                "[mps]",
                &format!("[mps]\ncontrol = {:?}", mps_program(&sim))
            ),
        );
        std::fs::write(&config, text)?;
        let names: Vec<String> = options
            .names
            .iter()
            .map(|(uid, name)| format!("{uid}={name}"))
            .collect();
        let mut station = Self {
            dir,
            run,
            program,
            laboratory,
            config,
            cgroup_root,
            names: names.join(","),
            libraries: cuda.parent().unwrap_or(&sim).to_owned(),
            path: options.path.clone(),
            service: None,
        };
        station.start_service()?;
        Ok(station)
    }

    /// Starts the service (again) and waits until it answers.
    ///
    /// # Errors
    /// When it does not; the text has its log.
    pub fn start_service(&mut self) -> anyhow::Result<()> {
        self.start_service_with(&[])
    }

    /// The same with more arguments.
    ///
    /// # Errors
    /// When it does not answer; the text has its log.
    pub fn start_service_with(&mut self, arguments: &[&str]) -> anyhow::Result<()> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path())?;
        let mut command = Command::new(&self.program);
        command.arg("daemon").arg("--config").arg(&self.config);
        command.args(arguments);
        if !Uid::effective().is_root() {
            command.arg("--user");
        }
        // A process group of its own: Ctrl-C at the terminal is for the demo, which then ends it in order.
        let child = command
            .env("GSHARE_USER_NAMES", &self.names)
            .envs(self.path.iter().map(|path| ("PATH", path)))
            .env_remove("GSHARE_SOCKET")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        self.service = Some(child);
        self.remains().remember();
        let until = Instant::now() + START;
        loop {
            if self.snapshot().is_ok() {
                return Ok(());
            }
            let ended = self
                .service
                .as_mut()
                .and_then(|c| c.try_wait().ok().flatten());
            if ended.is_some() || Instant::now() > until {
                let log = std::fs::read_to_string(self.log_path()).unwrap_or_default();
                anyhow::bail!(
                    "the service of the simulated workstation does not answer; its log:\n{log}"
                );
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Whether the service has ended by itself; it can then be started again.
    pub fn service_ended(&mut self) -> bool {
        let ended = self.service.as_mut().map(Child::try_wait);
        let ended = matches!(ended, Some(Ok(Some(_))));
        if ended {
            self.service = None;
        }
        ended
    }

    /// The directory of the station.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The directory of the simulated driver: `board`, `lib`, perhaps `dev`.
    #[must_use]
    pub fn sim_dir(&self) -> PathBuf {
        self.dir.path().join("sim")
    }

    /// The directory of the libcuda that programs find.
    #[must_use]
    pub fn libraries(&self) -> &Path {
        &self.libraries
    }

    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.run.join("gshared.sock")
    }

    /// The service's log.
    #[must_use]
    pub fn log_path(&self) -> PathBuf {
        self.dir.path().join("gshared.log")
    }

    /// The program, at a path that every user can execute.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The program with the demo's jobs, likewise.
    #[must_use]
    pub fn laboratory(&self) -> &Path {
        &self.laboratory
    }

    /// The service's process id, while it runs.
    #[must_use]
    pub fn service_pid(&self) -> Option<u32> {
        self.service.as_ref().map(Child::id)
    }

    /// Name of the station's cgroup below the service's.
    #[must_use]
    pub fn cgroup_root(&self) -> &str {
        &self.cgroup_root
    }

    /// A `gshare` command for this station, with the simulated driver on the library path like a real driver on a
    /// real machine.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = self.client_environment(Command::new(&self.program));
        command.current_dir(self.dir.path());
        command
    }

    /// Gives any command the environment of the simulated workstation.
    #[must_use]
    pub fn client_environment(&self, mut command: Command) -> Command {
        command
            .env("GSHARE_SOCKET", self.socket())
            .env("LD_LIBRARY_PATH", self.libraries())
            .env_remove("CUDA_VISIBLE_DEVICES");
        command
    }

    /// Connects to the service.
    pub fn client(&self) -> anyhow::Result<Client> {
        let mut client = Client::connect(&self.socket())?;
        client.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(client)
    }

    /// The state as the service sees it now.
    pub fn snapshot(&self) -> anyhow::Result<Snapshot> {
        match self.client()?.call(&Call::Snapshot)? {
            Reply::Snapshot(snapshot) => Ok(*snapshot),
            other => anyhow::bail!("the service answered {other:?}"),
        }
    }

    /// Ends the service with a signal and waits for it; claims live on.
    pub fn stop_service(&mut self, signal: Signal) -> anyhow::Result<()> {
        if let Some(mut child) = self.service.take() {
            kill(Pid::from_raw(child.id().cast_signed()), signal)
                .context("cannot signal the service")?;
            // A test may have stopped it, and would wait here for ever if it fails before it lets the service go on.
            let _ = kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGCONT);
            child.wait()?;
            self.remains().remember();
        }
        Ok(())
    }

    fn remains(&self) -> Remains {
        Remains {
            dir: self.dir.path().to_owned(),
            run: self.run.clone(),
            mps: mps_program(&self.sim_dir()),
            cgroup_root: self.cgroup_root.clone(),
            service: self.service_pid(),
        }
    }
}

impl Drop for Station {
    fn drop(&mut self) {
        let remains = self.remains();
        remains.end_members();
        let _ = self.stop_service(Signal::SIGTERM);
        remains.end_mps();
        Remains::forget(&remains.dir);
    }
}

/// Other users may not be able to reach a program at its path; they can reach a link to it. A copy is made by another
/// process: a child that a thread of this one starts meanwhile would have the file open for writing until its exec, and
/// the kernel runs no such file.
fn reachable(program: &Path, link: &Path) -> anyhow::Result<()> {
    if std::fs::hard_link(program, link).is_err() {
        let copied = Command::new("cp").arg(program).arg(link).status();
        let is_there = copied.context("cannot start cp")?.success();
        anyhow::ensure!(is_there, "cannot copy {}", program.display());
    }
    Ok(())
}

/// An installed program has its parts as files; one of a clone carries them.
fn install_parts(program: &Path, dir: &Path) -> anyhow::Result<()> {
    let from = gshare_artifacts::beside(program);
    if !from.is_dir() {
        return Ok(());
    }
    let to = dir.join(gshare_artifacts::BESIDE);
    let mut made = dir.to_owned();
    for name in Path::new(gshare_artifacts::BESIDE) {
        made.push(name);
        std::fs::create_dir(&made)?;
        std::fs::set_permissions(&made, Permissions::from_mode(0o755))?;
    }
    for part in gshare_artifacts::Part::ALL {
        reachable(&from.join(part.file()), &to.join(part.file()))?;
    }
    Ok(())
}

/// The launcher where the program looks for it, and what the simulated driver expects beside itself: strict members
/// load it from another directory.
fn furnish_strict(dir: &Path, run: &Path) -> anyhow::Result<()> {
    let path = dir.join("lib/gshare").join(crate::launcher::NAME);
    let socket = run.join("gshared.sock");
    crate::launcher::install(&path, Some(&socket)).context("cannot install the launcher")?;
    std::fs::create_dir_all(run)?;
    let lib = crate::daemon::lib_dir(run, &dir.join("state"));
    std::fs::create_dir_all(&lib)?;
    for parent in [Some(run), lib.parent()].into_iter().flatten() {
        std::fs::set_permissions(parent, Permissions::from_mode(0o711))?;
    }
    std::fs::set_permissions(&lib, Permissions::from_mode(0o755))?;
    for name in ["board", "board.locks", "costs", "dev"] {
        symlink(dir.join("sim").join(name), lib.join(name))?;
    }
    for made in [dir.join("lib"), dir.join("lib/gshare")] {
        std::fs::set_permissions(&made, Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// The CUDA version of drivers that are older than the board's own.
fn cuda_of(driver: &str) -> Option<u32> {
    let release: u32 = driver.split('.').next()?.parse().ok()?;
    Some(match release {
        615.. => 13_040,
        580.. => return None,
        570.. => 12_080,
        560.. => 12_060,
        555.. => 12_050,
        550.. => 12_040,
        _ => 12_000,
    })
}

/// The board, the simulated driver and what belongs to it.
fn simulate(options: &Options, sim: &Path) -> anyhow::Result<()> {
    let models: Vec<&str> = options.gpus.iter().map(String::as_str).collect();
    let mut spec = BoardSpec::new(&models);
    if let Some(version) = &options.driver {
        spec.driver_version.clone_from(version);
        if let Some(cuda) = cuda_of(version) {
            spec.cuda_version = cuda;
        }
    }
    let board =
        Board::create(&sim.join("board"), &spec).context("cannot make the simulated board")?;
    drop(board);
    gshare_artifacts::stage_sim(sim).context("cannot stage the simulated driver")?;
    std::fs::write(sim.join("costs"), &options.costs)?;
    stage_mps(&options.laboratory, sim)
}

fn mps_program(sim: &Path) -> PathBuf {
    sim.join("bin").join(gshare_sim_mps::CONTROL)
}

/// The simulated control program of MPS is the laboratory under another name.
fn stage_mps(program: &Path, sim: &Path) -> anyhow::Result<()> {
    let dir = sim.join("bin");
    std::fs::create_dir(&dir)?;
    std::fs::set_permissions(&dir, Permissions::from_mode(0o755))?;
    let to = dir.join(gshare_sim_mps::CONTROL);
    reachable(program, &to)
}

/// Device nodes in place of the GPUs', if this user may create them: the `[devices]` section.
fn stand_ins(sim: &Path, gpus: usize) -> anyhow::Result<String> {
    let caps = mig_minors(sim)?;
    let minors: Vec<u32> = (0..gpus).filter_map(|g| u32::try_from(g).ok()).collect();
    let made = Majors::free_on_this_machine().and_then(|majors| {
        let dir = sim.join("dev");
        make_stand_ins(&dir, &majors, &minors)?;
        if let Some(major) = majors.caps {
            make_cap_stand_ins(&dir, major, &caps)?;
        }
        Ok((dir, majors))
    });
    let list = sim.join("mig-minors");
    Ok(match made {
        Ok((dir, majors)) => {
            // Beside a real driver, whose numbers the kernel lists; otherwise those of the nodes.
            let real = Majors::of_this_machine().ok();
            let beside = |name: &str, own: Option<u32>, theirs: Option<u32>| match (own, theirs) {
                (Some(own), Some(_)) => format!("{name} = {own}\n"),
                _ => String::new(),
            };
            let caps = beside(
                "caps-major",
                majors.caps,
                real.as_ref().and_then(|r| r.caps),
            );
            let uvm = beside("uvm-major", majors.uvm, real.as_ref().and_then(|r| r.uvm));
            format!(
                "[devices]\ndir = {dir:?}\nmig-minors = {list:?}\nnvidia-major = {}\n{uvm}{caps}",
                majors.nvidia
            )
        }
        Err(_) => {
            let _ = std::fs::remove_dir_all(sim.join("dev"));
            format!("[devices]\nmig-minors = {list:?}\nfilter = \"off\"\n")
        }
    })
}

/// Numbers of GPU instances go up to this.
const MOST_INSTANCES: u32 = 15;

/// Writes the driver's list of the minors of MIG instances; returns the minors.
fn mig_minors(sim: &Path) -> anyhow::Result<Vec<u32>> {
    let seen = Board::open(&sim.join("board"))?.snapshot();
    let (mut text, mut minors) = ("config 1\nmonitor 2\n".to_owned(), Vec::new());
    // The driver lists all possible instances, made or not.
    for gpu in seen.gpus.iter().filter(|g| g.model.mig) {
        for gi in 0..MOST_INSTANCES {
            let [whole, ci] = Instance::caps_of(gpu.minor, gi, 0);
            let name = format!("gpu{}/gi{gi}", gpu.minor);
            text.push_str(&format!("{name}/access {whole}\n{name}/ci0/access {ci}\n"));
            minors.extend([whole, ci]);
        }
    }
    std::fs::write(sim.join("mig-minors"), text)?;
    Ok(minors)
}

//! The command line: every subcommand and flag, with the texts of the manual.

pub mod admin;
mod adopt;
mod bench;
mod class;
mod config;
pub mod kernel;
pub mod levers;
pub mod nodes;
pub mod prospect;
pub mod report;
pub mod setup;
mod signal;
pub mod sizes;
pub mod slurm;
pub mod suggest;
pub mod top;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueHint};
use gshare_config::{Wait, value};
use gshare_core::{Class, ModeWish};
use gshare_proto::SignalSpec;

use crate::release::Release;

pub use adopt::AdoptArgs;
pub use bench::BenchArgs;
use class::ClassParser;
pub use config::{ConfigArgs, ConfigCommand};
pub use levers::ReleaseArgs;
use levers::{LeverArgs, MoveArgs};
use report::ReportArgs;
use setup::SetupArgs;
use sizes::{ClaimIdArgs, ExtendArgs, KeepArgs, PartArgs, ReplayArgs, ResizeArgs};

const EXIT_CODES: &str = "\
Exit codes: the command's own; 64 usage, 69 no service, 70 internal error,
74 full disk, 75 not available now, 77 not permitted, 78 configuration,
124 time limit, 126 command cannot run, 127 command not found.";

/// Share the GPUs of one workstation: claim parts of GPUs, with enforced limits, and see actual use.
#[derive(Debug, Parser)]
#[command(
    name = "gshare",
    version,
    about = "Share the GPUs of one workstation",
    long_about = "Share the GPUs of one workstation: claim parts of GPUs, with enforced limits, and see actual \
                  use.\n\nWithout a command, gshare opens a full-screen view of claimed and actual use, per GPU, user \
                  and claim.",
    after_long_help = EXIT_CODES,
    max_term_width = 80
)]
pub struct Cli {
    /// Socket of the service [default: $GSHARE_SOCKET, else that of the system service, else that of the service that
    /// you started with gshare daemon --user]
    #[arg(
        long,
        global = true,
        display_order = 900,
        value_name = "PATH",
        value_hint = ValueHint::FilePath
    )]
    pub socket: Option<PathBuf>,

    /// Started by a gshare that watches over it; its caller blocks these signals, of those that it passes on.
    #[arg(long, hide = true)]
    pub child: Option<u64>,

    /// What to do; nothing opens the screen.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Open the full-screen view, print it once, record it, or play a recording
    #[command(after_long_help = "Examples:\n  \
            gshare top --screen claims\n  \
            gshare top --once --size 100x30            the screen as text\n  \
            gshare top --record night.jsonl --for 8h   record 8 hours, needs no terminal\n  \
            gshare top --replay night.jsonl --speed 60\n\n\
            On a slow connection: gshare top --interval 5s. A recording shows what all users ran; only you can read \
            the file.")]
    Top(top::TopArgs),
    /// Claim a part of a GPU and run a command in it
    #[command(
        visible_alias = "run",
        override_usage = "gshare claim [OPTIONS] [-- CMD...]",
        after_long_help = "Examples:\n  \
            gshare claim -g 0.5 -- python3 train.py        half a GPU while train.py runs\n  \
            gshare claim -g 2 -t 4h -- torchrun train.py   two whole GPUs, at most 4 hours\n  \
            gshare claim -g 2x0.5 --model h100 -- ./job    half of each of two H100\n  \
            gshare claim --gpu-mem 8G --sm 30% -- ./infer  by memory and SMs\n  \
            gshare claim -g 0.5 --nonblock -- ./job        exit 75 instead of waiting\n  \
            gshare claim -g 0.25 --short                   print the id, run no command\n\n\
            gshare turns into the command (exec): process id, terminal, job control, signals and exit status are those \
            of the command. With -t or --requeue, the command is a child of gshare instead. Defaults come from \
            .gshare.toml, then from the service."
    )]
    Claim(ClaimArgs),
    /// Open a shell in a new claim
    #[command(after_long_help = "Examples:\n  \
            gshare shell                 the default size for interactive work\n  \
            gshare shell -g 0.5 -t 2h    half a GPU for two hours\n\n\
            The claim ends when the shell has exited and nothing in it uses the GPU any more.")]
    Shell(ShellArgs),
    /// Run a command or a shell in an existing claim
    #[command(
        override_usage = "gshare join [OPTIONS] ID [-- CMD...]",
        after_long_help = "Examples:\n  \
            gshare join c3 -- nvidia-smi    in claim c3\n  \
            gshare join sweep               a shell in the claim named sweep"
    )]
    Join(JoinArgs),
    /// Put this shell into a claim: eval "$(gshare env ID)"
    #[command(after_long_help = "Examples:\n  \
            eval \"$(gshare env c3)\"         put this shell into claim c3\n  \
            eval \"$(gshare env --unset)\"    restore the shell's earlier variables\n\n\
            Without eval (stdout is a terminal) or with --print-only, gshare only prints, and does not put the shell \
            into the claim. A shell stays in its claim until it exits, also after --unset.")]
    Env(EnvArgs),
    /// List claims with their actual use
    #[command(after_long_help = "Examples:\n  \
            gshare ps                running claims of all users\n  \
            gshare ps -a             also waiting claims, and processes without a claim\n  \
            gshare ps -u ada -w 2    claims of ada, every 2 seconds\n\n\
            Unknown figures are shown as \u{2014}, estimates with ~.")]
    Ps(PsArgs),
    /// List waiting claims and what each of them waits for
    Queue(ListArgs),
    /// Show GPUs and users: claimed and actual use
    Status(ListArgs),
    /// Show several machines at a glance: what is free for you, what is used, and what is wrong
    #[command(after_long_help = nodes::EXAMPLES)]
    Nodes(nodes::NodesArgs),
    /// Set up Slurm so that gshare limits each job to its part of a GPU
    #[command(after_long_help = slurm::EXAMPLES)]
    Slurm(slurm::SlurmArgs),
    /// Report claimed and actual use over time, by user
    #[command(after_long_help = "Examples:\n  \
            gshare report --since 5w               the last five weeks, all users\n  \
            gshare report --since 3d --user ada    three days of one user\n  \
            gshare report --since 5w --csv         for a spreadsheet\n  \
            gshare report --mine --raw             all that is stored about you\n  \
            gshare report --html week.html         a browser page, without user names\n  \
            gshare report --merge *.json           sums up reports made with --json\n\n\
            Use is SM activity; times are GPU hours. Unknown figures are shown as \u{2014}, estimates with ~.")]
    Report(ReportArgs),
    /// Show a claim in the style of nvidia-smi, as if its share were a whole GPU
    #[command(after_long_help = "Examples:\n  \
            gshare smi          the claim that this shell is in\n  \
            gshare smi c3 -w    claim c3, every 2 seconds\n\n\
            Memory shows what is counted for the claim, and its limit. Only processes of the claim are listed.")]
    Smi(SmiArgs),
    /// Give claims back
    #[command(after_long_help = "Examples:\n  \
            gshare release c3 sweep    by id and by name\n  \
            gshare release --all       all of your claims\n\n\
            Releasing the claim of a notebook ends its kernel, and its variables are lost: on a terminal gshare asks \
            first. gshare offload frees the GPU memory and keeps the variables.")]
    Release(ReleaseArgs),
    /// Create a claim for a running process
    #[command(after_long_help = "Examples:\n  \
            gshare adopt 4242              as large as its current use, same GPUs\n  \
            gshare adopt 4242 -g 0.5       half of its GPU\n\n\
            From now on gshare counts the memory and GPU time of the process. gshare moves the process into the \
            claim's control group. The process keeps the GPUs that it has already opened, and can newly open only the \
            GPUs of its claim. A running program cannot be given a memory limit: limits apply once the program is \
            started again in a claim.")]
    Adopt(AdoptArgs),
    /// Say why a claim waits, its earliest start, and which size would start now
    #[command(after_long_help = "Examples:\n  \
            gshare why          each claim that waits, and each of your jobs that waits in Slurm\n  \
            gshare why c22      one claim\n  \
            gshare why 4711     one job of Slurm")]
    Why(ClaimIdArgs),
    /// Show the history of a claim, running or ended
    #[command(after_long_help = "Examples:\n  \
            gshare log       claims to choose from, with the last that ended\n  \
            gshare log c3    what happened to one\n  \
            gshare log train what happened to the last one with this name")]
    Log(ClaimIdArgs),
    /// Estimate what a command will need, from earlier runs
    #[command(after_long_help = suggest::EXAMPLES)]
    Suggest(suggest::SuggestArgs),
    /// Make a claim larger or smaller while its programs run
    #[command(after_long_help = "Examples:\n  \
            gshare resize c3 -g 0.5               half the GPU, memory and SMs alike\n  \
            gshare resize c3 --gpu-mem 8G         8 GiB of memory, SMs unchanged\n  \
            gshare resize c3 -g 0.25 --limit 0.8  a quarter, 80 % while SMs are idle\n  \
            gshare resize c3 -g 1 --wait          wait until there is room\n\n\
            What you do not name stays unchanged, with one exception: a memory limit that equals the \
            size in memory changes with it. Growing needs room that nobody holds or waits for. Otherwise gshare refuses and says what would fit; with \
            --wait it waits. gshare also refuses a memory limit below what the programs use: a resize takes no memory \
            away.")]
    Resize(ResizeArgs),
    /// Extend a claim's time limit (-t)
    #[command(after_long_help = sizes::EXTEND)]
    Extend(ExtendArgs),
    /// Jupyter kernels that claim a part of a GPU
    #[command(after_long_help = kernel::EXAMPLES)]
    Kernel(kernel::KernelArgs),
    /// Postpone a move, offload or suspension that gshare announced for your claim
    #[command(after_long_help = sizes::KEEP)]
    Keep(KeepArgs),
    /// Move a claim's GPU memory to host RAM while its programs keep running
    #[command(alias = "detach", after_long_help = levers::OFFLOAD)]
    Offload(LeverArgs),
    /// Bring an offloaded claim back onto a GPU
    #[command(alias = "attach", after_long_help = levers::RESTORE)]
    Restore(LeverArgs),
    /// Offload a claim and freeze its processes
    #[command(after_long_help = levers::SUSPEND)]
    Suspend(LeverArgs),
    /// Let a suspended claim run again
    #[command(after_long_help = levers::RESUME)]
    Resume(LeverArgs),
    /// Move a claim to another GPU while its programs run
    #[command(after_long_help = levers::MOVE)]
    Move(MoveArgs),
    /// Show what gshare can and cannot enforce on this machine, and how to fix the rest
    #[command(after_long_help = "Examples:\n  \
            gshare doctor                               this machine\n  \
            gshare doctor --driver 550 --gpu rtx4090    before you buy or install\n  \
            sudo gshare doctor --conformance            check the driver, about 10 min\n\n\
            --conformance claims an idle GPU and tests whether the driver behaves as NVIDIA documents it. Until all \
            tests pass, stages 3 and 4 (gshare admin stage) count as experimental on this machine. The exit code is 1 \
            if something differs.")]
    Doctor(DoctorArgs),
    /// For administrators: drain GPUs, end claims, read the audit log
    #[command(
        after_long_help = "For root, and for members of the groups in [admin] groups of gshare.toml. The audit log \
            records every act except claim-for: user, time, target, and the state before and after."
    )]
    Admin(admin::AdminArgs),
    /// Check and show the configuration
    Config(ConfigArgs),
    /// Run the service in the foreground
    #[command(after_long_help = "Examples:\n  \
            sudo gshare daemon        the system service\n  \
            gshare daemon --user      your own, without privileges\n\n\
            Without privileges, claims have no control groups unless systemd delegates them.")]
    Daemon(DaemonArgs),
    /// Install gshare on this machine and start its service, or uninstall it
    #[command(after_long_help = setup::EXAMPLES)]
    Setup(SetupArgs),
    /// See gshare at work on a simulated workstation; needs no GPU and no root
    #[command(after_long_help = "Examples:\n  \
            gshare demo\n  \
            gshare demo --headless --for 10s --json    the final state as one JSON object\n  \
            gshare demo --shell                        a shell to try your own programs\n  \
            gshare demo --shell --gpus a100-80gb:3g.40gb+2g.20gb,h100    an A100 with MIG")]
    Demo(DemoArgs),
    /// Replay a list of claims under other policies: what would the waits have been?
    #[command(after_long_help = "Examples:\n  \
            gshare replay claims.csv             compare the default policies\n  \
            gshare replay claims.csv --policy gshare --policy fgd --gpus 4 --load 0.7\n  \
            gshare replay runs.jsonl --gpus 4    your runs with other sizes\n\n\
            The list has a header, the columns arrival_s, duration_s, num_gpu and gpu_milli (thousandths of each GPU), \
            and optionally user. No program is run: each policy decides in simulated time.\n\n\
            WAIT is the mean waiting time of a claim: all its waits until it has run for min-run (gshare.toml) in \
            total. A claim that is offloaded or suspended early waits more than once. P95 is the 95th percentile of \
            these times. DONE is the mean time from a request to the end \
            of its claim. USE is the average part of the machine that did useful work, up to the last request. MOVES \
            and OFFLOADED count the moves and offloads of running claims. AWAY is the longest time that a claim which \
            had started was off the GPU. JAIN is Jain's fairness index of the slowdown per user (time from request to \
            end, divided by run time): 1 means that it is equal for all users.\n\n\
            The policy gshare is the service as shipped, on a machine where every claim can be offloaded and moved. \
            gshare-no-move moves no claims; gshare-no-offload neither moves nor offloads them.\n\n\
            None of the other policies offloads. Of them, only two move claims: exact and exact+quota. easy (EASY backfill) \
            serves in order of arrival, but starts a later claim early if that does not delay the head of the queue. easy \
            knows how long each claim will run; gshare does not. exact+quota first serves users who hold no more than \
            an equal share of the machine. \
            The remaining policies serve in strict order of arrival: exact (moves claims to pack them), fgd (least \
            fragmentation), best-fit, \
            first-fit, static (fixed GPUs for each user), exclusive (whole GPUs) and pooled (all GPUs as one: a \
            lower bound of the waits).\n\n\
            Records of runs (gshare suggest --records > runs.jsonl) are replayed three times: with the requested \
            sizes, with the sizes that earlier runs suggest, and with what each run needed.")]
    Replay(ReplayArgs),
    /// Measure gshare on this machine
    #[command(hide = true)]
    Bench(BenchArgs),
    /// Print the completion script of a shell
    #[command(after_long_help = "Example:\n  \
            gshare completions bash > ~/.local/share/bash-completion/completions/gshare")]
    Completions {
        /// Shell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages and the completion scripts
    #[command(hide = true)]
    Man {
        /// Directory
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
    },
}

/// How much is claimed, and how: shared by `claim` and `shell`.
#[derive(Args, Clone, Debug, Default)]
pub struct SizeArgs {
    /// 0.5: half of a GPU; 2: two whole GPUs; 2x0.5: half of each of two GPUs; auto: the size that earlier runs of this
    /// command needed (in gshare shell: your earlier shells)
    #[arg(help_heading = "Size", short, long, value_name = "N")]
    pub gpus: Option<suggest::Wanted>,
    /// Memory and SMs separately.
    #[command(flatten)]
    pub part: PartArgs,
    /// Only these GPUs: indices or UUIDs, separated by commas
    #[arg(
        help_heading = "Which GPUs",
        long,
        visible_alias = "index",
        value_name = "IDS",
        value_delimiter = ','
    )]
    pub gpu_ids: Vec<String>,
    /// Only GPUs whose name contains this: h100, "RTX 4090"; several are separated by commas
    #[arg(
        help_heading = "Which GPUs",
        long,
        value_name = "NAMES",
        value_delimiter = ','
    )]
    pub model: Vec<String>,
    /// Only GPUs in this sharing mode: timeslice, mps, exclusive or mig
    #[arg(help_heading = "Which GPUs", long, value_name = "MODE", value_parser = mode)]
    pub mode: Option<ModeWish>,
    /// Allow gshare to move the claim to other GPUs while it runs (the default)
    #[arg(help_heading = "Which GPUs", long, overrides_with = "no_movable")]
    pub movable: bool,
    /// Never move the claim from the GPUs where it starts
    #[arg(help_heading = "Which GPUs", long)]
    pub no_movable: bool,
    /// Name of the claim
    #[arg(
        help_heading = "Name and class",
        short,
        long,
        short_alias = 'J',
        alias = "job-name",
        value_name = "NAME"
    )]
    pub name: Option<String>,
    /// Project that the claim belongs to
    #[arg(
        help_heading = "Name and class",
        long,
        short_alias = 'A',
        alias = "account",
        value_name = "PROJECT"
    )]
    pub project: Option<String>,
    /// Class of work: interactive, batch or inference
    #[arg(help_heading = "Name and class", long, value_name = "CLASS", value_parser = ClassParser)]
    pub class: Option<Class>,
    /// End the claim after this time: 90m, 2h, 1-12:00:00; a bare number is minutes
    #[arg(help_heading = "Start and end", short, long, visible_alias = "duration", value_name = "TIME", value_parser = value::time)]
    pub time: Option<Duration>,
    /// Do not wait: exit 75 if the claim cannot start now
    #[arg(
        help_heading = "Start and end",
        long,
        short_alias = 'I',
        visible_alias = "immediate",
        conflicts_with = "wait"
    )]
    pub nonblock: bool,
    /// Wait at most this long, then exit 75; "forever" means no limit [default: set by the service, normally forever]
    #[arg(help_heading = "Start and end", long, value_name = "TIME", value_parser = wait)]
    pub wait: Option<Wait>,
    /// Print errors only
    #[arg(help_heading = "Output", short, long)]
    pub quiet: bool,

    /// Slurm's spelling, answered with a hint.
    #[arg(long, hide = true, value_name = "LIST")]
    pub gres: Option<String>,
    /// Slurm's host memory, answered with a hint.
    #[arg(long, hide = true, value_name = "SIZE")]
    pub mem: Option<String>,
    /// Appends times of the phases to a file, for `gshare bench`.
    #[arg(long, hide = true, value_name = "FILE")]
    pub phases: Option<PathBuf>,
}

/// `gshare claim`.
#[derive(Args, Clone, Debug, Default)]
pub struct ClaimArgs {
    /// Size and conditions.
    #[command(flatten)]
    pub size: SizeArgs,
    /// Claim on another machine, by ssh: all other options go to the gshare there. See gshare nodes
    #[arg(help_heading = "Which GPUs", long, value_name = "HOST")]
    pub on: Option<OsString>,
    /// Keep the claim after the command has ended, until gshare release or the claim's time limit
    #[arg(help_heading = "Start and end", long)]
    pub hold: bool,
    /// Allow gshare to stop the command to make room for other claims, and to restart it later
    #[arg(
        help_heading = "Start and end",
        long,
        requires = "command",
        conflicts_with = "hold"
    )]
    pub requeue: bool,
    /// Before the time limit (-t) or a restart (--requeue) ends the command, send SIGNAL to the claim's programs on the
    /// GPU. TIME: how many seconds before (60 if not given), e.g. USR1@90. With B: in front (B:USR1), only CMD itself
    /// gets the signal
    #[arg(help_heading = "Start and end", long, value_name = "[B:]SIGNAL[@TIME]", requires = "command", value_parser = signal::signal)]
    pub signal: Option<SignalSpec>,
    /// Print only the claim's id; not together with CMD
    #[arg(help_heading = "Output", long)]
    pub short: bool,
    /// Start the command immediately. The claim is made only at the first CUDA call of the command, and this call waits
    /// for the GPU
    #[arg(help_heading = "Start and end", long, conflicts_with_all = ["hold", "dry_run", "short"], requires = "command")]
    pub lazy: bool,
    /// Run the command without gshare's library, for programs that fail with it. gshare then counts the program's use
    /// and blocks other GPUs, but limits neither memory nor compute. If limits are strict on this machine (see gshare
    /// doctor), claim whole GPUs (-g 1)
    #[arg(long, conflicts_with = "lazy", requires = "command")]
    pub no_library: bool,
    /// Claim nothing. Print where the claim would start (exit 0); if it would wait, print the reason, the start time,
    /// and which other claims would make room and how (exit 75)
    #[arg(help_heading = "Output", long)]
    pub dry_run: bool,
    /// Print the granted claim as JSON: to stderr with CMD, else to stdout
    #[arg(help_heading = "Output", long, conflicts_with = "short")]
    pub json: bool,
    /// Command to run. Without one, the claim lasts until gshare release, or until its time limit (-t, normally 2 hours)
    #[arg(
        trailing_var_arg = true,
        value_name = "CMD",
        value_hint = ValueHint::CommandWithArguments
    )]
    pub command: Vec<OsString>,
}

/// `gshare shell`.
#[derive(Args, Clone, Debug, Default)]
pub struct ShellArgs {
    /// Size and conditions.
    #[command(flatten)]
    pub size: SizeArgs,
}

/// `gshare join`.
#[derive(Args, Clone, Debug)]
pub struct JoinArgs {
    /// Claim: its id (c3) or name
    pub id: String,
    /// Print errors only
    #[arg(short, long)]
    pub quiet: bool,
    /// Command to run [default: your shell]
    #[arg(
        trailing_var_arg = true,
        value_name = "CMD",
        value_hint = ValueHint::CommandWithArguments
    )]
    pub command: Vec<OsString>,
}

/// `gshare env`.
#[derive(Args, Clone, Debug)]
pub struct EnvArgs {
    /// Claim: its id (c3) or name
    #[arg(required_unless_present = "unset")]
    pub id: Option<String>,
    /// Print the commands that remove the claim's environment from this shell
    #[arg(long, conflicts_with_all = ["id", "print_only", "json"])]
    pub unset: bool,
    /// Only print: do not put this shell into the claim
    #[arg(long)]
    pub print_only: bool,
    /// Print a JSON object instead (implies --print-only)
    #[arg(long)]
    pub json: bool,
}

/// What every listing takes.
#[derive(Args, Clone, Debug, Default)]
pub struct ListArgs {
    /// Show only this user
    #[arg(short, long, value_name = "USER")]
    pub user: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Repeat every SEC seconds
    #[arg(short, long, value_name = "SEC", num_args = 0..=1, default_missing_value = "2", value_parser = seconds)]
    pub watch: Option<Duration>,
}

/// The number of a Slurm job, or its claim's name.
fn slurm_job(text: &str) -> Result<u32, &'static str> {
    let number = text.strip_prefix(gshare_proto::SLURM_JOB).unwrap_or(text);
    let how =
        "expected the number of a Slurm job; that of a task of an array: squeue --format '%A %i'";
    number.parse().map_err(|_| how)
}

/// `gshare ps`.
#[derive(Args, Clone, Debug, Default)]
pub struct PsArgs {
    /// Also waiting claims, and GPU processes without a claim
    #[arg(short, long)]
    pub all: bool,
    /// Only the claim of Slurm job N: its use, and the part of a GPU that Slurm gave the job
    #[arg(long, value_name = "N", conflicts_with = "all", value_parser = slurm_job)]
    pub job: Option<u32>,
    /// Print comma-separated values, memory in bytes
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Filters and form.
    #[command(flatten)]
    pub list: ListArgs,
}

/// `gshare smi`.
#[derive(Args, Clone, Debug)]
pub struct SmiArgs {
    /// Claim: its id (c3) or name [default: the one that this process runs in]
    pub id: Option<String>,
    /// Form.
    #[command(flatten)]
    pub list: ListArgs,
}

/// `gshare doctor`.
#[derive(Args, Clone, Debug)]
pub struct DoctorArgs {
    /// Another machine.
    #[command(flatten)]
    pub prospect: prospect::ProspectArgs,
    /// As root: check the driver on an idle GPU. With NAMES, run only the checks whose names begin with one of NAMES
    #[arg(long, value_name = "NAMES", num_args = 0.., require_equals = true, value_delimiter = ',',
          conflicts_with_all = ["driver", "gpu"])]
    pub conformance: Option<Vec<String>>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `gshare daemon`.
#[derive(Args, Clone, Debug, Default)]
pub struct DaemonArgs {
    /// Your own service: your socket, your state, no privileges (the default unless root)
    #[arg(long)]
    pub user: bool,
    /// Configuration file [default: /etc/gshare/gshare.toml, or your own]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// For tests: kill itself at this step of a launch
    #[cfg(feature = "crash-points")]
    #[arg(long, value_name = "STEP", hide = true)]
    pub die_at: Option<String>,
}

/// `gshare demo`.
#[derive(Args, Clone, Debug, Default)]
pub struct DemoArgs {
    /// Run without the screen
    #[arg(long)]
    pub headless: bool,
    /// Open a shell on the simulated workstation instead, to try commands and programs of your own
    #[arg(long, conflicts_with_all = ["headless", "duration"])]
    pub shell: bool,
    /// Models of the simulated GPUs with --shell: rtx4090, rtxa6000, a100-80gb, h100, h200, rtxpro6000; add MIG
    /// instances after a colon: a100-80gb:3g.40gb+2g.20gb
    #[arg(long, value_name = "MODELS", value_delimiter = ',', requires = "shell")]
    pub gpus: Vec<String>,
    /// Driver release of the simulated GPUs, without what later ones can do: 550, 570.124
    #[arg(long, value_name = "VERSION")]
    pub driver: Option<Release>,
    /// How long it runs [default: until you quit; 30s without the screen]
    #[arg(long = "for", value_name = "TIME", value_parser = value::time)]
    pub duration: Option<Duration>,
    /// Print the final state as one JSON object (with --headless)
    #[arg(long, requires = "headless")]
    pub json: bool,
    /// Size of the screen in columns and rows, e.g. 120x40 [default: the terminal's]
    #[arg(long, value_name = "COLSxROWS", value_parser = screen_size)]
    pub size: Option<(u16, u16)>,
    /// Print all screens of the final state, as text and as SVG (with --headless)
    #[arg(long, requires = "headless", conflicts_with_all = ["json", "size"])]
    pub screens: bool,
}

fn mode(text: &str) -> Result<ModeWish, String> {
    text.parse()
}

fn wait(text: &str) -> Result<Wait, String> {
    match text {
        "forever" => Ok(Wait::Forever),
        "no" => Ok(Wait::No),
        _ => value::time(text).map(Wait::For),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let bad = || format!("`{text}` is not a number of seconds between 0.1 and 86400");
    let seconds: f64 = text.parse().map_err(|_| bad())?;
    if !(0.1..=86_400.0).contains(&seconds) {
        return Err(bad());
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn screen_size(text: &str) -> Result<(u16, u16), String> {
    let parse = || {
        let (columns, rows) = text.split_once('x')?;
        Some((columns.parse().ok()?, rows.parse().ok()?))
    };
    parse()
        .filter(|(c, r)| (20..=500).contains(c) && (5..=200).contains(r))
        .ok_or_else(|| {
            format!("`{text}` is not a screen size such as 120x40, from 20x5 to 500x200")
        })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn claim(args: &[&str]) -> ClaimArgs {
        let argv = ["gshare", "claim"].into_iter().chain(args.iter().copied());
        match Cli::try_parse_from(argv).expect("valid").command {
            Some(Command::Claim(args)) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_machine_may_follow_watch() {
        for (line, seconds, hosts) in [
            ("gshare nodes -w", Some(2), &[][..]),
            (
                "gshare nodes -w h100box gpu2",
                Some(2),
                &["h100box", "gpu2"],
            ),
            ("gshare nodes -w 5 h100box", Some(5), &["h100box"]),
            ("gshare nodes h100box --watch", Some(2), &["h100box"]),
            ("gshare nodes 10.0.0.5", None, &["10.0.0.5"]),
        ] {
            let words = line.split(' ');
            let Some(Command::Nodes(args)) = Cli::try_parse_from(words).expect("valid").command
            else {
                panic!("{line}");
            };
            let got = args.every().map(|every| every.as_secs());
            assert_eq!(got, seconds, "{line}");
            assert_eq!(args.named(), hosts, "{line}");
        }
        let wrong = Cli::try_parse_from(["gshare", "nodes", "-w", "0"]);
        assert!(
            wrong
                .expect_err("refused")
                .to_string()
                .contains("number of seconds")
        );
    }

    #[test]
    fn every_help_fits_80_columns() {
        fn check(command: &mut clap::Command) {
            for help in [command.render_help(), command.render_long_help()] {
                for line in help.to_string().lines() {
                    let (name, n) = (command.get_name(), line.chars().count());
                    assert!(n <= 80, "gshare {name}: {n} columns: {line}");
                }
            }
            command.get_subcommands_mut().for_each(check);
        }
        let mut all = Cli::command();
        all.build();
        check(&mut all);
    }

    #[test]
    fn the_options_of_a_claim_are_in_groups() {
        let mut all = Cli::command();
        all.build();
        for name in ["claim", "shell"] {
            let command = all.find_subcommand_mut(name).expect("known");
            let help = command.render_help().to_string();
            let groups = [
                "Size",
                "Which GPUs",
                "Name and class",
                "Start and end",
                "Output",
            ];
            let places = groups.map(|group| help.find(&format!("\n{group}:\n")));
            assert!(places.is_sorted() && places[0].is_some(), "{help}");
        }
    }

    #[test]
    fn everything_from_the_command_on_belongs_to_it() {
        let with = claim(&["-g", "0.5", "--", "env", "--", "-g", "2"]);
        assert_eq!(with.command, ["env", "--", "-g", "2"]);
        assert_eq!(with.size.gpus, "0.5".parse().ok());
        let without = claim(&["-g.5", "python", "train.py", "--hold", "-n", "x"]);
        assert_eq!(without.command, ["python", "train.py", "--hold", "-n", "x"]);
        assert!(!without.hold && without.size.name.is_none());
    }

    #[test]
    fn a_size_is_said_with_the_same_flags_everywhere() {
        let flags = "--gpu-mem 8G --gpu-mem-limit 16G --sm 30% --limit 0.8";
        let part = |command: &str| {
            let argv = format!("gshare {command} {flags} -- x");
            match Cli::try_parse_from(argv.split(' ')).expect("valid").command {
                Some(Command::Claim(args)) => args.size.part,
                Some(Command::Resize(args)) => args.part,
                Some(Command::Kernel(args)) => match args.command {
                    kernel::KernelCommand::Exec(args) => args.size.part,
                    other => panic!("{other:?}"),
                },
                other => panic!("{other:?}"),
            }
        };
        let said = part("claim");
        assert_eq!(said.sm.map(gshare_core::Share::milli), Some(300));
        assert_eq!((part("resize"), part("kernel exec")), (said, said));
    }

    #[test]
    fn familiar_spellings_mean_the_same() {
        let args = claim(&[
            "-J",
            "n",
            "-A",
            "p",
            "--gpu-memory",
            "8G",
            "--duration",
            "90",
            "--index",
            "0,2",
            "-I",
        ]);
        let size = args.size;
        assert_eq!(size.name.as_deref(), Some("n"));
        assert_eq!(size.project.as_deref(), Some("p"));
        assert_eq!(size.part.gpu_mem, Some(gshare_core::Bytes::gib(8)));
        assert_eq!(size.time, Some(Duration::from_secs(5400)));
        assert_eq!(size.gpu_ids, ["0", "2"]);
        assert!(size.nonblock);
    }
}

//! Arguments of `gshare admin`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use gshare_config::{Stage, Wait, value};
use gshare_core::{Class, Size};

use super::class::ClassParser;
use super::sizes::PartArgs;

/// `gshare admin`.
#[derive(Args, Clone, Debug)]
pub struct AdminArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: AdminCommand,
}

/// Subcommands of `gshare admin`.
#[derive(Clone, Debug, Subcommand)]
pub enum AdminCommand {
    /// Start no new claims on GPUs; running claims continue
    #[command(after_long_help = "Examples:\n  \
            gshare admin drain 1 --reason \"new fan at noon\"\n  \
            gshare admin drain 0 1 --wait          return when both are empty\n  \
            gshare admin drain 1 --wait=30m        exit 75 if claims remain after 30 min\n\n\
            A drain survives restarts, until gshare admin undrain.")]
    Drain(DrainArgs),
    /// Allow new claims on GPUs again, and forget earlier errors of these GPUs
    Undrain(UndrainArgs),
    /// End claims of any user, with all their processes
    #[command(
        override_usage = "gshare admin kill [OPTIONS] <ID...|--user USER|--gpu GPU>",
        after_long_help = "Examples:\n  \
            gshare admin kill c3 --reason \"fills the disk\"\n  \
            gshare admin kill --user ada --grace 1m    also waiting claims of ada\n  \
            gshare admin kill --gpu 1 --grace 0s       at once\n\n\
            Every process of the claims gets SIGTERM, and SIGKILL after the grace time, whether it uses the GPU or \
            not. The owners read the reason on their terminals and on the screen."
    )]
    Kill(KillArgs),
    /// Guarantee parts of the machine to users, groups and projects, and limit what they hold
    Quota(QuotaArgs),
    /// Change how claims share a GPU: in turns, side by side, or one at a time
    #[command(after_long_help = "Examples:\n  \
            gshare admin mode 1 mps              refused (75) while claims are on GPU 1\n  \
            gshare admin mode 1 mps --wait       change when its last claim has ended\n  \
            gshare admin mode 0 exclusive --wait=2h\n  \
            gshare admin mode 1 timeslice\n\n\
            While --wait waits, no new claims start there. The mode survives restarts, and overrides section [gpu] of \
            gshare.toml. gshare admin mig makes and removes MIG instances.")]
    Mode(ModeArgs),
    /// Let go of GPUs, so that they can be reset or their driver settings changed
    #[command(after_long_help = "Examples:\n  \
            gshare admin release 1 --for 60s && nvidia-smi -i 1 --gpu-reset\n  \
            gshare admin release 1            until it is taken back\n  \
            gshare admin release 1 --take\n\n\
            The driver resets a GPU only while no process has it open, and gshared has all GPUs open. Refused (75) \
            while claims hold a part of the GPU: gshare admin drain GPU --wait waits for them. Claims on other GPUs \
            continue.")]
    Release(ReleaseArgs),
    /// Suspend all enforcement (limits, reclaiming, refusals) until gshare admin on
    #[command(after_long_help = "Examples:\n  \
            sudo gshare admin off             now, until gshare admin on\n  \
            sudo gshare admin off --for 2h    for two hours\n\n\
            Root can do this within a second, even if the service hangs or is dead: the command itself then lifts the \
            limits and device filters of all claims. gshare stays off across restarts of the service and of the \
            machine. While gshare is off, programs can disturb each other as if gshare were not installed. With --for, \
            gshare switches on again after that time, and announces this 10 minutes before.")]
    Off(OffArgs),
    /// Resume enforcement after gshare admin off; ends no program
    #[command(after_long_help = "Examples:\n  \
            sudo gshare admin on\n\n\
            Limits, queue and device filters apply again. A claim above its limit keeps what it has, and may not \
            grow.")]
    On(OnArgs),
    /// Show or set how much gshare does: 1 observe, 2 opt-in, 3 reclaim, 4 require
    #[command(after_long_help = "Examples:\n  \
            gshare admin stage                       show the stage (any user)\n  \
            sudo gshare admin stage 2                claims have a queue and limits\n  \
            sudo gshare admin stage 3 --gpus 6,7     only on these GPUs\n  \
            sudo gshare admin stage 1 --group students\n  \
            sudo gshare admin stage 3 --from \"Mon 08:00\"    change it on Monday\n  \
            sudo gshare admin stage 4 --dry-run      who would be affected\n  \
            sudo gshare admin stage 4 --plan 3f9a0c51d27be684    apply that plan\n\n\
            1 observe: gshare only records; claims start at once and are counted. 2 opt-in: claims have a queue and \
            limits; gshare takes nothing from them. 3 reclaim: guarantees and idle rules apply too, and gshare may \
            offload, move or suspend claims to make room, always announced. 4 require: in addition, programs without \
            a claim cannot open GPUs.\n\n\
            If a GPU and a group have different stages, the lower one applies. Without --gpus and --group the stage \
            applies to all GPUs and users, and replaces stages set earlier for some GPUs or groups. Setting a stage \
            cancels a change planned with \
            --from. A change never limits, pauses, moves or ends a running program: a lower stage applies to running \
            claims at once, a higher one only to new claims. The stage survives restarts. Unlike mode and mig, it \
            gives way to gshare.toml: section [stage] there overrides it.")]
    Stage(StageArgs),
    /// Create a claim in a user's name, for all programs in a cgroup that gshare does not own
    #[command(
        override_usage = "gshare admin claim-for [OPTIONS] -u <USER> -n <NAME> --cgroup <PATH>"
    )]
    #[command(after_long_help = "Examples:\n  \
            gshare admin claim-for --user ada --name job-4711 -g 0.5 \\\n    \
            --cgroup /sys/fs/cgroup/system.slice/job-4711.scope\n  \
            gshare admin claim-for --user ada --name nightly --gpu-mem 8G --gpu-ids 1 \\\n    \
            --cgroup /system.slice/nightly.service --json\n  \
            gshare release job-4711\n\n\
            For batch systems, hubs, services and containers; only root may use it. Repeating the command returns the same \
            claim; its name identifies it. The cgroup may be created later. gshare never moves, freezes, kills or signals processes there. The \
            claim ends when root releases it or when the cgroup is removed; an empty cgroup does not end it. Memory \
            and compute are limited only for programs that have the environment that --json prints.")]
    ClaimFor(ClaimForArgs),
    /// Divide a GPU into instances (MIG), or make it whole again
    #[command(after_long_help = "Examples:\n  \
            gshare admin mig 1 3g.40gb+2g.20gb+1g.10gb\n  \
            gshare admin mig 1 7g.80gb --dry-run     what would be made and removed\n  \
            gshare admin mig 1 off\n\n\
            Refused (75) while the GPU is in use. Existing instances that belong to the layout stay. The layout \
            survives restarts and reboots, and overrides mig in section [gpu] of gshare.toml.")]
    Mig(MigArgs),
    /// Show what administrators did
    #[command(after_long_help = "Examples:\n  \
            gshare admin log            the last 50 entries\n  \
            gshare admin log -n 1000 --json\n\n\
            gshare only adds entries; it never changes or removes them.")]
    Log(LogArgs),
}

/// `gshare admin drain`.
#[derive(Args, Clone, Debug)]
pub struct DrainArgs {
    /// GPUs: indices or UUIDs
    #[arg(required = true, value_name = "GPU", value_delimiter = ',')]
    pub gpus: Vec<String>,
    /// Reason, shown to users who wait
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Return when no claim is left on these GPUs, or exit 75 after this time [default: no limit]
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, value_parser = value::time)]
    pub wait: Option<Option<Duration>>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `gshare admin undrain`.
#[derive(Args, Clone, Debug)]
pub struct UndrainArgs {
    /// GPUs: indices or UUIDs
    #[arg(required = true, value_name = "GPU", value_delimiter = ',')]
    pub gpus: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `gshare admin kill`.
#[derive(Args, Clone, Debug)]
pub struct KillArgs {
    /// Claims: ids (c3) or names
    #[arg(
        value_name = "ID",
        required_unless_present_any = ["user", "gpu"],
        conflicts_with_all = ["user", "gpu"]
    )]
    pub ids: Vec<String>,
    /// All claims of this user: login name or uid
    #[arg(short, long, value_name = "USER")]
    pub user: Option<String>,
    /// All claims on this GPU: index or UUID; with --user, only that user's claims there
    #[arg(long, value_name = "GPU")]
    pub gpu: Option<String>,
    /// Time between SIGTERM and SIGKILL, accurate to about a second [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = grace)]
    pub grace: Option<Duration>,
    /// Reason, shown to the owners
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `gshare admin quota`.
#[derive(Args, Clone, Debug)]
pub struct QuotaArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: QuotaCommand,
}

/// Subcommands of `gshare admin quota`.
#[derive(Clone, Debug, Subcommand)]
pub enum QuotaCommand {
    /// Set a quota, replacing an earlier or configured one
    #[command(after_long_help = "Examples:\n  \
            gshare admin quota set user:ada --max 2\n  \
            gshare admin quota set group:lab --gpus 1.5 --weight 2 --max 3\n\n\
            Claims within a guarantee are served first. The other claims follow, ordered by their owner's recent use \
            divided by the owner's weight, lowest first.")]
    Set {
        /// user:NAME, group:NAME or project:NAME
        #[arg(value_name = "PARTY")]
        party: String,
        /// Guaranteed GPUs
        #[arg(long, value_name = "N", value_parser = value::milli)]
        gpus: Option<u32>,
        /// Weight when sharing capacity that is guaranteed to nobody [default: 1]
        #[arg(long, value_name = "N", value_parser = value::milli)]
        weight: Option<u32>,
        /// Maximum number of GPUs held at a time
        #[arg(long, value_name = "N", value_parser = value::milli)]
        max: Option<u32>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove a quota made with gshare admin quota set. A quota in gshare.toml, if any, applies again
    Remove {
        /// user:NAME, group:NAME or project:NAME
        #[arg(value_name = "PARTY")]
        party: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the quotas in force (all users may do this)
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// `gshare admin mode`.
#[derive(Args, Clone, Debug)]
pub struct ModeArgs {
    /// GPU: index or UUID
    pub gpu: String,
    /// timeslice: claims take turns; mps: side by side; auto: mps while all claims on the GPU belong to one user and
    /// have class batch or inference, otherwise timeslice; exclusive: one claim at a time; mig: one instance each
    #[arg(value_parser = ["timeslice", "mps", "auto", "exclusive", "mig"])]
    pub mode: String,
    /// Wait until no claim is left on the GPU, or exit 75 after this time with the mode unchanged [default: no limit]
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, value_parser = value::time)]
    pub wait: Option<Option<Duration>>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `gshare admin release`.
#[derive(Args, Clone, Debug)]
pub struct ReleaseArgs {
    /// GPUs: indices or UUIDs
    #[arg(required = true, value_name = "GPU", value_delimiter = ',')]
    pub gpus: Vec<String>,
    /// Take the GPUs back after this time [default: not until --take]
    #[arg(long = "for", value_name = "TIME", value_parser = value::time)]
    pub back_after: Option<Duration>,
    /// Take released GPUs back
    #[arg(long, conflicts_with = "back_after")]
    pub take: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `gshare admin off`.
#[derive(Args, Clone, Debug)]
pub struct OffArgs {
    /// Switch on again after this time [default: stay off until gshare admin on]
    #[arg(long = "for", value_name = "TIME", value_parser = value::time)]
    pub until: Option<Duration>,
    /// Configuration of the service, used if the service does not answer [default: /etc/gshare/gshare.toml]
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `gshare admin on`.
#[derive(Args, Clone, Debug)]
pub struct OnArgs {
    /// Configuration of the service, used if the service does not answer [default: /etc/gshare/gshare.toml]
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `gshare admin stage`.
#[derive(Args, Clone, Debug)]
pub struct StageArgs {
    /// 1 (observe), 2 (opt-in), 3 (reclaim) or 4 (require) [default: only show]
    #[arg(value_parser = Stage::parse)]
    pub stage: Option<Stage>,
    /// Only on these GPUs: indices or UUIDs, separated by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',', requires = "stage")]
    pub gpus: Vec<String>,
    /// At most this stage for the members of a group
    #[arg(
        long,
        value_name = "GROUP",
        requires = "stage",
        conflicts_with = "gpus"
    )]
    pub group: Option<String>,
    /// Change it at this time: "Mon 08:00", "08:00" or "2026-12-01 08:00" [default: now]
    #[arg(long, value_name = "TIME", requires = "stage", value_parser = from)]
    pub from: Option<u64>,
    /// Print whose runs of the last 7 days would be treated differently, and a plan id; change nothing
    #[arg(long, requires = "stage", conflicts_with = "plan")]
    pub dry_run: bool,
    /// Change the stage only if the dry run with this id would still print the same
    #[arg(long, value_name = "ID", requires = "stage")]
    pub plan: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The next time that this machine's clock shows it, in Unix milliseconds.
fn from(text: &str) -> Result<u64, String> {
    let at = crate::clock::next(text, &chrono::Local::now())?;
    Ok(at.timestamp_millis().unsigned_abs())
}

/// `gshare admin claim-for`.
#[derive(Args, Clone, Debug)]
pub struct ClaimForArgs {
    /// Owner: login name or uid
    #[arg(short, long, value_name = "USER")]
    pub user: String,
    /// Name of the claim; repeating the command with the same name returns the same claim
    #[arg(short, long, value_name = "NAME")]
    pub name: String,
    /// Cgroup of its programs: the directory, or the name in /proc/PID/cgroup
    #[arg(long, value_name = "PATH")]
    pub cgroup: String,
    /// 0.5: half of a GPU; 2: two whole GPUs; 2x0.5: half of each of two GPUs
    #[arg(short, long, value_name = "N", value_parser = value::claim_size)]
    pub gpus: Option<Size>,
    /// Memory and SMs separately.
    #[command(flatten)]
    pub part: PartArgs,
    /// Only these GPUs: indices or UUIDs, separated by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub gpu_ids: Vec<String>,
    /// Project that the claim belongs to
    #[arg(long, value_name = "PROJECT")]
    pub project: Option<String>,
    /// Class of work: interactive, batch or inference
    #[arg(long, value_name = "CLASS", value_parser = ClassParser)]
    pub class: Option<Class>,
    /// Wait until there is room, at most TIME [without TIME: no limit]. Without --wait, exit 75 if there is no room now
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "forever", value_parser = super::wait)]
    pub wait: Option<Wait>,
    /// Print JSON, with the environment for its programs
    #[arg(long)]
    pub json: bool,
}

/// `gshare admin mig`.
#[derive(Args, Clone, Debug)]
pub struct MigArgs {
    /// GPU: index or UUID
    pub gpu: String,
    /// Profiles joined by +, or off
    #[arg(value_name = "LAYOUT")]
    pub layout: String,
    /// Print what would be made and removed, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `gshare admin log`.
#[derive(Args, Clone, Debug)]
pub struct LogArgs {
    /// How many entries, newest last
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    pub last: u32,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Unlike a time limit, a grace time may be zero.
fn grace(text: &str) -> Result<Duration, String> {
    match text {
        "0" | "0s" => Ok(Duration::ZERO),
        _ => gshare_core::units::parse_duration(text).map_err(|e| e.to_string()),
    }
}

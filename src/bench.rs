//! `gshare bench NAME`: each benchmark runs from a clean clone and prints a table for people. Its last line is one JSON
//! object with the measurements, the baselines of the same run, the goals and `ok`.

mod abuse;
mod attribution;
mod claim;
mod cost;
mod dice;
mod gate;
mod kernel;
mod predict;
mod schedule;
mod screen;
mod shim;
mod stats;

pub(crate) use abuse::{FLOOD_ARGUMENT, flood};
pub(crate) use gate::{WORKER_ARGUMENT, program};
pub(crate) use shim::{CHILD_ARGUMENT, child};

use crate::command::args::BenchArgs;
use crate::command::out::print;

/// Benchmarks by name; each returns its last line.
const ALL: [(&str, Run); 10] = [
    ("abuse", abuse::run),
    ("attribution", attribution::run),
    ("claim", claim::run),
    ("cost", cost::run),
    ("gate", gate::run),
    ("kernel", kernel::run),
    ("predict", predict::run),
    ("schedule", schedule::run),
    ("screen", screen::run),
    ("shim", shim::run),
];

type Run = fn(&BenchArgs) -> anyhow::Result<serde_json::Value>;

/// Runs a benchmark. The exit code is 1 if the result is judged and misses a goal.
///
/// # Errors
/// If there is no such benchmark or it cannot run here.
pub fn run(args: BenchArgs) -> anyhow::Result<i32> {
    if let Some(preset) = &args.preset {
        anyhow::ensure!(
            gshare_sim_board::Preset::by_name(preset).is_some(),
            "there is no preset `{preset}`: kind, real, real:low, real:high, worst"
        );
    }
    crate::station::end_on_signals()?;
    let Some((_, run)) = ALL.iter().find(|(name, _)| *name == args.name) else {
        let all = ALL
            .map(|(name, _)| format!("gshare bench {name}"))
            .join(", ");
        anyhow::bail!("there is no benchmark `{}`\nhint: {all}", args.name);
    };
    if cfg!(unoptimized) {
        say(&format!(
            "THIS BUILD IS NOT OPTIMIZED: an installed gshare costs less; cargo run --profile dist -- bench {}",
            args.name
        ));
    }
    let mut line = run(&args)?;
    line["optimized"] = (!cfg!(unoptimized)).into();
    say(&line.to_string());
    Ok(i32::from(line["judged"] != false && line["ok"] != true))
}

/// Prints a line; ignores a closed stdout.
fn say(text: &str) {
    let _ = print(&format!("{text}\n"));
}

/// Duration of a run on an idle machine, printed before the run.
fn takes(seconds: f64) -> String {
    match seconds {
        long if long > 90.0 => format!("about {:.0} min", long / 60.0),
        short => format!("about {:.0} s", short.max(1.0)),
    }
}

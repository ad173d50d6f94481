//! `gshare bench NAME`: every benchmark runs from a clean clone, prints a table for people and, as its last
//! line, one JSON object with what was measured, the baselines of the same run, the goals and `ok`.

mod abuse;
mod attribution;
mod claim;
mod cost;
mod density;
mod dice;
mod gate;
mod history;
mod kernel;
mod llm_and_vision;
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

/// Runs a benchmark. The exit code is 1 where it is judged and a goal was not met.
///
/// # Errors
/// When there is no such benchmark or it cannot run here.
pub fn run(args: BenchArgs) -> anyhow::Result<i32> {
    if let Some(preset) = &args.preset {
        anyhow::ensure!(
            gshare_sim_board::Preset::by_name(preset).is_some(),
            "there is no preset `{preset}`: kind, real, real:low, real:high, worst"
        );
    }
    crate::station::end_on_signals()?;
    let line = match args.name.as_str() {
        "abuse" => abuse::run(&args)?,
        "attribution" => attribution::run(&args)?,
        "claim" => claim::run(&args)?,
        "cost" => cost::run(&args)?,
        "density" => density::run(&args)?,
        "gate" => gate::run(&args)?,
        "history" => history::run(&args)?,
        "kernel" => kernel::run(&args)?,
        "llm_and_vision" => llm_and_vision::run(&args)?,
        "predict" => predict::run(&args)?,
        "schedule" => schedule::run(&args)?,
        "screen" => screen::run(&args)?,
        "shim" => shim::run(&args)?,
        other => anyhow::bail!(
            "there is no benchmark `{other}`\nhint: gshare bench abuse, gshare bench attribution, gshare bench claim, gshare bench cost, gshare bench density, gshare bench gate, gshare bench history, gshare bench kernel, gshare bench llm_and_vision, gshare bench predict, gshare bench schedule, gshare bench screen, gshare bench shim"
        ),
    };
    say(&line.to_string());
    Ok(i32::from(line["judged"] != false && line["ok"] != true))
}

/// A line on stdout; nobody is left to tell when it is closed.
fn say(text: &str) {
    let _ = print(&format!("{text}\n"));
}

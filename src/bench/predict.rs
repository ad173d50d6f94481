//! `bench predict`: how well sizes are predicted from earlier runs. The runs are made up (see [`families`]).

mod families;

use serde_json::json;

use self::families::Change;
use super::dice::Dice;
use super::say;
use super::stats::Times;
use crate::cli::args::BenchArgs;

/// Families of a seed.
const FAMILIES: usize = 120;

pub(super) fn run(args: &BenchArgs) -> anyhow::Result<i32> {
    let seeds = args.runs.unwrap_or(if args.quick { 2 } else { 10 });
    anyhow::ensure!(seeds > 0, "--runs 0 measures nothing");
    say(&format!(
        "made-up families of runs: {FAMILIES} families for each of the seeds 1 to {seeds}"
    ));
    let (mut all, mut repeated, mut loud, mut changed) = (0, 0, Vec::new(), 0);
    for seed in 1..=u64::from(seeds) {
        let (families, runs) = families::draw(seed, FAMILIES, Change::None);
        all += runs.len();
        repeated += runs.iter().filter(|run| run.number >= 3).count();
        loud.extend(families.iter().map(|f| f.noise));
        let (families, _) = families::draw(seed, FAMILIES, Change::Once);
        changed += families
            .iter()
            .filter_map(families::Family::changes_at)
            .count();
        let (family, runs) = families::scaling(&mut Dice::new(seed), 0);
        let last = runs.last().map_or(0, |r| r.batch);
        let truth = family.median(last, runs.len() - 1) / f64::from(1 << 30);
        let found = runs.last().map_or(0, |r| r.peak) as f64 / f64::from(1 << 30);
        say(&format!(
            "seed {seed}: family {} of user {} `{}`: batch {last}: {found:.1} GiB, median {truth:.1}; {:.0} s",
            runs[0].family,
            family.user,
            runs[0].command.join(" "),
            runs[0].run_s,
        ));
    }
    let part = repeated as f64 / all.max(1) as f64;
    let noise = Times::new(loud);
    say(&format!(
        "{all} runs, {:.0} % of them after three or more of their family; noise of a family {:.3} in the median, {:.3} in the ninth decile; {changed} families that change",
        part * 100.0,
        noise.median().unwrap_or(f64::NAN),
        noise.quantile(0.9).unwrap_or(f64::NAN),
    ));
    say(&json!({ "bench": "predict", "generator_only": true, "runs": all, "repeated": part, "ok": true }).to_string());
    Ok(0)
}

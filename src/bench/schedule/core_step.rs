//! Duration of a step of the core, including the planner, on a large machine with many claims.

use gshare_core::play::cases::Goal;
use gshare_core::play::desk::{Desk, SIZES, Size, USERS};
use gshare_core::play::figures::mean;
use serde_json::{Value, json};

use crate::bench::say;
use crate::bench::stats::Times;

const SEED: u64 = 1;

fn line(name: &str, times: &Times) -> String {
    let at = |q| times.quantile(q).unwrap_or_default();
    format!(
        "{name:<32} p50 {:>7.1} us, p99 {:>7.1} us, max {:>8.1} us",
        at(0.5),
        at(0.99),
        at(1.0)
    )
}

fn figures(times: &Times, count: usize) -> Value {
    json!({
        "count": count,
        "p50_us": times.median(),
        "p99_us": times.p99(),
        "max_us": times.quantile(1.0),
    })
}

/// Plays a history on each machine; a quick run uses only the smaller one.
pub(super) fn run(quick: bool) -> (Value, Vec<Goal>) {
    let sizes = &SIZES[..if quick { 1 } else { SIZES.len() }];
    let (mut measured, mut goals) = (Vec::new(), Vec::new());
    for size in sizes {
        let rounds = if quick { 100 } else { size.rounds };
        let (figures, met) = history(*size, rounds);
        measured.push(figures);
        goals.extend(met);
    }
    (json!({ "core_step": measured }), goals)
}

fn history(size: Size, rounds: usize) -> (Value, Vec<Goal>) {
    let Size {
        gpus,
        claims,
        goal_us,
        ..
    } = size;
    let mut desk = Desk::new(size, SEED, super::cpu_ns);
    let began = (desk.steps_us.len(), desk.decisions_us.len());
    let mut looks: Vec<[f64; 2]> = Vec::new();
    for round in 0..rounds {
        desk.round();
        looks.extend((round % 3 == 0).then(|| desk.look()));
    }
    // The first moment, when all claims arrive at once, does not count.
    let steps = desk.steps_us.split_off(began.0);
    let decisions = desk.decisions_us.split_off(began.1);
    let (count, decided) = (steps.len(), decisions.len());
    let (steps, decisions) = (Times::new(steps), Times::new(decisions));
    let [runs, waits, lies] = [0, 1, 2].map(|i| {
        let of: Vec<f64> = desk.seen.iter().map(|seen| seen[i] as f64).collect();
        mean(&of)
    });
    say(&format!(
        "\na step of the core on {gpus} GPUs with {claims} claims of {USERS} users, seed {SEED}: {rounds} random events in {} min of\n\
         virtual time; on average {runs:.0} ran, {waits:.0} waited and {lies:.0} were parked; {} announcements, {} moves and parkings;\n\
         processor time",
        desk.now.as_secs() / 60,
        desk.announced,
        desk.pulled,
    ));
    say(&line(&format!("every step ({count})"), &steps));
    say(&line(&format!("decisions alone ({decided})"), &decisions));
    let looks = [0, 1].map(|i| Times::new(looks.iter().map(|l| l[i]).collect()));
    say(&line("what a user could claim now", &looks[0]));
    say(&line("when the first start", &looks[1]));
    let goals = vec![
        Goal::most(
            format!("B6 {gpus} GPUs, {claims} claims: core step p99, us of processor time"),
            steps.p99().unwrap_or(f64::INFINITY),
            goal_us,
        ),
        Goal::most(
            format!(
                "B6 {gpus} GPUs, {claims} claims: p99 of the steps that decide, planner included, us"
            ),
            decisions.p99().unwrap_or(f64::INFINITY),
            goal_us,
        ),
    ];
    let measured = json!({
            "gpus": gpus,
            "claims": claims,
            "seed": SEED,
            "rounds": rounds,
            "running": runs,
            "waiting": waits,
            "parked": lies,
            "announced": desk.announced,
            "pulled": desk.pulled,
            "steps": figures(&steps, count),
            "decisions": figures(&decisions, decided),
            "claimable_now": figures(&looks[0], looks[0].len()),
            "expected_starts": figures(&looks[1], looks[1].len()),
    });
    (measured, goals)
}

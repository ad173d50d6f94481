//! What the costs alone allow: for an arbiter that knows the future, hears of everything at once and costs nothing. Each
//! test says what it assumes, and a figure bounds only what does the same. A light step changes the GPU's context twice,
//! for it and back, and that time is charged to it.

use crate::model::{Costs, MS, US};

const THINK: u64 = 900 * US;
const KERNEL: u64 = 100 * US;

/// A step of 100 us + 900 us: its length alone, and what it costs others of the GPU. The least of each range.
fn step(costs: Costs) -> (f64, f64) {
    let alone = KERNEL + THINK + costs.reach.0 + costs.wake.0;
    (alone as f64, (KERNEL + 2 * costs.switch.0) as f64)
}

/// Beside a flood that keeps this part of the GPU: how many times as long as alone.
fn slower(costs: Costs, flood: f64) -> f64 {
    let (alone, costs_others) = step(costs);
    (costs_others.min(alone) / (1.0 - flood) / alone).max(1.0)
}

#[test]
fn short_steps_beside_a_flood_take_longer_than_the_goal_where_changes_of_context_are_slow() {
    let (alone, costs_others) = step(Costs::HIGH);
    let least = slower(Costs::HIGH, 0.75);
    let kept = 1.0 - costs_others / (1.2 * alone);
    println!(
        "100 us + 900 us, real:high: at least {least:.2} times as long as alone with 0.75 for the \
         flood; with 1.2 times, {kept:.2} for the flood; real: {:.2} times",
        slower(Costs::REAL, 0.75)
    );
    assert!((1.8..1.9).contains(&least), "{least}");
    assert!(kept < 0.65, "{kept}");
    assert!(slower(Costs::REAL, 0.75) <= 1.2);
}

/// Whole kernels of 1 ms run between two steps, one and a half on average if the flood keeps its part.
#[test]
fn short_steps_beside_a_flood_wait_longer_than_the_goal_where_changes_of_context_are_slow() {
    let waits = |costs, kernels: f64| {
        let (alone, costs_others) = step(costs);
        costs_others + kernels * MS as f64 - alone
    };
    let kernels = |costs| 3.0 * step(costs).1 / MS as f64;
    let (mean, often) = (kernels(Costs::HIGH), waits(Costs::HIGH, 2.0));
    // All wait for one kernel, but one in a hundred.
    let seldom = waits(Costs::HIGH, 1.0 + (mean - 1.0) * 100.0);
    println!(
        "100 us + 900 us, real:high: {mean:.1} kernels between two steps; at least half of the steps wait {:.2} ms, or \
         one in a hundred {:.0} ms",
        often / MS as f64,
        seldom / MS as f64
    );
    assert!(mean > 1.4 && often > 1.3 * MS as f64 && seldom > 40.0 * MS as f64);
    assert!(kernels(Costs::REAL) < 1.0 && waits(Costs::REAL, 1.0) < 1.3 * MS as f64);
}

/// A claim of two GPUs beside a light claim on each: light steps that wait for as long as allowed leave it the most. The
/// work pauses for the steps of both, which fall together only if they wait for each other.
#[test]
fn collectives_beside_light_steps_that_do_not_wait_for_each_other_take_longer_than_the_goal() {
    let (alone, costs_others) = step(Costs::HIGH);
    let slower = |wait: u64, apart: f64| 1.0 / (1.0 - apart * costs_others / (alone + wait as f64));
    let (slice, kernel) = (2 * MS + Costs::HIGH.switch.0, MS + 300 * US);
    let [together, apart] = [1.0, 2.0].map(|apart| slower(slice, apart));
    let soon = slower(kernel, 1.0);
    println!(
        "collectives beside light claims, real:high: at least {together:.2} times as long as alone if both wait \
         2.2 ms and fall together, {apart:.2} if they do not; {soon:.2} if they wait 1.3 ms and fall together"
    );
    assert!(together <= 1.2 && apart > 1.4 && soon > 1.2);
}

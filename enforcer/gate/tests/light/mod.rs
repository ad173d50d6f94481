//! Programs that need little of the GPU run as fast as alone, beside each other and beside programs that need all of
//! it.

mod bounds;

use crate::model::{
    Act, Costs, Gate, MS, Program, Sim, US,
    gates::{Open, Turns},
};
use crate::{SECOND, SEEDS, asked, seed, turns};

/// Programs of one thread each in their own claims, all started at once.
fn side_by_side(programs: &[Program], costs: Costs, seed: u64) -> Sim {
    let mut sim = Sim::new(programs.len(), seed);
    sim.costs = costs;
    for (claim, program) in programs.iter().enumerate() {
        let p = sim.process(claim);
        sim.thread(p, *program, 1.0);
        sim.act((1 + claim as u64) * MS, Act::Start(p));
    }
    sim
}

/// Kernels that each program has finished in `length`, from 1.3 s after the start, and the context switches.
fn finished(sim: &mut Sim, gate: &mut dyn Gate, length: u64) -> (Vec<f64>, u64) {
    sim.run(1300 * MS, gate);
    let before: Vec<u64> = sim.threads.iter().map(|t| t.finished).collect();
    for thread in &mut sim.threads {
        thread.waits.clear();
        thread.bursts.clear();
    }
    let switches = sim.switches;
    sim.run(length, gate);
    let done = sim.threads.iter().zip(before);
    let done = done.map(|(t, before)| (t.finished - before) as f64);
    (done.collect(), sim.switches - switches)
}

/// The 99th percentile of a thread's waits.
fn p99(sim: &Sim, thread: usize) -> u64 {
    let mut waits = sim.threads[thread].waits.clone();
    waits.sort_unstable();
    waits.get(waits.len() * 99 / 100).copied().unwrap_or(0)
}

const fn sync(kernel: u64, think: u64) -> Program {
    Program::Sync { kernel, think }
}

/// Target of every mix of light programs.
#[test]
fn light_programs_run_as_fast_as_without_a_gate() {
    let small = sync(10 * US, 200 * US);
    let large = sync(100 * US, 200 * US);
    let cases: &[(&str, &[u32], &[Program])] = &[
        ("2 x 2.5 %", &[500, 500], &[small; 2]),
        ("2 x 25 %", &[500, 500], &[large; 2]),
        ("4 x 2.5 %", &[250; 4], &[small; 4]),
        ("10:90 both light", &[100, 900], &[small; 2]),
    ];
    for costs in [Costs::KIND, Costs::REAL, Costs::HIGH, Costs::WORST] {
        for (name, requests, programs) in cases {
            let mut bare = side_by_side(programs, costs, seed());
            let (without, bare_switches) = finished(&mut bare, &mut Open, 3 * SECOND);
            let mut sim = side_by_side(programs, costs, seed());
            let mut gate = turns(&mut sim, &asked(requests));
            let looks = sim.arbiter_runs;
            let (with, switches) = finished(&mut sim, &mut gate, 3 * SECOND);
            let looks = sim.arbiter_runs - looks;
            let slower: Vec<f64> = without.iter().zip(&with).map(|(b, g)| b / g).collect();
            println!(
                "{name}: {slower:.3?} times as long, {switches} switches for {bare_switches}, {looks} looks"
            );
            assert!(slower.iter().all(|s| *s <= 1.05), "{name}: {slower:?}");
            assert!(switches as f64 <= 1.2 * bare_switches as f64 + 10.0);
            assert!(looks <= 30, "{looks} looks");
        }
    }
}

fn think_of(program: Program) -> u64 {
    match program {
        Program::Sync { think, .. } => think,
        _ => 0,
    }
}

/// A light claim beside one that takes all it can get.
#[test]
fn a_light_claim_beside_a_flood_waits_for_one_kernel() {
    let cases = [
        ("1 ms + 9 ms beside 1 ms", 250, sync(MS, 9 * MS), MS, 1.05),
        (
            "100 us + 900 us beside 1 ms",
            250,
            sync(100 * US, 900 * US),
            MS,
            1.3,
        ),
        (
            "100 us + 900 us beside 10 us",
            250,
            sync(100 * US, 900 * US),
            10 * US,
            1.4,
        ),
        (
            "1 ms + 9 ms beside 10 us",
            250,
            sync(MS, 9 * MS),
            10 * US,
            1.2,
        ),
        (
            "1 ms + 9 ms beside 20 ms",
            250,
            sync(MS, 9 * MS),
            20 * MS,
            3.2,
        ),
    ];
    for costs in [Costs::KIND, Costs::REAL, Costs::HIGH, Costs::WORST] {
        let late = if costs.switch.0 > 100 * US {
            600 * US
        } else {
            300 * US + costs.switch.1
        };
        for (name, request, light, kernel, most) in cases {
            let mut alone = side_by_side(&[light], costs, seed());
            let (without, _) = finished(&mut alone, &mut Open, 3 * SECOND);
            let programs = [light, Program::Flood { kernel }];
            let mut sim = side_by_side(&programs, costs, seed());
            let mut gate = turns(&mut sim, &asked(&[request, 1000 - request]));
            let looks = sim.arbiter_runs;
            let (with, _) = finished(&mut sim, &mut gate, 3 * SECOND);
            let looks = (sim.arbiter_runs - looks) as f64 / 4.3 * 3.0 / with[0];
            let slower = without[0] / with[0];
            let (wait, used) = (p99(&sim, 0), sim.used(SECOND + 1300 * MS, sim.now));
            println!(
                "{name}: {slower:.3} times as long as alone, p99 of a wait {} us, {used:.3?}, {looks:.2} looks a step",
                wait / US
            );
            // Where it comes back within each kernel, both go on by themselves.
            let often = think_of(light) < MS;
            let between = often && kernel == MS;
            // With context switches that cost twice as much as its kernels it does not delay others by less than its part: it
            // waits for two kernels at times, or gets turns.
            if often && late > 400 * US {
                let (most, most_looks) = if between { (2.3, 0.3) } else { (5.0, 3.1) };
                assert!(
                    slower <= most && looks <= most_looks,
                    "{name}: {slower}, {looks}"
                );
                assert!(
                    used[1] >= if between { 0.7 } else { 0.65 },
                    "{name}: {used:?}"
                );
                continue;
            }
            // One at the beginning, and one at the end if that is not where it was told.
            assert!(
                looks <= if between { 0.3 } else { 1.5 },
                "{name}: {looks} looks a step"
            );
            assert!(slower <= most, "{name}: {slower}");
            assert!(wait <= kernel + kernel / 10 + late, "{name}: {wait}");
            // Of the time without the context switches that the light claim causes, and the gaps at them.
            let least = f64::from(1000 - request) / 1000.0;
            let spare = if often { 0.0 } else { 0.02 };
            assert!(used[1] >= least - spare, "{used:?}");
        }
    }
}

/// A flood knows the beginning of its next turn while the light claim is at work, and begins it by itself.
#[test]
fn a_turn_that_is_planned_begins_whatever_becomes_of_the_light_claim() {
    for seed in 1..=2 * SEEDS {
        let acts = [
            (Act::Kill(0), 0.97),
            (Act::Stop(0), 0.97),
            (Act::Silence, 0.74),
        ];
        // The second is told of no turn: it launches between the kernels.
        let light = [sync(MS, 9 * MS), sync(100 * US, 900 * US)];
        let cases = acts.map(|(act, least)| light.map(|light| (act, least, light)));
        for (act, least, light) in cases.into_iter().flatten() {
            let programs = [light, Program::Flood { kernel: MS }];
            let mut sim = side_by_side(&programs, Costs::REAL, seed);
            let mut gate = turns(&mut sim, &asked(&[250, 750]));
            let at = 2 * SECOND + sim.rng.below(10 * MS);
            sim.act(at, act);
            sim.run(at, &mut gate);
            sim.threads[1].worst_stall = 0;
            sim.run(SECOND, &mut gate);
            let (used, stall) = (
                sim.used(sim.now - 900 * MS, sim.now),
                sim.threads[1].worst_stall,
            );
            println!("{light:?}, {act:?}: {used:.3?}, {} ms", stall / MS);
            assert!(used[1] >= least, "{act:?}, seed {seed}: {used:?}");
            assert!(stall <= 60 * MS, "{act:?}, seed {seed}: {} ms", stall / MS);
        }
    }
}

/// A light claim launches between a flood's kernels; then another claim takes all that it can get, and goes again.
#[test]
fn spaces_between_launches_end_when_another_claim_comes() {
    for seed in 1..=SEEDS {
        let programs = [sync(100 * US, 900 * US), Program::Flood { kernel: MS }];
        let mut sim = side_by_side(&programs, Costs::REAL, seed);
        sim.claims = 3;
        let other = sim.process(2);
        sim.thread(other, Program::Flood { kernel: MS }, 1.0);
        let mut gate = turns(&mut sim, &asked(&[250, 400, 350]));
        let looks_a_second = |sim: &mut Sim, gate: &mut Turns| {
            let before = sim.arbiter_runs;
            sim.run(SECOND, gate);
            sim.arbiter_runs - before
        };
        sim.run(SECOND, &mut gate);
        assert!(looks_a_second(&mut sim, &mut gate) < 300, "seed {seed}");
        sim.act(MS, Act::Start(other));
        sim.run(1500 * MS, &mut gate);
        let from = sim.now;
        sim.run(2 * SECOND, &mut gate);
        let used = sim.used(from, sim.now);
        println!("seed {seed}: {used:.3?}");
        // The light claim has its steps, and the others take turns: what is missing goes to changes of context.
        assert!(
            used[0] >= 0.06 && used[1] >= 0.3 && used[2] >= 0.26,
            "{used:?}"
        );
        sim.act(MS, Act::Kill(other));
        sim.run(SECOND, &mut gate);
        assert!(looks_a_second(&mut sim, &mut gate) < 300, "seed {seed}");
    }
}

/// A light claim begins to take all that it can get: it calls the arbiter, which checks rarely until then.
#[test]
fn a_flood_beside_light_programs_takes_turns_soon() {
    for seed in 1..=4 * SEEDS {
        let programs = [sync(10 * US, 200 * US); 2];
        let mut sim = side_by_side(&programs, Costs::REAL, seed);
        let flood = sim.process(1);
        sim.thread(flood, Program::Flood { kernel: MS }, 1.0);
        let begins = 1500 * MS + sim.rng.below(400 * MS);
        sim.act(begins, Act::Start(flood));
        let mut gate = turns(&mut sim, &asked(&[500, 500]));
        sim.run(begins, &mut gate);
        assert!(!gate.arbiter.is_contended());
        let mut took = 0;
        while !gate.arbiter.is_contended() {
            sim.run(5 * MS, &mut gate);
            took += 5;
            assert!(took <= 300, "{took} ms, seed {seed}");
        }
        // All launch again once it has been gone for a while.
        sim.act(MS, Act::Kill(flood));
        sim.run(900 * MS, &mut gate);
        assert!(!gate.arbiter.is_contended(), "seed {seed}");
        println!("seed {seed}: {took} ms");
    }
}

/// A claim that wakes all the time gets turns like any other.
#[test]
fn who_wakes_all_the_time_leaves_the_others_their_guarantee() {
    for costs in [Costs::KIND, Costs::REAL, Costs::HIGH, Costs::WORST] {
        let programs = [sync(US, 200 * US), Program::Flood { kernel: MS }];
        let mut sim = side_by_side(&programs, costs, seed());
        let mut gate = turns(&mut sim, &asked(&[500, 500]));
        let looks = sim.arbiter_runs;
        let (done, _) = finished(&mut sim, &mut gate, 3 * SECOND);
        let looks = (sim.arbiter_runs - looks) as f64 / 4.3;
        let used = sim.used(SECOND + 1300 * MS, sim.now);
        println!(
            "1 us every 200 us beside a flood: {used:.3?}, {} launches, {looks:.0} looks a second",
            done[0]
        );
        // It launches once between two kernels.
        assert!(used[1] >= 0.7, "{used:?}");
        assert!(done[0] >= 3.0 * 650.0, "{done:?}");
        assert!(looks <= 600.0, "{looks}");
    }
}

/// Steps of several launches one after the other beside a flood: rarely do its kernels run between them.
#[test]
fn launches_in_a_row_are_not_torn_apart() {
    for costs in [Costs::KIND, Costs::REAL] {
        let steps = Program::Steps {
            kernel: 30 * US,
            think: 40 * US,
            count: 5,
            pause: 900 * US,
        };
        let programs = [steps, Program::Flood { kernel: MS }];
        let mut alone = side_by_side(&programs[..1], costs, seed());
        let (without, _) = finished(&mut alone, &mut Open, 3 * SECOND);
        let mut sim = side_by_side(&programs, costs, seed());
        let mut gate = turns(&mut sim, &asked(&[500, 500]));
        let (with, _) = finished(&mut sim, &mut gate, 3 * SECOND);
        let slower = without[0] / with[0];
        let used = sim.used(SECOND + 1300 * MS, sim.now);
        println!(
            "steps of five launches beside a flood: {slower:.3} times as long as alone, {used:.3?}"
        );
        // More than three times if one did after each.
        assert!(slower <= 2.6, "{slower}");
        assert!(used[1] >= 0.5, "{used:?}");
    }
}

/// A kernel that does not end is reported, and since when.
#[test]
fn a_kernel_that_does_not_end_is_named() {
    let endless = Program::Flood {
        kernel: 40 * SECOND,
    };
    let programs = [endless, Program::Flood { kernel: MS }];
    let mut sim = side_by_side(&programs, Costs::REAL, seed());
    let mut gate = turns(&mut sim, &asked(&[500, 500]));
    sim.run(2 * SECOND, &mut gate);
    assert_eq!(gate.stuck, None, "two seconds are not for ever");
    sim.run(8 * SECOND, &mut gate);
    let (claim, since) = gate.stuck.expect("named");
    assert_eq!(claim, 0);
    let lasts = sim.now - since;
    assert!((9 * SECOND..=10 * SECOND).contains(&lasts), "{lasts}");
    // The other claim has half of the GPU meanwhile.
    let used = sim.used(6 * SECOND, sim.now);
    assert!(used[1] > 0.4, "{used:?}");
}

/// Programs that need little are not held back, even while the arbiter is silent.
#[test]
fn a_service_that_falls_silent_while_there_is_enough_changes_nothing() {
    let programs = [sync(10 * US, 200 * US); 2];
    let mut bare = side_by_side(&programs, Costs::REAL, seed());
    let (without, _) = finished(&mut bare, &mut Open, 2 * SECOND);
    let mut sim = side_by_side(&programs, Costs::REAL, seed());
    let mut gate = turns(&mut sim, &asked(&[500, 500]));
    sim.act(SECOND, Act::Silence);
    let (with, _) = finished(&mut sim, &mut gate, 2 * SECOND);
    for (without, with) in without.iter().zip(&with) {
        assert!(without / with <= 1.05, "{without} {with}");
    }
}

/// A token every 15 ms beside training: the longest time of a token. It is due, so no long kernel is before it.
#[test]
fn tokens_come_sooner_than_in_plain_time_slices() {
    let costs = [Costs::REAL, Costs::HIGH];
    let cases = costs.map(|costs| [(costs, MS), (costs, 5 * MS)]);
    let cases = (1..=SEEDS).flat_map(|seed| cases.as_flattened().iter().map(move |c| (seed, *c)));
    for (seed, (costs, kernel)) in cases {
        let token = Program::Beat {
            kernel: 30 * US,
            count: 100,
            every: 15 * MS,
        };
        let programs = [token, Program::Flood { kernel }];
        let times = |sim: &mut Sim, gate: &mut dyn Gate| {
            finished(sim, gate, 4 * SECOND);
            sim.p99_of_bursts(0)
        };
        let mut bare = side_by_side(&programs, costs, seed);
        let without = times(&mut bare, &mut Open);
        let mut sim = side_by_side(&programs, costs, seed);
        let mut gate = turns(&mut sim, &asked(&[500, 500]));
        let looks = sim.arbiter_runs;
        let with = times(&mut sim, &mut gate);
        let looks = (sim.arbiter_runs - looks) as f64 / 5.3 * 0.015;
        let used = sim.used(SECOND + 300 * MS, sim.now);
        println!(
            "a token beside {} us: {} us, {} us without, {used:.3?}, {looks:.2} looks a token",
            kernel / US,
            with / US,
            without / US
        );
        assert!(with as f64 <= 0.7 * without as f64);
        assert!(looks <= 2.5, "{looks}");
        // Of the 80 % that the tokens leave.
        assert!(used[1] > 0.6, "{used:?}");
    }
}

/// Tokens half a millisecond apart beside training, both with half of the GPU: two hand-overs take longer than a pause.
#[test]
fn a_turn_outlasts_a_short_pause() {
    let costs = [Costs::REAL, Costs::HIGH];
    for (seed, costs) in (1..=SEEDS).flat_map(|seed| costs.map(|costs| (seed, costs))) {
        let token = Program::Burst {
            kernel: 30 * US,
            count: 100,
            pause: 500 * US,
        };
        let programs = [token, Program::Flood { kernel: MS }];
        let mut sim = side_by_side(&programs, costs, seed);
        let mut gate = turns(&mut sim, &asked(&[500, 500]));
        let looks = sim.arbiter_runs;
        finished(&mut sim, &mut gate, 4 * SECOND);
        let tokens = sim.threads[0].bursts.len() as f64;
        let looks = (sim.arbiter_runs - looks) as f64 / tokens;
        let used = sim.used(SECOND + 300 * MS, sim.now);
        println!("tokens with short pauses: {looks:.2} looks each, {used:.3?}");
        assert!(looks <= 1.0, "{looks}");
        assert!(used[1] >= 0.47, "{used:?}");
        assert!(used.iter().sum::<f64>() >= 0.89, "{used:?}");
    }
}

/// A stream that is held up for two seconds by something other than the GPU holds up no other stream, and keeps no
/// turn.
#[test]
fn a_stream_that_waits_holds_up_no_other() {
    let costs = [Costs::KIND, Costs::REAL, Costs::HIGH, Costs::WORST];
    for (seed, costs) in (1..=SEEDS).flat_map(|seed| costs.map(|costs| (seed, costs))) {
        let mut sim = Sim::new(2, seed);
        sim.costs = costs;
        let p = sim.process(0);
        let held = Program::Held {
            kernel: 10 * US,
            hold: 2 * SECOND,
        };
        let steps = Program::Burst {
            kernel: 10 * US,
            count: 20,
            pause: 0,
        };
        sim.thread(p, held, 1.0);
        sim.thread(p, steps, 1.0);
        let flood = sim.process(1);
        sim.thread(flood, Program::Flood { kernel: MS }, 1.0);
        sim.act(MS, Act::Start(p));
        sim.act(2 * MS, Act::Start(flood));
        let mut gate = turns(&mut sim, &asked(&[500, 500]));
        sim.run(500 * MS, &mut gate);
        sim.threads[1].bursts.clear();
        sim.run(4500 * MS, &mut gate);
        let worst = sim.threads[1].bursts.iter().copied().max().unwrap_or(0);
        let used = sim.used(SECOND + 500 * MS, sim.now);
        println!("worst step {} us, {used:.3?}", worst / US);
        assert!(worst <= 21 * MS, "{worst}");
        // If context switches take as long as its steps, the claim with the streams is barely a light one.
        if costs.switch.0 < 100 * US {
            assert!(used.iter().sum::<f64>() > 0.9, "{used:?}");
            assert!(used[1] > 0.45, "{used:?}");
        }
    }
}

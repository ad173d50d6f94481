//! Before the time for which the machine asks to be called, time alone changes nothing.

use std::time::Duration;

use super::super::*;
use super::histories::{Do, Play, history_of, number};

/// Actions without readings, lending and texts.
fn decided(actions: &[Action]) -> Vec<Action> {
    let decides = |a: &&Action| {
        !matches!(
            a,
            Action::Measure | Action::Cap { .. } | Action::Wait { .. }
        )
    };
    actions.iter().filter(decides).cloned().collect()
}

/// Actions caused by time alone just before the machine asked to be called.
fn too_late(p: &Play) -> Option<String> {
    let mut w = p.b.w.clone();
    w.send(Event::Tick);
    let wake = w.machine.next_wake(w.now);
    let from = w.log.len();
    // Levels are reached a millisecond before the wake that it asks for.
    let moment = Duration::from_millis(2);
    let now = std::mem::replace(
        &mut w.now,
        wake.map_or(p.b.w.now + Duration::from_secs(7200), |at| at - moment),
    );
    if w.now <= now {
        return None;
    }
    w.send(Event::Tick);
    let decided = decided(&w.log[from..]);
    let text = || {
        format!(
            "at {now:?} the machine asked to be called at {wake:?}, but called earlier it decided {decided:?}"
        )
    };
    (!decided.is_empty()).then(text)
}

/// All claims belong to one owner: past use of several owners is compared only once a minute.
fn play(seed: u64) -> Result<u32, String> {
    let (mut steps, _) = history_of(seed);
    let mut p = Play::new(false);
    let mut looked = 0;
    for (n, step) in steps.iter_mut().enumerate() {
        if let Do::Claim(claim) = step {
            claim.uid = 0;
        }
        p.step(step);
        let seconds = if let Do::Wait(seconds) = step {
            *seconds
        } else {
            0
        };
        for second in 0..=seconds {
            // Requests do not change every second.
            let look = second % 4 == 0;
            looked += u32::from(look);
            if let Some(late) = look.then(|| too_late(&p)).flatten() {
                return Err(format!("history {seed}, step {n}, {second} s: {late}"));
            }
            if second < seconds {
                p.second();
            }
        }
    }
    Ok(looked)
}

#[test]
fn before_the_moment_that_the_machine_asks_for_the_time_alone_decides_nothing() {
    let first = number("GSHARE_SEED", 1);
    let many = number("GSHARE_HISTORIES", 60);
    let mut looked = 0;
    let late: Vec<String> = (first..first + many)
        .filter_map(|seed| play(seed).map(|n| looked += n).err())
        .collect();
    println!("histories {first} to {}: {looked} states", first + many - 1);
    assert!(
        late.is_empty(),
        "{} of {many} histories: {}",
        late.len(),
        late[..late.len().min(4)].join("\n")
    );
}

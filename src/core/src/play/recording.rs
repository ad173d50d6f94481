//! What a machine was told and what it decided, to be played again: from what it was told alone it must come to the same.

use crate::machine::{Action, Event, Machine, Now};

/// Steps of a machine, from its first.
#[derive(Clone, Debug, Default)]
pub struct Recording(Vec<(Now, Event, Vec<Action>)>);

/// A step that came out otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct Differs {
    /// Which, counted from 0.
    pub step: usize,
    /// What the machine was told.
    pub event: Event,
    /// What was recorded.
    pub recorded: Vec<Action>,
    /// What came out now.
    pub played: Vec<Action>,
}

impl Recording {
    /// Notes a step.
    pub fn note(&mut self, now: Now, event: Event, actions: &[Action]) {
        self.0.push((now, event, actions.to_vec()));
    }

    /// Plays what was told into a new machine; with the number of steps, and of those among them that decided something.
    ///
    /// # Errors
    /// The first step that comes out otherwise.
    pub fn play(&self) -> Result<(usize, usize), Box<Differs>> {
        let mut machine = Machine::default();
        let mut decided = 0;
        for (step, (now, event, recorded)) in self.0.iter().enumerate() {
            let played = machine.step(*now, event.clone());
            if played != *recorded {
                return Err(Box::new(Differs {
                    step,
                    event: event.clone(),
                    recorded: recorded.clone(),
                    played,
                }));
            }
            decided += usize::from(recorded.iter().any(|a| *a != Action::Measure));
        }
        Ok((self.0.len(), decided))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Setup;
    use super::super::list::{self, Cut};
    use super::super::player::watched;
    use super::*;

    #[test]
    fn what_was_told_leads_to_what_was_decided_and_anything_else_does_not() {
        let cut = Cut {
            claims: 60,
            gpus: 2,
            run_s: (30.0, 1800.0),
            ..Cut::default()
        };
        let block = list::block(&list::synthetic(200, 1), &cut, 1);
        let setup = Setup {
            gpus: 2,
            faults: 3,
            ..Setup::default()
        };
        let mut recording = Recording::default();
        let _ = watched(&block, &setup, &mut |now, event, actions| {
            recording.note(now, event.clone(), actions);
        });
        let (steps, decided) = recording.play().expect("the same");
        assert!(decided > 60 && steps > decided, "{steps} {decided}");
        // One event less, and it comes out otherwise.
        let submit = |(_, e, _): &(Now, Event, Vec<Action>)| matches!(e, Event::Submit { .. });
        let at = recording.0.iter().position(submit).expect("one");
        recording.0.remove(at);
        assert!(recording.play().is_err());
    }
}

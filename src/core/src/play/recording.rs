//! Records a machine's events and actions. Replaying the events must produce the same actions.

use crate::machine::{Action, Event, Machine, Now};

/// Steps of a machine, from its first event on.
#[derive(Clone, Debug, Default)]
pub struct Recording(Vec<(Now, Event, Vec<Action>)>);

/// A step with different actions.
#[derive(Clone, Debug, PartialEq)]
pub struct Differs {
    /// Index, counted from 0.
    pub step: usize,
    pub event: Event,
    pub recorded: Vec<Action>,
    /// Actions in the replay.
    pub played: Vec<Action>,
}

impl Recording {
    /// Records a step.
    pub fn note(&mut self, now: Now, event: Event, actions: &[Action]) {
        self.0.push((now, event, actions.to_vec()));
    }

    /// Replays the events into a new machine. Returns the number of steps, and how many of them had actions other than
    /// [`Action::Measure`].
    ///
    /// # Errors
    /// The first step with different actions.
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
        // Without one event the result is different.
        let submit = |(_, e, _): &(Now, Event, Vec<Action>)| matches!(e, Event::Submit { .. });
        let at = recording.0.iter().position(submit).expect("one");
        recording.0.remove(at);
        assert!(recording.play().is_err());
    }
}

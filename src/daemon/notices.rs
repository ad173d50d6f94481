//! Recent notices for the screen.

use std::collections::VecDeque;

use gshare_proto::Notice;

use super::command::Command;
use super::fact::Fact;
use super::world::World;

/// Maximum number of notices.
const NOTICES: usize = 50;

/// The newest first, each with the owner of its claim.
#[derive(Debug, Default)]
pub(crate) struct Notices(VecDeque<(Option<u32>, Notice)>);

impl Notices {
    /// Adds a notice. If there are too many, drops the oldest of the owner with the most.
    pub(crate) fn on(&mut self, _: &World<'_>, fact: &Fact, _: &mut Vec<Command>) {
        let Fact::Told { owner, notice } = fact else {
            return;
        };
        self.0.push_front((*owner, notice.clone()));
        if self.0.len() > NOTICES {
            let of = |owner| self.0.iter().filter(|(o, _)| *o == owner).count();
            let most = self
                .0
                .iter()
                .map(|(owner, _)| *owner)
                .max_by_key(|o| of(*o));
            let oldest = self.0.iter().rposition(|(o, _)| Some(*o) == most);
            oldest.and_then(|at| self.0.remove(at));
        }
    }

    /// Notices for whose owner `of` is true.
    pub(crate) fn show(&self, of: impl Fn(Option<u32>) -> bool) -> Vec<Notice> {
        let shown = self.0.iter().filter(|(owner, _)| of(*owner));
        shown.map(|(_, notice)| notice.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::world::scene::Scene;

    #[test]
    fn one_users_many_notices_do_not_push_out_anothers() {
        let (mut notices, scene) = (Notices::default(), Scene::of(0));
        let mut tell = |owner, text: &str| {
            let notice = Notice {
                text: text.to_owned(),
                ..Notice::default()
            };
            let told = Fact::Told { owner, notice };
            notices.on(&scene.world(), &told, &mut Vec::new());
        };
        tell(Some(1), "the other's");
        for _ in 0..2 * NOTICES {
            tell(Some(2), "again");
        }
        tell(None, "newest");
        let shown = notices.show(|_| true);
        assert_eq!(shown.len(), NOTICES);
        assert_eq!(shown[0].text, "newest");
        assert!(shown.iter().any(|n| n.text == "the other's"));
        assert_eq!(notices.show(|owner| owner == Some(1)).len(), 1);
    }
}

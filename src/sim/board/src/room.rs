//! What blocks need of an SM, and how blocks of several kernels share the SMs.
//!
//! The kernels of one context give out their blocks one after the other, in the order in which they become the first of
//! their streams: nothing of a kernel goes to an SM while an earlier one has blocks left to give out. Then blocks go
//! wherever what they need is left (Amert, Otterness, Yang, Anderson, Smith: GPU Scheduling on the NVIDIA TX2: Hidden
//! Details Revealed, RTSS 2017).

use crate::cost::Shape;
use crate::models::Model;

/// What an SM has, or a block needs of it.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Room {
    pub warps: u32,
    pub regs: u32,
    /// Bytes of shared memory.
    pub shared: u32,
    pub blocks: u32,
}

impl Room {
    pub(crate) fn of_sm(model: &Model) -> Room {
        Room {
            warps: model.warps_per_sm(),
            regs: model.regs_per_sm,
            shared: model.shared_per_sm,
            blocks: model.blocks_per_sm,
        }
    }

    /// What a block needs; `None` if no GPU of the model can run it.
    pub(crate) fn of_block(model: &Model, shape: &Shape) -> Option<Room> {
        if !(1..=1024).contains(&shape.threads) || shape.shared > model.shared_optin {
            return None;
        }
        Some(Room {
            warps: shape.warps(),
            regs: shape.regs_per_warp() * shape.warps(),
            // The driver keeps 1 KiB of shared memory for each resident block.
            shared: shape.shared.saturating_add(1024).next_multiple_of(128),
            blocks: 1,
        })
    }

    /// Number of such blocks that fit.
    pub(crate) fn holds(self, block: Room) -> u32 {
        [
            (self.warps, block.warps),
            (self.regs, block.regs),
            (self.shared, block.shared),
            (self.blocks, block.blocks),
        ]
        .into_iter()
        .filter_map(|(has, needs)| has.checked_div(needs))
        .min()
        .unwrap_or(0)
    }

    fn without(self, block: Room, times: u32) -> Room {
        Room {
            warps: self.warps - block.warps * times,
            regs: self.regs - block.regs * times,
            shared: self.shared - block.shared * times,
            blocks: self.blocks - block.blocks * times,
        }
    }
}

/// SMs with the same left.
#[derive(Debug, Clone, Copy)]
struct Group {
    sms: u64,
    left: Room,
    /// With blocks of some kernel; of the one that is being placed.
    taken: bool,
    mine: bool,
}

/// The SMs of a context.
#[derive(Debug)]
pub(crate) struct Floor(Vec<Group>);

/// What a kernel gets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub blocks: u64,
    /// SMs with a block of it.
    pub sms: u64,
    /// Those of them that had no block of another kernel.
    pub fresh: u64,
}

impl Floor {
    pub(crate) fn new(sms: u64, left: Room) -> Floor {
        Floor(vec![Group {
            sms,
            left,
            taken: false,
            mine: false,
        }])
    }

    /// Places blocks, each on the SM with the most warps left.
    pub(crate) fn place(&mut self, blocks: u64, needs: Room) -> Place {
        let groups = &mut self.0;
        for group in groups.iter_mut() {
            group.mine = false;
        }
        let mut place = Place::default();
        while place.blocks < blocks {
            let with_room = groups.iter().enumerate();
            let with_room = with_room.filter(|(_, g)| g.left.holds(needs) > 0);
            let Some((at, _)) = with_room.max_by_key(|(_, g)| (g.left.warps, !g.taken)) else {
                break;
            };
            let best = groups.swap_remove(at);
            let wanted = blocks - place.blocks;
            let sms = best.sms.min(wanted);
            // As many on each SM as bring it down to the next ones.
            let next = groups.iter().map(|g| g.left.warps);
            let next = next.filter(|warps| *warps <= best.left.warps).max();
            let above = best.left.warps - next.unwrap_or(0);
            let times = above.div_ceil(needs.warps.max(1)).max(1);
            let times = times.min(best.left.holds(needs));
            let times = u64::from(times).min(wanted / sms).max(1);
            place.blocks += sms * times;
            place.sms += if best.mine { 0 } else { sms };
            place.fresh += if best.taken { 0 } else { sms };
            groups.push(Group {
                sms,
                left: best.left.without(needs, times as u32),
                taken: true,
                mine: true,
            });
            if best.sms > sms {
                groups.push(Group {
                    sms: best.sms - sms,
                    ..best
                });
            }
        }
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SM: Room = Room {
        warps: 64,
        regs: 65_536,
        shared: 228 << 10,
        blocks: 32,
    };

    fn block(warps: u32, regs: u32, shared: u32) -> Room {
        Room {
            warps,
            regs,
            shared,
            blocks: 1,
        }
    }

    #[test]
    fn a_kernel_alone_spreads_out_and_fills_what_there_is() {
        let place = |blocks| {
            let got = Floor::new(10, SM).place(blocks, block(16, 8_192, 1024));
            (got.blocks, got.sms, got.fresh)
        };
        assert_eq!(place(3), (3, 3, 3));
        assert_eq!(place(25), (25, 10, 10));
        assert_eq!(place(40), (40, 10, 10));
        assert_eq!(place(400), (40, 10, 10), "four of 16 warps on each");
    }

    #[test]
    fn a_later_kernel_goes_to_empty_sms_and_then_beside_others() {
        let mut floor = Floor::new(10, SM);
        floor.place(6, block(32, 32_768, 1024));
        let place = |blocks, sms, fresh| Place { blocks, sms, fresh };
        // On each of six SMs is room for one more, on four for two.
        let second = floor.place(20, block(32, 32_768, 1024));
        assert_eq!(second, place(14, 10, 4));
        assert_eq!(floor.place(1, block(1, 256, 1024)), Place::default());
        // Registers are gone, warps are left.
        let mut floor = Floor::new(10, SM);
        floor.place(1000, block(2, 32_768, 1024));
        assert_eq!(floor.place(1000, block(2, 1, 1024)), Place::default());
        // Shared memory is gone, warps are left.
        let mut floor = Floor::new(10, SM);
        floor.place(1000, block(4, 1_024, 100 << 10));
        assert_eq!(floor.place(1000, block(8, 2_048, 1024)), place(70, 10, 0));
        // SMs with as much left get blocks in turn.
        let mut floor = Floor::new(10, SM);
        floor.place(6, block(32, 256, 1024));
        floor.place(8, block(16, 256, 1024));
        assert_eq!(floor.place(10, block(8, 256, 1024)), place(10, 10, 0));
    }
}

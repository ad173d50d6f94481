//! What a lane knows about itself, and what the lanes of a warp tell each other.

use crate::error::Trap;
use crate::exec::Launch;
use crate::exec::warp::{Fragment, Warp, lanes};
use crate::ir::{Function, Lanes, Shfl, Special, Src, Vote, WARP};

impl Warp {
    pub(super) fn special(
        &mut self,
        launch: &Launch<'_>,
        at: &Fragment,
        mask: u32,
        d: u32,
        which: Special,
    ) {
        let config = launch.config;
        let tid = self.tid;
        let threads = config.block.iter().product::<u32>();
        let shared = launch.shared.len() as u32;
        let now = config.time_ns.wrapping_add(launch.stats.warp_instructions);
        let all = |value: u32| -> Lanes { [u64::from(value); WARP] };
        let by_lane =
            |f: fn(u32) -> u32| -> Lanes { std::array::from_fn(|lane| u64::from(f(lane as u32))) };
        let values = match which {
            Special::Tid(axis) => tid[usize::from(axis)].map(u64::from),
            Special::Ntid(axis) => all(config.block[usize::from(axis)]),
            Special::Ctaid(axis) => all(launch.block[usize::from(axis)]),
            Special::Nctaid(axis) => all(config.grid[usize::from(axis)]),
            Special::LaneId => by_lane(|lane| lane),
            Special::WarpId => all(self.index),
            Special::NwarpId => all(threads.div_ceil(WARP as u32)),
            Special::SmId => all((launch.block_index % u64::from(config.sm_count.max(1))) as u32),
            Special::NsmId => all(config.sm_count),
            Special::GridId => all(1),
            Special::LaneMaskEq => by_lane(|lane| 1 << lane),
            Special::LaneMaskLt => by_lane(|lane| (1 << lane) - 1),
            Special::LaneMaskLe => by_lane(|lane| (1 << lane) | ((1 << lane) - 1)),
            Special::LaneMaskGt => by_lane(|lane| !((1 << lane) | ((1 << lane) - 1))),
            Special::LaneMaskGe => by_lane(|lane| !((1 << lane) - 1)),
            Special::Clock => [self.clock; WARP],
            Special::ClockHi => [self.clock >> 32; WARP],
            Special::GlobalTimer => [now; WARP],
            Special::GlobalTimerHi => [now >> 32; WARP],
            Special::DynamicSharedSize => all(config.dynamic_shared),
            Special::TotalSharedSize => all(shared),
        };
        self.set(at, mask, d, |lane| values[lane]);
    }

    pub(super) fn shuffle(
        &mut self,
        function: &Function,
        at: &Fragment,
        mask: u32,
        (mode, d, p): (Shfl, u32, u32),
        args: &[Src; 4],
    ) {
        let [a, b, c, _] = args.map(|src| *self.source(function, at.regs, src));
        let pick = |lane: usize| {
            let (clamp, segment) = (c[lane] as u32 & 31, c[lane] as u32 >> 8 & 31);
            let (own, by) = (lane as u32, b[lane] as u32 & 31);
            let first = own & segment;
            let last = first | (clamp & !segment);
            let (from, inside) = match mode {
                Shfl::Up => (own.wrapping_sub(by), own as i32 - by as i32 >= last as i32),
                Shfl::Down => (own + by, own + by <= last),
                Shfl::Bfly => (own ^ by, own ^ by <= last),
                Shfl::Idx => (first | (by & !segment), first | (by & !segment) <= last),
            };
            (if inside { from as usize % WARP } else { lane }, inside)
        };
        self.set(at, mask, d, |lane| a[pick(lane).0]);
        self.set(at, mask, p, |lane| u64::from(pick(lane).1));
    }

    pub(super) fn vote(
        &mut self,
        function: &Function,
        at: &Fragment,
        mask: u32,
        (mode, d, a): (Vote, u32, Src),
    ) {
        let a = *self.source(function, at.regs, a);
        let ballot = lanes(mask).fold(0u32, |all, lane| all | ((a[lane] & 1) as u32) << lane);
        let value = match mode {
            Vote::Any => u64::from(ballot != 0),
            Vote::All => u64::from(ballot == mask),
            Vote::Uni => u64::from(ballot == mask || ballot == 0),
            Vote::Ballot => u64::from(ballot),
        };
        self.set(at, mask, d, |_| value);
    }

    /// Whether live lanes that are named have not come yet: then these wait for them.
    pub(super) fn must_wait(
        &self,
        function: &Function,
        at: &mut Fragment,
        mask: u32,
        members: Src,
        line: u32,
    ) -> Result<bool, Trap> {
        let members = self.source(function, at.regs, members);
        let live = self.fragments.iter().fold(mask, |live, f| live | f.mask);
        if !lanes(mask).any(|lane| members[lane] as u32 & live & !mask != 0) {
            return Ok(false);
        }
        if self.fragments.iter().all(Fragment::is_held) {
            let text = "lanes of a divergent warp speaking to each other".to_owned();
            return Err(Trap::Unsupported { line, text });
        }
        at.waits = true;
        Ok(true)
    }
}

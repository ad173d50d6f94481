//! Machines in random states.

use gshare_proto::{Figure, Snapshot, Source};

/// Numbers from a seed: the multiplier and the shifts of splitmix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    pub(crate) fn part(&mut self) -> f64 {
        self.below(10_001) as f64 / 10_000.0
    }

    pub(crate) fn figure(&mut self, most: f64) -> Option<Figure> {
        (self.below(6) > 0).then(|| Figure {
            value: self.part() * most,
            source: Source::Shim,
            estimate: self.below(3) == 0,
        })
    }
}

/// A machine in any state: known or not, shared in turns or not, burst, idle, in host memory, adopted, drained, sick.
pub(crate) fn any_state(random: &mut Random) -> Snapshot {
    let bases = [
        super::workstation,
        super::lab,
        super::nothing_free,
        super::mig,
        super::demo,
    ];
    let mut s = bases[random.below(5) as usize]();
    for gpu in &mut s.gpus {
        let whole = gpu.mem_whole().unwrap_or(0) as f64;
        gpu.mem_used = (random.below(6) > 0).then(|| (random.part() * whole) as u64);
        gpu.mem_claimed = (random.part() * whole) as u64;
        gpu.claimable = [0.0, (random.part() * 100.0).round() / 100.0][random.below(2) as usize];
        gpu.time_busy = random.figure(100.0);
        gpu.sm_active = random.figure(100.0);
        gpu.sm_occupancy = random.figure(100.0);
        if !gpu.is_instance() {
            gpu.mode = ["timeslice", "mps"][random.below(2) as usize].to_owned();
        }
    }
    for claim in &mut s.claims {
        claim.adopted = random.below(12) == 0;
        claim.announced = (random.below(9) == 0).then(|| "moves from GPU 3 to 2 in 3 s".to_owned());
        claim.place.word = (random.below(9) == 0).then(|| "offloaded".to_owned());
        claim.refusals = random.below(3) * random.below(2);
        claim.ends_ms = (random.below(3) == 0).then(|| super::NOW_MS + random.below(90_000_000));
        for part in &mut claim.gpus {
            part.sm_request = (random.part() * 100.0).round() / 100.0;
            part.mem_request = (random.part() * super::gib(23.0) as f64) as u64;
            part.mem_used = (random.below(6) > 0).then(|| (random.part() * 3e10) as u64);
            part.mem_charge = None;
            part.time_got = None;
            part.time_busy = random.figure(100.0);
            part.sm_active = random.figure(100.0);
            part.throttled = random.figure(40.0);
        }
    }
    for waiting in &mut s.queue {
        let at = super::NOW_MS + random.below(9000) * random.below(9000);
        waiting.expected_ms = (random.below(3) > 0).then_some(at);
    }
    if let Some(now) = &mut s.claimable_now {
        for model in &mut now.models {
            if random.below(3) == 0 {
                (model.whole, model.largest) = (0, 0.0);
            }
        }
    }
    s
}

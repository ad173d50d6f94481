//! Random sequences of all calls that allocate and free, in processes on two GPUs that are stopped and killed at random
//! moments, on the simulated driver: after every step the ledger equals the board, and never exceeds the cap.
//!
//! `SHIM_SEQUENCES` is the number of sequences (default 2,000; each prints its seed when it fails), `SHIM_SEED` the
//! first seed.

#![allow(
    clippy::unwrap_used,
    unsafe_code,
    reason = "a test fails by panicking; stops its own children"
)]

mod support;

use gshare_sim_board::{Board, MemoryKind};
use support::{Client, Desk, MIB};

const OOM: i32 = 2;

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }
}

/// Something that a process holds: the order that frees it.
struct Member {
    client: Client,
    held: Vec<String>,
    /// The GPU of its current context, and its streams there and on the other.
    gpu: usize,
    streams: [Vec<u64>; 2],
    pools: Vec<u64>,
    /// A graph, its number of launches, and its GPU.
    exec: Option<(u64, u64, usize)>,
}

struct World {
    desk: Desk,
    board: Board,
    members: Vec<Member>,
    cap: u64,
    steps: u64,
    made: u64,
    refused: u64,
    killed: u64,
    stopped: u64,
}

impl World {
    fn new() -> Self {
        let cap = |overhead| 3 * overhead + 96 * MIB;
        let (desk, board, overhead) =
            Desk::simulated(&["rtx4090"; 2], "", &[0, 1], |_, overhead| cap(overhead));
        let mut world = Self {
            desk,
            board,
            members: Vec::new(),
            cap: cap(overhead),
            steps: 0,
            made: 0,
            refused: 0,
            killed: 0,
            stopped: 0,
        };
        for _ in 0..3 {
            world.join();
        }
        world
    }

    fn join(&mut self) {
        let mut client = self.desk.client();
        let gpu = self.members.len() % 2;
        client.begin(gpu as i32);
        let mut streams = [Vec::new(), Vec::new()];
        streams[gpu] = vec![0, client.must("stream"), client.must("stream")];
        self.members.push(Member {
            client,
            held: Vec::new(),
            gpu,
            streams,
            pools: Vec::new(),
            exec: None,
        });
    }

    /// Bytes on the board, plus managed memory, which the ledger counts and the driver does not.
    fn used(&self, gpu: usize) -> u64 {
        let gpu = &self.board.snapshot().gpus[gpu];
        let managed = |(kind, bytes): &(MemoryKind, u64)| match kind {
            MemoryKind::Managed => *bytes,
            _ => 0,
        };
        let kinds = gpu.processes.iter().flat_map(|process| &process.by_kind);
        gpu.used + kinds.map(managed).sum::<u64>()
    }

    fn check(&mut self, seed: u64, what: &str) {
        self.steps += 1;
        for gpu in 0..2 {
            let (charged, used) = (self.desk.charged(gpu), self.used(gpu));
            assert_eq!(charged, used, "seed {seed}: {what}, GPU {gpu}");
            assert!(charged <= self.cap, "seed {seed}: {what}: {charged}");
        }
    }

    fn step(&mut self, dice: &mut Dice, seed: u64) {
        let who = dice.roll(self.members.len() as u64) as usize;
        let kind = dice.roll(33);
        let other = dice.roll(2);
        let large = 2 * MIB * (1 + dice.roll(8));
        let small = 512 * (1 + dice.roll(1400));
        let member = &mut self.members[who];
        let stream = member.streams[member.gpu][dice.roll(3) as usize];
        let (order, free): (String, &[&str]) = match kind {
            0..4 => (format!("alloc {large}"), &["free", "free_on"]),
            4..8 => (format!("alloc {small}"), &["free", "free_on"]),
            8 => (format!("alloc {}", large + small), &["free", "free_on"]),
            9 => (format!("managed {large}"), &["free"]),
            10 => (
                format!("pitch {} 4096", 512 * (1 + dice.roll(4))),
                &["free"],
            ),
            11..14 => (format!("async_on {large} {stream}"), &["free", "free_on"]),
            14 => (format!("async_on {small} {stream}"), &["free", "free_on"]),
            15 => (
                format!("array 1024 {}", 512 * (1 + dice.roll(6))),
                &["array_destroy"],
            ),
            16 => (format!("create {large} 1 {other}"), &["unhandle"]),
            17 => (format!("mapped {large} {other}"), &["unmapped"]),
            18 => match member.pools.first() {
                Some(pool) => (format!("from_pool {large} {pool}"), &["free", "free_on"]),
                None => {
                    let pool = member.client.must(&format!("pool {}", member.gpu));
                    member.pools.push(pool);
                    return self.check(seed, "pool");
                }
            },
            19 => {
                self.graph(who, dice, seed);
                return;
            }
            32 => return self.turn(who, seed),
            20 => {
                member.client.must("sync");
                return self.check(seed, "sync");
            }
            _ => {
                if member.held.is_empty() {
                    return;
                }
                let at = dice.roll(member.held.len() as u64) as usize;
                let order = member.held.swap_remove(at);
                let order = match order.strip_prefix("free_on ") {
                    Some(pointer) => format!("free_on {pointer} {stream}"),
                    None => order,
                };
                member.client.must(&order);
                member.client.must("sync");
                return self.check(seed, &order);
            }
        };
        match member.client.ask(&order) {
            (0, made) => {
                let free = free[dice.roll(free.len() as u64) as usize];
                member.held.push(format!("{free} {made}"));
                self.made += 1;
            }
            (OOM, _) => self.refused += 1,
            (code, _) => panic!("seed {seed}: {order}: {code}"),
        }
        self.check(seed, &order);
    }

    /// Continues in a context on the other GPU.
    fn turn(&mut self, who: usize, seed: u64) {
        let member = &mut self.members[who];
        let gpu = 1 - member.gpu;
        match member.client.ask(&format!("retain {gpu}")).0 {
            0 => {
                member.gpu = gpu;
                let streams = &mut member.streams[gpu];
                if streams.is_empty() {
                    let client = &mut member.client;
                    *streams = vec![0, client.must("stream"), client.must("stream")];
                }
            }
            code => assert_eq!(code, OOM, "seed {seed}"),
        }
        self.check(seed, "turn");
    }

    /// Captures a graph with its own memory, launches it, destroys it.
    fn graph(&mut self, who: usize, dice: &mut Dice, seed: u64) {
        let Member {
            client,
            streams,
            exec,
            gpu,
            ..
        } = &mut self.members[who];
        let stream = streams[*gpu][1];
        match exec.take() {
            None => {
                client.must(&format!("capture {stream}"));
                let bytes = 2 * MIB * (1 + dice.roll(6));
                let at = client.must(&format!("async_on {bytes} {stream}"));
                client.must(&format!("free_on {at} {stream}"));
                let graph = client.must(&format!("captured {stream}"));
                *exec = Some((client.must(&format!("instantiate {graph}")), 0, *gpu));
            }
            Some((made, launches, home)) if home != *gpu => {
                *exec = Some((made, launches, home));
                return;
            }
            Some((made, launches, home)) if launches < 3 => {
                let code = client.ask(&format!("graph_launch {made} {stream}")).0;
                assert!([0, OOM].contains(&code), "seed {seed}: launch: {code}");
                client.must("sync");
                *exec = Some((made, launches + 1, home));
            }
            Some((made, _, home)) => {
                client.must(&format!("exec_destroy {made}"));
                client.must(&format!("graph_trim {home}"));
            }
        }
        self.check(seed, "graph");
    }

    /// Stops one member while it allocates as fast as it can; the others go on meanwhile, then it goes on or dies.
    fn stop_or_kill(&mut self, dice: &mut Dice, seed: u64) {
        let who = dice.roll(self.members.len() as u64) as usize;
        let dies = dice.roll(2) == 0;
        let piece = [2 * MIB, 700 << 10, 4 * MIB][dice.roll(3) as usize];
        let rounds = if dies { 1_000_000 } else { 1 + dice.roll(3) };
        let victim = &mut self.members[who];
        let pid = victim.client.pid();
        victim.client.tell(&format!("fill {piece} {rounds}"));
        // A varying moment.
        for _ in 0..dice.roll(3000) {
            std::hint::spin_loop();
        }
        // SAFETY: a child of this test.
        unsafe { libc::kill(pid as i32, libc::SIGSTOP) };
        for (other, member) in self.members.iter_mut().enumerate() {
            if other != who {
                // Refused or not, the call returns.
                let (code, at) = member.client.ask("alloc 2097152");
                assert!([0, OOM].contains(&code), "seed {seed}: {code}");
                if code == 0 {
                    member.client.must(&format!("free {at}"));
                }
            }
        }
        for gpu in 0..2 {
            let charged = self.desk.charged(gpu);
            assert!(charged <= self.cap, "seed {seed}: stopped: {charged}");
        }
        self.stopped += 1;
        self.killed += u64::from(dies);
        if dies {
            self.members.swap_remove(who).client.kill();
            self.desk.reap(pid);
            self.check(seed, "killed");
            self.join();
        } else {
            // SAFETY: as above.
            unsafe { libc::kill(pid as i32, libc::SIGCONT) };
            assert_eq!(self.members[who].client.hear().0, 0, "seed {seed}");
        }
        self.check(seed, "after");
    }

    /// Frees everything.
    fn clear(&mut self, seed: u64) {
        for member in &mut self.members {
            for order in member.held.drain(..) {
                match order.strip_prefix("free_on ") {
                    Some(pointer) => member.client.must(&format!("free_on {pointer} 0")),
                    None => member.client.must(&order),
                };
            }
            member.client.must("sync");
        }
        self.check(seed, "everything freed");
    }
}

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

#[test]
fn the_ledger_is_the_boards_after_every_step_of_random_sequences() {
    let sequences = from_environment("SHIM_SEQUENCES", 2_000);
    let first = from_environment("SHIM_SEED", 1);
    let mut world = World::new();
    for seed in first..first + sequences {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 + dice.roll(24) {
            world.step(&mut dice, seed);
        }
        if dice.roll(8) == 0 {
            world.stop_or_kill(&mut dice, seed);
        }
        if dice.roll(4) == 0 {
            world.clear(seed);
        }
    }
    let World {
        steps,
        made,
        refused,
        stopped,
        killed,
        ..
    } = world;
    println!(
        "{sequences} sequences from seed {first}: {steps} steps, {made} allocations, {refused} \
         refused, {stopped} members stopped, {killed} of them killed"
    );
    assert!(
        made > sequences && refused > sequences / 4,
        "the sequences do something"
    );
}

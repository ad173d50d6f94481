//! The programs that share GPU time: ordinary programs on the driver API, without knowledge of gshare.

use std::ffi::CString;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use gshare_enforcer::cuda::{Context, CudaError, Driver, Event, Function, Stream, Streams};

/// Kernels by name with their durations, for the cost registry.
pub(in crate::bench) const KERNELS: &[(&str, u64)] = &[
    ("spin_10us", 10_000),
    ("spin_100us", 100_000),
    ("spin_1ms", 1_000_000),
    ("spin_4ms", 4_000_000),
    ("spin_20ms", 20_000_000),
    ("spin_200ms", 200_000_000),
];

/// Kernels of the C program of the light mixes, named by their duration in microseconds.
const LIGHT_US: [u64; 5] = [1, 30, 1_000, 5_000, 20_000];

/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
const MULTIPROCESSOR_COUNT: i32 = 16;
/// Bytes per copy of the copy-heavy program.
const COPY: usize = 4 << 20;
/// Launches per graph.
const NODES: usize = 10;
/// GPU time that a program keeps queued, in nanoseconds; at least one kernel.
const QUEUED_NS: u64 = 4_000_000;
/// Maximum number of launches between two events.
const BATCH: u64 = 24;

/// Cost registry for a station that runs these programs.
pub(in crate::bench) fn costs() -> String {
    let row = |(name, ns): &(&str, u64)| format!("{name} {ns}ns\n");
    let light = |us: &u64| format!("spin_{us}us {us}us\n");
    let rows = KERNELS.iter().map(row);
    // The kernel that waits for its twin on another GPU.
    let meets = std::iter::once("meet_100us 100us meets 2\n".to_owned());
    rows.chain(LIGHT_US.iter().map(light))
        .chain(meets)
        .collect()
}

/// Duration of a kernel in nanoseconds.
pub(in crate::bench) fn kernel_ns(name: &str) -> Option<u64> {
    KERNELS.iter().find(|(n, _)| *n == name).map(|(_, ns)| *ns)
}

/// PTX with a kernel of this name. On a simulated GPU it does nothing, and the cost registry sets its duration. On a
/// real one each thread mixes a number `rounds` times. The result would be stored if it were 0, which never happens, so
/// the compiler cannot remove the loop.
fn program(name: &str, rounds: Option<u64>) -> anyhow::Result<(CString, CString)> {
    let body = match rounds {
        None => "ret;\n".to_owned(),
        Some(rounds) => format!(
            ".reg .pred %p<3>;\n.reg .b64 %d<8>;\n.reg .b32 %r<4>;\n\
             mov.u32 %r1, %tid.x;\nadd.u32 %r1, %r1, 1;\ncvt.u64.u32 %d1, %r1;\nmov.u64 %d2, {rounds};\n\
             LOOP:\n\
             shl.b64 %d3, %d1, 13;\nxor.b64 %d1, %d1, %d3;\n\
             shr.u64 %d3, %d1, 7;\nxor.b64 %d1, %d1, %d3;\n\
             shl.b64 %d3, %d1, 17;\nxor.b64 %d1, %d1, %d3;\n\
             sub.u64 %d2, %d2, 1;\nsetp.ne.u64 %p1, %d2, 0;\n@%p1 bra LOOP;\n\
             setp.eq.u64 %p2, %d1, 0;\nmov.u64 %d4, 0;\n@%p2 st.global.u64 [%d4], %d1;\nret;\n"
        ),
    };
    let text = format!(
        ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry {name}()\n{{\n{body}}}\n"
    );
    Ok((CString::new(text)?, CString::new(name)?))
}

/// Loop iterations per millisecond, for programs on a real GPU.
pub(in crate::bench) const ROUNDS: &str = "GSHARE_BENCH_ROUNDS_PER_MS";
/// File for the number of finished kernels, as eight bytes.
pub(in crate::bench) const COUNT: &str = "GSHARE_BENCH_COUNT";

/// Progress of a running program.
struct Counter {
    file: Option<std::fs::File>,
    done: u64,
}

impl Counter {
    fn open() -> anyhow::Result<Self> {
        let path = std::env::var_os(COUNT);
        let open = |path| std::fs::File::options().write(true).open(path);
        Ok(Self {
            file: path
                .map(open)
                .transpose()
                .context("cannot open the count")?,
            done: 0,
        })
    }

    fn add(&mut self, kernels: u64) -> std::io::Result<()> {
        self.done += kernels;
        match &self.file {
            Some(file) => file.write_all_at(&self.done.to_le_bytes(), 0),
            None => Ok(()),
        }
    }
}

/// Launch parameters of a kernel.
#[derive(Clone, Copy)]
struct Shot {
    kernel: Function,
    blocks: u32,
}

/// Prints the loop iterations per millisecond of a kernel that is alone on the GPU.
fn calibrate(context: &Context, blocks: u32) -> anyhow::Result<()> {
    let streams = Streams::of(context)?;
    let (stream, event) = (streams.stream()?, streams.event()?);
    let mut rounds = 1024;
    loop {
        let (text, name) = program("calibrate", Some(rounds))?;
        let kernel = context.kernel(&text, &name)?;
        let mut least = Duration::MAX;
        for _ in 0..5 {
            let began = Instant::now();
            streams.launch_blocks(kernel, blocks, stream)?;
            streams.record(event, stream)?;
            streams.wait(event)?;
            least = least.min(began.elapsed());
        }
        // Long enough that the launch itself is negligible.
        if least > Duration::from_millis(20) || rounds >= 1 << 40 {
            let per_ms = rounds as f64 / (least.as_secs_f64() * 1e3);
            writeln!(std::io::stdout(), "{}", per_ms.max(1.0) as u64)?;
            return Ok(());
        }
        rounds *= 4;
    }
}

/// A stream with events around its batches, two of which are in flight.
struct Lane {
    stream: Stream,
    events: [Event; 2],
    /// Kernels of the batches in flight.
    batches: [u64; 2],
    turn: usize,
}

impl Lane {
    fn new(streams: &Streams<'_>) -> Result<Self, CudaError> {
        Ok(Self {
            stream: streams.stream()?,
            events: [streams.event()?, streams.event()?],
            batches: [0; 2],
            turn: 0,
        })
    }

    /// Waits for the end of the batch before the last one, then queues another with this many kernels.
    fn batch(
        &mut self,
        streams: &Streams<'_>,
        counter: &mut Counter,
        kernels: u64,
        put: &mut dyn FnMut(Stream) -> Result<(), CudaError>,
    ) -> anyhow::Result<()> {
        let at = self.turn % 2;
        if self.turn >= 2 {
            streams.wait(self.events[at])?;
            counter.add(self.batches[at])?;
        }
        put(self.stream)?;
        streams.record(self.events[at], self.stream)?;
        self.batches[at] = kernels;
        self.turn += 1;
        Ok(())
    }
}

/// Runs a program until it is killed, or until its requests are done.
pub(crate) fn run(args: &[String]) -> anyhow::Result<()> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let [kind, kernel, ..] = words[..] else {
        anyhow::bail!("a kind and a kernel are needed");
    };
    let number = |at: usize| words.get(at).and_then(|w| w.parse::<u64>().ok());
    let ns = kernel_ns(kernel).context("there is no such kernel")?;
    let driver = Driver::load(Path::new("libcuda.so.1"))?;
    let rounds = std::env::var(ROUNDS)
        .ok()
        .and_then(|n| n.parse::<u64>().ok());
    // On a real GPU all SMs need work; in the simulation one block lasts as long as a full wave.
    let sms = || driver.attribute(0, MULTIPROCESSOR_COUNT);
    let is_real = rounds.is_some() || kind == "calibrate";
    let blocks = if is_real {
        u32::try_from(sms()?).unwrap_or(1)
    } else {
        1
    };
    let context = driver.context(0)?;
    if kind == "calibrate" {
        return calibrate(&context, blocks);
    }
    let rounds =
        rounds.map(|per_ms| (u128::from(per_ms) * u128::from(ns) / 1_000_000).max(1) as u64);
    let (text, name) = program(kernel, rounds)?;
    let shot = Shot {
        kernel: context.kernel(&text, &name)?,
        blocks,
    };
    let function = shot.kernel;
    let streams = Streams::of(&context)?;
    let mut counter = Counter::open()?;
    let batch = (QUEUED_NS / 2 / ns).clamp(1, BATCH);
    match kind {
        "flood" => flood(&streams, shot, &mut counter, batch, number(2).unwrap_or(1)),
        "graph" => graph(&streams, shot, &mut counter),
        "copy" => copies(&context, &streams, shot, &mut counter),
        "requests" => requests(
            &streams,
            function,
            &mut counter,
            number(2).unwrap_or(1),
            Duration::from_micros(number(3).unwrap_or(0)),
            number(4).unwrap_or(1),
            Duration::from_micros(number(5).unwrap_or(0)),
        ),
        other => anyhow::bail!("there is no program `{other}`"),
    }
}

fn flood(
    streams: &Streams<'_>,
    shot: Shot,
    counter: &mut Counter,
    batch: u64,
    lanes: u64,
) -> anyhow::Result<()> {
    let mut lanes = (0..lanes.max(1))
        .map(|_| Lane::new(streams))
        .collect::<Result<Vec<_>, _>>()?;
    let batch = (batch / lanes.len() as u64).max(1);
    loop {
        for lane in &mut lanes {
            lane.batch(streams, counter, batch, &mut |stream| {
                (0..batch).try_for_each(|_| streams.launch_blocks(shot.kernel, shot.blocks, stream))
            })?;
        }
    }
}

fn graph(streams: &Streams<'_>, shot: Shot, counter: &mut Counter) -> anyhow::Result<()> {
    let mut lane = Lane::new(streams)?;
    let stream = lane.stream;
    let graph = streams.graph(stream, || {
        (0..NODES).try_for_each(|_| streams.launch_blocks(shot.kernel, shot.blocks, stream))
    })?;
    loop {
        lane.batch(streams, counter, NODES as u64, &mut |stream| {
            streams.launch_graph(graph, stream)
        })?;
    }
}

/// Two streams: one copies while the other computes.
fn copies(
    context: &Context,
    streams: &Streams<'_>,
    shot: Shot,
    counter: &mut Counter,
) -> anyhow::Result<()> {
    let mut lanes = [Lane::new(streams)?, Lane::new(streams)?];
    let from = streams.pinned(COPY)?;
    let to = [context.alloc(COPY)?, context.alloc(COPY)?];
    loop {
        for (lane, to) in lanes.iter_mut().zip(to) {
            lane.batch(streams, counter, 1, &mut |stream| {
                streams.copy(to, from, stream)?;
                streams.launch_blocks(shot.kernel, shot.blocks, stream)
            })?;
        }
    }
}

/// Requests of `count` kernels each, in bursts; prints the duration of each in microseconds.
fn requests(
    streams: &Streams<'_>,
    kernel: Function,
    counter: &mut Counter,
    count: u64,
    pause: Duration,
    burst: u64,
    rest: Duration,
) -> anyhow::Result<()> {
    let (stream, event) = (streams.stream()?, streams.event()?);
    let mut out = std::io::stdout();
    loop {
        for _ in 0..burst {
            let began = Instant::now();
            (0..count).try_for_each(|_| streams.launch(kernel, stream))?;
            streams.record(event, stream)?;
            streams.wait(event)?;
            writeln!(out, "{}", began.elapsed().as_micros())?;
            counter.add(count)?;
            std::thread::sleep(pause);
        }
        std::thread::sleep(rest);
    }
}

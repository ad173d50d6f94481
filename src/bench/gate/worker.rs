//! The programs whose GPU time is shared: ordinary users of the driver that know nothing of gshare.

use std::ffi::CString;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use gshare_enforcer::cuda::{Context, CudaError, Driver, Event, Function, Stream, Streams};

/// Kernels by name with what one of them takes, for the registry of durations.
pub(in crate::bench) const KERNELS: &[(&str, u64)] = &[
    ("spin_10us", 10_000),
    ("spin_100us", 100_000),
    ("spin_1ms", 1_000_000),
    ("spin_4ms", 4_000_000),
    ("spin_20ms", 20_000_000),
    ("spin_200ms", 200_000_000),
];

/// Bytes of one copy of the copy-heavy program.
const COPY: usize = 4 << 20;
/// Launches of one graph.
const NODES: usize = 10;
/// GPU time that a program keeps queued, in nanoseconds; at least one kernel.
const QUEUED_NS: u64 = 4_000_000;
/// Most launches between two events.
const BATCH: u64 = 24;

/// The registry of durations for a station that runs these programs.
pub(in crate::bench) fn costs() -> String {
    let row = |(name, ns): &(&str, u64)| format!("{name} {ns}ns\n");
    KERNELS.iter().map(row).collect()
}

/// Nanoseconds of a kernel.
pub(in crate::bench) fn kernel_ns(name: &str) -> Option<u64> {
    KERNELS.iter().find(|(n, _)| *n == name).map(|(_, ns)| *ns)
}

/// PTX with a kernel of this name that does nothing; the registry says how long.
fn program(name: &str) -> anyhow::Result<(CString, CString)> {
    let text = format!(
        ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry {name}()\n{{\nret;\n}}\n"
    );
    Ok((CString::new(text)?, CString::new(name)?))
}

/// One stream with events around its batches, of which two are in flight.
struct Lane {
    stream: Stream,
    events: [Event; 2],
    turn: usize,
}

impl Lane {
    fn new(streams: &Streams<'_>) -> Result<Self, CudaError> {
        Ok(Self {
            stream: streams.stream()?,
            events: [streams.event()?, streams.event()?],
            turn: 0,
        })
    }

    /// Waits until the batch before the last one is over, then queues another.
    fn batch(
        &mut self,
        streams: &Streams<'_>,
        put: &mut dyn FnMut(Stream) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let event = self.events[self.turn % 2];
        if self.turn >= 2 {
            streams.wait(event)?;
        }
        put(self.stream)?;
        streams.record(event, self.stream)?;
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
    let context = driver.context(0)?;
    let (text, name) = program(kernel)?;
    let function = context.kernel(&text, &name)?;
    let streams = Streams::of(&context)?;
    let batch = (QUEUED_NS / 2 / ns).clamp(1, BATCH);
    match kind {
        "flood" => flood(&streams, function, batch, number(2).unwrap_or(1)),
        "graph" => graph(&streams, function),
        "copy" => copies(&context, &streams, function),
        "requests" => requests(
            &streams,
            function,
            number(2).unwrap_or(1),
            Duration::from_micros(number(3).unwrap_or(0)),
            number(4).unwrap_or(1),
            Duration::from_micros(number(5).unwrap_or(0)),
        ),
        "job" => job(
            &streams,
            function,
            u32::try_from(number(2).unwrap_or(1)).unwrap_or(1),
            number(3).unwrap_or(1),
            Duration::from_micros(number(4).unwrap_or(0)),
        ),
        other => anyhow::bail!("there is no program `{other}`"),
    }
}

fn flood(streams: &Streams<'_>, kernel: Function, batch: u64, lanes: u64) -> anyhow::Result<()> {
    let mut lanes = (0..lanes.max(1))
        .map(|_| Lane::new(streams))
        .collect::<Result<Vec<_>, _>>()?;
    let batch = (batch / lanes.len() as u64).max(1);
    loop {
        for lane in &mut lanes {
            lane.batch(streams, &mut |stream| {
                (0..batch).try_for_each(|_| streams.launch(kernel, stream))
            })?;
        }
    }
}

fn graph(streams: &Streams<'_>, kernel: Function) -> anyhow::Result<()> {
    let mut lane = Lane::new(streams)?;
    let stream = lane.stream;
    let graph = streams.graph(stream, || {
        (0..NODES).try_for_each(|_| streams.launch(kernel, stream))
    })?;
    loop {
        lane.batch(streams, &mut |stream| streams.launch_graph(graph, stream))?;
    }
}

/// Two streams: one copies while the other computes.
fn copies(context: &Context, streams: &Streams<'_>, kernel: Function) -> anyhow::Result<()> {
    let mut lanes = [Lane::new(streams)?, Lane::new(streams)?];
    let from = streams.pinned(COPY)?;
    let to = [context.alloc(COPY)?, context.alloc(COPY)?];
    loop {
        for (lane, to) in lanes.iter_mut().zip(to) {
            lane.batch(streams, &mut |stream| {
                streams.copy(to, from, stream)?;
                streams.launch(kernel, stream)
            })?;
        }
    }
}

/// A job of `steps` steps that fills as many SMs as it has blocks and computes on the processor between
/// steps: prints the microseconds that its steps took together.
fn job(
    streams: &Streams<'_>,
    kernel: Function,
    blocks: u32,
    steps: u64,
    think: Duration,
) -> anyhow::Result<()> {
    let (stream, event) = (streams.stream()?, streams.event()?);
    let began = Instant::now();
    for _ in 0..steps {
        streams.launch_blocks(kernel, blocks, stream)?;
        streams.record(event, stream)?;
        streams.wait(event)?;
        std::thread::sleep(think);
    }
    writeln!(std::io::stdout(), "{}", began.elapsed().as_micros())?;
    Ok(())
}

/// Requests of `count` kernels each, in bursts: prints the microseconds of each.
fn requests(
    streams: &Streams<'_>,
    kernel: Function,
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
            std::thread::sleep(pause);
        }
        std::thread::sleep(rest);
    }
}
